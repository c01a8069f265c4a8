//! Histograms of durations: the whole run with three significant digits, the last ten whole seconds with two.

use hdrhistogram::{Counter, Histogram};

use serde::{Deserialize, Serialize};

use super::sum::Slices;
use super::{Tally, buckets};
use crate::clock::MonoNs;

/// Longer durations are recorded as one hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// A distribution of nanoseconds. Allocated at the first value.
#[derive(Debug, Default)]
pub struct Distribution {
    inner: Option<Box<Inner>>,
    /// Start of a second of the window.
    seconds_from: MonoNs,
}

#[derive(Debug, Default)]
struct Inner {
    whole: Digits<3>,
    max: u64,
    sum: u128,
    slices: Slices<Digits<2, u32>>,
}

/// A histogram with this number of significant digits.
#[derive(Debug)]
struct Digits<const N: u8, C: Counter = u64>(Histogram<C>);

impl<const N: u8, C: Counter> Default for Digits<N, C> {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, LONGEST_NS, N);
        Self(histogram.expect("the bounds are constants that the histogram accepts"))
    }
}

impl Distribution {
    /// Counts the seconds of the window from `origin`. Called before the first value.
    pub(crate) fn count_seconds_from(&mut self, origin: MonoNs) {
        self.seconds_from = origin;
    }

    /// Adds a duration that ended at `at`.
    pub fn record(&mut self, at: MonoNs, ns: u64) {
        self.record_n(at, ns, 1);
    }

    /// Adds a duration `times` times.
    pub(crate) fn record_n(&mut self, at: MonoNs, ns: u64, times: u64) {
        let seconds_from = self.seconds_from;
        let inner = self.inner.get_or_insert_with(|| {
            let mut inner = Box::<Inner>::default();
            inner.slices.count_from(seconds_from);
            inner
        });
        inner.max = inner.max.max(ns);
        inner.sum += u128::from(ns) * u128::from(times);
        // A duration beyond the longest counts in the last bucket.
        inner.whole.0.saturating_record_n(ns, times);
        if let Some(slice) = inner.slices.slice_at(at, |slice| slice.0.reset()) {
            slice.0.saturating_record_n(ns, u32::try_from(times).unwrap_or(u32::MAX));
        }
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.inner.as_ref().map_or(0, |i| i.whole.0.len())
    }

    /// Value of `quantile` (0 to 1), in nanoseconds; `None` without values.
    pub fn quantile(&self, quantile: f64) -> Option<u64> {
        let inner = self.inner.as_ref()?;
        // A quantile is the upper bound of its bucket, which may exceed the maximum.
        Some(inner.whole.0.value_at_quantile(quantile).min(inner.max))
    }

    /// The exact maximum; `None` without values.
    pub fn max(&self) -> Option<u64> {
        self.inner.as_ref().map(|i| i.max)
    }

    /// The exact sum.
    pub fn sum(&self) -> u128 {
        self.inner.as_ref().map_or(0, |i| i.sum)
    }

    /// Cumulative counts for rising `bounds`. A value within a thousandth of a bound may count on either side.
    pub fn cumulative_counts(&self, bounds: &[u64]) -> Vec<u64> {
        let mut counts = vec![0; bounds.len()];
        for value in self.inner.iter().flat_map(|i| i.whole.0.iter_recorded()) {
            if let Some(count) = counts.get_mut(bounds.partition_point(|&bound| bound < value.value_iterated_to())) {
                *count += value.count_since_last_iteration();
            }
        }
        let mut below = 0;
        for count in &mut counts {
            below += *count;
            *count = below;
        }
        counts
    }

    /// Number of values above `ns`.
    pub fn count_above(&self, ns: u64) -> u64 {
        let Some(inner) = &self.inner else { return 0 };
        inner.whole.0.len() - inner.whole.0.count_between(0, ns.min(LONGEST_NS))
    }

    /// Non-empty buckets of about an eighth, in order: start, end (exclusive), count.
    pub fn bucket_counts(&self) -> Vec<[u64; 3]> {
        let mut counts: Vec<(usize, u64)> = Vec::new();
        for value in self.inner.iter().flat_map(|inner| inner.whole.0.iter_recorded()) {
            let bucket = buckets::bucket_of(value.value_iterated_to());
            match counts.last_mut() {
                Some((last, count)) if *last == bucket => *count += value.count_since_last_iteration(),
                _ => counts.push((bucket, value.count_since_last_iteration())),
            }
        }
        let with_bounds = counts.into_iter().map(|(bucket, count)| {
            let (from, to) = buckets::bounds_of_bucket(bucket);
            [from, to, count]
        });
        with_bounds.collect()
    }

    /// Histogram of the ten whole seconds before the one at `now`, for figures over a window of known length.
    fn window(&self, now: MonoNs) -> Histogram<u32> {
        sum_of_slices(self.inner.iter().flat_map(|inner| inner.slices.window(now)))
    }

    /// Histogram of the same seconds and of the current one, for detectors.
    pub(crate) fn recent(&self, now: MonoNs) -> Histogram<u32> {
        sum_of_slices(self.inner.iter().flat_map(|inner| inner.slices.window_and_current(now)))
    }

