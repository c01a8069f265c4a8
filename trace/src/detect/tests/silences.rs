//! Silences of the engine.

use super::{MS, SECOND, Scene};
use crate::clock::MonoNs;
use crate::detect::{Severity, Verdict};
use crate::engine::Engines;
use crate::event::{Capabilities, Chunk, Dispatch, DispatchKind, DispatchedRequest, Frame, Hop, What};
use crate::id::{FrameId, HopId};
use crate::ledger::Limits;

const STREAMS: [&str; 3] = ["a", "b", "c"];

/// Streams of one engine: each frame has one token of each.
struct Streaming {
    scene: Scene,
    now: u64,
    count: u32,
}

impl Streaming {
    fn new() -> Self {
        Self { scene: Scene::skip_path(), now: 0, count: 0 }
    }

    /// With observed messages to the engine.
    fn with_requests() -> Self {
        let mut run = Self::new();
        run.scene.hop(Hop::with_requests(HopId(7), "tokenizer->scheduler", Capabilities::SENT));
        run
    }

    /// Lets time pass, with the ticks of a run.
    fn wait(&mut self, ms: u64) -> &mut Self {
        for _ in 0..ms / 50 {
            self.now += 50 * MS;
            self.scene.tick(self.now);
        }
        self
    }

    /// Sends a frame every 50 ms.
    fn send(&mut self, frames: u32, streams: &[&str]) -> &mut Self {
        for _ in 0..frames {
            self.frame(streams);
            self.wait(50);
        }
        self
    }

    fn frame(&mut self, streams: &[&str]) {
        self.count += 1;
        let chunks: Vec<_> = streams.iter().map(|rid| (*rid, 1, self.count)).collect();
        self.scene.send(self.now, &chunks);
        let seq = self.scene.next[0] - 1;
        self.scene.receive(self.now, seq);
    }

    fn check(&self) -> Vec<Verdict> {
        self.scene.check("engine-silent", self.now)
    }
}

#[test]
fn a_pause_of_all_streams_is_reported_with_its_start_and_length() {
    let mut run = Streaming::with_requests();
    run.send(20, &STREAMS).wait(2_950).send(30, &STREAMS);
    let found = run.check();
    assert_eq!(found.len(), 1);
    let since = MonoNs(19 * 50 * MS);
    assert_eq!(
        (found[0].severity, found[0].since, &*found[0].hop),
        (Severity::Warning, Some(since), "scheduler->tokenizer")
    );
    assert_eq!(found[0].evidence["silence_ns"], 3 * SECOND);
    assert_eq!(found[0].evidence["streams"], 3);
    run.wait(5_000).send(30, &STREAMS);
    let found = run.check();
    assert_eq!((found[0].severity, &found[0].evidence["silences"]), (Severity::Critical, &2.into()));
}

/// A pause or an update of weights that someone asked for looks the same.
#[test]
fn a_silence_that_may_have_been_asked_for_is_a_warning() {
    check_silence(&mut Streaming::new(), false, "whether it was asked to pause or to load weights is not observed");
    let text = "a control message to the scheduler was sent then, which may have paused it";
    check_silence(&mut Streaming::with_requests(), true, text);
}

/// Expects a warning with this text. `is_asked`: a control message is sent before the silence.
fn check_silence(run: &mut Streaming, is_asked: bool, text: &str) {
    run.send(20, &STREAMS);
    if is_asked {
        let id = FrameId::new(HopId(7), 0, 0);
        let control = Dispatch { id, bytes: 90, kind: DispatchKind::Control, index: 0, request: None };
        run.scene.apply(run.now - 40 * MS, What::Dispatched(control));
    }
    run.wait(7_950).send(30, &STREAMS);
    let found = run.check();
    assert_eq!(found[0].severity, Severity::Warning);
    assert!(found[0].summary.ends_with(text), "{}", found[0].summary);
}

#[test]
fn a_pause_is_reported_while_it_lasts() {
    let mut run = Streaming::new();
    run.send(20, &STREAMS).wait(900);
    assert!(run.check().is_empty());
    run.wait(1_100);
    assert_eq!(run.check()[0].evidence["silence_ns"], 2_050 * MS);
    run.send(5, &STREAMS).wait(100);
    assert!(run.check()[0].summary.starts_with("the scheduler sent no frame for 2.050 s while 3 streams were open"));
}

#[test]
fn requests_that_wait_for_a_silent_engine_hide_nothing() {
    let mut run = Streaming::new();
    let requests = HopId(7);
    run.scene.hop(Hop::with_requests(requests, "tokenizer->scheduler", Capabilities::SENT | Capabilities::RECEIVED));
    run.send(20, &STREAMS);
    for seq in 0..200 {
        let request = Some(DispatchedRequest::new("queued"));
        let id = FrameId::new(requests, 0, seq);
        let dispatch = Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request };
        run.scene.apply(run.now, What::Dispatched(dispatch));
    }
    run.wait(2_950).send(30, &STREAMS);
    assert_eq!(run.check().len(), 1);
}

