//! Cache of examined processes, with the time of the next examination.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use adapter::discover::{Engines, RoleWithSource};
use rustix::process::{Resource, getrlimit};

use super::candidate::{self, Candidate, Examined, Room};
use super::degraded::{Blind, is_out_of_descriptors, is_unknown};
use super::spec::RoleSpec;
use super::topology::ProcessId;
use crate::proc::stat::Stat;
use crate::proc::{ProcDir, ReadError};

/// Minimum and maximum interval between examinations of a process. Within these limits, it is a quarter of the process's age. A worker
/// needs time to load before it sets its title and opens its sockets.
const EXAMINE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_mins(5));
/// Interval for checking that a pid still has the same start time and name. Processes of an engine are always checked.
const SAME: Duration = Duration::from_secs(30);
/// Minimum and maximum interval for examining the parent of an engine's process, until the parent is recognised as part of the engine.
/// Within these limits, the interval is a quarter of the time since it became a parent.
const PARENT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// Maximum number of candidates without and with a stated role. Processes that the user named and parents of an engine's processes are
/// kept beyond it.
const MAX_UNNAMED: usize = 256;
const MAX_STATED: usize = 4096;

/// Numbers of candidates, or limits of them.
#[derive(Clone, Copy, Debug, Default)]
struct CandidateCounts {
    unnamed: usize,
    stated: usize,
}

impl CandidateCounts {
    /// The count of candidates of this kind; `None` for a process that is no candidate.
    fn count_mut(&mut self, state: &Examined) -> Option<&mut usize> {
        match state {
            Examined::Candidate(candidate, _) if candidate.stated.is_some() => Some(&mut self.stated),
            Examined::Candidate(..) => Some(&mut self.unnamed),
            _ => None,
        }
    }

    fn add(&mut self, state: &Examined) {
        if let Some(count) = self.count_mut(state) {
            *count += 1;
        }
    }

    fn remove(&mut self, state: &Examined) {
        if let Some(count) = self.count_mut(state) {
            *count -= 1;
        }
    }

    /// Limits that leave a quarter of this process's descriptors for everything else.
    fn for_descriptors(limit: Option<u64>) -> Self {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        Self { unnamed: MAX_UNNAMED.min(limit / 4), stated: MAX_STATED.min(limit / 2) }
    }
}

#[derive(Debug)]
pub(crate) struct Known {
    engines: Engines,
    processes: HashMap<u32, Entry>,
    limits: CandidateCounts,
    kept: CandidateCounts,
    /// The last update ran out of descriptors.
    lacks_descriptors: bool,
}

#[derive(Debug)]
struct Entry {
    start_time: u64,
    comm: String,
    checked_at: Instant,
    examined: Instant,
    /// Since when it has been known as the parent of an engine's process.
    parent_since: Option<Instant>,
    /// `None`: no further examination is necessary.
    examine_after: Option<Duration>,
    state: Examined,
}

impl Known {
    /// Creates an empty cache that recognises these engines.
    pub(crate) fn new(engines: Engines) -> Self {
        let limits = CandidateCounts::for_descriptors(getrlimit(Resource::Nofile).current);
        Self { engines, processes: HashMap::new(), limits, kept: CandidateCounts::default(), lacks_descriptors: false }
    }

    /// Updates the cache for the listed pids. Returns whether the set of candidates or the information about one has changed.
    pub(crate) fn update(&mut self, pids: &[u32], by_hand: &[RoleSpec]) -> bool {
        let before = (self.state(), self.frontends(), self.has_limits());
        let listed: HashSet<u32> = pids.iter().copied().collect();
        self.processes.retain(|pid, _| listed.contains(pid));
        self.kept = CandidateCounts::default();
        for entry in self.processes.values() {
            self.kept.add(&entry.state);
        }
        self.lacks_descriptors = false;
        let parents = self.parents();
        // First, so that no other process takes the descriptor of a process that the user named.
        let named = by_hand.iter().map(|spec| spec.pid).filter(|pid| listed.contains(pid));
        for pid in named.chain(pids.iter().copied()) {
            match self.processes.get_mut(&pid).map(|known| known.is_current(pid)) {
                Some(Ok(true)) => {}
                Some(Err(error)) if is_unknown(error) => self.lacks_descriptors |= is_out_of_descriptors(error),
                _ => self.examine(pid, by_hand, parents.contains(&pid)),
            }
        }
        for pid in self.parents() {
            if self.processes.get_mut(&pid).is_some_and(Entry::is_due_as_parent) {
                self.examine(pid, by_hand, true);
            }
        }
        before != (self.state(), self.frontends(), self.has_limits())
    }

