//! The machine: executes opcodes in order over a stack of positions.

use std::ops::Range;

use super::super::arena::{Arena, ListRun, Node};
use super::super::{Limits, Undecoded};
use super::{Scratch, flat, op, scalar};

/// Calls of `array`'s reconstructor in this message.
#[derive(Default)]
pub(super) struct ArrayCalls {
    /// Start of the call whose callable was most recently fetched from the memo.
    pub(super) last_call_start: usize,
    /// Bytes of one complete call, up to the length of its data.
    pub(super) known_bytes: Range<usize>,
}

pub(super) struct PickleMachine<'m, 'x> {
    pub(super) message: &'m [u8],
    /// Position of the next opcode.
    pub(super) at: usize,
    pub(super) arena: &'x mut Arena,
    pub(super) stack: &'x mut Vec<Node>,
    pub(super) marks: &'x mut Vec<u32>,
    pub(super) limits: &'x Limits,
    /// The one shared empty tuple: pickles contain many, and nothing can append to one.
    empty_tuple: u32,
    pub(super) array_calls: ArrayCalls,
}

impl<'m, 'x> PickleMachine<'m, 'x> {
    /// A machine at the start of the message. `arena` and `scratch` are reused from message to message.
    pub(super) fn new(
        message: &'m [u8],
        arena: &'x mut Arena,
        scratch: &'x mut Scratch,
        limits: &'x Limits,
    ) -> Result<Self, Undecoded> {
        let Scratch { stack, marks } = scratch;
        stack.clear();
        marks.clear();
        let empty_tuple = arena.add_list_run_and_get_index(ListRun::EMPTY, limits)?;
        // Skip PROTO and its version.
        Ok(Self { message, at: 2, arena, stack, marks, limits, empty_tuple, array_calls: ArrayCalls::default() })
    }

