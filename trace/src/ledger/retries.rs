//! Attempts that the abort of an earlier attempt with their rid ended.
//!
//! Some engines abort a request by its rid a fixed time after its response ended, in case that its client left. Another attempt with the
//! rid that runs by then is ended instead. An abort counts as one of the earlier attempt only if it is sent at that time after its end, and
//! nothing with the rid has ended since: a client that aborts its own request does so at any time. The end is that of the response, or of
//! the request if its response never began.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::Ledger;
use super::early_deliveries::hash_rid;
use super::limits::push_bounded;
use super::request_details::RequestDispatch;
use crate::clock::MonoNs;
use crate::event::Finish;

/// Maximum number of ended requests, and of retries. The oldest are dropped beyond it.
const MAX_FOLLOWED: usize = 4_096;
/// Maximum number of ended retries kept with their times; the oldest is evicted.
const MAX_KEPT: usize = 16;
/// How much sooner than at the engine's time after the end an abort may be sent: both times are observed from outside.
const MAX_EARLY_NS: u64 = 50_000_000;
/// How much later it may be sent: the process that sends it is busy.
const MAX_LATE_NS: u64 = 500_000_000;

/// Signs that an attempt ended: its abort, its last chunk, the end of its response.
#[derive(Clone, Copy, Debug)]
struct AttemptEnd {
    first_at: MonoNs,
    last_at: MonoNs,
}

impl AttemptEnd {
    /// Whether an abort at this time is that which the engine sends `abort_delay_ns` after the end.
    fn is_followed_by_abort(self, abort_at: MonoNs, abort_delay_ns: u64) -> bool {
        let since_first_ns = abort_at.since(self.first_at);
        since_first_ns + MAX_EARLY_NS >= abort_delay_ns && !self.is_abort_past(abort_at, abort_delay_ns)
    }

    /// Whether the abort that the engine sends `abort_delay_ns` after the end is still to come, and it is known when.
    fn awaits_abort(self, now: MonoNs, abort_delay_ns: u64) -> bool {
        let is_abort_to_come = self.last_at <= now && !self.is_abort_past(now, abort_delay_ns);
        // If the signs of the end came far apart, it is not known from which one the engine counts.
        let has_certain_end = self.last_at.since(self.first_at) <= MAX_LATE_NS;
        is_abort_to_come && has_certain_end
    }

    /// Whether the abort that the engine sends `delay_ns` after the end was sent before `now`.
    fn is_abort_past(self, now: MonoNs, delay_ns: u64) -> bool {
        now.since(self.last_at) > delay_ns + MAX_LATE_NS
    }
}

/// An attempt that was dispatched shortly after the end of an earlier one with its rid.
#[derive(Debug)]
struct Retry {
    rid: Box<str>,
    dispatched: MonoNs,
    earlier: AttemptEnd,
    /// When the abort of the earlier attempt was sent.
    aborted: Option<MonoNs>,
    /// Something of its response was written, so that a client that leaves is seen to leave.
    has_response: bool,
    /// It ended by an abort.
    has_ended: bool,
}

impl Retry {
    /// A retry that has been dispatched only, after this end of an earlier attempt.
    fn new(rid: &str, dispatched: MonoNs, earlier: AttemptEnd) -> Self {
        Self { rid: rid.into(), dispatched, earlier, aborted: None, has_response: false, has_ended: false }
    }
}

/// A retry that the abort of an earlier attempt ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AbortedRetry {
    /// The engine's request id of both attempts.
    pub rid: Box<str>,
    /// When the earlier attempt ended.
    pub earlier_ended: MonoNs,
    /// When the retry was sent to the scheduler.
    pub dispatched: MonoNs,
    /// When the abort was sent.
    pub aborted: MonoNs,
}

/// Retries that aborts of earlier attempts ended, and those that may still be.
#[derive(Debug, Default)]
pub(super) struct Retries {
    /// End of the latest attempt that has ended, by the hash of its rid. Without those of attempts before one in `followed`.
    ended: HashMap<u64, AttemptEnd>,
    followed: VecDeque<Retry>,
    aborted: u64,
    first_aborted_at: Option<MonoNs>,
    latest: VecDeque<AbortedRetry>,
}

