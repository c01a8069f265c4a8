//! Hops of a scenario: senders, receivers and sockets.

use std::path::Path;

use trace::HopId;
use trace::event::Capabilities;
use trace::path::Ends;

use super::encode::DemoEngine;
use super::scenario::ProcessCounts;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiverRole {
    /// Distributes requests over several detokenizers.
    Router,
    /// Converts token ids to text.
    Detokenizer,
    /// Delivers tokens to clients.
    Tokenizer,
    /// Generates tokens: the hop carries requests.
    Scheduler,
}

/// A hop. The sender connects to `listen`, where the relay listens; the receiver binds `upstream`.
#[derive(Clone, Debug)]
pub(super) struct HopPlan {
    pub(super) id: HopId,
    pub(super) ends: Ends<&'static str>,
    /// Index of the receiving worker.
    pub(super) worker: Option<u16>,
    pub(super) to: ReceiverRole,
    pub(super) listen: String,
    pub(super) upstream: String,
}

impl HopPlan {
    /// Returns whether the scheduler sends on it.
    pub(super) fn is_origin(&self) -> bool {
        self.id == HopId(0)
    }

    /// Returns whether the receiver delivers tokens to clients.
    pub(super) fn is_last(&self) -> bool {
        self.to == ReceiverRole::Tokenizer
    }

    /// Returns whether requests cross it.
    pub(super) fn carries_requests(&self) -> bool {
        self.to == ReceiverRole::Scheduler
    }

    /// The stages that the peers report.
    pub(super) fn reported(&self) -> Capabilities {
        Capabilities { received: true, processed: true, delivered: self.is_last(), ..Capabilities::default() }
    }
}

/// Hops of `route`, in the order of the path, then those with requests, with their sockets in `folder`.
pub(super) fn hops(engine: DemoEngine, route: ProcessCounts, folder: &Path) -> Vec<HopPlan> {
    let mut planner = HopPlanner { folder, detokenizers: route.detokenizers, plans: Vec::new() };
    // Names of the processes at the ends of the last hop.
    let (last, tokenizer) = match (engine, route.detokenizers, route.workers) {
        (DemoEngine::Vllm, ..) => ("engine-core", "api-server"),
        (_, 0, _) => ("scheduler", "tokenizer"),
        (_, _, 1) => ("detokenizer", "tokenizer"),
        _ => ("detokenizer", "worker"),
    };
    match route.detokenizers {
        0 => {}
        1 => planner.add_hops(Ends::new("scheduler", "detokenizer"), ReceiverRole::Detokenizer, 1),
        several => {
            planner.add_hops(Ends::new("scheduler", "detokenizer-router"), ReceiverRole::Router, 1);
            planner.add_hops(Ends::new("detokenizer-router", "detokenizer"), ReceiverRole::Detokenizer, several);
        }
    }
    planner.add_hops(Ends::new(last, tokenizer), ReceiverRole::Tokenizer, route.workers);
    let scheduler = if engine == DemoEngine::Vllm { "engine-core" } else { "scheduler" };
    planner.add_hops(Ends::new(tokenizer, scheduler), ReceiverRole::Scheduler, route.schedulers);
    planner.plans
}

/// Hops so far, and what the next ones depend on.
struct HopPlanner<'f> {
    folder: &'f Path,
    /// Number of detokenizers.
    detokenizers: usize,
    plans: Vec<HopPlan>,
}

impl HopPlanner<'_> {
    /// Adds a hop to each of `count` receivers.
    fn add_hops(&mut self, ends: Ends<&'static str>, receiver: ReceiverRole, count: usize) {
        for worker in 0..count {
            let worker = (count > 1).then_some(worker);
            let upstream = format!("ipc://{}/{}", self.folder.display(), self.plans.len());
            self.plans.push(HopPlan {
                // The tap assigns two ids per pair, the forward hop first.
                id: HopId(2 * self.plans.len() as u16),
                ends,
                worker: worker.map(|worker| worker as u16),
                to: receiver,
                listen: self.name_listener(&upstream, receiver, worker),
                upstream,
            });
        }
    }

    /// Endpoint at which the tap listens. The checksum of its endpoint determines the detokenizer of a tokenizer worker, so names are tried
    /// until the workers are distributed evenly.
    fn name_listener(&self, upstream: &str, receiver: ReceiverRole, worker: Option<usize>) -> String {
        let mut names = (0..=u32::MAX).map(|i| format!("{upstream}-{i}"));
        let found = match (receiver, worker, self.detokenizers) {
            (ReceiverRole::Tokenizer, Some(worker), several @ 2..) => {
                names.find(|listen| detokenizer_of(listen, several) == worker % several)
            }
            _ => names.next(),
        };
        found.unwrap_or_default()
    }
}

/// `crc32(http_worker_ipc) mod N`, as the router of 0.5.12 and later distributes requests over its detokenizers.
pub(super) fn detokenizer_of(http_worker_ipc: &str, detokenizers: usize) -> usize {
    crc32fast::hash(http_worker_ipc.as_bytes()) as usize % detokenizers
}

#[cfg(test)]
mod tests {
    use super::super::encode::SglangRelease;
    use super::*;

    #[test]
    fn workers_are_spread_over_all_detokenizers() {
        let route = ProcessCounts { schedulers: 1, detokenizers: 4, workers: 8 };
        let engine = DemoEngine::Sglang(SglangRelease::V0_5_13);
        let hops = hops(engine, route, Path::new("/tmp/demo"));
        let served: Vec<_> = hops
            .iter()
            .filter(|hop| hop.to == ReceiverRole::Tokenizer)
            .map(|hop| detokenizer_of(&hop.listen, 4))
            .collect();
        assert_eq!(served, [0, 1, 2, 3, 0, 1, 2, 3]);
    }
}
