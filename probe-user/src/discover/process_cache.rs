//! Cache of examined processes, with the time of the next examination.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use adapter::discover::{Engines, RoleWithSource};
use rustix::process::{Resource, getrlimit};

use super::blind_spot::{BlindSpot, could_not_be_asked, is_out_of_descriptors};
use super::candidate::{self, Candidate, CandidateRoom, Examination};
use super::spec::RoleSpec;
use super::topology::ProcessId;
use crate::proc::stat::ProcessStat;
use crate::proc::{ProcDir, ReadError};

/// Part of a process's age that is the interval between its examinations.
const AGE_DIVISOR: u32 = 4;
/// Minimum and maximum interval between examinations of a process. Within these limits, it is a quarter of the process's age. A worker
/// needs time to load before it sets its title and opens its sockets.
const EXAMINATION_INTERVAL: IntervalLimits =
    IntervalLimits { min: Duration::from_millis(200), max: Duration::from_mins(5) };
/// Minimum interval for a program that is not named like Python's. It has libzmq and its command from the start, except where it is a
/// launcher that executes another program. On a busy machine, most processes are compilers and shells that end soon.
const MIN_INTERVAL_OF_OTHER_PROGRAMS: Duration = Duration::from_secs(5);
/// Interval for checking that a pid still has the same start time and name. Processes of an engine are always checked.
const IDENTITY_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Minimum and maximum interval for examining the parent of an engine's process, until the parent is recognised as part of the engine.
/// Within these limits, the interval is a quarter of the time since it became a parent.
const PARENT_INTERVAL: IntervalLimits = IntervalLimits { min: Duration::from_secs(1), max: Duration::from_secs(30) };

/// Maximum number of candidates without and with a stated role. Processes that the user named and parents of an engine's processes are
/// kept beyond it.
const MAX_UNNAMED: usize = 256;
const MAX_STATED: usize = 4096;

struct IntervalLimits {
    min: Duration,
    max: Duration,
}

/// Numbers of candidates, or limits of them.
#[derive(Clone, Copy, Debug, Default)]
struct CandidateCounts {
    unnamed: usize,
    stated: usize,
}

impl CandidateCounts {
    /// The count in which this process is included: that of candidates with a stated role, or of those without. `None` if it is no
    /// candidate.
    fn matching_count_mut(&mut self, examination: &Examination) -> Option<&mut usize> {
        match examination {
            Examination::Candidate(candidate, _) if candidate.stated.is_some() => Some(&mut self.stated),
            Examination::Candidate(..) => Some(&mut self.unnamed),
            _ => None,
        }
    }

    /// Counts a process by the result of its examination.
    fn count_process(&mut self, examination: &Examination) {
        if let Some(count) = self.matching_count_mut(examination) {
            *count += 1;
        }
    }

    /// No longer counts a process with this result.
    fn uncount_process(&mut self, examination: &Examination) {
        if let Some(count) = self.matching_count_mut(examination) {
            *count -= 1;
        }
    }

    /// Limits of candidates that leave a quarter of this process's descriptors for everything else. `descriptor_limit` is `None` if their
    /// number is unlimited.
    fn limits_for_descriptors(descriptor_limit: Option<u64>) -> Self {
        let descriptors = descriptor_limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        // Each candidate holds one descriptor, so both kinds together hold at most three quarters of them.
        Self { unnamed: MAX_UNNAMED.min(descriptors / 4), stated: MAX_STATED.min(descriptors / 2) }
    }
}

#[derive(Debug)]
pub(crate) struct ProcessCache {
    engines: Engines,
    processes: HashMap<u32, CachedProcess>,
    limits: CandidateCounts,
    kept_counts: CandidateCounts,
    /// The last update ran out of descriptors.
    lacks_descriptors: bool,
}

#[derive(Debug)]
struct CachedProcess {
    start_time: u64,
    comm: String,
    checked_at: Instant,
    examined_at: Instant,
    /// Since when it has been known as the parent of an engine's process.
    parent_since: Option<Instant>,
    /// `None`: no further examination is necessary.
    examine_after: Option<Duration>,
    state: Examination,
}

impl ProcessCache {
    /// Creates an empty cache that recognises these engines.
    pub(crate) fn new(engines: Engines) -> Self {
        let limits = CandidateCounts::limits_for_descriptors(getrlimit(Resource::Nofile).current);
        Self {
            engines,
            processes: HashMap::new(),
            limits,
            kept_counts: CandidateCounts::default(),
            lacks_descriptors: false,
        }
    }

