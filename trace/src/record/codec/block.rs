//! The block being encoded or decoded.

use super::bytes::Cursor;
use super::chain::{Chain, Links};
use super::chunk::Predictor;
use super::columns::Columns;
use super::delivery::Deliveries;
use super::lane::Lanes;
use super::standing::Standing;
use super::text::{Reading, Texts};
use crate::clock::MonoNs;
use crate::event::{Chunk, Missed};
use crate::record::Record;

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

/// Content of a finished block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::record) struct Content {
    pub(in crate::record) records: u32,
    pub(in crate::record) chunks: u32,
    /// Earliest and latest time in the block.
    pub(in crate::record) from: MonoNs,
    pub(in crate::record) to: MonoNs,
}

/// The block being written: its columns, with the state of their predictions.
#[derive(Debug, Default)]
pub(in crate::record) struct Encoder {
    pub(super) state: State,
    pub(super) columns: Columns<Vec<u8>>,
    pub(super) texts: Texts,
    pub(super) links: Links,
    /// Whether token ids are written.
    pub(super) tokens: bool,
    pub(super) content: Content,
    /// Number of token ids in the block.
    pub(super) ids: usize,
    pub(super) standing: Standing,
    pub(super) fields: Vec<u8>,
    /// Time of the last record.
    pub(super) last: u64,
}

/// A block being decoded: its columns, the state of their predictions, and its last record.
pub(in crate::record) struct DecodedBlock<'b> {
    pub(super) state: &'b mut State,
    pub(super) columns: Columns<Cursor<'b>>,
    pub(super) texts: Reading<'b>,
    /// Token ids not yet assigned to chunks.
    pub(super) ids: &'b [i64],
    /// Remaining chunks and records of the numbers in the block's header.
    pub(super) chunks_left: u32,
    pub(super) records_left: u32,
    /// Earliest time in the block: the time of events that are not its records.
    pub(super) from: MonoNs,
    /// Records missing before the block, not reported yet.
    pub(super) missed: Option<Missed>,
    /// Whether the standing data is wanted.
    pub(super) standing: bool,
    /// Time of the last record.
    pub(super) at: u64,
    /// Last record, without its chunks.
    pub(super) last: Option<Record<'b>>,
    /// Chunks of the last record.
    pub(super) chunks: Vec<Chunk<'b>>,
    pub(super) unknown: u64,
}
