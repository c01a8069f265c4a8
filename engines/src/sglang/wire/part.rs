//! The contiguous parts of a column in the message: one part, or one for each batch when CPython wrote the list in batches of a thousand.
//! All items of a part have the same form, so each form has its own loop.

use std::ops::Range;

use super::arena::{ListRun, NONE, Node, kinds};
use super::doc::{Doc, ItemRun, Items};
use super::pickle;
use super::words;
use crate::msgpack::type_byte::FIXINT_MAX;
use crate::msgpack::{self, Head, NextOffset};

/// Contiguous items of a list.
#[derive(Clone, Copy, Debug)]
pub(super) struct ColumnPart<'a> {
    doc: Doc<'a>,
    run: ItemRun,
    /// Index of its first item in the list.
    first_row: usize,
    len: u32,
    /// End of a flat run of a pickle. Not set for other runs.
    flat_end: usize,
    kinds: u8,
}

/// Iterator over the parts of a list.
#[derive(Clone, Debug)]
pub(super) struct ColumnParts<'a> {
    doc: Doc<'a>,
    part: Option<ColumnPart<'a>>,
    /// Index of the following part's [`ListRun`].
    next: u32,
}

/// Integers that fit into a byte, in their encoded form.
#[derive(Clone, Copy, Debug)]
pub(super) enum SmallInts<'a> {
    /// Pairs of opcode and value.
    Pickled(&'a [[u8; 2]]),
    Packed(&'a [u8]),
}

/// An item of a list that should hold integers.
#[derive(Clone, Copy, Debug)]
pub(super) enum IntItem {
    Int(i64),
    Nil,
    Other,
}

impl<'a> Doc<'a> {
    /// The parts of a column, which is a list or tuple with one item for each request. A part is a run of contiguous items. No parts for
    /// any other value.
    pub(super) fn column_parts(self, list: Node) -> ColumnParts<'a> {
        let first_run = match list {
            Node::List(list) | Node::Tuple(list) => self.arena.list_runs[list as usize],
            // In msgpack, and for short integers, all items are one part, and no run in the arena describes them.
            _ => ListRun::EMPTY,
        };
        let part = self.list_items(list).map(|items| ColumnPart {
            doc: self,
            run: items.run,
            first_row: 0,
            len: items.left,
            flat_end: first_run.end as usize,
            kinds: first_run.kinds,
        });
        let next = first_run.next;
        ColumnParts { doc: self, part, next }
    }
}

impl<'a> Iterator for ColumnParts<'a> {
    type Item = ColumnPart<'a>;

    /// The next part of a column, which is a list with one item for each request. A part is one run of contiguous items.
    fn next(&mut self) -> Option<ColumnPart<'a>> {
        let part = self.part.take()?;
        let next_row = part.row_range().end;
        // Without a further run, this part is the last one.
        if let Some(run) = self.doc.arena.list_runs.get(self.next as usize) {
            self.next = run.next;
            self.part = Some(ColumnPart {
                doc: self.doc,
                run: ItemRun::at_start_of(run),
                first_row: next_row,
                len: run.len,
                flat_end: run.end as usize,
                kinds: run.kinds,
            });
        }
        Some(part)
    }
}

impl<'a> ColumnPart<'a> {
    /// Indices of the part's items in the list.
    pub(super) fn row_range(self) -> Range<usize> {
        self.first_row..self.first_row + self.len as usize
    }

