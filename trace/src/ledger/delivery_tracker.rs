//! Delivery tracker of one request: finds the chunks that each delivery carried, merged or dropped.
//!
//! Chunks enter in the order they were sent, each with the count it ends at. A delivery of `n` tokens ending at count `C` covers `(C-n,
//! C]`. Earlier tokens that were never delivered are lost, because deliveries of one request never go back.
//!
//! The id column of an imprecise chunk does not show its own tokens. It lists all ids so far, none, or an unknown selection. Its count
//! grows by its own tokens and by those of preceding chunks that were missed or lost. A delivery of such chunks contains a run of
//! consecutive ones that ends with the last covered one. The run must be able to carry exactly the delivered tokens, which gives it a
//! minimum and a maximum length. Chunks before the longest run are dropped. Of each imprecise chunk among them, only the last token is
//! proven lost. Chunks between the shortest and the longest run are unjudged.

mod imprecise;
mod sent_chunk;

use std::collections::VecDeque;

use super::in_flight_entry::InFlightEntry;
use super::losses::{LossMemory, LostRange};
use super::outcome::{ChunkOutcome, JudgedChunks, JudgedList, OutcomeCounts, UnjudgedCause};
use crate::clock::MonoNs;
use crate::engine::Mode;
use crate::event::{Delivery, Response};
use crate::id::HopId;

/// The entry in flight that ends a delivery.
#[derive(Clone, Copy)]
struct LastCarrier {
    index: usize,
    /// Whether the delivery contains the earlier entries, too.
    carries_all: bool,
}

/// Judged entries that an incremental delivery covers.
struct CoveredEntries {
    judged: JudgedList,
    lost_ranges: Vec<LostRange>,
    /// Tokens in the entries that it carried.
    carried_tokens: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeliveryResult {
    /// Chunks whose outcome it shows.
    pub(crate) judged: JudgedList,
    /// Token ranges that it proves lost.
    pub(crate) lost_ranges: Vec<LostRange>,
    /// Deliveries before it may have been missed.
    pub(crate) missed_deliveries: bool,
    /// Tokens new to the client.
    pub(crate) new_tokens: u32,
}

/// Delivery tracker of one request.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact about the tracker, read by its name")]
pub(crate) struct DeliveryTracker {
    in_flight: VecDeque<InFlightEntry>,
    /// Ids of the entries that keep theirs, in order.
    ids: VecDeque<i64>,
    /// Ids of the most recently removed entry.
    removed_ids: Vec<i64>,
    /// Chunks in `in_flight`: sent and not delivered.
    pub(super) chunks_in_flight: u64,
    /// Chunks entered so far.
    pub(super) chunks_entered: u64,
    /// Number of entries whose count runs behind because a retracted request recomputes.
    entries_behind: u32,
    /// The count delivered so far.
    delivered_to: u32,
    has_begun: bool,
    epoch: u32,
    /// Hop of its last chunk.
    last_hop: Option<HopId>,
    /// The last delivery matched no chunk, so the next one may follow unobserved chunks.
    is_uncertain: bool,
    /// Some of the request's chunks or deliveries may have been missed.
    pub(crate) is_incomplete: bool,
    pub(crate) last_delivery_at: Option<MonoNs>,
    /// This request's chunks so far, by outcome.
    pub(crate) outcomes: OutcomeCounts,
    pub(crate) is_finished: bool,
    /// Tokens that a consumer counts by adding up the deliveries.
    pub(crate) claimed_tokens: u64,
    /// Number of deliveries that repeated its delivered tokens and continued after them.
    pub(crate) repeating_deliveries: u8,
    /// Its consumer has counted more tokens than were generated.
    pub(crate) is_inflated: bool,
    /// Another live request has its rid, so it is not judged.
    pub(crate) is_shared: bool,
    /// Until this time, a delivery may belong to the previous request with its rid.
    pub(crate) previous_until: MonoNs,
    /// Its response carries text only, so deliveries of its tokens are not observed.
    pub(crate) is_text_only: bool,
}

impl DeliveryTracker {
    /// Creates the tracker of a request. `delivery_epoch`: number that changes whenever deliveries may have been missed.
    /// `early_delivered_count`: count reached by a delivery that was reported before the first chunk, if there was one.
    pub(crate) fn new(delivery_epoch: u32, early_delivered_count: Option<u32>) -> Self {
        // What the early delivery contained was not observed, so losses cannot be proven.
        let has_early_delivery = early_delivered_count.is_some();
        Self {
            epoch: delivery_epoch,
            delivered_to: early_delivered_count.unwrap_or(0),
            is_uncertain: has_early_delivery,
            is_incomplete: has_early_delivery,
            ..Self::default()
        }
    }

