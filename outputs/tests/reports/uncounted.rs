//! Formats without a cumulative count: new ids only. A stream's position is the sum of its observed ids.

use crate::path::Path;
use outputs::report::Report;
use trace::engine::{Engines, Mode, Waiter};
use trace::event::{Answer, AnswerEnd, Capabilities, Chunk, Engine, Finish, IdColumn, Missed, MissedCause, What};
use trace::ledger::OutcomeCounts;
use trace::{Config, HopId, ReportInput};

/// A hop after `observed_frames` frames without content.
fn after(observed_frames: u64, engines: Engines) -> Path {
    let mut path = Path::new(Config { engines, ..Config::default() });
    let engine = Engine { mode: Some(Mode::Incremental), waiter: Some(Waiter::Merges), ..Engine::default() };
    path.apply(What::Engine(engine));
    path.announce(0, "engine->api", [true, true], Capabilities::SENT | Capabilities::DELIVERED);
    (0..observed_frames).for_each(|_| send(&mut path, &[]));
    path
}

fn send(path: &mut Path, chunks: &[Chunk<'_>]) {
    path.send(0, IdColumn::Uncounted, chunks);
}

/// Sends one frame for each number of new ids; the last one ends the request.
fn stream(path: &mut Path, listed: &[u32]) {
    for (number, &listed) in (1..).zip(listed) {
        let finish = (number == LENGTH).then_some(Finish::Stop);
        send(path, &[Chunk { listed: Some(listed), finish, ..Chunk::new("a") }]);
    }
}

/// Sends a stream after `observed_frames` frames, and delivers these tokens with the counts that the response claims.
fn delivered(observed_frames: u64, deliveries: &[(u32, Option<u32>)]) -> (OutcomeCounts, Report) {
    let mut path = after(observed_frames, Engines::default());
    stream(&mut path, &STREAM);
    deliver(path, deliveries)
}

fn deliver(mut path: Path, deliveries: &[(u32, Option<u32>)]) -> (OutcomeCounts, Report) {
    for &(tokens, count) in deliveries {
        path.deliver(tokens, count, false);
    }
    (path.ledger().totals().chunks.outcomes, Report::of(&path.analysis, &ReportInput::for_source("tap")))
}

const SILENT: Engines = Engines(&[&Silent]);

/// One new id.
const CHUNK: Chunk<'_> = Chunk { listed: Some(1), ..Chunk::new("a") };

/// Number of chunks of a complete stream.
const LENGTH: usize = 4;
/// A stream of 7 tokens in 4 chunks.
const STREAM: [u32; LENGTH] = [1, 3, 2, 1];

#[test]
fn deliveries_show_merges_and_drops() {
    // The second chunk is merged into the third; the fourth is delivered separately.
    for deliveries in [[(1, Some(1)), (5, Some(6)), (1, Some(7))], [(1, None), (5, None), (1, None)]] {
        let (fates, _) = delivered(60, &deliveries);
        assert_eq!((fates.delivered, fates.merged, fates.dropped), (3, 1, 0));
    }
    // The second chunk is in no delivery.
    let (fates, report) = delivered(60, &[(1, Some(1)), (2, Some(6)), (1, Some(7))]);
    assert_eq!((fates.delivered, fates.dropped, fates.tokens_lost), (3, 1, 3));
    assert_eq!((report.tokens.sent, report.tokens.missing_on_wire), (7, 0));
    assert_eq!(report.requests.joined_late, 0);
}

#[test]
fn a_stream_joined_late_is_counted_without_judging_losses() {
    // The response's counts include tokens that were generated before.
    let (fates, report) = delivered(3, &[(1, Some(101)), (2, Some(106)), (1, Some(107))]);
    assert_eq!((fates.dropped, fates.tokens_lost, fates.unjudged), (0, 0, LENGTH as u64));
    assert_eq!((report.requests.joined_late, report.tokens.sent), (1, 7));
}

#[test]
fn missed_observations_are_not_reported_as_losses() {
    let mut path = after(60, Engines::default());
    stream(&mut path, &STREAM[..1]);
    path.apply(What::Missed(Missed::new(Some(HopId(0)), 1, MissedCause::QueueFull)));
    path.seqs[0] += 1;
    stream(&mut path, &STREAM[2..]);
    let (fates, report) = deliver(path, &[(1, Some(1)), (5, Some(6)), (1, Some(7))]);
    assert_eq!((fates.dropped, fates.tokens_lost), (0, 0));
    assert_eq!((report.tokens.sent, report.tokens.missing_on_wire), (4, 0));
}

/// An engine whose requests may end without a finish reason.
#[derive(Debug)]
struct Silent;

impl trace::engine::Facts for Silent {
    fn ends_silently(&self) -> bool {
        true
    }
}

#[test]
fn a_first_chunk_with_the_prompts_length_is_the_first() {
    for (prompt_tokens, joined_late) in [(Some(7), 0), (None, 1)] {
        let mut path = after(0, Engines::default());
        send(&mut path, &[Chunk { prompt_tokens, ..CHUNK }]);
        let requests = path.ledger().totals().requests;
        assert_eq!((requests.joined_late, requests.seen), (joined_late, 1));
    }
}

#[test]
fn the_end_of_its_response_ends_a_request_of_an_engine_that_sends_no_finish_reason() {
    for (engines, end, expected) in [
        (SILENT, AnswerEnd::ClientLeft, (1, 0, 1)),
        (SILENT, AnswerEnd::Whole, (1, 1, 0)),
        (Engines::default(), AnswerEnd::ClientLeft, (1, 0, 0)),
    ] {
        let mut path = after(0, engines);
        send(&mut path, &[Chunk { prompt_tokens: Some(7), ..CHUNK }]);
        path.apply(What::Answered(Answer { end, ..Answer::new("a", Some(1), None) }));
        // One more step before the abort reaches the engine.
        send(&mut path, &[CHUNK]);
        let requests = path.ledger().totals().requests;
        assert_eq!((requests.seen, requests.finished, requests.aborted), expected);
    }
}
