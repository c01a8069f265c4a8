//! Data that decoding builds in memory. Most values are only positions in the message; a container gets an entry here only if it cannot
//! be read in place. No entry holds a reference, so one arena serves every message without `unsafe`.

use super::{Limits, Undecoded};

/// A value of the message: its kind and position. Valid only with the message and arena it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// Python's `None` or msgpack's nil.
    Nil,
    Bool(bool),
    /// Position of a pickle opcode that carries an integer of at most 32 bits.
    Int(u32),
    /// Position of an integer of any length.
    Long(u32),
    /// Position of a `BINFLOAT`.
    Float(u32),
    /// Position of a string opcode.
    Str(u32),
    /// Position of a bytes opcode.
    Bytes(u32),
    /// Index of its first [`ListRun`].
    List(u32),
    /// A list of `len` short integers, left in the message: position of the first. Nothing is appended to it later.
    Ints {
        len: u16,
        at: u32,
    },
    /// Index of its first [`ListRun`], for tuples and sets.
    Tuple(u32),
    /// Index of its first [`ListRun`], whose cells alternate key and value.
    Dict(u32),
    /// Index of a [`Global`].
    Global(u32),
    /// Index of an [`RecordedCall`].
    Object(u32),
    /// Position of the bytes opcode that holds an `array('q')`: signed 64-bit little endian words.
    Array(u32),
    /// An `array('q')` of `words` words: position of the first.
    Words {
        words: u16,
        at: u32,
    },
    /// Position of a msgpack value.
    Pack(u32),
    /// The arguments of a call, or an object's empty state, left in the message. Nothing refers to them.
    Unbuilt,
}

/// Bit set of the kinds of items that a [`ListRun`] holds.
pub(super) mod kinds {
    pub(in super::super) const INT: u8 = 1;
    pub(in super::super) const NIL: u8 = 2;
    pub(in super::super) const STR: u8 = 4;
    /// A memo reference in a run that is not resolved.
    pub(in super::super) const GET: u8 = 8;
    pub(in super::super) const OTHER: u8 = 16;
}

/// Number of entries per table that stay allocated between messages. Fits a frame of 4,096 requests with logprobs.
const KEPT_ENTRIES: usize = 1 << 18;

/// Marks the absence of an entry.
pub(super) const NONE: u32 = u32::MAX;

/// A run of items of a list, tuple, set or dict, which is a chain of runs. A run is either in the message, as opcodes of flat values
/// (`is_flat`), or in the arena's cells. Most lists are one flat run, which costs this entry and nothing per item.
#[derive(Clone, Copy, Debug)]
pub(super) struct ListRun {
    /// Start and end of this run, in the message (flat) or in the cells.
    pub(super) start: u32,
    pub(super) end: u32,
    /// Number of items in this run.
    pub(super) len: u32,
    /// Number of items in all runs; valid in the first entry only.
    pub(super) total: u32,
    /// Index of the [`ListRun`] with the next run, or [`NONE`].
    pub(super) next: u32,
    /// Last entry of the chain, or [`NONE`] if there is only one. Valid in the first entry only.
    pub(super) tail: u32,
    pub(super) is_flat: bool,
    /// An array was built from this list. Appending further items would not change that array.
    pub(super) is_array_source: bool,
    /// [`kinds`] of the items in this run; in the first entry of the chain, of all items.
    pub(super) kinds: u8,
}

impl ListRun {
    pub(super) const EMPTY: Self = Self {
        start: 0,
        end: 0,
        len: 0,
        total: 0,
        next: NONE,
        tail: NONE,
        is_flat: false,
        is_array_source: false,
        kinds: 0,
    };

    /// A run of containers in the cells.
    pub(super) fn cells(start: u32, end: u32) -> Self {
        Self { start, end, len: end - start, total: end - start, kinds: kinds::OTHER, ..Self::EMPTY }
    }

    /// A run of `len` flat values in the message.
    pub(super) fn flat(start: u32, end: u32, len: u32, kinds: u8) -> Self {
        Self { start, end, len, total: len, is_flat: true, kinds, ..Self::EMPTY }
    }
}

/// A class or function name. It is compared and never resolved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Global {
    pub(super) module: NameSpan,
    pub(super) name: NameSpan,
}

/// A byte range of the message.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameSpan {
    pub(super) start: u32,
    pub(super) len: u32,
}

/// A recorded construction: `callable(*args)`, then its state.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordedCall {
    pub(super) callable: Node,
    pub(super) args: Node,
    pub(super) state: Node,
}

