//! Prefills that take long beside others with as much work.
//!
//! The work of a prefill is the number of prompt tokens, without those found in the prefix cache, of all requests that were in a prefill
//! meanwhile. So neither a long prompt in the same batch nor a cache miss makes a request slow. A long prompt is computed in chunks, beside
//! several others: the one that is judged has all of its work, those with which it is compared only the part in proportion to time. Which
//! connections belong to one scheduler is not known, so the work is that of all, and a length is kept for comparison only if the prefill's
//! own connection had most of it.

use std::collections::VecDeque;

use super::late_leg::LateRequest;
use super::limits::push_bounded;
use super::ttft_path::{TtftLeg, TtftMoment};
use super::{GAP_WARNING_NS, Hop, Ledger, Request, Thread, TimeUse};
use crate::clock::MonoNs;
use crate::event::ThreadPart;
use crate::id::{HopId, ThreadId};
use crate::stats::Tally;

/// A slow prefill takes at least this many times as long as nine of ten others with as much work.
pub(crate) const MIN_TIMES_OTHERS: u64 = 4;
/// Number of other prefills with as much work below which none is judged.
pub(crate) const MIN_OTHERS: u64 = 20;
/// Quantile of other prefills with which a prefill is compared: nine of ten are shorter.
const USUAL_QUANTILE: f64 = 0.9;
/// Number of classes of work, by doublings.
const CLASSES: usize = 32;
/// A scheduler that ran, or waited for a CPU, for less than this share of a prefill was stopped.
const MIN_WANTED_SHARE: f64 = 0.1;
/// A request that is unanswered for longer has not begun its prefill.
const MAX_UNANSWERED_NS: u64 = 60_000_000_000;

/// A prefill of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefill {
    pub(super) span: PrefillSpan,
    /// Prompt tokens that were not in the prefix cache.
    pub(super) tokens: u32,
    pub(super) connection: SchedulerConnection,
}

/// Connection on which a scheduler sends the chunks of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SchedulerConnection {
    hop: HopId,
    lane: u16,
}

impl SchedulerConnection {
    pub(super) fn of_request(request: &Request) -> Self {
        request.streams.first().map_or_else(Self::default, |stream| Self { hop: stream.hop, lane: stream.lane })
    }
}

/// The prefill of a streamed request whose concurrent prefills are not all known yet.
#[derive(Debug)]
struct UnjudgedPrefill {
    rid: Box<str>,
    span: PrefillSpan,
    connection: SchedulerConnection,
    /// Hop of its message to the scheduler; `None` if that was not observed.
    request_hop: Option<HopId>,
    ttft_ns: u64,
}

/// Begin and end of a prefill.
#[derive(Clone, Copy, Debug)]
pub(super) struct PrefillSpan {
    pub(super) from: MonoNs,
    pub(super) to: MonoNs,
}

impl PrefillSpan {
    fn ns(self) -> u64 {
        self.to.since(self.from)
    }

    /// Time in which both were in progress.
    fn overlap_ns(self, other: Self) -> u64 {
        self.to.min(other.to).since(self.from.max(other.from))
    }
}

/// Work of a prefill, in tokens.
#[derive(Clone, Copy, Debug, Default)]
struct PrefillWork {
    /// Whole prompts of all requests that were in a prefill meanwhile.
    at_most: u64,
    /// The part of these prompts in proportion to time.
    in_proportion: u64,
    /// The same of the prefill's own connection.
    own_in_proportion: u64,
}

impl PrefillWork {
    /// Whether at least half of it was that of the prefill's own connection.
    fn is_mainly_own(&self) -> bool {
        let of_others = self.in_proportion - self.own_in_proportion;
        self.own_in_proportion >= of_others
    }
}

/// Class of this number of tokens, by doublings.
fn class_of(tokens: u64) -> usize {
    // The number of bits grows by one with each doubling.
    ((u64::BITS - tokens.leading_zeros()) as usize).min(CLASSES - 1)
}

/// A prefill that took long.
#[derive(Clone, Debug)]
pub(super) struct SlowPrefill {
    pub(super) rid: Box<str>,
    pub(super) span: PrefillSpan,
    /// Hop of its message to the scheduler; `None` if that was not observed.
    request_hop: Option<HopId>,
    /// Time to first token of its request.
    pub(super) ttft_ns: u64,
    pub(super) comparison: PrefillComparison,
}

