//! What became of chunks: the one place where a delivery's effect on each chunk is recorded. Counts are sums of it.

use smallvec::SmallVec;

use crate::id::HopId;
use crate::words::names;

/// What became of a chunk that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkOutcome {
    /// Carried by a delivery: the first chunk in it, or any chunk in a response that does not stream.
    Delivered,
    /// Merged into another chunk's delivery.
    Merged,
    /// Proven dropped: its tokens are in no delivery.
    Dropped,
    /// Delivered or dropped, but unknown which.
    Unjudged(UnjudgedCause),
}

impl ChunkOutcome {
    /// Name in exports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Merged => "merged",
            Self::Dropped => "dropped",
            Self::Unjudged(_) => "unjudged",
        }
    }
}

/// Why the outcome of a chunk is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnjudgedCause {
    /// Chunks or deliveries before it were missed.
    MissedObservations,
    /// Deliveries of its hop are not observed yet, or no longer.
    UnobservedDeliveries,
    /// The response carries text only.
    TextOnly,
    /// Its message has no count of tokens.
    NoCount,
    /// Another live request has the same rid.
    SharedRid,
    /// The counts fit several outcomes.
    Ambiguous,
}

names! {
    UnjudgedCause {
        MissedObservations = "missed-observations",
        UnobservedDeliveries = "unobserved-deliveries",
        TextOnly = "text-only",
        NoCount = "no-count",
        SharedRid = "shared-rid",
        Ambiguous = "ambiguous",
    }
}

/// Neighbouring chunks of one request on one hop, with the same outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JudgedChunks {
    /// Hop into the process that delivers.
    pub hop: HopId,
    /// Number of the first chunk within the request on this hop (1-based).
    pub first: u32,
    /// Number of chunks.
    pub count: u32,
    /// Their outcome.
    pub outcome: ChunkOutcome,
    /// Tokens of theirs that are in no delivery.
    pub tokens_lost: u32,
    /// Number of the chunk in whose delivery they are, if they were merged. The ledger sets it when it records the outcome.
    pub merged_into: Option<u32>,
}

impl JudgedChunks {
    /// Number of the last chunk.
    fn last_number(&self) -> u32 {
        self.first.wrapping_add(self.count).wrapping_sub(1)
    }
}

/// Chunks of one request whose outcome one event shows, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JudgedList {
    ranges: SmallVec<[JudgedChunks; 4]>,
}

