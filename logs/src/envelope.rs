//! Text before a record: the timestamps of `kubectl logs --timestamps`, a container runtime or a collector, and the logger's own.

use super::clock::{Clock, Stamp, ZoneSource};
use super::text::split_once;

/// Maximum delay of a container runtime in passing on a line, in nanoseconds.
const PASSED_ON_NS: u64 = 5_000_000_000;
/// A timestamp must start within this many bytes.
const HEAD: usize = 96;
/// A timestamp must start after at most this many words.
const PREFIX_WORDS: usize = 4;

/// Timestamps are searched in this many bytes before a record.
const BEFORE: usize = 1_024;

/// Maximum length of a text that is kept for comparison with the next one, in bytes.
const REMEMBERED: usize = 256;

/// Timestamp and tag before a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Prefix<'l> {
    pub(super) stamp: Option<Stamp>,
    /// `DP0 TP0`: tag that the engine's logger writes after its timestamp; empty if none.
    pub(super) rank: &'l str,
}

/// The last text before a record and what it says. Many lines in a row begin with the same second.
#[derive(Debug, Default)]
pub(super) struct PrefixMemo {
    text: String,
    stamp: Option<Stamp>,
    /// Where the tag is in the text.
    rank_at: usize,
    rank_bytes: usize,
    /// Offset of the file's timestamps at that time.
    offset_s: Option<i32>,
}

impl PrefixMemo {
    /// Like [`read_prefix`].
    pub(super) fn read<'l>(&mut self, before: &'l str, clock: &mut Clock) -> Prefix<'l> {
        if self.text == before && !before.is_empty() && self.offset_s == clock.derived_offset() {
            return Prefix { stamp: self.stamp, rank: &before[self.rank_at..][..self.rank_bytes] };
        }
        let prefix = read_prefix(before, clock);
        if before.len() <= REMEMBERED {
            self.text.clear();
            self.text.push_str(before);
            (self.stamp, self.offset_s) = (prefix.stamp, clock.derived_offset());
            self.rank_bytes = prefix.rank.len();
            self.rank_at = before.find(prefix.rank).unwrap_or(0);
        }
        prefix
    }
}

/// Parses the text before a record. The last date is the logger's own; an earlier timestamp comes from a collector.
fn read_prefix<'l>(before: &'l str, clock: &mut Clock) -> Prefix<'l> {
    let own = last_date(before, clock);
    let outer = match &own {
        Some(own) if own.at == 0 => None,
        Some(own) => first_stamp(&before[..own.at], clock),
        None => first_stamp(before, clock),
    };
    let own_stamp = own.as_ref().map(|own| own.stamp);
    Prefix { stamp: better(outer, own_stamp), rank: own.map_or("", |own| own.rank) }
}

/// First timestamp near the beginning of `text`.
pub(super) fn first_stamp(text: &str, clock: &mut Clock) -> Option<Stamp> {
    Some(head(text, clock)?.stamp)
}

/// A date in the text before a record.
struct Dated<'l> {
    stamp: Stamp,
    /// Start of the date, or of the bracket around it.
    at: usize,
    rank: &'l str,
}

/// Finds the last timestamp that starts with a year.
fn last_date<'l>(text: &'l str, clock: &mut Clock) -> Option<Dated<'l>> {
    let bytes = text.as_bytes();
    let mut at = bytes.len().saturating_sub(BEFORE);
    let mut last = None;
    while let Some(offset) = bytes[at..].iter().position(u8::is_ascii_digit) {
        at += offset;
        let opens = at == 0 || begins_word(bytes[at - 1]);
        let is_dated = opens && matches!(bytes.get(at + 4), Some(b'-' | b'/'));
        if let Some((stamp, rest)) = is_dated.then(|| clock.read(&bytes[at..])).flatten() {
            let is_bracketed = at > 0 && bytes[at - 1] == b'[';
            let after = &text[text.len() - rest.len()..];
            let rank = if is_bracketed { rank(after).0 } else { "" };
            last = Some(Dated { stamp, at: at - usize::from(is_bracketed), rank });
            at = bytes.len() - rest.len();
        } else {
            let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            at += digits;
        }
    }
    last
}

/// Whether a timestamp may follow the byte.
fn begins_word(byte: u8) -> bool {
    matches!(byte, b' ' | b'[' | b'=' | b'"' | b'(' | b'\t' | b':' | b',' | b'|' | b'>')
}

/// A timestamp and the text behind it.
struct Head<'l> {
    stamp: Stamp,
    rest: &'l str,
}

