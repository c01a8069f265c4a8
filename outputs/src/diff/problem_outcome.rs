//! Outcome for each problem that users notice, most severe first: lost tokens, wait for the first token, inter-token latency, merged
//! chunks. Sentences that summarise the comparison and its method.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use trace::words::{count, duration, names, percent, share};

use super::{ChangePattern, ChangeVerdict, ComparedMeasure, DiffOptions, MeasureUnit};
use crate::report::Report;

/// Outcome for one problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemOutcome {
    /// Name of the problem: `lost tokens`, `first-token gap`, `inter-token latency`, `merged chunks`.
    pub name: String,
    /// State of the problem in the second run.
    pub state: ProblemState,
    /// Its number before and after; empty if unknown.
    pub numbers: String,
}

/// State of a problem after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProblemState {
    /// The problem no longer occurs.
    Fixed,
    /// Smaller than before.
    Improved,
    /// New, or larger than before.
    Regressed,
    /// No change beyond noise.
    Unchanged,
    /// Not observed by one of the runs, or not for long enough.
    NotEnoughData,
}

names! {
    ProblemState {
        Fixed = "FIXED",
        Improved = "IMPROVED",
        Regressed = "REGRESSED",
        Unchanged = "UNCHANGED",
        NotEnoughData = "NOT ENOUGH DATA",
    }
}

impl ProblemState {
    /// Whether it reports a change.
    pub fn is_change(self) -> bool {
        matches!(self, Self::Fixed | Self::Improved | Self::Regressed)
    }
}

/// Measures of the first-token gap and of the latency at clients: the one that decides, then the one that replaces it.
const GAP_MEASURES: [&str; 2] = ["gap, p99", "gap, median"];
const LATENCY_MEASURES: [&str; 2] = ["ITL at clients, p99", "ITL at clients, median"];

/// Outcomes of the four problems, most severe first; empty without measures.
pub(super) fn judge_problems(a: &Report, b: &Report, measures: &[ComparedMeasure]) -> Vec<ProblemOutcome> {
    if measures.is_empty() {
        return Vec::new();
    }
    let gap_resolved = b.findings.iter().all(|finding| finding.kind != "first-token-gap");
    vec![
        judge_lost_tokens(a, b, measures),
        ProblemOutcome {
            name: String::from("first-token gap"),
            state: state_by_measures(measures, &GAP_MEASURES, gap_resolved),
            numbers: numbers_of_measures(measures, &GAP_MEASURES),
        },
        ProblemOutcome {
            name: String::from("inter-token latency"),
            state: state_by_measures(measures, &LATENCY_MEASURES, false),
            numbers: numbers_of_measures(measures, &LATENCY_MEASURES),
        },
        ProblemOutcome {
            name: String::from("merged chunks"),
            state: state_by_measures(measures, &["chunks merged"], b.chunks.merged == Some(0)),
            numbers: before_and_after(merged_share(a), merged_share(b), |share| share),
        },
    ]
}

/// Proven losses count if both runs have them, else the predicted ones.
fn judge_lost_tokens(a: &Report, b: &Report, measures: &[ComparedMeasure]) -> ProblemOutcome {
    let are_confirmed = a.chunks.dropped_confirmed.is_some() && b.chunks.dropped_confirmed.is_some();
    let [lost_a, lost_b] =
        [a, b].map(|run| if are_confirmed { run.chunks.tokens_lost } else { run.chunks.dropped_predicted });
    let measure = if are_confirmed { "chunks dropped, confirmed" } else { "chunks dropped, predicted" };
    ProblemOutcome {
        name: String::from("lost tokens"),
        state: state_by_measures(measures, &[measure], lost_b == Some(0)),
        numbers: before_and_after(lost_a, lost_b, count),
    }
}

fn merged_share(report: &Report) -> Option<String> {
    Some(share(report.chunks.merged?, report.chunks.sent))
}

/// `9.1 ms -> 93.3 ms`; empty if one is unknown.
fn before_and_after<T>(a: Option<T>, b: Option<T>, format_number: impl Fn(T) -> String) -> String {
    a.zip(b).map_or_else(String::new, |(a, b)| format!("{} -> {}", format_number(a), format_number(b)))
}

