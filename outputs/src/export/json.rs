//! JSON written directly into a buffer. Fields keep their order, and `serde_json` escapes text.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;

use trace::detect::Severity;
use trace::engine::{Mode, Waiter};
use trace::event::{
    AnswerEnd, AnswerFinish, AwayState, DispatchKind, Finish, Kind, MissedCause, PairMessageKind, ThreadPart,
    ToolCallOutcome, UnknownArrival,
};
use trace::ledger::UnjudgedCause;

/// A value of a field.
pub(super) trait Json {
    /// Appends the value to `buf`.
    fn write(&self, buf: &mut Vec<u8>);
}

/// Appends a value as JSON.
fn push_value(buf: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    // Writing to a vector cannot fail, and no map with keys other than strings is written here.
    let written = serde_json::to_writer(&mut *buf, value);
    debug_assert!(written.is_ok(), "{written:?}");
}

/// Appends a text in quotes. Copies it if nothing needs escaping, which is faster than `serde_json`.
fn push_text(buf: &mut Vec<u8>, text: &str) {
    // Counts over the whole text instead of stopping early, so that the compiler can vectorise the loop.
    let escaped = text.bytes().filter(|byte| *byte < b' ' || matches!(byte, b'"' | b'\\'));
    if escaped.count() == 0 {
        buf.reserve(text.len() + 2);
        buf.push(b'"');
        buf.extend_from_slice(text.as_bytes());
        buf.push(b'"');
    } else {
        push_value(buf, text);
    }
}

/// Implements [`Json`] for types whose values `$push` appends.
macro_rules! values {
    ($buf:ident, $value:ident: $push:expr; $($type:ty),+) => {$(
        impl Json for $type {
            #[inline]
            fn write(&self, $buf: &mut Vec<u8>) {
                let $value = self;
                $push;
            }
        }
    )+};
}

values! { buf, value: push_value(buf, value); u8, u16, u32, u64, f64, bool, [i64], Vec<u64>, Vec<f64>, BTreeMap<String, Value> }
values! { buf, value: push_text(buf, value); str, String, Box<str>, Cow<'_, str> }
values! {
    buf, value: push_text(buf, value.as_str());
    AnswerEnd, AnswerFinish, AwayState, DispatchKind, PairMessageKind, Finish, Kind, MissedCause, Mode, Severity, ThreadPart, ToolCallOutcome, UnjudgedCause, UnknownArrival, Waiter
}

impl<T: Json + ?Sized> Json for &T {
    fn write(&self, buf: &mut Vec<u8>) {
        (**self).write(buf);
    }
}

impl<T: Json> Json for Option<T> {
    /// Appends the value, or `null` for `None`.
    fn write(&self, buf: &mut Vec<u8>) {
        match self {
            Some(value) => value.write(buf),
            None => buf.extend_from_slice(b"null"),
        }
    }
}

/// Appends a comma unless the next field or element is the first one of its object or array.
fn push_separator(buf: &mut Vec<u8>) {
    if !matches!(buf.last(), None | Some(b'{' | b'[')) {
        buf.push(b',');
    }
}

/// An object under construction. Field names are constants that need no escaping.
pub(super) struct Object<'a> {
    json: &'a mut Vec<u8>,
}

/// Adds fields of a value under their own names.
macro_rules! put_fields {
    ($object:expr, $of:expr, $($name:ident),+) => {{ $($object.put(stringify!($name), &$of.$name);)+ }};
}

pub(super) use put_fields;

