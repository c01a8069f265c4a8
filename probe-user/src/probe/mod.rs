//! A probe on running processes: attach, read, detach.

pub(crate) mod batches;
mod kernel_access;
pub(crate) mod read;
mod serving;
mod zmtp_reads;

use std::num::NonZeroU32;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use adapter::discover::InnerServer;
use aya::maps::{MapData, RingBuf};
use probe_ebpf::{Capture, Loss, MAX_TARGETS, Thread};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use crate::attach::AttachError;
use crate::capability::{Feature, Permissions};
use crate::degraded::{Degraded, Missing, error_with_causes};
use crate::discover::ReadError;
use crate::library::{self, Library};
use crate::load;
use crate::observation::Observation;
use crate::probe_options::ProbeOptions;
use crate::probe_points::Sought;
use crate::programs::{Group, LossCounts, MessagePoints, PointSet, Refusal, TableChange, ThreadEntry};

use kernel_access::{KernelAccess, LoadedKernelSide, UprobeTarget};
use read::{NoticedChanges, RingReading};
use serving::ServingProcesses;
use zmtp_reads::ZmtpSockets;

/// Interval of checks for losses and exited processes, both of which are rare.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(100);
/// Interval of checks for losses while there are no records.
const REST_INTERVAL: Duration = Duration::from_secs(1);

/// Time after which [`Probe::poll`] leaves the remaining records to the next call.
const READ_LIMIT: Duration = Duration::from_millis(50);

/// Stands for all processes where a pid is expected.
const ALL_PROCESSES: Option<u32> = None;

/// A process to observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Process id in the current pid namespace.
    pub pid: u32,
    /// Capture limits for its messages.
    pub capture: Capture,
}

/// Error that prevents any probe.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the comment of a variant describes its fields")]
pub enum ProbeError {
    /// Probes are not permitted or not possible here.
    #[error("{}; {}", .0, .0.remedy())]
    Unavailable(Degraded),
    /// More processes than one probe supports ([`probe_ebpf::MAX_TARGETS`]).
    #[error("cannot watch {requested} processes, the limit is {limit}: choose some with --pid")]
    TooManyTargets { requested: usize, limit: u32 },
    /// A table of the loaded programs could not be used, or the process that has them has exited.
    #[error("cannot use the probe's tables: {0}")]
    Tables(String),
    /// Waiting for records failed.
    #[error("cannot wait for records: {0}")]
    Wait(#[source] std::io::Error),
}

/// An attached probe. Dropping it detaches everything.
pub struct Probe {
    kernel: KernelAccess,
    records: RingBuf<MapData>,
    losses: ReportedLosses,
    targets: Vec<TargetSlot>,
    /// The scheduler programs also observe which threads sleep in a poll.
    observes_sleep: bool,
    /// Polls are counted at the kernel's functions for all targets, otherwise at libc's in each target.
    polls_in_kernel: bool,
    degraded: Vec<Degraded>,
    permissions: Permissions,
    options: ProbeOptions,
    serving: ServingProcesses,
    zmtp: ZmtpSockets,
    /// Processes that pass their messages to a server inside them.
    inner_servers: std::collections::HashMap<u32, InnerServer>,
    last_housekeeping: Instant,
    last_loss_count: Instant,
    has_read_since_loss_count: bool,
    ring_progress: RingReading,
    /// Losses and exits that were not reported yet.
    unreported_changes: Option<NoticedChanges>,
}

/// Entry for a target in the kernel side's arrays.
struct TargetSlot {
    pid: u32,
    capture: Capture,
    /// The process has exited and its records have been read, so another target may reuse the entry.
    is_free: bool,
    /// Becomes readable when the process exits. `None` once the exit was reported, or if pidfds are refused.
    pidfd: Option<OwnedFd>,
    observes_polls: bool,
    /// The plain bytes of its TLS connections are observed.
    observes_tls: bool,
}

/// Whether the kernel side reports the sends of a target.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SendCounting {
    Disabled,
    Enabled,
}

impl TargetSlot {
    /// Whether the process has exited, which was not reported yet.
    fn has_exited(&self) -> bool {
        !exited_pids(std::slice::from_ref(self)).is_empty()
    }
}

