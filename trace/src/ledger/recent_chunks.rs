//! Ring of recent events of chunks over all requests, from which a screen reads every chunk of one request.
//!
//! Events are appended without any lookup, and a request's chunks are collected on demand, which takes a pass over the ring. Exports cannot
//! read it: it forgets, and they need every request once. They have the timelines (`request_timeline`), of constant size per request.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::ops::RangeInclusive;

use super::frame::FrameContext;
use super::outcome::{ChunkOutcome, JudgedChunks};
use crate::clock::MonoNs;
use crate::event::{Chunk, Delivery};
use crate::id::{FrameId, HopId};

/// Default capacity for a screen, in events (12 MiB).
pub const DEFAULT_CHUNK_HISTORY: usize = 262_144;

/// One chunk on one hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRecord {
    /// Hop that it crossed.
    pub hop: HopId,
    /// Number within the request on this hop (1-based).
    pub number: u32,
    /// `None` if the send was not observed.
    pub sent: Option<MonoNs>,
    /// `None` if the receive was not observed, or not yet.
    pub received: Option<MonoNs>,
    /// Number of the wakeup that received the chunk.
    pub wakeup: Option<u32>,
    /// Listed tokens.
    pub tokens: u32,
    /// `completion_tokens` after this chunk; `None` if the frame does not contain it.
    pub end: Option<u32>,
    /// What became of it; `None` while it is in flight, and on hops whose receiver delivers nothing.
    pub outcome: Option<ChunkOutcome>,
    /// When that was known: the time of the delivery that carried or skipped it.
    pub judged_at: Option<MonoNs>,
    /// Number of the chunk in whose delivery it is, if it was merged.
    pub merged_into: Option<u32>,
}

/// One delivery to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryRecord {
    /// When it was accepted for the client.
    pub at: MonoNs,
    /// Number of tokens.
    pub tokens: u32,
    /// `completion_tokens` after it.
    pub end: Option<u32>,
}

/// Everything the ring holds about one request, in order of observation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHistory {
    /// Its chunks on all hops.
    pub chunks: Vec<ChunkRecord>,
    /// Its deliveries.
    pub deliveries: Vec<DeliveryRecord>,
    /// Start of the known part, if earlier events were overwritten.
    pub since: Option<MonoNs>,
}

/// An event of a chunk or of its frame.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: MonoNs,
    /// Hash of the rid. Unused for [`MomentKind::Received`].
    rid_hash: u64,
    /// Sequence number of the frame in its lane. For outcomes: number of chunks.
    seq: u64,
    lane: u32,
    /// Number of the chunk, or of the first one.
    number: u32,
    /// Listed or delivered tokens. For receives: the wakeup number, truncated to 32 bits.
    tokens: u32,
    /// `completion_tokens` after this event.
    end: u32,
    hop: HopId,
    kind: MomentKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MomentKind {
    Sent,
    /// A chunk in a frame whose send was not observed.
    Carried,
    /// A frame was received; `true` if its wakeup is known.
    Received(bool),
    Delivered,
    Judged(ChunkOutcome),
}

/// Marks an absent count in `Moment::end`; a count of generated tokens never gets this high.
const NO_COUNT: u32 = u32::MAX;

#[derive(Debug, Default)]
pub(super) struct RecentChunks {
    moments: VecDeque<Moment>,
    limit: usize,
    has_evicted: bool,
    hasher: RandomState,
}

impl RecentChunks {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// Keeps a chunk at its send, or at its receive if the send was not observed.
    pub(super) fn keep_chunk(&mut self, context: &FrameContext, chunk: &Chunk<'_>, number: u32) {
        // With a limit of 0, no history is kept.
        if self.limit == 0 {
            return;
        }
        let FrameId { hop, lane, seq } = context.frame;
        self.push_moment(Moment {
            at: context.at,
            rid_hash: self.hasher.hash_one(chunk.rid),
            seq,
            lane,
            number,
            tokens: chunk.listed.unwrap_or(0),
            end: chunk.completion_tokens.unwrap_or(NO_COUNT),
            hop,
            kind: if context.is_sent { MomentKind::Sent } else { MomentKind::Carried },
        });
    }

    /// Keeps the receive of a frame.
    pub(super) fn keep_receive(&mut self, at: MonoNs, id: FrameId, wakeup: Option<u64>) {
        // With a limit of 0, no history is kept.
        if self.limit == 0 {
            return;
        }
        let FrameId { hop, lane, seq } = id;
        // A receive has no tokens. Their field holds the number of the wakeup.
        let tokens = wakeup.unwrap_or(0) as u32;
        let has_wakeup = wakeup.is_some();
        let kind = MomentKind::Received(has_wakeup);
        self.push_moment(Moment { at, rid_hash: 0, seq, lane, number: 0, tokens, end: NO_COUNT, hop, kind });
    }