    /// Sets the hop of the next chunk. A new hop leads to another tokenizer worker, or belongs to another request with the same rid. The
    /// chunks queued here are then not delivered with the next ones, so the next delivery is uncertain.
    pub(crate) fn set_hop_of_next_chunk(&mut self, hop: HopId) {
        let previous_hop = self.last_hop.replace(hop);
        if previous_hop.is_some_and(|previous| previous != hop) {
            self.mark_uncertain();
        }
    }

    /// Marks the next delivery as uncertain: it may belong to another request or to unobserved chunks.
    pub(crate) fn mark_uncertain(&mut self) {
        self.is_uncertain = true;
        self.is_incomplete = true;
    }

    /// Records `count` chunks from number `first` on as unjudged, because their deliveries cannot be recognised.
    pub(crate) fn skip_chunks(&mut self, hop: HopId, first: u32, count: u32, cause: UnjudgedCause) -> JudgedList {
        self.chunks_entered += u64::from(count);
        // Later deliveries may contain them.
        self.mark_uncertain();
        let mut judged = JudgedList::default();
        let outcome = ChunkOutcome::Unjudged(cause);
        judged.push_chunks(JudgedChunks { hop, first, count, outcome, tokens_lost: 0, merged_into: None });
        self.outcomes.add_counts(judged.count_outcomes());
        judged
    }

    pub(crate) fn tokens_in_flight(&self) -> u64 {
        self.in_flight.iter().map(|entry| u64::from(entry.tokens)).sum()
    }

    /// Stops waiting for deliveries. Returns the chunks in flight, which become unjudged.
    pub(crate) fn unjudge_all_in_flight(&mut self, cause: UnjudgedCause) -> JudgedList {
        self.mark_uncertain();
        self.unjudge_chunks_before_awaited(cause, |_| false)
    }

    /// Stops waiting for the deliveries of chunks before the first one that `is_awaited`. Returns those chunks, which become unjudged.
    pub(crate) fn unjudge_chunks_before_awaited(
        &mut self,
        cause: UnjudgedCause,
        is_awaited: impl Fn(&InFlightEntry) -> bool,
    ) -> JudgedList {
        let mut judged = JudgedList::default();
        while self.in_flight.front().is_some_and(|entry| !is_awaited(entry)) {
            let Some(entry) = self.pop_oldest_entry() else { break };
            judged.push_chunks(entry.as_unjudged(cause));
            self.mark_uncertain();
        }
        self.outcomes.add_counts(judged.count_outcomes());
        judged
    }

    /// Whether every chunk entered is judged, unjudged or in flight.
    pub(crate) fn is_balanced(&self) -> bool {
        let counted: u64 = self.in_flight.iter().map(|entry| u64::from(entry.chunks)).sum();
        counted == self.chunks_in_flight && self.chunks_entered == self.outcomes.chunks() + self.chunks_in_flight
    }

    /// The count delivered so far.
    pub(crate) fn delivered_to(&self) -> u64 {
        u64::from(self.delivered_to)
    }

    /// Count of the request's tokens after this delivery, which has been judged; `None` if parts of its response were not observed.
    pub(crate) fn count_after(&self, delivery: &Delivery<'_>) -> Option<u32> {
        let sum = u32::try_from(self.claimed_tokens).ok().filter(|_| !self.is_incomplete);
        delivery.completion_tokens.or(sum)
    }

