//! Ring file of fixed size: new blocks overwrite the oldest. The file has no pointer to the newest block. A reader finds it by
//! the blocks' sequence numbers, so a block needs only one write.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use trace::ReportInput;

use super::super::error::RecordError;
use super::super::header::{EndReason, RecordingHeader};
use super::super::section::Section;
use super::recording_files::{
    BlockRefused, RecordingFiles, StartedFile, WrittenBlock, WrittenBytes, create_file, sync_folder_of_file,
};
use super::{RecordOptions, RecordingSummary};

use crate::storage;

/// Minimum size of a ring: space for a typical block and the data after it.
pub(super) const MIN_BYTES: u64 = 4 << 20;

pub(super) struct RingFile {
    pub(super) path: PathBuf,
    file: File,
    header: RecordingHeader,
    run: u64,
    /// Number of the next block within the run.
    pub(super) seq: u64,
    /// Offset of the first block, after the header.
    first_offset: u64,
    size_bytes: u64,
    next_offset: u64,
    /// Intact blocks, oldest first.
    blocks: VecDeque<WrittenBlock>,
}

impl RingFile {
    /// Creates the file, reserves its space, and writes its header.
    pub(super) fn create(
        path: &Path,
        size_bytes: u64,
        header: &RecordingHeader,
        run: u64,
        force: bool,
    ) -> Result<Self, RecordError> {
        if size_bytes < MIN_BYTES {
            return Err(RecordError::TooSmall { size: size_bytes, min: MIN_BYTES });
        }
        let is_ring = true;
        let StartedFile { file, bytes: first_offset } = create_file(path, force, header, run, is_ring)?;
        if let Err(error) = reserve_space(&file, size_bytes) {
            // The first error is the one to report.
            storage::remove(path).ok();
            return Err(RecordError::io("reserve space for", path, error));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            header: header.clone(),
            run,
            // The header has number 0.
            seq: 1,
            first_offset,
            size_bytes,
            next_offset: first_offset,
            blocks: VecDeque::new(),
        })
    }

    /// Writes a block, whose section header and compressed content are the bytes `sealed`, behind the last one, or at the start of the ring
    /// if it does not fit there. The blocks in its place are lost. Returns its length in bytes.
    pub(super) fn write_block(&mut self, section: Section, sealed: &[u8]) -> Result<WrittenBytes, BlockRefused> {
        let length = section.total_bytes();
        // Not even the empty ring has space for the block.
        if self.first_offset + length > self.size_bytes {
            return Err(BlockRefused::Full { max_bytes: self.size_bytes });
        }
        if self.next_offset + length > self.size_bytes {
            self.continue_at_start();
        }
        let start = self.next_offset;
        let end = start + length;
        // Before the write, which may fail halfway.
        self.forget_overwritten_blocks(start..end);
        let written = self.file.write_all_at(sealed, start);
        written.map_err(|error| BlockRefused::Failed(RecordError::io("write to", &self.path, error)))?;
        self.blocks.push_back(WrittenBlock { offset: start, section });
        self.seq = section.seq + 1;
        self.next_offset = end;
        Ok(length)
    }

    /// Lets the next block be written at the start of the ring. A block is never divided, so the rest of the ring's end stays unused.
    fn continue_at_start(&mut self) {
        // The blocks behind this offset are older than those at the start, which are overwritten next. They are forgotten first, because
        // `forget_overwritten_blocks` expects the overwritten blocks at the front of the list.
        let lap_end = self.next_offset;
        self.blocks.retain(|block| block.offset < lap_end);
        self.next_offset = self.first_offset;
    }

    /// Forgets the blocks that begin in this range of the file, which is overwritten next. They are the oldest ones.
    fn forget_overwritten_blocks(&mut self, range: Range<u64>) {
        while self.blocks.front().is_some_and(|block| range.contains(&block.offset)) {
            self.blocks.pop_front();
        }
    }

    /// Copies the content of the ring to a new recording. Removes the new file after an error.
    pub(super) fn copy_to_recording(
        &self,
        path_of_copy: &Path,
        closing: &ReportInput,
        dropped: u64,
    ) -> Result<RecordingSummary, RecordError> {
        if self.blocks.is_empty() {
            return Err(RecordError::Empty);
        }
        let mut files = RecordingFiles::create(path_of_copy, &self.header, self.run, RecordOptions::default())?;
        let copied =
            self.copy_blocks(&mut files).and_then(|()| files.end_file(EndReason::Dumped, dropped, Some(closing)));
        match copied {
            Ok(()) => Ok(RecordingSummary { dropped, ..files.summarise_recording() }),
            Err(error) => {
                // The first error is the one to report.
                storage::remove(path_of_copy).ok();
                Err(error)
            }
        }
    }

    /// Copies the blocks of the ring to a recording, oldest first, until that is full.
    fn copy_blocks(&self, files: &mut RecordingFiles) -> Result<(), RecordError> {
        let mut sealed = Vec::new();
        for &WrittenBlock { offset, section } in &self.blocks {
            sealed.resize(section.total_bytes() as usize, 0);
            let read = self.file.read_exact_at(&mut sealed, offset);
            read.map_err(|error| RecordError::io("read", &self.path, error))?;
            match files.append_block(section, &sealed) {
                Ok(_) => {}
                Err(BlockRefused::Failed(error)) => return Err(error),
                // The blocks so far are a valid recording.
                Err(BlockRefused::Full { .. }) => break,
            }
        }
        Ok(())
    }

    /// Waits until all of the ring is on disk. Returns its summary.
    pub(super) fn sync_and_summarise(&self, dropped: u64) -> Result<RecordingSummary, RecordError> {
        let synced = self.file.sync_all();
        synced.map_err(|error| RecordError::io("finish", &self.path, error))?;
        // The file's entry in its folder must be on disk, too.
        sync_folder_of_file(&self.path);
        Ok(RecordingSummary {
            files: vec![self.path.clone()],
            bytes: self.size_bytes,
            records: self.blocks.iter().map(|block| u64::from(block.section.content.records)).sum(),
            dropped,
            stopped: None,
        })
    }
}

/// Gives the file its whole length and reserves the space for it, so that a full disk cannot stop the ring later.
fn reserve_space(file: &File, size_bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, size_bytes) {
        // The file system cannot reserve space, so the file gets only its length.
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => file.set_len(size_bytes),
        other => other.map_err(io::Error::from),
    }
}
