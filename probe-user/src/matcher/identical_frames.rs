//! Identical frames of different lanes: one lane must be chosen, and later frames show whether that was right.

use std::collections::VecDeque;

use super::fingerprint::{Agreement, Fingerprint};

/// Maximum number of remembered ambiguous matches; the oldest are assumed right.
const MAX_REMEMBERED: usize = 64;

#[derive(Clone, Copy, Debug)]
struct AmbiguousMatch {
    lane: usize,
    frame: Fingerprint,
}

/// Ambiguous matches of one receiver.
#[derive(Debug, Default)]
pub(super) struct IdenticalFrames {
    /// Matches to a frame of this lane while another lane had an identical frame next.
    ambiguous: VecDeque<AmbiguousMatch>,
    /// Frames of wrong matches: the frame that was chosen is still to be received.
    expected: VecDeque<Fingerprint>,
}

impl IdenticalFrames {
    /// Records that a received frame was matched to the lane `lane_index`, although it may be another lane's. A lane is one sending socket,
    /// by its index. Forgets the oldest record at the limit.
    pub(super) fn record_ambiguous_match(&mut self, lane_index: usize, frame: Fingerprint) {
        if self.ambiguous.len() == MAX_REMEMBERED {
            self.ambiguous.pop_front();
        }
        self.ambiguous.push_back(AmbiguousMatch { lane: lane_index, frame });
    }

    /// Tries to explain why the `skipped_frames` of the lane `lane_index` seem not to be received. The receipt of such a frame may have
    /// been matched to its twin, which is an identical frame of another lane. Returns whether that explains all of them. If so, the twins
    /// are still to be received, and are expected from now on. Otherwise nothing changes.
    pub(super) fn explain_skipped_by_twins(&mut self, lane_index: usize, skipped_frames: &[Fingerprint]) -> bool {
        // A copy, because a partial explanation must change nothing.
        let mut remaining = self.ambiguous.clone();
        let mut twins = Vec::new();
        for frame in skipped_frames {
            let is_twin = |other: &AmbiguousMatch| other.lane != lane_index && are_identical(&other.frame, frame);
            let index = remaining.iter().position(is_twin);
            // Each twin explains one skipped frame only.
            let Some(twin) = index.and_then(|index| remaining.remove(index)) else { return false };
            twins.push(twin.frame);
        }
        self.ambiguous = remaining;
        self.expected.extend(twins);
        // The number is limited, because a twin whose receipt is not observed would stay for ever.
        while self.expected.len() > MAX_REMEMBERED {
            self.expected.pop_front();
        }
        true
    }

    /// Whether a frame with this fingerprint is expected.
    pub(super) fn is_expected(&self, fingerprint: &Fingerprint) -> bool {
        self.expected.iter().any(|frame| are_identical(frame, fingerprint))
    }

    /// Returns whether a frame with this fingerprint was expected. Such a frame is then no longer expected.
    pub(super) fn take_if_expected(&mut self, fingerprint: &Fingerprint) -> bool {
        let Some(index) = self.expected.iter().position(|frame| are_identical(frame, fingerprint)) else {
            return false;
        };
        self.expected.remove(index);
        true
    }
}

/// Whether two frames have the same content, as far as it was copied. An equal length alone does not count.
fn are_identical(a: &Fingerprint, b: &Fingerprint) -> bool {
    a.agreement_with(b) > Agreement::Length
}
