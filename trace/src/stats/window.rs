//! Seconds of a run, and the window of its current figures.

use super::WINDOW_NS;
use crate::clock::MonoNs;

const SECOND_NS: u64 = 1_000_000_000;
/// Seconds of the window, with the current one.
pub(super) const WINDOW_SECONDS: u64 = WINDOW_NS / SECOND_NS;
/// A rate over less time says little.
const MIN_RATE_NS: u64 = SECOND_NS / 10;

/// Numbers the seconds of a run. The slots of its time series are the same seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunSeconds {
    origin: MonoNs,
}

impl RunSeconds {
    /// The first second begins at `origin`.
    pub(crate) fn starting_at(origin: MonoNs) -> Self {
        Self { origin }
    }

    /// Number of the second at `at`, the first being 1.
    pub(super) fn number_at(self, at: MonoNs) -> u64 {
        at.since(self.origin) / SECOND_NS + 1
    }

    /// The window of the last seconds up to `now`.
    pub(crate) fn window(self, now: MonoNs) -> RecentWindow {
        // Seconds are numbered from 1.
        let last = self.number_at(now);
        // A run that has just begun has fewer seconds.
        let first = last.saturating_sub(WINDOW_SECONDS - 1).max(1);
        let ns_before_first = (first - 1).saturating_mul(SECOND_NS);
        let from = MonoNs(self.origin.0.saturating_add(ns_before_first));
        RecentWindow { first, last, from, to: now.max(self.origin) }
    }
}

/// Window of all current figures: the current second, as far as it has passed, and the nine before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecentWindow {
    /// Numbers of its seconds, the run's first being 1.
    first: u64,
    last: u64,
    /// Start of its first second.
    pub from: MonoNs,
    /// Now.
    pub to: MonoNs,
}

impl RecentWindow {
    /// Whether it has the second with this number.
    pub(super) fn contains(self, second: u64) -> bool {
        (self.first..=self.last).contains(&second)
    }

    /// Indices of its seconds in the time series of the run.
    pub fn slots(self) -> std::ops::Range<u64> {
        self.first.saturating_sub(1)..self.last
    }

    /// Its length: at most ten seconds.
    pub fn length_ns(self) -> u64 {
        self.to.since(self.from)
    }

    /// Mean per second of a sum over the window; `None` before a tenth of a second has passed.
    pub fn per_second(self, sum: u64) -> Option<f64> {
        let length_ns = self.length_ns();
        (length_ns >= MIN_RATE_NS).then(|| sum as f64 * SECOND_NS as f64 / length_ns as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_contains_now_and_is_at_most_ten_seconds_long() {
        let origin = MonoNs(700_000_000);
        let seconds = RunSeconds::starting_at(origin);
        let at = |ns: u64| seconds.window(MonoNs(origin.0 + ns));
        let facts = |window: RecentWindow| (window.slots().count(), window.slots(), window.length_ns());
        assert_eq!(facts(at(0)), (1, 0..1, 0));
        assert_eq!(facts(at(400_000_000)), (1, 0..1, 400_000_000));
        assert_eq!(facts(at(9_999_999_999)), (10, 0..10, 9_999_999_999));
        assert_eq!(facts(at(10 * SECOND_NS)), (10, 1..11, 9 * SECOND_NS));
        assert_eq!(at(1).per_second(7), None);
        assert_eq!(at(1_500_000_000).per_second(6), Some(4.0));
        assert_eq!(facts(seconds.window(MonoNs(3))), (1, 0..1, 0), "a time before the run");
    }
}
