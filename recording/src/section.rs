//! Sections of a file. A file is a short preamble followed by sections: a fixed-size header with its own checksum, then the payload. This
//! module distinguishes intact sections from truncated or damaged ones.

use trace::clock::{Anchor, MonoNs};

use super::codec::Content;

/// Magic number. As in PNG, transfers that convert line ends or strip bit 7 corrupt it detectably.
const MAGIC: [u8; 8] = *b"\x89TGAP\r\n\x1a";
const SECTION: [u8; 4] = *b"\xf7tgs";

/// Version of the format. A reader refuses any other `MAJOR`. It reads a later `MINOR` and skips unknown data.
pub(super) const MAJOR: u16 = 2;
pub(super) const MINOR: u16 = 10;

pub(super) const PREAMBLE: usize = 16;
pub(super) const SECTION_HEADER: usize = 88;

/// Maximum length of a payload, compressed or not. Blocks are closed long before.
pub(super) const PAYLOAD: u32 = 64 << 20;

/// First bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Preamble {
    pub(super) major: u16,
    pub(super) minor: u16,
    /// The file is a ring of fixed size instead of a sequence of blocks.
    pub(super) ring: bool,
}

impl Preamble {
    pub(super) fn new(ring: bool) -> Self {
        Self { major: MAJOR, minor: MINOR, ring }
    }

    pub(super) fn to_bytes(self) -> [u8; PREAMBLE] {
        let mut bytes = [0; PREAMBLE];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.major.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.minor.to_le_bytes());
        bytes[12] = u8::from(self.ring);
        bytes
    }

    /// Parses a preamble; `None` if the bytes are not one.
    pub(super) fn of(bytes: &[u8; PREAMBLE]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        (*magic == MAGIC).then(|| Self {
            major: u16::from_le_bytes([rest[0], rest[1]]),
            minor: u16::from_le_bytes([rest[2], rest[3]]),
            ring: rest[4] & 1 != 0,
        })
    }
}

/// Kinds of sections.
pub(super) mod kind {
    /// [`super::super::Header`] as JSON.
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

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) kind: u8,
    /// Bytes of the compressed payload.
    pub(super) packed: u32,
    pub(super) raw: u32,
    /// CRC-32 of the compressed payload.
    pub(super) crc: u32,
    /// Run id, equal in all sections of a file. Distinguishes them from older data in the same place.
    pub(super) run: u64,
    /// Number of the section within the run, in writing order.
    pub(super) seq: u64,
    /// Number of the run's records before this block, including dropped ones.
    pub(super) first_record: u64,
    pub(super) content: Content,
    /// Last anchor before the block's end.
    pub(super) anchor: Anchor,
}

impl Section {
    pub(super) fn to_bytes(self) -> [u8; SECTION_HEADER] {
        let mut bytes = [0; SECTION_HEADER];
        let mut at = 8;
        let mut put = |field: &[u8]| {
            bytes[at..at + field.len()].copy_from_slice(field);
            at += field.len();
        };
        put(&[self.kind, 0, 0, 0]);
        put(&self.packed.to_le_bytes());
        put(&self.raw.to_le_bytes());
        put(&self.crc.to_le_bytes());
        put(&self.run.to_le_bytes());
        put(&self.seq.to_le_bytes());
        put(&self.first_record.to_le_bytes());
        put(&self.content.records.to_le_bytes());
        put(&self.content.chunks.to_le_bytes());
        put(&self.content.from.0.to_le_bytes());
        put(&self.content.to.0.to_le_bytes());
        put(&self.anchor.mono.0.to_le_bytes());
        put(&self.anchor.wall_ns.to_le_bytes());
        let crc = crc32fast::hash(&bytes[8..]);
        bytes[..4].copy_from_slice(&SECTION);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Parses a section header; `None` if the bytes are not one, or it is damaged.
    pub(super) fn of(bytes: &[u8; SECTION_HEADER]) -> Option<Self> {
        let (magic, rest) = bytes.split_first_chunk::<4>()?;
        let (crc, fields) = rest.split_first_chunk::<4>()?;
        if *magic != SECTION || u32::from_le_bytes(*crc) != crc32fast::hash(fields) {
            return None;
        }
        let mut at = 4;
        let mut word = |size: usize| {
            let mut value = [0; 8];
            value[..size].copy_from_slice(&fields[at..at + size]);
            at += size;
            u64::from_le_bytes(value)
        };
        let section = Self {
            kind: fields[0],
            packed: word(4) as u32,
            raw: word(4) as u32,
            crc: word(4) as u32,
            run: word(8),
            seq: word(8),
            first_record: word(8),
            content: Content {
                records: word(4) as u32,
                chunks: word(4) as u32,
                from: MonoNs(word(8)),
                to: MonoNs(word(8)),
            },
            anchor: Anchor { mono: MonoNs(word(8)), wall_ns: word(8) },
        };
        (section.packed <= PAYLOAD && section.raw <= PAYLOAD).then_some(section)
    }

    /// Length of header and payload, in bytes.
    pub(super) fn length(&self) -> u64 {
        SECTION_HEADER as u64 + u64::from(self.packed)
    }

    /// Offsets in `bytes` where a header may begin.
    pub(super) fn begins(bytes: &[u8]) -> impl Iterator<Item = usize> {
        bytes.windows(SECTION.len()).enumerate().filter_map(|(at, w)| (w == SECTION).then_some(at))
    }
}

const TRAILER_MAGIC: [u8; 8] = *b"TGAPEND\n";
pub(super) const TRAILER: usize = 20;

/// Last bytes of a closed file, with the offset of the index.
pub(super) fn trailer(index: u64) -> [u8; TRAILER] {
    let mut bytes = [0; TRAILER];
    bytes[..8].copy_from_slice(&index.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..8]);
    bytes[8..12].copy_from_slice(&crc.to_le_bytes());
    bytes[12..].copy_from_slice(&TRAILER_MAGIC);
    bytes
}

/// Offset of the index; `None` if the bytes are not a trailer.
pub(super) fn index_of(bytes: &[u8; TRAILER]) -> Option<u64> {
    let (index, rest) = bytes.split_first_chunk::<8>()?;
    let whole = rest[..4] == crc32fast::hash(index).to_le_bytes() && rest[4..] == TRAILER_MAGIC;
    whole.then_some(u64::from_le_bytes(*index))
}
