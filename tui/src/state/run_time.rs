//! Times of a run as typed in filters, and the clocks that they are read by.

use session::time_of_day::TimeOfDay;
use session::units;
use trace::MonoNs;

/// A time as typed: of the day, or from the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TypedTime {
    OfDay(TimeOfDay),
    FromStart {
        ns: u64,
        /// Length of the time that its last digit stands for: a whole second without decimals.
        precision_ns: u64,
        /// The same text as a time of day.
        as_time_of_day: Option<TimeOfDay>,
    },
}

/// Clocks of a run, by which typed times are compared with those of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunClock {
    pub(crate) started: MonoNs,
    /// Wall clock at the start; `None` if unknown.
    pub(crate) wall_start_ns: Option<u64>,
}

/// The known time of a run, by which a typed time that has two readings is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunSpan {
    /// Wall clock at the start; `None` if unknown.
    pub(crate) wall_start_ns: Option<u64>,
    pub(crate) length_ns: u64,
}

impl RunClock {
    /// A time of the run, given from its start.
    pub(super) fn at(self, ns: u64) -> MonoNs {
        MonoNs(self.started.0.saturating_add(ns))
    }

    /// Time of day in UTC with milliseconds if known, else the time since the start of the run.
    pub(crate) fn format_moment(self, at: MonoNs) -> String {
        let ns = at.since(self.started);
        let wall_ns = self.wall_start_ns.and_then(|start_ns| start_ns.checked_add(ns));
        wall_ns.and_then(units::format_wall_time_ms).unwrap_or_else(|| units::format_clock_ms(ns))
    }
}

/// Decimals of a second that is written in nanoseconds; further ones are ignored.
const NANOSECOND_DECIMALS: usize = 9;

impl TypedTime {
    /// Parses a time of day such as `14:59:08`, or a time from the start such as `1:23` or `3.9s`. `None` if the text is neither.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let time_of_day = TimeOfDay::parse(text);
        let Some(ns) = units::parse_typed_time_ns(text) else { return time_of_day.map(Self::OfDay) };
        // `14:59:08` is a time of day. `14:59` may also be minutes and seconds from the start, which the span of the run decides later.
        if let Some(time) = time_of_day
            && !time.is_minute()
        {
            return Some(Self::OfDay(time));
        }
        Some(Self::FromStart { ns, precision_ns: typed_precision_ns(text), as_time_of_day: time_of_day })
    }

    /// Whether it is later than another time of the same kind. False for times of different kinds, whose order depends on the run.
    pub(super) fn is_after(self, other: Self) -> bool {
        const DAY_NS: u64 = 86_400_000_000_000;
        if let (Self::OfDay(time), Self::OfDay(other)) = (self, other) {
            // A span from 23:00 to 1:00 crosses midnight. So a time that is later by more than half a day is one of the day before.
            let is_of_day_before = time.ns > other.ns + DAY_NS / 2;
            return time.ns > other.ns && !is_of_day_before;
        }
        if let (Self::FromStart { ns, .. }, Self::FromStart { ns: other_ns, .. }) = (self, other) {
            return ns > other_ns;
        }
        false
    }

    /// Whether it is a time of day in hours and minutes.
    pub(super) fn is_minute(self) -> bool {
        matches!(self, Self::OfDay(time) if time.is_minute())
    }

    /// Makes `14:59` a time of day if the run covers that time of day, but is shorter than 14 minutes and 59 seconds. Otherwise it stays a
    /// time from the start.
    pub(super) fn resolve_ambiguity(&mut self, span: RunSpan) {
        // Any other time has only one reading.
        let Self::FromStart { ns, as_time_of_day: Some(time), .. } = *self else { return };
        // Without a wall clock, the run covers no time of day.
        let Some(start_ns) = span.wall_start_ns else { return };
        if ns > span.length_ns && time.first_in_run(start_ns) <= span.length_ns {
            *self = Self::OfDay(time);
        }
    }

    /// First nanosecond that the time includes, counted from the start of a run whose wall clock then was `wall_start_ns`. Without a wall
    /// clock, every time is one from the start.
    pub(super) fn first_ns_since_run_start(self, wall_start_ns: Option<u64>) -> u64 {
        match self {
            Self::OfDay(time) => match wall_start_ns {
                Some(start_ns) => time.first_in_run(start_ns),
                None => time.ns,
            },
            Self::FromStart { ns, .. } => ns,
        }
    }

    /// Last nanosecond that the time includes, counted as by [`Self::first_ns_since_run_start`]: `14:59:08` is the whole second.
    pub(super) fn last_ns_since_run_start(self, wall_start_ns: Option<u64>) -> u64 {
        match self {
            Self::OfDay(time) => match wall_start_ns {
                Some(start_ns) => time.last_in_run(start_ns),
                None => time.ns.saturating_add(time.precision_ns - 1),
            },
            Self::FromStart { ns, precision_ns, .. } => ns.saturating_add(precision_ns - 1),
        }
    }
}

/// Length of the time for which a typed number of seconds stands: a tenth of a second for `3.9s`, a whole one for `3s`.
fn typed_precision_ns(text: &str) -> u64 {
    let after_point = text.split_once('.').map_or("", |(_, end)| end);
    let decimals = after_point.bytes().take_while(u8::is_ascii_digit).count();
    1_000_000_000 / 10_u64.pow(decimals.min(NANOSECOND_DECIMALS) as u32)
}
