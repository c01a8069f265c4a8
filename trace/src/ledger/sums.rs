//! Consumers that add up cumulative counts. Their count of a request is the sum of all counts received, a triangular number if each chunk
//! has one token.

use super::hops::Hops;
use super::request::Request;
use super::{Ledger, Totals};
use crate::clock::MonoNs;

/// Minimum number of chunks for a sum of counts to be significant; sums of fewer may match by coincidence.
const CHUNKS: u32 = 4;

impl Totals {
    /// Whether `claimed` is the sum of all counts on one of the request's first `before` hops. If so, records it.
    ///
    /// Only those hops precede the claiming process. A claim that does not exceed the count of some hop is a plain count. If a request
    /// changes its worker, the sum of its counts at the first one can equal a later count at the second. Hops with missed observations
    /// are ignored, because a matching sum there may be a coincidence.
    pub(super) fn summed_up(
        &mut self,
        at: MonoNs,
        hops: &Hops,
        request: &mut Request,
        claimed: u32,
        before: usize,
    ) -> bool {
        let streams = || request.streams.iter().take(before);
        let made = streams().map(|stream| stream.count.high).max();
        // The claiming process received its counts on an earlier hop, not on a parallel one of the same name.
        let line = request.streams.get(before).map(|claiming| claiming.group);
        let sums = |stream: &super::Stream| {
            let summed = stream.chunks >= CHUNKS && u64::from(claimed) == stream.sum;
            summed && line != Some(stream.group) && hops.observed_all_since(stream)
        };
        let Some(made) = made.filter(|&made| claimed > made && streams().any(sums)) else {
            return false;
        };
        let new_rid = !std::mem::replace(&mut request.sums_up, true);
        if new_rid {
            self.summed.counted += u64::from(claimed);
            self.summed.made += u64::from(made);
        }
        self.summed.seen.enter(at, &request.rid, claimed.into(), new_rid);
        true
    }
}

impl Ledger {
    /// Like [`Totals::summed_up`], for a count in a delivery or response.
    pub(super) fn summed_up(&mut self, at: MonoNs, rid: &str, claimed: Option<u32>) -> bool {
        let ticket = self.table.find(rid).filter(|ticket| !self.predecessors.contains_key(ticket));
        let request = ticket.and_then(|ticket| self.table.get_mut(ticket)).filter(|request| !request.is_shared());
        request.zip(claimed).is_some_and(|(request, claimed)| {
            let all = request.streams.len();
            self.totals.summed_up(at, &self.hops, request, claimed, all)
        })
    }
}
