//! Cache of examined processes, with the time of the next examination.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::candidate::{self, Candidate, Examined};
use super::recognise::{Engines, RoleWithSource};
use super::spec::RoleSpec;
use super::topology::ProcessId;
use crate::proc::ProcDir;
use crate::proc::stat::Stat;

/// Minimum and maximum interval between examinations of a process. Within these limits, it is a quarter of the process's age. A worker
/// needs time to load before it sets its title and opens its sockets.
const EXAMINE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_mins(5));
/// Interval for checking that a pid still has the same start time and name. Processes of an engine are always checked.
const SAME: Duration = Duration::from_secs(30);
/// Minimum and maximum interval for examining the parent of an engine's process, until the parent is recognised as part of the engine.
/// Within these limits, the interval is a quarter of the time since it became a parent.
const PARENT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

#[derive(Debug, Default)]
pub(crate) struct Known {
    engines: Engines,
    processes: HashMap<u32, Entry>,
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
        Self { engines, ..Self::default() }
    }

    /// Updates the cache for the listed pids. Returns whether the set of candidates or the information about one has changed.
    pub(crate) fn update(&mut self, pids: &[u32], by_hand: &[RoleSpec]) -> bool {
        let before = (self.state(), self.frontends());
        let listed: HashSet<u32> = pids.iter().copied().collect();
        self.processes.retain(|pid, _| listed.contains(pid));
        let parents = self.parents();
        for &pid in pids {
            if !self.processes.get_mut(&pid).is_some_and(|known| known.is_current(pid)) {
                self.examine(pid, by_hand, parents.contains(&pid));
            }
        }
        for pid in self.parents() {
            if self.processes.get_mut(&pid).is_some_and(Entry::is_due_as_parent) {
                self.examine(pid, by_hand, true);
            }
        }
        before != (self.state(), self.frontends())
    }

    /// Examines a process again; removes it if it has exited.
    fn examine(&mut self, pid: u32, by_hand: &[RoleSpec], is_parent: bool) {
        let previous = self.processes.remove(&pid);
        let spec = by_hand.iter().find(|spec| spec.pid == pid);
        if let Some(mut entry) = self.entry(pid, spec, is_parent) {
            if let Some(previous) = previous {
                entry.remember(previous);
            }
            self.processes.insert(pid, entry);
        }
    }

    /// Examines a process; `None` when it has exited.
    fn entry(&mut self, pid: u32, by_hand: Option<&RoleSpec>, is_parent: bool) -> Option<Entry> {
        let process = ProcDir::of(pid).ok()?;
        let stat = running(&process)?;
        let state = if stat.kernel {
            Examined::Other
        } else {
            candidate::examine(process, &stat, by_hand, is_parent, self.engines).ok()?
        };
        let is_complete = match &state {
            Examined::Candidate(candidate, _) => candidate.stated.is_some() && candidate.libzmq.is_some(),
            _ => stat.kernel,
        };
        let examine_after = (age(stat.start_time) / 4).clamp(EXAMINE.0, EXAMINE.1);
        let now = Instant::now();
        Some(Entry {
            start_time: stat.start_time,
            comm: stat.comm,
            checked_at: now,
            examined: now,
            parent_since: None,
            examine_after: (!is_complete).then_some(examine_after),
            state,
        })
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

    pub(crate) fn has(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }
}

impl Entry {
    /// Whether it is the same process, examined recently enough.
    fn is_current(&mut self, pid: u32) -> bool {
        if self.examine_after.is_some_and(|after| self.examined.elapsed() >= after) {
            return false;
        }
        let stat = match &self.state {
            Examined::Candidate(_, process) => running(process),
            _ if self.checked_at.elapsed() < SAME => return true,
            _ => ProcDir::of(pid).ok().and_then(|process| running(&process)),
        };
        self.checked_at = Instant::now();
        // `setproctitle` also changes the name, and so does executing another program.
        stat.is_some_and(|stat| stat.start_time == self.start_time && stat.comm == self.comm)
    }

    /// The identity of this process if it is a frontend.
    fn frontend(&self, pid: u32) -> Option<ProcessId> {
        let is_frontend = match &self.state {
            Examined::Frontend => true,
            Examined::Candidate(candidate, _) => candidate.is_frontend,
            Examined::Other | Examined::Refused | Examined::TooLarge => false,
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
            Examined::Refused => true,
            Examined::Other | Examined::TooLarge | Examined::Frontend => {
                let due = (since.elapsed() / 4).clamp(PARENT.0, PARENT.1);
                self.examined.elapsed() >= due
            }
        }
    }
}

/// Reads the process's state; `None` if it has exited. A zombie counts as exited.
fn running(process: &ProcDir) -> Option<Stat> {
    Stat::parse(&process.read("stat", 4096).ok()?).filter(|stat| stat.state != 'Z')
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

    use super::super::recognise::toy::{SOURCE, TOY};
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

    #[test]
    fn the_current_process_is_young() {
        let me = ProcDir::of(std::process::id()).unwrap();
        assert!(age(running(&me).unwrap().start_time) < Duration::from_hours(1));
    }
}
