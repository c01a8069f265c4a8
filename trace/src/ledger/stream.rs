//! One request on one hop.

use super::hop::HopRoles;
use super::stream_count::{CountStep, Evidence, ReportedCounts, StreamCount};
use crate::clock::{CompactNs, MonoNs};
use crate::event::{Chunk, IdColumn};
use crate::id::HopId;

/// State of one request on one hop. The field order matters: a request stores its first stream inline, so the fields before `first_at`
/// lie in the four cache lines that every chunk touches.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub struct Stream {
    /// Group of its hop.
    pub(crate) group: u32,
    /// The hop.
    pub hop: HopId,
    /// The roles at the hop's ends.
    pub(crate) ends: HopRoles,
    /// One of its frames waited at least [`super::LATE_NS`] before its receive.
    pub(crate) has_waited: bool,
    /// Tokens that did not reach this hop, by its own counts.
    pub(crate) missing_tokens: u32,
    retractions: u16,
    /// Connection of its last chunk: the lower 16 bits of the lane number.
    pub(crate) lane: u16,
    /// The hop's epoch when its last chunk was seen.
    pub(crate) epoch: u32,
    pub(crate) count: StreamCount,
    /// Chunks seen, without repeats of an earlier finish.
    pub chunks: u32,
    /// Sum of the counts of its chunks.
    pub(crate) sum_of_counts: u64,
    /// When its last chunk was seen.
    pub last_at: MonoNs,
    /// When its first chunk was seen.
    pub first_at: MonoNs,
    /// See [`Self::first_received`].
    first_received_ns: CompactNs,
}

impl Stream {
    pub(crate) fn new(hop: HopId, group: usize, ends: HopRoles, at: MonoNs) -> Self {
        Self { hop, group: group as u32, ends, first_at: at, last_at: at, ..Self::default() }
    }

    /// Counts a chunk of the stream, and checks its counts against the stream's. `claimed_ids`: which ids the engine's release is known to
    /// list. `epoch`: number that changes when observations of the hop were missed. `watched_frames`: number of frames observed in a row
    /// before on the chunk's connection; `None` while an evicted request may resume. The caller updates the times.
    pub(crate) fn count_and_check_chunk(
        &mut self,
        chunk: &Chunk<'_>,
        claimed_ids: IdColumn,
        epoch: u32,
        watched_frames: Option<u64>,
    ) -> CountStep {
        let retracted = self.update_retractions_and_check_growth(chunk);
        self.epoch = epoch;
        // In a format without counts, only a stream's first chunk has the prompt's length: nothing before it was missed.
        let is_certainly_first = claimed_ids == IdColumn::Uncounted && chunk.prompt_tokens.is_some();
        let reported = ReportedCounts {
            claim: claimed_ids,
            listed: chunk.listed,
            completion_tokens: chunk.completion_tokens,
            finish: chunk.finish,
            retracted,
            // Such a chunk counts as if the connection had been observed for ever.
            watched_frames: if is_certainly_first { Some(u64::MAX) } else { watched_frames },
        };
        self.count.count_and_check_chunk(reported, epoch)
    }

    /// Keeps the number of retractions that the chunk reports, if it has one. Returns whether the number has grown.
    #[inline]
    fn update_retractions_and_check_growth(&mut self, chunk: &Chunk<'_>) -> bool {
        // Capped, so the cast keeps the number.
        let retractions = chunk.retractions.map_or(self.retractions, |count| count.min(u32::from(u16::MAX)) as u16);
        let has_grown = retractions > self.retractions;
        self.retractions = retractions;
        has_grown
    }

    /// Keeps when its first chunk was received.
    pub(crate) fn keep_first_receive(&mut self, at: MonoNs) {
        self.first_received_ns = at.0.into();
    }

    /// When its first chunk was received; `None` if not observed, and before that.
    pub(crate) fn first_received(&self) -> Option<MonoNs> {
        self.first_received_ns.get().map(MonoNs)
    }

    /// Whether it belongs to the group at that index.
    pub(crate) fn is_on_group(&self, group: usize) -> bool {
        self.group as usize == group
    }

    /// Whether each chunk shows its own tokens, by the stream's own evidence or otherwise by the release's `claim`.
    pub(crate) fn shows_tokens(&self, claim: IdColumn) -> bool {
        self.count.meaning_of_ids(claim) == Evidence::Delta
    }

    /// Whether a finish has crossed the hop.
    pub fn is_finished(&self) -> bool {
        self.count.is_finished
    }

    /// Whether it was seen from its first token on.
    pub(crate) fn is_whole(&self) -> bool {
        self.count.is_whole
    }
}
