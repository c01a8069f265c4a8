//! Known patterns of change.

use serde::{Deserialize, Serialize};
use trace::engine::{Mode, Waiter};
use trace::words::percent;

use super::{Compared, Verdict};
use crate::report::{FindingLine, HopLine, Report};

/// CPU share that makes a receiving thread CPU-bound.
const CPU_BOUND: f64 = 0.9;

/// A known pattern that matches the change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pattern {
    /// Machine-readable kind: `mode`, `release`, `workers`, `path`, `inflation`, `cpu-bound`, `losses`.
    pub kind: String,
    /// Short title.
    pub title: String,
    /// Evidence and consequence.
    pub summary: String,
}

/// Compares the engine data of both reports and checks it against the measures.
pub(super) fn find(a: &Report, b: &Report, measures: &[Compared]) -> Vec<Pattern> {
    [mode(a, b, measures), release(a, b), path(a, b), inflation(a, b), cpu_bound(a, b)]
        .into_iter()
        .flatten()
        .chain(workers(a, b))
        .collect()
}

fn pattern(kind: &str, title: impl Into<String>, summary: impl Into<String>) -> Pattern {
    Pattern { kind: kind.to_owned(), title: title.into(), summary: summary.into() }
}

fn mode(a: &Report, b: &Report, measures: &[Compared]) -> Option<Pattern> {
    let worse: Vec<&str> =
        measures.iter().filter(|m| m.verdict == Verdict::Worse).take(3).map(|m| m.name.as_str()).collect();
    let cost = if worse.is_empty() {
        String::from("No measure got worse.")
    } else {
        format!("Worse since: {}.", worse.join(", "))
    };
    let (word, change) = match (a.source.mode?, b.source.mode?) {
        (Mode::Cumulative, Mode::Incremental) => (
            "enabled",
            "yielded all tokens so far and now yields only new ones: each chunk must be delivered separately",
        ),
        (Mode::Incremental, Mode::Cumulative) => {
            ("disabled", "yielded only new tokens and now yields all so far: a later chunk replaces an earlier one")
        }
        _ => return None,
    };
    Some(pattern("mode", format!("incremental output was {word}"), format!("The tokenizer {change}. {cost}")))
}

fn release(a: &Report, b: &Report) -> Option<Pattern> {
    let word = |waiter: Waiter| match waiter {
        Waiter::KeepsLast => "keeps only the last of several queued chunks",
        Waiter::YieldsAll => "hands out every queued chunk",
        Waiter::Merges => "merges queued chunks",
    };
    let (before, after) = (a.source.waiter?, b.source.waiter?);
    let version = |r: &Report| r.source.engine_version.clone().unwrap_or_else(|| String::from("of unknown release"));
    (before != after).then(|| {
        pattern(
            "release",
            format!("queue handling changed: {} to {}", version(a), version(b)),
            format!("It {} before and {} after.", word(before), word(after)),
        )
    })
}

/// Hops that only one of the runs has.
fn path(a: &Report, b: &Report) -> Option<Pattern> {
    let only = |of: &Report, other: &Report| {
        let other: Vec<&str> = other.hops.iter().map(|h| h.name.as_str()).collect();
        let names = of.hops.iter().map(|h| h.name.as_str()).filter(|name| !other.contains(name));
        names.collect::<Vec<_>>().join(", ")
    };
    let (removed, new) = (only(a, b), only(b, a));
    let summary = match (removed.is_empty(), new.is_empty()) {
        (true, true) => return None,
        (true, false) => format!("New hops: {new}."),
        (false, true) => format!("Removed hops: {removed}."),
        (false, false) => format!("Removed hops: {removed}. New hops: {new}."),
    };
    Some(pattern("path", "another path", summary))
}

fn workers<'a>(a: &'a Report, b: &'a Report) -> impl Iterator<Item = Pattern> + 'a {
    let of = |hop: &HopLine| hop.workers.as_ref().map_or(1, Vec::len);
    a.hops.iter().filter_map(move |before| {
        let after = b.hops.iter().find(|h| h.name == before.name)?;
        let (was, is) = (of(before), of(after));
        (was != is).then(|| {
            let summary = format!(
                "{} had {was} receivers or senders and has {is}: the load is distributed differently.",
                before.name
            );
            pattern("workers", format!("{was} workers became {is} on {}", before.name), summary)
        })
    })
}

fn finding<'a>(report: &'a Report, kind: &str) -> Option<&'a FindingLine> {
    report.findings.iter().find(|f| f.kind == kind)
}

fn inflation(a: &Report, b: &Report) -> Option<Pattern> {
    match (finding(a, "inflation"), finding(b, "inflation")) {
        (None, Some(found)) => Some(pattern("inflation", "token counts became inflated", found.summary.clone())),
        (Some(found), None) => Some(pattern(
            "inflation",
            "token counts are no longer inflated",
            format!("Rates that clients counted before cannot be compared with those after. Before: {}", found.summary),
        )),
        _ => None,
    }
}

fn cpu_bound(a: &Report, b: &Report) -> Option<Pattern> {
    let busiest = |r: &Report| {
        let receivers = r.cpu.iter().flatten().filter(|c| c.receives);
        receivers.filter_map(|c| Some((c.on_cpu?, c.role.clone()))).max_by(|x, y| x.0.total_cmp(&y.0))
    };
    let (before, after) = (busiest(a)?, busiest(b)?);
    (before.0 < CPU_BOUND && after.0 >= CPU_BOUND).then(|| {
        let summary = format!(
            "It was on CPU {} of the time and is now {}: it cannot receive frames faster.",
            percent(before.0),
            percent(after.0)
        );
        pattern("cpu-bound", format!("the {} became CPU-bound", after.1), summary)
    })
}
