//! Sampling of the Python functions that a process's threads execute, by reading the memory of the running process. The process is never
//! stopped, traced or written to. Opt-in, since each sample takes CPU time that the engine may need.
//!
//! The reader is py-spy in its non-blocking mode, on a separate thread. A stack that changes during the read yields nothing and is counted.
//! Results are delivered per interval through a bounded queue. Intervals that find the queue full are dropped and counted.
//!
//! py-spy maps files of the target. If their owner truncates one, the kernel ends the reading process by SIGBUS, so call this only in a
//! process of its own.

mod stack_reader;
mod stack_tally;

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use trace::{MonoNs, SamplingCost};

use crate::capability::{Feature, Permissions};
use crate::degraded::Degraded;
use stack_reader::{StackReader, StackReaderError};
pub use stack_tally::{Function, Hits, ThreadStacks};

/// Maximum number of undelivered intervals.
const QUEUE_CAPACITY: usize = 256;
/// Number of attempts to read an interpreter, one second apart, since it may still be starting.
const MAX_TRIES: u32 = 5;
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Length of one report.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// Limit of the rate: a sample takes some hundred microseconds, so a higher rate leaves no pause between samples.
const MAX_HERTZ: u32 = 1_000;
const NS_PER_SECOND: u64 = 1_000_000_000;

/// Samples of a process over one interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackInterval {
    /// Process id.
    pub pid: u32,
    /// End of the interval.
    pub at: MonoNs,
    /// Length in nanoseconds.
    pub interval_ns: u64,
    /// The process's Python threads.
    pub threads: Vec<ThreadStacks>,
}

#[derive(Debug, Default)]
struct SharedState {
    should_stop: bool,
    cost: SamplingCost,
    /// Processes to sample, if the list has changed.
    new_pids: Option<Vec<u32>>,
    refused: Vec<UnreadableProcess>,
    notes: Vec<String>,
}

/// A process whose stacks cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnreadableProcess {
    /// Process id.
    pub pid: u32,
    /// Error of the reader.
    pub reason: String,
}

impl UnreadableProcess {
    /// The cause and its remedy, according to the permissions of this process.
    pub fn explain(self) -> Degraded {
        Degraded::from_failure(Feature::PythonStacks, Some(self.pid), Permissions::current(), self.reason)
    }
}

/// Samples the stacks of some processes until dropped.
#[derive(Debug)]
pub struct PythonStacks {
    shared: Arc<Mutex<SharedState>>,
    intervals: Receiver<StackInterval>,
    thread: Option<JoinHandle<()>>,
}

impl PythonStacks {
    /// Starts a thread that takes up to `hertz` samples a second of the processes of [`Self::sample_processes`]. Fails only if no thread
    /// can be started.
    pub fn start(hertz: u32) -> std::io::Result<Self> {
        let hertz = hertz.clamp(1, MAX_HERTZ);
        let cost = SamplingCost { hertz, ..SamplingCost::default() };
        let shared = Arc::new(Mutex::new(SharedState { cost, ..SharedState::default() }));
        let (sender, intervals) = sync_channel(QUEUE_CAPACITY);
        let sampling =
            SamplingThread { shared: Arc::clone(&shared), sender, processes: Vec::new(), last_pids: Vec::new() };
        let thread =
            thread::Builder::new().name("python-stacks".into()).spawn(move || sampling.sample_until_stopped(hertz))?;
        Ok(Self { shared, intervals, thread: Some(thread) })
    }

    /// Samples exactly these processes, from the next sample on.
    pub fn sample_processes(&self, pids: &[u32]) {
        lock(&self.shared).new_pids = Some(pids.to_vec());
    }

    /// Calls `each` with the intervals that were sampled since the last call of this function. Never waits.
    pub fn poll(&self, mut each: impl FnMut(StackInterval)) {
        // At most as many as the queue holds, so that a fast sender cannot keep the caller here.
        for interval in self.intervals.try_iter().take(QUEUE_CAPACITY) {
            each(interval);
        }
    }

