//! Request lifecycles: start, end, rid reuse and several hops. Each request has one record and is reported once.

use super::super::test_path::Path;
use crate::engine::example;
use crate::event::{
    Capabilities, Chunk, Finish, Frame, IdColumn, Kind, Missed, MissedCause, Received, Undecoded, What,
};
use crate::ledger::{Limits, Request, RequestCounts};
use crate::{Config, FrameId, HopId, MonoNs};

const SECOND: u64 = 1_000_000_000;

/// scheduler -> detokenizer -> tokenizer, with sends and receives observed.
fn text() -> Path {
    let mut path = Path::new(example::config());
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
    path.announce(0, "scheduler->detokenizer", [true, false], capabilities);
    path.announce(1, "detokenizer->tokenizer", [false, true], capabilities);
    path
}

/// One hop at an unknown position, with only sends observed.
fn relay() -> Path {
    let mut path = Path::new(example::config());
    path.announce(0, "a->b", [false, false], Capabilities::SENT);
    path
}

fn send(path: &mut Path, hop: u16, rid: &str, listed: u32, completion: u32, finish: Option<Finish>) -> FrameId {
    path.send(hop, IdColumn::Delta, &[chunk(rid, listed, completion, finish)])
}

fn cumulative(path: &mut Path, rid: &str, completion: u32, finish: Option<Finish>) {
    path.send(0, IdColumn::Cumulative, &[chunk(rid, completion, completion, finish)]);
}

fn abort_req(path: &mut Path, hop: u16, rid: &str) {
    let abort = Chunk { finish: Some(Finish::Abort), ..Chunk::new(rid) };
    path.frame(hop, Kind::Abort, IdColumn::Absent, &[abort]);
}

fn requests(path: &Path) -> RequestCounts {
    path.ledger().totals().requests
}

fn chunk(rid: &str, listed: u32, completion: u32, finish: Option<Finish>) -> Chunk<'_> {
    Chunk { finish, ..Chunk::counted(rid, listed, completion) }
}

const STOP: Option<Finish> = Some(Finish::Stop);

#[test]
fn a_gap_spans_all_hops_and_a_request_counts_once() {
    let mut path = text();
    let first = send(&mut path, 0, "a", 1, 1, None);
    path.receive(first);
    path.now += 2 * SECOND;
    let text = send(&mut path, 1, "a", 1, 1, None);
    path.now += 3 * SECOND;
    path.receive(text);
    let ledger = path.ledger();
    assert_eq!(ledger.worst_gap().map(|g| (&*g.rid, g.ns)), Some(("a", 5 * SECOND + 3_000_000)));
    assert_eq!(ledger.totals().chunks.sent, 1);
    assert_eq!(ledger.totals().chunks.received, 1);
    assert_eq!(ledger.totals().tokens.sent, 1);
    assert_eq!(requests(&path).seen, 1);
}

#[test]
fn a_request_ends_after_its_last_receive() {
    let mut path = text();
    for hop in 0..2 {
        send(&mut path, hop, "a", 1, 1, STOP);
    }
    path.wait(60);
    assert_eq!((path.ledger().record_count(), requests(&path).settling), (1, 1));
    path.receive(FrameId::new(HopId(1), 0, 0));
    path.wait(3);
    let ledger = path.ledger();
    assert_eq!(ledger.record_count(), 0);
    assert_eq!(ledger.finished_count(), 1);
    assert_eq!(requests(&path).settling, 0);
    assert_eq!(ledger.worst_gap().map(|g| g.ns / SECOND), Some(60));
}

#[test]
fn a_rid_reused_after_its_end_is_a_new_request() {
    let mut path = relay();
    for wait in [0, 5, 0] {
        path.wait(wait);
        send(&mut path, 0, "same", 1, 1, None);
        send(&mut path, 0, "same", 2, 3, STOP);
    }
    let counts = requests(&path);
    assert_eq!((counts.seen, counts.finished, counts.overwritten), (3, 3, 0));
    assert_eq!(path.ledger().totals().wire_loss.total, 0);
}

/// The first request is first observed on the second hop, as when observation begins late. If the second request continued its
/// record, the second request's lost frame would count as a loss on both hops.
#[test]
fn a_rid_reused_at_the_scheduler_is_a_new_request_on_every_hop() {
    let mut path = text();
    send(&mut path, 1, "a", 1, 1, None);
    send(&mut path, 0, "a", 0, 1, STOP);
    send(&mut path, 1, "a", 0, 1, STOP);
    for hop in 0..2 {
        send(&mut path, hop, "a", 1, 1, None);
        send(&mut path, hop, "a", 1, 3, None);
    }
    assert_eq!(path.ledger().totals().wire_loss.total, 1);
    assert_eq!(requests(&path).seen, 2);
}

