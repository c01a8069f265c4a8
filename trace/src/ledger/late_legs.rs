//! Parts of the time to first token on which requests spent long, over all requests.
//!
//! A late request is judged at a tick, once it is known whether the engine was silent meanwhile: then no request goes on, which is another
//! finding.

use std::collections::VecDeque;

use super::late_leg::{LateLeg, LateRequest, ReceiverUse, TtftPart, WindowSums, share_of_whole};
use super::limits::{CountedLimits, push_bounded};
use super::prefill::{PrefillComparison, PrefillSpan, Prefills, SlowPrefill};
use super::process_waits::ProcessWaits;
use super::request::Request;
use super::request_details::DispatchWait;
use super::time_use::TimeUse;
use super::ttft_path::{TimedLeg, TtftLeg, TtftMoment, TtftPath};
use super::unanswered::PREFILL_NS_PER_TOKEN;
use super::{AffectedRequests, GAP_WARNING_NS, Ledger};
use crate::clock::MonoNs;
use crate::id::HopId;
use crate::stats::WINDOW_NS;

use TtftMoment::{Arrived, BatchEntered, Dispatched, FirstDelivered, FirstSent, Queued, Read, SchedulerReceived};

/// Requests whose time to first token was judged, in whole or in part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JudgedRequests {
    /// All of them.
    pub requests: u64,
    /// Those whose time from the arrival to the dispatch was judged.
    pub before_dispatch: u64,
    /// Those whose time from the dispatch to the first token was judged.
    pub until_first_token: u64,
    /// Those that wait for the other server of a pair.
    pub of_pairs: u64,
    /// Those that are not judged, because another request had their rid.
    pub shared_rids: u64,
}

/// Requests with legs that are late, by leg.
#[derive(Debug, Default)]
pub(super) struct LateLegs {
    legs: Vec<LateLeg>,
    /// In the order of their first tokens.
    unjudged: VecDeque<LateRequest>,
    pub(super) prefills: Prefills,
    slowest_prefill: Option<SlowestPrefill>,
    pub(super) judged: JudgedRequests,
    /// Sum of all times to first token.
    ttft_ns: u128,
    window: WindowSums,
    window_number: u64,
    /// Late requests during whose wait the engine was silent.
    pub(super) silenced: SilencedRequests,
    pub(super) process_waits: ProcessWaits,
}

/// Requests that waited a second or more before their first token because the engine was silent.
#[derive(Clone, Debug, Default)]
pub struct SilencedRequests {
    /// The requests; the amount is their wait in nanoseconds.
    pub requests: AffectedRequests,
    /// Hop of the worst one's message to the scheduler; `None` if that was not observed.
    pub(crate) worst_hop: Option<HopId>,
    /// Their waits, as a part of their time to first token.
    pub(crate) part: TtftPart,
    /// The request counted last, which may have waited on several legs.
    last_rid: Box<str>,
}

impl SilencedRequests {
    /// Adds a request that was late while the engine was silent.
    pub(super) fn record_silenced_request(&mut self, late: &LateRequest) {
        // `requests.amount` is the longest wait so far.
        if late.ns >= self.requests.amount {
            self.worst_hop = late.wait.map(|wait| wait.hop);
        }
        // A request may have been late on several legs, which follow each other here.
        let is_first_wait = *self.last_rid != *late.rid;
        self.requests.record_request(late.to(), &late.rid, late.ns, is_first_wait);
        self.part.add_wait(late.ns, late.ttft_ns, is_first_wait);
        if is_first_wait {
            self.last_rid = late.rid.clone();
        }
    }
}

/// The slowest prefill that is slow beside others.
#[derive(Clone, Copy, Debug)]
pub struct SlowestPrefill {
    /// Its comparison.
    pub comparison: PrefillComparison,
    /// Time use of its scheduler's thread meanwhile; `None` if not sampled.
    pub scheduler_use: Option<TimeUse>,
}

/// Whether the request waits for the other server of a pair: one server computes prefills, the other one decodes.
fn is_of_pair(request: &Request) -> bool {
    request.dispatch().is_some_and(|dispatch| dispatch.room.is_some_and(|room| room > 0))
}

/// Prompt tokens that it computes; `None` if unknown.
fn prompt_tokens(request: &Request) -> Option<u32> {
    let prompt = request.prompt_tokens.or(request.dispatch().and_then(|dispatch| dispatch.prompt_tokens))?;
    Some(prompt.saturating_sub(request.cached_tokens.unwrap_or(0)))
}