/// Text for the first of these measures that changed, else for the first one. Uses the mean over slots, as the table does.
fn numbers_of_measures(measures: &[ComparedMeasure], names: &[&str]) -> String {
    let named = measures_named(measures, names);
    let changed = named.iter().find(|measure| measure.verdict.is_change());
    let Some(measure) = changed.or(named.first()) else { return String::new() };
    before_and_after(measure.a, measure.b, |value| measure.unit.format_value(Some(value)))
}

/// The measures with these names, in the order of the names.
fn measures_named<'m>(measures: &'m [ComparedMeasure], names: &[&str]) -> Vec<&'m ComparedMeasure> {
    names.iter().filter_map(|name| measures.iter().find(|measure| measure.name == *name)).collect()
}

/// State by the first of these measures that changed, else by the first one. `is_resolved`: the second run does not have the problem.
fn state_by_measures(measures: &[ComparedMeasure], names: &[&str], is_resolved: bool) -> ProblemState {
    let mut unchanged = ProblemState::NotEnoughData;
    for (index, measure) in measures_named(measures, names).into_iter().enumerate() {
        match measure.verdict {
            ChangeVerdict::Better if is_resolved => return ProblemState::Fixed,
            ChangeVerdict::Better => return ProblemState::Improved,
            ChangeVerdict::Worse => return ProblemState::Regressed,
            ChangeVerdict::WithinNoise | ChangeVerdict::Changed if index == 0 => unchanged = ProblemState::Unchanged,
            _ => {}
        }
    }
    unchanged
}

/// Inter-token latency of the engine and at clients over the whole runs, because slots do not hold it.
pub(super) fn compare_latencies(a: &Report, b: &Report, least_time_ns: u64) -> Vec<ComparedMeasure> {
    let (a, b) = (&a.itl_ns, &b.itl_ns);
    let engine = a.sent_by_token.zip(b.sent_by_token);
    let clients = a.delivered_by_token.zip(b.delivered_by_token);
    let mut measures = Vec::new();
    for (end, runs) in [("of the engine", engine), ("at clients", clients)] {
        let Some((a, b)) = runs else { continue };
        let tokens = TokenCounts { a: a.count, b: b.count };
        measures.push(compare_latency(&format!("ITL {end}, median"), a.p50, b.p50, tokens, least_time_ns));
        measures.push(compare_latency(&format!("ITL {end}, p99"), a.p99, b.p99, tokens, least_time_ns));
    }
    measures
}

/// Number of tokens of both runs.
#[derive(Clone, Copy)]
struct TokenCounts {
    a: u64,
    b: u64,
}

fn compare_latency(name: &str, a_ns: u64, b_ns: u64, tokens: TokenCounts, least_time_ns: u64) -> ComparedMeasure {
    /// Smallest number of tokens in each run.
    const MIN_TOKENS: u64 = 1_000;
    /// Smallest factor: without slots, noise cannot be estimated.
    const LEAST_FACTOR: f64 = 2.0;
    let is_large =
        a_ns.abs_diff(b_ns) >= least_time_ns && a_ns.max(b_ns) as f64 >= LEAST_FACTOR * a_ns.min(b_ns) as f64;
    let (verdict, note) = if tokens.a.min(tokens.b) < MIN_TOKENS {
        let (before, after, needed) = (count(tokens.a), count(tokens.b), count(MIN_TOKENS));
        let note = format!("{before} tokens before and {after} after, {needed} are needed");
        (ChangeVerdict::NotEnoughData, Some(note))
    } else if is_large {
        let verdict = if b_ns > a_ns { ChangeVerdict::Worse } else { ChangeVerdict::Better };
        let (before, after, least) = (count(tokens.a), count(tokens.b), duration(least_time_ns));
        (verdict, Some(format!("of all {before} and {after} tokens: at least twofold and {least}")))
    } else {
        (ChangeVerdict::WithinNoise, None)
    };
    ComparedMeasure {
        name: name.to_owned(),
        unit: MeasureUnit::Ns,
        a: Some(a_ns as f64),
        b: Some(b_ns as f64),
        change: (a_ns > 0).then(|| b_ns as f64 / a_ns as f64 - 1.0),
        interval: None,
        p: None,
        verdict,
        note,
    }
}

