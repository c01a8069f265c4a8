//! Times of day in UTC, as users type them.

use crate::units::parse_decimal;

const SECOND_NS: u64 = 1_000_000_000;
const MINUTE_NS: u64 = 60 * SECOND_NS;
/// Decimals of a second that a time in nanoseconds can hold.
const MAX_DECIMALS: usize = 9;
const DAY_NS: u64 = 86_400 * SECOND_NS;

/// A time of day in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeOfDay {
    /// Since midnight, in nanoseconds.
    pub ns: u64,
    /// Length of the time that it names: a minute for `14:59`, a second for `14:59:08`.
    pub precision_ns: u64,
}

impl TimeOfDay {
    /// Parses `14:59`, `14:59:08.5` and `2:59 pm`, each also with `Z` or `UTC` behind it. `None` if the text is no time of day.
    pub fn parse(text: &str) -> Option<Self> {
        // Decimals may follow a comma or a point.
        let text = text.trim().to_ascii_lowercase().replace(',', ".");
        let (numbers, half_day) = split_am_pm(without_zone(&text));
        let mut parts = numbers.split(':');
        let hours = parse_hour_of_day(parts.next()?, half_day)?;
        let minutes = parse_number_below(parts.next()?, 60)?;
        let seconds = parts.next();
        let has_further_parts = parts.next().is_some();
        if has_further_parts {
            return None;
        }
        let minute_ns = (hours * 60 + minutes) * MINUTE_NS;
        let Some(seconds) = seconds else { return Some(Self { ns: minute_ns, precision_ns: MINUTE_NS }) };
        Some(Self { ns: minute_ns + parse_seconds_ns(seconds)?, precision_ns: precision_of_seconds_ns(seconds) })
    }

    /// Whether it names a whole minute.
    pub fn is_minute(self) -> bool {
        self.precision_ns == MINUTE_NS
    }

    /// Time from the start of a run at which a clock on the wall first shows it; 0 if the run begins in the second or minute that it names.
    pub fn first_in_run(self, start_wall_ns: u64) -> u64 {
        let unit_start_ns = self.unit_start_ns(start_wall_ns);
        self.ns_after(unit_start_ns).saturating_sub(start_wall_ns - unit_start_ns)
    }

    /// The last nanosecond of the second or minute that it names, from the start of the run.
    pub fn last_in_run(self, start_wall_ns: u64) -> u64 {
        let unit_start_ns = self.unit_start_ns(start_wall_ns);
        self.ns_after(unit_start_ns) + self.precision_ns - 1 - (start_wall_ns - unit_start_ns)
    }

    /// Start of the second or minute in which the run begins. Users type whole ones, so the whole of this one is part of the run.
    fn unit_start_ns(self, start_wall_ns: u64) -> u64 {
        start_wall_ns - start_wall_ns % self.precision_ns
    }

    /// Nanoseconds from `wall_ns` until a clock on the wall shows it next: less than a day.
    fn ns_after(self, wall_ns: u64) -> u64 {
        (self.ns + DAY_NS - wall_ns % DAY_NS) % DAY_NS
    }
}

/// The time without a `z` or `utc` at its end.
fn without_zone(time: &str) -> &str {
    let clock = ["z", "utc"].iter().find_map(|zone| time.strip_suffix(zone));
    clock.unwrap_or(time).trim_end()
}

/// Nanoseconds of a number of seconds below 60, which may have decimals. `None` for any other text.
fn parse_seconds_ns(text: &str) -> Option<u64> {
    let seconds = parse_decimal(text).filter(|seconds| *seconds < 60.0)?;
    Some((seconds * 1e9).round() as u64)
}

/// Precision of a number of seconds: each decimal makes it ten times more precise.
fn precision_of_seconds_ns(text: &str) -> u64 {
    let decimals = text.split_once('.').map_or(0, |(_, decimals)| decimals.len().min(MAX_DECIMALS));
    SECOND_NS / 10_u64.pow(decimals as u32)
}

