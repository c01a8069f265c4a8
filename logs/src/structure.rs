//! Records inside JSON: any string that holds a known line, any object that is an engine's own record, and the time beside or around each.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::{Deserializer as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::clock::{Clock, Stamp, ZoneSource};
use super::envelope::better;
use super::json::Record;
use super::recognise::Recogniser;

/// Maximum depth of nested values.
const DEPTH: usize = 24;
/// Maximum length of a time, in bytes.
const TIME_BYTES: usize = 48;

/// A record found in a JSON value.
#[derive(Debug)]
pub(super) struct Found<'l> {
    pub(super) content: Content<'l>,
    /// Time beside the record, or else of the nearest enclosing object that has one.
    pub(super) stamp: Option<Stamp>,
}

#[derive(Debug)]
pub(super) enum Content<'l> {
    /// A string that holds a known line.
    Text(Cow<'l, str>),
    /// An engine's own record.
    Record(Box<Record<'l>>),
}

/// Searches a JSON value for records.
pub(super) struct Search<'s, 'l> {
    pub(super) recogniser: &'s Recogniser,
    pub(super) clock: &'s mut Clock,
    pub(super) found: Vec<Found<'l>>,
}

/// A time in an object. The one of the lowest rank counts.
struct Candidate {
    rank: Rank,
    stamp: Stamp,
}

/// Order of the times in an object: those whose key names a time, then those with a zone, then the earliest: records are received and
/// ingested later.
type Rank = (KeyKind, bool, u64);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum KeyKind {
    /// `timestamp`, `eventTime`, `ts`.
    Time,
    /// `startTime`, or a key that says nothing about time.
    Other,
}

/// Start of the JSON in a line whose first mark is at `mark`.
pub(super) fn start_of_json(line: &str, mark: usize) -> Option<usize> {
    let blank = line.len() - line.trim_start().len();
    if line[blank..].starts_with(['{', '[']) && is_json_start(&line[blank..]) {
        return Some(blank);
    }
    let prefix = &line.as_bytes()[..mark];
    memchr::memchr_iter(b'{', prefix).find(|&at| prefix.get(at + 1) == Some(&b'"'))
}

/// Whether the text starts like an object, or like an array of values: `[2026-01-18` is none.
fn is_json_start(text: &str) -> bool {
    let inside = text.trim_start_matches(|c: char| c == '[' || c.is_whitespace());
    inside.starts_with('{') || (inside.len() < text.len() && inside.starts_with('"'))
}

impl<'l> Search<'_, 'l> {
    /// Searches a value. Skips values without a mark: they are prompts, outputs and labels.
    pub(super) fn value(&mut self, json: &'l str, depth: usize) {
        if depth > DEPTH || self.recogniser.find(json.as_bytes()).is_none() {
            return;
        }
        match json.as_bytes().first() {
            Some(b'{') => self.object(json, depth),
            Some(b'[') => self.array(json, depth),
            Some(b'"') => {
                if let Ok(Text(text)) = serde_json::from_str(json) {
                    self.found.push(Found { content: Content::Text(text), stamp: None });
                }
            }
            _ => {}
        }
    }

    /// Searches an object. An engine's own record is not searched further, because it holds prompts.
    fn object(&mut self, json: &'l str, depth: usize) {
        if let Some(record) = self.recogniser.parse_record(json) {
            return self.found.push(Found { content: Content::Record(Box::new(record)), stamp: None });
        }
        let first = self.found.len();
        let mut times = Times::default();
        let visitor = Members { search: self, times: &mut times, depth };
        // The value is known to be valid.
        let _ = serde_json::Deserializer::from_str(json).deserialize_map(visitor);
        self.set_times(first, &times);
    }

    fn array(&mut self, json: &'l str, depth: usize) {
        let first = self.found.len();
        let mut times = Times::default();
        let visitor = Members { search: self, times: &mut times, depth };
        let _ = serde_json::Deserializer::from_str(json).deserialize_seq(visitor);
        self.set_times(first, &times);
    }

    fn set_times(&mut self, first: usize, times: &Times) {
        let Some(best) = &times.best else { return };
        for found in &mut self.found[first..] {
            found.stamp = found.stamp.or(Some(best.stamp));
        }
    }
}

#[derive(Default)]
struct Times {
    best: Option<Candidate>,
}

impl Times {
    fn enter(&mut self, kind: KeyKind, json: &str, clock: &mut Clock) {
        let Some(stamp) = whole_time(json, kind, clock) else { return };
        let rank = (kind, stamp.zone == ZoneSource::Options, stamp.wall_ns);
        if self.best.as_ref().is_none_or(|best| rank < best.rank) {
            self.best = Some(Candidate { rank, stamp });
        }
    }
}

