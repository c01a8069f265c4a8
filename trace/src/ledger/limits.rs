//! Memory limits of the ledger, with counts of how often each was reached.

use serde::{Deserialize, Serialize};

/// Bounds of the ledger's memory and patience. With the defaults the records stay below 128 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Requests remembered at once, those that wait for their last take or delivery included.
    pub live_rids: usize,
    /// Summaries kept of requests that are over; the oldest makes room, one that lost tokens or was slow after all others.
    pub finished_kept: usize,
    /// Bytes of rids, which clients choose: half for requests remembered, half for summaries; the same ones make room as for those.
    pub rid_bytes: usize,
    /// Hops; frames on further ones are not entered.
    pub hops: usize,
    /// Connections per hop; the one silent longest is evicted.
    pub lanes_per_hop: usize,
    /// Frames sent and not yet taken or forwarded, all hops together.
    pub pending_frames: usize,
    /// Chunks inside those frames.
    pub pending_chunks: usize,
    /// Takes that came before their sends, per hop.
    pub early_takes: usize,
    /// Chunks of one request sent and not yet delivered; beyond it neighbours are kept as one entry.
    pub outstanding_per_rid: usize,
    /// The same over all requests.
    pub outstanding: usize,
    /// Chunks of one request inside one process between two hops, with only one of receive and send known; the oldest is evicted.
    pub passing_per_rid: usize,
    /// The same over all requests.
    pub passing: usize,
    /// Ranges of lost tokens kept of one request, and of predicted ones; further ones are counted.
    pub lost_ranges_per_rid: usize,
    /// The same over all requests; those of requests that have been over longest make room.
    pub lost_ranges: usize,
    /// Requests that are over and lost tokens; the oldest makes room.
    pub lossy_kept: usize,
    /// Token ids kept of chunks not yet delivered and of lost ones, where ids were asked for.
    pub token_ids: usize,
    /// Threads of the engine.
    pub threads: usize,
    /// Functions per role that sampled stacks name; the rarest makes room.
    pub hot_functions: usize,
    /// CPU samples kept of each thread that takes frames: ten minutes of them.
    pub samples_per_taker: usize,
    /// Slots of time that the run is cut into; when they are full two become one, so that a slot is twice as long.
    pub series_slots: usize,
    /// A request without a chunk for this long is forgotten as an orphan, in nanoseconds.
    pub orphan_after_ns: u64,
    /// A finished request waits this long for its last takes and deliveries, in nanoseconds.
    pub settle_ns: u64,
    /// A settled request stays known this long, so that a repeated finish is no new request, in nanoseconds.
    pub linger_ns: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const SECOND: u64 = 1_000_000_000;
        Self {
            live_rids: 100_000,
            finished_kept: 20_000,
            rid_bytes: 32 << 20,
            hops: 1_024,
            lanes_per_hop: 1_024,
            pending_frames: 524_288,
            pending_chunks: 2_097_152,
            early_takes: 4_096,
            outstanding_per_rid: 4_096,
            outstanding: 1_048_576,
            passing_per_rid: 256,
            passing: 262_144,
            lost_ranges_per_rid: 256,
            lost_ranges: 262_144,
            lossy_kept: 10_000,
            token_ids: 1_048_576,
            threads: 4_096,
            hot_functions: 512,
            samples_per_taker: 6_000,
            series_slots: 600,
            orphan_after_ns: 600 * SECOND,
            settle_ns: 120 * SECOND,
            linger_ns: 2 * SECOND,
        }
    }
}

impl Limits {
    /// The lower of both bounds of memory; patience stays.
    #[must_use]
    pub fn at_most(self, most: Self) -> Self {
        Self {
            live_rids: self.live_rids.min(most.live_rids),
            finished_kept: self.finished_kept.min(most.finished_kept),
            rid_bytes: self.rid_bytes.min(most.rid_bytes),
            hops: self.hops.min(most.hops),
            lanes_per_hop: self.lanes_per_hop.min(most.lanes_per_hop),
            pending_frames: self.pending_frames.min(most.pending_frames),
            pending_chunks: self.pending_chunks.min(most.pending_chunks),
            early_takes: self.early_takes.min(most.early_takes),
            outstanding_per_rid: self.outstanding_per_rid.min(most.outstanding_per_rid),
            outstanding: self.outstanding.min(most.outstanding),
            passing_per_rid: self.passing_per_rid.min(most.passing_per_rid),
            passing: self.passing.min(most.passing),
            lost_ranges_per_rid: self.lost_ranges_per_rid.min(most.lost_ranges_per_rid),
            lost_ranges: self.lost_ranges.min(most.lost_ranges),
            lossy_kept: self.lossy_kept.min(most.lossy_kept),
            token_ids: self.token_ids.min(most.token_ids),
            threads: self.threads.min(most.threads),
            hot_functions: self.hot_functions.min(most.hot_functions),
            samples_per_taker: self.samples_per_taker.min(most.samples_per_taker),
            series_slots: self.series_slots.min(most.series_slots),
            ..self
        }
    }
}

/// One limit and how often it was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Reached {
    /// The limit's name, as in [`Limits`].
    pub name: &'static str,
    /// Its value.
    pub limit: usize,
    /// How often something had to be given up for it.
    pub times: u64,
}

/// How often each limit was reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReachedCounts {
    pub(crate) live_rids: u64,
    #[serde(default)]
    pub(crate) rid_bytes: u64,
    pub(crate) hops: u64,
    pub(crate) lanes: u64,
    pub(crate) pending_frames: u64,
    pub(crate) pending_chunks: u64,
    pub(crate) early_takes: u64,
    pub(crate) outstanding: u64,
    pub(crate) passing: u64,
    pub(crate) lost_ranges_per_rid: u64,
    pub(crate) lost_ranges: u64,
    pub(crate) lossy_kept: u64,
    pub(crate) token_ids: u64,
    pub(crate) threads: u64,
    pub(crate) hot_functions: u64,
}

impl ReachedCounts {
    /// Every limit that can cost knowledge, reached or not. Summaries of finished requests are not among them: the
    /// counters keep what a summary said.
    pub fn list(&self, limits: &Limits) -> [Reached; 15] {
        let of = |name, limit, times| Reached { name, limit, times };
        [
            of("live_rids", limits.live_rids, self.live_rids),
            of("rid_bytes", limits.rid_bytes, self.rid_bytes),
            of("hops", limits.hops, self.hops),
            of("lanes_per_hop", limits.lanes_per_hop, self.lanes),
            of("pending_frames", limits.pending_frames, self.pending_frames),
            of("pending_chunks", limits.pending_chunks, self.pending_chunks),
            of("early_takes", limits.early_takes, self.early_takes),
            of("outstanding", limits.outstanding, self.outstanding),
            of("passing", limits.passing, self.passing),
            of(
                "lost_ranges_per_rid",
                limits.lost_ranges_per_rid,
                self.lost_ranges_per_rid,
            ),
            of("lost_ranges", limits.lost_ranges, self.lost_ranges),
            of("lossy_kept", limits.lossy_kept, self.lossy_kept),
            of("token_ids", limits.token_ids, self.token_ids),
            of("threads", limits.threads, self.threads),
            of("hot_functions", limits.hot_functions, self.hot_functions),
        ]
    }
}
