//! Comparison of two reports, measure by measure, that separates changes from noise.
//!
//! Each measure has a value in every time slot of both runs ([`crate::report::Series`]). One test compares the slots and gives the interval
//! of the change (`mann_whitney`). A change counts if it is beyond noise over all measures and large enough to matter. Numbers of all
//! requests and tokens need no slots. Without either there is no verdict, and the note says why.

mod change_pattern;
mod finding_change;
mod headline;
mod lost_share;
mod mann_whitney;
mod measure;
mod measure_list;
mod problem_outcome;
mod text;
mod ttft_shift;
mod wait_shift;

use serde::{Deserialize, Serialize};

use self::finding_change::Direction;
pub use change_pattern::ChangePattern;
pub use finding_change::{FindingChange, FindingSide, FindingState};
pub use problem_outcome::{ProblemOutcome, ProblemState};
use trace::words::{count, decimal_percent, duration, names};
pub use ttft_shift::{TtftLegShift, TtftShift};
pub use wait_shift::{LegShift, WaitShift};

use crate::report::{Report, hostile};

/// Name of the schema in comparisons.
pub const SCHEMA: &str = "tokengap.diff/1";

/// Criteria for a change to count.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DiffOptions {
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

impl Default for DiffOptions {
    fn default() -> Self {
        Self { alpha: 0.01, least_change: 0.1, least_time_ns: 20_000_000, least_slots: 6, least_slots_for_noise: 15 }
    }
}

impl DiffOptions {
    /// Confidence of the intervals: `99 %`.
    fn confidence_text(&self) -> String {
        // Rounded to hundredths of a percent.
        format!("{} %", (10_000.0 * (1.0 - self.alpha)).round() / 100.0)
    }
}

/// A run to compare.
#[derive(Clone, Copy, Debug)]
pub struct NamedRun<'r> {
    /// Name given by the user: a file name.
    pub name: &'r str,
    /// Its report.
    pub report: &'r Report,
}

/// Comparison of two runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Diff {
    /// [`SCHEMA`].
    pub schema: String,
    /// Conclusion in one sentence.
    pub verdict: String,
    /// Outcome for each problem that users notice, most severe first; empty without measures.
    pub outcomes: Vec<ProblemOutcome>,
    /// Findings of either run, most severe first.
    pub findings: Vec<FindingChange>,
    /// Why slots cannot confirm every change; `null` if both runs have enough of them.
    pub short_runs: Option<String>,
    /// Description of the method.
    pub method: String,
    /// Options of the comparison.
    pub options: DiffOptions,
    /// First run.
    pub a: RunSummary,
    /// Second run.
    pub b: RunSummary,
    /// Known patterns that match the change.
    pub patterns: Vec<ChangePattern>,
    /// Wait of a chunk in both runs; `null` if one of them did not observe it.
    pub wait: Option<WaitShift>,
    /// Legs of the time to first token in both runs; `null` unless both observed them of most requests.
    pub ttft: Option<TtftShift>,
    /// Measures in the order of the path.
    pub measures: Vec<ComparedMeasure>,
}

/// Summary of one of the runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunSummary {
    /// Name given by the user: a file name.
    pub name: String,
    /// Source and engine.
    pub what: String,
    /// Headline of its report.
    pub verdict: String,
    /// Length of its window.
    pub window_ns: u64,
    /// Length of its slots; `null` when it has none.
    pub slot_ns: Option<u64>,
    /// Number of slots compared: those under load, without the ramps at both ends.
    pub slots: usize,
}

impl RunSummary {
    /// Summaries of the first and the second run, with different names even if the user gave both the same.
    fn of_both(a: &NamedRun<'_>, b: &NamedRun<'_>) -> [Self; 2] {
        let mut summary_a = Self::of_run(a);
        let mut summary_b = Self::of_run(b);
        if summary_a.name == summary_b.name {
            summary_a.name.push_str(" (first)");
            summary_b.name.push_str(" (second)");
        }
        [summary_a, summary_b]
    }
    /// Name, source and length of a run, for the heading.
    fn of_run(run: &NamedRun<'_>) -> Self {
        let series = run.report.series.as_ref();
        Self {
            name: hostile::escape_and_cut_line(run.name),
            what: format!("{} of {}", run.report.source.kind, crate::report::brief::describe_engine(run.report)),
            verdict: run.report.verdict.clone(),
            window_ns: run.report.capture_length_ns(),
            slot_ns: series.map(|series| series.slot_ns),
            slots: series.map_or(0, |series| measure_list::loaded_slot_indices(series).len()),
        }
    }
}

/// Judgement of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChangeVerdict {
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
    ChangeVerdict {
        Better = "better",
        Worse = "worse",
        Changed = "changed",
        WithinNoise = "within noise",
        NotEnoughData = "not enough data",
        NotComparable = "not comparable",
    }
}

impl ChangeVerdict {
    /// Whether it reports a change.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Better | Self::Worse | Self::Changed)
    }
}

