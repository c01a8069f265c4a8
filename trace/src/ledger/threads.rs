//! Threads of the engine: total time use, and a timeline of threads that receive frames.

use hashbrown::HashMap;

use super::absence::{Absences, AwayTimes};
use super::hop::Burst;
use super::timeline::{TimeUse, Timeline};
use crate::clock::MonoNs;
use crate::event::{AwayState, CpuSample, PollUse, ThreadPart};
use crate::id::ThreadId;

/// How long samples of threads that receive no frames are kept: as far back as detectors look.
const KEPT_NS: u64 = 12_000_000_000;
/// A thread without samples for this long may be evicted.
const SILENT_NS: u64 = 10_000_000_000;

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
    receives: bool,
    /// When it asked for the next frame; `None` after it receives one.
    pub(crate) asked: Option<MonoNs>,
    /// Its current burst of receives, over all hops.
    pub(crate) burst: Burst,
    last_at: MonoNs,
    pub(crate) sums: TimeUse,
    /// Its event loop's polling over the run; `None` if not observed.
    pub poll: Option<PollUse>,
    pub(crate) timeline: Timeline,
    absences: Absences,
}

impl Thread {
    fn new(id: ThreadId, at: MonoNs) -> Self {
        Self { id, last_at: at, ..Self::default() }
    }

    /// Whether it has received frames from a hop.
    pub fn is_receiver(&self) -> bool {
        self.receives
    }

    /// Time use over the run; `None` before the first sample.
    pub fn total(&self) -> Option<TimeUse> {
        self.part.map(|_| self.sums)
    }

    /// Time use between `from` and `to`, as far as kept samples cover it.
    pub fn between(&self, from: MonoNs, to: MonoNs) -> Option<TimeUse> {
        self.timeline.between(from, to)
    }

    /// Time off the CPU between `from` and `to`, by reason. Sampled only while frames wait for the thread.
    pub fn away(&self, from: MonoNs, to: MonoNs) -> AwayTimes {
        self.absences.between(from, to)
    }

    /// System call with most of its time in `state` between `from` and `to`; empty if unknown.
    pub fn away_in(&self, state: AwayState, from: MonoNs, to: MonoNs) -> &str {
        self.absences.place(state, from, to)
    }

    fn enter(&mut self, at: MonoNs, sample: &CpuSample<'_>, kept: usize) {
        let keep_ns = if self.receives { u64::MAX } else { KEPT_NS };
        if self.timeline.is_empty() {
            let begin = MonoNs(at.0.saturating_sub(sample.interval_ns));
            self.timeline.push(begin, self.sums, keep_ns, kept);
        }
        if *self.role != *sample.role {
            self.role = sample.role.into();
        }
        if *self.name != *sample.name {
            self.name = sample.name.into();
        }
        self.part = Some(sample.part);
        self.last_at = at;
        self.sums = self.sums.plus(sample.into());
        self.timeline.push(at, self.sums, keep_ns, kept);
        self.absences.enter(at, sample);
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
        self.by_id.get(&id).map(|&place| &self.all[place])
    }

    /// Main thread of the only process of a role: the presumed receiver if no receive was observed.
    pub(crate) fn only_main(&self, role: &str) -> Option<ThreadId> {
        let is_main = |t: &&Thread| *t.role == *role && t.part == Some(ThreadPart::Main);
        let mut main_threads = self.all.iter().filter(is_main);
        let only = main_threads.next()?;
        main_threads.next().is_none().then_some(only.id)
    }

    pub(crate) fn get_mut(&mut self, id: ThreadId) -> Option<&mut Thread> {
        self.by_id.get(&id).map(|&place| &mut self.all[place])
    }

    /// Enters a sample. Keeps the last `kept` samples of a thread. Returns `false` at the limit of threads.
    pub(crate) fn sample(&mut self, at: MonoNs, sample: &CpuSample<'_>, kept: usize, limit: usize) -> bool {
        self.admit(sample.thread, at, limit).map(|thread| thread.enter(at, sample, kept)).is_some()
    }

    /// Marks a thread as a receiver of frames and returns it; `None` at the limit of threads.
    pub(crate) fn receiving_thread(&mut self, id: ThreadId, at: MonoNs, limit: usize) -> Option<&mut Thread> {
        let thread = self.admit(id, at, limit)?;
        thread.receives = true;
        Some(thread)
    }

    fn admit(&mut self, id: ThreadId, at: MonoNs, limit: usize) -> Option<&mut Thread> {
        if let Some(&place) = self.by_id.get(&id) {
            return self.all.get_mut(place);
        }
        let place = if self.all.len() < limit.max(1) {
            self.all.push(Thread::new(id, at));
            self.all.len() - 1
        } else {
            // A silent thread is evicted, unless it has received frames.
            let place = self.all.iter().position(|t| !t.receives && at.since(t.last_at) > SILENT_NS)?;
            let evicted = std::mem::replace(&mut self.all[place], Thread::new(id, at));
            self.by_id.remove(&evicted.id);
            place
        };
        self.by_id.insert(id, place);
        self.all.get_mut(place)
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
    fn receiving_threads_keep_their_samples_and_others_a_few_seconds() {
        let mut threads = Threads::default();
        threads.receiving_thread(ThreadId { pid: 1, tid: 1 }, MonoNs(0), 8);
        for n in 1..=600 {
            assert!(threads.sample(MonoNs(n * 100 * MS), &sample(1, 90), 6_000, 8));
            assert!(threads.sample(MonoNs(n * 100 * MS), &sample(2, 10), 6_000, 8));
        }
        let early = |tid| threads.get(ThreadId { pid: 1, tid }).unwrap().between(MonoNs(0), MonoNs(1_000 * MS));
        assert_eq!(early(1).map(|s| s.on_ns), Some(900 * MS));
        assert_eq!(early(2), None);
        assert_eq!(threads.all[1].total().map(|s| s.on_ns), Some(6_000 * MS));
    }

    #[test]
    fn only_silent_threads_are_evicted() {
        let mut threads = Threads::default();
        assert!(threads.sample(MonoNs(0), &sample(1, 1), 10, 1));
        assert!(!threads.sample(MonoNs(MS), &sample(2, 1), 10, 1));
        assert!(threads.sample(MonoNs(11_000 * MS), &sample(3, 1), 10, 1));
        assert!(threads.get(ThreadId { pid: 1, tid: 1 }).is_none() && threads.all.len() == 1);
    }
}
