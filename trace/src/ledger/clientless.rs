//! Requests that the scheduler continues although their client left, as frames and responses show.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::Ledger;
use super::dispatched::{AbortMessage, RequestAbort};
use super::request::Request;
use super::stages::{ABANDONED_NS, AbandonedRequest, AbandonedRequests};
use crate::clock::MonoNs;
use crate::id::{FrameId, Ticket};

/// Maximum number of watched requests. The oldest is no longer watched beyond it.
const MAX_WATCHED_REQUESTS: usize = 4_096;
/// Minimum number of chunks of an abandoned request: an abort takes effect after a step or two, however long they are.
const MIN_ABANDONED_CHUNKS: u32 = 3;

/// Requests whose client left, or that the scheduler was asked to abort.
#[derive(Debug, Default)]
pub(super) struct ClientlessRequests {
    /// Requests with a record, oldest first.
    watched: VecDeque<WatchedRequest>,
    /// Requests of each message with aborts whose receive is not observed yet.
    unreceived_aborts: HashMap<FrameId, Vec<Ticket>>,
    /// Abandoned requests without a record.
    closed_requests: AbandonedRequests,
}

/// A request when its client left.
#[derive(Debug)]
struct WatchedRequest {
    ticket: Ticket,
    left_at: MonoNs,
    /// Its client was seen to leave.
    has_client_left: bool,
    abort: Option<RequestAbort>,
    chunks_sent: u32,
    tokens_sent: u32,
    tokens_delivered: u32,
}

impl ClientlessRequests {
    /// Removes and returns what is known of a watched request; `None` if it is not watched.
    fn stop_watching(&mut self, ticket: Ticket) -> Option<WatchedRequest> {
        let index = self.watched.iter().position(|watched| watched.ticket == ticket)?;
        self.watched.remove(index)
    }

    fn watched_mut(&mut self, ticket: Ticket) -> Option<&mut WatchedRequest> {
        self.watched.iter_mut().find(|watched| watched.ticket == ticket)
    }

    /// Records that the scheduler was asked to abort all requests.
    pub(super) fn record_abort_of_all(&mut self, abort: RequestAbort) {
        for watched in &mut self.watched {
            // An abort of the request itself came before, and counts.
            watched.abort.get_or_insert(abort);
        }
    }

    /// Watches a request without a client. Beyond the limit, the oldest one is forgotten.
    fn watch_request(&mut self, request: WatchedRequest) {
        if self.watched.len() == MAX_WATCHED_REQUESTS {
            self.watched.pop_front();
        }
        self.watched.push_back(request);
    }

    /// Watches a request whose first chunk has come although the scheduler was asked to abort it before. Called before that chunk is
    /// counted.
    pub(super) fn watch_aborted(&mut self, ticket: Ticket, first_chunk_at: MonoNs, message: AbortMessage) {
        let AbortMessage { id, abort } = message;
        // No chunk of it is counted yet, so its counts are those of an empty record.
        let empty_request = Request::default();
        self.watch_request(WatchedRequest {
            abort: Some(abort),
            ..WatchedRequest::new(ticket, first_chunk_at, &empty_request)
        });
        self.await_receive_of_abort(ticket, id, abort);
    }

    /// Remembers the message `abort_frame` with an abort of the request until the scheduler receives it, unless it has.
    fn await_receive_of_abort(&mut self, ticket: Ticket, abort_frame: FrameId, abort: RequestAbort) {
        if abort.received.is_some() {
            return;
        }
        // An observed receive removes its entry. So many entries mean that receives are not observed, and none of them is of use.
        if self.unreceived_aborts.len() >= MAX_WATCHED_REQUESTS {
            self.unreceived_aborts.clear();
        }
        self.unreceived_aborts.entry(abort_frame).or_default().push(ticket);
    }

