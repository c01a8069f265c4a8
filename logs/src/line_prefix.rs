//! Text before a record: the timestamps of `kubectl logs --timestamps`, a container runtime or a collector, and the logger's own.

use super::text::split_once;
use super::timestamp::{LogTimestamp, TimestampParser, ZoneSource};

/// How much earlier the time of a container runtime may be than that of the line itself, whose clocks may differ.
const CLOCK_TOLERANCE_NS: u64 = 1_000_000_000;
/// Maximum delay of a container runtime in passing on a line, in nanoseconds.
const LONGEST_RUNTIME_DELAY_NS: u64 = 5_000_000_000;
/// A timestamp must start within this many bytes.
const LEADING_BYTES: usize = 96;
/// A timestamp must start after at most this many words.
const MAX_PREFIX_WORDS: usize = 4;

/// Timestamps are searched in this many bytes before a record.
const SEARCHED_BYTES: usize = 1_024;

/// Maximum length of a text that is kept for comparison with the next one, in bytes.
const REMEMBERED_BYTES: usize = 256;

/// Timestamp and tag before a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinePrefix<'l> {
    /// The line's own timestamp, or that of a collector. `None` if neither is found.
    pub(super) stamp: Option<LogTimestamp>,
    /// `DP0 TP0`: tag that the engine's logger writes after its timestamp; empty if none.
    pub(super) rank: &'l str,
}

/// The last text before a record and what it says. Many lines in a row begin with the same second.
#[derive(Debug, Default)]
pub(super) struct LinePrefixMemo {
    text: String,
    stamp: Option<LogTimestamp>,
    /// Index of the tag in the text.
    rank_at: usize,
    /// Length of the tag.
    rank_bytes: usize,
    /// Offset of the file's timestamps at that time.
    offset_s: Option<i32>,
}

impl LinePrefixMemo {
    /// Parses the text before a record: a timestamp, and behind it the rank, which is a tag such as `DP0 TP0` for the process. Returns the
    /// previous result if the text is the same as in the previous call.
    pub(super) fn read_prefix<'l>(
        &mut self,
        text_before_record: &'l str,
        parser: &mut TimestampParser,
    ) -> LinePrefix<'l> {
        // An unused memo has an empty text, which must match nothing.
        let is_same_text = self.text == text_before_record && !text_before_record.is_empty();
        // The same text means another time once a line has shown the file's UTC offset.
        if is_same_text && self.offset_s == parser.derived_offset_s() {
            return LinePrefix { stamp: self.stamp, rank: &text_before_record[self.rank_at..][..self.rank_bytes] };
        }
        let prefix = parse_prefix(text_before_record, parser);
        if text_before_record.len() <= REMEMBERED_BYTES {
            self.remember_prefix(text_before_record, &prefix, parser.derived_offset_s());
        }
        prefix
    }

    /// Remembers what the text before a record says while the file has this UTC offset.
    fn remember_prefix(&mut self, text_before_record: &str, prefix: &LinePrefix<'_>, offset_s: Option<i32>) {
        self.text.clear();
        self.text.push_str(text_before_record);
        self.stamp = prefix.stamp;
        self.offset_s = offset_s;
        self.rank_bytes = prefix.rank.len();
        self.rank_at = text_before_record.find(prefix.rank).unwrap_or(0);
    }
}

/// Parses the text before a record. The last date in it is the engine's own, with the rank of the process behind it. A log collector may
/// have added a timestamp before that date. Without a date, returns the first timestamp of any form, and no rank.
fn parse_prefix<'l>(text_before_record: &'l str, parser: &mut TimestampParser) -> LinePrefix<'l> {
    let Some(own) = find_last_date(text_before_record, parser) else {
        return LinePrefix { stamp: first_timestamp(text_before_record, parser), rank: "" };
    };
    // In most lines the engine's date comes first, because no collector has added anything.
    let outer = if own.at == 0 { None } else { first_timestamp(&text_before_record[..own.at], parser) };
    LinePrefix { stamp: more_precise_timestamp(outer, Some(own.stamp)), rank: own.rank }
}

/// First timestamp near the beginning of `text`.
pub(super) fn first_timestamp(text: &str, parser: &mut TimestampParser) -> Option<LogTimestamp> {
    Some(find_leading_timestamp(text, parser)?.stamp)
}

