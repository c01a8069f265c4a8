//! Time use of the thread that receives the tokenizer's frames while first tokens waited for it.
//!
//! A wait is judged once the thread's samples reach its end. Waits shorter than [`MIN_WAIT_NS`] are not judged: samples are too coarse.

use std::collections::VecDeque;

use super::hops::HopGroup;
use super::limits::push_bounded;
use super::threads::Threads;
use super::time_use::TimeUse;
use crate::clock::MonoNs;
use crate::id::ThreadId;

/// Shortest wait that is judged: two samples.
pub(super) const MIN_WAIT_NS: u64 = 200_000_000;
/// Maximum number of waits not yet judged for lack of a sample.
const MAX_PENDING_WAITS: usize = 16_384;
/// A sample that has not arrived after this time will not arrive.
const MAX_SAMPLE_DELAY_NS: u64 = 5_000_000_000;

/// Wait of a first token, from its first send to the tokenizer's receive.
#[derive(Clone, Debug)]
pub(crate) struct FirstTokenWait {
    pub(crate) rid: Box<str>,
    /// First sent, by the scheduler.
    pub(crate) sent_at: MonoNs,
    /// Sent on the last hop.
    pub(crate) sent_on_last_hop: MonoNs,
    pub(crate) received_at: MonoNs,
    /// Group of the last hop.
    pub(crate) group: usize,
    /// Receiving thread.
    pub(crate) receiver: ThreadId,
}

/// Waits, with the receiving thread's time use during them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaitBreakdown {
    /// Number of requests.
    pub requests: u64,
    /// Sum of their gaps, in nanoseconds.
    pub gap_ns: u64,
    /// Part before the first token was sent on the last hop.
    pub upstream_ns: u64,
    /// Time use of the receiving thread in the rest. `processing_ns` is for frames before the request's own.
    pub spent: TimeUse,
    /// Maximum bytes in the last hop's kernel queues in that time; `None` if not observed.
    pub kernel_bytes_max: Option<u64>,
}

impl WaitBreakdown {
    /// Sum of both, with the larger of both maxima.
    fn plus(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            gap_ns: self.gap_ns.saturating_add(other.gap_ns),
            upstream_ns: self.upstream_ns.saturating_add(other.upstream_ns),
            spent: self.spent.plus(other.spent),
            kernel_bytes_max: self.kernel_bytes_max.max(other.kernel_bytes_max),
        }
    }
}

/// The wait of one request.
#[derive(Clone, Debug)]
pub(crate) struct WorstWait {
    pub rid: Box<str>,
    pub breakdown: WaitBreakdown,
}

/// All waits of the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct FirstTokenWaits {
    pending: VecDeque<FirstTokenWait>,
    /// Sum of all judged waits.
    pub total: WaitBreakdown,
    /// Longest judged wait.
    pub worst: Option<WorstWait>,
    /// Waits without samples of the thread.
    pub unjudged: u64,
}

impl FirstTokenWaits {
    /// Keeps a wait until samples of its receiving thread cover it.
    pub(crate) fn add_pending_wait(&mut self, wait: FirstTokenWait) {
        let evicted = push_bounded(&mut self.pending, wait, MAX_PENDING_WAITS);
        // Evicted before the samples of its receiver came.
        self.unjudged += u64::from(evicted.is_some());
    }

    /// Judges the pending waits for a receiving thread by what that thread did meanwhile. Waits that its samples do not cover yet stay
    /// pending.
    pub(crate) fn judge_waits_covered_by_samples(
        &mut self,
        receiver: ThreadId,
        threads: &Threads,
        groups: &[HopGroup],
    ) {
        let Some(thread) = threads.get(receiver) else { return };
        let Some(sampled_until) = thread.timeline.last_sample_end() else { return };
        // Taken out, because a judged wait changes the totals.
        let mut pending = std::mem::take(&mut self.pending);
        // Judges each covered wait, and keeps the others.
        pending.retain(|wait| {
            let is_covered = wait.receiver == receiver && wait.received_at <= sampled_until;
            if is_covered {
                // Before its send on the last hop, the token waited for other threads.
                let time_use = thread.use_between(wait.sent_on_last_hop, wait.received_at);
                self.judge_wait_or_count_unjudged(wait, time_use, &groups[wait.group]);
            }
            !is_covered
        });
        self.pending = pending;
    }

