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
use super::super::header::{End, Header, Why};
use super::super::section::{PREAMBLE, Preamble, SECTION_HEADER, Section, kind, trailer};
use super::pack::{BlockPacker, LEVEL, seal};
use super::{RecordOptions, Summary};

use crate::storage;

/// Maximum number of blocks in an index: three days. A longer file has no index and is scanned.
const INDEXED: usize = 1 << 18;
/// Space reserved for the end of a file with a size limit, in addition to its index.
const END_BYTES: u64 = 8 << 10;

/// Reason why a block was not written.
pub(super) enum Refused {
    /// The file reached its size limit.
    Full(u64),
    Failed(RecordError),
}

/// A file and counts of its content so far.
#[derive(Debug)]
struct Part {
    path: PathBuf,
    bytes: u64,
    blocks: u64,
    records: u64,
}

impl Part {
    fn new(path: &Path, bytes: u64) -> Self {
        Self { path: path.to_owned(), bytes, blocks: 0, records: 0 }
    }
}

/// The current file, and the finished ones.
pub(super) struct Files {
    base: PathBuf,
    options: RecordOptions,
    header: Header,
    run: u64,
    /// Number of the next section within the run.
    pub(super) seq: u64,
    file: File,
    part: Part,
    index: Vec<(u64, Section)>,
    before: VecDeque<Part>,
}

