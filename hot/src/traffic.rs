//! Synthetic engine output, generated one second at a time: requests start and finish, with ids in the format of `uuid4().hex`.

use trace::event::{Chunk, Finish, Frame, Hop, IdColumn, Kind, Sees};
use trace::{FrameId, HopId};

/// Reported token rate of a busy engine.
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

/// Frame number `seq` on the hop, with the size in bytes of a 256-request frame of SGLang 0.5.9.
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

/// Content of one chunk, with an owned request id.
#[derive(Clone, Debug)]
pub struct Part {
    /// Request id in the format of `uuid4().hex`.
    pub rid: String,
    completion: u32,
    finish: bool,
}

/// Generator of frames, one second at a time. Each slot holds a live request; when it ends, another replaces it.
#[derive(Debug)]
pub struct Traffic {
    slots: Vec<Part>,
    /// Frames of the current second.
    pub frames: Vec<Vec<Part>>,
    size: usize,
    tokens: u32,
    next: usize,
    born: u64,
}

impl Traffic {
    /// Simulates `rids` live requests in frames of `frame` chunks; each request ends after `tokens` tokens.
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
            // Start requests at different ages, as in a steady state.
            let completion = slot as u32 * 7 % tokens;
            traffic.slots.push(Part {
                rid,
                completion,
                finish: false,
            });
        }
        traffic
    }

    /// Makes a request id in the format of `uuid4().hex`.
    fn rid(&mut self) -> String {
        self.born += 1;
        format!(
            "{:016x}{:016x}",
            self.born.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            self.born.wrapping_mul(0xd134_2543_de82_ef95)
        )
    }

    /// Generates the next second.
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

    /// The frames of the current second as borrowed chunks.
    pub fn borrow(&self) -> Vec<Vec<Chunk<'_>>> {
        self.frames
            .iter()
            .map(|frame| frame.iter().map(Part::chunk).collect())
            .collect()
    }
}

impl Part {
    /// The part as a chunk of a frame.
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
