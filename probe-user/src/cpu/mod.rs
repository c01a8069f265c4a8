//! Sampling of how a process's threads spend an interval (on a CPU, waiting for one, or blocked) and how long its cgroup was throttled.
//! Reads files in `/proc` and the cgroup: no eBPF, and no privilege beyond reading them.
//!
//! The samples distinguish three causes of a slow consumer: busy, waiting for a CPU, and throttled.

mod away;
mod cgroup;
mod thread;

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;

use foreign::kernel;
use trace::MonoNs;

use cgroup::Cgroup;
#[cfg(feature = "python-stacks")]
pub(crate) use thread::wants_cpu;
use thread::{ThreadStateFile, ThreadTimes, ThreadTimesFile};

pub use away::AwayReason;
pub(crate) use away::is_poll_line;

/// Number of samples between searches for new threads.
const THREAD_SEARCH_INTERVAL: u32 = 10;
/// Maximum number of threads whose names are read.
const MAX_LISTED: usize = 4_096;
/// Interval at which the process's cgroup is looked up again, just below that of samples at rest.
const CGROUP_INTERVAL_NS: u64 = 900_000_000;
/// The same while no thread runs or waits for a CPU, so that nothing can be throttled.
const CGROUP_INTERVAL_AT_REST_NS: u64 = 4_900_000_000;

/// Times of one thread over one interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadUse {
    /// Thread id.
    pub tid: u32,
    /// Name from the kernel, for example `ZMQbg/IO/0`: at most 15 bytes.
    pub name: String,
    /// Nanoseconds on a CPU.
    pub on_ns: u64,
    /// Nanoseconds spent waiting for a CPU; `None` on kernels without `CONFIG_SCHED_INFO`.
    pub wait_ns: Option<u64>,
    /// State letter at the end, of a thread that did not get a CPU in the interval.
    pub state: Option<char>,
}

impl ThreadUse {
    /// Whether it neither ran nor waited for a CPU.
    pub fn has_not_run(&self) -> bool {
        self.on_ns == 0 && self.wait_ns.is_none_or(|ns| ns == 0)
    }
}

/// Times of a process over one interval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessSample {
    /// End of the interval.
    pub at: MonoNs,
    /// Length of the interval in nanoseconds.
    pub interval_ns: u64,
    /// Threads that existed during the whole interval, sorted by id.
    pub threads: Vec<ThreadUse>,
    /// Nanoseconds in which the cgroup's run queues were throttled by its CPU limit, summed over CPUs; `None` without a limit or if the
    /// cgroup cannot be read.
    pub throttled_ns: Option<u64>,
}

/// A thread of the process, sampled or not.
struct ListedThread {
    tid: u32,
    name: String,
}

impl ListedThread {
    fn is_main_or_zmq(&self, pid: u32) -> bool {
        self.tid == pid || self.name.starts_with("ZMQbg")
    }
}

