//! Frames that their receiver received late, and how much of that time it was processing frames.

use super::{LATE_NS, OccurrenceTimes};
use crate::clock::MonoNs;

/// Late frames this far apart are in different stretches, in nanoseconds.
const MAX_PAUSE_NS: u64 = 1_000_000_000;
/// In a shorter time between two receives, a share of it says little, in nanoseconds.
const MIN_MEASURED_NS: u64 = 200_000_000;

/// Frames that waited at least [`LATE_NS`] on one hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LateFrames {
    /// Number of frames.
    pub(crate) frames: u64,
    /// Longest wait.
    pub(crate) longest_ns: u64,
    /// Each from its send to its receive.
    pub(crate) times: OccurrenceTimes,
    /// Longest time in which every received frame was late.
    pub(crate) longest_stretch_ns: u64,
    /// Time between the receives of late frames in a row, and the receiver's processing in it.
    measured_ns: u64,
    processed_ns: u64,
    last_late: Option<LateReceive>,
}

/// The last late frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LateReceive {
    at: MonoNs,
    /// The first one since a frame that was not late.
    first_at: MonoNs,
    /// Total processing time of the receiver before it.
    busy_ns: u64,
}

impl LateFrames {
    /// Adds the time between two late receives, and how much of it the receiver spent on processing.
    fn add_processing_share(&mut self, between_ns: u64, processed_ns: u64) {
        self.measured_ns = self.measured_ns.saturating_add(between_ns);
        self.processed_ns = self.processed_ns.saturating_add(processed_ns);
    }

    /// Records the receive of a frame that waited `wait_ns` on its hop. Counts it if it is late: if it waited at least [`LATE_NS`].
    /// `busy_ns`: total time that its receiver has spent on processing frames so far.
    pub(crate) fn record_frame_receive(&mut self, at: MonoNs, wait_ns: u64, busy_ns: u64) {
        if wait_ns < LATE_NS {
            // Its receiver is not behind any more.
            self.last_late = None;
            return;
        }
        self.frames += 1;
        self.longest_ns = self.longest_ns.max(wait_ns);
        let sent_at = MonoNs(at.0.saturating_sub(wait_ns));
        self.times.record_span(sent_at, at);
        // Late receives without a long pause between them form one stretch, which begins at `first_at`. This receive begins a stretch,
        // unless it soon follows the last late one.
        let mut stretch_start = at;
        if let Some(last) = self.last_late
            && at.since(last.at) < MAX_PAUSE_NS
        {
            stretch_start = last.first_at;
            self.add_processing_share(at.since(last.at), busy_ns.saturating_sub(last.busy_ns));
        }
        self.longest_stretch_ns = self.longest_stretch_ns.max(at.since(stretch_start));
        self.last_late = Some(LateReceive { at, first_at: stretch_start, busy_ns });
    }

    /// Late frames of two hops together.
    #[must_use]
    pub(crate) fn plus(mut self, other: &Self) -> Self {
        self.frames += other.frames;
        self.longest_ns = self.longest_ns.max(other.longest_ns);
        self.times.merge(&other.times);
        self.longest_stretch_ns = self.longest_stretch_ns.max(other.longest_stretch_ns);
        self.measured_ns = self.measured_ns.saturating_add(other.measured_ns);
        self.processed_ns = self.processed_ns.saturating_add(other.processed_ns);
        self
    }

    /// Share of the time between late receives in which the receiver processed a frame; `None` if they were too few.
    pub(crate) fn processing_share(&self) -> Option<f64> {
        (self.measured_ns >= MIN_MEASURED_NS).then(|| (self.processed_ns as f64 / self.measured_ns as f64).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_share_covers_the_time_between_late_receives_only() {
        let mut late = LateFrames::default();
        late.record_frame_receive(MonoNs(1_000 * MS), 300 * MS, 50 * MS);
        assert_eq!(late.processing_share(), None);
        late.record_frame_receive(MonoNs(1_400 * MS), 400 * MS, 350 * MS);
        late.record_frame_receive(MonoNs(1_500 * MS), 10 * MS, 450 * MS);
        late.record_frame_receive(MonoNs(1_600 * MS), 260 * MS, 460 * MS);
        late.record_frame_receive(MonoNs(9_000 * MS), 260 * MS, 460 * MS);
        assert_eq!((late.frames, late.longest_ns, late.processing_share()), (4, 400 * MS, Some(0.75)));
        assert_eq!(late.longest_stretch_ns, 400 * MS, "a frame that is not late ends it");
    }
}