    /// Number of entries, which determines memory use.
    pub(crate) fn entry_count(&self) -> usize {
        self.in_flight.len()
    }

    /// Adds its undelivered chunks to the memory in use.
    pub(crate) fn add_to_memory_use(&self, store: &mut LossMemory) {
        store.entries += self.entry_count();
        store.ids += self.ids.len();
    }

    /// Subtracts its undelivered chunks, before they change or are removed.
    pub(crate) fn subtract_from_memory_use(&self, store: &mut LossMemory) {
        store.entries -= self.entry_count();
        store.ids -= self.ids.len();
    }

    /// Whether chunks or deliveries before this delivery may be unobserved, so that it proves no loss. An entry is a sent chunk that waits
    /// for its delivery.
    fn may_follow_unobserved(&self, delivery: &Delivery<'_>, has_missed_deliveries: bool) -> bool {
        // While a retracted request recomputes, chunks report lower counts again (`entries_behind`). A delivery may then match an entry
        // with the same count whose own delivery was missed.
        let is_ambiguous = self.is_incomplete && self.entries_behind > 0;
        // A delivery may contain unobserved tokens before one of its chunks (`follows_gap`).
        let to_count = delivery.completion_tokens.unwrap_or(0);
        let mut reached = self.in_flight.iter().take_while(|entry| entry.end_count <= to_count);
        let has_gap = reached.any(|entry| entry.follows_gap);
        // `is_uncertain`: the delivery before this one matched no chunk.
        self.is_uncertain || has_missed_deliveries || is_ambiguous || has_gap
    }

    /// Finds the sent chunks that a delivery carried, merged or dropped, by the kind of the delivery. It `proves_no_loss` if chunks or
    /// deliveries before it may be unobserved.
    fn match_delivery(&mut self, delivery: &Delivery<'_>, proves_no_loss: bool) -> DeliveryResult {
        if delivery.mode == Mode::Cumulative {
            let to_count = delivery.completion_tokens.unwrap_or(delivery.tokens);
            return self.judge_cumulative_delivery(to_count, delivery.finished);
        }
        let Some(to_count) = delivery.completion_tokens else {
            return self.judge_delivery_without_count(delivery.tokens);
        };
        // Where chunks of a retracted request report lower counts again, the order of counts does not show which ones are covered.
        let counts_are_behind = self.entries_behind > 0;
        if counts_are_behind {
            let matched = self.judge_delivery_by_reported_count(delivery, to_count, proves_no_loss);
            return matched.unwrap_or_else(|| self.unjudge_chunks_up_to(to_count));
        }
        // The last event of a response with text shows which text is missing before it, even without new text.
        let shows_what_is_missing = delivery.tokens > 0 || delivery.response == Response::Text;
        if shows_what_is_missing {
            return self.judge_incremental_delivery(delivery, to_count, proves_no_loss);
        }
        // An empty delivery carries an empty chunk, which reported the same count.
        let matched = self.judge_delivery_by_reported_count(delivery, to_count, proves_no_loss);
        if matched.is_none() {
            // The delivered chunk was not observed, so the next delivery proves no drop either.
            self.is_uncertain = true;
        }
        matched.unwrap_or_default()
    }

    /// Judges which sent chunks a delivery carried, merged or dropped. `delivery_epoch` changes whenever deliveries may have been missed.
    pub(crate) fn judge_delivery(&mut self, delivery: &Delivery<'_>, delivery_epoch: u32) -> DeliveryResult {
        let has_missed_deliveries = self.epoch != delivery_epoch;
        self.epoch = delivery_epoch;
        self.is_incomplete |= has_missed_deliveries;
        let proves_no_loss = self.may_follow_unobserved(delivery, has_missed_deliveries);
        // It concerned this delivery only. `match_delivery` sets it if the next one is uncertain, too.
        self.is_uncertain = false;
        let mut result = self.match_delivery(delivery, proves_no_loss);
        // Chunks that come together by design count as delivered, not as merged.
        let together_by_design = count_chunks_together_by_design(delivery);
        if together_by_design > 0 {
            result.judged.mark_first_merged_as_delivered(together_by_design);
        }
        self.add_claimed_tokens(delivery);
        result.missed_deliveries |= has_missed_deliveries;
        self.is_finished |= delivery.finished;
        self.outcomes.add_counts(result.judged.count_outcomes());
        result
    }

