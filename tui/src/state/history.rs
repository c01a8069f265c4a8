//! The run second by second, for the lines over time: an hour is kept, older seconds fall off.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// Seconds kept. At six numbers a second this is 200 KiB for the run, and 60 KiB for each hop and thread.
pub(crate) const KEPT: usize = 3_600;

/// What is kept of one second of the run. `None` is "not observable".
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Tokens sent by the scheduler per second.
    pub(crate) tokens: f64,
    /// Frames sent by the scheduler per second.
    pub(crate) frames: f64,
    /// Requests alive.
    pub(crate) live: f64,
    /// Frames sent and not taken, over all hops.
    pub(crate) backlog: Option<f64>,
    /// p99 of the first-token gap over the sliding window, in nanoseconds.
    pub(crate) gap_p99: Option<f64>,
    /// Chunks merged in this second, confirmed or predicted.
    pub(crate) merged: Option<f64>,
    /// Chunks lost in this second, confirmed or predicted.
    pub(crate) lost: Option<f64>,
}

/// What is kept of one second of the hops of one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct HopSample {
    pub(crate) frames: f32,
    pub(crate) backlog: Option<f32>,
    /// p99 over the sliding window, in nanoseconds.
    pub(crate) residence_p99: Option<f32>,
}

/// What is kept of one second of a thread: shares of it from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ThreadSample {
    pub(crate) running: Option<f32>,
    pub(crate) waiting: Option<f32>,
    pub(crate) held: Option<f32>,
}

/// A number of a sample that can be drawn.
pub(crate) type Metric<T> = fn(&T) -> Option<f64>;

/// The samples, one for each second since the start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct History<T> {
    samples: VecDeque<T>,
    /// Second of the newest sample, counted from the start of the run.
    newest: u64,
}

impl<T> Default for History<T> {
    fn default() -> Self {
        Self {
            samples: VecDeque::new(),
            newest: 0,
        }
    }
}

impl<T: Copy> History<T> {
    /// Enters the sample for `second`; a second that passed without one repeats it, a second entered before is kept.
    pub(crate) fn enter(&mut self, second: u64, sample: T) {
        let missing = if self.samples.is_empty() {
            1
        } else {
            second.saturating_sub(self.newest)
        };
        for _ in 0..missing.min(KEPT as u64) {
            if self.samples.len() == KEPT {
                self.samples.pop_front();
            }
            self.samples.push_back(sample);
        }
        self.newest = self.newest.max(second);
    }

    /// The same with no more than is kept.
    pub(super) fn bounded(mut self) -> Self {
        let beyond = self.samples.len().saturating_sub(KEPT);
        self.samples.drain(..beyond);
        self
    }

    /// The sample of the newest second, to be raised while that second lasts.
    pub(crate) fn newest_mut(&mut self) -> Option<&mut T> {
        self.samples.back_mut()
    }

    /// Whether nothing was entered yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The newest second.
    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// How far back from the newest second there are samples.
    pub(crate) fn depth(&self) -> u64 {
        self.samples.len().saturating_sub(1) as u64
    }

    /// `columns` values that end at second `end`, each the largest of `step` seconds; `None` where nothing was observed.
    pub(crate) fn series(&self, metric: Metric<T>, end: u64, step: u64, columns: usize) -> Vec<Option<f64>> {
        let step = step.max(1);
        (0..columns as u64)
            .rev()
            .map(|column| {
                let last = end.checked_sub(column * step)?;
                let first = last.saturating_sub(step - 1);
                (first..=last)
                    .filter_map(|second| metric(self.at(second)?))
                    .reduce(f64::max)
            })
            .collect()
    }

    fn at(&self, second: u64) -> Option<&T> {
        let back = self.newest.checked_sub(second)? as usize;
        self.samples.get(self.samples.len().checked_sub(back + 1)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ramp(seconds: u64) -> History<Sample> {
        let mut history = History::default();
        for second in 0..seconds {
            history.enter(
                second,
                Sample {
                    tokens: second as f64,
                    ..Sample::default()
                },
            );
        }
        history
    }

    #[test]
    fn a_column_holds_the_largest_of_its_seconds_and_the_time_before_the_start_is_blank() {
        let history = ramp(10);
        let tokens: Metric<Sample> = |s| Some(s.tokens);
        assert_eq!(history.series(tokens, 9, 1, 3), [Some(7.0), Some(8.0), Some(9.0)]);
        assert_eq!(history.series(tokens, 9, 5, 3), [None, Some(4.0), Some(9.0)]);
        assert_eq!(history.series(tokens, 2, 1, 4), [None, Some(0.0), Some(1.0), Some(2.0)]);
        assert_eq!(history.series(|s| s.backlog, 9, 1, 2), [None, None]);
    }

    #[test]
    fn an_hour_is_kept_and_a_sleep_does_not_shift_time() {
        let mut history = ramp(2 * KEPT as u64);
        assert_eq!(history.depth(), KEPT as u64 - 1);
        let before = history.newest();
        history.enter(
            before + 5,
            Sample {
                tokens: 1.0,
                ..Sample::default()
            },
        );
        assert_eq!(history.series(|s| Some(s.tokens), before, 1, 1), [Some(before as f64)]);
        history.enter(before, Sample::default());
        assert_eq!(history.newest(), before + 5);
    }
}