/// Unit of a measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeasureUnit {
    /// Events per second.
    PerSecond,
    /// Nanoseconds.
    Ns,
    /// A plain number.
    Number,
    /// A share from 0 to 1.
    Share,
}

impl MeasureUnit {
    /// Formats a value; `-` without one.
    fn format_value(self, value: Option<f64>) -> String {
        let Some(value) = value else { return String::from("-") };
        match self {
            Self::PerSecond => format!("{}/s", count(value.round() as u64)),
            // A duration has no sign.
            Self::Ns => duration(value.max(0.0).round() as u64),
            Self::Share => decimal_percent(value),
            // Decimals of large numbers are noise.
            Self::Number if value >= 100.0 => count(value.round() as u64),
            Self::Number => format!("{value:.2}"),
        }
    }

    /// Formats a signed difference.
    fn format_signed(self, difference: f64) -> String {
        let sign = if difference < 0.0 { '-' } else { '+' };
        format!("{sign}{}", self.format_value(Some(difference.abs())))
    }
}

/// One measure of both runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ComparedMeasure {
    /// Name of the measure.
    pub name: String,
    /// Unit of the numbers.
    pub unit: MeasureUnit,
    /// Mean over the slots of the first run, or share of all its chunks or tokens; `null` if not observed.
    pub a: Option<f64>,
    /// Mean over the slots of the second run, or share of all its chunks or tokens; `null` if not observed.
    pub b: Option<f64>,
    /// `b / a - 1`; `null` if `a` is 0 or either is unknown.
    pub change: Option<f64>,
    /// Interval of the shift of slots from `a` to `b`, in the measure's unit; `null` if there are too few slots for one.
    pub interval: Option<[f64; 2]>,
    /// p-value of the test, before correction for multiple measures.
    pub p: Option<f64>,
    /// Judgement of the change.
    pub verdict: ChangeVerdict,
    /// Reason why there is no verdict, or additional basis of the verdict.
    pub note: Option<String>,
}

impl ComparedMeasure {
    /// Formats the relative change, or the difference if there is no ratio.
    fn change_text(&self) -> String {
        /// Smallest relative change that is shown as a factor, which is easier to read: `x11`, not `+1000 %`.
        const LARGE_CHANGE: f64 = 9.95;
        if let Some(change) = self.change {
            let is_large = change.abs() >= LARGE_CHANGE;
            return if is_large { format!("x{:.0}", change + 1.0) } else { format!("{:+.0} %", 100.0 * change) };
        }
        match (self.a, self.b) {
            (Some(a), Some(b)) => self.unit.format_signed(b - a),
            _ => String::from("-"),
        }
    }
}

impl Diff {
    /// Compares run `a` with run `b`.
    pub fn of_runs(a: NamedRun<'_>, b: NamedRun<'_>, options: &DiffOptions) -> Self {
        let mut measures = measure::compare_measures(a.report, b.report, options);
        let short_runs = measure::describe_short_runs(a.report, b.report, options);
        if short_runs.is_some() {
            measures.extend(lost_share::compare_lost_shares(a.report, b.report));
        }
        let outcomes = problem_outcome::judge_problems(a.report, b.report, &measures);
        let findings = finding_change::compare_findings(a.report, b.report);
        let wait = WaitShift::of_runs(a.report, b.report);
        let patterns = change_pattern::find_change_patterns(a.report, b.report, &outcomes, wait.as_ref());
        let ranked = headline::rank_changes(&outcomes, &findings);
        let [summary_a, summary_b] = RunSummary::of_both(&a, &b);
        Self {
            schema: SCHEMA.to_owned(),
            verdict: headline::summarise_changes(&ranked, &outcomes, &measures, &patterns),
            outcomes,
            findings,
            short_runs,
            method: problem_outcome::describe_method(options),
            options: *options,
            a: summary_a,
            b: summary_b,
            patterns,
            wait,
            ttft: TtftShift::between(a.report, b.report),
            measures,
        }
    }

    /// Whether the most severe change is for the worse or, if no problem or finding changed, any measure is worse.
    pub fn is_worse(&self) -> bool {
        let ranked = headline::rank_changes(&self.outcomes, &self.findings);
        match ranked.iter().map(|change| change.direction).find(|direction| *direction != Direction::Same) {
            Some(direction) => direction == Direction::Worse,
            None => self.measures.iter().any(|measure| measure.verdict == ChangeVerdict::Worse),
        }
    }

    /// Renders one JSON document.
    pub fn to_json(&self) -> String {
        let json = serde_json::to_string_pretty(self).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"));
        hostile::escape_output(&json, hostile::EscapeForm::Json).into_owned()
    }

    /// Renders plain text.
    pub fn to_text(&self) -> String {
        text::render_text(self)
    }

    /// Renders Markdown.
    pub fn to_markdown(&self) -> String {
        text::render_markdown(self)
    }
}
