//! Queue of statements by time. Logs are nearly in order, so a statement is appended to its time slot, and a slot
//! is sorted once when it is due.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::recognise::Logged;

/// Number of slots per window.
const SLOTS: u64 = 64;
/// Minimum length of a slot, in nanoseconds.
const SHORTEST_NS: u64 = 1_000_000;

/// A statement with its time and source. Its texts are kept outside of it.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) at_ns: u64,
    /// Index of the source.
    pub(super) by: u16,
    /// Index of the stage's name.
    pub(super) name: u16,
    pub(super) rid: Arc<str>,
    /// Whether the line truncates the rid.
    pub(super) cut: bool,
    pub(super) what: Logged<'static>,
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