    /// Executes all opcodes. Returns the value that the pickle holds.
    pub(super) fn execute(&mut self) -> Result<Node, Undecoded> {
        loop {
            let at = self.at;
            let op = *self.message.get(at).ok_or(Undecoded::Truncated { at })?;
            self.at += 1;
            match op {
                op::STOP => return self.finish(),
                op::MEMOIZE => self.memoize_top(self.arena.memo.len())?,
                op::BINPUT => {
                    let slot = usize::from(self.read_bytes::<1>()?[0]);
                    self.memoize_top(slot)?;
                }
                op::LONG_BINPUT => {
                    let slot = u32::from_le_bytes(self.read_bytes()?) as usize;
                    self.memoize_top(slot)?;
                }
                op::BINGET => {
                    let slot = usize::from(self.read_bytes::<1>()?[0]);
                    self.push_memoized_or_process_calls(at, slot)?;
                }
                op::LONG_BINGET => {
                    let slot = u32::from_le_bytes(self.read_bytes()?) as usize;
                    self.push_memoized_or_process_calls(at, slot)?;
                }
                op::SHORT_BINUNICODE | op::BINUNICODE | op::BINUNICODE8 => {
                    self.at = self.payload_end(at)?;
                    self.push_value(Node::Str(at as u32))?;
                }
                op::SHORT_BINBYTES | op::BINBYTES | op::BINBYTES8 | op::BYTEARRAY8 => {
                    self.at = self.payload_end(at)?;
                    self.push_value(Node::Bytes(at as u32))?;
                }
                op::BININT1 | op::BININT2 | op::BININT => {
                    self.at += scalar::int_opcode_len(self.message, at).ok_or(Undecoded::Truncated { at })? - 1;
                    self.push_value(Node::Int(at as u32))?;
                }
                op::LONG1 | op::LONG4 => {
                    self.at += scalar::int_opcode_len(self.message, at).ok_or(Undecoded::Truncated { at })? - 1;
                    self.push_value(Node::Long(at as u32))?;
                }
                op::BINFLOAT => {
                    self.read_bytes::<8>()?;
                    self.push_value(Node::Float(at as u32))?;
                }
                op::NONE => self.push_value(Node::Nil)?,
                op::NEWTRUE => self.push_value(Node::Bool(true))?,
                op::NEWFALSE => self.push_value(Node::Bool(false))?,
                op::EMPTY_LIST => self.run_empty_list_and_first_batch()?,
                // Its items are added later, as to a list.
                op::EMPTY_SET => self.push_empty(Node::List)?,
                op::EMPTY_DICT => self.push_empty(Node::Dict)?,
                // An object without arguments, which `repeat_last_object` compares with the following ones.
                op::EMPTY_TUPLE if self.message.get(self.at) == Some(&op::NEWOBJ) => {
                    self.at += 1;
                    self.push_object_without_arguments()?;
                }
                op::EMPTY_TUPLE => self.push_value(Node::Tuple(self.empty_tuple))?,
                op::MARK => self.open_mark_or_read_batch()?,
                op::APPEND => {
                    let container = self.index_from_top(2)?;
                    self.move_stack_values_into_list(container + 1)?;
                }
                op::SETITEM => {
                    let container = self.index_from_top(3)?;
                    self.move_stack_values_into_dict(container + 1)?;
                }
                op::APPENDS | op::ADDITEMS => {
                    let mark = self.pop_mark_height()?;
                    self.move_stack_values_into_list(mark)?;
                }
                op::SETITEMS => {
                    let mark = self.pop_mark_height()?;
                    if (self.stack.len() - mark) % 2 == 1 {
                        return Err(self.malformed("a dict with a key and no value"));
                    }
                    self.move_stack_values_into_dict(mark)?;
                }
                op::TUPLE1 | op::TUPLE2 | op::TUPLE3 => {
                    let from = self.index_from_top(usize::from(op - op::TUPLE1) + 1)?;
                    self.replace_stack_values_by_tuple(from)?;
                }
                op::TUPLE | op::FROZENSET => {
                    let mark = self.pop_mark_height()?;
                    self.replace_stack_values_by_tuple(mark)?;
                }
                op::STACK_GLOBAL => self.run_stack_global()?,
                op::GLOBAL => {
                    let global = self.read_text_global()?;
                    self.push_value(global)?;
                }
                // Nothing is called: constructions are only recorded.
                op::REDUCE | op::NEWOBJ => {
                    let args = self.pop_value()?;
                    let callable = self.pop_value()?;
                    self.push_constructed_value(callable, args)?;
                }
                op::NEWOBJ_EX => {
                    // Keyword arguments are not read.
                    let _kwargs = self.pop_value()?;
                    let args = self.pop_value()?;
                    let callable = self.pop_value()?;
                    self.push_constructed_value(callable, args)?;
                }
                op::OBJ => self.construct_from_mark()?,
                op::INST => {
                    let callable = self.read_text_global()?;
                    let mark = self.pop_mark_height()?;
                    self.replace_stack_values_by_tuple(mark)?;
                    let args = self.pop_value()?;
                    self.push_constructed_value(callable, args)?;
                }
                op::BUILD => {
                    let state = self.pop_value()?;
                    // A list or array with a state keeps its items. The state itself is not read.
                    if let Node::Object(id) = self.top_value()? {
                        self.arena.objects[id as usize].state = state;
                    }
                }
                op::FRAME => {
                    let length = u64::from_le_bytes(self.read_bytes()?);
                    // CPython reads a whole frame before it interprets any of it.
                    if length > (self.message.len() - self.at) as u64 {
                        return Err(Undecoded::Truncated { at });
                    }
                }
                // At an open mark, `POP` removes the mark, as in CPython.
                op::POP if self.stack.len() > self.stack_base() => {
                    self.stack.pop();
                }
                op::POP | op::POP_MARK => {
                    let mark = self.pop_mark_height()?;
                    self.stack.truncate(mark);
                }
                op::DUP => self.push_value(self.top_value()?)?,
                _ => return Err(refuse_opcode(op, at)),
            }
        }
    }

    /// Runs `EMPTY_TUPLE NEWOBJ`: replaces the class on the stack by an object of it. Repeats it if it has an empty state, as the objects
    /// of a list often have.
    #[inline]
    fn push_object_without_arguments(&mut self) -> Result<(), Undecoded> {
        let callable = self.pop_value()?;
        self.record_call_and_push_object(callable, Node::Tuple(self.empty_tuple))?;
        let is_memoized = self.memoize_top_if_requested()?;
        if self.try_skip_empty_state() && is_memoized {
            self.repeat_last_object();
        }
        Ok(())
    }

