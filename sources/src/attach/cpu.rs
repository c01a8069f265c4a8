//! CPU time of the engine's threads as events. While frames flow, threads on the token path are sampled every 100 ms, the others every
//! second; at rest every second and every 5 s.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use probe_user::Probe;
use probe_user::cpu::{AwayReason, CpuSampler, ProcessSample, ThreadUse};
use probe_user::discover::Process;
use probe_user::examine::namespace;
use trace::event::{self, CpuSample, Event, PollUse, ThreadPart, What};
use trace::{MonoNs, ThreadId};

use super::lanes::{Lanes, Sink};

/// Number of threads sampled often: the main thread, libzmq's and the next few, which move frames.
const THREADS_OF_THE_PATH: usize = 8;
/// Maximum number of threads sampled per process.
const MAX_THREADS: usize = 256;
/// Interval for the threads on the path while frames flow.
const FAST_INTERVAL: Duration = Duration::from_millis(100);
/// Interval for the other threads and event loops, and for the threads on the path while no frames flow.
const SLOW_INTERVAL: Duration = Duration::from_secs(1);
/// Interval for the other threads and event loops while no frames flow.
const REST_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct CpuWatch {
    processes: Vec<WatchedProcess>,
    /// Counters of event loops at the last sample of all threads.
    poll_counters: HashMap<ThreadId, PollCounters>,
    last_sample_at: Option<Instant>,
    /// When all threads were sampled last.
    last_full_sample_at: Option<Instant>,
}

struct WatchedProcess {
    role: &'static str,
    pid: u32,
    io_threads: Vec<u32>,
    /// Samples the threads that move frames.
    path_threads: CpuSampler,
    /// Samples all other threads.
    other_threads: CpuSampler,
}

impl CpuWatch {
    /// Adds a process to those sampled, or returns why it cannot be sampled.
    pub(super) fn add_process(&mut self, process: &Process) -> Result<(), String> {
        let pid = process.id.pid;
        // The first threads of a process move frames: the main one, libzmq's and the next few.
        self.processes.push(WatchedProcess {
            role: process.role.word(),
            pid,
            io_threads: process.io_threads.clone(),
            path_threads: CpuSampler::new(pid, 0..THREADS_OF_THE_PATH)?,
            other_threads: CpuSampler::new(pid, THREADS_OF_THE_PATH..MAX_THREADS)?,
        });
        Ok(())
    }

    /// Samples the threads whose interval is over, and emits their CPU times. While frames flow, threads that move frames are sampled more
    /// often than the others. `lanes` knows which frames are waiting, and which threads receive them.
    pub(super) fn sample_when_due(&mut self, probe: &Probe, lanes: &Lanes, sink: Sink<'_>) {
        let now = Instant::now();
        // This is called at every turn of the run loop, so the cheapest check comes first.
        if !is_due(self.last_sample_at, FAST_INTERVAL, now) {
            return;
        }
        let has_traffic = lanes.has_traffic();
        // Without traffic, all threads are sampled less often.
        if !has_traffic && !is_due(self.last_sample_at, SLOW_INTERVAL, now) {
            return;
        }
        self.last_sample_at = Some(now);
        let interval_of_all = if has_traffic { SLOW_INTERVAL } else { REST_INTERVAL };
        let are_all_due = is_due(self.last_full_sample_at, interval_of_all, now);
        let mut scope = SampledThreads::OnPath;
        // Stays empty unless all threads are due: event loops are reported with samples of all threads only.
        let mut poll_uses = HashMap::new();
        if are_all_due {
            scope = SampledThreads::All;
            self.last_full_sample_at = Some(now);
            poll_uses = self.poll_uses_since_last_call(probe);
        }
        let receivers = SampledReceivers { lanes, are_frames_late: is_any_frame_late(lanes) };
        // Samples each process, and removes those that have exited.
        self.processes.retain_mut(|process| process.sample_threads_if_running(scope, &poll_uses, receivers, sink));
    }

