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
use serde::{Deserialize, Serialize};

use crate::clock::MonoNs;
use crate::engine::Mode;
use crate::event::{Delivery, Response};
use crate::id::HopId;

/// A chunk sent and not yet delivered, or several neighbours once the tracker is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// The stream's high-water count after it.
    pub(crate) end: u32,
    /// Reported count. Below `end` while a retracted request recomputes; 0 if any merged entry did.
    pub(crate) counted: u32,
    pub(crate) tokens: u32,
    /// Tokens before or between its own that never reached its hop.
    pub(crate) missing: u32,
    /// Number of chunks; set by [`DeliveryTracker::push`], as are its ids.
    pub(crate) chunks: u32,
    /// Number of its first chunk within the request (1-based).
    pub(crate) nth: u32,
    /// Number of its ids in the tracker's `ids`: equal to `tokens`, or 0.
    pub(crate) ids: u32,
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
}

/// Outcomes of chunks. Every chunk is counted in exactly one field, or is still in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fates {
    /// Carried by a delivery: the first chunk in it, or every chunk in a response that does not stream.
    pub delivered: u64,
    /// Merged into another chunk's delivery.
    pub merged: u64,
    /// Proven dropped: their tokens are in no delivery.
    pub dropped: u64,
    /// Tokens in no delivery though later ones were delivered.
    pub tokens_lost: u64,
    /// Delivered or dropped, but unknown which: observations were missed, the response is text only, or counts are ambiguous.
    pub unjudged: u64,
}

impl Fates {
    pub(crate) fn add(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.merged += other.merged;
        self.dropped += other.dropped;
        self.tokens_lost += other.tokens_lost;
        self.unjudged += other.unjudged;
    }

    /// Chunks with a known or unjudged outcome: all that are not in flight.
    pub fn chunks(&self) -> u64 {
        self.delivered + self.merged + self.dropped + self.unjudged
    }

    /// Counts the chunks of an entry inside a delivery: the delivery's first one as delivered, the others as merged. If deliveries up to
    /// `delivered_to` had a part of the entry, it is unknown which of its chunks they carried.
    fn inside(&mut self, entry: &Entry, delivered_to: u32, carrier: &mut bool) {
        let chunks = u64::from(entry.chunks);
        let first = !std::mem::replace(carrier, true);
        if entry.chunks > 1 && entry.end.saturating_sub(entry.tokens) < delivered_to {
            self.unjudged += chunks;
            return;
        }
        self.delivered += u64::from(first);
        self.merged += chunks - u64::from(first);
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) fates: Fates,
    /// Token ranges that it proves lost.
    pub(crate) lost: Vec<LostRange>,
    /// Deliveries before it may have been missed.
    pub(crate) missed: bool,
    /// Tokens new to the client.
    pub(crate) new: u32,
}

