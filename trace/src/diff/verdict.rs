//! The comparison in a sentence, and how it was made in another.

use super::{Compared, Options, Pattern, Unit, Verdict};
use crate::words::{count, duration, percent, plural};

/// A measure's value in its unit.
pub(super) fn value(unit: Unit, value: Option<f64>) -> String {
    match (unit, value) {
        (_, None) => String::from("-"),
        (Unit::PerSecond, Some(v)) => format!("{}/s", count(v.round() as u64)),
        (Unit::Ns, Some(v)) => duration(v.max(0.0).round() as u64),
        (Unit::Share, Some(v)) => format!("{:.1} %", 100.0 * v),
        (Unit::Number, Some(v)) if v >= 100.0 => count(v.round() as u64),
        (Unit::Number, Some(v)) => format!("{v:.2}"),
    }
}

/// A signed difference in its unit.
pub(super) fn signed(unit: Unit, difference: f64) -> String {
    let sign = if difference < 0.0 { '-' } else { '+' };
    format!("{sign}{}", value(unit, Some(difference.abs())))
}

/// The relative change, or the difference where there is no relation.
pub(super) fn change(of: &Compared) -> String {
    match (of.change, of.a, of.b) {
        (Some(change), _, _) if change.abs() >= 9.95 => format!("x{:.0}", change + 1.0),
        (Some(change), _, _) => format!("{:+.0} %", 100.0 * change),
        (None, Some(a), Some(b)) => signed(of.unit, b - a),
        _ => String::from("-"),
    }
}

pub(super) fn verdict(measures: &[Compared], patterns: &[Pattern]) -> String {
    let of = |verdict: Verdict| measures.iter().filter(move |m| m.verdict == verdict);
    let judged = measures.iter().filter(|m| m.verdict != Verdict::NotComparable).count();
    let (worse, better, changed) = (
        of(Verdict::Worse).count(),
        of(Verdict::Better).count(),
        of(Verdict::Changed).count(),
    );
    let named: Vec<&str> = patterns.iter().map(|p| p.title.as_str()).collect();
    let named = if named.is_empty() {
        String::new()
    } else {
        format!("; {}", named.join("; "))
    };
    if judged == 0 {
        return format!("NOT COMPARABLE: no measure has enough slots under load in both runs{named}");
    }
    let loudest: Vec<String> = of(Verdict::Worse)
        .chain(of(Verdict::Better))
        .take(3)
        .map(|m| format!("{} {}", m.name, change(m)))
        .collect();
    let counted = format!(
        "{worse} worse, {better} better, {changed} changed of {}",
        plural(judged as u64, "measure")
    );
    match (worse, better) {
        (0, 0) if changed == 0 => format!("NO CHANGE beyond noise in {}{named}", plural(judged as u64, "measure")),
        (0, 0) => format!("CHANGED, neither better nor worse: {counted}{named}"),
        (0, _) => format!("BETTER: {}; {counted}{named}", loudest.join(", ")),
        (_, 0) => format!("WORSE: {}; {counted}{named}", loudest.join(", ")),
        _ => format!("WORSE in part: {}; {counted}{named}", loudest.join(", ")),
    }
}

pub(super) fn method(options: &Options) -> String {
    format!(
        "Mann-Whitney over slots of time, worth less where neighbours resemble each other, corrected to {} over all measures together (Benjamini-Hochberg), or every slot of one run a quarter beyond every slot of the other; \
         a change counts when a 99 % interval (block bootstrap, {} resamples, seed {}) does not hold zero and it is at least {}, \
         of times at least {} and half as much again",
        percent(options.alpha),
        count(options.resamples as u64),
        options.seed,
        percent(options.least_change),
        duration(options.least_time_ns)
    )
}
