//! Values of a metric, with distributions in fixed buckets.

use trace::ledger::LegLengths;
use trace::stats::Distribution;

use super::definition::SELF_LABELS_LEFT_OUT;
use super::{ALL, Definition};

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Count or number of bytes.
    Int(u64),
    /// Seconds or a share.
    Float(f64),
    /// Distribution.
    Histogram(Histogram),
}

/// Value of one series.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// Label values, in the order of [`Definition::labels`].
    pub labels: Vec<String>,
    /// Current value.
    pub value: Value,
}

/// A metric and its series.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Definition of the metric.
    pub definition: &'static Definition,
    /// Series with distinct labels.
    pub points: Vec<Point>,
}

/// Families under construction, in the order of [`ALL`].
pub(super) struct Families {
    families: Vec<Family>,
}

impl Families {
    /// All families, without points.
    pub(super) fn new() -> Self {
        let families = ALL.iter().map(|definition| Family { definition, points: Vec::new() });
        Self { families: families.collect() }
    }

    /// Adds a point to a metric. `labels` are the values of its labels, in their order.
    pub(super) fn put_value<const N: usize>(
        &mut self,
        definition: &'static Definition,
        labels: [&str; N],
        value: Value,
    ) {
        debug_assert_eq!(definition.labels.len(), N, "{}", definition.name);
        let family = self.families.iter_mut().find(|family| family.definition.name == definition.name);
        // Each metric is in `ALL`, so it has a family.
        debug_assert!(family.is_some(), "{} is not listed", definition.name);
        if let Some(family) = family {
            let labels = labels.map(str::to_owned).into();
            family.points.push(Point { labels, value });
        }
    }

    /// Adds an integer series, if the value is observable.
    pub(super) fn put_int<const N: usize>(
        &mut self,
        definition: &'static Definition,
        labels: [&str; N],
        value: impl Into<Option<u64>>,
    ) {
        if let Some(value) = value.into() {
            self.put_value(definition, labels, Value::Int(value));
        }
    }

    /// Adds a series in seconds, if the value is observable.
    pub(super) fn put_ns_as_seconds<const N: usize>(
        &mut self,
        definition: &'static Definition,
        labels: [&str; N],
        ns: impl Into<Option<u64>>,
    ) {
        if let Some(ns) = ns.into() {
            self.put_value(definition, labels, Value::Float(ns as f64 / NS_PER_SECOND));
        }
    }

    /// Adds a distribution.
    pub(super) fn put_histogram<const N: usize>(
        &mut self,
        definition: &'static Definition,
        labels: [&str; N],
        value: Histogram,
    ) {
        self.put_value(definition, labels, Value::Histogram(value));
    }

    /// Adds the number of values of a label that were left out because of its limit.
    pub(super) fn put_left_out(&mut self, label: &str, left_out: usize) {
        self.put_int(&SELF_LABELS_LEFT_OUT, [label], left_out as u64);
    }

    /// The families that have points.
    pub(super) fn into_non_empty(self) -> Vec<Family> {
        self.families.into_iter().filter(|family| !family.points.is_empty()).collect()
    }
}

/// Upper bounds of durations, in nanoseconds: 1, 2.5 and 5 of each decade from 100 us to 100 s.
const DURATIONS_NS: [u64; 19] = [
    100_000,
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
    2_500_000_000,
    5_000_000_000,
    10_000_000_000,
    25_000_000_000,
    50_000_000_000,
    100_000_000_000,
];

/// Divisor of nanoseconds for seconds.
const NS_PER_SECOND: f64 = 1e9;

/// Upper bounds of counts.
const COUNTS: [u64; 11] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];

/// Values counted in buckets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histogram {
    /// Number of values.
    pub count: u64,
    /// Sum of the values.
    pub sum: f64,
    /// Buckets with cumulative counts, in rising order.
    pub at_most: Vec<Bucket>,
}

/// A bucket of a histogram.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bucket {
    /// Upper bound.
    pub bound: f64,
    /// Number of values of at most the bound.
    pub values: u64,
}

/// Buckets with these upper bounds, divided by `unit`, and these cumulative counts.
fn cumulative_buckets(bounds: &[u64], unit: f64, counts: impl IntoIterator<Item = u64>) -> Vec<Bucket> {
    let bounds = bounds.iter().map(|&bound| bound as f64 / unit);
    bounds.zip(counts).map(|(bound, values)| Bucket { bound, values }).collect()
}

impl Histogram {
    /// Histogram of durations, in seconds.
    pub(super) fn of_durations(distribution: &Distribution) -> Self {
        Self::of_distribution(distribution, &DURATIONS_NS, NS_PER_SECOND)
    }

    /// Histogram of the lengths of a leg (a part of the time to first token), in seconds. A value within an eighth of a bound may count on
    /// either side.
    pub(super) fn of_leg(lengths: &LegLengths) -> Self {
        let counts = lengths.cumulative_counts(&DURATIONS_NS);
        Self {
            count: lengths.sum().count,
            sum: lengths.sum().ns as f64 / NS_PER_SECOND,
            at_most: cumulative_buckets(&DURATIONS_NS, NS_PER_SECOND, counts),
        }
    }

    /// Adds the values of a histogram with the same buckets.
    pub(super) fn add_histogram(&mut self, other: &Self) {
        self.count += other.count;
        self.sum += other.sum;
        // The first values of a default histogram, which has no buckets yet.
        if self.at_most.is_empty() {
            self.at_most.clone_from(&other.at_most);
            return;
        }
        for (own, added) in self.at_most.iter_mut().zip(&other.at_most) {
            own.values += added.values;
        }
    }

    /// Histogram of counts.
    pub(super) fn of_counts(distribution: &Distribution) -> Self {
        Self::of_distribution(distribution, &COUNTS, 1.0)
    }

    /// Histogram with buckets up to these bounds. Divides the bounds and the sum by `divisor`.
    fn of_distribution(distribution: &Distribution, bounds: &[u64], divisor: f64) -> Self {
        let counts = distribution.cumulative_counts(bounds);
        Self {
            count: distribution.count(),
            sum: distribution.sum() as f64 / divisor,
            at_most: cumulative_buckets(bounds, divisor, counts),
        }
    }

    /// Number of values in each bucket alone. The last bucket has no upper bound.
    pub fn counts_by_bucket(&self) -> impl Iterator<Item = u64> + '_ {
        // A bucket has the difference between two neighbouring cumulative counts. The last one reaches to the count of all values.
        let ends = self.at_most.iter().map(|bucket| bucket.values).chain([self.count]);
        let begins = [0].into_iter().chain(self.at_most.iter().map(|bucket| bucket.values));
        ends.zip(begins).map(|(end, begin)| end.saturating_sub(begin))
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn histogram_buckets_add_up_to_the_count() {
        let mut d = Distribution::default();
        for ms in [0, 1, 3, 40, 40, 700, 200_000] {
            d.record(ms * 1_000_000);
        }
        let h = Histogram::of_durations(&d);
        assert_eq!((h.count, h.counts_by_bucket().sum::<u64>()), (7, 7));
        assert!((h.sum - 200.784).abs() < 1e-9, "{}", h.sum);
        assert_eq!(h.at_most[7], Bucket { bound: 0.025, values: 3 });
        assert_eq!(h.at_most[8], Bucket { bound: 0.05, values: 5 });
        assert_eq!(h.counts_by_bucket().last(), Some(1), "200 s have no bound");
    }
}
