//! Requests from their dispatch to their first chunk.

use super::*;
use crate::Config;
use crate::event::{
    Arrival, ArrivalTimes, Capabilities, Chunk, Event, Finish, Hop, IdColumn, Received, UnknownArrival, What,
};
use crate::ledger::test_path::Path;
use crate::ledger::{Limits, Request};

const REQUESTS: HopId = HopId(7);

fn path(limits: Limits) -> Path {
    let mut path = Path { step_ns: 5, ..Path::new(Config { limits, ..Config::default() }) };
    path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::SENT | Capabilities::RECEIVED);
    let hop = Hop::with_requests(REQUESTS, "tokenizer->scheduler", Capabilities::SENT | Capabilities::RECEIVED);
    path.apply(What::Hop(hop));
    path
}

fn dispatch(seq: u64, index: u32, kind: DispatchKind, rid: &str) -> What<'_> {
    let request = Some(DispatchedRequest { prompt_tokens: Some(50), ..DispatchedRequest::new(rid) });
    let id = FrameId::new(REQUESTS, 0, seq);
    What::Dispatched(Dispatch { id, bytes: if index == 0 { 900 } else { 0 }, kind, index, request })
}

fn receive(path: &mut Path, seq: u64, at: u64) {
    let received = What::Received(Received::new(FrameId::new(REQUESTS, 0, seq)));
    path.analysis.apply(&Event::new(MonoNs(at), received));
}

/// A process that is not watched receives the requests and forwards them.
#[test]
fn answers_show_that_receives_are_not_observed() {
    let mut path = path(Limits::default());
    let observes = |path: &Path| path.ledger().hop(REQUESTS).is_some_and(|hop| hop.capabilities().received);
    path.analysis.apply(&Event::new(MonoNs(1_000), dispatch(0, 0, DispatchKind::Requests, "a")));
    assert!(observes(&path), "it may wait");
    path.now = 2_000;
    path.send(0, IdColumn::Delta, &[Chunk::counted("a", 1, 1)]);
    assert!(!observes(&path));
    receive(&mut path, 1, 3_000);
    assert!(observes(&path));
}

#[test]
fn a_request_knows_when_it_was_sent_and_received() {
    let mut path = path(Limits::default());
    path.analysis.apply(&Event::new(MonoNs(1_000), dispatch(0, 0, DispatchKind::Requests, "a")));
    path.analysis.apply(&Event::new(MonoNs(1_100), dispatch(1, 0, DispatchKind::Requests, "b")));
    path.analysis.apply(&Event::new(MonoNs(1_100), dispatch(1, 1, DispatchKind::Requests, "c")));
    let ledger = path.ledger();
    assert_eq!((ledger.dispatched_count(), ledger.totals().requests.seen), (3, 0));
    assert_eq!(ledger.oldest_dispatched().map(|oldest| oldest.0), Some("a"));
    receive(&mut path, 0, 1_500);
    receive(&mut path, 1, 1_700);
    path.now = 2_000;
    path.send(0, IdColumn::Delta, &[Chunk::counted("b", 1, 1), Chunk::counted("c", 1, 1)]);
    let dispatch = path.ledger().request("c").and_then(Request::dispatch).expect("observed");
    assert_eq!((dispatch.sent.0, dispatch.received, dispatch.prompt_tokens), (1_100, Some(MonoNs(1_700)), Some(50)));
    let ledger = path.ledger();
    assert_eq!((ledger.dispatched_count(), ledger.totals().dispatched.requests), (1, 3));
    let hop = ledger.hop(REQUESTS).expect("announced");
    assert_eq!(
        (hop.counts.frames_sent, hop.counts.frames_received, hop.counts.bytes, hop.counts.chunks),
        (2, 2, 1800, 0)
    );
    assert_eq!(hop.queue_wait().max(), Some(600));
}

