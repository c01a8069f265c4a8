//! What decoding builds: almost nothing. A value is a position in the message; only containers that cannot be read in
//! place get an entry here. Nothing holds a reference, so one arena serves every message without `unsafe`.

use super::{Limits, Undecoded};

/// A value of the message: its kind and where it is. Meaningful only with the message and arena it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// Python's `None`, msgpack's nil.
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
    /// Index of a [`Seq`].
    List(u32),
    /// A list of so many short integers, left in the message: where the first is. Nothing is added to it any more.
    Ints {
        len: u16,
        at: u32,
    },
    /// Index of a [`Seq`]; tuples and sets alike.
    Tuple(u32),
    /// Index of a [`Seq`] whose cells alternate key and value.
    Dict(u32),
    /// Index of a [`Global`].
    Global(u32),
    /// Index of an [`Object`].
    Object(u32),
    /// Position of the bytes opcode that holds an `array('q')`: signed 64-bit little endian.
    Array(u32),
    /// An `array('q')` of so many words: where the first is.
    Words {
        words: u16,
        at: u32,
    },
    /// Position of a msgpack value.
    Pack(u32),
    /// A call's arguments or an object's empty state, left where they are. Nothing refers to them.
    Unbuilt,
}

/// Which kinds of item a [`Seq`] holds, as a set of bits.
pub(super) mod kinds {
    pub(in super::super) const INT: u8 = 1;
    pub(in super::super) const NIL: u8 = 2;
    pub(in super::super) const STR: u8 = 4;
    /// A reference into the memo, met in a run that was not resolved.
    pub(in super::super) const GET: u8 = 8;
    pub(in super::super) const OTHER: u8 = 16;
}

/// Entries of each table that stay allocated between messages: a frame of 4,096 requests with logprobs fits.
const KEPT: usize = 1 << 18;

/// No such entry.
pub(super) const NONE: u32 = u32::MAX;

/// The items of a list, tuple, set or dict: runs that lie either in the message itself, as opcodes of flat values
/// (`flat`), or in the arena's cells. Most lists are one flat run and cost this entry and nothing per item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seq {
    /// Where the first run begins and ends, in the message (flat) or in the cells.
    pub(super) start: u32,
    pub(super) end: u32,
    /// Items of the first run.
    pub(super) len: u32,
    /// Items of all runs.
    pub(super) total: u32,
    /// The [`Seq`] that carries the next run, or [`NONE`].
    pub(super) next: u32,
    /// The last of the chain, [`NONE`] while there is only the first; valid in the first entry only.
    pub(super) tail: u32,
    pub(super) flat: bool,
    /// An array was made of it, which has its items and none that come later.
    pub(super) copied: bool,
    /// [`kinds`] of the run's items; in the chain's first entry of all items.
    pub(super) kinds: u8,
}

impl Seq {
    pub(super) const EMPTY: Self = Self {
        start: 0,
        end: 0,
        len: 0,
        total: 0,
        next: NONE,
        tail: NONE,
        flat: false,
        copied: false,
        kinds: 0,
    };

    /// A run of containers in the cells.
    pub(super) fn cells(start: u32, end: u32) -> Self {
        Self {
            start,
            end,
            len: end - start,
            total: end - start,
            kinds: kinds::OTHER,
            ..Self::EMPTY
        }
    }

    /// A run of `len` flat values in the message.
    pub(super) fn flat(start: u32, end: u32, len: u32, kinds: u8) -> Self {
        Self {
            start,
            end,
            len,
            total: len,
            flat: true,
            kinds,
            ..Self::EMPTY
        }
    }
}

/// A class or function by name. It is compared, never looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Global {
    pub(super) module: Name,
    pub(super) name: Name,
}

/// A byte range of the message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name {
    pub(super) start: u32,
    pub(super) len: u32,
}

