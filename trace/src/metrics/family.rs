//! Values of a metric.

use super::{ALL, Definition, Histogram};

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of things that are counted, and of bytes.
    Int(u64),
    /// Of seconds and shares.
    Float(f64),
    /// Of a distribution.
    Histogram(Histogram),
}

/// One series' value.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// In the order of [`Definition::labels`].
    pub labels: Vec<String>,
    /// Now.
    pub value: Value,
}

/// A metric and its series.
#[derive(Clone, Debug, PartialEq)]
pub struct Family {
    /// Which metric.
    pub definition: &'static Definition,
    /// Each with other labels.
    pub points: Vec<Point>,
}

/// Families being filled, in the order of [`ALL`].
pub(super) struct Families(Vec<Family>);

impl Families {
    pub(super) fn new() -> Self {
        let empty = |definition: &&'static Definition| Family {
            definition,
            points: Vec::new(),
        };
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

    /// Adds a series of things, if they can be seen.
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

    /// Adds a series of seconds, if they can be seen.
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

    /// Those that have series.
    pub(super) fn filled(self) -> Vec<Family> {
        self.0.into_iter().filter(|f| !f.points.is_empty()).collect()
    }
}