impl JudgedList {
    /// Appends chunks with one outcome. Extends the last range if they continue it.
    pub(crate) fn push_chunks(&mut self, chunks: JudgedChunks) {
        if chunks.count == 0 {
            return;
        }
        if let Some(last) = self.ranges.last_mut() {
            let has_same_outcome = last.hop == chunks.hop && last.outcome == chunks.outcome;
            let follows_last = last.first.wrapping_add(last.count) == chunks.first;
            if has_same_outcome && follows_last {
                last.count += chunks.count;
                last.tokens_lost = last.tokens_lost.saturating_add(chunks.tokens_lost);
                return;
            }
        }
        self.ranges.push(chunks);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The judged chunks, in order. Sets `merged_into` of each merged one: the number of the chunk with which it was delivered. That is the
    /// last delivered one before it.
    pub(crate) fn iter_with_carriers(&self) -> impl Iterator<Item = JudgedChunks> {
        // Updated by each delivered range, for the merged ones after it.
        let mut last_delivered: Option<JudgedChunks> = None;
        self.ranges.iter().map(move |&chunks| match chunks.outcome {
            ChunkOutcome::Delivered => {
                last_delivered = Some(chunks);
                chunks
            }
            ChunkOutcome::Merged => {
                // Numbers of chunks count on one hop only.
                let carrier = last_delivered.filter(|delivered| delivered.hop == chunks.hop);
                JudgedChunks { merged_into: carrier.map(|carrier| carrier.last_number()), ..chunks }
            }
            ChunkOutcome::Dropped | ChunkOutcome::Unjudged(_) => chunks,
        })
    }

    /// Changes the outcome of the first `max_chunks` merged chunks to delivered, because in their response, chunks share a delivery by
    /// design.
    pub(crate) fn mark_first_merged_as_delivered(&mut self, max_chunks: u64) {
        let mut remaining = u32::try_from(max_chunks).unwrap_or(u32::MAX);
        // The list is built again, because the change may split a range, or join one with a neighbour.
        for chunks in std::mem::take(&mut self.ranges) {
            let changed = if chunks.outcome == ChunkOutcome::Merged { remaining.min(chunks.count) } else { 0 };
            remaining -= changed;
            let delivered = JudgedChunks { count: changed, outcome: ChunkOutcome::Delivered, ..chunks };
            let unchanged =
                JudgedChunks { first: chunks.first.wrapping_add(changed), count: chunks.count - changed, ..chunks };
            // Either part may be empty, and is ignored then.
            self.push_chunks(delivered);
            self.push_chunks(unchanged);
        }
    }

    /// Number of chunks by outcome.
    pub(crate) fn count_outcomes(&self) -> OutcomeCounts {
        let mut counts = OutcomeCounts::default();
        for chunks in &self.ranges {
            let chunk_count = u64::from(chunks.count);
            match chunks.outcome {
                ChunkOutcome::Delivered => counts.delivered += chunk_count,
                ChunkOutcome::Merged => counts.merged += chunk_count,
                ChunkOutcome::Dropped => counts.dropped += chunk_count,
                ChunkOutcome::Unjudged(_) => counts.unjudged += chunk_count,
            }
            counts.tokens_lost += u64::from(chunks.tokens_lost);
        }
        counts
    }
}

/// Number of chunks by outcome. Every chunk is counted in exactly one field, or is still in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutcomeCounts {
    /// [`ChunkOutcome::Delivered`].
    pub delivered: u64,
    /// [`ChunkOutcome::Merged`].
    pub merged: u64,
    /// [`ChunkOutcome::Dropped`].
    pub dropped: u64,
    /// Tokens in no delivery though later ones were delivered.
    pub tokens_lost: u64,
    /// [`ChunkOutcome::Unjudged`].
    pub unjudged: u64,
}

impl OutcomeCounts {
    /// Adds the counts of others.
    pub(crate) fn add_counts(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.merged += other.merged;
        self.dropped += other.dropped;
        self.tokens_lost += other.tokens_lost;
        self.unjudged += other.unjudged;
    }

    /// Chunks with a known or unjudged outcome: all that are not in flight.
    pub fn chunks(&self) -> u64 {
        self.delivered + self.merged + self.dropped + self.unjudged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(first: u32, count: u32, outcome: ChunkOutcome) -> JudgedChunks {
        JudgedChunks { hop: HopId(0), first, count, outcome, tokens_lost: 0, merged_into: None }
    }

    #[test]
    fn merged_chunks_become_delivered_one_by_one() {
        use ChunkOutcome::{Delivered, Dropped, Merged};
        let mut list = JudgedList::default();
        for judged in [chunks(1, 2, Dropped), chunks(3, 1, Delivered), chunks(4, 1, Merged), chunks(5, 3, Merged)] {
            list.push_chunks(judged);
        }
        list.push_chunks(chunks(8, 0, Dropped));
        list.mark_first_merged_as_delivered(2);
        let merged = JudgedChunks { merged_into: Some(5), ..chunks(6, 2, Merged) };
        let expected = [chunks(1, 2, Dropped), chunks(3, 3, Delivered), merged];
        assert_eq!(list.iter_with_carriers().collect::<Vec<_>>(), expected);
        assert_eq!(
            list.count_outcomes(),
            OutcomeCounts { delivered: 3, merged: 2, dropped: 2, ..OutcomeCounts::default() }
        );
    }
}