impl Files {
    pub(super) fn create(path: &Path, header: &Header, run: u64, options: RecordOptions) -> Result<Self, RecordError> {
        let (file, bytes) = create(path, options.force, header, run, false)?;
        Ok(Self {
            base: path.to_owned(),
            options,
            header: header.clone(),
            run,
            seq: 1,
            file,
            part: Part::new(path, bytes),
            index: Vec::new(),
            before: VecDeque::new(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.part.path
    }

    /// Appends a sealed block. Returns by how many bytes the files grew.
    pub(super) fn block(&mut self, section: Section, sealed: &[u8]) -> Result<u64, Refused> {
        if is_removed(&self.file) {
            return Err(Refused::Failed(RecordError::Removed(self.part.path.clone())));
        }
        let mut grown = 0;
        if let Some(max) = self.options.max_bytes {
            let index = (self.part.blocks + 1) * (8 + SECTION_HEADER as u64);
            if self.part.blocks > 0 && self.part.bytes + section.length() + index + END_BYTES > max {
                if self.options.rotate.is_none() {
                    return Err(Refused::Full(max));
                }
                grown += self.rotate().map_err(Refused::Failed)?;
            }
        }
        let appended = self.append(sealed);
        appended.map_err(|error| Refused::Failed(RecordError::io("write to", &self.part.path, error)))?;
        let offset = self.part.bytes - section.length();
        if self.index.len() < INDEXED {
            self.index.push((offset, section));
        }
        self.seq = section.seq + 1;
        self.part.blocks += 1;
        self.part.records += u64::from(section.content.records);
        Ok(grown + section.length())
    }

    /// Writes all of `bytes`, or leaves the file unchanged.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self.file.write_all(bytes) {
            Ok(()) => {
                self.part.bytes += bytes.len() as u64;
                Ok(())
            }
            Err(error) => {
                // Readers skip a truncated block, but removing it keeps the file clean.
                self.file.set_len(self.part.bytes).ok();
                io::Seek::seek(&mut self.file, io::SeekFrom::Start(self.part.bytes)).ok();
                Err(error)
            }
        }
    }

    fn section<T: Serialize>(&mut self, kind: u8, content: &T) -> io::Result<()> {
        let json = serde_json::to_vec(content)?;
        let mut section = Section { kind, raw: json.len() as u32, run: self.run, seq: self.seq, ..Section::default() };
        let written = self.append(seal(&mut section, &json, &mut Vec::new()));
        self.seq += u64::from(written.is_ok());
        written
    }

    /// Ends the current file with its end section, index and trailer, and waits until all is on disk.
    pub(super) fn end(&mut self, why: Why, dropped: u64, closing: Option<&ReportInput>) -> Result<(), RecordError> {
        if is_removed(&self.file) {
            return Err(RecordError::Removed(self.part.path.clone()));
        }
        let begun = self.part.bytes;
        let written = self.end_sections(&End { why, dropped, closing: closing.cloned() });
        if written.is_err() {
            // Write the whole end or nothing: a reader interprets the last bytes as the trailer.
            self.file.set_len(begun).ok();
            self.part.bytes = begun;
        }
        let synced = written.and_then(|()| self.file.sync_all());
        synced.map_err(|error| RecordError::io("finish", &self.part.path, error))?;
        sync_folder(&self.part.path);
        Ok(())
    }

    fn end_sections(&mut self, end: &End) -> io::Result<()> {
        self.section(kind::END, end)?;
        if self.index.len() as u64 != self.part.blocks {
            return Ok(());
        }
        let mut entries = Vec::with_capacity(self.index.len() * (8 + SECTION_HEADER));
        for (offset, section) in &self.index {
            entries.extend_from_slice(&offset.to_le_bytes());
            entries.extend_from_slice(&section.to_bytes());
        }
        let mut section = Section { kind: kind::INDEX, run: self.run, seq: self.seq, ..Section::default() };
        let at = self.part.bytes;
        let mut packer = BlockPacker::of_level(LEVEL)?;
        self.append(packer.bytes(&entries, &mut section)?)?;
        self.append(&trailer(at))
    }

    /// Ends the current file and starts the next. Deletes the oldest at the limit.
    fn rotate(&mut self) -> Result<u64, RecordError> {
        let before = self.part.bytes;
        self.header.part += 1;
        let next = part_path(&self.base, self.header.part);
        // Created first: this file may only be marked as continued if the next one exists.
        let (file, bytes) = create(&next, self.options.force, &self.header, self.run, false)?;
        if let Err(error) = self.end(Why::Rotated, 0, None) {
            storage::remove(&next).ok();
            return Err(error);
        }
        let grown = self.part.bytes - before;
        self.before.push_back(std::mem::replace(&mut self.part, Part::new(&next, bytes)));
        self.file = file;
        self.index.clear();
        while self.before.len() as u64 >= u64::from(self.options.rotate.unwrap_or(u32::MAX).max(1)) {
            if let Some(oldest) = self.before.pop_front() {
                storage::remove(&oldest.path).ok();
            }
        }
        Ok(grown + bytes)
    }

    pub(super) fn summary(&self) -> Summary {
        let parts = || self.before.iter().chain([&self.part]);
        let sum = |of: fn(&Part) -> u64| parts().map(of).sum::<u64>();
        Summary {
            files: parts().map(|part| part.path.clone()).collect(),
            bytes: sum(|part| part.bytes),
            records: sum(|part| part.records),
            dropped: 0,
            stopped: None,
        }
    }
}

/// Whether the file was deleted. A moved file still has a name.
fn is_removed(file: &File) -> bool {
    file.metadata().is_ok_and(|file| file.nlink() == 0)
}

/// `run.tgap`, `run.1.tgap`, ...
fn part_path(base: &Path, part: u32) -> PathBuf {
    let mut name = OsString::from(base.file_stem().unwrap_or_default());
    name.push(format!(".{part}"));
    if let Some(extension) = base.extension() {
        name.push(".");
        name.push(extension);
    }
    base.with_file_name(name)
}

/// Whether `path` is a further file of the recording `base`.
pub fn is_part_of(path: &Path, base: &Path) -> bool {
    let stem = |path: &Path| Path::new(path.file_stem()?).extension()?.to_str()?.parse().ok();
    stem(path).is_some_and(|part: u32| part_path(base, part) == path)
}

/// Creates a file with preamble and header. Returns it and its length. An existing file is replaced only with `force`, and
/// only after the new one is written next to it.
pub(super) fn create(
    path: &Path,
    force: bool,
    header: &Header,
    run: u64,
    ring: bool,
) -> Result<(File, u64), RecordError> {
    let there = fs::symlink_metadata(path).ok();
    if there.as_ref().is_some_and(|there| !there.is_file()) {
        return Err(RecordError::NotAFile(path.to_owned()));
    }
    let replaced = force && there.is_some();
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}.new", std::process::id()));
    let made = if replaced { path.with_file_name(name) } else { path.to_owned() };
    let mut file = storage::create(&made).map_err(|error| RecordError::io("create", path, error))?;
    let written = write_start(&mut file, header, run, ring).and_then(|bytes| {
        if replaced {
            storage::rename(&made, path)?;
        }
        Ok(bytes)
    });
    match written {
        Ok(bytes) => Ok((file, bytes)),
        Err(error) => {
            storage::remove(&made).ok();
            Err(RecordError::io("write to", path, error))
        }
    }
}

/// Writes preamble and header. Returns their length in bytes.
pub(crate) fn write_start(file: &mut impl Write, header: &Header, run: u64, ring: bool) -> io::Result<u64> {
    let json = serde_json::to_vec(header)?;
    let mut section =
        Section { kind: kind::HEADER, raw: json.len() as u32, run, anchor: header.anchor, ..Section::default() };
    file.write_all(&Preamble::new(ring).to_bytes())?;
    file.write_all(seal(&mut section, &json, &mut Vec::new()))?;
    Ok(PREAMBLE as u64 + section.length())
}

/// Syncs the directory entry to disk. Errors are ignored, because some file systems do not support it.
pub(super) fn sync_folder(path: &Path) {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
    if let Ok(folder) = File::open(folder.unwrap_or(Path::new("."))) {
        folder.sync_all().ok();
    }
}