/// Timestamp of a line of any form: its logger's, or that of the collector in front of it.
pub(super) fn line_stamp(line: &str, clock: &mut Clock) -> Option<Stamp> {
    let mut rest = line.trim_start();
    if rest.starts_with("[pod/")
        && let Some((_, after)) = rest.split_once("] ")
    {
        rest = after.trim_start();
    }
    let outer = head(rest, clock)?;
    let own = head(without_runtime(outer.rest), clock).map(|own| own.stamp);
    better(Some(outer.stamp), own)
}

/// Selects the more precise timestamp: the line's own, unless it is imprecise and the outer one is not.
pub(super) fn better(outer: Option<Stamp>, own: Option<Stamp>) -> Option<Stamp> {
    let (Some(outer), Some(own)) = (outer, own) else {
        return own.or(outer);
    };
    let imprecise = own.coarse || own.zone == ZoneSource::Options;
    let times = own.wall_ns.saturating_sub(1_000_000_000)..=own.wall_ns.saturating_add(PASSED_ON_NS);
    let same_time = times.contains(&outer.wall_ns);
    let use_outer = imprecise && (own.zone == ZoneSource::Options || same_time) && outer.zone != ZoneSource::Options;
    Some(if use_outer { outer } else { own })
}

/// Texts that begin a message, so that times behind them are not the line's.
const MESSAGE: [&[u8]; 2] = [b"rid=", b"obj="];

/// Finds a timestamp near the beginning, after `[`, a level or a key.
fn head<'l>(text: &'l str, clock: &mut Clock) -> Option<Head<'l>> {
    let bytes = text.as_bytes();
    let (mut begins, mut words) = (true, 0);
    for (at, &byte) in bytes.iter().enumerate().take(HEAD) {
        // These characters start the message, so the prefix has ended.
        words += usize::from(byte == b' ');
        if words > PREFIX_WORDS || byte == b'{' || MESSAGE.iter().any(|begin| bytes[at..].starts_with(begin)) {
            return None;
        }
        let may_begin = byte.is_ascii_digit() || byte.is_ascii_uppercase();
        if let Some((stamp, rest)) = (begins && may_begin).then(|| clock.read(&bytes[at..])).flatten() {
            let rest = &text[text.len() - rest.len()..];
            return Some(Head { stamp, rest: rest.trim_start_matches([' ', ']', '"', '\t']) });
        }
        begins = begins_word(byte);
    }
    None
}

/// Removes `stdout F `, which container runtimes write.
fn without_runtime(text: &str) -> &str {
    let stream = text.strip_prefix("stdout ").or_else(|| text.strip_prefix("stderr "));
    let tag = stream.and_then(|s| s.strip_prefix("F ").or_else(|| s.strip_prefix("P ")));
    tag.unwrap_or(text)
}

/// Splits ` DP0 TP0] message`.
fn rank(text: &str) -> (&str, &str) {
    const LONGEST: usize = 40;
    match split_once(text, "]") {
        Some((rank, message)) if rank.len() <= LONGEST && !rank.contains('[') => (rank.trim(), message),
        _ => ("", text),
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use proptest::prelude::*;

    use super::*;

    fn stamp_of(line: &str) -> Option<String> {
        let zone = TimeZone::fixed(jiff::tz::offset(-8));
        let stamp = line_stamp(line, &mut Clock::new(zone, 2026, 1))?;
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
            let found = read_prefix(before, &mut Clock::new(zone, 2026, 1));
            let stamp = found.stamp.unwrap();
            let found_at = jiff::Timestamp::from_nanosecond(i128::from(stamp.wall_ns)).unwrap();
            assert_eq!((found_at.to_string().as_str(), found.rank), (at, rank), "{before}");
        }
        let long = format!("{} {} [2026-01-18 07:55:00] ", "pod-name".repeat(20), "container".repeat(20));
        assert!(read_prefix(&long, &mut Clock::new(TimeZone::UTC, 2026, 1)).stamp.is_some());
        assert_eq!(read_prefix("request 1768722900 of 4711-22 ", &mut Clock::new(TimeZone::UTC, 2026, 1)).rank, "");
    }

    proptest! {
        #[test]
        fn parsing_any_line_never_panics(line: String, stamped in "\\[?2026-01-18[ T]07:5[0-9]:[0-5][0-9][^0-9]{0,40}") {
            let mut clock = Clock::new(TimeZone::UTC, 2026, 1);
            let _ = (line_stamp(&line, &mut clock), read_prefix(&line, &mut clock));
            let found = line_stamp(&stamped, &mut clock);
            prop_assert!(found.is_some() || stamped.len() < 21);
        }
    }
}
