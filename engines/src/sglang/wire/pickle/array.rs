//! Support for `array('q')`, which carries token ids from 0.5.13 on. Each request takes two constructor calls, and later calls are
//! recognised by the bytes of an earlier one.

use super::super::arena::{ListRun, NameSpan, Node};
use super::vm::PickleMachine;
use super::{op, scalar};
use crate::msgpack::NextOffset;
use crate::msgpack::runs::count_repeats;

/// Type code of `array` for signed 64-bit little endian (`MachineFormat` in the documentation of Python's `array`).
const SIGNED_INT64_LE: i64 = 12;

/// Number of calls processed at once.
const CALLS_PER_BATCH: usize = 32;
/// The data, the arguments, and the result of a call.
const SLOTS_PER_CALL: usize = 3;

/// A call that constructs an array like an earlier one.
struct MatchingCall<'m> {
    /// Length of its data, which are whole words of at most 255 bytes.
    data_len: u8,
    /// The message behind the call.
    rest: &'m [u8],
}

/// Calls that were processed at once.
struct CallBatch<'m> {
    /// Number of calls.
    count: usize,
    /// Offset after the last one.
    end: usize,
    /// The message behind it.
    rest: &'m [u8],
}

/// Number of opcodes after the data of a call: `MEMOIZE TUPLE MEMOIZE REDUCE MEMOIZE`.
const CLOSE_BYTES: usize = 5;

/// Parses the call of an array's constructor at the beginning of `bytes`. It consists of the `N` known bytes, the length of its data in one
/// byte, the data, and the closing opcodes. `None` for anything else, or if the data are not whole 64-bit words.
#[inline]
fn parse_matching_call<'m, const N: usize>(bytes: &'m [u8], known: &[u8; N]) -> Option<MatchingCall<'m>> {
    /// The closing opcodes in the lower bytes of a word. The upper three bytes are masked.
    const CLOSE: u64 = u64::from_le_bytes([op::MEMOIZE, op::TUPLE, op::MEMOIZE, op::REDUCE, op::MEMOIZE, 0, 0, 0]);
    const CLOSE_MASK: u64 = 0xff_ffff_ffff;
    const WORD_BYTES: u8 = 8;
    let (head, after_head) = bytes.split_first_chunk::<N>()?;
    if head != known {
        return None;
    }
    let (&data_len, after_len) = after_head.split_first()?;
    let (_, close) = after_len.split_at_checked(usize::from(data_len))?;
    // Eight bytes are compared at once. A call with fewer bytes behind its data is left to the machine.
    let (tail, _) = close.split_first_chunk()?;
    let is_closed = u64::from_le_bytes(*tail) & CLOSE_MASK == CLOSE;
    if data_len % WORD_BYTES != 0 || !is_closed {
        return None;
    }
    Some(MatchingCall { data_len, rest: &close[CLOSE_BYTES..] })
}

