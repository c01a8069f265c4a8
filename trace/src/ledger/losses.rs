//! Lost tokens of a request: ranges of positions in its output, their chunks and, if token ids are recorded, the ids.

use serde::{Deserialize, Serialize};

use super::limits::CountedLimits;
use crate::clock::MonoNs;
use crate::event::Finish;

/// Range of neighbouring lost tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostRange {
    /// First and last position in the output (1-based, as `completion_tokens` counts).
    pub tokens: [u32; 2],
    /// First and last of their chunks: 1-based numbers on the hop into the tokenizer, from the first observed chunk. `None` if chunks had
    /// to share an entry.
    pub chunks: Option<[u32; 2]>,
    /// One id per token; empty if not recorded, or dropped at the limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ids: Vec<i64>,
}

impl LostRange {
    fn first_token(&self) -> u32 {
        self.tokens[0]
    }

    fn last_token(&self) -> u32 {
        self.tokens[1]
    }

    fn contains_token(&self, position: u32) -> bool {
        self.first_token() <= position && position <= self.last_token()
    }

    fn token_count(&self) -> u64 {
        u64::from(self.last_token() - self.first_token()) + 1
    }

    /// Appends `next` to this range if its tokens and chunks directly follow, and either both ranges have token ids or neither has. Returns
    /// whether it was appended.
    fn extend_if_continued_by(&mut self, next: &Self) -> bool {
        let Some([first_chunk, last_chunk]) = self.chunks else { return false };
        let Some([next_first_chunk, next_last_chunk]) = next.chunks else { return false };
        let continues_tokens = self.last_token().checked_add(1) == Some(next.first_token());
        // Both ranges may be parts of one chunk.
        let is_in_same_chunk = next_first_chunk == last_chunk;
        let continues_chunks = is_in_same_chunk || last_chunk.checked_add(1) == Some(next_first_chunk);
        let has_ids_as_next = self.ids.is_empty() == next.ids.is_empty();
        if !continues_tokens || !continues_chunks || !has_ids_as_next {
            return false;
        }
        self.tokens[1] = next.last_token();
        self.chunks = Some([first_chunk, next_last_chunk]);
        self.ids.extend_from_slice(&next.ids);
        true
    }
}

/// Losses of one request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Time of the first loss.
    pub since: Option<MonoNs>,
    /// Time of the last loss.
    pub last_at: Option<MonoNs>,
    /// Ranges in the order found.
    pub ranges: Vec<LostRange>,
    /// Chunks lost, in part or completely.
    pub chunks: u64,
    /// Tokens lost.
    pub tokens: u64,
    /// Lost tokens in no range, because of the limit.
    pub unlisted: u64,
}

impl Losses {
    /// Whether the token at this position is lost, or may be one of the unlisted losses.
    pub(super) fn may_contain_token(&self, position: u32) -> bool {
        if self.ranges.iter().any(|range| range.contains_token(position)) {
            return true;
        }
        // Losses are found in order of position, so unlisted ones are behind the last listed range, if there is one.
        let last_listed = self.ranges.last().map_or(0, LostRange::last_token);
        self.unlisted > 0 && position > last_listed
    }

    /// Adds a lost range. It extends the last one if it continues it. Otherwise it is listed as a new one if `has_room`, and only counted
    /// (`unlisted`) if not. Returns whether it was listed as a new one.
    fn add_range_and_check_if_new(&mut self, range: LostRange, has_room: bool) -> bool {
        self.tokens += range.token_count();
        let has_extended_last = self.ranges.last_mut().is_some_and(|last| last.extend_if_continued_by(&range));
        if has_extended_last {
            return false;
        }
        if has_room {
            self.ranges.push(range);
        } else {
            self.unlisted += range.token_count();
        }
        has_room
    }

    fn id_count(&self) -> usize {
        self.ranges.iter().map(|range| range.ids.len()).sum()
    }
}

/// Memory use of losses and of undelivered chunks, over all requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossMemory {
    pub(crate) ranges: usize,
    /// Ids of lost tokens and of undelivered chunks.
    pub(crate) ids: usize,
    /// Entries of undelivered chunks.
    pub(crate) entries: usize,
}

