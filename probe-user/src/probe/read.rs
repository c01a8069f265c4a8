//! Reading of ring records as observations, including losses and process exits.

use std::collections::BTreeSet;
use std::time::Duration;

use probe_ebpf::{Header, Kind, Loss, Record, egress};
use rustix::event::{PollFd, PollFlags, Timespec};
use trace::MonoNs;

use super::{HOUSEKEEPING_INTERVAL, Probe, ProbeError};
use crate::observation::{Call, Message, Observation, SocketId};
use crate::programs::TableChange;

/// Causes for which the kernel side neither writes nor drops a record.
const UNRECORDED: [Loss; 4] = [Loss::UnknownMessage, Loss::HeaderFault, Loss::InFlight, Loss::Channels];

impl Probe {
    /// Passes all records of the ring as observations. Returns their number.
    pub(super) fn read_records(&mut self, emit: &mut impl FnMut(Observation<'_>)) -> Result<usize, ProbeError> {
        let mut count = 0;
        while let Some(item) = self.records.next() {
            if !self.is_busy {
                self.is_busy = true;
                // Messages that were missed at rest came before this record.
                if self.losses_counted_at.elapsed() > HOUSEKEEPING_INTERVAL * 2 {
                    count += self.losses.report_new(&mut self.kernel, &UNRECORDED, emit)?;
                }
            }
            if let Some(record) = egress::Record::parse(&item) {
                if let Some(target) = self.targets.get(record.head.target as usize) {
                    emit(Observation::Egress { pid: target.pid, record });
                    count += 1;
                }
            } else if let Some(record) = Record::parse(&item)
                && let Some(target) = self.targets.get(record.header.target as usize)
            {
                emit(to_observation(&record, target.pid, target.observes_polls));
                count += 1;
            }
        }
        Ok(count)
    }

    /// Waits until the ring has a record, or for `patience`.
    pub(super) fn wait_for_records(&self, patience: Duration) -> Result<(), ProbeError> {
        let timeout = patience.try_into().ok();
        let mut fds = [PollFd::new(&self.records, PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            // A signal only shortens the wait.
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(ProbeError::Wait(error.into())),
        }
    }

    /// Reports the processes that have exited, and releases what belongs to them. Returns the number of observations.
    pub(super) fn report_exits(&mut self, emit: &mut impl FnMut(Observation<'_>)) -> Result<usize, ProbeError> {
        let mut count = 0;
        for index in 0..self.targets.len() {
            let has_ended = self.targets[index].pidfd.as_ref().is_some_and(|pidfd| {
                let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
                rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
            });
            if has_ended {
                // Report the remaining records of the process before its exit, and none after it.
                count += self.read_records(emit)?;
                self.kernel.detach_target(index as u32);
                let pid = self.release_target(index);
                emit(Observation::Exited { pid });
                count += 1;
            }
        }
        Ok(count)
    }

    /// Ends the observation of these processes. Their records that were not read may be attributed to a process added later.
    pub fn release_targets(&mut self, pids: &BTreeSet<u32>) {
        for index in 0..self.targets.len() {
            if !self.targets[index].is_free && pids.contains(&self.targets[index].pid) {
                self.kernel.detach_target(index as u32);
                self.release_target(index);
            }
        }
        // Their problems are no problems of the remaining processes.
        self.degraded.retain(|degraded| degraded.pid.is_none_or(|pid| !pids.contains(&pid)));
    }

    /// Frees the entry of a target whose links are detached. Returns its process id.
    fn release_target(&mut self, index: usize) -> u32 {
        let slot = &mut self.targets[index];
        slot.pidfd = None;
        slot.is_free = true;
        let pid = slot.pid;
        // The id may be reused by another process. An error means that it is already gone from the map.
        let _ = self.change_table(TableChange::RemoveTarget { pid });
        self.serving.capture_limits.remove(&pid);
        self.release_listeners(pid);
        self.release_zmtp(pid);
        self.inner_servers.remove(&pid);
        // Another process may reuse its entry. An error means that the prober has ended.
        let _ = self.change_table(TableChange::RemoveThreads { target: index as u32 });
        pid
    }
}

/// What a record shows of process `pid`.
pub(crate) fn to_observation<'a>(record: &Record<'a>, pid: u32, observes_polls: bool) -> Observation<'a> {
    let Header { at_ns, socket, seq, bytes, wakeup, tid, more, .. } = record.header;
    let call = Call {
        at: MonoNs(at_ns),
        socket: SocketId { pid, address: socket },
        tid,
        seq,
        wakeup: observes_polls.then_some(wakeup),
    };
    let message = Message { call, bytes, more: more != 0, payload: record.payload };
    match record.kind {
        Kind::Sent => Observation::Sent(message),
        Kind::Unsent => Observation::Unsent(call),
        Kind::Received => Observation::Received(message),
        Kind::Processed => Observation::Processed(call),
        Kind::Returned => Observation::Returned(call),
    }
}