/// How long the connection of the request waited to be accepted; `None` unless it is the first one on a new connection.
fn accept_wait_ns(request: &Request) -> Option<u64> {
    let arrival_times = request.arrival()?.ok()?;
    arrival_times.connection?.accept_wait_ns()
}

/// End of the prefill with which `leg` begins: the time that the engine reports, or else the end of the leg. `None` if the request may be
/// one of a pair of servers (prefill and decode), where the leg does not end with the prefill.
fn prefill_end(request: &Request, leg: TimedLeg) -> Option<MonoNs> {
    if let Some(finished) = request.engine_times().and_then(|times| times.prefill_finished)
        && finished >= leg.at
        && finished <= leg.end()
    {
        return Some(finished);
    }
    // Only the dispatch shows which requests are those of a pair: it names the room in which both servers meet.
    let may_be_of_pair = request.dispatch().is_none_or(|dispatch| dispatch.room.is_some());
    // On the servers of a pair, the transfer of the cache lies between the prefill and the first token.
    if may_be_of_pair { None } else { Some(leg.end()) }
}

/// Minimum length, in nanoseconds, that makes a leg of this request late. `None` if the leg is not judged by its length. A leg is the time
/// from one observed moment to the next one. It has several parts if moments in between were not observed.
fn min_late_ns(request: &Request, leg: TtftLeg) -> Option<u64> {
    // Moments are ordered by time: the scheduler receives the request, queues it, puts it in a batch, and sends the first chunk.
    let is_in_scheduler = leg.from < FirstSent && leg.to > SchedulerReceived;
    let is_queue_wait_alone = leg.from == Queued && leg.parts().len() == 1;
    // A request of a pair of servers may wait for the other server, except in the queue.
    let may_wait_for_other_server = is_in_scheduler && !is_queue_wait_alone && is_of_pair(request);
    if may_wait_for_other_server {
        return None;
    }
    // The prefill is the last part before the first send.
    let has_prefill = is_in_scheduler && leg.to >= FirstSent;
    if has_prefill { min_late_ns_with_prefill(request, leg) } else { Some(GAP_WARNING_NS) }
}

/// Minimum length, in nanoseconds, that makes a leg with the prefill late: the time that a prompt of this length needs, and a second for
/// the rest of the leg. `None` if the leg is not judged by its length.
fn min_late_ns_with_prefill(request: &Request, leg: TtftLeg) -> Option<u64> {
    // A prefill alone is compared with other prefills instead.
    let is_prefill_alone = leg.parts().len() == 1;
    // The parts behind the first send are outside the scheduler, where a prompt needs no time.
    let goes_on_behind_scheduler = leg.to > FirstSent;
    if is_prefill_alone || goes_on_behind_scheduler {
        return None;
    }
    let prefill_ns = u64::from(prompt_tokens(request)?).saturating_mul(PREFILL_NS_PER_TOKEN);
    Some(GAP_WARNING_NS.saturating_add(prefill_ns))
}

/// The time with which each leg of this request is compared. For a streamed request, that is its time to first token; `None` if unknown.
/// Otherwise it is the sum of its legs up to the moment `last_moment`.
fn compared_time_ns(request: &Request, path: &TtftPath, last_moment: TtftMoment) -> Option<u64> {
    if request.is_streamed() {
        return path.ttft_ns();
    }
    let legs = path.legs().filter(|timed| timed.leg.to <= last_moment);
    Some(legs.map(|timed| timed.ns).sum())
}

/// Time from the dispatch of a request to its first chunk; 0 unless both were observed.
fn dispatched_ns(path: &TtftPath) -> u64 {
    let (Some(dispatched), Some(first_sent)) = (path.time_of(Dispatched), path.time_of(FirstSent)) else { return 0 };
    first_sent.since(dispatched)
}

/// State of the engine while a request waited from its dispatch to its first chunk; `None` if its dispatch was not observed.
fn dispatch_wait(request: &Request) -> Option<DispatchWait> {
    request.details.as_ref()?.wait
}

/// Whether each leg (part of the time to first token) of this request between its dispatch and its first token is judged.
fn is_each_leg_judged_until_first_token(request: &Request, path: &TtftPath) -> bool {
    if path.time_of(Dispatched).is_none() || is_of_pair(request) {
        return false;
    }
    let is_prefill_separate = path.time_of(Queued).is_some() && path.time_of(BatchEntered).is_some();
    // With the length of the prompt, the time of the prefill within a longer leg can be allowed for.
    let is_prefill_estimated = request.is_streamed() && prompt_tokens(request).is_some();
    is_prefill_separate || is_prefill_estimated
}

