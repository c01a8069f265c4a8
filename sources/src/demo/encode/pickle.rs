//! Writes pickles of protocol 4 exactly as CPython does: same opcodes, memo and list batching.

use std::collections::HashMap;

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

impl Pickler {
    /// Starts a pickle of protocol 4.
    pub(in crate::demo) fn new() -> Self {
        let mut out = Vec::with_capacity(4096);
        // PROTO 4, FRAME.
        out.extend_from_slice(&[0x80, 4, 0x95]);
        // The length of the frame, which `finish` writes.
        out.extend_from_slice(&[0; 8]);
        Self { out, memo: 0, memo_of_shared: HashMap::new(), array: None }
    }

    /// Completes the pickle.
    pub(in crate::demo) fn finish(mut self) -> Vec<u8> {
        self.out.push(b'.');
        let body = FRAME_LENGTH_AT + 8;
        let length = (self.out.len() - body) as u64;
        self.out[FRAME_LENGTH_AT..body].copy_from_slice(&length.to_le_bytes());
        self.out
    }

    pub(in crate::demo) fn none(&mut self) {
        self.out.push(b'N');
    }

    pub(in crate::demo) fn boolean(&mut self, value: bool) {
        self.out.push(if value { 0x88 } else { 0x89 });
    }

    pub(in crate::demo) fn float(&mut self, value: f64) {
        self.out.push(b'G');
        self.out.extend_from_slice(&value.to_be_bytes());
    }

    /// Writes an int in the shortest encoding of those needed for token ids and counts.
    pub(in crate::demo) fn int(&mut self, value: i64) {
        if let Ok(byte) = u8::try_from(value) {
            self.out.extend_from_slice(&[b'K', byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.out.push(b'M');
            self.out.extend_from_slice(&short.to_le_bytes());
        } else {
            self.out.push(b'J');
            self.out.extend_from_slice(&(value as i32).to_le_bytes());
        }
    }

    /// Writes a string that is a separate object.
    pub(in crate::demo) fn text(&mut self, text: &str) {
        self.sized(0x8c, b'X', text.len() as u32);
        self.out.extend_from_slice(text.as_bytes());
        self.memoize();
    }

    /// Writes a string that Python interns: source constants, and the empty string.
    pub(in crate::demo) fn interned(&mut self, text: &'static str) {
        if let Some(&entry) = self.memo_of_shared.get(text) {
            return self.get(entry);
        }
        self.memo_of_shared.insert(text, self.memo);
        self.text(text);
    }

    /// Writes a list; `item` writes each element.
    pub(in crate::demo) fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Self, &T)) {
        self.out.push(b']');
        self.memoize();
        for batch in items.chunks(BATCH) {
            // A batch of one has an opcode of its own.
            if let [one] = batch {
                item(self, one);
                self.out.push(b'a');
            } else {
                self.out.push(b'(');
                for one in batch {
                    item(self, one);
                }
                self.out.push(b'e');
            }
        }
    }

    /// Writes a dict; `fill` writes keys and values alternately.
    pub(in crate::demo) fn dict(&mut self, fill: impl FnOnce(&mut Self)) {
        self.empty_dict();
        self.out.push(b'(');
        fill(self);
        self.out.push(b'u');
    }

    pub(in crate::demo) fn empty_dict(&mut self) {
        self.out.push(b'}');
        self.memoize();
    }

    /// Writes an instance of a plain class (a dataclass without slots); `state` writes its `__dict__`.
    pub(in crate::demo) fn instance(&mut self, class: (&'static str, &'static str), state: impl FnOnce(&mut Self)) {
        self.write_global(class.0, class.1);
        // An empty tuple, then NEWOBJ.
        self.out.extend_from_slice(&[b')', 0x81]);
        self.memoize();
        state(self);
        self.out.push(b'b');
    }

    /// Writes `array('q', ids)` as `array.__reduce_ex__` does: machine format 12 is signed 64-bit little endian.
    pub(in crate::demo) fn array(&mut self, ids: &[i64]) {
        let known = self.array;
        let memo = match known {
            Some(memo) => {
                self.get(memo.reconstructor);
                memo
            }
            None => ArrayMemo {
                reconstructor: self.uncached_global("array", "_array_reconstructor"),
                class: 0,
                typecode: 0,
            },
        };
        self.out.push(b'(');
        if known.is_some() {
            self.get(memo.class);
            self.get(memo.typecode);
        } else {
            let class = self.uncached_global("array", "array");
            self.array = Some(ArrayMemo { class, typecode: self.memo, ..memo });
            self.text("q");
        }
        self.int(12);
        self.sized(b'C', b'B', ids.len() as u32 * 8);
        self.out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        self.memoize();
        self.out.push(b't');
        self.memoize();
        self.out.push(b'R');
        self.memoize();
    }

    /// Writes a reference to a class: by name the first time, then from the memo.
    fn write_global(&mut self, module: &'static str, name: &'static str) {
        // The name identifies the class, because no two classes used here share one.
        if let Some(&entry) = self.memo_of_shared.get(name) {
            return self.get(entry);
        }
        self.interned(module);
        self.text(name);
        self.out.push(0x93);
        self.memo_of_shared.insert(name, self.memo);
        self.memoize();
    }

    /// Writes a global whose name strings Python creates again each time (built-in modules). Returns its memo entry.
    fn uncached_global(&mut self, module: &str, name: &str) -> u32 {
        self.text(module);
        self.text(name);
        self.out.push(0x93);
        let entry = self.memo;
        self.memoize();
        entry
    }

    fn memoize(&mut self) {
        self.out.push(0x94);
        self.memo += 1;
    }

    fn get(&mut self, entry: u32) {
        self.sized(b'h', b'j', entry);
    }

    /// Writes an opcode with a number: one byte if that suffices, else the long form with four.
    fn sized(&mut self, short: u8, long: u8, number: u32) {
        if let Ok(byte) = u8::try_from(number) {
            self.out.extend_from_slice(&[short, byte]);
        } else {
            self.out.push(long);
            self.out.extend_from_slice(&number.to_le_bytes());
        }
    }
}
