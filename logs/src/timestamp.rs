//! Timestamps of log lines.

use std::ops::Range;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{Offset, TimeZone};

use super::text::{parse_exact_digits, parse_fraction_ns, parse_leading_digits};

const SECOND_NS: u64 = 1_000_000_000;
/// Unit of time zone offsets, in seconds.
const QUARTER_S: i32 = 900;
/// A line is written within this time after the last event in it, in seconds.
const WRITTEN_WITHIN_S: i32 = 300;

/// Where the time zone of a timestamp comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ZoneSource {
    /// The timestamp itself.
    Timestamp,
    /// The offset that the file's own lines show.
    File,
    /// The options, or UTC.
    Assumed,
}

/// Timestamp of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogTimestamp {
    /// Nanoseconds since the Unix epoch.
    pub(super) wall_ns: u64,
    /// The timestamp has whole seconds only.
    pub(super) is_whole_second: bool,
    /// Where its time zone comes from.
    pub(super) zone: ZoneSource,
    /// The timestamp has no year.
    pub(super) is_year_assumed: bool,
}

/// Parser of timestamps.
#[derive(Debug)]
pub(super) struct TimestampParser {
    /// Zone of timestamps without one.
    zone: TimeZone,
    /// Seconds east of UTC that the file's own lines show.
    derived_offset_s: Option<i32>,
    /// Year and month of the latest possible date of a timestamp without a year.
    latest_year: i16,
    latest_month: i8,
    /// Last parsed minute, since consecutive lines are mostly from the same minute.
    last_minute: Option<StartedMinute>,
}

/// A day of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CalendarDay {
    year: u64,
    month: u64,
    day: u64,
}

/// A minute of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CalendarMinute {
    day: CalendarDay,
    hour: u64,
    minute: u64,
    /// Seconds east of UTC, if the timestamp has a zone.
    offset_s: Option<i32>,
}

impl CalendarMinute {
    /// Its start, in the zone of the timestamp; `None` if the calendar has no such minute.
    fn start_in_local_time(self) -> Option<DateTime> {
        let CalendarDay { year, month, day } = self.day;
        let date = Date::new(year as i16, month as i8, day as i8).ok()?;
        let time = jiff::civil::Time::new(self.hour as i8, self.minute as i8, 0, 0).ok()?;
        Some(DateTime::from_parts(date, time))
    }
}

/// A minute and its start since the epoch.
#[derive(Clone, Copy, Debug)]
struct StartedMinute {
    minute: CalendarMinute,
    start_ns: u64,
}

impl TimestampParser {
    /// Creates a parser that reads timestamps without a zone in `zone`. `latest_year` and `latest_month` are of the latest possible date of
    /// a timestamp without a year.
    pub(super) fn new(zone: TimeZone, latest_year: i16, latest_month: i8) -> Self {
        Self { zone, derived_offset_s: None, latest_year, latest_month, last_minute: None }
    }

    /// Seconds east of UTC that the file's own lines show, if any does.
    pub(super) fn derived_offset_s(&self) -> Option<i32> {
        self.derived_offset_s
    }

    /// Reads timestamps without a zone at this offset, in seconds east of UTC, from now on. Ignores an offset that no zone can have.
    pub(super) fn set_utc_offset_s(&mut self, seconds: i32) {
        if let Ok(offset) = Offset::from_seconds(seconds) {
            self.zone = TimeZone::fixed(offset);
            self.derived_offset_s = Some(seconds);
            // Its start was computed at the former offset.
            self.last_minute = None;
        }
    }

