//! Finds a file's sections without its index: from header to header, skipping damaged parts.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::super::section::{SECTION_HEADER, Section};

/// Bytes per read in the search for a header after damage.
const WINDOW: usize = 256 << 10;

#[derive(Debug, Default)]
pub(super) struct Scan {
    /// All complete sections with their offsets, in file order.
    pub(super) sections: Vec<(u64, Section)>,
    pub(super) cut_bytes: u64,
    pub(super) damaged_bytes: u64,
}

/// Scans `from..to` for sections of `run`. With `whole`, only sections with a valid payload checksum count: in a ring, a header may outlive
/// its payload.
pub(super) fn scan(file: &File, run: u64, from: u64, to: u64, whole: bool) -> io::Result<Scan> {
    let mut scan = Scan::default();
    let mut buffer = Vec::new();
    let mut at = from;
    while at < to {
        match section(file, run, at, to)? {
            Some(section) if at + section.length() > to => {
                scan.cut_bytes = to - at;
                return Ok(scan);
            }
            Some(section) if !whole || has_payload(file, at, &section, &mut buffer)? => {
                scan.sections.push((at, section));
                at += section.length();
            }
            _ => {
                let Some(found) = next(file, run, at + 1, to, &mut buffer)? else {
                    // A truncated header, or other data at the end of the file.
                    scan.cut_bytes = to - at;
                    return Ok(scan);
                };
                scan.damaged_bytes += found - at;
                at = found;
            }
        }
    }
    Ok(scan)
}

/// Reads the section header at `at`.
pub(super) fn section(file: &File, run: u64, at: u64, to: u64) -> io::Result<Option<Section>> {
    let mut bytes = [0; SECTION_HEADER];
    if to.saturating_sub(at) < SECTION_HEADER as u64 {
        return Ok(None);
    }
    file.read_exact_at(&mut bytes, at)?;
    Ok(Section::of(&bytes).filter(|section| section.run == run))
}

/// Reads a section's payload. Returns whether its checksum matches.
pub(super) fn has_payload(file: &File, at: u64, section: &Section, buffer: &mut Vec<u8>) -> io::Result<bool> {
    buffer.resize(section.packed as usize, 0);
    file.read_exact_at(buffer, at + SECTION_HEADER as u64)?;
    Ok(crc32fast::hash(buffer) == section.crc)
}

/// Offset of the next section at or after `at`.
fn next(file: &File, run: u64, mut at: u64, to: u64, buffer: &mut Vec<u8>) -> io::Result<Option<u64>> {
    while to.saturating_sub(at) >= SECTION_HEADER as u64 {
        let size = (to - at).min(WINDOW as u64) as usize;
        buffer.resize(size, 0);
        file.read_exact_at(buffer, at)?;
        for place in Section::begins(buffer) {
            let place = at + place as u64;
            if section(file, run, place, to)?.is_some() {
                return Ok(Some(place));
            }
        }
        // A header may start in this window and end in the next.
        at += (size - (SECTION_HEADER - 1).min(size - 1)) as u64;
    }
    Ok(None)
}