/// Delivery tracker of one request.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
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
    /// Outcomes of this request's chunks so far.
    pub(crate) fates: Fates,
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
    pub(crate) fn skip(&mut self, chunks: u64) {
        self.entered += chunks;
        self.fates.unjudged += chunks;
        self.doubts();
    }

    /// Stops waiting for deliveries. Returns the number of chunks in flight, which become unjudged, and of their tokens.
    pub(crate) fn give_up_waiting(&mut self) -> (u64, u64) {
        let tokens = self.in_flight.iter().map(|entry| u64::from(entry.tokens)).sum();
        let chunks = std::mem::take(&mut self.chunks);
        self.in_flight.clear();
        self.ids.clear();
        self.behind = 0;
        self.fates.unjudged += chunks;
        self.doubts();
        (chunks, tokens)
    }

    /// Whether every chunk entered is judged, unjudged or in flight.
    pub(crate) fn balances(&self) -> bool {
        let counted: u64 = self.in_flight.iter().map(|entry| u64::from(entry.chunks)).sum();
        counted == self.chunks && self.entered == self.fates.chunks() + self.chunks
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

    /// Enters a chunk with the ids of its tokens, if kept. With `whole` false it shares an entry with its neighbour. Returns any immediate
    /// outcome: its delivery may have been observed before its send.
    pub(crate) fn push(&mut self, chunk: Entry, ids: &[i64], whole: bool) -> Fates {
        let Entry { end, counted, tokens, .. } = chunk;
        self.entered += 1;
        let after_gap = chunk.after_gap && self.begun;
        if !self.begun {
            self.begun = true;
            self.delivered_to = self.delivered_to.max(end.saturating_sub(tokens));
        }
        if self.text || (tokens > 0 && end <= self.delivered_to && self.in_flight.is_empty()) {
            let fates = Fates { unjudged: 1, ..Fates::default() };
            self.fates.add(fates);
            return fates;
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
                self.in_flight.push_back(Entry { chunks: 1, ids: ids.len() as u32, after_gap, ..chunk });
            }
        }
        Fates::default()
    }

    /// Enters a delivery. `epoch` changes whenever deliveries may have been missed.
    pub(crate) fn deliver(&mut self, delivery: &Delivery<'_>, epoch: u32) -> Outcome {
        let missed = std::mem::replace(&mut self.epoch, epoch) != epoch;
        self.incomplete |= missed;
        // While counts run behind, a delivery may match an entry with the same count whose own delivery was missed.
        let ambiguous = self.incomplete && self.behind > 0;
        // A delivery may contain unobserved tokens before one of its chunks.
        let to = delivery.completion_tokens.unwrap_or(0);
        let mut reached = self.in_flight.iter().take_while(|entry| entry.end <= to);
        let gap = reached.any(|entry| entry.after_gap);
        let broken = std::mem::take(&mut self.doubt) || missed || ambiguous || gap;
        let mut outcome = match (delivery.mode, delivery.completion_tokens) {
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
                    Outcome::default()
                })
            }
            (Mode::Incremental, Some(to)) => self.range(delivery, to, broken),
        };
        if delivery.response == Response::Whole {
            // A response that does not stream delivers once by design, so nothing counts as merged.
            outcome.fates.delivered += std::mem::take(&mut outcome.fates.merged);
        }
        let with_others = u64::from(delivery.without_text).min(outcome.fates.merged);
        outcome.fates.merged -= with_others;
        outcome.fates.delivered += with_others;
        let claimed = u64::from(delivery.tokens);
        self.claimed = if delivery.mode == Mode::Cumulative { claimed } else { self.claimed + claimed };
        outcome.missed |= missed;
        self.finished |= delivery.finished;
        self.fates.add(outcome.fates);
        outcome
    }

    /// Enters a cumulative delivery, which covers all in-flight chunks up to `to`.
    fn cover(&mut self, to: u32, finished: bool) -> Outcome {
        let (mut fates, mut carrier) = (Fates::default(), false);
        while let Some(entry) = self.in_flight.front().copied().filter(|e| e.end <= to) {
            if may_follow(&entry, to, carrier, finished) {
                break;
            }
            self.pop_front();
            fates.inside(&entry, self.delivered_to, &mut carrier);
        }
        // Earlier deliveries of a response joined late are unknown, so none of these tokens counts as new.
        let missed = self.incomplete && !self.begun;
        Outcome { fates, new: self.advance(to, if missed { 0 } else { u32::MAX }), missed, ..Outcome::default() }
    }

    /// Enters an incremental delivery of tokens `(to-n, to]`. Earlier tokens still in flight are lost.
    fn range(&mut self, delivery: &Delivery<'_>, to: u32, broken: bool) -> Outcome {
        let from = self.begin(to, delivery.tokens);
        if self.is_imprecise_before(from, to) {
            return self.enter_imprecise(delivery, to, broken);
        }
        // No entry ends at `to`: the last delivered chunk was not observed. Tokens lost on the wire before it are unknown, and so is
        // the start of the delivery.
        let gap = self.covered_to(to).is_some_and(|end| end < to);
        let broken = broken || gap;
        let (mut fates, mut carrier, mut inside) = (Fates::default(), false, 0_u32);
        let mut ranges = Vec::new();
        while let Some(entry) = self.in_flight.front().copied() {
            let chunks = u64::from(entry.chunks);
            let start = entry.end.saturating_sub(entry.tokens).max(self.delivered_to);
            if entry.end > to || may_follow(&entry, to, carrier, delivery.finished) {
                break;
            }
            self.pop_front();
            if entry.tokens == 0 || start >= from {
                inside = entry.tokens.saturating_add(inside);
                fates.inside(&entry, self.delivered_to, &mut carrier);
                continue;
            }
            let lost = entry.end.min(from).saturating_sub(start);
            // An entry of several chunks shows how many tokens were lost, but not from which chunks.
            // If the wire also lost tokens among them, it does not show their positions either.
            let positions_unknown = entry.chunks > 1 && entry.missing > 0;
            let fate = if broken || positions_unknown || (entry.chunks > 1 && entry.end > from) {
                &mut fates.unjudged
            } else {
                &mut fates.dropped
            };
            *fate += chunks;
            if !broken && !positions_unknown && lost > 0 {
                fates.tokens_lost += u64::from(lost);
                ranges.push(self.range_of(&entry, start, start + lost));
            }
        }
        self.doubt = (self.incomplete || gap) && inside != delivery.tokens;
        Outcome { fates, lost: ranges, new: self.advance(to, delivery.tokens), ..Outcome::default() }
    }

    /// Whether covered tokens before `from` are undelivered and some covered chunk is imprecise.
    fn is_imprecise_before(&self, from: u32, to: u32) -> bool {
        let start = |e: &Entry| e.end.saturating_sub(e.tokens).max(self.delivered_to);
        let covered = || self.in_flight.iter().take_while(|e| e.end <= to);
        covered().any(|e| e.imprecise) && covered().any(|e| e.tokens > 0 && start(e) < from)
    }

    /// Like [`Self::range`], for imprecise chunks that do not all fit into the delivery.
    fn enter_imprecise(&mut self, delivery: &Delivery<'_>, to: u32, broken: bool) -> Outcome {
        // No entry ends at `to`: the last delivered chunk was not observed, or shares an entry with later chunks.
        // The last covered entry is then not the end of the delivery.
        let gap = self.covered_to(to).is_some_and(|end| end < to);
        let broken = broken || gap;
        let mut covered = self.in_flight.iter().take_while(|e| e.end <= to).count();
        while covered > 1 && may_follow(&self.in_flight[covered - 1], to, true, delivery.finished) {
            covered -= 1;
        }
        let (fewest, max) = (!broken).then(|| self.carriers(covered, delivery)).flatten().unwrap_or((1, covered));
        let (mut fates, mut carrier) = (Fates::default(), false);
        let mut lost = Vec::new();
        for left in (1..=covered).rev() {
            let Some(entry) = self.pop_front() else { break };
            let chunks = u64::from(entry.chunks);
            if left <= fewest {
                fates.inside(&entry, self.delivered_to, &mut carrier);
            } else if left <= max || entry.tokens == 0 || entry.end <= self.delivered_to {
                fates.unjudged += chunks;
            } else {
                let shown = if entry.imprecise { 1 } else { entry.tokens };
                let before = entry.end.saturating_sub(shown).max(self.delivered_to);
                fates.dropped += chunks;
                fates.tokens_lost += u64::from(entry.end - before);
                lost.push(self.range_of(&entry, before, entry.end));
            }
        }
        // The match is uncertain, so the next delivery may follow unobserved chunks.
        self.doubt = gap || (self.incomplete && fewest < max);
        Outcome { fates, lost, new: self.advance(to, delivery.tokens), ..Outcome::default() }
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
    fn by_position(&mut self, delivery: &Delivery<'_>, to: u32, broken: bool) -> Option<Outcome> {
        let (mut sum, mut found) = (0_u32, None);
        for (at, entry) in self.in_flight.iter().enumerate() {
            sum = sum.saturating_add(entry.tokens);
            let (all, alone) = (sum == delivery.tokens, entry.tokens == delivery.tokens);
            if entry.counted == to && (all || alone) && (found.is_none() || delivery.finished) {
                found = Some((at, all));
            }
        }
        let (last, all) = found?;
        let (mut fates, mut carrier, mut new) = (Fates::default(), false, 0_u32);
        let mut lost = Vec::new();
        // An imprecise chunk may carry fewer tokens than assumed, so it is unknown whether earlier chunks were dropped.
        let imprecise = self.in_flight.iter().take(last + 1).any(|entry| entry.imprecise);
        for at in 0..=last {
            let Some(entry) = self.pop_front() else { break };
            let chunks = u64::from(entry.chunks);
            let before = self.delivered_to;
            self.delivered_to = before.max(entry.end);
            if all || at == last || entry.tokens == 0 {
                fates.inside(&entry, before, &mut carrier);
                new = entry.tokens.saturating_add(new);
            } else if broken || imprecise {
                fates.unjudged += chunks;
            } else {
                fates.dropped += chunks;
                fates.tokens_lost += u64::from(entry.tokens);
                lost.push(self.range_of(&entry, entry.end - entry.tokens.min(entry.end), entry.end));
            }
        }
        self.begun = true;
        Some(Outcome { fates, lost, new, ..Outcome::default() })
    }

    /// Counts run behind and the delivery matches no chunk, so a send was not observed. Chunks that it may have covered become unknown.
    fn give_up(&mut self, to: u32) -> Outcome {
        let mut fates = Fates::default();
        let count = self.in_flight.iter().rposition(|e| e.counted == to || e.end <= to).map_or(0, |at| at + 1);
        for _ in 0..count {
            fates.unjudged += self.pop_front().map_or(0, |e| u64::from(e.chunks));
        }
        self.doubt = true;
        Outcome { fates, ..Outcome::default() }
    }

    /// Enters a delivery without a count: it covers chunks in order, by their tokens alone. It proves no loss.
    fn by_count(&mut self, tokens: u32) -> Outcome {
        let (mut fates, mut carrier, mut covered) = (Fates::default(), false, 0_u32);
        let mut to = self.delivered_to;
        while let Some(entry) = self.in_flight.front().copied() {
            let left = tokens - covered;
            if entry.tokens > left || left == 0 {
                break;
            }
            self.pop_front();
            covered += entry.tokens;
            to = entry.end;
            fates.inside(&entry, self.delivered_to, &mut carrier);
        }
        self.advance(to, covered);
        Outcome { fates, new: covered, ..Outcome::default() }
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
fn may_follow(entry: &Entry, to: u32, carrier: bool, finished: bool) -> bool {
    entry.end == to && entry.tokens == 0 && carrier && !finished
}

#[cfg(test)]
mod tests;