    /// Counts the tokens that a consumer claims by adding up the deliveries. A cumulative delivery lists all tokens so far.
    #[inline]
    fn add_claimed_tokens(&mut self, delivery: &Delivery<'_>) {
        match delivery.mode {
            Mode::Cumulative => self.claimed_tokens = u64::from(delivery.tokens),
            Mode::Incremental => self.claimed_tokens += u64::from(delivery.tokens),
        }
    }

    /// Judges a cumulative delivery: it has all tokens up to count `to_count`, and so covers all in-flight chunks up to there.
    fn judge_cumulative_delivery(&mut self, to_count: u32, ends_request: bool) -> DeliveryResult {
        let mut judged = JudgedList::default();
        let mut has_carrier = false;
        while let Some(entry) = self.in_flight.front().copied() {
            let is_covered = entry.end_count <= to_count;
            // An empty chunk at the end of the delivery may have a delivery of its own.
            if !is_covered || entry.may_be_delivered_later(to_count, has_carrier, ends_request) {
                break;
            }
            self.pop_oldest_entry();
            entry.push_judged_as_carried(self.delivered_to, &mut judged, &mut has_carrier);
        }
        // If no chunk of an incomplete request was observed so far, earlier deliveries may have been missed, too. They may have had any
        // part of these tokens, so none counts as new.
        let may_have_missed_deliveries = self.is_incomplete && !self.has_begun;
        let max_new_tokens = if may_have_missed_deliveries { 0 } else { u32::MAX };
        DeliveryResult {
            judged,
            new_tokens: self.advance_delivered_count(to_count, max_new_tokens),
            missed_deliveries: may_have_missed_deliveries,
            ..DeliveryResult::default()
        }
    }

    /// Judges an incremental delivery: it has the last `delivery.tokens` tokens up to count `to_count`. Earlier tokens in flight (sent and
    /// not delivered) are lost, unless it `proves_no_loss`.
    fn judge_incremental_delivery(
        &mut self,
        delivery: &Delivery<'_>,
        to_count: u32,
        proves_no_loss: bool,
    ) -> DeliveryResult {
        let from_count = self.start_count_of_delivery(to_count, delivery.tokens);
        if self.has_imprecise_gap_before(from_count, to_count) {
            return self.judge_imprecise_delivery(delivery, to_count, proves_no_loss);
        }
        // If no entry ends at `to_count`, the last delivered chunk was not observed. It is then unknown whether tokens before it were lost
        // on the wire, and so where the delivery begins.
        let misses_end = self.last_covered_end(to_count).is_some_and(|end| end < to_count);
        let proves_no_loss = proves_no_loss || misses_end;
        let covered = self.judge_entries_up_to(delivery, from_count, to_count, proves_no_loss);
        // If the tokens do not add up, the delivery contains a chunk that was not observed.
        self.is_uncertain = (self.is_incomplete || misses_end) && covered.carried_tokens != delivery.tokens;
        DeliveryResult {
            judged: covered.judged,
            lost_ranges: covered.lost_ranges,
            new_tokens: self.advance_delivered_count(to_count, delivery.tokens),
            ..DeliveryResult::default()
        }
    }

