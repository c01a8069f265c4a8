//! Reader of a recording's records, one at a time. Keeps one block in memory.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::mem;
use std::os::unix::fs::FileExt;

use self_cell::{MutBorrow, self_cell};
use trace::event::{Missed, MissedCause};

use super::super::Record;
use super::super::codec::{DecodeBuffers, DecodedBlock};
use super::super::error::ReadError;
use super::super::section::{SECTION_HEADER_BYTES, Section};
use super::open::{BlockInfo, Recording};
use super::scan::read_payload_and_verify;

self_cell!(
    /// The block being read, and the buffers from which its records borrow.
    struct BlockInProgress {
        owner: MutBorrow<DecodeBuffers>,
        #[covariant]
        dependent: DecodedBlock,
    }
);

/// Reads a recording, starting at one of its blocks.
pub struct RecordReader<'r> {
    recording: &'r Recording,
    next_block: usize,
    /// Expected number of the next block's first record; `None` at the beginning.
    next_record: Option<u64>,
    /// Sequence number of the last complete block.
    last_seq: u64,
    /// Whether the last record, [`Record::Closing`], was returned.
    is_closing_returned: bool,
    unknown_records: u64,
    packed: Vec<u8>,
    /// Buffers for the next block; a block in progress has them.
    buffers: DecodeBuffers,
    block: Option<BlockInProgress>,
}

impl Recording {
    /// Reader of the whole recording.
    pub fn reader(&self) -> RecordReader<'_> {
        self.reader_at(0)
    }

    /// Reader that starts at the block with this index. The standing data (engine and hops) comes first.
    pub fn reader_at(&self, block_index: usize) -> RecordReader<'_> {
        RecordReader {
            recording: self,
            next_block: block_index,
            next_record: None,
            last_seq: 0,
            is_closing_returned: false,
            unknown_records: 0,
            packed: Vec::new(),
            buffers: DecodeBuffers::default(),
            block: None,
        }
    }
}

impl RecordReader<'_> {
    /// Offset in the file of the next block, or the file's length.
    pub fn offset(&self) -> u64 {
        let next = self.recording.blocks().get(self.next_block);
        next.map_or(self.recording.bytes(), |block| block.offset)
    }

    /// Number of records of unknown kinds skipped so far.
    pub fn unknown_records(&self) -> u64 {
        self.unknown_records
    }

    /// Reads the next record. If records are missing before a block, a [`What::Missed`] comes first and the standing data (the latest
    /// engine and hops) is repeated. A damaged block is an error; the next call continues after it. After the last block comes the closing
    /// record, if the recording has one, and then `None`.
    ///
    /// [`What::Missed`]: trace::event::What::Missed
    #[expect(clippy::should_implement_trait, reason = "a record borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        loop {
            let has_record = self.advance_to_next_record()?;
            if has_record {
                break;
            }
            let Some(block) = self.recording.blocks().get(self.next_block) else {
                if self.is_closing_returned {
                    return Ok(None);
                }
                self.is_closing_returned = true;
                return Ok(self.recording.closing().map(Record::Closing));
            };
            self.open_block(block)?;
        }
        // Behind the loop, because the record borrows from the reader.
        Ok(self.block.as_ref().and_then(|block| block.borrow_dependent().last_record()))
    }

    /// Reads the next record of the current block. Returns `false` without a block, and at its end.
    fn advance_to_next_record(&mut self) -> Result<bool, ReadError> {
        // Taken, so that the next call opens the next block, at the end of this one or after an error in it.
        let Some(mut block) = self.block.take() else { return Ok(false) };
        // The cell holds the decoded block together with the buffers from which it borrows.
        let has_record = block.with_dependent_mut(|_, decoded| decoded.advance());
        if has_record.map_err(|error| self.damaged_block_error(&error))? {
            self.block = Some(block);
            return Ok(true);
        }
        self.unknown_records += block.borrow_dependent().unknown_records;
        // `next_block` was advanced when this block was opened.
        let finished = &self.recording.blocks()[self.next_block - 1];
        // Only at its end, so that the records of a damaged block count as missed.
        self.next_record = Some(finished.next_record());
        self.last_seq = finished.seq;
        // The next block is decoded into the same buffers.
        self.buffers = block.into_owner().into_inner();
        Ok(false)
    }

    /// Loads the next block, `block`, as the current one. Fails if it is damaged or cannot be read; the block after it is then the next.
    fn open_block(&mut self, block: &BlockInfo) -> Result<(), ReadError> {
        let skipped_records = self.next_record.map_or(0, |next| block.first_record.saturating_sub(next));
        // The reader begins here, behind the start of the run.
        let starts_late = self.next_record.is_none() && block.first_record > 0;
        // If this block turns out to be damaged, its records count as missing before the next one.
        self.next_record.get_or_insert(block.first_record);
        // Before any error, so that the next call continues after this block.
        self.next_block += 1;
        let section = self.load_into_buffers(block)?;
        // Blocks are numbered as written. Without a gap in the numbers, the records were never written, because the queue was full.
        let follows_last_block = section.seq == self.last_seq + 1;
        let cause = if follows_last_block { MissedCause::QueueFull } else { MissedCause::Unframed };
        // The missing records may be of any hop, so none is named.
        let missed = (skipped_records > 0).then(|| Missed::new(None, skipped_records, cause));
        // The announcements of engine and hops may be among the missing records.
        let wants_standing = starts_late || skipped_records > 0;
        // The block has the buffers until it ends.
        let block = BlockInProgress::try_new(MutBorrow::new(mem::take(&mut self.buffers)), |buffers| {
            buffers.borrow_mut().decode_block(&section.content, wants_standing, missed)
        });
        self.block = Some(block.map_err(|error| self.damaged_block_error(&error))?);
        Ok(())
    }

    /// Reads a block from the file and decompresses it into the buffers. Returns its section header.
    fn load_into_buffers(&mut self, block: &BlockInfo) -> Result<Section, ReadError> {
        let loaded = load_packed_block_if_intact(&self.recording.file, block, &mut self.packed);
        let section = loaded.map_err(|error| {
            let path = self.recording.path().to_owned();
            ReadError::Io { path, offset: block.offset, error }
        })?;
        let section = section.ok_or_else(|| self.damaged_block_error(&"its checksum does not match"))?;
        let decompressed = self.buffers.decompress_columns(&self.packed, section.raw_bytes);
        decompressed.map_err(|error| self.damaged_block_error(&error))?;
        Ok(section)
    }

    /// Error about the block that was opened last.
    fn damaged_block_error(&self, why: &dyn Display) -> ReadError {
        let block = self.next_block - 1;
        let BlockInfo { offset, records, .. } = self.recording.blocks()[block];
        let path = self.recording.path().to_owned();
        ReadError::Damaged { path, block, offset, why: why.to_string(), records }
    }
}

/// Reads the compressed payload of a block into `packed`, and returns the block's section. `None` if either is damaged or overwritten.
fn load_packed_block_if_intact(file: &File, block: &BlockInfo, packed: &mut Vec<u8>) -> io::Result<Option<Section>> {
    let mut header = [0; SECTION_HEADER_BYTES];
    file.read_exact_at(&mut header, block.offset)?;
    // A ring may have been overwritten since it was opened.
    let section = Section::parse(&header).filter(|section| BlockInfo::new(block.offset, section) == *block);
    let Some(section) = section else { return Ok(None) };
    let is_intact = read_payload_and_verify(file, block.offset, &section, packed)?;
    Ok(is_intact.then_some(section))
}