impl<'a> Object<'a> {
    /// Appends an object to `buf`; `fill` adds its fields.
    pub(super) fn write(buf: &'a mut Vec<u8>, fill: impl FnOnce(&mut Object<'_>)) {
        buf.push(b'{');
        fill(&mut Object { json: buf });
        buf.push(b'}');
    }

    /// Encodes fields of an object, without its braces, for [`Self::append_fields`].
    pub(super) fn encode_fields(fill: impl FnOnce(&mut Object<'_>)) -> Vec<u8> {
        let mut buf = Vec::new();
        fill(&mut Object { json: &mut buf });
        buf
    }

    /// Adds fields encoded by [`Self::encode_fields`].
    pub(super) fn append_fields(&mut self, fields: &[u8]) -> &mut Self {
        if !fields.is_empty() {
            push_separator(self.json);
            self.json.extend_from_slice(fields);
        }
        self
    }

    /// Appends the name of a field and a colon, behind a comma if it is not the first field.
    #[inline]
    fn push_name(&mut self, name: &str) {
        // Reserve space for most values as well.
        self.json.reserve(name.len() + 32);
        push_separator(self.json);
        self.json.push(b'"');
        self.json.extend_from_slice(name.as_bytes());
        self.json.extend_from_slice(b"\":");
    }

    /// Adds a field. A value of `None` is written as `null`.
    #[inline]
    pub(super) fn put(&mut self, name: &str, value: impl Json) -> &mut Self {
        self.push_name(name);
        value.write(self.json);
        self
    }

    /// Adds a field, or nothing if the value is `None`.
    pub(super) fn put_if_known(&mut self, name: &str, value: Option<impl Json>) -> &mut Self {
        if let Some(value) = value {
            self.put(name, value);
        }
        self
    }

    /// Adds an integer as a string, as OTLP/JSON requires for 64 bits.
    pub(super) fn put_int_text(&mut self, name: &str, value: u64) -> &mut Self {
        self.put(name, itoa::Buffer::new().format(value))
    }

    /// Adds nanoseconds as microseconds with up to three decimals.
    pub(super) fn put_ns_as_micros(&mut self, name: &str, ns: u64) -> &mut Self {
        self.put(name, ns / 1_000);
        let rest_ns = ns % 1_000;
        if rest_ns > 0 {
            // The decimals follow the whole microseconds as text, since a float of many microseconds would lose these digits.
            self.json.push(b'.');
            for digit in [rest_ns / 100, rest_ns / 10 % 10, rest_ns % 10] {
                self.json.push(b'0' + digit as u8);
            }
        }
        self
    }

    /// Adds a number as a hex string, as in `"0x1f"`.
    pub(super) fn put_hex(&mut self, name: &str, value: u64) -> &mut Self {
        self.push_name(name);
        // Writing to a vector cannot fail.
        let _ = write!(self.json, "\"{value:#x}\"");
        self
    }

    /// Adds a value with a name that may need escaping.
    pub(super) fn put_escaped(&mut self, name: &str, value: &Value) {
        push_separator(self.json);
        push_value(self.json, name);
        self.json.push(b':');
        push_value(self.json, value);
    }

    /// Adds a field with an object, to which `fill` adds the fields.
    pub(super) fn put_object(&mut self, name: &str, fill: impl FnOnce(&mut Object<'_>)) -> &mut Self {
        self.push_name(name);
        Object::write(self.json, fill);
        self
    }

    /// Adds a field with an array, to which `fill` adds the elements.
    pub(super) fn put_array(&mut self, name: &str, fill: impl FnOnce(&mut Array<'_>)) -> &mut Self {
        self.push_name(name);
        self.json.push(b'[');
        fill(&mut Array { json: self.json });
        self.json.push(b']');
        self
    }
}

/// An array under construction.
pub(super) struct Array<'a> {
    json: &'a mut Vec<u8>,
}

impl Array<'_> {
    /// Adds an object, to which `fill` adds the fields.
    pub(super) fn add_object(&mut self, fill: impl FnOnce(&mut Object<'_>)) -> &mut Self {
        push_separator(self.json);
        Object::write(self.json, fill);
        self
    }

    /// Appends the elements that `fill` adds to `buf`, which may have elements already, for [`Self::append_encoded_elements`]. Returns the
    /// result of `fill`.
    pub(super) fn encode_elements<T>(buf: &mut Vec<u8>, fill: impl FnOnce(&mut Array<'_>) -> T) -> T {
        fill(&mut Array { json: buf })
    }

    /// Adds elements encoded by [`Self::encode_elements`].
    pub(super) fn append_encoded_elements(&mut self, elements: &[u8]) {
        if !elements.is_empty() {
            push_separator(self.json);
            self.json.extend_from_slice(elements);
        }
    }
}

/// Size of the buffer, in bytes, from which on data is written out.
const FLUSH_BYTES: usize = 64 * 1024;

/// Sequence of objects: JSON Lines, or the elements of one array.
pub(super) struct ObjectStream<'w> {
    out: Box<dyn Write + 'w>,
    buf: Vec<u8>,
    /// Number of objects so far.
    objects: u64,
    is_array: bool,
    /// First failure that the caller has not seen.
    write_result: io::Result<()>,
}

impl<'w> ObjectStream<'w> {
    /// Writes one object per line.
    pub(super) fn as_lines(out: Box<dyn Write + 'w>) -> Self {
        Self { out, buf: Vec::with_capacity(2 * FLUSH_BYTES), objects: 0, is_array: false, write_result: Ok(()) }
    }

    /// Writes one array with an element per line.
    pub(super) fn as_array(out: Box<dyn Write + 'w>) -> Self {
        Self { is_array: true, ..Self::as_lines(out) }
    }

    /// Adds an object to the buffer, and writes the buffer out when it is full. Keeps an error of that for [`Self::take_write_result`].
    pub(super) fn write_object(&mut self, fill: impl FnOnce(&mut Object<'_>)) {
        if self.is_array {
            // The first object opens the array.
            self.buf.extend_from_slice(if self.objects == 0 { b"[\n" } else { b",\n" });
        }
        Object::write(&mut self.buf, fill);
        if !self.is_array {
            self.buf.push(b'\n');
        }
        self.objects += 1;
        // After a failure, nothing more is written until the caller has seen it.
        if self.buf.len() >= FLUSH_BYTES && self.write_result.is_ok() {
            self.write_result = self.out.write_all(&self.buf);
            self.buf.clear();
        }
    }

    /// Returns the first failure since the last call. After it, data is written again.
    pub(super) fn take_write_result(&mut self) -> io::Result<()> {
        std::mem::replace(&mut self.write_result, Ok(()))
    }

    /// Closes the array, if the objects are elements of one, and writes out all data.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        if self.is_array {
            // Only the first object opens the array.
            self.buf.extend_from_slice(if self.objects == 0 { b"[]\n" } else { b"\n]\n" });
        }
        self.flush()
    }

    /// Writes out all data. Returns an earlier failure instead, if the caller has not seen it.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.take_write_result()?;
        self.out.write_all(&self.buf)?;
        self.buf.clear();
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(fill: impl FnOnce(&mut Object<'_>)) -> String {
        let mut buf = Vec::new();
        Object::write(&mut buf, fill);
        String::from_utf8(buf).expect("JSON is UTF-8")
    }

    #[test]
    fn fields_keep_their_order_and_none_is_null() {
        let line = written(|o| {
            o.put("rid", "a\"b\n").put("n", 7_u32).put("none", None::<u64>);
            o.put_ns_as_micros("ts", 12_345_006).put_ns_as_micros("whole", 5_000).put_int_text("wall", 18);
            o.put_object("args", |a| {
                a.put("on", true).put("share", 0.5);
            });
            o.put_array("list", |l| {
                l.add_object(|_| {}).add_object(|_| {});
            });
            let more = Object::encode_fields(|o| {
                o.put("a", 1_u32).put("b", 2_u32);
            });
            o.append_fields(&more).append_fields(&[]);
        });
        assert_eq!(
            line,
            "{\"rid\":\"a\\\"b\\n\",\"n\":7,\"none\":null,\"ts\":12345.006,\"whole\":5,\"wall\":\"18\",\
             \"args\":{\"on\":true,\"share\":0.5},\"list\":[{},{}],\"a\":1,\"b\":2}"
        );
    }

    #[test]
    fn an_array_is_valid_when_closed_even_empty() {
        let mut out = Vec::new();
        ObjectStream::as_array(Box::new(&mut out)).finish().expect("a vector");
        assert_eq!(serde_json::from_slice::<Value>(&out).expect("JSON"), serde_json::json!([]));
    }

    proptest! {
        #[test]
        fn any_text_and_number_round_trips(text: String, name: String, n: u64, ns in 0_u64..1 << 60) {
            let line = written(|o| {
                o.put("text", &text).put("n", n).put_ns_as_micros("us", ns).put_hex("hex", n);
                o.put_escaped(&name, &Value::Null);
            });
            let read: serde_json::Map<String, Value> = serde_json::from_str(&line).expect("JSON");
            prop_assert!(read.contains_key(&name));
            if !["text", "n", "us", "hex"].contains(&name.as_str()) {
                prop_assert_eq!(read["text"].as_str(), Some(text.as_str()));
                prop_assert_eq!(read["n"].as_u64(), Some(n));
                prop_assert_eq!(read["hex"].as_str(), Some(&*format!("{n:#x}")));
                let us = read["us"].as_f64().expect("a number");
                prop_assert!((us - ns as f64 / 1e3).abs() <= us.abs() * 1e-12);
            }
        }
    }
}
