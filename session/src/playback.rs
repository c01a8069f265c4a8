//! Playback of a recording, between its source and the screen: commands, position and speed.

use std::fmt;
use std::str::FromStr;

use trace::detect::Finding;

use crate::time_of_day::TimeOfDay;
use crate::units;

const SECOND_NS: u64 = 1_000_000_000;

/// Playback command of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Play {
    /// Pause or continue.
    Toggle,
    /// Play faster (positive) or slower by this many steps.
    Speed(isize),
    /// Seek forward or back by this many seconds.
    Skip(i64),
    /// Seek to this time in nanoseconds from the start.
    To(u64),
    /// Seek to the end.
    End,
    /// Seek to where the next finding is first shown.
    NextFinding,
    /// Seek to where the previous finding was first shown.
    PreviousFinding,
}

/// Playback position, for the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Time from the start of the recording.
    pub at_ns: u64,
    /// Length of the recording.
    pub whole_ns: u64,
    /// Wall clock in nanoseconds since the epoch; `None` if the recording does not contain it.
    pub wall_ns: Option<u64>,
    /// Chosen speed.
    pub speed: Speed,
    /// Current playback state.
    pub doing: PlaybackState,
    /// Start of the known part, if playback started in the middle of the recording.
    pub since_ns: Option<u64>,
    /// Finding that the last command sought, once playback has reached it.
    pub sought: Option<FindingKey>,
}

/// What tells the findings of a run apart.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FindingKey {
    /// Kind of its detector.
    pub kind: &'static str,
    /// Hop concerned; empty if none.
    pub hop: String,
}

impl From<&Finding> for FindingKey {
    fn from(finding: &Finding) -> Self {
        Self { kind: finding.kind, hop: finding.verdict.hop.clone() }
    }
}

impl Position {
    /// Converts a time that a user typed to nanoseconds from the start of the run. `3.9s` counts from the start, and `+10s` and `-1m` count
    /// from the current position. `14:59:08` or `1:23` may be a time of day or a time from the start. It means the one that the run covers.
    /// If the run covers both, the likelier one is chosen. `Err` is a message for the user.
    pub fn parse_target_ns(&self, text: &str) -> Result<u64, String> {
        let Some(candidates_ns) = self.parse_candidate_times_ns(text.trim()) else {
            return Err("expected a time: 14:59, 14:59:08, 1:23, 3.9s, +10s, -1m".to_owned());
        };
        let first_covered = candidates_ns.into_iter().find(|target_ns| *target_ns <= self.whole_ns);
        first_covered.ok_or_else(|| self.outside_run_message())
    }

    /// Parses a time that the user typed: a step such as `+10`, a date, or a time such as `1:23`. Returns what the text may mean, as times
    /// from the start of the run, the likeliest first. Empty if the text is a time that no run can have. `None` if the text is no time.
    fn parse_candidate_times_ns(&self, text: &str) -> Option<Vec<u64>> {
        // A sign counts from the current position. A step to before the start, or beyond the largest number, gives an empty list.
        if let Some(ahead_ns) = text.strip_prefix('+').and_then(units::parse_typed_time_ns) {
            let target_ns = self.at_ns.checked_add(ahead_ns);
            return Some(target_ns.into_iter().collect());
        }
        if let Some(back_ns) = text.strip_prefix('-').and_then(units::parse_typed_time_ns) {
            let target_ns = self.at_ns.checked_sub(back_ns);
            return Some(target_ns.into_iter().collect());
        }
        if let Some(date_ns) = self.parse_date_ns(text) {
            return Some(vec![date_ns]);
        }
        self.parse_clock_candidates_ns(text)
    }

    /// Parses a text such as `1:23` or `14:59:08`, which may be a time from the start of the run, a time of day, or both. Returns each
    /// meaning as a time from the start, the likelier first. Empty if the text is only a time of day and the wall clock is unknown.
    /// `None` if the text is neither.
    fn parse_clock_candidates_ns(&self, text: &str) -> Option<Vec<u64>> {
        let from_start_ns = units::parse_typed_time_ns(text);
        let time_of_day = TimeOfDay::parse(text);
        if from_start_ns.is_none() && time_of_day.is_none() {
            return None;
        }
        let mut by_time_of_day_ns = None;
        // Only the wall clock at the start of the run relates a time of day to the run.
        if let Some(time_of_day) = time_of_day
            && let Some(start_ns) = self.start_wall_ns()
        {
            by_time_of_day_ns = Some(time_of_day.first_in_run(start_ns));
        }
        // A time of day in whole minutes has two parts, as in `1:23`. That more likely means minutes and seconds from the start.
        let has_two_parts = time_of_day.is_some_and(TimeOfDay::is_minute);
        let likelier_first =
            if has_two_parts { [from_start_ns, by_time_of_day_ns] } else { [by_time_of_day_ns, from_start_ns] };
        // Those of the two that the text can mean.
        Some(likelier_first.into_iter().flatten().collect())
    }