/// A date in the text before a record.
struct DateInText<'l> {
    stamp: LogTimestamp,
    /// Index of the start of the date, or of the bracket around it.
    at: usize,
    /// Tag that follows the date in its bracket; empty if none.
    rank: &'l str,
}

/// Finds the last timestamp that starts with a year, and the process's rank behind it. `None` without such a timestamp.
fn find_last_date<'l>(text: &'l str, parser: &mut TimestampParser) -> Option<DateInText<'l>> {
    let bytes = text.as_bytes();
    // The logger's own date stands close to the record.
    let mut index = bytes.len().saturating_sub(SEARCHED_BYTES);
    let mut last_date = None;
    while let Some(offset) = bytes[index..].iter().position(u8::is_ascii_digit) {
        index += offset;
        if may_be_date(bytes, index)
            && let Some((stamp, rest)) = parser.parse_timestamp_at_start(&bytes[index..])
        {
            let end = bytes.len() - rest.len();
            last_date = Some(date_in_text(text, index, end, stamp));
            index = end;
        } else {
            // Past the whole number, since no date begins inside one.
            index += bytes[index..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        }
    }
    last_date
}

/// Describes the date between two indices of a text, with the bracket before it and the rank behind it if there are any.
fn date_in_text(text: &str, start: usize, end: usize, stamp: LogTimestamp) -> DateInText<'_> {
    let is_bracketed = start > 0 && text.as_bytes()[start - 1] == b'[';
    if is_bracketed {
        DateInText { stamp, at: start - 1, rank: rank_before_bracket(&text[end..]) }
    } else {
        // Only inside the brackets of the date does a rank follow it.
        DateInText { stamp, at: start, rank: "" }
    }
}

/// Whether a date may begin at this digit: only a year is followed by a separator after four digits, which spares most numbers the parser.
fn may_be_date(bytes: &[u8], at: usize) -> bool {
    let is_word_start = at == 0 || is_word_separator(bytes[at - 1]);
    is_word_start && matches!(bytes.get(at + 4), Some(b'-' | b'/'))
}

/// Whether the byte separates words, so that a timestamp may begin behind it.
fn is_word_separator(byte: u8) -> bool {
    matches!(byte, b' ' | b'[' | b'=' | b'"' | b'(' | b'\t' | b':' | b',' | b'|' | b'>')
}

/// A timestamp and the text behind it.
struct LeadingTimestamp<'l> {
    stamp: LogTimestamp,
    rest: &'l str,
}

/// Timestamp of a line of any form. It is the line's own or the one that a log collector added in front, whichever is more precise. `None`
/// without either.
pub(super) fn timestamp_of_line(line: &str, parser: &mut TimestampParser) -> Option<LogTimestamp> {
    let outer = find_leading_timestamp(strip_pod_name(line.trim_start()), parser)?;
    let own = find_leading_timestamp(strip_runtime_tag(outer.rest), parser).map(|own| own.stamp);
    more_precise_timestamp(Some(outer.stamp), own)
}

/// Removes `[pod/NAME/CONTAINER] `, with which `kubectl logs --prefix` begins each line. Returns a text without it as it is.
fn strip_pod_name(text: &str) -> &str {
    if !text.starts_with("[pod/") {
        return text;
    }
    text.split_once("] ").map_or(text, |(_, after)| after.trim_start())
}

/// Selects the more precise of two timestamps of a line: `own_time`, which the process wrote, and `collector_time`, which a log collector
/// wrote in front of the line. `None` if there is neither. The line's own time is preferred, unless only the collector's time has a zone,
/// or the collector's time shows fractions of the same second.
pub(super) fn more_precise_timestamp(
    collector_time: Option<LogTimestamp>,
    own_time: Option<LogTimestamp>,
) -> Option<LogTimestamp> {
    let (Some(collector_time), Some(own_time)) = (collector_time, own_time) else { return own_time.or(collector_time) };
    // Without a zone, the collector's time may be hours off.
    if collector_time.zone == ZoneSource::Assumed {
        return Some(own_time);
    }
    // Without a zone, the line's own time may be hours off, so the two are not compared.
    if own_time.zone == ZoneSource::Assumed {
        return Some(collector_time);
    }
    // The collector's time is finer than whole seconds. It helps only if the collector read the line at once.
    let is_collector_more_precise = own_time.is_whole_second && may_have_been_read_at_once(own_time, collector_time);
    Some(if is_collector_more_precise { collector_time } else { own_time })
}