impl Retries {
    /// Records the end of a response, from which on the engine waits.
    fn record_response_end(&mut self, at: MonoNs, rid: &str, delay_ns: u64) {
        self.record_sign_of_attempt_end(at, rid, delay_ns);
        self.ended.insert(hash_rid(rid), AttemptEnd { first_at: at, last_at: at });
    }

    /// Makes room for the end of another attempt.
    fn make_room_for_end(&mut self, at: MonoNs, abort_delay_ns: u64) {
        if self.ended.len() < MAX_FOLLOWED {
            return;
        }
        // An end whose abort is past ends no retry any more.
        self.ended.retain(|_, end| !end.is_abort_past(at, abort_delay_ns));
        if self.ended.len() >= MAX_FOLLOWED {
            // Retries of these attempts will not be recognised. That hides findings, but makes no false ones.
            self.ended.clear();
        }
    }

    /// Records a sign that the latest attempt with this rid has ended: its abort, its last chunk, or the end of its response. The engine
    /// sends an abort with the rid `abort_delay_ns` later.
    pub(super) fn record_sign_of_attempt_end(&mut self, at: MonoNs, rid: &str, abort_delay_ns: u64) {
        self.make_room_for_end(at, abort_delay_ns);
        let end = self.ended.entry(hash_rid(rid)).or_insert(AttemptEnd { first_at: at, last_at: at });
        // A sign after the abort of an earlier attempt is the first one of another attempt.
        if end.is_abort_past(at, abort_delay_ns) {
            end.first_at = at;
        }
        end.last_at = end.last_at.max(at);
    }

    /// Removes and returns the followed retry with this rid.
    fn remove_followed(&mut self, rid: &str) -> Option<Retry> {
        let index = self.followed.iter().position(|retry| &*retry.rid == rid)?;
        self.followed.remove(index)
    }

    /// Records the dispatch of a request, and follows it as a retry if the abort of an earlier attempt with its rid is still to come. The
    /// engine sends that abort `abort_delay_ns` after the end of the attempt.
    fn record_dispatch_and_follow_retry(&mut self, at: MonoNs, rid: &str, abort_delay_ns: u64) {
        // This dispatch replaces an earlier retry with its rid.
        self.remove_followed(rid);
        // Until an attempt has ended, no rid needs to be hashed.
        if self.ended.is_empty() {
            return;
        }
        let Some(earlier) = self.ended.remove(&hash_rid(rid)) else { return };
        if earlier.awaits_abort(at, abort_delay_ns) {
            push_bounded(&mut self.followed, Retry::new(rid, at, earlier), MAX_FOLLOWED);
        }
    }

    /// Records an abort with this rid. A followed retry stays followed if the abort is for the earlier attempt, but ends the retry. The
    /// time shows that: the abort is sent when that of the earlier attempt is due. Otherwise the abort is for the retry itself, which is
    /// not followed any more.
    fn record_abort_of_attempt(&mut self, at: MonoNs, rid: &str, abort_delay_ns: u64) {
        if let Some(retry) = self.remove_followed(rid) {
            // The abort does not name its attempt, so its time decides.
            let is_abort_of_earlier = retry.earlier.is_followed_by_abort(at, abort_delay_ns);
            // The dispatch of the retry has removed the end of the earlier attempt, so this is an end since then.
            let has_ended_since_dispatch = self.ended.contains_key(&hash_rid(rid));
            // With a second abort, it is not known which of the two ended the retry.
            let is_first_abort = retry.aborted.is_none();
            if is_abort_of_earlier && is_first_abort && !has_ended_since_dispatch {
                push_bounded(&mut self.followed, Retry { aborted: Some(at), ..retry }, MAX_FOLLOWED);
            }
        }
        self.record_sign_of_attempt_end(at, rid, abort_delay_ns);
    }

    /// Forgets the retries: an abort without a rid is of all requests.
    pub(super) fn record_abort_of_all(&mut self) {
        self.followed.clear();
    }

    /// Records the end of a request with this dispatch, which may be a followed retry.
    pub(super) fn record_finish_of_retry(&mut self, rid: &str, dispatch: Option<RequestDispatch>, finish: Finish) {
        // Nearly every finish is not that of a retry.
        if self.followed.is_empty() {
            return;
        }
        // The rid alone does not show which attempt ended: the earlier one may end, too.
        let is_of_retry =
            |retry: &Retry| &*retry.rid == rid && dispatch.is_some_and(|dispatch| dispatch.sent == retry.dispatched);
        let Some(index) = self.followed.iter().position(is_of_retry) else { return };
        if self.followed[index].aborted.is_none() || finish != Finish::Abort {
            // No abort of an earlier attempt ended it.
            self.followed.remove(index);
            return;
        }
        self.followed[index].has_ended = true;
        self.count_retry_if_client_waited(index);
    }

