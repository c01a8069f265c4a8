//! Memory limits of the ledger, with counts of how often each was reached.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Deref;

use serde::{Deserialize, Serialize};

/// Defines the limits, each with its default and, if it is a [`Bound`], the name of the limited resource.
macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident: $type:ty = $default:expr $(, $about:literal)?;)*) => {
        /// Memory limits and timeouts of the ledger. With the defaults the records stay below 128 MiB.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Limits {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl Default for Limits {
            fn default() -> Self {
                Self { $($name: $default,)* }
            }
        }

        /// All memory limits except `live_rids` and `finished_kept`, which have their own flags in every command.
        pub const BOUNDS: &[Bound] =
            &[$($(Bound { name: stringify!($name), about: $about, at: |limits| &mut limits.$name },)?)*];
    };
}

limits! {
    /// Request records at a time, including those that wait for their last receive or delivery.
    live_rids: usize = 100_000;
    /// Summaries kept of finished requests. The oldest is evicted first; requests that lost tokens or were slow are evicted last.
    finished_kept: usize = 20_000;
    /// Bytes of rids, which clients choose: half for live requests, half for summaries. The eviction order is that of those two limits.
    rid_bytes: usize = 32 << 20, "bytes of request ids kept in memory";
    /// Hops; frames on further ones are ignored.
    hops: usize = 1_024, "hops";
    /// Connections per hop; the one silent longest is evicted.
    lanes_per_hop: usize = 1_024, "connections of one hop";
    /// Frames sent and not yet received, over all hops.
    pending_frames: usize = 524_288, "frames sent and not yet received";
    /// Chunks inside those frames.
    pending_chunks: usize = 2_097_152, "chunks in frames sent and not yet received";
    /// Requests sent to the scheduler of which no chunk was observed.
    dispatched_requests: usize = 65_536, "requests sent to the scheduler, without a chunk yet";
    /// Prefills with which others are compared, and of those not compared yet.
    prefills: usize = 4_096, "prefills with which others are compared";
    /// Requests with a message between the schedulers of a pair.
    pair_rooms: usize = 32_768, "requests with a message between a prefill and a decode server";
    /// Receives observed before their sends, per hop.
    early_receives: usize = 4_096, "receives observed before their sends, of one hop";
    /// Chunks of one request sent and not yet delivered; beyond this, neighbours share an entry.
    in_flight_per_rid: usize = 4_096, "chunks sent and not yet delivered, of one request";
    /// The same over all requests.
    in_flight: usize = 1_048_576, "chunks sent and not yet delivered, of all requests";
    /// Chunks of one request inside one process between two hops, with only one of receive and send known; the oldest is evicted.
    in_process_per_rid: usize = 256, "chunks inside one process between two hops, of one request";
    /// The same over all requests.
    in_process: usize = 262_144, "chunks inside processes between two hops, of all requests";
    /// Ranges of lost tokens kept per request, and of predicted ones; further ones are only counted.
    lost_ranges_per_rid: usize = 256, "ranges of lost tokens of one request";
    /// The same over all requests; the oldest finished requests are evicted first.
    lost_ranges: usize = 262_144, "the same of all requests";
    /// Finished requests that lost tokens; the oldest is evicted first.
    lossy_requests: usize = 10_000, "finished requests with lost tokens";
    /// Token ids kept of undelivered and lost chunks, if ids are recorded.
    token_ids: usize = 1_048_576, "token ids kept of undelivered and lost chunks";
    /// Threads of the engine.
    threads: usize = 4_096, "threads of the engine";
    /// Functions per role in stack samples; the rarest is evicted first.
    stack_functions: usize = 512, "sampled functions of one role";
    /// CPU samples kept of each thread that receives frames: ten minutes.
    samples_per_receiver: usize = 6_000, "CPU samples of one receiving thread";
    /// Time slots of the run. When all are used, neighbours are merged, which doubles the length of a slot.
    series_slots: usize = 600, "slots of the run's time series";
    /// Seconds at the end of the run whose slots are not merged: an hour. One takes 1 KiB with two hops and ten threads, and 7 KiB at the
    /// limits; each bucket of its durations adds 8 bytes.
    recent_seconds: usize = 3_600, "seconds of the run kept one by one";
    /// A request without a chunk for this long is removed as an orphan, in nanoseconds.
    orphan_after_ns: u64 = 600_000_000_000;
    /// A finished request waits this long for its last receives and deliveries, in nanoseconds.
    settle_ns: u64 = 120_000_000_000;
    /// A settled request is kept this long, so that a repeated finish is recognised, in nanoseconds.
    linger_ns: u64 = 2_000_000_000;
}

