//! Times of the capture for people: relative to its start and, if the wall clock is known, absolute.

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::Report;
use crate::words::duration;

/// How to format times.
#[derive(Clone, Debug)]
pub struct Clock {
    /// Start of the capture.
    start: Option<Timestamp>,
    zone: TimeZone,
}

impl Clock {
    /// The report's clock, in UTC or the zone given.
    pub fn of(report: &Report, zone: Option<TimeZone>) -> Self {
        let start = report.window_wall_ns.and_then(|[from, _]| Timestamp::from_nanosecond(from.into()).ok());
        Self { start, zone: zone.unwrap_or(TimeZone::UTC) }
    }

    /// Date and time of `at_ns` after the start, with time zone: `2026-11-21 07:20:03.120 UTC`; `None` if unknown.
    pub fn wall(&self, at_ns: u64) -> Option<String> {
        self.format(at_ns, "%Y-%m-%d %H:%M:%S%.3f %Z")
    }

    /// Hours, minutes and seconds.
    pub fn time_of_day(&self, at_ns: u64) -> Option<String> {
        self.format(at_ns, "%H:%M:%S")
    }

    /// Relative and absolute time: `12.300 s (2026-11-21 07:20:03.120 UTC)`.
    pub fn both(&self, at_ns: u64) -> String {
        match self.wall(at_ns) {
            Some(wall) => format!("{wall} ({} into the capture)", duration(at_ns)),
            None => format!("{} into the capture", duration(at_ns)),
        }
    }

    fn format(&self, at_ns: u64, format: &str) -> Option<String> {
        let at = self.start?.as_nanosecond().checked_add(at_ns.into())?;
        let at = Timestamp::from_nanosecond(at).ok()?.to_zoned(self.zone.clone());
        Some(at.strftime(format).to_string())
    }
}
