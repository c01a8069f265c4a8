//! Deliveries of imprecise chunks, whose id column does not show their own tokens: see the comment of the module `delivery_tracker`.

use super::{DeliveryResult, DeliveryTracker};
use crate::event::Delivery;
use crate::ledger::in_flight_entry::InFlightEntry;
use crate::ledger::outcome::{ChunkOutcome, JudgedList, UnjudgedCause};

/// How many of the last covered chunks a delivery can contain.
#[derive(Clone, Copy)]
struct CarrierCounts {
    min: usize,
    max: usize,
}

impl DeliveryTracker {
    /// Whether [`Self::judge_imprecise_delivery`] must judge a delivery of the tokens after count `from_count`, up to count `to_count`. It
    /// must if some sent chunks up to `to_count` are imprecise (their own tokens are not known), and some have undelivered tokens before
    /// `from_count`.
    pub(super) fn has_imprecise_gap_before(&self, from_count: u32, to_count: u32) -> bool {
        let mut has_imprecise = false;
        let mut has_gap = false;
        for entry in self.in_flight.iter().take_while(|entry| entry.end_count <= to_count) {
            let first_undelivered = entry.start_count().max(self.delivered_to);
            has_imprecise |= entry.is_imprecise;
            has_gap |= entry.tokens > 0 && first_undelivered < from_count;
        }
        has_imprecise && has_gap
    }

    /// Number of the entries in flight that a delivery up to count `to_count` covers. Empty chunks at its end that may be delivered
    /// separately are not counted.
    fn count_covered_entries(&self, to_count: u32, is_finished: bool) -> usize {
        let mut covered = self.in_flight.iter().take_while(|entry| entry.end_count <= to_count).count();
        // At least one chunk was delivered, and carries the delivery.
        let has_carrier = true;
        while covered > 1 && self.in_flight[covered - 1].may_be_delivered_later(to_count, has_carrier, is_finished) {
            covered -= 1;
        }
        covered
    }

    /// Judges an incremental delivery up to count `to_count` that has fewer tokens than the sent chunks up to there. Some of these chunks
    /// are imprecise: the number of their own tokens is not known. So it is not known how many of the last chunks the delivery carried.
    /// Those that it certainly carried are merged, those that it certainly did not carry are dropped, and the others are unjudged. If it
    /// `proves_no_loss`, none is dropped.
    pub(super) fn judge_imprecise_delivery(
        &mut self,
        delivery: &Delivery<'_>,
        to_count: u32,
        proves_no_loss: bool,
    ) -> DeliveryResult {
        // If no entry ends at `to_count`, the delivery's last chunk was not observed, or shares an entry with later chunks. The last
        // covered entry is then not the end of the delivery.
        let misses_end = self.last_covered_end(to_count).is_some_and(|end| end < to_count);
        let proves_no_loss = proves_no_loss || misses_end;
        let covered = self.count_covered_entries(to_count, delivery.finished);
        let proven = if proves_no_loss { None } else { self.carrier_count_bounds(covered, delivery) };
        // Without proof, the delivery carried the last covered chunk and any number of those before.
        let carriers = proven.unwrap_or(CarrierCounts { min: 1, max: covered });
        let cause = if proves_no_loss { UnjudgedCause::MissedObservations } else { UnjudgedCause::Ambiguous };
        let mut result = self.judge_covered_entries(covered, carriers, cause);
        // The match is uncertain, so the next delivery may follow unobserved chunks.
        self.is_uncertain = misses_end || (self.is_incomplete && carriers.min < carriers.max);
        result.new_tokens = self.advance_delivered_count(to_count, delivery.tokens);
        result
    }

    /// Removes the `covered_count` oldest entries in flight, of which the last ones carried a delivery, and judges them. Those that may be
    /// carried or dropped are unjudged, for the cause `cause_if_unknown`.
    fn judge_covered_entries(
        &mut self,
        covered_count: usize,
        carrier_counts: CarrierCounts,
        cause_if_unknown: UnjudgedCause,
    ) -> DeliveryResult {
        let mut judged = JudgedList::default();
        let mut has_carrier = false;
        let mut lost_ranges = Vec::new();
        // Oldest first, but counted from the last covered chunk, with which the delivery ends.
        for number_from_end in (1..=covered_count).rev() {
            let Some(entry) = self.pop_oldest_entry() else { break };
            let is_carried = number_from_end <= carrier_counts.min;
            let may_be_carried = number_from_end <= carrier_counts.max;
            let has_no_undelivered_token = entry.tokens == 0 || entry.end_count <= self.delivered_to;
            if is_carried {
                entry.push_judged_as_carried(self.delivered_to, &mut judged, &mut has_carrier);
            } else if may_be_carried || has_no_undelivered_token {
                judged.push_chunks(entry.as_unjudged(cause_if_unknown));
            } else {
                let lost_from = self.start_of_proven_loss(&entry);
                judged.push_chunks(entry.judged_with_outcome(ChunkOutcome::Dropped, entry.end_count - lost_from));
                lost_ranges.push(self.lost_range(&entry, lost_from, entry.end_count));
            }
        }
        DeliveryResult { judged, lost_ranges, ..DeliveryResult::default() }
    }

    /// Count after which the tokens of a dropped entry are certainly lost: those not delivered before. Of an imprecise chunk, only the last
    /// token is.
    fn start_of_proven_loss(&self, entry: &InFlightEntry) -> u32 {
        let lost_tokens = if entry.is_imprecise { 1 } else { entry.tokens };
        entry.end_count.saturating_sub(lost_tokens).max(self.delivered_to)
    }

    /// Minimum and maximum number of chunks that can carry exactly the delivered tokens. They are consecutive, and end with the last of
    /// the `covered_count` oldest entries. `None` if no number fits, or if the entry in which they begin has several chunks or lost tokens.
    fn carrier_count_bounds(&self, covered_count: usize, delivery: &Delivery<'_>) -> Option<CarrierCounts> {
        let mut min_tokens = 0_u32;
        let mut max_tokens = 0_u32;
        let mut counts: Option<CarrierCounts> = None;
        // Tries one chunk, two chunks and so on, from the last covered one backwards.
        for (index, entry) in self.in_flight.iter().take(covered_count).rev().enumerate() {
            // In such an entry, it is unknown where the carrying chunks begin.
            if entry.chunks > 1 || entry.missing_tokens > 0 {
                return None;
            }
            let is_last_covered = index == 0;
            let may_be_last_chunk = is_last_covered && delivery.finished;
            let tokens = entry.token_count_bounds(may_be_last_chunk);
            min_tokens = min_tokens.saturating_add(*tokens.start());
            max_tokens = max_tokens.saturating_add(*tokens.end());
            if (min_tokens..=max_tokens).contains(&delivery.tokens) {
                // The first number that fits is the minimum, and the last one the maximum.
                let carriers = index + 1;
                counts = Some(CarrierCounts { min: counts.map_or(carriers, |counts| counts.min), max: carriers });
            }
        }
        counts
    }
}
