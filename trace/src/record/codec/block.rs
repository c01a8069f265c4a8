//! The block being encoded or decoded.

use super::bytes::Cursor;
use super::chain::{Chain, Links};
use super::chunk::Predictor;
use super::columns::Columns;
use super::delivery::Deliveries;
use super::lane::Lanes;
use super::text::{Reading, Texts};

/// State of the block so far, equal in writer and reader.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) lanes: Lanes,
    pub(super) chain: Chain<Predictor>,
    pub(super) given: Deliveries,
}

impl State {
    pub(super) fn clear(&mut self) {
        self.lanes.clear();
        self.chain.clear();
        self.given.clear();
    }
}

/// Columns of a block being encoded, with the state of their predictions.
#[derive(Debug, Default)]
pub(super) struct EncodedBlock {
    pub(super) state: State,
    pub(super) columns: Columns<Vec<u8>>,
    pub(super) texts: Texts,
    pub(super) links: Links,
    /// Whether token ids are written.
    pub(super) tokens: bool,
    pub(super) chunks: u32,
    pub(super) ids: usize,
}

impl EncodedBlock {
    /// Starts the next block. The columns are left as they are.
    pub(super) fn clear(&mut self) {
        self.state.clear();
        self.texts.clear();
        self.links.clear();
        (self.chunks, self.ids) = (0, 0);
    }
}

/// Columns of a block being decoded, with the state of their predictions.
pub(super) struct DecodedBlock<'s, 'b> {
    pub(super) state: &'s mut State,
    pub(super) columns: Columns<Cursor<'b>>,
    pub(super) texts: Reading<'b>,
    /// Token ids not yet assigned to chunks.
    pub(super) ids: &'b [i64],
    /// Remaining chunks of the number in the block's header.
    pub(super) chunks_left: u32,
}
