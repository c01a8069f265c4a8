//! Requests that the scheduler does not answer although it answers later ones.
//!
//! A request in a first-come-first-served queue is not counted: it must have been overtaken by a later one of its hop, and then wait far
//! longer than those that are answered meanwhile. The time counts only while the engine sends output, and not after a missed message. An
//! engine that runs nothing else sends no output: there, a health check that was sent that long after the request, and answered, has
//! overtaken it.

use hashbrown::HashMap;

use super::Ledger;
use super::dispatched::{UNJUDGED, WaitingRequest};
use super::engine_silence::MIN_TIMES_USUAL;
use super::request::RequestNumbers;
use super::request_details::RequestDispatch;
use crate::clock::MonoNs;
use crate::id::HopId;

/// Minimum time without an answer after a later request was answered.
pub(crate) const UNANSWERED_NS: u64 = 30_000_000_000;
/// Time allowed for the prefill of each token of the prompt: short prompts may overtake a long one.
pub(crate) const PREFILL_NS_PER_TOKEN: u64 = 1_000_000;
/// How many times the usual wait of the run a request must wait that an idle engine does not answer.
const MIN_TIMES_USUAL_IDLE: u64 = 3;
/// Quantile of the waits of answered requests that counts as usual.
const USUAL_QUANTILE: f64 = 0.99;
/// Interval between judgements.
const JUDGE_EVERY_NS: u64 = 1_000_000_000;

/// A request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnansweredRequest<'a> {
    /// The engine's request id.
    pub rid: &'a str,
    /// Its dispatch.
    pub dispatch: RequestDispatch,
    /// Number of requests of its hop answered since a later one was.
    pub answered_since: u64,
    /// Hop of its message.
    pub hop: HopId,
}

impl UnansweredRequest<'_> {
    /// The request's numbers at `now`, as those of a request with chunks.
    pub fn numbers(&self, now: MonoNs) -> RequestNumbers {
        let RequestDispatch { sent, prompt_tokens, .. } = self.dispatch;
        RequestNumbers {
            first_at: sent,
            last_at: now,
            dispatch: Some(self.dispatch),
            prompt_tokens,
            ..RequestNumbers::default()
        }
    }
}

/// Time allowed for the prefills of prompts with this number of tokens.
fn prefill_ns(tokens: u64) -> u64 {
    tokens.saturating_mul(PREFILL_NS_PER_TOKEN)
}