/// Describes the most severe problem that changed, then the others. Measures outside these problems are only counted.
pub(super) fn summarise(
    outcomes: &[ProblemOutcome],
    measures: &[ComparedMeasure],
    patterns: &[ChangePattern],
) -> String {
    let mut titles = String::new();
    for pattern in patterns {
        let _ = write!(titles, "; {}", pattern.title);
    }
    let is_unjudged = |measure: &ComparedMeasure| {
        matches!(measure.verdict, ChangeVerdict::NotComparable | ChangeVerdict::NotEnoughData)
    };
    if measures.iter().all(is_unjudged) {
        return format!("NOT ENOUGH DATA: no measure has enough slots under load in both runs{titles}");
    }
    let (changed, unchanged): (Vec<_>, Vec<_>) = outcomes.iter().partition(|outcome| outcome.state.is_change());
    let state = changed.first().map_or_else(|| state_without_changed_problem(outcomes, measures), |first| first.state);
    let mut parts = if changed.is_empty() { describe_changed_measures(measures) } else { Vec::new() };
    parts.extend(changed.into_iter().chain(unchanged).map(describe_outcome));
    format!("{}: {}{titles}", state.as_str(), parts.join(", "))
}

/// `lost tokens FIXED (12 -> 0)`.
fn describe_outcome(outcome: &ProblemOutcome) -> String {
    let ProblemOutcome { name, state, numbers } = outcome;
    if numbers.is_empty() {
        return format!("{name} {}", state.as_str());
    }
    format!("{name} {} ({numbers})", state.as_str())
}

fn measures_with(measures: &[ComparedMeasure], verdict: ChangeVerdict) -> impl Iterator<Item = &ComparedMeasure> {
    measures.iter().filter(move |measure| measure.verdict == verdict)
}

/// The first few changed measures, the worse ones first.
fn describe_changed_measures(measures: &[ComparedMeasure]) -> Vec<String> {
    let worse = measures_with(measures, ChangeVerdict::Worse);
    let changed = worse.chain(measures_with(measures, ChangeVerdict::Better)).take(3);
    changed
        .map(|measure| format!("{} {} ({})", measure.name, measure.verdict.as_str(), measure.change_text()))
        .collect()
}

/// State of a comparison without a changed problem, by its measures.
fn state_without_changed_problem(outcomes: &[ProblemOutcome], measures: &[ComparedMeasure]) -> ProblemState {
    let has = |verdict| measures_with(measures, verdict).next().is_some();
    if has(ChangeVerdict::Worse) {
        return ProblemState::Regressed;
    }
    if has(ChangeVerdict::Better) {
        return ProblemState::Improved;
    }
    // A large difference in too few slots is not known to be noise.
    let is_unconfirmed = measures_with(measures, ChangeVerdict::NotEnoughData).any(|measure| measure.p.is_some());
    let is_unknown = outcomes.iter().all(|outcome| outcome.state == ProblemState::NotEnoughData);
    if is_unconfirmed || is_unknown { ProblemState::NotEnoughData } else { ProblemState::Unchanged }
}

pub(super) fn describe_method(options: &DiffOptions) -> String {
    format!(
        "Mann-Whitney U test over time slots, with a smaller effective sample size if neighbouring slots correlate, corrected to {} over \
         all measures together (Benjamini-Hochberg); the interval has the shifts that this test does not reject (Hodges-Lehmann); a change \
         counts when the test rejects zero and the change is at least {}, for times at least {} and by half; an unconfirmed difference of \
         that size needs {} slots to be called noise",
        percent(options.alpha),
        percent(options.least_change),
        duration(options.least_time_ns),
        options.least_slots_for_noise
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_follows_the_measure_with_the_reported_numbers() {
        let measure = |name: &str, [a, b]: [f64; 2], verdict| ComparedMeasure {
            name: name.into(),
            unit: MeasureUnit::Ns,
            a: Some(a),
            b: Some(b),
            change: None,
            interval: None,
            p: None,
            verdict,
            note: None,
        };
        let names = ["gap, p99", "gap, median"];
        let mut measures = [
            measure(names[0], [9.1e6, 93.3e6], ChangeVerdict::NotEnoughData),
            measure(names[1], [3.1e6, 2.6e6], ChangeVerdict::WithinNoise),
        ];
        assert_eq!(numbers_of_measures(&measures, &names), "9.1 ms -> 93.3 ms");
        assert_eq!(state_by_measures(&measures, &names, true), ProblemState::NotEnoughData);
        measures[1].verdict = ChangeVerdict::Worse;
        assert_eq!(state_by_measures(&measures, &names, true), ProblemState::Regressed);
        assert_eq!(numbers_of_measures(&measures, &names), "3.1 ms -> 2.6 ms");
    }
}
