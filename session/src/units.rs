//! Human-readable numbers for narrow columns: durations, counts, rates, bytes. At most seven cells wide.

pub use trace::words::known_or_dash;
use trace::words::{MINUTE_NS, long_duration};

/// A duration in nanoseconds with three significant digits: `850 ns`, `12.3 us`, `48.8 s`, `2m05s`, `1h02m`.
pub fn format_duration(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..999_500 => format_three_digits(ns as f64 / 1e3, " us"),
        999_500..999_500_000 => format_three_digits(ns as f64 / 1e6, " ms"),
        // From 59.95 s on, the rounded value would be a minute.
        999_500_000..MINUTE_NS => format_three_digits((ns as f64 / 1e9).min(59.9), " s"),
        _ => long_duration(ns),
    }
}

/// Time on a clock that started at 0: `0:07`, `12:34`, `1:02:03`.
pub fn format_elapsed_clock(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    match seconds {
        0..3_600 => format!("{}:{:02}", seconds / 60, seconds % 60),
        _ => format!("{}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60),
    }
}

/// Parses digits with an optional fraction. Refuses `1e9`, `inf` and signs, which Rust's own parser accepts.
pub(crate) fn parse_decimal(text: &str) -> Option<f64> {
    let is_decimal = text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains(['e', 'E', '+', '-']);
    if is_decimal { text.parse().ok() } else { None }
}

/// Parses a time typed by a user into nanoseconds: `1:23`, `1:02:03.5`, `83`, `3.9s`, `500ms`, `2m`. `None` if it is no time, or too long.
pub fn parse_typed_time_ns(text: &str) -> Option<u64> {
    // The longest time whose nanoseconds fit into a `u64`, even if rounded up.
    const LONGEST_S: u64 = u64::MAX / 1_000_000_000 - 1;
    let text = text.trim();
    let seconds = if let Some(number) = text.strip_suffix("ms") {
        parse_decimal(number)? / 1_000.0
    } else if let Some(number) = text.strip_suffix('s') {
        parse_decimal(number)?
    } else if let Some(number) = text.strip_suffix('m') {
        parse_decimal(number)? * 60.0
    } else if let Some(number) = text.strip_suffix('h') {
        parse_decimal(number)? * 3_600.0
    } else {
        parse_colon_time_seconds(text)?
    };
    (seconds <= LONGEST_S as f64).then(|| (seconds * 1e9).round() as u64)
}

/// Parses `83`, `1:23` or `1:02:03.5` into seconds. `None` if the text is no such time.
fn parse_colon_time_seconds(text: &str) -> Option<f64> {
    // Only the last part may have decimals.
    let (hours_and_minutes, seconds) = text.rsplit_once(':').unwrap_or(("", text));
    let seconds = parse_decimal(seconds)?;
    if hours_and_minutes.is_empty() {
        return Some(seconds);
    }
    let (hours, minutes) = hours_and_minutes.split_once(':').unwrap_or(("0", hours_and_minutes));
    let hours: u64 = hours.parse().ok()?;
    let minutes = hours.checked_mul(60)?.checked_add(minutes.parse().ok()?)?;
    Some(minutes as f64 * 60.0 + seconds)
}

/// Time of day, in UTC: `14:59:08Z`. `None` if the time is out of range.
pub fn format_wall_time(ns: u64) -> Option<String> {
    let time = jiff::Timestamp::from_nanosecond(ns.into()).ok()?;
    Some(time.strftime("%H:%M:%SZ").to_string())
}

/// Time of day, in UTC, with milliseconds: `14:59:08.123Z`. `None` if the time is out of range.
pub fn format_wall_time_ms(ns: u64) -> Option<String> {
    let time = jiff::Timestamp::from_nanosecond(ns.into()).ok()?;
    Some(time.strftime("%H:%M:%S%.3fZ").to_string())
}

/// Time on a clock that started at 0, with milliseconds: `0:07.125`.
pub fn format_clock_ms(ns: u64) -> String {
    format!("{}.{:03}", format_elapsed_clock(ns), ns / 1_000_000 % 1_000)
}

/// A count: exact up to 9,999, then `12.3k`, `4.56M`.
pub fn format_count(n: u64) -> String {
    match n {
        0..10_000 => trace::words::count(n),
        10_000..999_500 => format_three_digits(n as f64 / 1e3, "k"),
        999_500..999_500_000 => format_three_digits(n as f64 / 1e6, "M"),
        999_500_000..999_500_000_000 => format_three_digits(n as f64 / 1e9, "G"),
        999_500_000_000..999_500_000_000_000 => format_three_digits(n as f64 / 1e12, "T"),
        _ => ">999T".to_owned(),
    }
}

/// A rate per second, without the `/s`: one decimal below 100.
pub fn format_rate_per_second(per_second: f64) -> String {
    // From 99.95 on, one decimal would be rounded to 100.0.
    if per_second > 0.0 && per_second < 99.95 {
        format!("{per_second:.1}")
    } else {
        format_count(per_second.round() as u64)
    }
}

/// Bytes in binary units: `512 B`, `9.5 KiB`, `23 KiB`.
pub fn format_bytes(byte_count: u64) -> String {
    const KIB: f64 = 1024.0;
    let bytes = byte_count as f64;
    if bytes < KIB {
        return format!("{bytes:.0} B");
    }
    let mut scaled = bytes / KIB;
    let mut unit = " KiB";
    for larger_unit in [" MiB", " GiB", " TiB", " PiB", " EiB"] {
        // Three digits are enough. Four would make the text a cell wider.
        if scaled < 1000.0 {
            break;
        }
        scaled /= KIB;
        unit = larger_unit;
    }
    // From 9.95 on, one decimal would be rounded to 10.0.
    let decimals = usize::from(scaled < 9.95);
    format!("{scaled:.decimals$}{unit}")
}

/// Formats `value`, below 1,000, with three significant digits.
fn format_three_digits(value: f64, unit: &str) -> String {
    let decimals = match value {
        // From 9.995 on, two decimals would be rounded to 10.00.
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_keep_three_digits_through_every_unit() {
        let shown: Vec<String> = [
            0,
            999,
            1_000,
            12_345,
            999_499,
            999_500,
            48_835_000_000,
            59_999_999_999,
            125_000_000_000,
            3_720_000_000_000,
        ]
        .map(format_duration)
        .to_vec();
        assert_eq!(
            shown,
            ["0 ns", "999 ns", "1.00 us", "12.3 us", "999 us", "1.00 ms", "48.8 s", "59.9 s", "2m05s", "1h02m"]
        );
    }

    #[test]
    fn moment_parses_what_clock_formats() {
        for ns in [0, 7_000_000_000, 754_000_000_000, 3_723_000_000_000] {
            assert_eq!(parse_typed_time_ns(&format_elapsed_clock(ns)), Some(ns));
        }
        assert_eq!(
            (parse_typed_time_ns("90s"), parse_typed_time_ns("2m"), parse_typed_time_ns(" 5 ")),
            (Some(90_000_000_000), Some(120_000_000_000), Some(5_000_000_000))
        );
        assert_eq!(
            (parse_typed_time_ns("3.9s"), parse_typed_time_ns("1:23.25"), parse_typed_time_ns("0.5m")),
            (Some(3_900_000_000), Some(83_250_000_000), Some(30_000_000_000))
        );
        assert_eq!((parse_typed_time_ns("500ms"), parse_typed_time_ns("1.5ms")), (Some(500_000_000), Some(1_500_000)));
        for text in [
            "",
            "soon",
            "1:2:3:4",
            "1:-2",
            "99999999999999999999",
            "1.5:20",
            "+3s",
            "1e3",
            "nan",
            "inf",
            "ä",
            "18446744073709551615h",
        ] {
            assert_eq!(parse_typed_time_ns(text), None, "{text}");
        }
    }

    #[test]
    fn formatted_values_fit_their_columns() {
        for shift in 0..64 {
            let n = u64::MAX >> shift;
            assert!(
                format_duration(n).len() <= 7 && format_bytes(n).len() <= 7,
                "{n}: {} {}",
                format_duration(n),
                format_bytes(n)
            );
            assert!(format_count(n).len() <= 6, "{n}: {}", format_count(n));
        }
        assert_eq!(
            (format_count(9_999), format_count(132_140), format_rate_per_second(12.34), format_rate_per_second(0.0)),
            ("9,999".into(), "132k".into(), "12.3".into(), "0".into())
        );
        assert_eq!(
            (format_elapsed_clock(7_900_000_000), format_elapsed_clock(3_723_000_000_000)),
            ("0:07".into(), "1:02:03".into())
        );
        assert_eq!(format_clock_ms(7_905_999_999), "0:07.905");
        assert_eq!(format_wall_time_ms(1_795_273_142_700_999_999).as_deref(), Some("14:59:02.700Z"));
        assert_eq!(
            (format_bytes(512), format_bytes(24_000), format_bytes(1 << 30)),
            ("512 B".into(), "23 KiB".into(), "1.0 GiB".into())
        );
    }
}
