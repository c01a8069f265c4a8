//! Memory limits of the ledger, with counts of how often each was reached.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// Memory limits and timeouts of the ledger. With the defaults the records stay below 128 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Request records at a time, including those that wait for their last receive or delivery.
    pub live_rids: usize,
    /// Summaries kept of finished requests. The oldest is evicted first; requests that lost tokens or were slow are evicted last.
    pub finished_kept: usize,
    /// Bytes of rids, which clients choose: half for live requests, half for summaries. The eviction order is that of those two limits.
    pub rid_bytes: usize,
    /// Hops; frames on further ones are ignored.
    pub hops: usize,
    /// Connections per hop; the one silent longest is evicted.
    pub lanes_per_hop: usize,
    /// Frames sent and not yet received, over all hops.
    pub pending_frames: usize,
    /// Chunks inside those frames.
    pub pending_chunks: usize,
    /// Receives observed before their sends, per hop.
    pub early_receives: usize,
    /// Chunks of one request sent and not yet delivered; beyond this, neighbours share an entry.
    pub in_flight_per_rid: usize,
    /// The same over all requests.
    pub in_flight: usize,
    /// Chunks of one request inside one process between two hops, with only one of receive and send known; the oldest is evicted.
    pub in_process_per_rid: usize,
    /// The same over all requests.
    pub in_process: usize,
    /// Ranges of lost tokens kept per request, and of predicted ones; further ones are only counted.
    pub lost_ranges_per_rid: usize,
    /// The same over all requests; the oldest finished requests are evicted first.
    pub lost_ranges: usize,
    /// Finished requests that lost tokens; the oldest is evicted first.
    pub lossy_requests: usize,
    /// Token ids kept of undelivered and lost chunks, if ids are recorded.
    pub token_ids: usize,
    /// Threads of the engine.
    pub threads: usize,
    /// Functions per role in stack samples; the rarest is evicted first.
    pub stack_functions: usize,
    /// CPU samples kept of each thread that receives frames: ten minutes.
    pub samples_per_receiver: usize,
    /// Time slots of the run. When all are used, neighbours are merged, which doubles the length of a slot.
    pub series_slots: usize,
    /// A request without a chunk for this long is removed as an orphan, in nanoseconds.
    pub orphan_after_ns: u64,
    /// A finished request waits this long for its last receives and deliveries, in nanoseconds.
    pub settle_ns: u64,
    /// A settled request is kept this long, so that a repeated finish is recognised, in nanoseconds.
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
            early_receives: 4_096,
            in_flight_per_rid: 4_096,
            in_flight: 1_048_576,
            in_process_per_rid: 256,
            in_process: 262_144,
            lost_ranges_per_rid: 256,
            lost_ranges: 262_144,
            lossy_requests: 10_000,
            token_ids: 1_048_576,
            threads: 4_096,
            stack_functions: 512,
            samples_per_receiver: 6_000,
            series_slots: 600,
            orphan_after_ns: 600 * SECOND,
            settle_ns: 120 * SECOND,
            linger_ns: 2 * SECOND,
        }
    }
}

impl Limits {
    /// Returns the lower of both values of each memory limit. Timeouts are unchanged.
    #[must_use]
    pub fn at_most(mut self, other: Self) -> Self {
        for bound in BOUNDS {
            let lower = bound.get(self).min(bound.get(other));
            bound.set(&mut self, lower);
        }
        self.live_rids = self.live_rids.min(other.live_rids);
        self.finished_kept = self.finished_kept.min(other.finished_kept);
        self
    }
}

/// One memory limit.
#[derive(Debug)]
pub struct Bound {
    /// Field name in [`Limits`].
    pub name: &'static str,
    /// Name of the limited resource.
    pub about: &'static str,
    at: fn(&mut Limits) -> &mut usize,
}

macro_rules! bounds {
    ($($name:ident: $about:literal,)*) => {
        &[$(Bound { name: stringify!($name), about: $about, at: |limits| &mut limits.$name }),*]
    };
}

