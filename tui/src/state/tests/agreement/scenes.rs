//! Small runs that together have a chunk of every outcome.

use trace::engine::Mode;
use trace::event::{
    Capabilities, Chunk, Delivery, Dispatch, DispatchKind, DispatchedRequest, Engine, Event, Finish, Frame, Hop,
    Missed, MissedCause, Received, Response, What,
};
use trace::{FrameId, HopId, MonoNs};

const MS: u64 = 1_000_000;
/// Time of the first event.
pub(super) const START: MonoNs = MonoNs(1_000 * MS);
/// Hop with the requests to the scheduler; those with output have lower numbers.
const REQUESTS: HopId = HopId(3);

/// A step of a run.
pub(super) enum Step<'a> {
    Event(Event<'a>),
    Tick(MonoNs),
}

/// Passes the steps of a run, in order.
pub(super) type PlayScene = fn(&mut dyn FnMut(&Step<'_>));

/// All runs by name.
pub(super) const ALL: [(&str, PlayScene); 5] = [
    ("every outcome", play_every_outcome),
    ("a detokenizer that combines chunks", play_combining_detokenizer),
    ("responses that do not stream", play_whole_responses),
    ("deliveries not observed", play_predicted_drops),
    ("sends of a tap", play_tap),
];

/// Plays events at times in milliseconds after the start.
struct Player<'s> {
    pass: &'s mut dyn FnMut(&Step<'_>),
    now: u64,
    /// Number of the next frame of each hop.
    frames: [u64; 4],
}

impl<'s> Player<'s> {
    /// Starts a run with these hops: the first is the scheduler's, the last leads to the tokenizer.
    fn new(pass: &'s mut dyn FnMut(&Step<'_>), hops: &[(&str, Capabilities)]) -> Self {
        let mut player = Self { pass, now: 0, frames: [0; 4] };
        for (id, &(name, capabilities)) in (0..).zip(hops) {
            let is_last = usize::from(id) + 1 == hops.len();
            let hop = Hop { origin: id == 0, last: is_last, ..Hop::new(HopId(id), name, capabilities) };
            player.emit(What::Hop(hop));
        }
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
        player.emit(What::Hop(Hop::with_requests(REQUESTS, "tokenizer->scheduler", capabilities)));
        player.emit(What::Engine(Engine {
            version: Some("0.5.9"),
            mode: Some(Mode::Incremental),
            ..Engine::default()
        }));
        player
    }

    fn emit(&mut self, what: What<'_>) {
        let at = MonoNs(START.0 + self.now * MS);
        (self.pass)(&Step::Event(Event { at, what }));
    }

    fn wait(&mut self, ms: u64) {
        self.now += ms;
    }

    fn next_frame(&mut self, hop: HopId) -> FrameId {
        let seq = &mut self.frames[usize::from(hop.0)];
        *seq += 1;
        FrameId::new(hop, 0, *seq - 1)
    }

    /// Sends a request to the scheduler, which receives it 2 ms later.
    fn dispatch(&mut self, rid: &str) {
        let id = self.next_frame(REQUESTS);
        let request = Some(DispatchedRequest::new(rid));
        self.emit(What::Dispatched(Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request }));
        self.wait(2);
        self.emit(What::Received(Received::new(id)));
    }

    /// Sends a chunk on a hop in a frame of its own.
    fn send(&mut self, hop: u16, chunk: Chunk<'_>) -> FrameId {
        self.wait(3);
        let id = self.next_frame(HopId(hop));
        self.emit(What::Sent(Frame::token_ids(id, 500 + id.seq, &[chunk])));
        id
    }

    /// Receives a frame.
    fn receive(&mut self, frame: FrameId, wakeup: u64) {
        self.wait(1);
        self.emit(What::Received(Received::in_wakeup(frame, wakeup)));
    }

    /// Sends a chunk on the first hop, and receives it there in a wakeup of its own.
    fn pass_chunk(&mut self, chunk: Chunk<'_>) {
        let frame = self.send(0, chunk);
        self.receive(frame, 1_000 + self.now);
    }

    fn deliver(&mut self, delivery: Delivery<'_>) {
        self.wait(1);
        self.emit(What::Delivered(Delivery { mode: Mode::Incremental, ..delivery }));
    }

    /// Lets time pass until finished requests are closed.
    fn end(&mut self) {
        for _ in 0..200 {
            self.wait(100);
            let at = MonoNs(START.0 + self.now * MS);
            (self.pass)(&Step::Tick(at));
        }
    }
}

