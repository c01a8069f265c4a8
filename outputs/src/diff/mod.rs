//! Comparison of two reports, measure by measure, that separates changes from noise.
//!
//! Each measure has a value in every time slot of both runs ([`crate::report::Series`]). One test compares the slots and gives the interval
//! of the change (`rank`). A change counts if it is beyond noise over all measures and large enough to matter. Without slots there is no
//! verdict, and the note says why.

mod measure;
mod outcome;
mod pattern;
mod rank;
mod text;
mod wait;

use serde::{Deserialize, Serialize};

pub use outcome::{Outcome, State};
pub use pattern::Pattern;
use trace::words::{count, duration, names};
pub use wait::{LegShift, WaitShift};

use crate::report::{Report, hostile};

/// Name of the schema in comparisons.
pub const SCHEMA: &str = "tokengap.diff/1";

/// Criteria for a change to count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Probability of reporting any change between two equal runs, over all measures together.
    pub alpha: f64,
    /// Smallest relative change of rates, sizes and shares.
    pub least_change: f64,
    /// Smallest change of times, in nanoseconds; times must also change by half.
    pub least_time_ns: u64,
    /// Smallest number of slots in each run.
    pub least_slots: usize,
    /// Smallest number of slots in each run to call a large but unconfirmed difference noise.
    pub least_slots_for_noise: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { alpha: 0.01, least_change: 0.1, least_time_ns: 20_000_000, least_slots: 6, least_slots_for_noise: 15 }
    }
}

impl Options {
    /// Confidence of the intervals: `99 %`.
    fn confidence(&self) -> String {
        format!("{} %", (10_000.0 * (1.0 - self.alpha)).round() / 100.0)
    }
}

/// Comparison of two runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diff {
    /// [`SCHEMA`].
    pub schema: String,
    /// Conclusion in one sentence.
    pub verdict: String,
    /// Outcome for each problem that users notice, most severe first; empty without measures.
    pub outcomes: Vec<Outcome>,
    /// Description of the method.
    pub method: String,
    /// Options of the comparison.
    pub options: Options,
    /// First run.
    pub a: Side,
    /// Second run.
    pub b: Side,
    /// Known patterns that match the change.
    pub patterns: Vec<Pattern>,
    /// Wait of a chunk in both runs; `null` if one of them did not observe it.
    pub wait: Option<WaitShift>,
    /// Measures in the order of the path.
    pub measures: Vec<Compared>,
}

/// Summary of one of the runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// Name given by the user: a file name.
    pub name: String,
    /// Source and engine.
    pub what: String,
    /// Length of its window.
    pub window_ns: u64,
    /// Length of its slots; `null` when it has none.
    pub slot_ns: Option<u64>,
    /// Number of slots compared: those under load, without the ramps at both ends.
    pub slots: usize,
}

/// Judgement of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Beyond noise, and an improvement.
    Better,
    /// Beyond noise, and a regression.
    Worse,
    /// Beyond noise, neither good nor bad by itself.
    Changed,
    /// Not beyond noise, or too small to matter.
    WithinNoise,
    /// Too few slots or samples; the note gives the required number.
    NotEnoughData,
    /// Not observed by one of the runs; the note says which.
    NotComparable,
}

names! {
    Verdict {
        Better = "better",
        Worse = "worse",
        Changed = "changed",
        WithinNoise = "within noise",
        NotEnoughData = "not enough data",
        NotComparable = "not comparable",
    }
}

impl Verdict {
    /// Whether it reports a change.
    pub fn counts(self) -> bool {
        matches!(self, Self::Better | Self::Worse | Self::Changed)
    }
}

/// Unit of a measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Events per second.
    PerSecond,
    /// Nanoseconds.
    Ns,
    /// A plain number.
    Number,
    /// A share from 0 to 1.
    Share,
}

