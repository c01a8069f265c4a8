//! Functions of the engine's threads, by stack sampling: over the whole run, and while the backlog grew.
//!
//! A busy consumer always has a hot function. The functions that dominate while the backlog grows are the cause of the growth.

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::Ledger;
use super::hop::{Hop, Hops};
use crate::clock::MonoNs;
use crate::event::HotSample;
use crate::id::ThreadId;

/// Minimum number of queued frames for a growing backlog; fewer are normal.
const PILE: u64 = 4;
/// Maximum number of processes with a tracked backlog; the one silent longest is evicted.
const PROCESSES: usize = 256;

/// Numbers of stack samples, by state of the thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotCounts {
    /// Stacks read.
    pub taken: u64,
    /// Those of a thread that was running or runnable.
    pub running: u64,
    /// Those of a running thread that held the GIL; only meaningful with [`HotRole::sees_gil`].
    pub gil: u64,
}

/// Number of stacks of running threads that contain a function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hits {
    /// As the innermost function.
    pub own: u64,
    /// At any depth.
    pub total: u64,
    /// As the innermost function of a thread that held the GIL; only meaningful with [`HotRole::sees_gil`].
    pub gil: u64,
}

/// One function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HotFunction {
    /// Function name, with the class name if the interpreter provides it (CPython 3.11 and later).
    pub function: Box<str>,
    /// Source file.
    pub file: Box<str>,
    /// Over the run.
    pub all: Hits,
    /// While frames piled up in front of its process.
    pub growing: Hits,
}

/// Stack samples of the processes of one role.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HotRole {
    /// `tokenizer`, `scheduler`, ...
    pub role: Box<str>,
    /// Over the run.
    pub all: HotCounts,
    /// While frames piled up in front of the process.
    pub growing: HotCounts,
    /// Whether its processes were seen to receive frames, so that a backlog is known.
    pub takes: bool,
    /// Whether every sample showed the holder of the GIL.
    pub sees_gil: bool,
    /// Stacks whose innermost function was evicted at the limit.
    pub left_out: u64,
    functions: Vec<HotFunction>,
}

impl HotRole {
    /// Its functions, most frequent innermost function first.
    pub fn functions(&self) -> Vec<&HotFunction> {
        let mut sorted: Vec<_> = self.functions.iter().collect();
        sorted.sort_by(|a, b| (b.all.own, b.all.total, &a.function).cmp(&(a.all.own, a.all.total, &b.function)));
        sorted
    }

    fn new(role: &str) -> Self {
        Self {
            role: role.into(),
            all: HotCounts::default(),
            growing: HotCounts::default(),
            takes: false,
            sees_gil: true,
            left_out: 0,
            functions: Vec::new(),
        }
    }

    /// Enters a function. Returns `false` if one was evicted or rejected at the limit.
    fn enter(&mut self, sample: &HotSample<'_>, growing: bool, limit: usize) -> bool {
        let hits = Hits {
            own: u64::from(sample.own),
            total: u64::from(sample.total),
            gil: u64::from(sample.gil.unwrap_or(0)),
        };
        let is_it = |f: &&mut HotFunction| *f.function == *sample.function && *f.file == *sample.file;
        if let Some(known) = self.functions.iter_mut().find(is_it) {
            known.add(hits, growing);
            return true;
        }
        let mut new = HotFunction {
            function: sample.function.into(),
            file: sample.file.into(),
            all: Hits::default(),
            growing: Hits::default(),
        };
        new.add(hits, growing);
        if self.functions.len() < limit {
            self.functions.push(new);
            return true;
        }
        // The rarest function is evicted, unless the new one is rarer still.
        let rarest = self.functions.iter_mut().min_by_key(|f| (f.all.total, f.all.own));
        let gone = match rarest {
            Some(rarest) if rarest.all.total < hits.total => std::mem::replace(rarest, new),
            _ => new,
        };
        self.left_out += gone.all.own;
        false
    }
}

impl HotFunction {
    fn add(&mut self, hits: Hits, growing: bool) {
        self.all.add(hits);
        if growing {
            self.growing.add(hits);
        }
    }
}

impl Hits {
    fn add(&mut self, more: Self) {
        self.own += more.own;
        self.total += more.total;
        self.gil += more.gil;
    }
}

/// A process's backlog from one interval of samples to the next.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Window {
    at: MonoNs,
    backlog: Option<u64>,
    growing: bool,
    /// Thread of the samples being entered.
    thread: ThreadId,
}

/// All roles.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Hot {
    roles: Vec<HotRole>,
    windows: HashMap<u32, Window>,
}

