//! What the receivers' threads and sockets were doing.

use super::hop::{Taker, Trip};
use super::{Ledger, Thread, Waits};
use crate::clock::MonoNs;
use crate::event::{CpuSample, QueueSample};
use crate::id::ThreadId;

impl Ledger {
    pub(super) fn cpu(&mut self, at: MonoNs, sample: &CpuSample<'_>) {
        let limits = &self.limits;
        if !self
            .threads
            .sample(at, sample, limits.samples_per_taker, limits.threads)
        {
            self.reached.threads += 1;
            return;
        }
        if self.threads.get(sample.thread).is_some_and(Thread::takes) {
            self.waits.sampled(sample.thread, &self.threads, &self.hops.groups);
        }
    }

    pub(super) fn queue(&mut self, at: MonoNs, sample: &QueueSample<'_>) {
        // A hop that no frame has crossed has no line yet, and nothing queued that matters.
        let Some(place) = self.hops.group_named(sample.hop) else {
            return;
        };
        let (mut both, mut frames, mut bytes) = (false, 0, 0);
        for hop in self.hops.all.iter().filter(|h| h.group == place) {
            both |= hop.sees.sent && hop.sees.taken;
            frames += hop.counts.frames_sent;
            bytes += hop.counts.bytes;
        }
        let group = &mut self.hops.groups[place];
        let backlog = both.then_some(group.backlog);
        group.kernel.enter(at, sample, backlog, bytes / u64::max(frames, 1));
    }

    /// A thread takes a frame from the hop at `place`, in a wakeup that may have brought it frames of other hops.
    pub(super) fn taker(&mut self, at: MonoNs, place: usize, by: Option<ThreadId>, trip: &mut Option<Trip>) {
        let Some(by) = by else { return };
        let Some(thread) = self.threads.taker(by, at, self.limits.threads) else {
            self.reached.threads += 1;
            return;
        };
        if let Some(trip) = trip {
            (trip.by, trip.frame) = (Taker::Thread(by), thread.woke(trip.wakeup));
        }
        if let Some(waited) = thread.took(at) {
            let group = self.hops.all[place].group;
            self.hops.groups[group].recv_wait.record(at, waited);
        }
    }

    /// Threads of the engine that samples or takes have told of.
    pub fn threads(&self) -> &[Thread] {
        &self.threads.all
    }

    /// One of them.
    pub fn thread(&self, id: ThreadId) -> Option<&Thread> {
        self.threads.get(id)
    }

    /// What the taking threads did while first tokens waited for them.
    pub fn waits(&self) -> &Waits {
        &self.waits
    }
}
