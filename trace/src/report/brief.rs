//! Text shared by all forms of the report.

use super::Report;
use crate::detect::Severity;
use crate::engine::{Mode, Waiter};
use crate::words;

/// Summary of the worst finding in one sentence.
pub(crate) fn verdict(report: &Report) -> String {
    match report.findings.first().filter(|worst| worst.severity > Severity::Info) {
        Some(worst) => format!("{}: {}", worst.severity.as_str().to_uppercase(), worst.summary),
        None if report.requests.seen == 0 => String::from("NOTHING OBSERVED: no request crossed the watched hops"),
        None if report.findings.is_empty() => String::from("HEALTHY: no findings"),
        None => String::from("HEALTHY: no warnings"),
    }
}

/// The engine: `NAME 0.5.9, incremental`. Unknown until a request or a release was seen.
pub(crate) fn engine(report: &Report) -> String {
    let source = &report.source;
    if source.engine_version.is_none() && report.requests.seen == 0 {
        return String::from("an unknown engine");
    }
    let release = source.engine_version.as_deref().unwrap_or("of unknown release");
    let mode = match source.mode {
        Some(Mode::Incremental) => ", incremental",
        Some(Mode::Cumulative) => ", cumulative",
        None => "",
    };
    format!("{} {release}{mode}", source.engine)
}

/// Whether the release is known to drop chunks, if the release is known.
pub(crate) fn known_to_lose(report: &Report) -> String {
    let fixed_in = report.source.drops_fixed_in.as_deref().unwrap_or("a later release");
    match (report.source.waiter, report.source.mode) {
        (Some(Waiter::KeepsLast), Some(Mode::Incremental)) => {
            format!("known to lose chunks: a waiter keeps only the last of several queued ones; fixed in {fixed_in}")
        }
        (Some(Waiter::KeepsLast), Some(Mode::Cumulative)) => format!(
            "a waiter keeps only the last of several queued chunks (until {fixed_in}), which loses nothing in cumulative mode"
        ),
        (Some(Waiter::KeepsLast), None) => {
            format!(
                "a waiter keeps only the last of several queued chunks (until {fixed_in}): the others are lost in incremental mode, but the mode is unknown"
            )
        }
        (Some(Waiter::YieldsAll), _) => String::from("yields every queued chunk separately: known to lose none"),
        (Some(Waiter::Merges), _) => {
            String::from("merges queued chunks into one: known to lose none, but tokens arrive late and in bursts")
        }
        (None, _) => String::from("whether this release loses queued chunks is not known"),
    }
}

/// Stages that this source cannot observe, with the consequences.
pub(crate) fn not_observed(report: &Report) -> Vec<&'static str> {
    let mut missing = Vec::new();
    if report.is_log_only() {
        missing.push("any frame: all times come from the engine's log");
    } else if report.tokens.received.is_none() {
        missing.push("when frames are received (gap, backlog and queue wait)");
    }
    if report.chunks.dropped_predicted.is_none() && report.tokens.received.is_some() {
        missing.push("the frames of each wakeup, or the engine's behaviour with them (predicted drops)");
    }
    if report.tokens.delivered.is_none() {
        missing.push("deliveries to clients (confirmed drops, merging)");
    }
    if report.cpu.is_none() {
        missing.push("CPU of the engine's threads");
    }
    missing
}

/// Describes the targets that could not be attached, and disabled features.
pub(crate) fn degraded(report: &Report) -> impl Iterator<Item = String> + '_ {
    report.own.degraded.iter().map(words::of_json)
}

/// Names of the limits that were reached, with their counts.
pub(crate) fn limits_reached(report: &Report) -> impl Iterator<Item = (&str, u64, u64)> {
    let reached = report.limits.iter().filter(|(_, line)| line.reached > 0);
    reached.map(|(name, line)| (name.as_str(), line.limit, line.reached))
}
