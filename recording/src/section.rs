//! Sections of a file. A file is a short preamble followed by sections: a fixed-size header with its own checksum, then the payload. This
//! module distinguishes intact sections from truncated or damaged ones.

use trace::clock::{Anchor, MonoNs};

use super::codec::BlockContent;

/// Magic number. As in PNG, transfers that convert line ends or strip bit 7 corrupt it detectably.
const FILE_MAGIC: [u8; 8] = *b"\x89TGAP\r\n\x1a";
const SECTION_MAGIC: [u8; 4] = *b"\xf7tgs";

/// Version of the format. A reader refuses any other `MAJOR`. It reads a later `MINOR` and skips unknown data.
pub(super) const MAJOR: u16 = 2;
pub(super) const MINOR: u16 = 17;

pub(super) const PREAMBLE_BYTES: usize = 16;
pub(super) const SECTION_HEADER_BYTES: usize = 88;
/// Offset of the fields in a section header, behind its magic number and its checksum.
const FIELDS_OFFSET: usize = 8;

/// Maximum length of a payload, compressed or not. Blocks are closed long before.
pub(super) const MAX_PAYLOAD_BYTES: u32 = 64 << 20;

/// First bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Preamble {
    pub(super) major: u16,
    pub(super) minor: u16,
    /// The file is a ring of fixed size instead of a sequence of blocks.
    pub(super) is_ring: bool,
}

impl Preamble {
    /// Preamble of this version.
    pub(super) fn new(is_ring: bool) -> Self {
        Self { major: MAJOR, minor: MINOR, is_ring }
    }

    /// The preamble as it is in a file.
    pub(super) fn to_bytes(self) -> [u8; PREAMBLE_BYTES] {
        let mut bytes = [0; PREAMBLE_BYTES];
        // The bytes behind these fields stay 0.
        let fields: [&[u8]; 4] =
            [&FILE_MAGIC, &self.major.to_le_bytes(), &self.minor.to_le_bytes(), &[u8::from(self.is_ring)]];
        write_fields(&mut bytes, &fields);
        bytes
    }

    /// Whether these first bytes of a file are those of a recording. Compares as many as there are, but at least one.
    pub(super) fn has_magic(bytes: &[u8]) -> bool {
        let compared = bytes.len().min(FILE_MAGIC.len());
        compared > 0 && bytes[..compared] == FILE_MAGIC[..compared]
    }

    /// Parses a preamble; `None` if the bytes are not one.
    pub(super) fn parse(bytes: &[u8; PREAMBLE_BYTES]) -> Option<Self> {
        let (magic, mut fields) = bytes.split_at(FILE_MAGIC.len());
        if magic != FILE_MAGIC {
            return None;
        }
        Some(Self {
            major: take_number(&mut fields, 2) as u16,
            minor: take_number(&mut fields, 2) as u16,
            // Other bits are unused.
            is_ring: take_number(&mut fields, 1) & 1 != 0,
        })
    }
}

/// Writes fields one behind the other, from the start of `bytes` on.
fn write_fields(bytes: &mut [u8], fields: &[&[u8]]) {
    let mut offset = 0;
    for field in fields {
        bytes[offset..offset + field.len()].copy_from_slice(field);
        offset += field.len();
    }
}

/// Removes a little-endian number of `byte_count` bytes from the front of `fields`, which must have them, and returns it.
fn take_number(fields: &mut &[u8], byte_count: usize) -> u64 {
    let (number, rest) = fields.split_at(byte_count);
    *fields = rest;
    let mut padded = [0; 8];
    padded[..byte_count].copy_from_slice(number);
    u64::from_le_bytes(padded)
}

/// Kinds of sections.
pub(super) mod kind {
    /// [`super::super::RecordingHeader`] as JSON.
    pub(crate) const HEADER: u8 = 1;
    /// Records in columns, compressed with zstd.
    pub(crate) const BLOCK: u8 = 2;
    /// Reason for the file's end and data for a report, as JSON.
    pub(crate) const END: u8 = 3;
    /// Offsets of all sections, compressed with zstd.
    pub(crate) const INDEX: u8 = 4;
    /// Data for a report of the run so far, as JSON, in streams. The last one counts.
    pub(crate) const STATUS: u8 = 5;
}

/// Header of a section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) kind: u8,
    /// Bytes of the compressed payload.
    pub(super) packed_bytes: u32,
    pub(super) raw_bytes: u32,
    /// CRC-32 of the compressed payload.
    pub(super) crc: u32,
    /// Run id, equal in all sections of a file. Distinguishes them from older data in the same place.
    pub(super) run: u64,
    /// Number of the section within the run, in writing order.
    pub(super) seq: u64,
    /// Number of the run's records before this block, including dropped ones.
    pub(super) first_record: u64,
    pub(super) content: BlockContent,
    /// Last anchor before the block's end.
    pub(super) anchor: Anchor,
}