    /// Value of `quantile` in that histogram; `None` without values.
    pub(crate) fn recent_quantile(&self, quantile: f64, now: MonoNs) -> Option<u64> {
        let recent = self.recent(now);
        Some(recent.value_at_quantile(quantile).min(self.max()?)).filter(|_| !recent.is_empty())
    }
}

fn sum_of_slices<'d>(slices: impl Iterator<Item = &'d Digits<2, u32>>) -> Histogram<u32> {
    let Digits(mut sum) = Digits::<2, u32>::default();
    for slice in slices {
        // Adding histograms of equal bounds cannot fail.
        let _ = sum.add(&slice.0);
    }
    sum
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
        Self::new(values.count(), values.max()?, |q| values.quantile(q))
    }

    /// Summary of a tally, with quantiles accurate to 6 %; `None` without values.
    pub fn of_tally(values: &Tally) -> Option<Self> {
        Self::new(values.count(), values.max()?, |q| values.quantile(q))
    }

    /// Summary of the ten whole seconds before the one at `now`; `None` without values.
    pub fn recent(values: &Distribution, now: MonoNs) -> Option<Self> {
        let window = values.window(now);
        if window.is_empty() {
            return None;
        }
        // The window has two-digit precision, so its upper bounds are clamped to the true maximum.
        let max = values.max()?;
        Self::new(window.len(), window.max().min(max), |quantile| Some(window.value_at_quantile(quantile).min(max)))
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
    /// Records a duration `times` times, now or together with the following equal ones. All end at `at`.
    pub(crate) fn record_n(&mut self, to: &mut Distribution, at: MonoNs, ns: u64, times: u64) {
        // One step into the histogram for all equal durations.
        if ns != self.ns {
            self.record_pending(to, at);
            self.ns = ns;
        }
        self.times += times;
    }

    /// Records the pending duration.
    pub(crate) fn record_pending(&mut self, to: &mut Distribution, at: MonoNs) {
        if self.times > 0 {
            to.record_n(at, self.ns, self.times);
            self.times = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_window_expires_old_values_and_the_total_keeps_them() {
        let mut d = Distribution::default();
        for second in 0..30 {
            d.record(MonoNs(second * SECOND), (second + 1) * 1000);
        }
        assert_eq!((d.count(), d.max()), (30, Some(30_000)));
        let recent = d.recent(MonoNs(29 * SECOND));
        assert_eq!((recent.len(), d.window(MonoNs(29 * SECOND)).len()), (11, 10));
        assert!(recent.min() > 18_000, "{}", recent.min());
        assert_eq!(d.recent(MonoNs(60 * SECOND)).len(), 0);
    }

    #[test]
    fn the_seconds_of_a_window_begin_where_the_run_does() {
        let mut d = Distribution::default();
        d.count_seconds_from(MonoNs(700_000_000));
        for tenth in 0..30 {
            d.record(MonoNs(700_000_000 + tenth * SECOND / 10), 1);
        }
        let count_at = |ns: u64| d.window(MonoNs(700_000_000 + ns)).len();
        assert_eq!([0, SECOND - 1, SECOND, 3 * SECOND, 12 * SECOND, 13 * SECOND].map(count_at), [0, 0, 10, 30, 10, 0]);
    }

    #[test]
    fn quantiles_have_three_digits_and_never_exceed_the_maximum() {
        let mut d = Distribution::default();
        assert_eq!(d.quantile(0.5), None);
        for ms in 1..=1000 {
            d.record(MonoNs(0), ms * 1_000_000);
        }
        let p99 = d.quantile(0.99).unwrap_or(0);
        assert!(p99.abs_diff(990_000_000) < 1_000_000, "{p99}");
        assert_eq!(d.quantile(1.0), Some(1_000_000_000));
        assert!(d.count_above(900_000_000).abs_diff(100) <= 1);
        let classes = d.bucket_counts();
        assert!(classes.windows(2).all(|w| w[0][1] <= w[1][0]), "{classes:?}");
        assert_eq!(classes.iter().map(|c| c[2]).sum::<u64>(), 1000);
    }

    #[test]
    fn cumulative_buckets_and_the_sum_are_exact() {
        let mut d = Distribution::default();
        assert_eq!((d.sum(), d.cumulative_counts(&[1, 2])), (0, vec![0, 0]));
        for frames in 1..=64 {
            d.record(MonoNs(0), frames);
        }
        d.record(MonoNs(0), 2 * LONGEST_NS);
        assert_eq!(d.cumulative_counts(&[1, 2, 4, 64]), [1, 2, 4, 64], "small counts are exact");
        assert_eq!(d.sum(), 65 * 32 + u128::from(2 * LONGEST_NS));
    }

    proptest! {
        #[test]
        fn recording_a_run_equals_recording_each_value(values in prop::collection::vec((0_u64..4, 1_u64..3), 0..60)) {
            let (at, mut run) = (MonoNs(7), EqualDurations::default());
            let (mut together, mut single) = (Distribution::default(), Distribution::default());
            for &(ns, times) in &values {
                run.record_n(&mut together, at, ns, times);
                (0..times).for_each(|_| single.record(at, ns));
            }
            run.record_pending(&mut together, at);
            let numbers = |d: &Distribution| (d.count(), d.sum(), d.max(), d.bucket_counts(), d.recent(at).len());
            prop_assert_eq!(numbers(&together), numbers(&single));
        }
    }
}