    /// Records that a part of a response was written, so that its client waits for it. Before that, an abort of a retry may be due to a
    /// client that has left.
    pub(super) fn record_response_of_retry(&mut self, at: MonoNs, rid: &str) {
        // Nearly every response is not that of a retry.
        if self.followed.is_empty() {
            return;
        }
        let is_of_retry = |retry: &Retry| *retry.rid == *rid && retry.dispatched <= at;
        if let Some(index) = self.followed.iter().position(is_of_retry) {
            self.followed[index].has_response = true;
            self.count_retry_if_client_waited(index);
        }
    }

    /// Counts the followed retry (a later attempt with the rid of an earlier one) at this index, if the abort of the earlier attempt has
    /// ended it while its own client waited for it. A counted retry is not followed any more.
    fn count_retry_if_client_waited(&mut self, retry_index: usize) {
        let Some(retry) = self.followed.get(retry_index) else { return };
        // Until its response begins, a client that leaves is not seen to leave, and may have caused the abort.
        let is_known_to_have_client = retry.has_response;
        if !retry.has_ended || !is_known_to_have_client {
            return;
        }
        let Some(aborted_at) = retry.aborted else { return };
        let Some(Retry { rid, dispatched, earlier, .. }) = self.followed.remove(retry_index) else { return };
        self.aborted += 1;
        self.first_aborted_at.get_or_insert(aborted_at);
        let retry = AbortedRetry { rid, earlier_ended: earlier.last_at, dispatched, aborted: aborted_at };
        push_bounded(&mut self.latest, retry, MAX_KEPT);
    }
}

impl Ledger {
    /// Records the end of a response, which may end a later retry with its rid, if the engine sends an abort after each response.
    pub(super) fn record_response_end_for_retries(&mut self, at: MonoNs, rid: &str) {
        if let Some(delay_ns) = self.engine.facts().abort_delay_ns() {
            self.retries.record_response_end(at, rid, delay_ns);
        }
    }

    /// Records a dispatch, which may be a retry, if the engine sends an abort after each response.
    pub(super) fn record_dispatch_for_retries(&mut self, at: MonoNs, rid: &str) {
        if let Some(delay_ns) = self.engine.facts().abort_delay_ns() {
            self.retries.record_dispatch_and_follow_retry(at, rid, delay_ns);
        }
    }

    /// Records an abort, which may end a retry, if the engine sends one after each response.
    pub(super) fn record_abort_for_retries(&mut self, at: MonoNs, rid: &str) {
        if let Some(delay_ns) = self.engine.facts().abort_delay_ns() {
            self.retries.record_abort_of_attempt(at, rid, delay_ns);
        }
    }

    /// Number of retries that aborts of earlier attempts with their rid ended.
    pub fn aborted_retry_count(&self) -> u64 {
        self.retries.aborted
    }

    /// When the abort of the first of them was sent; `None` without any.
    pub fn first_aborted_retry_at(&self) -> Option<MonoNs> {
        self.retries.first_aborted_at
    }