    /// Derives the UTC offset of the file from a line whose timestamp `stamp` has no zone. The line was written right after an event at
    /// `event_ns`. If the two times are hours apart, the zone in use is wrong by these hours. Changes nothing if they show no offset.
    pub(super) fn derive_offset_from_event(&mut self, stamp: &LogTimestamp, event_ns: u64) {
        let has_own_zone = stamp.zone == ZoneSource::Timestamp;
        // An event at exactly the time of the line has its time from the line, so it shows nothing.
        let is_same_time = stamp.wall_ns == event_ns;
        if has_own_zone || is_same_time {
            return;
        }
        let Ok(written) = Timestamp::from_second((stamp.wall_ns / SECOND_NS) as i64) else { return };
        let current_offset_s = self.zone.to_offset(written).seconds();
        let Some(offset_s) = offset_shown_by_event(event_ns, stamp.wall_ns, current_offset_s) else { return };
        if offset_s == current_offset_s {
            // The zone in use is right. It stays, because it may have daylight saving time, which a fixed offset has not.
            self.derived_offset_s = Some(offset_s);
        } else {
            self.set_utc_offset_s(offset_s);
        }
    }

    /// Parses a timestamp at the start of `text`; returns it with the text behind it. `None` if none is there.
    pub(super) fn parse_timestamp_at_start<'l>(&mut self, text: &'l [u8]) -> Option<(LogTimestamp, &'l [u8])> {
        match text.first()? {
            b'0'..=b'9' => {
                self.parse_year_first(text).or_else(|| self.parse_day_first(text)).or_else(|| parse_epoch(text))
            }
            b'A'..=b'Z' => self.parse_month_first(text),
            _ => None,
        }
    }

    /// Parses `2026-01-18T07:55:00.330146Z`, `2026-01-18 07:55:00,330`, `2026/01/18 07:55:00 +0100`. `None` for any other form.
    fn parse_year_first<'l>(&mut self, text: &'l [u8]) -> Option<(LogTimestamp, &'l [u8])> {
        let (year, rest) = parse_exact_digits(text, 4)?;
        let separator = *rest.first().filter(|byte| matches!(byte, b'-' | b'/'))?;
        let (month, rest) = parse_exact_digits(&rest[1..], 2)?;
        // The same separator stands twice.
        let (day, rest) = parse_exact_digits(rest.strip_prefix(&[separator])?, 2)?;
        let rest = rest.strip_prefix(b"T").or_else(|| rest.strip_prefix(b" "))?;
        let (time, rest) = parse_time_of_day(rest)?;
        let (offset, rest) = parse_zone_offset_s(rest);
        let stamp = self.timestamp_at(CalendarDay { year, month, day }, &time, offset)?;
        Some((stamp, rest))
    }

    /// Parses `18/Jan/2026:07:55:00 +0000`. `None` for any other form.
    fn parse_day_first<'l>(&mut self, text: &'l [u8]) -> Option<(LogTimestamp, &'l [u8])> {
        let (day, rest) = parse_exact_digits(text, 2)?;
        let (month, rest) = parse_month(rest.strip_prefix(b"/")?)?;
        let (year, rest) = parse_exact_digits(rest.strip_prefix(b"/")?, 4)?;
        let (time, rest) = parse_time_of_day(rest.strip_prefix(b":")?)?;
        let (offset, rest) = parse_zone_offset_s(rest);
        Some((self.timestamp_at(CalendarDay { year, month, day }, &time, offset)?, rest))
    }

    /// Parses `Jan 18 07:55:00` and `Jan 18, 2026 @ 07:55:00.330`. `None` for any other form.
    fn parse_month_first<'l>(&mut self, text: &'l [u8]) -> Option<(LogTimestamp, &'l [u8])> {
        // These forms have no zone.
        let offset_s = None;
        let (month, rest) = parse_month(text)?;
        let rest = rest.strip_prefix(b" ")?;
        // A second space stands before a day of one digit.
        let (day, rest) = parse_leading_digits(rest.strip_prefix(b" ").unwrap_or(rest), 2)?;
        if let Some(dated) = rest.strip_prefix(b", ") {
            let (year, rest) = parse_exact_digits(dated, 4)?;
            let (time, rest) = parse_time_of_day(rest.strip_prefix(b" @ ")?)?;
            let stamp = self.timestamp_at(CalendarDay { year, month, day }, &time, offset_s)?;
            return Some((stamp, rest));
        }
        let (time, rest) = parse_time_of_day(rest.strip_prefix(b" ")?)?;
        let year = self.assumed_year(month)?;
        let stamp = self.timestamp_at(CalendarDay { year, month, day }, &time, offset_s)?;
        Some((LogTimestamp { is_year_assumed: true, ..stamp }, rest))
    }

    /// Year of a timestamp that states none: a month after the latest possible one belongs to the previous year.
    fn assumed_year(&self, month: u64) -> Option<u64> {
        let is_previous_year = month > u64::from(self.latest_month.unsigned_abs());
        u64::try_from(self.latest_year - i16::from(is_previous_year)).ok()
    }

    /// The timestamp of a local time. Without an offset, the time is in the parser's zone. `None` if no such time exists.
    fn timestamp_at(&mut self, day: CalendarDay, time: &TimeOfDay, offset_s: Option<i32>) -> Option<LogTimestamp> {
        let minute = CalendarMinute { day, hour: time.hour, minute: time.minute, offset_s };
        let wall_ns = self.minute_start_ns(minute)?.checked_add(time.second * SECOND_NS + time.fraction_ns)?;
        let zone = if offset_s.is_some() {
            ZoneSource::Timestamp
        } else if self.derived_offset_s.is_some() {
            // Other lines of the file have shown the offset.
            ZoneSource::File
        } else {
            ZoneSource::Assumed
        };
        Some(LogTimestamp { wall_ns, is_whole_second: time.is_whole_second, zone, is_year_assumed: false })
    }

    /// Start of the minute, since the epoch. `None` if the calendar has no such minute, or it precedes the epoch.
    fn minute_start_ns(&mut self, minute: CalendarMinute) -> Option<u64> {
        // Consecutive lines are mostly of the same minute, so the last one is remembered.
        if let Some(last) = self.last_minute
            && last.minute == minute
        {
            return Some(last.start_ns);
        }
        let local = minute.start_in_local_time()?;
        let start = match minute.offset_s {
            Some(offset_s) => Offset::from_seconds(offset_s).ok()?.to_timestamp(local).ok()?,
            None => self.zone.to_timestamp(local).ok()?,
        };
        let start_ns = u64::try_from(start.as_second()).ok()?.checked_mul(SECOND_NS)?;
        self.last_minute = Some(StartedMinute { minute, start_ns });
        Some(start_ns)
    }
}

