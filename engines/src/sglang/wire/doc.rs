//! Access to the values of a decoded message, independent of its codec.

use std::ops::Range;

use super::arena::{Arena, ListRun, NONE, NameSpan, Node, RecordedCall, kinds};
use super::pickle;
use super::words;
use crate::msgpack::{self, Head};

/// msgpack's nil.
const PACKED_NIL: u8 = 0xc0;

/// A message with the data that decoding built for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doc<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) arena: &'a Arena,
}

impl<'a> Doc<'a> {
    /// Whether the value is Python's `None` or msgpack's nil.
    pub(super) fn is_nil(self, node: Node) -> bool {
        match node {
            Node::Nil => true,
            Node::Pack(at) => self.bytes.get(at as usize) == Some(&PACKED_NIL),
            _ => false,
        }
    }

    /// An integer that fits 64 bits; `None` for any other value. Python's booleans do not count as integers.
    pub(super) fn int_value(self, node: Node) -> Option<i64> {
        match node {
            Node::Int(at) | Node::Long(at) => pickle::read_int(self.bytes, at as usize),
            Node::Pack(at) => match msgpack::read_head(self.bytes, at as usize)? {
                (Head::Int(value), _) => Some(value),
                _ => None,
            },
            Node::Object(id) => self.enum_value(id),
            _ => None,
        }
    }

    /// The integer of an enum, which pickles as `Class(value)`. The only enum in these messages is http.HTTPStatus. `None` for any other
    /// object.
    fn enum_value(self, object_id: u32) -> Option<i64> {
        let object = self.named_call(object_id);
        if object.class_name != b"HTTPStatus" {
            return None;
        }
        self.int_value(self.list_items(object.call.args)?.next()?)
    }

    /// A time in seconds: 0 for `None`, and not a number for any other value.
    pub(super) fn seconds_or_nan(self, node: Node) -> f64 {
        match node {
            Node::Nil => 0.0,
            Node::Float(at) => pickle::read_float(self.bytes, at as usize).unwrap_or(f64::NAN),
            _ => f64::NAN,
        }
    }

    /// Bytes of a string; `None` for any other value. Both codecs specify UTF-8; this is not checked here.
    pub(super) fn string_bytes(self, node: Node) -> Option<&'a [u8]> {
        match node {
            Node::Str(at) => self.bytes.get(pickle::payload_range(self.bytes, at as usize)?),
            Node::Pack(at) => match msgpack::read_head(self.bytes, at as usize)? {
                (Head::Str { end }, start) => self.bytes.get(start..end),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the value is the string `text`.
    #[inline]
    pub(super) fn text_equals(self, node: Node, text: &[u8]) -> bool {
        match node {
            Node::Str(at) => pickle::text_equals(self.bytes, at as usize, text),
            _ => self.string_bytes(node) == Some(text),
        }
    }

    /// Iterator over the items of a list or tuple; `None` for any other value. Only a list in the arena may have several runs of items.
    pub(super) fn list_items(self, node: Node) -> Option<Items<'a>> {
        match node {
            Node::List(list) | Node::Tuple(list) => Some(self.items_of_list(list)),
            Node::Ints { len, at } => {
                Some(Items { doc: self, run: ItemRun::Flat { at: at as usize }, left: u32::from(len), next: NONE })
            }
            Node::Pack(at) => match msgpack::read_head(self.bytes, at as usize)? {
                (Head::Array { len }, at) => {
                    Some(Items { doc: self, run: ItemRun::Pack { at }, left: len, next: NONE })
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Number of items of a list or tuple; `None` for any other value.
    pub(super) fn item_count(self, node: Node) -> Option<u32> {
        match node {
            Node::List(list) | Node::Tuple(list) => Some(self.arena.list_runs[list as usize].total),
            Node::Ints { len, .. } => Some(u32::from(len)),
            Node::Pack(_) => self.list_items(node).map(|items| items.left),
            _ => None,
        }
    }

    /// Whether a list is known to hold only `None`. False for any other value.
    pub(super) fn holds_only_nil(self, node: Node) -> bool {
        match node {
            Node::List(list) => self.arena.list_runs[list as usize].kinds == kinds::NIL,
            Node::Pack(at) => {
                let Some((Head::Array { len }, first)) = msgpack::read_head(self.bytes, at as usize) else {
                    return false;
                };
                // A nil has one byte, so a list of only nils has as many bytes as items.
                let items = self.bytes.get(first..first + len as usize);
                items.is_some_and(|items| items.iter().all(|item| *item == PACKED_NIL))
            }
            _ => false,
        }
    }

    /// Keys and values of a dict or map, alternating. `None` for any other value.
    pub(super) fn dict_entries(self, node: Node) -> Option<Items<'a>> {
        match node {
            Node::Dict(list) => Some(self.items_of_list(list)),
            Node::Pack(at) => match msgpack::read_head(self.bytes, at as usize)? {
                (Head::Map { len }, at) => {
                    let left = len.checked_mul(2)?;
                    Some(Items { doc: self, run: ItemRun::Pack { at }, left, next: NONE })
                }
                _ => None,
            },
            _ => None,
        }
    }

    /// Keys and values of a pickled dict, if they are contiguous in memory, as for most dicts. `None` for any other value.
    pub(super) fn contiguous_dict_pairs(self, node: Node) -> Option<&'a [[Node; 2]]> {
        let Node::Dict(list) = node else { return None };
        let run = self.arena.list_runs[list as usize];
        let is_only_run = run.next == NONE;
        // A flat run is in the message, not in the arena's cells.
        if run.is_flat || !is_only_run {
            return None;
        }
        let cells = self.arena.cells.get(run.start as usize..run.end as usize)?;
        Some(cells.as_chunks().0)
    }

    /// The value under `key` of a dict or map; `None` if there is none. Searches only the first 64 entries: real dicts have about ten, and
    /// a hostile message may refer to one large dict many times.
    pub(super) fn find_entry(self, node: Node, key: &[u8]) -> Option<Node> {
        const MAX_ENTRIES: usize = 64;
        // Keys and values alternate.
        let mut entries = self.dict_entries(node)?.take(2 * MAX_ENTRIES);
        let mut last_value = None;
        while let (Some(name), Some(value)) = (entries.next(), entries.next()) {
            // Of several entries with one key, Python keeps the last.
            if self.string_bytes(name) == Some(key) {
                last_value = Some(value);
            }
        }
        last_value
    }

    /// The 64-bit words of an `array('q')`.
    pub(super) fn array_words(self, node: Node) -> Option<&'a [u8]> {
        self.bytes.get(self.array_words_range(node)?)
    }

    /// Where the 64-bit words of an `array('q')` are in the message; `None` for another value, or if the last word is incomplete.
    #[inline]
    pub(super) fn array_words_range(self, node: Node) -> Option<Range<usize>> {
        let words = match node {
            Node::Words { words, at } => at as usize..at as usize + words::WORD_BYTES * usize::from(words),
            Node::Array(at) => pickle::payload_range(self.bytes, at as usize)?,
            Node::Pack(at) => words::find_array_words(self.bytes, at as usize)?,
            _ => return None,
        };
        ((words.end - words.start) % words::WORD_BYTES == 0).then_some(words)
    }

    /// Module and name of a class or function; `None` for any other value.
    pub(super) fn module_and_name(self, node: Node) -> Option<(&'a [u8], &'a [u8])> {
        let Node::Global(id) = node else { return None };
        let global = self.arena.globals.get(id as usize)?;
        Some((self.name_bytes(global.module)?, self.name_bytes(global.name)?))
    }

    /// The bytes of a name in the message.
    fn name_bytes(self, name: NameSpan) -> Option<&'a [u8]> {
        self.bytes.get(name.start as usize..(name.start + name.len) as usize)
    }

    /// A recorded construction with the names of its class, which are empty for a callable that is no class.
    pub(super) fn named_call(self, object_id: u32) -> NamedCall<'a> {
        let call = self.arena.objects[object_id as usize];
        let (module, class_name) = self.module_and_name(call.callable).unwrap_or_default();
        NamedCall { module, class_name, call }
    }