impl SlowPrefill {
    /// The request as one that was late on the leg from its entry to a batch to its first token.
    pub(super) fn to_late_request(&self) -> LateRequest {
        LateRequest {
            leg: TtftLeg { from: TtftMoment::BatchEntered, to: TtftMoment::FirstSent },
            rid: self.rid.clone(),
            from: self.span.from,
            ns: self.span.ns(),
            ttft_ns: self.ttft_ns,
            // The rest is only for legs before the batch.
            accept_wait_ns: None,
            dispatched_ns: 0,
            wait: None,
        }
    }
}

/// Comparison of a prefill with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefillComparison {
    /// Its work in tokens.
    pub tokens: u64,
    /// 90th percentile of others with as much work, in nanoseconds.
    pub usual_ns: u64,
}

/// Prefills so far.
#[derive(Debug, Default)]
pub(super) struct Prefills {
    /// By their end.
    known: VecDeque<Prefill>,
    /// Those that began before may have had unknown ones beside them.
    known_since: MonoNs,
    missed_before: u64,
    unjudged: VecDeque<UnjudgedPrefill>,
    /// Lengths by work.
    lengths: [Tally; CLASSES],
}

impl Prefills {
    /// Keeps a prefill for comparison, and evicts the oldest of `max_known`. Returns whether the evicted one is needed, because a prefill
    /// that is still to be judged ran beside it.
    fn add_known_and_check_evicted_needed(&mut self, prefill: Prefill, max_known: usize) -> bool {
        let evicted = if self.known.len() < max_known { None } else { self.known.pop_front() };
        // The list is sorted by the ends of the prefills. They are added nearly in that order, so few entries move.
        let index = self.known.partition_point(|known| known.span.to <= prefill.span.to);
        self.known.insert(index, prefill);
        let Some(evicted) = evicted else { return false };
        // The evicted one is missing beside those that began before its end.
        self.mark_unknown_until(evicted.span.to);
        self.unjudged.front().is_some_and(|next| next.span.from < evicted.span.to)
    }

    /// Forgets the prefills of an engine that has ended: the next one may be slower by design.
    pub(super) fn restart(&mut self, at: MonoNs) {
        *self = Self { known_since: at, missed_before: self.missed_before, ..Self::default() };
    }

    /// Marks prefills that began before this time as not comparable.
    pub(super) fn mark_unknown_until(&mut self, at: MonoNs) {
        self.known_since = self.known_since.max(at);
    }

    /// Sets the number of messages missed so far. If it has grown, prefills may have run that are not known.
    fn update_missed_messages(&mut self, now: MonoNs, missed_messages: u64) {
        if self.missed_before != missed_messages {
            self.missed_before = missed_messages;
            self.mark_unknown_until(now);
        }
    }

    /// Keeps the prefill of a request with this time to first token, whose message was sent on the hop `request_hop`. Returns whether the
    /// oldest of `max_kept` was evicted.
    pub(super) fn add_unjudged_prefill_and_check_eviction(
        &mut self,
        request: &Request,
        span: PrefillSpan,
        request_hop: Option<HopId>,
        ttft_ns: u64,
        max_kept: usize,
    ) -> bool {
        let connection = SchedulerConnection::of_request(request);
        let unjudged = UnjudgedPrefill { rid: request.rid.clone(), span, connection, request_hop, ttft_ns };
        push_bounded(&mut self.unjudged, unjudged, max_kept).is_some()
    }

    /// Removes the next prefill to be judged if it ended before `until`.
    fn take_unjudged(&mut self, until: MonoNs) -> Option<UnjudgedPrefill> {
        self.unjudged.pop_front_if(|next| next.span.to < until)
    }

    /// Compares a prefill with earlier ones that had as much work (prompt tokens to compute), and keeps its length for later comparisons.
    /// `None` unless it is slow.
    fn compare_with_earlier_and_keep_length(&mut self, prefill: UnjudgedPrefill) -> Option<SlowPrefill> {
        let UnjudgedPrefill { rid, span, connection, request_hop, ttft_ns } = prefill;
        if span.from < self.known_since {
            // Prefills that are not known may have run beside it.
            return None;
        }
        let length_ns = span.ns();
        let work = self.work_during(span, connection);
        // The usual length for the most work that it can have been. Looked up before its own length is kept, so that it is not compared
        // with itself.
        let usual_ns = self.usual_length_ns(class_of(work.at_most));
        self.keep_length_of_mainly_own_work(length_ns, work);
        let usual_ns = usual_ns?;
        let slow_from_ns = GAP_WARNING_NS.max(usual_ns.saturating_mul(MIN_TIMES_OTHERS));
        if length_ns < slow_from_ns {
            return None;
        }
        let comparison = PrefillComparison { tokens: work.at_most, usual_ns };
        Some(SlowPrefill { rid, span, request_hop, ttft_ns, comparison })
    }