/// UTC offset of a timestamp that was written right after an event at `event_ns`. `line_ns` is the time of the line, computed with the
/// offset `current_offset_s`. `None` if the two times show no offset.
fn offset_shown_by_event(event_ns: u64, line_ns: u64, current_offset_s: i32) -> Option<i32> {
    // If the current offset is too small (too far west), the line seems to be written long after its event.
    let lag_s = whole_seconds_between(event_ns, line_ns)?;
    // The offset with which line and event would have the same time.
    let implied_offset_s = current_offset_s.checked_add(lag_s)?;
    // UTC offsets are whole quarters of an hour, of which this is the nearest.
    let offset_s = (implied_offset_s + QUARTER_S / 2).div_euclid(QUARTER_S) * QUARTER_S;
    // With the true offset, the line follows its event within minutes. A timestamp of whole seconds may seem up to a second too early.
    let delay_after_event_s = implied_offset_s - offset_s;
    let is_written_soon_after = (-1..=WRITTEN_WITHIN_S).contains(&delay_after_event_s);
    (is_written_soon_after && is_zone_offset(offset_s)).then_some(offset_s)
}

/// Seconds from one time to another, rounded down: negative if `to_ns` is earlier. `None` if they are decades apart.
fn whole_seconds_between(from_ns: u64, to_ns: u64) -> Option<i32> {
    let distance_ns = to_ns.abs_diff(from_ns);
    if to_ns > from_ns {
        i32::try_from(distance_ns / SECOND_NS).ok()
    } else {
        i32::try_from(distance_ns.div_ceil(SECOND_NS)).ok().map(i32::wrapping_neg)
    }
}

