//! Records inside JSON: any string that holds a known line, any object that is an engine's own record, and the time beside or around each.

use std::borrow::Cow;

use serde::de::{Deserializer as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::json_record::{JsonRecord, JsonString};
use super::line_prefix::more_precise_timestamp;
use super::recogniser::Recogniser;
use super::timestamp::{LogTimestamp, TimestampParser, ZoneSource};

/// Maximum depth of nested values.
const MAX_DEPTH: usize = 24;
/// Maximum length of a time, in bytes.
const MAX_TIME_BYTES: usize = 48;

/// A record found in a JSON value.
#[derive(Debug)]
pub(super) struct FoundRecord<'l> {
    pub(super) content: RecordContent<'l>,
    /// Time beside the record, or else of the nearest enclosing object that has one.
    pub(super) stamp: Option<LogTimestamp>,
}

/// What was found.
#[derive(Debug)]
pub(super) enum RecordContent<'l> {
    /// A string that holds a known line.
    Line(Cow<'l, str>),
    /// An engine's own record.
    EngineRecord(Box<JsonRecord<'l>>),
}

/// Searches a JSON value for records.
pub(super) struct JsonSearch<'s, 'l> {
    pub(super) recogniser: &'s Recogniser,
    pub(super) parser: &'s mut TimestampParser,
    /// Records found so far.
    pub(super) found: Vec<FoundRecord<'l>>,
}

/// A time in an object. The one of the lowest rank is the time of the records in it.
struct TimeCandidate {
    rank: TimeRank,
    stamp: LogTimestamp,
}

/// Order of the times in an object, by its fields from the first to the last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct TimeRank {
    /// Those whose key names a time come first.
    key: KeyKind,
    lacks_zone: bool,
    /// Records are received and ingested after they were written.
    wall_ns: u64,
}

/// What the key of a value says about it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum KeyKind {
    /// `timestamp`, `eventTime`, `ts`.
    Time,
    /// `startTime`, or a key that says nothing about time.
    Other,
}

/// Index at which the JSON of a line starts. `mark_index` is the index of the line's first mark, a text that shows a known record. The JSON
/// must start before it. `None` if there is no such JSON.
pub(super) fn find_json_start(line: &str, mark_index: usize) -> Option<usize> {
    let indent = line.len() - line.trim_start().len();
    if line[indent..].starts_with(['{', '[']) && is_json_start(&line[indent..]) {
        return Some(indent);
    }
    // If other text comes first, only `{"` starts JSON, because text may contain braces.
    let before_mark = &line.as_bytes()[..mark_index];
    memchr::memchr_iter(b'{', before_mark).find(|&at| before_mark.get(at + 1) == Some(&b'"'))
}

/// Whether the text starts like an object, or like an array of values: `[2026-01-18` is none.
fn is_json_start(text: &str) -> bool {
    let inside = text.trim_start_matches(|c: char| c == '[' || c.is_whitespace());
    inside.starts_with('{') || (inside.len() < text.len() && inside.starts_with('"'))
}