    /// Runs `OBJ`: replaces the class behind the innermost mark, and the arguments behind the class, by an object.
    fn construct_from_mark(&mut self) -> Result<(), Undecoded> {
        let mark = self.pop_mark_height()?;
        let callable = *self.stack.get(mark).ok_or_else(|| self.malformed("an object without a class"))?;
        self.replace_stack_values_by_tuple(mark + 1)?;
        let args = self.pop_value()?;
        self.stack.truncate(mark);
        self.push_constructed_value(callable, args)
    }

    /// The value that the pickle has built. Fails if anything else is left on the stack or in the message.
    fn finish(&mut self) -> Result<Node, Undecoded> {
        if self.at != self.message.len() {
            return Err(self.malformed("bytes after the end of the pickle"));
        }
        match self.stack.as_slice() {
            [value] if self.marks.is_empty() => Ok(*value),
            _ => Err(self.malformed("the pickle ends with values left over")),
        }
    }

    /// Opens a mark, which separates the following items of a container from the values below them on the stack. If a batch of plain items
    /// for a list follows, processes the whole batch instead, and leaves its items in the message.
    fn open_mark_or_read_batch(&mut self) -> Result<(), Undecoded> {
        // Only a list above the innermost open mark can get the items that follow.
        if let Some(Node::List(list)) = self.stack.last().copied()
            && self.stack.len() > self.stack_base()
            && self.try_read_plain_batch(list)?
        {
            return Ok(());
        }
        if self.marks.len() >= self.limits.depth {
            return Err(Undecoded::Limit { limit: "depth", value: self.limits.depth });
        }
        self.marks.push(self.stack.len() as u32);
        Ok(())
    }

    /// Reads the batch of plain items at `self.at` into the list at `list_index`. Returns false if the batch has any other item; then
    /// nothing has changed.
    #[inline]
    fn try_read_plain_batch(&mut self, list_index: u32) -> Result<bool, Undecoded> {
        // Lists in a list, such as the ids of each request.
        if self.message.get(self.at) == Some(&op::EMPTY_LIST) {
            return self.try_read_flat_lists(list_index);
        }
        let batch =
            flat::measure_batch_and_memoize_strings(self.message, self.at, &mut self.arena.memo, self.limits.memo);
        let Some(batch) = batch else { return Ok(false) };
        // Continue after the `APPENDS` that ends the batch.
        self.at = batch.end + 1;
        self.arena.append_run(list_index, batch.to_list_run(), self.limits)?;
        Ok(true)
    }

    /// Copies the top of the stack into the slot `slot` of the memo, the table of values for later references. Fails unless it is the next
    /// slot.
    fn memoize_top(&mut self, slot: usize) -> Result<(), Undecoded> {
        if slot != self.arena.memo.len() {
            // Every CPython pickler numbers slots from 0 without gaps; references left in the message depend on that.
            return Err(self.malformed("memo slots out of order"));
        }
        if slot >= self.limits.memo {
            return Err(Undecoded::Limit { limit: "memo", value: self.limits.memo });
        }
        let top = self.top_value()?;
        self.arena.memo.push(top);
        Ok(())
    }

    /// Memoizes the value just pushed if the next opcode is `MEMOIZE`, as it nearly always is. Returns whether it was.
    pub(super) fn memoize_top_if_requested(&mut self) -> Result<bool, Undecoded> {
        let is_memoized = self.message.get(self.at) == Some(&op::MEMOIZE);
        if is_memoized {
            self.at += 1;
            self.memoize_top(self.arena.memo.len())?;
        }
        Ok(is_memoized)
    }

    /// Pushes a value from the memo, the table of values for later references, or processes the calls that begin with it. `at` is the start
    /// of the opcode that refers to the slot.
    fn push_memoized_or_process_calls(&mut self, at: usize, slot: usize) -> Result<(), Undecoded> {
        let node = *self.arena.memo.get(slot).ok_or_else(|| self.malformed("a reference to an unset memo"))?;
        match (node, self.message.get(self.at)) {
            // A function, and the mark before its arguments: nearly always the reconstructor of an array.
            (Node::Global(_), Some(&op::MARK)) => {
                let are_calls_processed = self.try_process_repeated_array_calls(at);
                if are_calls_processed { Ok(()) } else { self.push_value(node) }
            }
            // An object without arguments, which `repeat_last_object` may repeat from here on.
            (Node::Global(_), Some(&op::EMPTY_TUPLE)) => {
                self.array_calls.last_call_start = at;
                self.push_value(node)
            }
            // The slot of arguments or of an empty state that were left in the message. A pickle normally has no reference to it.
            (Node::Unbuilt, _) => Err(self.malformed("a self-reference outside its object")),
            _ => self.push_value(node),
        }
    }

