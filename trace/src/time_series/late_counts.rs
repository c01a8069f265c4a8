//! Counts of an event that comes after its slot has ended.

use super::{HopSlot, HopSlotCounts, MAX_HOPS, SlotCounts, SlotValues, counts_so_far, hop_group_counts_so_far};
use crate::ledger::Ledger;

/// Counters before an event of a slot that is over, or what the event added to them.
#[derive(Debug, Default)]
pub(super) struct LateCounts {
    pub(super) passed: SlotCounts,
    pub(super) hops: Vec<HopSlotCounts>,
}

impl LateCounts {
    /// Reads the ledger's counters before an event. Allocates nothing once all hops are known.
    pub(super) fn remember_counters(&mut self, ledger: &Ledger) {
        self.passed = counts_so_far(ledger);
        self.hops.clear();
        let groups = 0..ledger.groups().len().min(MAX_HOPS);
        self.hops.extend(groups.map(|group_index| hop_group_counts_so_far(ledger, group_index)));
    }

    /// Replaces the counters by their growth since they were read.
    pub(super) fn replace_counters_by_growth(&mut self, ledger: &Ledger) {
        self.passed = counts_so_far(ledger).combine_with(self.passed, u64::saturating_sub);
        for (group_index, counts) in self.hops.iter_mut().enumerate() {
            *counts = hop_group_counts_so_far(ledger, group_index).combine_with(*counts, u64::saturating_sub);
        }
    }

    /// Whether the event counted nothing.
    pub(super) fn is_zero(&self) -> bool {
        self.passed == SlotCounts::default() && self.hops.iter().all(|hop| *hop == HopSlotCounts::default())
    }

    /// Adds the growth to a slot.
    pub(super) fn add_growth_to_slot(&self, slot: &mut SlotValues) {
        slot.passed = slot.passed.combine_with(self.passed, u64::saturating_add);
        if slot.hops.len() < self.hops.len() {
            slot.hops.resize_with(self.hops.len(), HopSlot::default);
        }
        for (hop, growth) in slot.hops.iter_mut().zip(&self.hops) {
            hop.passed = hop.passed.combine_with(*growth, u64::saturating_add);
        }
    }
}