/// Two chunks on one connection are overtaken by a later one on another.
#[test]
fn late_chunks_take_back_the_tokens_that_seemed_missing() {
    let mut path = relay();
    let mut missing = Vec::new();
    for (lane, seq, count) in [(0, 0, 1), (0, 1, 2), (1, 0, 5), (0, 2, 3), (0, 3, 4), (1, 1, 6)] {
        path.now += 1_000_000;
        let chunks = [Chunk::counted("a", 1, count)];
        let id = FrameId::new(HopId(0), lane, seq);
        path.apply(What::Sent(Frame { ids: IdColumn::Delta, ..Frame::token_ids(id, 900, &chunks) }));
        let totals = path.ledger().totals();
        missing.push((totals.wire_loss.total, totals.wire_loss.requests.rids));
    }
    assert_eq!(missing, [(0, 0), (0, 0), (2, 1), (1, 1), (0, 0), (0, 0)]);
    let totals = path.ledger().totals();
    assert_eq!((totals.tokens.sent, totals.anomalies.total), (6, 0));
    assert_eq!(path.ledger().groups()[0].out_of_order.rids, 2, "two chunks were overtaken");
}

#[test]
fn a_repeated_finish_ends_one_request() {
    let mut path = relay();
    cumulative(&mut path, "a", 1, None);
    cumulative(&mut path, "a", 2, STOP);
    cumulative(&mut path, "a", 2, STOP);
    path.wait(10);
    let totals = path.ledger().totals();
    assert_eq!(totals.requests.seen, 1);
    assert_eq!(totals.requests.finished, 1);
    assert_eq!(totals.chunks.repeats, 1);
    assert_eq!(totals.tokens.sent, 2);
}

#[test]
fn a_rid_overwritten_in_flight_makes_two_requests_on_every_hop() {
    let mut path = text();
    for completion in 1..=3 {
        send(&mut path, 0, "a", 1, completion, None);
    }
    send(&mut path, 1, "a", 1, 1, None);
    send(&mut path, 0, "a", 1, 1, None);
    // The detokenizer's remaining chunks of the old request, then the new one.
    send(&mut path, 1, "a", 1, 2, None);
    send(&mut path, 1, "a", 1, 3, None);
    send(&mut path, 1, "a", 1, 1, None);
    send(&mut path, 0, "a", 1, 2, STOP);
    send(&mut path, 1, "a", 1, 2, STOP);
    let totals = path.ledger().totals();
    assert_eq!(totals.requests.seen, 2);
    assert_eq!(totals.requests.overwritten, 1);
    assert_eq!(totals.requests.finished, 1);
    assert_eq!((totals.wire_loss.total, totals.anomalies.total, totals.tokens.sent), (0, 0, 5));
}

#[test]
fn an_abort_is_counted_once_by_message_or_by_frame() {
    let mut path = text();
    abort_req(&mut path, 1, "queued");
    abort_req(&mut path, 1, "queued");
    send(&mut path, 0, "running", 1, 1, None);
    send(&mut path, 0, "running", 0, 1, Some(Finish::Abort));
    send(&mut path, 1, "running", 0, 1, Some(Finish::Abort));
    send(&mut path, 0, "complete", 1, 1, STOP);
    let counts = requests(&path);
    assert_eq!((counts.seen, counts.finished), (3, 2));
    assert_eq!((counts.completed, counts.aborted), (1, 2), "each request is counted once");
    path.wait(3);
    assert!(path.ledger().request("queued").is_none());
}

#[test]
fn health_checks_are_counted_separately() {
    let mut path = text();
    for hop in 0..2 {
        for rid in ["HEALTH_CHECK_1768600000.1", "HEALTH_CHECK_1768600010.1"] {
            send(&mut path, hop, rid, 1, 1, Some(Finish::Length));
        }
    }
    let totals = path.ledger().totals();
    assert_eq!(totals.requests.health_checks, 2);
    assert_eq!(totals.requests.seen, 0);
    assert_eq!(totals.chunks.sent, 0);
}

#[test]
fn a_prefill_server_has_no_losses() {
    let mut path = relay();
    for _ in 0..3 {
        send(&mut path, 0, "a", 0, 1, Some(Finish::Length));
        send(&mut path, 0, "b", 1, 1, Some(Finish::Length));
    }
    let totals = path.ledger().totals();
    assert_eq!((totals.wire_loss.total, totals.anomalies.total), (0, 0));
}