    /// Removes the entries in flight that a delivery up to count `to_count` covers, and judges them. It carries the tokens after count
    /// `from_count`. Earlier ones are lost, unless it `proves_no_loss`.
    #[inline]
    fn judge_entries_up_to(
        &mut self,
        delivery: &Delivery<'_>,
        from_count: u32,
        to_count: u32,
        proves_no_loss: bool,
    ) -> CoveredEntries {
        let mut judged = JudgedList::default();
        let mut has_carrier = false;
        let mut carried_tokens = 0_u32;
        let mut lost_ranges = Vec::new();
        while let Some(entry) = self.in_flight.front().copied() {
            let is_covered = entry.end_count <= to_count;
            // An empty chunk at the end of the delivery may have a delivery of its own.
            if !is_covered || entry.may_be_delivered_later(to_count, has_carrier, delivery.finished) {
                break;
            }
            self.pop_oldest_entry();
            let first_undelivered = entry.start_count().max(self.delivered_to);
            // An empty chunk has nothing to lose, so it counts as carried.
            let is_carried = entry.tokens == 0 || first_undelivered >= from_count;
            if is_carried {
                carried_tokens = entry.tokens.saturating_add(carried_tokens);
                entry.push_judged_as_carried(self.delivered_to, &mut judged, &mut has_carrier);
                continue;
            }
            // Its tokens from `from_count` on are in the delivery. The undelivered ones before are not.
            let skipped_to = entry.end_count.min(from_count);
            let skipped_tokens = skipped_to.saturating_sub(first_undelivered);
            let skipped = judge_skipped_entry(&entry, from_count, skipped_tokens, proves_no_loss);
            judged.push_chunks(skipped);
            if skipped.tokens_lost > 0 {
                let lost_to = first_undelivered + skipped.tokens_lost;
                lost_ranges.push(self.lost_range(&entry, first_undelivered, lost_to));
            }
        }
        CoveredEntries { judged, lost_ranges, carried_tokens }
    }

    /// End of the last in-flight chunk that a delivery up to `to_count` may contain.
    fn last_covered_end(&self, to_count: u32) -> Option<u32> {
        self.in_flight.iter().map(|entry| entry.end_count).rfind(|&end| end <= to_count)
    }

    /// Count at which a delivery begins that has `delivered_tokens` tokens and ends at count `to_count`. Counts include tokens that were
    /// lost on the wire, but a delivery does not have them. So it begins earlier by the number of those that it spans.
    fn start_count_of_delivery(&self, to_count: u32, delivered_tokens: u32) -> u32 {
        let mut start = to_count.saturating_sub(delivered_tokens);
        let covered_backwards = self.in_flight.iter().rev().skip_while(|entry| entry.end_count > to_count);
        for entry in covered_backwards {
            // The lost tokens of an entry (`missing_tokens`) lie before its own ones.
            let spans_lost_tokens = start < entry.start_count();
            if spans_lost_tokens {
                start = start.saturating_sub(entry.missing_tokens);
            }
        }
        start
    }

    /// Finds the last chunk in a delivery by its reported count, `to_count`. The number of delivered tokens shows whether the delivery
    /// contains all chunks up to that one or that one alone. `None` if no chunk matches.
    fn find_last_carrier(&self, delivery: &Delivery<'_>, to_count: u32) -> Option<LastCarrier> {
        // Tokens of the oldest entry in flight and of all after it, up to the current one.
        let mut tokens_so_far = 0_u32;
        let mut last_carrier: Option<LastCarrier> = None;
        for (index, entry) in self.in_flight.iter().enumerate() {
            tokens_so_far = tokens_so_far.saturating_add(entry.tokens);
            let carries_all = tokens_so_far == delivery.tokens;
            let carries_this_alone = entry.tokens == delivery.tokens;
            let is_match = entry.reported_count == to_count && (carries_all || carries_this_alone);
            // Several chunks may report the same count. A delivery that ends the request has the last of them.
            if is_match && (last_carrier.is_none() || delivery.finished) {
                last_carrier = Some(LastCarrier { index, carries_all });
            }
        }
        last_carrier
    }

