//! Requests that the abort of an earlier attempt with their rid ended.

use serde_json::{Value, json};

use super::{DetectContext, Severity, Verdicts};
use crate::ledger::Ledger;
use crate::words::{duration, plural};

/// Maximum number of requests named in the summary; the evidence has more.
const MAX_NAMED: usize = 3;

/// Rows of the evidence: the aborted retries, the latest first as in the summary.
fn evidence_rows_of_aborted_retries(ledger: &Ledger) -> Vec<Value> {
    let mut rows = Vec::new();
    for retry in ledger.aborted_retries().rev() {
        rows.push(json!({
            "rid": retry.rid,
            "dispatched_after_ns": retry.dispatched.since(retry.earlier_ended),
            "aborted_after_ns": retry.aborted.since(retry.earlier_ended),
        }));
    }
    rows
}

/// Reports retries that an abort ended by mistake. The abort was meant for an earlier attempt with the same rid.
pub(super) fn detect_aborted_retries(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let ledger = context.ledger;
    let requests = ledger.aborted_retry_count();
    let Some(latest) = ledger.aborted_retries().next_back() else { return };
    // `None` for an engine that does not abort ended responses. It cannot abort a retry by mistake.
    let Some(delay_ns) = context.facts().abort_delay_ns() else { return };
    let delay = duration(delay_ns);
    let verb = if requests == 1 { "was" } else { "were" };
    let summary = format!(
        "{} {verb} aborted in place of an earlier one with the same rid: the {} sends an abort {delay} after a response has ended, which \
         ends whatever has its rid by then; {}",
        plural(requests, "request"),
        context.facts().receiver(),
        list_latest_aborted_retries(ledger),
    );
    verdicts.add_verdict(Severity::Warning, summary)
        .rid(&latest.rid)
        .since(ledger.first_aborted_retry_at())
        .occurrences(requests)
        .requests(&ledger.aborted_retries().map(|retry| &*retry.rid).collect())
        .with_weight("requests", requests)
        .with("delay_ns", delay_ns)
        .with("latest", evidence_rows_of_aborted_retries(ledger))
        .advice(format!(
            "give each attempt a rid of its own, also where a router retries, or send it again only {delay} after the response has ended"
        ));
}

/// Lists the latest retries that were aborted, each with its rid and the time since its dispatch.
fn list_latest_aborted_retries(ledger: &Ledger) -> String {
    let mut named = Vec::new();
    for retry in ledger.aborted_retries().rev().take(MAX_NAMED) {
        let since_dispatch = duration(retry.aborted.since(retry.dispatched));
        named.push(format!("{} {since_dispatch} after its dispatch", retry.rid));
    }
    let ellipsis = if ledger.aborted_retry_count() > MAX_NAMED as u64 { ", .." } else { "" };
    format!("{}{ellipsis}", named.join(", "))
}
