//! A borrowed view of a value in the message, for display.

use super::arena::Node;
use super::doc::{Doc, Items};
use super::pickle;
use crate::msgpack::{self, Head};

/// A value in its wire form. Containers may share parts or contain themselves, so a caller that walks one must limit the depth.
#[derive(Clone, Debug)]
pub enum Value<'a> {
    /// Python's `None` or msgpack's nil.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer, or an enum with an integer value (`http.HTTPStatus`).
    Int(i64),
    /// A float.
    Float(f64),
    /// Text.
    Str(&'a str),
    /// Bytes.
    Bytes(&'a [u8]),
    /// A list, tuple or set.
    List(List<'a>),
    /// A dict or map.
    Map(Map<'a>),
    /// A value without a plain form; the text describes it.
    Other(&'static str),
}

/// Items of a [`Value::List`].
#[derive(Clone, Debug)]
pub struct List<'a> {
    doc: Doc<'a>,
    items: Items<'a>,
}

/// Entries of a [`Value::Map`], in wire order.
#[derive(Clone, Debug)]
pub struct Map<'a> {
    doc: Doc<'a>,
    /// Keys and values, alternating.
    entries: Items<'a>,
}

impl<'a> Iterator for List<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        let node = self.items.next()?;
        Some(Value::of_node(self.doc, node))
    }
}

impl<'a> Iterator for Map<'a> {
    type Item = (Value<'a>, Value<'a>);

    /// The next key and its value.
    fn next(&mut self) -> Option<(Value<'a>, Value<'a>)> {
        let key = self.entries.next()?;
        let value = self.entries.next()?;
        Some((Value::of_node(self.doc, key), Value::of_node(self.doc, value)))
    }
}

impl<'a> Value<'a> {
    /// The value of a node, for display. A node is the kind of a value and its position in the message.
    pub(super) fn of_node(doc: Doc<'a>, node: Node) -> Self {
        if let Some(int) = doc.int_value(node) {
            return Self::Int(int);
        }
        if let Some(text) = doc.string_bytes(node) {
            return std::str::from_utf8(text).map_or(Self::Other("text that is not UTF-8"), Self::Str);
        }
        if let Some(items) = doc.list_items(node) {
            return Self::List(List { doc, items });
        }
        if let Some(entries) = doc.dict_entries(node) {
            return Self::Map(Map { doc, entries });
        }
        match node {
            Node::Nil => Self::Null,
            Node::Bool(value) => Self::Bool(value),
            Node::Float(at) => pickle::read_float(doc.bytes, at as usize).map_or(Self::Null, Self::Float),
            Node::Bytes(at) | Node::Array(at) => pickle::payload_range(doc.bytes, at as usize)
                .and_then(|payload| doc.bytes.get(payload))
                .map_or(Self::Other("bytes"), Self::Bytes),
            Node::Words { .. } => doc.array_words(node).map_or(Self::Other("bytes"), Self::Bytes),
            Node::Pack(at) => Self::of_packed(doc.bytes, at as usize),
            Node::Long(_) => Self::Other("an integer that exceeds 64 bits"),
            Node::Global(_) => Self::Other("a class"),
            _ => Self::Other("an object"),
        }
    }

    /// The value at `at` in a msgpack message, which is no integer of 64 bits, string, list or map.
    fn of_packed(message: &'a [u8], at: usize) -> Self {
        match msgpack::read_head(message, at) {
            Some((Head::Nil, _)) => Self::Null,
            Some((Head::Bool(value), _)) => Self::Bool(value),
            Some((Head::Float(value), _)) => Self::Float(value),
            Some((Head::Bin { end }, start)) => message.get(start..end).map_or(Self::Other("bytes"), Self::Bytes),
            Some((Head::Ext { .. }, _)) => Self::Other("an extension"),
            _ => Self::Other("an integer that exceeds 64 bits"),
        }
    }
}
