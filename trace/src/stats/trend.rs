//! Trend of a level, from its minimum in each second.

use std::collections::VecDeque;

use crate::clock::MonoNs;

const SECOND_NS: u64 = 1_000_000_000;
const MAX_SECONDS: usize = 60;

/// Level over the last minute.
#[derive(Clone, Debug, Default)]
pub struct Trend {
    samples: VecDeque<u64>,
    second: u64,
}

impl Trend {
    /// Records the level at `now`; keeps the minimum of each second. Even a receiver that keeps up has peaks with every batch, and sampled
    /// peaks can rise by chance.
    pub fn sample(&mut self, now: MonoNs, level: u64) {
        let second = now.0 / SECOND_NS;
        if second == self.second
            && let Some(lowest) = self.samples.back_mut()
        {
            *lowest = level.min(*lowest);
            return;
        }
        self.second = second;
        if self.samples.len() == MAX_SECONDS {
            self.samples.pop_front();
        }
        self.samples.push_back(level);
    }

    /// Samples, oldest first.
    pub fn samples(&self) -> impl Iterator<Item = u64> + '_ {
        self.samples.iter().copied()
    }

    /// Number of seconds in which the level never fell and rose in total, with its start and end value.
    pub(crate) fn rising_span(&self) -> Option<(usize, u64, u64)> {
        let mut newer = *self.samples.back()?;
        let top = newer;
        let mut seconds = 0;
        for &older in self.samples.iter().rev().skip(1) {
            // Backwards in time: a fall ends the span.
            if older > newer {
                break;
            }
            newer = older;
            seconds += 1;
        }
        (top > newer).then_some((seconds, newer, top))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trend(levels: &[u64]) -> Trend {
        let mut trend = Trend::default();
        for (second, &level) in levels.iter().enumerate() {
            trend.sample(MonoNs(second as u64 * SECOND_NS), level);
            trend.sample(MonoNs(second as u64 * SECOND_NS + 5), 999);
        }
        trend
    }

    #[test]
    fn peaks_between_returns_to_zero_are_not_a_rising_trend() {
        let mut trend = Trend::default();
        for second in 0..9 {
            let at = |ms: u64| MonoNs(second * SECOND_NS + ms * 1_000_000);
            trend.sample(at(0), 60 + second);
            trend.sample(at(100), 0);
        }
        assert_eq!(trend.rising_span(), None);
    }

    #[test]
    fn a_falling_level_is_not_a_rising_trend() {
        assert_eq!(trend(&[9, 1, 2, 2, 5]).rising_span(), Some((3, 1, 5)));
        assert_eq!(trend(&[1, 2, 3, 2]).rising_span(), None);
        assert_eq!(trend(&[4, 4, 4]).rising_span(), None);
        assert_eq!(trend(&[]).rising_span(), None);
    }
}
