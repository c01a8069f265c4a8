//! Compression of payloads with zstd, preceded by the section header.

use std::io;

use trace::clock::Anchor;

use super::super::codec::{BlockColumns, BlockContent};
use super::super::section::{SECTION_HEADER_BYTES, Section, kind};

/// Compression level of files.
pub(super) const FILE_LEVEL: i32 = 3;
/// Compression level of a stream. Its blocks cover only 0.1 s, so a higher level saves too little.
const STREAM_LEVEL: i32 = 1;

/// A closed block, not compressed yet, so that another thread can compress it.
#[derive(Debug)]
pub struct UncompressedBlock {
    pub(crate) columns: BlockColumns<Vec<u8>>,
    pub(crate) content: BlockContent,
    pub(crate) first_record: u64,
    pub(crate) anchor: Anchor,
}

impl UncompressedBlock {
    /// Number of records.
    pub fn records(&self) -> u32 {
        self.content.records
    }

    /// Number of chunks.
    pub fn chunks(&self) -> u32 {
        self.content.chunks
    }
}

/// A compressed section.
pub(crate) struct SealedSection<'p> {
    pub(crate) section: Section,
    /// Its header and payload.
    pub(crate) bytes: &'p [u8],
}

/// Compresses blocks and reuses its buffers.
pub struct BlockPacker {
    zstd: zstd::bulk::Compressor<'static>,
    /// Buffers: columns, compressed columns, and the whole section.
    raw: Vec<u8>,
    packed: Vec<u8>,
    sealed: Vec<u8>,
}

impl BlockPacker {
    /// Allocates the buffers for the blocks of a stream.
    pub fn new() -> io::Result<Self> {
        Self::with_level(STREAM_LEVEL)
    }

    /// Compresses a block and returns its bytes.
    pub fn pack_standalone_block(&mut self, block: &UncompressedBlock) -> io::Result<&[u8]> {
        // A block outside of a file or a stream needs neither a run nor a number.
        let run = 0;
        let seq = 0;
        Ok(self.pack_section(block, run, seq)?.bytes)
    }

    /// Packer with this compression level of zstd.
    pub(super) fn with_level(level: i32) -> io::Result<Self> {
        Ok(Self { zstd: zstd::bulk::Compressor::new(level)?, raw: Vec::new(), packed: Vec::new(), sealed: Vec::new() })
    }

    /// Compresses a block into a section, which is number `seq` of the run.
    pub(crate) fn pack_section(
        &mut self,
        block: &UncompressedBlock,
        run: u64,
        seq: u64,
    ) -> io::Result<SealedSection<'_>> {
        let mut section = Section {
            kind: kind::BLOCK,
            run,
            seq,
            first_record: block.first_record,
            content: block.content,
            anchor: block.anchor,
            ..Section::default()
        };
        // Taken out, because `compress_into_section` borrows all of `self`.
        let mut raw = std::mem::take(&mut self.raw);
        raw.clear();
        block.columns.write_to(&mut raw);
        // The result without the bytes, whose borrow of `self` would last too long. They are also in `sealed`.
        let result = self.compress_into_section(&raw, &mut section).map(|_| ());
        // The buffer is kept after an error, too.
        self.raw = raw;
        result?;
        Ok(SealedSection { section, bytes: &self.sealed })
    }

    /// Compresses any bytes as payload of `section`, whose sizes and checksum are set. Returns its header and payload.
    pub(crate) fn compress_into_section(&mut self, bytes: &[u8], section: &mut Section) -> io::Result<&[u8]> {
        self.packed.clear();
        // The compressor does not enlarge the buffer itself.
        self.packed.reserve(zstd::zstd_safe::compress_bound(bytes.len()));
        self.zstd.compress_to_buffer(bytes, &mut self.packed)?;
        section.raw_bytes = bytes.len() as u32;
        Ok(seal_section(section, &self.packed, &mut self.sealed))
    }
}

/// Completes a section with the length and the checksum of its payload, compressed or not. Replaces the content of `out` by the section's
/// header and payload, and returns it.
pub(crate) fn seal_section<'a>(section: &mut Section, payload: &[u8], out: &'a mut Vec<u8>) -> &'a [u8] {
    section.packed_bytes = payload.len() as u32;
    section.crc = crc32fast::hash(payload);
    out.clear();
    out.reserve(SECTION_HEADER_BYTES + payload.len());
    out.extend_from_slice(&section.to_bytes());
    out.extend_from_slice(payload);
    out
}
