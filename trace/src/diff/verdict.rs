//! Sentences that summarise the comparison and its method.

use std::fmt::Write as _;

use super::outcome::{Outcome, State};
use super::{Compared, Options, Pattern, Verdict};
use crate::words::{count, duration, percent};

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
        None if outcomes.iter().all(|o| o.state == State::NotEnoughData) => State::NotEnoughData,
        None => State::Unchanged,
    };
    others.extend(states);
    format!("{}: {}{named}", word.as_str(), others.join(", "))
}

pub(super) fn method(options: &Options) -> String {
    format!(
        "Mann-Whitney test over time slots, with a smaller effective sample size if neighbouring slots correlate, corrected to {} over all measures together (Benjamini-Hochberg), or every slot of one run a quarter beyond every slot of the other, \
         or a share in every slot of one run and none in the other; \
         a change counts when a 99 % interval (block bootstrap, {} resamples, seed {}) does not contain zero and the change is at least {}, \
         for times at least {} and by half; an unconfirmed difference of that size needs {} slots to be called noise",
        percent(options.alpha),
        count(options.resamples as u64),
        options.seed,
        percent(options.least_change),
        duration(options.least_time_ns),
        options.least_slots_for_noise
    )
}