    /// Cost and failures so far.
    pub fn cost(&self) -> SamplingCost {
        lock(&self.shared).cost
    }

    /// Processes that cannot be read.
    pub fn refused(&self) -> Vec<UnreadableProcess> {
        lock(&self.shared).refused.clone()
    }

    /// Limitations of the processes that are read.
    pub fn notes(&self) -> Vec<String> {
        lock(&self.shared).notes.clone()
    }
}

impl Drop for PythonStacks {
    /// Stops the sampling thread, and waits for its end.
    fn drop(&mut self) {
        lock(&self.shared).should_stop = true;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed, and costs only its samples.
            let _ = thread.join();
        }
    }
}

/// Time of a report, by both clocks.
struct ReportTime {
    instant: Instant,
    at: MonoNs,
}

impl ReportTime {
    fn now() -> Self {
        Self { instant: Instant::now(), at: MonoNs::now() }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cpu_ns_of_this_thread() -> u64 {
    let spent = clock_gettime(ClockId::ThreadCPUTime);
    spent.tv_sec as u64 * NS_PER_SECOND + spent.tv_nsec as u64
}

struct SamplingThread {
    shared: Arc<Mutex<SharedState>>,
    sender: SyncSender<StackInterval>,
    processes: Vec<SampledProcess>,
    /// Processes of the last list.
    last_pids: Vec<u32>,
}

/// A process that is sampled, or will be once its interpreter is found.
struct SampledProcess {
    pid: u32,
    reader: Option<StackReader>,
    failed_tries: u32,
    next_try: Instant,
}

/// What became of an attempt to open a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenAttempt {
    Opened,
    /// The interpreter may still be starting.
    TryAgain,
    /// The process has exited or was refused.
    Hopeless,
}

impl SampledProcess {
    /// Tries to open a reader of the process. Returns whether that has succeeded, or may succeed later. If the reader has a limitation, or
    /// is refused for good, adds that to `shared`.
    fn open_reader(&mut self, now: Instant, shared: &Mutex<SharedState>) -> OpenAttempt {
        match StackReader::open(self.pid) {
            Ok(reader) => {
                let mut locked = lock(shared);
                locked.cost.processes += 1;
                locked.notes.extend(reader.describe_limitation());
                self.reader = Some(reader);
                OpenAttempt::Opened
            }
            Err(StackReaderError::Gone) => OpenAttempt::Hopeless,
            Err(StackReaderError::Refused(reason)) => self.plan_next_try_or_give_up(reason, now, shared),
        }
    }

    /// Plans to open the reader again after a failed try. Gives up after too many tries, or if another one cannot help. Then it adds the
    /// `reason` of the refusal to `shared`.
    fn plan_next_try_or_give_up(&mut self, reason: String, now: Instant, shared: &Mutex<SharedState>) -> OpenAttempt {
        self.failed_tries += 1;
        self.next_try = now + RETRY_INTERVAL;
        // Retrying does not help against a missing capability.
        let lacks_capability = !Permissions::current().capabilities_missing_for(Feature::PythonStacks).is_empty();
        let may_help_to_retry = self.failed_tries < MAX_TRIES && !lacks_capability;
        if may_help_to_retry {
            return OpenAttempt::TryAgain;
        }
        lock(shared).refused.push(UnreadableProcess { pid: self.pid, reason });
        OpenAttempt::Hopeless
    }
}

impl SamplingThread {
    /// Reads all stacks `hertz` times a second, until the thread should stop.
    fn sample_until_stopped(mut self, hertz: u32) {
        let period = Duration::from_secs(1) / hertz;
        let mut next_reading = Instant::now();
        let mut last_report = ReportTime::now();
        while !lock(&self.shared).should_stop {
            self.adopt_new_process_list();
            self.open_due_readers();
            self.read_all_stacks();
            if last_report.instant.elapsed() >= REPORT_INTERVAL {
                self.send_stacks_and_forget_exited(&mut last_report);
            }
            next_reading = self.wait_and_count_missed_readings(next_reading + period, period);
        }
    }

