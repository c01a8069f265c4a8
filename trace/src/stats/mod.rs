//! Distributions and trends in bounded memory, over the whole run and over the last ten seconds.
//!
//! A percentile is the value with that rank, from the smallest: the value at rank 1 and at the last rank are exact, and others are accurate
//! to a thousandth in a [`Distribution`], over the run or over the last seconds, and to 6 % in a [`Tally`].

mod buckets;
mod distribution;
mod long;
mod series;
mod sum;
mod trend;
mod window;
mod windowed;

pub use buckets::{Buckets, Tally};
pub(crate) use distribution::EqualDurations;
pub use distribution::{Distribution, Spread};
pub use long::{LONG_CLASSES, LongDurations};
pub(crate) use series::{Series, SeriesSlot};
pub use sum::{DurationSum, WindowedSum};
pub use trend::Trend;
pub use window::{RecentWindow, RunSeconds};
pub use windowed::WindowedDistribution;

/// Rank of `quantile` (0 to 1) among `count` values, the smallest being 1; `None` without values.
fn rank_of(quantile: f64, count: u64) -> Option<u64> {
    (count > 0).then(|| ((count as f64 * quantile).ceil() as u64).clamp(1, count))
}

/// Longest window of current figures, and time after which a problem that does not occur any more is over.
pub const WINDOW_NS: u64 = 10_000_000_000;
