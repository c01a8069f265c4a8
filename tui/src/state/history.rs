//! Time series of the run with one sample per second, limited to the last hour.

use std::collections::VecDeque;

/// Seconds kept. At six numbers a second this is 200 KiB for the run, and 60 KiB for each hop and thread.
pub(crate) const KEPT: usize = 3_600;

/// One second of the run. `None` means not observable.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Sample {
    /// Tokens sent by the scheduler per second.
    pub(crate) tokens: f64,
    /// Frames sent by the scheduler per second.
    pub(crate) frames: f64,
    pub(crate) live: f64,
    /// Frames sent but not received, over all hops.
    pub(crate) backlog: Option<f64>,
    /// p99 of the first-token gap over the sliding window, in nanoseconds.
    pub(crate) gap_p99: Option<f64>,
    /// Chunks merged in this second, confirmed or predicted.
    pub(crate) merged: Option<f64>,
    /// Chunks lost in this second, confirmed or predicted.
    pub(crate) lost: Option<f64>,
}

/// One second of all hops with the same name.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct HopSample {
    pub(crate) frames: f32,
    pub(crate) backlog: Option<f32>,
    /// p99 of the queue wait over the sliding window, in nanoseconds.
    pub(crate) queue_wait_p99: Option<f32>,
}

/// One second of a thread, as shares from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ThreadSample {
    pub(crate) running: Option<f32>,
    pub(crate) waiting: Option<f32>,
    pub(crate) throttled: Option<f32>,
}

/// Selects a number of a sample for a chart.
pub(crate) type Metric<T> = fn(&T) -> Option<f64>;

/// One sample per second, up to [`KEPT`].
#[derive(Clone, Debug)]
pub(crate) struct History<T> {
    samples: VecDeque<T>,
    /// Second of the newest sample, counted from the start of the run.
    newest: u64,
}

impl<T> Default for History<T> {
    fn default() -> Self {
        Self { samples: VecDeque::new(), newest: 0 }
    }
}

impl<T: Copy> History<T> {
    /// Adds the sample for `second` and fills skipped seconds with copies of it. Ignores a second that already has a sample.
    pub(crate) fn enter(&mut self, second: u64, sample: T) {
        let missing = if self.samples.is_empty() { 1 } else { second.saturating_sub(self.newest) };
        for _ in 0..missing.min(KEPT as u64) {
            if self.samples.len() == KEPT {
                self.samples.pop_front();
            }
            self.samples.push_back(sample);
        }
        self.newest = self.newest.max(second);
    }

    /// Sample of the newest second, which is raised until that second ends.
    pub(crate) fn newest_mut(&mut self) -> Option<&mut T> {
        self.samples.back_mut()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    pub(crate) fn newest(&self) -> u64 {
        self.newest
    }

    /// Number of seconds with samples before the newest one.
    pub(crate) fn depth(&self) -> u64 {
        self.samples.len().saturating_sub(1) as u64
    }

    /// Returns `columns` values ending at second `end`, each the maximum over `step` seconds; `None` where nothing was observed.
    pub(crate) fn series(&self, metric: Metric<T>, end: u64, step: u64, columns: usize) -> Vec<Option<f64>> {
        let step = step.max(1);
        (0..columns as u64)
            .rev()
            .map(|column| {
                let last = end.checked_sub(column * step)?;
                let first = last.saturating_sub(step - 1);
                (first..=last).filter_map(|second| metric(self.at(second)?)).reduce(f64::max)
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
            history.enter(second, Sample { tokens: second as f64, ..Sample::default() });
        }
        history
    }

    #[test]
    fn columns_show_the_maximum_and_are_blank_before_the_start() {
        let history = ramp(10);
        let tokens: Metric<Sample> = |s| Some(s.tokens);
        assert_eq!(history.series(tokens, 9, 1, 3), [Some(7.0), Some(8.0), Some(9.0)]);
        assert_eq!(history.series(tokens, 9, 5, 3), [None, Some(4.0), Some(9.0)]);
        assert_eq!(history.series(tokens, 2, 1, 4), [None, Some(0.0), Some(1.0), Some(2.0)]);
        assert_eq!(history.series(|s| s.backlog, 9, 1, 2), [None, None]);
    }

    #[test]
    fn history_covers_an_hour_and_gaps_do_not_shift_time() {
        let mut history = ramp(2 * KEPT as u64);
        assert_eq!(history.depth(), KEPT as u64 - 1);
        let before = history.newest();
        history.enter(before + 5, Sample { tokens: 1.0, ..Sample::default() });
        assert_eq!(history.series(|s| Some(s.tokens), before, 1, 1), [Some(before as f64)]);
        history.enter(before, Sample::default());
        assert_eq!(history.newest(), before + 5);
    }
}
