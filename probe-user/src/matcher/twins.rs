//! Identical frames of different lanes, of which one had to be named: which one it was shows later.

use std::collections::VecDeque;

use super::fingerprint::{Agreement, Fingerprint};

/// Names in doubt that are remembered; older ones stand.
const MOST: usize = 64;

/// The doubts of one receiver.
#[derive(Debug, Default)]
pub(super) struct Twins {
    /// A frame of this lane was named, and another lane had the same one next.
    doubtful: VecDeque<(usize, Fingerprint)>,
    /// It was the other lane's: the frame that was named is still to come.
    awaited: VecDeque<Fingerprint>,
}

impl Twins {
    /// A frame of `lane` was named though it may be another lane's.
    pub(super) fn doubt(&mut self, lane: usize, fingerprint: Fingerprint) {
        if self.doubtful.len() == MOST {
            self.doubtful.pop_front();
        }
        self.doubtful.push_back((lane, fingerprint));
    }

    /// Frames `skipped` of `lane` were not seen taken. Whether each was, under the name of its twin; if so, those twins are
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

    /// Whether such a frame is awaited.
    pub(super) fn awaits(&self, fingerprint: &Fingerprint) -> bool {
        self.awaited.iter().any(|named| same(named, fingerprint))
    }

    /// A frame came that found no place: whether it was awaited, and is no longer.
    pub(super) fn came(&mut self, fingerprint: &Fingerprint) -> bool {
        let it = self.awaited.iter().position(|named| same(named, fingerprint));
        it.and_then(|at| self.awaited.remove(at)).is_some()
    }
}

fn same(a: &Fingerprint, b: &Fingerprint) -> bool {
    a.agrees(b) > Agreement::Length
}