impl Limits {
    /// Returns the lower of both values of each memory limit. Timeouts are unchanged.
    #[must_use]
    pub fn lower_of(mut self, other: Self) -> Self {
        for bound in BOUNDS {
            let lower = bound.get(self).min(bound.get(other));
            bound.set(&mut self, lower);
        }
        // Limits without a description are not in `BOUNDS`.
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

impl Bound {
    /// Limit with that name.
    pub fn with_name(name: &str) -> Option<&'static Self> {
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
pub struct ReachedLimit {
    /// Name of the limit, as in [`Limits`].
    pub name: &'static str,
    /// Its value.
    pub limit: usize,
    /// Number of times that something was evicted or refused.
    pub times: u64,
}

impl ReachedLimit {
    /// Whether reaching it only shortens a list of details, while every total stays exact.
    pub(crate) fn keeps_totals(&self) -> bool {
        ["lost_ranges_per_rid", "lost_ranges", "lossy_requests", "token_ids", "stack_functions"].contains(&self.name)
    }
}

/// Names in [`BOUNDS`] without a count: reaching them loses nothing that is not counted at another limit.
const UNCOUNTED: [&str; 4] = ["in_process_per_rid", "samples_per_receiver", "series_slots", "recent_seconds"];

/// The limits, and how often each was reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CountedLimits {
    pub(crate) values: Limits,
    times_reached: BTreeMap<Cow<'static, str>, u64>,
}

impl Deref for CountedLimits {
    type Target = Limits;

    fn deref(&self) -> &Limits {
        &self.values
    }
}

impl CountedLimits {
    /// Counts that the limit with this name was reached.
    pub(crate) fn count_reached(&mut self, name: &'static str) {
        debug_assert!(self.list_counted_limits().any(|limit| limit.name == name), "{name}");
        *self.times_reached.entry(Cow::Borrowed(name)).or_default() += 1;
    }

    /// Whether a further chunk may get an in-flight entry of its own, while its request has `entries_of_request` entries and all requests
    /// have `all_entries`. If not, counts each limit that forbids it as reached.
    pub(crate) fn has_room_in_flight_else_count_reached(
        &mut self,
        entries_of_request: usize,
        all_entries: usize,
    ) -> bool {
        let is_request_full = entries_of_request >= self.in_flight_per_rid;
        let is_total_full = all_entries >= self.in_flight;
        if is_request_full {
            self.count_reached("in_flight_per_rid");
        }
        if is_total_full {
            self.count_reached("in_flight");
        }
        !is_request_full && !is_total_full
    }

    /// All limits whose evictions lose information, each with the number of times that it was reached. Evicting summaries of finished
    /// requests loses none: counters keep their totals.
    pub(crate) fn list_counted_limits(&self) -> impl Iterator<Item = ReachedLimit> {
        let bounds = BOUNDS.iter().map(|bound| (bound.name, bound.get(self.values)));
        // The limit of live requests has a command-line flag of its own, so it is none of the `BOUNDS`.
        let all_limits = std::iter::once(("live_rids", self.live_rids)).chain(bounds);
        let counted_limits = all_limits.filter(|(name, _)| !UNCOUNTED.contains(name));
        counted_limits.map(|(name, limit)| {
            let times = self.times_reached.get(name).copied().unwrap_or(0);
            ReachedLimit { name, limit, times }
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
            let mut limits = CountedLimits { values: set, ..CountedLimits::default() };
            assert_eq!(limits.has_room_in_flight_else_count_reached(own, all), reached.is_none());
            let counted = limits.list_counted_limits().filter(|limit| limit.times > 0);
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
