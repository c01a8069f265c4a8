//! Curves over time, read from the seconds that the analysis keeps.

use trace::stats::RecentWindow;
use trace::time_series::{HopSlotCounts, RecentSeconds, RecentTraffic, SlotCounts, SlotValues};
use trace::{Analysis, ThreadId};

const SECOND_NS: u64 = 1_000_000_000;

/// Reads the value of one second. `None` means that nothing was observed in it.
pub(crate) type SecondValue<'a> = dyn Fn(&SlotValues) -> Option<f64> + 'a;

/// Seconds of the run that curves show.
#[derive(Clone, Debug, Default)]
pub(crate) struct Curves {
    seconds: RecentSeconds,
    /// Whole seconds from the start of the run, which may be known later, to the first of `seconds`.
    offset_s: u64,
}

impl Curves {
    /// Copies the seconds that the analysis keeps, with their distance from the start of the run.
    pub(crate) fn from_analysis(analysis: &Analysis) -> Self {
        let seconds = analysis.time_series().recent_seconds(analysis.ledger());
        let started = analysis.ledger().started().unwrap_or_default();
        let offset_s = seconds.begun().map_or(0, |begun| begun.since(started) / SECOND_NS);
        Self { seconds, offset_s }
    }

    /// Newest second, which need not be over, counted from the start of the run.
    pub(crate) fn newest_second(&self) -> u64 {
        self.seconds.newest() + self.offset_s
    }

    /// Whether this second of the run is not over, so that its counts are those so far.
    pub(crate) fn is_current(&self, second: u64) -> bool {
        second.checked_sub(self.offset_s).is_some_and(|second| self.seconds.is_current(second))
    }

    /// Traffic of the seconds of a window.
    pub(crate) fn traffic_in(&self, window: RecentWindow) -> RecentTraffic {
        self.seconds.traffic_in(window)
    }

    /// Returns whether no second has begun.
    pub(crate) fn is_empty(&self) -> bool {
        self.seconds.is_empty()
    }

    /// Number of seconds kept before the newest one.
    pub(crate) fn seconds_before_newest(&self) -> u64 {
        self.seconds.len().saturating_sub(1) as u64
    }

    /// Number of kept seconds after the last one in which a request was live, a frame passed or waited, or a token was lost.
    pub(crate) fn idle_seconds_at_end(&self) -> u64 {
        let newest = self.newest_second();
        let oldest = newest - self.seconds_before_newest();
        let last_busy = (oldest..=newest).rev().find(|second| self.kept_slots(*second, *second).any(has_traffic));
        last_busy.map_or(0, |last_busy| newest - last_busy)
    }

    /// Index of a thread in [`SlotValues::threads`]; `None` if it has no curve.
    pub(crate) fn thread_index(&self, thread: ThreadId) -> Option<usize> {
        self.seconds.thread_index(thread)
    }

    /// Values of `column_count` columns, the last of which ends at `end_second` of the run. The value of a column is the maximum of
    /// `second_value` over its `seconds_per_column`. `None` where nothing was observed.
    pub(crate) fn column_values(
        &self,
        second_value: &SecondValue<'_>,
        end_second: u64,
        seconds_per_column: u64,
        column_count: usize,
    ) -> Vec<Option<f64>> {
        // A column has at least one second.
        let step = seconds_per_column.max(1);
        let mut values = Vec::with_capacity(column_count);
        for columns_before_end in (0..column_count as u64).rev() {
            let Some(last_second) = end_second.checked_sub(columns_before_end * step) else {
                // Before the start of the run.
                values.push(None);
                continue;
            };
            let first_second = last_second.saturating_sub(step - 1);
            let observed = self.kept_slots(first_second, last_second).filter_map(second_value);
            values.push(observed.reduce(f64::max));
        }
        values
    }

    /// Slots, the values of one second each, from `first_second` of the run to `last_second`, both included, as far as they are kept.
    fn kept_slots(&self, first_second: u64, last_second: u64) -> impl Iterator<Item = &SlotValues> {
        (first_second..=last_second).filter_map(|second| {
            let second_of_analysis = second.checked_sub(self.offset_s)?;
            self.seconds.second(second_of_analysis)
        })
    }

    /// Curves of seconds with these numbers of sent tokens.
    #[cfg(test)]
    pub(crate) fn from_token_counts(tokens: impl IntoIterator<Item = u64>) -> Self {
        let mut seconds = RecentSeconds::keeping(trace::ledger::Limits::default().recent_seconds);
        for tokens_sent in tokens {
            let mut slot = SlotValues::default();
            slot.passed.tokens_sent = tokens_sent;
            seconds.push_second(&slot.into());
        }
        Self { seconds, offset_s: 0 }
    }
}

/// Whether the second that this slot counts had traffic: a live request, a frame that passed or waited, or a token that was sent, delivered
/// or lost. Samples of threads and of queues do not count.
fn has_traffic(slot: &SlotValues) -> bool {
    let is_hop_used = slot.hops.iter().any(|hop| {
        let HopSlotCounts { frames_sent, frames_received, .. } = hop.passed;
        frames_sent > 0 || frames_received > 0 || hop.backlog_max > 0
    });
    // Once the scheduler's sends are not observed any more, the number of live requests is unknown.
    let has_live_requests = slot.live > 0 && !slot.sends_ended;
    // The count of finished requests is left out, because a request is counted as finished only some seconds after its last token.
    let SlotCounts { begun, tokens_sent, tokens_delivered, chunks_dropped, .. } = slot.passed;
    let has_counts = [begun, tokens_sent, tokens_delivered, chunks_dropped].iter().any(|count| *count > 0);
    is_hop_used || has_live_requests || has_counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::unnecessary_wraps, reason = "it reads a value that may be unknown")]
    fn tokens(slot: &SlotValues) -> Option<f64> {
        Some(slot.passed.tokens_sent as f64)
    }

    #[test]
    fn columns_show_the_maximum_and_are_blank_before_the_start() {
        let curves = Curves::from_token_counts(0..10);
        assert_eq!(curves.column_values(&tokens, 9, 1, 3), [Some(7.0), Some(8.0), Some(9.0)]);
        assert_eq!(curves.column_values(&tokens, 9, 5, 3), [None, Some(4.0), Some(9.0)]);
        assert_eq!(curves.column_values(&tokens, 2, 1, 4), [None, Some(0.0), Some(1.0), Some(2.0)]);
        assert_eq!(curves.column_values(&|_| None, 9, 1, 2), [None, None]);
    }

    #[test]
    fn seconds_are_counted_from_the_start_of_the_run() {
        let curves = Curves { offset_s: 3, ..Curves::from_token_counts([5]) };
        assert_eq!((curves.newest_second(), curves.seconds_before_newest()), (3, 0));
        assert_eq!(curves.column_values(&tokens, 3, 1, 2), [None, Some(5.0)]);
    }

    #[test]
    fn idle_seconds_are_those_after_the_last_traffic() {
        assert_eq!(Curves::from_token_counts([0, 7, 5, 0, 0, 0]).idle_seconds_at_end(), 3);
        assert_eq!(Curves::from_token_counts([0, 0]).idle_seconds_at_end(), 0, "there was no traffic at all");
        assert_eq!(Curves::default().idle_seconds_at_end(), 0);
    }

    #[test]
    fn curves_cover_an_hour() {
        let curves = Curves::from_token_counts(0..7_200);
        assert_eq!((curves.newest_second(), curves.seconds_before_newest()), (7_199, 3_599));
        assert_eq!(curves.column_values(&tokens, 3_600, 1, 2), [None, Some(3_600.0)]);
    }
}
