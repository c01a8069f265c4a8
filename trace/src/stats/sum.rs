//! Count and sum of durations, over the run and over the last ten seconds.

use serde::{Deserialize, Serialize};

use super::WINDOW_NS;
use crate::clock::MonoNs;

const SLICES: usize = 5;
const SLICE_NS: u64 = WINDOW_NS / SLICES as u64;

/// Count and sum of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// Number of durations.
    pub count: u64,
    /// Sum in nanoseconds.
    pub ns: u128,
}

impl Sum {
    /// Adds another sum.
    pub fn add(&mut self, other: Self) {
        self.count += other.count;
        self.ns += other.ns;
    }

    /// Mean in nanoseconds; `None` without durations.
    pub fn mean(&self) -> Option<u64> {
        let mean = self.ns.checked_div(self.count.into())?;
        Some(u64::try_from(mean).unwrap_or(u64::MAX))
    }
}

/// A [`Sum`] over the run and over the last ten seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct WindowedSum {
    whole: Sum,
    slices: [Sum; SLICES],
    /// Number of the time slice in each sum.
    held: [u64; SLICES],
}

impl WindowedSum {
    /// Adds a duration that ended at `at`, `times` times.
    pub fn record_n(&mut self, at: MonoNs, ns: u64, times: u64) {
        let more = Sum { count: times, ns: u128::from(ns) * u128::from(times) };
        self.whole.add(more);
        let slice = at.0 / SLICE_NS;
        let place = (slice % SLICES as u64) as usize;
        // An observation that arrives late must not clear a newer slice.
        if self.held[place] > slice {
            return;
        }
        if self.held[place] < slice {
            (self.held[place], self.slices[place]) = (slice, Sum::default());
        }
        self.slices[place].add(more);
    }

    /// Sum over the run.
    pub fn whole(&self) -> Sum {
        self.whole
    }

    /// Sum over the last ten seconds before `now`.
    pub fn recent(&self, now: MonoNs) -> Sum {
        let newest = now.0 / SLICE_NS;
        let mut sum = Sum::default();
        for (slice, held) in self.slices.iter().zip(self.held) {
            if newest.saturating_sub(held) < SLICES as u64 {
                sum.add(*slice);
            }
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_covers_ten_seconds_and_the_total_everything() {
        const SECOND: u64 = 1_000_000_000;
        let mut sum = WindowedSum::default();
        for second in 0..30 {
            sum.record_n(MonoNs(second * SECOND), 100, 2);
        }
        sum.record_n(MonoNs(0), 100, 2);
        let of = |sum: Sum| (sum.count, sum.ns, sum.mean());
        assert_eq!(of(sum.whole()), (62, 6_200, Some(100)));
        assert_eq!(of(sum.recent(MonoNs(29 * SECOND))), (20, 2_000, Some(100)));
        assert_eq!(of(sum.recent(MonoNs(60 * SECOND))), (0, 0, None));
    }
}
