//! Distributions, rates and trends in bounded memory, over the whole run and over the last ten seconds.

mod buckets;
mod distribution;
mod rate;
mod series;
mod sum;
mod trend;

pub use buckets::{Buckets, Tally};
pub(crate) use distribution::EqualDurations;
pub use distribution::{Distribution, Spread};
pub use rate::{PerSecond, Rate};
pub(crate) use series::{Series, SeriesSlot};
pub use sum::{DurationSum, WindowedSum};
pub use trend::Trend;

/// Length of the sliding window that live views show.
pub const WINDOW_NS: u64 = 10_000_000_000;
