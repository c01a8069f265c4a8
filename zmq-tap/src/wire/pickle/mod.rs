//! A pickle machine that reads and never acts: classes are names, calls are records, nothing is resolved or run.
//!
//! Protocols 2 to 5. What `SGLang` pickles is in docs/WIRE.md; the opcodes are those of Python's `pickletools`.

mod flat;
mod op;
mod scalar;

pub(super) use flat::item as flat_item;
pub(super) use scalar::{float, int, payload};

use super::arena::{Arena, Global, Name, Node, Object};
use super::{Limits, Undecoded};

/// The machine's own memory, kept between messages.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    stack: Vec<Node>,
    /// Lengths of the stack at each open `MARK`.
    marks: Vec<u32>,
}

/// Reads the whole message into `arena`; gives the value it pickles and its protocol.
pub(super) fn load(
    message: &[u8],
    arena: &mut Arena,
    scratch: &mut Scratch,
    limits: &Limits,
) -> Result<(Node, u8), Undecoded> {
    arena.clear();
    scratch.stack.clear();
    scratch.marks.clear();
    let protocol = match message {
        [op::PROTO, protocol @ 2..=5, ..] => *protocol,
        _ => return Err(super::not_a_codec(message)),
    };
    let empty_tuple = arena.new_seq(limits)?;
    let mut vm = Vm {
        b: message,
        at: 2,
        arena,
        stack: &mut scratch.stack,
        marks: &mut scratch.marks,
        limits,
        empty_tuple,
    };
    Ok((vm.run()?, protocol))
}

struct Vm<'m, 'x> {
    b: &'m [u8],
    /// The next opcode.
    at: usize,
    arena: &'x mut Arena,
    stack: &'x mut Vec<Node>,
    marks: &'x mut Vec<u32>,
    limits: &'x Limits,
    /// The one empty tuple: pickles are full of them and nothing can append to one.
    empty_tuple: u32,
}