impl LateLegs {
    /// Records the legs of a request: the parts of its time to first token between two observed moments. A long leg is kept, and judged at
    /// a later tick. So is the prefill, which is compared with others.
    pub(super) fn record_legs(&mut self, request: &Request, path: &TtftPath, limits: &mut CountedLimits) {
        let is_streamed = request.is_streamed();
        // The first chunk of a response that is not streamed has several tokens, so the end of its prefill is not known.
        let until = if is_streamed { FirstDelivered } else { BatchEntered };
        let Some(ttft_ns) = compared_time_ns(request, path, until) else { return };
        self.count_judged_request(request, path);
        self.add_ttft_to_sums(path, ttft_ns);
        if is_streamed {
            let has_evicted =
                self.process_waits.record_long_waits_and_check_eviction(request, path, ttft_ns, limits.prefills);
            if has_evicted {
                limits.count_reached("prefills");
            }
        }
        for timed in path.legs().filter(|timed| timed.leg.to <= until) {
            let has_evicted = if timed.leg.from == BatchEntered {
                self.keep_prefill_and_check_eviction(request, timed, ttft_ns, limits.prefills)
            } else {
                self.keep_if_late_and_check_eviction(request, path, timed, ttft_ns, limits.prefills)
            };
            if has_evicted {
                limits.count_reached("prefills");
            }
        }
    }

    /// Keeps the prefill with which the leg `timed_leg` of a request begins, until it can be compared with others. Returns whether the
    /// oldest of `max_kept` was evicted for it.
    fn keep_prefill_and_check_eviction(
        &mut self,
        request: &Request,
        timed_leg: TimedLeg,
        ttft_ns: u64,
        max_kept: usize,
    ) -> bool {
        let Some(end) = prefill_end(request, timed_leg) else { return false };
        let span = PrefillSpan { from: timed_leg.at, to: end };
        let request_hop = dispatch_wait(request).map(|wait| wait.hop);
        self.prefills.add_unjudged_prefill_and_check_eviction(request, span, request_hop, ttft_ns, max_kept)
    }

    /// Keeps a request until it is judged, if it was late on the leg `timed_leg`. Returns whether the oldest of `max_kept` was evicted for
    /// it.
    fn keep_if_late_and_check_eviction(
        &mut self,
        request: &Request,
        path: &TtftPath,
        timed_leg: TimedLeg,
        ttft_ns: u64,
        max_kept: usize,
    ) -> bool {
        let is_late = min_late_ns(request, timed_leg.leg).is_some_and(|min_ns| timed_leg.ns >= min_ns);
        if !is_late {
            return false;
        }
        let late = LateRequest {
            leg: timed_leg.leg,
            rid: request.rid.clone(),
            from: timed_leg.at,
            ns: timed_leg.ns,
            ttft_ns,
            accept_wait_ns: accept_wait_ns(request),
            dispatched_ns: dispatched_ns(path),
            wait: dispatch_wait(request),
        };
        push_bounded(&mut self.unjudged, late, max_kept).is_some()
    }

    /// Counts a judged request, by the parts of its path that are observed and judged.
    fn count_judged_request(&mut self, request: &Request, path: &TtftPath) {
        let has_arrival = path.time_of(Arrived).is_some() && path.time_of(Read).is_some();
        let has_time_before_dispatch = has_arrival && path.time_of(Dispatched).is_some();
        let judged = &mut self.judged;
        judged.requests += 1;
        judged.before_dispatch += u64::from(has_time_before_dispatch);
        judged.until_first_token += u64::from(is_each_leg_judged_until_first_token(request, path));
        judged.of_pairs += u64::from(is_of_pair(request));
    }

    /// Adds a time to first token to the sums that late legs are compared with. These are the sum of the whole run, and that of the
    /// window in which the first token came.
    fn add_ttft_to_sums(&mut self, path: &TtftPath, ttft_ns: u64) {
        let window_number = path.whole_leg().map_or(0, |whole| whole.end().0 / WINDOW_NS);
        if window_number > self.window_number {
            self.begin_window(window_number);
        }
        self.ttft_ns += u128::from(ttft_ns);
        self.window.add_time(ttft_ns);
    }

    /// Begins a later window of ten seconds. First updates, for each leg, the greatest share that it has had in all times to first token
    /// of two windows in a row.
    fn begin_window(&mut self, window_number: u64) {
        // If not, the window just before the new one was empty.
        let follows_last_window = window_number == self.window_number + 1;
        for late in &mut self.legs {
            // Must come before the sums are replaced: those of the leg in the next statement, those of all times after the loop.
            late.max_window_share = late.max_window_share.max(late.window.share_of(self.window));
            late.window.begin_window(follows_last_window);
        }
        self.window.begin_window(follows_last_window);
        self.window_number = window_number;
    }

