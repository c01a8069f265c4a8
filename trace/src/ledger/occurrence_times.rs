//! When a problem occurred.

use crate::clock::MonoNs;
use crate::stats::WINDOW_NS;

/// Maximum number of episodes kept. Beyond it, the two nearest become one.
const MAX_EPISODES: usize = 8;

/// Occurrences that follow each other within ten seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Episode {
    /// Start of the first occurrence.
    pub first: MonoNs,
    /// End of the last one.
    pub last: MonoNs,
}

/// Times of a problem's occurrences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OccurrenceTimes {
    /// In order of time, at least ten seconds apart.
    episodes: [Episode; MAX_EPISODES],
    count: usize,
    /// Number of episodes that were joined with the one before, because there are too many.
    joined: u64,
}

impl OccurrenceTimes {
    /// Start of the first occurrence; `None` before it.
    pub fn first(&self) -> Option<MonoNs> {
        self.episodes().first().map(|episode| episode.first)
    }

    /// End of the last occurrence; `None` before the first.
    pub fn last(&self) -> Option<MonoNs> {
        self.episodes().last().map(|episode| episode.last)
    }

    /// The episodes, oldest first: at most eight.
    pub fn episodes(&self) -> &[Episode] {
        &self.episodes[..self.count]
    }

    /// Number of episodes that are part of another one in [`Self::episodes`], because there were too many.
    pub fn joined(&self) -> u64 {
        self.joined
    }

    pub(crate) fn record(&mut self, at: MonoNs) {
        self.record_span(at, at);
    }

    /// Records an occurrence from `start` to `end`. Occurrences may be reported in any order.
    pub(crate) fn record_span(&mut self, start: MonoNs, end: MonoNs) {
        let mut new = Episode { first: start, last: end.max(start) };
        let before = self.episodes().partition_point(|episode| new.first.since(episode.last) >= WINDOW_NS);
        let near = self.episodes()[before..].iter().take_while(|episode| episode.first.since(new.last) < WINDOW_NS);
        let near = near.count();
        for episode in &self.episodes[before..before + near] {
            new.first = new.first.min(episode.first);
            new.last = new.last.max(episode.last);
        }
        if near > 0 {
            self.episodes[before] = new;
            self.episodes.copy_within(before + near..self.count, before + 1);
            self.count -= near - 1;
            return;
        }
        if self.count == MAX_EPISODES {
            self.insert_into_full(before, new);
            return;
        }
        self.episodes.copy_within(before..self.count, before + 1);
        self.episodes[before] = new;
        self.count += 1;
    }

    /// Inserts an episode at this index, and joins the two nearest ones.
    fn insert_into_full(&mut self, index: usize, new: Episode) {
        let mut all = [Episode::default(); MAX_EPISODES + 1];
        all[..index].copy_from_slice(&self.episodes[..index]);
        all[index] = new;
        all[index + 1..].copy_from_slice(&self.episodes[index..]);
        let pause_after = |index: &usize| all[index + 1].first.since(all[*index].last);
        let nearest = (0..MAX_EPISODES).min_by_key(pause_after).unwrap_or(0);
        all[nearest].last = all[nearest + 1].last;
        all.copy_within(nearest + 2.., nearest + 1);
        self.episodes.copy_from_slice(&all[..MAX_EPISODES]);
        self.joined += 1;
    }

    /// Adds the occurrences of another problem, or later ones of the same.
    pub(crate) fn merge(&mut self, other: &Self) {
        for episode in other.episodes() {
            self.record_span(episode.first, episode.last);
        }
        self.joined = self.joined.max(other.joined);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn times(seconds: &[u64]) -> OccurrenceTimes {
        let mut times = OccurrenceTimes::default();
        for second in seconds {
            times.record(MonoNs(second * SECOND));
        }
        times
    }

    fn in_seconds(times: &OccurrenceTimes) -> Vec<[u64; 2]> {
        times.episodes().iter().map(|episode| [episode.first.0 / SECOND, episode.last.0 / SECOND]).collect()
    }

    #[test]
    fn occurrences_ten_seconds_apart_are_two_episodes() {
        assert_eq!(in_seconds(&times(&[5, 9, 18, 28, 30])), [[5, 18], [28, 30]]);
        assert_eq!(in_seconds(&times(&[30, 5, 28, 9])), [[5, 9], [28, 30]]);
        assert_eq!(in_seconds(&times(&[5, 23, 14])), [[5, 23]], "a late report joins both");
        let none = OccurrenceTimes::default();
        assert_eq!((none.first(), none.last(), none.episodes().len()), (None, None, 0));
    }

    #[test]
    fn the_nearest_episodes_are_joined_when_there_are_too_many() {
        let many = times(&[0, 100, 120, 300, 400, 500, 600, 700, 800]);
        assert_eq!((many.episodes().len(), many.joined()), (MAX_EPISODES, 1));
        assert_eq!(in_seconds(&many)[1], [100, 120]);
        assert_eq!((many.first(), many.last()), (Some(MonoNs(0)), Some(MonoNs(800 * SECOND))));
    }

    proptest! {
        #[test]
        fn episodes_are_in_order_and_cover_all_occurrences(seconds in prop::collection::vec(0_u64..500, 1..60)) {
            let times = times(&seconds);
            let episodes = in_seconds(&times);
            prop_assert!(episodes.windows(2).all(|pair| pair[1][0] >= pair[0][1] + 10));
            for second in &seconds {
                prop_assert!(episodes.iter().any(|episode| episode[0] <= *second && *second <= episode[1]));
            }
            prop_assert_eq!(times.first(), seconds.iter().min().map(|second| MonoNs(second * SECOND)));
        }
    }
}
