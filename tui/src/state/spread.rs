//! Quantiles of distributions.

use trace::MonoNs;
use trace::stats::Distribution;

/// Summary of a distribution, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spread {
    pub(crate) count: u64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}

/// Quantiles over the whole run; `None` without samples.
pub(crate) fn whole(of: &Distribution) -> Option<Spread> {
    Some(Spread {
        count: of.count(),
        p50: of.quantile(0.5)?,
        p90: of.quantile(0.9)?,
        p99: of.quantile(0.99)?,
        max: of.max()?,
    })
}

/// Quantiles over the last ten seconds.
pub(crate) fn recent(of: &Distribution, now: MonoNs) -> Option<Spread> {
    let window = of.recent(now);
    if window.is_empty() {
        return None;
    }
    // The window has two-digit precision, so its upper bounds are clamped to the true maximum.
    let max = of.max()?;
    let at = |q| window.value_at_quantile(q).min(max);
    Some(Spread {
        count: window.len(),
        p50: at(0.5),
        p90: at(0.9),
        p99: at(0.99),
        max: window.max().min(max),
    })
}