    /// Records the receive of a message, which may contain aborts.
    pub(super) fn record_receive_of_aborts(&mut self, at: MonoNs, frame: FrameId) {
        // Called for every received frame, of which few carry aborts.
        if self.unreceived_aborts.is_empty() {
            return;
        }
        let Some(aborted) = self.unreceived_aborts.remove(&frame) else { return };
        for ticket in aborted {
            if let Some(abort) = self.watched_mut(ticket).and_then(|watched| watched.abort.as_mut()) {
                abort.received = Some(at);
            }
        }
    }
}

impl WatchedRequest {
    /// From when on the scheduler should send nothing more. A request whose client is still there is not abandoned until the scheduler
    /// receives the abort.
    fn abandoned_since(&self) -> MonoNs {
        if !self.has_client_left
            && let Some(abort_received) = self.abort.and_then(|abort| abort.received)
        {
            return self.left_at.max(abort_received);
        }
        self.left_at
    }

    /// A request that counts as left from `left_at` on, with its counts until then. The caller adds the cause: a client that left, or an
    /// abort.
    fn new(ticket: Ticket, left_at: MonoNs, request: &Request) -> Self {
        Self {
            ticket,
            left_at,
            has_client_left: false,
            abort: None,
            chunks_sent: request.chunks_sent,
            tokens_sent: request.tokens_sent,
            tokens_delivered: request.tokens_delivered,
        }
    }
}

impl Ledger {
    /// Watches a request whose client left at `at`, to find out what the scheduler still sends for it. If the request was aborted before
    /// and nothing was delivered since, it counts as left from the abort on.
    pub(super) fn watch_clientless(&mut self, rid: &str, at: MonoNs) {
        let Some((ticket, request)) = self.unfinished_request(rid) else { return };
        let mut watched = WatchedRequest { has_client_left: true, ..WatchedRequest::new(ticket, at, request) };
        if let Some(earlier_watch) = self.clientless.stop_watching(ticket) {
            let was_aborted = earlier_watch.abort.is_some();
            let has_delivery_since = earlier_watch.tokens_delivered != watched.tokens_delivered;
            if was_aborted && !has_delivery_since {
                watched = WatchedRequest { has_client_left: true, ..earlier_watch };
            } else {
                watched.abort = earlier_watch.abort;
            }
        }
        self.clientless.watch_request(watched);
    }

    /// Records that the message `frame` asks the scheduler to abort a request, if the request has a record and has not finished. Returns
    /// whether it has a record. Every request with an observed chunk has one.
    pub(super) fn record_abort_if_known(&mut self, rid: &str, frame: FrameId, abort: RequestAbort) -> bool {
        let Some((ticket, request)) = self.unfinished_request(rid) else {
            // A finished request may have a record, too.
            return self.table.ticket_of(rid).is_some();
        };
        let new_watch = WatchedRequest::new(ticket, abort.sent, request);
        if self.clientless.watched_mut(ticket).is_none() {
            self.clientless.watch_request(new_watch);
        }
        let Some(watched) = self.clientless.watched_mut(ticket) else { return true };
        // A process between the tokenizer and the scheduler may send the message again. The first send is the tokenizer's, and the last
        // receive is the scheduler's.
        let first_sent = watched.abort.map_or(abort.sent, |first_abort| first_abort.sent);
        watched.abort = Some(RequestAbort { sent: first_sent, ..abort });
        self.clientless.await_receive_of_abort(ticket, frame, abort);
        true
    }

    /// The request with this rid and its ticket; `None` without a record, or if it has finished.
    fn unfinished_request(&self, rid: &str) -> Option<(Ticket, &Request)> {
        let ticket = self.table.ticket_of(rid)?;
        Some((ticket, self.table.get(ticket).filter(|request| request.finish.is_none())?))
    }

    /// Stops watching the request with this rid, because another response of the rid shows that it has a client.
    pub(super) fn unwatch_clientless(&mut self, rid: &str) {
        if !self.clientless.watched.is_empty()
            && let Some(ticket) = self.table.ticket_of(rid)
        {
            self.clientless.stop_watching(ticket);
        }
    }