/// Parses the English abbreviation of a month at the start of `text`; returns its number, from 1, and the text behind it.
fn parse_month(text: &[u8]) -> Option<(u64, &[u8])> {
    const MONTHS: [&[u8]; 12] =
        [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];
    let (name, rest) = text.split_at_checked(3)?;
    let months_before = MONTHS.iter().position(|month| *month == name)?;
    Some((months_before as u64 + 1, rest))
}

/// Whether clocks somewhere are set to this offset, in seconds east of UTC.
fn is_zone_offset(seconds: i32) -> bool {
    /// Offsets that are no whole hours, in minutes.
    const PARTIAL_MINUTES: [i32; 13] = [-570, -210, -150, 210, 270, 330, 345, 390, 525, 570, 630, 765, 825];
    let is_whole_hour = seconds % 3_600 == 0 && (-12..=14).contains(&(seconds / 3_600));
    is_whole_hour || PARTIAL_MINUTES.contains(&(seconds / 60))
}

/// A time of day, as a timestamp states it.
struct TimeOfDay {
    hour: u64,
    minute: u64,
    second: u64,
    fraction_ns: u64,
    is_whole_second: bool,
}

/// Parses `07:55:00`, `07:55:00.330146`, `07:55:00,330` at the start of `text`; returns it with the text behind it. A leap second counts as
/// the second before it.
fn parse_time_of_day(text: &[u8]) -> Option<(TimeOfDay, &[u8])> {
    let (hour, rest) = parse_exact_digits(text, 2)?;
    let (minute, rest) = parse_exact_digits(rest.strip_prefix(b":")?, 2)?;
    let (second, rest) = parse_exact_digits(rest.strip_prefix(b":")?, 2)?;
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let whole = TimeOfDay { hour, minute, second: second.min(59), fraction_ns: 0, is_whole_second: true };
    let fraction = match rest {
        [b'.' | b',', after @ ..] => parse_fraction_ns(after),
        _ => None,
    };
    // A point or comma without digits behind it belongs to the text.
    let Some((fraction_ns, rest)) = fraction else { return Some((whole, rest)) };
    Some((TimeOfDay { fraction_ns, is_whole_second: false, ..whole }, rest))
}

/// Parses `Z`, ` UTC`, `+01:00`, `+0100`, `-08` to seconds east of UTC; returns them with the text behind it. Without a zone, returns
/// `None` and the whole text.
fn parse_zone_offset_s(text: &[u8]) -> (Option<i32>, &[u8]) {
    let trimmed = text.strip_prefix(b" ").unwrap_or(text);
    let named = trimmed.strip_prefix(b"UTC").or_else(|| trimmed.strip_prefix(b"GMT"));
    if let Some(rest) = named.or_else(|| text.strip_prefix(b"Z")) {
        return (Some(0), rest);
    }
    match parse_signed_offset(trimmed) {
        Some((offset_s, rest)) => (Some(offset_s), rest),
        None => (None, text),
    }
}

/// Parses `+01:00`, `+0100` or `-08` into seconds east of UTC; returns them with the text behind it. `None` for anything else.
fn parse_signed_offset(text: &[u8]) -> Option<(i32, &[u8])> {
    let sign = match text.first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, rest) = parse_two_digits(&text[1..])?;
    let (minutes, rest) = parse_two_digits(rest.strip_prefix(b":").unwrap_or(rest)).unwrap_or((0, rest));
    let is_longer_number = rest.first().is_some_and(u8::is_ascii_digit);
    // Kiribati has the largest offset, 14 hours.
    if hours > 14 || minutes > 59 || is_longer_number {
        return None;
    }
    Some((sign * (hours * 3_600 + minutes * 60) as i32, rest))
}

