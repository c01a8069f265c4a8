//! Synthetic engine output for the benchmarks, one second at a time.
#![allow(dead_code, reason = "each benchmark uses a part of this module")]

use recording::{BlockWriter, Recorder};
use trace::event::{Capabilities, Chunk, Event, Finish, Frame, Hop, IdColumn, Kind, Received, What};
use trace::{Analysis, FrameId, HopId, MonoNs};

/// Token rate of a busy engine.
pub(crate) const CHUNKS_PER_S: u64 = 132_000;
/// Chunks per frame.
pub(crate) const REQUESTS: usize = 256;
/// Live requests of a busy engine.
pub(crate) const LIVE: usize = 16 * REQUESTS;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// Content of one chunk, with an owned request id in the format of `uuid4().hex`.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) rid: String,
    completion: u32,
    finish: bool,
}

impl Part {
    fn chunk(&self) -> Chunk<'_> {
        Chunk {
            listed: Some(1),
            completion_tokens: Some(self.completion),
            prompt_tokens: Some(1_024),
            cached_tokens: Some(0),
            finish: self.finish.then_some(Finish::Stop),
            retractions: Some(0),
            ..Chunk::new(&self.rid)
        }
    }
}

/// Generator of frames. Each slot holds a live request; when it finishes, another replaces it.
pub(crate) struct Traffic {
    slots: Vec<Part>,
    tokens: u32,
    next: usize,
    started: u64,
}

impl Traffic {
    /// `live` requests, each of which finishes after `tokens` tokens.
    pub(crate) fn new(live: usize, tokens: u32) -> Self {
        let mut traffic = Self { slots: Vec::new(), tokens, next: 0, started: 0 };
        for slot in 0..live {
            let mut part = traffic.begin();
            // Start requests at different ages, as in a steady state.
            part.completion = slot as u32 * 7 % tokens;
            traffic.slots.push(part);
        }
        traffic
    }

    fn begin(&mut self) -> Part {
        self.started += 1;
        let halves = [0x9e37_79b9_7f4a_7c15, 0xd134_2543_de82_ef95].map(|factor| self.started.wrapping_mul(factor));
        Part { rid: format!("{:016x}{:016x}", halves[0], halves[1]), completion: 0, finish: false }
    }

    /// Frames of the next second.
    pub(crate) fn second(&mut self) -> Vec<Vec<Part>> {
        let size = REQUESTS.min(self.slots.len());
        let frames = 0..CHUNKS_PER_S as usize / size;
        frames.map(|_| (0..size).map(|_| self.part()).collect()).collect()
    }

    fn part(&mut self) -> Part {
        let index = self.next % self.slots.len();
        self.next += 1;
        if self.slots[index].finish {
            self.slots[index] = self.begin();
        }
        let slot = &mut self.slots[index];
        slot.completion += 1;
        slot.finish = slot.completion >= self.tokens;
        slot.clone()
    }
}

/// The frames as chunks that borrow their request ids.
pub(crate) fn chunks(frames: &[Vec<Part>]) -> Vec<Vec<Chunk<'_>>> {
    frames.iter().map(|parts| parts.iter().map(Part::chunk).collect()).collect()
}

/// Receiver of events.
pub(crate) trait Sink {
    fn event(&mut self, event: &Event<'_>);
    fn tick(&mut self, now: MonoNs);
}

macro_rules! sinks {
    ($($sink:ident: $event:ident $tick:ident),+) => {$(
        impl Sink for $sink {
            fn event(&mut self, event: &Event<'_>) {
                $sink::$event(self, event);
            }
            fn tick(&mut self, now: MonoNs) {
                $sink::$tick(self, now);
            }
        }
    )+};
}

sinks! { Analysis: apply tick, Recorder: record_event record_tick, BlockWriter: record_event record_tick }

/// Numbers and times the frames on their way through the hops.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    /// Number of consecutive hops that every frame passes.
    pub(crate) hops: u16,
    /// Connections of each hop, used in rotation.
    pub(crate) lanes: u64,
    /// Whether receives are observed too.
    pub(crate) receives: bool,
    pub(crate) seq: u64,
    pub(crate) at: u64,
}

/// One hop and one connection, sends and receives observed.
pub(crate) const STREAM: Stream = Stream { hops: 1, lanes: 1, receives: true, seq: 0, at: SECOND };

impl Stream {
    /// Announces the hops.
    pub(crate) fn announce(&self, to: &mut impl Sink) {
        /// Hop names of SGLang followed by a chain of further processes.
        const NAMES: [&str; 8] = [
            "scheduler->detokenizer",
            "detokenizer->router",
            "router->tokenizer-router",
            "tokenizer-router->a",
            "a->b",
            "b->c",
            "c->d",
            "scheduler->tokenizer",
        ];
        for number in 0..self.hops {
            let last = number + 1 == self.hops;
            let hop = Hop {
                origin: number == 0,
                last,
                ..Hop::new(
                    HopId(number),
                    NAMES[if last { NAMES.len() - 1 } else { usize::from(number) }],
                    Capabilities { sent: true, received: self.receives, ..Capabilities::default() },
                )
            };
            to.event(&Event::new(MonoNs(self.at), What::Hop(hop)));
        }
    }

    /// Sends a frame over every hop and receives it 0.1 ms later, with a tick about every 100 ms.
    pub(crate) fn frame(&mut self, chunks: &[Chunk<'_>], to: &mut impl Sink) {
        const RECEIVE_DELAY_NS: u64 = 100_000;
        // Vary times and lengths a little, so that compression does not profit from constant values.
        let noise = (self.seq + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 45;
        for hop in 0..self.hops {
            let id = FrameId::new(HopId(hop), (self.seq % self.lanes) as u32, self.seq / self.lanes);
            let sent = What::Sent(Frame {
                id,
                // Size of a 256-request frame of SGLang 0.5.9.
                bytes: 25_000 + noise % 512,
                forwarded: None,
                kind: Kind::TokenIds,
                ids: IdColumn::Delta,
                chunks,
            });
            let received = What::Received(Received::in_wakeup(id, self.seq));
            let at = self.at + noise + u64::from(2 * hop) * RECEIVE_DELAY_NS;
            let events = [(at, sent), (at + RECEIVE_DELAY_NS, received)];
            for (at, what) in events.into_iter().take(1 + usize::from(self.receives)) {
                to.event(&Event { at: MonoNs(at), what });
            }
        }
        self.seq += 1;
        self.at += SECOND * chunks.len() as u64 / CHUNKS_PER_S;
        if self.seq.is_multiple_of(51) {
            to.tick(MonoNs(self.at));
        }
    }

    pub(crate) fn frames(&mut self, frames: &[Vec<Chunk<'_>>], to: &mut impl Sink) {
        for chunks in frames {
            self.frame(chunks, to);
        }
    }
}
