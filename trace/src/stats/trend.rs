//! How a level moves: one sample a second.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::clock::MonoNs;

const SECOND_NS: u64 = 1_000_000_000;
const KEPT: usize = 60;

/// A level's last minute.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Trend {
    samples: VecDeque<u64>,
    second: u64,
}

impl Trend {
    /// Enters the level at `now`; more than one entry in a second keeps the first.
    pub fn sample(&mut self, now: MonoNs, level: u64) {
        let second = now.0 / SECOND_NS;
        if second == self.second && !self.samples.is_empty() {
            return;
        }
        self.second = second;
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back(level);
    }

    /// The samples, oldest first.
    pub fn samples(&self) -> impl Iterator<Item = u64> + '_ {
        self.samples.iter().copied()
    }

    /// For how many seconds the level has not fallen while rising in all, and from what it rose.
    pub fn rising(&self) -> Option<(usize, u64)> {
        let mut newer = *self.samples.back()?;
        let top = newer;
        let mut seconds = 0;
        for &older in self.samples.iter().rev().skip(1) {
            if older > newer {
                break;
            }
            newer = older;
            seconds += 1;
        }
        (top > newer).then_some((seconds, newer))
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
    fn only_a_level_that_rises_and_does_not_fall_is_rising() {
        assert_eq!(trend(&[9, 1, 2, 2, 5]).rising(), Some((3, 1)));
        assert_eq!(trend(&[1, 2, 3, 2]).rising(), None);
        assert_eq!(trend(&[4, 4, 4]).rising(), None);
        assert_eq!(trend(&[]).rising(), None);
    }
}
