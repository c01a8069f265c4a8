//! Reader for the Python interpreter of one process, by py-spy, with the state of its threads.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use foreign::kernel;
use py_spy::config::{LineNo, LockingStrategy};
use py_spy::{Config, PythonSpy, StackTrace};

use super::tally::{Function, Tally, ThreadStacks};
use crate::cpu::wants_cpu;
use crate::proc::stat::ns_pids;

/// Minimum interval between lookups of a container's thread ids while one is unknown.
const LIST_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) enum Unreadable {
    /// The process has exited.
    Gone,
    /// Error from py-spy.
    Refused(String),
}

/// A process that is sampled.
pub(super) struct Reader {
    pid: u32,
    spy: PythonSpy,
    threads: Threads,
    tallies: BTreeMap<u32, Tally>,
}

impl Reader {
    /// Finds the interpreter in the process's memory and reads it once.
    pub(super) fn open(pid: u32) -> Result<Self, Unreadable> {
        let config = Config {
            blocking: LockingStrategy::NonBlocking,
            native: false,
            collect_thread_names: false,
            lineno: LineNo::NoLine,
            ..Config::default()
        };
        let Ok(target) = i32::try_from(pid) else {
            return Err(Unreadable::Gone);
        };
        let opened = PythonSpy::new(target, &config).and_then(|mut spy| {
            // Non-blocking reads fail occasionally, so one failure is not conclusive.
            let mut tries = (0..8).map(|_| spy.get_stack_traces());
            match tries.find_map(Result::ok) {
                Some(_) => Ok(spy),
                None => spy.get_stack_traces().map(|_| spy),
            }
        });
        match opened {
            Ok(spy) => Ok(Self { pid, threads: Threads::of(pid), spy, tallies: BTreeMap::new() }),
            Err(_) if !is_alive(pid) => Err(Unreadable::Gone),
            Err(error) => Err(Unreadable::Refused(format!("{error:#}"))),
        }
    }

    /// Limitation of this interpreter, if any.
    pub(super) fn note(&self) -> Option<String> {
        let version = &self.spy.version;
        (!self.names_threads()).then(|| {
            format!(
                "python stacks of pid {}: Python {}.{} does not map stacks to kernel threads, so only the main thread is reported",
                self.pid, version.major, version.minor
            )
        })
    }

    /// Whether the interpreter stores each thread's kernel id, as it does from 3.11 on.
    fn names_threads(&self) -> bool {
        (self.spy.version.major, self.spy.version.minor) >= (3, 11)
    }

    pub(super) fn is_alive(&self) -> bool {
        is_alive(self.pid)
    }

    pub(super) fn read(&mut self) -> Result<(), ()> {
        let stacks = self.spy.get_stack_traces().map_err(|error| {
            tracing::trace!("stacks of {}: {error:#}", self.pid);
        })?;
        if self.names_threads() {
            for stack in stacks {
                self.add_by_name(&stack);
            }
        } else if let Some(main) = stacks.into_iter().next_back() {
            // New threads are inserted at the head of the interpreter's list, so the last one is the main thread.
            self.add(self.pid, &main);
        }
        Ok(())
    }

    fn add_by_name(&mut self, stack: &StackTrace) {
        let Some(inside) = stack.os_thread_id.and_then(|id| u32::try_from(id).ok()) else {
            return;
        };
        if let Some(tid) = self.threads.current_pid(inside) {
            self.add(tid, stack);
        }
    }

    fn add(&mut self, tid: u32, stack: &StackTrace) {
        // py-spy's own check of the thread state does not work with a container's thread ids, nor before Python 3.11.
        let runs = stack.active && (self.threads.same && self.names_threads() || wants_cpu(self.pid, tid));
        let holds_gil = stack.owns_gil;
        let functions = runs.then(|| {
            let function = |frame: &py_spy::Frame| {
                Function::new(&frame.name, frame.short_filename.as_ref().unwrap_or(&frame.filename))
            };
            stack.frames.iter().map(function).collect()
        });
        self.tallies.entry(tid).or_default().add(functions, holds_gil);
    }

    pub(super) fn take_stacks(&mut self) -> Vec<ThreadStacks> {
        let tallies = std::mem::take(&mut self.tallies);
        tallies.into_iter().map(|(tid, tally)| tally.finish(tid)).collect()
    }
}

fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Mapping of thread ids from the process's pid namespace to the current one.
struct Threads {
    pid: u32,
    /// The process is in the current namespace, so the ids are equal.
    same: bool,
    current_pid: HashMap<u32, u32>,
    listed_at: Option<Instant>,
}

impl Threads {
    fn of(pid: u32) -> Self {
        Self {
            pid,
            same: inside(Path::new(&format!("/proc/{pid}"))).is_none_or(|inside| inside == pid),
            current_pid: HashMap::new(),
            listed_at: None,
        }
    }

    fn current_pid(&mut self, inside: u32) -> Option<u32> {
        if self.same {
            return Some(inside);
        }
        if !self.current_pid.contains_key(&inside) && self.listed_at.is_none_or(|at| at.elapsed() > LIST_INTERVAL) {
            self.listed_at = Some(Instant::now());
            self.current_pid = self.list();
        }
        self.current_pid.get(&inside).copied()
    }

    fn list(&self) -> HashMap<u32, u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten();
        tasks
            .filter_map(|entry| {
                let entry = entry.ok()?;
                Some((inside(&entry.path())?, entry.file_name().to_str()?.parse().ok()?))
            })
            .collect()
    }
}

/// A task's id in its innermost pid namespace.
fn inside(task: &Path) -> Option<u32> {
    ns_pids(&kernel::read(task.join("status"), 64 << 10).ok()?).last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_in_its_own_namespace_and_its_test_thread_runs() {
        let mut threads = Threads::of(std::process::id());
        let tid = rustix::thread::gettid().as_raw_pid() as u32;
        assert!(threads.same && threads.current_pid(tid) == Some(tid) && wants_cpu(threads.pid, tid));
    }
}