impl<'m> PickleMachine<'m, '_> {
    /// The array of 64-bit integers, type code `q`, that `callable(*args)` constructs. `None` for any other call. The call is
    /// `_array_reconstructor(class, "q", format, data)`, or in protocol 2 `array("q", list)`.
    pub(super) fn construct_array(&mut self, callable: Node, args: Node) -> Option<Node> {
        let (Node::Global(callable), Node::Tuple(args)) = (callable, args) else { return None };
        let callable = self.arena.globals[callable as usize];
        if self.name_bytes(callable.module) != b"array" {
            return None;
        }
        let args = self.arena.list_runs[args as usize];
        match self.name_bytes(callable.name) {
            b"_array_reconstructor" => self.array_from_reconstructor_args(args),
            b"array" => self.array_from_list_args(args),
            _ => None,
        }
    }

    /// The array that the reconstructor makes of its last argument, the data. Remembers the bytes of the call.
    fn array_from_reconstructor_args(&mut self, args: ListRun) -> Option<Node> {
        let arguments = self.arena.cells.get(args.start as usize..args.end as usize)?;
        let &[_class, Node::Str(code), Node::Int(format), Node::Bytes(data)] = arguments else { return None };
        let format = scalar::read_int(self.message, format as usize);
        if self.string_at(code) != Some(b"q") || format != Some(SIGNED_INT64_LE) {
            return None;
        }
        self.remember_call_bytes(data as usize);
        Some(Node::Array(data))
    }

    /// The array that is made of its last argument, a list. The list stands for the array, and must not grow any more.
    fn array_from_list_args(&mut self, args: ListRun) -> Option<Node> {
        let arguments = self.arena.cells.get(args.start as usize..args.end as usize)?;
        let &[Node::Str(code), list @ Node::List(first_run)] = arguments else { return None };
        if self.string_at(code) != Some(b"q") {
            return None;
        }
        self.arena.list_runs[first_run as usize].is_array_source = true;
        Some(list)
    }

    /// Processes the calls from `at` on that construct an array like an earlier call and differ only in the data. The bytes before the data
    /// identify such a call: equal bytes mean the same everywhere, because memo slots never change. Returns false if there is no such call.
    /// The machine then runs the opcodes one by one.
    pub(super) fn try_process_repeated_array_calls(&mut self, at: usize) -> bool {
        // If the machine executes this call, its bytes may become the known ones.
        self.array_calls.last_call_start = at;
        let known = self.message.get(self.array_calls.known_bytes.clone()).unwrap_or_default();
        // The bytes before the data are three references of two or five bytes each, and four others: a mark, a number of two bytes, and the
        // opcode of the data. With a constant length, the compiler compares them without a loop.
        let next = match known.len() {
            10 => self.process_matching_array_calls::<10>(at, known),
            13 => self.process_matching_array_calls::<13>(at, known),
            16 => self.process_matching_array_calls::<16>(at, known),
            19 => self.process_matching_array_calls::<19>(at, known),
            _ => at,
        };
        if next > at {
            self.at = next;
        }
        next > at
    }

    /// Processes calls from `at` on that begin with the `N` known bytes and hold whole words. Returns the end of the last one. Each call
    /// takes one value on the stack, and three slots of the memo, the pickle's table of values that later opcodes refer to.
    fn process_matching_array_calls<const N: usize>(&mut self, mut at: usize, known_bytes: &[u8]) -> NextOffset {
        let Some(known_bytes) = known_bytes.first_chunk::<N>() else { return at };
        let free_slots = self.limits.memo.saturating_sub(self.arena.memo.len());
        let free_values = self.limits.stack.saturating_sub(self.stack.len());
        let mut calls_left = (free_slots / SLOTS_PER_CALL).min(free_values);
        let mut rest = self.message.get(at..).unwrap_or_default();
        loop {
            let batch = self.process_call_batch(at, rest, known_bytes, calls_left.min(CALLS_PER_BATCH));
            at = batch.end;
            rest = batch.rest;
            calls_left -= batch.count;
            // A call of another form, the end of the message, or a limit.
            if batch.count < CALLS_PER_BATCH {
                return at;
            }
        }
    }

    /// Processes up to `max_calls` of the calls at the beginning of `rest`, which is the message from `at` on. Each begins with the known
    /// bytes.
    #[inline]
    fn process_call_batch<const N: usize>(
        &mut self,
        mut at: usize,
        mut rest: &'m [u8],
        known: &[u8; N],
        max_calls: usize,
    ) -> CallBatch<'m> {
        // Reserve memo slots and values for all calls at once, so that the loop does not grow the tables.
        let first_slot = self.arena.memo.len();
        let first_value = self.stack.len();
        self.arena.memo.resize(first_slot + SLOTS_PER_CALL * max_calls, Node::Unbuilt);
        self.stack.resize(first_value + max_calls, Node::Unbuilt);
        let slots_of_calls = self.arena.memo[first_slot..].as_chunks_mut().0.iter_mut();
        let mut count = 0;
        for (slots, value) in slots_of_calls.zip(&mut self.stack[first_value..]) {
            let Some(call) = parse_matching_call(rest, known) else { break };
            // The known bytes end with the opcode of the data. Behind it follow the length of the data in one byte, and the data.
            let data_opcode_at = at + N - 1;
            let data_at = data_opcode_at + 2;
            let array = Node::Words { words: u16::from(call.data_len / 8), at: data_at as u32 };
            // A call memoizes its data, its arguments and its result. Nothing refers to the arguments.
            *slots = [Node::Bytes(data_opcode_at as u32), Node::Unbuilt, array];
            *value = array;
            rest = call.rest;
            at = data_at + usize::from(call.data_len) + CLOSE_BYTES;
            count += 1;
        }
        // Give back what was reserved and not used.
        self.arena.memo.truncate(first_slot + SLOTS_PER_CALL * count);
        self.stack.truncate(first_value + count);
        CallBatch { count, end: at, rest }
    }

    /// Copies the object just built for each object behind it that has the same bytes: `GET EMPTY_TUPLE NEWOBJ` and an empty state. The
    /// `time_stats` of a frame have this form.
    pub(super) fn repeat_last_object(&mut self) {
        // Set when the object's class was pushed.
        let object_start = self.array_calls.last_call_start;
        let object_bytes = self.at - object_start;
        let repeats = count_repeated_objects(self.message, object_start, object_bytes);
        if repeats == 0 {
            return;
        }
        let Some(Node::Object(last)) = self.stack.last().copied() else { return };
        // Objects beyond a limit are left to the machine, which reports it.
        let repeats = repeats.min(self.count_free_objects());
        self.at += repeats * object_bytes;
        let arena = &mut *self.arena;
        let object = arena.objects[last as usize];
        let first_copy = arena.objects.len();
        arena.objects.extend(std::iter::repeat_n(object, repeats));
        let copies = (first_copy..first_copy + repeats).map(|id| Node::Object(id as u32));
        // Each copy is memoized, and behind it its empty state, to which nothing refers.
        arena.memo.extend(copies.clone().flat_map(|copy| [copy, Node::Unbuilt]));
        self.stack.extend(copies);
    }

    /// Number of further objects with an empty state that fit below the limits. Each takes a record, a value on the stack, and two memo
    /// slots, one for itself and one for its state.
    #[inline]
    fn count_free_objects(&self) -> usize {
        const SLOTS_PER_OBJECT: usize = 2;
        let free_records = self.limits.items.saturating_sub(self.arena.objects.len());
        let free_slots = self.limits.memo.saturating_sub(self.arena.memo.len());
        let free_values = self.limits.stack.saturating_sub(self.stack.len());
        free_records.min(free_slots / SLOTS_PER_OBJECT).min(free_values)
    }

    /// Remembers the bytes of the call that ends in the data at `data_at`, if it has exactly the form
    /// `GET MARK GET GET BININT1 12 SHORT_BINBYTES`.
    fn remember_call_bytes(&mut self, data_at: usize) {
        let start = self.array_calls.last_call_start;
        // `_array_reconstructor(array, "q", 12, data)`: the function, the class and the type code are references to the memo.
        let has_known_form = self.end_of_call_arguments(start) == Some(data_at);
        if has_known_form && self.message.get(data_at) == Some(&op::SHORT_BINBYTES) {
            self.array_calls.known_bytes = start..data_at + 1;
        }
    }

    /// Offset after `GET MARK GET GET BININT1 12` at `start`; `None` for any other opcodes.
    fn end_of_call_arguments(&self, start: usize) -> Option<usize> {
        let mark_at = self.offset_after_memo_get(start)?;
        if self.message.get(mark_at) != Some(&op::MARK) {
            return None;
        }
        let type_code_at = self.offset_after_memo_get(mark_at + 1)?;
        let format_at = self.offset_after_memo_get(type_code_at)?;
        // The caller has checked the number itself: `SIGNED_INT64_LE`.
        (self.message.get(format_at) == Some(&op::BININT1)).then_some(format_at + op::BININT1_LEN)
    }

    /// Offset after the reference to the memo at `at`; `None` for any other opcode.
    fn offset_after_memo_get(&self, at: usize) -> Option<usize> {
        match self.message.get(at) {
            Some(&op::BINGET) => Some(at + op::BINGET_LEN),
            Some(&op::LONG_BINGET) => Some(at + op::LONG_BINGET_LEN),
            _ => None,
        }
    }

    /// The string whose opcode is at `at`; `None` for another opcode.
    fn string_at(&self, at: u32) -> Option<&[u8]> {
        self.message.get(scalar::payload_range(self.message, at as usize)?)
    }

    /// The bytes of a name in the message.
    fn name_bytes(&self, name: NameSpan) -> &[u8] {
        let start = name.start as usize;
        self.message.get(start..start + name.len as usize).unwrap_or_default()
    }
}

/// Number of times that the object with empty state at `start`, which has `object_bytes` bytes, is repeated directly behind itself. 0 for
/// an object of another form than `GET EMPTY_TUPLE NEWOBJ`.
#[inline]
fn count_repeated_objects(message: &[u8], start: usize, object_bytes: usize) -> usize {
    /// Length of `EMPTY_TUPLE NEWOBJ MEMOIZE` and the empty state, `EMPTY_DICT MEMOIZE BUILD`.
    const LEN_AFTER_GET: usize = 6;
    /// Length of an object whose class is in one of the first 256 memo slots, and of any other one.
    const SHORT_LEN: usize = op::BINGET_LEN + LEN_AFTER_GET;
    const LONG_LEN: usize = op::LONG_BINGET_LEN + LEN_AFTER_GET;
    match (object_bytes, &message[start..]) {
        (SHORT_LEN, [op::BINGET, _, op::EMPTY_TUPLE, ..]) => count_repeats::<SHORT_LEN>(message, start),
        (LONG_LEN, [op::LONG_BINGET, _, _, _, _, op::EMPTY_TUPLE, ..]) => count_repeats::<LONG_LEN>(message, start),
        _ => 0,
    }
}
