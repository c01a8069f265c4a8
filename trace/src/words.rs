//! Numbers formatted for people, and names of enum variants.

/// Defines `ALL`, and `as_str`, the name of each variant in outputs.
#[macro_export]
macro_rules! names {
    ($($type:ident { $($variant:ident = $name:literal),+ $(,)? })+) => {$(
        impl $type {
            /// All variants.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Name in outputs.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    )+};
}

pub use names;

/// A JSON string without its quotes; any other value as JSON.
pub fn json_text(value: &serde_json::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Formats a value, or `-` if it is not observable.
pub fn known_or_dash<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| String::from("-"), show)
}

/// Formats nanoseconds in a suitable unit: `850 ns`, `12.3 us`, `4.5 ms`, `23.839 s`, `2m05s`.
pub fn duration(ns: u64) -> String {
    let value = ns as f64;
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.1} us", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", value / 1e6),
        1_000_000_000..MINUTE_NS => format!("{:.3} s", value / 1e9),
        _ => long_duration(ns),
    }
}

/// A minute in nanoseconds, from which on durations are formatted by [`long_duration`].
pub const MINUTE_NS: u64 = 60_000_000_000;

/// Formats nanoseconds of a minute or more in two units: `2m05s`, `1h02m`, `3d04h`.
pub fn long_duration(ns: u64) -> String {
    const MINUTE: u64 = 60;
    const HOUR: u64 = 60 * MINUTE;
    const DAY: u64 = 24 * HOUR;
    const HUNDRED_HOURS: u64 = 100 * HOUR;
    const THOUSAND_DAYS: u64 = 1_000 * DAY;
    let seconds = ns / 1_000_000_000;
    match seconds {
        0..HOUR => format!("{}m{:02}s", seconds / MINUTE, seconds % MINUTE),
        HOUR..HUNDRED_HOURS => format!("{}h{:02}m", seconds / HOUR, seconds / MINUTE % 60),
        HUNDRED_HOURS..THOUSAND_DAYS => format!("{}d{:02}h", seconds / DAY, seconds / HOUR % 24),
        _ => ">1000d".to_owned(),
    }
}

/// Formats an integer with thousands separators: `12,800`.
pub fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        // Before each group of three digits, counted from the end.
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats bytes in a suitable binary unit: `812 B`, `24.9 KiB`, `1.2 GiB`.
pub fn bytes(byte_count: u64) -> String {
    let mut scaled = byte_count as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if scaled < 1024.0 {
            return if unit == "B" { format!("{byte_count} B") } else { format!("{scaled:.1} {unit}") };
        }
        scaled /= 1024.0;
    }
    format!("{scaled:.1} TiB")
}

/// Formats a part of a whole in percent: `49.5 %`; `0 %` if the whole is 0.
pub fn share(part: u64, whole: u64) -> String {
    let percent = 100.0 * part as f64 / (whole.max(1)) as f64;
    if part > 0 && percent < 0.1 { format!("{percent:.3} %") } else { format!("{percent:.1} %") }
}

/// Formats a share from 0 to 1 in whole percent: `97 %`.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Formats a share from 0 to 1 in percent with one decimal: `97.4 %`.
pub fn decimal_percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Formats a count with its noun: `1 request`, `12 requests`.
pub fn plural(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Error for a flag whose cargo feature this build lacks.
pub fn missing_feature_error(feature: &str) -> String {
    format!(
        "tokengap was built without the cargo feature `{feature}`; install a package, or build with `cargo install --path tokengap \
         --features {feature}`"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_durations_are_formatted() {
        assert_eq!([23_839_000_000, 76_804_000_000].map(duration), ["23.839 s", "1m16s"]);
        assert_eq!((duration(999), duration(12_340)), ("999 ns".into(), "12.3 us".into()));
        assert_eq!((count(7), count(12_800), count(1_000_000)), ("7".into(), "12,800".into(), "1,000,000".into()));
        assert_eq!((bytes(812), bytes(25_500)), ("812 B".into(), "24.9 KiB".into()));
        assert_eq!((share(1, 2), share(0, 0), share(1, 100_000)), ("50.0 %".into(), "0.0 %".into(), "0.001 %".into()));
        assert_eq!((plural(1, "chunk"), plural(2, "chunk")), ("1 chunk".into(), "2 chunks".into()));
    }
}