    /// Judges a delivery by its reported count `to_count`: it ends with the sent chunk that reported the same count. If it contains that
    /// chunk alone, the earlier ones are dropped, unless it `proves_no_loss`. `None` if no chunk matches.
    fn judge_delivery_by_reported_count(
        &mut self,
        delivery: &Delivery<'_>,
        to_count: u32,
        proves_no_loss: bool,
    ) -> Option<DeliveryResult> {
        let last = self.find_last_carrier(delivery, to_count)?;
        let mut judged = JudgedList::default();
        let mut has_carrier = false;
        let mut new_tokens = 0_u32;
        let mut lost_ranges = Vec::new();
        // Asked before entries are removed.
        let doubt = self.doubt_about_drops_before(last, proves_no_loss);
        for index in 0..=last.index {
            let Some(entry) = self.pop_oldest_entry() else { break };
            let delivered_before = self.delivered_to;
            self.delivered_to = delivered_before.max(entry.end_count);
            // An entry without tokens loses none, so it counts as carried, too.
            let is_carried = last.carries_all || index == last.index || entry.tokens == 0;
            if is_carried {
                entry.push_judged_as_carried(delivered_before, &mut judged, &mut has_carrier);
                new_tokens = entry.tokens.saturating_add(new_tokens);
            } else if let Some(cause) = doubt {
                judged.push_chunks(entry.as_unjudged(cause));
            } else {
                judged.push_chunks(entry.judged_with_outcome(ChunkOutcome::Dropped, entry.tokens));
                lost_ranges.push(self.lost_range(&entry, entry.start_count(), entry.end_count));
            }
        }
        self.has_begun = true;
        Some(DeliveryResult { judged, lost_ranges, new_tokens, ..DeliveryResult::default() })
    }

    /// Why it is unknown whether chunks before `last`, the end of a delivery, were dropped; `None` if it is known.
    fn doubt_about_drops_before(&self, last: LastCarrier, proves_no_loss: bool) -> Option<UnjudgedCause> {
        if proves_no_loss {
            return Some(UnjudgedCause::MissedObservations);
        }
        // An imprecise chunk may carry fewer tokens than assumed, so that the delivery may contain earlier ones.
        let has_imprecise = self.in_flight.iter().take(last.index + 1).any(|entry| entry.is_imprecise);
        has_imprecise.then_some(UnjudgedCause::Ambiguous)
    }

    /// Makes the chunks in flight unjudged that a delivery up to count `to_count` may have covered. Called for a retracted request, whose
    /// chunks report lower counts while it recomputes, if the delivery matches no chunk: the send of its chunk was not observed.
    fn unjudge_chunks_up_to(&mut self, to_count: u32) -> DeliveryResult {
        let mut judged = JudgedList::default();
        let may_be_covered = |entry: &InFlightEntry| entry.reported_count == to_count || entry.end_count <= to_count;
        let last_covered_index = self.in_flight.iter().rposition(may_be_covered);
        let covered_count = last_covered_index.map_or(0, |index| index + 1);
        for _ in 0..covered_count {
            let Some(entry) = self.pop_oldest_entry() else { break };
            judged.push_chunks(entry.as_unjudged(UnjudgedCause::MissedObservations));
        }
        self.is_uncertain = true;
        DeliveryResult { judged, ..DeliveryResult::default() }
    }

    /// Judges a delivery without a count: it covers the oldest chunks in flight with `delivered_tokens` tokens. Such a delivery proves no
    /// loss.
    fn judge_delivery_without_count(&mut self, delivered_tokens: u32) -> DeliveryResult {
        let mut judged = JudgedList::default();
        let mut has_carrier = false;
        let mut covered = 0_u32;
        let mut to_count = self.delivered_to;
        while let Some(entry) = self.in_flight.front().copied() {
            let remaining = delivered_tokens - covered;
            // An entry that does not fit whole stays in flight.
            let is_within_delivery = remaining > 0 && entry.tokens <= remaining;
            if !is_within_delivery {
                break;
            }
            self.pop_oldest_entry();
            covered += entry.tokens;
            to_count = entry.end_count;
            entry.push_judged_as_carried(self.delivered_to, &mut judged, &mut has_carrier);
        }
        // All covered tokens are new, so the returned number of new tokens is not needed.
        self.advance_delivered_count(to_count, covered);
        DeliveryResult { judged, new_tokens: covered, ..DeliveryResult::default() }
    }

