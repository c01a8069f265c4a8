//! Opening of a recording: by its index if it was closed, otherwise by scanning. Missing parts are listed.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use trace::clock::{Anchor, MonoNs};
use trace::{ReportInput, words};

use super::super::error::OpenError;
use super::super::header::{EndReason, EndSection, RecordingHeader};
use super::super::section::{
    MAJOR, MAX_PAYLOAD_BYTES, PREAMBLE_BYTES, Preamble, SECTION_HEADER_BYTES, Section, TRAILER_BYTES, kind,
    parse_trailer,
};
use super::scan::{LocatedSection, SectionScan, read_payload_and_verify, read_section_header, scan_sections};

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
    /// Describes the block whose section is at `offset` in the file.
    pub(super) fn new(offset: u64, section: &Section) -> Self {
        Self {
            offset,
            bytes: section.total_bytes(),
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
pub struct MissingParts {
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

impl MissingParts {
    /// Adds what the file's end section, `end`, says about the rest of the run. `None` if the file has no such section.
    fn add_state_from_end_section(&mut self, end: Option<&EndSection>, is_ring: bool) {
        match end {
            // A ring never has an end section.
            None => self.unfinished = !is_ring,
            Some(end) => {
                self.continued = end.why == EndReason::Rotated;
                self.stopped = end.why == EndReason::Full;
            }
        }
    }
}

impl fmt::Display for MissingParts {
    /// Lists the missing parts, separated by semicolons.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<String> = Vec::new();
        if self.records_before > 0 {
            parts.push(format!("{} of the run precede it", words::plural(self.records_before, "record")));
        }
        if self.records_between > 0 {
            parts.push(format!("{} between its blocks are lost", words::plural(self.records_between, "record")));
        }
        if self.cut_bytes > 0 {
            parts.push(format!("its last block is truncated: {} are unreadable", words::bytes(self.cut_bytes)));
        }
        if self.damaged_bytes > 0 {
            parts.push(format!("{} are damaged", words::bytes(self.damaged_bytes)));
        }
        if self.unfinished {
            parts.push("it was not closed: observations after its last block are missing".into());
        }
        if self.continued {
            parts.push("it continues in the next file".into());
        }
        if self.stopped {
            parts.push("it ended before the run because of its size limit or the disk".into());
        }
        f.write_str(&parts.join("; "))
    }
}

/// A recording or a ring, open for reading. Its readers are independent of each other.
#[derive(Debug)]
pub struct Recording {
    path: PathBuf,
    pub(super) file: File,
    header: RecordingHeader,
    blocks: Vec<BlockInfo>,
    anchors: Vec<Anchor>,
    closing: Option<ReportInput>,
    missing: MissingParts,
    bytes: u64,
    is_indexed: bool,
}

impl Recording {
    /// Opens a complete or truncated file. Reads no blocks, except in a ring, where only reading shows which blocks are intact.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let path = path.as_ref().to_owned();
        let file = File::open(&path).map_err(|error| OpenError::io(&path, error))?;
        let metadata = file.metadata().map_err(|error| OpenError::io(&path, error))?;
        if !metadata.is_file() {
            return Err(OpenError::NotARecording(path));
        }
        let bytes = metadata.len();
        let start = read_preamble_and_header(&file, &path, bytes)?;
        let is_ring = start.preamble.is_ring;
        let found = find_sections(&file, &start, bytes).map_err(|error| OpenError::io(&path, error))?;
        let FoundSections { mut sections, is_indexed, cut_bytes, damaged_bytes } = found;
        let header = start.header;
        let end_location = sections.iter().find(|located| located.section.kind == kind::END);
        let end = end_location.and_then(|located| read_json::<EndSection>(&file, located));
        // A saved stream has several status sections, of which the newest counts.
        let status_location = sections.iter().rev().find(|located| located.section.kind == kind::STATUS);
        let status = status_location.and_then(|located| read_json::<ReportInput>(&file, located));
        sections.retain(|located| located.section.kind == kind::BLOCK);
        let blocks: Vec<BlockInfo> =
            sections.iter().map(|located| BlockInfo::new(located.offset, &located.section)).collect();
        let mut missing = MissingParts { cut_bytes, damaged_bytes, ..MissingParts::default() };
        missing.add_state_from_end_section(end.as_ref(), is_ring);
        count_missing_records(&blocks, &mut missing);
        // Each block has a reading of both clocks, as the header has.
        let mut anchors = vec![header.anchor];
        anchors.extend(sections.iter().map(|located| located.section.anchor));
        anchors.dedup();
        Ok(Self {
            path,
            file,
            header,
            blocks,
            anchors,
            // Without an end section, the newest status has the data for a report.
            closing: end.and_then(|end| end.closing).or(status),
            missing,
            bytes,
            is_indexed,
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
    pub fn header(&self) -> &RecordingHeader {
        &self.header
    }

    /// Earliest and latest time; `None` without records.
    pub fn span(&self) -> Option<(MonoNs, MonoNs)> {
        let earliest = self.blocks.iter().map(|block| block.from).min()?;
        let latest = self.blocks.iter().map(|block| block.to).max()?;
        Some((earliest, latest))
    }

    /// Number of records.
    pub fn records(&self) -> u64 {
        self.blocks.iter().map(|block| u64::from(block.records)).sum()
    }

    /// Wall-clock time of an instant, in nanoseconds since the Unix epoch, by the last anchor (reading of both clocks) before it.
    pub fn wall_ns(&self, at: MonoNs) -> u64 {
        let next = self.anchors.partition_point(|anchor| anchor.mono <= at);
        // Before the first anchor, that one is nearest.
        let anchor = self.anchors.get(next.saturating_sub(1));
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
    pub fn missing(&self) -> Option<MissingParts> {
        (self.missing != MissingParts::default()).then_some(self.missing)
    }

    /// Its blocks, in order.
    pub fn blocks(&self) -> &[BlockInfo] {
        &self.blocks
    }

    /// Whether the blocks come from the file's index, not from a scan.
    pub fn is_indexed(&self) -> bool {
        self.is_indexed
    }
}

/// Preamble and header of a file.
struct FileStart {
    preamble: Preamble,
    /// Id of the run.
    run: u64,
    header: RecordingHeader,
    /// Where the other sections begin.
    sections_offset: u64,
}

/// Length of the shortest file that can have a header.
const MIN_FILE_BYTES: u64 = (PREAMBLE_BYTES + SECTION_HEADER_BYTES) as u64;

/// Reads the first bytes of a file with this length, which say what file it is. The error tells apart a file that is no recording, one of
/// another version, and one that was cut too early.
fn read_preamble(file: &File, path: &Path, file_bytes: u64) -> Result<Preamble, OpenError> {
    let mut preamble_bytes = [0; PREAMBLE_BYTES];
    let available = file_bytes.min(PREAMBLE_BYTES as u64) as usize;
    file.read_exact_at(&mut preamble_bytes[..available], 0).map_err(|error| OpenError::io(path, error))?;
    // Even a file truncated within its first bytes can be recognised as a recording.
    if !Preamble::has_magic(&preamble_bytes[..available]) {
        return Err(OpenError::NotARecording(path.to_owned()));
    }
    let preamble = if file_bytes >= MIN_FILE_BYTES { Preamble::parse(&preamble_bytes) } else { None };
    let preamble = preamble.ok_or_else(|| OpenError::no_header_within(path, MIN_FILE_BYTES))?;
    let Preamble { major, minor, .. } = preamble;
    if major != MAJOR {
        return Err(OpenError::OtherFormat { path: path.to_owned(), major, minor });
    }
    Ok(preamble)
}

/// Reads the preamble and the header of a file with this length. The header, which describes the run, is the first section. Fails if the
/// file is no recording of this version, or does not have a whole header.
fn read_preamble_and_header(file: &File, path: &Path, file_bytes: u64) -> Result<FileStart, OpenError> {
    let preamble = read_preamble(file, path, file_bytes)?;
    let mut section_header = [0; SECTION_HEADER_BYTES];
    let read = file.read_exact_at(&mut section_header, PREAMBLE_BYTES as u64);
    read.map_err(|error| OpenError::io(path, error))?;
    let section = Section::parse(&section_header).filter(|section| section.kind == kind::HEADER);
    let section = section.ok_or_else(|| OpenError::no_header_within(path, MIN_FILE_BYTES))?;
    let located = LocatedSection { offset: PREAMBLE_BYTES as u64, section };
    let sections_offset = located.offset + section.total_bytes();
    let header = if sections_offset <= file_bytes { read_json(file, &located) } else { None };
    let header = header.ok_or_else(|| OpenError::no_header_within(path, sections_offset))?;
    Ok(FileStart { preamble, run: section.run, header, sections_offset })
}

/// Reads and parses a section's payload; `None` if it is damaged or has an unexpected form.
fn read_json<T: serde::de::DeserializeOwned>(file: &File, located: &LocatedSection) -> Option<T> {
    let payload = read_intact_payload(file, located)?;
    serde_json::from_slice(&payload).ok()
}

/// Reads the payload of a section. `None` if it cannot be read or its checksum does not match.
fn read_intact_payload(file: &File, located: &LocatedSection) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let is_intact = read_payload_and_verify(file, located.offset, &located.section, &mut bytes).ok()?;
    is_intact.then_some(bytes)
}

/// Sections of a file behind its header, and how they were found.
struct FoundSections {
    sections: Vec<LocatedSection>,
    /// They are from the file's index, so no scan was needed.
    is_indexed: bool,
    /// As in [`MissingParts`].
    cut_bytes: u64,
    damaged_bytes: u64,
}

/// Finds the sections of a file with this length, by its index if it has one, and otherwise by a scan of the whole file.
fn find_sections(file: &File, start: &FileStart, file_bytes: u64) -> io::Result<FoundSections> {
    let FileStart { preamble: Preamble { is_ring, .. }, run, sections_offset, .. } = *start;
    // A ring is overwritten while it is in use, so it has no index at its end.
    if !is_ring && let Some(sections) = read_index(file, run, file_bytes) {
        return Ok(FoundSections { sections, is_indexed: true, cut_bytes: 0, damaged_bytes: 0 });
    }
    // In a ring, the header of an overwritten section may be left without its content.
    let checks_payloads = is_ring;
    let scan = scan_sections(file, run, sections_offset..file_bytes, checks_payloads)?;
    let is_indexed = false;
    if is_ring {
        // Overwritten blocks are normal in a ring, so nothing counts as damaged.
        let sections = newest_consecutive_sections(scan);
        return Ok(FoundSections { sections, is_indexed, cut_bytes: 0, damaged_bytes: 0 });
    }
    let SectionScan { sections, cut_bytes, damaged_bytes } = scan;
    Ok(FoundSections { sections, is_indexed, cut_bytes, damaged_bytes })
}

/// Reads the index at the end of a file with this length. Returns the sections that it lists and the end section. `None` without a valid
/// index. `run_id`: the id of the run, which each section must have.
fn read_index(file: &File, run_id: u64, file_bytes: u64) -> Option<Vec<LocatedSection>> {
    let index = find_index(file, run_id, file_bytes)?;
    let packed = read_intact_payload(file, &index)?;
    // Limited, because the stated length may be damaged.
    let length = index.section.raw_bytes.min(MAX_PAYLOAD_BYTES);
    let entries = zstd::bulk::decompress(&packed, length as usize).ok()?;
    let mut sections = parse_index_entries(&entries, run_id, index.offset)?;
    let end = find_end_section(file, run_id, sections.last(), index.offset).ok()?;
    sections.extend(end);
    Some(sections)
}

/// Finds the index of a file with this length, by the trailer in the file's last bytes. `None` if they do not lead to one.
fn find_index(file: &File, run_id: u64, file_bytes: u64) -> Option<LocatedSection> {
    let mut trailer = [0; TRAILER_BYTES];
    let trailer_offset = file_bytes.checked_sub(TRAILER_BYTES as u64)?;
    file.read_exact_at(&mut trailer, trailer_offset).ok()?;
    // A file that was cut short ends with other bytes.
    let index_offset = parse_trailer(&trailer).filter(|&offset| offset < trailer_offset)?;
    let index = read_section_header(file, run_id, index_offset, trailer_offset).ok().flatten()?;
    if index.kind != kind::INDEX || index_offset + index.total_bytes() != trailer_offset {
        return None;
    }
    Some(LocatedSection { offset: index_offset, section: index })
}

/// Finds the end section, which no index lists. It follows `last_listed`, the last section of the index, or the header if the index is
/// empty. `None` if another section is there.
fn find_end_section(
    file: &File,
    run_id: u64,
    last_listed: Option<&LocatedSection>,
    index_offset: u64,
) -> io::Result<Option<LocatedSection>> {
    let end_offset = if let Some(last_listed) = last_listed {
        last_listed.offset + last_listed.section.total_bytes()
    } else {
        let header = read_section_header(file, run_id, PREAMBLE_BYTES as u64, index_offset)?;
        PREAMBLE_BYTES as u64 + header.map_or(0, |header| header.total_bytes())
    };
    let section = read_section_header(file, run_id, end_offset, index_offset)?;
    let end = section.filter(|section| section.kind == kind::END);
    Ok(end.map(|section| LocatedSection { offset: end_offset, section }))
}

/// Sections listed in the entries of an index, each an offset and a section header. `None` unless all are of this run, in the file's order
/// and before the index.
fn parse_index_entries(entries: &[u8], run_id: u64, index_offset: u64) -> Option<Vec<LocatedSection>> {
    /// Length of an entry: an offset of eight bytes, and a section header.
    const ENTRY_BYTES: usize = 8 + SECTION_HEADER_BYTES;
    // A part of an entry at the end is a sign of damage.
    let (entries, []) = entries.as_chunks::<ENTRY_BYTES>() else { return None };
    // With room for the end section.
    let mut sections = Vec::with_capacity(entries.len() + 1);
    let mut last_end = 0;
    for entry in entries {
        let (offset, section) = entry.split_first_chunk()?;
        let offset = u64::from_le_bytes(*offset);
        let section = Section::parse(section.try_into().ok()?)?;
        let end = offset.checked_add(section.total_bytes())?;
        // Checked, because the index alone decides where blocks are read.
        if section.run != run_id || offset < last_end || end > index_offset {
            return None;
        }
        last_end = end;
        sections.push(LocatedSection { offset, section });
    }
    Some(sections)
}

/// The newest sections of a ring, a file in which new sections overwrite the oldest. Returns those whose numbers are consecutive up to the
/// newest. Older ones before a gap are leftovers.
fn newest_consecutive_sections(scan: SectionScan) -> Vec<LocatedSection> {
    let mut sections = scan.sections;
    sections.sort_by_key(|located| located.section.seq);
    // Goes back from the newest section to the first one without a gap before it.
    let mut first = sections.len().saturating_sub(1);
    while first > 0 && sections[first - 1].section.seq + 1 == sections[first].section.seq {
        first -= 1;
    }
    sections.split_off(first)
}

/// Counts in `missing` the records that are missing before the first block and between blocks.
fn count_missing_records(blocks: &[BlockInfo], missing: &mut MissingParts) {
    let mut next_record = None;
    for block in blocks {
        match next_record {
            None => missing.records_before = block.first_record,
            Some(next) => missing.records_between += block.first_record.saturating_sub(next),
        }
        next_record = Some(block.next_record());
    }
}
