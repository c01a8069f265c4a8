//! Chunks that are not delivered separately: merged with, or replaced by, a later one.

use std::fmt::Write as _;

use super::{DetectContext, Severity, Verdicts, advice};
use crate::engine::Waiter;
use crate::ledger::{AffectedRequests, Ledger};
use crate::words::{count, plural, share};

/// Share of merged chunks that causes a warning.
pub(super) const WARNING_SHARE: f64 = 0.05;

/// Merged or replaced chunks, of all chunks of which it is known.
struct AffectedChunks<'t> {
    chunks: u64,
    all_chunks: u64,
    requests: &'t AffectedRequests,
}

/// Chunks of which deliveries show that they were merged with a later one.
fn observed_merges(ledger: &Ledger) -> AffectedChunks<'_> {
    let totals = ledger.totals();
    AffectedChunks {
        // Chunks replaced by a cumulative delivery are reported by `would-drop`.
        chunks: totals.chunks.outcomes.merged - totals.replaced.total,
        // A response that does not stream has a single delivery, so its chunks are merged by design.
        all_chunks: totals.chunks.tracked - totals.chunks.outcomes.unjudged - totals.chunks.unstreamed,
        requests: &totals.merges,
    }
}

/// Chunks that will probably be merged with a later one, by the bursts in which they were received.
fn predicted_merges(ledger: &Ledger) -> AffectedChunks<'_> {
    let totals = ledger.totals();
    AffectedChunks {
        // Chunks replaced by a cumulative delivery are reported by `would-drop`.
        chunks: totals.predicted.merged - totals.predicted.replaced,
        all_chunks: totals.chunks.received,
        requests: &totals.bursts,
    }
}

/// Reports merged chunks. No token is lost, but the client sees bursts.
pub(super) fn detect_merged_chunks(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let ledger = context.ledger;
    let confirmed = ledger.observes_deliveries();
    let AffectedChunks { chunks, all_chunks, requests } =
        if confirmed { observed_merges(ledger) } else { predicted_merges(ledger) };
    if chunks == 0 {
        return detect_logged_merges(context, verdicts);
    }
    let are_many = chunks as f64 >= WARNING_SHARE * all_chunks as f64;
    let severity = if are_many { Severity::Warning } else { Severity::Info };
    let outcome = if confirmed { "were merged" } else { "will be merged (predicted)" };
    let mut summary = format!(
        "{} ({}) {outcome} with a later chunk, in {}: no token was lost, but tokens arrived in bursts",
        plural(chunks, "chunk"),
        share(chunks, all_chunks),
        plural(requests.rids, "request"),
    );
    // Counts only events after the first one of a response, because only these have an inter-token latency.
    let events = ledger.itl_delivered().count();
    let tokens = ledger.itl_delivered_by_token().count();
    let tokens_per_event = (confirmed && events > 0).then(|| tokens as f64 / events as f64);
    if let Some(mean) = tokens_per_event {
        let _ = write!(summary, ": {mean:.1} tokens per event on average");
    }
    verdicts
        .add_verdict(severity, summary)
        .hop(&context.delivery_hop())
        .affected("requests", requests)
        .occurrences(chunks)
        .with_weight("chunks", chunks)
        .with("confirmed", confirmed)
        .with("tokens_per_event", tokens_per_event)
        .advice(advice::merging_advice(context.facts(), &context.attribution));
}

/// Reports the merged chunks that the engine logged. It logs a merge only if many chunks were queued, so their total number is unknown.
fn detect_logged_merges(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let merged = &context.ledger.stages().merged;
    // Observed receives show merged chunks better than the log.
    if merged.times == 0 || context.ledger.observes_receives() {
        return;
    }
    let summary = format!(
        "the engine logged that it merged {} in {}, up to {} at once: no token was lost, but tokens arrived in bursts",
        plural(merged.chunks, "queued chunk"),
        if merged.times == 1 { String::from("one delivery") } else { format!("{} deliveries", count(merged.times)) },
        merged.max,
    );
    verdicts
        .add_verdict(Severity::Warning, summary)
        .rid(&merged.most_rid)
        .times(merged.logged_at)
        .occurrences(merged.chunks)
        .with_weight("chunks", merged.chunks)
        .with("by", "the engine's log")
        .with("deliveries", merged.times)
        .with("largest", merged.max)
        .advice(advice::merging_advice(context.facts(), &context.attribution));
}

/// Chunks of which deliveries show that a later one replaced them.
fn observed_replacements(ledger: &Ledger) -> AffectedChunks<'_> {
    let totals = ledger.totals();
    let replaced = &totals.replaced;
    AffectedChunks { chunks: replaced.total, all_chunks: totals.chunks.tracked, requests: &replaced.requests }
}

/// Chunks that a later one probably replaced, by the bursts in which they were received.
fn predicted_replacements(ledger: &Ledger) -> AffectedChunks<'_> {
    let totals = ledger.totals();
    let predicted = totals.predicted.replaced;
    AffectedChunks { chunks: predicted, all_chunks: totals.chunks.received, requests: &totals.bursts }
}

/// Reports chunks replaced by a later one in cumulative mode. Nothing is lost, but the same engine would lose them in incremental mode.
pub(super) fn detect_replaced_chunks(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let engine = context.ledger.engine();
    // The waiter is the code that waits for a request's chunks. A chunk replaces others only if the waiter keeps nothing but the last one.
    if engine.waiter != Some(Waiter::KeepsLast) {
        return;
    }
    let confirmed = context.ledger.observes_deliveries();
    let AffectedChunks { chunks, all_chunks, requests } =
        if confirmed { observed_replacements(context.ledger) } else { predicted_replacements(context.ledger) };
    if chunks == 0 {
        return;
    }
    let summary = format!(
        "{} ({}) of {} replaced by later ones{}: harmless in cumulative mode, but their tokens would be lost in incremental mode",
        plural(chunks, "chunk"),
        share(chunks, all_chunks),
        plural(requests.rids, "request"),
        if confirmed { "" } else { " (predicted)" },
    );
    verdicts
        .add_verdict(Severity::Info, summary)
        .hop(&context.delivery_hop())
        .affected("requests", requests)
        .occurrences(chunks)
        .with_weight("chunks", chunks)
        .with("confirmed", confirmed)
        .advice(advice::would_drop_advice(engine));
}
