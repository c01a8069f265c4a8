//! One slot of a run.

use serde::{Deserialize, Serialize};

use crate::ledger::TimeUse;
use crate::stats::{Slot, Tally};

/// Counters of one slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotCounts {
    /// Requests seen for the first time.
    pub begun: u64,
    /// Requests that finished.
    pub finished: u64,
    /// Tokens sent by the scheduler.
    pub tokens_sent: u64,
    /// Tokens received by the tokenizer.
    pub tokens_received: u64,
    /// Tokens delivered.
    pub tokens_delivered: u64,
    /// Tokens proven lost.
    pub tokens_lost: u64,
    /// Chunks sent by the scheduler.
    pub chunks_sent: u64,
    /// Chunks merged into another chunk's delivery.
    pub chunks_merged: u64,
    /// Chunks proven lost.
    pub chunks_dropped: u64,
    /// Drops predicted from the known behaviour of the release.
    pub dropped_predicted: u64,
    /// Observations missed by tokengap.
    pub events_missed: u64,
}

impl SlotCounts {
    pub(super) fn combine(self, other: Self, by: fn(u64, u64) -> u64) -> Self {
        Self {
            begun: by(self.begun, other.begun),
            finished: by(self.finished, other.finished),
            tokens_sent: by(self.tokens_sent, other.tokens_sent),
            tokens_received: by(self.tokens_received, other.tokens_received),
            tokens_delivered: by(self.tokens_delivered, other.tokens_delivered),
            tokens_lost: by(self.tokens_lost, other.tokens_lost),
            chunks_sent: by(self.chunks_sent, other.chunks_sent),
            chunks_merged: by(self.chunks_merged, other.chunks_merged),
            chunks_dropped: by(self.chunks_dropped, other.chunks_dropped),
            dropped_predicted: by(self.dropped_predicted, other.dropped_predicted),
            events_missed: by(self.events_missed, other.events_missed),
        }
    }
}

/// Traffic on the hops of one name in a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopSlotCounts {
    /// Frames sent.
    pub frames_sent: u64,
    /// Frames received.
    pub frames_received: u64,
    /// Chunks in the frames.
    pub chunks: u64,
    /// Bytes of the frames.
    pub bytes: u64,
    /// Finished wakeups of the receivers.
    pub wakeups: u64,
}

impl HopSlotCounts {
    pub(super) fn combine(self, other: Self, by: fn(u64, u64) -> u64) -> Self {
        Self {
            frames_sent: by(self.frames_sent, other.frames_sent),
            frames_received: by(self.frames_received, other.frames_received),
            chunks: by(self.chunks, other.chunks),
            bytes: by(self.bytes, other.bytes),
            wakeups: by(self.wakeups, other.wakeups),
        }
    }
}

/// The hops of one name in a slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopSlot {
    /// Traffic on them.
    pub passed: HopSlotCounts,
    /// Largest backlog, in frames.
    pub backlog_max: u64,
    /// Largest sample of the bytes in kernel queues; `None` without a sample.
    pub kernel_bytes_max: Option<u64>,
    /// Queue wait (received minus sent) of the received frames.
    pub queue_wait: Tally,
}

/// All values of one slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotValues {
    /// Counters.
    pub passed: SlotCounts,
    /// Live requests at its end; for joined slots the maximum.
    pub live: u64,
    /// Gaps that ended.
    pub gap: Tally,
    /// Indexed as [`crate::ledger::Ledger::groups`]; hops first observed later are missing at the end.
    pub hops: Vec<HopSlot>,
    /// Indexed as [`super::TimeSeries::threads`]; `None` without samples.
    pub threads: Vec<Option<TimeUse>>,
}

impl Slot for SlotValues {
    fn join(&mut self, next: Self) {
        self.passed = self.passed.combine(next.passed, u64::saturating_add);
        self.live = self.live.max(next.live);
        self.gap.add(&next.gap);
        if self.hops.len() < next.hops.len() {
            self.hops.resize_with(next.hops.len(), HopSlot::default);
        }
        for (hop, next) in self.hops.iter_mut().zip(next.hops) {
            hop.passed = hop.passed.combine(next.passed, u64::saturating_add);
            hop.backlog_max = hop.backlog_max.max(next.backlog_max);
            hop.kernel_bytes_max = hop.kernel_bytes_max.max(next.kernel_bytes_max);
            hop.queue_wait.add(&next.queue_wait);
        }
        if self.threads.len() < next.threads.len() {
            self.threads.resize(next.threads.len(), None);
        }
        for (thread, next) in self.threads.iter_mut().zip(next.threads) {
            *thread = match (*thread, next) {
                (Some(a), Some(b)) => Some(a.plus(b)),
                (a, b) => a.or(b),
            };
        }
    }
}
