//! Sampling of the Python functions that a process's threads execute, by reading the memory of the running process. The process is never
//! stopped, traced or written to. Opt-in, since each sample takes CPU time that the engine may need.
//!
//! The reader is py-spy in its non-blocking mode, on a separate thread. A stack that changes during the read yields nothing and is counted.
//! Results are delivered per interval through a bounded queue. Intervals that find the queue full are dropped and counted.

mod process;
mod tally;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use trace::MonoNs;

use crate::capability::{Feature, Permissions};
use crate::degraded::Degraded;
use process::{Reader, Unreadable};
pub use tally::{Function, Hits, ThreadStacks};

/// Maximum number of undelivered intervals.
const QUEUE: usize = 256;
/// Number of attempts to read an interpreter, one second apart, since it may still be starting.
const TRIES: u32 = 5;
const RETRY: Duration = Duration::from_secs(1);

/// Sampling rate and reporting interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Samples per second, 1 to [`Options::MAX_HERTZ`].
    pub hertz: u32,
    /// Length of one report; useful values are 100 ms to 1 s.
    pub interval: Duration,
    /// Maximum number of functions per thread and interval. Functions that are innermost least often are omitted.
    pub functions: usize,
}

impl Options {
    /// Limit of the rate: a sample takes some hundred microseconds, so a higher rate leaves no pause between samples.
    pub const MAX_HERTZ: u32 = 1_000;

    /// Samples `hertz` times a second and reports twice a second.
    pub fn at(hertz: u32) -> Self {
        Self { hertz: hertz.clamp(1, Self::MAX_HERTZ), interval: Duration::from_millis(500), functions: 256 }
    }
}

/// Samples of a process over one interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interval {
    /// Process id.
    pub pid: u32,
    /// End of the interval.
    pub at: MonoNs,
    /// Length in nanoseconds.
    pub interval_ns: u64,
    /// The process's Python threads.
    pub threads: Vec<ThreadStacks>,
}

/// Cost and failures of sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Number of processes read.
    pub processes: u64,
    /// Number of samples, each of all stacks of a process.
    pub readings: u64,
    /// Number of samples that failed, usually because a stack changed during the read.
    pub failed: u64,
    /// Number of samples skipped because earlier ones took too long.
    pub late: u64,
    /// Number of intervals that were not polled in time.
    pub dropped: u64,
    /// CPU time of the sampling thread in nanoseconds.
    pub cpu_ns: u64,
}

/// State shared with the sampling thread.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    processes: AtomicU64,
    readings: AtomicU64,
    failed: AtomicU64,
    late: AtomicU64,
    dropped: AtomicU64,
    cpu_ns: AtomicU64,
    /// Processes that are not opened yet.
    new: Mutex<Vec<u32>>,
    refused: Mutex<Vec<Degraded>>,
    notes: Mutex<Vec<String>>,
}

/// Samples the stacks of some processes until dropped.
#[derive(Debug)]
pub struct PythonStacks {
    shared: Arc<Shared>,
    intervals: Receiver<Interval>,
    thread: Option<JoinHandle<()>>,
}

impl PythonStacks {
    /// Starts the sampling thread. [`Self::add`] adds processes. Fails only if no thread can be started.
    pub fn start(options: Options) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (sender, intervals) = sync_channel(QUEUE);
        let reading = Reading { options, shared: Arc::clone(&shared), sender, readers: Vec::new() };
        let thread = thread::Builder::new().name("python-stacks".into()).spawn(move || reading.run())?;
        Ok(Self { shared, intervals, thread: Some(thread) })
    }

    /// Also samples the process `pid`, from the next sample on.
    pub fn add(&self, pid: u32) {
        lock(&self.shared.new).push(pid);
    }

    /// Passes the intervals since the last call to `each`. Never waits.
    pub fn poll(&self, mut each: impl FnMut(Interval)) {
        for interval in self.intervals.try_iter().take(QUEUE) {
            each(interval);
        }
    }

    /// Cost and failures so far.
    pub fn stats(&self) -> Stats {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let shared = &*self.shared;
        Stats {
            processes: of(&shared.processes),
            readings: of(&shared.readings),
            failed: of(&shared.failed),
            late: of(&shared.late),
            dropped: of(&shared.dropped),
            cpu_ns: of(&shared.cpu_ns),
        }
    }

    /// Processes that cannot be read, each with its cause and remedy.
    pub fn refused(&self) -> Vec<Degraded> {
        lock(&self.shared.refused).clone()
    }

    /// Limitations of the processes that are read.
    pub fn notes(&self) -> Vec<String> {
        lock(&self.shared.notes).clone()
    }
}

