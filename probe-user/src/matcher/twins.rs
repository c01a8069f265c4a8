//! Identical frames of different lanes: one lane must be chosen, and later frames show whether that was right.

use std::collections::VecDeque;

use super::fingerprint::{Agreement, Fingerprint};

/// Maximum number of remembered ambiguous matches; the oldest are assumed right.
const MOST: usize = 64;

/// Ambiguous matches of one receiver.
#[derive(Debug, Default)]
pub(super) struct Twins {
    /// Matches to a frame of this lane while another lane had an identical frame next.
    doubtful: VecDeque<(usize, Fingerprint)>,
    /// Frames of wrong matches: the frame that was chosen is still to be received.
    awaited: VecDeque<Fingerprint>,
}

impl Twins {
    /// Records a match to `lane` that may be another lane's frame.
    pub(super) fn doubt(&mut self, lane: usize, fingerprint: Fingerprint) {
        if self.doubtful.len() == MOST {
            self.doubtful.pop_front();
        }
        self.doubtful.push_back((lane, fingerprint));
    }

    /// Whether the receipt of each frame in `skipped`, a run of frames of `lane`, was matched to a twin instead. If so, those twins are
    /// awaited from now on.
    pub(super) fn settle(&mut self, lane: usize, skipped: &[Fingerprint]) -> bool {
        let mut doubtful = self.doubtful.clone();
        let mut awaited = Vec::new();
        for one in skipped {
            let twin = |(other, named): &(usize, Fingerprint)| *other != lane && same(named, one);
            let Some((_, named)) = doubtful.iter().position(twin).and_then(|at| doubtful.remove(at)) else {
                return false;
            };
            awaited.push(named);
        }
        self.doubtful = doubtful;
        self.awaited.extend(awaited);
        while self.awaited.len() > MOST {
            self.awaited.pop_front();
        }
        true
    }

    /// Whether a frame with this fingerprint is awaited.
    pub(super) fn awaits(&self, fingerprint: &Fingerprint) -> bool {
        self.awaited.iter().any(|named| same(named, fingerprint))
    }

    /// Records a frame without a match. Returns whether it was awaited, and stops awaiting it.
    pub(super) fn came(&mut self, fingerprint: &Fingerprint) -> bool {
        let it = self.awaited.iter().position(|named| same(named, fingerprint));
        it.and_then(|at| self.awaited.remove(at)).is_some()
    }
}

fn same(a: &Fingerprint, b: &Fingerprint) -> bool {
    a.agrees(b) > Agreement::Length
}
