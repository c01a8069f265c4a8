//! Times of one request's chunks inside one process, until both sides of each chunk are known.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::clock::MonoNs;

/// Side of a chunk's processing stage whose time is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Side {
    Received,
    SentOn,
}

/// One request at one role: unmatched times of its chunks, all of the same side.
///
/// A request's chunks are received and sent on in order, so an entry older than a matched one will never be matched.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InProcess {
    pub(super) role: u16,
    side: Side,
    /// Cumulative token count and time of each.
    waiting: VecDeque<(u32, MonoNs)>,
}

impl InProcess {
    pub(super) fn new(role: u16, side: Side) -> Self {
        Self { role, side, waiting: VecDeque::new() }
    }

    /// Number of unmatched times.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Evicts the oldest time.
    pub(super) fn forget(&mut self) {
        self.waiting.pop_front();
    }

    /// Receive time of the oldest chunk that `role` has not forwarded yet.
    pub(crate) fn since(&self, role: u16) -> Option<MonoNs> {
        let oldest = self.waiting.front().filter(|_| self.role == role && self.side == Side::Received)?;
        Some(oldest.1)
    }

    /// Returns the time of the other side for the chunk of `count` tokens, if it is known.
    pub(super) fn pair(&mut self, side: Side, count: u32, at: MonoNs) -> Option<MonoNs> {
        if self.side != side {
            while self.waiting.front().is_some_and(|&(tokens, _)| tokens < count) {
                self.waiting.pop_front();
            }
            let matched = self.waiting.pop_front_if(|&mut (tokens, _)| tokens == count);
            if matched.is_some() || !self.waiting.is_empty() {
                // All waiting chunks are later ones, so this chunk's other time was missed.
                return matched.map(|(_, other)| other);
            }
            self.side = side;
        }
        if self.waiting.back().is_some_and(|&(tokens, _)| tokens > count) {
            // The count has restarted.
            self.waiting.clear();
        }
        self.waiting.push_back((count, at));
        None
    }
}
