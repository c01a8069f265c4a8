//! Observability of receiving processes, each from the moment it is watched.

use std::collections::{BTreeMap, BTreeSet};

use trace::MonoNs;

/// Sending and receiving process of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ProcessPair {
    pub(super) sender_pid: u32,
    pub(super) receiver_pid: u32,
}

/// Observable stages at the receiving ends of hops.
#[derive(Clone, Debug, Default)]
pub(super) struct Observability {
    /// Set if processed messages are reported.
    pub(super) is_processing_reported: bool,
    /// Set if deliveries are visible in the responses of processes whose writes are observed.
    pub(super) are_deliveries_visible: bool,
    /// Watched processes and the start time; 0 if watched before the first message.
    watched: BTreeMap<u32, MonoNs>,
    /// Receivers without libzmq, by sender and receiver, with the start time as above. Reads of the connections between the two are
    /// observed as receives; processing is not observed.
    read: BTreeMap<ProcessPair, MonoNs>,
    /// Processes whose writes to clients are observed, with the start time as above.
    served: BTreeMap<u32, MonoNs>,
}

impl Observability {
    pub(super) fn new(is_processing_reported: bool, are_deliveries_visible: bool) -> Self {
        Self { is_processing_reported, are_deliveries_visible, ..Self::default() }
    }

    /// Marks receives of `pid` as observed since `at`.
    pub(super) fn mark_watched(&mut self, pid: u32, at: MonoNs) {
        self.watched.insert(pid, at);
    }

    /// Marks reads of the connections between a pair of processes as observed since `at`.
    pub(super) fn mark_connection_read(&mut self, pair: ProcessPair, at: MonoNs) {
        self.read.insert(pair, at);
    }

    /// Marks reads of the connections between a pair of processes as unobserved.
    pub(super) fn mark_connection_unread(&mut self, pair: ProcessPair) {
        self.read.remove(&pair);
    }

    /// Marks writes of `pid` to clients as observed since `at`.
    pub(super) fn mark_served(&mut self, pid: u32, at: MonoNs) {
        self.served.insert(pid, at);
    }

    /// Marks everything of a process as unobserved, because it has exited.
    pub(super) fn remove_process(&mut self, pid: u32) {
        self.watched.remove(&pid);
        self.served.remove(&pid);
        self.read.retain(|pair, _| pair.sender_pid != pid && pair.receiver_pid != pid);
    }

    pub(super) fn is_watched(&self, pid: u32) -> bool {
        self.watched.contains_key(&pid) || self.read.keys().any(|pair| pair.receiver_pid == pid)
    }

    /// Time from which all of `pids` have been observed to receive from the process `sender_pid`. `None` if one of them is not observed, or
    /// `pids` is empty.
    pub(super) fn receives_observed_since(&self, sender_pid: u32, pids: &BTreeSet<u32>) -> Option<MonoNs> {
        latest_stamp(pids.iter().map(|pid| self.receives_from_observed_since(sender_pid, *pid)))
    }

    /// Time from which a process has been observed to receive from `sender_pid`; `None` if it is not.
    fn receives_from_observed_since(&self, sender_pid: u32, receiver_pid: u32) -> Option<MonoNs> {
        if let Some(watched_since) = self.watched.get(&receiver_pid) {
            return Some(*watched_since);
        }
        // A process without libzmq is not watched. Its connection from the sender may be read instead.
        self.read.get(&ProcessPair { sender_pid, receiver_pid }).copied()
    }

    /// Whether the end of processing is observed in all of `pids`.
    pub(super) fn observes_processing(&self, pids: &BTreeSet<u32>) -> bool {
        self.is_processing_reported && pids.iter().all(|pid| self.watched.contains_key(pid))
    }

    /// Time from which the deliveries of all of `pids` have been observed; `None` if those of one are not, or `pids` is empty.
    pub(super) fn deliveries_observed_since(&self, pids: &BTreeSet<u32>) -> Option<MonoNs> {
        if !self.are_deliveries_visible {
            return None;
        }
        latest_stamp(pids.iter().map(|pid| self.served.get(pid).copied()))
    }
}

/// The latest stamp; `None` if one is missing, or there are none.
fn latest_stamp(stamps: impl Iterator<Item = Option<MonoNs>>) -> Option<MonoNs> {
    let stamps: Option<Vec<MonoNs>> = stamps.collect();
    stamps?.into_iter().max()
}