/// Half of a day, in which the hours of a clock go from 1 to 12.
#[derive(Clone, Copy)]
enum HalfDay {
    /// `am`
    Morning,
    /// `pm`
    Afternoon,
}

/// Splits `am` or `pm` off the end of a time. Without one of them, the time is returned whole, with `None`.
fn split_am_pm(time: &str) -> (&str, Option<HalfDay>) {
    if let Some(numbers) = time.strip_suffix("am") {
        (numbers.trim_end(), Some(HalfDay::Morning))
    } else if let Some(numbers) = time.strip_suffix("pm") {
        (numbers.trim_end(), Some(HalfDay::Afternoon))
    } else {
        (time, None)
    }
}

/// Parses an hour of this half of the day, or of the whole day, and converts it to 0 to 23. `None` if there is no such hour.
fn parse_hour_of_day(text: &str, half_day: Option<HalfDay>) -> Option<u64> {
    let hours = parse_number_below(text, 24)?;
    let Some(half_day) = half_day else { return Some(hours) };
    if !(1..=12).contains(&hours) {
        return None;
    }
    // 12 am is midnight, 12 pm is noon.
    let hours_of_half = hours % 12;
    Some(match half_day {
        HalfDay::Morning => hours_of_half,
        HalfDay::Afternoon => hours_of_half + 12,
    })
}

/// Parses a number of one or two digits that is below the limit. `None` for any other text.
fn parse_number_below(text: &str, limit: u64) -> Option<u64> {
    let has_digits_only = text.bytes().all(|byte| byte.is_ascii_digit());
    if !has_digits_only || text.len() > 2 {
        return None;
    }
    text.parse().ok().filter(|number| *number < limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(text: &str) -> Option<f64> {
        TimeOfDay::parse(text).map(|time| time.ns as f64 / 1e9)
    }

    #[test]
    fn times_of_day_are_read_in_the_forms_that_people_type() {
        for (text, expected) in [
            ("14:59", 53_940.0),
            ("14:59Z", 53_940.0),
            ("2:59 pm", 53_940.0),
            ("2:59pm", 53_940.0),
            ("14:59:08", 53_948.0),
            (" 14:59:08 UTC ", 53_948.0),
            ("02:59:08 PM", 53_948.0),
            ("14:59:08.25z", 53_948.25),
            ("14:59:08,5", 53_948.5),
            ("0:00", 0.0),
            ("12:00 am", 0.0),
            ("12:00 pm", 43_200.0),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        for wrong in
            ["", "14", "24:00", "14:60", "14:59:60", "14:5x", "1:2:3:4", "14:-1", "13:00 pm", "0:10 am", "14:+5"]
        {
            assert_eq!(seconds(wrong), None, "{wrong:?}");
        }
        let precision = |text| TimeOfDay::parse(text).map(|time| time.precision_ns);
        assert_eq!(
            [precision("14:59"), precision("14:59:08"), precision("14:59:08.5")].map(Option::unwrap_or_default),
            [MINUTE_NS, SECOND_NS, SECOND_NS / 10]
        );
    }

    #[test]
    fn the_minute_in_which_a_run_begins_is_part_of_it() {
        // 2026-11-21 14:59:02.700 UTC.
        let start = 1_795_273_142_700_000_000;
        let span = |text: &str| {
            let time = TimeOfDay::parse(text).expect(text);
            [time.first_in_run(start), time.last_in_run(start) + 1].map(|ns| ns / 1_000_000)
        };
        assert_eq!(span("14:59"), [0, 57_300]);
        assert_eq!(span("15:00"), [57_300, 117_300]);
        assert_eq!(span("14:59:02"), [0, 300]);
        assert_eq!(span("14:59:08"), [5_300, 6_300]);
        assert_eq!(span("00:00:02"), [32_459_300, 32_460_300]);
    }
}
