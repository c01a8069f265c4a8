//! Entrances for the fuzzers (`fuzz/`); in no ordinary build.

use super::codec::Content;
use super::section::{Section, kind};
use super::write::Packer;

/// A block around `columns`, which may be any bytes: packed and summed as if they had been written, so that they are read.
pub fn block(columns: &[u8], records: u16, chunks: u16) -> Vec<u8> {
    let mut section = Section {
        kind: kind::BLOCK,
        content: Content {
            records: records.into(),
            chunks: chunks.into(),
            ..Content::default()
        },
        ..Section::default()
    };
    let mut packer = Packer::new(1).expect("room to pack");
    packer
        .bytes(columns, &mut section)
        .expect("bytes can be packed")
        .to_vec()
}