impl Unit {
    /// Formats a value; `-` without one.
    fn value(self, value: Option<f64>) -> String {
        match (self, value) {
            (_, None) => String::from("-"),
            (Self::PerSecond, Some(v)) => format!("{}/s", count(v.round() as u64)),
            (Self::Ns, Some(v)) => duration(v.max(0.0).round() as u64),
            (Self::Share, Some(v)) => format!("{:.1} %", 100.0 * v),
            (Self::Number, Some(v)) if v >= 100.0 => count(v.round() as u64),
            (Self::Number, Some(v)) => format!("{v:.2}"),
        }
    }

    /// Formats a signed difference.
    fn signed(self, difference: f64) -> String {
        let sign = if difference < 0.0 { '-' } else { '+' };
        format!("{sign}{}", self.value(Some(difference.abs())))
    }
}

/// One measure of both runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// Name of the measure.
    pub name: String,
    /// Unit of the numbers.
    pub unit: Unit,
    /// Mean over the slots of the first run; `null` if not observed.
    pub a: Option<f64>,
    /// Mean over the slots of the second run; `null` if not observed.
    pub b: Option<f64>,
    /// `b / a - 1`; `null` if `a` is 0 or either is unknown.
    pub change: Option<f64>,
    /// Interval of the shift of slots from `a` to `b`, in the measure's unit; `null` if there are too few slots for one.
    pub interval: Option<[f64; 2]>,
    /// p-value of the test, before correction for multiple measures.
    pub p: Option<f64>,
    /// Judgement of the change.
    pub verdict: Verdict,
    /// Reason why there is no verdict, or additional basis of the verdict.
    pub note: Option<String>,
}

impl Compared {
    /// Formats the relative change, or the difference if there is no ratio.
    fn change_text(&self) -> String {
        match (self.change, self.a, self.b) {
            (Some(change), _, _) if change.abs() >= 9.95 => format!("x{:.0}", change + 1.0),
            (Some(change), _, _) => format!("{:+.0} %", 100.0 * change),
            (None, Some(a), Some(b)) => self.unit.signed(b - a),
            _ => String::from("-"),
        }
    }
}

impl Diff {
    /// Compares `a`, called `name_a`, with `b`.
    pub fn of((name_a, a): (&str, &Report), (name_b, b): (&str, &Report), options: &Options) -> Self {
        let measures = measure::compare(a, b, options);
        let patterns = pattern::find(a, b, &measures);
        let wait = wait::shift(a, b);
        let outcomes = outcome::of(a, b, &measures);
        let (mut side_a, mut side_b) = (side(name_a, a), side(name_b, b));
        // Distinguish two runs with the same name.
        if side_a.name == side_b.name {
            side_a.name.push_str(" (first)");
            side_b.name.push_str(" (second)");
        }
        Self {
            schema: SCHEMA.to_owned(),
            verdict: outcome::verdict(&outcomes, &measures, &patterns),
            outcomes,
            method: outcome::method(options),
            options: *options,
            a: side_a,
            b: side_b,
            patterns,
            wait,
            measures,
        }
    }

    /// Whether the most severe problem that changed became worse or, if none changed, any measure did.
    pub fn worse(&self) -> bool {
        match self.outcomes.iter().find(|o| o.state.counts()) {
            Some(outcome) => outcome.state == State::Regressed,
            None => self.measures.iter().any(|m| m.verdict == Verdict::Worse),
        }
    }

    /// Renders one JSON document.
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string_pretty(self).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"));
        hostile::output(&json, hostile::EscapeForm::Json).into_owned()
    }

    /// Renders plain text.
    pub fn to_text(&self) -> String {
        text::render(self)
    }

    /// Renders Markdown.
    pub fn to_markdown(&self) -> String {
        text::markdown(self)
    }
}

fn side(name: &str, report: &Report) -> Side {
    Side {
        name: hostile::plain(name),
        what: format!("{} of {}", report.source.kind, crate::report::brief::engine(report)),
        window_ns: report.window_ns[1],
        slot_ns: report.series.as_ref().map(|s| s.slot_ns),
        slots: report.series.as_ref().map_or(0, |s| measure::loaded(s).len()),
    }
}