    /// Updates the cache for the listed pids, with the roles that the user gave in `user_specs`. Returns whether the candidates, which are
    /// the processes that may belong to an engine, or the information about one of them have changed.
    pub(crate) fn update_for_pids_and_report_change(&mut self, pids: &[u32], user_specs: &[RoleSpec]) -> bool {
        let previous_state = self.reported_state();
        self.lacks_descriptors = false;
        let listed: HashSet<u32> = pids.iter().copied().collect();
        self.forget_unlisted_and_recount(&listed);
        // The named processes come first, so that no other process takes the descriptors that they need.
        let named = user_specs.iter().map(|spec| spec.pid).filter(|pid| listed.contains(pid));
        self.examine_outdated(named.chain(pids.iter().copied()), user_specs);
        // Last, because the examinations above show which processes are parents.
        self.examine_due_parents(user_specs);
        previous_state != self.reported_state()
    }

    /// Examines those of the processes that are new, have changed or were examined too long ago.
    fn examine_outdated(&mut self, pids: impl Iterator<Item = u32>, user_specs: &[RoleSpec]) {
        let parents = self.parents_of_stated();
        for pid in pids {
            self.examine_unless_current(pid, user_specs, parents.contains(&pid));
        }
    }

    /// Examines the parents of processes with a stated role again, as far as that is due. Such a parent may belong to the engine itself.
    fn examine_due_parents(&mut self, user_specs: &[RoleSpec]) {
        for pid in self.parents_of_stated() {
            let Some(parent) = self.processes.get_mut(&pid) else { continue };
            parent.note_parenthood();
            if parent.is_due_as_parent() {
                let is_parent = true;
                self.examine_again(pid, user_specs, is_parent);
            }
        }
    }

    /// Removes the processes that are not listed, and counts the remaining candidates again.
    fn forget_unlisted_and_recount(&mut self, listed_pids: &HashSet<u32>) {
        self.processes.retain(|pid, _| listed_pids.contains(pid));
        self.kept_counts = CandidateCounts::default();
        for entry in self.processes.values() {
            self.kept_counts.count_process(&entry.state);
        }
    }

    /// Examines a process, unless the last examination is still valid. `is_parent`: it started a process with a stated role.
    fn examine_unless_current(&mut self, pid: u32, user_specs: &[RoleSpec], is_parent: bool) {
        let is_current = match self.processes.get_mut(&pid) {
            Some(known) => known.check_is_current(pid),
            // A new process.
            None => Ok(false),
        };
        match is_current {
            Ok(true) => {}
            // tokengap itself could not ask, which says nothing about the examined process. So its entry stays.
            Err(error) if could_not_be_asked(error) => self.lacks_descriptors |= is_out_of_descriptors(error),
            Ok(false) | Err(_) => self.examine_again(pid, user_specs, is_parent),
        }
    }

    /// Everything of which [`Self::update_for_pids_and_report_change`] reports a change.
    fn reported_state(&self) -> impl PartialEq + use<> {
        (self.reported_candidate_properties(), self.frontends(), self.has_left_out(), self.lacks_descriptors)
    }

    /// Examines a process again, or for the first time. Removes it if it has exited, or if it cannot be examined any more.
    fn examine_again(&mut self, pid: u32, user_specs: &[RoleSpec], is_parent: bool) {
        // The examination checks the room for candidates, so the process must not take up room itself meanwhile.
        let previous = self.processes.remove(&pid);
        if let Some(previous) = &previous {
            self.kept_counts.uncount_process(&previous.state);
        }
        let spec = user_specs.iter().find(|spec| spec.pid == pid);
        let entry = match self.examine_pid(pid, spec, is_parent) {
            Ok(Some(mut examined)) => {
                if let Some(previous) = previous {
                    examined.keep_earlier_results(previous);
                }
                Some(examined)
            }
            // tokengap itself could not ask, so the process may be unchanged. Its entry stays, and the next update tries again.
            Err(error) if could_not_be_asked(error) => {
                self.lacks_descriptors |= is_out_of_descriptors(error);
                previous
            }
            Ok(None) | Err(_) => None,
        };
        if let Some(entry) = entry {
            self.kept_counts.count_process(&entry.state);
            self.processes.insert(pid, entry);
        }
    }

    /// Whether further candidates of each kind are kept.
    fn room_left(&self) -> CandidateRoom {
        CandidateRoom {
            has_unnamed: self.kept_counts.unnamed < self.limits.unnamed,
            has_stated: self.kept_counts.stated < self.limits.stated,
        }
    }

