//! Support for `array('q')`, which carries token ids from 0.5.13 on. Each request takes two constructor calls, and later calls are
//! recognised by the bytes of an earlier one.

use super::super::arena::{Name, Node};
use super::vm::Vm;
use super::{op, scalar};
use crate::msgpack::runs::repeats;

/// Type code of `array` for signed 64-bit little endian (`MachineFormat` in the documentation of Python's `array`).
const SIGNED_INT64_LE: i64 = 12;

/// Number of calls processed at once.
const FEW: usize = 32;

impl Vm<'_, '_> {
    /// The array that `callable(*args)` constructs: the reconstructor over 64-bit words, or the constructor over a list, as in protocol 2.
    /// `None` for any other call.
    pub(super) fn array(&mut self, callable: Node, args: Node) -> Option<Node> {
        let (Node::Global(callable), Node::Tuple(args)) = (callable, args) else {
            return None;
        };
        let callable = self.arena.globals[callable as usize];
        if self.text(callable.module) != b"array" {
            return None;
        }
        let args = self.arena.seqs[args as usize];
        match (self.text(callable.name), self.arena.cells.get(args.start as usize..args.end as usize)?) {
            (b"_array_reconstructor", [_, Node::Str(code), Node::Int(format), Node::Bytes(data)]) => {
                let format = scalar::int(self.b, *format as usize);
                if self.string(*code) != Some(b"q") || format != Some(SIGNED_INT64_LE) {
                    return None;
                }
                let data = *data;
                self.learn(data as usize);
                Some(Node::Array(data))
            }
            (b"array", &[Node::Str(code), list @ Node::List(seq)]) if self.string(code) == Some(b"q") => {
                self.arena.seqs[seq as usize].copied = true;
                Some(list)
            }
            _ => None,
        }
    }

    /// Processes calls from `at` on that match the known bytes. Memo slots never change, so a call with the same bytes as an earlier one,
    /// up to the data's length, is the same call. Returns false if there is none; the machine then continues normally.
    pub(super) fn repeated_calls(&mut self, at: usize) -> bool {
        self.call.latest = at;
        let known = self.b.get(self.call.known.clone()).unwrap_or_default();
        // Three references of two or five bytes each, a mark, a number of two bytes, and the opcode of the data.
        let next = match known.len() {
            10 => self.match_calls::<10>(at, known),
            13 => self.match_calls::<13>(at, known),
            16 => self.match_calls::<16>(at, known),
            19 => self.match_calls::<19>(at, known),
            _ => at,
        };
        if next > at {
            self.at = next;
        }
        next > at
    }

    /// Processes calls from `at` on that begin with the `N` known bytes and hold whole words. Returns the end of the last one.
    fn match_calls<const N: usize>(&mut self, mut at: usize, known: &[u8]) -> usize {
        /// `MEMOIZE TUPLE MEMOIZE REDUCE MEMOIZE`; the last three bytes are masked.
        const CLOSE: u64 = u64::from_le_bytes([op::MEMOIZE, op::TUPLE, op::MEMOIZE, op::REDUCE, op::MEMOIZE, 0, 0, 0]);
        let Some(known) = known.first_chunk::<N>() else {
            return at;
        };
        let memo = self.limits.memo.saturating_sub(self.arena.memo.len()) / 3;
        let mut budget = memo.min(self.limits.stack.saturating_sub(self.stack.len()));
        let mut rest = self.b.get(at..).unwrap_or_default();
        loop {
            // Reserve slots and values for several calls at once, so that the loop does not grow the tables.
            let (slots, values) = (self.arena.memo.len(), self.stack.len());
            let batch = budget.min(FEW);
            self.arena.memo.resize(slots + 3 * batch, Node::Unbuilt);
            self.stack.resize(values + batch, Node::Unbuilt);
            let places = self.arena.memo[slots..].as_chunks_mut().0.iter_mut();
            let mut count = 0;
            for (numbered, value) in places.zip(&mut self.stack[values..]) {
                let Some((head, data)) = rest.split_first_chunk::<N>() else {
                    break;
                };
                if head != known {
                    break;
                }
                let Some((&len, bytes)) = data.split_first() else { break };
                let Some((_, close)) = bytes.split_at_checked(usize::from(len)) else {
                    break;
                };
                let Some((tail, _)) = close.split_first_chunk() else {
                    break;
                };
                if len % 8 != 0 || u64::from_le_bytes(*tail) & 0xff_ffff_ffff != CLOSE {
                    break;
                }
                let data = (at + N - 1) as u32;
                let array = Node::Words { words: u16::from(len / 8), at: data + 2 };
                *numbered = [Node::Bytes(data), Node::Unbuilt, array];
                *value = array;
                rest = &close[5..];
                at += N + 1 + usize::from(len) + 5;
                count += 1;
            }
            self.arena.memo.truncate(slots + 3 * count);
            self.stack.truncate(values + count);
            budget -= count;
            if count < FEW {
                return at;
            }
        }
    }

    /// Repeats the object just built for every following `GET EMPTY_TUPLE NEWOBJ` with an empty state and the same bytes. The `time_stats`
    /// of a frame have this form.
    pub(super) fn repeated_objects(&mut self) {
        let from = self.call.latest;
        let times = match (self.at - from, &self.b[from..]) {
            (8, [op::BINGET, _, op::EMPTY_TUPLE, ..]) => repeats::<8>(self.b, from),
            (11, [op::LONG_BINGET, _, _, _, _, op::EMPTY_TUPLE, ..]) => repeats::<11>(self.b, from),
            _ => 0,
        };
        let (Some(Node::Object(last)), true) = (self.stack.last().copied(), times > 0) else {
            return;
        };
        let (limits, arena) = (self.limits, &mut *self.arena);
        let budget = [
            limits.items.saturating_sub(arena.objects.len()),
            limits.memo.saturating_sub(arena.memo.len()) / 2,
            limits.stack.saturating_sub(self.stack.len()),
        ];
        let times = budget.into_iter().fold(times, usize::min);
        self.at += times * (self.at - from);
        let object = arena.objects[last as usize];
        let first = arena.objects.len();
        arena.objects.extend(std::iter::repeat_n(object, times));
        let objects = (first..first + times).map(|id| Node::Object(id as u32));
        arena.memo.extend(objects.clone().flat_map(|object| [object, Node::Unbuilt]));
        self.stack.extend(objects);
    }

    /// Remembers the call that ends in the data at `data` if it has exactly the form `GET MARK GET GET BININT1 12 SHORT_BINBYTES`.
    fn learn(&mut self, data: usize) {
        let get = |at: usize| match self.b.get(at) {
            Some(&op::BINGET) => Some(at + 2),
            Some(&op::LONG_BINGET) => Some(at + 5),
            _ => None,
        };
        let mark = get(self.call.latest).filter(|at| self.b.get(*at) == Some(&op::MARK));
        let format = mark.and_then(|at| get(at + 1)).and_then(get);
        let short = self.b.get(data) == Some(&op::SHORT_BINBYTES);
        if short && format.is_some_and(|at| self.b.get(at) == Some(&op::BININT1) && at + 2 == data) {
            self.call.known = self.call.latest..data + 1;
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
