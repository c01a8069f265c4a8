//! Formats without a cumulative count: new ids only. A stream's position is the sum of its observed ids.

use trace::engine::{Engines, Mode, Waiter};
use trace::event::{
    Answer, AnswerEnd, Capabilities, Chunk, Delivery, Engine, Event, Finish, Frame, Hop, IdColumn, Missed, MissedCause,
    What,
};
use trace::ledger::Fates;
use trace::report::ReportInput;
use trace::{Analysis, Config, FrameId, HopId, MonoNs};

const HOP: HopId = HopId(0);

struct Run {
    analysis: Analysis,
    at: u64,
    seq: u64,
}

impl Run {
    /// A hop after `observed_frames` frames without content.
    fn after(observed_frames: u64) -> Self {
        let mut run = Self { analysis: Analysis::new(Config::default()), at: 0, seq: 0 };
        run.apply(What::Engine(Engine {
            mode: Some(Mode::Incremental),
            waiter: Some(Waiter::Merges),
            ..Engine::default()
        }));
        run.apply(What::Hop(Hop::only(HOP, "engine->api", Capabilities::SENT | Capabilities::DELIVERED)));
        (0..observed_frames).for_each(|_| run.send(&[]));
        run
    }

    fn apply(&mut self, what: What<'_>) {
        self.at += 1_000_000;
        self.analysis.apply(&Event::new(MonoNs(self.at), what));
    }

    fn send(&mut self, chunks: &[Chunk<'_>]) {
        let id = FrameId::new(HOP, 0, self.seq);
        self.seq += 1;
        self.apply(What::Sent(Frame { ids: IdColumn::Uncounted, ..Frame::token_ids(id, 100, chunks) }));
    }

    /// Sends one frame for each number of new ids; the last one ends the request.
    fn stream(&mut self, listed: &[u32]) {
        for (number, &listed) in (1..).zip(listed) {
            let finish = (number == LENGTH).then_some(Finish::Stop);
            self.send(&[Chunk { listed: Some(listed), finish, ..Chunk::new("a") }]);
        }
    }

    /// Delivers tokens, with the cumulative count that the response claims, if any.
    fn deliver(&mut self, deliveries: &[(u32, Option<u32>)]) {
        for &(tokens, completion_tokens) in deliveries {
            self.apply(What::Delivered(Delivery::new("a", tokens, completion_tokens)));
        }
    }

    fn fates(&self) -> Fates {
        self.analysis.ledger().totals().chunks.fates
    }
}

const SILENT: Engines = Engines(&[&Silent]);

/// One new id.
const CHUNK: Chunk<'_> = Chunk { listed: Some(1), ..Chunk::new("a") };

/// Number of chunks of a complete stream.
const LENGTH: usize = 4;
/// A stream of 7 tokens in 4 chunks.
const STREAM: [u32; LENGTH] = [1, 3, 2, 1];

#[test]
fn deliveries_with_counts_show_merges_and_drops() {
    let mut run = Run::after(60);
    run.stream(&STREAM);
    // The second chunk is merged into the third; the fourth is delivered separately.
    run.deliver(&[(1, Some(1)), (5, Some(6)), (1, Some(7))]);
    let fates = run.fates();
    assert_eq!((fates.delivered, fates.merged, fates.dropped), (3, 1, 0));
    let mut run = Run::after(60);
    run.stream(&STREAM);
    // The second chunk is in no delivery.
    run.deliver(&[(1, Some(1)), (2, Some(6)), (1, Some(7))]);
    let fates = run.fates();
    assert_eq!((fates.delivered, fates.dropped, fates.tokens_lost), (3, 1, 3));
    let report = run.analysis.report(&ReportInput::of("tap"));
    assert_eq!((report.tokens.sent, report.tokens.missing_on_wire), (7, 0));
    assert_eq!(report.requests.joined_late, 0);
}

#[test]
fn deliveries_without_counts_show_merges() {
    let mut run = Run::after(60);
    run.stream(&STREAM);
    run.deliver(&[(1, None), (5, None), (1, None)]);
    let fates = run.fates();
    assert_eq!((fates.delivered, fates.merged, fates.dropped), (3, 1, 0));
}

#[test]
fn a_stream_joined_late_is_counted_without_judging_losses() {
    let mut run = Run::after(3);
    run.stream(&STREAM);
    // The response's counts include tokens that were generated before.
    run.deliver(&[(1, Some(101)), (2, Some(106)), (1, Some(107))]);
    let fates = run.fates();
    assert_eq!(fates.dropped, 0);
    assert_eq!(fates.tokens_lost, 0);
    assert_eq!(fates.unjudged, LENGTH as u64);
    let report = run.analysis.report(&ReportInput::of("tap"));
    assert_eq!((report.requests.joined_late, report.tokens.sent), (1, 7));
}

#[test]
fn missed_observations_are_not_reported_as_losses() {
    let mut run = Run::after(60);
    run.stream(&STREAM[..1]);
    run.apply(What::Missed(Missed::new(Some(HOP), 1, MissedCause::QueueFull)));
    run.seq += 1;
    run.stream(&STREAM[2..]);
    run.deliver(&[(1, Some(1)), (5, Some(6)), (1, Some(7))]);
    let fates = run.fates();
    assert_eq!((fates.dropped, fates.tokens_lost), (0, 0));
    let report = run.analysis.report(&ReportInput::of("tap"));
    assert_eq!((report.tokens.sent, report.tokens.missing_on_wire), (4, 0));
}

/// An engine whose requests may end without a finish reason.
#[derive(Debug)]
struct Silent;

impl trace::engine::Facts for Silent {
    fn name(&self) -> &'static str {
        "silent"
    }

    fn title(&self) -> &'static str {
        "Silent"
    }

    fn ends_silently(&self) -> bool {
        true
    }
}

#[test]
fn a_first_chunk_with_the_prompts_length_is_the_first() {
    let first = |prompt_tokens| {
        let mut run = Run::after(0);
        run.send(&[Chunk { prompt_tokens, ..CHUNK }]);
        let totals = run.analysis.ledger().totals();
        (totals.requests.joined_late, totals.requests.seen)
    };
    assert_eq!(first(Some(7)), (0, 1));
    assert_eq!(first(None), (1, 1));
}

#[test]
fn the_end_of_its_response_ends_a_request_of_an_engine_that_sends_no_finish_reason() {
    let ended = |engines, end| {
        let mut run = Run::after(0);
        run.analysis = Analysis::new(Config { engines, ..Config::default() });
        run.send(&[Chunk { prompt_tokens: Some(7), ..CHUNK }]);
        run.apply(What::Answered(Answer { end, ..Answer::new("a", Some(1), None) }));
        // One more step before the abort reaches the engine.
        run.send(&[CHUNK]);
        let requests = &run.analysis.ledger().totals().requests;
        (requests.seen, requests.finished, requests.aborted)
    };
    assert_eq!(ended(SILENT, AnswerEnd::ClientLeft), (1, 0, 1));
    assert_eq!(ended(SILENT, AnswerEnd::Whole), (1, 1, 0));
    assert_eq!(ended(Engines::default(), AnswerEnd::ClientLeft), (1, 0, 0));
}