/// Data built for a message, in addition to its own bytes.
#[derive(Debug, Default)]
pub(super) struct Arena {
    pub(super) cells: Vec<Node>,
    pub(super) list_runs: Vec<ListRun>,
    pub(super) globals: Vec<Global>,
    pub(super) objects: Vec<RecordedCall>,
    pub(super) memo: Vec<Node>,
}

impl Arena {
    /// Clears the last message. Releases the memory of the large tables beyond [`KEPT_ENTRIES`] entries.
    pub(super) fn clear(&mut self) {
        self.cells.clear();
        self.list_runs.clear();
        self.globals.clear();
        self.objects.clear();
        self.memo.clear();
        let is_any_table_large = self.memo.capacity() > KEPT_ENTRIES
            || self.list_runs.capacity() > KEPT_ENTRIES
            || self.cells.capacity() > KEPT_ENTRIES;
        if is_any_table_large {
            self.memo.shrink_to(KEPT_ENTRIES);
            self.list_runs.shrink_to(KEPT_ENTRIES);
            self.cells.shrink_to(KEPT_ENTRIES);
        }
    }

    /// Adds a run of contiguous items: the first one of a new list, or a further one of its chain. Returns its index. A [`Node::List`]
    /// holds the index of its first run. Fails at the limit of items.
    pub(super) fn add_list_run_and_get_index(&mut self, run: ListRun, limits: &Limits) -> Result<u32, Undecoded> {
        Self::check_item_limit(self.list_runs.len(), limits)?;
        self.list_runs.push(run);
        Ok((self.list_runs.len() - 1) as u32)
    }

    /// Copies items from the stack into the cells, and appends them to the list whose first run is at the index `list_index`.
    pub(super) fn append_items(&mut self, list_index: u32, items: &[Node], limits: &Limits) -> Result<(), Undecoded> {
        if items.is_empty() {
            return Ok(());
        }
        let start = self.cells.len() as u32;
        Self::check_item_limit(self.cells.len() + items.len(), limits)?;
        self.cells.extend_from_slice(items);
        // The set of kinds has one bit for each kind.
        let kinds = items.iter().fold(0, |set, item| set | kind_bit_of_item(*item));
        let run = ListRun { start, end: start + items.len() as u32, len: items.len() as u32, kinds, ..ListRun::EMPTY };
        self.append_run(list_index, run, limits)
    }

    /// Appends the items of `run` to a list. A list is a chain of runs, and `list_index` is the index of the first one, the head. The head
    /// knows the last run, the tail. A flat run is left in the message, and the others are in the cells.
    pub(super) fn append_run(&mut self, list_index: u32, run: ListRun, limits: &Limits) -> Result<(), Undecoded> {
        let head = self.list_runs[list_index as usize];
        // The array stands for the list as it was, so the list must not grow.
        if head.is_array_source {
            return Err(Undecoded::Malformed {
                at: run.start as usize,
                what: "items for a list that an array was made of",
            });
        }
        if head.total == 0 {
            // The first items take the place of the empty run.
            self.list_runs[list_index as usize] = ListRun { total: run.len, ..run };
            return Ok(());
        }
        // Without a tail, the head is the only run.
        let tail_index = if head.tail == NONE { list_index } else { head.tail };
        let tail = &mut self.list_runs[tail_index as usize];
        // Adjacent cells are one run, so the tail grows.
        let continues_tail_in_cells = !tail.is_flat && !run.is_flat && tail.end == run.start;
        if continues_tail_in_cells {
            tail.end = run.end;
            tail.len += run.len;
            tail.kinds |= run.kinds;
        } else {
            let new_index = self.add_list_run_and_get_index(run, limits)?;
            self.list_runs[tail_index as usize].next = new_index;
            self.list_runs[list_index as usize].tail = new_index;
        }
        // The head has the number and the kinds of all items.
        let head = &mut self.list_runs[list_index as usize];
        head.total += run.len;
        head.kinds |= run.kinds;
        Ok(())
    }

    /// Fails if a table with `len` entries is full.
    fn check_item_limit(len: usize, limits: &Limits) -> Result<(), Undecoded> {
        if len >= limits.items { Err(Undecoded::Limit { limit: "items", value: limits.items }) } else { Ok(()) }
    }
}

/// Bit of the item's kind in a set of kinds.
fn kind_bit_of_item(node: Node) -> u8 {
    match node {
        Node::Int(_) => kinds::INT,
        Node::Nil => kinds::NIL,
        Node::Str(_) => kinds::STR,
        _ => kinds::OTHER,
    }
}