/// Opens a pidfd, which becomes readable when the process exits. `None` if the kernel refuses.
fn open_pidfd(pid: u32) -> Option<OwnedFd> {
    let id = Pid::from_raw(pid as i32)?;
    rustix::process::pidfd_open(id, PidfdFlags::empty()).ok()
}

/// Pids of the targets that have exited and whose exit is not reported yet. A pidfd is readable once its process has exited. One call polls
/// all of them, because this happens ten times a second.
fn exited_pids(targets: &[TargetSlot]) -> Vec<u32> {
    let mut pids = Vec::new();
    let mut fds = Vec::new();
    for slot in targets {
        if let Some(pidfd) = &slot.pidfd {
            pids.push(slot.pid);
            fds.push(PollFd::new(pidfd, PollFlags::IN));
        }
    }
    let is_any_ready = rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0);
    if !is_any_ready {
        return Vec::new();
    }
    let exited = pids.iter().zip(&fds).filter(|(_, fd)| !fd.revents().is_empty());
    exited.map(|(pid, _)| *pid).collect()
}

impl Probe {
    /// Attaches to `targets`, which may already be running. [`Probe::degraded`] lists the features that could not be attached.
    pub fn attach(targets: &[Target], options: ProbeOptions) -> Result<Self, ProbeError> {
        let mut permissions = Permissions::current();
        let LoadedKernelSide { kernel, records, facts } = KernelAccess::load(options).map_err(|refusal| {
            ProbeError::Unavailable(Degraded::from_failure(Feature::Messages, ALL_PROCESSES, permissions, refusal))
        })?;
        if facts.uses_perf_events {
            // Perf events need other capabilities, which the hint on a refusal names.
            permissions = permissions.with_perf_events();
        }
        let mut probe = Self {
            kernel,
            records,
            losses: ReportedLosses::default(),
            targets: Vec::new(),
            // Both are set by `attach_scheduler_and_poll_groups`.
            observes_sleep: false,
            polls_in_kernel: false,
            degraded: Vec::new(),
            permissions,
            options,
            serving: ServingProcesses::default(),
            zmtp: ZmtpSockets::default(),
            inner_servers: std::collections::HashMap::new(),
            last_housekeeping: Instant::now(),
            last_loss_count: Instant::now(),
            has_read_since_loss_count: true,
            ring_progress: RingReading::default(),
            unreported_changes: None,
        };
        probe.attach_scheduler_and_poll_groups(facts.observes_sleep);
        probe.add_targets(targets)?;
        Ok(probe)
    }

    /// Adds processes, for example workers that started later. Reuses the entries of processes that have exited.
    pub fn add_targets(&mut self, targets: &[Target]) -> Result<(), ProbeError> {
        self.check_room_for_targets(targets.len())?;
        let mut new_indices = Vec::with_capacity(targets.len());
        for target in targets {
            new_indices.push(self.register_target(*target)?);
        }
        for index in &new_indices {
            self.attach_all_uprobes(*index);
        }
        // Enable sends only after all receives are probed, so that the receipt of every observed send is observed too.
        for index in new_indices {
            self.watch_target(index, SendCounting::Enabled)?;
        }
        Ok(())
    }

    /// Returns an error if the kernel side has no room for this many further targets.
    fn check_room_for_targets(&self, further_targets: usize) -> Result<(), ProbeError> {
        let used = self.targets.iter().filter(|slot| !slot.is_free).count();
        let requested = used + further_targets;
        if requested > MAX_TARGETS as usize {
            return Err(ProbeError::TooManyTargets { requested, limit: MAX_TARGETS });
        }
        Ok(())
    }

    /// Observes the messages that `pid` passes to a server inside it, instead of those it sends through libzmq. Call this before the
    /// process is added.
    pub fn observe_inner_server(&mut self, pid: u32, server: InnerServer) {
        self.inner_servers.insert(pid, server);
    }

    /// Unavailable features, with remedies.
    pub fn degraded(&self) -> &[Degraded] {
        &self.degraded
    }