    /// Stops watching a request whose record is closed, and keeps its numbers if it was abandoned. Returns whether it was.
    pub(super) fn keep_closed_request_if_abandoned(&mut self, ticket: Ticket, request: &Request) -> bool {
        let watched = self.clientless.stop_watching(ticket);
        let Some(abandoned) = watched.and_then(|watched| self.find_abandoned(&watched, request)) else { return false };
        self.clientless.closed_requests.add_abandoned_request(abandoned);
        true
    }

    /// Whether a request with a record is among the abandoned ones.
    pub(super) fn is_abandoned(&self, request: &Request) -> bool {
        // Nearly always empty, so the rid is rarely looked up.
        if self.clientless.watched.is_empty() {
            return false;
        }
        let ticket = self.table.ticket_of(&request.rid);
        let watched = self.clientless.watched.iter().find(|watched| Some(watched.ticket) == ticket);
        watched.is_some_and(|watched| self.find_abandoned(watched, request).is_some())
    }

    /// Abandoned requests: as observed, or else according to the engine's log.
    pub fn abandoned_requests(&self) -> AbandonedRequests {
        let observed = self.observed_abandoned_requests();
        if observed.requests > 0 { observed } else { self.stages().abandoned.clone() }
    }

    /// Whether messages to the scheduler are observed and none was missed, so that the absence of an abort is a fact.
    pub fn observes_aborts(&self) -> bool {
        let mut hops = self.hops.all.iter().filter(|hop| hop.carries_requests).peekable();
        // `all` alone would be true without any such hop.
        let has_request_hop = hops.peek().is_some();
        // The epoch counts the times at which observations of the hop were missed.
        has_request_hop && hops.all(|hop| hop.epoch == 0)
    }

    /// Abandoned requests, as observed: after their clients left, the scheduler sent their chunks for longer than an abort takes.
    fn observed_abandoned_requests(&self) -> AbandonedRequests {
        let mut abandoned_requests = self.clientless.closed_requests.clone();
        for watched in &self.clientless.watched {
            let Some(request) = self.table.get(watched.ticket) else { continue };
            if let Some(abandoned) = self.find_abandoned(watched, request) {
                abandoned_requests.add_abandoned_request(abandoned);
            }
        }
        abandoned_requests
    }

    /// When the scheduler sent the last chunk of a request; `None` if none of its chunks was observed there.
    fn last_scheduler_chunk_at(&self, request: &Request) -> Option<MonoNs> {
        if !self.hops.any_origin {
            // Without a hop that is known to be the scheduler's, the first one stands for it.
            return Some(request.streams.first()?.last_at);
        }
        let streams = request.streams.iter();
        let scheduler_streams = streams.filter(|stream| self.hops.hop_of(stream).is_some_and(|hop| hop.origin));
        scheduler_streams.map(|stream| stream.last_at).max()
    }

