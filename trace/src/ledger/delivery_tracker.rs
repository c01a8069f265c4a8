//! Delivery tracker of one request: finds the chunks that each delivery carried, merged or dropped.
//!
//! Chunks enter in the order they were sent, each with the count it ends at. A delivery of `n` tokens ending at count `C` covers `(C-n,
//! C]`. Earlier tokens that were never delivered are lost, because deliveries of one request never go back.
//!
//! The id column of an imprecise chunk does not show its own tokens. It lists all ids so far, none, or an unknown selection. Its count grows
//! by its own tokens and by those of preceding chunks that were missed or lost. A delivery of such chunks contains a run of consecutive ones
//! that ends with the last covered one. The run must be able to carry exactly the delivered tokens, which gives it a minimum and a maximum
//! length. Chunks before the longest run are dropped. Of each imprecise chunk among them, only the last token is proven lost. Chunks between
//! the shortest and the longest run are unjudged.

use std::collections::VecDeque;

use super::losses::{LossStore, LostRange};
use super::outcome::{ChunkOutcome, JudgedChunks, JudgedList, OutcomeCounts, UnjudgedCause};

use crate::clock::MonoNs;
use crate::engine::Mode;
use crate::event::{Delivery, Response};
use crate::id::HopId;

/// A chunk sent and not yet delivered, or several neighbours once the tracker is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The stream's high-water count after it.
    pub(crate) end: u32,
    /// Reported count. Below `end` while a retracted request recomputes; 0 if any merged entry did.
    pub(crate) counted: u32,
    pub(crate) tokens: u32,
    /// Tokens before or between its own that never reached its hop.
    pub(crate) missing: u32,
    /// Number of chunks, whose numbers follow each other; set by [`DeliveryTracker::push`], as are its ids.
    pub(crate) chunks: u32,
    /// Number of its first chunk within the request (1-based).
    pub(crate) nth: u32,
    /// Number of its ids in the tracker's `ids`: equal to `tokens`, or 0.
    pub(crate) ids: u32,
    /// Hop on which it was sent.
    pub(crate) hop: HopId,
    /// Only the growth of its count is known: see the module's comment.
    pub(crate) imprecise: bool,
    /// Its count does not continue from an observed chunk: observations between the previous entry and this one were missed.
    pub(crate) after_gap: bool,
}

impl Entry {
    /// Minimum and maximum number of tokens that it carries. `finishes`: it may be the request's last chunk.
    fn carries(&self, finishes: bool) -> (u32, u32) {
        if !self.imprecise {
            return (self.tokens, self.tokens);
        }
        // Only a request's last chunk may carry none.
        (self.tokens.min(u32::from(!finishes)), self.tokens)
    }

    /// All its chunks, with one outcome.
    fn judged(&self, outcome: ChunkOutcome, tokens_lost: u32) -> JudgedChunks {
        JudgedChunks { hop: self.hop, first: self.nth, count: self.chunks, outcome, tokens_lost }
    }

    fn unjudged(&self, cause: UnjudgedCause) -> JudgedChunks {
        self.judged(ChunkOutcome::Unjudged(cause), 0)
    }