    /// The latest of them, oldest first.
    pub fn aborted_retries(&self) -> impl DoubleEndedIterator<Item = &AbortedRetry> {
        self.retries.latest.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::engine::example;
    use crate::event::{
        Answer, AnswerEnd, Capabilities, Chunk, Dispatch, DispatchKind, DispatchedRequest, Event, Hop, IdColumn, Kind,
        What,
    };
    use crate::id::{FrameId, HopId};
    use crate::ledger::test_path::Path;

    const REQUESTS: HopId = HopId(7);
    const FORWARDED: HopId = HopId(8);
    const MS: u64 = 1_000_000;

    /// An engine with one request, `a`, whose response ends at 1 s.
    struct Engine {
        path: Path,
        messages: u64,
    }

    impl Engine {
        fn new() -> Self {
            let mut path = Path { step_ns: 1, ..Path::new(Config { engines: example::ENGINES, ..Config::default() }) };
            let observed = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::DELIVERED;
            path.announce(0, "scheduler->tokenizer", [true, true], observed);
            path.apply(What::Hop(Hop::with_requests(REQUESTS, "tokenizer->scheduler", Capabilities::SENT)));
            let mut engine = Self { path, messages: 0 };
            engine.dispatch(500, DispatchKind::Requests, Some("a"));
            engine.send(700, 1, None);
            engine.send(900, 2, Some(Finish::Length));
            engine.path.deliver(2, Some(2), true);
            engine.answer(1_000, AnswerEnd::Whole);
            engine
        }

        fn at(&mut self, ms: u64) -> &mut Path {
            self.path.now = ms * MS;
            self.path.analysis.tick(MonoNs(ms * MS));
            &mut self.path
        }

        fn dispatch(&mut self, ms: u64, kind: DispatchKind, rid: Option<&str>) {
            self.dispatch_on(REQUESTS, ms, kind, rid);
        }

        fn dispatch_on(&mut self, hop: HopId, ms: u64, kind: DispatchKind, rid: Option<&str>) {
            let request = rid.map(DispatchedRequest::new);
            let id = FrameId::new(hop, 0, self.messages);
            self.messages += 1;
            let what = What::Dispatched(Dispatch { id, bytes: 900, kind, index: 0, request });
            self.at(ms).analysis.apply(&Event::new(MonoNs(ms * MS), what));
        }

        fn send(&mut self, ms: u64, count: u32, finish: Option<Finish>) {
            self.send_chunk(ms, Chunk { finish, ..Chunk::counted("a", 1, count) });
        }

        fn send_chunk(&mut self, ms: u64, chunk: Chunk<'_>) {
            let id = self.at(ms).send(0, IdColumn::Delta, &[chunk]);
            self.path.receive(id);
        }

        /// The client is sent the last event of the retry.
        fn finish_response(&mut self, ms: u64) {
            self.at(ms).deliver(0, Some(2), true);
        }

        fn answer(&mut self, ms: u64, end: AnswerEnd) {
            self.at(ms).apply(What::Answered(Answer { end, ..Answer::new("a", Some(2), None) }));
        }

        fn aborted(&self) -> u64 {
            self.path.ledger().aborted_retry_count()
        }
    }

    const RETRY: DispatchKind = DispatchKind::Requests;
    const ABORT: DispatchKind = DispatchKind::Aborts;

    #[test]
    fn an_attempt_is_aborted_in_place_of_an_earlier_one() {
        let mut engine = Engine::new();
        engine.dispatch(1_200, RETRY, Some("a"));
        engine.send(1_300, 1, None);
        engine.dispatch(3_004, ABORT, Some("a"));
        // A process between the tokenizer and the scheduler sends it again.
        engine.path.apply(What::Hop(Hop::with_requests(REQUESTS, "tokenizer->router", Capabilities::SENT)));
        engine.path.apply(What::Hop(Hop::with_requests(FORWARDED, "router->scheduler", Capabilities::SENT)));
        engine.dispatch_on(FORWARDED, 3_006, ABORT, Some("a"));
        assert_eq!(engine.aborted(), 0);
        engine.send(3_010, 2, Some(Finish::Abort));
        engine.finish_response(3_020);
        let retry = AbortedRetry {
            rid: "a".into(),
            earlier_ended: MonoNs(1_000 * MS),
            dispatched: MonoNs(1_200 * MS),
            aborted: MonoNs(3_004 * MS),
        };
        let ledger = engine.path.ledger();
        assert_eq!(ledger.aborted_retries().collect::<Vec<_>>(), [&retry]);
        assert_eq!((ledger.aborted_retry_count(), ledger.first_aborted_retry_at()), (1, Some(retry.aborted)));
    }

    /// The record of the earlier attempt is kept for a while, and is not the retry's.
    #[test]
    fn a_retry_may_be_aborted_before_its_first_chunk() {
        let mut engine = Engine::new();
        engine.dispatch(1_200, RETRY, Some("a"));
        engine.dispatch(2_990, ABORT, Some("a"));
        engine.at(2_995).frame(0, Kind::Abort, IdColumn::Absent, &[Chunk::new("a")]);
        engine.finish_response(2_999);
        let requests = engine.path.ledger().totals().requests;
        assert_eq!((engine.aborted(), requests.seen, requests.aborted), (1, 2, 1));
    }

    #[test]
    fn an_abort_of_the_attempt_itself_is_not_that_of_an_earlier_one() {
        let aborts_at = |ms: u64| {
            let mut engine = Engine::new();
            engine.dispatch(1_200, RETRY, Some("a"));
            engine.send(1_300, 1, None);
            engine.dispatch(ms, ABORT, Some("a"));
            engine.send(ms + 5, 2, Some(Finish::Abort));
            engine.finish_response(ms + 6);
            engine.aborted()
        };
        assert_eq!([2_900, 3_000, 3_400, 3_600].map(aborts_at), [0, 1, 1, 0]);

        let mut engine = Engine::new();
        engine.dispatch(1_020, RETRY, Some("a"));
        engine.send(1_030, 1, None);
        engine.answer(1_040, AnswerEnd::ClientLeft);
        engine.dispatch(3_040, ABORT, Some("a"));
        engine.send(3_045, 2, Some(Finish::Abort));
        assert_eq!(engine.aborted(), 0, "its own client left");
    }

    #[test]
    fn an_attempt_that_goes_on_or_whose_abort_is_ambiguous_is_not_counted() {
        let mut engine = Engine::new();
        engine.dispatch(1_200, RETRY, Some("a"));
        engine.send(1_300, 1, None);
        engine.dispatch(3_000, ABORT, Some("a"));
        engine.send(3_500, 2, Some(Finish::Length));
        assert_eq!(engine.aborted(), 0, "the abort had no effect");

        for other in [None, Some("a")] {
            let mut engine = Engine::new();
            engine.dispatch(1_200, RETRY, Some("a"));
            engine.send(1_300, 1, None);
            engine.dispatch(1_400, ABORT, other);
            engine.dispatch(3_000, ABORT, Some("a"));
            engine.send(3_005, 2, Some(Finish::Abort));
            assert_eq!(engine.aborted(), 0, "{other:?}");
        }
    }

    #[test]
    fn a_rid_that_is_used_again_later_is_another_request() {
        let mut engine = Engine::new();
        engine.dispatch(3_600, RETRY, Some("a"));
        engine.send(3_700, 1, None);
        engine.dispatch(3_800, ABORT, Some("a"));
        engine.send(3_805, 2, Some(Finish::Abort));
        assert_eq!(engine.aborted(), 0);
    }

    /// Its client left before the first byte, as a router does when the prefill server fails, and the engine aborted it.
    #[test]
    fn an_earlier_attempt_need_not_have_a_response() {
        let mut engine = Engine::new();
        engine.dispatch(4_000, RETRY, Some("a"));
        engine.dispatch(7_104, ABORT, Some("a"));
        let end = Chunk { finish: Some(Finish::Abort), ..Chunk::counted("a", 0, 0) };
        // The scheduler's step was long.
        engine.send_chunk(7_171, end);
        engine.dispatch(7_190, RETRY, Some("a"));
        engine.send(7_784, 1, None);
        engine.dispatch(9_106, ABORT, Some("a"));
        assert_eq!(engine.aborted(), 0);
        engine.send(9_166, 2, Some(Finish::Abort));
        engine.finish_response(9_170);
        assert_eq!(engine.aborted(), 1);
    }

    /// The server aborts its request then, and writes nothing.
    #[test]
    fn a_retry_whose_client_leaves_before_its_response_is_not_counted() {
        let mut engine = Engine::new();
        engine.dispatch(1_200, RETRY, Some("a"));
        engine.dispatch(3_100, ABORT, Some("a"));
        engine.at(3_105).frame(0, Kind::Abort, IdColumn::Absent, &[Chunk::new("a")]);
        engine.at(6_000);
        assert_eq!(engine.aborted(), 0);
    }

    #[test]
    fn memory_is_bounded() {
        let mut retries = Retries::default();
        for n in 0..3 * MAX_FOLLOWED as u64 {
            let rid = n.to_string();
            retries.record_sign_of_attempt_end(MonoNs(n), &rid, 10);
            retries.record_dispatch_and_follow_retry(MonoNs(n), &rid, 10);
        }
        assert!(retries.ended.len() <= MAX_FOLLOWED && retries.followed.len() <= MAX_FOLLOWED);
    }
}
