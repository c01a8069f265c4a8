//! Count and sum of durations, over the run and over the last ten seconds.

use super::WINDOW_NS;
use crate::clock::MonoNs;

const SLICE_NS: u64 = 1_000_000_000;
/// The current second, and those of the window before it.
const SLICES: usize = 1 + (WINDOW_NS / SLICE_NS) as usize;

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

/// Values over the last ten seconds, in slices of one.
#[derive(Clone, Debug, Default)]
pub(super) struct Slices<T> {
    values: [T; SLICES],
    /// Number of the time slice in each value.
    slice_numbers: [u64; SLICES],
}

impl<T> Slices<T> {
    /// Value of the slice at `at`, cleared if it held an older slice. `None` if it holds a newer one, which a late observation must not clear.
    pub(super) fn slice_at(&mut self, at: MonoNs, clear: impl FnOnce(&mut T)) -> Option<&mut T> {
        let slice = at.0 / SLICE_NS;
        let index = (slice % SLICES as u64) as usize;
        let value = &mut self.values[index];
        let held = &mut self.slice_numbers[index];
        if *held < slice {
            *held = slice;
            clear(value);
        }
        (*held == slice).then_some(value)
    }

    /// Values of the current second and of the ten before it.
    pub(super) fn recent(&self, now: MonoNs) -> impl Iterator<Item = &T> {
        let newest = now.0 / SLICE_NS;
        let slices = self.values.iter().zip(self.slice_numbers);
        let recent = slices.filter(move |(_, held)| newest.saturating_sub(*held) < SLICES as u64);
        recent.map(|(value, _)| value)
    }
}

/// A [`DurationSum`] over the run and over the last ten seconds.
#[derive(Clone, Debug, Default)]
pub struct WindowedSum {
    whole: DurationSum,
    slices: Slices<DurationSum>,
}

impl WindowedSum {
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

    /// Sum over the last ten seconds before `now`.
    pub fn recent(&self, now: MonoNs) -> DurationSum {
        let mut sum = DurationSum::default();
        self.slices.recent(now).for_each(|slice| sum.add(*slice));
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
        assert_eq!(of(sum.recent(MonoNs(29 * SECOND))), (22, 2_200, Some(100)));
        assert_eq!(of(sum.recent(MonoNs(60 * SECOND))), (0, 0, None));
    }
}
