//! A chunk of a request between its send and its delivery.

use std::ops::RangeInclusive;

use super::outcome::{ChunkOutcome, JudgedChunks, JudgedList, UnjudgedCause};
use crate::id::HopId;

/// A chunk sent and not yet delivered, or several neighbours once the tracker is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct InFlightEntry {
    /// The stream's high-water count after it.
    pub(crate) end_count: u32,
    /// Reported count. Below `end_count` while a retracted request recomputes; 0 if any merged entry did.
    pub(crate) reported_count: u32,
    pub(crate) tokens: u32,
    /// Tokens before or between its own that never reached its hop.
    pub(crate) missing_tokens: u32,
    /// Number of chunks, whose numbers follow each other; set by `DeliveryTracker::push_chunk`, as are its ids.
    pub(crate) chunks: u32,
    /// Number of its first chunk within the request (1-based).
    pub(crate) first_number: u32,
    /// Number of its ids in the tracker's `ids`: equal to `tokens`, or 0.
    pub(crate) ids: u32,
    /// Hop on which it was sent.
    pub(crate) hop: HopId,
    /// Only the growth of its count is known: see the comment of the module `delivery_tracker`.
    pub(crate) is_imprecise: bool,
    /// Its count does not continue from an observed chunk: observations between the previous entry and this one were missed.
    pub(crate) follows_gap: bool,
}

impl InFlightEntry {
    /// Count before its first own token.
    #[inline]
    pub(super) fn start_count(&self) -> u32 {
        self.end_count.saturating_sub(self.tokens)
    }

    /// Minimum and maximum number of tokens that the entry's delivery may have carried. They differ if the entry is imprecise: only the
    /// growth of its count is known.
    pub(super) fn token_count_bounds(&self, may_be_last_chunk: bool) -> RangeInclusive<u32> {
        if !self.is_imprecise {
            return self.tokens..=self.tokens;
        }
        // Only a request's last chunk may carry none.
        let min = if may_be_last_chunk { 0 } else { self.tokens.min(1) };
        min..=self.tokens
    }

    /// The chunks of the entry with this outcome, and with `tokens_lost` of their tokens lost.
    pub(super) fn judged_with_outcome(&self, outcome: ChunkOutcome, tokens_lost: u32) -> JudgedChunks {
        JudgedChunks {
            hop: self.hop,
            first: self.first_number,
            count: self.chunks,
            outcome,
            tokens_lost,
            merged_into: None,
        }
    }

    /// The chunks of the entry as unjudged for this reason.
    pub(super) fn as_unjudged(&self, cause: UnjudgedCause) -> JudgedChunks {
        let tokens_lost = 0;
        self.judged_with_outcome(ChunkOutcome::Unjudged(cause), tokens_lost)
    }

    /// Adds its chunks to `judged` as part of a delivery. The first chunk of the delivery counts as delivered, and the others as merged
    /// into it. If the entry has several chunks, some of which earlier deliveries (up to count `delivered_to_count`) may have carried, all
    /// are unjudged. `has_carrier`: whether an earlier entry of the delivery had its first chunk. It is set to true.
    pub(super) fn push_judged_as_carried(
        &self,
        delivered_to_count: u32,
        judged: &mut JudgedList,
        has_carrier: &mut bool,
    ) {
        let has_first_chunk = !*has_carrier;
        *has_carrier = true;
        let is_partly_delivered = self.start_count() < delivered_to_count;
        if self.chunks > 1 && is_partly_delivered {
            // It is unknown which of them the earlier deliveries carried.
            judged.push_chunks(self.as_unjudged(UnjudgedCause::Ambiguous));
            return;
        }
        // Either part may be empty, which `push_chunks` ignores.
        let delivered_chunks = u32::from(has_first_chunk);
        let tokens_lost = 0;
        judged.push_chunks(JudgedChunks {
            count: delivered_chunks,
            ..self.judged_with_outcome(ChunkOutcome::Delivered, tokens_lost)
        });
        judged.push_chunks(JudgedChunks {
            first: self.first_number.wrapping_add(delivered_chunks),
            count: self.chunks - delivered_chunks,
            ..self.judged_with_outcome(ChunkOutcome::Merged, tokens_lost)
        });
    }

    /// Whether it is an empty chunk after the delivered tokens, up to `to`, that may still be delivered separately. Not if the delivery
    /// ends the request.
    pub(super) fn may_be_delivered_later(&self, to: u32, has_carrier: bool, is_finished: bool) -> bool {
        self.end_count == to && self.tokens == 0 && has_carrier && !is_finished
    }
}
