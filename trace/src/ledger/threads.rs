//! Threads of the engine: total time use, and a timeline of threads that receive frames.

use hashbrown::HashMap;

use super::absence::{Absences, AwayTimes, Suspension};
use super::hop::Burst;
use super::time_use::{TimeUse, TimeUseTimeline};
use crate::clock::MonoNs;
use crate::event::{AwayState, CpuSample, PollUse, ThreadPart};
use crate::id::ThreadId;

/// How long samples of threads that receive no frames are kept: as far back as detectors look.
const KEPT_SAMPLES_NS: u64 = 12_000_000_000;
/// The same of main threads: as far back as prefills are judged.
const KEPT_MAIN_SAMPLES_NS: u64 = 90_000_000_000;
/// A thread without samples for this long may be evicted.
const MIN_EVICTION_SILENCE_NS: u64 = 10_000_000_000;

/// A thread of the engine.
#[derive(Debug, Default)]
pub struct Thread {
    /// Thread id.
    pub id: ThreadId,
    /// Role of its process; empty before the first sample.
    pub role: Box<str>,
    /// Thread name in the kernel; empty before the first sample.
    pub name: Box<str>,
    /// Function of the thread in its process; `None` before the first sample.
    pub part: Option<ThreadPart>,
    has_received: bool,
    /// When it asked for the next frame; `None` after it receives one.
    pub(crate) requested_at: Option<MonoNs>,
    /// Its current burst of receives, over all hops.
    pub(crate) burst: Burst,
    last_at: MonoNs,
    pub(crate) sums: TimeUse,
    /// Its event loop's polling over the run; `None` if not observed.
    pub poll: Option<PollUse>,
    pub(crate) timeline: TimeUseTimeline,
    absences: Absences,
}

impl Thread {
    fn new(id: ThreadId, at: MonoNs) -> Self {
        Self { id, last_at: at, ..Self::default() }
    }

    /// Whether it has received frames from a hop.
    pub fn is_receiver(&self) -> bool {
        self.has_received
    }

    /// Time use over the run; `None` before the first sample.
    pub fn total(&self) -> Option<TimeUse> {
        self.part.map(|_| self.sums)
    }

    /// End of the last sample; `None` before the first.
    pub fn last_sample_at(&self) -> Option<MonoNs> {
        self.timeline.last_sample_end()
    }

    /// Time use between `from` and `to`, as far as kept samples cover it.
    pub fn use_between(&self, from: MonoNs, to: MonoNs) -> Option<TimeUse> {
        self.timeline.use_between(from, to)
    }

    /// Time off the CPU between `from` and `to`, by reason. The reason is sampled while frames wait for the thread. That the thread is
    /// stopped is sampled at other times, too.
    pub fn away_between(&self, from: MonoNs, to: MonoNs) -> AwayTimes {
        self.absences.sleep_times_between(from, to)
    }

    /// The stop or freeze that lasted at the last sample; `None` if the thread was allowed to run then.
    pub(crate) fn suspension(&self) -> Option<Suspension> {
        self.absences.suspension_at(self.last_at)
    }

    /// System call with most of its time in `state` between `from` and `to`; empty if unknown.
    pub(crate) fn longest_sleep_place(&self, state: AwayState, from: MonoNs, to: MonoNs) -> &str {
        self.absences.longest_sleep_place(state, from, to)
    }

    /// Whether another thread may take its place at `now`. Receivers are kept, since waits are judged by their samples.
    fn is_evictable(&self, now: MonoNs) -> bool {
        !self.has_received && now.since(self.last_at) > MIN_EVICTION_SILENCE_NS
    }

    /// How long a sample of the thread is kept, in nanoseconds: longer for those that findings need.
    fn max_sample_age_ns(&self, part: ThreadPart) -> u64 {
        if self.has_received {
            // Samples of receiving threads are limited only in number.
            return u64::MAX;
        }
        if part == ThreadPart::Main { KEPT_MAIN_SAMPLES_NS } else { KEPT_SAMPLES_NS }
    }

    /// Sets the thread's role and name. They hardly ever change, so they are compared before new ones are allocated.
    fn update_role_and_name(&mut self, sample: &CpuSample<'_>) {
        if *self.role != *sample.role {
            self.role = sample.role.into();
        }
        if *self.name != *sample.name {
            self.name = sample.name.into();
        }
    }