/// Parses a string or number that is a time and nothing else. A number is one only if its key names a time.
fn whole_time(json: &str, kind: KeyKind, clock: &mut Clock) -> Option<Stamp> {
    if json.len() > TIME_BYTES {
        return None;
    }
    let text = json.trim_matches('"').trim();
    let is_date = text.as_bytes().iter().any(|byte| matches!(byte, b'-' | b'/' | b' '));
    if !is_date && kind == KeyKind::Other {
        return None;
    }
    let (stamp, rest) = clock.read(text.as_bytes())?;
    rest.is_empty().then_some(stamp)
}

/// Whether the key names the time of a record: `@timestamp`, `eventTime`, `timeUnixNano`.
fn kind_of_key(key: &str) -> KeyKind {
    const NAMES: [&str; 8] = ["time", "timestamp", "ts", "t", "date", "datetime", "asctime", "stamp"];
    /// Words of times that are not the record's.
    const OTHERS: [&str; 9] =
        ["start", "started", "created", "creation", "monotonic", "boot", "modified", "expires", "end"];
    let mut names_time = false;
    for word in words_of_key(key) {
        let word = word.to_ascii_lowercase();
        if OTHERS.contains(&word.as_str()) {
            return KeyKind::Other;
        }
        names_time |= NAMES.contains(&word.as_str());
    }
    if names_time { KeyKind::Time } else { KeyKind::Other }
}

/// Splits a key at punctuation and before capitals: `event_time`, `eventTime`.
fn words_of_key(key: &str) -> impl Iterator<Item = &str> {
    key.split(|c: char| !c.is_ascii_alphanumeric()).flat_map(|part| {
        let bytes = part.as_bytes();
        let is_start = |at: usize| at > 0 && bytes[at].is_ascii_uppercase() && bytes[at - 1].is_ascii_lowercase();
        let starts = (0..=bytes.len()).filter(move |&at| at == bytes.len() || is_start(at));
        let mut from = 0;
        starts.map(move |to| {
            let word = &part[from..to];
            from = to;
            word
        })
    })
}

#[derive(Deserialize)]
struct Text<'l>(#[serde(borrow)] Cow<'l, str>);

/// Searches the members of an object or array, and gathers the times among them.
struct Members<'m, 's, 'l> {
    search: &'m mut Search<'s, 'l>,
    times: &'m mut Times,
    depth: usize,
}

impl<'l> Members<'_, '_, 'l> {
    fn enter(&mut self, kind: KeyKind, value: &'l str) {
        if matches!(value.as_bytes().first(), Some(b'"' | b'0'..=b'9')) {
            self.times.enter(kind, value, self.search.clock);
        }
        self.search.value(value, self.depth + 1);
    }
}

impl<'l> Visitor<'l> for Members<'_, '_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_map<A: MapAccess<'l>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<Text<'l>>()? {
            let value = map.next_value::<&'l RawValue>()?.get();
            self.enter(kind_of_key(&key.0), value);
        }
        Ok(())
    }

    /// Loki's `["1768722900330146000", line]`: a time that has no key.
    fn visit_seq<A: SeqAccess<'l>>(mut self, mut values: A) -> Result<(), A::Error> {
        while let Some(value) = values.next_element::<&'l RawValue>()? {
            self.enter(KeyKind::Time, value.get());
        }
        Ok(())
    }
}

/// Time of a record inside a line: its own, or the one around it.
pub(super) fn time_of_record(record: &Record<'_>, outer: Option<Stamp>, clock: &mut Clock) -> Option<Stamp> {
    let own = record.time().and_then(|time| clock.read(time.as_bytes()));
    better(outer, own.map(|own| own.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_name_the_time_of_a_record_are_known() {
        let times =
            ["time", "@timestamp", "ts", "TimeGenerated", "__REALTIME_TIMESTAMP", "timeUnixNano", "receiveTimestamp"];
        for key in times.into_iter().chain(["date", "asctime", "event_time", "t"]) {
            assert!(kind_of_key(key) == KeyKind::Time, "{key}");
        }
        for key in ["message", "startTime", "container_start_time", "__MONOTONIC_TIMESTAMP", "update", "timeout_ms", ""]
        {
            assert!(kind_of_key(key) == KeyKind::Other, "{key}");
        }
    }

    #[test]
    fn json_starts_with_an_object_or_an_array_of_values() {
        for (line, at) in [
            ("{\"a\":1}", Some(0)),
            ("  [{\"a\":1}]", Some(2)),
            ("[[\"a\"]]", Some(0)),
            ("app-1  | {\"a\":1}", Some(9)),
            ("[2026-01-18 07:55:00] x", None),
            ("x {pod=\"a\"} y", None),
        ] {
            assert_eq!(start_of_json(line, line.len()), at, "{line}");
        }
    }
}
