//! Reader of a recording's records, one at a time. Keeps one block in memory.

use std::fmt::Display;
use std::fs::File;
use std::io;
use std::mem;
use std::os::unix::fs::FileExt;

use self_cell::{MutBorrow, self_cell};
use trace::event::{Missed, MissedCause};

use super::super::Record;
use super::super::codec::{DecodedBlock, Scratch};
use super::super::error::ReadError;
use super::super::section::{SECTION_HEADER, Section};
use super::open::{BlockInfo, Recording};
use super::scan::has_payload;

self_cell!(
    /// The block being read, and the buffers from which its records borrow.
    struct Block {
        owner: MutBorrow<Scratch>,
        #[covariant]
        dependent: DecodedBlock,
    }
);

/// Reads a recording, starting at one of its blocks.
pub struct Reader<'r> {
    recording: &'r Recording,
    /// Index of the next block.
    next: usize,
    /// Expected number of the next block's first record; `None` at the beginning.
    expected: Option<u64>,
    /// Sequence number of the last complete block.
    seq: u64,
    closed: bool,
    unknown: u64,
    packed: Vec<u8>,
    /// Buffers for the next block.
    scratch: Scratch,
    block: Option<Block>,
}

impl Recording {
    /// Reader of the whole recording.
    pub fn reader(&self) -> Reader<'_> {
        self.reader_at(0)
    }

    /// Reader that starts at a block. The standing data (engine and hops) comes first.
    pub fn reader_at(&self, block: usize) -> Reader<'_> {
        Reader {
            recording: self,
            next: block,
            expected: None,
            seq: 0,
            closed: false,
            unknown: 0,
            packed: Vec::new(),
            scratch: Scratch::default(),
            block: None,
        }
    }
}

impl Reader<'_> {
    /// Offset in the file of the next block, or the file's length.
    pub fn offset(&self) -> u64 {
        let next = self.recording.blocks().get(self.next);
        next.map_or(self.recording.bytes(), |block| block.offset)
    }

    /// Number of records of unknown kinds skipped so far.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Reads the next record; `None` at the end. If records are missing before a block, a [`What::Missed`] comes first and the standing data
    /// is repeated. A damaged block is an error; the next call continues after it.
    ///
    /// [`What::Missed`]: trace::event::What::Missed
    #[expect(clippy::should_implement_trait, reason = "a record borrows from the reader")]
    pub fn next(&mut self) -> Result<Option<Record<'_>>, ReadError> {
        while !self.advance()? {
            let Some(block) = self.recording.blocks().get(self.next) else {
                let closed = mem::replace(&mut self.closed, true);
                return Ok(self.recording.closing().filter(|_| !closed).map(Record::Closing));
            };
            self.open(block)?;
        }
        Ok(self.block.as_ref().and_then(|block| block.borrow_dependent().last()))
    }

    /// Reads the next record of the current block. Returns `false` without a block, and at its end.
    fn advance(&mut self) -> Result<bool, ReadError> {
        let Some(mut block) = self.block.take() else {
            return Ok(false);
        };
        if block.with_dependent_mut(|_, block| block.advance()).map_err(|error| self.damaged(&error))? {
            self.block = Some(block);
            return Ok(true);
        }
        self.unknown += block.borrow_dependent().unknown;
        let done = &self.recording.blocks()[self.next - 1];
        (self.expected, self.seq) = (Some(done.next_record()), done.seq);
        self.scratch = block.into_owner().into_inner();
        Ok(false)
    }

    /// Loads the next block.
    fn open(&mut self, block: &BlockInfo) -> Result<(), ReadError> {
        let missed = self.expected.map_or(0, |n| block.first_record.saturating_sub(n));
        let begins = missed > 0 || (self.expected.is_none() && block.first_record > 0);
        self.expected.get_or_insert(block.first_record);
        self.next += 1;
        let loaded = load(&self.recording.file, block, &mut self.packed);
        let (path, offset) = (self.recording.path(), block.offset);
        let section = loaded.map_err(|error| ReadError::Io { path: path.to_owned(), offset, error })?;
        let section = section.ok_or_else(|| self.damaged(&"its checksum does not match"))?;
        let unpacked = self.scratch.unpack(&self.packed, section.raw);
        unpacked.map_err(|error| self.damaged(&error))?;
        // Blocks are numbered as written. Without a gap in the numbers, the records were never written.
        let cause = if section.seq == self.seq + 1 { MissedCause::QueueFull } else { MissedCause::Unframed };
        let missed = (missed > 0).then(|| Missed::new(None, missed, cause));
        let block = Block::try_new(MutBorrow::new(mem::take(&mut self.scratch)), |scratch| {
            scratch.borrow_mut().decode(&section.content, begins, missed)
        });
        self.block = Some(block.map_err(|error| self.damaged(&error))?);
        Ok(())
    }

    /// Error of the current block.
    fn damaged(&self, why: &dyn Display) -> ReadError {
        let block = self.next - 1;
        let BlockInfo { offset, records, .. } = self.recording.blocks()[block];
        let path = self.recording.path().to_owned();
        ReadError::Damaged { path, block, offset, why: why.to_string(), records }
    }
}

/// Reads the compressed payload, and returns the block's section; `None` if either is damaged.
fn load(file: &File, block: &BlockInfo, packed: &mut Vec<u8>) -> io::Result<Option<Section>> {
    let mut head = [0; SECTION_HEADER];
    file.read_exact_at(&mut head, block.offset)?;
    let section = Section::of(&head).filter(|section| BlockInfo::of(block.offset, section) == *block);
    Ok(match section {
        Some(section) if has_payload(file, block.offset, &section, packed)? => Some(section),
        _ => None,
    })
}
