//! Opening of a recording: by its index if it was closed, otherwise by scanning. Missing parts are listed.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use trace::clock::{Anchor, MonoNs};
use trace::{ReportInput, words};

use super::super::error::OpenError;
use super::super::header::{End, Header, Why};
use super::super::section::{MAJOR, PAYLOAD, PREAMBLE, Preamble, SECTION_HEADER, Section, TRAILER, index_of, kind};
use super::scan::{Scan, has_payload, scan, section};

/// A block of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockInfo {
    /// Offset in the file.
    pub offset: u64,
    /// Length in the file, in bytes.
    pub bytes: u64,
    /// Earliest time in the block.
    pub from: MonoNs,
    /// Latest time in the block.
    pub to: MonoNs,
    /// Number of the run's records before it.
    pub first_record: u64,
    /// Number of records.
    pub records: u32,
    /// Number of chunks.
    pub chunks: u32,
    /// Number of its section within the run.
    pub(super) seq: u64,
}

impl BlockInfo {
    pub(super) fn of(offset: u64, section: &Section) -> Self {
        Self {
            offset,
            bytes: section.length(),
            from: section.content.from,
            to: section.content.to,
            first_record: section.first_record,
            records: section.content.records,
            chunks: section.content.chunks,
            seq: section.seq,
        }
    }

    /// Number of the run's records up to its end.
    pub(super) fn next_record(&self) -> u64 {
        self.first_record.saturating_add(u64::from(self.records))
    }
}

/// Missing parts: cut off, damaged, dropped or overwritten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Missing {
    /// Records of the run before the file's first one: in an earlier file, or overwritten in the ring.
    pub records_before: u64,
    /// Records missing between its blocks: the disk was too slow, or their blocks are damaged.
    pub records_between: u64,
    /// Bytes of an incomplete last block.
    pub cut_bytes: u64,
    /// Bytes that belong to no section.
    pub damaged_bytes: u64,
    /// The file was not closed: the run was killed, or is still in progress.
    pub unfinished: bool,
    /// The recording continues in the next file.
    pub continued: bool,
    /// The recording ended before the run: it reached its size limit, or the disk was full.
    pub stopped: bool,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let records = |n| words::plural(n, "record");
        let parts = [
            (self.records_before > 0).then(|| format!("{} of the run precede it", records(self.records_before))),
            (self.records_between > 0)
                .then(|| format!("{} between its blocks are lost", records(self.records_between))),
            (self.cut_bytes > 0)
                .then(|| format!("its last block is truncated: {} are unreadable", words::bytes(self.cut_bytes))),
            (self.damaged_bytes > 0).then(|| format!("{} are damaged", words::bytes(self.damaged_bytes))),
            self.unfinished.then(|| "it was not closed: observations after its last block are missing".into()),
            self.continued.then(|| "it continues in the next file".into()),
            self.stopped.then(|| "it ended before the run because of its size limit or the disk".into()),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(&parts.join("; "))
    }
}

/// A recording or a ring, open for reading. Its readers are independent of each other.
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    pub(super) file: File,
    header: Header,
    blocks: Vec<BlockInfo>,
    anchors: Vec<Anchor>,
    closing: Option<ReportInput>,
    missing: Missing,
    bytes: u64,
    indexed: bool,
}

