//! Known patterns of change.

use serde::{Deserialize, Serialize};
use trace::engine::{Mode, Waiter};
use trace::words::percent;

use super::{ChangeVerdict, ComparedMeasure};
use crate::report::{FindingLine, HopLine, Report};

/// CPU share that makes a receiving thread CPU-bound.
const CPU_BOUND: f64 = 0.9;

/// A known pattern that matches the change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangePattern {
    /// Machine-readable kind: `mode`, `release`, `workers`, `path`, `inflation`, `cpu-bound`, `losses`.
    pub kind: String,
    /// Short title.
    pub title: String,
    /// Evidence and consequence.
    pub summary: String,
}

/// Compares the engine data of both reports and checks it against the measures.
pub(super) fn find_patterns(a: &Report, b: &Report, measures: &[ComparedMeasure]) -> Vec<ChangePattern> {
    let mut patterns = Vec::new();
    patterns.extend(compare_modes(a, b, measures));
    patterns.extend(compare_releases(a, b));
    patterns.extend(compare_paths(a, b));
    patterns.extend(compare_inflation(a, b));
    patterns.extend(find_cpu_bound_receiver(a, b));
    patterns.extend(compare_workers(a, b));
    patterns
}

impl ChangePattern {
    fn new(kind: &str, title: impl Into<String>, summary: impl Into<String>) -> Self {
        Self { kind: kind.to_owned(), title: title.into(), summary: summary.into() }
    }
}

fn compare_modes(a: &Report, b: &Report, measures: &[ComparedMeasure]) -> Option<ChangePattern> {
    let (state, change) = match (a.source.mode?, b.source.mode?) {
        (Mode::Cumulative, Mode::Incremental) => (
            "enabled",
            "yielded all tokens so far and now yields only new ones: each chunk must be delivered separately",
        ),
        (Mode::Incremental, Mode::Cumulative) => {
            ("disabled", "yielded only new tokens and now yields all so far: a later chunk replaces an earlier one")
        }
        _ => return None,
    };
    let worse = measures.iter().filter(|measure| measure.verdict == ChangeVerdict::Worse);
    let worse: Vec<&str> = worse.take(3).map(|measure| measure.name.as_str()).collect();
    let cost = if worse.is_empty() {
        String::from("No measure got worse.")
    } else {
        format!("Worse since: {}.", worse.join(", "))
    };
    let summary = format!("The tokenizer {change}. {cost}");
    Some(ChangePattern::new("mode", format!("incremental output was {state}"), summary))
}

fn compare_releases(a: &Report, b: &Report) -> Option<ChangePattern> {
    let (before, after) = (a.source.waiter?, b.source.waiter?);
    if before == after {
        return None;
    }
    Some(ChangePattern::new(
        "release",
        format!("queue handling changed: {} to {}", release_of(a), release_of(b)),
        format!("It {} before and {} after.", describe_waiter(before), describe_waiter(after)),
    ))
}

fn release_of(report: &Report) -> &str {
    report.source.engine_version.as_deref().unwrap_or("of unknown release")
}

fn describe_waiter(waiter: Waiter) -> &'static str {
    match waiter {
        Waiter::KeepsLast => "keeps only the last of several queued chunks",
        Waiter::YieldsAll => "hands out every queued chunk",
        Waiter::Merges => "merges queued chunks",
    }
}

fn compare_paths(a: &Report, b: &Report) -> Option<ChangePattern> {
    let removed = hops_only_in(a, b);
    let new = hops_only_in(b, a);
    let summary = match (removed.is_empty(), new.is_empty()) {
        (true, true) => return None,
        (true, false) => format!("New hops: {new}."),
        (false, true) => format!("Removed hops: {removed}."),
        (false, false) => format!("Removed hops: {removed}. New hops: {new}."),
    };
    Some(ChangePattern::new("path", "another path", summary))
}

/// Names of the hops that the other run does not have.
fn hops_only_in(report: &Report, other: &Report) -> String {
    let is_new = |name: &&str| other.hops.iter().all(|hop| hop.name != **name);
    let names: Vec<&str> = report.hops.iter().map(|hop| hop.name.as_str()).filter(is_new).collect();
    names.join(", ")
}

fn compare_workers(a: &Report, b: &Report) -> Vec<ChangePattern> {
    let mut patterns = Vec::new();
    for before in &a.hops {
        let Some(after) = b.hops.iter().find(|hop| hop.name == before.name) else { continue };
        let was = count_workers(before);
        let is = count_workers(after);
        if was != is {
            let hop = &before.name;
            let summary =
                format!("{hop} had {was} receivers or senders and has {is}: the load is distributed differently.");
            patterns.push(ChangePattern::new("workers", format!("{was} workers became {is} on {hop}"), summary));
        }
    }
    patterns
}

fn count_workers(hop: &HopLine) -> usize {
    hop.workers.as_ref().map_or(1, Vec::len)
}

fn find_finding<'a>(report: &'a Report, kind: &str) -> Option<&'a FindingLine> {
    report.findings.iter().find(|finding| finding.kind == kind)
}

fn compare_inflation(a: &Report, b: &Report) -> Option<ChangePattern> {
    match (find_finding(a, "inflation"), find_finding(b, "inflation")) {
        (None, Some(found)) => {
            Some(ChangePattern::new("inflation", "token counts became inflated", found.summary.clone()))
        }
        (Some(found), None) => Some(ChangePattern::new(
            "inflation",
            "token counts are no longer inflated",
            format!("Rates that clients counted before cannot be compared with those after. Before: {}", found.summary),
        )),
        _ => None,
    }
}

/// The receiving thread with the highest CPU share.
struct BusiestReceiver<'r> {
    share: f64,
    role: &'r str,
}

impl<'r> BusiestReceiver<'r> {
    fn of(report: &'r Report) -> Option<Self> {
        let receivers = report.cpu.iter().flatten().filter(|line| line.receives);
        let busy = receivers.filter_map(|line| Some(Self { share: line.on_cpu?, role: &line.role }));
        busy.max_by(|one, other| one.share.total_cmp(&other.share))
    }
}

fn find_cpu_bound_receiver(a: &Report, b: &Report) -> Option<ChangePattern> {
    let (before, after) = (BusiestReceiver::of(a)?, BusiestReceiver::of(b)?);
    if before.share >= CPU_BOUND || after.share < CPU_BOUND {
        return None;
    }
    let summary = format!(
        "It was on CPU {} of the time and is now {}: it cannot receive frames faster.",
        percent(before.share),
        percent(after.share)
    );
    Some(ChangePattern::new("cpu-bound", format!("the {} became CPU-bound", after.role), summary))
}
