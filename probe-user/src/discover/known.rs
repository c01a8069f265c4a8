//! Every process that was looked at, and when to look again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::candidate::{self, Candidate, Examined};
use super::libzmq::Libraries;
use super::proc::stat::Stat;
use super::proc::{ProcDir, ProcRoot};
use super::spec::RoleSpec;
use super::topology::ProcessId;

/// A process that is nobody's is looked at again after a quarter of its age, within these bounds: a worker needs time
/// to load before it takes its title, and a pid may be used again.
const SOONEST: Duration = Duration::from_millis(200);
const LATEST: Duration = Duration::from_secs(30);

/// The processes that were looked at.
#[derive(Debug, Default)]
pub(crate) struct Known {
    processes: HashMap<u32, Looked>,
    libraries: Libraries,
}

#[derive(Debug)]
struct Looked {
    again: Instant,
    what: What,
}

#[derive(Debug)]
enum What {
    Other,
    Refused,
    /// With its directory held open: what is read through it is that process, or an error once it has exited.
    Candidate(Box<Candidate>, ProcDir),
}

impl Known {
    /// Brings it up to date with the pids that are listed now. Whether the candidates changed, or more is known of one.
    pub(crate) fn update(&mut self, root: &ProcRoot, pids: &[u32], by_hand: &[RoleSpec]) -> bool {
        let before = self.state();
        let listed: HashSet<u32> = pids.iter().copied().collect();
        self.processes.retain(|pid, _| listed.contains(pid));
        let now = Instant::now();
        for &pid in pids {
            if self.is_due(pid, now) {
                let spec = by_hand.iter().find(|spec| spec.pid == pid);
                match look(root, pid, spec, &mut self.libraries) {
                    Some((mut what, age)) => {
                        let again = now
                            + if what.is_complete() {
                                LATEST
                            } else {
                                (age / 4).clamp(SOONEST, LATEST)
                            };
                        what.remember(self.processes.remove(&pid));
                        self.processes.insert(pid, Looked { again, what });
                    }
                    None => drop(self.processes.remove(&pid)),
                }
            }
        }
        before != self.state()
    }

    fn is_due(&self, pid: u32, now: Instant) -> bool {
        let Some(looked) = self.processes.get(&pid) else {
            return true;
        };
        match &looked.what {
            What::Candidate(about, process) => {
                now >= looked.again || running(process).is_none_or(|stat| stat.comm != about.comm)
            }
            What::Other | What::Refused => now >= looked.again,
        }
    }

    fn state(&self) -> BTreeMap<ProcessId, impl PartialEq + use<>> {
        let known = |c: &Candidate| (c.stated, c.libzmq.is_some());
        self.processes
            .values()
            .filter_map(|looked| match &looked.what {
                What::Candidate(about, _) => Some((about.id, known(about))),
                What::Other | What::Refused => None,
            })
            .collect()
    }

    /// The candidates in the order of their pids, each with its directory.
    pub(crate) fn candidates(&self) -> Vec<(&Candidate, &ProcDir)> {
        let mut found: Vec<(&Candidate, &ProcDir)> = self
            .processes
            .values()
            .filter_map(|looked| match &looked.what {
                What::Candidate(about, process) => Some((&**about, process)),
                What::Other | What::Refused => None,
            })
            .collect();
        found.sort_by_key(|(about, _)| about.id);
        found
    }

    /// Looks for I/O threads where there were none yet: libzmq starts them with the first socket.
    pub(crate) fn find_io_threads(&mut self) {
        for looked in self.processes.values_mut() {
            if let What::Candidate(about, process) = &mut looked.what
                && about.io_threads.is_empty()
            {
                about.io_threads = candidate::io_threads(process);
            }
        }
    }

    /// Keeps the roles that were found this time, in the order of [`Self::candidates`]: they hold on while the
    /// neighbours that gave them away are gone.
    pub(crate) fn keep_roles(&mut self, roles: &[(ProcessId, candidate::Played)]) {
        for (id, role) in roles {
            if let Some(Looked {
                what: What::Candidate(about, _),
                ..
            }) = self.processes.get_mut(&id.pid)
            {
                about.last_role = Some(*role);
            }
        }
    }

    /// How many processes could not be examined though they may matter.
    pub(crate) fn refused(&self) -> usize {
        self.processes
            .values()
            .filter(|looked| matches!(looked.what, What::Refused))
            .count()
    }

    /// Whether the pid was there.
    pub(crate) fn has(&self, pid: u32) -> bool {
        self.processes.contains_key(&pid)
    }
}

impl What {
    fn is_complete(&self) -> bool {
        matches!(self, Self::Candidate(c, _) if c.stated.is_some() && c.libzmq.is_some() && !c.io_threads.is_empty())
    }

    /// Takes over what an earlier look at the same process had found out.
    fn remember(&mut self, earlier: Option<Looked>) {
        if let (
            Self::Candidate(now, _),
            Some(Looked {
                what: Self::Candidate(then, _),
                ..
            }),
        ) = (self, earlier)
            && now.id == then.id
        {
            now.last_role = then.last_role;
        }
    }
}

/// Examines a process; `None` when it has exited. Its age decides when to look again.
fn look(root: &ProcRoot, pid: u32, by_hand: Option<&RoleSpec>, libraries: &mut Libraries) -> Option<(What, Duration)> {
    let process = root.process(pid).ok()?;
    let stat = running(&process)?;
    let age = age(stat.start_time);
    if stat.kernel {
        return Some((What::Other, age));
    }
    let what = match candidate::examine(&process, &stat, by_hand, libraries).ok()? {
        Examined::Other => What::Other,
        Examined::Refused => What::Refused,
        Examined::Candidate(about) => What::Candidate(about, process),
    };
    Some((what, age))
}

/// Its state, unless it has exited (a zombie has, but for its parent).
fn running(process: &ProcDir) -> Option<Stat> {
    Stat::parse(&process.read("stat", 4096).ok()?).filter(|stat| stat.state != 'Z')
}

/// How long ago a process started.
fn age(start_time: u64) -> Duration {
    // USER_HZ: the unit of /proc/PID/stat is a hundredth of a second on every architecture.
    let started = Duration::from_millis(start_time.saturating_mul(10));
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now = Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0));
    now.saturating_sub(started)
}

#[cfg(test)]
mod tests {
    use super::super::role::Role;
    use super::*;

    #[test]
    fn a_process_named_by_hand_is_known_until_it_exits() {
        let root = ProcRoot::new("/proc");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id();
        let by_hand = [RoleSpec {
            pid,
            role: Some(Role::Scheduler),
        }];
        let mut known = Known::default();
        assert!(known.update(&root, &[pid], &by_hand));
        assert!(!known.update(&root, &[pid], &by_hand));
        assert_eq!(known.candidates().len(), 1);
        child.kill().unwrap();
        child.wait().unwrap();
        // Still listed, as a zombie or a pid that was used again would be.
        assert!(known.update(&root, &[pid], &by_hand));
        assert!(known.candidates().is_empty());
    }

    #[test]
    fn our_own_age_is_short() {
        let me = ProcRoot::new("/proc").process(std::process::id()).unwrap();
        assert!(age(running(&me).unwrap().start_time) < Duration::from_hours(1));
    }
}
