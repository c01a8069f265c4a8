//! Reader for the Python interpreter of one process, by py-spy, with the state of its threads.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use foreign::kernel;
use py_spy::config::{LineNo, LockingStrategy};
use py_spy::{Config, PythonSpy, StackTrace};

use super::stack_tally::{Function, StackTally, ThreadStacks};
use crate::cpu::wants_cpu;
use crate::proc::stat::parse_ns_pids;

/// Minimum interval between lookups of a container's thread ids while one is unknown.
const LIST_INTERVAL: Duration = Duration::from_secs(1);

/// Number of attempts to read the stacks of a new process.
const MAX_FIRST_READS: u32 = 9;

#[derive(Debug)]
pub(super) enum StackReaderError {
    /// The process has exited.
    Gone,
    /// Error from py-spy.
    Refused(String),
}

/// A process that is sampled.
pub(super) struct StackReader {
    pid: u32,
    spy: PythonSpy,
    thread_ids: ThreadIds,
    tallies: BTreeMap<u32, StackTally>,
}

impl StackReader {
    /// Finds the interpreter in the process's memory and reads its stacks once, to test that they can be read.
    pub(super) fn open(pid: u32) -> Result<Self, StackReaderError> {
        let config = Config {
            // The process must not be stopped.
            blocking: LockingStrategy::NonBlocking,
            // Only Python's functions are needed.
            native: false,
            collect_thread_names: false,
            lineno: LineNo::NoLine,
            ..Config::default()
        };
        let Ok(target) = i32::try_from(pid) else { return Err(StackReaderError::Gone) };
        match open_and_test_process(target, &config) {
            Ok(spy) => Ok(Self { pid, thread_ids: ThreadIds::of_process(pid), spy, tallies: BTreeMap::new() }),
            Err(_) if !is_alive(pid) => Err(StackReaderError::Gone),
            Err(why) => Err(StackReaderError::Refused(why)),
        }
    }

    /// Describes the limitation of an old interpreter; `None` for others.
    pub(super) fn describe_limitation(&self) -> Option<String> {
        if self.stores_thread_ids() {
            return None;
        }
        let version = &self.spy.version;
        Some(format!(
            "python stacks of pid {}: Python {}.{} does not map stacks to kernel threads, so only the main thread is reported",
            self.pid, version.major, version.minor
        ))
    }

    /// Whether the interpreter stores each thread's kernel id, as it does from 3.11 on.
    fn stores_thread_ids(&self) -> bool {
        (self.spy.version.major, self.spy.version.minor) >= (3, 11)
    }

    pub(super) fn is_alive(&self) -> bool {
        is_alive(self.pid)
    }

    /// Reads the stacks of all threads once, and counts them. Returns whether they could be read.
    pub(super) fn read_and_count_stacks(&mut self) -> bool {
        let stacks = match self.spy.get_stack_traces() {
            Ok(stacks) => stacks,
            Err(error) => {
                tracing::trace!("stacks of {}: {error:#}", self.pid);
                return false;
            }
        };
        // An old interpreter does not store the ids of threads. Only its main thread can be counted.
        if self.stores_thread_ids() {
            for stack in stacks {
                self.add_stack_of_namespaced_thread(&stack);
            }
        } else if let Some(main) = stacks.into_iter().next_back() {
            // New threads are inserted at the head of the interpreter's list, so the last one is the main thread.
            self.count_stack_of_thread(self.pid, &main);
        }
        true
    }

    /// Adds a stack whose thread id is the one that the process itself sees. Omits a stack whose thread is not known here.
    fn add_stack_of_namespaced_thread(&mut self, stack: &StackTrace) {
        let Some(tid_in_namespace) = stack.os_thread_id.and_then(|id| u32::try_from(id).ok()) else {
            return;
        };
        if let Some(tid) = self.thread_ids.translate_tid(tid_in_namespace) {
            self.count_stack_of_thread(tid, stack);
        }
    }

    /// Counts a stack of a thread. One that is not running counts as a sample without functions.
    fn count_stack_of_thread(&mut self, tid: u32, stack: &StackTrace) {
        // py-spy's own check of the thread state does not work with a container's thread ids, nor before Python 3.11.
        let is_own_check_valid = self.thread_ids.shares_pid_namespace && self.stores_thread_ids();
        let is_running = stack.active && (is_own_check_valid || wants_cpu(self.pid, tid));
        let functions = is_running.then(|| stack.frames.iter().map(function_of_frame).collect());
        self.tallies.entry(tid).or_default().count_stack(functions, stack.owns_gil);
    }

