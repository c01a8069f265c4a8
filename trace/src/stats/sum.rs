//! Count and sum of durations, over the run and over the window of current figures.

use super::window::{RunSeconds, WINDOW_SECONDS};
use crate::clock::MonoNs;

/// The current second and those before it in the window.
const SLICES: usize = WINDOW_SECONDS as usize;

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

/// Values of the seconds of the window.
#[derive(Clone, Debug, Default)]
pub(super) struct Slices<T> {
    values: [T; SLICES],
    /// Number of the second in each value.
    seconds_of_values: [u64; SLICES],
    seconds: RunSeconds,
}

impl<T: Default> Slices<T> {
    pub(super) fn with_seconds(seconds: RunSeconds) -> Self {
        Self { seconds, ..Self::default() }
    }

    /// Value of the second that contains `at`. The values are a ring: two seconds that are a whole window apart share an entry. If the
    /// entry has the value of an older second, `clear` resets it. `None` if it has the value of a newer second, which must stay.
    pub(super) fn slice_of_second_at(&mut self, at: MonoNs, clear: impl FnOnce(&mut T)) -> Option<&mut T> {
        let second = self.seconds.number_at(at);
        let index = (second % SLICES as u64) as usize;
        let value = &mut self.values[index];
        let second_of_value = &mut self.seconds_of_values[index];
        let has_newer_second = *second_of_value > second;
        if has_newer_second {
            return None;
        }
        let has_older_second = *second_of_value < second;
        if has_older_second {
            *second_of_value = second;
            clear(value);
        }
        Some(value)
    }

    /// Values of the seconds in the window at `now`. A value that was never used has the second 0, which is in no window.
    pub(super) fn values_in_window(&self, now: MonoNs) -> impl Iterator<Item = &T> {
        let window = self.seconds.window(now);
        let numbered = self.values.iter().zip(self.seconds_of_values);
        numbered.filter(move |(_, number)| window.contains(*number)).map(|(value, _)| value)
    }
}

/// A [`DurationSum`] over the run and over the window of current figures.
#[derive(Clone, Debug, Default)]
pub struct WindowedSum {
    whole: DurationSum,
    slices: Slices<DurationSum>,
}

impl WindowedSum {
    /// Empty sum with a window of these seconds.
    pub(crate) fn with_seconds(seconds: RunSeconds) -> Self {
        Self { whole: DurationSum::default(), slices: Slices::with_seconds(seconds) }
    }

    /// Adds a duration that ended at `at`, `times` times.
    pub(crate) fn record_n(&mut self, at: MonoNs, ns: u64, times: u64) {
        let added = DurationSum { count: times, ns: u128::from(ns) * u128::from(times) };
        self.whole.add(added);
        if let Some(second) = self.slices.slice_of_second_at(at, |second| *second = DurationSum::default()) {
            second.add(added);
        }
    }

    /// Sum over the run.
    pub fn whole(&self) -> DurationSum {
        self.whole
    }

    /// Sum over the window at `now`.
    pub fn recent(&self, now: MonoNs) -> DurationSum {
        let mut sum = DurationSum::default();
        for second in self.slices.values_in_window(now) {
            sum.add(*second);
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
        let of = |sum: DurationSum| (sum.count, sum.ns, sum.mean());
        assert_eq!(of(sum.whole()), (62, 6_200, Some(100)));
        assert_eq!(of(sum.recent(MonoNs(29 * SECOND))), (20, 2_000, Some(100)));
        assert_eq!(of(sum.recent(MonoNs(30 * SECOND))), (18, 1_800, Some(100)), "nothing has ended in this second");
        assert_eq!(of(sum.recent(MonoNs(3 * SECOND))), (0, 0, None), "later values are not recent");
        assert_eq!(of(sum.recent(MonoNs(60 * SECOND))), (0, 0, None));
    }
}
