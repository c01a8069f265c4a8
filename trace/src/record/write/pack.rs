//! Compression of payloads with zstd, preceded by the section header.

use std::io;

use super::super::codec::Columns;
use super::super::section::{SECTION_HEADER, Section};

/// Compresses payloads and reuses its buffers.
pub(in crate::record) struct Packer {
    zstd: zstd::bulk::Compressor<'static>,
    raw: Vec<u8>,
    packed: Vec<u8>,
    section: Vec<u8>,
}

impl Packer {
    pub(in crate::record) fn new(level: i32) -> io::Result<Self> {
        Ok(Self {
            zstd: zstd::bulk::Compressor::new(level)?,
            raw: Vec::new(),
            packed: Vec::new(),
            section: Vec::new(),
        })
    }

    /// Compresses a block's columns and completes its header. Returns header and payload.
    pub(in crate::record) fn block(&mut self, columns: &Columns<Vec<u8>>, section: &mut Section) -> io::Result<&[u8]> {
        self.raw.clear();
        columns.join(&mut self.raw);
        self.packed.clear();
        self.packed.reserve(zstd::zstd_safe::compress_bound(self.raw.len()));
        self.zstd.compress_to_buffer(&self.raw, &mut self.packed)?;
        section.raw = self.raw.len() as u32;
        Ok(seal(section, &self.packed, &mut self.section))
    }

    /// Like [`Self::block`], for any bytes.
    pub(in crate::record) fn bytes(&mut self, bytes: &[u8], section: &mut Section) -> io::Result<&[u8]> {
        self.packed = self.zstd.compress(bytes)?;
        section.raw = bytes.len() as u32;
        Ok(seal(section, &self.packed, &mut self.section))
    }
}

/// Completes the header for an uncompressed or already compressed payload. Returns header and payload.
pub(super) fn seal<'a>(section: &mut Section, payload: &[u8], out: &'a mut Vec<u8>) -> &'a [u8] {
    section.packed = payload.len() as u32;
    section.crc = crc32fast::hash(payload);
    out.clear();
    out.reserve(SECTION_HEADER + payload.len());
    out.extend_from_slice(&section.to_bytes());
    out.extend_from_slice(payload);
    out
}
