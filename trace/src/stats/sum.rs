//! Count and sum of durations, over the run and over the last ten whole seconds.

use super::WINDOW_NS;
use crate::clock::MonoNs;

const SLICE_NS: u64 = 1_000_000_000;
/// Seconds of the window.
const WINDOW_SLICES: u64 = WINDOW_NS / SLICE_NS;
/// The current second, and those of the window before it.
const SLICES: usize = 1 + WINDOW_SLICES as usize;

/// Count and sum of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DurationSum {
    /// Number of durations.
    pub count: u64,
    /// Sum in nanoseconds.
    pub ns: u128,
}

impl DurationSum {
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

/// Values of the current second and of the ten before it.
#[derive(Clone, Debug, Default)]
pub(super) struct Slices<T> {
    values: [T; SLICES],
    /// Number of the time slice in each value.
    slice_numbers: [u64; SLICES],
    /// Start of a second: others are whole seconds before or after it.
    origin: MonoNs,
}

impl<T> Slices<T> {
    /// Counts seconds from `origin`. Called before the first value.
    pub(super) fn count_from(&mut self, origin: MonoNs) {
        self.origin = origin;
    }

    /// Number of the second at `at`, the first being 1: a slice of number 0 has never held a value.
    fn number_at(&self, at: MonoNs) -> u64 {
        at.since(self.origin) / SLICE_NS + 1
    }

    /// Value of the slice at `at`, cleared if it held an older slice. `None` if it holds a newer one, which a late observation must not clear.
    pub(super) fn slice_at(&mut self, at: MonoNs, clear: impl FnOnce(&mut T)) -> Option<&mut T> {
        let slice = self.number_at(at);
        let index = (slice % SLICES as u64) as usize;
        let value = &mut self.values[index];
        let held = &mut self.slice_numbers[index];
        if *held < slice {
            *held = slice;
            clear(value);
        }
        (*held == slice).then_some(value)
    }

    /// Values of the ten seconds before the one at `now`: the current second is not over, so its count has no length to be divided by.
    pub(super) fn window(&self, now: MonoNs) -> impl Iterator<Item = &T> {
        let current = self.number_at(now);
        let oldest = current.saturating_sub(WINDOW_SLICES).max(1);
        self.held_from(oldest).filter(move |(_, held)| *held < current).map(|(value, _)| value)
    }

    /// Values of the same seconds, and of the current one.
    pub(super) fn window_and_current(&self, now: MonoNs) -> impl Iterator<Item = &T> {
        let oldest = self.number_at(now).saturating_sub(WINDOW_SLICES).max(1);
        self.held_from(oldest).map(|(value, _)| value)
    }

    /// Values of a second not before `oldest`, with its number.
    fn held_from(&self, oldest: u64) -> impl Iterator<Item = (&T, u64)> {
        self.values.iter().zip(self.slice_numbers).filter(move |(_, held)| *held >= oldest)
    }
}

/// A [`DurationSum`] over the run and over the last ten whole seconds.
#[derive(Clone, Debug, Default)]
pub struct WindowedSum {
    whole: DurationSum,
    slices: Slices<DurationSum>,
}

impl WindowedSum {
    /// Empty sum whose seconds are counted from `origin`.
    pub(crate) fn counting_from(origin: MonoNs) -> Self {
        let mut sum = Self::default();
        sum.slices.count_from(origin);
        sum
    }

    /// Adds a duration that ended at `at`, `times` times.
    pub(crate) fn record_n(&mut self, at: MonoNs, ns: u64, times: u64) {
        let more = DurationSum { count: times, ns: u128::from(ns) * u128::from(times) };
        self.whole.add(more);
        if let Some(slice) = self.slices.slice_at(at, |slice| *slice = DurationSum::default()) {
            slice.add(more);
        }
    }

    /// Sum over the run.
    pub fn whole(&self) -> DurationSum {
        self.whole
    }

    /// Sum over the ten whole seconds before the one at `now`.
    pub fn recent(&self, now: MonoNs) -> DurationSum {
        let mut sum = DurationSum::default();
        self.slices.window(now).for_each(|slice| sum.add(*slice));
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
        let of = |sum: DurationSum| (sum.count, sum.ns, sum.mean());
        assert_eq!(of(sum.whole()), (62, 6_200, Some(100)));
        // The second of `now` is not over.
        assert_eq!(of(sum.recent(MonoNs(29 * SECOND))), (20, 2_000, Some(100)));
        assert_eq!(of(sum.recent(MonoNs(3 * SECOND))), (0, 0, None), "later values are not recent");
        assert_eq!(of(sum.recent(MonoNs(60 * SECOND))), (0, 0, None));
    }
}