    /// Passes new observations to `emit`, oldest first, and returns their number. If there are none, waits up to `patience`, since
    /// records do not wake the reader. Reads for a limited time ([`Probe::has_unread`]).
    pub fn poll(&mut self, patience: Duration, mut emit: impl FnMut(Observation<'_>)) -> Result<usize, ProbeError> {
        let mut observations = self.poll_without_waiting(READ_LIMIT, &mut emit)?;
        if observations == 0 && !patience.is_zero() {
            self.wait_for_records(patience)?;
            observations = self.poll_without_waiting(READ_LIMIT, emit)?;
        }
        Ok(observations)
    }

    /// Passes new observations to `emit` for about `read_limit`, and returns their number. Does not wait for any. Every 100 ms, also looks
    /// for losses and for exits of processes, which the ring does not show. They are reported as observations, too.
    pub fn poll_without_waiting(
        &mut self,
        read_limit: Duration,
        mut emit: impl FnMut(Observation<'_>),
    ) -> Result<usize, ProbeError> {
        let deadline = Instant::now() + read_limit;
        let mut observations = self.read_records(deadline, &mut emit)?;
        // Earlier losses and exits are reported before further ones are looked for.
        if self.unreported_changes.is_none() && self.last_housekeeping.elapsed() >= HOUSEKEEPING_INTERVAL {
            self.unreported_changes = Some(self.notice_losses_and_exits()?);
            // Since the first read, further records may have come that are older than the losses and exits.
            observations += self.read_records(deadline, &mut emit)?;
        }
        // Losses and exits are reported only after all records that are older.
        let may_report = self.unreported_changes.as_ref().is_some_and(|noticed| self.has_read_until(noticed));
        if may_report && let Some(noticed) = self.unreported_changes.take() {
            observations += self.report_losses_and_exits(noticed, &mut emit);
        }
        Ok(observations)
    }

    /// Whether the last poll left records in the ring, because its time was over.
    pub fn has_unread(&self) -> bool {
        self.ring_progress.has_unread
    }

    /// State, CPU times and poll counts of every thread seen so far, each with the pid of its process as in [`Target::pid`].
    pub fn thread_accounting(&self) -> Result<Vec<(u32, Thread)>, ProbeError> {
        let is_initial_namespace = load::is_in_initial_pid_namespace();
        let threads = self.kernel.read_threads().map_err(|refusal| tables_error(&refusal))?;
        let mut known_threads = Vec::with_capacity(threads.len());
        for ThreadEntry { key, mut thread } in threads {
            // The id in our namespace is unknown (0) until the first call of the thread's process. In the initial namespace, the key is it.
            if thread.tid == 0 && is_initial_namespace {
                thread.tid = key;
            }
            let is_id_known = thread.tid != 0;
            if is_id_known && let Some(target) = self.targets.get(thread.target as usize) {
                known_threads.push((target.pid, thread));
            }
        }
        Ok(known_threads)
    }

    /// Attaches the programs that serve all targets. `can_observe_sleep`: the programs of the scheduler also show which threads sleep in a
    /// poll.
    fn attach_scheduler_and_poll_groups(&mut self, can_observe_sleep: bool) {
        if self.options.scheduler {
            match self.kernel.attach_group(Group::Scheduler) {
                Ok(()) => self.observes_sleep = can_observe_sleep,
                Err(refusal) => self.record_refusal(Feature::Scheduler, ALL_PROCESSES, refusal),
            }
        }
        // Without the scheduler programs, the time in a poll is unknown unless its return is observed. Only uprobes on libc do that.
        if self.options.polls && self.observes_sleep {
            match self.kernel.attach_group(Group::KernelPolls) {
                Ok(()) => self.polls_in_kernel = true,
                Err(error) => tracing::debug!("polls are counted by uprobes on libc: {error}"),
            }
        }
    }

    /// Index of an observed process in the targets; `None` if it is not observed.
    fn target_index(&self, pid: u32) -> Option<usize> {
        self.targets.iter().position(|slot| slot.pid == pid && !slot.is_free)
    }

    /// Enters the process as a target, and returns the index of its entry. The sends of the process are not observed yet.
    fn register_target(&mut self, target: Target) -> Result<usize, ProbeError> {
        let index = self.occupy_slot(TargetSlot {
            pid: target.pid,
            capture: target.capture,
            is_free: false,
            // Shows when the process exits. Its id would not, because another process may get it.
            pidfd: open_pidfd(target.pid),
            observes_polls: false,
            observes_tls: false,
        });
        // Sends are enabled later: see `add_targets`.
        self.watch_target(index, SendCounting::Disabled)?;
        self.change_table(TableChange::EnterTarget { target: index as u32, pid: target.pid })?;
        // The caller may have named the sockets and ports of the process before it became a target.
        self.enter_capture_limits(target.pid, index as u32)?;
        self.enter_listening_ports(target.pid, index as u32)?;
        self.enter_known_zmtp_sockets(target.pid, index as u32)?;
        Ok(index)
    }

    /// Puts a target in a free slot, or in a new one if there is none. Returns its index.
    fn occupy_slot(&mut self, target: TargetSlot) -> usize {
        if let Some(free) = self.targets.iter().position(|slot| slot.is_free) {
            self.targets[free] = target;
            free
        } else {
            self.targets.push(target);
            self.targets.len() - 1
        }
    }

    /// Makes the kernel side observe a target within its capture limits. Replaces earlier settings of the target.
    fn watch_target(&mut self, target_index: usize, sends: SendCounting) -> Result<(), ProbeError> {
        let capture = self.targets[target_index].capture;
        let counts_sends = sends == SendCounting::Enabled;
        self.change_table(TableChange::Watch { target: target_index as u32, capture, counts_sends })
    }

    /// Changes a table of the kernel's programs.
    fn change_table(&mut self, change: TableChange) -> Result<(), ProbeError> {
        self.kernel.change_table(change).map_err(|refusal| tables_error(&refusal))
    }

    /// Attaches all uprobes that a process needs. Features that cannot be attached are recorded for [`Probe::degraded`].
    fn attach_all_uprobes(&mut self, target_index: usize) {
        let pid = self.targets[target_index].pid;
        // Before libzmq, so that the delivery of every received frame is observed.
        self.attach_tls_uprobes(target_index);
        self.attach_accept_uprobes(target_index);
        if self.options.polls {
            // Programs in the kernel may count the polls of all targets. Otherwise uprobes on libc do.
            let observes_polls = self.polls_in_kernel
                || self.attach_feature_uprobes(Feature::Polls, target_index, library::open_libc(pid));
            self.targets[target_index].observes_polls = observes_polls;
        }
        self.attach_message_uprobes(target_index);
    }

    /// Attaches the uprobes that observe a target's messages. They are in libzmq. If an engine's server runs inside the process, they are
    /// in the method that passes messages to that server.
    fn attach_message_uprobes(&mut self, target_index: usize) {
        let pid = self.targets[target_index].pid;
        if let Some(server) = self.inner_servers.get(&pid).copied() {
            if let Err(error) = self.attach_method(target_index, &server) {
                self.record_error(Feature::Messages, Some(pid), &error);
            }
            return;
        }
        let libraries = library::open_libzmq(pid);
        let lacks_libzmq = libraries.as_ref().is_ok_and(Vec::is_empty);
        if !lacks_libzmq {
            self.attach_feature_uprobes(Feature::Messages, target_index, libraries);
            return;
        }
        // The messages of a process without libzmq may be observed at its ZMTP sockets. Otherwise they are not observed at all.
        if !self.zmtp.sockets.contains_key(&pid) {
            self.degraded.push(Degraded { feature: Feature::Messages, pid: Some(pid), missing: Missing::Libzmq });
        }
    }

    /// Attaches the uprobes for `feature` to a target's `libraries`, or records why these could not be found. Returns whether any was
    /// attached. The target is given by the index of its entry.
    fn attach_feature_uprobes(
        &mut self,
        feature: Feature,
        target_index: usize,
        libraries: Result<Vec<Library>, ReadError>,
    ) -> bool {
        let pid = self.targets[target_index].pid;
        let libraries = match libraries {
            Ok(libraries) => libraries,
            Err(error) => {
                self.record_error(feature, Some(pid), &error);
                return false;
            }
        };
        let mut is_any_attached = false;
        // A process may have mapped several copies of a library.
        for library in &libraries {
            match self.attach_feature_in_library(feature, target_index, library) {
                Ok(()) => is_any_attached = true,
                Err(error) => self.record_error(feature, Some(pid), &error),
            }
        }
        is_any_attached
    }

    /// Attaches the probe points of a feature in one library of a process.
    fn attach_feature_in_library(
        &mut self,
        feature: Feature,
        target_index: usize,
        library: &Library,
    ) -> Result<(), AttachError> {
        let set = match feature {
            // Without the scheduler's programs, only the return of a poll shows its end.
            Feature::Polls => PointSet::Polls { with_returns: !self.observes_sleep },
            Feature::Tls => PointSet::Tls,
            // No other feature has uprobes in a library.
            _ => PointSet::Messages(MessagePoints {
                processed: self.options.processed,
                buffers: library.may_use_buffers,
            }),
        };
        self.attach_probe_points(target_index, set, Sought::Functions, library)
    }

    /// Attaches the method that passes messages to the server inside a target.
    fn attach_method(&mut self, index: usize, server: &InnerServer) -> Result<(), AttachError> {
        let library = library::open_extension(self.targets[index].pid, server)?.ok_or(AttachError::NoExtension)?;
        self.attach_probe_points(index, PointSet::Method, Sought::Method(server.methods), &library)
    }

    /// Attaches a set of probe points in a library of a target. `sought`: what the library is searched for.
    fn attach_probe_points(
        &mut self,
        target_index: usize,
        set: PointSet,
        sought: Sought,
        library: &Library,
    ) -> Result<(), AttachError> {
        // No process has the id 0, so nothing is left out.
        let Some(pid) = NonZeroU32::new(self.targets[target_index].pid) else { return Ok(()) };
        let target = UprobeTarget { index: target_index as u32, pid };
        // By the open file, because the process may have replaced the one at the library's path.
        let attached = self.kernel.attach_probe_points(target, set, sought, &library.file);
        attached.map_err(|error| AttachError::in_library(&library.path, error))
    }

    /// Records that the kernel side refused a feature, for process `pid` or for [`ALL_PROCESSES`].
    fn record_refusal(&mut self, feature: Feature, pid: Option<u32>, refusal: Refusal) {
        match refusal {
            Refusal::Kernel(_) => self.record_error(feature, pid, &refusal),
            Refusal::Types(types) => {
                self.record_degraded(Degraded { feature, pid, missing: Missing::KernelTypes(types) });
            }
        }
    }

    /// Records why a feature is missing, for one process or (`None`) for all.
    fn record_error(&mut self, feature: Feature, pid: Option<u32>, error: &dyn std::error::Error) {
        self.record_degraded(Degraded::from_failure(feature, pid, self.permissions, error_with_causes(error)));
    }

    /// Records a missing feature for [`Probe::degraded`], once.
    fn record_degraded(&mut self, degraded: Degraded) {
        if !self.degraded.contains(&degraded) {
            self.degraded.push(degraded);
        }
    }
}

/// Numbers of lost observations that were reported.
#[derive(Default)]
struct ReportedLosses {
    counts: LossCounts,
}

impl ReportedLosses {
    /// Reports to `emit` how many observations were newly lost for each of these causes. `totals` are the counts since the start. Returns
    /// the number of causes with new losses.
    fn report_new_losses(
        &mut self,
        totals: &LossCounts,
        causes: &[Loss],
        emit: &mut impl FnMut(Observation<'_>),
    ) -> usize {
        let mut causes_with_losses = 0;
        for &cause in causes {
            let total = totals[cause as usize];
            let reported = &mut self.counts[cause as usize];
            if total > *reported {
                emit(Observation::Lost { cause, count: total - *reported });
                *reported = total;
                causes_with_losses += 1;
            }
        }
        causes_with_losses
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.kernel.detach_targets();
    }
}

fn tables_error(refusal: &Refusal) -> ProbeError {
    ProbeError::Tables(refusal.to_string())
}