    /// Adds a late request to the sums of its leg. `receiver_use`: as for [`LateLeg::record_late_request`].
    fn add_late_request_to_leg(&mut self, late: &LateRequest, receiver_use: Option<ReceiverUse>) {
        let known_index = self.legs.iter().position(|known| known.leg == late.leg);
        if known_index.is_none() {
            self.legs.push(LateLeg::new(late.leg));
        }
        // A new one is the last.
        let index = known_index.unwrap_or(self.legs.len() - 1);
        self.legs[index].record_late_request(late, receiver_use);
    }

    /// Records a prefill that is slow beside others. `scheduler_use`: time use of its scheduler's thread meanwhile.
    pub(super) fn record_slow_prefill(&mut self, slow: &SlowPrefill, scheduler_use: Option<TimeUse>) {
        let late = slow.to_late_request();
        // Before `add_late_request_to_leg`, which replaces the worst request of the leg.
        let worst = self.legs.iter().find(|known| known.leg == late.leg).and_then(|known| known.worst.as_ref());
        if worst.is_none_or(|worst| worst.ns <= late.ns) {
            self.slowest_prefill = Some(SlowestPrefill { comparison: slow.comparison, scheduler_use });
        }
        // A prefill does not wait for the process that answers clients.
        let receiver_use = None;
        self.add_late_request_to_leg(&late, receiver_use);
    }

    /// The slowest prefill that is slow beside others; `None` without any.
    pub(super) fn slowest_prefill(&self) -> Option<SlowestPrefill> {
        self.slowest_prefill
    }

    /// Late legs, in the order of their first late requests.
    pub(super) fn list(&self) -> &[LateLeg] {
        &self.legs
    }

    /// Share of a leg in all times to first token of the run.
    pub(super) fn share_of_all(&self, late: &LateLeg) -> f64 {
        share_of_whole(late.ns, self.ttft_ns.max(late.ns))
    }

    /// Greatest share of a leg in all times to first token of ten to twenty seconds.
    pub(super) fn window_share(&self, late: &LateLeg) -> f64 {
        late.max_window_share.max(late.window.share_of(self.window))
    }
}

impl Ledger {
    /// Judges the requests that spent long on a leg (part of the time to first token), once it is known whether the engine was silent
    /// meanwhile. Requests that a silence delayed are recorded apart, because the silence is a finding of its own.
    pub(super) fn judge_late_requests(&mut self, now: MonoNs) {
        if self.ttft.late_legs.unjudged.is_empty() || self.silences.is_undecided(now) {
            return;
        }
        while let Some(late) = self.ttft.late_legs.unjudged.pop_front() {
            let waits_for_engine = late.leg.from < FirstSent && late.leg.to > Dispatched;
            if waits_for_engine && self.silences.explains(late.from, late.to()) {
                self.ttft.late_legs.silenced.record_silenced_request(&late);
                continue;
            }
            let mut receiver_use = None;
            // The receiver is the process that answers clients. Its use of time explains only legs that begin in it.
            let begins_in_receiver = late.leg.from <= Read;
            if begins_in_receiver {
                receiver_use = self.time_use_of_only_receiver(late.from, late.to());
                self.count_late_stack_samples(late.leg.from, late.from, late.to());
            }
            self.ttft.late_legs.add_late_request_to_leg(&late, receiver_use);
        }
    }

    /// Time use of the only process that answers clients. `None` if it is not sampled, or there are several such processes.
    fn time_use_of_only_receiver(&self, from: MonoNs, to: MonoNs) -> Option<ReceiverUse> {
        let main_thread = self.hops.all.iter().filter(|hop| hop.last).find_map(|hop| self.only_receiver(hop))?;
        let main = self.threads.get(main_thread)?.use_between(from, to)?;
        let process_threads = self.threads.all.iter().filter(|thread| thread.id.pid == main_thread.pid);
        let other_threads = process_threads.filter(|thread| thread.id != main_thread);
        let mut process = main;
        for spent in other_threads.filter_map(|thread| thread.use_between(from, to)) {
            // The times that threads spent add up, but the interval stays the same, because they run beside each other.
            process = TimeUse { interval_ns: main.interval_ns, ..process.plus(spent) };
        }
        Some(ReceiverUse { main, process })
    }
}
