//! Histograms of durations, with three significant digits.

use hdrhistogram::{Counter, Histogram};

use serde::{Deserialize, Serialize};

use super::{Tally, buckets};

/// Longer durations are recorded as one hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// Precision of the histograms, in decimal digits.
const SIGNIFICANT_DIGITS: u8 = 3;

/// A distribution of nanoseconds. Allocated at the first value.
#[derive(Debug, Default)]
pub struct Distribution {
    inner: Option<Box<Counted<u64>>>,
}

/// A histogram with three significant digits, and its exact extremes and sum.
#[derive(Debug)]
pub(super) struct Counted<C: Counter> {
    histogram: Histogram<C>,
    min: u64,
    max: u64,
    sum: u128,
}

impl<C: Counter> Default for Counted<C> {
    /// Creates a distribution without values. The first value replaces the minimum and the maximum.
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, SIGNIFICANT_DIGITS);
        let histogram = histogram.expect("the bounds are constants that the histogram accepts");
        Self { histogram, min: u64::MAX, max: 0, sum: 0 }
    }
}

impl<C: Counter> Counted<C> {
    /// Adds a duration `times` times. One beyond the longest counts in the last bucket.
    pub(super) fn record_n(&mut self, ns: u64, times: C) {
        self.histogram.saturating_record_n(ns, times);
        self.min = self.min.min(ns);
        self.max = self.max.max(ns);
        self.sum += u128::from(ns) * u128::from(times.as_u64());
    }

    /// Adds the values of another distribution.
    pub(super) fn add(&mut self, other: &Self) {
        // Adding histograms of equal bounds cannot fail, so there is no error to handle.
        let _ = self.histogram.add(&other.histogram);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.sum += other.sum;
    }

    /// Removes all values.
    pub(super) fn clear(&mut self) {
        // A reset writes the whole histogram, so an empty one is left as it is.
        if !self.histogram.is_empty() {
            self.histogram.reset();
        }
        self.min = u64::MAX;
        self.max = 0;
        self.sum = 0;
    }

    pub(super) fn count(&self) -> u64 {
        self.histogram.len()
    }

    pub(super) fn max(&self) -> u64 {
        self.max
    }

    /// Value of `quantile` (0 to 1); `None` without values.
    pub(super) fn quantile(&self, quantile: f64) -> Option<u64> {
        let count = self.count();
        // Position of the value from the smallest, which has the rank 1.
        let rank = super::rank_of(quantile, count)?;
        // The smallest and the largest value are known exactly.
        if rank == count {
            return Some(self.max);
        }
        if rank == 1 {
            return Some(self.min);
        }
        // The histogram returns a bound of the bucket, which may lie beyond all values.
        Some(self.histogram.value_at_quantile(quantile).clamp(self.min, self.max))
    }

    pub(super) fn spread(&self) -> Option<Spread> {
        Spread::new(self.count(), self.max, |quantile| self.quantile(quantile))
    }
}

impl Distribution {
    /// Adds a duration.
    pub fn record(&mut self, ns: u64) {
        self.record_n(ns, 1);
    }

    /// Adds a duration `times` times.
    pub(crate) fn record_n(&mut self, ns: u64, times: u64) {
        self.inner.get_or_insert_default().record_n(ns, times);
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.inner.as_ref().map_or(0, |inner| inner.count())
    }

    /// Value of `quantile` (0 to 1), in nanoseconds: accurate to a thousandth, and never outside the range of the values. `None` without
    /// any.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        self.inner.as_ref()?.quantile(quantile)
    }

    /// The exact maximum; `None` without values.
    pub fn max(&self) -> Option<u64> {
        self.inner.as_ref().map(|inner| inner.max)
    }

    /// The exact sum.
    pub fn sum(&self) -> u128 {
        self.inner.as_ref().map_or(0, |inner| inner.sum)
    }

    /// For each of the rising `bounds`, the number of values up to it. A value within a thousandth of a bound may count on either side.
    pub fn cumulative_counts(&self, bounds: &[u64]) -> Vec<u64> {
        // First, each count has only the values between its bound and the one before it.
        let mut counts = vec![0; bounds.len()];
        // Without a value, there is no histogram.
        for value in self.inner.iter().flat_map(|inner| inner.histogram.iter_recorded()) {
            let index_of_bound = bounds.partition_point(|&bound| bound < value.value_iterated_to());
            // Values above the last bound count nowhere.
            if let Some(count) = counts.get_mut(index_of_bound) {
                *count += value.count_since_last_iteration();
            }
        }
        // Then it also has the values up to all smaller bounds.
        let mut count_so_far = 0;
        for count in &mut counts {
            count_so_far += *count;
            *count = count_so_far;
        }
        counts
    }

    /// Number of values above `ns`.
    pub fn count_above(&self, ns: u64) -> u64 {
        let Some(inner) = &self.inner else { return 0 };
        inner.count() - inner.histogram.count_between(0, ns.min(LONGEST_NS))
    }

    /// Non-empty buckets in order, each as its start, its end (exclusive) and the number of its values. A bucket is at most an eighth of
    /// its start wide, so it has the values of several buckets of the histogram.
    pub fn bucket_bounds_and_counts(&self) -> Vec<[u64; 3]> {
        let mut rows: Vec<[u64; 3]> = Vec::new();
        for value in self.inner.iter().flat_map(|inner| inner.histogram.iter_recorded()) {
            let bucket = buckets::bucket_of(value.value_iterated_to());
            let bounds = buckets::bounds_of_bucket(bucket);
            let values = value.count_since_last_iteration();
            // The values rise, so those of one bucket follow each other.
            if let Some([start, _, count]) = rows.last_mut()
                && *start == bounds.min_ns
            {
                *count += values;
            } else {
                rows.push([bounds.min_ns, bounds.end_ns, values]);
            }
        }
        rows
    }
}