    /// Keeps a delivery.
    pub(super) fn keep_delivery(&mut self, at: MonoNs, delivery: &Delivery<'_>) {
        // With a limit of 0, no history is kept.
        if self.limit == 0 {
            return;
        }
        self.push_moment(Moment {
            at,
            rid_hash: self.hasher.hash_one(delivery.rid),
            // A delivery belongs to no frame and no hop.
            seq: 0,
            lane: 0,
            number: 0,
            tokens: delivery.tokens,
            end: delivery.completion_tokens.unwrap_or(NO_COUNT),
            hop: HopId(0),
            kind: MomentKind::Delivered,
        });
    }

    /// Keeps the outcome of chunks of one request.
    pub(super) fn keep_outcome(&mut self, at: MonoNs, rid: &str, chunks: JudgedChunks) {
        // With a limit of 0, no history is kept.
        if self.limit == 0 {
            return;
        }
        self.push_moment(Moment {
            at,
            rid_hash: self.hasher.hash_one(rid),
            // An outcome has no frame number. Its field holds the number of chunks.
            seq: chunks.count.into(),
            lane: 0,
            number: chunks.first,
            tokens: chunks.tokens_lost,
            // An outcome has no count. Its field holds the number of the chunk with which they were delivered.
            end: chunks.merged_into.unwrap_or(NO_COUNT),
            hop: chunks.hop,
            kind: MomentKind::Judged(chunks.outcome),
        });
    }

    /// Adds a moment. Beyond the limit, the oldest one is forgotten.
    fn push_moment(&mut self, moment: Moment) {
        if self.moments.len() >= self.limit {
            self.moments.pop_front();
            self.has_evicted = true;
        }
        self.moments.push_back(moment);
    }

    /// Reads the history of one request in three passes: its chunks and deliveries, the receives of its frames, the outcomes of its chunks.
    /// Each kept moment is an event of a chunk or of its frame.
    pub(super) fn history_of_request(&self, rid: &str) -> RequestHistory {
        let key = self.hasher.hash_one(rid);
        let mut collected = CollectedHistory::default();
        for moment in self.moments.iter().filter(|moment| moment.rid_hash == key) {
            collected.add_chunk_or_delivery(moment);
        }
        // A receive names a frame, not a request, so all of them are tried.
        for moment in &self.moments {
            collected.apply_if_receive(moment);
        }
        for moment in self.moments.iter().filter(|moment| moment.rid_hash == key) {
            collected.apply_if_outcome(moment);
        }
        let mut history = collected.history;
        // The first chunk is the oldest moment of a request. If that is still there, nothing of it was evicted.
        let is_whole = history.chunks.first().is_some_and(|chunk| chunk.number == 1);
        history.since = if is_whole { None } else { self.known_since() };
        history
    }
}

/// History of a request while it is read from the ring of moments.
#[derive(Default)]
struct CollectedHistory {
    history: RequestHistory,
    /// Indices of the chunks in each frame.
    by_frame: HashMap<FrameId, Vec<usize>>,
    /// Index of each chunk by its hop and its number there.
    by_number: HashMap<(HopId, u32), usize>,
}

impl CollectedHistory {
    /// Appends a chunk or a delivery of the request. Other moments are applied to the chunks later.
    fn add_chunk_or_delivery(&mut self, moment: &Moment) {
        match moment.kind {
            MomentKind::Sent | MomentKind::Carried => self.add_chunk(moment),
            MomentKind::Delivered => {
                let delivery = DeliveryRecord { at: moment.at, tokens: moment.tokens, end: moment.known_end() };
                self.history.deliveries.push(delivery);
            }
            MomentKind::Received(_) | MomentKind::Judged(_) => {}
        }
    }

    /// Appends a chunk of the request, so far with the time of its send only. That is unknown if only its frame's receive was observed.
    fn add_chunk(&mut self, moment: &Moment) {
        let chunk_index = self.history.chunks.len();
        self.by_frame.entry(moment.frame_id()).or_default().push(chunk_index);
        self.by_number.insert((moment.hop, moment.number), chunk_index);
        self.history.chunks.push(ChunkRecord {
            hop: moment.hop,
            number: moment.number,
            sent: (moment.kind == MomentKind::Sent).then_some(moment.at),
            received: None,
            wakeup: None,
            tokens: moment.tokens,
            end: moment.known_end(),
            outcome: None,
            judged_at: None,
            merged_into: None,
        });
    }

    /// Sets when the chunks in a frame were received, if the moment is a receive.
    fn apply_if_receive(&mut self, moment: &Moment) {
        let MomentKind::Received(has_wakeup) = moment.kind else { return };
        let Some(chunk_indices) = self.by_frame.get(&moment.frame_id()) else { return };
        for &chunk_index in chunk_indices {
            let chunk = &mut self.history.chunks[chunk_index];
            chunk.received = Some(moment.at);
            // A receive has the number of its wakeup in place of tokens.
            chunk.wakeup = has_wakeup.then_some(moment.tokens);
        }
    }

