//! Requests that the scheduler continues after the receiver deleted them.

use serde_json::json;

use super::{DetectContext, Severity, Verdicts};
use crate::words::{duration, plural};

/// Maximum number of requests named in the summary; the evidence has more.
const NAMED: usize = 3;

/// Abandoned requests according to the engine's log.
pub(super) fn logged(context: &DetectContext<'_>, out: &mut Verdicts) {
    let abandoned = &context.ledger.stages().abandoned;
    let Some(longest) = abandoned.longest().first() else { return };
    let engine = context.facts();
    let named: Vec<String> = (abandoned.longest().iter().take(NAMED))
        .map(|one| format!("{} for {}, {}", one.rid, duration(one.length_ns()), plural(one.outputs, "output")))
        .collect();
    let more = if abandoned.requests > NAMED as u64 { ", .." } else { "" };
    let summary = format!(
        "the {} continues {} whose state the {} deleted (their client left, or they were aborted): for up to {}, {} thrown away; {}{more}",
        engine.source(),
        plural(abandoned.requests, "request"),
        engine.receiver(),
        duration(longest.length_ns()),
        plural(abandoned.outputs, "output"),
        named.join("; "),
    );
    let requests: Vec<_> = (abandoned.longest().iter())
        .map(|one| json!({ "rid": one.rid, "length_ns": one.length_ns(), "outputs": one.outputs }))
        .collect();
    let verdict = out
        .add(Severity::Warning, summary)
        .rid(&longest.rid)
        .since(abandoned.since)
        .weighed("outputs", abandoned.outputs)
        .with("by", "the engine's log")
        .with("requests", abandoned.requests)
        .with("longest_ns", longest.length_ns())
        .with("longest", requests);
    if !engine.abandons().is_empty() {
        verdict.advice(engine.abandons());
    }
}
