//! Curves over time, read from the seconds that the analysis keeps.

use trace::stats::{Tally, WINDOW_NS};
use trace::time_series::{RecentSeconds, SlotValues};
use trace::{Analysis, ThreadId};

const SECOND_NS: u64 = 1_000_000_000;

/// Value that a curve shows of its seconds. `None` means not observable.
#[derive(Clone, Copy)]
pub(crate) enum Metric<'a> {
    /// A number of each second, of which a column shows the maximum.
    Maximum(&'a dyn Fn(&SlotValues) -> Option<f64>),
    /// The 99th percentile of first-token gaps, in nanoseconds. They ended in the column's seconds, and at least in the last ten.
    GapP99,
    /// The same of queue waits on the hops of a group.
    QueueWaitP99 {
        /// Index in the ledger's groups.
        group: usize,
    },
}

/// Seconds of the run that curves show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curves {
    seconds: RecentSeconds,
    /// Whole seconds from the start of the run, which may be known later, to the first of `seconds`.
    offset_s: u64,
}

impl Curves {
    pub(crate) fn from_analysis(analysis: &Analysis) -> Self {
        let seconds = analysis.time_series().recent().clone();
        let started = analysis.ledger().started().unwrap_or_default();
        let offset_s = seconds.begun().map_or(0, |begun| begun.since(started) / SECOND_NS);
        Self { seconds, offset_s }
    }

    /// Newest second that is over, counted from the start of the run.
    pub(crate) fn newest_second(&self) -> u64 {
        self.seconds.newest() + self.offset_s
    }

    /// Returns whether no second is over.
    pub(crate) fn is_empty(&self) -> bool {
        self.seconds.is_empty()
    }

    /// Number of seconds kept before the newest one.
    pub(crate) fn seconds_before_newest(&self) -> u64 {
        self.seconds.len().saturating_sub(1) as u64
    }

    /// Index of a thread in [`SlotValues::threads`]; `None` if it has no curve.
    pub(crate) fn thread_index(&self, thread: ThreadId) -> Option<usize> {
        self.seconds.thread_index(thread)
    }

    /// Returns `columns` values ending at second `end`, each over `step` seconds; `None` where nothing was observed.
    pub(crate) fn column_values(&self, metric: Metric<'_>, end: u64, step: u64, columns: usize) -> Vec<Option<f64>> {
        let step = step.max(1);
        let mut values = Vec::with_capacity(columns);
        for columns_before_end in (0..columns as u64).rev() {
            // `None` before the start of the run.
            let last = end.checked_sub(columns_before_end * step);
            values.push(last.and_then(|last| self.metric_value(metric, last.saturating_sub(step - 1), last)));
        }
        values
    }

    /// Value of the metric over these seconds, both included.
    fn metric_value(&self, metric: Metric<'_>, first: u64, last: u64) -> Option<f64> {
        // The last ten seconds, like the other quantiles on the screen.
        let window_start = first.min((last + 1).saturating_sub(WINDOW_NS / SECOND_NS));
        match metric {
            Metric::Maximum(number) => self.slots(first, last).filter_map(number).reduce(f64::max),
            Metric::GapP99 => p99_ns(self.slots(window_start, last).map(|slot| &slot.gap)),
            Metric::QueueWaitP99 { group } => {
                let hops = self.slots(window_start, last).filter_map(|slot| slot.hops.get(group));
                p99_ns(hops.map(|hop| &hop.queue_wait))
            }
        }
    }

    /// Values of the kept ones of these seconds, both included.
    fn slots(&self, first: u64, last: u64) -> impl Iterator<Item = &SlotValues> {
        (first..=last).filter_map(|second| self.seconds.second(second.checked_sub(self.offset_s)?))
    }

    /// Curves of seconds with these numbers of sent tokens.
    #[cfg(test)]
    pub(crate) fn from_token_counts(tokens: impl IntoIterator<Item = u64>) -> Self {
        let mut curves = Self::default();
        for tokens_sent in tokens {
            let mut slot = SlotValues::default();
            slot.passed.tokens_sent = tokens_sent;
            curves.seconds.add_slots(&slot.into(), 1, trace::time_series::SCREEN_SECONDS);
        }
        curves
    }
}

/// The 99th percentile of all tallies, in nanoseconds.
fn p99_ns<'a>(tallies: impl Iterator<Item = &'a Tally>) -> Option<f64> {
    let mut sum = Tally::default();
    tallies.for_each(|tally| sum.add(tally));
    sum.quantile(0.99).map(|ns| ns as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKENS: Metric<'static> = Metric::Maximum(&|slot| Some(slot.passed.tokens_sent as f64));

    #[test]
    fn columns_show_the_maximum_and_are_blank_before_the_start() {
        let curves = Curves::from_token_counts(0..10);
        assert_eq!(curves.column_values(TOKENS, 9, 1, 3), [Some(7.0), Some(8.0), Some(9.0)]);
        assert_eq!(curves.column_values(TOKENS, 9, 5, 3), [None, Some(4.0), Some(9.0)]);
        assert_eq!(curves.column_values(TOKENS, 2, 1, 4), [None, Some(0.0), Some(1.0), Some(2.0)]);
        assert_eq!(curves.column_values(Metric::Maximum(&|_| None), 9, 1, 2), [None, None]);
        assert_eq!(curves.column_values(Metric::GapP99, 9, 1, 2), [None, None]);
    }

    #[test]
    fn seconds_are_counted_from_the_start_of_the_run() {
        let curves = Curves { offset_s: 3, ..Curves::from_token_counts([5]) };
        assert_eq!((curves.newest_second(), curves.seconds_before_newest()), (3, 0));
        assert_eq!(curves.column_values(TOKENS, 3, 1, 2), [None, Some(5.0)]);
    }

    #[test]
    fn curves_cover_an_hour() {
        let curves = Curves::from_token_counts(0..7_200);
        assert_eq!((curves.newest_second(), curves.seconds_before_newest()), (7_199, 3_599));
        assert_eq!(curves.column_values(TOKENS, 3_600, 1, 2), [None, Some(3_600.0)]);
    }
}
