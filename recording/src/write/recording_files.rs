//! Files of a recording: sections, an index at the end, and the next file when one is full.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Serialize;
use trace::ReportInput;

use super::super::error::RecordError;
use super::super::header::{EndReason, EndSection, RecordingHeader};
use super::super::section::{PREAMBLE_BYTES, Preamble, SECTION_HEADER_BYTES, Section, kind, trailer_bytes};
use super::pack::{BlockPacker, FILE_LEVEL, seal_section};
use super::{RecordOptions, RecordingSummary};

use crate::storage;

/// Maximum number of blocks in an index: three days. A longer file has no index and is scanned.
const MAX_INDEXED_BLOCKS: usize = 1 << 18;
/// Length of an index entry: the offset of a section, and its header.
const INDEX_ENTRY_BYTES: usize = 8 + SECTION_HEADER_BYTES;
/// Space reserved for the end of a file with a size limit, in addition to its index.
const END_BYTES: u64 = 8 << 10;

/// Number of bytes by which the files of a recording grew, or that were written to a ring.
pub(super) type WrittenBytes = u64;

/// Reason why a block was not written.
pub(super) enum BlockRefused {
    /// The file reached its size limit.
    Full {
        max_bytes: u64,
    },
    Failed(RecordError),
}

/// A file and counts of its content so far.
#[derive(Debug)]
struct FilePart {
    path: PathBuf,
    bytes: u64,
    blocks: u64,
    records: u64,
}

impl FilePart {
    /// A file of `bytes` bytes that has no block yet.
    fn new(path: &Path, bytes: u64) -> Self {
        Self { path: path.to_owned(), bytes, blocks: 0, records: 0 }
    }
}

/// The current file, and the finished ones.
pub(super) struct RecordingFiles {
    first_path: PathBuf,
    options: RecordOptions,
    header: RecordingHeader,
    run: u64,
    /// Number of the next section within the run.
    pub(super) seq: u64,
    file: File,
    current: FilePart,
    /// Blocks of the current file.
    index: Vec<WrittenBlock>,
    finished: VecDeque<FilePart>,
}

/// A block in a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrittenBlock {
    pub(super) offset: u64,
    pub(super) section: Section,
}

impl RecordingFiles {
    /// Creates the first file, and writes its header.
    pub(super) fn create(
        path: &Path,
        header: &RecordingHeader,
        run: u64,
        options: RecordOptions,
    ) -> Result<Self, RecordError> {
        let is_ring = false;
        let StartedFile { file, bytes } = create_file(path, options.force, header, run, is_ring)?;
        Ok(Self {
            first_path: path.to_owned(),
            options,
            header: header.clone(),
            run,
            // The header has number 0.
            seq: 1,
            file,
            current: FilePart::new(path, bytes),
            index: Vec::new(),
            finished: VecDeque::new(),
        })
    }

    /// Path of the file that is written now.
    pub(super) fn current_path(&self) -> &Path {
        &self.current.path
    }

    /// Appends a block, whose section header and compressed content are the bytes `sealed`. Starts the next file if the current one is
    /// full. Returns by how many bytes the files grew.
    pub(super) fn append_block(&mut self, section: Section, sealed: &[u8]) -> Result<WrittenBytes, BlockRefused> {
        // What is written to a deleted file is lost.
        if is_removed(&self.file) {
            return Err(BlockRefused::Failed(RecordError::Removed(self.current.path.clone())));
        }
        let started_bytes = self.start_next_file_if_full(section.total_bytes())?;
        let appended = self.append_bytes(sealed);
        appended.map_err(|error| BlockRefused::Failed(RecordError::io("write to", &self.current.path, error)))?;
        // The block is at the end of the file, whose length now includes it.
        let offset = self.current.bytes - section.total_bytes();
        // With more blocks than the index can list, the file will have no index.
        if self.index.len() < MAX_INDEXED_BLOCKS {
            self.index.push(WrittenBlock { offset, section });
        }
        self.seq = section.seq + 1;
        self.current.blocks += 1;
        self.current.records += u64::from(section.content.records);
        Ok(started_bytes + section.total_bytes())
    }

    /// Starts the next file if a block of `block_bytes` would exceed the size limit of the current one. Returns by how many bytes the files
    /// grew. Refuses the block instead if the recording may have only one file.
    fn start_next_file_if_full(&mut self, block_bytes: u64) -> Result<WrittenBytes, BlockRefused> {
        let Some(max_bytes) = self.options.max_bytes else { return Ok(0) };
        // The end of the file must fit as well: index, end section and trailer.
        let index_bytes = (self.current.blocks + 1) * INDEX_ENTRY_BYTES as u64;
        let needed_bytes = self.current.bytes + block_bytes + index_bytes + END_BYTES;
        // The first block is written even if it is larger than the limit: the next file would have no more space for it.
        let is_first_block = self.current.blocks == 0;
        if is_first_block || needed_bytes <= max_bytes {
            return Ok(0);
        }
        if self.options.rotate.is_none() {
            return Err(BlockRefused::Full { max_bytes });
        }
        self.start_next_file().map_err(BlockRefused::Failed)
    }

