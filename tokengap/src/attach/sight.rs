//! Observability of receiving processes, each from the moment it is watched.

use std::collections::{BTreeMap, BTreeSet};

use trace::MonoNs;

/// Observable stages at the receiving ends of hops.
#[derive(Clone, Debug, Default)]
pub(super) struct Observability {
    /// Set if processed messages are reported.
    pub(super) processed: bool,
    /// Set if deliveries are visible in the responses of processes whose writes are observed.
    pub(super) delivered: bool,
    /// Watched processes and the start time; 0 if watched before the first message.
    watched: BTreeMap<u32, MonoNs>,
    /// Processes whose writes to clients are observed, with the start time as above.
    served: BTreeMap<u32, MonoNs>,
}

impl Observability {
    pub(super) fn new(processed: bool, delivered: bool) -> Self {
        Self {
            processed,
            delivered,
            ..Self::default()
        }
    }

    /// Marks receives of `pid` as observed since `at`.
    pub(super) fn watch(&mut self, pid: u32, at: MonoNs) {
        self.watched.insert(pid, at);
    }

    /// Marks writes of `pid` to clients as observed since `at`.
    pub(super) fn serve(&mut self, pid: u32, at: MonoNs) {
        self.served.insert(pid, at);
    }

    /// Removes an exited process.
    pub(super) fn forget(&mut self, pid: u32) {
        self.watched.remove(&pid);
        self.served.remove(&pid);
    }

    pub(super) fn is_watched(&self, pid: u32) -> bool {
        self.watched.contains_key(&pid)
    }

    /// Time from which all of `pids` have been watched; `None` if one is not watched, or `pids` is empty.
    pub(super) fn watches(&self, pids: &BTreeSet<u32>) -> Option<MonoNs> {
        since(&self.watched, pids)
    }

    /// Time from which the deliveries of all of `pids` have been observed; `None` as for [`Self::watches`].
    pub(super) fn serves(&self, pids: &BTreeSet<u32>) -> Option<MonoNs> {
        since(&self.served, pids).filter(|_| self.delivered)
    }
}

fn since(all: &BTreeMap<u32, MonoNs>, pids: &BTreeSet<u32>) -> Option<MonoNs> {
    let stamps: Option<Vec<MonoNs>> = pids.iter().map(|pid| all.get(pid).copied()).collect();
    stamps?.into_iter().max()
}
