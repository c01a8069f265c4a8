//! Entry points for the fuzzers (`fuzz/`); not part of ordinary builds.

use super::codec::BlockContent;
use super::section::{Section, kind};
use super::write::BlockPacker;

/// Builds a block around arbitrary `columns`, with a valid header and checksum, so that a reader decodes them.
pub fn block(columns: &[u8], records: u16, chunks: u16) -> Vec<u8> {
    let mut section = Section {
        kind: kind::BLOCK,
        content: BlockContent { records: records.into(), chunks: chunks.into(), ..BlockContent::default() },
        ..Section::default()
    };
    let mut packer = BlockPacker::new().expect("a compressor");
    packer.compress_into_section(columns, &mut section).expect("bytes can be packed").to_vec()
}