#[test]
fn frames_for_others_end_a_silence() {
    let mut run = Streaming::new();
    run.send(20, &STREAMS).wait(900);
    run.scene.send(run.now, &[("new", 1, 1)]);
    run.wait(900).send(30, &STREAMS);
    assert!(run.check().is_empty());
}

#[test]
fn idle_engines_and_single_or_slow_streams_are_not_silent() {
    let mut run = Streaming::new();
    run.send(20, &STREAMS[..1]).wait(5_000).send(30, &STREAMS[..1]);
    assert!(run.check().is_empty(), "one stream may be slow");

    let mut run = Streaming::new();
    run.send(20, &STREAMS).wait(5_000).send(30, &["d", "e", "f"]);
    run.scene.tick(run.now);
    assert!(run.scene.ledger.engine_silences().longest.is_none(), "no stream went on");

    let mut run = Streaming::new();
    for _ in 0..20 {
        run.frame(&STREAMS);
        run.wait(1_500);
    }
    assert!(run.check().is_empty(), "this is the usual time");
}

#[test]
fn requests_that_are_not_streamed_may_be_silent() {
    let mut scene = Scene::skip_path();
    for step in 1..=6 {
        let now = step * 2 * SECOND;
        for at in 1..40 {
            scene.tick(now - 2 * SECOND + at * 50 * MS);
        }
        scene.send(now, &[("a", 50, step as u32 * 50), ("b", 50, step as u32 * 50)]);
        // Streams of an earlier time make the usual time short.
        (0..20).for_each(|n| scene.send(now + n, &[("s", 1, step as u32 * 20 + n as u32)]));
    }
    scene.tick(12 * SECOND + 500 * MS);
    assert!(scene.check("engine-silent", 12 * SECOND + 500 * MS).is_empty());
}

#[test]
fn missed_observations_prove_no_silence() {
    let mut run = Streaming::new();
    run.send(20, &STREAMS).wait(1_500);
    run.scene.lose(3);
    run.count += 3;
    run.wait(1_500).send(30, &STREAMS);
    assert!(run.check().is_empty());

    // The missing frame shows only in the numbering of the next one.
    let mut run = Streaming::new();
    run.send(20, &STREAMS).wait(3_000);
    run.scene.next[0] += 1;
    run.count += 1;
    run.send(30, &STREAMS);
    assert!(run.scene.ledger.engine_silences().longest.is_none());

    let mut run = Streaming::new();
    run.send(20, &STREAMS).wait(1_500);
    run.scene.send_undecodable(0, run.now, "class unknown");
    run.wait(900).send(30, &STREAMS);
    assert!(run.scene.ledger.engine_silences().longest.is_none());
}

#[test]
fn a_time_in_which_tokengap_did_not_run_proves_no_silence() {
    let mut run = Streaming::new();
    run.send(20, &STREAMS);
    run.now += 3 * SECOND;
    run.send(30, &STREAMS);
    assert!(run.check().is_empty());
}

#[test]
fn frames_that_arrive_late_prove_no_silence() {
    let mut run = Streaming::new();
    run.send(20, &STREAMS).wait(3_000);
    (0..60).for_each(|_| run.frame(&STREAMS));
    run.send(30, &STREAMS);
    assert!(run.scene.ledger.engine_silences().longest.is_none());
}

#[test]
fn a_relay_that_cannot_write_proves_no_silence() {
    let mut scene = Scene::empty(Engines::default(), Limits::default());
    let capabilities = Capabilities { forwarded: true, ..Capabilities::SENT };
    scene.hop(Hop::only(HopId(0), "scheduler->tokenizer", capabilities));
    let mut send = |at: u64, forwarded: u64, count: u32| {
        let chunks = STREAMS.map(|rid| Chunk::counted(rid, 1, count));
        let frame = Frame::token_ids(Scene::id(u64::from(count) - 1), 900, &chunks);
        scene.apply(at, What::Sent(Frame { forwarded: Some(MonoNs(forwarded)), ..frame }));
        scene.tick(at);
    };
    (1..20).for_each(|n| send(u64::from(n) * 50 * MS, u64::from(n) * 50 * MS, n));
    // Its receiver reads nothing for three seconds, so it reads nothing either.
    send(SECOND, 4 * SECOND, 20);
    (21..60).for_each(|n| send(4 * SECOND + u64::from(n) * 50 * MS, 4 * SECOND + u64::from(n) * 50 * MS, n));
    assert!(scene.ledger.engine_silences().longest.is_none());
}

#[test]
fn a_receiver_that_blocks_the_sends_is_not_a_silent_engine() {
    let mut run = Streaming::new();
    for _ in 0..100 {
        run.scene.send(run.now, &STREAMS.map(|rid| (rid, 1, run.count + 1)));
        run.count += 1;
        run.wait(50);
    }
    run.wait(3_000).send(30, &STREAMS);
    assert!(run.check().is_empty());
}
