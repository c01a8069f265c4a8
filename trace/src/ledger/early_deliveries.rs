//! Ids remembered for a short time: of deliveries reported before the first chunk of their request, because sources guarantee no order
//! between connections, and of health checks.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::Ledger;
use super::limits::push_bounded;
use crate::clock::MonoNs;

const MAX_EARLY_DELIVERIES: usize = 256;
/// Maximum delay of a first chunk's report behind a delivery, in nanoseconds.
const MAX_DELAY_NS: u64 = 1_000_000_000;
/// Number of health checks remembered, to count each once over its chunks and hops. They are seconds apart.
const MAX_HEALTH_CHECKS: usize = 64;

/// A delivery of a request that was not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EarlyDelivery {
    /// Hash of its rid. A collision only makes another request's first match uncertain.
    rid_hash: u64,
    at: MonoNs,
    /// Cumulative count at its end.
    end_count: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct EarlyDeliveries {
    deliveries: VecDeque<EarlyDelivery>,
    /// Time of the newest evicted delivery.
    last_eviction_at: Option<MonoNs>,
}

impl EarlyDeliveries {
    /// Keeps a delivery that was reported before its request's first chunk. `end_count` is 0 if it has no count.
    pub(super) fn keep_early_delivery(&mut self, rid: &str, at: MonoNs, end_count: u32) {
        // The first chunk of a request is reported at most `MAX_DELAY_NS` after its delivery, so older deliveries are of no use.
        while let Some(oldest) = self.deliveries.front() {
            if at.since(oldest.at) <= MAX_DELAY_NS {
                break;
            }
            self.deliveries.pop_front();
        }
        let evicted = push_bounded(
            &mut self.deliveries,
            EarlyDelivery { rid_hash: hash_rid(rid), at, end_count },
            MAX_EARLY_DELIVERIES,
        );
        // `None` is less than any time.
        self.last_eviction_at = self.last_eviction_at.max(evicted.map(|early| early.at));
    }

    /// Count reached by early deliveries of a request whose first chunk was sent at `first_sent`. `None` if there was none; 0 if it is
    /// unknown whether there was one, so that the request proves no loss.
    pub(super) fn early_delivered_count(&self, rid: &str, first_sent: MonoNs) -> Option<u32> {
        let kept_count = self.highest_kept_count(rid, first_sent);
        if kept_count.is_some() {
            return kept_count;
        }
        let may_be_evicted = self.last_eviction_at.is_some_and(|evicted_at| evicted_at >= first_sent);
        let unknown_count = 0;
        may_be_evicted.then_some(unknown_count)
    }

    /// Highest count of the kept deliveries of a request whose first chunk was sent at `first_sent`; `None` if none is kept.
    #[inline]
    fn highest_kept_count(&self, rid: &str, first_sent: MonoNs) -> Option<u32> {
        // Called for each new request, so the rid is hashed only if there are early deliveries.
        if self.deliveries.is_empty() {
            return None;
        }
        let rid_hash = hash_rid(rid);
        let with_rid = self.deliveries.iter().filter(|early| early.rid_hash == rid_hash);
        // A delivery before the first send belongs to an earlier request with the rid.
        let of_request = with_rid.filter(|early| early.at >= first_sent);
        of_request.map(|early| early.end_count).max()
    }
}

/// Hash of a rid. It is the same in every process, because a serialized ledger may continue in another one.
pub(super) fn hash_rid(rid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    rid.hash(&mut hasher);
    hasher.finish()
}

impl Ledger {
    /// Counts a health check of the server, unless it was seen recently. Health checks are never judged.
    pub(super) fn count_health_check_if_new(&mut self, rid: &str) {
        let rid_hash = hash_rid(rid);
        if !self.health_checks.contains(&rid_hash) {
            // A health check may have several chunks and log lines with one rid.
            push_bounded(&mut self.health_checks, rid_hash, MAX_HEALTH_CHECKS);
            self.totals.requests.health_checks += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delivery_before_the_first_send_belongs_to_the_earlier_request() {
        let mut early = EarlyDeliveries::default();
        early.keep_early_delivery("a", MonoNs(20), 3);
        assert_eq!(early.early_delivered_count("a", MonoNs(10)), Some(3));
        assert_eq!(early.early_delivered_count("a", MonoNs(21)), None, "belongs to the previous request with the rid");
        assert_eq!(early.early_delivered_count("b", MonoNs(10)), None);
    }

    #[test]
    fn an_eviction_makes_a_match_uncertain_and_an_expiry_does_not() {
        let mut early = EarlyDeliveries::default();
        for at in 0..=MAX_EARLY_DELIVERIES as u64 {
            early.keep_early_delivery("a", MonoNs(at), 1);
        }
        assert_eq!(early.early_delivered_count("b", MonoNs(0)), Some(0), "its delivery may have been the evicted one");
        assert_eq!(early.early_delivered_count("b", MonoNs(1)), None);
        early.keep_early_delivery("c", MonoNs(2 * MAX_DELAY_NS), 1);
        assert_eq!(early.deliveries.len(), 1);
    }
}