impl Vm<'_, '_> {
    fn run(&mut self) -> Result<Node, Undecoded> {
        loop {
            let at = self.at;
            let op = *self.b.get(at).ok_or(Undecoded::Truncated { at })?;
            self.at += 1;
            match op {
                op::STOP => return self.stop(),
                op::MEMOIZE => self.memoize(self.arena.memo.len())?,
                op::BINPUT => {
                    let slot = usize::from(self.take::<1>()?[0]);
                    self.memoize(slot)?;
                }
                op::LONG_BINPUT => {
                    let slot = u32::from_le_bytes(self.take()?) as usize;
                    self.memoize(slot)?;
                }
                op::BINGET => {
                    let slot = usize::from(self.take::<1>()?[0]);
                    self.get(slot)?;
                }
                op::LONG_BINGET => {
                    let slot = u32::from_le_bytes(self.take()?) as usize;
                    self.get(slot)?;
                }
                op::SHORT_BINUNICODE | op::BINUNICODE | op::BINUNICODE8 => {
                    self.at = self.payload_end(at)?;
                    self.push(Node::Str(at as u32))?;
                }
                op::SHORT_BINBYTES | op::BINBYTES | op::BINBYTES8 | op::BYTEARRAY8 => {
                    self.at = self.payload_end(at)?;
                    self.push(Node::Bytes(at as u32))?;
                }
                op::BININT1 | op::BININT2 | op::BININT | op::LONG1 | op::LONG4 => {
                    self.at += scalar::int_len(self.b, at).ok_or(Undecoded::Truncated { at })? - 1;
                    let long = matches!(op, op::LONG1 | op::LONG4);
                    self.push(if long {
                        Node::Long(at as u32)
                    } else {
                        Node::Int(at as u32)
                    })?;
                }
                op::BINFLOAT => {
                    self.take::<8>()?;
                    self.push(Node::Float(at as u32))?;
                }
                op::NONE => self.push(Node::Nil)?,
                op::NEWTRUE => self.push(Node::Bool(true))?,
                op::NEWFALSE => self.push(Node::Bool(false))?,
                op::EMPTY_LIST | op::EMPTY_SET => {
                    let seq = self.arena.new_seq(self.limits)?;
                    self.push(Node::List(seq))?;
                }
                op::EMPTY_DICT => {
                    let seq = self.arena.new_seq(self.limits)?;
                    self.push(Node::Dict(seq))?;
                }
                op::MARK => self.mark()?,
                op::APPEND => {
                    let item = self.pop()?;
                    self.extend(self.top()?, &[item])?;
                }
                op::APPENDS | op::ADDITEMS => {
                    let mark = self.pop_mark()?;
                    let target = self.below(mark)?;
                    self.extend_from(target, mark)?;
                }
                op::SETITEM => {
                    let value = self.pop()?;
                    let key = self.pop()?;
                    self.set_items(self.top()?, &[key, value])?;
                }
                op::SETITEMS => {
                    let mark = self.pop_mark()?;
                    let target = self.below(mark)?;
                    if (self.stack.len() - mark) % 2 == 1 {
                        return Err(self.malformed("a dict with a key and no value"));
                    }
                    self.extend_from(target, mark)?;
                }
                op::EMPTY_TUPLE => self.push(Node::Tuple(self.empty_tuple))?,
                op::TUPLE1 | op::TUPLE2 | op::TUPLE3 => {
                    let from = self.reach(usize::from(op - op::TUPLE1) + 1)?;
                    self.tuple(from)?;
                }
                op::TUPLE | op::FROZENSET => {
                    let mark = self.pop_mark()?;
                    self.tuple(mark)?;
                }
                op::STACK_GLOBAL => self.stack_global()?,
                op::GLOBAL => {
                    let global = self.text_global()?;
                    self.push(global)?;
                }
                op::REDUCE | op::NEWOBJ => {
                    let args = self.pop()?;
                    let callable = self.pop()?;
                    self.construct(callable, args)?;
                }
                op::NEWOBJ_EX => {
                    let _kwargs = self.pop()?;
                    let args = self.pop()?;
                    let callable = self.pop()?;
                    self.construct(callable, args)?;
                }
                op::OBJ => {
                    let mark = self.pop_mark()?;
                    let callable = *self
                        .stack
                        .get(mark)
                        .ok_or_else(|| self.malformed("an object without a class"))?;
                    self.tuple(mark + 1)?;
                    let args = self.pop()?;
                    self.stack.truncate(mark);
                    self.construct(callable, args)?;
                }
                op::INST => {
                    let callable = self.text_global()?;
                    let mark = self.pop_mark()?;
                    self.tuple(mark)?;
                    let args = self.pop()?;
                    self.construct(callable, args)?;
                }
                op::BUILD => {
                    let state = self.pop()?;
                    // A list or array with a state of its own keeps its items; the state is not ours to read.
                    if let Node::Object(id) = self.top()? {
                        self.arena.objects[id as usize].state = state;
                    }
                }
                op::FRAME => {
                    self.take::<8>()?;
                }
                op::POP => {
                    if self.stack.len() > self.fence() {
                        self.stack.pop();
                    } else {
                        self.pop_mark()?;
                    }
                }
                op::POP_MARK => {
                    let mark = self.pop_mark()?;
                    self.stack.truncate(mark);
                }
                op::DUP => self.push(self.top()?)?,
                _ => return Err(refuse(op, at)),
            }
        }
    }

    fn stop(&mut self) -> Result<Node, Undecoded> {
        if self.at != self.b.len() {
            return Err(self.malformed("bytes after the end of the pickle"));
        }
        match (self.stack.as_slice(), self.marks.is_empty()) {
            ([value], true) => Ok(*value),
            _ => Err(self.malformed("the pickle ends with values left over")),
        }
    }

    /// `MARK`: tries to leave the batch in the message when it fills a list.
    fn mark(&mut self) -> Result<(), Undecoded> {
        if let Some(Node::List(seq)) = self.stack.last().copied()
            && self.stack.len() > self.fence()
            && let Some(batch) = flat::scan(self.b, self.at, self.arena, self.limits.memo)
        {
            self.at = batch.end + 1;
            let span = (batch.start as u32, batch.end as u32);
            return self.arena.extend_flat(seq, span, batch.len, batch.kinds, self.limits);
        }
        if self.marks.len() >= self.limits.depth {
            return Err(Undecoded::Limit {
                limit: "depth",
                value: self.limits.depth,
            });
        }
        self.marks.push(self.stack.len() as u32);
        Ok(())
    }