    /// Parses a date such as `2026-11-27 14:59:08` into nanoseconds from the start of the run. The date is in UTC unless it has an offset.
    /// A date before the run gives the largest number, which is outside every run. `None` if the text is no date, or the wall clock is
    /// unknown.
    fn parse_date_ns(&self, text: &str) -> Option<u64> {
        // The first parser requires an offset, such as `+02:00` or `Z`.
        let instant = text.parse::<jiff::Timestamp>().ok().or_else(|| parse_date_in_utc(text))?;
        let from_start_ns = instant.as_nanosecond() - i128::from(self.start_wall_ns()?);
        // A date without seconds has one colon, between hours and minutes.
        let names_second = text.split(':').count() > 2;
        let precision_ns = if names_second { SECOND_NS } else { 60 * SECOND_NS };
        // A run begins within a second. A date that names this second, or its minute, means the start of the run.
        let names_start = from_start_ns < 0 && from_start_ns > -i128::from(precision_ns);
        if names_start {
            return Some(0);
        }
        Some(u64::try_from(from_start_ns).unwrap_or(u64::MAX))
    }

    /// Text of a time in the run: the time of day, if it is known, and the time from the start, such as `14:59:08Z, 0:05`.
    pub fn format_time_in_run(&self, target_ns: u64) -> String {
        let from_start = units::format_elapsed_clock(target_ns);
        let wall_ns = self.start_wall_ns().and_then(|start_ns| start_ns.checked_add(target_ns));
        match wall_ns.and_then(units::format_wall_time) {
            Some(time_of_day) => format!("{time_of_day}, {from_start}"),
            None => from_start,
        }
    }

    /// Message that refuses a time outside the run, with the middle of the run as an example: `outside the run, 2026-11-27 14:59:02 to
    /// 14:59:15 UTC, 0:00 to 0:12: type for example 14:59:09 or 0:06`.
    pub fn outside_run_message(&self) -> String {
        let middle_ns = self.whole_ns / 2;
        let from_start = units::format_elapsed_clock(middle_ns);
        let example = match self.wall_at(middle_ns) {
            Some(time) => format!("{} or {from_start}", time.strftime("%H:%M:%S")),
            None => from_start,
        };
        format!("outside the run, {}: type for example {example}", self.describe_run_range())
    }

    /// Wall clock at the start.
    pub fn start_wall_ns(&self) -> Option<u64> {
        self.wall_ns?.checked_sub(self.at_ns)
    }

    /// Dates and times that the run covers: `2026-11-27 14:59:02 to 14:59:15 UTC, 0:00 to 0:12`. Without a known wall clock only the times
    /// from the start.
    pub fn describe_run_range(&self) -> String {
        let from_start =
            format!("{} to {}", units::format_elapsed_clock(0), units::format_elapsed_clock(self.whole_ns));
        let (Some(start), Some(end)) = (self.wall_at(0), self.wall_at(self.whole_ns)) else { return from_start };
        // A run over midnight ends on another date.
        let is_one_day = start.strftime("%F").to_string() == end.strftime("%F").to_string();
        let end_text = end.strftime(if is_one_day { "%H:%M:%S" } else { "%F %H:%M:%S" });
        format!("{} to {end_text} UTC, {from_start}", start.strftime("%F %H:%M:%S"))
    }

    /// Wall clock at an offset from the start; `None` if the recording does not contain it.
    fn wall_at(&self, offset_ns: u64) -> Option<jiff::Timestamp> {
        let wall_ns = self.start_wall_ns()?.checked_add(offset_ns)?;
        jiff::Timestamp::from_nanosecond(wall_ns.into()).ok()
    }
}

/// Parses `2026-11-27 14:59:08` as a date in UTC, also with `UTC` or `Z` behind it. `None` if the text is no date.
fn parse_date_in_utc(text: &str) -> Option<jiff::Timestamp> {
    let without_zone = text.trim_end_matches("UTC").trim_end().trim_end_matches('Z');
    let date: jiff::civil::DateTime = without_zone.parse().ok()?;
    date.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

/// Playback state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PlaybackState {
    /// Playing at the chosen speed.
    #[default]
    Playing,
    /// Paused by the user, or at the target of a seek.
    Paused,
    /// Seeking at maximum speed.
    Seeking,
    /// At the end of the recording.
    Ended,
}

/// Playback speed, as an index into [`Speed::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed {
    index: usize,
}

impl Speed {
    /// Recorded time per real time; the last means maximum speed.
    const ALL: [f64; 10] = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, f64::INFINITY];

    /// Recorded time per real time.
    pub fn factor(self) -> f64 {
        Self::ALL[self.index]
    }

    /// Returns the speed that is faster (positive) or slower by this many steps, within the list.
    #[must_use]
    pub fn step(self, steps: isize) -> Self {
        Self { index: self.index.saturating_add_signed(steps).min(Self::ALL.len() - 1) }
    }
}

