//! Writes pickles of protocol 4 exactly as CPython does: same opcodes, memo and list batching.

use std::collections::HashMap;

use engines::sglang::wire::pickle_op as op;

/// Offset of the length of a `FRAME`, after `PROTO 4` and the opcode.
const FRAME_LENGTH_AT: usize = 3;
/// CPython appends to lists in batches of a thousand items.
const BATCH: usize = 1000;

/// A pickle being written.
pub(in crate::demo) struct Pickler {
    out: Vec<u8>,
    /// Number of memo entries so far; each object that could be referenced again gets one.
    memo: u32,
    /// Strings and globals that exist once in Python. They are written once, then referenced through the memo.
    memo_of_shared: HashMap<&'static str, u32>,
    array: Option<ArrayMemo>,
}

/// Memo entries referenced by every `array('q')` after the first.
#[derive(Clone, Copy)]
struct ArrayMemo {
    reconstructor: u32,
    class: u32,
    typecode: u32,
}

/// Name of a Python class.
#[derive(Clone, Copy)]
pub(super) struct PythonClass {
    pub(super) module: &'static str,
    pub(super) name: &'static str,
}

impl Pickler {
    /// Starts a pickle of protocol 4.
    pub(in crate::demo) fn new() -> Self {
        let mut out = Vec::with_capacity(4096);
        out.extend_from_slice(&[op::PROTO, 4, op::FRAME]);
        // The length of the frame, which `finish` writes.
        out.extend_from_slice(&[0; 8]);
        Self { out, memo: 0, memo_of_shared: HashMap::new(), array: None }
    }

    /// Completes the pickle.
    pub(in crate::demo) fn finish(mut self) -> Vec<u8> {
        self.out.push(op::STOP);
        let body = FRAME_LENGTH_AT + 8;
        let length = (self.out.len() - body) as u64;
        self.out[FRAME_LENGTH_AT..body].copy_from_slice(&length.to_le_bytes());
        self.out
    }

    pub(in crate::demo) fn none(&mut self) {
        self.out.push(op::NONE);
    }

    pub(in crate::demo) fn boolean(&mut self, value: bool) {
        self.out.push(if value { op::NEWTRUE } else { op::NEWFALSE });
    }

    pub(in crate::demo) fn float(&mut self, value: f64) {
        self.out.push(op::BINFLOAT);
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    /// Writes an int in the shortest encoding of those needed for token ids and counts.
    pub(in crate::demo) fn int(&mut self, value: i64) {
        if let Ok(byte) = u8::try_from(value) {
            self.out.extend_from_slice(&[op::BININT1, byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.out.push(op::BININT2);
            self.out.extend_from_slice(&short.to_le_bytes());
        } else {
            self.out.push(op::BININT);
            self.out.extend_from_slice(&(value as i32).to_le_bytes());
        }
    }

    /// Writes a string that is a separate object.
    pub(in crate::demo) fn text(&mut self, text: &str) {
        self.write_opcode_with_number(op::SHORT_BINUNICODE, op::BINUNICODE, text.len() as u32);
        self.out.extend_from_slice(text.as_bytes());
        self.memoize();
    }

    /// Writes a string that Python interns: source constants, and the empty string.
    pub(in crate::demo) fn interned(&mut self, text: &'static str) {
        if let Some(&entry) = self.memo_of_shared.get(text) {
            return self.write_reference(entry);
        }
        self.memo_of_shared.insert(text, self.memo);
        self.text(text);
    }

    /// Writes a list; `item` writes each element.
    pub(in crate::demo) fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Self, &T)) {
        self.out.push(op::EMPTY_LIST);
        self.memoize();
        for batch in items.chunks(BATCH) {
            // A batch of one has an opcode of its own.
            if let [only_element] = batch {
                item(self, only_element);
                self.out.push(op::APPEND);
            } else {
                self.out.push(op::MARK);
                for element in batch {
                    item(self, element);
                }
                self.out.push(op::APPENDS);
            }
        }
    }

    /// Writes a dict; `fill` writes keys and values alternately.
    pub(in crate::demo) fn dict(&mut self, fill: impl FnOnce(&mut Self)) {
        self.empty_dict();
        self.out.push(op::MARK);
        fill(self);
        self.out.push(op::SETITEMS);
    }

    pub(in crate::demo) fn empty_dict(&mut self) {
        self.out.push(op::EMPTY_DICT);
        self.memoize();
    }

    /// Writes an instance of a plain class (a dataclass without slots); `state` writes its `__dict__`.
    pub(super) fn instance(&mut self, class: PythonClass, state: impl FnOnce(&mut Self)) {
        self.write_global(class.module, class.name);
        self.out.extend_from_slice(&[op::EMPTY_TUPLE, op::NEWOBJ]);
        self.memoize();
        state(self);
        self.out.push(op::BUILD);
    }

    /// Writes `array('q', ids)` as `array.__reduce_ex__` does: machine format 12 is signed 64-bit little endian.
    pub(in crate::demo) fn array(&mut self, ids: &[i64]) {
        if let Some(ArrayMemo { reconstructor, class, typecode }) = self.array {
            // The first array has written these names.
            self.write_reference(reconstructor);
            self.out.push(op::MARK);
            self.write_reference(class);
            self.write_reference(typecode);
        } else {
            let reconstructor = self.uncached_global("array", "_array_reconstructor");
            self.out.push(op::MARK);
            let class = self.uncached_global("array", "array");
            let typecode = self.memo;
            self.text("q");
            self.array = Some(ArrayMemo { reconstructor, class, typecode });
        }
        self.int(12);
        self.write_opcode_with_number(op::SHORT_BINBYTES, op::BINBYTES, ids.len() as u32 * 8);
        self.out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        self.memoize();
        self.out.push(op::TUPLE);
        self.memoize();
        self.out.push(op::REDUCE);
        self.memoize();
    }

    /// Writes a reference to a class: by name the first time, then from the memo.
    fn write_global(&mut self, module: &'static str, name: &'static str) {
        // The name identifies the class, because no two classes used here share one.
        if let Some(&entry) = self.memo_of_shared.get(name) {
            return self.write_reference(entry);
        }
        self.interned(module);
        self.text(name);
        self.out.push(op::STACK_GLOBAL);
        self.memo_of_shared.insert(name, self.memo);
        self.memoize();
    }

    /// Writes a global whose name strings Python creates again each time (built-in modules). Returns its memo entry.
    fn uncached_global(&mut self, module: &str, name: &str) -> u32 {
        self.text(module);
        self.text(name);
        self.out.push(op::STACK_GLOBAL);
        let entry = self.memo;
        self.memoize();
        entry
    }

    /// Gives the object on top of the stack the next memo entry.
    fn memoize(&mut self) {
        self.out.push(op::MEMOIZE);
        self.memo += 1;
    }

    /// Writes a reference to the object of this memo entry.
    fn write_reference(&mut self, entry: u32) {
        self.write_opcode_with_number(op::BINGET, op::LONG_BINGET, entry);
    }

    /// Writes an opcode with a number: one byte if that suffices, else the long form with four.
    fn write_opcode_with_number(&mut self, short: u8, long: u8, number: u32) {
        if let Ok(byte) = u8::try_from(number) {
            self.out.extend_from_slice(&[short, byte]);
        } else {
            self.out.push(long);
            self.out.extend_from_slice(&number.to_le_bytes());
        }
    }
}
