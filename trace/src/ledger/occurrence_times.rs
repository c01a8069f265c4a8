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

    /// Whether one of the episodes overlaps with this one.
    pub(crate) fn overlap(&self, other: &Episode) -> bool {
        self.episodes().iter().any(|episode| episode.first <= other.last && other.first <= episode.last)
    }

    /// Number of episodes that are part of another one in [`Self::episodes`], because there were too many.
    pub fn joined(&self) -> u64 {
        self.joined
    }

    pub(crate) fn record(&mut self, at: MonoNs) {
        self.record_span(at, at);
    }

    /// Records an occurrence from `start` to `end`, which joins the episodes less than [`WINDOW_NS`] away. Occurrences may be reported in
    /// any order.
    pub(crate) fn record_span(&mut self, start: MonoNs, end: MonoNs) {
        let new = Episode { first: start, last: end.max(start) };
        // Episodes are sorted by time. Those before `index` ended too early to join the new one, and those after the near ones begin too
        // late. (`since` is 0 for a later time.)
        let index = self.episodes().partition_point(|episode| new.first.since(episode.last) >= WINDOW_NS);
        let others = &self.episodes()[index..];
        let near_count = others.iter().take_while(|episode| episode.first.since(new.last) < WINDOW_NS).count();
        if near_count > 0 {
            self.join_near_episodes(index, near_count, new);
        } else if self.count == MAX_EPISODES {
            self.insert_into_full_list(index, new);
        } else {
            // The later ones move up by one.
            self.episodes.copy_within(index..self.count, index + 1);
            self.episodes[index] = new;
            self.count += 1;
        }
    }

    /// Joins the new episode and the `near_count` ones from this index on into one.
    fn join_near_episodes(&mut self, index: usize, near_count: usize, new_episode: Episode) {
        let mut joined = new_episode;
        for near in &self.episodes[index..index + near_count] {
            joined.first = joined.first.min(near.first);
            joined.last = joined.last.max(near.last);
        }
        self.episodes[index] = joined;
        // The later ones close the gap in the list.
        self.episodes.copy_within(index + near_count..self.count, index + 1);
        self.count -= near_count - 1;
    }

    /// Inserts an episode at this index of the full list. To make room, joins the two neighbours with the shortest pause between them.
    fn insert_into_full_list(&mut self, index: usize, new_episode: Episode) {
        // All episodes in order of time: one more than the list holds.
        let mut episodes = [Episode::default(); MAX_EPISODES + 1];
        episodes[..index].copy_from_slice(&self.episodes[..index]);
        episodes[index] = new_episode;
        episodes[index + 1..].copy_from_slice(&self.episodes[index..]);
        let pause_after = |earlier: usize| episodes[earlier + 1].first.since(episodes[earlier].last);
        let before_shortest_pause = (0..MAX_EPISODES).min_by_key(|&earlier| pause_after(earlier));
        // There is always one, because the list is not empty.
        let joined = before_shortest_pause.unwrap_or(0);
        let absorbed = joined + 1;
        episodes[joined].last = episodes[absorbed].last;
        // The episodes after the absorbed one move down by one.
        episodes.copy_within(absorbed + 1.., absorbed);
        self.episodes.copy_from_slice(&episodes[..MAX_EPISODES]);
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