impl<'l> JsonSearch<'_, 'l> {
    /// Searches a JSON value for records, and adds them to `found`. `depth` is the number of values around it. Every known record contains
    /// a mark, which is a fixed text. A value without a mark, such as a prompt, is skipped.
    pub(super) fn search_value_for_records(&mut self, json: &'l str, depth: usize) {
        if depth > MAX_DEPTH || self.recogniser.find_mark(json.as_bytes()).is_none() {
            return;
        }
        match json.as_bytes().first() {
            Some(b'{') => self.search_object_for_records(json, depth),
            Some(b'[') => self.search_array_for_records(json, depth),
            Some(b'"') => {
                if let Ok(JsonString(text)) = serde_json::from_str(json) {
                    self.found.push(FoundRecord { content: RecordContent::Line(text), stamp: None });
                }
            }
            // Numbers and literals hold no line.
            _ => {}
        }
    }

    /// Searches an object for records, and adds them to `found`. An engine's own record is not searched further, because it holds prompts.
    fn search_object_for_records(&mut self, json: &'l str, depth: usize) {
        if let Some(record) = self.recogniser.parse_engine_record(json) {
            let content = RecordContent::EngineRecord(Box::new(record));
            self.found.push(FoundRecord { content, stamp: None });
            return;
        }
        let found_before = self.found.len();
        let mut times = TimesOfObject::default();
        let visitor = MemberVisitor { search: self, times: &mut times, depth };
        // The value is known to be valid, so this cannot fail. The visitor fills `found` and `times`.
        let _ = serde_json::Deserializer::from_str(json).deserialize_map(visitor);
        // A record may lack a time that another member of the object states.
        self.set_missing_times_of_found(found_before, &times);
    }

    /// Searches the elements of an array for records, and adds them to `found`.
    fn search_array_for_records(&mut self, json: &'l str, depth: usize) {
        let found_before = self.found.len();
        let mut times = TimesOfObject::default();
        let visitor = MemberVisitor { search: self, times: &mut times, depth };
        // The value is known to be valid, so this cannot fail. The visitor fills `found` and `times`.
        let _ = serde_json::Deserializer::from_str(json).deserialize_seq(visitor);
        self.set_missing_times_of_found(found_before, &times);
    }

    /// Gives the best time of an object or array to each record in it that has none. `found_before` is the number of records that were
    /// found before the search of this object.
    fn set_missing_times_of_found(&mut self, found_before: usize, times: &TimesOfObject) {
        let Some(best) = &times.best else { return };
        for found in &mut self.found[found_before..] {
            // A time that is nearer to the record has been set already.
            found.stamp = found.stamp.or(Some(best.stamp));
        }
    }
}

/// The times among the members of an object or array.
#[derive(Default)]
struct TimesOfObject {
    best: Option<TimeCandidate>,
}

impl TimesOfObject {
    /// Keeps the value `json` of a member if it is a time, and a better one than the best so far.
    fn keep_time_if_better(&mut self, key_kind: KeyKind, json: &str, parser: &mut TimestampParser) {
        let Some(stamp) = parse_whole_time(json, key_kind, parser) else { return };
        // The lowest rank is the best. Ranks are compared field by field: first a key that names a time, then a stated zone, then the
        // earliest time. The earliest is best because a line is written before it is collected.
        let rank = TimeRank { key: key_kind, lacks_zone: stamp.zone == ZoneSource::Assumed, wall_ns: stamp.wall_ns };
        if self.best.as_ref().is_none_or(|best| rank < best.rank) {
            self.best = Some(TimeCandidate { rank, stamp });
        }
    }
}

/// Parses a JSON string or number that is a time and nothing else. A number counts as a time only if its key names a time. `None` for any
/// other value.
fn parse_whole_time(json: &str, key_kind: KeyKind, parser: &mut TimestampParser) -> Option<LogTimestamp> {
    if json.len() > MAX_TIME_BYTES {
        return None;
    }
    let text = json.trim_matches('"').trim();
    let has_date_separator = text.as_bytes().iter().any(|byte| matches!(byte, b'-' | b'/' | b' '));
    // Digits without a separator may be any number, unless the key names a time.
    if key_kind == KeyKind::Other && !has_date_separator {
        return None;
    }
    let (stamp, rest) = parser.parse_timestamp_at_start(text.as_bytes())?;
    rest.is_empty().then_some(stamp)
}

/// Kind of a key: [`KeyKind::Time`] if it names the time of a record, as `@timestamp`, `eventTime` and `timeUnixNano` do.
fn time_kind_of_key(key: &str) -> KeyKind {
    const TIME_WORDS: [&str; 8] = ["time", "timestamp", "ts", "t", "date", "datetime", "asctime", "stamp"];
    /// Words of times that are not the record's.
    const OTHER_TIMES: [&str; 9] =
        ["start", "started", "created", "creation", "monotonic", "boot", "modified", "expires", "end"];
    let mut names_time = false;
    for word in words_of_key(key) {
        let word = word.to_ascii_lowercase();
        if OTHER_TIMES.contains(&word.as_str()) {
            return KeyKind::Other;
        }
        names_time |= TIME_WORDS.contains(&word.as_str());
    }
    if names_time { KeyKind::Time } else { KeyKind::Other }
}

