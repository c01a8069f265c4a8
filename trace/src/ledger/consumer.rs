//! State of the receivers' threads and sockets.

use super::hop::{BurstPosition, Receiver};
use super::{Hop, Ledger, Thread};
use crate::clock::MonoNs;
use crate::event::{CpuSample, QueueSample};
use crate::id::ThreadId;

/// A frame received this soon after its receiver asked for one was already queued, in nanoseconds.
const AT_ONCE_NS: u64 = 400_000;
/// A frame sent this long before its receiver asked for one was already queued, in nanoseconds.
const QUEUED_NS: u64 = 5_000_000;

impl Ledger {
    pub(super) fn cpu(&mut self, at: MonoNs, sample: &CpuSample<'_>) {
        let limits = &self.limits;
        if !self.threads.sample(at, sample, limits.samples_per_receiver, limits.threads) {
            self.limits.reached("threads");
            return;
        }
        if self.threads.get(sample.thread).is_some_and(Thread::is_receiver) {
            self.waits.sampled(sample.thread, &self.threads, &self.hops.groups);
        }
        let begun = MonoNs(at.0.saturating_sub(sample.interval_ns));
        let (threads, roles) = (&self.threads, &self.hops.processing_stages.all);
        for hop in &mut self.hops.all {
            let receives = hop.by.map_or_else(
                || {
                    let role = roles.get(usize::from(hop.ends.to));
                    role.is_some_and(|role| threads.only_main(&role.role) == Some(sample.thread))
                },
                |by| by == sample.thread,
            );
            if receives && hop.oldest_waiting().is_some_and(|oldest| oldest <= begun) {
                hop.while_waiting = hop.while_waiting.plus(sample.into());
                hop.away.enter(sample);
            }
        }
    }

    pub(super) fn queue(&mut self, at: MonoNs, sample: &QueueSample<'_>) {
        // A hop without frames has no group yet, and its queue is irrelevant.
        let Some(place) = self.hops.group_named(sample.hop) else {
            return;
        };
        let (mut both, mut frames, mut bytes) = (false, 0, 0);
        for hop in self.hops.all.iter().filter(|h| h.group == place) {
            both |= hop.shows.sent && hop.shows.received;
            frames += hop.counts.frames_sent;
            bytes += hop.counts.bytes;
        }
        let group = &mut self.hops.groups[place];
        let backlog = both.then_some(group.backlog);
        group.kernel.enter(at, sample, backlog, bytes / u64::max(frames, 1));
    }

    /// Records the thread that receives a frame from the hop at `place`. Returns the time at which the receiver requested the frame.
    pub(super) fn receiving_thread(&mut self, at: MonoNs, place: usize, by: Option<ThreadId>) -> Option<MonoNs> {
        let Some(by) = by else {
            return self.hops.all[place].asked.take();
        };
        let Some(thread) = self.threads.receiving_thread(by, at, self.limits.threads) else {
            self.limits.reached("threads");
            return None;
        };
        let requested = thread.asked.take();
        if let Some(requested) = requested {
            let group = self.hops.all[place].group;
            self.hops.groups[group].recv_wait.record(at, at.since(requested));
        }
        requested
    }

    /// Position of a frame within its receiver's bursts. It was sent at `sent`, requested at `requested` and received at `at`.
    ///
    /// A receiver that finds no frame yields to its event loop, and waiters run. If processing is observed, the receiver found a frame only
    /// if it was sent before `requested`, and was received at once or sent long before.
    pub(super) fn burst_position(
        &mut self,
        place: usize,
        (wakeup, by): (u64, Option<ThreadId>),
        at: MonoNs,
        requested: Option<MonoNs>,
        sent: Option<MonoNs>,
    ) -> BurstPosition {
        let hop = &mut self.hops.all[place];
        let waited = requested.map_or(hop.shows.processed, |requested| {
            let (later, queued) =
                sent.map_or((false, false), |sent| (sent > requested, requested.since(sent) >= QUEUED_NS));
            later || (at.since(requested) >= AT_ONCE_NS && !queued)
        });
        let thread = by.and_then(|by| Some((by, self.threads.get_mut(by)?)));
        let (by, (burst, frame)) = match thread {
            Some((by, thread)) => (Receiver::Thread(by), thread.burst.enter(wakeup, waited)),
            None => (Receiver::OfHop(hop.id), hop.burst.enter(wakeup, waited)),
        };
        BurstPosition { by, burst, frame }
    }

    /// Presumed receiver of a hop without observed receives: the main thread of the only process of that role. After an attach, a consumer
    /// far behind first receives older frames for a long time, and a stuck one receives nothing.
    pub fn only_receiver(&self, hop: &Hop) -> Option<ThreadId> {
        let role = self.hops.processing_stages.all.get(usize::from(hop.ends.to))?;
        self.threads.only_main(&role.role)
    }

    /// Threads of the engine known from samples or receives.
    pub fn threads(&self) -> &[Thread] {
        &self.threads.all
    }

    /// Thread with that id.
    pub fn thread(&self, id: ThreadId) -> Option<&Thread> {
        self.threads.get(id)
    }
}
