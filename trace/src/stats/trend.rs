//! Trend of a level, from its minimum in each second.

use std::collections::VecDeque;

use crate::clock::MonoNs;

const SECOND_NS: u64 = 1_000_000_000;
const MAX_SECONDS: usize = 60;

/// Level over the last minute.
#[derive(Clone, Debug, Default)]
pub struct Trend {
    samples: VecDeque<LowestLevel>,
    second: u64,
}

/// Lowest level of a second.
#[derive(Clone, Copy, Debug)]
struct LowestLevel {
    level: u64,
    /// When it was sampled last.
    at: MonoNs,
}

/// Time in which a level never fell and rose in total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RisingSpan {
    /// Number of seconds, those before the rise at its lowest level included.
    pub(crate) seconds: usize,
    /// Lowest level.
    pub(crate) from: u64,
    /// When it had this level last.
    pub(crate) since: MonoNs,
    /// Level in the last second.
    pub(crate) to: u64,
}

impl Trend {
    /// Records the level at `now`. Keeps only the lowest level of each second. Peaks say little: every batch causes one, even for a
    /// receiver that keeps up, and sampled peaks can rise by chance.
    pub fn record_level(&mut self, now: MonoNs, level: u64) {
        let second = now.0 / SECOND_NS;
        if second == self.second
            && let Some(lowest) = self.samples.back_mut()
        {
            // `<=` keeps the last of equal levels, because a rise begins when the level is at its lowest for the last time.
            if level <= lowest.level {
                *lowest = LowestLevel { level, at: now };
            }
            return;
        }
        // This is the first level of a new second.
        self.second = second;
        if self.samples.len() == MAX_SECONDS {
            self.samples.pop_front();
        }
        self.samples.push_back(LowestLevel { level, at: now });
    }

    /// The rise of the level over the latest seconds in which it never fell. The rise begins where the level was at its lowest for the last
    /// time. `None` if the level did not rise.
    pub(crate) fn rising_span(&self) -> Option<RisingSpan> {
        let newest = *self.samples.back()?;
        let mut start = newest;
        let mut seconds = 0;
        // Goes backwards in time, from the second before the newest one.
        for &older in self.samples.iter().rev().skip(1) {
            let has_fallen_since = older.level > start.level;
            if has_fallen_since {
                break;
            }
            // `<` keeps the last of equal levels as the start, because the level had not risen until then.
            if older.level < start.level {
                start = older;
            }
            seconds += 1;
        }
        let has_risen = newest.level > start.level;
        has_risen.then_some(RisingSpan { seconds, from: start.level, since: start.at, to: newest.level })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trend(levels: &[u64]) -> Trend {
        let mut trend = Trend::default();
        for (second, &level) in levels.iter().enumerate() {
            trend.record_level(MonoNs(second as u64 * SECOND_NS), level);
            trend.record_level(MonoNs(second as u64 * SECOND_NS + 5), 999);
        }
        trend
    }

    #[test]
    fn peaks_between_returns_to_zero_are_not_a_rising_trend() {
        let mut trend = Trend::default();
        for second in 0..9 {
            let at = |ms: u64| MonoNs(second * SECOND_NS + ms * 1_000_000);
            trend.record_level(at(0), 60 + second);
            trend.record_level(at(100), 0);
        }
        assert_eq!(trend.rising_span(), None);
    }

    #[test]
    fn a_falling_level_is_not_a_rising_trend() {
        let span = RisingSpan { seconds: 3, from: 1, since: MonoNs(SECOND_NS), to: 5 };
        assert_eq!(trend(&[9, 1, 2, 2, 5]).rising_span(), Some(span));
        assert_eq!(trend(&[1, 2, 3, 2]).rising_span(), None);
        assert_eq!(trend(&[4, 4, 4]).rising_span(), None);
        assert_eq!(trend(&[]).rising_span(), None);
    }

    #[test]
    fn a_rise_begins_when_the_level_is_lowest_for_the_last_time() {
        let mut flat = trend(&[7, 0, 0, 0, 40]);
        let span = RisingSpan { seconds: 3, from: 0, since: MonoNs(3 * SECOND_NS), to: 40 };
        assert_eq!(flat.rising_span(), Some(span));
        flat.record_level(MonoNs(4 * SECOND_NS + 9), 0);
        assert_eq!(flat.rising_span(), None);
        flat.record_level(MonoNs(5 * SECOND_NS), 80);
        assert_eq!(flat.rising_span().map(|span| span.since), Some(MonoNs(4 * SECOND_NS + 9)));
    }
}