    /// Writes all of `bytes`, or leaves the file unchanged.
    fn append_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.current.bytes += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Removes what was written. Readers skip a truncated block, so it does no harm if this fails.
                self.file.set_len(self.current.bytes).ok();
                io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.current.bytes)).ok();
                Err(error)
            }
        }
    }

    /// Appends a section of this kind, with this content as JSON and the next number.
    fn append_json<T: Serialize>(&mut self, kind: u8, content: &T) -> io::Result<()> {
        let json = serde_json::to_vec(content)?;
        let mut section =
            Section { kind, raw_bytes: json.len() as u32, run: self.run, seq: self.seq, ..Section::default() };
        let written = self.append_bytes(seal_section(&mut section, &json, &mut Vec::new()));
        // A section that was not written must leave no gap in the numbers.
        if written.is_ok() {
            self.seq += 1;
        }
        written
    }

    /// Ends the current file with its end section, index and trailer, and waits until all is on disk. `dropped`: number of the run's
    /// records that were dropped.
    pub(super) fn end_file(
        &mut self,
        why: EndReason,
        dropped: u64,
        closing: Option<&ReportInput>,
    ) -> Result<(), RecordError> {
        if is_removed(&self.file) {
            return Err(RecordError::Removed(self.current.path.clone()));
        }
        let end_offset = self.current.bytes;
        let written = self.append_end_index_and_trailer(&EndSection { why, dropped, closing: closing.cloned() });
        if written.is_err() {
            // Write the whole end or nothing: a reader interprets the last bytes as the trailer.
            self.file.set_len(end_offset).ok();
            self.current.bytes = end_offset;
        }
        let synced = written.and_then(|()| self.file.sync_all());
        synced.map_err(|error| RecordError::io("finish", &self.current.path, error))?;
        // The file's entry in its folder must be on disk, too.
        sync_folder_of_file(&self.current.path);
        Ok(())
    }

    /// Appends the end section, an index of the blocks, and a trailer with the offset of the index.
    fn append_end_index_and_trailer(&mut self, end: &EndSection) -> io::Result<()> {
        self.append_json(kind::END, end)?;
        // Beyond a limit, blocks are not listed. Readers scan a file without an index.
        let has_unlisted_blocks = self.index.len() as u64 != self.current.blocks;
        if has_unlisted_blocks {
            return Ok(());
        }
        let mut entries = Vec::with_capacity(self.index.len() * INDEX_ENTRY_BYTES);
        for WrittenBlock { offset, section } in &self.index {
            entries.extend_from_slice(&offset.to_le_bytes());
            entries.extend_from_slice(&section.to_bytes());
        }
        let mut section = Section { kind: kind::INDEX, run: self.run, seq: self.seq, ..Section::default() };
        let index_offset = self.current.bytes;
        let mut packer = BlockPacker::with_level(FILE_LEVEL)?;
        self.append_bytes(packer.compress_into_section(&entries, &mut section)?)?;
        self.append_bytes(&trailer_bytes(index_offset))
    }

    /// Ends the current file and starts the next. Deletes the oldest one beyond the number of files to keep. Returns by how many bytes the
    /// files grew.
    fn start_next_file(&mut self) -> Result<WrittenBytes, RecordError> {
        let bytes_before_end = self.current.bytes;
        self.header.part += 1;
        let next = path_of_part(&self.first_path, self.header.part);
        // Created first: this file may only be marked as continued if the next one exists.
        let is_ring = false;
        let StartedFile { file, bytes } = create_file(&next, self.options.force, &self.header, self.run, is_ring)?;
        // Only the last file of the recording states the dropped records and the data for a report.
        let dropped = 0;
        let closing = None;
        if let Err(error) = self.end_file(EndReason::Rotated, dropped, closing) {
            // The first error is the one to report.
            storage::remove(&next).ok();
            return Err(error);
        }
        let end_bytes = self.current.bytes - bytes_before_end;
        self.finished.push_back(std::mem::replace(&mut self.current, FilePart::new(&next, bytes)));
        self.file = file;
        self.index.clear();
        self.delete_oldest_files();
        Ok(end_bytes + bytes)
    }

    /// Deletes the oldest finished files beyond the number of files to keep.
    fn delete_oldest_files(&mut self) {
        // The current file is one of those to keep.
        let max_files = u64::from(self.options.rotate.unwrap_or(u32::MAX).max(1));
        while self.finished.len() as u64 >= max_files {
            if let Some(oldest) = self.finished.pop_front() {
                // If it cannot be removed, it only takes space, and the recording goes on.
                storage::remove(&oldest.path).ok();
            }
        }
    }

    /// Summary of everything written so far, in all files. The caller adds the dropped records and why the recording stopped.
    pub(super) fn summarise_recording(&self) -> RecordingSummary {
        let files = self.finished.iter().chain([&self.current]);
        RecordingSummary {
            files: files.clone().map(|file| file.path.clone()).collect(),
            bytes: files.clone().map(|file| file.bytes).sum(),
            records: files.map(|file| file.records).sum(),
            dropped: 0,
            stopped: None,
        }
    }
}

