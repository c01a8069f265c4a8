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
    fn write(&self, buf: &mut Vec<u8>);
}

/// Appends any serializable value.
fn push_value(buf: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    // Writing to a vector cannot fail, and no map with keys other than strings is written here.
    let written = serde_json::to_writer(&mut *buf, value);
    debug_assert!(written.is_ok(), "{written:?}");
}

/// Appends a text. Copies it if nothing needs escaping.
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

macro_rules! values {
    ($buf:ident, $value:ident: $push:expr; $($type:ty),+) => {$(
        impl Json for $type {
            /// Appends an object; `fill` adds its fields.
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
    fn write(&self, buf: &mut Vec<u8>) {
        match self {
            Some(value) => value.write(buf),
            None => buf.extend_from_slice(b"null"),
        }
    }
}

/// Separates the next field or element from the previous one.
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
macro_rules! fields {
    ($object:expr, $of:expr, $($name:ident),+) => {{ $($object.put(stringify!($name), &$of.$name);)+ }};
}

pub(super) use fields;

impl<'a> Object<'a> {
    /// Appends an object to `buf`; `fill` adds its fields.
    pub(super) fn write(buf: &'a mut Vec<u8>, fill: impl FnOnce(&mut Object<'_>)) {
        buf.push(b'{');
        fill(&mut Object { json: buf });
        buf.push(b'}');
    }

    /// Encodes fields of an object for [`Self::append`].
    pub(super) fn fields(fill: impl FnOnce(&mut Object<'_>)) -> Vec<u8> {
        let mut buf = Vec::new();
        fill(&mut Object { json: &mut buf });
        buf
    }

    /// Adds fields encoded by [`Self::fields`].
    pub(super) fn append(&mut self, fields: &[u8]) -> &mut Self {
        if !fields.is_empty() {
            push_separator(self.json);
            self.json.extend_from_slice(fields);
        }
        self
    }

    /// Appends the name of a field, after a comma if it is not the first.
    #[inline]
    fn key(&mut self, name: &str) {
        // Reserve space for most values as well.
        self.json.reserve(name.len() + 32);
        push_separator(self.json);
        self.json.push(b'"');
        self.json.extend_from_slice(name.as_bytes());
        self.json.extend_from_slice(b"\":");
    }

    /// Adds a field; `null` for `None`.
    #[inline]
    pub(super) fn put(&mut self, name: &str, value: impl Json) -> &mut Self {
        self.key(name);
        value.write(self.json);
        self
    }

    /// Adds a field that is absent for `None`.
    pub(super) fn known(&mut self, name: &str, value: Option<impl Json>) -> &mut Self {
        if let Some(value) = value {
            self.put(name, value);
        }
        self
    }

    /// Adds an integer as a string, as OTLP/JSON requires for 64 bits.
    pub(super) fn int_text(&mut self, name: &str, value: u64) -> &mut Self {
        self.put(name, itoa::Buffer::new().format(value))
    }

    /// Adds nanoseconds as microseconds with up to three decimals.
    pub(super) fn micros(&mut self, name: &str, ns: u64) -> &mut Self {
        self.put(name, ns / 1_000);
        let rest = ns % 1_000;
        if rest > 0 {
            // A float of many microseconds would lose these digits.
            let digits = [b'.', b'0' + (rest / 100) as u8, b'0' + (rest / 10 % 10) as u8, b'0' + (rest % 10) as u8];
            self.json.extend_from_slice(&digits);
        }
        self
    }

    /// Adds a number as a hex string, as in `"0x1f"`.
    pub(super) fn hex(&mut self, name: &str, value: u64) -> &mut Self {
        self.key(name);
        // Writing to a vector cannot fail.
        let _ = write!(self.json, "\"{value:#x}\"");
        self
    }

    /// Adds a value with a name that may need escaping.
    pub(super) fn named(&mut self, name: &str, value: &Value) {
        push_separator(self.json);
        push_value(self.json, name);
        self.json.push(b':');
        push_value(self.json, value);
    }

    /// Adds a field with an object, to which `fill` adds the fields.
    pub(super) fn object(&mut self, name: &str, fill: impl FnOnce(&mut Object<'_>)) -> &mut Self {
        self.key(name);
        Object::write(self.json, fill);
        self
    }

    /// Appends a field with an array.
    pub(super) fn array(&mut self, name: &str, fill: impl FnOnce(&mut Array<'_>)) -> &mut Self {
        self.key(name);
        self.json.push(b'[');
        fill(&mut Array { json: self.json });
        self.json.push(b']');
        self
    }
}

pub(super) struct Array<'a> {
    json: &'a mut Vec<u8>,
}

impl Array<'_> {
    /// Adds an object, to which `fill` adds the fields.
    pub(super) fn object(&mut self, fill: impl FnOnce(&mut Object<'_>)) -> &mut Self {
        push_separator(self.json);
        Object::write(self.json, fill);
        self
    }

    /// Adds elements to those written to `buf` by earlier calls.
    pub(super) fn append<T>(buf: &mut Vec<u8>, fill: impl FnOnce(&mut Array<'_>) -> T) -> T {
        fill(&mut Array { json: buf })
    }

    /// Adds elements encoded by [`Self::append`].
    pub(super) fn encoded(&mut self, elements: &[u8]) {
        if !elements.is_empty() {
            push_separator(self.json);
            self.json.extend_from_slice(elements);
        }
    }
}

/// Buffer size at which data is written out, in bytes.
const FLUSH: usize = 64 * 1024;

/// Sequence of objects: JSON Lines, or the elements of one array.
pub(super) struct ObjectStream<'w> {
    out: Box<dyn Write + 'w>,
    buf: Vec<u8>,
    objects: u64,
    array: bool,
    written: io::Result<()>,
}

impl<'w> ObjectStream<'w> {
    /// Writes one object per line.
    pub(super) fn lines(out: Box<dyn Write + 'w>) -> Self {
        Self { out, buf: Vec::with_capacity(2 * FLUSH), objects: 0, array: false, written: Ok(()) }
    }

    /// Writes one array with an element per line.
    pub(super) fn array(out: Box<dyn Write + 'w>) -> Self {
        Self { array: true, ..Self::lines(out) }
    }

    /// Writes an object. A failure is returned by the next [`Self::written`].
    pub(super) fn object(&mut self, fill: impl FnOnce(&mut Object<'_>)) {
        if self.array {
            self.buf.extend_from_slice(if self.objects == 0 { b"[\n" } else { b",\n" });
        }
        Object::write(&mut self.buf, fill);
        if !self.array {
            self.buf.push(b'\n');
        }
        self.objects += 1;
        // After a failure, nothing more is written until the caller has seen it.
        if self.buf.len() >= FLUSH && self.written.is_ok() {
            self.written = self.out.write_all(&self.buf);
            self.buf.clear();
        }
    }

    /// First failure since the last call.
    pub(super) fn written(&mut self) -> io::Result<()> {
        std::mem::replace(&mut self.written, Ok(()))
    }

    /// Closes the array and writes out all data.
    pub(super) fn finish(&mut self) -> io::Result<()> {
        if self.array {
            self.buf.extend_from_slice(if self.objects == 0 { b"[]\n" } else { b"\n]\n" });
        }
        self.flush()
    }

    /// Writes out all data.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.written()?;
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
            o.micros("ts", 12_345_006).micros("whole", 5_000).int_text("wall", 18);
            o.object("args", |a| {
                a.put("on", true).put("share", 0.5);
            });
            o.array("list", |l| {
                l.object(|_| {}).object(|_| {});
            });
            let more = Object::fields(|o| {
                o.put("a", 1_u32).put("b", 2_u32);
            });
            o.append(&more).append(&[]);
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
        ObjectStream::array(Box::new(&mut out)).finish().expect("a vector");
        assert_eq!(serde_json::from_slice::<Value>(&out).expect("JSON"), serde_json::json!([]));
    }

    proptest! {
        #[test]
        fn any_text_and_number_round_trips(text: String, name: String, n: u64, ns in 0_u64..1 << 60) {
            let line = written(|o| {
                o.put("text", &text).put("n", n).micros("us", ns).hex("hex", n);
                o.named(&name, &Value::Null);
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
