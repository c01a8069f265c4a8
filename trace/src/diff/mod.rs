//! Before and after: two reports compared, measure by measure, with what is noise and what is not.
//!
//! Each measure is taken in every slot of time of both runs ([`crate::report::Series`]), and the slots are compared by rank
//! (`rank`); how large the change is comes with an interval from a block bootstrap (`bootstrap`). A change counts when it is
//! beyond noise over all measures together (Benjamini-Hochberg), and large enough to matter. No slots, no verdict: then it says why.

mod bootstrap;
mod markdown;
mod measure;
mod outcome;
mod pattern;
mod rank;
mod samples;
mod text;
mod verdict;
mod wait;

use serde::{Deserialize, Serialize};

pub use outcome::{Outcome, State};
pub use pattern::Pattern;
pub use wait::{LegShift, WaitShift};

use crate::report::Report;

/// The schema's name, as comparisons carry it.
pub const SCHEMA: &str = "tokengap.diff/1";

/// What is asked of a change before it counts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// The chance that any change is told of two runs of the same, over all measures together.
    pub alpha: f64,
    /// Least relative change of rates, sizes and shares.
    pub least_change: f64,
    /// Least change of times, in nanoseconds; they have to change by half as well.
    pub least_time_ns: u64,
    /// Slots that each run needs.
    pub least_slots: usize,
    /// Slots that each run needs before a large difference that the test does not confirm is called noise.
    pub least_slots_for_noise: usize,
    /// Resamplings of the interval.
    pub resamples: usize,
    /// Of their randomness: the same reports give the same answer.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            alpha: 0.01,
            least_change: 0.1,
            least_time_ns: 20_000_000,
            least_slots: 6,
            least_slots_for_noise: 15,
            resamples: 2_000,
            seed: 1,
        }
    }
}

/// Two runs compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diff {
    /// [`SCHEMA`].
    pub schema: String,
    /// In one sentence.
    pub verdict: String,
    /// What became of each trouble that users feel, the gravest first; empty without measures.
    #[serde(default)]
    pub outcomes: Vec<Outcome>,
    /// How it was judged.
    pub method: String,
    /// What was asked.
    pub options: Options,
    /// The runs.
    pub a: Side,
    /// The runs.
    pub b: Side,
    /// What is known to look like this.
    pub patterns: Vec<Pattern>,
    /// Where a chunk waits in both; `null` where a run did not see it.
    #[serde(default)]
    pub wait: Option<WaitShift>,
    /// Measures in the order of the path.
    pub measures: Vec<Compared>,
}

/// One of the runs, in brief.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// As its user calls it: a file's name.
    pub name: String,
    /// Source and engine.
    pub what: String,
    /// Length of its window.
    pub window_ns: u64,
    /// Length of its slots; `null` when it has none.
    pub slot_ns: Option<u64>,
    /// Slots that were compared: load was on, ramps at both ends left off.
    pub slots: usize,
}

/// What a change means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Beyond noise, and for the better.
    Better,
    /// Beyond noise, and for the worse.
    Worse,
    /// Beyond noise, and neither good nor bad by itself.
    Changed,
    /// Not beyond noise, or too small to matter.
    WithinNoise,
    /// Too few slots or samples for an answer; the note says how many are needed.
    NotEnoughData,
    /// A run does not observe it; the note says which.
    NotComparable,
}

impl Verdict {
    /// Whether it says that something changed.
    pub fn counts(self) -> bool {
        matches!(self, Self::Better | Self::Worse | Self::Changed)
    }

    /// In words.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Changed => "changed",
            Self::WithinNoise => "within noise",
            Self::NotEnoughData => "not enough data",
            Self::NotComparable => "not comparable",
        }
    }
}

/// Of what a measure's numbers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Things per second.
    PerSecond,
    /// Nanoseconds.
    Ns,
    /// A plain number.
    Number,
    /// A share from 0 to 1.
    Share,
}

/// One measure of both runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compared {
    /// What was measured.
    pub name: String,
    /// Of what the numbers are.
    pub unit: Unit,
    /// Mean over the slots of the first run; `null` when it was not observable.
    pub a: Option<f64>,
    /// And of the second.
    pub b: Option<f64>,
    /// `b / a - 1`; `null` when `a` is 0 or one is unknown.
    pub change: Option<f64>,
    /// Where the change of the mean lies, as an interval of `b - a` in the measure's unit.
    pub interval: Option<[f64; 2]>,
    /// How likely slots so different in rank are if nothing changed; before the correction for many measures.
    pub p: Option<f64>,
    /// What it means.
    pub verdict: Verdict,
    /// Why it is not comparable, or how else it is known.
    pub note: Option<String>,
}

impl Diff {
    /// Compares `a`, called `name_a`, with `b`.
    pub fn of((name_a, a): (&str, &Report), (name_b, b): (&str, &Report), options: &Options) -> Self {
        let measures = measure::compare(a, b, options);
        let patterns = pattern::find(a, b, &measures);
        let wait = wait::shift(a, b);
        let outcomes = outcome::of(a, b, &measures);
        let (mut side_a, mut side_b) = (side(name_a, a), side(name_b, b));
        // Which is which must be seen where both are called the same.
        if side_a.name == side_b.name {
            side_a.name.push_str(" (first)");
            side_b.name.push_str(" (second)");
        }
        Self {
            schema: SCHEMA.to_owned(),
            verdict: verdict::verdict(&outcomes, &measures, &patterns),
            outcomes,
            method: verdict::method(options),
            options: *options,
            a: side_a,
            b: side_b,
            patterns,
            wait,
            measures,
        }
    }

    /// Whether the gravest trouble that changed is worse, or, where none changed, any measure.
    pub fn worse(&self) -> bool {
        match self.outcomes.iter().find(|o| o.state.counts()) {
            Some(outcome) => outcome.state == State::Regressed,
            None => self.measures.iter().any(|m| m.verdict == Verdict::Worse),
        }
    }

    /// As one JSON document.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"))
    }

    /// As text for people.
    pub fn to_text(&self) -> String {
        text::render(self)
    }

    /// As Markdown.
    pub fn to_markdown(&self) -> String {
        markdown::render(self)
    }
}

fn side(name: &str, report: &Report) -> Side {
    Side {
        name: crate::report::hostile::plain(name),
        what: format!("{} of {}", report.source.kind, crate::report::brief::engine(report)),
        window_ns: report.window_ns[1],
        slot_ns: report.series.as_ref().map(|s| s.slot_ns),
        slots: report.series.as_ref().map_or(0, |s| samples::loaded(s).len()),
    }
}
