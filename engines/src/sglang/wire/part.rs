//! The contiguous parts of a column in the message: one part, or one for each batch when CPython wrote the list in batches of a thousand.
//! All items of a part have the same form, so each form has its own loop.

use std::ops::Range;

use super::arena::{NONE, Node, Seq, kinds};
use super::doc::{Doc, Items, Run};
use super::pickle;
use super::words;
use crate::msgpack::{self, Head};

/// Contiguous items of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part<'a> {
    doc: Doc<'a>,
    run: Run,
    /// Index of its first item in the list.
    first: usize,
    len: u32,
    /// End of a flat run of a pickle.
    end: usize,
    kinds: u8,
}

/// Iterator over the parts of a list.
#[derive(Clone, Debug)]
pub(super) struct Parts<'a> {
    doc: Doc<'a>,
    part: Option<Part<'a>>,
    /// Index of the following part's [`Seq`].
    next: u32,
}

/// Integers that fit into a byte, in their encoded form.
#[derive(Clone, Copy, Debug)]
pub(super) enum Small<'a> {
    /// Pairs of opcode and value.
    Pickled(&'a [[u8; 2]]),
    Packed(&'a [u8]),
}

/// An item of a list that should hold integers.
#[derive(Clone, Copy, Debug)]
pub(super) enum Item {
    Int(i64),
    Nil,
    Other,
}

impl<'a> Doc<'a> {
    /// The parts of a list or tuple; no parts for any other value.
    pub(super) fn parts(self, list: Node) -> Parts<'a> {
        let seq = match list {
            Node::List(seq) | Node::Tuple(seq) => self.arena.seqs[seq as usize],
            _ => Seq::EMPTY,
        };
        let part = self.items(list).map(|items| Part {
            doc: self,
            run: items.run,
            first: 0,
            len: items.left,
            end: seq.end as usize,
            kinds: seq.kinds,
        });
        let next = seq.next;
        Parts { doc: self, part, next }
    }
}

impl<'a> Iterator for Parts<'a> {
    type Item = Part<'a>;

    fn next(&mut self) -> Option<Part<'a>> {
        let part = self.part.take()?;
        if let Some(seq) = self.doc.arena.seqs.get(self.next as usize) {
            self.next = seq.next;
            self.part = Some(Part {
                doc: self.doc,
                run: Run::of(seq),
                first: part.rows().end,
                len: seq.len,
                end: seq.end as usize,
                kinds: seq.kinds,
            });
        }
        Some(part)
    }
}

impl<'a> Part<'a> {
    /// Indices of its items in the list.
    pub(super) fn rows(self) -> Range<usize> {
        self.first..self.first + self.len as usize
    }

    /// Its items, if they are stored in the arena's cells.
    fn cells(self) -> Option<&'a [Node]> {
        match self.run {
            Run::Cells { at } => self.doc.arena.cells.get(at..at + self.len as usize),
            _ => None,
        }
    }

    /// Iterates over its items.
    pub(super) fn items(self) -> Items<'a> {
        Items { doc: self.doc, run: self.run, left: self.len, next: NONE }
    }

    /// Appends its items, which should be lists, to `nodes`. Short arrays become [`Node::Words`].
    pub(super) fn lists(self, nodes: &mut Vec<Node>) {
        match (self.cells(), self.run) {
            // The lists and arrays of a pickle are contiguous cells.
            (Some(cells), _) => nodes.extend_from_slice(cells),
            (None, Run::Pack { mut at }) => {
                for _ in self.rows() {
                    if let Some((first, words)) = words::short_array(self.doc.bytes, at) {
                        nodes.push(Node::Words { words, at: first as u32 });
                        at = first + 8 * usize::from(words);
                    } else if let Some(next) = msgpack::next(self.doc.bytes, at) {
                        nodes.push(Node::Pack(at as u32));
                        at = next;
                    } else {
                        break;
                    }
                }
            }
            _ => nodes.extend(self.items()),
        }
    }

    /// Calls `f` with the index and value of each item.
    pub(super) fn each<E>(self, mut f: impl FnMut(usize, Node) -> Result<(), E>) -> Result<(), E> {
        match self.cells() {
            Some(cells) => self.rows().zip(cells).try_for_each(|(row, item)| f(row, *item)),
            None => self.rows().zip(self.items()).try_for_each(|(row, item)| f(row, item)),
        }
    }

    /// Calls `f` with the index and bytes of each string; `None` for an item that is not a string.
    pub(super) fn each_str<E>(self, mut f: impl FnMut(usize, Option<&'a [u8]>) -> Result<(), E>) -> Result<(), E> {
        let doc = self.doc;
        match self.run {
            Run::Flat { at } if self.kinds == kinds::STR => {
                let mut rest = doc.bytes.get(at..).unwrap_or_default();
                for row in self.rows() {
                    let Some((text, next)) = pickle::flat_string(rest) else {
                        return f(row, None);
                    };
                    f(row, Some(text))?;
                    rest = next;
                }
                Ok(())
            }
            Run::Pack { mut at } => {
                for row in self.rows() {
                    let Some((text, next)) = msgpack::string(doc.bytes, at) else {
                        return f(row, None);
                    };
                    f(row, Some(text))?;
                    at = next;
                }
                Ok(())
            }
            _ => self.each(|row, item| f(row, doc.string(item))),
        }
    }

    /// Its integers if each fits into a byte, as in most columns of counts.
    pub(super) fn small(self) -> Option<Small<'a>> {
        match self.run {
            // The shortest opcode takes two bytes, so a run with two bytes per item has no other opcode.
            Run::Flat { at } if self.kinds == kinds::INT => {
                let (run, rest) = self.doc.bytes.get(at..self.end)?.as_chunks();
                (run.len() == self.len as usize && rest.is_empty()).then_some(Small::Pickled(run))
            }
            Run::Pack { at } => {
                // If this many bytes are all small integers, they are exactly the items.
                let run = self.doc.bytes.get(at..at + self.len as usize)?;
                run.iter().all(|value| *value < 0x80).then_some(Small::Packed(run))
            }
            _ => None,
        }
    }

    /// Calls `f` with the index and value of each item in a list of integers.
    pub(super) fn each_int<E>(self, mut f: impl FnMut(usize, Item) -> Result<(), E>) -> Result<(), E> {
        let doc = self.doc;
        match self.run {
            Run::Flat { mut at } if self.kinds == kinds::INT => {
                for row in self.rows() {
                    let Some((value, next)) = pickle::flat_int(doc.bytes, at) else {
                        return f(row, Item::Other);
                    };
                    f(row, Item::Int(i64::from(value)))?;
                    at = next;
                }
                Ok(())
            }
            Run::Pack { mut at } => {
                for row in self.rows() {
                    let item = match msgpack::head(doc.bytes, at) {
                        Some((Head::Int(value), next)) => {
                            at = next;
                            Item::Int(value)
                        }
                        Some((Head::Nil, next)) => {
                            at = next;
                            Item::Nil
                        }
                        _ => Item::Other,
                    };
                    f(row, item)?;
                }
                Ok(())
            }
            _ => self.each(|row, item| match doc.int(item) {
                Some(value) => f(row, Item::Int(value)),
                None if doc.is_nil(item) => f(row, Item::Nil),
                None => f(row, Item::Other),
            }),
        }
    }
}