    /// Keeps the length of a prefill with this work, unless most of the work was that of other connections. Those may lead to another
    /// scheduler. The prefill then had little work itself, and its short length would make much work look quick.
    fn keep_length_of_mainly_own_work(&mut self, length_ns: u64, work: PrefillWork) {
        if work.is_mainly_own() {
            let times = 1;
            self.lengths[class_of(work.in_proportion)].record(length_ns, times);
        }
    }

    /// Usual maximum length: nine of ten prefills with work of this class, or of a lower one, are not longer. Each class has twice as many
    /// tokens as the one before (see [`class_of`]). `None` if there are too few prefills of this class to compare with.
    fn usual_length_ns(&self, work_class: usize) -> Option<u64> {
        if self.lengths[work_class].count() < MIN_OTHERS {
            return None;
        }
        // More work takes at least as long as less, so lengths for less work count, too.
        let comparable = self.lengths[..=work_class].iter().filter(|lengths| lengths.count() >= MIN_OTHERS);
        comparable.filter_map(|lengths| lengths.quantile(USUAL_QUANTILE)).max()
    }

    /// Prompt tokens of the known prefills that overlap this time, of all requests and of those on the same connection.
    fn work_during(&self, span: PrefillSpan, connection: SchedulerConnection) -> PrefillWork {
        // The known prefills are sorted by their ends.
        let first = self.known.partition_point(|known| known.span.to <= span.from);
        let mut work = PrefillWork::default();
        for known in self.known.range(first..).filter(|known| known.span.from < span.to) {
            let overlap_ns = known.span.overlap_ns(span);
            // A prefill without length must not divide by zero.
            let length_ns = known.span.ns().max(1);
            // The tokens that it computed in the overlap, if it went on evenly.
            let in_proportion = (u128::from(known.tokens) * u128::from(overlap_ns) / u128::from(length_ns)) as u64;
            // At most, its whole prompt was computed in the overlap.
            work.at_most += u64::from(known.tokens);
            work.in_proportion += in_proportion;
            if known.connection == connection {
                work.own_in_proportion += in_proportion;
            }
        }
        work
    }
}

/// Share of the time in which a thread ran, or waited for a CPU.
fn wanted_share(spent: &TimeUse) -> f64 {
    spent.share(spent.wanted_ns())
}

/// Time use in this span of the thread that wanted a CPU least; `None` without samples of half of the span.
fn time_use_of_idlest_thread<'l>(threads: impl Iterator<Item = &'l Thread>, span: PrefillSpan) -> Option<TimeUse> {
    let uses = threads.filter_map(|thread| thread.use_between(span.from, span.to));
    let sampled_long = uses.filter(|spent| spent.interval_ns >= span.ns() / 2);
    sampled_long.min_by(|one, other| wanted_share(one).total_cmp(&wanted_share(other)))
}

/// The prefill of a request, with the tokens of its prompt that were not cached. `None` if a time of it, or that number, is unknown.
fn prefill_of(request: &Request) -> Option<Prefill> {
    let times = request.engine_times().unwrap_or_default();
    let prompt_tokens = request.prompt_tokens.or(request.dispatch().and_then(|dispatch| dispatch.prompt_tokens))?;
    let tokens = prompt_tokens.saturating_sub(request.cached_tokens?);
    // A first chunk with one token is sent as soon as the prefill ends. One with more tokens was decoded for a while before.
    let ends_at_first_send = request.starts_with_one_token;
    let first_send = if ends_at_first_send { request.sent_first } else { None };
    let end = times.prefill_finished.or(first_send)?;
    let span = PrefillSpan { from: times.batch_entered?, to: end };
    Some(Prefill { span, tokens, connection: SchedulerConnection::of_request(request) })
}

