//! Consumers that add up cumulative counts. Their count of a request is the sum of all counts received, a triangular number if each chunk
//! has one token.

use super::hops::Hops;
use super::request::Request;
use super::stream::Stream;
use super::{Ledger, Totals};
use crate::clock::MonoNs;

/// Minimum number of chunks for a sum of counts to be significant; sums of fewer may match by coincidence.
const MIN_CHUNKS: u32 = 4;

/// Whether `claimed` is the sum of all counts that the chunks of the stream had, if those are enough for it to be no coincidence.
fn is_sum_of_counts(stream: &Stream, claimed: u32) -> bool {
    stream.chunks >= MIN_CHUNKS && stream.sum_of_counts == u64::from(claimed)
}

impl Totals {
    /// Records that a process wrongly adds up cumulative counts, if its token count of a request shows that (`claimed_tokens`). The count
    /// must be the sum of all counts on one hop before the process: one of the request's first `hops_before` hops. Returns whether it is.
    pub(super) fn record_claim_if_sum(
        &mut self,
        at: MonoNs,
        hops: &Hops,
        request: &mut Request,
        claimed_tokens: u32,
        hops_before: usize,
    ) -> bool {
        // A request has one stream on each hop.
        let earlier = &request.streams[..hops_before.min(request.streams.len())];
        let Some(generated) = earlier.iter().map(|stream| stream.count.highest).max() else {
            return false;
        };
        // A wrong sum is greater than the true count. (If a request changes its worker, the sum of the counts at the first one may equal a
        // true count at the second.)
        let is_plain_count = claimed_tokens <= generated;
        if is_plain_count {
            return false;
        }
        let claiming_group = request.streams.get(hops_before).map(|stream| stream.group);
        let is_sum = earlier.iter().any(|stream| {
            // The claiming process received its counts on an earlier hop, not on a parallel one of the same name.
            let is_on_earlier_hop = claiming_group != Some(stream.group);
            // With missed observations, a matching sum may be a coincidence.
            is_on_earlier_hop && is_sum_of_counts(stream, claimed_tokens) && hops.observed_all_since(stream)
        });
        if !is_sum {
            return false;
        }
        let is_first_sum = !request.has_summed_counts;
        request.has_summed_counts = true;
        // A request counts once, with its first such claim.
        if is_first_sum {
            self.summed.counted += u64::from(claimed_tokens);
            self.summed.made += u64::from(generated);
        }
        self.summed.seen.record_request(at, &request.rid, claimed_tokens.into(), is_first_sum);
        true
    }
}

impl Ledger {
    /// Records a delivery or response if its token count, `claimed_tokens`, is a wrong sum: that of all cumulative counts on one of the
    /// request's hops. Returns whether it is.
    pub(super) fn record_claim_of_rid_if_sum(&mut self, at: MonoNs, rid: &str, claimed_tokens: Option<u32>) -> bool {
        let Some(claimed_tokens) = claimed_tokens else { return false };
        let Some(ticket) = self.table.ticket_of(rid) else { return false };
        let Some(request) = self.table.get_mut(ticket) else { return false };
        // The count may be that of another request with the rid.
        if request.is_shared() || self.predecessors.contains_key(&ticket) {
            return false;
        }
        let all_hops = request.streams.len();
        self.totals.record_claim_if_sum(at, &self.hops, request, claimed_tokens, all_hops)
    }
}