    fn memoize(&mut self, slot: usize) -> Result<(), Undecoded> {
        if slot != self.arena.memo.len() {
            // Every CPython pickler numbers from 0 without gaps; references left in the message rely on it.
            return Err(self.malformed("memo slots out of order"));
        }
        if slot >= self.limits.memo {
            return Err(Undecoded::Limit {
                limit: "memo",
                value: self.limits.memo,
            });
        }
        let top = self.top()?;
        self.arena.memo.push(top);
        Ok(())
    }

    fn get(&mut self, slot: usize) -> Result<(), Undecoded> {
        let node = *self
            .arena
            .memo
            .get(slot)
            .ok_or_else(|| self.malformed("a reference to nothing"))?;
        self.push(node)
    }

    fn extend(&mut self, target: Node, items: &[Node]) -> Result<(), Undecoded> {
        match target {
            Node::List(seq) => self.arena.extend(seq, items, self.limits),
            // Items that a class adds to itself: nothing we read is such a class.
            Node::Object(_) => Ok(()),
            _ => Err(self.malformed("items for something that is not a list")),
        }
    }

    fn set_items(&mut self, target: Node, pair: &[Node]) -> Result<(), Undecoded> {
        match target {
            Node::Dict(seq) => self.arena.extend(seq, pair, self.limits),
            Node::Object(_) => Ok(()),
            _ => Err(self.malformed("items for something that is not a dict")),
        }
    }

    /// Moves the stack's items from `mark` on into `target`.
    fn extend_from(&mut self, target: Node, mark: usize) -> Result<(), Undecoded> {
        match target {
            Node::List(seq) | Node::Dict(seq) => self.arena.extend(seq, &self.stack[mark..], self.limits)?,
            Node::Object(_) => {}
            _ => return Err(self.malformed("items for something that holds none")),
        }
        self.stack.truncate(mark);
        Ok(())
    }

    fn tuple(&mut self, from: usize) -> Result<(), Undecoded> {
        let seq = self.arena.new_seq(self.limits)?;
        self.arena.extend(seq, &self.stack[from..], self.limits)?;
        self.stack.truncate(from);
        self.push(Node::Tuple(seq))
    }

    fn stack_global(&mut self) -> Result<(), Undecoded> {
        let name = self.pop()?;
        let module = self.pop()?;
        let (Node::Str(name), Node::Str(module)) = (name, module) else {
            return Err(self.malformed("a class whose name is not a string"));
        };
        let global = Global {
            module: self.name(module as usize)?,
            name: self.name(name as usize)?,
        };
        let node = self.global(global)?;
        self.push(node)
    }

    fn name(&self, at: usize) -> Result<Name, Undecoded> {
        let (start, end) = payload(self.b, at).ok_or(Undecoded::Truncated { at })?;
        Ok(Name {
            start: start as u32,
            len: (end - start) as u32,
        })
    }

    /// `GLOBAL` and `INST` carry two lines of text.
    fn text_global(&mut self) -> Result<Node, Undecoded> {
        let global = Global {
            module: self.line()?,
            name: self.line()?,
        };
        self.global(global)
    }

    fn line(&mut self) -> Result<Name, Undecoded> {
        let at = self.at;
        let len = self.b[at..]
            .iter()
            .position(|b| *b == b'\n')
            .ok_or(Undecoded::Truncated { at })?;
        self.at += len + 1;
        Ok(Name {
            start: at as u32,
            len: len as u32,
        })
    }

    fn global(&mut self, global: Global) -> Result<Node, Undecoded> {
        if self.arena.globals.len() >= self.limits.items {
            return Err(Undecoded::Limit {
                limit: "items",
                value: self.limits.items,
            });
        }
        self.arena.globals.push(global);
        Ok(Node::Global((self.arena.globals.len() - 1) as u32))
    }

