//! Sentences that summarise the comparison and its method.

use std::fmt::Write as _;

use super::outcome::{Outcome, State};
use super::{Compared, Options, Pattern, Verdict};
use crate::words::{duration, percent};

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
