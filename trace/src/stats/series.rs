//! A run in slots of equal length. Pairs of slots are joined when there are too many.

use crate::clock::MonoNs;

pub(crate) trait Slot {
    /// Merges the following slot into this one.
    fn join(&mut self, next: Self);
}

/// Closed slots, with the bounds of the current one.
#[derive(Clone, Debug)]
pub(crate) struct Series<S> {
    begun: MonoNs,
    width_ns: u64,
    max: usize,
    slots: Vec<S>,
}

impl<S: Slot> Series<S> {
    /// Starts at `begun` with slots of `width_ns`; keeps at most `most` of them (an even number, at least 2).
    pub(crate) fn new(begun: MonoNs, width_ns: u64, max: usize) -> Self {
        Self { begun, width_ns: width_ns.max(1), max: (max - max % 2).max(2), slots: Vec::new() }
    }

    pub(crate) fn begun(&self) -> MonoNs {
        self.begun
    }

    pub(crate) fn width_ns(&self) -> u64 {
        self.width_ns
    }

    /// Closed slots, oldest first.
    pub(crate) fn slots(&self) -> &[S] {
        &self.slots
    }

    pub(crate) fn running_from(&self) -> MonoNs {
        MonoNs(self.begun.0.saturating_add(self.width_ns.saturating_mul(self.slots.len() as u64)))
    }

    pub(crate) fn due(&self) -> MonoNs {
        MonoNs(self.running_from().0.saturating_add(self.width_ns))
    }

    /// Closes the current slot with its content and adds empty slots up to `now`. Joining two empty slots must give an empty slot.
    pub(crate) fn close(&mut self, now: MonoNs, running: S, mut empty: impl FnMut() -> S) {
        self.push(running);
        // A long silence adds no more slots than are kept.
        while now.0 >= self.end() && self.end() < u64::MAX {
            if self.slots.len() % 2 == 1 {
                self.slots.push(empty());
            }
            self.halve();
        }
        while now >= self.due() && self.due().0 < u64::MAX {
            self.push(empty());
        }
    }

    /// End of the range that fits in slots of this length.
    fn end(&self) -> u64 {
        self.begun.0.saturating_add(self.width_ns.saturating_mul(self.max as u64))
    }

    fn push(&mut self, slot: S) {
        self.slots.push(slot);
        if self.slots.len() == self.max {
            self.halve();
        }
    }

    fn halve(&mut self) {
        let mut old = std::mem::take(&mut self.slots).into_iter();
        while let Some(mut slot) = old.next() {
            if let Some(next) = old.next() {
                slot.join(next);
            }
            self.slots.push(slot);
        }
        self.width_ns = self.width_ns.saturating_mul(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq)]
    struct Sum(u64);

    impl Slot for Sum {
        fn join(&mut self, next: Self) {
            self.0 += next.0;
        }
    }

    #[test]
    fn a_full_series_halves_its_resolution_and_keeps_sum_and_time() {
        let (mut series, mut running) = (Series::new(MonoNs(7), 10, 8), 0);
        for at in 7..1007 {
            if MonoNs(at) >= series.due() {
                series.close(MonoNs(at), Sum(std::mem::take(&mut running)), || Sum(0));
            }
            running += 1;
            assert!(series.slots().len() < 8);
        }
        // Each closed slot's content equals its length; the current slot has the rest.
        assert!(series.slots().iter().all(|s| s.0 == series.width_ns()), "{series:?}");
        assert_eq!(series.running_from().0, 1007 - running);
    }

    #[test]
    fn closing_after_a_clock_jump_takes_bounded_steps() {
        let mut series = Series::new(MonoNs(0), 1_000_000_000, 600);
        let mut made = 0;
        series.close(MonoNs(u64::MAX), Sum(1), || {
            made += 1;
            Sum(0)
        });
        assert!(series.slots().len() < 600 && made < 640, "{made}");
        assert_eq!(series.slots()[0], Sum(1));
    }

    proptest::proptest! {
        #[test]
        fn closing_many_empty_slots_at_once_equals_closing_each(
            begun in 0..50_u64, width in 1..20_u64, max in 2..9_usize, jumps in proptest::collection::vec((0..2000_u64, 0..5_u64), 1..20),
        ) {
            let mut at_once = Series::new(MonoNs(begun), width, max);
            let (mut one_by_one, mut now) = (at_once.clone(), begun);
            for (jump, value) in jumps {
                now += jump;
                if MonoNs(now) >= at_once.due() {
                    at_once.close(MonoNs(now), Sum(value), || Sum(0));
                    one_by_one.push(Sum(value));
                    while MonoNs(now) >= one_by_one.due() {
                        one_by_one.push(Sum(0));
                    }
                }
                proptest::prop_assert_eq!(&at_once.slots, &one_by_one.slots);
                proptest::prop_assert_eq!(at_once.width_ns, one_by_one.width_ns);
            }
        }
    }
}
