//! A part of the time to first token on which requests spent long.

use super::request_details::{DispatchWait, EngineLoad};
use super::time_use::TimeUse;
use super::ttft_path::TtftLeg;
use super::{CountedRids, GAP_WARNING_NS, OccurrenceTimes, WorstGap};
use crate::clock::MonoNs;
use crate::id::HopId;

/// Other requests ran beside one that waited if the engine sent output in this share of its wait.
const MIN_OUTPUT_SHARE: f64 = 0.5;

/// A request that spent a second or more on a leg.
#[derive(Debug)]
pub(super) struct LateRequest {
    pub(super) leg: TtftLeg,
    pub(super) rid: Box<str>,
    /// Begin of the leg.
    pub(super) from: MonoNs,
    /// Length of the leg.
    pub(super) ns: u64,
    /// Its whole time to first token.
    pub(super) ttft_ns: u64,
    /// How long its connection waited to be accepted; `None` unless it is the first request on a new one.
    pub(super) accept_wait_ns: Option<u64>,
    /// From its dispatch to the scheduler's first chunk; 0 if the dispatch was not observed.
    pub(super) dispatched_ns: u64,
    /// `None` if its dispatch was not observed.
    pub(super) wait: Option<DispatchWait>,
}

impl LateRequest {
    /// End of the leg.
    pub(super) fn to(&self) -> MonoNs {
        MonoNs(self.from.0.saturating_add(self.ns))
    }

    /// Whether the engine sent output of other requests meanwhile.
    fn is_beside_others(&self) -> bool {
        self.wait.is_some_and(|wait| wait.output_ns as f64 >= MIN_OUTPUT_SHARE * self.dispatched_ns.max(1) as f64)
    }
}

/// Sums over the present window and the one before it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WindowSums {
    current_ns: u128,
    previous_ns: u128,
}

impl WindowSums {
    pub(super) fn add_time(&mut self, ns: u64) {
        self.current_ns += u128::from(ns);
    }

    /// Begins a window. `is_next`: the one that follows the present one.
    pub(super) fn begin_window(&mut self, is_next: bool) {
        self.previous_ns = if is_next { self.current_ns } else { 0 };
        self.current_ns = 0;
    }

    fn sum_ns(self) -> u128 {
        self.current_ns + self.previous_ns
    }

    /// Share of these sums in `whole`, at most 1.
    pub(super) fn share_of(self, whole: Self) -> f64 {
        // A request may be judged in a later window than its time to first token, so its part alone may exceed the whole.
        share_of_whole(self.sum_ns(), whole.sum_ns().max(self.sum_ns()))
    }
}

/// Share of `part` in `whole`; 0 of nothing.
pub(super) fn share_of_whole(part: u128, whole: u128) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Part of the time to first token of some requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TtftPart {
    /// Number of the requests.
    pub(crate) requests: u64,
    /// The part, of all of them.
    pub(crate) ns: u128,
    /// Their whole time to first token.
    pub(crate) whole_ns: u128,
}

impl TtftPart {
    /// Share of the part, from 0 to 1.
    pub(crate) fn share(&self) -> f64 {
        share_of_whole(self.ns, self.whole_ns)
    }

    /// Adds a wait of `wait_ns` of a request whose whole time to first token is `ttft_ns`. The request itself counts with its first wait
    /// only.
    pub(crate) fn add_wait(&mut self, wait_ns: u64, ttft_ns: u64, is_first_wait: bool) {
        self.ns += u128::from(wait_ns);
        if is_first_wait {
            self.requests += 1;
            self.whole_ns += u128::from(ttft_ns);
        }
    }
}

/// Time use of the process that answers clients.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceiverUse {
    /// Of its main thread.
    pub(crate) main: TimeUse,
    /// Sum over all its threads, over the interval of the main thread.
    pub(crate) process: TimeUse,
}

impl ReceiverUse {
    fn plus(self, other: Self) -> Self {
        Self { main: self.main.plus(other.main), process: self.process.plus(other.process) }
    }
}

/// Begin and end of a request's time on a leg.
#[derive(Clone, Copy, Debug)]
struct LegSpan {
    from: MonoNs,
    to: MonoNs,
    /// It overlaps another one.
    is_concurrent: bool,
}

