//! Requests that the scheduler does not answer although it answers later ones.

use std::fmt::Write as _;

use serde_json::json;

use super::{DetectContext, Severity, Verdicts};
use crate::words::{count, duration, plural};

/// Maximum number of requests named in the summary.
const MAX_NAMED: usize = 3;
/// Maximum number of requests in the evidence.
const MAX_LISTED: usize = 16;

/// Reports requests without an answer. While the engine sends nothing at all, `engine-silent` says more.
pub(super) fn detect_unanswered_requests(context: &DetectContext<'_>, out: &mut Verdicts) {
    let ledger = context.ledger;
    if ledger.current_engine_silence(context.now).is_some() {
        return;
    }
    let unanswered: Vec<_> = ledger.unanswered_requests().collect();
    let Some(oldest) = unanswered.first() else { return };
    let source = context.facts().source();
    let named: Vec<String> = (unanswered.iter().take(MAX_NAMED))
        .map(|one| {
            let prompt = one.dispatch.prompt_tokens.map(|tokens| plural(tokens.into(), "prompt token"));
            let prompt = prompt.map_or_else(String::new, |prompt| format!(", {prompt}"));
            format!("{} for {}{prompt}", one.rid, duration(context.now.since(one.dispatch.sent)))
        })
        .collect();
    let ellipsis = if unanswered.len() > MAX_NAMED { ", .." } else { "" };
    let requests = unanswered.len() as u64;
    let meanwhile = match oldest.answered_since {
        0 => String::from("it answered a health check meanwhile and ran nothing else"),
        answered => format!("it answered {} others meanwhile", count(answered)),
    };
    let summary = format!(
        "the {source} sent nothing for {} for up to {}, although {meanwhile}: {}{ellipsis}",
        plural(requests, "request"),
        duration(context.now.since(oldest.dispatch.sent)),
        named.join("; "),
    );
    let rows: Vec<_> = (unanswered.iter().take(MAX_LISTED))
        .map(|one| {
            let dispatch = one.dispatch;
            json!({
                "rid": one.rid,
                "wait_ns": context.now.since(dispatch.sent),
                "prompt_tokens": dispatch.prompt_tokens,
                "received": dispatch.received.is_some(),
                "room": dispatch.room.map(|room| room.to_string()),
            })
        })
        .collect();
    let is_received = oldest.dispatch.received.is_some();
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
    if let Some(room) = oldest.dispatch.room.filter(|room| *room > 0) {
        let _ = write!(advice, "; it may wait for the other server of its pair: look there for its room, {room}");
    }
    out.add_verdict(Severity::Warning, summary)
        .rid(oldest.rid)
        .since(Some(oldest.dispatch.sent))
        .requests(&unanswered.iter().map(|one| one.rid).collect())
        .with_weight("requests", requests)
        .with("longest_ns", context.now.since(oldest.dispatch.sent))
        .with("requests_answered_since", oldest.answered_since)
        .with_known("usual_wait_ns", ledger.usual_first_chunk_wait_ns(oldest.hop, context.now))
        .with("longest", rows)
        .advice(advice);
}
