//! Outcome for each problem that users notice, most severe first: lost tokens, wait for the first token, inter-token latency, merged
//! chunks. Sentences that summarise the comparison and its method.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use trace::stats::Spread;
use trace::words::{count, duration, names, percent, share};

use super::{Compared, Options, Pattern, Unit, Verdict};
use crate::report::Report;

/// Outcome for one problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the problem: `lost tokens`, `first-token gap`, `inter-token latency`, `merged chunks`.
    pub name: String,
    /// State of the problem in the second run.
    pub state: State,
    /// Its number before and after; empty if unknown.
    pub numbers: String,
}

/// State of a problem after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
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
    State {
        Fixed = "FIXED",
        Improved = "IMPROVED",
        Regressed = "REGRESSED",
        Unchanged = "UNCHANGED",
        NotEnoughData = "NOT ENOUGH DATA",
    }
}

impl State {
    /// Whether it reports a change.
    pub fn counts(self) -> bool {
        matches!(self, Self::Fixed | Self::Improved | Self::Regressed)
    }
}

/// Outcomes of the four problems, most severe first; empty without measures.
pub(super) fn of(a: &Report, b: &Report, measures: &[Compared]) -> Vec<Outcome> {
    if measures.is_empty() {
        return Vec::new();
    }
    let confirmed = a.chunks.dropped_confirmed.zip(b.chunks.dropped_confirmed).is_some();
    let dropped = if confirmed { "confirmed" } else { "predicted" };
    let slow = |report: &Report| report.findings.iter().any(|f| f.kind == "first-token-gap");
    let (gap, itl) = (["gap, p99", "gap, median"], ["ITL at clients, p99", "ITL at clients, median"]);
    let lost_state = state(measures, &[&format!("chunks dropped, {dropped}")], lost(b, confirmed) == Some(0));
    let merged_state = state(measures, &["chunks merged"], b.chunks.merged == Some(0));
    let outcomes = [
        ("lost tokens", lost_state, numbers(lost(a, confirmed), lost(b, confirmed), count)),
        ("first-token gap", state(measures, &gap, !slow(b)), numbers_of(measures, &gap)),
        ("inter-token latency", state(measures, &itl, false), numbers_of(measures, &itl)),
        ("merged chunks", merged_state, numbers(merged(a), merged(b), |s| s)),
    ];
    outcomes.map(|(name, state, numbers)| Outcome { name: name.to_owned(), state, numbers }).into()
}

fn lost(report: &Report, confirmed: bool) -> Option<u64> {
    if confirmed { report.chunks.tokens_lost } else { report.chunks.dropped_predicted }
}

fn merged(report: &Report) -> Option<String> {
    Some(share(report.chunks.merged?, report.chunks.sent))
}

fn numbers<T>(a: Option<T>, b: Option<T>, show: impl Fn(T) -> String) -> String {
    a.zip(b).map_or_else(String::new, |(a, b)| format!("{} -> {}", show(a), show(b)))
}

/// Text for the first of these measures that changed, else for the first one. Uses the mean over slots, as the table does.
fn numbers_of(measures: &[Compared], names: &[&str]) -> String {
    let all = || named(measures, names);
    let measure = all().find(|m| m.verdict.counts()).or_else(|| all().next());
    measure.map_or_else(String::new, |m| numbers(m.a, m.b, |value| m.unit.value(Some(value))))
}

