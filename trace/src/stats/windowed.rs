//! A distribution over the run and over the window of current figures.

use super::distribution::Counted;
use super::sum::Slices;
use super::window::RunSeconds;
use super::{Distribution, Spread};
use crate::clock::MonoNs;

/// A distribution of nanoseconds whose last seconds are kept, too. Allocated at the first value.
#[derive(Debug, Default)]
pub struct WindowedDistribution {
    whole: Distribution,
    slices: Option<Box<Slices<Counted<u32>>>>,
    seconds: RunSeconds,
}

impl WindowedDistribution {
    /// Empty distribution with a window of these seconds.
    pub(crate) fn with_seconds(seconds: RunSeconds) -> Self {
        Self { seconds, ..Self::default() }
    }

    /// Adds a duration that ended at `at`.
    pub(crate) fn record(&mut self, at: MonoNs, ns: u64) {
        self.whole.record(ns);
        let seconds = self.seconds;
        let slices = self.slices.get_or_insert_with(|| Box::new(Slices::with_seconds(seconds)));
        if let Some(slice) = slices.slice_of_second_at(at, Counted::clear) {
            slice.record_n(ns, 1);
        }
    }

    /// All values of the run.
    pub fn whole(&self) -> &Distribution {
        &self.whole
    }

    /// Values of the window at `now`.
    pub(super) fn recent(&self, now: MonoNs) -> Counted<u32> {
        let mut values = Counted::default();
        if let Some(slices) = &self.slices {
            for second in slices.values_in_window(now) {
                values.add(second);
            }
        }
        values
    }

    /// Largest value of the window at `now`; `None` without values.
    pub(crate) fn recent_max(&self, now: MonoNs) -> Option<u64> {
        let slices = self.slices.iter().flat_map(|slices| slices.values_in_window(now));
        slices.filter(|slice| slice.count() > 0).map(Counted::max).max()
    }

    /// Value of `quantile` in the window at `now`; `None` without values.
    pub(crate) fn recent_quantile(&self, quantile: f64, now: MonoNs) -> Option<u64> {
        self.recent(now).quantile(quantile)
    }

    /// Summary of the window at `now`; `None` without values.
    pub fn recent_spread(&self, now: MonoNs) -> Option<Spread> {
        self.recent(now).spread()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_window_expires_old_values_and_the_total_keeps_them() {
        let mut d = WindowedDistribution::default();
        for second in 0..30 {
            d.record(MonoNs(second * SECOND), (second + 1) * 1000);
        }
        assert_eq!((d.whole().count(), d.whole().max()), (30, Some(30_000)));
        let recent = d.recent(MonoNs(29 * SECOND));
        assert_eq!((recent.count(), recent.quantile(0.0)), (10, Some(21_000)));
        assert_eq!(d.recent_spread(MonoNs(60 * SECOND)), None);
    }

    #[test]
    fn the_window_contains_the_second_that_is_not_over() {
        let seconds = RunSeconds::starting_at(MonoNs(700_000_000));
        let mut d = WindowedDistribution::with_seconds(seconds);
        for tenth in 0..30 {
            d.record(MonoNs(700_000_000 + tenth * SECOND / 10), 1 + tenth);
        }
        let count_at = |ns: u64| d.recent(MonoNs(700_000_000 + ns)).count();
        assert_eq!([0, 2 * SECOND, 3 * SECOND, 11 * SECOND, 12 * SECOND].map(count_at), [10, 30, 30, 10, 0]);
        assert_eq!(d.recent_max(MonoNs(4 * SECOND)), Some(30));
    }

    #[test]
    fn the_window_and_the_run_have_equal_quantiles_of_equal_values() {
        let mut d = WindowedDistribution::default();
        for n in 0..877_u64 {
            d.record(MonoNs(n * SECOND / 100), 12_000 + n * n * 125);
        }
        let now = MonoNs(877 * SECOND / 100);
        assert_eq!(d.recent_spread(now), Spread::of_distribution(d.whole()));
    }
}
