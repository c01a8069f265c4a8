//! Hops of a scenario: senders, receivers and sockets.

use std::path::Path;

use trace::HopId;
use trace::path::Ends;

use super::encode::Engine;
use super::scenario::Route;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiver {
    /// Distributes requests over several detokenizers.
    Router,
    /// Converts token ids to text.
    Detokenizer,
    /// Delivers tokens to clients.
    Tokenizer,
}

/// A hop. The sender connects to `listen`, where the relay listens; the receiver binds `upstream`.
#[derive(Clone, Debug)]
pub(super) struct HopPlan {
    pub(super) id: HopId,
    pub(super) ends: Ends<&'static str>,
    /// Index of the receiving worker.
    pub(super) worker: Option<u16>,
    pub(super) to: Receiver,
    pub(super) listen: String,
    pub(super) upstream: String,
}

impl HopPlan {
    /// Returns whether the scheduler sends on it.
    pub(super) fn is_origin(&self) -> bool {
        self.id == HopId(0)
    }
}

/// Hops of `route`, in the order of the path, with their sockets in `folder`.
pub(super) fn hops(engine: Engine, route: Route, folder: &Path) -> Vec<HopPlan> {
    let mut plans: Vec<HopPlan> = Vec::new();
    let mut add = |from, to, receiver: Receiver, count: usize| {
        for worker in 0..count {
            let (id, worker) = (plans.len(), (count > 1).then_some(worker));
            plans.push(plan(folder, id, Ends::new(from, to), receiver, worker, route.detokenizers));
        }
    };
    let (last, tokenizer) = match (engine, route.detokenizers, route.workers) {
        (Engine::Vllm, ..) => ("engine-core", "api-server"),
        (_, 0, _) => ("scheduler", "tokenizer"),
        (_, _, 1) => ("detokenizer", "tokenizer"),
        _ => ("detokenizer", "worker"),
    };
    match route.detokenizers {
        0 => {}
        1 => add("scheduler", "detokenizer", Receiver::Detokenizer, 1),
        several => {
            add("scheduler", "detokenizer-router", Receiver::Router, 1);
            add("detokenizer-router", "detokenizer", Receiver::Detokenizer, several);
        }
    }
    add(last, tokenizer, Receiver::Tokenizer, route.workers);
    plans
}

fn plan(
    folder: &Path,
    id: usize,
    ends: Ends<&'static str>,
    to: Receiver,
    worker: Option<usize>,
    detokenizers: usize,
) -> HopPlan {
    let endpoint = |suffix: &str| format!("ipc://{}/{id}{suffix}", folder.display());
    // The checksum of its endpoint determines the detokenizer of a tokenizer worker. Try names until the workers are distributed evenly.
    let mut listen = endpoint("-0");
    if let (Receiver::Tokenizer, Some(worker), 2..) = (to, worker, detokenizers) {
        for i in 1_u32.. {
            if detokenizer_of(&listen, detokenizers) == worker % detokenizers {
                break;
            }
            listen = endpoint(&format!("-{i}"));
        }
    }
    HopPlan {
        // The tap assigns two ids per pair, the forward hop first.
        id: HopId(2 * id as u16),
        ends,
        to,
        worker: worker.map(|worker| worker as u16),
        listen,
        upstream: endpoint(""),
    }
}

/// `crc32(http_worker_ipc) mod N`, as the router of 0.5.12 and later distributes requests over its detokenizers.
pub(super) fn detokenizer_of(http_worker_ipc: &str, detokenizers: usize) -> usize {
    crc32fast::hash(http_worker_ipc.as_bytes()) as usize % detokenizers
}

#[cfg(test)]
mod tests {
    use super::super::encode::Release;
    use super::*;

    #[test]
    fn workers_are_spread_over_all_detokenizers() {
        let route = Route { schedulers: 1, detokenizers: 4, workers: 8 };
        let engine = Engine::Sglang(Release::V0_5_13);
        let hops = hops(engine, route, Path::new("/tmp/demo"));
        let served: Vec<_> =
            hops.iter().filter(|hop| hop.to == Receiver::Tokenizer).map(|hop| detokenizer_of(&hop.listen, 4)).collect();
        assert_eq!(served, [0, 1, 2, 3, 0, 1, 2, 3]);
    }
}
