//! Chunks that do not show their own tokens: those of releases that list all ids so far or none, or of a layout that does not tell
//! which. Their counts grow by what they carry, and by what a chunk carried that nobody saw or that never left the scheduler.
//!
//! A delivery takes the last of the chunks that wait, one or more in a row: as many as can carry what it carries. Those before the
//! most that can are dropped, and of each no more than its last token is proven.

use super::{Delivery, Entry, Fates, Line, Outcome, may_follow};

impl Entry {
    /// The least and the most tokens that it carries.
    fn carries(&self, finishes: bool) -> (u32, u32) {
        if !self.vague {
            return (self.tokens, self.tokens);
        }
        // Only a request's last chunk may carry none.
        (self.tokens.min(u32::from(!finishes)), self.tokens)
    }
}

impl Line {
    /// Whether tokens before `from` are in no delivery, on the evidence of vague chunks.
    pub(super) fn vague_before(&self, from: u32, to: u32) -> bool {
        let start = |e: &Entry| e.end.saturating_sub(e.tokens).max(self.delivered_to);
        let covered = || self.outstanding.iter().take_while(|e| e.end <= to);
        covered().any(|e| e.vague) && covered().any(|e| e.tokens > 0 && start(e) < from)
    }

    /// As [`Self::range`], of chunks that are vague and do not all fit into the delivery.
    pub(super) fn vaguely(&mut self, delivery: &Delivery<'_>, to: u32, broken: bool) -> Outcome {
        // What it reaches to is not here by itself: what it is matched with is not what was delivered.
        let unseen = self.covered_to(to).is_some_and(|end| end < to);
        let broken = broken || unseen;
        let mut covered = self.outstanding.iter().take_while(|e| e.end <= to).count();
        while covered > 1 && may_follow(&self.outstanding[covered - 1], to, true, delivery.finished) {
            covered -= 1;
        }
        let (fewest, most) = (!broken)
            .then(|| self.carriers(covered, delivery))
            .flatten()
            .unwrap_or((1, covered));
        let (mut fates, mut carrier) = (Fates::default(), false);
        let mut lost = Vec::new();
        for left in (1..=covered).rev() {
            let Some(entry) = self.pop_front() else { break };
            let chunks = u64::from(entry.chunks);
            if left <= fewest {
                fates.inside(chunks, &mut carrier);
            } else if left <= most || entry.tokens == 0 || entry.end <= self.delivered_to {
                fates.unjudged += chunks;
            } else {
                let shown = if entry.vague { 1 } else { entry.tokens };
                let before = entry.end.saturating_sub(shown).max(self.delivered_to);
                fates.dropped += chunks;
                fates.tokens_lost += u64::from(entry.end - before);
                lost.push(self.range_of(&entry, before, entry.end));
            }
        }
        // The match is uncertain: the next delivery may follow something unobserved.
        self.doubt = unseen || (self.scarred && fewest < most);
        Outcome {
            fates,
            lost,
            new: self.advance(to, delivery.tokens),
            ..Outcome::default()
        }
    }

    /// The fewest and the most of the first `covered` chunks, from the last one back, that may carry what is delivered; `None` where
    /// they cannot.
    fn carriers(&self, covered: usize, delivery: &Delivery<'_>) -> Option<(usize, usize)> {
        let (mut least, mut most, mut found) = (0_u32, 0_u32, None);
        for (before, entry) in self.outstanding.iter().take(covered).rev().enumerate() {
            // Of neighbours in one entry any may be the first.
            if entry.chunks > 1 || entry.missing > 0 {
                return None;
            }
            let (low, high) = entry.carries(before == 0 && delivery.finished);
            (least, most) = (least.saturating_add(low), most.saturating_add(high));
            if least <= delivery.tokens && delivery.tokens <= most {
                let (fewest, _) = found.unwrap_or((before + 1, 0));
                found = Some((fewest, before + 1));
            }
        }
        found
    }
}
