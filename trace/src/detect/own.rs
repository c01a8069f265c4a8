//! Frames that tokengap cannot decode, observations that it missed, and memory limits that it reached.

use super::{DetectContext, Severity, Verdicts};
use crate::ledger::MissedCounts;
use crate::words::{count, plural, share};

/// Share of undecoded frames that causes a warning.
pub(super) const WARNING_SHARE: f64 = 0.001;
/// Share that is critical, because the rest of the report cannot be trusted.
pub(super) const CRITICAL_SHARE: f64 = 0.05;

/// Reports frames that could not be decoded, for each group of hops (connections of one name).
pub(super) fn detect_undecoded_frames(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    for (group_index, group) in context.ledger.groups().iter().enumerate() {
        let FrameCounts { undecoded, frames } = count_frames_of_group(context, group_index);
        if undecoded == 0 {
            continue;
        }
        let undecoded_share = undecoded as f64 / frames.max(1) as f64;
        let severity = undecoded_severity(group.carries_requests, undecoded_share);
        // Each reason comes with the number of its frames.
        let reasons = context.ledger.undecoded_by_reason(group_index);
        let most_frequent = reasons.iter().max_by_key(|(_, frames)| **frames).map_or("", |(reason, _)| reason);
        let summary = format!(
            "could not decode {} ({}) on {}; most common reason: {most_frequent}",
            plural(undecoded, "frame"),
            share(undecoded, frames),
            group.name,
        );
        let verdict = verdicts.add_verdict(severity, summary);
        verdict
            .hop(&group.name)
            .times(context.ledger.totals().undecoded_times)
            .occurrences(undecoded)
            .with_weight("frames_undecoded", undecoded)
            .with("frames", frames)
            .with("most_frequent_reason", most_frequent);
        if !group.carries_requests {
            verdict.advice("save one such frame and run `tokengap decode` on it");
        }
    }
}

/// Frames on the hops of a group.
#[derive(Default)]
struct FrameCounts {
    undecoded: u64,
    /// All frames, as the side of each hop observed them that observed more.
    frames: u64,
}

/// Counts the frames on the hops of a group.
fn count_frames_of_group(context: &DetectContext<'_>, group_index: usize) -> FrameCounts {
    let mut sum = FrameCounts::default();
    for counts in context.ledger.hops_of_group(group_index).map(|hop| hop.counts) {
        sum.undecoded += counts.undecoded;
        sum.frames += counts.frames_sent.max(counts.frames_received);
    }
    sum
}

/// Severity of undecoded frames, by their share of all frames of their hops.
fn undecoded_severity(carry_requests: bool, undecoded_share: f64) -> Severity {
    // Tokens and losses do not depend on frames with requests, only the times in the scheduler.
    if carry_requests {
        return Severity::Info;
    }
    if undecoded_share >= CRITICAL_SHARE {
        Severity::Critical
    } else if undecoded_share >= WARNING_SHARE {
        Severity::Warning
    } else {
        Severity::Info
    }
}

/// Reports observations that tokengap missed. They are never a loss in the engine.
pub(super) fn detect_missed_observations(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let missed = context.ledger.totals().missed;
    // Unannounced ones are frames whose numbers are missing, although the source of events reported no miss.
    let all_missed = missed.reported().saturating_add(missed.unannounced);
    if all_missed == 0 {
        return;
    }
    let summary = format!(
        "tokengap missed {} observations; traffic was not affected, but counts of frames and chunks are too low",
        count(all_missed),
    );
    verdicts
        .add_verdict(Severity::Warning, summary)
        .times(missed.times)
        .occurrences(all_missed)
        .weight(all_missed)
        .with("queue_full", missed.queue_full)
        .with("unframed", missed.unframed)
        .with("too_large", missed.too_large)
        .with("cut_short", missed.cut_short)
        .with("unannounced", missed.unannounced)
        .advice(advice_for_most_frequent_miss(&missed));
}

/// Advice for the most frequent cause.
fn advice_for_most_frequent_miss(missed: &MissedCounts) -> &'static str {
    let causes = [
        (missed.queue_full, "tokengap had too little CPU: give it a core, or a larger --ring"),
        (missed.unframed, "start tokengap before the engine connects: it joined in the middle of a frame"),
        (missed.too_large, "raise --capture: frames exceed the capture limit"),
        (missed.cut_short, "read the engine's log: connections ended inside a frame"),
        (missed.unannounced, "give tokengap a core, or a larger --ring: frames passed without a record"),
    ];
    let most_frequent = causes.into_iter().max_by_key(|(observations, _)| *observations);
    most_frequent.map_or("", |(_, advice)| advice)
}

/// Reports memory limits of tokengap that were reached.
pub(super) fn detect_reached_limits(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let limits = context.ledger.limits();
    let reached: Vec<_> = limits.iter().filter(|limit| limit.times > 0).collect();
    // A limit that makes totals inexact is worse than one that does not (`true` is greater than `false`). Among equals, the one that was
    // reached most often is the worst.
    let Some(worst) = reached.iter().max_by_key(|limit| (!limit.keeps_totals(), limit.times)) else {
        return;
    };
    let (severity, effect) = if worst.keeps_totals() {
        (Severity::Info, ": a list is incomplete, all totals are exact")
    } else {
        (Severity::Warning, "")
    };
    let summary = format!(
        "the memory limit {} of {} was reached {} times{effect}",
        worst.name,
        count(worst.limit as u64),
        count(worst.times),
    );
    let times = reached.iter().map(|limit| limit.times).sum();
    let advice =
        format!("raise it with --limit {}=N if you need the evicted entries; each entry costs memory", worst.name);
    let verdict = verdicts.add_verdict(severity, summary).occurrences(times).weight(times).advice(advice);
    for limit in reached {
        verdict.with(limit.name, limit.times);
    }
}