    /// Adds a sample of the thread's CPU time, which covers the interval until `at`. At most `max_samples` are kept.
    fn add_cpu_sample(&mut self, at: MonoNs, sample: &CpuSample<'_>, max_samples: usize) {
        let kept_ns = self.max_sample_age_ns(sample.part);
        // The timeline keeps the sums at the end of each sample, and at the beginning of the first.
        if self.timeline.is_empty() {
            let begin = MonoNs(at.0.saturating_sub(sample.interval_ns));
            self.timeline.push_sums(begin, self.sums, kept_ns, max_samples);
        }
        self.update_role_and_name(sample);
        self.part = Some(sample.part);
        self.last_at = at;
        self.sums = self.sums.plus(sample.into());
        self.timeline.push_sums(at, self.sums, kept_ns, max_samples);
        self.absences.add_sleep_sample(at, sample);
        if let Some(more) = sample.poll {
            let poll = self.poll.get_or_insert_default();
            poll.interval_ns = poll.interval_ns.saturating_add(more.interval_ns);
            poll.polled_ns = poll.polled_ns.saturating_add(more.polled_ns);
            poll.wakeups = poll.wakeups.saturating_add(more.wakeups);
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Threads {
    pub(crate) all: Vec<Thread>,
    by_id: HashMap<ThreadId, usize>,
}

impl Threads {
    pub(crate) fn get(&self, id: ThreadId) -> Option<&Thread> {
        self.by_id.get(&id).map(|&index| &self.all[index])
    }

    /// Main thread of the only process of a role: the presumed receiver if no receive was observed.
    pub(crate) fn only_main_thread(&self, role: &str) -> Option<ThreadId> {
        let role_threads = self.all.iter().filter(|thread| *thread.role == *role);
        let mut main_threads = role_threads.filter(|thread| thread.part == Some(ThreadPart::Main));
        let first = main_threads.next()?;
        let has_several = main_threads.next().is_some();
        if has_several { None } else { Some(first.id) }
    }

    pub(crate) fn get_mut(&mut self, id: ThreadId) -> Option<&mut Thread> {
        self.by_id.get(&id).map(|&index| &mut self.all[index])
    }

    /// Records a sample. Keeps the last `max_samples` samples of a thread. Returns `false` at the limit of threads.
    pub(crate) fn add_cpu_sample_if_room(
        &mut self,
        at: MonoNs,
        sample: &CpuSample<'_>,
        max_samples: usize,
        max_threads: usize,
    ) -> bool {
        let Some(thread) = self.thread_or_add(sample.thread, at, max_threads) else { return false };
        thread.add_cpu_sample(at, sample, max_samples);
        true
    }

    /// Marks a thread as a receiver of frames and returns it; `None` at the limit of threads.
    pub(crate) fn mark_receiver(&mut self, id: ThreadId, at: MonoNs, max_threads: usize) -> Option<&mut Thread> {
        let thread = self.thread_or_add(id, at, max_threads)?;
        thread.has_received = true;
        Some(thread)
    }

    /// The thread with this id, which is added if unknown. At the limit, it replaces a thread that has had no samples for long. `None` if
    /// there is no such thread.
    fn thread_or_add(&mut self, id: ThreadId, at: MonoNs, max_threads: usize) -> Option<&mut Thread> {
        if let Some(&index) = self.by_id.get(&id) {
            return self.all.get_mut(index);
        }
        let index = if self.all.len() < max_threads.max(1) {
            self.all.push(Thread::new(id, at));
            self.all.len() - 1
        } else {
            let index = self.all.iter().position(|thread| thread.is_evictable(at))?;
            let evicted = std::mem::replace(&mut self.all[index], Thread::new(id, at));
            self.by_id.remove(&evicted.id);
            index
        };
        self.by_id.insert(id, index);
        self.all.get_mut(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn sample(tid: u32, on_ms: u64) -> CpuSample<'static> {
        CpuSample {
            name: "python3",
            wait_ns: Some(0),
            ..CpuSample::new(ThreadId { pid: 1, tid }, "tokenizer", 100 * MS, on_ms * MS)
        }
    }

    #[test]
    fn receiving_threads_keep_their_samples_main_threads_a_minute_and_others_a_few_seconds() {
        let mut threads = Threads::default();
        threads.mark_receiver(ThreadId { pid: 1, tid: 1 }, MonoNs(0), 8);
        for n in 1..=1_000 {
            let other = CpuSample { part: ThreadPart::Other, ..sample(2, 6) };
            for sample in [&sample(1, 90), &other, &sample(3, 50)] {
                assert!(threads.add_cpu_sample_if_room(MonoNs(n * 100 * MS), sample, 6_000, 8));
            }
        }
        let from = |tid, second: u64| {
            let thread = threads.get(ThreadId { pid: 1, tid }).unwrap();
            thread.use_between(MonoNs(second * 1_000 * MS), MonoNs((second + 1) * 1_000 * MS)).map(|used| used.on_ns)
        };
        assert_eq!([from(1, 0), from(2, 0), from(3, 0)], [Some(900 * MS), None, None]);
        assert_eq!([from(2, 30), from(3, 30)], [None, Some(500 * MS)]);
        assert_eq!(threads.all[1].total().map(|s| s.on_ns), Some(6_000 * MS));
    }

    #[test]
    fn only_silent_threads_are_evicted() {
        let mut threads = Threads::default();
        assert!(threads.add_cpu_sample_if_room(MonoNs(0), &sample(1, 1), 10, 1));
        assert!(!threads.add_cpu_sample_if_room(MonoNs(MS), &sample(2, 1), 10, 1));
        assert!(threads.add_cpu_sample_if_room(MonoNs(11_000 * MS), &sample(3, 1), 10, 1));
        assert!(threads.get(ThreadId { pid: 1, tid: 1 }).is_none() && threads.all.len() == 1);
    }
}
