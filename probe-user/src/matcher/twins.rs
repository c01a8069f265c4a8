//! Identical frames of different lanes: one lane must be chosen, and later frames show whether that was right.

use std::collections::VecDeque;

use super::fingerprint::{Agreement, Fingerprint};

/// Maximum number of remembered ambiguous matches; the oldest are assumed right.
const MAX_REMEMBERED: usize = 64;

/// Ambiguous matches of one receiver.
#[derive(Debug, Default)]
pub(super) struct IdenticalFrames {
    /// Matches to a frame of this lane while another lane had an identical frame next.
    ambiguous: VecDeque<(usize, Fingerprint)>,
    /// Frames of wrong matches: the frame that was chosen is still to be received.
    expected: VecDeque<Fingerprint>,
}

impl IdenticalFrames {
    /// Records a match to `lane` that may be another lane's frame.
    pub(super) fn record_ambiguous(&mut self, lane: usize, fingerprint: Fingerprint) {
        if self.ambiguous.len() == MAX_REMEMBERED {
            self.ambiguous.pop_front();
        }
        self.ambiguous.push_back((lane, fingerprint));
    }

    /// Whether the receipt of each frame in `skipped`, a run of frames of `lane`, was matched to a twin instead. If so, those twins are
    /// expected from now on.
    pub(super) fn resolve(&mut self, lane: usize, skipped: &[Fingerprint]) -> bool {
        let mut ambiguous = self.ambiguous.clone();
        let mut expected = Vec::new();
        for frame in skipped {
            let twin = |(other, named): &(usize, Fingerprint)| *other != lane && same(named, frame);
            let Some((_, named)) = ambiguous.iter().position(twin).and_then(|at| ambiguous.remove(at)) else {
                return false;
            };
            expected.push(named);
        }
        self.ambiguous = ambiguous;
        self.expected.extend(expected);
        while self.expected.len() > MAX_REMEMBERED {
            self.expected.pop_front();
        }
        true
    }

    /// Whether a frame with this fingerprint is expected.
    pub(super) fn is_expected(&self, fingerprint: &Fingerprint) -> bool {
        self.expected.iter().any(|named| same(named, fingerprint))
    }

    /// Records a frame without a match. Returns whether it was expected, and stops expecting it.
    pub(super) fn take_expected(&mut self, fingerprint: &Fingerprint) -> bool {
        let position = self.expected.iter().position(|named| same(named, fingerprint));
        position.and_then(|at| self.expected.remove(at)).is_some()
    }
}

fn same(a: &Fingerprint, b: &Fingerprint) -> bool {
    a.agrees(b) > Agreement::Length
}
