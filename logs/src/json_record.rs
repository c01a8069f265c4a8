//! An engine's own JSON records.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use smallvec::SmallVec;

/// Names of fields that hold the time of a record.
const TIMESTAMP_FIELDS: [&str; 4] = ["time", "ts", "timestamp", "@timestamp"];

/// Use of a field of a JSON object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FieldUse {
    /// Not read.
    Skipped,
    /// Its value is read.
    Value,
    /// It is an object, whose fields are read like those beside it.
    Object,
}

/// Fields of a line's JSON object that its readers need. All others, prompts and outputs among them, are skipped.
#[derive(Debug, Default)]
pub struct JsonRecord<'l> {
    fields: SmallVec<[RecordField<'l>; 16]>,
}

/// A field that was read.
#[derive(Debug)]
struct RecordField<'l> {
    name: Cow<'l, str>,
    /// Its value as JSON.
    json: &'l str,
}

/// A string, which is copied only if it has escapes.
#[derive(Debug, Deserialize)]
pub(super) struct JsonString<'l>(#[serde(borrow)] pub(super) Cow<'l, str>);

impl<'l> JsonString<'l> {
    /// The text without quotes and escapes.
    fn into_text(self) -> Cow<'l, str> {
        let Self(text) = self;
        text
    }
}

impl<'l> JsonRecord<'l> {
    /// Parses a message that is a JSON object. `use_of` says for the name of each field whether it is read. `None` if the message is
    /// something else.
    pub fn parse(message: &'l str, use_of: &dyn Fn(&str) -> FieldUse) -> Option<Self> {
        let mut record = Self::default();
        record.read_fields(message, use_of)?;
        Some(record)
    }

    /// Adds the fields of a JSON object for which `use_of` has a use. `None` if the text is no object.
    fn read_fields(&mut self, json: &'l str, use_of: &dyn Fn(&str) -> FieldUse) -> Option<()> {
        // Most messages are plain text. This check is cheaper than the error that the parser would create for them.
        if !json.starts_with('{') {
            return None;
        }
        let mut parser = serde_json::Deserializer::from_str(json);
        parser.deserialize_map(FieldReader { record: self, use_of }).ok()?;
        // A message with text behind the object is no object.
        parser.end().ok()
    }

    /// Whether the object contains the field.
    pub fn has_field(&self, field: &str) -> bool {
        self.json_of(field).is_some()
    }

    /// Value of a field that is a string. `None` for any other value.
    pub fn text_of(&self, field: &str) -> Option<Cow<'l, str>> {
        parse_string(self.json_of(field)?)
    }

    /// Values of a field that is a string or a list of strings. Empty for any other value.
    pub fn string_values_of_field(&self, field: &str) -> Vec<Cow<'l, str>> {
        let Some(json) = self.json_of(field) else { return Vec::new() };
        if let Some(text) = parse_string(json) {
            return vec![text];
        }
        // Any other value gives an empty list.
        let texts: Vec<JsonString<'l>> = serde_json::from_str(json).unwrap_or_default();
        texts.into_iter().map(JsonString::into_text).collect()
    }

    /// Value of a field that is true or false. `None` for any other value.
    pub fn flag_of(&self, field: &str) -> Option<bool> {
        self.json_of(field)?.parse().ok()
    }

    /// Value of a field that is a number. `None` for any other value.
    pub fn number_of(&self, field: &str) -> Option<f64> {
        self.json_of(field)?.parse().ok()
    }

    /// Value of a field as JSON. `None` if the record lacks it.
    fn json_of(&self, field: &str) -> Option<&'l str> {
        self.fields.iter().find(|known| known.name == field).map(|known| known.json)
    }

    /// The first field that holds a time, as text without quotes.
    pub(super) fn timestamp_text(&self) -> Option<&'l str> {
        let time = self.fields.iter().find(|known| TIMESTAMP_FIELDS.contains(&&*known.name));
        time.map(|known| known.json.trim_matches('"'))
    }
}

/// The text of a JSON string. `None` for any other value.
fn parse_string(json: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str(json).ok().map(JsonString::into_text)
}

/// Fills a record from an object.
struct FieldReader<'r, 'l> {
    record: &'r mut JsonRecord<'l>,
    use_of: &'r dyn Fn(&str) -> FieldUse,
}

impl<'l> Visitor<'l> for FieldReader<'_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    /// Keeps the fields for which `use_of` knows a use, and those with the name of a time. Skips the values of all others.
    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<JsonString<'l>>()? {
            let name = key.into_text();
            let is_time = TIMESTAMP_FIELDS.contains(&&*name);
            let field_use = if is_time { FieldUse::Value } else { (self.use_of)(&name) };
            match field_use {
                // The parser must still read past the value.
                FieldUse::Skipped => drop(map.next_value::<IgnoredAny>()?),
                FieldUse::Value => {
                    let json = map.next_value::<&RawValue>()?.get();
                    self.record.fields.push(RecordField { name, json });
                }
                FieldUse::Object => {
                    // The fields of the inner object are kept like those of the record.
                    let json = map.next_value::<&RawValue>()?.get();
                    // Fails if the value is no object. It then has no fields to keep, which is no error.
                    let _ = self.record.read_fields(json, self.use_of);
                }
            }
        }
        Ok(())
    }
}
