//! `array('q')`, which carries token ids from 0.5.13 on: two calls a request, so the second is known by the first.

use std::ops::Range;

use super::super::arena::{Name, Node};
use super::vm::Vm;
use super::{op, scalar};

/// `array`'s name for signed 64-bit little endian (`MachineFormat` in the documentation of Python's `array`).
const SIGNED_INT64_LE: i64 = 12;

/// Calls of `array`'s reconstructor that were seen in this message.
#[derive(Default)]
pub(super) struct Call {
    /// Where the call begins whose callable was fetched from the memo last.
    latest: usize,
    /// The bytes of one whole call, up to its data.
    known: Range<usize>,
}

impl Vm<'_, '_> {
    /// The array that `callable(*args)` makes: the reconstructor over machine words, or the constructor over a list,
    /// which is how protocol 2 writes it. `None` for any other call.
    pub(super) fn array(&mut self, callable: Node, args: Node) -> Option<Node> {
        let (Node::Global(callable), Node::Tuple(args)) = (callable, args) else {
            return None;
        };
        let callable = self.arena.globals[callable as usize];
        if self.text(callable.module) != b"array" {
            return None;
        }
        let args = self.arena.seqs[args as usize];
        match (
            self.text(callable.name),
            self.arena.cells.get(args.start as usize..args.end as usize)?,
        ) {
            (b"_array_reconstructor", [_, Node::Str(code), Node::Int(format), Node::Bytes(data)]) => {
                let format = scalar::int(self.b, *format as usize);
                if self.string(*code) != Some(b"q") || format != Some(SIGNED_INT64_LE) {
                    return None;
                }
                let data = *data;
                self.learn(data as usize);
                Some(Node::Array(data))
            }
            (b"array", [Node::Str(code), list @ Node::List(_)]) => (self.string(*code) == Some(b"q")).then_some(*list),
            _ => None,
        }
    }

    /// Takes the calls from `at` on that are of the known kind: memo slots never change, so a call whose bytes equal an
    /// earlier one's, up to the data, is the same call. False when there is none; the machine then goes on as ever.
    pub(super) fn calls_again(&mut self, at: usize) -> bool {
        self.call.latest = at;
        let b = self.b;
        let known = b.get(self.call.known.clone()).unwrap_or_default();
        let mut next = at;
        while let Some(end) = (!known.is_empty()).then(|| self.call_again(next, known)).flatten() {
            next = end;
        }
        if next > at {
            self.at = next;
        }
        next > at
    }

    fn call_again(&mut self, at: usize, known: &[u8]) -> Option<usize> {
        let data = at + known.len();
        if self.b.get(at..data)? != known {
            return None;
        }
        let (_, end) = scalar::payload(self.b, data)?;
        if self.b.get(end..end + 5)? != [op::MEMOIZE, op::TUPLE, op::MEMOIZE, op::REDUCE, op::MEMOIZE] {
            return None;
        }
        if self.arena.memo.len() + 3 > self.limits.memo || self.stack.len() >= self.limits.stack {
            return None;
        }
        let array = Node::Array(data as u32);
        self.arena
            .memo
            .extend_from_slice(&[Node::Bytes(data as u32), Node::Unbuilt, array]);
        self.stack.push(array);
        Some(end + 5)
    }

    /// Keeps the call that ends in the data at `data` if it is `GET MARK GET GET BININT1 12`, the whole of it.
    fn learn(&mut self, data: usize) {
        let get = |at: usize| match self.b.get(at) {
            Some(&op::BINGET) => Some(at + 2),
            Some(&op::LONG_BINGET) => Some(at + 5),
            _ => None,
        };
        let mark = get(self.call.latest).filter(|at| self.b.get(*at) == Some(&op::MARK));
        let format = mark.and_then(|at| get(at + 1)).and_then(get);
        if format.is_some_and(|at| self.b.get(at) == Some(&op::BININT1) && at + 2 == data) {
            self.call.known = self.call.latest..data;
        }
    }

    fn string(&self, at: u32) -> Option<&[u8]> {
        let (start, end) = scalar::payload(self.b, at as usize)?;
        self.b.get(start..end)
    }

    fn text(&self, name: Name) -> &[u8] {
        let start = name.start as usize;
        self.b.get(start..start + name.len as usize).unwrap_or_default()
    }
}