impl Default for Speed {
    fn default() -> Self {
        // Real time: the factor 1.0 of `ALL`.
        Self { index: 2 }
    }
}

impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let factor = self.factor();
        if factor.is_infinite() { f.write_str("max") } else { write!(f, "{factor}x") }
    }
}

impl FromStr for Speed {
    type Err = String;

    /// Parses a speed as it is shown, such as `2x` or `max`, also without the `x`. The error lists all speeds.
    fn from_str(text: &str) -> Result<Self, String> {
        let names: Vec<String> = (0..Self::ALL.len()).map(|index| Self { index }.to_string()).collect();
        // `2` and `2x` are the same speed.
        match names.iter().position(|name| name.trim_end_matches('x') == text.trim_end_matches('x')) {
            Some(index) => Ok(Self { index }),
            None => Err(format!("{text:?} is not a speed: use one of {}", names.join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typed_time_is_of_the_day_or_of_the_run() {
        // 2026-11-21 14:59:02.700 UTC.
        let start_ns = 1_795_273_142_700_000_000;
        let position = Position {
            at_ns: 5 * SECOND_NS,
            whole_ns: 70 * SECOND_NS,
            wall_ns: Some(start_ns + 5 * SECOND_NS),
            ..Position::default()
        };
        for (text, target_ms) in [
            ("14:59:08", 5_300),
            ("14:59:08Z", 5_300),
            ("14:59:02", 0),
            ("15:00:12", 69_300),
            ("1:03", 63_000),
            ("0:00:07", 7_000),
            ("3.9s", 3_900),
            ("+10s", 15_000),
            ("-1.5s", 3_500),
            ("14:59", 0),
            ("15:00", 57_300),
            ("15:00Z", 57_300),
            ("3:00 pm", 57_300),
            ("1:03Z", u64::MAX),
            ("2026-11-21 14:59:08", 5_300),
            ("2026-11-21T14:59:08Z", 5_300),
            ("2026-11-21T15:59:08+01:00", 5_300),
            ("2026-11-21 14:59 UTC", 0),
            ("2026-11-22 14:59:08", u64::MAX),
            ("2026-11-20 14:59:08", u64::MAX),
        ] {
            let expected =
                if target_ms == u64::MAX { Err(position.outside_run_message()) } else { Ok(target_ms * 1_000_000) };
            assert_eq!(position.parse_target_ns(text), expected, "{text}");
        }
        assert_eq!(position.format_time_in_run(5_300_000_000), "14:59:08Z, 0:05");
        let range =
            "outside the run, 2026-11-21 14:59:02 to 15:00:12 UTC, 0:00 to 1:10: type for example 14:59:37 or 0:35";
        for text in ["14:58:59", "15:00:13Z", "71s", "+66s", "-1m", "14:58", "16:20"] {
            assert_eq!(position.parse_target_ns(text), Err(range.to_owned()), "{text}");
        }
        for text in ["soon", "", "2026-11-21", "+", "-x", "25:99"] {
            assert!(position.parse_target_ns(text).is_err(), "{text}");
        }
        assert!(position.parse_target_ns("soon").is_err_and(|error| error.contains("14:59:08, 1:23, 3.9s")));
        // Two parts are minutes and seconds in a run that is as long.
        let long = Position { whole_ns: 900 * SECOND_NS, ..position.clone() };
        assert_eq!((long.parse_target_ns("14:59"), long.parse_target_ns("14:59Z")), (Ok(899 * SECOND_NS), Ok(0)));
        // Over midnight, the time of day is that of the next day.
        let night = Position { whole_ns: 36_000 * SECOND_NS, ..position.clone() };
        assert_eq!(night.parse_target_ns("00:00:02"), Ok(32_459_300_000_000));
        let without_clock = Position { wall_ns: None, ..position };
        assert_eq!(
            without_clock.parse_target_ns("14:59:08"),
            Err("outside the run, 0:00 to 1:10: type for example 0:35".into())
        );
        assert_eq!(night.describe_run_range(), "2026-11-21 14:59:02 to 2026-11-22 00:59:02 UTC, 0:00 to 10:00:00");
    }

    #[test]
    fn speeds_parse_and_step_within_their_range() {
        for name in ["0.25x", "1x", "64x", "max", "2"] {
            assert!(name.parse::<Speed>().is_ok(), "{name}");
        }
        assert!("3x".parse::<Speed>().is_err_and(|why| why.contains("0.25x")));
        assert_eq!(Speed::default().step(-9).to_string(), "0.25x");
        assert_eq!(Speed::default().step(99).to_string(), "max");
    }
}