impl Drop for PythonStacks {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed, and costs only its samples.
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of the sampling thread.
struct Reading {
    options: Options,
    shared: Arc<Shared>,
    sender: SyncSender<Interval>,
    readers: Vec<Candidate>,
}

/// A process that is sampled, or will be once its interpreter is found.
struct Candidate {
    pid: u32,
    reader: Option<Reader>,
    tries: u32,
    next_try: Instant,
}

impl Reading {
    fn run(mut self) {
        let period = Duration::from_secs(1) / self.options.hertz.max(1);
        let mut next = Instant::now();
        let mut last_report = (Instant::now(), MonoNs::now());
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.open_due();
            for candidate in &mut self.readers {
                if let Some(reader) = &mut candidate.reader {
                    self.shared.readings.fetch_add(1, Ordering::Relaxed);
                    if reader.read().is_err() {
                        self.shared.failed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
            if last_report.0.elapsed() >= self.options.interval {
                self.send_report(&mut last_report);
            }
            next += period;
            let now = Instant::now();
            if let Some(behind) = now.checked_duration_since(next) {
                let missed = behind.as_nanos() / period.as_nanos().max(1);
                self.shared.late.fetch_add(missed as u64, Ordering::Relaxed);
                next = now;
            } else {
                thread::sleep(next - now);
            }
        }
    }

    /// Opens the processes that are due for an attempt.
    fn open_due(&mut self) {
        let now = Instant::now();
        let new = std::mem::take(&mut *lock(&self.shared.new));
        self.readers.extend(new.into_iter().map(|pid| Candidate { pid, reader: None, tries: 0, next_try: now }));
        let shared = &self.shared;
        self.readers.retain_mut(|candidate| {
            if candidate.reader.is_some() || now < candidate.next_try {
                return true;
            }
            match Reader::open(candidate.pid) {
                Ok(reader) => {
                    shared.processes.fetch_add(1, Ordering::Relaxed);
                    lock(&shared.notes).extend(reader.note());
                    candidate.reader = Some(reader);
                    true
                }
                Err(Unreadable::Gone) => false,
                Err(Unreadable::Refused(why)) => {
                    candidate.tries += 1;
                    candidate.next_try = now + RETRY;
                    let feature = Feature::PythonStacks;
                    let permissions = Permissions::here();
                    // Retrying does not help against a missing capability.
                    let permanent = candidate.tries >= TRIES || !permissions.lacks(feature).is_empty();
                    if permanent {
                        lock(&shared.refused).push(Degraded::explain(feature, Some(candidate.pid), permissions, why));
                    }
                    !permanent
                }
            }
        });
    }

    /// Reports the current interval and forgets processes that have exited.
    fn send_report(&mut self, last_report: &mut (Instant, MonoNs)) {
        let at = MonoNs::now();
        let interval_ns = at.since(last_report.1);
        *last_report = (Instant::now(), at);
        let (sender, shared, limit) = (&self.sender, &self.shared, self.options.functions);
        self.readers.retain_mut(|candidate| {
            let Some(reader) = &mut candidate.reader else {
                return true;
            };
            let threads = reader.take_stacks(limit);
            if !threads.is_empty() {
                let interval = Interval { pid: candidate.pid, at, interval_ns, threads };
                if let Err(TrySendError::Full(_)) = sender.try_send(interval) {
                    shared.dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
            reader.is_alive()
        });
        let spent = clock_gettime(ClockId::ThreadCPUTime);
        let cpu_ns = spent.tv_sec as u64 * 1_000_000_000 + spent.tv_nsec as u64;
        shared.cpu_ns.store(cpu_ns, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_non_python_process_is_rejected_with_a_reason_and_an_exited_one_is_removed() {
        let stacks = PythonStacks::start(Options::at(50)).unwrap();
        stacks.add(u32::MAX >> 1);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        stacks.add(child.id());
        let until = Instant::now() + Duration::from_secs(30);
        while stacks.refused().is_empty() && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let refused = stacks.refused();
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!((refused[0].pid, refused[0].feature), (Some(child.id()), Feature::PythonStacks));
        assert_eq!(stacks.stats().processes, 0);
    }
}
