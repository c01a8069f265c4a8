//! Ids remembered for a short time: of deliveries reported before the first chunk of their request, because sources guarantee no order
//! between connections, and of health checks.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::Ledger;
use super::limits::push_bounded;
use crate::clock::MonoNs;

const KEPT: usize = 256;
/// Maximum delay of a first chunk's report behind a delivery, in nanoseconds.
const PATIENCE_NS: u64 = 1_000_000_000;
/// Number of health checks remembered, to count each once over its chunks and hops. They are seconds apart.
const HEALTH_CHECKS: usize = 64;

/// A delivery of a request that was not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Early {
    /// Hash of its rid. A collision only makes another request's first match uncertain.
    hash: u64,
    at: MonoNs,
    /// Cumulative count at its end.
    to: u32,
}

#[derive(Clone, Debug, Default)]
pub(super) struct EarlyDeliveries {
    deliveries: VecDeque<Early>,
    /// Time of the newest evicted delivery.
    gone: Option<MonoNs>,
}

impl EarlyDeliveries {
    /// Records a delivery; `to` is 0 if it has no count.
    pub(super) fn keep(&mut self, rid: &str, at: MonoNs, to: u32) {
        while self.deliveries.pop_front_if(|early| at.since(early.at) > PATIENCE_NS).is_some() {}
        let evicted = push_bounded(&mut self.deliveries, Early { hash: hash(rid), at, to }, KEPT);
        self.gone = self.gone.max(evicted.map(|early| early.at));
    }

    /// Count reached by early deliveries of a request whose first chunk was sent at `since`; `None` without any.
    pub(super) fn of(&self, rid: &str, since: MonoNs) -> Option<u32> {
        let possibly_evicted = self.gone.is_some_and(|gone| gone >= since).then_some(0);
        let hash = (!self.deliveries.is_empty()).then(|| hash(rid));
        // A delivery before the first send belongs to an earlier request with the rid.
        let its = |early: &&Early| Some(early.hash) == hash && early.at >= since;
        self.deliveries.iter().filter(its).map(|early| early.to).max().or(possibly_evicted)
    }
}

/// The same in every process, because a serialized ledger may continue in another one.
fn hash(rid: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    rid.hash(&mut hasher);
    hasher.finish()
}

impl Ledger {
    /// Counts a health check of the server, unless it was seen recently. Health checks are never judged.
    pub(super) fn count_health_check(&mut self, rid: &str) {
        let hash = hash(rid);
        if !self.health_checks.contains(&hash) {
            push_bounded(&mut self.health_checks, hash, HEALTH_CHECKS);
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
        early.keep("a", MonoNs(20), 3);
        assert_eq!(early.of("a", MonoNs(10)), Some(3));
        assert_eq!(early.of("a", MonoNs(21)), None, "belongs to the previous request with the rid");
        assert_eq!(early.of("b", MonoNs(10)), None);
    }

    #[test]
    fn an_eviction_makes_a_match_uncertain_and_an_expiry_does_not() {
        let mut early = EarlyDeliveries::default();
        for at in 0..=KEPT as u64 {
            early.keep("a", MonoNs(at), 1);
        }
        assert_eq!(early.of("b", MonoNs(0)), Some(0), "its delivery may have been the evicted one");
        assert_eq!(early.of("b", MonoNs(1)), None);
        early.keep("c", MonoNs(2 * PATIENCE_NS), 1);
        assert_eq!(early.deliveries.len(), 1);
    }
}