    /// Adds a wait and its receiver's use of that time (`time_spent`). A wait without samples (`None`) counts as unjudged.
    fn judge_wait_or_count_unjudged(&mut self, wait: &FirstTokenWait, time_spent: Option<TimeUse>, group: &HopGroup) {
        let Some(time_spent) = time_spent else {
            self.unjudged += 1;
            return;
        };
        let breakdown = WaitBreakdown {
            requests: 1,
            gap_ns: wait.received_at.since(wait.sent_at),
            upstream_ns: wait.sent_on_last_hop.since(wait.sent_at),
            spent: time_spent,
            kernel_bytes_max: group.kernel.max_bytes_between(wait.sent_on_last_hop, wait.received_at),
        };
        self.total = self.total.plus(breakdown);
        // Of equally long ones, the latest.
        let is_worst = self.worst.as_ref().is_none_or(|worst| breakdown.gap_ns >= worst.breakdown.gap_ns);
        if is_worst {
            self.worst = Some(WorstWait { rid: wait.rid.clone(), breakdown });
        }
    }

    /// Removes waits whose samples did not arrive in time, and counts them as unjudged.
    pub(crate) fn drop_overdue_waits(&mut self, now: MonoNs) {
        while let Some(oldest) = self.pending.front() {
            if now.since(oldest.received_at) <= MAX_SAMPLE_DELAY_NS {
                break;
            }
            self.pending.pop_front();
            self.unjudged += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{CpuSample, QueueSample};

    const MS: u64 = 1_000_000;
    const BY: ThreadId = ThreadId { pid: 7, tid: 7 };

    fn wait(rid: &str, arrived_ms: u64, received_ms: u64) -> FirstTokenWait {
        FirstTokenWait {
            rid: rid.into(),
            sent_at: MonoNs((arrived_ms - 50) * MS),
            sent_on_last_hop: MonoNs(arrived_ms * MS),
            received_at: MonoNs(received_ms * MS),
            group: 0,
            receiver: BY,
        }
    }

    fn sample(threads: &mut Threads, at_ms: u64, on_ms: u64) {
        let sample =
            CpuSample { wait_ns: Some((100 - on_ms) * MS), ..CpuSample::new(BY, "tokenizer", 100 * MS, on_ms * MS) };
        assert!(threads.add_cpu_sample_if_room(MonoNs(at_ms * MS), &sample, 6_000, 4));
    }

    #[test]
    fn a_wait_is_evaluated_once_samples_cover_it() {
        let (mut threads, mut waits) = (Threads::default(), FirstTokenWaits::default());
        let mut groups = [HopGroup::default()];
        threads.mark_receiver(BY, MonoNs(0), 4);
        let kernel = QueueSample { hop: "", receive_bytes: Some(4_096), send_bytes: None };
        groups[0].kernel.add_sample(MonoNs(350 * MS), &kernel, None, 1);
        for n in 1..=5 {
            sample(&mut threads, n * 100, 80);
        }
        waits.add_pending_wait(wait("a", 100, 400));
        waits.add_pending_wait(wait("b", 100, 550));
        waits.judge_waits_covered_by_samples(BY, &threads, &groups);
        assert_eq!(waits.total.requests, 1);
        sample(&mut threads, 600, 0);
        waits.judge_waits_covered_by_samples(BY, &threads, &groups);
        let WorstWait { rid, breakdown: worst } = waits.worst.clone().unwrap();
        assert_eq!((&*rid, worst.gap_ns, worst.upstream_ns), ("b", 500 * MS, 50 * MS));
        assert_eq!((worst.spent.on_ns, worst.spent.interval_ns), (320 * MS, 450 * MS));
        assert_eq!(waits.total.spent.on_ns, 560 * MS);
        assert_eq!(waits.total.kernel_bytes_max, Some(4_096));
    }

    #[test]
    fn a_wait_without_samples_is_dropped_and_counted() {
        let mut waits = FirstTokenWaits::default();
        waits.add_pending_wait(wait("a", 100, 400));
        waits.judge_waits_covered_by_samples(BY, &Threads::default(), &[]);
        waits.drop_overdue_waits(MonoNs(401 * MS));
        assert_eq!(waits.unjudged, 0);
        waits.drop_overdue_waits(MonoNs(6_000 * MS));
        assert_eq!((waits.unjudged, waits.total.requests), (1, 0));
    }
}
