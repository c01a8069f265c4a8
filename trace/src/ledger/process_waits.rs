//! Parts of the time to first token in which requests waited for one process: to read them, to receive them, or to receive their first
//! token. Findings about a process or a hop add those that fell into their time.

use std::collections::VecDeque;

use super::request::Request;
use super::stream::Stream;
use super::ttft_path::{TimedLeg, TtftMoment, TtftPath};
use super::{LATE_NS, Ledger};
use crate::clock::MonoNs;
use crate::id::HopId;

use TtftMoment::{Arrived, Dispatched, FirstReceived, FirstSent, Read, SchedulerReceived};

/// How long a wait is kept: detectors run every half second.
const MAX_AGE_NS: u64 = 5_000_000_000;

/// A wait of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessWait {
    /// Number of the request, in the order in which times to first token are recorded. Waits of one request follow each other.
    pub(crate) request: u64,
    /// Begin of its leg.
    pub(crate) leg_from: TtftMoment,
    /// Hop on which it waited, and in the process behind it; `None` before the dispatch.
    pub(crate) hop: Option<HopId>,
    /// Begin of the wait.
    pub(crate) from: MonoNs,
    /// End of the wait.
    pub(crate) to: MonoNs,
    /// Whole time to first token of the request.
    pub(crate) ttft_ns: u64,
}

impl ProcessWait {
    /// Its length.
    pub(crate) fn ns(&self) -> u64 {
        self.to.since(self.from)
    }
}

#[derive(Debug)]
struct KeptWait {
    wait: ProcessWait,
    /// Tick before it was recorded.
    recorded_at: MonoNs,
}

/// The last waits.
#[derive(Debug, Default)]
pub(super) struct ProcessWaits {
    list: VecDeque<KeptWait>,
    ticked_at: MonoNs,
    /// Number of all waits so far.
    recorded: u64,
    /// Number of requests so far.
    requests: u64,
}

impl ProcessWaits {
    /// Records the long waits of a streamed request for a process, in the legs of its time to first token. Returns whether one of the last
    /// `max_kept` was evicted.
    pub(super) fn record_long_waits_and_check_eviction(
        &mut self,
        request: &Request,
        path: &TtftPath,
        ttft_ns: u64,
        max_kept: usize,
    ) -> bool {
        let request_number = self.requests;
        self.requests += 1;
        let mut has_evicted = false;
        for timed in path.legs().filter(|timed| timed.ns >= LATE_NS) {
            for WaitSpan { hop, from, to } in process_wait_spans(request, timed).into_iter().flatten() {
                // A part of a long leg may be short.
                if to.since(from) < LATE_NS {
                    continue;
                }
                let wait = ProcessWait { request: request_number, leg_from: timed.leg.from, hop, from, to, ttft_ns };
                has_evicted |= self.keep_wait_and_check_eviction(wait, max_kept);
            }
        }
        has_evicted
    }

    /// Keeps a wait until `advance_time_and_drop_old` drops it. Returns whether the oldest one of `max_kept` was evicted.
    fn keep_wait_and_check_eviction(&mut self, wait: ProcessWait, max_kept: usize) -> bool {
        let is_full = self.list.len() >= max_kept;
        if is_full {
            self.list.pop_front();
        }
        self.list.push_back(KeptWait { wait, recorded_at: self.ticked_at });
        self.recorded += 1;
        is_full
    }

    /// Advances time, and drops waits so old that the detectors have seen them.
    pub(super) fn advance_time_and_drop_old(&mut self, now: MonoNs) {
        self.ticked_at = now;
        while let Some(oldest) = self.list.front() {
            if now.since(oldest.recorded_at) <= MAX_AGE_NS {
                break;
            }
            self.list.pop_front();
        }
    }
}

/// Where and when a request waited.
#[derive(Clone, Copy)]
struct WaitSpan {
    hop: Option<HopId>,
    from: MonoNs,
    to: MonoNs,
}

/// The parts of a leg (time between two moments before the first token) in which the request waited for one process; at most two.
fn process_wait_spans(request: &Request, timed_leg: TimedLeg) -> [Option<WaitSpan>; 2] {
    let whole_leg = WaitSpan { hop: None, from: timed_leg.at, to: timed_leg.end() };
    match (timed_leg.leg.from, timed_leg.leg.to) {
        // In the process that answers clients, before a hop is known.
        (Arrived, Read) | (Read, Dispatched) => [Some(whole_leg), None],
        (Dispatched, SchedulerReceived) => {
            let Some(wait) = request.details.as_ref().and_then(|details| details.wait) else { return [None, None] };
            [Some(WaitSpan { hop: Some(wait.hop), ..whole_leg }), None]
        }
        (FirstSent, FirstReceived) => output_wait_spans(&request.streams, timed_leg),
        // The others depend on the engine, or on several processes.
        _ => [None, None],
    }
}

/// Whether a request has streams on two hops of one group, which lead to different receivers.
fn has_changed_receiver(streams: &[Stream]) -> bool {
    let mut groups: Vec<u32> = streams.iter().map(|stream| stream.group).collect();
    groups.sort_unstable();
    groups.dedup();
    groups.len() < streams.len()
}

/// Waits of a first token on its way from the scheduler to the tokenizer: for the process that receives from the scheduler, and for the
/// receiver of the last hop (channel). With more than two hops, only the last wait is known. `streams`: the request's chunks, by hop.
fn output_wait_spans(streams: &[Stream], way_leg: TimedLeg) -> [Option<WaitSpan>; 2] {
    // After a change of the receiver, it is unknown for which one the request waited.
    let are_all_whole = streams.iter().all(Stream::is_whole);
    if has_changed_receiver(streams) || !are_all_whole {
        return [None, None];
    }
    let Some(last) = streams.iter().max_by_key(|stream| stream.first_at) else { return [None, None] };
    // Clamped, so that the waits lie within the leg even if the times of the streams contradict it.
    let sent_on_last = last.first_at.clamp(way_leg.at, way_leg.end());
    let wait_on_last = WaitSpan { hop: Some(last.hop), from: sent_on_last, to: way_leg.end() };
    // With two hops, the other one is the scheduler's.
    let first = if streams.len() == 2 { streams.iter().find(|stream| stream.hop != last.hop) } else { None };
    let wait_on_first = first.map(|first| WaitSpan { hop: Some(first.hop), from: way_leg.at, to: sent_on_last });
    [wait_on_first, Some(wait_on_last)]
}

impl Ledger {
    /// Number of waits for processes so far.
    pub(crate) fn count_process_waits(&self) -> u64 {
        self.ttft.late_legs.process_waits.recorded
    }

    /// Waits for processes after the first `seen_waits` ones of the run, as far as they are kept.
    pub(crate) fn process_waits_since(&self, seen_waits: u64) -> impl Iterator<Item = &ProcessWait> {
        let waits = &self.ttft.late_legs.process_waits;
        let dropped = waits.recorded - waits.list.len() as u64;
        // The dropped waits are the first of the run. If fewer were dropped than seen, the rest of the seen ones is kept.
        let seen_and_kept = usize::try_from(seen_waits.saturating_sub(dropped)).unwrap_or(usize::MAX);
        waits.list.iter().skip(seen_and_kept).map(|kept| &kept.wait)
    }

    /// Advances time for the waits for processes.
    pub(super) fn advance_process_waits(&mut self, now: MonoNs) {
        self.ttft.late_legs.process_waits.advance_time_and_drop_old(now);
    }
}
