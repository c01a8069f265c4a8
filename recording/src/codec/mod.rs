//! Encodes and decodes records, one block at a time and without any I/O.
//!
//! A block is self-contained: its texts, its lanes and the predictions for each request start from scratch. Writer and reader make the same
//! predictions for every frame, and only differences are written.

mod bytes;
mod chunk_predictor;
mod codes;
mod columns;
mod decoder;
mod delivery_predictor;
mod encoder;
mod lane_predictor;
mod rare;
mod request_order;
mod text;

pub(super) use columns::BlockColumns;
pub(super) use decoder::{DecodeBuffers, DecodedBlock};
pub(super) use encoder::{EncodedBlock, Encoder};

use trace::clock::MonoNs;

/// Content of a finished block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockContent {
    pub(super) records: u32,
    pub(super) chunks: u32,
    /// Earliest and latest time in the block.
    pub(super) from: MonoNs,
    pub(super) to: MonoNs,
}

/// State of the predictions in a block, equal in writer and reader.
#[derive(Debug, Default)]
struct PredictionState {
    lanes: lane_predictor::LanePredictors,
    order: request_order::RequestOrder<chunk_predictor::ChunkPredictor>,
    deliveries: delivery_predictor::DeliveryPredictor,
}

impl PredictionState {
    /// Forgets all predictions, so that a block can be read without the one before it.
    fn clear(&mut self) {
        self.lanes.clear();
        self.order.clear();
        self.deliveries.clear();
    }
}