impl Recording {
    /// Opens a complete or truncated file. Reads no blocks, except in a ring, where only reading shows which blocks are intact.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref().to_owned();
        let failed = |error| OpenError::Io { path: path.clone(), error };
        let file = File::open(&path).map_err(failed)?;
        let meta = file.metadata().map_err(failed)?;
        if !meta.is_file() {
            return Err(OpenError::NotARecording(path));
        }
        let bytes = meta.len();
        let (preamble, run, begin, header) = begin(&file, &path, bytes)?;
        let mut missing = Missing::default();
        let index = if preamble.ring { None } else { by_index(&file, run, bytes) };
        let indexed = index.is_some();
        let mut sections = if let Some(sections) = index {
            sections
        } else {
            let found = scan(&file, run, begin, bytes, preamble.ring).map_err(failed)?;
            if preamble.ring {
                newest_lap(found)
            } else {
                missing.cut_bytes = found.cut_bytes;
                missing.damaged_bytes = found.damaged_bytes;
                found.sections
            }
        };
        let end = sections.iter().find(|(_, s)| s.kind == kind::END).copied();
        let end = end.and_then(|(at, s)| json::<End>(&file, at, &s));
        let status = sections.iter().rev().find(|(_, s)| s.kind == kind::STATUS).copied();
        let status = status.and_then(|(at, s)| json::<ReportInput>(&file, at, &s));
        sections.retain(|(_, s)| s.kind == kind::BLOCK);
        match &end {
            None => missing.unfinished = !preamble.ring,
            Some(end) => {
                missing.continued = end.why == Why::Rotated;
                missing.stopped = end.why == Why::Full;
            }
        }
        let blocks: Vec<BlockInfo> = sections.iter().map(|(at, s)| BlockInfo::of(*at, s)).collect();
        gaps(&blocks, &mut missing);
        let mut anchors = vec![header.anchor];
        anchors.extend(sections.iter().map(|(_, s)| s.anchor));
        anchors.dedup();
        Ok(Self {
            path,
            file,
            header,
            blocks,
            anchors,
            closing: end.and_then(|end| end.closing).or(status),
            missing,
            bytes,
            indexed,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Header of the recording.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Earliest and latest time; `None` without records.
    pub fn span(&self) -> Option<(MonoNs, MonoNs)> {
        let from = self.blocks.iter().map(|b| b.from).min()?;
        let to = self.blocks.iter().map(|b| b.to).max()?;
        Some((from, to))
    }

    /// Number of records.
    pub fn records(&self) -> u64 {
        self.blocks.iter().map(|b| u64::from(b.records)).sum()
    }

    /// Wall-clock time of an instant, in nanoseconds since the Unix epoch, by the last anchor before it.
    pub fn wall_ns(&self, at: MonoNs) -> u64 {
        let before = self.anchors.partition_point(|anchor| anchor.mono <= at);
        let anchor = self.anchors.get(before.saturating_sub(1));
        anchor.unwrap_or(&self.header.anchor).wall_ns_at(at)
    }

    /// Data for a report, without its source; `None` if the end of the run was not recorded.
    pub fn closing(&self) -> Option<&ReportInput> {
        self.closing.as_ref()
    }

    /// Data for a report, as far as recorded.
    pub fn input(&self) -> ReportInput {
        ReportInput { kind: self.header.source.clone(), ..self.closing.clone().unwrap_or_default() }
    }

    /// Missing parts of the recording; `None` if complete.
    pub fn missing(&self) -> Option<Missing> {
        (self.missing != Missing::default()).then_some(self.missing)
    }

    /// Its blocks, in order.
    pub fn blocks(&self) -> &[BlockInfo] {
        &self.blocks
    }

    /// Whether the blocks come from the file's index, not from a scan.
    pub fn is_indexed(&self) -> bool {
        self.indexed
    }
}

/// Reads the start of a file. Returns its preamble, run id, offset of the sections, and header.
fn begin(file: &File, path: &Path, bytes: u64) -> Result<(Preamble, u64, u64, Header), OpenError> {
    let failed = |error| OpenError::Io { path: path.to_owned(), error };
    let path = || path.to_owned();
    let mut first = [0; PREAMBLE];
    let min = (PREAMBLE + SECTION_HEADER) as u64;
    let there = bytes.min(PREAMBLE as u64) as usize;
    file.read_exact_at(&mut first[..there], 0).map_err(failed)?;
    let expected = Preamble::new(false).to_bytes();
    // Even a file truncated within its first bytes can be recognised as a recording.
    if there == 0 || first[..there.min(8)] != expected[..there.min(8)] {
        return Err(OpenError::NotARecording(path()));
    }
    let preamble = Preamble::of(&first).filter(|_| bytes >= min);
    let preamble = preamble.ok_or_else(|| OpenError::NoHeader { path: path(), bytes: min })?;
    let Preamble { major, minor, .. } = preamble;
    if major != MAJOR {
        return Err(OpenError::OtherFormat { path: path(), major, minor });
    }
    let mut head = [0; SECTION_HEADER];
    file.read_exact_at(&mut head, PREAMBLE as u64).map_err(failed)?;
    let head = Section::of(&head).filter(|s| s.kind == kind::HEADER);
    let end = PREAMBLE as u64 + head.map_or(SECTION_HEADER as u64, |s| s.length());
    let header = head
        .filter(|_| end <= bytes)
        .and_then(|s| json(file, PREAMBLE as u64, &s).map(|header| (preamble, s.run, end, header)));
    header.ok_or_else(|| OpenError::NoHeader { path: path(), bytes: end })
}

/// Reads and parses a section's payload; `None` if it is damaged or has an unexpected form.
fn json<T: serde::de::DeserializeOwned>(file: &File, at: u64, section: &Section) -> Option<T> {
    serde_json::from_slice(&payload(file, at, section)?).ok()
}

fn payload(file: &File, at: u64, section: &Section) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    has_payload(file, at, section, &mut bytes).is_ok_and(|whole| whole).then_some(bytes)
}

/// Sections listed in the file's index; `None` without a valid index.
fn by_index(file: &File, run: u64, bytes: u64) -> Option<Vec<(u64, Section)>> {
    const ENTRY: usize = 8 + SECTION_HEADER;
    let mut trailer = [0; TRAILER];
    let at = bytes.checked_sub(TRAILER as u64)?;
    file.read_exact_at(&mut trailer, at).ok()?;
    let index = index_of(&trailer).filter(|&index| index < at)?;
    let head = section(file, run, index, at).ok()??;
    if head.kind != kind::INDEX || index + head.length() != at {
        return None;
    }
    let entries = zstd::bulk::decompress(&payload(file, index, &head)?, head.raw.min(PAYLOAD) as usize).ok()?;
    let (entries, []) = entries.as_chunks::<ENTRY>() else {
        return None;
    };
    let mut sections = Vec::with_capacity(entries.len() + 1);
    let mut after = 0;
    for entry in entries {
        let (offset, head) = entry.split_first_chunk()?;
        let offset = u64::from_le_bytes(*offset);
        let head = Section::of(head.try_into().ok()?)?;
        let end = offset.checked_add(head.length())?;
        if head.run != run || offset < after || end > index {
            return None;
        }
        after = end;
        sections.push((offset, head));
    }
    // The end section is between the last block and the index. The first block may be anywhere before it.
    if sections.is_empty() {
        let first = section(file, run, PREAMBLE as u64, index).ok()?;
        after = PREAMBLE as u64 + first.map_or(0, |s| s.length());
    }
    sections.extend(section(file, run, after, index).ok()?.filter(|s| s.kind == kind::END).map(|end| (after, end)));
    Some(sections)
}

/// Keeps a ring's consecutive blocks up to the newest. Older blocks before a gap are leftovers.
fn newest_lap(found: Scan) -> Vec<(u64, Section)> {
    let mut sections = found.sections;
    sections.sort_by_key(|(_, s)| s.seq);
    let mut from = sections.len().saturating_sub(1);
    while from > 0 && sections[from - 1].1.seq + 1 == sections[from].1.seq {
        from -= 1;
    }
    sections.split_off(from)
}

fn gaps(blocks: &[BlockInfo], missing: &mut Missing) {
    let mut next = None;
    for block in blocks {
        match next {
            None => missing.records_before = block.first_record,
            Some(next) => missing.records_between += block.first_record.saturating_sub(next),
        }
        next = Some(block.next_record());
    }
}
