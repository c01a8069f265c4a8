//! Blocks of a run for a stream instead of a file. A block is a section of a recording, including its header.

use std::fmt::Display;

use trace::clock::{Anchor, MonoNs};
use trace::event::{Event, Missed, MissedCause};

use super::Record;
use super::codec::{BlockColumns, DecodeBuffers, EncodedBlock, Encoder};
use super::header::RecordedPayload;
use super::section::{SECTION_HEADER_BYTES, Section, kind};
use super::stream::StreamError;
use super::write::UncompressedBlock;

/// Size in bytes at which a block is closed, however little time it covers.
const MAX_BLOCK_BYTES: usize = 1 << 20;
/// Interval between readings of both clocks.
const ANCHOR_INTERVAL_NS: u64 = 60_000_000_000;

/// Collects records into blocks.
#[derive(Debug)]
pub struct BlockWriter {
    encoder: Encoder,
    records_in_closed_blocks: u64,
    /// Time of the first tick, then that of the last reading of both clocks.
    anchored_at: Option<MonoNs>,
}

impl BlockWriter {
    /// Creates a writer at the start of a run.
    pub fn new(payload: RecordedPayload) -> Self {
        Self { encoder: Encoder::new(payload), records_in_closed_blocks: 0, anchored_at: None }
    }

    /// Writes an event.
    pub fn record_event(&mut self, event: &Event<'_>) {
        // Of an event that is too large, the encoder writes only the loss.
        self.encoder.write_event_or_loss(event);
    }

    /// Writes a tick and, once a minute, a reading of both clocks.
    pub fn record_tick(&mut self, now: MonoNs) {
        self.encoder.write_tick(now);
        // The run's header has the clocks of the start, so the first interval begins with the first tick.
        let anchored_at = *self.anchored_at.get_or_insert(now);
        if now.since(anchored_at) >= ANCHOR_INTERVAL_NS {
            self.anchored_at = Some(now);
            self.encoder.write_anchor(Anchor::now());
        }
    }

    /// Whether the block is so large that it must be closed now.
    pub fn is_full(&self) -> bool {
        self.encoder.is_full(MAX_BLOCK_BYTES)
    }

    /// Closes the block and starts the next one. Returns the closed block, which is not compressed yet. `None` if it has no record yet.
    pub fn close_block(&mut self) -> Option<UncompressedBlock> {
        if self.encoder.content.records == 0 {
            return None;
        }
        let columns_of_next_block = BlockColumns::default();
        let EncodedBlock { columns, content } = self.encoder.close_block(columns_of_next_block);
        let first_record = self.records_in_closed_blocks;
        self.records_in_closed_blocks += u64::from(content.records);
        Some(UncompressedBlock { columns, content, first_record, anchor: Anchor::now() })
    }
}

/// An intact block: its section header, and its columns as compressed bytes.
struct PackedBlock<'b> {
    section: Section,
    packed: &'b [u8],
}

impl<'b> PackedBlock<'b> {
    /// Separates the header of a block from its content. Fails if the block is cut short, or differs from its checksum.
    fn parse_and_verify(bytes: &'b [u8]) -> Result<Self, StreamError> {
        let Some((head, packed)) = bytes.split_first_chunk::<SECTION_HEADER_BYTES>() else {
            return Err(damaged_block("it is truncated"));
        };
        let section = Section::parse(head).filter(|section| section.kind == kind::BLOCK);
        let section = section.ok_or_else(|| damaged_block("its header was altered"))?;
        if packed.len() != section.packed_bytes as usize || crc32fast::hash(packed) != section.crc {
            return Err(damaged_block("its checksum does not match"));
        }
        Ok(Self { section, packed })
    }
}

/// Reads blocks.
#[derive(Default)]
pub struct BlockReader {
    buffers: DecodeBuffers,
    /// Number of the next record; `None` before the first.
    next_record: Option<u64>,
    /// Number of the first record of the first block; `None` before it.
    first_record: Option<u64>,
    lost_records: u64,
    unknown_records: u64,
}

impl BlockReader {
    /// Counts the records between the last block and the next one as lost, and returns how many. Records are numbered within the run:
    /// `first_of_block` is the number of the next block's first record, which this makes the expected one.
    fn count_skipped_records_before(&mut self, first_of_block: u64) -> u64 {
        let skipped = self.next_record.map_or(0, |next| first_of_block.saturating_sub(next));
        self.next_record = Some(first_of_block);
        self.lost_records += skipped;
        skipped
    }

    /// Number of the run's records before the first block; `None` before it.
    pub fn records_before(&self) -> Option<u64> {
        self.first_record
    }

    /// Number of missing records so far.
    pub fn lost(&self) -> u64 {
        self.lost_records
    }

    /// Number of records of unknown kinds so far, which were skipped.
    pub fn unknown(&self) -> u64 {
        self.unknown_records
    }

    /// Reads a block, and calls `visit_record` for each of its records. A block that was already read yields nothing. If records before the
    /// block are missing, a [`What::Missed`] and the standing data (the latest engine and hops) come first.
    ///
    /// [`What::Missed`]: trace::event::What::Missed
    pub fn read_block(&mut self, bytes: &[u8], visit_record: &mut dyn FnMut(Record<'_>)) -> Result<(), StreamError> {
        let PackedBlock { section, packed } = PackedBlock::parse_and_verify(bytes)?;
        // After a reconnection, a block may come again that was already read.
        if self.next_record.is_some_and(|next| section.first_record < next) {
            return Ok(());
        }
        self.buffers.decompress_columns(packed, section.raw_bytes).map_err(damaged_block)?;
        // Computed before the next lines set `next_record`: this is the reader's first block, but not the first of the run.
        let starts_late = self.next_record.is_none() && section.first_record > 0;
        // Set once, by the reader's first block.
        self.first_record.get_or_insert(section.first_record);
        let skipped_records = self.count_skipped_records_before(section.first_record);
        // A stream loses blocks where a reader is too slow for its queue. The missing records may be of any hop, so none is named.
        let missed =
            if skipped_records > 0 { Some(Missed::new(None, skipped_records, MissedCause::QueueFull)) } else { None };
        // The announcements of engine and hops may be among the missing records.
        let wants_standing = starts_late || skipped_records > 0;
        let mut block = self.buffers.decode_block(&section.content, wants_standing, missed).map_err(damaged_block)?;
        while block.advance().map_err(damaged_block)? {
            if let Some(record) = block.last_record() {
                visit_record(record);
            }
        }
        self.unknown_records += block.unknown_records;
        // Not earlier, so that the records of a block that cannot be decoded count as missing before the next one.
        self.next_record = Some(section.first_record.saturating_add(section.content.records.into()));
        Ok(())
    }
}

/// Error of a block that cannot be read.
fn damaged_block(why: impl Display) -> StreamError {
    StreamError::Damaged(format!("a block: {why}"))
}
