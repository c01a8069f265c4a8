//! The stages of one request, in the order they happened.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::clock::MonoNs;

/// Most stages kept of one request.
const MOST: usize = 32;
/// Two logs of one process agree on a stage's time to the microsecond; two servers differ by more than this, in nanoseconds.
const SAME_NS: u64 = 1_000_000;

/// One stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// When, by the engine's own clock.
    pub at: MonoNs,
    pub(super) name: u8,
    pub(super) by: u8,
    /// Tokens the request had then.
    pub tokens: Option<u32>,
    /// Requests or messages queued behind it.
    pub pending: Option<u32>,
    /// Requests that its teller held state for then, where it says so; of the stages that end a gap only.
    pub states: Option<u32>,
}

/// The stages of one request, earliest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marks {
    list: SmallVec<[Mark; 6]>,
    /// Bit of each place whose gap is known.
    judged: u32,
}

/// A first send and its take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gap {
    /// Where the take stands.
    pub(super) place: usize,
    pub(super) begin: Mark,
    pub(super) end: Mark,
}

/// Result of entering a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entered {
    /// It is the latest: the stage before it, and how long ago that was.
    Last {
        /// `None` for the first of all.
        after: Option<(u8, u64)>,
    },
    /// A later stage was logged first.
    Earlier,
    /// The stage is a duplicate.
    Repeat,
    /// There are too many.
    NoRoom,
}

impl Marks {
    /// The stages.
    pub fn list(&self) -> &[Mark] {
        &self.list
    }

    pub(super) fn enter(&mut self, mark: Mark) -> Entered {
        let same = |m: &Mark| m.by == mark.by || m.at.0.abs_diff(mark.at.0) < SAME_NS;
        if self.list.iter().any(|m| m.name == mark.name && same(m)) {
            return Entered::Repeat;
        }
        if self.list.len() == MOST {
            return Entered::NoRoom;
        }
        let place = self.list.partition_point(|m| m.at <= mark.at);
        let after = self.list.last().map(|last| (last.name, mark.at.since(last.at)));
        if place == self.list.len() {
            self.list.push(mark);
            return Entered::Last { after };
        }
        self.list.insert(place, mark);
        let below = (1_u32 << place) - 1;
        self.judged = (self.judged & below) | ((self.judged & !below) << 1);
        Entered::Earlier
    }

    /// Takes that have not been judged and whose send is known. A take belongs to the latest send
    /// before it: a request that went through two servers has two of each.
    pub(super) fn gaps(&mut self, sent: u8, taken: u8) -> SmallVec<[Gap; 1]> {
        let mut gaps = SmallVec::new();
        let mut begin = None;
        for (place, mark) in self.list.iter().enumerate() {
            if mark.name == sent {
                begin = Some(*mark);
            } else if mark.name == taken && self.judged & (1 << place) == 0 {
                // Clocks of two processes may differ by a little: a take just before its only send is a gap of nothing.
                let begin = begin.or_else(|| self.list.iter().find(|m| m.name == sent).copied());
                if let Some(begin) = begin {
                    self.judged |= 1 << place;
                    gaps.push(Gap {
                        place,
                        begin,
                        end: *mark,
                    });
                }
            }
        }
        gaps
    }

    /// The teller of the stage at `place` held state for so many requests then.
    pub(super) fn held(&mut self, place: usize, states: Option<u32>) {
        self.list[place].states = states;
    }
}