/// Splits a key at punctuation and before capitals: `event_time`, `eventTime`.
fn words_of_key(key: &str) -> impl Iterator<Item = &str> {
    key.split(|c: char| !c.is_ascii_alphanumeric()).flat_map(split_before_capitals)
}

/// Splits ASCII text before each capital that follows a small letter: `eventTime` becomes `event` and `Time`.
fn split_before_capitals(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    // Each call removes the next word from `rest`.
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let mut neighbours = rest.as_bytes().windows(2);
        let last_letter = neighbours.position(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase());
        // Without a capital, the whole rest is one word.
        let word_bytes = last_letter.map_or(rest.len(), |index| index + 1);
        let (word, behind) = rest.split_at(word_bytes);
        rest = behind;
        Some(word)
    })
}

/// Searches the members of an object or array, and gathers the times among them.
struct MemberVisitor<'m, 's, 'l> {
    search: &'m mut JsonSearch<'s, 'l>,
    times: &'m mut TimesOfObject,
    depth: usize,
}

impl<'l> MemberVisitor<'_, '_, 'l> {
    /// Visits a member of an object or array: a time, or something that may hold records.
    fn search_member_for_time_or_records(&mut self, kind: KeyKind, value: &'l str) {
        // Only a string or a number can be a time.
        if matches!(value.as_bytes().first(), Some(b'"' | b'0'..=b'9')) {
            self.times.keep_time_if_better(kind, value, self.search.parser);
        }
        self.search.search_value_for_records(value, self.depth + 1);
    }
}

impl<'l> Visitor<'l> for MemberVisitor<'_, '_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object or an array")
    }

    /// Searches each value of an object. Its key shows whether it may be the time of the records beside it.
    fn visit_map<A: MapAccess<'l>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<JsonString<'l>>()? {
            let value = map.next_value::<&'l RawValue>()?.get();
            self.search_member_for_time_or_records(time_kind_of_key(&key.0), value);
        }
        Ok(())
    }

    /// Searches each element of an array. Any of them may be a time, although it has no key: Loki writes `["1768722900330146000", line]`.
    fn visit_seq<A: SeqAccess<'l>>(mut self, mut values: A) -> Result<(), A::Error> {
        while let Some(value) = values.next_element::<&'l RawValue>()? {
            self.search_member_for_time_or_records(KeyKind::Time, value.get());
        }
        Ok(())
    }
}

/// Time of a record inside a line: the record's own time or `enclosing_time`, the time around it, whichever is more precise. `None` without
/// either.
pub(super) fn time_of_record(
    record: &JsonRecord<'_>,
    enclosing_time: Option<LogTimestamp>,
    parser: &mut TimestampParser,
) -> Option<LogTimestamp> {
    let own = record.timestamp_text().and_then(|time| parser.parse_timestamp_at_start(time.as_bytes()));
    more_precise_timestamp(enclosing_time, own.map(|(stamp, _rest)| stamp))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_name_the_time_of_a_record_are_known() {
        let times =
            ["time", "@timestamp", "ts", "TimeGenerated", "__REALTIME_TIMESTAMP", "timeUnixNano", "receiveTimestamp"];
        for key in times.into_iter().chain(["date", "asctime", "event_time", "t"]) {
            assert!(time_kind_of_key(key) == KeyKind::Time, "{key}");
        }
        for key in ["message", "startTime", "container_start_time", "__MONOTONIC_TIMESTAMP", "update", "timeout_ms", ""]
        {
            assert!(time_kind_of_key(key) == KeyKind::Other, "{key}");
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
            assert_eq!(find_json_start(line, line.len()), at, "{line}");
        }
    }
}
