//! What can be seen of the processes that receive, each from the moment it is watched.

use std::collections::{BTreeMap, BTreeSet};

use trace::MonoNs;

/// What can be seen at the receiving ends of hops.
#[derive(Clone, Debug, Default)]
pub(super) struct Sight {
    /// Processed messages are told.
    pub(super) handled: bool,
    /// Responses show what they deliver, of those processes whose writes are observed.
    pub(super) delivered: bool,
    /// Processes that are watched, and since when; 0 of those that were before the first message.
    watched: BTreeMap<u32, MonoNs>,
    /// Those whose writes to clients are observed, likewise.
    served: BTreeMap<u32, MonoNs>,
}

impl Sight {
    pub(super) fn new(handled: bool, delivered: bool) -> Self {
        Self {
            handled,
            delivered,
            ..Self::default()
        }
    }

    /// What `pid` receives is told since `at`.
    pub(super) fn watch(&mut self, pid: u32, at: MonoNs) {
        self.watched.insert(pid, at);
    }

    /// What `pid` writes to clients is told since `at`.
    pub(super) fn serve(&mut self, pid: u32, at: MonoNs) {
        self.served.insert(pid, at);
    }

    /// The process has ended.
    pub(super) fn forget(&mut self, pid: u32) {
        self.watched.remove(&pid);
        self.served.remove(&pid);
    }

    pub(super) fn is_watched(&self, pid: u32) -> bool {
        self.watched.contains_key(&pid)
    }

    /// Since when all of `pids` are watched; `None` where one is not, or there is none.
    pub(super) fn watches(&self, pids: &BTreeSet<u32>) -> Option<MonoNs> {
        since(&self.watched, pids)
    }

    /// Since when the deliveries of all of `pids` are seen, likewise.
    pub(super) fn serves(&self, pids: &BTreeSet<u32>) -> Option<MonoNs> {
        since(&self.served, pids).filter(|_| self.delivered)
    }
}

fn since(all: &BTreeMap<u32, MonoNs>, pids: &BTreeSet<u32>) -> Option<MonoNs> {
    let stamps: Option<Vec<MonoNs>> = pids.iter().map(|pid| all.get(pid).copied()).collect();
    stamps?.into_iter().max()
}
