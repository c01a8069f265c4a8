//! Durations in logarithmic buckets, eight per doubling: coarse, small, and merged without further error.

/// Buckets per doubling, as a power of two: each is at most an eighth wide.
const FINE: u32 = 3;
/// The last bucket also counts all longer durations: more than an hour.
const CLASSES: usize = class_of(3_600_000_000_000) + 1;

const fn class_of(ns: u64) -> usize {
    if ns < 1 << FINE {
        return ns as usize;
    }
    let doubling = ns.ilog2() - FINE;
    ((doubling as usize) << FINE) + (ns >> doubling) as usize
}

pub(super) fn class(ns: u64) -> usize {
    class_of(ns).min(CLASSES - 1)
}

/// Bounds of a bucket: first duration, and first duration beyond it.
pub(super) fn bounds(class: usize) -> (u64, u64) {
    let min = |class: usize| {
        let doubling = (class >> FINE).saturating_sub(1);
        ((class - (doubling << FINE)) as u64) << doubling
    };
    (min(class), min(class + 1))
}

/// Bucket counters. Allocated at the first value.
#[derive(Clone, Debug, Default)]
pub struct Buckets {
    counts: Option<Box<[u32; CLASSES]>>,
    max: u64,
}

impl Buckets {
    /// Adds a duration in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        let counts = self.counts.get_or_insert_with(|| Box::new([0; CLASSES]));
        let count = &mut counts[class(ns)];
        *count = count.saturating_add(1);
        self.max = self.max.max(ns);
    }

    /// Values since the last [`Self::clear`].
    pub fn tally(&self) -> Tally {
        let counts = self.counts.iter().flat_map(|counts| counts.iter().enumerate());
        Tally { counts: counts.filter(|c| *c.1 > 0).map(|(class, &n)| (class as u16, n)).collect(), max: self.max }
    }

    /// Resets all counters.
    pub fn clear(&mut self) {
        if self.max > 0 || self.counts.as_ref().is_some_and(|counts| counts[0] > 0) {
            self.max = 0;
            self.counts.iter_mut().for_each(|counts| counts.fill(0));
        }
    }
}

/// Bucket counts in compact form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Non-empty buckets in order, with their counts.
    counts: Vec<(u16, u32)>,
    max: u64,
}

impl Tally {
    /// Adds a duration in nanoseconds `times` times.
    pub fn record(&mut self, ns: u64, times: u32) {
        self.enter(class(ns) as u16, times);
        self.max = self.max.max(ns);
    }

    fn enter(&mut self, class: u16, times: u32) {
        match self.counts.binary_search_by_key(&class, |c| c.0) {
            Ok(at) => self.counts[at].1 = self.counts[at].1.saturating_add(times),
            Err(at) => self.counts.insert(at, (class, times)),
        }
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|c| u64::from(c.1)).sum()
    }

    /// The exact maximum; `None` without values.
    pub fn max(&self) -> Option<u64> {
        (!self.counts.is_empty()).then_some(self.max)
    }

    /// Midpoint of the bucket with `quantile` (0 to 1), in nanoseconds: accurate to 6 %; `None` without values.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        let rank = ((self.count() as f64 * quantile).ceil() as u64).max(1);
        let mut below = 0;
        let class = self.counts.iter().find(|c| {
            below += u64::from(c.1);
            below >= rank
        })?;
        let (min, beyond) = bounds(class.0.into());
        Some((min + (beyond - min) / 2).min(self.max))
    }

    /// Adds the counts of another tally.
    pub fn add(&mut self, other: &Self) {
        other.counts.iter().for_each(|&(class, count)| self.enter(class, count));
        self.max = self.max.max(other.max);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tally(values: &[u64]) -> Tally {
        let mut buckets = Buckets::default();
        for &ns in values {
            buckets.record(ns);
        }
        buckets.tally()
    }

    proptest! {
        #[test]
        fn every_value_falls_into_its_bucket(ns in 0_u64..4_000_000_000_000) {
            let (min, beyond) = bounds(class(ns));
            prop_assert!(min <= ns);
            prop_assert!(ns < beyond || class(ns) == CLASSES - 1);
            prop_assert!(beyond - min <= 1.max(min / 8));
        }

        #[test]
        fn merging_buckets_equals_counting_all_values(a in prop::collection::vec(any::<u64>(), 0..40),
                                               b in prop::collection::vec(0_u64..100_000, 0..40)) {
            let mut merged = tally(&a);
            merged.add(&tally(&b));
            prop_assert_eq!(merged, tally(&[a, b].concat()));
        }
    }

    #[test]
    fn quantiles_are_accurate_and_never_exceed_the_maximum() {
        let all: Vec<u64> = (1..=1000).map(|n| n * 1_000_000).collect();
        let tally = tally(&all);
        let p50 = tally.quantile(0.5).unwrap();
        assert!(p50.abs_diff(500_000_000) < 30_000_000, "{p50}");
        assert_eq!((tally.count(), tally.max()), (1000, Some(1_000_000_000)));
        assert!(tally.quantile(1.0) <= tally.max());
        assert_eq!(Tally::default().quantile(0.5), None);
    }

    #[test]
    fn clearing_removes_all_values() {
        let mut buckets = Buckets::default();
        buckets.record(0);
        buckets.clear();
        assert_eq!(buckets.tally(), Tally::default());
    }
}