/// Lists the threads of a process with their names, in no particular order.
fn list_threads(pid: u32) -> Result<Vec<ListedThread>, String> {
    let listed = fs::read_dir(format!("/proc/{pid}/task")).map_err(|error| {
        format!("cannot list the threads of process {pid} in /proc/{pid}/task: {error}; the process may have exited")
    })?;
    let mut found = Vec::new();
    for entry in listed.take(MAX_LISTED).flatten() {
        let Some(tid) = entry.file_name().to_str().and_then(|tid| tid.parse::<u32>().ok()) else { continue };
        // A thread that has exited since has an empty name.
        let name = kernel::read_text(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
        found.push(ListedThread { tid, name: name.trim_end().to_owned() });
    }
    Ok(found)
}

/// Sampler of one process.
#[derive(Debug)]
pub struct CpuSampler {
    pid: u32,
    /// Which of its threads are sampled, in the order of [`Self::new`].
    range: Range<usize>,
    threads: BTreeMap<u32, SampledThread>,
    cgroup: Option<Cgroup>,
    cgroup_searched_at: MonoNs,
    sampled_at: MonoNs,
    /// Number of samples until the next search for threads.
    samples_until_search: u32,
}

#[derive(Debug)]
struct SampledThread {
    file: ThreadTimesFile,
    /// Opened when it is first needed, and kept, because that of an idle thread is read at every sample.
    state_file: Option<ThreadStateFile>,
    name: String,
    last: ThreadTimes,
    /// Wait that was reported before the kernel added it to the thread's times.
    reported_early_ns: u64,
}

impl SampledThread {
    /// State letter of the thread if its times have not changed since the last sample, to show what it did instead of running. `None` if
    /// they have changed, or if the thread has exited.
    fn state_letter_if_times_unchanged(&mut self, pid: u32, tid: u32, times: &ThreadTimes) -> Option<char> {
        // The times of a thread that ran or waited say enough, which saves reading its state.
        if *times != self.last {
            return None;
        }
        if self.state_file.is_none() {
            self.state_file = ThreadStateFile::open(pid, tid);
        }
        self.state_file.as_ref()?.read()
    }

    /// Nanoseconds of the interval since the last sample in which the thread waited for a CPU. `None` if the kernel does not count waits.
    /// `unchanged_state` is the state letter if `times` have not changed since the last sample.
    fn account_wait_ns(&mut self, times: &ThreadTimes, interval_ns: u64, unchanged_state: Option<char>) -> Option<u64> {
        // A thread that was runnable (`R`), but did not run, has waited for the whole interval. The kernel adds a wait to `times` only once
        // it is over, so it is reported here before that.
        let has_waited_throughout = unchanged_state == Some('R');
        if times.wait_ns.is_some() && has_waited_throughout {
            self.reported_early_ns += interval_ns;
            return Some(interval_ns);
        }
        let added_by_kernel_ns = times.wait_ns?.saturating_sub(self.last.wait_ns?);
        let not_yet_reported_ns = added_by_kernel_ns.saturating_sub(self.reported_early_ns);
        let has_run = times.on_ns > self.last.on_ns;
        let is_wait_over = added_by_kernel_ns > 0 || has_run;
        if is_wait_over {
            self.reported_early_ns = 0;
        }
        // A wait that began before the interval may be longer than it.
        Some(not_yet_reported_ns.min(interval_ns))
    }
}

impl CpuSampler {
    /// Creates a sampler of the threads at the positions in `thread_positions`. The threads are ordered: the main thread and libzmq's own
    /// threads come first, then all others, both by id. The error says why the threads cannot be listed.
    pub fn new(pid: u32, thread_positions: Range<usize>) -> Result<Self, String> {
        let mut sampler = Self {
            pid,
            range: thread_positions,
            threads: BTreeMap::new(),
            cgroup: Cgroup::of_process(pid),
            cgroup_searched_at: MonoNs::now(),
            sampled_at: MonoNs::now(),
            samples_until_search: THREAD_SEARCH_INTERVAL,
        };
        sampler.update_threads()?;
        Ok(sampler)
    }

    /// Times since the last sample, or since the start. Call this about every 100 ms. The error says why the threads cannot be listed.
    pub fn sample(&mut self) -> Result<ProcessSample, String> {
        self.update_threads_if_due()?;
        let now = MonoNs::now();
        let interval_ns = now.since(self.sampled_at);
        self.sampled_at = now;
        let used = self.sample_threads_and_forget_exited(interval_ns);
        let is_at_rest = used.iter().all(ThreadUse::has_not_run);
        self.update_cgroup_if_due(now, is_at_rest);
        let throttled_ns = self.cgroup.as_mut().and_then(Cgroup::take_throttled_ns);
        Ok(ProcessSample { at: now, interval_ns, threads: used, throttled_ns })
    }

    /// Searches for new threads once in [`THREAD_SEARCH_INTERVAL`] samples.
    fn update_threads_if_due(&mut self) -> Result<(), String> {
        self.samples_until_search -= 1;
        if self.samples_until_search == 0 {
            self.samples_until_search = THREAD_SEARCH_INTERVAL;
            self.update_threads()?;
        }
        Ok(())
    }

    /// Checks at intervals whether the process has moved to another cgroup, where throttling would look like a lack of CPUs. The check is
    /// due by the clock, because an idle process is sampled less often.
    fn update_cgroup_if_due(&mut self, now: MonoNs, is_at_rest: bool) {
        // At rest, no thread can be throttled, so the check may come late.
        let interval_ns = if is_at_rest { CGROUP_INTERVAL_AT_REST_NS } else { CGROUP_INTERVAL_NS };
        if now.since(self.cgroup_searched_at) >= interval_ns {
            self.cgroup_searched_at = now;
            self.update_cgroup();
        }
    }

    /// Reads how long each thread ran and waited since the last sample, which was `interval_ns` ago. Forgets the threads that have exited.
    fn sample_threads_and_forget_exited(&mut self, interval_ns: u64) -> Vec<ThreadUse> {
        let pid = self.pid;
        let mut used = Vec::with_capacity(self.threads.len());
        let mut exited_tids = Vec::new();
        for (&tid, known) in &mut self.threads {
            let Some(times) = known.file.read() else {
                exited_tids.push(tid);
                continue;
            };
            let state = known.state_letter_if_times_unchanged(pid, tid, &times);
            used.push(ThreadUse {
                tid,
                name: known.name.clone(),
                on_ns: times.on_ns.saturating_sub(known.last.on_ns),
                wait_ns: known.account_wait_ns(&times, interval_ns, state),
                state,
            });
            known.last = times;
        }
        for tid in exited_tids {
            self.threads.remove(&tid);
        }
        used
    }

    /// Finds the process's cgroup again if the process was moved to another one.
    fn update_cgroup(&mut self) {
        if self.cgroup.as_ref().is_none_or(|known| !known.contains(self.pid)) {
            self.cgroup = Cgroup::of_process(self.pid);
        }
    }

    /// Lists the threads again. Opens the files of new ones in the sampled range, and updates the names of known ones. The range counts in
    /// the order that [`Self::new`] describes.
    fn update_threads(&mut self) -> Result<(), String> {
        let pid = self.pid;
        let mut found = list_threads(pid)?;
        // The main thread and libzmq's threads first: `false` sorts before `true`.
        found.sort_unstable_by_key(|thread| (!thread.is_main_or_zmq(pid), thread.tid));
        for thread in found.into_iter().take(self.range.end).skip(self.range.start) {
            self.add_or_rename_thread(thread);
        }
        Ok(())
    }

    /// Updates the name of a known thread, which may have changed, or adds a new thread. A new one that has exited already has no times,
    /// and is skipped.
    fn add_or_rename_thread(&mut self, ListedThread { tid, name }: ListedThread) {
        if let Some(known) = self.threads.get_mut(&tid) {
            known.name = name;
        } else if let Some(file) = ThreadTimesFile::open(self.pid, tid)
            && let Some(last) = file.read()
        {
            self.threads.insert(tid, SampledThread { file, state_file: None, name, last, reported_early_ns: 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn a_busy_and_a_sleeping_thread_are_measured() {
        let mut sampler = CpuSampler::new(std::process::id(), 0..64).unwrap();
        let tid = rustix::thread::gettid().as_raw_pid() as u32;
        let spend = |busy: bool| {
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(60) {
                if !busy {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
        };
        let mut own = |busy| {
            sampler.sample().unwrap();
            spend(busy);
            let sample = sampler.sample().unwrap();
            let thread = sample.threads.iter().find(|t| t.tid == tid).cloned();
            (sample.interval_ns, thread.expect("our own thread is listed"))
        };
        let (interval, sleeping) = own(false);
        assert!(sleeping.on_ns < interval / 2, "{sleeping:?} in {interval} ns");
        let (interval, busy) = own(true);
        // On a crowded machine the thread waits for a CPU instead, but it does not sleep.
        let awake = busy.on_ns + busy.wait_ns.unwrap_or(interval);
        assert!(awake > interval / 2, "{busy:?} in {interval} ns");
    }

    #[test]
    fn a_cpu_wait_is_reported_while_it_lasts_and_only_once() {
        const MS: u64 = 1_000_000;
        let times = |on_ms: u64, wait_ms: u64| ThreadTimes { on_ns: on_ms * MS, wait_ns: Some(wait_ms * MS) };
        let mut known = SampledThread {
            file: ThreadTimesFile::open(std::process::id(), std::process::id()).unwrap(),
            state_file: None,
            name: String::new(),
            last: times(5, 1),
            reported_early_ns: 0,
        };
        let mut waited = |on_ms, wait_ms, state| {
            let now = times(on_ms, wait_ms);
            let waited = known.account_wait_ns(&now, 100 * MS, state);
            known.last = now;
            waited.map(|ns| ns / MS)
        };
        assert_eq!(waited(5, 1, Some('S')), Some(0), "asleep");
        assert_eq!([waited(5, 1, Some('R')), waited(5, 1, Some('R'))], [Some(100); 2]);
        assert_eq!(waited(6, 281, None), Some(80), "200 of the 280 ms that the kernel adds have been reported");
        assert_eq!(waited(40, 321, None), Some(40));
    }

    #[test]
    fn the_thread_limit_is_observed() {
        let waiting: Vec<_> =
            (0..3).map(|_| std::thread::spawn(|| std::thread::park_timeout(Duration::from_secs(1)))).collect();
        let mut sampler = CpuSampler::new(std::process::id(), 0..1).unwrap();
        let sample = sampler.sample().unwrap();
        assert_eq!(sample.threads.iter().map(|t| t.tid).collect::<Vec<_>>(), [std::process::id()]);
        for thread in waiting {
            thread.thread().unpark();
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_missing_process_is_an_error() {
        assert!(CpuSampler::new(u32::MAX, 0..1).unwrap_err().contains("/proc/4294967295/task"));
    }
}