    /// Raises the count delivered so far to `to_count`, and marks the request's deliveries as begun. Returns the number of new tokens,
    /// `max_new_tokens` at most.
    fn advance_delivered_count(&mut self, to_count: u32, max_new_tokens: u32) -> u32 {
        let new_tokens = to_count.saturating_sub(self.delivered_to).min(max_new_tokens);
        self.delivered_to = self.delivered_to.max(to_count);
        self.has_begun = true;
        new_tokens
    }

    /// Removes and returns the oldest entry, and keeps its token ids in `removed_ids`.
    fn pop_oldest_entry(&mut self) -> Option<InFlightEntry> {
        let entry = self.in_flight.pop_front()?;
        self.chunks_in_flight -= u64::from(entry.chunks);
        self.entries_behind -= u32::from(entry.reported_count < entry.end_count);
        // Kept for `lost_range`, which runs after the entry was removed.
        self.removed_ids.clear();
        self.removed_ids.extend(self.ids.drain(..entry.ids as usize));
        Some(entry)
    }

    /// The lost tokens of `entry` after count `from_count` up to count `to_count`, with their ids if kept. The entry must be the most
    /// recently removed one, whose ids are in `removed_ids`.
    fn lost_range(&self, entry: &InFlightEntry, from_count: u32, to_count: u32) -> LostRange {
        // The first id belongs to the token after the start count, `end_count - tokens`. Ids up to `from_count` are not lost, and their
        // number is `from_count` minus that start count.
        let first_lost_id = (from_count as usize + entry.tokens as usize).saturating_sub(entry.end_count as usize);
        let lost_tokens = (to_count - from_count) as usize;
        // `None` if the entry did not keep its ids.
        let lost_ids = self.removed_ids.get(first_lost_id..first_lost_id + lost_tokens);
        LostRange {
            // Positions count from 1.
            tokens: [from_count + 1, to_count],
            // In an entry of several chunks, it is unknown which of them are lost.
            chunks: (entry.chunks == 1).then_some([entry.first_number; 2]),
            ids: lost_ids.unwrap_or_default().to_vec(),
        }
    }
}

/// Judges an entry of sent chunks that a delivery skipped: the delivery begins at count `from_count`, after `undelivered_tokens` of the
/// entry's tokens. These are lost, because deliveries of one request never go back, unless the delivery `proves_no_loss`. If the entry has
/// several chunks, it may be unknown which of them lost tokens.
#[inline]
fn judge_skipped_entry(
    entry: &InFlightEntry,
    from_count: u32,
    undelivered_tokens: u32,
    proves_no_loss: bool,
) -> JudgedChunks {
    if proves_no_loss {
        return entry.as_unjudged(UnjudgedCause::MissedObservations);
    }
    let has_several_chunks = entry.chunks > 1;
    if has_several_chunks && entry.missing_tokens > 0 {
        // The wire lost tokens between its chunks, too, so not even the positions of the undelivered ones are known.
        return entry.as_unjudged(UnjudgedCause::Ambiguous);
    }
    let is_partly_delivered = entry.end_count > from_count;
    let outcome = if has_several_chunks && is_partly_delivered {
        ChunkOutcome::Unjudged(UnjudgedCause::Ambiguous)
    } else {
        ChunkOutcome::Dropped
    };
    entry.judged_with_outcome(outcome, undelivered_tokens)
}

/// Number of chunks in a delivery that come together with another chunk by design, and so do not count as merged.
fn count_chunks_together_by_design(delivery: &Delivery<'_>) -> u64 {
    match delivery.response {
        // All: a response that does not stream delivers once.
        Response::Whole => u64::MAX,
        // Chunks without text of their own always come with the text of others.
        Response::Streamed | Response::Text => delivery.without_text.into(),
    }
}

#[cfg(test)]
mod tests;
