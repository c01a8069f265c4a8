//! The hops of a scenario: who sends to whom, and through which sockets.

use std::path::Path;

use trace::HopId;
use trace::MonoNs;
use trace::event::{Event, Hop, Sees, What};

use super::scenario;

/// Detokenizers and tokenizer workers in the scenario with a router.
pub(super) const WORKERS: usize = 2;

/// One hop: the sender connects to `listen`, where the relay waits; the receiver has bound `upstream`.
#[derive(Clone, Debug)]
pub(super) struct HopPlan {
    pub(super) id: HopId,
    pub(super) name: &'static str,
    /// Which of the receiving workers.
    pub(super) worker: Option<u16>,
    pub(super) origin: bool,
    pub(super) last: bool,
    pub(super) listen: String,
    pub(super) upstream: String,
}

impl HopPlan {
    /// Announces the hop: the relay sees it sent and forwarded, the peers tell the rest.
    pub(super) fn announce(&self, at: MonoNs) -> Event<'_> {
        let sees = Sees {
            sent: true,
            forwarded: true,
            taken: true,
            handled: true,
            delivered: self.last,
        };
        let (id, name, worker) = (self.id, self.name, self.worker);
        let hop = Hop {
            id,
            name,
            endpoint: &self.listen,
            worker,
            origin: self.origin,
            last: self.last,
            sees,
        };
        Event {
            at,
            what: What::Hop(hop),
        }
    }
}

/// The hops of `path`, in the order of the tokens, with their sockets in `folder`.
pub(super) fn hops(path: scenario::Path, folder: &Path) -> Vec<HopPlan> {
    let mut hops = Vec::new();
    match path {
        scenario::Path::Direct => push(&mut hops, folder, "scheduler->tokenizer", None),
        scenario::Path::Detokenizer => {
            push(&mut hops, folder, "scheduler->detokenizer", None);
            push(&mut hops, folder, "detokenizer->tokenizer", None);
        }
        scenario::Path::Router => {
            push(&mut hops, folder, "scheduler->router", None);
            (0..WORKERS).for_each(|i| push(&mut hops, folder, "router->detokenizer", Some(i)));
            (0..WORKERS).for_each(|i| push(&mut hops, folder, "detokenizer->tokenizer", Some(i)));
        }
    }
    hops[0].origin = true;
    hops.iter_mut()
        .filter(|hop| hop.name.ends_with("->tokenizer"))
        .for_each(|hop| hop.last = true);
    hops
}

fn push(hops: &mut Vec<HopPlan>, folder: &Path, name: &'static str, worker: Option<usize>) {
    let id = hops.len();
    let endpoint = |suffix: &str| format!("ipc://{}/{id}{suffix}", folder.display());
    // The detokenizer of a tokenizer worker is chosen by its endpoint's checksum: names are tried until both have work.
    let mut listen = endpoint("-0");
    for i in 1_u32.. {
        if worker.is_none_or(|worker| detokenizer_of(&listen) == worker) {
            break;
        }
        listen = endpoint(&format!("-{i}"));
    }
    hops.push(HopPlan {
        id: HopId(id as u16),
        name,
        worker: worker.map(|worker| worker as u16),
        origin: false,
        last: false,
        listen,
        upstream: endpoint(""),
    });
}

/// `crc32(http_worker_ipc) mod N`, as the router of 0.5.12 and later spreads requests over its detokenizers.
pub(super) fn detokenizer_of(http_worker_ipc: &str) -> usize {
    crc32fast::hash(http_worker_ipc.as_bytes()) as usize % WORKERS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_detokenizer_of_the_router_has_a_worker_to_serve() {
        let hops = hops(scenario::Path::Router, Path::new("/tmp/demo"));
        let served: Vec<_> = hops
            .iter()
            .filter(|hop| hop.last)
            .map(|hop| detokenizer_of(&hop.listen))
            .collect();
        assert_eq!(served, [0, 1]);
        assert_eq!(hops.iter().filter(|hop| hop.origin).count(), 1);
    }

    #[test]
    fn the_checksum_is_the_one_of_zlib() {
        assert_eq!(crc32fast::hash(b"123456789"), 0xcbf4_3926);
    }
}