impl Ledger {
    /// Requests that the scheduler does not answer although it answers later ones, oldest first.
    pub fn unanswered_requests(&self) -> impl Iterator<Item = UnansweredRequest<'_>> {
        let missed = self.hops.missed_messages();
        let unanswered = self.dispatched.waiting.values().filter(move |waiting| {
            // Messages missed since its dispatch may contain the answer.
            let has_missed_messages = waiting.missed_before != missed;
            // No answer is expected of an aborted request.
            let is_aborted = waiting.abort.is_some();
            waiting.is_unanswered && !is_aborted && !has_missed_messages
        });
        unanswered.map(move |waiting| {
            let hop = waiting.message.hop;
            // Number of requests answered since a later one overtook this one.
            let answered_since =
                waiting.overtaken.map_or(0, |progress| self.answered_requests(hop) - progress.answered);
            UnansweredRequest { rid: &waiting.rid, dispatch: waiting.times, answered_since, hop }
        })
    }

    fn answered_requests(&self, hop: HopId) -> u64 {
        self.dispatched.answered.get(&hop).map_or(0, |answered| answered.count)
    }

    /// Longest usual time from the dispatch on this hop to the first chunk, in the last ten seconds; `None` without an answered request.
    pub(crate) fn usual_first_chunk_wait_ns(&self, hop: HopId, now: MonoNs) -> Option<u64> {
        self.dispatched.answered.get(&hop)?.first_chunk_waits.recent_quantile(USUAL_QUANTILE, now)
    }

    /// Finds requests that have waited for too long, once a second.
    pub(super) fn judge_unanswered_requests(&mut self, now: MonoNs) {
        let dispatched = &self.dispatched;
        let is_due = dispatched.judged_at.is_none_or(|at| now.since(at) >= JUDGE_EVERY_NS);
        let oldest = dispatched.waiting.values().next();
        if !is_due || oldest.is_none_or(|oldest| now.since(oldest.times.sent) < UNANSWERED_NS) {
            return;
        }
        self.dispatched.judged_at = Some(now);
        // Nothing is judged if answers may be on a hop beyond the limit. Nor if several schedulers share a socket: a later request that was
        // answered may have gone to another one.
        if self.has_unseen_hops() || !self.hops.each_scheduler_has_request_hop() {
            return;
        }
        for number in self.overdue_request_numbers(now) {
            self.mark_unanswered_if_without_chunks(number);
        }
    }

    /// Numbers of the dispatched requests that have waited for their first chunk for too long, although the scheduler answered later ones.
    fn overdue_request_numbers(&self, now: MonoNs) -> Vec<u64> {
        // The wait that is too long, by hop; `None` if requests on the hop cannot be judged now.
        let mut shortest_waits_ns: HashMap<HopId, Option<u64>> = HashMap::new();
        let missed = self.hops.missed_messages();
        let waiting_prefill_ns = self.waiting_prefill_ns();
        let mut overdue = Vec::new();
        for (&number, waiting) in &self.dispatched.waiting {
            // Sorted by dispatch, oldest first, so all further ones have waited for a shorter time.
            if now.since(waiting.times.sent) < UNANSWERED_NS {
                break;
            }
            // Messages missed since its dispatch may contain the answer.
            if waiting.missed_before != missed {
                continue;
            }
            if self.is_overtaken_by_health_check(waiting, waiting_prefill_ns) {
                overdue.push(number);
                continue;
            }
            // Judged from when a later request of the same hop had its first chunk. `overtaken`: the engine's progress at that time.
            let Some(overtaken) = waiting.overtaken else { continue };
            let hop = waiting.message.hop;
            let shortest_wait_ns =
                *shortest_waits_ns.entry(hop).or_insert_with(|| self.shortest_unanswered_wait_ns(hop, now));
            let Some(shortest_wait_ns) = shortest_wait_ns else { continue };
            // Of the time since then, only that in which the engine sends output counts.
            let busy_ns_since = self.dispatched.busy_ns - overtaken.busy_ns;
            let own_prefill_ns = prefill_ns(waiting.times.prompt_tokens.unwrap_or(0).into());
            if busy_ns_since >= shortest_wait_ns.saturating_add(own_prefill_ns) {
                overdue.push(number);
            }
        }
        overdue
    }

    /// Time that the engine may need for the prompts of all requests without a chunk, of which no output shows yet.
    fn waiting_prefill_ns(&self) -> u64 {
        let prompts = self.dispatched.waiting.values().filter_map(|waiting| waiting.times.prompt_tokens);
        prefill_ns(prompts.map(u64::from).sum())
    }

    /// Marks the dispatched request with this number as unanswered, unless it has chunks.
    fn mark_unanswered_if_without_chunks(&mut self, request_number: u64) {
        let Some(waiting) = self.dispatched.waiting.get_mut(&request_number) else { return };
        if self.table.ticket_of(&waiting.rid).is_some() {
            // It has chunks, which were not recognised as its answer. This value equals no number of missed messages, so the request is
            // never judged again.
            waiting.missed_before = UNJUDGED;
            return;
        }
        if !waiting.is_unanswered {
            waiting.is_unanswered = true;
            // No answer is expected of an aborted request.
            self.totals.dispatched.unanswered += u64::from(waiting.abort.is_none());
        }
    }

    /// Whether the scheduler answered a health check that was dispatched far later than this request, while it ran nothing else. Such a
    /// scheduler is idle, and has forgotten the request. `waiting_prefill_ns`: time for the prompts of all requests without output.
    fn is_overtaken_by_health_check(&self, waiting_request: &WaitingRequest, waiting_prefill_ns: u64) -> bool {
        let hop = waiting_request.message.hop;
        let Some(&check_sent) = self.dispatched.idle_checks.get(&hop) else { return false };
        let answered_on_hop = self.dispatched.answered.get(&hop);
        let usual_ns = answered_on_hop.and_then(|answered| answered.first_chunk_waits.whole().quantile(USUAL_QUANTILE));
        let shortest_delay_ns = UNANSWERED_NS.max(usual_ns.unwrap_or(0).saturating_mul(MIN_TIMES_USUAL_IDLE));
        // A request that was not received has not been forgotten: it may still be queued.
        waiting_request.times.received.is_some()
            && check_sent.since(waiting_request.times.sent) >= shortest_delay_ns.saturating_add(waiting_prefill_ns)
    }

    /// Shortest wait, in nanoseconds, after which a request of this hop (channel to the scheduler) counts as unanswered. The time for the
    /// request's own prompt comes on top. `None` without a usual wait. Also `None` if the hop's receives are not observed: the scheduler
    /// may then run on another machine, where its output is not observed either.
    fn shortest_unanswered_wait_ns(&self, hop: HopId, now: MonoNs) -> Option<u64> {
        let observes_receives = self.hops.get(hop).is_some_and(|hop| hop.counts.frames_received > 0);
        if !observes_receives {
            return None;
        }
        let usual_ns = self.usual_first_chunk_wait_ns(hop, now)?;
        Some(UNANSWERED_NS.max(usual_ns.saturating_mul(MIN_TIMES_USUAL)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::event::{
        Capabilities, Chunk, Dispatch, DispatchKind, DispatchedRequest, Event, Finish, Hop, IdColumn, Missed,
        MissedCause, Received, What,
    };
    use crate::id::{FrameId, HopId};
    use crate::ledger::test_path::Path;

    const REQUESTS: HopId = HopId(7);
    /// From the same tokenizer to another scheduler.
    const OTHER_REQUESTS: HopId = HopId(8);
    const MS: u64 = 1_000_000;

    /// An engine, and the number of the next message to it.
    struct Engine {
        path: Path,
        next: u64,
        /// Number of chunks of the stream that runs all the time.
        chunks: u32,
        /// Hop of further messages to it.
        requests: HopId,
    }

    impl Engine {
        fn new() -> Self {
            let mut path = Path { step_ns: MS, ..Path::new(Config::default()) };
            path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::SENT | Capabilities::RECEIVED);
            let (both, mut next) = (Capabilities::SENT | Capabilities::RECEIVED, 0);
            for requests in [REQUESTS, OTHER_REQUESTS] {
                path.apply(What::Hop(Hop::with_requests(requests, "tokenizer->scheduler", both)));
                let id = FrameId::new(requests, 0, next);
                let control = Dispatch { id, bytes: 90, kind: DispatchKind::Control, index: 0, request: None };
                path.apply(What::Dispatched(control));
                path.apply(What::Received(Received::new(id)));
                next += 1;
            }
            Self { path, next, chunks: 0, requests: REQUESTS }
        }

        fn send(&mut self, kind: DispatchKind, rid: Option<&str>) {
            let request = rid.map(|rid| DispatchedRequest { prompt_tokens: Some(50), ..DispatchedRequest::new(rid) });
            let id = FrameId::new(self.requests, 0, self.next);
            self.next += 1;
            let dispatch = Dispatch { id, bytes: 900, kind, index: 0, request };
            self.path.analysis.apply(&Event::new(MonoNs(self.path.now), What::Dispatched(dispatch)));
        }

        fn dispatch(&mut self, rid: &str) {
            self.send(DispatchKind::Requests, Some(rid));
        }

        fn answer(&mut self, rid: &str) {
            self.path.send(0, IdColumn::Delta, &[Chunk::counted(rid, 1, 1)]);
        }

        /// A request each second, answered after this time, while a stream gets tokens.
        fn serve(&mut self, seconds: u64, wait_ms: u64) {
            for _ in 0..seconds {
                let rid = format!("served {}", self.next);
                self.dispatch(&rid);
                for step in 0..10 {
                    self.stream();
                    if step == wait_ms / 100 {
                        self.answer(&rid);
                    }
                }
            }
        }

        /// 100 ms in which the stream gets a token.
        fn stream(&mut self) {
            self.path.now += 99 * MS;
            self.chunks += 1;
            self.path.send(0, IdColumn::Delta, &[Chunk::counted("stream", 1, self.chunks)]);
            self.path.analysis.tick(MonoNs(self.path.now));
        }

        fn unanswered(&self) -> Vec<&str> {
            self.path.ledger().unanswered_requests().map(|request| request.rid).collect()
        }
    }

    #[test]
    fn a_request_is_unanswered_after_later_ones_were_answered_for_half_a_minute() {
        let mut engine = Engine::new();
        engine.serve(5, 0);
        engine.dispatch("lost");
        engine.serve(29, 0);
        assert!(engine.unanswered().is_empty());
        engine.serve(3, 0);
        assert_eq!(engine.unanswered(), ["lost"]);
        let ledger = engine.path.ledger();
        let lost = ledger.unanswered_requests().next().expect("one");
        assert_eq!((lost.answered_since, lost.dispatch.prompt_tokens, lost.dispatch.received), (32, Some(50), None));
        assert_eq!(ledger.totals().dispatched.unanswered, 1);
        engine.answer("lost");
        assert!(engine.unanswered().is_empty());
        assert_eq!(engine.path.ledger().totals().dispatched.unanswered, 1, "the count includes past ones");
    }

    #[test]
    fn requests_of_another_scheduler_do_not_overtake() {
        let mut engine = Engine::new();
        engine.dispatch("queued");
        engine.requests = OTHER_REQUESTS;
        engine.serve(60, 0);
        assert!(engine.unanswered().is_empty());
        engine.dispatch("lost");
        engine.serve(60, 0);
        assert_eq!(engine.unanswered(), ["lost"]);
        // One socket that reaches several schedulers does not show which of them has a request.
        for hop in [1, 2] {
            engine.path.announce(hop, "scheduler->tokenizer", [true, true], Capabilities::SENT);
        }
        engine.dispatch("of any");
        engine.serve(60, 0);
        assert!(engine.unanswered().is_empty());
    }

    #[test]
    fn a_chunk_behind_an_unobserved_scheduler_is_an_answer() {
        let mut engine = Engine::new();
        engine.path.announce(1, "detokenizer->tokenizer", [false, true], Capabilities::SENT | Capabilities::RECEIVED);
        for _ in 0..50 {
            let rid = format!("remote {}", engine.next);
            engine.dispatch(&rid);
            let finish = Some(Finish::Stop);
            engine.path.send(1, IdColumn::Delta, &[Chunk { finish, ..Chunk::counted(&rid, 1, 1) }]);
            engine.serve(1, 0);
        }
        assert!(engine.unanswered().is_empty());
        assert_eq!(engine.path.ledger().dispatched_count(), 0);
    }

    #[test]
    fn nothing_is_said_where_receives_are_not_observed() {
        let mut engine = Engine::new();
        engine.requests = HopId(9);
        engine.path.apply(What::Hop(Hop::with_requests(HopId(9), "tokenizer->scheduler", Capabilities::SENT)));
        engine.dispatch("lost");
        engine.serve(60, 0);
        assert!(engine.unanswered().is_empty());
    }

    #[test]
    fn a_request_in_a_queue_is_not_unanswered() {
        let mut engine = Engine::new();
        engine.serve(5, 0);
        // Nobody overtakes it, and then those that do wait for so long that its own wait is usual.
        engine.dispatch("first");
        (0..400).for_each(|_| engine.stream());
        assert!(engine.unanswered().is_empty(), "no other was answered");
        let mut engine = Engine::new();
        engine.dispatch("queued");
        for n in 0..60 {
            engine.dispatch(&format!("later {n}"));
            engine.serve(1, 0);
            if n >= 10 {
                engine.answer(&format!("later {}", n - 10));
            }
        }
        assert!(engine.unanswered().is_empty(), "others wait for ten seconds, it for sixty");
    }

    #[test]
    fn an_abort_ends_the_wait() {
        // The ids that begin with an abort's id are aborted, too.
        for abort in [Some("lost"), Some("lo"), None] {
            let mut engine = Engine::new();
            engine.dispatch("lost");
            engine.serve(40, 0);
            assert_eq!(engine.unanswered(), ["lost"]);
            engine.send(DispatchKind::Aborts, abort);
            engine.serve(40, 0);
            assert!(engine.unanswered().is_empty(), "{abort:?}");
            assert_eq!(engine.path.ledger().dispatched_count(), 0);
        }
    }

    #[test]
    fn the_time_of_a_silent_engine_and_of_missed_observations_does_not_count() {
        let mut engine = Engine::new();
        engine.dispatch("waits");
        engine.serve(2, 0);
        engine.path.wait(60);
        engine.serve(20, 0);
        assert!(engine.unanswered().is_empty());
        engine.path.apply(What::Missed(Missed { hop: None, count: 1, cause: MissedCause::QueueFull }));
        engine.serve(60, 0);
        assert!(engine.unanswered().is_empty(), "its first chunk may be among them");
        engine.dispatch("lost");
        engine.serve(40, 0);
        assert_eq!(engine.unanswered(), ["lost"]);
        for hop in [HopId(0), REQUESTS] {
            engine.path.apply(What::Missed(Missed { hop: Some(hop), count: 1, cause: MissedCause::QueueFull }));
            assert!(engine.unanswered().is_empty(), "its first chunk or its abort may have been missed");
        }
    }

    #[test]
    fn a_rid_in_use_twice_is_not_unanswered() {
        let mut engine = Engine::new();
        engine.serve(1, 0);
        engine.dispatch("stream");
        engine.serve(60, 0);
        assert!(engine.unanswered().is_empty());
    }
}
