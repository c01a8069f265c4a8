//! Ring file of fixed size: new blocks overwrite the oldest. The file has no pointer to the newest block. A reader finds it by
//! the blocks' sequence numbers, so a block needs only one write.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use trace::ReportInput;

use super::super::error::RecordError;
use super::super::header::{Header, Why};
use super::super::section::Section;
use super::files::{Files, Refused, create, sync_folder};
use super::{RecordOptions, Summary};

use crate::storage;

/// Minimum size of a ring: space for a typical block and the data after it.
pub(super) const MIN_SIZE: u64 = 4 << 20;

pub(super) struct Ring {
    pub(super) path: PathBuf,
    file: File,
    header: Header,
    run: u64,
    /// Number of the next block within the run.
    pub(super) seq: u64,
    /// Offset of the first block, and end of the file.
    begin: u64,
    size: u64,
    at: u64,
    /// Intact blocks with their offsets, oldest first.
    blocks: VecDeque<(u64, Section)>,
}

impl Ring {
    pub(super) fn create(path: &Path, size: u64, header: &Header, run: u64, force: bool) -> Result<Self, RecordError> {
        if size < MIN_SIZE {
            return Err(RecordError::TooSmall { size, min: MIN_SIZE });
        }
        let (file, begin) = create(path, force, header, run, true)?;
        // Reserve all space now, so that a full disk cannot stop the ring later.
        let reserved = match fallocate(&file, FallocateFlags::empty(), 0, size) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.set_len(size),
            other => other.map_err(io::Error::from),
        };
        if let Err(error) = reserved {
            storage::remove(path).ok();
            return Err(RecordError::io("reserve space for", path, error));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            header: header.clone(),
            run,
            seq: 1,
            begin,
            size,
            at: begin,
            blocks: VecDeque::new(),
        })
    }

    pub(super) fn block(&mut self, section: Section, sealed: &[u8]) -> Result<u64, Refused> {
        let length = section.length();
        if self.begin + length > self.size {
            return Err(Refused::Full(self.size));
        }
        if self.at + length > self.size {
            // Data left here is one lap older than the data overwritten next.
            let at = self.at;
            self.blocks.retain(|&(offset, _)| offset < at);
            self.at = self.begin;
        }
        let (from, to) = (self.at, self.at + length);
        while self.blocks.front().is_some_and(|&(offset, _)| (from..to).contains(&offset)) {
            self.blocks.pop_front();
        }
        let written = self.file.write_all_at(sealed, from);
        written.map_err(|error| Refused::Failed(RecordError::io("write to", &self.path, error)))?;
        self.blocks.push_back((from, section));
        self.seq = section.seq + 1;
        self.at = to;
        Ok(length)
    }

    /// Copies the content of the ring to a recording.
    pub(super) fn dump(&self, to: &Path, closing: &ReportInput, dropped: u64) -> Result<Summary, RecordError> {
        if self.blocks.is_empty() {
            return Err(RecordError::Empty);
        }
        let mut files = Files::create(to, &self.header, self.run, RecordOptions::default())?;
        let copied = self.copy(&mut files).and_then(|()| files.end(Why::Dumped, dropped, Some(closing)));
        match copied {
            Ok(()) => Ok(Summary { dropped, ..files.summary() }),
            Err(error) => {
                storage::remove(to).ok();
                Err(error)
            }
        }
    }

    fn copy(&self, files: &mut Files) -> Result<(), RecordError> {
        let mut sealed = Vec::new();
        for &(offset, section) in &self.blocks {
            sealed.resize(section.length() as usize, 0);
            let read = self.file.read_exact_at(&mut sealed, offset);
            read.map_err(|error| RecordError::io("read", &self.path, error))?;
            match files.block(section, &sealed) {
                Ok(_) => {}
                Err(Refused::Failed(error)) => return Err(error),
                Err(Refused::Full(_)) => break,
            }
        }
        Ok(())
    }

    pub(super) fn finish(&self, dropped: u64) -> Result<Summary, RecordError> {
        let synced = self.file.sync_all();
        synced.map_err(|error| RecordError::io("finish", &self.path, error))?;
        sync_folder(&self.path);
        Ok(Summary {
            files: vec![self.path.clone()],
            bytes: self.size,
            records: self.blocks.iter().map(|(_, section)| u64::from(section.content.records)).sum(),
            dropped,
            stopped: None,
        })
    }
}
