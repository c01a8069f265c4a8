//! Words of a line: `key=value` pairs, the text between them, and digits.

use std::borrow::Cow;

use memchr::{memchr, memchr_iter, memmem};

/// First byte of a colour code.
const ESCAPE: u8 = 0x1b;

/// The text of a line without colour codes, and with replacement characters for invalid UTF-8.
pub(super) fn plain_text(line: &[u8]) -> Cow<'_, str> {
    if memchr(ESCAPE, line).is_none() {
        // Checks several bytes at a time, unlike the lossy conversion.
        return str::from_utf8(line).map_or_else(|_| String::from_utf8_lossy(line), Cow::Borrowed);
    }
    let mut plain = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some(escape) = rest.iter().position(|&byte| byte == ESCAPE) {
        plain.extend_from_slice(&rest[..escape]);
        rest = text_behind_sequence(&rest[escape + 1..]);
    }
    plain.extend_from_slice(rest);
    Cow::Owned(String::from_utf8_lossy(&plain).into_owned())
}

/// The text behind an escape sequence, such as the `[32m` of a colour; empty if the line was cut within the sequence.
fn text_behind_sequence(after_escape: &[u8]) -> &[u8] {
    let Some(sequence) = after_escape.strip_prefix(b"[") else { return after_escape };
    // Parameters, then one character from this range.
    match sequence.iter().position(|byte| (b'@'..=b'~').contains(byte)) {
        Some(last) => &sequence[last + 1..],
        None => &[],
    }
}

/// The text without the ASCII characters at both ends for which `is_match` is true.
pub(crate) fn trim_ascii_matches(text: &str, is_match: impl Fn(u8) -> bool) -> &str {
    let bytes = text.as_bytes();
    let is_kept = |&byte: &u8| !byte.is_ascii() || !is_match(byte);
    let Some(start) = bytes.iter().position(is_kept) else { return "" };
    let end = bytes.iter().rposition(is_kept).map_or(start, |last| last + 1);
    &text[start..end]
}

/// Like [`str::split_once`], but faster for a short text, in which the preparation of the standard search takes longer than this function.
pub fn split_once<'l>(text: &'l str, separator: &str) -> Option<(&'l str, &'l str)> {
    let (first, others) = separator.as_bytes().split_first()?;
    let mut starts = memchr_iter(*first, text.as_bytes());
    let start = starts.find(|&start| others.is_empty() || text.as_bytes()[start + 1..].starts_with(others))?;
    Some((&text[..start], &text[start + separator.len()..]))
}

/// Value of `key` (which ends in `=` or `: `) as one word. The key must not be the end of a longer word. `None` if the text lacks the key,
/// or its value is empty.
pub fn value_of_key<'l>(text: &'l str, key: &str) -> Option<&'l str> {
    let rest = text_behind_key(text, key)?;
    let end = rest.find(|c: char| c.is_whitespace() || matches!(c, ',' | ';' | ')' | '}'));
    let word = &rest[..end.unwrap_or(rest.len())];
    // A quote behind the value belongs to the field of a CSV file that holds the line.
    let value = if word.starts_with('"') { word } else { word.trim_end_matches('"') };
    if value.is_empty() { None } else { Some(value) }
}

/// The text behind the first `key` that is not the end of a longer word. `None` without such a key.
fn text_behind_key<'l>(text: &'l str, key: &str) -> Option<&'l str> {
    let mut search_start = 0;
    loop {
        let key_start = search_start + memmem::find(&text.as_bytes()[search_start..], key.as_bytes())?;
        search_start = key_start + key.len();
        let ends_longer_word = text[..key_start].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        if !ends_longer_word {
            return Some(&text[search_start..]);
        }
    }
}

/// Value of `key` as a count. A point or comma behind it is ignored. `None` if the value is missing or no whole number.
pub fn count_of_key(text: &str, key: &str) -> Option<u32> {
    value_of_key(text, key)?.trim_end_matches(['.', ',']).parse().ok()
}

/// Value of `key` as a finite, non-negative number, without a unit `ms` or `%`. `None` if it is anything else.
pub fn number_of_key(text: &str, key: &str) -> Option<f64> {
    let value = value_of_key(text, key)?;
    let digits = value.strip_suffix("ms").or_else(|| value.strip_suffix('%')).unwrap_or(value);
    digits.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0)
}

/// Parses the same numbers as [`str::parse`], which takes several times as long for a few digits. `None` if the text is no number.
pub fn parse_decimal(text: &str) -> Option<f64> {
    parse_short_decimal(text).or_else(|| text.parse().ok())
}

/// Parses a few digits with at most one point. `None` for any other text.
fn parse_short_decimal(text: &str) -> Option<f64> {
    /// Up to this length, both the digits and the divisor are exact as `f64`. Only their quotient is rounded, as by the parser of `std`.
    const MAX_BYTES: usize = 16;
    if text.len() > MAX_BYTES {
        return None;
    }
    let mut digits = 0_u64;
    // Power of ten by which the point divides the digits. `None` before the point.
    let mut divisor: Option<f64> = None;
    for byte in text.bytes() {
        match byte {
            b'0'..=b'9' => {
                digits = digits * 10 + u64::from(byte - b'0');
                divisor = divisor.map(|power| power * 10.0);
            }
            b'.' if divisor.is_none() => divisor = Some(1.0),
            _ => return None,
        }
    }
    let points = usize::from(divisor.is_some());
    let has_digits = text.len() > points;
    has_digits.then(|| digits as f64 / divisor.unwrap_or(1.0))
}