impl Ledger {
    /// Keeps the prefill of a request whose first chunk was observed, to compare others with it. If its length or work is unknown, nothing
    /// that ran beside it is judged.
    pub(super) fn record_prefill(&mut self, rid: &str) {
        let prefills = &mut self.ttft.late_legs.prefills;
        let Some(request) = self.table.ticket_of(rid).and_then(|ticket| self.table.get(ticket)) else { return };
        if let Some(prefill) = prefill_of(request) {
            let is_evicted_needed = prefills.add_known_and_check_evicted_needed(prefill, self.limits.prefills);
            if is_evicted_needed {
                self.limits.count_reached("prefills");
            }
        } else {
            // An unknown prefill may have run beside others and slowed them.
            prefills.mark_unknown_until(request.sent_first.unwrap_or(self.now));
        }
    }

    /// Judges each prefill that ended before the dispatch of the oldest request that still waits for its first chunk. Every prefill that
    /// can have run beside it is known by then.
    pub(super) fn judge_prefills(&mut self, now: MonoNs) {
        let missed_messages = self.hops.missed_messages();
        self.ttft.late_legs.prefills.update_missed_messages(now, missed_messages);
        // A silence that may still be confirmed would explain a slow prefill.
        if self.silences.is_undecided(now) {
            return;
        }
        // Requests that wait for their first chunk are sorted by their dispatch.
        let oldest_unanswered = self.dispatched.waiting.values().next().map_or(now, |oldest| oldest.times.sent);
        // A request without an answer for this long is not waited for: its prefill has not begun.
        let until = oldest_unanswered.max(MonoNs(now.0.saturating_sub(MAX_UNANSWERED_NS)));
        while let Some(prefill) = self.ttft.late_legs.prefills.take_unjudged(until) {
            if let Some(slow) = self.ttft.late_legs.prefills.compare_with_earlier_and_keep_length(prefill) {
                self.judge_slow_prefill(&slow);
            }
        }
    }

    /// Records a slow prefill: as one that a silence of the engine explains, or else as slow beside others. If its scheduler was stopped
    /// meanwhile, nothing is recorded.
    fn judge_slow_prefill(&mut self, slow: &SlowPrefill) {
        if self.silences.explains(slow.span.from, slow.span.to) {
            self.ttft.late_legs.silenced.record_silenced_request(&slow.to_late_request());
            return;
        }
        let scheduler_use = self.scheduler_time_use_during(slow);
        // A stopped scheduler computes nothing, and a prefill server has no streams whose silence would show it.
        let was_stopped = scheduler_use.is_some_and(|spent| wanted_share(&spent) < MIN_WANTED_SHARE);
        if !was_stopped {
            self.ttft.late_legs.record_slow_prefill(slow, scheduler_use);
        }
    }

    /// Time use of the scheduler's main thread in a prefill; that of the idlest main thread if it is not known which scheduler computed the
    /// prefill. `None` if samples cover less than half of the prefill.
    fn scheduler_time_use_during(&self, slow_prefill: &SlowPrefill) -> Option<TimeUse> {
        // The schedulers that may have received its message; all of them if its hop is not known.
        let hops_into_scheduler = self.hops.all.iter().filter(|hop| hop.carries_requests && !hop.forwards_requests);
        let request_hops =
            hops_into_scheduler.filter(|hop| slow_prefill.request_hop.is_none_or(|request_hop| hop.id == request_hop));
        let receivers = request_hops.filter_map(Hop::receiving_thread);
        let main_threads = receivers.filter_map(|receiver| self.main_thread_beside(receiver));
        if let Some(spent) = time_use_of_idlest_thread(main_threads, slow_prefill.span) {
            return Some(spent);
        }
        // If that gives no time use, falls back to all processes that send output: they are schedulers.
        let all_schedulers = self.threads.all.iter().filter(|thread| self.is_main_of_scheduler(thread));
        time_use_of_idlest_thread(all_schedulers, slow_prefill.span)
    }

    /// Whether it is the main thread of a process that sends output of its own.
    fn is_main_of_scheduler(&self, thread: &Thread) -> bool {
        let mut origins = self.hops.all.iter().filter(|hop| hop.origin && !hop.carries_requests);
        thread.part == Some(ThreadPart::Main) && origins.any(|hop| self.hops.groups[hop.group].ends.from == thread.role)
    }

    /// Main thread of the process of a thread: some engines receive requests on a thread that does nothing else.
    fn main_thread_beside(&self, id: ThreadId) -> Option<&Thread> {
        let mut process_threads = self.threads.all.iter().filter(|thread| thread.id.pid == id.pid);
        process_threads.find(|thread| thread.part == Some(ThreadPart::Main))
    }
}
