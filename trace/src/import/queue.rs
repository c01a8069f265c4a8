//! Queue of statements by time. Logs are nearly in order, so a statement is appended to its time slot, and a slot
//! is sorted once when it is due.

use std::collections::BTreeMap;

use crate::event::LoggedState;

/// Number of slots per window.
const SLOTS: u64 = 64;
/// Minimum length of a slot, in nanoseconds.
const SHORTEST_NS: u64 = 1_000_000;

/// A statement with its time and source.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) at_ns: u64,
    /// Index of the source.
    pub(super) by: u16,
    pub(super) statement: OwnedStatement,
}

/// A stage is named by its index, and a state has no `by`.
#[derive(Debug)]
pub(super) enum OwnedStatement {
    Stage { rid: OwnedRid, name: u16, tokens: Option<u32>, pending: Option<u32> },
    State(Box<LoggedState<'static>>),
    Merged { rid: OwnedRid, chunks: u32 },
}

#[derive(Debug)]
pub(super) struct OwnedRid {
    pub(super) text: Box<str>,
    pub(super) cut: bool,
}

#[derive(Debug)]
pub(super) struct Queue {
    slot_ns: u64,
    slots: BTreeMap<u64, Vec<Queued>>,
    len: usize,
}

impl Queue {
    pub(super) fn new(window_ns: u64) -> Self {
        Self { slot_ns: (window_ns / SLOTS).max(SHORTEST_NS), slots: BTreeMap::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, queued: Queued) {
        self.len += 1;
        self.slots.entry(queued.at_ns / self.slot_ns).or_default().push(queued);
    }

    /// Removes and returns the earliest slot, sorted, if it ends by `horizon_ns`. Entries with equal times keep their reading order.
    pub(super) fn pop_before(&mut self, horizon_ns: u64) -> Option<Vec<Queued>> {
        let first = self.slots.first_entry()?;
        if (first.key() + 1).saturating_mul(self.slot_ns) > horizon_ns {
            return None;
        }
        let mut slot = first.remove();
        slot.sort_by_key(|queued| queued.at_ns);
        self.len -= slot.len();
        Some(slot)
    }
}
