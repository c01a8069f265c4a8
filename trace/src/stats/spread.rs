//! Summary of a distribution.

use serde::{Deserialize, Serialize};

use super::{Distribution, Tally};
use crate::clock::MonoNs;

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
    pub fn of(values: &Distribution) -> Option<Self> {
        Self::new(values.count(), values.max()?, |q| values.quantile(q))
    }

    /// Summary of a tally, with quantiles accurate to 6 %; `None` without values.
    pub fn of_tally(values: &Tally) -> Option<Self> {
        Self::new(values.count(), values.max()?, |q| values.quantile(q))
    }

    /// Summary of the last ten seconds; `None` without values.
    pub fn recent(values: &Distribution, now: MonoNs) -> Option<Self> {
        let window = values.recent(now);
        if window.is_empty() {
            return None;
        }
        // The window has two-digit precision, so its upper bounds are clamped to the true maximum.
        let max = values.max()?;
        let quantile = |q| Some(window.value_at_quantile(q).min(max));
        Self::new(window.len(), window.max().min(max), quantile)
    }

    fn new(count: u64, max: u64, quantile: impl Fn(f64) -> Option<u64>) -> Option<Self> {
        let (p50, p90, p99) = (quantile(0.5)?, quantile(0.9)?, quantile(0.99)?);
        Some(Self {
            count,
            p50,
            p90,
            p99,
            max,
        })
    }
}