/// Parses the two digits at the start of `text`, even if more follow; returns the number and the text behind it. `None` if they are no
/// digits.
fn parse_two_digits(text: &[u8]) -> Option<(u64, &[u8])> {
    let (digits, rest) = text.split_at_checked(2)?;
    let (number, _) = parse_exact_digits(digits, 2)?;
    Some((number, rest))
}

/// From 2001 to 2096: other numbers of as many digits are no times.
const EPOCH_TIMES_NS: Range<u64> = SECOND_NS * 1_000_000_000..SECOND_NS * 4_000_000_000;

/// Unit of a time since the epoch, in nanoseconds. For times of this century, the number of digits shows the unit. `None` for any other
/// number of digits.
fn epoch_unit_ns(digit_count: usize) -> Option<u64> {
    match digit_count {
        10 => Some(SECOND_NS),
        // Milliseconds, microseconds and nanoseconds.
        13 => Some(1_000_000),
        16 => Some(1_000),
        19 => Some(1),
        _ => None,
    }
}

/// Parses `1768722900.330146`, and integer milli-, micro- and nanoseconds since the epoch; returns the time with the text behind it. `None`
/// for any other number, or one of another century.
fn parse_epoch(text: &[u8]) -> Option<(LogTimestamp, &[u8])> {
    let (number, rest) = parse_leading_digits(text, 19)?;
    let digits = text.len() - rest.len();
    let unit_ns = epoch_unit_ns(digits)?;
    let has_fraction = unit_ns == SECOND_NS && rest.starts_with(b".");
    let fraction = if has_fraction { parse_fraction_ns(&rest[1..]) } else { None };
    let (added_ns, rest) = fraction.unwrap_or((0, rest));
    let wall_ns = number.checked_mul(unit_ns)?.checked_add(added_ns)?;
    let is_in_word = rest.first().is_some_and(u8::is_ascii_alphanumeric);
    if !EPOCH_TIMES_NS.contains(&wall_ns) || is_in_word {
        return None;
    }
    let is_whole_second = unit_ns == SECOND_NS && fraction.is_none();
    let stamp = LogTimestamp { wall_ns, is_whole_second, zone: ZoneSource::Timestamp, is_year_assumed: false };
    Some((stamp, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Option<(String, String)> {
        let zone = TimeZone::fixed(jiff::tz::offset(-8));
        let (stamp, rest) = TimestampParser::new(zone, 2026, 1).parse_timestamp_at_start(text.as_bytes())?;
        let at = Timestamp::from_nanosecond(i128::from(stamp.wall_ns)).ok()?;
        Some((at.to_string(), String::from_utf8_lossy(rest).into_owned()))
    }

    #[test]
    fn all_timestamp_formats_parse() {
        for (text, at, rest) in [
            ("2026-01-18T07:55:00.330146Z [TRACE", "2026-01-18T07:55:00.330146Z", " [TRACE"),
            ("2026-01-18T07:55:00.330146123Z x", "2026-01-18T07:55:00.330146123Z", " x"),
            ("2026-01-18T08:55:00.5+01:00 x", "2026-01-18T07:55:00.5Z", " x"),
            ("2026-01-18 08:55:00 +0100 x", "2026-01-18T07:55:00Z", " x"),
            ("2026-01-18 08:55:00+01 x", "2026-01-18T07:55:00Z", " x"),
            ("2026-01-18 07:55:00,330 INFO", "2026-01-18T15:55:00.33Z", " INFO"),
            ("2026-01-18 07:55:00 TP0] x", "2026-01-18T15:55:00Z", " TP0] x"),
            ("2026-01-18 07:55:00, x", "2026-01-18T15:55:00Z", ", x"),
            ("2026/01/18 07:55:00 UTC x", "2026-01-18T07:55:00Z", " x"),
            ("Jan 18 07:55:00 host x", "2026-01-18T15:55:00Z", " host x"),
            ("Jan  8 07:55:00 host", "2026-01-08T15:55:00Z", " host"),
            ("Dec 31 07:55:00 host", "2025-12-31T15:55:00Z", " host"),
            ("Jan 18, 2026 @ 07:55:00.804    x", "2026-01-18T15:55:00.804Z", "    x"),
            ("18/Jan/2026:07:55:00 +0000 x", "2026-01-18T07:55:00Z", " x"),
            ("1768722900.330146 x", "2026-01-18T07:55:00.330146Z", " x"),
            ("1768722900 x", "2026-01-18T07:55:00Z", " x"),
            ("1768722900330 x", "2026-01-18T07:55:00.33Z", " x"),
            ("1768722900330146 x", "2026-01-18T07:55:00.330146Z", " x"),
            ("1768722900330146000 x", "2026-01-18T07:55:00.330146Z", " x"),
        ] {
            assert_eq!(read(text), Some((at.into(), rest.into())), "{text}");
        }
    }

    #[test]
    fn text_without_a_timestamp_has_none() {
        for text in [
            "",
            "2026",
            "2026-13-18 07:55:00",
            "2026-02-30 07:55:00",
            "2026-01-18 27:55:00",
            "12345 tokens",
            "99999999999 x",
            "Foo 18 07:55:00",
            "Jan 18, 2026 07:55:00",
            "18/Foo/2026:07:55:00",
            "1768722900abc",
            "0000-00-00 00:00:00",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_line_written_after_a_known_time_shows_the_offset() {
        let event_ns = 1_768_722_900_000_000_000;
        for (stamp, offset_s) in [
            ("2026-01-18 15:55:00.250", Some(28_800)),
            ("2026-01-18 13:26:10", Some(19_800)),
            ("2026-01-18 07:55:00", Some(0)),
            ("2026-01-18 02:54:59.500", Some(-18_000)),
            // No clock is set to 15 minutes, 16 minutes late is too late, and half a second early is not.
            ("2026-01-18 08:10:00", None),
            ("2026-01-18 15:39:00", None),
            ("2026-01-18 16:02:00", None),
            ("2026-01-19 15:55:00", None),
            ("2026-01-18T15:55:00Z", None),
        ] {
            let mut parser = TimestampParser::new(TimeZone::fixed(jiff::tz::offset(-3)), 2026, 1);
            let (read, _) = parser.parse_timestamp_at_start(stamp.as_bytes()).unwrap();
            parser.derive_offset_from_event(&read, event_ns);
            assert_eq!(parser.derived_offset_s(), offset_s, "{stamp}");
            let (again, _) = parser.parse_timestamp_at_start(stamp.as_bytes()).unwrap();
            assert_eq!(again.zone == ZoneSource::File, offset_s.is_some(), "{stamp}");
            assert!(offset_s.is_none() || again.wall_ns.abs_diff(event_ns) < 100_000_000_000, "{stamp}");
        }
    }

    proptest! {
        #[test]
        fn any_instant_round_trips(seconds in 1_000_000_000_i64..4_000_000_000, micros in 0_u32..1_000_000, minutes in -14 * 60..14 * 60_i32) {
            let at = Timestamp::new(seconds, micros as i32 * 1_000).unwrap();
            let offset = Offset::from_seconds(minutes * 60).unwrap();
            let text = format!("{} x", at.display_with_offset(offset));
            let (stamp, rest) = TimestampParser::new(TimeZone::UTC, 2026, 1).parse_timestamp_at_start(text.as_bytes()).unwrap();
            prop_assert_eq!(i128::from(stamp.wall_ns), at.as_nanosecond());
            prop_assert_eq!(rest, b" x");
        }

        #[test]
        fn parsing_any_bytes_never_panics(bytes: Vec<u8>, head in "[0-9]{4}[-/][0-9]{2}.{0,12}") {
            let mut parser = TimestampParser::new(TimeZone::UTC, 2026, 1);
            let _ = parser.parse_timestamp_at_start(&bytes);
            let mut text = head.into_bytes();
            text.extend(bytes);
            if let Some((_, rest)) = parser.parse_timestamp_at_start(&text) {
                prop_assert!(rest.len() < text.len());
            }
        }
    }
}