    /// The part's items, if they are stored in the arena's cells. `None` if they were left in the message.
    fn arena_cells(self) -> Option<&'a [Node]> {
        match self.run {
            ItemRun::Cells { at } => self.doc.arena.cells.get(at..at + self.len as usize),
            _ => None,
        }
    }

    /// Iterates over the part's items.
    pub(super) fn all_items(self) -> Items<'a> {
        Items { doc: self.doc, run: self.run, left: self.len, next: NONE }
    }

    /// Appends the part's items, which should be lists, to `nodes`. Short arrays become [`Node::Words`].
    pub(super) fn append_lists(self, nodes: &mut Vec<Node>) {
        match (self.arena_cells(), self.run) {
            // The lists and arrays of a pickle are contiguous cells.
            (Some(cells), _) => nodes.extend_from_slice(cells),
            (None, ItemRun::Pack { at }) => self.append_packed_lists(at, nodes),
            _ => nodes.extend(self.all_items()),
        }
    }

    /// Appends the part's items, which begin at `at` in a msgpack message, to `nodes`.
    #[inline]
    fn append_packed_lists(self, mut at: usize, nodes: &mut Vec<Node>) {
        for _ in self.row_range() {
            if let Some(array) = words::parse_short_array(self.doc.bytes, at) {
                nodes.push(Node::Words { words: array.words, at: array.first_word as u32 });
                at = array.first_word + words::WORD_BYTES * usize::from(array.words);
            } else if let Some(next) = msgpack::end_of_validated_value(self.doc.bytes, at) {
                nodes.push(Node::Pack(at as u32));
                at = next;
            } else {
                // Cannot happen, because the message has been validated.
                break;
            }
        }
    }

    /// Calls `visit_item` with the index and value of each item. Stops at the first error of `visit_item` and returns it.
    pub(super) fn for_each_item<E>(self, mut visit_item: impl FnMut(usize, Node) -> Result<(), E>) -> Result<(), E> {
        match self.arena_cells() {
            Some(cells) => self.row_range().zip(cells).try_for_each(|(row, item)| visit_item(row, *item)),
            None => self.row_range().zip(self.all_items()).try_for_each(|(row, item)| visit_item(row, item)),
        }
    }

    /// Calls `visit_string` with the row and bytes of each string, and with `None` for an item that is not a string. Stops at the first
    /// error of `visit_string`, and where the next item cannot be found. A flat run is one that was left in the pickle.
    pub(super) fn for_each_string<E>(
        self,
        mut visit_string: impl FnMut(usize, Option<&'a [u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let doc = self.doc;
        match self.run {
            ItemRun::Flat { at } if self.kinds == kinds::STR => self.for_each_flat_string(at, visit_string),
            ItemRun::Pack { at } => self.for_each_packed_string(at, visit_string),
            _ => self.for_each_item(|row, item| visit_string(row, doc.string_bytes(item))),
        }
    }

    /// Calls `visit_string` with the row and bytes of each string. The strings were left in a pickle, and the first is at `at`. Ends at an
    /// item that is not a string, with `None` for its bytes, or at an error of `visit_string`.
    #[inline]
    fn for_each_flat_string<E>(
        self,
        at: usize,
        mut visit_string: impl FnMut(usize, Option<&'a [u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = self.doc.bytes.get(at..).unwrap_or_default();
        for row in self.row_range() {
            let Some((text, next)) = pickle::flat_string(rest) else {
                // The items after this one cannot be found.
                return visit_string(row, None);
            };
            visit_string(row, Some(text))?;
            rest = next;
        }
        Ok(())
    }

    /// Calls `visit_string` with the row and bytes of each string in a msgpack array, whose first item is at `at`. Ends at an item that is
    /// not a string, with `None` for its bytes, or at an error of `visit_string`.
    #[inline]
    fn for_each_packed_string<E>(
        self,
        mut at: usize,
        mut visit_string: impl FnMut(usize, Option<&'a [u8]>) -> Result<(), E>,
    ) -> Result<(), E> {
        for row in self.row_range() {
            let Some((text, next)) = msgpack::read_string(self.doc.bytes, at) else {
                // The offset of the next item is not known.
                return visit_string(row, None);
            };
            visit_string(row, Some(text))?;
            at = next;
        }
        Ok(())
    }

    /// The part's integers if each fits into a byte, as in most columns of counts. `None` for other items.
    pub(super) fn small_ints(self) -> Option<SmallInts<'a>> {
        match self.run {
            // Integers that were left in a pickle.
            ItemRun::Flat { at } if self.kinds == kinds::INT => {
                let (pairs, rest) = self.doc.bytes.get(at..self.flat_end)?.as_chunks();
                // The shortest opcode takes two bytes, so a run with two bytes per item has no other opcode.
                let has_two_bytes_per_item = pairs.len() == self.len as usize && rest.is_empty();
                has_two_bytes_per_item.then_some(SmallInts::Pickled(pairs))
            }
            // Items of a msgpack array.
            ItemRun::Pack { at } => {
                let bytes = self.doc.bytes.get(at..at + self.len as usize)?;
                // If this many bytes are all small integers, they are exactly the items.
                let are_all_small = bytes.iter().all(|value| *value <= FIXINT_MAX);
                are_all_small.then_some(SmallInts::Packed(bytes))
            }
            _ => None,
        }
    }

    /// Calls `visit_int` with the row and value of each integer. The integers were left in a pickle, and the first is at `at`. Ends at an
    /// item that is not an integer, with [`IntItem::Other`], or at an error of `visit_int`.
    #[inline]
    fn for_each_flat_int<E>(
        self,
        mut at: usize,
        mut visit_int: impl FnMut(usize, IntItem) -> Result<(), E>,
    ) -> Result<(), E> {
        for row in self.row_range() {
            let Some((value, next)) = pickle::flat_int(self.doc.bytes, at) else {
                return visit_int(row, IntItem::Other);
            };
            visit_int(row, IntItem::Int(i64::from(value)))?;
            at = next;
        }
        Ok(())
    }

    /// Calls `visit_int` with the row and value of each item in a list of integers. Stops at the first error of `visit_int`. It should fail
    /// for an item that is neither an integer nor nil, because the items after it may not be found.
    pub(super) fn for_each_int<E>(self, mut visit_int: impl FnMut(usize, IntItem) -> Result<(), E>) -> Result<(), E> {
        let doc = self.doc;
        match self.run {
            // Integers that were left in a pickle.
            ItemRun::Flat { at } if self.kinds == kinds::INT => self.for_each_flat_int(at, visit_int),
            // Items of a msgpack array.
            ItemRun::Pack { mut at } => {
                for row in self.row_range() {
                    let (item, next) = read_packed_int(doc.bytes, at);
                    visit_int(row, item)?;
                    at = next;
                }
                Ok(())
            }
            _ => self.for_each_item(|row, item| match doc.int_value(item) {
                Some(value) => visit_int(row, IntItem::Int(value)),
                None if doc.is_nil(item) => visit_int(row, IntItem::Nil),
                None => visit_int(row, IntItem::Other),
            }),
        }
    }
}

/// The value at `at` in a msgpack message, as an item of a list of integers, and the offset after it. For an item of another kind, the
/// offset stays.
#[inline]
fn read_packed_int(bytes: &[u8], at: usize) -> (IntItem, NextOffset) {
    match msgpack::read_head(bytes, at) {
        Some((Head::Int(value), next)) => (IntItem::Int(value), next),
        Some((Head::Nil, next)) => (IntItem::Nil, next),
        _ => (IntItem::Other, at),
    }
}
