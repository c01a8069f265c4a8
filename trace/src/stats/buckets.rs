//! Durations in logarithmic buckets, eight per doubling: coarse, small, and merged without further error.

/// Each doubling has 2 to the power of this many buckets, so a bucket is at most an eighth wide.
const BITS_PER_DOUBLING: u32 = 3;
/// The last bucket also counts all longer durations: more than an hour.
const BUCKETS: usize = exact_bucket_of(3_600_000_000_000) + 1;

/// Index of the bucket for a duration of any length. A doubling is the range from a power of two to the next. Eight buckets of equal width
/// divide each doubling.
const fn exact_bucket_of(ns: u64) -> usize {
    // The first eight buckets have a single value each, 0 to 7 nanoseconds.
    if ns < 1 << BITS_PER_DOUBLING {
        return ns as usize;
    }
    // Doubling 0 is 8 to 15 nanoseconds.
    let doubling = ns.ilog2() - BITS_PER_DOUBLING;
    // The four leading bits are 8 to 15: 8 for the first eight buckets above, plus the number of the bucket within its doubling.
    let leading_bits = (ns >> doubling) as usize;
    let buckets_of_shorter_doublings = (doubling as usize) << BITS_PER_DOUBLING;
    buckets_of_shorter_doublings + leading_bits
}

/// Bucket of a duration; the last one for all that are longer than its start.
pub(super) fn bucket_of(ns: u64) -> usize {
    exact_bucket_of(ns).min(BUCKETS - 1)
}

/// Bounds of a bucket, in nanoseconds.
#[derive(Clone, Copy)]
pub(super) struct BucketBounds {
    pub(super) min_ns: u64,
    /// First duration beyond it.
    pub(super) end_ns: u64,
}

pub(super) fn bounds_of_bucket(bucket: usize) -> BucketBounds {
    BucketBounds { min_ns: min_ns_of_bucket(bucket), end_ns: min_ns_of_bucket(bucket + 1) }
}

/// Shortest duration of a bucket: the inverse of [`exact_bucket_of`].
fn min_ns_of_bucket(bucket: usize) -> u64 {
    // The first eight buckets hold one duration each. Behind them, each doubling has eight.
    let doubling = (bucket >> BITS_PER_DOUBLING).saturating_sub(1);
    let leading_bits = bucket - (doubling << BITS_PER_DOUBLING);
    (leading_bits as u64) << doubling
}

/// Bucket counters. Allocated at the first value.
#[derive(Clone, Debug)]
pub struct Buckets {
    counts: Option<Box<[u32; BUCKETS]>>,
    /// The largest possible duration without values.
    min: u64,
    max: u64,
}

impl Default for Buckets {
    fn default() -> Self {
        Self { counts: None, min: u64::MAX, max: 0 }
    }
}

impl Buckets {
    /// Adds a duration in nanoseconds.
    pub fn record(&mut self, ns: u64) {
        let counts = self.counts.get_or_insert_with(|| Box::new([0; BUCKETS]));
        let count = &mut counts[bucket_of(ns)];
        *count = count.saturating_add(1);
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
    }

    /// Copies the values into a tally, which stores only the buckets that have any.
    pub(crate) fn to_tally(&self) -> Tally {
        let mut counts = Vec::new();
        // The counters are allocated at the first value.
        if let Some(all_counts) = &self.counts {
            for (bucket, &count) in all_counts.iter().enumerate() {
                if count > 0 {
                    counts.push(BucketCount { bucket: bucket as u16, count });
                }
            }
        }
        // Without values, the minimum of the counters is the largest possible duration, and that of a tally 0.
        let min = if counts.is_empty() { 0 } else { self.min };
        Tally { counts, min, max: self.max }
    }

    /// Resets all counters.
    pub fn clear(&mut self) {
        // Without values, the minimum is the largest possible duration. Filling the counters costs more than this check.
        let is_empty = self.min == u64::MAX && self.max == 0;
        if is_empty {
            return;
        }
        self.min = u64::MAX;
        self.max = 0;
        if let Some(counts) = &mut self.counts {
            counts.fill(0);
        }
    }
}

/// Bucket counts in compact form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Non-empty buckets in order.
    counts: Vec<BucketCount>,
    /// 0 without values.
    min: u64,
    max: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BucketCount {
    bucket: u16,
    count: u32,
}

