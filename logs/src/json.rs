//! An engine's own JSON records.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use smallvec::SmallVec;

const TIMES: [&str; 4] = ["time", "ts", "timestamp", "@timestamp"];

/// Use of a field of a JSON object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Field {
    /// Not read.
    Skipped,
    /// Its value is read.
    Value,
    /// It is an object, whose fields are read like those beside it.
    Object,
}

/// Fields of a line's JSON object that its readers need. All others, prompts and outputs among them, are skipped.
#[derive(Debug, Default)]
pub struct Record<'l> {
    /// Each with its value as JSON.
    fields: SmallVec<[(Text<'l>, &'l str); 16]>,
}

#[derive(Debug, Deserialize)]
struct Text<'l>(#[serde(borrow)] Cow<'l, str>);

impl<'l> Record<'l> {
    /// Parses an object; `uses` decides about its fields. `None` if the message is something else.
    pub fn read(message: &'l str, uses: &dyn Fn(&str) -> Field) -> Option<Self> {
        let mut record = Self::default();
        record.fill(message, uses)?;
        Some(record)
    }

    fn fill(&mut self, json: &'l str, uses: &dyn Fn(&str) -> Field) -> Option<()> {
        let mut parser = serde_json::Deserializer::from_str(json.starts_with('{').then_some(json)?);
        parser.deserialize_map(Fill(self, uses)).ok()?;
        parser.end().ok()
    }

    /// Whether the object contains the field.
    pub fn has(&self, field: &str) -> bool {
        self.value(field).is_some()
    }

    /// Value of a field that is a string.
    pub fn text(&self, field: &str) -> Option<Cow<'l, str>> {
        text(self.value(field)?)
    }

    /// Values of a field that is a string or a list of strings.
    pub fn texts(&self, field: &str) -> Vec<Cow<'l, str>> {
        let Some(json) = self.value(field) else { return Vec::new() };
        match text(json) {
            Some(text) => vec![text],
            None => serde_json::from_str::<Vec<Text<'l>>>(json)
                .map_or_else(|_| Vec::new(), |texts| texts.into_iter().map(|text| text.0).collect()),
        }
    }

    /// Value of a field that is true or false.
    pub fn flag(&self, field: &str) -> Option<bool> {
        self.value(field)?.parse().ok()
    }

    /// Value of a field that is a number.
    pub fn number(&self, field: &str) -> Option<f64> {
        self.value(field)?.parse().ok()
    }

    fn value(&self, field: &str) -> Option<&'l str> {
        self.fields.iter().find(|known| known.0.0 == field).map(|known| known.1)
    }

    /// The timestamp as text.
    pub(super) fn time(&self) -> Option<&'l str> {
        let time = self.fields.iter().find(|known| TIMES.contains(&&*known.0.0));
        time.map(|known| known.1.trim_matches('"'))
    }
}

fn text(json: &str) -> Option<Cow<'_, str>> {
    serde_json::from_str::<Text<'_>>(json).ok().map(|text| text.0)
}

/// Fills a record from an object.
struct Fill<'r, 'l>(&'r mut Record<'l>, &'r dyn Fn(&str) -> Field);

impl<'l> Visitor<'l> for Fill<'_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        let Self(record, uses) = self;
        while let Some(key) = map.next_key::<Text<'l>>()? {
            let field = &*key.0;
            let used = if TIMES.contains(&field) { Field::Value } else { uses(field) };
            match used {
                Field::Skipped => drop(map.next_value::<IgnoredAny>()?),
                Field::Value => record.fields.push((key, map.next_value::<&RawValue>()?.get())),
                // Any other value has no fields.
                Field::Object => drop(record.fill(map.next_value::<&RawValue>()?.get(), uses)),
            }
        }
        Ok(())
    }
}