/// Whether a log collector may have read a line right after the process wrote it. `own_time` is the time of the process, and
/// `collector_time` that of the collector. `false` if the collector must have read an old line.
fn may_have_been_read_at_once(own_time: LogTimestamp, collector_time: LogTimestamp) -> bool {
    let earliest_ns = own_time.wall_ns.saturating_sub(CLOCK_TOLERANCE_NS);
    let latest_ns = own_time.wall_ns.saturating_add(LONGEST_RUNTIME_DELAY_NS);
    (earliest_ns..=latest_ns).contains(&collector_time.wall_ns)
}

/// Texts that begin a message, so that times behind them are not the line's.
const MESSAGE_STARTS: [&[u8]; 2] = [b"rid=", b"obj="];

/// Finds a timestamp near the beginning, after `[`, a level or a key. `None` if there is none before the message.
fn find_leading_timestamp<'l>(text: &'l str, parser: &mut TimestampParser) -> Option<LeadingTimestamp<'l>> {
    let bytes = text.as_bytes();
    let mut is_word_start = true;
    let mut words_before = 0;
    for (at, &byte) in bytes.iter().enumerate().take(LEADING_BYTES) {
        words_before += usize::from(byte == b' ');
        // Times inside the message are not the line's.
        if words_before > MAX_PREFIX_WORDS || begins_message(&bytes[at..]) {
            return None;
        }
        // A timestamp begins with a number or the name of a month.
        let may_begin_timestamp = is_word_start && (byte.is_ascii_digit() || byte.is_ascii_uppercase());
        if may_begin_timestamp && let Some((stamp, rest)) = parser.parse_timestamp_at_start(&bytes[at..]) {
            let rest = &text[text.len() - rest.len()..];
            return Some(LeadingTimestamp { stamp, rest: rest.trim_start_matches([' ', ']', '"', '\t']) });
        }
        is_word_start = is_word_separator(byte);
    }
    None
}

/// Whether the message of a line begins here, with JSON or a known key.
fn begins_message(text: &[u8]) -> bool {
    text.starts_with(b"{") || MESSAGE_STARTS.iter().any(|start| text.starts_with(start))
}

/// Removes `stdout F ` or the like, which container runtimes write between their timestamp and the line. Returns a text without it as it
/// is.
fn strip_runtime_tag(text: &str) -> &str {
    let Some(tagged) = text.strip_prefix("stdout ").or_else(|| text.strip_prefix("stderr ")) else {
        return text;
    };
    // `F` marks a full line, `P` a part of one.
    tagged.strip_prefix("F ").or_else(|| tagged.strip_prefix("P ")).unwrap_or(text)
}