    /// Sets the outcome of the chunks that this moment judges, if it is an outcome. Their numbers are consecutive.
    fn apply_if_outcome(&mut self, moment: &Moment) {
        let MomentKind::Judged(outcome) = moment.kind else { return };
        // In an outcome, `seq` is the number of judged chunks.
        let end_number = moment.number.saturating_add(moment.seq as u32);
        for number in moment.number..end_number {
            // The send of a chunk may have been overwritten in the ring.
            let Some(&chunk_index) = self.by_number.get(&(moment.hop, number)) else { continue };
            let chunk = &mut self.history.chunks[chunk_index];
            chunk.outcome = Some(outcome);
            chunk.judged_at = Some(moment.at);
            // In an outcome, `end` is the number of the chunk with which they were delivered.
            chunk.merged_into = moment.known_end();
        }
    }
}

/// A wait on hops that is searched for.
#[derive(Clone, Debug)]
pub struct HopWait {
    /// Hops on which frames wait; their receives are observed.
    pub hops: Vec<HopId>,
    /// At some time of this span.
    pub during: RangeInclusive<MonoNs>,
    /// Minimum length of the whole wait.
    pub min_ns: u64,
}

impl HopWait {
    /// Whether the wait of a frame with these times is one that is searched for.
    fn includes(&self, sent: MonoNs, received: MonoNs) -> bool {
        let is_long_enough = received.since(sent) >= self.min_ns;
        let overlaps_span = sent <= *self.during.end() && received >= *self.during.start();
        is_long_enough && overlaps_span
    }
}

impl RecentChunks {
    pub(super) fn hash_rid(&self, rid: &str) -> u64 {
        self.hasher.hash_one(rid)
    }

    /// Time of the oldest kept event, if older ones were overwritten.
    pub(super) fn known_since(&self) -> Option<MonoNs> {
        self.moments.front().filter(|_| self.has_evicted).map(|moment| moment.at)
    }

    /// Finds the frames that waited as described by `wait`, and returns the hashes of the rids of their requests. A frame that was not
    /// received waits until `now`.
    pub(super) fn rid_hashes_that_waited(&self, wait: &HopWait, now: MonoNs) -> HashSet<u64> {
        // A receive may be reported before or after the send of its frame, so all receives are collected first.
        let mut receives = FrameReceives::default();
        for moment in &self.moments {
            if matches!(moment.kind, MomentKind::Received(_)) && wait.hops.contains(&moment.hop) {
                receives.add_receive(moment);
            }
        }
        let mut rids = HashSet::new();
        for sent in &self.moments {
            if sent.kind != MomentKind::Sent || !wait.hops.contains(&sent.hop) {
                continue;
            }
            if let Some(wait_end) = receives.end_of_wait(sent, now)
                && wait.includes(sent.at, wait_end)
            {
                rids.insert(sent.rid_hash);
            }
        }
        rids
    }
}

/// A connection of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LaneId {
    hop: HopId,
    lane: u32,
}

/// Receives of frames.
#[derive(Default)]
struct FrameReceives {
    at: HashMap<FrameId, MonoNs>,
    /// Highest number of a received frame on each connection.
    last: HashMap<LaneId, u64>,
}

impl FrameReceives {
    /// Adds the receive of a frame, and keeps the highest frame number received on its connection.
    fn add_receive(&mut self, received: &Moment) {
        self.at.insert(received.frame_id(), received.at);
        let last = self.last.entry(received.lane_id()).or_default();
        *last = received.seq.max(*last);
    }

    /// When the wait of a sent frame ended: at its receive, or `now` if it still waits. `None` if it was received at an unknown time: a
    /// connection keeps the order, so every frame before a received one was received, too.
    fn end_of_wait(&self, sent_moment: &Moment, now: MonoNs) -> Option<MonoNs> {
        if let Some(received) = self.at.get(&sent_moment.frame_id()) {
            return Some(*received);
        }
        let still_waits = self.last.get(&sent_moment.lane_id()).is_none_or(|last| *last < sent_moment.seq);
        still_waits.then_some(now)
    }
}

impl Moment {
    /// Its count of tokens, or the number in place of that; `None` if it has none.
    fn known_end(&self) -> Option<u32> {
        (self.end != NO_COUNT).then_some(self.end)
    }

    fn lane_id(&self) -> LaneId {
        LaneId { hop: self.hop, lane: self.lane }
    }

    fn frame_id(&self) -> FrameId {
        FrameId::new(self.hop, self.lane, self.seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_has_48_bytes() {
        assert_eq!(size_of::<Moment>(), 48);
    }
}