    /// Enters its chunks as part of a delivery: the delivery's first one as delivered, the others as merged. If deliveries up to
    /// `delivered_to` had a part of the entry, it is unknown which of its chunks they carried.
    fn enter_carried(&self, delivered_to: u32, judged: &mut JudgedList, has_carrier: &mut bool) {
        let is_first = !std::mem::replace(has_carrier, true);
        if self.chunks > 1 && self.end.saturating_sub(self.tokens) < delivered_to {
            judged.push(self.unjudged(UnjudgedCause::Ambiguous));
            return;
        }
        let delivered = u32::from(is_first);
        judged.push(JudgedChunks { count: delivered, ..self.judged(ChunkOutcome::Delivered, 0) });
        judged.push(JudgedChunks {
            first: self.nth.wrapping_add(delivered),
            count: self.chunks - delivered,
            ..self.judged(ChunkOutcome::Merged, 0)
        });
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DeliveryResult {
    /// Chunks whose outcome it shows.
    pub(crate) judged: JudgedList,
    /// Token ranges that it proves lost.
    pub(crate) lost: Vec<LostRange>,
    /// Deliveries before it may have been missed.
    pub(crate) missed: bool,
    /// Tokens new to the client.
    pub(crate) new: u32,
}

/// Delivery tracker of one request.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact about the tracker, read by its name")]
pub(crate) struct DeliveryTracker {
    in_flight: VecDeque<Entry>,
    /// Ids of the entries that keep theirs, in order.
    ids: VecDeque<i64>,
    /// Ids of the most recently removed entry.
    gone: Vec<i64>,
    /// Chunks in `in_flight`: sent and not delivered.
    pub(super) chunks: u64,
    /// Chunks entered so far.
    pub(super) entered: u64,
    /// Number of entries whose count runs behind because a retracted request recomputes.
    behind: u32,
    /// The count delivered so far.
    delivered_to: u32,
    begun: bool,
    epoch: u32,
    /// Hop of its last chunk.
    by: Option<HopId>,
    /// The last delivery matched no chunk, so the next one may follow unobserved chunks.
    doubt: bool,
    /// Some of the request's chunks or deliveries may have been missed.
    pub(crate) incomplete: bool,
    pub(crate) last_at: Option<MonoNs>,
    /// This request's chunks so far, by outcome.
    pub(crate) outcomes: OutcomeCounts,
    pub(crate) finished: bool,
    /// Tokens that a consumer counts by adding up the deliveries.
    pub(crate) claimed: u64,
    /// Number of deliveries that repeated its delivered tokens and continued after them.
    pub(crate) repeated_all: u8,
    /// Its consumer has counted more tokens than were generated.
    pub(crate) inflated: bool,
    /// Another live request has its rid, so it is not judged.
    pub(crate) shared: bool,
    /// Until this time, a delivery may belong to the previous request with its rid.
    pub(crate) previous_until: MonoNs,
    /// Its response carries text only, so deliveries of its tokens are not observed.
    pub(crate) text: bool,
}

impl DeliveryTracker {
    /// `early`: the count reached by a delivery that was reported before its first chunk.
    pub(crate) fn new(epoch: u32, early: Option<u32>) -> Self {
        Self {
            epoch,
            delivered_to: early.unwrap_or(0),
            doubt: early.is_some(),
            incomplete: early.is_some(),
            ..Self::default()
        }
    }

    /// Sets the hop of the next chunk. A new hop leads to the waiter of another worker, or to another request with the same rid; that
    /// waiter does not receive the chunks queued here.
    pub(crate) fn arrives_on(&mut self, hop: HopId) {
        if self.by.replace(hop).is_some_and(|before| before != hop) {
            self.doubts();
        }
    }

    /// Marks the next delivery as uncertain: it may belong to another request or to unobserved chunks.
    pub(crate) fn doubts(&mut self) {
        (self.doubt, self.incomplete) = (true, true);
    }

    /// Enters chunks whose deliveries cannot be recognised. Later deliveries may contain them.
    pub(crate) fn skip(&mut self, hop: HopId, first: u32, count: u32, cause: UnjudgedCause) -> JudgedList {
        self.entered += u64::from(count);
        self.doubts();
        let mut judged = JudgedList::default();
        judged.push(JudgedChunks { hop, first, count, outcome: ChunkOutcome::Unjudged(cause), tokens_lost: 0 });
        self.outcomes.add(judged.counts());
        judged
    }

    /// Number of tokens in flight.
    pub(crate) fn tokens_in_flight(&self) -> u64 {
        self.in_flight.iter().map(|entry| u64::from(entry.tokens)).sum()
    }

    /// Stops waiting for deliveries. Returns the chunks in flight, which become unjudged.
    pub(crate) fn give_up_waiting(&mut self, cause: UnjudgedCause) -> JudgedList {
        let mut judged = JudgedList::default();
        for entry in self.in_flight.drain(..) {
            judged.push(entry.unjudged(cause));
        }
        self.chunks = 0;
        self.ids.clear();
        self.behind = 0;
        self.doubts();
        self.outcomes.add(judged.counts());
        judged
    }

    /// Whether every chunk entered is judged, unjudged or in flight.
    pub(crate) fn balances(&self) -> bool {
        let counted: u64 = self.in_flight.iter().map(|entry| u64::from(entry.chunks)).sum();
        counted == self.chunks && self.entered == self.outcomes.chunks() + self.chunks
    }

    /// The count delivered so far.
    pub(crate) fn delivered_to(&self) -> u64 {
        u64::from(self.delivered_to)
    }

    /// Number of entries, which determines memory use.
    pub(crate) fn entries(&self) -> usize {
        self.in_flight.len()
    }

    /// Adds its undelivered chunks to the memory in use.
    pub(crate) fn hold(&self, store: &mut LossStore) {
        store.entries += self.entries();
        store.ids += self.ids.len();
    }

    /// Subtracts its undelivered chunks, before they change or are removed.
    pub(crate) fn release(&self, store: &mut LossStore) {
        store.entries -= self.entries();
        store.ids -= self.ids.len();
    }

    /// Enters a chunk with the ids of its tokens, if kept. With `whole` false it shares an entry with its neighbour. Returns it if its outcome
    /// is decided: its delivery may have been observed before its send.
    pub(crate) fn push(&mut self, chunk: Entry, ids: &[i64], whole: bool) -> JudgedList {
        let chunk = Entry { chunks: 1, ..chunk };
        let Entry { end, counted, tokens, .. } = chunk;
        self.entered += 1;
        let after_gap = chunk.after_gap && self.begun;
        if !self.begun {
            self.begun = true;
            self.delivered_to = self.delivered_to.max(end.saturating_sub(tokens));
        }
        if self.text || (tokens > 0 && end <= self.delivered_to && self.in_flight.is_empty()) {
            let cause = if self.text { UnjudgedCause::TextOnly } else { UnjudgedCause::MissedObservations };
            let mut judged = JudgedList::default();
            judged.push(chunk.unjudged(cause));
            self.outcomes.add(judged.counts());
            return judged;
        }
        self.chunks += 1;
        match self.in_flight.back_mut() {
            Some(last) if !whole => {
                if last.ids > 0 && last.end + tokens == end && ids.len() == tokens as usize {
                    last.ids += tokens;
                    self.ids.extend(ids);
                } else {
                    self.ids.truncate(self.ids.len() - last.ids as usize);
                    last.ids = 0;
                }
                let was_behind = last.counted < last.end;
                last.end = last.end.max(end);
                let behind = counted < last.end;
                // While counts run behind, a shared entry cannot be found by the reported count of each of its chunks.
                last.counted = if was_behind || behind { 0 } else { counted };
                self.behind += u32::from(behind && !was_behind);
                self.incomplete |= was_behind || behind;
                last.tokens = last.tokens.saturating_add(tokens);
                last.missing = last.missing.saturating_add(chunk.missing);
                last.imprecise |= chunk.imprecise;
                last.after_gap |= after_gap;
                last.chunks += 1;
            }
            _ => {
                self.behind += u32::from(counted < end);
                self.ids.extend(ids);
                self.in_flight.push_back(Entry { ids: ids.len() as u32, after_gap, ..chunk });
            }
        }
        JudgedList::default()
    }

    /// Enters a delivery. `epoch` changes whenever deliveries may have been missed.
    pub(crate) fn judge_delivery(&mut self, delivery: &Delivery<'_>, epoch: u32) -> DeliveryResult {
        let missed = std::mem::replace(&mut self.epoch, epoch) != epoch;
        self.incomplete |= missed;
        // While counts run behind, a delivery may match an entry with the same count whose own delivery was missed.
        let ambiguous = self.incomplete && self.behind > 0;
        // A delivery may contain unobserved tokens before one of its chunks.
        let to = delivery.completion_tokens.unwrap_or(0);
        let mut reached = self.in_flight.iter().take_while(|entry| entry.end <= to);
        let gap = reached.any(|entry| entry.after_gap);
        let broken = std::mem::take(&mut self.doubt) || missed || ambiguous || gap;
        let mut result = match (delivery.mode, delivery.completion_tokens) {
            (Mode::Cumulative, to) => self.cover(to.unwrap_or(delivery.tokens), delivery.finished),
            (Mode::Incremental, None) => self.by_count(delivery.tokens),
            (Mode::Incremental, Some(to)) if self.behind > 0 => {
                self.by_position(delivery, to, broken).unwrap_or_else(|| self.give_up(to))
            }
            // The last event of a response with text shows which text is missing before it, even without new text.
            (Mode::Incremental, Some(to)) if delivery.tokens == 0 && delivery.response != Response::Text => {
                self.by_position(delivery, to, broken).unwrap_or_else(|| {
                    // The delivered chunk was not observed, so the next delivery proves no drop either.
                    self.doubt = true;
                    DeliveryResult::default()
                })
            }
            (Mode::Incremental, Some(to)) => self.range(delivery, to, broken),
        };
        if delivery.response == Response::Whole {
            // A response that does not stream delivers once by design, so nothing counts as merged.
            result.judged.deliver_merged(u64::MAX);
        } else if delivery.without_text > 0 {
            result.judged.deliver_merged(delivery.without_text.into());
        }
        let claimed = u64::from(delivery.tokens);
        self.claimed = if delivery.mode == Mode::Cumulative { claimed } else { self.claimed + claimed };
        result.missed |= missed;
        self.finished |= delivery.finished;
        self.outcomes.add(result.judged.counts());
        result
    }

    /// Enters a cumulative delivery, which covers all in-flight chunks up to `to`.
    fn cover(&mut self, to: u32, finished: bool) -> DeliveryResult {
        let mut judged = JudgedList::default();
        let mut has_carrier = false;
        while let Some(entry) = self.in_flight.front().copied().filter(|e| e.end <= to) {
            if may_follow(&entry, to, has_carrier, finished) {
                break;
            }
            self.pop_front();
            entry.enter_carried(self.delivered_to, &mut judged, &mut has_carrier);
        }
        // Earlier deliveries of a response joined late are unknown, so none of these tokens counts as new.
        let missed = self.incomplete && !self.begun;
        DeliveryResult {
            judged,
            new: self.advance(to, if missed { 0 } else { u32::MAX }),
            missed,
            ..DeliveryResult::default()
        }
    }

    /// Enters an incremental delivery of tokens `(to-n, to]`. Earlier tokens still in flight are lost.
    fn range(&mut self, delivery: &Delivery<'_>, to: u32, broken: bool) -> DeliveryResult {
        let from = self.begin(to, delivery.tokens);
        if self.is_imprecise_before(from, to) {
            return self.enter_imprecise(delivery, to, broken);
        }
        // No entry ends at `to`: the last delivered chunk was not observed. Tokens lost on the wire before it are unknown, and so is
        // the start of the delivery.
        let gap = self.covered_to(to).is_some_and(|end| end < to);
        let broken = broken || gap;
        let mut judged = JudgedList::default();
        let mut has_carrier = false;
        let mut inside = 0_u32;
        let mut ranges = Vec::new();
        while let Some(entry) = self.in_flight.front().copied() {
            let start = entry.end.saturating_sub(entry.tokens).max(self.delivered_to);
            if entry.end > to || may_follow(&entry, to, has_carrier, delivery.finished) {
                break;
            }
            self.pop_front();
            if entry.tokens == 0 || start >= from {
                inside = entry.tokens.saturating_add(inside);
                entry.enter_carried(self.delivered_to, &mut judged, &mut has_carrier);
                continue;
            }
            let lost = entry.end.min(from).saturating_sub(start);
            // An entry of several chunks shows how many tokens were lost, but not from which chunks.
            // If the wire also lost tokens among them, it does not show their positions either.
            let positions_unknown = entry.chunks > 1 && entry.missing > 0;
            let outcome = if broken {
                ChunkOutcome::Unjudged(UnjudgedCause::MissedObservations)
            } else if positions_unknown || (entry.chunks > 1 && entry.end > from) {
                ChunkOutcome::Unjudged(UnjudgedCause::Ambiguous)
            } else {
                ChunkOutcome::Dropped
            };
            let lost = if broken || positions_unknown { 0 } else { lost };
            judged.push(entry.judged(outcome, lost));
            if lost > 0 {
                ranges.push(self.range_of(&entry, start, start + lost));
            }
        }
        self.doubt = (self.incomplete || gap) && inside != delivery.tokens;
        DeliveryResult { judged, lost: ranges, new: self.advance(to, delivery.tokens), ..DeliveryResult::default() }
    }

    /// Whether covered tokens before `from` are undelivered and some covered chunk is imprecise.
    fn is_imprecise_before(&self, from: u32, to: u32) -> bool {
        let start = |e: &Entry| e.end.saturating_sub(e.tokens).max(self.delivered_to);
        let covered = || self.in_flight.iter().take_while(|e| e.end <= to);
        covered().any(|e| e.imprecise) && covered().any(|e| e.tokens > 0 && start(e) < from)
    }

    /// Like [`Self::range`], for imprecise chunks that do not all fit into the delivery.
    fn enter_imprecise(&mut self, delivery: &Delivery<'_>, to: u32, broken: bool) -> DeliveryResult {
        // No entry ends at `to`: the last delivered chunk was not observed, or shares an entry with later chunks.
        // The last covered entry is then not the end of the delivery.
        let gap = self.covered_to(to).is_some_and(|end| end < to);
        let broken = broken || gap;
        let mut covered = self.in_flight.iter().take_while(|e| e.end <= to).count();
        while covered > 1 && may_follow(&self.in_flight[covered - 1], to, true, delivery.finished) {
            covered -= 1;
        }
        let (fewest, max) = (!broken).then(|| self.carriers(covered, delivery)).flatten().unwrap_or((1, covered));
        let cause = if broken { UnjudgedCause::MissedObservations } else { UnjudgedCause::Ambiguous };
        let mut judged = JudgedList::default();
        let mut has_carrier = false;
        let mut lost = Vec::new();
        for left in (1..=covered).rev() {
            let Some(entry) = self.pop_front() else { break };
            if left <= fewest {
                entry.enter_carried(self.delivered_to, &mut judged, &mut has_carrier);
            } else if left <= max || entry.tokens == 0 || entry.end <= self.delivered_to {
                judged.push(entry.unjudged(cause));
            } else {
                let shown = if entry.imprecise { 1 } else { entry.tokens };
                let before = entry.end.saturating_sub(shown).max(self.delivered_to);
                judged.push(entry.judged(ChunkOutcome::Dropped, entry.end - before));
                lost.push(self.range_of(&entry, before, entry.end));
            }
        }
        // The match is uncertain, so the next delivery may follow unobserved chunks.
        self.doubt = gap || (self.incomplete && fewest < max);
        DeliveryResult { judged, lost, new: self.advance(to, delivery.tokens), ..DeliveryResult::default() }
    }

    /// Minimum and maximum number of chunks that can carry exactly the delivered tokens, counted back from the last of the first
    /// `covered` entries. `None` if no number can, or if an entry's own chunks are ambiguous.
    fn carriers(&self, covered: usize, delivery: &Delivery<'_>) -> Option<(usize, usize)> {
        let (mut min, mut max, mut found) = (0_u32, 0_u32, None);
        for (before, entry) in self.in_flight.iter().take(covered).rev().enumerate() {
            // The run may begin with any chunk of an entry that holds several.
            if entry.chunks > 1 || entry.missing > 0 {
                return None;
            }
            let (low, high) = entry.carries(before == 0 && delivery.finished);
            (min, max) = (min.saturating_add(low), max.saturating_add(high));
            if min <= delivery.tokens && delivery.tokens <= max {
                let (fewest, _) = found.unwrap_or((before + 1, 0));
                found = Some((fewest, before + 1));
            }
        }
        found
    }

    /// End of the last in-flight chunk that a delivery up to `to` may contain.
    fn covered_to(&self, to: u32) -> Option<u32> {
        self.in_flight.iter().map(|e| e.end).rfind(|&end| end <= to)
    }

    /// Start of a delivery of `tokens` tokens that ends at `to`. Tokens lost on the wire in between are not part of it.
    fn begin(&self, to: u32, tokens: u32) -> u32 {
        let covered = self.in_flight.iter().rev().skip_while(|e| e.end > to);
        covered.fold(to.saturating_sub(tokens), |from, entry| {
            let before = entry.missing > 0 && from < entry.end.saturating_sub(entry.tokens);
            from.saturating_sub(if before { entry.missing } else { 0 })
        })
    }

    /// Enters a delivery without tokens, or one made while counts run behind after a retraction. `None` if no chunk matches.
    ///
    /// The last delivered chunk is found by its reported count. The number of tokens shows whether the delivery holds all chunks up to
    /// that one or that one alone. In the second case, the earlier ones are dropped.
    fn by_position(&mut self, delivery: &Delivery<'_>, to: u32, broken: bool) -> Option<DeliveryResult> {
        let (mut sum, mut found) = (0_u32, None);
        for (at, entry) in self.in_flight.iter().enumerate() {
            sum = sum.saturating_add(entry.tokens);
            let (all, alone) = (sum == delivery.tokens, entry.tokens == delivery.tokens);
            if entry.counted == to && (all || alone) && (found.is_none() || delivery.finished) {
                found = Some((at, all));
            }
        }
        let (last, all) = found?;
        let mut judged = JudgedList::default();
        let mut has_carrier = false;
        let mut new = 0_u32;
        let mut lost = Vec::new();
        // An imprecise chunk may carry fewer tokens than assumed, so it is unknown whether earlier chunks were dropped.
        let imprecise = self.in_flight.iter().take(last + 1).any(|entry| entry.imprecise);
        for at in 0..=last {
            let Some(entry) = self.pop_front() else { break };
            let before = self.delivered_to;
            self.delivered_to = before.max(entry.end);
            if all || at == last || entry.tokens == 0 {
                entry.enter_carried(before, &mut judged, &mut has_carrier);
                new = entry.tokens.saturating_add(new);
            } else if broken {
                judged.push(entry.unjudged(UnjudgedCause::MissedObservations));
            } else if imprecise {
                judged.push(entry.unjudged(UnjudgedCause::Ambiguous));
            } else {
                judged.push(entry.judged(ChunkOutcome::Dropped, entry.tokens));
                lost.push(self.range_of(&entry, entry.end - entry.tokens.min(entry.end), entry.end));
            }
        }
        self.begun = true;
        Some(DeliveryResult { judged, lost, new, ..DeliveryResult::default() })
    }

    /// Counts run behind and the delivery matches no chunk, so a send was not observed. Chunks that it may have covered become unknown.
    fn give_up(&mut self, to: u32) -> DeliveryResult {
        let mut judged = JudgedList::default();
        let count = self.in_flight.iter().rposition(|e| e.counted == to || e.end <= to).map_or(0, |at| at + 1);
        for entry in std::iter::from_fn(|| self.pop_front()).take(count) {
            judged.push(entry.unjudged(UnjudgedCause::MissedObservations));
        }
        self.doubt = true;
        DeliveryResult { judged, ..DeliveryResult::default() }
    }

    /// Enters a delivery without a count: it covers chunks in order, by their tokens alone. It proves no loss.
    fn by_count(&mut self, tokens: u32) -> DeliveryResult {
        let mut judged = JudgedList::default();
        let mut has_carrier = false;
        let mut covered = 0_u32;
        let mut to = self.delivered_to;
        while let Some(entry) = self.in_flight.front().copied() {
            let left = tokens - covered;
            if entry.tokens > left || left == 0 {
                break;
            }
            self.pop_front();
            covered += entry.tokens;
            to = entry.end;
            entry.enter_carried(self.delivered_to, &mut judged, &mut has_carrier);
        }
        self.advance(to, covered);
        DeliveryResult { judged, new: covered, ..DeliveryResult::default() }
    }

    fn advance(&mut self, to: u32, at_most: u32) -> u32 {
        let new = to.saturating_sub(self.delivered_to).min(at_most);
        self.delivered_to = self.delivered_to.max(to);
        self.begun = true;
        new
    }

    fn pop_front(&mut self) -> Option<Entry> {
        let entry = self.in_flight.pop_front()?;
        self.chunks -= u64::from(entry.chunks);
        self.behind -= u32::from(entry.counted < entry.end);
        self.gone.clear();
        self.gone.extend(self.ids.drain(..entry.ids as usize));
        Some(entry)
    }

    /// Tokens `(from, to]` of `entry`, which must be the most recently removed one.
    fn range_of(&self, entry: &Entry, from: u32, to: u32) -> LostRange {
        let skipped = (from as usize + entry.tokens as usize).saturating_sub(entry.end as usize);
        let ids = self.gone.get(skipped..skipped + (to - from) as usize);
        LostRange {
            tokens: [from + 1, to],
            chunks: (entry.chunks == 1).then_some([entry.nth; 2]),
            ids: ids.unwrap_or_default().to_vec(),
        }
    }
}

/// Whether an empty chunk after the delivered tokens may still be delivered separately. Not if the delivery ends the request.
fn may_follow(entry: &Entry, to: u32, has_carrier: bool, finished: bool) -> bool {
    entry.end == to && entry.tokens == 0 && has_carrier && !finished
}

#[cfg(test)]
mod tests;
