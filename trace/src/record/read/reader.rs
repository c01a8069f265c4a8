//! Reader of a recording's records, one block at a time.

use std::io;
use std::os::unix::fs::FileExt;

use super::super::Record;
use super::super::codec::{Scratch, decode};
use super::super::error::ReadError;
use super::super::section::{SECTION_HEADER, Section};
use super::open::Recording;
use crate::event::{Event, Missed, MissedCause, What};

/// Reads a recording, starting at one of its blocks. Keeps one block in memory.
pub struct Reader<'r> {
    recording: &'r Recording,
    next: usize,
    /// Expected number of the next block's first record; `None` at the beginning.
    expected: Option<u64>,
    /// Sequence number of the last block read, even if damaged.
    seq: u64,
    closed: bool,
    unknown: u64,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
    packed: Vec<u8>,
    raw: Vec<u8>,
    scratch: Scratch,
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
            zstd: None,
            packed: Vec::new(),
            raw: Vec::new(),
            scratch: Scratch::default(),
        }
    }
}

impl Reader<'_> {
    /// Index of the next block.
    pub fn position(&self) -> usize {
        self.next
    }

    /// Number of records of unknown kinds skipped so far.
    pub fn unknown(&self) -> u64 {
        self.unknown
    }

    /// Passes on the next block's records; `false` at the end. If records are missing before the block, a [`What::Missed`] comes first and
    /// the standing data is repeated. A damaged block is an error; the next call continues after it.
    pub fn next(&mut self, give: &mut dyn FnMut(Record<'_>)) -> Result<bool, ReadError> {
        let Some((offset, section)) = self.recording.section(self.next) else {
            let closing = self.recording.closing().filter(|_| !self.closed);
            self.closed = true;
            if let Some(closing) = closing {
                give(Record::Closing(closing));
            }
            return Ok(false);
        };
        let block = self.next;
        self.next += 1;
        let content = section.content;
        let missed = self.expected.map_or(0, |n| section.first_record.saturating_sub(n));
        let begins = missed > 0 || (self.expected.is_none() && section.first_record > 0);
        self.expected.get_or_insert(section.first_record);
        let damaged = |why: String| ReadError::Damaged {
            path: self.recording.path().to_owned(),
            block,
            offset,
            why,
            records: content.records,
        };
        match load(self.recording, offset, &section, &mut self.packed) {
            Ok(true) => {}
            Ok(false) => return Err(damaged("its checksum does not match".into())),
            Err(error) => {
                return Err(ReadError::Io {
                    path: self.recording.path().to_owned(),
                    offset,
                    error,
                });
            }
        }
        if let Err(error) = unpack(&mut self.zstd, &self.packed, &section, &mut self.raw) {
            return Err(damaged(error.to_string()));
        }
        if missed > 0 {
            // Blocks are numbered as written. Without a gap in the numbers, the records were never written.
            let cause = if section.seq == self.seq + 1 {
                MissedCause::QueueFull
            } else {
                MissedCause::Unframed
            };
            give(Record::Event(Event::new(
                content.from,
                What::Missed(Missed::new(None, missed, cause)),
            )));
        }
        match decode(&self.raw, &content, &mut self.scratch, begins, give) {
            Ok(unknown) => self.unknown += unknown,
            Err(error) => return Err(damaged(error.to_string())),
        }
        self.expected = Some(section.first_record + u64::from(content.records));
        self.seq = section.seq;
        Ok(true)
    }
}

/// Reads the compressed payload. Returns `false` if header or payload is damaged.
fn load(recording: &Recording, offset: u64, section: &Section, packed: &mut Vec<u8>) -> io::Result<bool> {
    let mut head = [0; SECTION_HEADER];
    recording.file().read_exact_at(&mut head, offset)?;
    if Section::of(&head) != Some(*section) {
        return Ok(false);
    }
    packed.resize(section.packed as usize, 0);
    recording.file().read_exact_at(packed, offset + SECTION_HEADER as u64)?;
    Ok(crc32fast::hash(packed) == section.crc)
}

pub(in crate::record) fn unpack(
    zstd: &mut Option<zstd::bulk::Decompressor<'static>>,
    packed: &[u8],
    section: &Section,
    raw: &mut Vec<u8>,
) -> io::Result<()> {
    let zstd = match zstd {
        Some(zstd) => zstd,
        None => zstd.insert(zstd::bulk::Decompressor::new()?),
    };
    raw.clear();
    raw.reserve(section.raw as usize);
    let bytes = zstd.decompress_to_buffer(packed, raw)?;
    if bytes == section.raw as usize {
        Ok(())
    } else {
        Err(io::Error::other("its length does not match after decompression"))
    }
}