impl Tally {
    /// Adds a duration in nanoseconds `times` times.
    pub fn record(&mut self, ns: u64, times: u32) {
        self.min = if self.counts.is_empty() { ns } else { self.min.min(ns) };
        self.add_to_bucket(bucket_of(ns) as u16, times);
        self.max = self.max.max(ns);
    }

    /// Adds to the count of a bucket, whose entry is inserted if it has none.
    fn add_to_bucket(&mut self, bucket: u16, times: u32) {
        match self.counts.binary_search_by_key(&bucket, |known| known.bucket) {
            Ok(index) => {
                let known = &mut self.counts[index];
                known.count = known.count.saturating_add(times);
            }
            // A tally has few distinct buckets, so an ordered list is short.
            Err(index) => self.counts.insert(index, BucketCount { bucket, count: times }),
        }
    }

    /// Number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|known| u64::from(known.count)).sum()
    }

    /// The exact maximum; `None` without values.
    pub fn max(&self) -> Option<u64> {
        (!self.counts.is_empty()).then_some(self.max)
    }

    /// Value of `quantile` (0 to 1), in nanoseconds; `None` without values. The smallest and the largest value are exact. Others are the
    /// middle of their bucket, which is accurate to 6 %.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        let count = self.count();
        // Position of the value from the smallest, which has the rank 1.
        let rank = super::rank_of(quantile, count)?;
        if rank == count {
            return Some(self.max);
        }
        if rank == 1 {
            return Some(self.min);
        }
        let mut counted = 0;
        for &BucketCount { bucket, count } in &self.counts {
            counted += u64::from(count);
            if counted >= rank {
                let BucketBounds { min_ns, end_ns } = bounds_of_bucket(bucket.into());
                let middle_ns = min_ns + (end_ns - min_ns) / 2;
                // The middle of the first or the last bucket may lie beyond all values.
                return Some(middle_ns.clamp(self.min, self.max));
            }
        }
        None
    }

    /// For each of the rising `bounds`, the number of values below it. A value within an eighth of a bound may count on either side.
    pub fn cumulative_counts(&self, bounds: &[u64]) -> Vec<u64> {
        let mut counted = 0;
        let mut remaining_buckets = self.counts.iter().peekable();
        let mut counts_below = Vec::with_capacity(bounds.len());
        for &bound in bounds {
            // The bounds and the buckets rise, so each bound goes on counting where the one before it stopped.
            while let Some(known) = remaining_buckets.next_if(|known| min_ns_of_bucket(known.bucket.into()) < bound) {
                counted += u64::from(known.count);
            }
            counts_below.push(counted);
        }
        counts_below
    }

    /// Adds the counts of another tally.
    pub fn add(&mut self, other: &Self) {
        // The minimum and maximum of a tally without values mean nothing.
        if other.counts.is_empty() {
            return;
        }
        self.min = if self.counts.is_empty() { other.min } else { self.min.min(other.min) };
        for &BucketCount { bucket, count } in &other.counts {
            self.add_to_bucket(bucket, count);
        }
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
        buckets.to_tally()
    }

    proptest! {
        #[test]
        fn every_value_falls_into_its_bucket(ns in 0_u64..4_000_000_000_000) {
            let BucketBounds { min_ns: min, end_ns: beyond } = bounds_of_bucket(bucket_of(ns));
            prop_assert!(min <= ns);
            prop_assert!(ns < beyond || bucket_of(ns) == BUCKETS - 1);
            prop_assert!(beyond - min <= 1.max(min / 8));
        }

        #[test]
        fn quantiles_lie_between_the_extremes(values in prop::collection::vec(any::<u64>(), 1..150), quantile in 0.0..=1.0_f64) {
            let tally = tally(&values);
            let found = tally.quantile(quantile).expect("values");
            prop_assert!(values.iter().min() <= Some(&found) && Some(&found) <= values.iter().max());
            prop_assert_eq!((tally.quantile(0.0), tally.quantile(1.0)), (values.iter().min().copied(), tally.max()));
            if values.len() < 100 {
                prop_assert_eq!(tally.quantile(0.99), tally.max());
            }
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
        assert_eq!(buckets.to_tally(), Tally::default());
    }
}
