//! Encoders of Python-like values for both codecs.

use engines::sglang::wire::{PickleStyle, Pickler};

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

/// Pickles an instance of the `io_struct` class `class` with `state`. `shares`: a repeated string is a memo reference.
pub(crate) fn pickle(style: PickleStyle, shares: bool, class: &str, state: &[(Py, Py)]) -> Vec<u8> {
    let mut pickler = Pickler::new(style);
    pickler.instance("sglang.srt.managers.io_struct", class, |p| write_entries(p, shares, state));
    pickler.finish()
}

fn write_entries<'t>(p: &mut Pickler<'t>, shares: bool, entries: &'t [(Py, Py)]) {
    p.dict_of(entries, |p, (key, value)| {
        write_value(p, shares, key);
        write_value(p, shares, value);
    });
}

fn write_value<'t>(p: &mut Pickler<'t>, shares: bool, value: &'t Py) {
    match value {
        Py::None => p.none(),
        Py::Bool(value) => p.boolean(*value),
        Py::Int(value) => p.int(*value),
        Py::Float(value) => p.float(*value),
        Py::Str(text) if shares => p.interned(text),
        Py::Str(text) => p.text(text),
        Py::Bytes(bytes) => p.bytes(bytes),
        Py::List(items) => p.list(items, |p, item| write_value(p, shares, item)),
        Py::Tuple(items) => p.tuple(items, |p, item| write_value(p, shares, item)),
        Py::Dict(entries) => write_entries(p, shares, entries),
        Py::Array(words) => p.array(words),
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
