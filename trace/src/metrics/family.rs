//! Values of a metric.

use super::{ALL, Definition, Histogram};

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
pub(super) struct Families(Vec<Family>);

impl Families {
    pub(super) fn new() -> Self {
        let empty = |definition: &&'static Definition| Family { definition, points: Vec::new() };
        Self(ALL.iter().map(empty).collect())
    }

    /// Adds a series.
    pub(super) fn put<const N: usize>(&mut self, of: &'static Definition, labels: [&str; N], value: Value) {
        debug_assert_eq!(of.labels.len(), N, "{}", of.name);
        let family = self.0.iter_mut().find(|f| f.definition.name == of.name);
        debug_assert!(family.is_some(), "{} is not listed", of.name);
        if let Some(family) = family {
            let labels = labels.map(str::to_owned).into();
            family.points.push(Point { labels, value });
        }
    }

    /// Adds an integer series, if the value is observable.
    pub(super) fn int<const N: usize>(
        &mut self,
        of: &'static Definition,
        labels: [&str; N],
        value: impl Into<Option<u64>>,
    ) {
        if let Some(value) = value.into() {
            self.put(of, labels, Value::Int(value));
        }
    }

    /// Adds a series in seconds, if the value is observable.
    pub(super) fn seconds<const N: usize>(
        &mut self,
        of: &'static Definition,
        labels: [&str; N],
        ns: impl Into<Option<u64>>,
    ) {
        if let Some(ns) = ns.into() {
            self.put(of, labels, Value::Float(ns as f64 / 1e9));
        }
    }

    pub(super) fn histogram<const N: usize>(&mut self, of: &'static Definition, labels: [&str; N], value: Histogram) {
        self.put(of, labels, Value::Histogram(value));
    }

    /// Returns the families that have series.
    pub(super) fn filled(self) -> Vec<Family> {
        self.0.into_iter().filter(|f| !f.points.is_empty()).collect()
    }
}
