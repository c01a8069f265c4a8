//! Chunks on a hop: with missing tokens, with inconsistent counts, out of order, or on several connections.

use super::{DetectContext, Severity, Verdicts};
use crate::ledger::AffectedTotal;
use crate::words::plural;

/// Number of missing tokens that is critical.
pub(super) const CRITICAL_TOKENS: u64 = 16;

/// Reports tokens that never crossed a hop (a connection between two processes). They are missing if a stream's own token count grows by
/// more than its chunks list.
pub(super) fn detect_wire_loss(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let AffectedTotal { requests: affected, total: tokens_missing } = &context.ledger.totals().wire_loss;
    if affected.rids == 0 {
        return;
    }
    let severity = Severity::critical_if(*tokens_missing >= CRITICAL_TOKENS);
    let summary = format!(
        "{} of {} missing on the wire: completion_tokens increased by more than the chunks listed",
        plural(*tokens_missing, "token"),
        plural(affected.rids, "request"),
    );
    verdicts
        .add_verdict(severity, summary)
        .affected("requests", affected)
        .occurrences(*tokens_missing)
        .with_weight("tokens_missing", *tokens_missing)
        .with("worst_tokens_missing", affected.amount)
        .advice("frames were lost before this hop: look for a restarted process or a reset connection");
}

/// Reports chunks that list more tokens than possible, without a known reason.
pub(super) fn detect_surplus_ids(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let AffectedTotal { requests: affected, total: chunks } = &context.ledger.totals().anomalies;
    if affected.rids == 0 {
        return;
    }
    let summary = format!(
        "{} of {} listed more ids than completion_tokens increased by",
        plural(*chunks, "chunk"),
        plural(affected.rids, "request"),
    );
    verdicts
        .add_verdict(Severity::Info, summary)
        .affected("requests", affected)
        .occurrences(*chunks)
        .with_weight("chunks", *chunks)
        .with("most_extra_ids", affected.amount);
}

/// Reports chunks of a request that were received in a different order than generated, for each group of hops (connections of one name).
pub(super) fn detect_out_of_order(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    for group in context.ledger.groups() {
        // Here `rids` is the number of late chunks, because each adds the rid of its request.
        let late = &group.out_of_order;
        if late.rids == 0 {
            continue;
        }
        let summary =
            format!("{} on {} arrived after a later one of the same request", plural(late.rids, "chunk"), group.name);
        verdicts
            .add_verdict(Severity::Warning, summary)
            .hop(&group.name)
            .affected("chunks", late)
            .occurrences(late.rids)
            .with("tokens_behind_max", late.amount)
            .advice("ZMQ preserves order only within a connection: the request's chunks were sent on two");
    }
}

/// Reports requests whose chunks went to several receivers of hops (connections) with one name.
pub(super) fn detect_worker_changes(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    for group in context.ledger.groups() {
        let moved = &group.moved;
        if moved.rids == 0 {
            continue;
        }
        let summary = format!(
            "chunks of {} went to more than one receiver on {}: a detokenizer without the start of a request decodes it wrongly, and order between receivers is not guaranteed",
            plural(moved.rids, "request"),
            group.name,
        );
        verdicts.add_verdict(Severity::Warning, summary)
                .hop(&group.name)
                .affected("requests", moved)
                .occurrences(moved.rids)
                .with("chunks_out_of_order", group.out_of_order.rids)
                .advice(
                    "the router selects by the tokenizer worker's endpoint (or by the rid): look for a worker restart or a change in the number of workers while requests were running",
                );
    }
}