/// The rank of a process before the first closing bracket: `DP0 TP0` in ` DP0 TP0] message`; empty without one.
fn rank_before_bracket(text: &str) -> &str {
    const LONGEST_RANK: usize = 40;
    let Some((rank, _)) = split_once(text, "]") else { return "" };
    let is_rank = rank.len() <= LONGEST_RANK && !rank.contains('[');
    if is_rank { rank.trim() } else { "" }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use proptest::prelude::*;

    use super::*;

    fn stamp_of(line: &str) -> Option<String> {
        let zone = TimeZone::fixed(jiff::tz::offset(-8));
        let stamp = timestamp_of_line(line, &mut TimestampParser::new(zone, 2026, 1))?;
        Some(jiff::Timestamp::from_nanosecond(i128::from(stamp.wall_ns)).unwrap().to_string())
    }

    #[test]
    fn the_timestamp_of_a_line_follows_its_prefix() {
        for row in [
            "2026-01-18T07:55:00.3Z [TOK recv] x | 2026-01-18T07:55:00.3Z",
            "[2026-01-18 07:55:00 DP0 TP3] hello | 2026-01-18T15:55:00Z",
            "[2026-01-18 07:55:00] hello [x] y | 2026-01-18T15:55:00Z",
            "[2026-01-18 07:55:00.250] hello | 2026-01-18T15:55:00.25Z",
            "INFO 2026-01-18 07:55:00,330 mod.py:12] hello | 2026-01-18T15:55:00.33Z",
            "time=\"2026-01-18T07:55:00Z\" hello | 2026-01-18T07:55:00Z",
            // The runtime's timestamp is more precise and has a zone.
            "2026-01-18T07:55:00.4Z [2026-01-18 07:55:00 TP0] hi | 2026-01-18T07:55:00.4Z",
            "2026-01-18T07:55:00.4Z stderr F [2026-01-18 07:55:00] hi | 2026-01-18T07:55:00.4Z",
            // The line's own timestamp is more precise.
            "2026-01-18T07:55:00.4Z 2026-01-18T07:55:00.3999Z hi | 2026-01-18T07:55:00.3999Z",
            "[pod/decode-0/main] 2026-01-18T07:55:00.3Z hi | 2026-01-18T07:55:00.3Z",
            "Jan 18 07:55:00 node engine[12]: hi | 2026-01-18T15:55:00Z",
            "[2026-01-18 07:55:00] Finish: obj=GenerateReqInput(received_time=1766581510.1, rid='a') | 2026-01-18T15:55:00Z",
        ] {
            let (line, at) = row.split_once(" | ").unwrap();
            assert_eq!(stamp_of(line).as_deref(), Some(at), "{line}");
        }
        assert_eq!(stamp_of("no stamp at all"), None);
        assert_eq!(
            stamp_of("Receive: rid=a 2026-01-18T07:55:00Z"),
            None,
            "a time inside the message is not the line's"
        );
    }

    #[test]
    fn the_last_date_before_a_record_is_its_own() {
        for (before, at, rank) in [
            ("[2026-01-18 07:55:00 DP0 TP3] ", "2026-01-18T15:55:00Z", "DP0 TP3"),
            ("2026-01-18T07:55:00.4Z stderr F [2026-01-18 07:55:00 TP0] ", "2026-01-18T07:55:00.4Z", "TP0"),
            ("2026-01-18T07:55:00.4Z  INFO scheduler: ", "2026-01-18T07:55:00.4Z", ""),
            ("Jan 18, 2026 @ 08:55:00.804    [2026-01-18 07:55:00] ", "2026-01-18T15:55:00Z", ""),
            ("Jan 18, 2026 @ 08:55:00.804    ", "2026-01-18T16:55:00.804Z", ""),
            ("18/Jan/2026:07:55:00 +0000 [2026-01-18 07:55:00] ", "2026-01-18T07:55:00Z", ""),
            ("Decode batch, #queue-req: 4[2026-01-18 07:55:00 TP0] ", "2026-01-18T15:55:00Z", "TP0"),
            ("100%|##| 4/4 [00:01<00:00][2026-01-18 07:55:00 TP0] ", "2026-01-18T15:55:00Z", "TP0"),
            ("1768722900.25 gpu-node-01 sglang[4711]: [2026-01-18 07:55:00] ", "2026-01-18T07:55:00.25Z", ""),
        ] {
            let zone = TimeZone::fixed(jiff::tz::offset(-8));
            let found = parse_prefix(before, &mut TimestampParser::new(zone, 2026, 1));
            let stamp = found.stamp.unwrap();
            let found_at = jiff::Timestamp::from_nanosecond(i128::from(stamp.wall_ns)).unwrap();
            assert_eq!((found_at.to_string().as_str(), found.rank), (at, rank), "{before}");
        }
        let long = format!("{} {} [2026-01-18 07:55:00] ", "pod-name".repeat(20), "container".repeat(20));
        assert!(parse_prefix(&long, &mut TimestampParser::new(TimeZone::UTC, 2026, 1)).stamp.is_some());
        assert_eq!(
            parse_prefix("request 1768722900 of 4711-22 ", &mut TimestampParser::new(TimeZone::UTC, 2026, 1)).rank,
            ""
        );
    }

    proptest! {
        #[test]
        fn parsing_any_line_never_panics(line: String, stamped in "\\[?2026-01-18[ T]07:5[0-9]:[0-5][0-9][^0-9]{0,40}") {
            let mut parser = TimestampParser::new(TimeZone::UTC, 2026, 1);
            let _ = (timestamp_of_line(&line, &mut parser), parse_prefix(&line, &mut parser));
            let found = timestamp_of_line(&stamped, &mut parser);
            prop_assert!(found.is_some() || stamped.len() < 21);
        }
    }
}