impl LossMemory {
    /// Removes the token ids of a range for which there is no room. The positions of its tokens stay.
    fn clear_ids_if_over_limit(&self, range: &mut LostRange, limits: &mut CountedLimits) {
        if self.ids + range.ids.len() > limits.token_ids {
            range.ids.clear();
            limits.count_reached("token_ids");
        }
    }

    /// Adds a range of lost tokens, found at `at`, to a request's losses. At the limit of token ids, it is added without its ids; at a
    /// limit of ranges, only to the sums.
    pub(crate) fn add_lost_range_within_limits(
        &mut self,
        at: MonoNs,
        losses: &mut Losses,
        mut range: LostRange,
        limits: &mut CountedLimits,
    ) {
        losses.since.get_or_insert(at);
        losses.last_at = Some(at);
        self.clear_ids_if_over_limit(&mut range, limits);
        let id_count = range.ids.len();
        let is_total_full = self.ranges >= limits.lost_ranges;
        let is_request_full = losses.ranges.len() >= limits.lost_ranges_per_rid;
        let has_room = !is_total_full && !is_request_full;
        let unlisted_before = losses.unlisted;
        let is_new_range = losses.add_range_and_check_if_new(range, has_room);
        self.ranges += usize::from(is_new_range);
        // A range without room is unlisted, unless it extends the last one.
        let is_listed = losses.unlisted == unlisted_before;
        if is_listed {
            // Only a listed range keeps its ids.
            self.ids += id_count;
        } else if is_request_full {
            limits.count_reached("lost_ranges_per_rid");
        } else {
            limits.count_reached("lost_ranges");
        }
    }
}

/// A finished request that lost tokens, or was predicted to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lossy {
    /// The engine's request id.
    pub rid: Box<str>,
    /// When it was first seen.
    pub first_at: MonoNs,
    /// How it ended; `None` if it was removed unfinished.
    pub finish: Option<Finish>,
    /// Tokens sent by the scheduler.
    pub tokens_sent: u32,
    /// Tokens delivered; `None` if deliveries are not observed.
    pub tokens_delivered: Option<u32>,
    /// Losses proven by deliveries.
    pub confirmed: Option<Box<Losses>>,
    /// Losses predicted from chunks that share a wakeup and the known behaviour of the release.
    pub predicted: Option<Box<Losses>>,
}

impl Lossy {
    /// Number of listed ranges, predicted ones included.
    pub(crate) fn range_count(&self) -> usize {
        self.all_losses().map(|losses| losses.ranges.len()).sum()
    }

    /// Number of listed token ids, predicted ones included.
    pub(crate) fn id_count(&self) -> usize {
        self.all_losses().map(Losses::id_count).sum()
    }

    fn all_losses(&self) -> impl Iterator<Item = &Losses> {
        [self.confirmed.as_deref(), self.predicted.as_deref()].into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(tokens: [u32; 2], chunk: u32, ids: &[i64]) -> LostRange {
        LostRange { tokens, chunks: Some([chunk, chunk]), ids: ids.to_vec() }
    }

    #[test]
    fn adjacent_losses_merge_and_losses_over_the_limit_are_counted() {
        let mut losses = Losses::default();
        assert!(losses.add_range_and_check_if_new(range([2, 2], 2, &[12]), true));
        assert!(
            !losses.add_range_and_check_if_new(range([3, 5], 3, &[13, 14, 15]), true),
            "extends the previous range"
        );
        assert!(!losses.add_range_and_check_if_new(range([7, 8], 5, &[]), false));
        let whole = LostRange { tokens: [2, 5], chunks: Some([2, 3]), ids: vec![12, 13, 14, 15] };
        assert_eq!(&losses.ranges[..], &[whole][..]);
        assert_eq!(losses.tokens, 6);
        assert_eq!(losses.unlisted, 2);
    }

    #[test]
    fn ranges_with_and_without_ids_do_not_merge() {
        let mut losses = Losses::default();
        losses.add_range_and_check_if_new(range([1, 1], 1, &[]), true);
        losses.add_range_and_check_if_new(range([2, 2], 2, &[9]), true);
        assert_eq!(losses.ranges.len(), 2);
    }
}
