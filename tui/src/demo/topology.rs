//! The hops of a scenario: who sends to whom, and through which sockets.

use std::path::Path;

use trace::HopId;

use super::scenario::Route;

/// Detokenizers, and tokenizer workers, behind the router.
const WORKERS: usize = 2;

/// Who receives on a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receiver {
    /// Spreads requests over several detokenizers.
    Router,
    /// Makes text of ids.
    Detokenizer,
    /// Hands tokens to clients.
    Tokenizer,
}

/// One hop: the sender connects to `listen`, where the relay waits; the receiver has bound `upstream`.
#[derive(Clone, Debug)]
pub(super) struct HopPlan {
    pub(super) id: HopId,
    pub(super) name: &'static str,
    /// Which of the receiving workers.
    pub(super) worker: Option<u16>,
    pub(super) to: Receiver,
    pub(super) listen: String,
    pub(super) upstream: String,
}

impl HopPlan {
    /// The scheduler sends on it.
    pub(super) fn is_origin(&self) -> bool {
        self.id == HopId(0)
    }
}

/// The hops of `route`, in the order of the tokens, with their sockets in `folder`.
pub(super) fn hops(route: Route, folder: &Path) -> Vec<HopPlan> {
    let members: &[(&str, Receiver, Option<usize>)] = match route {
        Route::Direct => &[("scheduler->tokenizer", Receiver::Tokenizer, None)],
        Route::Detokenizer => &[
            ("scheduler->detokenizer", Receiver::Detokenizer, None),
            ("detokenizer->tokenizer", Receiver::Tokenizer, None),
        ],
        Route::Router => &[
            ("scheduler->router", Receiver::Router, None),
            ("router->detokenizer", Receiver::Detokenizer, Some(0)),
            ("router->detokenizer", Receiver::Detokenizer, Some(1)),
            ("detokenizer->tokenizer", Receiver::Tokenizer, Some(0)),
            ("detokenizer->tokenizer", Receiver::Tokenizer, Some(1)),
        ],
    };
    let plans = members.iter().enumerate();
    plans
        .map(|(id, &(name, to, worker))| plan(folder, id, name, to, worker))
        .collect()
}

fn plan(folder: &Path, id: usize, name: &'static str, to: Receiver, worker: Option<usize>) -> HopPlan {
    let endpoint = |suffix: &str| format!("ipc://{}/{id}{suffix}", folder.display());
    // The detokenizer of a tokenizer worker is chosen by its endpoint's checksum: names are tried until both have work.
    let mut listen = endpoint("-0");
    for i in 1_u32.. {
        if worker.is_none_or(|worker| detokenizer_of(&listen) == worker) {
            break;
        }
        listen = endpoint(&format!("-{i}"));
    }
    let worker = worker.map(|worker| worker as u16);
    HopPlan {
        // The tap numbers two hops a pair, the forward one first.
        id: HopId(2 * id as u16),
        name,
        to,
        worker,
        listen,
        upstream: endpoint(""),
    }
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
        let hops = hops(Route::Router, Path::new("/tmp/demo"));
        let served: Vec<_> = hops
            .iter()
            .filter(|hop| hop.to == Receiver::Tokenizer)
            .map(|hop| detokenizer_of(&hop.listen))
            .collect();
        assert_eq!(served, [0, 1]);
    }

    #[test]
    fn the_checksum_is_the_one_of_zlib() {
        assert_eq!(crc32fast::hash(b"123456789"), 0xcbf4_3926);
    }
}
