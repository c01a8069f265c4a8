//! Distributions and trends in bounded memory, over the whole run and over the last ten seconds.

mod buckets;
mod distribution;
mod series;
mod sum;
mod trend;

pub use buckets::{Buckets, Tally};
pub(crate) use distribution::EqualDurations;
pub use distribution::{Distribution, Spread};
pub(crate) use series::{Series, SeriesSlot};
pub use sum::{DurationSum, WindowedSum};
pub use trend::Trend;

/// Length of the window of current figures, which ends with the last whole second.
pub const WINDOW_NS: u64 = 10_000_000_000;