/// A receive that is not followed by the call for the next message leaves the moment unknown.
#[test]
fn a_first_chunk_is_processed_at_the_call_for_the_next_message() {
    for is_observed in [true, false] {
        let mut path = Path { step_ns: 5, ..Path::new(Config::default()) };
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::PROCESSED;
        path.announce(0, "scheduler->tokenizer", [true, true], capabilities | Capabilities::DELIVERED);
        path.apply(What::Hop(Hop::with_requests(REQUESTS, "tokenizer->scheduler", Capabilities::SENT)));
        path.analysis.apply(&Event::new(MonoNs(1), dispatch(0, 0, DispatchKind::Requests, "a")));
        let first = path.send(0, IdColumn::Delta, &[Chunk::counted("a", 1, 1)]);
        path.receive(first);
        path.now += 7;
        let processed = if is_observed { first } else { FrameId { seq: 9, ..first } };
        path.apply(What::Processed(processed));
        path.deliver(1, Some(1), false);
        let ttft = path.ledger().ttft();
        let legs = ttft.main_group().expect("a request").legs().iter();
        let legs: Vec<_> = legs.map(|leg| (leg.leg.to_string(), leg.sum().ns)).collect();
        let expected: &[_] =
            if is_observed { &[("processing", 7), ("delivery", 5)] } else { &[("processing+delivery", 12)] };
        let expected: Vec<_> = expected.iter().map(|(name, ns)| ((*name).to_owned(), *ns)).collect();
        assert_eq!(legs[2..], expected);
    }
}

#[test]
fn a_request_keeps_its_first_arrival() {
    let mut path = path(Limits::default());
    path.send(0, IdColumn::Delta, &[Chunk::counted("a", 1, 1)]);
    let first = ArrivalTimes { arrived: MonoNs(1), read: MonoNs(2), connection: None };
    for (rid, times) in [("b", Ok(first)), ("a", Ok(first)), ("a", Err(UnknownArrival::Missed))] {
        path.apply(What::Arrived(Arrival { rid, times }));
    }
    let request = path.ledger().request("a").expect("sent");
    assert_eq!(request.arrival(), Some(Ok(first)));
    assert_eq!(path.ledger().record_count(), 1);
}

#[test]
fn a_receive_that_is_observed_before_the_send_is_the_receive_of_all_its_requests() {
    let mut path = path(Limits::default());
    receive(&mut path, 0, 1_300);
    for (index, rid) in [(0, "a"), (1, "b")] {
        path.analysis.apply(&Event::new(MonoNs(1_200), dispatch(0, index, DispatchKind::Requests, rid)));
    }
    path.now = 2_000;
    path.send(0, IdColumn::Delta, &[Chunk::counted("a", 1, 1), Chunk::counted("b", 1, 1)]);
    for rid in ["a", "b"] {
        let dispatch = path.ledger().request(rid).and_then(Request::dispatch).expect("observed");
        assert_eq!(dispatch.received, Some(MonoNs(1_300)), "{rid}");
    }
}

#[test]
fn the_receive_of_an_earlier_abort_is_not_that_of_the_request() {
    let mut path = path(Limits::default());
    for (seq, kind) in [(0, DispatchKind::Requests), (1, DispatchKind::Aborts), (2, DispatchKind::Aborts)] {
        path.analysis.apply(&Event::new(MonoNs(1_000 + seq), dispatch(seq, 0, kind, "a")));
    }
    for seq in [0, 1] {
        receive(&mut path, seq, 2_000 + seq);
    }
    let received: Vec<_> = path.ledger().dispatched.waiting.values().map(|one| one.times.received).collect();
    assert_eq!(received, [Some(MonoNs(2_000))]);
}

/// However long a router holds a request and its abort, they count once, from their first send to their receive by the scheduler.
#[test]
fn a_router_forwards_a_request() {
    const FORWARDED: HopId = HopId(8);
    let both = Capabilities::SENT | Capabilities::RECEIVED;
    let mut path = path(Limits::default());
    path.apply(What::Hop(Hop::with_requests(REQUESTS, "tokenizer->router", both)));
    path.apply(What::Hop(Hop::with_requests(FORWARDED, "router->scheduler", both)));
    let forward = |seq, kind, rid| match dispatch(seq, 0, kind, rid) {
        What::Dispatched(message) => {
            What::Dispatched(Dispatch { id: FrameId { hop: FORWARDED, ..message.id }, ..message })
        }
        other => other,
    };
    let steps = [
        (1_000, dispatch(0, 0, DispatchKind::Requests, "a")),
        (1_100, dispatch(1, 0, DispatchKind::Requests, "b")),
        (1_200, dispatch(2, 0, DispatchKind::Aborts, "b")),
        (1_300, What::Received(Received::new(FrameId::new(REQUESTS, 0, 0)))),
        (3_000_001_400, forward(0, DispatchKind::Requests, "a")),
        (3_000_001_500, forward(1, DispatchKind::Requests, "b")),
        (3_000_001_600, forward(2, DispatchKind::Aborts, "b")),
        (3_000_001_700, What::Received(Received::new(FrameId::new(FORWARDED, 0, 0)))),
        (3_000_001_800, What::Received(Received::new(FrameId::new(FORWARDED, 0, 2)))),
    ];
    for (at, what) in steps {
        path.analysis.apply(&Event::new(MonoNs(at), what));
    }
    let ledger = path.ledger();
    let totals = ledger.totals().dispatched;
    assert_eq!((ledger.dispatched_count(), totals.requests, totals.aborts), (1, 2, 1));
    let abort = ledger.dispatched.waiting.values().find(|one| &*one.rid == "b").and_then(|one| one.abort);
    let abort = abort.map(|message| (message.abort.sent.0, message.abort.received));
    assert_eq!(abort, Some((1_200, Some(MonoNs(3_000_001_800)))));
    path.now = 3_000_002_000;
    path.send(0, IdColumn::Delta, &[Chunk::counted("a", 1, 1)]);
    let request = path.ledger().request("a").expect("sent");
    let dispatch = request.dispatch().expect("observed");
    assert_eq!((dispatch.sent.0, dispatch.received), (1_000, Some(MonoNs(3_000_001_700))));
    assert_eq!(dispatch.prompt_tokens, Some(50));
    // A request is late on either hop if a later one is answered.
    let answered = [REQUESTS, FORWARDED].map(|hop| path.ledger().dispatched.answered[&hop].count);
    assert_eq!(answered, [1, 1]);
}

