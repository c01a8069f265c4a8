//! Encodes and decodes records, one block at a time and without any I/O.
//!
//! A block is self-contained: its texts, its lanes and the predictions for each request start from scratch. Writer and reader make the same
//! predictions for every frame, and only differences are written.

mod bytes;
mod chain;
mod chunk;
mod codes;
mod columns;
mod decoder;
mod delivery;
mod encoder;
mod lane;
mod rare;
mod text;

pub(super) use bytes::Malformed;
pub(super) use columns::Columns;
pub(super) use decoder::{DecodedBlock, Scratch};
pub(super) use encoder::Encoder;

use trace::clock::MonoNs;

/// Content of a finished block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) records: u32,
    pub(super) chunks: u32,
    /// Earliest and latest time in the block.
    pub(super) from: MonoNs,
    pub(super) to: MonoNs,
}

/// State of the predictions in a block, equal in writer and reader.
#[derive(Debug, Default)]
struct State {
    lanes: lane::Lanes,
    chain: chain::Chain<chunk::Predictor>,
    given: delivery::Deliveries,
}

impl State {
    fn clear(&mut self) {
        self.lanes.clear();
        self.chain.0.clear();
        self.given.clear();
    }
}
