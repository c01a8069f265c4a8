//! Statements that wait for their time. Logs are nearly in order: a statement goes to the end of its slot of time, and a slot
//! is sorted once, when it is due.

use std::collections::BTreeMap;

use super::held::Held;

/// Slots in a window.
const SLOTS: u64 = 64;
/// The shortest slot, in nanoseconds.
const SHORTEST_NS: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Queue {
    slot_ns: u64,
    slots: BTreeMap<u64, Vec<Held>>,
    len: usize,
}

impl Queue {
    pub(super) fn new(window_ns: u64) -> Self {
        Self {
            slot_ns: (window_ns / SLOTS).max(SHORTEST_NS),
            slots: BTreeMap::new(),
            len: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, held: Held) {
        self.len += 1;
        self.slots.entry(held.at_ns / self.slot_ns).or_default().push(held);
    }

    /// The earliest slot if it ends by `horizon_ns`, in order; entries of equal time keep their reading order.
    pub(super) fn take_before(&mut self, horizon_ns: u64) -> Option<Vec<Held>> {
        let first = self.slots.first_entry()?;
        if (first.key() + 1).saturating_mul(self.slot_ns) > horizon_ns {
            return None;
        }
        let mut slot = first.remove();
        slot.sort_by_key(|held| held.at_ns);
        self.len -= slot.len();
        Some(slot)
    }
}
