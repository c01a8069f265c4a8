//! Requests that the scheduler continues although nobody takes their outputs.

use serde_json::json;

use super::{DetectContext, Severity, Verdicts};
use crate::ledger::AbandonedRequests;
use crate::words::{duration, plural};

/// Maximum number of requests named in the summary; the evidence has more.
const NAMED: usize = 3;

/// Abandoned requests: as observed, or else according to the engine's log.
pub(super) fn check(context: &DetectContext<'_>, out: &mut Verdicts) {
    let observed = context.ledger.clientless_requests();
    if observed.requests == 0 {
        return logged(context, out);
    }
    let tokens = plural(observed.tokens.unwrap_or(0), "token");
    let summary = format!(
        "the {} continues {} whose client left: for up to {}, {tokens} generated for nobody; {}",
        context.facts().source(),
        plural(observed.requests, "request"),
        longest_duration(&observed),
        list_longest(&observed),
    );
    let advice = "their aborts did not take effect: look for these rids in the log of the server that lost the client; limit the \
                  output length until the aborts do";
    add(&observed, summary, "responses and frames", advice, out);
}

/// Abandoned requests according to the engine's log.
fn logged(context: &DetectContext<'_>, out: &mut Verdicts) {
    let abandoned = &context.ledger.stages().abandoned;
    if abandoned.requests == 0 {
        return;
    }
    let engine = context.facts();
    let summary = format!(
        "the {} continues {} whose state the {} deleted (their client left, or they were aborted): for up to {}, {} thrown away; {}",
        engine.source(),
        plural(abandoned.requests, "request"),
        engine.receiver(),
        longest_duration(abandoned),
        plural(abandoned.outputs, "output"),
        list_longest(abandoned),
    );
    add(abandoned, summary, "the engine's log", engine.abandons(), out);
}

fn longest_duration(abandoned: &AbandonedRequests) -> String {
    let Some(longest) = abandoned.longest().first() else { return duration(0) };
    duration(longest.length_ns())
}

/// The requests abandoned for longest, by name.
fn list_longest(abandoned: &AbandonedRequests) -> String {
    let named: Vec<String> = (abandoned.longest().iter().take(NAMED))
        .map(|one| {
            let amount = one.tokens.map_or_else(|| plural(one.outputs, "output"), |tokens| plural(tokens, "token"));
            format!("{} for {}, {amount}", one.rid, duration(one.length_ns()))
        })
        .collect();
    let more = if abandoned.requests > NAMED as u64 { ", .." } else { "" };
    format!("{}{more}", named.join("; "))
}

fn add(abandoned: &AbandonedRequests, summary: String, by: &str, advice: &str, out: &mut Verdicts) {
    let Some(longest) = abandoned.longest().first() else { return };
    let requests: Vec<_> = (abandoned.longest().iter())
        .map(
            |one| json!({ "rid": one.rid, "length_ns": one.length_ns(), "outputs": one.outputs, "tokens": one.tokens }),
        )
        .collect();
    let verdict = out
        .add(Severity::Warning, summary)
        .rid(&longest.rid)
        .since(abandoned.since)
        .weighed("outputs", abandoned.outputs)
        .with("tokens", abandoned.tokens)
        .with("by", by)
        .with("requests", abandoned.requests)
        .with("longest_ns", longest.length_ns())
        .with("longest", requests);
    if !advice.is_empty() {
        verdict.advice(advice);
    }
}