    /// What the scheduler sent of a watched request after its client had left. `None` if it soon stopped or sent almost nothing, or if
    /// another client may wait for it.
    fn find_abandoned(&self, watched: &WatchedRequest, request: &Request) -> Option<AbandonedRequest> {
        let last_chunk_at = self.last_scheduler_chunk_at(request)?;
        // A rid in use twice, or a delivery since, may mean another client.
        let may_have_client = request.is_shared() || request.tokens_delivered > watched.tokens_delivered;
        let tokens = request.tokens_sent.saturating_sub(watched.tokens_sent);
        let chunks = request.chunks_sent.saturating_sub(watched.chunks_sent);
        let has_stopped_soon = last_chunk_at.since(watched.abandoned_since()) < ABANDONED_NS;
        let is_almost_nothing = tokens == 0 || chunks < MIN_ABANDONED_CHUNKS;
        if may_have_client || has_stopped_soon || is_almost_nothing {
            return None;
        }
        Some(AbandonedRequest {
            rid: request.rid.clone(),
            since: watched.left_at,
            last: last_chunk_at,
            outputs: chunks.into(),
            tokens: Some(u64::from(tokens)),
            has_client_left: watched.has_client_left,
            abort: watched.abort,
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use crate::MonoNs;
    use crate::event::{
        Answer, AnswerEnd, Capabilities, Chunk, Dispatch, DispatchKind, DispatchedRequest, Finish, Hop, IdColumn,
        Received, What,
    };
    use crate::id::{FrameId, HopId};
    use crate::ledger::test_path::Path;

    const STEP_NS: u64 = 100_000_000;

    /// A request that its client leaves after 5 chunks, and that the scheduler then continues for so many steps of 100 ms.
    fn path(end: AnswerEnd, further: u32) -> Path {
        let mut path = Path { step_ns: STEP_NS, ..Path::new(Config::default()) };
        path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::SENT | Capabilities::DELIVERED);
        for count in 1..=5 + further {
            let is_last = count == 5 + further;
            let finish = is_last.then_some(Finish::Length);
            path.send(0, IdColumn::Delta, &[Chunk { finish, ..Chunk::counted("a", 1, count) }]);
            if count <= 5 {
                path.deliver(1, Some(count), false);
            }
            if count == 5 {
                path.apply(What::Answered(Answer { end, ..Answer::new("a", Some(5), None) }));
            }
        }
        path
    }

    #[test]
    fn a_request_that_outlives_its_client_is_abandoned() {
        let mut path = path(AnswerEnd::ClientLeft, 80);
        // Also after its record is closed.
        for _ in 0..2 {
            let all = path.ledger().observed_abandoned_requests();
            assert_eq!((all.requests, all.outputs, all.tokens), (1, 80, Some(80)));
            let one = &all.longest()[0];
            assert_eq!((&*one.rid, one.length_ns(), one.tokens), ("a", 80 * STEP_NS, Some(80)));
            let ledger = path.ledger();
            let live = ledger.request("a").map(|request| ledger.numbers(request).is_abandoned);
            let finished = ledger.finished().map(|summary| summary.is_abandoned);
            assert_eq!(live.into_iter().chain(finished).collect::<Vec<_>>(), [true], "its row shows it");
            path.wait(600);
        }
        assert_eq!(path.ledger().record_count(), 0);
    }

    #[test]
    fn an_abort_in_time_and_another_client_are_no_abandoned_requests() {
        let requests = |path: &Path| path.ledger().observed_abandoned_requests().requests;
        assert_eq!(requests(&path(AnswerEnd::ClientLeft, 40)), 0, "the abort arrived");
        assert_eq!(requests(&path(AnswerEnd::Whole, 80)), 0);
        assert_eq!(requests(&path(AnswerEnd::ServerLeft, 80)), 0);
        let mut retried = path(AnswerEnd::ClientLeft, 80);
        retried.deliver(1, Some(6), false);
        assert_eq!(requests(&retried), 0, "another response delivers it");
        let mut retried = path(AnswerEnd::ClientLeft, 80);
        retried.apply(What::Answered(Answer::new("a", Some(85), None)));
        assert_eq!(requests(&retried), 0, "another response ended");
    }

    /// Sends an abort of `a` at `now` and receives it a step later.
    fn abort(path: &mut Path) {
        let id = FrameId::new(HopId(7), 0, 0);
        let request = Some(DispatchedRequest::new("a"));
        path.apply(What::Hop(Hop::with_requests(HopId(7), "tokenizer->scheduler", Capabilities::SENT)));
        path.apply(What::Dispatched(Dispatch { id, bytes: 80, kind: DispatchKind::Aborts, index: 0, request }));
        path.now += STEP_NS;
        path.apply(What::Received(Received::new(id)));
    }

    /// An abort of a request in the queue that the scheduler ignores.
    #[test]
    fn a_request_that_was_aborted_before_its_first_chunk_and_goes_on_is_abandoned() {
        for (chunks, expected) in [(80, 1), (40, 0)] {
            let mut path = Path { step_ns: STEP_NS, ..Path::new(Config::default()) };
            path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::SENT | Capabilities::DELIVERED);
            path.apply(What::Hop(Hop::with_requests(HopId(7), "tokenizer->scheduler", Capabilities::SENT)));
            let request = Some(DispatchedRequest::new("a"));
            let id = FrameId::new(HopId(7), 0, 0);
            path.apply(What::Dispatched(Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request }));
            let id = FrameId::new(HopId(7), 0, 1);
            path.apply(What::Dispatched(Dispatch { id, bytes: 80, kind: DispatchKind::Aborts, index: 0, request }));
            path.now += STEP_NS;
            path.apply(What::Received(Received::new(id)));
            send_further(&mut path, 1..=chunks);
            let abandoned = path.ledger().observed_abandoned_requests();
            assert_eq!(abandoned.requests, expected, "{chunks}");
            let ignored = abandoned.longest().iter().filter(|request| request.has_ignored_abort()).count();
            assert_eq!(ignored as u64, expected);
        }
    }

