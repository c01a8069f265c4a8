//! Reading of ring records as observations, including losses and process exits.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use probe_ebpf::{Header, Kind, Loss, Record, egress};
use rustix::event::{PollFd, PollFlags};
use trace::MonoNs;

use super::kernel_access::KernelAccess;
use super::{
    HOUSEKEEPING_INTERVAL, Probe, ProbeError, REST_INTERVAL, ReportedLosses, TargetSlot, exited_pids, tables_error,
};
use crate::observation::{Call, Message, Observation, SocketId};
use crate::programs::{LossCounts, TableChange};

/// Causes for which the kernel side neither writes nor drops a record.
const UNRECORDED: [Loss; 4] = [Loss::UnknownMessage, Loss::HeaderFault, Loss::InFlight, Loss::Channels];

/// Number of records between two looks at the clock.
const CLOCK_INTERVAL: usize = 64;

/// Progress of the reading of the ring.
#[derive(Default)]
pub(super) struct RingReading {
    /// The last read left records in the ring, because its time was over.
    pub(super) has_unread: bool,
    /// Total length of the records read.
    bytes: u64,
}

/// Losses and exits that were noticed, and are reported after the records from before them.
pub(super) struct NoticedChanges {
    /// Totals of the kernel side; `None` if they were not read.
    losses: Option<LossCounts>,
    exited_pids: Vec<u32>,
    /// Value of [`RingReading::bytes`] from which on all records of that time have been read.
    all_read_at_bytes: u64,
}