    /// How each thread has used its event loop since the last call, by the kernel side's counters of `epoll_wait`.
    fn poll_uses_since_last_call(&mut self, probe: &Probe) -> HashMap<ThreadId, PollUse> {
        let counters = read_poll_counters(probe);
        let poll_uses = poll_uses_between(&self.poll_counters, &counters);
        self.poll_counters = counters;
        poll_uses
    }
}

/// Whether a frame has waited for its receiver for longer than a sample's interval.
fn is_any_frame_late(lanes: &Lanes) -> bool {
    let Some(oldest_sent_at) = lanes.oldest_waiting_since() else { return false };
    MonoNs::now().since(oldest_sent_at) >= FAST_INTERVAL.as_nanos() as u64
}

/// Threads that receive frames.
#[derive(Clone, Copy)]
struct SampledReceivers<'a> {
    lanes: &'a Lanes,
    /// Frames wait for some of them for too long.
    are_frames_late: bool,
}

impl SampledReceivers<'_> {
    /// Why a thread that receives frames did not run in the last `interval_ns`, such as the kernel function in which it sleeps. While no
    /// frame is late, only a stop by a signal or a debugger is reported. `None` if the thread did run, or receives no frames.
    fn reason_not_running(self, id: ThreadId, thread: &ThreadUse, interval_ns: u64) -> Option<AwayReason> {
        if !self.lanes.is_receiver(id) {
            None
        } else if self.are_frames_late && is_idle(thread, interval_ns) {
            AwayReason::read(id.pid, id.tid)
        } else if thread.has_not_run() {
            // The state is in the sample already. A stop matters even if no frame is late, because connections may wait for the thread.
            thread.state.and_then(AwayReason::from_stop_letter)
        } else {
            None
        }
    }
}

/// Threads of a process that a sample includes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SampledThreads {
    /// Threads that receive or send messages.
    OnPath,
    All,
}

impl WatchedProcess {
    /// Samples the threads of this process that the scope includes, and emits their CPU times. The events also say how a thread has used
    /// its event loop (`poll_uses`), and why a thread that receives frames did not run (`receivers`). Returns whether the process is still
    /// running.
    fn sample_threads_if_running(
        &mut self,
        scope: SampledThreads,
        poll_uses: &HashMap<ThreadId, PollUse>,
        receivers: SampledReceivers<'_>,
        sink: Sink<'_>,
    ) -> bool {
        // A process that cannot be sampled has exited.
        let Ok(on_path) = self.path_threads.sample() else { return false };
        let none_skipped = HashSet::new();
        self.emit_cpu_samples(&on_path, &none_skipped, poll_uses, Some(receivers), sink);
        if scope == SampledThreads::OnPath {
            return true;
        }
        let Ok(others) = self.other_threads.sample() else { return false };
        // New libzmq threads move others down the order, so a thread can be in both samples.
        let sampled = on_path.threads.iter().map(|thread| thread.tid).collect();
        // Only threads on the path receive frames.
        let no_receivers = None;
        self.emit_cpu_samples(&others, &sampled, poll_uses, no_receivers, sink);
        true
    }

    /// Emits an event for each thread of the sample, except those in `skipped_tids`. The event also says how the thread has used its event
    /// loop (`poll_uses`). With `receivers`, it also says why a thread that receives frames did not run.
    fn emit_cpu_samples(
        &self,
        sample: &ProcessSample,
        skipped_tids: &HashSet<u32>,
        poll_uses: &HashMap<ThreadId, PollUse>,
        receivers: Option<SampledReceivers<'_>>,
        sink: Sink<'_>,
    ) {
        for thread in sample.threads.iter().filter(|thread| !skipped_tids.contains(&thread.tid)) {
            let id = ThreadId { pid: self.pid, tid: thread.tid };
            let away = receivers.and_then(|receivers| receivers.reason_not_running(id, thread, sample.interval_ns));
            let cpu_sample = CpuSample {
                thread: id,
                role: self.role,
                name: &thread.name,
                part: self.part_played_by(thread),
                interval_ns: sample.interval_ns,
                on_ns: thread.on_ns,
                wait_ns: thread.wait_ns,
                throttled_ns: sample.throttled_ns,
                poll: poll_uses.get(&id).copied(),
                away: away.as_ref().map(|away| event::Away { state: away.state, place: &away.waits_in }),
            };
            sink(&Event::new(sample.at, What::Cpu(cpu_sample)));
        }
    }

