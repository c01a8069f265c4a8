//! A run in slots of equal length. Pairs of slots are joined when there are too many.

use crate::clock::MonoNs;

/// Values of a part of a run, which can be merged with those of the next part.
pub(crate) trait SeriesSlot: Clone {
    /// Merges the following slot into this one. Merging two empty slots must give an empty slot.
    fn join_next(&mut self, next: &Self);
}

/// Slots of a run: entered at the base length, and joined to a multiple of it. The last one may be incomplete.
#[derive(Clone, Debug)]
pub(crate) struct Series<S> {
    start: MonoNs,
    /// Length of a base slot.
    base_ns: u64,
    /// Number of base slots that were joined to each slot.
    base_slots_per_slot: u64,
    max_slots: usize,
    slots: Vec<S>,
    /// The slot that is not complete, if any.
    partial: Option<S>,
    /// Number of base slots in `partial` so far.
    partial_base_slots: u64,
}

impl<S: SeriesSlot> Series<S> {
    /// An empty series from `begun` on with slots of `base_ns`. Keeps at most `max_slots` of them (an even number, at least 2).
    pub(crate) fn new(begun: MonoNs, base_ns: u64, max_slots: usize) -> Self {
        // Even, so that slots can be joined in pairs.
        let max_slots = (max_slots - max_slots % 2).max(2);
        Self {
            start: begun,
            base_ns: base_ns.max(1),
            base_slots_per_slot: 1,
            max_slots,
            slots: Vec::new(),
            partial: None,
            partial_base_slots: 0,
        }
    }

    pub(crate) fn begun(&self) -> MonoNs {
        self.start
    }

    pub(crate) fn width_ns(&self) -> u64 {
        self.base_ns.saturating_mul(self.base_slots_per_slot)
    }

    /// All slots, oldest first. `running_slot` is the slot of the base length that is not over yet; it is joined to the last one.
    pub(crate) fn slots_including_running(&self, running_slot: Option<&S>) -> Vec<S> {
        let mut slots = self.slots.clone();
        let mut last = self.partial.clone();
        if let Some(running_slot) = running_slot {
            join_to_last_or_start(&mut last, running_slot);
        }
        // The last slot may be incomplete.
        slots.extend(last);
        slots
    }

    /// Adds `count` base slots with equal values. They are joined to the last slot of the series, which is partial until it has as many
    /// base slots as the others. The next ones then begin another slot. If `count` is more than 1, `slot` must be empty.
    pub(crate) fn add_equal_slots(&mut self, slot: &S, count: u64) {
        let mut remaining = count;
        while remaining > 0 {
            // One join is enough for all base slots that fit into the partial slot, because further empty slots change nothing. So a long
            // silence takes few steps.
            join_to_last_or_start(&mut self.partial, slot);
            let room_in_partial = self.base_slots_per_slot - self.partial_base_slots;
            let added = remaining.min(room_in_partial);
            self.partial_base_slots += added;
            remaining -= added;
            if self.partial_base_slots == self.base_slots_per_slot {
                self.complete_partial_slot();
            }
        }
    }

    /// Adds the slot that is now complete to the others. If there are then too many, joins them in pairs.
    fn complete_partial_slot(&mut self) {
        self.partial_base_slots = 0;
        self.slots.extend(self.partial.take());
        if self.slots.len() == self.max_slots {
            self.join_slots_in_pairs();
        }
    }

    /// The slot that contains this time; `None` if it has not been entered.
    pub(crate) fn slot_at(&mut self, at: MonoNs) -> Option<&mut S> {
        let index = usize::try_from(at.since(self.start) / self.width_ns()).ok()?;
        if index == self.slots.len() { self.partial.as_mut() } else { self.slots.get_mut(index) }
    }

    /// Joins neighbouring slots in pairs, which halves their number. Each slot then has twice as many base slots.
    fn join_slots_in_pairs(&mut self) {
        let mut old_slots = std::mem::take(&mut self.slots).into_iter();
        while let Some(mut slot) = old_slots.next() {
            if let Some(next) = old_slots.next() {
                slot.join_next(&next);
            }
            self.slots.push(slot);
        }
        self.base_slots_per_slot = self.base_slots_per_slot.saturating_mul(2);
    }
}

/// Joins `next` to the last slot, or makes it the last one if there is none.
fn join_to_last_or_start<S: SeriesSlot>(last: &mut Option<S>, next: &S) {
    match last {
        Some(last) => last.join_next(next),
        None => *last = Some(next.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Sum(u64);

    impl SeriesSlot for Sum {
        fn join_next(&mut self, next: &Self) {
            self.0 += next.0;
        }
    }

    #[test]
    fn a_full_series_halves_its_resolution_and_keeps_sum_and_time() {
        let mut series = Series::new(MonoNs(7), 10, 8);
        for _ in 0..100 {
            series.add_equal_slots(&Sum(10), 1);
            assert!(series.slots_including_running(None).len() <= 8);
        }
        // Each complete slot's content equals its length; the last slot has the rest.
        let slots = series.slots_including_running(Some(&Sum(3)));
        let (last, complete) = slots.split_last().unwrap();
        assert!(complete.iter().all(|slot| slot.0 == series.width_ns()), "{series:?}");
        assert_eq!(complete.len() as u64 * series.width_ns() + last.0, 1003);
    }

    #[test]
    fn a_clock_jump_takes_bounded_steps() {
        #[derive(Clone, Debug, Default)]
        struct Joined(u64);
        impl SeriesSlot for Joined {
            fn join_next(&mut self, next: &Self) {
                self.0 += 1 + next.0;
            }
        }
        let mut series = Series::new(MonoNs(0), 1_000_000_000, 600);
        series.add_equal_slots(&Joined(0), u64::MAX / 1_000_000_000);
        let joins: u64 = series.slots_including_running(None).iter().map(|slot| slot.0).sum();
        assert!(joins < 20_000, "{joins}");
    }

    proptest::proptest! {
        #[test]
        fn entering_many_empty_slots_at_once_equals_entering_each(
            width in 1..20_u64, max in 2..9_usize, entries in proptest::collection::vec((0..200_u64, 0..5_u64), 1..20),
        ) {
            let mut at_once = Series::new(MonoNs(0), width, max);
            let mut one_by_one = at_once.clone();
            for (empty, value) in entries {
                at_once.add_equal_slots(&Sum(value), 1);
                at_once.add_equal_slots(&Sum(0), empty);
                one_by_one.add_equal_slots(&Sum(value), 1);
                (0..empty).for_each(|_| one_by_one.add_equal_slots(&Sum(0), 1));
                proptest::prop_assert_eq!(at_once.slots_including_running(None), one_by_one.slots_including_running(None));
                proptest::prop_assert_eq!(at_once.width_ns(), one_by_one.width_ns());
            }
        }
    }
}