#[test]
fn a_silent_request_is_orphaned_and_freed() {
    let limits = Limits { orphan_after_ns: 5 * SECOND, ..Limits::default() };
    let mut path = Path::new(Config { limits, ..example::config() });
    path.announce(0, "a->b", [true, false], Capabilities::SENT);
    send(&mut path, 0, "a", 1, 1, None);
    path.wait(4);
    assert_eq!(path.ledger().record_count(), 1);
    path.wait(3);
    assert_eq!((path.ledger().record_count(), requests(&path).orphaned), (0, 1));
}

#[test]
fn frames_with_unobserved_sends_are_counted() {
    let mut path = Path::new(example::config());
    path.announce(0, "scheduler->tokenizer", [true, true], Capabilities::RECEIVED);
    for seq in 0..3_u32 {
        let id = FrameId::new(HopId(0), 0, u64::from(seq));
        let chunks = [chunk("a", 1, seq + 1, None)];
        let frame = Frame::token_ids(id, 900, &chunks);
        path.apply(What::Received(Received { frame: Some(frame), ..Received::new(id) }));
    }
    let ledger = path.ledger();
    assert_eq!((ledger.totals().tokens.sent, ledger.totals().tokens.received), (3, 3));
    assert!(!ledger.observes_gaps() && ledger.gap().count() == 0, "a gap needs both ends");
}

#[test]
fn a_receive_may_be_observed_before_its_send() {
    let mut path = text();
    let id = FrameId::new(HopId(1), 0, 0);
    send(&mut path, 0, "a", 1, 1, None);
    path.receive(id);
    send(&mut path, 1, "a", 1, 1, None);
    let ledger = path.ledger();
    assert_eq!(ledger.totals().tokens.received, 1);
    assert_eq!(ledger.groups()[1].backlog, 0);
    assert_eq!(ledger.gap().count(), 1);
}

/// Releases up to 0.4.8 emit only at multiples of the interval. A request with several tokens per step may never hit one: its
/// finish is its first chunk.
#[test]
fn a_single_chunk_request_has_a_first_send_on_a_long_observed_connection() {
    let absent = |rid, completion, finish| Chunk { listed: None, ..chunk(rid, 0, completion, finish) };
    let mut path = text();
    path.send(0, IdColumn::Absent, &[absent("early", 80, Some(Finish::Length))]);
    for n in 1..=50 {
        path.send(0, IdColumn::Absent, &[absent("stream", n, None)]);
    }
    path.send(0, IdColumn::Absent, &[absent("unary", 80, Some(Finish::Length))]);
    let sent_first = |rid| path.ledger().request(rid).and_then(|request| request.sent_first).is_some();
    assert_eq!([sent_first("early"), sent_first("stream"), sent_first("unary")], [false, true, true]);
}

#[test]
fn no_wait_is_reported_if_the_receive_may_have_been_missed() {
    let mut path = Path::new(example::config());
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
    path.announce(0, "scheduler->tokenizer", [true, true], capabilities);
    send(&mut path, 0, "a", 1, 1, None);
    let waits = |path: &Path, rid: &str| path.ledger().request(rid).unwrap().first_token_waiting_since().is_some();
    assert!(waits(&path, "a"));
    path.apply(What::Missed(Missed::new(None, 3, MissedCause::QueueFull)));
    let b = send(&mut path, 0, "b", 1, 1, None);
    path.analysis.tick(MonoNs(path.now));
    assert_eq!((waits(&path, "a"), waits(&path, "b")), (false, true));
    path.receive(b);
    assert!(!waits(&path, "b"));
}

/// The receive on the first hop was observed. Only the send on the second one, and its receive, were missed.
#[test]
fn no_wait_is_reported_if_the_send_on_the_last_hop_was_missed() {
    for cause in ["reported", "numbers", "undecoded"] {
        let mut path = text();
        let early = send(&mut path, 1, "early", 1, 1, STOP);
        path.receive(early);
        let first = send(&mut path, 0, "a", 1, 1, STOP);
        path.receive(first);
        match cause {
            "reported" => path.apply(What::Missed(Missed::new(Some(HopId(1)), 2, MissedCause::QueueFull))),
            "numbers" => {
                path.seqs[1] += 1;
                let next = send(&mut path, 1, "next", 1, 1, STOP);
                path.receive(next);
            }
            _ => {
                path.now += 1;
                let undecoded = Undecoded { id: FrameId::new(HopId(1), 0, 1), bytes: 9, reason: "?", forwarded: None };
                path.apply(What::Undecoded(undecoded));
            }
        }
        send(&mut path, 0, "b", 1, 1, STOP);
        path.analysis.tick(MonoNs(path.now));
        let ledger = path.ledger();
        let waits = |rid| ledger.request(rid).unwrap().first_token_waiting_since().is_some();
        assert_eq!((waits("a"), waits("b")), (false, true), "{cause}");
        assert_eq!(ledger.totals().requests.ends_in_transit, 1, "{cause}: only b");
    }
}