fn named<'m>(measures: &'m [Compared], names: &[&'m str]) -> impl Iterator<Item = &'m Compared> {
    let found: Vec<&Compared> = names.iter().filter_map(|name| measures.iter().find(|m| m.name == *name)).collect();
    found.into_iter()
}

/// State by the first of these measures that changed, else by the first one. `resolved`: the second run does not have the problem.
fn state(measures: &[Compared], names: &[&str], resolved: bool) -> State {
    let mut quiet = State::NotEnoughData;
    for (place, measure) in named(measures, names).enumerate() {
        match measure.verdict {
            Verdict::Better if resolved => return State::Fixed,
            Verdict::Better => return State::Improved,
            Verdict::Worse => return State::Regressed,
            Verdict::WithinNoise | Verdict::Changed if place == 0 => quiet = State::Unchanged,
            _ => {}
        }
    }
    quiet
}

/// Inter-token latency of the engine and at clients over the whole runs, because slots do not hold it.
pub(super) fn latency(a: &Report, b: &Report, least_time_ns: u64) -> Vec<Compared> {
    let (a, b) = (&a.itl_ns, &b.itl_ns);
    [("of the engine", a.sent_by_token, b.sent_by_token), ("at clients", a.delivered_by_token, b.delivered_by_token)]
        .into_iter()
        .filter_map(|(end, a, b)| Some(latency_at(end, a?, b?, least_time_ns)))
        .flatten()
        .collect()
}

fn latency_at(end: &str, of_a: Spread, of_b: Spread, least_time_ns: u64) -> [Compared; 2] {
    /// Smallest number of tokens in each run.
    const MIN_TOKENS: u64 = 1_000;
    /// Smallest factor: without slots, noise cannot be estimated.
    const LEAST_FACTOR: f64 = 2.0;
    let enough = of_a.count.min(of_b.count) >= MIN_TOKENS;
    let (tokens_a, tokens_b) = (count(of_a.count), count(of_b.count));
    let line = |what: &str, from: u64, to: u64| {
        let large = from.abs_diff(to) >= least_time_ns && from.max(to) as f64 >= LEAST_FACTOR * from.min(to) as f64;
        let changed = if to > from { Verdict::Worse } else { Verdict::Better };
        let (verdict, note) = match (enough, large) {
            (false, _) => (
                Verdict::NotEnoughData,
                Some(format!("{tokens_a} tokens before and {tokens_b} after, {} are needed", count(MIN_TOKENS))),
            ),
            (_, false) => (Verdict::WithinNoise, None),
            _ => {
                let least = duration(least_time_ns);
                (changed, Some(format!("of all {tokens_a} and {tokens_b} tokens: at least twofold and {least}")))
            }
        };
        Compared {
            name: format!("ITL {end}, {what}"),
            unit: Unit::Ns,
            a: Some(from as f64),
            b: Some(to as f64),
            change: (from > 0).then(|| to as f64 / from as f64 - 1.0),
            interval: None,
            p: None,
            verdict,
            note,
        }
    };
    [line("median", of_a.p50, of_b.p50), line("p99", of_a.p99, of_b.p99)]
}

/// Describes the most severe problem that changed, then the others. Measures outside these problems are only counted.
pub(super) fn verdict(outcomes: &[Outcome], measures: &[Compared], patterns: &[Pattern]) -> String {
    let with = |verdict: Verdict| measures.iter().filter(move |m| m.verdict == verdict);
    let judged =
        measures.iter().filter(|m| !matches!(m.verdict, Verdict::NotComparable | Verdict::NotEnoughData)).count();
    let mut named = String::new();
    for pattern in patterns {
        let _ = write!(named, "; {}", pattern.title);
    }
    if judged == 0 {
        return format!("NOT ENOUGH DATA: no measure has enough slots under load in both runs{named}");
    }
    let changed = outcomes.iter().filter(|o| o.state.counts());
    let unchanged = outcomes.iter().filter(|o| !o.state.counts());
    let states: Vec<String> = changed
        .chain(unchanged)
        .map(|o| match o.numbers.as_str() {
            "" => format!("{} {}", o.name, o.state.as_str()),
            numbers => format!("{} {} ({numbers})", o.name, o.state.as_str()),
        })
        .collect();
    let mut others: Vec<String> = Vec::new();
    if outcomes.iter().all(|o| !o.state.counts()) {
        let significant = with(Verdict::Worse).chain(with(Verdict::Better)).take(3);
        others = significant.map(|m| format!("{} {} ({})", m.name, m.verdict.as_str(), m.change_text())).collect();
    }
    let word = match outcomes.iter().find(|o| o.state.counts()) {
        Some(outcome) => outcome.state,
        None if with(Verdict::Worse).count() > 0 => State::Regressed,
        None if with(Verdict::Better).count() > 0 => State::Improved,
        // A large difference in too few slots is not known to be noise.
        None if with(Verdict::NotEnoughData).any(|m| m.p.is_some()) => State::NotEnoughData,
        None if outcomes.iter().all(|o| o.state == State::NotEnoughData) => State::NotEnoughData,
        None => State::Unchanged,
    };
    others.extend(states);
    format!("{}: {}{named}", word.as_str(), others.join(", "))
}

pub(super) fn method(options: &Options) -> String {
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
        let measure = |name: &str, [a, b]: [f64; 2], verdict| Compared {
            name: name.into(),
            unit: Unit::Ns,
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
            measure(names[0], [9.1e6, 93.3e6], Verdict::NotEnoughData),
            measure(names[1], [3.1e6, 2.6e6], Verdict::WithinNoise),
        ];
        assert_eq!(numbers_of(&measures, &names), "9.1 ms -> 93.3 ms");
        assert_eq!(state(&measures, &names, true), State::NotEnoughData);
        measures[1].verdict = Verdict::Worse;
        assert_eq!(state(&measures, &names, true), State::Regressed);
        assert_eq!(numbers_of(&measures, &names), "3.1 ms -> 2.6 ms");
    }
}