/// Summary of a distribution, in nanoseconds unless its field says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// Number of values.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Largest.
    pub max: u64,
}

impl Spread {
    /// Summary of the whole run; `None` without values.
    pub fn of_distribution(values: &Distribution) -> Option<Self> {
        Self::new(values.count(), values.max()?, |quantile| values.quantile(quantile))
    }

    /// Summary of a tally, with quantiles accurate to 6 %; `None` without values.
    pub fn of_tally(values: &Tally) -> Option<Self> {
        Self::new(values.count(), values.max()?, |quantile| values.quantile(quantile))
    }

    fn new(count: u64, max: u64, quantile: impl Fn(f64) -> Option<u64>) -> Option<Self> {
        Some(Self { count, p50: quantile(0.5)?, p90: quantile(0.9)?, p99: quantile(0.99)?, max })
    }
}

/// Pending duration with its count. All requests in a scheduler step continue from the previous step, so most chunks of a frame have the
/// same duration.
#[derive(Debug, Default)]
pub(crate) struct EqualDurations {
    ns: u64,
    times: u64,
}

impl EqualDurations {
    /// Records a duration `times` times. It stays pending while equal durations follow. Only when a different one follows, it is recorded
    /// in `distribution`, together with the equal ones.
    pub(crate) fn record_n(&mut self, distribution: &mut Distribution, ns: u64, times: u64) {
        if ns != self.ns {
            self.record_pending(distribution);
            self.ns = ns;
        }
        self.times += times;
    }

    /// Records the pending duration.
    pub(crate) fn record_pending(&mut self, distribution: &mut Distribution) {
        if self.times > 0 {
            distribution.record_n(self.ns, self.times);
            self.times = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantiles_have_three_digits_and_never_exceed_the_maximum() {
        let mut d = Distribution::default();
        assert_eq!(d.quantile(0.5), None);
        for ms in 1..=1000 {
            d.record(ms * 1_000_000);
        }
        let p99 = d.quantile(0.99).unwrap_or(0);
        assert!(p99.abs_diff(990_000_000) < 1_000_000, "{p99}");
        assert_eq!(d.quantile(1.0), Some(1_000_000_000));
        assert!(d.count_above(900_000_000).abs_diff(100) <= 1);
        let classes = d.bucket_bounds_and_counts();
        assert!(classes.windows(2).all(|w| w[0][1] <= w[1][0]), "{classes:?}");
        assert_eq!(classes.iter().map(|c| c[2]).sum::<u64>(), 1000);
    }

    #[test]
    fn cumulative_buckets_and_the_sum_are_exact() {
        let mut d = Distribution::default();
        assert_eq!((d.sum(), d.cumulative_counts(&[1, 2])), (0, vec![0, 0]));
        for frames in 1..=64 {
            d.record(frames);
        }
        d.record(2 * LONGEST_NS);
        assert_eq!(d.cumulative_counts(&[1, 2, 4, 64]), [1, 2, 4, 64], "small counts are exact");
        assert_eq!(d.sum(), 65 * 32 + u128::from(2 * LONGEST_NS));
    }

    proptest! {
        #[test]
        fn quantiles_lie_between_the_extremes(values in prop::collection::vec(any::<u64>(), 1..150), quantile in 0.0..=1.0_f64) {
            let mut all = Distribution::default();
            for &ns in &values {
                all.record(ns);
            }
            let found = all.quantile(quantile).expect("values");
            prop_assert!(values.iter().min() <= Some(&found) && Some(&found) <= values.iter().max());
            prop_assert_eq!(all.quantile(1.0), values.iter().max().copied());
            if values.len() < 100 {
                prop_assert_eq!(all.quantile(0.99), values.iter().max().copied());
            }
        }

        #[test]
        fn recording_a_run_equals_recording_each_value(values in prop::collection::vec((0_u64..4, 1_u64..3), 0..60)) {
            let mut run = EqualDurations::default();
            let (mut together, mut single) = (Distribution::default(), Distribution::default());
            for &(ns, times) in &values {
                run.record_n(&mut together, ns, times);
                (0..times).for_each(|_| single.record(ns));
            }
            run.record_pending(&mut together);
            let numbers = |d: &Distribution| (d.count(), d.sum(), d.max(), d.bucket_bounds_and_counts());
            prop_assert_eq!(numbers(&together), numbers(&single));
        }
    }
}
