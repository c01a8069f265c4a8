//! Requests that the scheduler continues although their client left, as frames and responses show.

use std::collections::VecDeque;

use super::Ledger;
use super::request::Request;
use super::stages::{ABANDONED_NS, AbandonedRequest, AbandonedRequests};
use crate::clock::MonoNs;
use crate::id::Ticket;

/// Maximum number of watched requests. The oldest is no longer watched beyond it.
const MAX_WATCHED_REQUESTS: usize = 4_096;

/// Requests whose client left.
#[derive(Debug, Default)]
pub(super) struct ClientlessRequests {
    /// Requests with a record, oldest first.
    watched: VecDeque<WatchedRequest>,
    /// Abandoned requests without a record.
    closed_requests: AbandonedRequests,
}

/// A request when its client left.
#[derive(Debug)]
struct WatchedRequest {
    ticket: Ticket,
    left_at: MonoNs,
    chunks_sent: u32,
    tokens_sent: u32,
    tokens_delivered: u32,
}

impl ClientlessRequests {
    fn stop_watching(&mut self, ticket: Ticket) -> Option<WatchedRequest> {
        let index = self.watched.iter().position(|watched| watched.ticket == ticket)?;
        self.watched.remove(index)
    }
}

impl Ledger {
    /// Watches a request whose client left.
    pub(super) fn watch_clientless(&mut self, rid: &str, at: MonoNs) {
        let Some(ticket) = self.table.ticket_of(rid) else { return };
        let Some(request) = self.table.get(ticket).filter(|request| request.finish.is_none()) else { return };
        let watched = WatchedRequest {
            ticket,
            left_at: at,
            chunks_sent: request.chunks_sent,
            tokens_sent: request.tokens_sent,
            tokens_delivered: request.tokens_delivered,
        };
        self.clientless.stop_watching(ticket);
        if self.clientless.watched.len() == MAX_WATCHED_REQUESTS {
            self.clientless.watched.pop_front();
        }
        self.clientless.watched.push_back(watched);
    }

    /// No longer watches a request that another response of its rid shows to have a client.
    pub(super) fn unwatch_clientless(&mut self, rid: &str) {
        if !self.clientless.watched.is_empty()
            && let Some(ticket) = self.table.ticket_of(rid)
        {
            self.clientless.stop_watching(ticket);
        }
    }

    /// Keeps the numbers of an abandoned request whose record is closed.
    pub(super) fn close_clientless(&mut self, ticket: Ticket, request: &Request) {
        let Some(watched) = self.clientless.stop_watching(ticket) else { return };
        if let Some(abandoned) = self.find_abandoned(&watched, request) {
            self.clientless.closed_requests.add_request(abandoned);
        }
    }

    /// Abandoned requests: as observed, or else according to the engine's log.
    pub fn abandoned_requests(&self) -> AbandonedRequests {
        let observed = self.clientless_requests();
        if observed.requests > 0 { observed } else { self.stages().abandoned.clone() }
    }

    /// Requests whose chunks the scheduler sent for longer than an abort takes after their client left.
    fn clientless_requests(&self) -> AbandonedRequests {
        let mut all = self.clientless.closed_requests.clone();
        for watched in &self.clientless.watched {
            let request = self.table.get(watched.ticket);
            if let Some(abandoned) = request.and_then(|request| self.find_abandoned(watched, request)) {
                all.add_request(abandoned);
            }
        }
        all
    }

    /// `None` if the request is not abandoned, or if that is unknown.
    fn find_abandoned(&self, watched: &WatchedRequest, request: &Request) -> Option<AbandonedRequest> {
        let last = if self.hops.any_origin {
            let from_scheduler =
                request.streams.iter().filter(|stream| self.hops.hop_of(stream).is_some_and(|hop| hop.origin));
            from_scheduler.map(|stream| stream.last_at).max()?
        } else {
            // A relay does not know where tokens begin: its first hop counts them.
            request.streams.first()?.last_at
        };
        // A rid in use twice, or a delivery since, may mean another client.
        let may_have_client = request.is_shared() || request.tokens_delivered > watched.tokens_delivered;
        let tokens = request.tokens_sent.saturating_sub(watched.tokens_sent);
        if may_have_client || tokens == 0 || last.since(watched.left_at) < ABANDONED_NS {
            return None;
        }
        Some(AbandonedRequest {
            rid: request.rid.clone(),
            since: watched.left_at,
            last,
            outputs: u64::from(request.chunks_sent.saturating_sub(watched.chunks_sent)),
            tokens: Some(u64::from(tokens)),
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use crate::event::{Answer, AnswerEnd, Capabilities, Chunk, Finish, IdColumn, What};
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
            let all = path.ledger().clientless_requests();
            assert_eq!((all.requests, all.outputs, all.tokens), (1, 80, Some(80)));
            let one = &all.longest()[0];
            assert_eq!((&*one.rid, one.length_ns(), one.tokens), ("a", 80 * STEP_NS, Some(80)));
            path.wait(600);
        }
        assert_eq!(path.ledger().record_count(), 0);
    }

    #[test]
    fn an_abort_in_time_and_another_client_are_no_abandoned_requests() {
        let requests = |path: &Path| path.ledger().clientless_requests().requests;
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
}