    /// Examines a process. `is_parent`: it started a process with a stated role. `None` if it has exited. Fails if its files in `/proc`
    /// cannot be read.
    fn examine_pid(
        &self,
        pid: u32,
        user_spec: Option<&RoleSpec>,
        is_parent: bool,
    ) -> Result<Option<CachedProcess>, ReadError> {
        let process = ProcDir::open(pid)?;
        let Some(stat) = read_running_stat(&process)? else { return Ok(None) };
        let state = if stat.is_kernel_thread {
            Examination::Other
        } else {
            candidate::examine_process(process, &stat, user_spec, is_parent, self.room_left(), self.engines)?
        };
        // A final result needs no further examination.
        let examine_after = (!is_final(&state, &stat)).then(|| examination_interval(&stat, &state));
        let now = Instant::now();
        Ok(Some(CachedProcess {
            start_time: stat.start_time,
            comm: stat.comm,
            checked_at: now,
            examined_at: now,
            parent_since: None,
            examine_after,
            state,
        }))
    }

    /// Parents of the processes with a stated role.
    fn parents_of_stated(&self) -> HashSet<u32> {
        let stated = self.candidates_in_any_order().filter(|(candidate, _)| candidate.stated.is_some());
        stated.map(|(candidate, _)| candidate.parent).collect()
    }

    /// The properties of candidates whose changes are reported: the stated role, whether libzmq is known, and the inner server.
    fn reported_candidate_properties(&self) -> BTreeMap<ProcessId, impl PartialEq + use<>> {
        let candidates = self.candidates_in_any_order().map(|(candidate, _)| candidate);
        candidates
            .map(|candidate| (candidate.id, (candidate.stated, candidate.libzmq.is_some(), candidate.inner_server)))
            .collect()
    }

    /// All candidates, in the changing order of the map. [`Self::candidates`] has them in a fixed order.
    fn candidates_in_any_order(&self) -> impl Iterator<Item = (&Candidate, &ProcDir)> {
        self.processes.values().filter_map(|entry| match &entry.state {
            Examination::Candidate(candidate, process) => Some((&**candidate, process)),
            _ => None,
        })
    }

    /// Frontends, which are processes between engines and clients, in the order of their pids.
    pub(crate) fn frontends(&self) -> Vec<ProcessId> {
        let mut found: Vec<ProcessId> =
            self.processes.iter().filter_map(|(&pid, entry)| entry.frontend_id(pid)).collect();
        // The map has no order.
        found.sort();
        found
    }

    /// All candidates in the order of their pids, each with its directory.
    pub(crate) fn candidates(&self) -> Vec<(&Candidate, &ProcDir)> {
        let mut found: Vec<(&Candidate, &ProcDir)> = self.candidates_in_any_order().collect();
        found.sort_by_key(|(candidate, _)| candidate.id);
        found
    }

    /// Searches for the I/O threads of candidates that have none so far. libzmq starts these threads with the first socket.
    pub(crate) fn find_missing_io_threads(&mut self) {
        for entry in self.processes.values_mut() {
            if let Examination::Candidate(candidate, process) = &mut entry.state
                && candidate.io_threads.is_empty()
            {
                candidate.io_threads = candidate::find_io_thread_ids(process);
            }
        }
    }

    /// Keeps the roles from this scan. They remain valid while the peers from which they were inferred are absent.
    pub(crate) fn keep_roles_of_scan(&mut self, roles: &[(ProcessId, Option<RoleWithSource>)]) {
        for (id, role) in roles {
            let entry = self.processes.get_mut(&id.pid);
            if let Some(Examination::Candidate(candidate, _)) = entry.map(|entry| &mut entry.state) {
                candidate.last_role = *role;
            }
        }
    }

    /// Number of processes that could not be examined but may be relevant.
    pub(crate) fn refused_count(&self) -> usize {
        self.processes.values().filter(|entry| matches!(entry.state, Examination::Refused)).count()
    }

    /// Whether a process has more mappings than are read.
    pub(crate) fn has_too_large(&self) -> bool {
        self.processes.values().any(|entry| matches!(entry.state, Examination::TooLarge))
    }

    /// Limits of the search that were reached. `has_unread_sockets`: sockets could not be listed for lack of descriptors.
    pub(crate) fn reached_limit_reports(&self, has_unread_sockets: bool) -> Vec<BlindSpot> {
        let left_out = self.processes.values().filter(|entry| matches!(entry.state, Examination::LeftOut)).count();
        let CandidateCounts { unnamed, stated } = self.limits;
        let mut limits = Vec::new();
        if left_out > 0 {
            limits.push(BlindSpot::LeftOut { count: left_out, unnamed, stated });
        }
        if self.lacks_descriptors || has_unread_sockets {
            limits.push(BlindSpot::OutOfDescriptors { limit: getrlimit(Resource::Nofile).current });
        }
        limits
    }