impl Hot {
    /// Enters a sample. `backlog` is the number of frames waiting for its process; `None` if it is not seen to receive frames.
    fn enter(
        &mut self,
        at: MonoNs,
        sample: &HotSample<'_>,
        backlog: impl FnOnce() -> Option<u64>,
        limit: usize,
    ) -> bool {
        let pid = sample.thread.pid;
        if !self.windows.contains_key(&pid) && self.windows.len() >= PROCESSES {
            let silent = self
                .windows
                .iter()
                .min_by_key(|(_, window)| window.at)
                .map(|(pid, _)| *pid);
            self.windows.retain(|pid, _| Some(*pid) != silent);
        }
        let last = self.windows.get(&pid).copied();
        let (window, begins) = match last {
            Some(same) if same.at == at => (same, same.thread != sample.thread),
            last => {
                let now = backlog();
                let before = last.and_then(|last| last.backlog);
                let window = Window {
                    at,
                    backlog: now,
                    growing: now.zip(before).is_some_and(|(now, before)| now > before && now >= PILE),
                    thread: sample.thread,
                };
                (window, true)
            }
        };
        self.windows.insert(
            pid,
            Window {
                thread: sample.thread,
                ..window
            },
        );
        let place = self
            .roles
            .iter()
            .position(|r| *r.role == *sample.role)
            .unwrap_or_else(|| {
                self.roles.push(HotRole::new(sample.role));
                self.roles.len() - 1
            });
        let role = &mut self.roles[place];
        role.takes |= window.backlog.is_some();
        role.sees_gil &= sample.gil.is_some();
        let more = HotCounts {
            taken: if begins { u64::from(sample.taken) } else { 0 },
            running: u64::from(sample.own),
            gil: u64::from(sample.gil.unwrap_or(0)),
        };
        role.all.add(more);
        if window.growing {
            role.growing.add(more);
        }
        // An empty function name means that the thread did not run.
        sample.function.is_empty() || role.enter(sample, window.growing, limit)
    }
}

impl HotCounts {
    fn add(&mut self, more: Self) {
        self.taken += more.taken;
        self.running += more.running;
        self.gil += more.gil;
    }
}

impl Ledger {
    pub(super) fn hot_sample(&mut self, at: MonoNs, sample: &HotSample<'_>) {
        let pid = sample.thread.pid;
        let Hops { all: hops, groups, .. } = &self.hops;
        let backlog = || {
            // A consumer far behind may not have received any frame sent since the attach. Then the hop's name identifies its role.
            let its = |hop: &&Hop| match hop.by {
                Some(by) => by.pid == pid,
                None => hop.shows.taken && groups[hop.group].name.rsplit("->").next() == Some(sample.role),
            };
            let waiting = hops.iter().filter(its).map(|hop| hop.counts.backlog);
            waiting.reduce(|a, b| a + b)
        };
        let fits = self.hot.enter(at, sample, backlog, self.limits.hot_functions);
        self.reached.hot_functions += u64::from(!fits);
    }

    /// Functions of the engine's threads, by role in the order first observed; empty without stack samples.
    pub fn hot(&self) -> &[HotRole] {
        &self.hot.roles
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn sample(tid: u32, function: &'static str, [taken, total, own]: [u32; 3]) -> HotSample<'static> {
        HotSample {
            thread: ThreadId { pid: 7, tid },
            role: "tokenizer",
            function,
            file: "tokenizer_manager.py",
            interval_ns: 500 * MS,
            taken,
            total,
            own,
            gil: Some(own),
        }
    }

    #[test]
    fn functions_of_the_times_in_which_frames_piled_up_are_told_apart() {
        let mut hot = Hot::default();
        let mut say = |ms: u64, sample: &HotSample<'_>, backlog: u64| {
            assert!(hot.enter(MonoNs(ms * MS), sample, || Some(backlog), 8));
        };
        say(500, &sample(7, "recv_pyobj", [50, 5, 5]), 0);
        say(1_000, &sample(7, "_handle_batch_output", [50, 40, 40]), 120);
        say(1_000, &sample(7, "recv_pyobj", [50, 42, 2]), 120);
        say(1_000, &sample(9, "", [50, 0, 0]), 120);
        say(1_500, &sample(7, "recv_pyobj", [50, 9, 9]), 60);
        let role = &hot.roles[0];
        assert_eq!((role.all.taken, role.all.running), (200, 56));
        assert_eq!((role.growing.taken, role.growing.running), (100, 42));
        let functions = role.functions();
        assert_eq!(&*functions[0].function, "_handle_batch_output");
        assert_eq!((functions[1].all.own, functions[1].growing.own), (16, 2));
    }

    #[test]
    fn the_rarest_function_makes_room_and_its_stacks_are_counted() {
        let mut hot = Hot::default();
        let mut say = |function, numbers| hot.enter(MonoNs(1), &sample(7, function, numbers), || None, 2);
        assert!(say("a", [9, 9, 1]) && say("b", [9, 2, 2]));
        assert!(!say("c", [9, 1, 1]));
        assert!(!say("d", [9, 5, 5]));
        let role = &hot.roles[0];
        let names: Vec<_> = role.functions().iter().map(|f| &*f.function).collect();
        assert_eq!((names, role.left_out, role.takes), (vec!["d", "a"], 3, false));
        assert_eq!(role.all.running, 9, "what was given up still counts as run");
    }

    #[test]
    fn processes_are_bounded() {
        let mut hot = Hot::default();
        for pid in 0..2_000 {
            let mut one = sample(1, "f", [1, 1, 1]);
            one.thread.pid = pid;
            hot.enter(MonoNs(u64::from(pid)), &one, || Some(1), 8);
        }
        assert_eq!(hot.windows.len(), PROCESSES);
    }
}
