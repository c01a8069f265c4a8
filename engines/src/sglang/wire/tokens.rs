//! Token ids in their wire encoding.

use super::arena::{Node, kinds};
use super::doc::{Doc, Items};

/// The token ids listed for one request, in order. Decoding has validated each as a 64-bit integer.
#[derive(Clone, Debug)]
pub struct Tokens<'a>(Ids<'a>);

#[derive(Clone, Debug)]
enum Ids<'a> {
    None,
    /// Signed 64-bit little-endian words.
    Words(&'a [u8]),
    List(Doc<'a>, Items<'a>),
}

impl<'a> Tokens<'a> {
    pub(super) const EMPTY: Self = Self(Ids::None);

    /// The ids in one entry of an id column; none when it is not a list of integers.
    pub(super) fn of(doc: Doc<'a>, node: Node) -> Self {
        let words = doc.words(node).map(Ids::Words);
        Self(words.or_else(|| doc.items(node).map(|items| Ids::List(doc, items))).unwrap_or(Ids::None))
    }

    /// Number of ids in one entry of an id column; `None` when it contains anything but 64-bit integers.
    pub(super) fn count(doc: Doc<'a>, node: Node) -> Option<u32> {
        if let Node::Ints { len, .. } | Node::Words { words: len, .. } = node {
            return Some(u32::from(len));
        }
        if let Node::List(seq) = node
            && let seq = doc.arena.seqs[seq as usize]
            && seq.kinds & !kinds::INT == 0
        {
            return Some(seq.total);
        }
        if let Some((start, end)) = doc.words_at(node) {
            return Some(((end - start) / 8) as u32);
        }
        doc.items(node)?.try_fold(0, |count, item| doc.int(item).map(|_| count + 1))
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