    /// Whether processes were left out because the limit of candidates was reached.
    fn has_left_out(&self) -> bool {
        self.processes.values().any(|entry| matches!(entry.state, Examination::LeftOut))
    }

    pub(crate) fn contains(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }
}

impl CachedProcess {
    /// Returns whether the last examination is still valid. It is while the next one is not due, and while the id belongs to the same
    /// process and program. Sets `checked_at` if it has read the process.
    fn check_is_current(&mut self, pid: u32) -> Result<bool, ReadError> {
        let is_examination_due = self.examine_after.is_some_and(|after| self.examined_at.elapsed() >= after);
        if is_examination_due {
            return Ok(false);
        }
        let stat = if let Examination::Candidate(_, process) = &self.state {
            read_running_stat(process)?
        } else {
            // Nearly all processes of a machine are no candidates, so these are read less often.
            if self.checked_at.elapsed() < IDENTITY_CHECK_INTERVAL {
                return Ok(true);
            }
            read_running_stat(&ProcDir::open(pid)?)?
        };
        self.checked_at = Instant::now();
        // The process has exited.
        let Some(stat) = stat else { return Ok(false) };
        // `setproctitle` also changes the name, and so does executing another program.
        Ok(stat.start_time == self.start_time && stat.comm == self.comm)
    }

    /// The identity of this process if it is a frontend.
    fn frontend_id(&self, pid: u32) -> Option<ProcessId> {
        let is_frontend = match &self.state {
            Examination::Frontend => true,
            Examination::Candidate(candidate, _) => candidate.is_frontend,
            Examination::Other | Examination::Refused | Examination::TooLarge | Examination::LeftOut => false,
        };
        is_frontend.then_some(ProcessId { pid, start_time: self.start_time })
    }

    /// Keeps results of an earlier examination of the same process. Does nothing if another process had the id then.
    fn keep_earlier_results(&mut self, previous: Self) {
        if self.start_time != previous.start_time {
            return;
        }
        self.parent_since = previous.parent_since;
        if let (Examination::Candidate(now, _), Examination::Candidate(then, _)) = (&mut self.state, previous.state) {
            now.last_role = then.last_role;
        }
    }

    /// Remembers since when this process has been known as the parent of an engine's process.
    fn note_parenthood(&mut self) {
        self.parent_since.get_or_insert_with(Instant::now);
    }

    /// Whether this process must be examined again because it is the parent of an engine's process, and so may belong to the engine itself.
    fn is_due_as_parent(&self) -> bool {
        // It is not the parent of an engine's process.
        let Some(since) = self.parent_since else { return false };
        match self.state {
            // A candidate is recognised already.
            Examination::Candidate(..) => false,
            // A parent is never refused or left out, so this process was examined before it became known as one.
            Examination::Refused | Examination::LeftOut => true,
            // It may become recognisable later. The longer it has not, the less likely that is, so it is examined ever less often.
            Examination::Other | Examination::TooLarge | Examination::Frontend => {
                let interval = (since.elapsed() / AGE_DIVISOR).clamp(PARENT_INTERVAL.min, PARENT_INTERVAL.max);
                self.examined_at.elapsed() >= interval
            }
        }
    }
}

/// Reads the process's state; `None` if it is a zombie, which counts as exited.
fn read_running_stat(process: &ProcDir) -> Result<Option<ProcessStat>, ReadError> {
    const MAX_STAT_BYTES: usize = 4096;
    let stat = ProcessStat::parse(&process.read("stat", MAX_STAT_BYTES)?);
    Ok(stat.filter(|stat| stat.state != 'Z'))
}

/// Whether the result of an examination cannot change, so that no further one is needed.
fn is_final(result: &Examination, stat: &ProcessStat) -> bool {
    match result {
        // Other candidates may still get a stated role or load libzmq.
        Examination::Candidate(candidate, _) => candidate.stated.is_some() && candidate.libzmq.is_some(),
        // A kernel thread never becomes a process of an engine.
        _ => stat.is_kernel_thread,
    }
}

/// Time from an examination with this result to the next one. It is longer for an older process.
fn examination_interval(stat: &ProcessStat, result: &Examination) -> Duration {
    // Such a program rarely becomes a process of an engine.
    let is_other_program = matches!(result, Examination::Other) && !stat.comm.starts_with("python");
    let min_interval = if is_other_program { MIN_INTERVAL_OF_OTHER_PROGRAMS } else { EXAMINATION_INTERVAL.min };
    (process_age(stat.start_time) / AGE_DIVISOR).clamp(min_interval, EXAMINATION_INTERVAL.max)
}