    fn construct(&mut self, callable: Node, args: Node) -> Result<(), Undecoded> {
        if let Some(array) = self.array(callable, args) {
            return self.push(array);
        }
        if self.arena.objects.len() >= self.limits.items {
            return Err(Undecoded::Limit {
                limit: "items",
                value: self.limits.items,
            });
        }
        self.arena.objects.push(Object {
            callable,
            args,
            state: Node::Nil,
        });
        self.push(Node::Object((self.arena.objects.len() - 1) as u32))
    }

    /// `array('q')` in both its pickled forms: the reconstructor over machine bytes (12 is signed 64-bit little
    /// endian), and the constructor over a list, which is how protocol 2 writes it.
    fn array(&self, callable: Node, args: Node) -> Option<Node> {
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
            (b"_array_reconstructor", [_, Node::Str(code), Node::Int(format), Node::Bytes(bytes)]) => {
                (self.string(*code) == Some(b"q") && int(self.b, *format as usize) == Some(12))
                    .then_some(Node::Array(*bytes))
            }
            (b"array", [Node::Str(code), list @ Node::List(_)]) => (self.string(*code) == Some(b"q")).then_some(*list),
            _ => None,
        }
    }

    fn string(&self, at: u32) -> Option<&[u8]> {
        let (start, end) = payload(self.b, at as usize)?;
        self.b.get(start..end)
    }

    fn text(&self, name: Name) -> &[u8] {
        let start = name.start as usize;
        self.b.get(start..start + name.len as usize).unwrap_or_default()
    }

    fn push(&mut self, node: Node) -> Result<(), Undecoded> {
        if self.stack.len() >= self.limits.stack {
            return Err(Undecoded::Limit {
                limit: "stack",
                value: self.limits.stack,
            });
        }
        self.stack.push(node);
        Ok(())
    }

    fn pop(&mut self) -> Result<Node, Undecoded> {
        let from = self.reach(1)?;
        let node = self.stack[from];
        self.stack.truncate(from);
        Ok(node)
    }

    fn top(&self) -> Result<Node, Undecoded> {
        Ok(self.stack[self.reach(1)?])
    }

    /// Index of the `count`-th value from the top; values below an open mark are out of reach.
    fn reach(&self, count: usize) -> Result<usize, Undecoded> {
        match self.stack.len().checked_sub(count) {
            Some(from) if from >= self.fence() => Ok(from),
            _ => Err(self.malformed("too few values on the stack")),
        }
    }

    fn fence(&self) -> usize {
        self.marks.last().map_or(0, |mark| *mark as usize)
    }

    fn pop_mark(&mut self) -> Result<usize, Undecoded> {
        match self.marks.pop() {
            Some(mark) => Ok(mark as usize),
            None => Err(self.malformed("no mark on the stack")),
        }
    }

    /// The container under a mark that was just popped.
    fn below(&self, mark: usize) -> Result<Node, Undecoded> {
        match mark.checked_sub(1) {
            Some(index) if index >= self.fence() => Ok(self.stack[index]),
            _ => Err(self.malformed("items without a container")),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Undecoded> {
        let bytes = self.b[self.at..]
            .first_chunk()
            .ok_or(Undecoded::Truncated { at: self.at })?;
        self.at += N;
        Ok(*bytes)
    }

    fn payload_end(&self, at: usize) -> Result<usize, Undecoded> {
        payload(self.b, at)
            .map(|(_, end)| end)
            .ok_or(Undecoded::Truncated { at })
    }

    fn malformed(&self, what: &'static str) -> Undecoded {
        Undecoded::Malformed {
            at: self.at.saturating_sub(1),
            what,
        }
    }
}

fn refuse(op: u8, at: usize) -> Undecoded {
    let what = match op {
        op::PERSID | op::BINPERSID => "a persistent id, kept outside the message",
        op::EXT1..=op::EXT4 => "an entry of the receiver's extension registry",
        op::NEXT_BUFFER | op::READONLY_BUFFER => "a buffer sent outside the message",
        b'F' | b'I' | b'L' | b'S' | b'T' | b'U' | b'V' | b'd' | b'g' | b'l' | b'p' => "protocol 0 or 1",
        _ => {
            return Undecoded::Malformed {
                at,
                what: "not a pickle opcode",
            };
        }
    };
    Undecoded::Refused { at, op, what }
}
