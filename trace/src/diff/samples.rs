//! A run's slots as samples of each measure.

use std::ops::Range;

use crate::report::{HopSeries, Series, SpreadSeries};

/// Slots to compare: from the first to the last with traffic, as long as new requests arrive. The first and last of these are left out
/// because load ramps up and down in them.
pub(super) fn loaded(series: &Series) -> Range<usize> {
    // After the last new request the remaining ones drain, and the load is no longer comparable.
    let begun = &series.requests.begun;
    let moved = |slot: usize| series.tokens.sent.get(slot).is_some_and(|&n| n > 0);
    let first = (0..series.len()).find(|&slot| moved(slot) || begun[slot] > 0);
    let last = (0..series.len()).rfind(|&slot| begun[slot] > 0).or((0..series.len()).rfind(|&slot| moved(slot)));
    match (first, last) {
        (Some(first), Some(last)) if first + 2 < last => first + 1..last,
        _ => 0..0,
    }
}

/// Values of the loaded slots that have one.
pub(super) fn per_slot(series: &Series, value: impl Fn(usize) -> Option<f64>) -> Vec<f64> {
    loaded(series).filter_map(value).filter(|v| v.is_finite()).collect()
}

/// Rate of `column` per second.
pub(super) fn per_second(series: &Series, column: &[u64]) -> Vec<f64> {
    per_slot(series, |slot| Some(*column.get(slot)? as f64 / series.seconds(slot)))
}

/// Ratio of `part` to `whole`, in slots where `whole` is not 0.
pub(super) fn ratio(series: &Series, part: &[u64], whole: &[u64]) -> Vec<f64> {
    per_slot(series, |slot| {
        let whole = *whole.get(slot)?;
        (whole > 0).then_some(*part.get(slot)? as f64 / whole as f64)
    })
}

/// Durations of a column, in slots that have one.
pub(super) fn times(series: &Series, column: &[Option<u64>]) -> Vec<f64> {
    per_slot(series, |slot| column.get(slot)?.map(|ns| ns as f64))
}

/// CPU nanoseconds of all receiving threads of `role` per token sent; empty if unknown.
pub(super) fn cpu_per_token(series: &Series, role: &str) -> Vec<f64> {
    per_slot(series, |slot| {
        let tokens = *series.tokens.sent.get(slot)?;
        let threads = series.threads.iter().filter(|t| t.receives && t.role == role);
        let on: Vec<f64> = threads.filter_map(|t| *t.on_cpu.get(slot)?).collect();
        (tokens > 0 && !on.is_empty()).then(|| on.iter().sum::<f64>() * series.seconds(slot) * 1e9 / tokens as f64)
    })
}

/// Share of time of the thread of `role` with the highest share.
pub(super) fn share(
    series: &Series,
    role: &str,
    of: fn(&crate::report::ThreadSeries) -> Option<&Vec<Option<f64>>>,
) -> Vec<f64> {
    per_slot(series, |slot| {
        let threads = series.threads.iter().filter(|t| t.receives && t.role == role);
        threads.filter_map(|t| *of(t)?.get(slot)?).reduce(f64::max)
    })
}

pub(super) fn hop<'a>(series: &'a Series, name: &str) -> Option<&'a HopSeries> {
    series.hops.iter().find(|h| h.name == name)
}

/// A quantile of `spread`.
pub(super) fn quantile(
    series: &Series,
    spread: Option<&SpreadSeries>,
    of: fn(&SpreadSeries) -> &Vec<Option<u64>>,
) -> Option<Vec<f64>> {
    spread.map(|s| times(series, of(s)))
}
