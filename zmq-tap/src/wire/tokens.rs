//! Token ids as they are on the wire.

use super::arena::{Node, kinds};
use super::doc::{Doc, Items};

/// One request's listed token ids, in order. Decoding has proved every one an integer of 64 bits.
#[derive(Clone, Debug)]
pub struct Tokens<'a>(Ids<'a>);

#[derive(Clone, Debug)]
enum Ids<'a> {
    None,
    /// Signed 64-bit little endian words.
    Words(&'a [u8]),
    List(Doc<'a>, Items<'a>),
}

impl<'a> Tokens<'a> {
    pub(super) const EMPTY: Self = Self(Ids::None);

    /// The ids of one entry of an id column, and how many; `None` when it is not a list of integers.
    pub(super) fn of(doc: Doc<'a>, node: Node) -> Option<(Self, u32)> {
        if let Some(words) = doc.words(node) {
            return Some((Self(Ids::Words(words)), (words.len() / 8) as u32));
        }
        let items = doc.items(node)?;
        let len = match node {
            Node::List(seq) => {
                let seq = doc.arena.seqs[seq as usize];
                // Short integers are proved by their opcode; longer ones may exceed 64 bits and are looked at below.
                (seq.kinds & !kinds::INT == 0).then_some(seq.total)
            }
            _ => None,
        };
        let mut count = 0;
        if let Some(len) = len {
            count = len;
        } else {
            for item in items.clone() {
                doc.int(item)?;
                count += 1;
            }
        }
        Some((Self(Ids::List(doc, items)), count))
    }
}

impl Iterator for Tokens<'_> {
    type Item = i64;

    fn next(&mut self) -> Option<i64> {
        match &mut self.0 {
            Ids::None => None,
            Ids::Words(words) => {
                let (word, rest) = words.split_first_chunk()?;
                *words = rest;
                Some(i64::from_le_bytes(*word))
            }
            Ids::List(doc, items) => items.next().and_then(|item| doc.int(item)),
        }
    }
}
