//! Writes pickles exactly as CPython does: same opcodes, memo and batches. The demo and the decoder's tests need it.

use std::collections::HashMap;

use super::op;

/// Number of bytes of a frame's length.
const FRAME_LENGTH_BYTES: usize = 8;

/// First protocol with frames, and with the opcodes `STACK_GLOBAL`, `SHORT_BINUNICODE` and `MEMOIZE`.
const PROTOCOL_4: u8 = 4;

/// Variations of a pickle. All styles of a value are equivalent.
#[derive(Clone, Copy, Debug)]
pub struct PickleStyle {
    /// From 2 to 5.
    pub protocol: u8,
    /// Maximum number of items per `APPENDS` or `SETITEMS`.
    pub batch: usize,
    /// Whether each object that could be referenced again gets a memo entry.
    pub has_memo: bool,
    /// A new frame begins after the value that fills one of this many bytes. No frames before protocol 4.
    pub frame_bytes: Option<usize>,
    /// Push and pop a value after each value, so that the decoder cannot use its fast paths.
    pub has_noise: bool,
}

impl PickleStyle {
    /// Python's default.
    pub const PYTHON: Self =
        Self { protocol: 4, batch: 1000, has_memo: true, frame_bytes: Some(64 << 10), has_noise: false };
}

/// A pickle being written.
#[derive(Debug)]
pub struct Pickler<'t> {
    style: PickleStyle,
    out: Vec<u8>,
    /// Number of memo entries so far.
    memo_len: u32,
    /// Strings and globals that exist once in Python. They are written once, then referenced through the memo.
    memo_of_shared: HashMap<&'t str, u32>,
    array_memo: Option<ArrayMemo>,
    /// Start of the open frame's content.
    frame_start: Option<usize>,
}

/// Memo entries referenced by every `array('q')` after the first.
#[derive(Clone, Copy, Debug)]
struct ArrayMemo {
    reconstructor: u32,
    class: u32,
    typecode: u32,
}

impl<'t> Pickler<'t> {
    /// Starts a pickle.
    pub fn new(style: PickleStyle) -> Self {
        let mut out = Vec::with_capacity(4096);
        out.extend_from_slice(&[op::PROTO, style.protocol]);
        let mut pickler =
            Self { style, out, memo_len: 0, memo_of_shared: HashMap::new(), array_memo: None, frame_start: None };
        pickler.begin_frame();
        pickler
    }

