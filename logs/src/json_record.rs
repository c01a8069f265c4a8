//! An engine's own JSON records.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use smallvec::SmallVec;

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
    /// Each with its value as JSON.
    fields: SmallVec<[(JsonString<'l>, &'l str); 16]>,
}

#[derive(Debug, Deserialize)]
pub(super) struct JsonString<'l>(#[serde(borrow)] pub(super) Cow<'l, str>);

impl<'l> JsonRecord<'l> {
    /// Parses an object; `use_of` decides about its fields. `None` if the message is something else.
    pub fn parse(message: &'l str, use_of: &dyn Fn(&str) -> FieldUse) -> Option<Self> {
        let mut record = Self::default();
        record.read_fields(message, use_of)?;
        Some(record)
    }

    /// Reads the fields of a JSON object for which `use_of` has a use. `None` if the text is no object.
    fn read_fields(&mut self, json: &'l str, use_of: &dyn Fn(&str) -> FieldUse) -> Option<()> {
        // Most messages are text, for which the parser would prepare an error.
        if !json.starts_with('{') {
            return None;
        }
        let mut parser = serde_json::Deserializer::from_str(json);
        parser.deserialize_map(FieldReader { record: self, use_of }).ok()?;
        parser.end().ok()
    }

    /// Whether the object contains the field.
    pub fn has_field(&self, field: &str) -> bool {
        self.json_of(field).is_some()
    }

    /// Value of a field that is a string.
    pub fn text_of(&self, field: &str) -> Option<Cow<'l, str>> {
        parse_string(self.json_of(field)?)
    }

    /// Values of a field that is a string or a list of strings.
    pub fn texts_of(&self, field: &str) -> Vec<Cow<'l, str>> {
        let Some(json) = self.json_of(field) else { return Vec::new() };
        if let Some(text) = parse_string(json) {
            return vec![text];
        }
        // Another value has no texts.
        let texts: Vec<JsonString<'l>> = serde_json::from_str(json).unwrap_or_default();
        texts.into_iter().map(|text| text.0).collect()
    }

    /// Value of a field that is true or false.
    pub fn flag_of(&self, field: &str) -> Option<bool> {
        self.json_of(field)?.parse().ok()
    }

    /// Value of a field that is a number.
    pub fn number_of(&self, field: &str) -> Option<f64> {
        self.json_of(field)?.parse().ok()
    }

    fn json_of(&self, field: &str) -> Option<&'l str> {
        self.fields.iter().find(|known| known.0.0 == field).map(|known| known.1)
    }

    /// The timestamp as text.
    pub(super) fn timestamp_text(&self) -> Option<&'l str> {
        let time = self.fields.iter().find(|known| TIMESTAMP_FIELDS.contains(&&*known.0.0));
        time.map(|known| known.1.trim_matches('"'))
    }
}

fn parse_string(json: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str::<JsonString<'_>>(json).ok().map(|text| text.0)
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

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<JsonString<'l>>()? {
            let field = &*key.0;
            let field_use = if TIMESTAMP_FIELDS.contains(&field) { FieldUse::Value } else { (self.use_of)(field) };
            match field_use {
                FieldUse::Skipped => drop(map.next_value::<IgnoredAny>()?),
                FieldUse::Value => self.record.fields.push((key, map.next_value::<&RawValue>()?.get())),
                // Any other value has no fields, which is no error.
                FieldUse::Object => drop(self.record.read_fields(map.next_value::<&RawValue>()?.get(), self.use_of)),
            }
        }
        Ok(())
    }
}
