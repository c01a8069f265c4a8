//! Requests that the scheduler does not answer although it answers later ones.

use std::fmt::Write as _;

use serde_json::{Value, json};

use super::{DetectContext, Severity, Verdicts};
use crate::clock::MonoNs;
use crate::ledger::UnansweredRequest;
use crate::words::{count, duration, plural};

/// Maximum number of requests named in the summary.
const MAX_NAMED: usize = 3;
/// Maximum number of requests in the evidence.
const MAX_LISTED: usize = 16;

/// Reports requests without an answer. Reports none while the engine sends nothing at all, because `engine-silent` then says more.
pub(super) fn detect_unanswered_requests(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let ledger = context.ledger;
    if ledger.current_engine_silence(context.now).is_some() {
        return;
    }
    // The oldest first.
    let unanswered: Vec<UnansweredRequest<'_>> = ledger.unanswered_requests().collect();
    let Some(oldest) = unanswered.first() else { return };
    let source = context.facts().source();
    let requests = unanswered.len() as u64;
    let longest_ns = context.now.since(oldest.dispatch.sent);
    let meanwhile = match oldest.answered_since {
        // A request counts as unanswered if something later was answered. That was no request, so it was a health check.
        0 => String::from("it answered a health check meanwhile and ran nothing else"),
        answered => format!("it answered {} others meanwhile", count(answered)),
    };
    let summary = format!(
        "the {source} sent nothing for {} for up to {}, although {meanwhile}: {}",
        plural(requests, "request"),
        duration(longest_ns),
        list_oldest_unanswered(&unanswered, context.now),
    );
    verdicts
        .add_verdict(Severity::Warning, summary)
        .rid(oldest.rid)
        .since(Some(oldest.dispatch.sent))
        .requests(&unanswered.iter().map(|request| request.rid).collect())
        .with_weight("requests", requests)
        .with("longest_ns", longest_ns)
        .with("requests_answered_since", oldest.answered_since)
        .with_known("usual_wait_ns", ledger.usual_first_chunk_wait_ns(oldest.hop, context.now))
        .with("longest", evidence_rows_of_oldest_unanswered(&unanswered, context.now))
        .advice(unanswered_advice(oldest, source));
}

/// Lists the requests that have waited longest, each with its rid, its wait and, if it is known, the length of its prompt.
fn list_oldest_unanswered(unanswered: &[UnansweredRequest<'_>], now: MonoNs) -> String {
    let mut named = Vec::new();
    for request in unanswered.iter().take(MAX_NAMED) {
        let mut words = format!("{} for {}", request.rid, duration(now.since(request.dispatch.sent)));
        if let Some(tokens) = request.dispatch.prompt_tokens {
            let _ = write!(words, ", {}", plural(tokens.into(), "prompt token"));
        }
        named.push(words);
    }
    let ellipsis = if unanswered.len() > MAX_NAMED { ", .." } else { "" };
    format!("{}{ellipsis}", named.join("; "))
}

/// Rows of the evidence: the requests that have waited longest.
fn evidence_rows_of_oldest_unanswered(unanswered: &[UnansweredRequest<'_>], now: MonoNs) -> Vec<Value> {
    let mut rows = Vec::new();
    for request in unanswered.iter().take(MAX_LISTED) {
        let dispatch = request.dispatch;
        rows.push(json!({
            "rid": request.rid,
            "wait_ns": now.since(dispatch.sent),
            "prompt_tokens": dispatch.prompt_tokens,
            "received": dispatch.received.is_some(),
            // As text, because readers of JSON may round a number of 64 bits.
            "room": dispatch.room.map(|room| room.to_string()),
        }));
    }
    rows
}

/// Advice for a request without an answer from the scheduler, which is called `source`.
fn unanswered_advice(request: &UnansweredRequest<'_>, source: &str) -> String {
    let is_received = request.dispatch.received.is_some();
    let mut advice = if is_received {
        format!(
            "the {source} received the first of them: look for its rid in the {source}'s log; abort it, and let the client send it again"
        )
    } else {
        String::from(
            "no receive of the first of them was observed: look for its rid in the logs of both processes; abort it, and let the client send \
             it again",
        )
    };
    // The room is the number by which both servers of a pair (prefill and decode) know the request. Health checks have the room 0.
    if let Some(room) = request.dispatch.room.filter(|room| *room > 0) {
        let _ = write!(advice, "; it may wait for the other server of its pair: look there for its room, {room}");
    }
    advice
}