    /// Completes the pickle and returns its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.out.push(op::STOP);
        self.end_frame();
        self.out
    }

    /// Writes `None`.
    pub fn none(&mut self) {
        self.out.push(op::NONE);
        self.end_value();
    }

    /// Writes a bool.
    pub fn boolean(&mut self, value: bool) {
        self.out.push(if value { op::NEWTRUE } else { op::NEWFALSE });
        self.end_value();
    }

    /// Writes a float.
    pub fn float(&mut self, value: f64) {
        self.write(&[op::BINFLOAT], &value.to_be_bytes());
        self.end_value();
    }

    /// Writes an int in the shortest encoding.
    pub fn int(&mut self, value: i64) {
        self.write_int(value);
        self.end_value();
    }

    /// Writes a string that is a separate object.
    pub fn text(&mut self, text: &str) {
        self.write_text(text);
        self.end_value();
    }

    /// Writes a string that Python interns: source constants, and the empty string.
    pub fn interned(&mut self, text: &'t str) {
        self.write_interned(text);
        self.end_value();
    }

    /// Writes bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.write_bytes(bytes);
        self.end_value();
    }

    /// Writes a list; `item` writes each element.
    pub fn list<'i, T>(&mut self, items: &'i [T], item: impl FnMut(&mut Self, &'i T)) {
        self.write_items(op::EMPTY_LIST, [op::APPEND, op::APPENDS], items, item);
    }

    /// Writes a dict; `entry` writes the key and the value of each entry.
    pub fn dict_of<'i, T>(&mut self, entries: &'i [T], entry: impl FnMut(&mut Self, &'i T)) {
        self.write_items(op::EMPTY_DICT, [op::SETITEM, op::SETITEMS], entries, entry);
    }

    /// Writes an empty dict.
    pub fn empty_dict(&mut self) {
        self.dict_of::<()>(&[], |_, ()| {});
    }

    /// Writes a dict; `write_entries` writes keys and values alternately.
    pub fn dict(&mut self, write_entries: impl FnOnce(&mut Self)) {
        self.out.push(op::EMPTY_DICT);
        self.memoize();
        self.out.push(op::MARK);
        write_entries(self);
        self.out.push(op::SETITEMS);
        self.end_value();
    }

    /// Writes a tuple; `write_item` writes each element.
    pub fn tuple<'i, T>(&mut self, items: &'i [T], mut write_item: impl FnMut(&mut Self, &'i T)) {
        // Tuples of up to three items have opcodes of their own, which need no mark.
        let short_tuples = [op::EMPTY_TUPLE, op::TUPLE1, op::TUPLE2, op::TUPLE3];
        let short_tuple = short_tuples.get(items.len());
        if short_tuple.is_none() {
            self.out.push(op::MARK);
        }
        for element in items {
            write_item(self, element);
        }
        self.out.push(*short_tuple.unwrap_or(&op::TUPLE));
        // There is one empty tuple, which CPython does not memoize.
        if !items.is_empty() {
            self.memoize();
        }
        self.end_value();
    }

    /// Writes an instance of a plain class (a dataclass without slots); `write_state` writes its `__dict__`.
    pub fn instance(&mut self, module: &'t str, class: &'t str, write_state: impl FnOnce(&mut Self)) {
        // The name identifies the class, because no two classes used here share one.
        match self.memo_of_shared.get(class) {
            Some(&entry) => self.write_reference(entry),
            // Each instance repeats the name, since only later protocols share it.
            None if self.style.protocol < PROTOCOL_4 => {
                self.write_global(module, class);
            }
            None => {
                self.write_interned(module);
                self.write_text(class);
                self.out.push(op::STACK_GLOBAL);
                self.share_next_entry(class);
                self.memoize();
            }
        }
        self.out.extend_from_slice(&[op::EMPTY_TUPLE, op::NEWOBJ]);
        self.memoize();
        write_state(self);
        self.out.push(op::BUILD);
        self.end_value();
    }

    /// Writes `array('q', ids)` as `array.__reduce_ex__` does.
    pub fn array(&mut self, ids: &[i64]) {
        if self.style.protocol == 2 {
            self.write_listed_array(ids);
        } else {
            self.write_packed_array(ids);
        }
        self.memoize();
        self.out.push(op::REDUCE);
        self.memoize();
        self.end_value();
    }

    /// Writes the call that makes an array from a list, as in protocol 2, which has no opcode for bytes.
    fn write_listed_array(&mut self, ids: &[i64]) {
        self.write_global("array", "array");
        // The type code of 64-bit integers.
        self.write_text("q");
        self.out.push(op::EMPTY_LIST);
        self.memoize();
        for id in ids {
            self.write_int(*id);
            self.out.push(op::APPEND);
        }
        self.out.push(op::TUPLE2);
    }

    /// Writes the call that makes an array from its bytes. Further arrays refer to the names that the first one has written.
    fn write_packed_array(&mut self, ids: &[i64]) {
        if let Some(memo) = self.array_memo {
            self.write_reference(memo.reconstructor);
            self.out.push(op::MARK);
            self.write_reference(memo.class);
            self.write_reference(memo.typecode);
        } else {
            let reconstructor = self.write_global("array", "_array_reconstructor");
            self.out.push(op::MARK);
            let class = self.write_global("array", "array");
            // The type code, which is written next, gets the next entry.
            let memo = ArrayMemo { reconstructor, class, typecode: self.memo_len };
            self.array_memo = self.style.has_memo.then_some(memo);
            self.write_text("q");
        }
        // Machine format 12 is signed 64-bit little endian.
        self.write_int(12);
        self.write_bytes(&ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>());
        self.out.push(op::TUPLE);
    }

    /// Writes a collection: the opcode `empty_opcode`, and its items in batches. A batch of one item ends with `add_one`. A larger one is
    /// between `MARK` and `add_several`.
    fn write_items<'i, T>(
        &mut self,
        empty_opcode: u8,
        [add_one, add_several]: [u8; 2],
        items: &'i [T],
        mut write_item: impl FnMut(&mut Self, &'i T),
    ) {
        self.out.push(empty_opcode);
        self.memoize();
        for batch in items.chunks(self.style.batch) {
            let has_mark = batch.len() > 1;
            if has_mark {
                self.out.push(op::MARK);
            }
            for element in batch {
                write_item(self, element);
            }
            self.out.push(if has_mark { add_several } else { add_one });
        }
        self.end_value();
    }

    /// Writes a class or function of a built-in module, and returns its memo entry. Its names are written each time, because Python makes
    /// new strings for them.
    fn write_global(&mut self, module: &str, name: &str) -> u32 {
        if self.style.protocol < PROTOCOL_4 {
            // The opcode `GLOBAL`, and a line for each name.
            self.out.extend_from_slice(format!("c{module}\n{name}\n").as_bytes());
        } else {
            self.write_text(module);
            self.write_text(name);
            self.out.push(op::STACK_GLOBAL);
        }
        let entry = self.memo_len;
        self.memoize();
        entry
    }

    /// Writes a string that Python interns: later uses refer to its memo entry.
    fn write_interned(&mut self, text: &'t str) {
        if let Some(&entry) = self.memo_of_shared.get(text) {
            return self.write_reference(entry);
        }
        self.share_next_entry(text);
        self.write_text(text);
    }

    /// Writes a string and memoizes it.
    fn write_text(&mut self, text: &str) {
        if self.style.protocol < PROTOCOL_4 {
            self.write(&[op::BINUNICODE], &(text.len() as u32).to_le_bytes());
        } else {
            self.write_opcode_with_number(op::SHORT_BINUNICODE, op::BINUNICODE, text.len() as u32);
        }
        self.out.extend_from_slice(text.as_bytes());
        self.memoize();
    }

    /// Writes a bytes object and memoizes it.
    fn write_bytes(&mut self, bytes: &[u8]) {
        self.write_opcode_with_number(op::SHORT_BINBYTES, op::BINBYTES, bytes.len() as u32);
        self.out.extend_from_slice(bytes);
        self.memoize();
    }

    /// Writes an integer with the shortest opcode of the pickler; beyond 32 bits always with eight bytes.
    fn write_int(&mut self, value: i64) {
        if let Ok(byte) = u8::try_from(value) {
            self.out.extend_from_slice(&[op::BININT1, byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.write(&[op::BININT2], &short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(value) {
            self.write(&[op::BININT], &int.to_le_bytes());
        } else {
            // The opcode is followed by the number of bytes.
            self.write(&[op::LONG1, 8], &value.to_le_bytes());
        }
    }

    /// Makes later uses of a string, or of the global with this name, refer to the next memo entry.
    fn share_next_entry(&mut self, text: &'t str) {
        if self.style.has_memo {
            self.memo_of_shared.insert(text, self.memo_len);
        }
    }

    /// Gives the object on top of the stack the next memo entry.
    fn memoize(&mut self) {
        if !self.style.has_memo {
            return;
        }
        if self.style.protocol < PROTOCOL_4 {
            self.write_opcode_with_number(op::BINPUT, op::LONG_BINPUT, self.memo_len);
        } else {
            self.out.push(op::MEMOIZE);
        }
        self.memo_len += 1;
    }

    /// Writes a reference to the object of this memo entry.
    fn write_reference(&mut self, entry: u32) {
        self.write_opcode_with_number(op::BINGET, op::LONG_BINGET, entry);
    }

    /// Writes an opcode with a number: one byte if that suffices, else the long form with four.
    fn write_opcode_with_number(&mut self, short_opcode: u8, long_opcode: u8, number: u32) {
        if let Ok(byte) = u8::try_from(number) {
            self.out.extend_from_slice(&[short_opcode, byte]);
        } else {
            self.write(&[long_opcode], &number.to_le_bytes());
        }
    }

    /// Writes an opcode with its argument.
    fn write(&mut self, opcode: &[u8], argument: &[u8]) {
        self.out.extend_from_slice(opcode);
        self.out.extend_from_slice(argument);
    }

    /// Begins another frame after a complete value if this one is long enough, and adds opcodes without effect if the style has them.
    fn end_value(&mut self) {
        if self.style.has_noise {
            self.out.extend_from_slice(&[op::NONE, op::POP]);
        }
        let limit = self.style.frame_bytes.unwrap_or(usize::MAX);
        if self.frame_start.is_some_and(|start| self.out.len() - start >= limit) {
            self.end_frame();
            self.begin_frame();
        }
    }

    /// Begins a frame, if the protocol and the style have frames.
    fn begin_frame(&mut self) {
        if self.style.protocol >= PROTOCOL_4 && self.style.frame_bytes.is_some() {
            // Room for the length, which `end_frame` writes.
            self.write(&[op::FRAME], &[0; FRAME_LENGTH_BYTES]);
            self.frame_start = Some(self.out.len());
        }
    }

    /// Writes the length of the open frame into its head.
    fn end_frame(&mut self) {
        if let Some(start) = self.frame_start.take() {
            let length = (self.out.len() - start) as u64;
            self.out[start - FRAME_LENGTH_BYTES..start].copy_from_slice(&length.to_le_bytes());
        }
    }
}