    /// The items of a list, tuple or dict in the arena, from its first run on.
    fn items_of_list(self, id: u32) -> Items<'a> {
        let first = self.arena.list_runs[id as usize];
        Items { doc: self, run: ItemRun::at_start_of(&first), left: first.len, next: first.next }
    }
}

/// A recorded construction.
pub(super) struct NamedCall<'a> {
    pub(super) module: &'a [u8],
    pub(super) class_name: &'a [u8],
    pub(super) call: RecordedCall,
}

/// Iterator over the items of a list.
#[derive(Clone, Debug)]
pub(super) struct Items<'a> {
    pub(super) doc: Doc<'a>,
    pub(super) run: ItemRun,
    /// Number of items left in this run.
    pub(super) left: u32,
    /// Index of the next run's [`ListRun`].
    pub(super) next: u32,
}

/// Position of the next item in a run.
#[derive(Clone, Copy, Debug)]
pub(super) enum ItemRun {
    /// Next position in a flat run of pickle opcodes.
    Flat { at: usize },
    /// Next index in the cells.
    Cells { at: usize },
    /// Next position in a msgpack array.
    Pack { at: usize },
}

impl ItemRun {
    pub(super) fn at_start_of(run: &ListRun) -> Self {
        let at = run.start as usize;
        if run.is_flat { Self::Flat { at } } else { Self::Cells { at } }
    }
}

impl Iterator for Items<'_> {
    type Item = Node;

    /// The next item of a list, which is a chain of runs. Goes on with the next run once this one is exhausted.
    fn next(&mut self) -> Option<Node> {
        // `NONE` is no index, so the items end after the last run.
        while self.left == 0 {
            let run = self.doc.arena.list_runs.get(self.next as usize)?;
            self.run = ItemRun::at_start_of(run);
            self.left = run.len;
            self.next = run.next;
        }
        self.left -= 1;
        match &mut self.run {
            // Opcodes in the pickle.
            ItemRun::Flat { at } => {
                let (node, next) = pickle::flat_item(self.doc.bytes, *at, &self.doc.arena.memo)?;
                *at = next;
                Some(node)
            }
            // Cells in the arena.
            ItemRun::Cells { at } => {
                *at += 1;
                self.doc.arena.cells.get(*at - 1).copied()
            }
            // Values in the msgpack message.
            ItemRun::Pack { at } => {
                let start = *at;
                *at = msgpack::end_of_validated_value(self.doc.bytes, start)?;
                Some(Node::Pack(start as u32))
            }
        }
    }
}