/// Frames of which no receive was observed do not wait for an idle receiver.
#[test]
fn frames_do_not_wait_if_their_receives_may_have_been_missed() {
    let mut path = text();
    for _ in 0..9 {
        send(&mut path, 0, "a", 1, 1, None);
    }
    assert!(path.ledger().hops()[0].oldest_waiting().is_some());
    path.apply(What::Missed(Missed::new(Some(HopId(0)), 9, MissedCause::QueueFull)));
    assert_eq!(path.ledger().hops()[0].oldest_waiting(), None);
    send(&mut path, 0, "a", 1, 1, None);
    assert_eq!(path.ledger().hops()[0].oldest_waiting(), Some(MonoNs(path.now)));
}

#[test]
fn frames_sent_before_the_receiver_is_identified_have_a_gap() {
    let mut path = Path::new(example::config());
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
    path.announce(0, "scheduler->?", [true, false], capabilities);
    path.announce(1, "scheduler->?", [true, false], capabilities);
    let a = send(&mut path, 0, "a", 1, 1, None);
    let b = send(&mut path, 1, "b", 1, 1, None);
    path.announce(0, "scheduler->worker", [true, true], capabilities);
    path.announce(1, "scheduler->detokenizer", [true, false], capabilities);
    path.receive(a);
    path.receive(b);
    let ledger = path.ledger();
    let gap = |rid| ledger.request(rid).and_then(Request::gap_ns);
    assert_eq!((gap("a"), gap("b")), (Some(2_000_000), None));
    assert_eq!(ledger.totals().chunks.received, 1);
    assert_eq!(ledger.totals().tokens.received, 1);
    let backlog: Vec<_> = ledger.groups().iter().map(|g| (g.name.as_str(), g.backlog, g.backlog_max)).collect();
    assert!(backlog.contains(&("scheduler->worker", 0, 1)), "{backlog:?}");
}

#[test]
fn an_engine_exit_clears_the_backlog_and_the_next_engine_continues_the_counts() {
    let mut path = text();
    let first = send(&mut path, 0, "a", 1, 1, None);
    path.receive(first);
    send(&mut path, 0, "a", 1, 2, None);
    send(&mut path, 0, "b", 1, 1, None);
    let backlog = |path: &Path| path.ledger().groups()[0].backlog;
    assert_eq!(backlog(&path), 2);
    path.apply(What::Missed(Missed::new(None, 0, MissedCause::Ended)));
    assert_eq!(backlog(&path), 0);
    assert_eq!(path.ledger().hops()[0].oldest_waiting(), None);
    assert_eq!(path.ledger().totals().missed.reported(), 0, "nothing was missed");
    let next = FrameId::new(HopId(0), 1, 0);
    path.now += SECOND;
    path.apply(What::Sent(Frame::token_ids(next, 900, &[chunk("c", 1, 1, Some(Finish::Stop))])));
    assert_eq!(backlog(&path), 1);
    path.receive(next);
    assert_eq!(backlog(&path), 0);
    assert_eq!(path.ledger().totals().chunks.sent, 4);
    assert_eq!(path.ledger().totals().missed.unannounced, 0);
}

#[test]
fn ids_of_a_format_without_counts_are_summed_for_the_other_mode() {
    let mut path = Path::new(example::config());
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::DELIVERED;
    path.announce(0, "engine-core->api-server", [true, true], capabilities);
    for step in 0..3 {
        // Only a stream's first chunk has the length of the prompt.
        let prompt_tokens = (step == 0).then_some(50);
        let chunk = Chunk { listed: Some(2), prompt_tokens, ..Chunk::new("a") };
        let frame = path.send(0, IdColumn::Uncounted, &[chunk]);
        path.receive(frame);
        path.deliver(2, None, false);
    }
    for ids in [path.ledger().groups()[0].ids, path.ledger().totals().delivered_ids] {
        assert_eq!((ids.listed, ids.cumulative, ids.listed_without_count), (6, 2 + 4 + 6, 0));
    }
    // Of a stream that was joined late, the position is unknown.
    path.send(0, IdColumn::Uncounted, &[Chunk { listed: Some(2), ..Chunk::new("b") }]);
    let ids = path.ledger().groups()[0].ids;
    assert_eq!((ids.listed, ids.cumulative, ids.listed_without_count), (8, 12, 2));
}
