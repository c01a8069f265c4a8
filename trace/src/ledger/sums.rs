//! Consumers that add up cumulative counts: their count of a request is the sum of all counts received, a triangular number if tokens came
//! one by one.

use serde::{Deserialize, Serialize};

use super::hop::Hops;
use super::request::Request;
use super::{Ledger, Totals};
use crate::clock::MonoNs;

/// Chunks a request needs before its sum says anything: few can coincide.
const CHUNKS: u32 = 4;

/// Token ids on one stretch of the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdCounts {
    /// Tokens that crossed, each counted once.
    pub tokens: u64,
    /// Ids listed for them.
    pub listed: u64,
    /// The sum of the chunks' cumulative counts.
    pub cumulative: u64,
}

impl IdCounts {
    pub(crate) fn add(&mut self, tokens: u32, listed: u32, completion: u32) {
        self.tokens += u64::from(tokens);
        self.listed += u64::from(listed);
        self.cumulative += u64::from(completion);
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.tokens += other.tokens;
        self.listed += other.listed;
        self.cumulative += other.cumulative;
    }
}

impl Request {
    /// Tokens there were, if `claimed` is the sum of all counts that one of its first `before` hops has told: nobody adds up what
    /// lies behind. A claim that another hop's count has reached is a count: where a request changes its worker, the sum of its
    /// counts at the first one equals a later count at the second. Behind a loss of ours more than was seen is no surprise, and a
    /// sum that fits is chance.
    fn summed(&self, hops: &Hops, claimed: u32, before: usize) -> Option<u64> {
        let streams = || self.streams.iter().take(before);
        let made = streams().map(|stream| stream.count.high).max()?;
        // Who claims it receives from an earlier line, not beside the stream.
        let line = self.streams.get(before).map(|claiming| claiming.group);
        let sums = |stream: &super::Stream| {
            let summed = stream.chunks >= CHUNKS && u64::from(claimed) == stream.sum;
            summed && line != Some(stream.group) && hops.heard_all_since(stream)
        };
        (claimed > made && streams().any(sums)).then_some(made.into())
    }
}

impl Totals {
    /// Somebody behind its first `before` hops claims so many tokens of a request; whether that is the sum of its counts, which is
    /// noted.
    pub(super) fn summed_up(
        &mut self,
        at: MonoNs,
        hops: &Hops,
        request: &mut Request,
        claimed: u32,
        before: usize,
    ) -> bool {
        let Some(made) = request.summed(hops, claimed, before) else {
            return false;
        };
        let new_rid = !std::mem::replace(&mut request.sums_up, true);
        if new_rid {
            self.summed.counted += u64::from(claimed);
            self.summed.made += made;
        }
        self.summed.seen.enter(at, &request.rid, claimed.into(), new_rid);
        true
    }
}

impl Ledger {
    /// The same of a delivery or an answer.
    pub(super) fn summed_up(&mut self, at: MonoNs, rid: &str, claimed: Option<u32>) -> bool {
        let request = self.table.find(rid).and_then(|ticket| self.table.get_mut(ticket));
        request.zip(claimed).is_some_and(|(request, claimed)| {
            let all = request.streams.len();
            self.totals.summed_up(at, &self.hops, request, claimed, all)
        })
    }
}