impl Probe {
    /// Reads records from the ring and passes them to `emit` as observations, until there are none, or until the `deadline`. Drops records
    /// of unknown targets. Returns the number of observations.
    pub(super) fn read_records(
        &mut self,
        deadline: Instant,
        emit: &mut impl FnMut(Observation<'_>),
    ) -> Result<usize, ProbeError> {
        let mut emitted = 0;
        let mut records_read = 0_usize;
        loop {
            // The clock is not read for each record, because that takes longer than most records.
            let is_clock_due = records_read.is_multiple_of(CLOCK_INTERVAL);
            if is_clock_due && Instant::now() >= deadline {
                self.ring_progress.has_unread = true;
                break;
            }
            let Some(item) = self.records.next() else {
                self.ring_progress.has_unread = false;
                break;
            };
            records_read += 1;
            self.ring_progress.bytes += item.len() as u64;
            if !self.has_read_since_loss_count {
                self.has_read_since_loss_count = true;
                // While there are no records, losses are counted only rarely. So those of a pause are reported before its end.
                let was_pause = self.last_loss_count.elapsed() > HOUSEKEEPING_INTERVAL * 2;
                if was_pause {
                    emitted += report_losses_of_pause(&mut self.kernel, &mut self.losses, emit)?;
                }
            }
            if let Some(observation) = parse_observation(&item, &self.targets) {
                emit(observation);
                emitted += 1;
            }
        }
        Ok(emitted)
    }

    /// Waits until the ring has a record, or for `patience`.
    pub(super) fn wait_for_records(&self, patience: Duration) -> Result<(), ProbeError> {
        // A time that exceeds the system call's range is no limit.
        let timeout = patience.try_into().ok();
        let mut fds = [PollFd::new(&self.records, PollFlags::IN)];
        match rustix::event::poll(&mut fds, timeout.as_ref()) {
            // A signal only shortens the wait.
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(ProbeError::Wait(error.into())),
        }
    }

    /// Notices losses and exits. The records that are in the ring now are older, so losses and exits are reported only after them.
    pub(super) fn notice_losses_and_exits(&mut self) -> Result<NoticedChanges, ProbeError> {
        self.last_housekeeping = Instant::now();
        self.kernel.flush_log();
        let losses = self.read_losses_if_due()?;
        // The ring holds at most this many bytes. Once so many further bytes have been read, all records that are in it now have been read.
        let ring_bytes = self.options.ring_bytes.next_power_of_two();
        Ok(NoticedChanges {
            losses,
            exited_pids: exited_pids(&self.targets),
            all_read_at_bytes: self.ring_progress.bytes + u64::from(ring_bytes),
        })
    }

    /// Totals of the losses. Without records there are hardly any losses, and their counters may be in another process. So they are then
    /// read only once in [`REST_INTERVAL`]. `None` if they are not read.
    fn read_losses_if_due(&mut self) -> Result<Option<LossCounts>, ProbeError> {
        let is_due = self.has_read_since_loss_count || self.last_loss_count.elapsed() >= REST_INTERVAL;
        if !is_due {
            return Ok(None);
        }
        self.has_read_since_loss_count = false;
        self.last_loss_count = Instant::now();
        Ok(Some(self.kernel.read_losses().map_err(|refusal| tables_error(&refusal))?))
    }

    /// Whether the records from before the noticed changes have been read.
    pub(super) fn has_read_until(&self, noticed: &NoticedChanges) -> bool {
        !self.ring_progress.has_unread || self.ring_progress.bytes >= noticed.all_read_at_bytes
    }

    /// Passes noticed losses and exits to `emit`. Returns their number.
    pub(super) fn report_losses_and_exits(
        &mut self,
        noticed: NoticedChanges,
        emit: &mut impl FnMut(Observation<'_>),
    ) -> usize {
        let mut reported = noticed.losses.map_or(0, |totals| self.losses.report_new_losses(&totals, &Loss::ALL, emit));
        for pid in noticed.exited_pids {
            // Since the exit was noticed, its entry may have been freed, or reused by another process.
            let Some(index) = self.target_index(pid) else { continue };
            if !self.targets[index].has_exited() {
                continue;
            }
            self.kernel.detach_target(index as u32);
            self.free_target_entry(index);
            emit(Observation::Exited { pid });
            reported += 1;
        }
        reported
    }

    /// Ends the observation of these processes and detaches their probes. Records of them that are still unread may be attributed to a
    /// process that is added later.
    pub fn release_targets(&mut self, pids: &BTreeSet<u32>) {
        for index in 0..self.targets.len() {
            if !self.targets[index].is_free && pids.contains(&self.targets[index].pid) {
                self.kernel.detach_target(index as u32);
                self.free_target_entry(index);
            }
        }
        // Their problems are no problems of the remaining processes.
        self.degraded.retain(|degraded| degraded.pid.is_none_or(|pid| !pids.contains(&pid)));
    }

    /// Frees the entry of a target whose links are detached.
    fn free_target_entry(&mut self, target_index: usize) {
        let slot = &mut self.targets[target_index];
        slot.pidfd = None;
        slot.is_free = true;
        let pid = slot.pid;
        // Another process may get this id. An error means that the map does not have it any more.
        let _ = self.change_table(TableChange::RemoveTarget { pid });
        self.serving.capture_limits.remove(&pid);
        self.forget_listening_ports(pid);
        self.release_zmtp(pid);
        self.inner_servers.remove(&pid);
        // Another target may reuse the entry. An error means that the prober has ended.
        let _ = self.change_table(TableChange::RemoveThreads { target: target_index as u32 });
    }
}

/// Reports the losses in a time without records. Called before the first record after it, so that they are reported before that record.
/// Returns the number of causes with losses.
fn report_losses_of_pause(
    kernel: &mut KernelAccess,
    losses: &mut ReportedLosses,
    emit: &mut impl FnMut(Observation<'_>),
) -> Result<usize, ProbeError> {
    let totals = kernel.read_losses().map_err(|refusal| tables_error(&refusal))?;
    Ok(losses.report_new_losses(&totals, &UNRECORDED, emit))
}

/// Parses a record of the ring. `None` if it is malformed or of an unknown target.
#[inline]
fn parse_observation<'r>(bytes: &'r [u8], targets: &[TargetSlot]) -> Option<Observation<'r>> {
    // Records of serving processes begin with a mark of their own.
    if let Some(record) = egress::Record::parse(bytes) {
        let target = targets.get(record.head.target as usize)?;
        return Some(Observation::Egress { pid: target.pid, record });
    }
    let record = Record::parse(bytes)?;
    let target = targets.get(record.header.target as usize)?;
    Some(record_to_observation(&record, target.pid, target.observes_polls))
}

/// Converts a record of process `pid` to an observation. `observes_polls`: the record's number of the wakeup is valid.
pub(crate) fn record_to_observation<'a>(record: &Record<'a>, pid: u32, observes_polls: bool) -> Observation<'a> {
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