    /// Examines a process again; removes it if it has exited.
    fn examine(&mut self, pid: u32, by_hand: &[RoleSpec], is_parent: bool) {
        let previous = self.processes.remove(&pid);
        if let Some(previous) = &previous {
            self.kept.remove(&previous.state);
        }
        let spec = by_hand.iter().find(|spec| spec.pid == pid);
        let entry = match self.entry(pid, spec, is_parent) {
            Ok(Some(mut entry)) => {
                if let Some(previous) = previous {
                    entry.remember(previous);
                }
                Some(entry)
            }
            // Whether it is still the same process is not known. The next update tries again.
            Err(error) if is_unknown(error) => {
                self.lacks_descriptors |= is_out_of_descriptors(error);
                previous
            }
            Ok(None) | Err(_) => None,
        };
        if let Some(entry) = entry {
            self.kept.add(&entry.state);
            self.processes.insert(pid, entry);
        }
    }

    /// Whether further candidates of each kind are kept.
    fn room(&self) -> Room {
        Room { has_unnamed: self.kept.unnamed < self.limits.unnamed, has_stated: self.kept.stated < self.limits.stated }
    }

    /// Examines a process; `None` when it has exited.
    fn entry(&self, pid: u32, by_hand: Option<&RoleSpec>, is_parent: bool) -> Result<Option<Entry>, ReadError> {
        let process = ProcDir::of(pid)?;
        let Some(stat) = running(&process)? else {
            return Ok(None);
        };
        let state = if stat.kernel {
            Examined::Other
        } else {
            candidate::examine(process, &stat, by_hand, is_parent, self.room(), self.engines)?
        };
        let is_complete = match &state {
            Examined::Candidate(candidate, _) => candidate.stated.is_some() && candidate.libzmq.is_some(),
            _ => stat.kernel,
        };
        let examine_after = (age(stat.start_time) / 4).clamp(EXAMINE.0, EXAMINE.1);
        let now = Instant::now();
        Ok(Some(Entry {
            start_time: stat.start_time,
            comm: stat.comm,
            checked_at: now,
            examined: now,
            parent_since: None,
            examine_after: (!is_complete).then_some(examine_after),
            state,
        }))
    }

    /// Parents of the processes with a stated role.
    fn parents(&self) -> HashSet<u32> {
        let stated = self.in_any_order().filter(|(candidate, _)| candidate.stated.is_some());
        stated.map(|(candidate, _)| candidate.parent).collect()
    }

    fn state(&self) -> BTreeMap<ProcessId, impl PartialEq + use<>> {
        let known = |c: &Candidate| (c.id, (c.stated, c.libzmq.is_some(), c.inner_server));
        self.in_any_order().map(|(candidate, _)| known(candidate)).collect()
    }

    fn in_any_order(&self) -> impl Iterator<Item = (&Candidate, &ProcDir)> {
        self.processes.values().filter_map(|entry| match &entry.state {
            Examined::Candidate(candidate, process) => Some((&**candidate, process)),
            _ => None,
        })
    }

    /// Frontends, in the order of their pids.
    pub(crate) fn frontends(&self) -> Vec<ProcessId> {
        let mut found: Vec<ProcessId> = self.processes.iter().filter_map(|(&pid, entry)| entry.frontend(pid)).collect();
        found.sort();
        found
    }

    /// All candidates in the order of their pids, each with its directory.
    pub(crate) fn candidates(&self) -> Vec<(&Candidate, &ProcDir)> {
        let mut found: Vec<(&Candidate, &ProcDir)> = self.in_any_order().collect();
        found.sort_by_key(|(candidate, _)| candidate.id);
        found
    }

    /// Searches for I/O threads of processes without any: libzmq starts them with the first socket.
    pub(crate) fn find_io_threads(&mut self) {
        for entry in self.processes.values_mut() {
            if let Examined::Candidate(candidate, process) = &mut entry.state
                && candidate.io_threads.is_empty()
            {
                candidate.io_threads = candidate::io_threads(process);
            }
        }
    }

    /// Keeps the roles from this scan. They remain valid while the peers from which they were inferred are absent.
    pub(crate) fn keep_roles(&mut self, roles: &[(ProcessId, Option<RoleWithSource>)]) {
        for (id, role) in roles {
            let entry = self.processes.get_mut(&id.pid);
            if let Some(Examined::Candidate(candidate, _)) = entry.map(|entry| &mut entry.state) {
                candidate.last_role = *role;
            }
        }
    }

    /// Number of processes that could not be examined but may be relevant.
    pub(crate) fn refused(&self) -> usize {
        self.processes.values().filter(|entry| matches!(entry.state, Examined::Refused)).count()
    }

    pub(crate) fn has_too_large(&self) -> bool {
        self.processes.values().any(|entry| matches!(entry.state, Examined::TooLarge))
    }

    /// Limits of the search that were reached. `has_unread_sockets`: sockets could not be listed for lack of descriptors.
    pub(crate) fn limits(&self, has_unread_sockets: bool) -> Vec<Blind> {
        let left_out = self.processes.values().filter(|entry| matches!(entry.state, Examined::LeftOut)).count();
        let CandidateCounts { unnamed, stated } = self.limits;
        let mut limits = Vec::new();
        if left_out > 0 {
            limits.push(Blind::LeftOut { count: left_out, unnamed, stated });
        }
        if self.lacks_descriptors || has_unread_sockets {
            limits.push(Blind::OutOfDescriptors { limit: getrlimit(Resource::Nofile).current });
        }
        limits
    }

