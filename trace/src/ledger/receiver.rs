//! State of the receivers' threads and sockets.

use super::hop::{BurstPosition, BurstReceiver};
use super::threads::Threads;
use super::{Hop, Ledger, ProcessingStage, Thread};
use crate::clock::MonoNs;
use crate::event::{CpuSample, QueueSample};
use crate::id::ThreadId;

/// A frame received this soon after its receiver asked for one was already queued, in nanoseconds.
const MAX_IMMEDIATE_RECEIVE_NS: u64 = 400_000;
/// A frame sent this long before its receiver asked for one was already queued, in nanoseconds.
const MIN_QUEUED_NS: u64 = 5_000_000;

/// Times of one frame.
#[derive(Clone, Copy)]
pub(super) struct ReceiveTimes {
    /// When it was sent; `None` if not observed.
    pub(super) sent: Option<MonoNs>,
    /// When the receiver asked for a frame; `None` if not observed.
    pub(super) requested: Option<MonoNs>,
    pub(super) received: MonoNs,
}

impl ReceiveTimes {
    /// Whether the receiver, which asked for a frame at `requested_at`, found none and waited for this one.
    fn has_receiver_waited(self, requested_at: MonoNs) -> bool {
        // A frame that was sent after the receiver asked for one was not there.
        if self.sent.is_some_and(|sent| sent > requested_at) {
            return true;
        }
        // A frame that was sent long before was there already, however long its receive took.
        let was_queued = self.sent.is_some_and(|sent| requested_at.since(sent) >= MIN_QUEUED_NS);
        let took_long = self.received.since(requested_at) >= MAX_IMMEDIATE_RECEIVE_NS;
        took_long && !was_queued
    }
}

/// The thread that receives from a hop. Until a receive is observed, it is presumed to be the main thread of the only process with the
/// role to which the hop leads.
fn known_or_presumed_receiver(hop: &Hop, stages: &[ProcessingStage], threads: &Threads) -> Option<ThreadId> {
    hop.last_receiver.or_else(|| {
        let stage = stages.get(usize::from(hop.ends.to))?;
        threads.only_main_thread(&stage.role)
    })
}

impl Ledger {
    /// Records a sample of a thread's CPU time. If frames waited for the thread in the whole interval, it also counts for the hop
    /// (channel) on which they waited.
    pub(super) fn record_cpu_sample(&mut self, at: MonoNs, sample: &CpuSample<'_>) {
        let limits = &self.limits;
        let has_room = self.threads.add_cpu_sample_if_room(at, sample, limits.samples_per_receiver, limits.threads);
        if !has_room {
            self.limits.count_reached("threads");
            return;
        }
        if self.threads.get(sample.thread).is_some_and(Thread::is_receiver) {
            self.waits.judge_waits_covered_by_samples(sample.thread, &self.threads, &self.hops.groups);
        }
        // Only a sample in whose whole interval frames waited shows what they waited for.
        let interval_start = MonoNs(at.0.saturating_sub(sample.interval_ns));
        let stages = &self.hops.processing_stages.all;
        for hop in &mut self.hops.all {
            let receiver = known_or_presumed_receiver(hop, stages, &self.threads);
            let has_waiting_frame = hop.oldest_waiting().is_some_and(|sent| sent <= interval_start);
            // How the receiver spent the time, and why it was not on a CPU.
            if has_waiting_frame && receiver == Some(sample.thread) {
                hop.while_waiting = hop.while_waiting.plus(sample.into());
                hop.away.add_sleep_of_sample(sample);
            }
        }
    }

    /// Records how many bytes the kernel's socket buffers hold for the hops of one name.
    pub(super) fn record_queue_sample(&mut self, at: MonoNs, sample: &QueueSample<'_>) {
        // Hops of one name form a group. One without frames has no group yet, and its queue is irrelevant.
        let Some(group_index) = self.hops.group_named(sample.hop) else { return };
        let mut is_backlog_known = false;
        let mut frames = 0;
        let mut bytes = 0;
        for hop in self.hops.all.iter().filter(|hop| hop.group == group_index) {
            is_backlog_known |= hop.shows.sent && hop.shows.received;
            frames += hop.counts.frames_sent;
            bytes += hop.counts.bytes;
        }
        let group = &mut self.hops.groups[group_index];
        let backlog = is_backlog_known.then_some(group.backlog);
        // The kernel counts bytes; with their mean length, they are converted to frames.
        let mean_bytes = bytes / u64::max(frames, 1);
        group.kernel.add_sample(at, sample, backlog, mean_bytes);
    }

    /// Marks `receiver` as the thread that receives from the hop (channel) at `hop_index`, and returns when it asked for the frame
    /// received at `at`; `None` if unknown. The time counts for this frame only, so it is removed.
    pub(super) fn mark_receiver_and_take_request_time(
        &mut self,
        at: MonoNs,
        hop_index: usize,
        receiver: Option<ThreadId>,
    ) -> Option<MonoNs> {
        let Some(receiver) = receiver else {
            // The thread is not observed, so the hop keeps the time for it.
            return self.hops.all[hop_index].requested_at.take();
        };
        let Some(thread) = self.threads.mark_receiver(receiver, at, self.limits.threads) else {
            self.limits.count_reached("threads");
            return None;
        };
        let requested = thread.requested_at.take();
        if let Some(requested) = requested {
            let group = self.hops.all[hop_index].group;
            self.hops.groups[group].recv_wait.record(at.since(requested));
        }
        requested
    }

    /// Counts a received frame in its receiver's current burst, or as the first of a new one, and returns its position there.
    ///
    /// A burst ends when the receiver finds no frame: it then yields to its event loop, and waiters run. Whether it found this frame at
    /// once follows from when it asked for the frame (`times.requested`), which is known if processing is observed.
    pub(super) fn add_to_burst_and_locate(
        &mut self,
        hop_index: usize,
        receiver: Option<ThreadId>,
        wakeup: u64,
        times: ReceiveTimes,
    ) -> BurstPosition {
        let hop = &mut self.hops.all[hop_index];
        let has_waited = match times.requested {
            Some(requested) => times.has_receiver_waited(requested),
            // Where processing is observed, a missed time may hide a wait. Elsewhere, only the number of the wakeup separates bursts.
            None => hop.shows.processed,
        };
        if let Some(id) = receiver
            && let Some(thread) = self.threads.get_mut(id)
        {
            return thread.burst.add_frame_and_return_position(BurstReceiver::Thread(id), wakeup, has_waited);
        }
        hop.burst.add_frame_and_return_position(BurstReceiver::OfHop(hop.id), wakeup, has_waited)
    }

    /// Presumed receiver of a hop without observed receives: the main thread of the only process of that role. After an attach, a consumer
    /// far behind first receives older frames for a long time, and a stuck one receives nothing.
    pub(crate) fn only_receiver(&self, hop: &Hop) -> Option<ThreadId> {
        let role = self.hops.processing_stages.all.get(usize::from(hop.ends.to))?;
        self.threads.only_main_thread(&role.role)
    }

    /// Main thread of the only process of a role; `None` if it was not sampled, or if there are several.
    pub(crate) fn only_main_thread(&self, role: &str) -> Option<&Thread> {
        self.threads.get(self.threads.only_main_thread(role)?)
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
