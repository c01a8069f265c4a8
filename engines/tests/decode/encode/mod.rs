//! Small encoders for both codecs, with the variations of real picklers: protocol, memo, batches, shared strings.

use std::collections::HashMap;

/// A Python-like value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Py {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Bytes(Vec<u8>),
    List(Vec<Py>),
    Tuple(Vec<Py>),
    Dict(Vec<(Py, Py)>),
    /// Python's `array('q')`.
    Array(Vec<i64>),
}

/// Options of the pickler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Style {
    pub(crate) protocol: u8,
    /// Maximum number of items per `APPENDS` or `SETITEMS`; 1000 in Python.
    pub(crate) batch: usize,
    /// Write a repeated string as a memo reference.
    pub(crate) share: bool,
    /// Memoize every value that Python memoizes.
    pub(crate) memo: bool,
    /// Begin a new frame after the value that fills one of this many bytes; 64 KiB in Python. No frames before protocol 4.
    pub(crate) frame: Option<usize>,
    /// Push and pop a value after each value. The message stays equivalent, but the decoder cannot use its fast paths.
    pub(crate) noise: bool,
}

/// Python's defaults.
pub(crate) const PLAIN: Style =
    Style { protocol: 4, batch: 1000, share: true, memo: true, frame: Some(64 << 10), noise: false };

/// Pickles an instance of the `io_struct` class `class` with `state`.
pub(crate) fn pickle(style: Style, class: &str, state: Vec<(Py, Py)>) -> Vec<u8> {
    let mut to = Pickler { out: vec![0x80, style.protocol], style, slots: 0, strings: HashMap::new(), frame: None };
    to.begin_frame();
    to.global("sglang.srt.managers.io_struct", class);
    to.out.extend(b")\x81");
    to.memoize();
    to.value(&Py::Dict(state));
    to.out.extend(b"b.");
    to.end_frame();
    to.out
}

struct Pickler {
    out: Vec<u8>,
    style: Style,
    slots: u32,
    strings: HashMap<String, u32>,
    /// Start of the open frame's content.
    frame: Option<usize>,
}

impl Pickler {
    fn begin_frame(&mut self) {
        if self.style.protocol >= 4 && self.style.frame.is_some() {
            self.out.extend([0x95, 0, 0, 0, 0, 0, 0, 0, 0]);
            self.frame = Some(self.out.len());
        }
    }

    /// Fills in the length of the open frame.
    fn end_frame(&mut self) {
        if let Some(start) = self.frame.take() {
            let length = (self.out.len() - start) as u64;
            self.out[start - 8..start].copy_from_slice(&length.to_le_bytes());
        }
    }

    fn memoize(&mut self) {
        if !self.style.memo {
            return;
        }
        match (self.style.protocol, u8::try_from(self.slots)) {
            (4.., _) => self.out.push(0x94),
            (_, Ok(slot)) => self.out.extend([b'q', slot]),
            _ => self.out.extend([&b"r"[..], &self.slots.to_le_bytes()].concat()),
        }
        self.slots += 1;
    }

    fn global(&mut self, module: &str, name: &str) {
        if self.style.protocol >= 4 {
            self.string(module);
            self.string(name);
            self.out.push(0x93);
        } else {
            self.out.extend(format!("c{module}\n{name}\n").bytes());
        }
        self.memoize();
    }

    fn string(&mut self, text: &str) {
        if let Some(slot) = self.strings.get(text).filter(|_| self.style.share && self.style.memo) {
            match u8::try_from(*slot) {
                Ok(slot) => self.out.extend([b'h', slot]),
                Err(_) => self.out.extend([&b"j"[..], &slot.to_le_bytes()].concat()),
            }
            return;
        }
        self.strings.insert(text.to_owned(), self.slots);
        self.sized(0x8c, b'X', text.as_bytes());
        self.memoize();
    }

    /// Writes a length-prefixed opcode, in the short form if the protocol has it.
    fn sized(&mut self, short: u8, long: u8, bytes: &[u8]) {
        match u8::try_from(bytes.len()) {
            Ok(len) if self.style.protocol >= 4 || short == b'C' => self.out.extend([short, len]),
            _ => self.out.extend([&[long], &(bytes.len() as u32).to_le_bytes()[..]].concat()),
        }
        self.out.extend(bytes);
    }