/// Whether the file was deleted. A moved file still has a name.
fn is_removed(file: &File) -> bool {
    file.metadata().is_ok_and(|file| file.nlink() == 0)
}

/// Path of a later part of the recording whose first file is at `first_path`: `run.1.tgap` for `run.tgap`.
fn path_of_part(first_path: &Path, part_number: u32) -> PathBuf {
    let mut name = OsString::from(first_path.file_stem().unwrap_or_default());
    name.push(format!(".{part_number}"));
    if let Some(extension) = first_path.extension() {
        name.push(".");
        name.push(extension);
    }
    first_path.with_file_name(name)
}

/// Whether `path` is a further file of the recording `base`.
pub fn is_part_of(path: &Path, base: &Path) -> bool {
    part_number(path).is_some_and(|part| path_of_part(base, part) == path)
}

/// Path of the recording of one of several runs: `run-NAME.tgap` for `run.tgap`.
pub fn path_of_run(base_path: &Path, run_name: &str) -> PathBuf {
    // A name may have characters that do not belong into a file's name.
    let plain: String = run_name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect();
    let stem = base_path.file_stem().unwrap_or_default().to_string_lossy();
    let suffix =
        base_path.extension().map_or_else(String::new, |extension| format!(".{}", extension.to_string_lossy()));
    base_path.with_file_name(format!("{stem}-{plain}{suffix}"))
}

/// Name of the run whose recording is at `path`. `base` is the path that the user gave for several runs. For `run-NAME.tgap` and the base
/// `run.tgap`, the name is `NAME`, and `NAME.2` for a further part. `None` if the path is not made from `base`.
pub fn run_name_of_path(path: &Path, base: &Path) -> Option<String> {
    if path.parent() != base.parent() || path.extension() != base.extension() {
        return None;
    }
    let stem = path.file_stem()?.to_string_lossy();
    let base_stem = base.file_stem()?.to_string_lossy();
    stem.strip_prefix(&format!("{base_stem}-")).map(str::to_owned)
}

/// Number in a name such as `run.1.tgap`. `None` for other names.
fn part_number(path: &Path) -> Option<u32> {
    let name_without_extension = Path::new(path.file_stem()?);
    // What is left of `run.1.tgap` has the number as its extension.
    let number = name_without_extension.extension()?.to_str()?;
    number.parse().ok()
}

/// A file with preamble and header.
pub(super) struct StartedFile {
    pub(super) file: File,
    pub(super) bytes: u64,
}

/// Creates a file with preamble and header. Replaces an existing file only with `force`, and only after the new one is written next to it.
pub(super) fn create_file(
    path: &Path,
    force: bool,
    header: &RecordingHeader,
    run: u64,
    is_ring: bool,
) -> Result<StartedFile, RecordError> {
    // Links are not followed: the file that one names may lie in another folder.
    let existing = fs::symlink_metadata(path).ok();
    if existing.as_ref().is_some_and(|existing| !existing.is_file()) {
        return Err(RecordError::NotAFile(path.to_owned()));
    }
    // Without `force`, an existing file is an error of `create`.
    let is_replaced = force && existing.is_some();
    let created_path = if is_replaced { path_of_replacement(path) } else { path.to_owned() };
    let mut file = storage::create(&created_path).map_err(|error| RecordError::io("create", path, error))?;
    let started = write_preamble_and_header(&mut file, header, run, is_ring).and_then(|bytes| {
        // Only a complete file replaces the existing one, which stays as it is after an error.
        if is_replaced {
            storage::rename(&created_path, path)?;
        }
        Ok(bytes)
    });
    match started {
        Ok(bytes) => Ok(StartedFile { file, bytes }),
        Err(error) => {
            // The first error is the one to report.
            storage::remove(&created_path).ok();
            Err(RecordError::io("write to", path, error))
        }
    }
}

/// Path of a file that will replace the one at `path`. It is hidden, and in the same folder, since a file can be renamed only within its
/// file system.
fn path_of_replacement(path: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.new", std::process::id()));
    path.with_file_name(name)
}

/// Writes the preamble and the header section of a file or stream. Returns their length in bytes.
pub(crate) fn write_preamble_and_header(
    file: &mut impl Write,
    header: &RecordingHeader,
    run: u64,
    is_ring: bool,
) -> io::Result<WrittenBytes> {
    let json = serde_json::to_vec(header)?;
    let mut section =
        Section { kind: kind::HEADER, raw_bytes: json.len() as u32, run, anchor: header.anchor, ..Section::default() };
    file.write_all(&Preamble::new(is_ring).to_bytes())?;
    file.write_all(seal_section(&mut section, &json, &mut Vec::new()))?;
    Ok(PREAMBLE_BYTES as u64 + section.total_bytes())
}

/// Waits until the entry of this file in its folder is on disk. Errors are ignored, because some file systems do not support it.
pub(super) fn sync_folder_of_file(file_path: &Path) {
    let parent = file_path.parent().filter(|parent| !parent.as_os_str().is_empty());
    // The parent of a bare file name is empty.
    let folder = parent.unwrap_or(Path::new("."));
    if let Ok(folder) = File::open(folder) {
        folder.sync_all().ok();
    }
}