/// Value of `key` in milliseconds, converted to nanoseconds. `None` if it is no duration.
pub fn duration_ns_of_key(text: &str, key: &str) -> Option<u64> {
    /// Longer durations are cut to this one, whose nanoseconds fit into 64 bits.
    const MAX_MS: f64 = 1e12;
    const NS_PER_MS: f64 = 1e6;
    let duration_ms = number_of_key(text, key)?.min(MAX_MS);
    Some((duration_ms * NS_PER_MS).round() as u64)
}

/// Parses the digits at the start of `text`; returns the number and the text behind it. `None` without a digit, or with more than
/// `max_digits`.
pub(super) fn parse_leading_digits(text: &[u8], max_digits: usize) -> Option<(u64, &[u8])> {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    // A number of 19 digits fits into 64 bits.
    if count == 0 || count > max_digits.min(19) {
        return None;
    }
    let (digits, rest) = text.split_at(count);
    let mut number = 0;
    for digit in digits {
        number = number * 10 + u64::from(digit - b'0');
    }
    Some((number, rest))
}

/// Parses exactly `count` digits at the start of `text`; returns the number and the text behind it. `None` if there are more or fewer.
pub(super) fn parse_exact_digits(text: &[u8], count: usize) -> Option<(u64, &[u8])> {
    let (number, rest) = parse_leading_digits(text, count)?;
    (text.len() - rest.len() == count).then_some((number, rest))
}

/// Parses the digits after a decimal point to nanoseconds; returns them and the text behind them. Digits beyond the ninth are dropped.
/// `None` without a digit.
pub(super) fn parse_fraction_ns(text: &[u8]) -> Option<(u64, &[u8])> {
    let count = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 {
        return None;
    }
    let (digits, rest) = text.split_at(count);
    let mut ns = 0;
    // Nanoseconds have nine digits; missing ones are zeros.
    for index in 0..9 {
        ns = ns * 10 + u64::from(digits.get(index).map_or(0, |digit| digit - b'0'));
    }
    Some((ns, rest))
}

/// Converts seconds since the epoch to nanoseconds, exact to a microsecond. `None` outside 2001 to 2096, which excludes other clocks such
/// as uptime.
pub fn epoch_seconds_to_ns(seconds: f64) -> Option<u64> {
    const US_PER_SECOND: f64 = 1e6;
    const NS_PER_US: u64 = 1_000;
    // From September 2001 to October 2096.
    if !(1e9..4e9).contains(&seconds) {
        return None;
    }
    // A float of this size is exact enough for microseconds, but not for nanoseconds.
    let epoch_us = (seconds * US_PER_SECOND).round() as u64;
    Some(epoch_us * NS_PER_US)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_does_not_match_the_end_of_a_longer_key() {
        let line = "bootstrap_queue_duration=5.00ms, queue_duration=1.50ms, x";
        assert_eq!(duration_ns_of_key(line, "queue_duration="), Some(1_500_000));
        assert_eq!(count_of_key("output_len=1 pending=1014", "pending="), Some(1_014));
        assert_eq!(number_of_key("proc=225.0 sys=7.1", "proc="), Some(225.0));
        assert_eq!(number_of_key("proc=inf", "proc="), None);
        assert_eq!(value_of_key("a= b=1", "a="), None);
    }

    #[test]
    fn splitting_and_trimming_match_the_standard_library() {
        for text in ["", ",", "a, b", "a,, b", "é, …, é", "\"'a'\",", "… "] {
            assert_eq!(split_once(text, ", "), text.split_once(", "), "{text}");
            let is_match = |byte| matches!(byte, b',' | b' ' | b'"');
            assert_eq!(trim_ascii_matches(text, is_match), text.trim_matches([',', ' ', '"']), "{text}");
        }
    }

    #[test]
    fn colour_codes_are_removed() {
        assert_eq!(plain_text(b"\x1b[32mINFO\x1b[0m x\x1b[38;5;9m y\x1b["), "INFO x y");
        assert_eq!(plain_text(b"\xff\xfe ok"), "\u{fffd}\u{fffd} ok");
    }

    proptest! {
        #[test]
        fn decimals_parse_like_the_standard_library(number in "[0-9]{0,18}[.]?[0-9]{0,18}", text in "[0-9.e+-]{0,8}") {
            for text in [number, text] {
                prop_assert_eq!(parse_decimal(&text), text.parse().ok(), "{}", text);
            }
        }

        #[test]
        fn searching_any_text_never_panics(line: Vec<u8>, text: String) {
            let clean = plain_text(&line);
            prop_assert!(!clean.contains('\x1b'));
            let _ = (value_of_key(&text, "a="), number_of_key(&clean, "="), count_of_key(&text, "rid="));
        }
    }
}
