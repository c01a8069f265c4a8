//! Observation of the ZMTP connections that a process reads without libzmq.

use std::collections::{BTreeSet, HashMap};

use probe_ebpf::egress::MAX_ZMTP;

use super::{Probe, ProbeError};
use crate::capability::Feature;
use crate::programs::{Group, TableChange};

#[derive(Default)]
pub(super) struct ZmtpSockets {
    /// Inodes of the observed sockets by process.
    pub(super) sockets: HashMap<u32, BTreeSet<u64>>,
    is_attached: bool,
}

impl Probe {
    /// Observes the reads of `pid` from the sockets with these inodes, and from no others. For a new process, call this before the process
    /// is added, so that the receipt of each observed send is observed too. Returns whether reads are observable; if not,
    /// [`Probe::degraded`] has the reason.
    pub fn observe_zmtp_reads(&mut self, pid: u32, inodes: &BTreeSet<u64>) -> Result<bool, ProbeError> {
        if !self.attach_zmtp_reads() {
            return Ok(false);
        }
        // Sockets that stay keep their entry, and with it their byte count.
        let previous = self.zmtp.sockets.insert(pid, inodes.clone()).unwrap_or_default();
        if let Some(index) = self.target_index(pid) {
            self.remove_zmtp_sockets(previous.difference(inodes));
            self.enter_zmtp_sockets(index as u32, inodes.difference(&previous))?;
        }
        Ok(true)
    }

    /// Attaches the program that observes reads, once for all processes. Returns whether it is attached; if not, records the reason.
    fn attach_zmtp_reads(&mut self) -> bool {
        if !self.zmtp.is_attached {
            self.zmtp.is_attached = self.attach_group_or_record_refusal(Group::ZmtpReads, Feature::SocketReads);
        }
        self.zmtp.is_attached
    }

    /// Passes the sockets of a process that has become the target `index` to the kernel side.
    pub(super) fn enter_known_zmtp_sockets(&mut self, pid: u32, index: u32) -> Result<(), ProbeError> {
        let sockets = self.zmtp.sockets.get(&pid).cloned().unwrap_or_default();
        self.enter_zmtp_sockets(index, sockets.iter())
    }

    /// Stops observing the ZMTP connections of a process.
    pub(super) fn release_zmtp(&mut self, pid: u32) {
        let sockets = self.zmtp.sockets.remove(&pid).unwrap_or_default();
        self.remove_zmtp_sockets(sockets.iter());
    }

    /// Makes the kernel side copy the bytes that the process reads from these sockets.
    fn enter_zmtp_sockets<'i>(
        &mut self,
        target_index: u32,
        inodes: impl Iterator<Item = &'i u64>,
    ) -> Result<(), ProbeError> {
        // The kernel side's table has no room for more.
        for inode in inodes.take(MAX_ZMTP as usize) {
            self.change_table(TableChange::EnterZmtp { target: target_index, inode: *inode })?;
        }
        Ok(())
    }

    /// Makes the kernel side copy no more bytes that are read from these sockets.
    fn remove_zmtp_sockets<'i>(&mut self, inodes: impl Iterator<Item = &'i u64>) {
        for inode in inodes {
            // An error means that the entry did not fit into the table.
            let _ = self.change_table(TableChange::RemoveZmtp { inode: *inode });
        }
    }
}
