//! Finds a file's sections without its index: from header to header, skipping damaged parts.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::super::section::{SECTION_HEADER_BYTES, Section};

/// Bytes per read in the search for a header after damage.
const SEARCH_WINDOW_BYTES: usize = 256 << 10;

/// A section, and where it begins in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocatedSection {
    pub(super) offset: u64,
    pub(super) section: Section,
}

/// Sections that a scan has found, and what it could not read.
#[derive(Debug, Default)]
pub(super) struct SectionScan {
    /// All complete sections, in file order.
    pub(super) sections: Vec<LocatedSection>,
    /// Bytes at the end of the file that are no complete section.
    pub(super) cut_bytes: u64,
    /// Bytes between sections.
    pub(super) damaged_bytes: u64,
}

/// Lists the sections of a run in a range of the file, and counts the bytes that belong to none. If `checks_payloads`, a section counts
/// only if the checksum of its content matches. This is for rings, in which a header may outlive its content.
pub(super) fn scan_sections(
    file: &File,
    run_id: u64,
    range: Range<u64>,
    checks_payloads: bool,
) -> io::Result<SectionScan> {
    let mut scan = SectionScan::default();
    let mut buffer = Vec::new();
    let mut offset = range.start;
    while offset < range.end {
        if let Some(section) = read_section_header(file, run_id, offset, range.end)? {
            let end = offset + section.total_bytes();
            // The file ends within this section, so no other one follows.
            if end > range.end {
                scan.cut_bytes = range.end - offset;
                break;
            }
            // The payload is read only for its checksum.
            let is_accepted = !checks_payloads || read_payload_and_verify(file, offset, &section, &mut buffer)?;
            // The next section normally begins where this one ends.
            if is_accepted {
                scan.sections.push(LocatedSection { offset, section });
                offset = end;
                continue;
            }
        }
        // The length in a damaged header is not reliable, so the next section is searched byte by byte.
        let Some(next_offset) = find_section_offset(file, run_id, offset + 1, range.end, &mut buffer)? else {
            // A truncated header, or other data at the end of the file.
            scan.cut_bytes = range.end - offset;
            break;
        };
        scan.damaged_bytes += next_offset - offset;
        offset = next_offset;
    }
    Ok(scan)
}

/// Reads the section header at `offset`; `None` if there is none of this run before `end`.
pub(super) fn read_section_header(file: &File, run_id: u64, offset: u64, end: u64) -> io::Result<Option<Section>> {
    let mut bytes = [0; SECTION_HEADER_BYTES];
    if end.saturating_sub(offset) < SECTION_HEADER_BYTES as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut bytes, offset)?;
    Ok(Section::parse(&bytes).filter(|section| section.run == run_id))
}

/// Reads a section's payload into the buffer. Returns whether its checksum matches.
pub(super) fn read_payload_and_verify(
    file: &File,
    offset: u64,
    section: &Section,
    buffer: &mut Vec<u8>,
) -> io::Result<bool> {
    buffer.resize(section.packed_bytes as usize, 0);
    file.read_exact_at(buffer, offset + SECTION_HEADER_BYTES as u64)?;
    Ok(crc32fast::hash(buffer) == section.crc)
}

/// Searches for the next section of this run between `offset` and `end`. Returns its offset, or `None` if there is none.
fn find_section_offset(
    file: &File,
    run_id: u64,
    mut offset: u64,
    end: u64,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<u64>> {
    while end.saturating_sub(offset) >= SECTION_HEADER_BYTES as u64 {
        let size = (end - offset).min(SEARCH_WINDOW_BYTES as u64) as usize;
        buffer.resize(size, 0);
        file.read_exact_at(buffer, offset)?;
        for index in Section::possible_starts(buffer) {
            let start = offset + index as u64;
            if read_section_header(file, run_id, start, end)?.is_some() {
                return Ok(Some(start));
            }
        }
        // A header may start in this window and end in the next, so the windows overlap.
        let overlap = (SECTION_HEADER_BYTES - 1).min(size - 1);
        offset += (size - overlap) as u64;
    }
    Ok(None)
}