    /// The part that a thread plays in its process: the main thread, an I/O thread of libzmq, or another one.
    fn part_played_by(&self, thread: &ThreadUse) -> ThreadPart {
        // The kernel gives the main thread the id of its process.
        if thread.tid == self.pid {
            return ThreadPart::Main;
        }
        // Discovery knows the I/O threads that ran then. Later ones are recognised by the name that libzmq gives them.
        let is_io_thread = self.io_threads.contains(&thread.tid) || thread.name.starts_with("ZMQbg/IO");
        if is_io_thread { ThreadPart::Io } else { ThreadPart::Other }
    }
}

/// Returns whether a thread spent most of the interval neither on a CPU nor waiting for one.
fn is_idle(thread: &ThreadUse, interval_ns: u64) -> bool {
    thread.on_ns.saturating_add(thread.wait_ns.unwrap_or(0)) < interval_ns / 2
}

/// Counters of a thread's event loop.
#[derive(Clone, Copy)]
struct PollCounters {
    at: MonoNs,
    /// Total time inside `epoll_wait`.
    polled_ns: u64,
    wakeups: u64,
}

fn is_due(last: Option<Instant>, interval: Duration, now: Instant) -> bool {
    last.is_none_or(|last| now.duration_since(last) >= interval)
}

/// Reads the kernel side's counters of the threads' event loops: the time inside `epoll_wait`, and the number of wakeups. Leaves out
/// threads that only use `poll`, whose return is not observed.
fn read_poll_counters(probe: &Probe) -> HashMap<ThreadId, PollCounters> {
    let at = MonoNs::now();
    let threads = probe.thread_accounting().unwrap_or_else(|error| {
        tracing::debug!("cannot read the threads' polls: {error}");
        Vec::new()
    });
    let mut counters = HashMap::new();
    for (pid, thread) in threads {
        // It has only used `poll`.
        if thread.epolls == 0 {
            continue;
        }
        // The kernel side adds a poll when it returns. One that has not returned yet counts from its start, `poll_ns`, up to now.
        let is_polling = thread.polling == 1;
        let unfinished_ns = if is_polling { at.0.saturating_sub(thread.poll_ns) } else { 0 };
        let polled_ns = thread.polled_ns + unfinished_ns;
        counters.insert(ThreadId { pid, tid: thread.tid }, PollCounters { at, polled_ns, wakeups: thread.waits });
    }
    counters
}

/// How the threads used their event loops between two readings of the counters. Leaves out threads that only the later one has.
fn poll_uses_between(
    earlier: &HashMap<ThreadId, PollCounters>,
    later: &HashMap<ThreadId, PollCounters>,
) -> HashMap<ThreadId, PollUse> {
    let mut uses = HashMap::new();
    for (thread, counters) in later {
        if let Some(earlier_counters) = earlier.get(thread) {
            uses.insert(*thread, counters.poll_use_since(earlier_counters));
        }
    }
    uses
}

impl PollCounters {
    /// Use of the event loop between an earlier reading of its counters and this one.
    fn poll_use_since(&self, earlier: &Self) -> PollUse {
        let interval_ns = self.at.since(earlier.at);
        PollUse {
            interval_ns,
            // An unfinished poll may have begun before the interval.
            polled_ns: self.polled_ns.saturating_sub(earlier.polled_ns).min(interval_ns),
            wakeups: self.wakeups.saturating_sub(earlier.wakeups),
        }
    }
}

/// Warning that this time namespace's clock differs from the kernel's, which stamps the observations. `None` if it does not.
pub(super) fn describe_clock_offset() -> Option<String> {
    let offset_ns = namespace::clock_offset_ns().filter(|ns| *ns != 0)?;
    Some(format!(
        "the clock of this time namespace is {:.3} s ahead of the kernel's: CPU samples and queues do not line up with frames; run it outside the time namespace",
        offset_ns as f64 / 1e9
    ))
}