    /// Which limits were reached: processes left out, and descriptors.
    fn has_limits(&self) -> [bool; 2] {
        [self.processes.values().any(|entry| matches!(entry.state, Examined::LeftOut)), self.lacks_descriptors]
    }

    pub(crate) fn has(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }
}

impl Entry {
    /// Whether it is the same process, examined recently enough.
    fn is_current(&mut self, pid: u32) -> Result<bool, ReadError> {
        if self.examine_after.is_some_and(|after| self.examined.elapsed() >= after) {
            return Ok(false);
        }
        let stat = match &self.state {
            Examined::Candidate(_, process) => running(process)?,
            _ if self.checked_at.elapsed() < SAME => return Ok(true),
            _ => ProcDir::of(pid).and_then(|process| running(&process))?,
        };
        self.checked_at = Instant::now();
        // `setproctitle` also changes the name, and so does executing another program.
        Ok(stat.is_some_and(|stat| stat.start_time == self.start_time && stat.comm == self.comm))
    }

    /// The identity of this process if it is a frontend.
    fn frontend(&self, pid: u32) -> Option<ProcessId> {
        let is_frontend = match &self.state {
            Examined::Frontend => true,
            Examined::Candidate(candidate, _) => candidate.is_frontend,
            Examined::Other | Examined::Refused | Examined::TooLarge | Examined::LeftOut => false,
        };
        let start_time = self.start_time;
        is_frontend.then_some(ProcessId { pid, start_time })
    }

    /// Keeps results of an earlier examination of the same process.
    fn remember(&mut self, previous: Self) {
        if self.start_time != previous.start_time {
            return;
        }
        self.parent_since = previous.parent_since;
        if let (Examined::Candidate(now, _), Examined::Candidate(then, _)) = (&mut self.state, previous.state) {
            now.last_role = then.last_role;
        }
    }

    /// Whether this parent of an engine's process is due for an examination.
    fn is_due_as_parent(&mut self) -> bool {
        let since = *self.parent_since.get_or_insert_with(Instant::now);
        match self.state {
            Examined::Candidate(..) => false,
            Examined::Refused | Examined::LeftOut => true,
            Examined::Other | Examined::TooLarge | Examined::Frontend => {
                let due = (since.elapsed() / 4).clamp(PARENT.0, PARENT.1);
                self.examined.elapsed() >= due
            }
        }
    }
}

/// Reads the process's state; `None` if it is a zombie, which counts as exited.
fn running(process: &ProcDir) -> Result<Option<Stat>, ReadError> {
    Ok(Stat::parse(&process.read("stat", 4096)?).filter(|stat| stat.state != 'Z'))
}

fn age(start_time: u64) -> Duration {
    // USER_HZ: the unit in /proc/PID/stat is a hundredth of a second on every architecture.
    let started = Duration::from_millis(start_time.saturating_mul(10));
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now = Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0));
    now.saturating_sub(started)
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
        let mut known = Known::new(&[TOY]);
        assert!(known.update(&[pid], &by_hand));
        assert!(!known.update(&[pid], &by_hand));
        assert_eq!(known.candidates().len(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        // The pid is still listed, like that of a zombie or a reused pid.
        assert!(known.update(&[pid], &by_hand));
        assert!(known.candidates().is_empty());
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
        let mut known = Known::new(&[TOY]);
        assert!(known.update(&pids, &[]));
        assert_eq!(known.frontends().iter().map(|id| id.pid).collect::<Vec<_>>(), [pid]);
        for child in [&mut frontend, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert!(known.update(&[], &[]));
        assert!(known.frontends().is_empty());
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
        let mut known = Known::new(&[TOY]);
        known.limits = CandidateCounts { unnamed: 2, stated: 2 };
        let named = [RoleSpec { pid: pids[3], role: Some(SOURCE) }];
        known.update(&pids, &named);
        let kept: Vec<u32> = known.candidates().iter().map(|(candidate, _)| candidate.id.pid).collect();
        let limits = known.limits(false);
        for child in std::iter::once(&mut first).chain(&mut others) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        assert_eq!(kept.len(), 3, "{kept:?}");
        assert!(kept.contains(&pids[3]), "{kept:?}");
        assert_eq!(limits, [Blind::LeftOut { count: 1, unnamed: 2, stated: 2 }]);
    }

    #[test]
    fn candidates_leave_descriptors_for_other_uses() {
        let few = CandidateCounts::for_descriptors(Some(1024));
        assert!(few.unnamed + few.stated <= 1024 * 3 / 4, "{few:?}");
        let unlimited = CandidateCounts::for_descriptors(None);
        assert_eq!((unlimited.unnamed, unlimited.stated), (MAX_UNNAMED, MAX_STATED));
    }

    #[test]
    fn the_current_process_is_young() {
        let me = ProcDir::of(std::process::id()).unwrap();
        assert!(age(running(&me).unwrap().unwrap().start_time) < Duration::from_hours(1));
    }
}