    fn int(&mut self, value: i64) {
        if let Ok(value) = u8::try_from(value) {
            self.out.extend([b'K', value]);
        } else if let Ok(value) = u16::try_from(value) {
            self.out.extend([&b"M"[..], &value.to_le_bytes()].concat());
        } else if let Ok(value) = i32::try_from(value) {
            self.out.extend([&b"J"[..], &value.to_le_bytes()].concat());
        } else {
            self.out.extend([&b"\x8a\x08"[..], &value.to_le_bytes()].concat());
        }
    }

    fn values(&mut self, values: &[Py]) {
        for value in values {
            self.value(value);
        }
    }

    fn value(&mut self, value: &Py) {
        self.content(value);
        if self.style.noise {
            self.out.extend(b"N0");
        }
        let full = self.style.frame.zip(self.frame);
        if full.is_some_and(|(size, start)| self.out.len() - start >= size) {
            self.end_frame();
            self.begin_frame();
        }
    }

    fn content(&mut self, value: &Py) {
        match value {
            Py::None => self.out.push(b'N'),
            Py::Bool(value) => self.out.push(if *value { 0x88 } else { 0x89 }),
            Py::Int(value) => self.int(*value),
            Py::Float(value) => self.out.extend([&b"G"[..], &value.to_be_bytes()].concat()),
            Py::Str(text) => self.string(text),
            Py::Bytes(bytes) => {
                self.sized(b'C', b'B', bytes);
                self.memoize();
            }
            Py::List(items) => {
                self.out.push(b']');
                self.memoize();
                for batch in items.chunks(self.style.batch) {
                    self.batch(batch.len(), b"a", b"e", |to| to.values(batch));
                }
            }
            Py::Dict(entries) => {
                self.out.push(b'}');
                self.memoize();
                for batch in entries.chunks(self.style.batch) {
                    self.batch(batch.len(), b"s", b"u", |to| {
                        for (key, value) in batch {
                            to.value(key);
                            to.value(value);
                        }
                    });
                }
            }
            Py::Tuple(items) => {
                match items.len() {
                    0 => return self.out.push(b')'),
                    1..=3 => {
                        self.values(items);
                        self.out.push(0x84 + items.len() as u8);
                    }
                    _ => {
                        self.out.push(b'(');
                        self.values(items);
                        self.out.push(b't');
                    }
                }
                self.memoize();
            }
            Py::Array(words) if self.style.protocol == 2 => {
                self.global("array", "array");
                let words = words.iter().map(|word| Py::Int(*word)).collect();
                self.value(&Py::Tuple(vec![Py::Str("q".into()), Py::List(words)]));
                self.out.push(b'R');
                self.memoize();
            }
            Py::Array(words) => {
                self.global("array", "_array_reconstructor");
                self.out.push(b'(');
                self.global("array", "array");
                self.string("q");
                self.int(12);
                self.value(&Py::Bytes(words.iter().flat_map(|word| word.to_le_bytes()).collect()));
                self.out.push(b't');
                self.memoize();
                self.out.push(b'R');
                self.memoize();
            }
        }
    }

    /// Writes one item without a mark, or several between `MARK` and the plural opcode, like Python.
    fn batch(&mut self, len: usize, one: &[u8], many: &[u8], items: impl FnOnce(&mut Self)) {
        if len > 1 {
            self.out.push(b'(');
        }
        items(self);
        self.out.extend(if len > 1 { many } else { one });
    }
}

/// Encodes `class` and its fields in msgspec's array-like form.
pub(crate) fn msgpack(class: &str, fields: &[Py]) -> Vec<u8> {
    let mut out = Vec::new();
    let tagged = [rmpv::Value::from(class)].into_iter().chain(fields.iter().map(packed));
    rmpv::encode::write_value(&mut out, &rmpv::Value::Array(tagged.collect())).unwrap();
    out
}

fn packed(value: &Py) -> rmpv::Value {
    match value {
        Py::None => rmpv::Value::Nil,
        Py::Bool(value) => (*value).into(),
        Py::Int(value) => (*value).into(),
        Py::Float(value) => (*value).into(),
        Py::Str(text) => text.as_str().into(),
        Py::Bytes(bytes) => bytes.as_slice().into(),
        Py::List(items) | Py::Tuple(items) => rmpv::Value::Array(items.iter().map(packed).collect()),
        Py::Dict(entries) => rmpv::Value::Map(entries.iter().map(|(k, v)| (packed(k), packed(v))).collect()),
        // SGLang's extension 1: length of the metadata, the msgpack string "q", the words.
        Py::Array(words) => {
            let words = words.iter().flat_map(|word| word.to_le_bytes());
            rmpv::Value::Ext(1, [0, 0, 0, 2, 0xa1, b'q'].into_iter().chain(words).collect())
        }
    }
}