    /// Reads the stacks of every process once, and counts the readings and their failures.
    fn read_all_stacks(&mut self) {
        for reader in self.processes.iter_mut().filter_map(|process| process.reader.as_mut()) {
            let has_failed = !reader.read_and_count_stacks();
            let cost = &mut lock(&self.shared).cost;
            cost.readings += 1;
            cost.failed += u64::from(has_failed);
        }
    }

    /// Waits until the next reading is due, and returns its time. If it should have begun already, returns the current time at once. Missed
    /// readings are counted, and not made up for.
    fn wait_and_count_missed_readings(&self, due: Instant, period: Duration) -> Instant {
        let now = Instant::now();
        let Some(behind) = now.checked_duration_since(due) else {
            thread::sleep(due - now);
            return due;
        };
        let missed = behind.as_nanos() / period.as_nanos();
        lock(&self.shared).cost.late += missed as u64;
        now
    }

    /// Takes over the list of processes to sample, if there is a new one. Processes in both lists keep their readers.
    fn adopt_new_process_list(&mut self) {
        let Some(new_pids) = lock(&self.shared).new_pids.take() else { return };
        self.processes.retain(|process| new_pids.contains(&process.pid));
        for &pid in &new_pids {
            // A process of the last list is not added again, because it may have been removed as unreadable.
            let is_new = !self.last_pids.contains(&pid);
            if is_new {
                self.processes.push(SampledProcess { pid, reader: None, failed_tries: 0, next_try: Instant::now() });
            }
        }
        self.last_pids = new_pids;
    }

    /// Opens the readers that are due, and removes processes that cannot be read.
    fn open_due_readers(&mut self) {
        let now = Instant::now();
        let shared = &self.shared;
        self.processes.retain_mut(|process| {
            let is_due = process.reader.is_none() && now >= process.next_try;
            if !is_due {
                return true;
            }
            process.open_reader(now, shared) != OpenAttempt::Hopeless
        });
    }

    /// Sends the stacks of each process that were sampled in the interval before `at`, which is `interval_ns` long. If the receiver does
    /// not keep up, does not wait for it, but drops the stacks and counts that.
    fn send_stacks(&mut self, at: MonoNs, interval_ns: u64) {
        for process in &mut self.processes {
            let Some(reader) = &mut process.reader else { continue };
            let threads = reader.take_stacks();
            // No stack could be read in the interval.
            if threads.is_empty() {
                continue;
            }
            let interval = StackInterval { pid: process.pid, at, interval_ns, threads };
            if let Err(TrySendError::Full(_)) = self.sender.try_send(interval) {
                lock(&self.shared).cost.dropped += 1;
            }
        }
    }

    /// Sends the samples of the interval since the last report, forgets processes that have exited, and updates the CPU time of this
    /// thread.
    fn send_stacks_and_forget_exited(&mut self, last_report: &mut ReportTime) {
        let now = ReportTime::now();
        self.send_stacks(now.at, now.at.since(last_report.at));
        *last_report = now;
        self.processes.retain(|process| process.reader.as_ref().is_none_or(StackReader::is_alive));
        // This thread does nothing but sampling.
        lock(&self.shared).cost.cpu_ns = cpu_ns_of_this_thread();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_non_python_process_is_rejected_with_a_reason_and_an_exited_one_is_removed() {
        let stacks = PythonStacks::start(50).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        stacks.sample_processes(&[u32::MAX >> 1, child.id()]);
        let until = Instant::now() + Duration::from_secs(30);
        while stacks.refused().is_empty() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let refused: Vec<Degraded> = stacks.refused().into_iter().map(UnreadableProcess::explain).collect();
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!((refused[0].pid, refused[0].feature), (Some(child.id()), Feature::PythonStacks));
        assert_eq!(stacks.cost().processes, 0);
    }
}