/// All memory limits except `live_rids` and `finished_kept`, which have their own flags in every command.
pub const BOUNDS: &[Bound] = bounds! {
    rid_bytes: "bytes of request ids kept in memory",
    hops: "hops",
    lanes_per_hop: "connections of one hop",
    pending_frames: "frames sent and not yet received",
    pending_chunks: "chunks in frames sent and not yet received",
    early_receives: "receives observed before their sends, of one hop",
    in_flight_per_rid: "chunks sent and not yet delivered, of one request",
    in_flight: "chunks sent and not yet delivered, of all requests",
    in_process_per_rid: "chunks inside one process between two hops, of one request",
    in_process: "chunks inside processes between two hops, of all requests",
    lost_ranges_per_rid: "ranges of lost tokens of one request",
    lost_ranges: "the same of all requests",
    lossy_requests: "finished requests with lost tokens",
    token_ids: "token ids kept of undelivered and lost chunks",
    threads: "threads of the engine",
    stack_functions: "sampled functions of one role",
    samples_per_receiver: "CPU samples of one receiving thread",
    series_slots: "slots of the run's time series",
};

impl Bound {
    /// Limit with that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        BOUNDS.iter().find(|bound| bound.name == name)
    }

    /// Value of the limit.
    pub fn get(&self, mut limits: Limits) -> usize {
        *(self.at)(&mut limits)
    }

    /// Sets the limit.
    pub fn set(&self, limits: &mut Limits, value: usize) {
        *(self.at)(limits) = value;
    }
}

/// Appends `item`. With `max` items in the queue, removes and returns the oldest first.
pub(super) fn push_bounded<T>(queue: &mut VecDeque<T>, item: T, max: usize) -> Option<T> {
    let evicted = if queue.len() < max { None } else { queue.pop_front() };
    queue.push_back(item);
    evicted
}

/// One limit and how often it was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Reached {
    /// Name of the limit, as in [`Limits`].
    pub name: &'static str,
    /// Its value.
    pub limit: usize,
    /// Number of times that something was evicted or refused.
    pub times: u64,
}

/// Names in [`BOUNDS`] without a count: reaching them loses nothing that is not counted at another limit.
const UNCOUNTED: [&str; 3] = ["in_process_per_rid", "samples_per_receiver", "series_slots"];

/// The limits, and how often each was reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CountedLimits {
    pub(crate) set: Limits,
    times: BTreeMap<Cow<'static, str>, u64>,
}

impl Deref for CountedLimits {
    type Target = Limits;

    fn deref(&self) -> &Limits {
        &self.set
    }
}

impl CountedLimits {
    /// Counts that the limit with this name was reached.
    pub(crate) fn reached(&mut self, name: &'static str) {
        debug_assert!(self.list().any(|limit| limit.name == name), "{name}");
        *self.times.entry(Cow::Borrowed(name)).or_default() += 1;
    }

    /// Whether a further chunk gets an entry of its own, if its request has `own` entries in flight and all requests together `all`. Counts
    /// the limit that is reached.
    pub(crate) fn has_room(&mut self, own: usize, all: usize) -> bool {
        let full = [("in_flight_per_rid", own >= self.in_flight_per_rid), ("in_flight", all >= self.in_flight)];
        full.iter().filter(|(_, full)| *full).for_each(|(name, _)| self.reached(name));
        full.iter().all(|(_, full)| !full)
    }

    /// All limits whose eviction loses information, reached or not. Evicting summaries of finished requests loses none: counters keep
    /// their totals.
    pub(crate) fn list(&self) -> impl Iterator<Item = Reached> {
        let bounds = BOUNDS.iter().map(|bound| (bound.name, bound.get(self.set)));
        let all = std::iter::once(("live_rids", self.live_rids)).chain(bounds);
        all.filter(|(name, _)| !UNCOUNTED.contains(name)).map(|(name, limit)| {
            let times = self.times.get(name).copied().unwrap_or(0);
            Reached { name, limit, times }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reached_limit_is_that_of_one_request_or_that_of_all() {
        let set = Limits { in_flight_per_rid: 2, in_flight: 4, ..Limits::default() };
        for (own, all, reached) in [(1, 3, None), (2, 3, Some("in_flight_per_rid")), (1, 4, Some("in_flight"))] {
            let mut limits = CountedLimits { set, ..CountedLimits::default() };
            assert_eq!(limits.has_room(own, all), reached.is_none());
            let counted = limits.list().filter(|limit| limit.times > 0);
            assert!(counted.map(|limit| (limit.name, limit.times)).eq(reached.map(|name| (name, 1))));
        }
    }

    #[test]
    fn setting_a_limit_changes_no_other() {
        for (place, bound) in BOUNDS.iter().enumerate() {
            let mut limits = Limits::default();
            bound.set(&mut limits, 7);
            let changed = BOUNDS.iter().enumerate().filter(|(_, b)| b.get(limits) != b.get(Limits::default()));
            assert_eq!(changed.map(|(at, _)| at).collect::<Vec<_>>(), [place], "{}", bound.name);
        }
    }
}