/// A chunk with one token; the third one is the last.
fn chunk(rid: &str, count: u32) -> Chunk<'_> {
    Chunk { finish: (count == 3).then_some(Finish::Stop), ..Chunk::counted(rid, 1, count) }
}

fn delivering() -> Capabilities {
    Capabilities::SENT | Capabilities::RECEIVED | Capabilities::DELIVERED
}

fn play_every_outcome(pass: &mut dyn FnMut(&Step<'_>)) {
    let mut player = Player::new(pass, &[("scheduler->tokenizer", delivering())]);
    // Tokens and count of each delivery.
    let requests: [(&str, &[[u32; 2]]); 4] = [
        ("delivered", &[[1, 1], [1, 2], [1, 3]]),
        ("merged", &[[1, 1], [2, 3]]),
        ("dropped", &[[1, 1], [1, 3]]),
        ("first dropped", &[[1, 2], [1, 3]]),
    ];
    for (rid, deliveries) in requests {
        player.dispatch(rid);
        for count in 1..=3 {
            player.pass_chunk(chunk(rid, count));
        }
        for &[tokens, count] in deliveries {
            player.deliver(Delivery { finished: count == 3, ..Delivery::new(rid, tokens, Some(count)) });
        }
    }
    player.pass_chunk(Chunk { completion_tokens: None, ..Chunk::counted("without count", 1, 1) });
    player.dispatch("waiting");
    player.send(0, chunk("waiting", 1));
    for count in 1..=3 {
        player.pass_chunk(chunk("missed", count));
    }
    player.emit(What::Missed(Missed::new(None, 2, MissedCause::QueueFull)));
    player.deliver(Delivery { finished: true, ..Delivery::new("missed", 1, Some(3)) });
    player.end();
}

fn play_combining_detokenizer(pass: &mut dyn FnMut(&Step<'_>)) {
    let both = Capabilities::SENT | Capabilities::RECEIVED;
    let mut player = Player::new(pass, &[("scheduler->detokenizer", both), ("detokenizer->tokenizer", delivering())]);
    for rid in ["combined", "combined and dropped"] {
        player.dispatch(rid);
        player.pass_chunk(chunk(rid, 1));
        let frame = player.send(1, chunk(rid, 1));
        player.receive(frame, 7);
        if rid == "combined" {
            player.deliver(Delivery::new(rid, 1, Some(1)));
        }
        player.pass_chunk(chunk(rid, 2));
        player.pass_chunk(chunk(rid, 3));
        let frame = player.send(1, Chunk { listed: Some(2), ..chunk(rid, 3) });
        player.receive(frame, 8);
        player.deliver(Delivery { finished: true, ..Delivery::new(rid, 2, Some(3)) });
    }
    player.end();
}

fn play_whole_responses(pass: &mut dyn FnMut(&Step<'_>)) {
    let mut player = Player::new(pass, &[("scheduler->tokenizer", delivering())]);
    player.dispatch("whole");
    for count in 1..=3 {
        player.pass_chunk(chunk("whole", count));
    }
    player.deliver(Delivery { response: Response::Whole, finished: true, ..Delivery::new("whole", 3, Some(3)) });
    player.end();
}

fn play_predicted_drops(pass: &mut dyn FnMut(&Step<'_>)) {
    let both = Capabilities::SENT | Capabilities::RECEIVED;
    let mut player = Player::new(pass, &[("scheduler->tokenizer", both)]);
    let frames: Vec<FrameId> = (1..=3).map(|count| player.send(0, chunk("burst", count))).collect();
    for frame in frames {
        player.receive(frame, 1);
    }
    player.end();
}

fn play_tap(pass: &mut dyn FnMut(&Step<'_>)) {
    let hops = [("scheduler->detokenizer", Capabilities::SENT), ("detokenizer->tokenizer", Capabilities::SENT)];
    let mut player = Player::new(pass, &hops);
    player.dispatch("tapped");
    for count in 1..=3 {
        player.send(0, chunk("tapped", count));
        player.send(1, chunk("tapped", count));
    }
    player.end();
}