/// Two workers may be asked for one rid; the router does not show whose it forwards.
#[test]
fn attempts_of_two_workers_are_ambiguous() {
    const OTHER_WORKER: HopId = HopId(8);
    const FORWARDED: HopId = HopId(9);
    for is_retried in [false, true] {
        let mut path = path(Limits::default());
        path.apply(What::Hop(Hop::with_requests(REQUESTS, "worker->router", Capabilities::SENT)));
        path.apply(What::Hop(Hop::with_requests(OTHER_WORKER, "worker->router", Capabilities::SENT)));
        path.apply(What::Hop(Hop::with_requests(FORWARDED, "router->scheduler", Capabilities::SENT)));
        let hops = if is_retried { &[REQUESTS, OTHER_WORKER, FORWARDED][..] } else { &[REQUESTS, FORWARDED] };
        for (at, hop) in (1_000..).zip(hops) {
            let request = Some(DispatchedRequest::new("a"));
            let message =
                Dispatch { id: FrameId::new(*hop, 0, 0), bytes: 900, kind: DispatchKind::Requests, index: 0, request };
            path.analysis.apply(&Event::new(MonoNs(at), What::Dispatched(message)));
        }
        let ambiguous: Vec<_> = path.ledger().dispatched.waiting.values().map(|one| one.is_ambiguous).collect();
        assert_eq!(ambiguous, [is_retried]);
    }
}

#[test]
fn the_oldest_requests_are_evicted_at_the_limit_and_dropped_after_a_long_silence() {
    let mut path = path(Limits { dispatched_requests: 2, ..Limits::default() });
    for (seq, rid) in ["a", "b", "c"].into_iter().enumerate() {
        let at = MonoNs(1_000 + seq as u64);
        path.analysis.apply(&Event::new(at, dispatch(seq as u64, 0, DispatchKind::Requests, rid)));
    }
    let ledger = path.ledger();
    assert_eq!((ledger.dispatched_count(), ledger.oldest_dispatched().map(|oldest| oldest.0)), (2, Some("b")));
    let reached = ledger.limits().into_iter().find(|limit| limit.name == "dispatched_requests");
    assert_eq!(reached.map(|limit| limit.times), Some(1));
    path.wait(601);
    assert_eq!(path.ledger().dispatched_count(), 0);
}

#[test]
fn a_reused_rid_belongs_to_the_latest_request_and_an_aborted_one_waits_no_longer() {
    let mut path = path(Limits::default());
    for (seq, at) in [(0, 1_000), (1, 1_400)] {
        path.analysis.apply(&Event::new(MonoNs(at), dispatch(seq, 0, DispatchKind::Requests, "a")));
    }
    receive(&mut path, 0, 1_500);
    assert_eq!(path.ledger().oldest_dispatched().map(|oldest| oldest.1.received), Some(None));
    path.analysis.apply(&Event::new(MonoNs(1_600), dispatch(2, 0, DispatchKind::Aborts, "a")));
    assert_eq!((path.ledger().dispatched_count(), path.ledger().totals().dispatched.aborts), (0, 1));
    path.now = 2_000;
    let abort = Chunk { finish: Some(Finish::Abort), ..Chunk::new("a") };
    path.frame(0, crate::event::Kind::Abort, IdColumn::Absent, &[abort]);
    assert_eq!((path.ledger().dispatched_count(), path.ledger().totals().requests.aborted), (0, 1));
}