    /// Pushes a value. Fails at the limit of the stack.
    pub(super) fn push_value(&mut self, node: Node) -> Result<(), Undecoded> {
        if self.stack.len() >= self.limits.stack {
            return Err(Undecoded::Limit { limit: "stack", value: self.limits.stack });
        }
        self.stack.push(node);
        Ok(())
    }

    /// Removes and returns the top of the stack. Fails if there is no value above the innermost mark.
    pub(super) fn pop_value(&mut self) -> Result<Node, Undecoded> {
        let from = self.index_from_top(1)?;
        let node = self.stack[from];
        self.stack.truncate(from);
        Ok(node)
    }

    /// The value on top of the stack. Fails if there is no value above the innermost mark.
    pub(super) fn top_value(&self) -> Result<Node, Undecoded> {
        Ok(self.stack[self.index_from_top(1)?])
    }

    /// Index of the `count`-th value from the top. Values below an open mark are out of reach.
    fn index_from_top(&self, count: usize) -> Result<usize, Undecoded> {
        match self.stack.len().checked_sub(count) {
            Some(from) if from >= self.stack_base() => Ok(from),
            _ => Err(self.malformed("too few values on the stack")),
        }
    }

    /// Height of the stack at the innermost mark.
    fn stack_base(&self) -> usize {
        self.marks.last().map_or(0, |mark| *mark as usize)
    }

    /// Removes the innermost mark. Returns the height of the stack at it. Fails without an open mark.
    pub(super) fn pop_mark_height(&mut self) -> Result<usize, Undecoded> {
        match self.marks.pop() {
            Some(mark) => Ok(mark as usize),
            None => Err(self.malformed("no mark on the stack")),
        }
    }

    /// The value below `stack_index` on the stack, which is the container for the values from there on. Fails if there is none above
    /// the innermost open mark.
    pub(super) fn container_below(&self, stack_index: usize) -> Result<Node, Undecoded> {
        match stack_index.checked_sub(1) {
            Some(index) if index >= self.stack_base() => Ok(self.stack[index]),
            _ => Err(self.malformed("items without a container")),
        }
    }

    /// Reads the next bytes of the message.
    fn read_bytes<const N: usize>(&mut self) -> Result<[u8; N], Undecoded> {
        let bytes = self.message[self.at..].first_chunk().ok_or(Undecoded::Truncated { at: self.at })?;
        self.at += N;
        Ok(*bytes)
    }

    /// End of the string or bytes at `at`.
    fn payload_end(&self, at: usize) -> Result<usize, Undecoded> {
        scalar::payload_range(self.message, at).map(|payload| payload.end).ok_or(Undecoded::Truncated { at })
    }

    /// Error in the opcode that was just read.
    pub(super) fn malformed(&self, what: &'static str) -> Undecoded {
        Undecoded::Malformed { at: self.at.saturating_sub(1), what }
    }
}

/// Error for an opcode that is not executed, because it refers to something outside the message, is too old, or does not exist.
fn refuse_opcode(opcode: u8, at: usize) -> Undecoded {
    let what = match opcode {
        op::PERSID | op::BINPERSID => "a persistent id, kept outside the message",
        op::EXT1..=op::EXT4 => "an entry of the receiver's extension registry",
        op::NEXT_BUFFER | op::READONLY_BUFFER => "a buffer sent outside the message",
        b'F' | b'I' | b'L' | b'S' | b'T' | b'U' | b'V' | b'd' | b'g' | b'l' | b'p' => "protocol 0 or 1",
        _ => {
            return Undecoded::Malformed { at, what: "not a pickle opcode" };
        }
    };
    Undecoded::Refused { at, op: opcode, what }
}