/// What a pickle would construct: `callable(*args)`, then its state.
#[derive(Clone, Copy, Debug)]
pub(super) struct Object {
    pub(super) callable: Node,
    pub(super) args: Node,
    pub(super) state: Node,
}

/// Everything a message needs beside its own bytes.
#[derive(Debug, Default)]
pub(super) struct Arena {
    pub(super) cells: Vec<Node>,
    pub(super) seqs: Vec<Seq>,
    pub(super) globals: Vec<Global>,
    pub(super) objects: Vec<Object>,
    pub(super) memo: Vec<Node>,
}

impl Arena {
    /// Forgets the last message. What it took beyond [`KEPT`] entries is given back.
    pub(super) fn clear(&mut self) {
        self.cells.clear();
        self.seqs.clear();
        self.globals.clear();
        self.objects.clear();
        self.memo.clear();
        if self.memo.capacity() > KEPT || self.seqs.capacity() > KEPT || self.cells.capacity() > KEPT {
            self.memo.shrink_to(KEPT);
            self.seqs.shrink_to(KEPT);
            self.cells.shrink_to(KEPT);
        }
    }

    pub(super) fn new_seq(&mut self, limits: &Limits) -> Result<u32, Undecoded> {
        Self::check(self.seqs.len(), limits)?;
        self.seqs.push(Seq::EMPTY);
        Ok((self.seqs.len() - 1) as u32)
    }

    /// A new list that is one flat run, or empty.
    pub(super) fn new_list(&mut self, run: Option<Seq>, limits: &Limits) -> Result<(), Undecoded> {
        Self::check(self.seqs.len(), limits)?;
        self.seqs.push(run.unwrap_or(Seq::EMPTY));
        Ok(())
    }

    /// Appends items that were built on the stack.
    pub(super) fn extend(&mut self, seq: u32, items: &[Node], limits: &Limits) -> Result<(), Undecoded> {
        if items.is_empty() {
            return Ok(());
        }
        let start = self.cells.len() as u32;
        Self::check(self.cells.len() + items.len(), limits)?;
        self.cells.extend_from_slice(items);
        let kinds = items.iter().fold(0, |set, item| set | kind(*item));
        let run = Seq {
            start,
            end: start + items.len() as u32,
            len: items.len() as u32,
            kinds,
            ..Seq::EMPTY
        };
        self.append(seq, run, limits)
    }

    /// Appends a run.
    pub(super) fn append(&mut self, seq: u32, run: Seq, limits: &Limits) -> Result<(), Undecoded> {
        let head = self.seqs[seq as usize];
        if head.copied {
            return Err(Undecoded::Malformed {
                at: run.start as usize,
                what: "items for a list that an array was made of",
            });
        }
        if head.total == 0 {
            self.seqs[seq as usize] = Seq { total: run.len, ..run };
            return Ok(());
        }
        let tail = if head.tail == NONE { seq } else { head.tail };
        let last = &mut self.seqs[tail as usize];
        // Cells that follow each other are one run.
        if !last.flat && !run.flat && last.end == run.start {
            last.end = run.end;
            last.len += run.len;
            last.kinds |= run.kinds;
        } else {
            let new = self.new_seq(limits)?;
            self.seqs[new as usize] = run;
            self.seqs[tail as usize].next = new;
            self.seqs[seq as usize].tail = new;
        }
        let head = &mut self.seqs[seq as usize];
        head.total += run.len;
        head.kinds |= run.kinds;
        Ok(())
    }

    fn check(len: usize, limits: &Limits) -> Result<(), Undecoded> {
        if len >= limits.items {
            Err(Undecoded::Limit {
                limit: "items",
                value: limits.items,
            })
        } else {
            Ok(())
        }
    }
}

fn kind(node: Node) -> u8 {
    match node {
        Node::Int(_) => kinds::INT,
        Node::Nil => kinds::NIL,
        Node::Str(_) => kinds::STR,
        _ => kinds::OTHER,
    }
}
