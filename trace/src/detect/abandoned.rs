//! Requests that the scheduler continues after their clients disconnected or they were aborted.

use super::{DetectContext, Severity, Verdicts};
use crate::ledger::AbandonedRequests;
use crate::words::{duration, plural};

/// Maximum number of requests named in the summary; the report lists more.
const MAX_NAMED: usize = 3;

/// Reports abandoned requests: the client left or aborted, but the engine continues to generate output that nobody receives. If none were
/// observed in frames, reports those that the engine logged.
pub(super) fn detect_abandoned_requests(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let abandoned = context.ledger.abandoned_requests();
    // The list is empty if no request was abandoned.
    let Some(longest) = abandoned.longest().first() else { return };
    let summary = describe_abandoned(context, &abandoned, longest.length_ns());
    let verdict = verdicts
        .add_verdict(Severity::Warning, summary)
        .hop(context.token_source_role().unwrap_or_default())
        .rid(&longest.rid)
        .times(abandoned.times)
        .occurrences(abandoned.outputs)
        .with_weight("outputs", abandoned.outputs)
        .with("tokens", abandoned.tokens)
        .with("by", abandoned.source_name())
        .with("requests", abandoned.requests)
        .with("longest_ns", longest.length_ns());
    let advice = abandoned_advice(context, &abandoned);
    if !advice.is_empty() {
        verdict.advice(advice);
    }
}

/// Describes the abandoned requests. The engine continued the longest of them for `longest_ns`.
fn describe_abandoned(context: &DetectContext<'_>, abandoned: &AbandonedRequests, longest_ns: u64) -> String {
    let engine = context.facts();
    let source = engine.source();
    let requests = plural(abandoned.requests, "request");
    let listed = list_longest_abandoned(abandoned);
    let length = duration(longest_ns);
    // Frames show the tokens of a request; the engine's log shows only the outputs that it threw away.
    match abandoned.tokens {
        Some(tokens) => format!(
            "the {source} continued {requests} {}: for up to {length}, {} generated for nobody; {listed}{}",
            describe_cause_of_abandonment(abandoned),
            plural(tokens, "token"),
            describe_missing_or_ignored_aborts(context, abandoned),
        ),
        None => format!(
            "the {source} continued {requests} whose state the {} had deleted (client disconnected, or aborted): for up to \
             {length}, {} thrown away; {listed}",
            engine.receiver(),
            plural(abandoned.outputs, "output"),
        ),
    }
}

/// Describes why observed requests are abandoned: their clients left, they were aborted, or some of both.
fn describe_cause_of_abandonment(abandoned: &AbandonedRequests) -> &'static str {
    let longest = abandoned.longest();
    if longest.iter().all(|request| request.has_client_left) {
        "whose client had disconnected"
    } else if longest.iter().any(|request| request.has_client_left) {
        "whose client had disconnected or that had been aborted"
    } else {
        "that had been aborted"
    }
}

/// Says that a number is one of the longest requests: `of the 8 longest, `. Empty if these are all.
fn prefix_if_not_all_are_listed(abandoned: &AbandonedRequests) -> String {
    let listed = abandoned.longest().len();
    let are_all = abandoned.requests <= listed as u64;
    if are_all { String::new() } else { format!("of the {listed} longest, ") }
}

/// Describes the aborts of the listed requests; empty where messages to the scheduler are not observed.
fn describe_missing_or_ignored_aborts(context: &DetectContext<'_>, abandoned: &AbandonedRequests) -> String {
    if !context.ledger.observes_aborts() {
        return String::new();
    }
    let longest = abandoned.longest();
    let without_abort = longest.iter().filter(|request| request.abort.is_none()).count();
    let ignored = longest.iter().filter(|request| request.has_ignored_abort()).count();
    let mut parts = Vec::new();
    if without_abort > 0 {
        parts.push(format!("{without_abort} without an abort"));
    }
    if ignored > 0 {
        let aborts = if ignored == 1 { "its abort" } else { "their aborts" };
        parts.push(format!("{ignored} ignored {aborts}"));
    }
    if parts.is_empty() {
        return String::new();
    }
    // Both numbers count the listed requests only. The prefix says so if more requests were abandoned.
    format!("; {}{}", prefix_if_not_all_are_listed(abandoned), parts.join("; "))
}

/// Returns the advice for the engine's release. If the engine's facts have none, observed requests get a general one, and requests that
/// only the engine's log shows get an empty one.
fn abandoned_advice(context: &DetectContext<'_>, abandoned: &AbandonedRequests) -> &'static str {
    let release_advice = context.facts().advice_on_abandoned_requests(context.ledger.engine().version.as_deref());
    if release_advice.is_empty() && !abandoned.is_logged() {
        return "their aborts were not sent or had no effect: look for these rids in the log of the server that lost the client; limit the output \
                length until the aborts do";
    }
    release_advice
}

/// Lists the first requests of those abandoned for longest, each with its rid, its length and its tokens or outputs.
fn list_longest_abandoned(abandoned: &AbandonedRequests) -> String {
    let mut named = Vec::new();
    for request in abandoned.longest().iter().take(MAX_NAMED) {
        let amount = match request.tokens {
            Some(tokens) => plural(tokens, "token"),
            None => plural(request.outputs, "output"),
        };
        named.push(format!("{} for {}, {amount}", request.rid, duration(request.length_ns())));
    }
    let ellipsis = if abandoned.requests > MAX_NAMED as u64 { ", .." } else { "" };
    format!("{}{ellipsis}", named.join("; "))
}