impl Section {
    /// The section header as it is in a file.
    pub(super) fn to_bytes(self) -> [u8; SECTION_HEADER_BYTES] {
        let mut bytes = [0; SECTION_HEADER_BYTES];
        let fields: [&[u8]; 13] = [
            // The kind, and three unused bytes.
            &[self.kind, 0, 0, 0],
            &self.packed_bytes.to_le_bytes(),
            &self.raw_bytes.to_le_bytes(),
            &self.crc.to_le_bytes(),
            &self.run.to_le_bytes(),
            &self.seq.to_le_bytes(),
            &self.first_record.to_le_bytes(),
            &self.content.records.to_le_bytes(),
            &self.content.chunks.to_le_bytes(),
            &self.content.from.0.to_le_bytes(),
            &self.content.to.0.to_le_bytes(),
            &self.anchor.mono.0.to_le_bytes(),
            &self.anchor.wall_ns.to_le_bytes(),
        ];
        write_fields(&mut bytes[FIELDS_OFFSET..], &fields);
        // The magic number and the checksum of the fields come before the fields.
        let crc = crc32fast::hash(&bytes[FIELDS_OFFSET..]);
        let first_fields: [&[u8]; 2] = [&SECTION_MAGIC, &crc.to_le_bytes()];
        write_fields(&mut bytes, &first_fields);
        bytes
    }

    /// Parses a section header: a magic number, a checksum of the fields, and the fields, all little-endian. `None` if the bytes are no
    /// such header, or are damaged, or state a length above the limit.
    pub(super) fn parse(bytes: &[u8; SECTION_HEADER_BYTES]) -> Option<Self> {
        let (magic, behind_magic) = bytes.split_first_chunk::<4>()?;
        let (crc, fields) = behind_magic.split_first_chunk::<4>()?;
        if *magic != SECTION_MAGIC || u32::from_le_bytes(*crc) != crc32fast::hash(fields) {
            return None;
        }
        // The kind takes one byte, and three unused ones follow.
        let mut rest = &fields[4..];
        // Each call takes the next bytes from `rest`, so the order of these lines is that of the format.
        let section = Self {
            kind: fields[0],
            packed_bytes: take_number(&mut rest, 4) as u32,
            raw_bytes: take_number(&mut rest, 4) as u32,
            crc: take_number(&mut rest, 4) as u32,
            run: take_number(&mut rest, 8),
            seq: take_number(&mut rest, 8),
            first_record: take_number(&mut rest, 8),
            content: BlockContent {
                records: take_number(&mut rest, 4) as u32,
                chunks: take_number(&mut rest, 4) as u32,
                from: MonoNs(take_number(&mut rest, 8)),
                to: MonoNs(take_number(&mut rest, 8)),
            },
            anchor: Anchor { mono: MonoNs(take_number(&mut rest, 8)), wall_ns: take_number(&mut rest, 8) },
        };
        // The lengths may be wrong even with a valid checksum, because the sender of a stream may be any program.
        let is_within_limit = section.packed_bytes <= MAX_PAYLOAD_BYTES && section.raw_bytes <= MAX_PAYLOAD_BYTES;
        is_within_limit.then_some(section)
    }

    /// Length of header and payload, in bytes.
    pub(super) fn total_bytes(&self) -> u64 {
        SECTION_HEADER_BYTES as u64 + u64::from(self.packed_bytes)
    }

    /// Offsets in `bytes` where a header may begin.
    pub(super) fn possible_starts(bytes: &[u8]) -> impl Iterator<Item = usize> {
        let windows = bytes.windows(SECTION_MAGIC.len()).enumerate();
        windows.filter_map(|(offset, window)| (window == SECTION_MAGIC).then_some(offset))
    }
}

const TRAILER_MAGIC: [u8; 8] = *b"TGAPEND\n";
pub(super) const TRAILER_BYTES: usize = 20;

/// Last bytes of a closed file: the offset of the index, its checksum, and a magic number.
pub(super) fn trailer_bytes(index_offset: u64) -> [u8; TRAILER_BYTES] {
    let offset_bytes = index_offset.to_le_bytes();
    let crc = crc32fast::hash(&offset_bytes);
    let fields: [&[u8]; 3] = [&offset_bytes, &crc.to_le_bytes(), &TRAILER_MAGIC];
    let mut bytes = [0; TRAILER_BYTES];
    write_fields(&mut bytes, &fields);
    bytes
}

/// Reads the offset of the index from the last bytes of a file. `None` if the bytes are not a trailer.
pub(super) fn parse_trailer(bytes: &[u8; TRAILER_BYTES]) -> Option<u64> {
    let (index_offset, behind_offset) = bytes.split_first_chunk::<8>()?;
    let (crc, magic) = behind_offset.split_first_chunk::<4>()?;
    let is_intact = *crc == crc32fast::hash(index_offset).to_le_bytes() && magic == TRAILER_MAGIC;
    is_intact.then_some(u64::from_le_bytes(*index_offset))
}
