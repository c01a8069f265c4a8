//! Imprecise chunks: their id column does not show their own tokens. It lists all ids so far, none, or an unknown selection.
//! The count of an imprecise chunk grows by its own tokens and by those of preceding chunks that were missed or lost.
//!
//! A delivery contains a run of consecutive chunks that ends with the last covered one. The run must be able to carry exactly the
//! delivered tokens, which gives it a minimum and a maximum length. Chunks before the longest run are dropped. Of each imprecise
//! chunk among them, only the last token is proven lost. Chunks between the shortest and the longest run are unjudged.

use super::{Delivery, DeliveryTracker, Entry, Fates, Outcome, may_follow};

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

impl DeliveryTracker {
    /// Whether covered tokens before `from` are undelivered and some covered chunk is imprecise.
    pub(super) fn is_imprecise_before(&self, from: u32, to: u32) -> bool {
        let start = |e: &Entry| e.end.saturating_sub(e.tokens).max(self.delivered_to);
        let covered = || self.in_flight.iter().take_while(|e| e.end <= to);
        covered().any(|e| e.imprecise) && covered().any(|e| e.tokens > 0 && start(e) < from)
    }

    /// Like [`Self::range`], for imprecise chunks that do not all fit into the delivery.
    pub(super) fn enter_imprecise(&mut self, delivery: &Delivery<'_>, to: u32, broken: bool) -> Outcome {
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
}
