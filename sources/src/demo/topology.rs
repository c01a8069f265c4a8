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
    /// Returns whether the scheduler sends on this hop.
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

/// Plans the hops between these processes, with their sockets in `folder`: first those of tokens, in the order of the path, then those of
/// requests.
pub(super) fn plan_hops(engine: DemoEngine, counts: ProcessCounts, folder: &Path) -> Vec<HopPlan> {
    let mut planner = HopPlanner { folder, detokenizers: counts.detokenizers, plans: Vec::new() };
    let scheduler = if engine == DemoEngine::Vllm { "engine-core" } else { "scheduler" };
    let tokenizer = name_tokenizer(engine, counts);
    let has_detokenizer = counts.detokenizers > 0;
    let single = 1;
    // Without detokenizers (`--skip-tokenizer-init`), the scheduler sends to the tokenizer. Several detokenizers are reached through a
    // router.
    if counts.detokenizers == 1 {
        planner.add_hops(Ends::new(scheduler, "detokenizer"), ReceiverRole::Detokenizer, single);
    } else if has_detokenizer {
        planner.add_hops(Ends::new(scheduler, "detokenizer-router"), ReceiverRole::Router, single);
        let ends = Ends::new("detokenizer-router", "detokenizer");
        planner.add_hops(ends, ReceiverRole::Detokenizer, counts.detokenizers);
    }
    let last_sender = if has_detokenizer { "detokenizer" } else { scheduler };
    planner.add_hops(Ends::new(last_sender, tokenizer), ReceiverRole::Tokenizer, counts.workers);
    planner.add_hops(Ends::new(tokenizer, scheduler), ReceiverRole::Scheduler, counts.schedulers);
    planner.plans
}

/// Name of the processes that deliver tokens to clients.
fn name_tokenizer(engine: DemoEngine, counts: ProcessCounts) -> &'static str {
    let has_workers = counts.detokenizers > 0 && counts.workers != 1;
    match engine {
        DemoEngine::Vllm => "api-server",
        DemoEngine::Sglang(_) if has_workers => "worker",
        DemoEngine::Sglang(_) => "tokenizer",
    }
}

/// Hops so far, and what the next ones depend on.
struct HopPlanner<'f> {
    folder: &'f Path,
    /// Number of detokenizers.
    detokenizers: usize,
    plans: Vec<HopPlan>,
}

impl HopPlanner<'_> {
    /// Adds a hop to each of `receiver_count` receivers of this role.
    fn add_hops(&mut self, ends: Ends<&'static str>, receiver: ReceiverRole, receiver_count: usize) {
        for receiver_index in 0..receiver_count {
            // The only receiver is no worker of a group.
            let worker = (receiver_count > 1).then_some(receiver_index);
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

    /// Names the endpoint at which the tap listens in front of `upstream`, so that tokenizer workers are distributed evenly over
    /// detokenizers.
    fn name_listener(&self, upstream: &str, receiver: ReceiverRole, worker: Option<usize>) -> String {
        // With one detokenizer, all workers share it.
        let has_choice = receiver == ReceiverRole::Tokenizer && self.detokenizers > 1;
        if has_choice && let Some(worker) = worker {
            // The router chooses a worker's detokenizer by the checksum of this name. Names are tried until one leads to the right one.
            for number in 0..=u32::MAX {
                let name = format!("{upstream}-{number}");
                if detokenizer_of(&name, self.detokenizers) == worker % self.detokenizers {
                    return name;
                }
            }
        }
        format!("{upstream}-0")
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
        let hops = plan_hops(engine, route, Path::new("/tmp/demo"));
        let served: Vec<_> = hops
            .iter()
            .filter(|hop| hop.to == ReceiverRole::Tokenizer)
            .map(|hop| detokenizer_of(&hop.listen, 4))
            .collect();
        assert_eq!(served, [0, 1, 2, 3, 0, 1, 2, 3]);
    }
}
