//! An engine's output, a second at a time: requests that come and go, as `uuid4().hex` names them.

use trace::event::{Chunk, Finish, Frame, Hop, IdColumn, Kind, Sees};
use trace::{FrameId, HopId};

/// The rate that a busy engine was reported to reach.
pub const CHUNKS_PER_S: u64 = 132_000;

/// The only hop of the traffic.
pub const HOP: Hop<'static> = Hop {
    id: HopId(0),
    name: "scheduler->tokenizer",
    endpoint: "",
    worker: None,
    origin: true,
    last: true,
    sees: Sees {
        sent: true,
        forwarded: false,
        taken: true,
        handled: false,
        delivered: false,
    },
};

/// The frame of that place on it, as large as 256 requests of 0.5.9 are.
pub fn frame<'a>(seq: u64, chunks: &'a [Chunk<'a>]) -> Frame<'a> {
    let id = FrameId {
        hop: HOP.id,
        lane: 0,
        seq,
    };
    Frame {
        id,
        bytes: 25_000,
        kind: Kind::TokenIds,
        ids: IdColumn::Delta,
        chunks,
    }
}

/// What one chunk is, with its rid owned.
#[derive(Clone, Debug)]
pub struct Part {
    /// As `uuid4().hex` looks.
    pub rid: String,
    completion: u32,
    finish: bool,
}

/// A second of frames at a time; each slot is a request that ends and is followed by another.
#[derive(Debug)]
pub struct Traffic {
    slots: Vec<Part>,
    /// The second's frames.
    pub frames: Vec<Vec<Part>>,
    size: usize,
    tokens: u32,
    next: usize,
    born: u64,
}

impl Traffic {
    /// `rids` requests at a time in frames of `frame` chunks; each request ends after `tokens`.
    pub fn new(rids: usize, frame: usize, tokens: u32) -> Self {
        let mut traffic = Self {
            slots: Vec::new(),
            frames: Vec::new(),
            size: frame,
            tokens,
            next: 0,
            born: 0,
        };
        for slot in 0..rids {
            let rid = traffic.rid();
            // Requests are spread over their lives, as in a steady state.
            let completion = slot as u32 * 7 % tokens;
            traffic.slots.push(Part {
                rid,
                completion,
                finish: false,
            });
        }
        traffic
    }

    /// As `uuid4().hex` looks.
    fn rid(&mut self) -> String {
        self.born += 1;
        format!(
            "{:016x}{:016x}",
            self.born.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            self.born.wrapping_mul(0xd134_2543_de82_ef95)
        )
    }

    /// The next second.
    pub fn advance(&mut self) {
        self.frames.clear();
        for _ in 0..CHUNKS_PER_S as usize / self.size {
            let mut frame = Vec::with_capacity(self.size);
            for _ in 0..self.size {
                let place = self.next % self.slots.len();
                self.next += 1;
                if self.slots[place].finish {
                    let rid = self.rid();
                    self.slots[place] = Part {
                        rid,
                        completion: 0,
                        finish: false,
                    };
                }
                let slot = &mut self.slots[place];
                slot.completion += 1;
                slot.finish = slot.completion >= self.tokens;
                frame.push(slot.clone());
            }
            self.frames.push(frame);
        }
    }

    /// The second's frames as chunks.
    pub fn borrow(&self) -> Vec<Vec<Chunk<'_>>> {
        self.frames
            .iter()
            .map(|frame| frame.iter().map(Part::chunk).collect())
            .collect()
    }
}

impl Part {
    /// As a frame says it.
    pub fn chunk(&self) -> Chunk<'_> {
        Chunk {
            rid: &self.rid,
            listed: Some(1),
            completion_tokens: Some(self.completion),
            prompt_tokens: Some(1_024),
            cached_tokens: Some(0),
            finish: self.finish.then_some(Finish::Stop),
            retractions: Some(0),
            worker: None,
            ids: &[],
        }
    }
}