    fn send_further(path: &mut Path, counts: std::ops::RangeInclusive<u32>) {
        counts.for_each(|count| {
            path.send(0, IdColumn::Delta, &[Chunk::counted("a", 1, count)]);
        });
    }

    /// A request with 5 delivered chunks.
    fn running() -> Path {
        let mut path = Path { step_ns: STEP_NS, ..Path::new(Config::default()) };
        path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::SENT | Capabilities::DELIVERED);
        for count in 1..=5 {
            send_further(&mut path, count..=count);
            path.deliver(1, Some(count), false);
        }
        path
    }

    #[test]
    fn an_abort_without_effect_makes_an_abandoned_request() {
        for leaves in [false, true] {
            let mut path = running();
            let left_at = path.now;
            if leaves {
                path.apply(What::Answered(Answer { end: AnswerEnd::ClientLeft, ..Answer::new("a", Some(5), None) }));
                path.now += STEP_NS;
            }
            let sent = MonoNs(path.now);
            abort(&mut path);
            send_further(&mut path, 6..=40);
            assert_eq!(path.ledger().observed_abandoned_requests().requests, 0, "an abort takes its time");
            send_further(&mut path, 41..=80);
            let all = path.ledger().observed_abandoned_requests();
            let one = &all.longest()[0];
            let abort = one.abort.expect("observed");
            assert_eq!((all.requests, one.tokens, one.has_client_left), (1, Some(75), leaves));
            assert_eq!((one.since.0, abort.sent), (left_at, sent));
            assert_eq!(abort.received, Some(MonoNs(sent.0 + STEP_NS)));
        }
    }

    #[test]
    fn a_long_step_after_an_abort_does_not_ignore_it() {
        let mut path = running();
        abort(&mut path);
        for count in 6..=7 {
            path.now += 60 * STEP_NS;
            send_further(&mut path, count..=count);
        }
        assert_eq!(path.ledger().observed_abandoned_requests().requests, 0);
        send_further(&mut path, 8..=8);
        assert_eq!(path.ledger().observed_abandoned_requests().requests, 1);
    }

    #[test]
    fn a_client_that_leaves_after_the_abort_left_with_it() {
        let mut path = running();
        let sent = path.now;
        abort(&mut path);
        path.apply(What::Answered(Answer { end: AnswerEnd::ClientLeft, ..Answer::new("a", Some(5), None) }));
        send_further(&mut path, 6..=80);
        let all = path.ledger().observed_abandoned_requests();
        assert_eq!((all.longest()[0].since.0, all.longest()[0].has_client_left), (sent, true));
    }

    #[test]
    fn an_aborted_request_with_a_client_or_a_new_attempt_is_not_abandoned() {
        let mut path = running();
        abort(&mut path);
        send_further(&mut path, 6..=80);
        path.deliver(1, Some(6), false);
        assert_eq!(path.ledger().observed_abandoned_requests().requests, 0, "its response goes on");
        let mut path = running();
        abort(&mut path);
        let request = Some(DispatchedRequest::new("a"));
        let id = FrameId::new(HopId(7), 0, 1);
        path.apply(What::Dispatched(Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request }));
        send_further(&mut path, 6..=80);
        assert_eq!(path.ledger().observed_abandoned_requests().requests, 0, "the same rid again");
    }
}