    /// Returns the counts of each thread since the last call, and begins a new interval.
    pub(super) fn take_stacks(&mut self) -> Vec<ThreadStacks> {
        let tallies = std::mem::take(&mut self.tallies);
        tallies.into_iter().map(|(tid, tally)| tally.into_stacks(tid)).collect()
    }
}

/// Opens a process and reads its stacks once to test that they can be read. The error says why not.
fn open_and_test_process(pid: i32, config: &Config) -> Result<PythonSpy, String> {
    let mut spy = PythonSpy::new(pid, config).map_err(|error| format!("{error:#}"))?;
    let mut last_error = String::new();
    // The process runs on while its memory is read, so reads fail occasionally, and one failure is not conclusive.
    for _ in 0..MAX_FIRST_READS {
        match spy.get_stack_traces() {
            Ok(_) => return Ok(spy),
            Err(error) => last_error = format!("{error:#}"),
        }
    }
    Err(last_error)
}

/// The function that a frame of py-spy executes.
fn function_of_frame(frame: &py_spy::Frame) -> Function {
    Function::new(&frame.name, frame.short_filename.as_ref().unwrap_or(&frame.filename))
}

/// Whether a process has this id.
fn is_alive(pid: u32) -> bool {
    Path::new("/proc").join(pid.to_string()).exists()
}

/// Mapping of thread ids from the process's pid namespace to the current one.
struct ThreadIds {
    pid: u32,
    /// The process is in the current namespace, so the ids are equal.
    shares_pid_namespace: bool,
    current_ids: HashMap<u32, u32>,
    listed_at: Option<Instant>,
}

impl ThreadIds {
    /// Ids of a process's threads, of which none is known yet.
    fn of_process(pid: u32) -> Self {
        Self {
            pid,
            // If the inner id cannot be read, it counts as the same.
            shares_pid_namespace: namespaced_id(Path::new(&format!("/proc/{pid}"))).is_none_or(|inner| inner == pid),
            current_ids: HashMap::new(),
            listed_at: None,
        }
    }

    /// Translates a thread's id from the process's namespace to the current one. `None` if no thread has it. For an unknown id, lists the
    /// threads again, but at most once per [`LIST_INTERVAL`].
    fn translate_tid(&mut self, tid_in_namespace: u32) -> Option<u32> {
        if self.shares_pid_namespace {
            return Some(tid_in_namespace);
        }
        let is_unknown = !self.current_ids.contains_key(&tid_in_namespace);
        // The interval prevents a listing at every sample for a thread whose id stays unknown.
        let may_list = self.listed_at.is_none_or(|time| time.elapsed() > LIST_INTERVAL);
        if is_unknown && may_list {
            self.listed_at = Some(Instant::now());
            self.current_ids = self.list_ids_by_inner_id();
        }
        self.current_ids.get(&tid_in_namespace).copied()
    }

    /// Ids in the current namespace of all threads of the process, by their ids in the process's own.
    fn list_ids_by_inner_id(&self) -> HashMap<u32, u32> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten();
        let ids = tasks.flatten().filter_map(|task| {
            let inner_id = namespaced_id(&task.path())?;
            let id = task.file_name().to_str()?.parse().ok()?;
            Some((inner_id, id))
        });
        ids.collect()
    }
}

/// A task's id in its innermost pid namespace. `None` if it cannot be read.
fn namespaced_id(task: &Path) -> Option<u32> {
    let status = kernel::read(task.join("status"), kernel::MAX_STATUS_BYTES).ok()?;
    parse_ns_pids(&status).last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_in_its_own_namespace_and_its_test_thread_runs() {
        let mut thread_ids = ThreadIds::of_process(std::process::id());
        let tid = rustix::thread::gettid().as_raw_pid() as u32;
        assert!(thread_ids.shares_pid_namespace && thread_ids.translate_tid(tid) == Some(tid));
        assert!(wants_cpu(thread_ids.pid, tid));
    }
}
