//! Blocks of a run for a stream instead of a file. A block is a section of a recording, including its header.

use std::fmt::Display;

use trace::clock::{Anchor, MonoNs};
use trace::event::{Event, Missed, MissedCause};

use super::Record;
use super::codec::{Columns, Encoder, Malformed, Scratch};
use super::header::Payload;
use super::section::{SECTION_HEADER, Section, kind};
use super::stream::StreamError;
use super::write::OpenBlock;

/// Size in bytes at which a block is closed, however little time it covers.
const BLOCK_BYTES: usize = 1 << 20;
/// Interval between readings of both clocks, in nanoseconds.
const ANCHOR_EVERY_NS: u64 = 60_000_000_000;

/// Collects records into blocks.
#[derive(Debug)]
pub struct BlockWriter {
    encoder: Encoder,
    /// Records in closed blocks.
    records: u64,
    /// Time of the first tick, then that of the last reading of both clocks.
    anchored_at: Option<MonoNs>,
}

impl BlockWriter {
    /// Creates a writer at the start of a run.
    pub fn new(payload: Payload) -> Self {
        Self { encoder: Encoder::new(payload), records: 0, anchored_at: None }
    }

    /// Writes an event.
    pub fn event(&mut self, event: &Event<'_>) {
        self.encoder.event(event);
    }

    /// Writes a tick and, at intervals, both clocks.
    pub fn tick(&mut self, now: MonoNs) {
        self.encoder.tick(now);
        // The header has the clocks of the start.
        let anchored_at = *self.anchored_at.get_or_insert(now);
        if now.since(anchored_at) >= ANCHOR_EVERY_NS {
            self.anchored_at = Some(now);
            self.encoder.anchor(Anchor::now());
        }
    }

    /// Whether the block must be closed now.
    pub fn is_full(&self) -> bool {
        self.encoder.is_full(BLOCK_BYTES)
    }

    /// Closes the block and starts the next one; `None` if the block is empty.
    pub fn close(&mut self) -> Option<OpenBlock> {
        if self.encoder.content.records == 0 {
            return None;
        }
        let (columns, content) = self.encoder.close(Columns::default());
        let first_record = self.records;
        self.records += u64::from(content.records);
        Some(OpenBlock { columns, content, first_record, anchor: Anchor::now() })
    }
}

/// Reads blocks.
#[derive(Default)]
pub struct BlockReader {
    scratch: Scratch,
    /// Number of the next record; `None` before the first.
    expected: Option<u64>,
    /// Number of the first record.
    begun_at: Option<u64>,
    lost: u64,
    unknown: u64,
}

impl BlockReader {
    /// Continues at `record`. Returns the number of records skipped.
    fn go_on(&mut self, record: u64) -> u64 {
        let missed = self.expected.map_or(0, |at| record.saturating_sub(at));
        self.expected = Some(record);
        self.lost += missed;
        missed
    }

    /// Number of the run's records before the first block; `None` before it.
    pub fn records_before(&self) -> Option<u64> {
        self.begun_at
    }

    /// Number of missing records.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Number of records of unknown kinds.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Passes on the records of a block. If records are missing before it, a [`What::Missed`] comes first and the standing data is repeated.
    /// A block that was already read yields nothing.
    ///
    /// [`What::Missed`]: trace::event::What::Missed
    pub fn read(&mut self, bytes: &[u8], give: &mut dyn FnMut(Record<'_>)) -> Result<(), StreamError> {
        let bad = |why: &dyn Display| StreamError::Damaged(format!("a block: {why}"));
        let malformed = |error: Malformed| bad(&error);
        let (head, packed) = bytes.split_first_chunk::<SECTION_HEADER>().ok_or_else(|| bad(&"it is truncated"))?;
        let section = Section::of(head).filter(|s| s.kind == kind::BLOCK);
        let section = section.ok_or_else(|| bad(&"its header was altered"))?;
        if packed.len() != section.packed as usize || crc32fast::hash(packed) != section.crc {
            return Err(bad(&"its checksum does not match"));
        }
        if self.expected.is_some_and(|at| section.first_record < at) {
            return Ok(());
        }
        self.scratch.unpack(packed, section.raw).map_err(|error| bad(&error))?;
        let begins = self.expected.is_none() && section.first_record > 0;
        self.begun_at.get_or_insert(section.first_record);
        let missed = self.go_on(section.first_record);
        let lost = (missed > 0).then(|| Missed::new(None, missed, MissedCause::QueueFull));
        let block = self.scratch.decode(&section.content, begins || missed > 0, lost);
        let mut block = block.map_err(malformed)?;
        while block.advance().map_err(malformed)? {
            block.last().into_iter().for_each(&mut *give);
        }
        self.unknown += block.unknown;
        // Only now: the records of a block that cannot be decoded are missed.
        self.expected = Some(section.first_record.saturating_add(section.content.records.into()));
        Ok(())
    }
}