/// Requests that spent a second or more on a leg; with a prefill in it, only those for which it took longer than prompts explain.
#[derive(Clone, Debug)]
pub struct LateLeg {
    /// Which one.
    pub leg: TtftLeg,
    /// Number of such requests.
    pub requests: u64,
    /// Their time on the leg.
    pub ns: u128,
    /// Their whole time to first token.
    pub whole_ns: u128,
    /// Part of [`Self::ns`] in which the engine sent output of other requests.
    pub(crate) beside_others_ns: u128,
    /// Those that were on the leg at the same time as another one, and so came over several connections.
    pub(crate) concurrent: u64,
    /// Those on a new connection that waited a second or more to be accepted.
    pub(crate) accepted_late: u64,
    /// Longest of these waits.
    pub(crate) accept_wait_max_ns: u64,
    /// Requests of the engine when most waited.
    pub(crate) most_waiting: EngineLoad,
    /// Time use of the process that answers clients meanwhile, as far as it is sampled.
    pub(crate) receiver_use: ReceiverUse,
    /// The longest; `None` without any.
    pub(crate) worst: Option<WorstGap>,
    /// Hop of its message to the scheduler; `None` if that was not observed.
    pub(crate) worst_hop: Option<HopId>,
    /// Begin of the first leg and end of the last one.
    pub(crate) times: OccurrenceTimes,
    pub(crate) rids: CountedRids,
    pub(super) window: WindowSums,
    /// Greatest share of the leg in all times to first token of two windows that are over.
    pub(super) max_window_share: f64,
    last_span: Option<LegSpan>,
}

impl LateLeg {
    /// Sums over late requests of this leg, without any so far.
    pub(super) fn new(leg: TtftLeg) -> Self {
        Self {
            leg,
            requests: 0,
            ns: 0,
            whole_ns: 0,
            beside_others_ns: 0,
            concurrent: 0,
            accepted_late: 0,
            accept_wait_max_ns: 0,
            most_waiting: EngineLoad::default(),
            receiver_use: ReceiverUse::default(),
            worst: None,
            worst_hop: None,
            times: OccurrenceTimes::default(),
            rids: CountedRids::default(),
            window: WindowSums::default(),
            max_window_share: 0.0,
            last_span: None,
        }
    }

    /// Adds a request that was late on this leg: it spent a second or more on this part of its time to first token. `receiver_use`: time
    /// use of the process that answers clients while the request was on the leg; `None` if unknown.
    pub(super) fn record_late_request(&mut self, late: &LateRequest, receiver_use: Option<ReceiverUse>) {
        self.requests += 1;
        self.rids.add_rid(&late.rid);
        self.ns += u128::from(late.ns);
        self.whole_ns += u128::from(late.ttft_ns);
        // Compared with all times to first token in the same window.
        self.window.add_time(late.ns);
        self.times.record_span(late.from, late.to());
        self.count_concurrent(late);
        if let Some(accept_wait_ns) = late.accept_wait_ns {
            self.count_late_accept(accept_wait_ns);
        }
        if late.is_beside_others() {
            self.beside_others_ns += u128::from(late.ns);
        }
        if let Some(receiver_use) = receiver_use {
            self.receiver_use = self.receiver_use.plus(receiver_use);
        }
        // The load of the engine when most requests waited; of equal ones, the latest.
        if let Some(wait) = &late.wait
            && wait.load.waiting >= self.most_waiting.waiting
        {
            self.most_waiting = wait.load;
        }
        self.keep_if_worst(late);
    }

    /// Counts a new connection that waited this long to be accepted, if that is long.
    fn count_late_accept(&mut self, accept_wait_ns: u64) {
        if accept_wait_ns >= GAP_WARNING_NS {
            self.accepted_late += 1;
            self.accept_wait_max_ns = self.accept_wait_max_ns.max(accept_wait_ns);
        }
    }

    /// Keeps the request that was longest on the leg; of equal ones, the latest.
    fn keep_if_worst(&mut self, late: &LateRequest) {
        if self.worst.as_ref().is_none_or(|worst| worst.ns <= late.ns) {
            self.worst = Some(WorstGap { ns: late.ns, rid: late.rid.clone(), at: late.to() });
            self.worst_hop = late.wait.map(|wait| wait.hop);
        }
    }

    /// Counts the late request and the previous one as concurrent, if their times on this leg (part of the time to first token) overlap.
    fn count_concurrent(&mut self, late: &LateRequest) {
        let mut span = LegSpan { from: late.from, to: late.to(), is_concurrent: false };
        if let Some(previous) = self.last_span {
            let overlaps = previous.from < span.to && span.from < previous.to;
            if overlaps {
                span.is_concurrent = true;
                self.concurrent += 1;
                // The previous request counts once, even if it also overlapped with the one before it.
                if !previous.is_concurrent {
                    self.concurrent += 1;
                }
            }
        }
        self.last_span = Some(span);
    }

    /// Share of the leg in the time to first token of these requests, from 0 to 1.
    pub fn share(&self) -> f64 {
        share_of_whole(self.ns, self.whole_ns)
    }

    /// The leg as a part of the time to first token of these requests.
    pub(crate) fn part(&self) -> TtftPart {
        TtftPart { requests: self.requests, ns: self.ns, whole_ns: self.whole_ns }
    }

    /// Whether other requests ran in most of this time.
    pub(crate) fn is_beside_others(&self) -> bool {
        self.beside_others_ns >= self.ns / 2
    }
}