/// Time since the start of a process, which `/proc/PID/stat` gives in ticks.
fn process_age(start_ticks: u64) -> Duration {
    // USER_HZ: the unit in /proc/PID/stat is a hundredth of a second on every architecture.
    const TICK_MS: u64 = 10;
    let started = Duration::from_millis(start_ticks.saturating_mul(TICK_MS));
    // The start time counts from the boot, suspended time included.
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let since_boot = Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0));
    since_boot.saturating_sub(started)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;

    use super::super::toy::{SOURCE, TOY};
    use super::*;

    #[test]
    fn a_process_given_by_pid_is_cached_until_it_exits() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let by_hand = [RoleSpec { pid, role: Some(SOURCE) }];
        let mut cache = ProcessCache::new(&[TOY]);
        assert!(cache.update_for_pids_and_report_change(&[pid], &by_hand));
        assert!(!cache.update_for_pids_and_report_change(&[pid], &by_hand));
        assert_eq!(cache.candidates().len(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        // The pid is still listed, like that of a zombie or a reused pid.
        assert!(cache.update_for_pids_and_report_change(&[pid], &by_hand));
        assert!(cache.candidates().is_empty());
    }

    #[test]
    fn a_frontend_is_known_until_it_exits() {
        let command = |name| {
            let mut command = std::process::Command::new("sleep");
            let child = command.arg0(name).arg("60").spawn().unwrap();
            // The kernel resumes us before it has stored the new command line.
            while std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap().is_empty() {
                std::thread::yield_now();
            }
            child
        };
        let (mut frontend, mut other) = (command("toy-frontend"), command("toy-other"));
        let (pid, pids) = (frontend.id(), [frontend.id(), other.id()]);
        let mut cache = ProcessCache::new(&[TOY]);
        assert!(cache.update_for_pids_and_report_change(&pids, &[]));
        assert_eq!(cache.frontends().iter().map(|id| id.pid).collect::<Vec<_>>(), [pid]);
        for child in [&mut frontend, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(cache.update_for_pids_and_report_change(&[], &[]));
        assert!(cache.frontends().is_empty());
    }

    /// Starts a process that maps a file with the name of libzmq, without any sign of an engine.
    fn idle_with_libzmq(folder: &std::path::Path) -> std::process::Child {
        let library = folder.join("libzmq.so.5");
        let _ = std::fs::copy("/bin/sleep", &library).unwrap();
        let child = std::process::Command::new(&library).arg("60").spawn().unwrap();
        while std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap().is_empty() {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn processes_without_a_sign_of_an_engine_are_limited_and_a_named_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut first = idle_with_libzmq(folder.path());
        let program = folder.path().join("libzmq.so.5");
        let start = || std::process::Command::new(&program).arg("60").spawn().unwrap();
        let mut others = [start(), start(), start()];
        let pids: Vec<u32> = std::iter::once(first.id()).chain(others.iter().map(std::process::Child::id)).collect();
        for pid in &pids {
            while !std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap().contains("libzmq") {
                std::thread::yield_now();
            }
        }
        let mut cache = ProcessCache::new(&[TOY]);
        cache.limits = CandidateCounts { unnamed: 2, stated: 2 };
        let named = [RoleSpec { pid: pids[3], role: Some(SOURCE) }];
        cache.update_for_pids_and_report_change(&pids, &named);
        let kept: Vec<u32> = cache.candidates().iter().map(|(candidate, _)| candidate.id.pid).collect();
        let limits = cache.reached_limit_reports(false);
        for child in std::iter::once(&mut first).chain(&mut others) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(kept.len(), 3, "{kept:?}");
        assert!(kept.contains(&pids[3]), "{kept:?}");
        assert_eq!(limits, [BlindSpot::LeftOut { count: 1, unnamed: 2, stated: 2 }]);
    }

    #[test]
    fn candidates_leave_descriptors_for_other_uses() {
        let few = CandidateCounts::limits_for_descriptors(Some(1024));
        assert!(few.unnamed + few.stated <= 1024 * 3 / 4, "{few:?}");
        let unlimited = CandidateCounts::limits_for_descriptors(None);
        assert_eq!((unlimited.unnamed, unlimited.stated), (MAX_UNNAMED, MAX_STATED));
    }

    #[test]
    fn the_current_process_is_young() {
        let me = ProcDir::open(std::process::id()).unwrap();
        assert!(process_age(read_running_stat(&me).unwrap().unwrap().start_time) < Duration::from_hours(1));
    }
}
