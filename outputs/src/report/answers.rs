//! Responses to clients by their end, and what they show about themselves.

use serde::{Deserialize, Serialize};
use trace::ledger::Ledger;
use trace::words::{count, plural};

/// Finished responses to clients, one per request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerCounts {
    /// Number of responses.
    pub seen: u64,
    /// Closed early by the client.
    pub client_left: u64,
    /// Ended early by the server without an error.
    pub server_left: u64,
    /// Ended by an error that the server wrote: an event, or the whole body.
    #[serde(default)]
    pub failed: u64,
    /// Responses with a partial or refused socket write: the client read more slowly than the server wrote.
    pub short_writes: u64,
    /// Responses whose tokens could not be counted: text only, or partly observed.
    pub uncounted: u64,
    /// Complete responses matched to no frame (a response plane).
    pub judged_alone: u64,
    /// Tokens carried by the unmatched responses.
    pub judged_alone_tokens: u64,
    /// Tokens claimed by their last events but not carried.
    pub judged_alone_tokens_lost: u64,
    /// Token ids that they list beyond that claim (`OpenAI` endpoints).
    #[serde(default)]
    pub judged_alone_tokens_repeated: u64,
    /// Streams written to their end with neither a finish reason nor `[DONE]`.
    #[serde(default)]
    pub lacking_end: u64,
    /// Streams that wrote `[DONE]`.
    #[serde(default)]
    pub done: u64,
    /// Those of them that were written to their end without a finish reason.
    #[serde(default)]
    pub done_without_finish: u64,
    /// Responses whose finish reason contradicts that of the engine's frames: one is `stop`, the other `length`.
    #[serde(default)]
    pub finish_contradicted: u64,
    /// Responses whose last event claims a number of tokens.
    #[serde(default)]
    pub claiming: u64,
    /// Sum of these numbers.
    #[serde(default)]
    pub tokens_claimed: u64,
    /// Events with text or tokens, of HTTP responses; `null` without any.
    pub events: Option<u64>,
    /// Maximum number of tokens in one event; `null` if no event shows its tokens.
    pub event_tokens_max: Option<u32>,
}

/// Responses by their end; `None` if the end of none was observed.
pub(super) fn answer_counts(ledger: &Ledger) -> Option<AnswerCounts> {
    let answers = &ledger.totals().answers;
    if answers.seen == 0 {
        return None;
    }
    Some(AnswerCounts {
        seen: answers.seen,
        client_left: answers.client_left,
        server_left: answers.server_left,
        failed: answers.failed,
        short_writes: answers.short_writes,
        uncounted: answers.uncounted,
        judged_alone: answers.judged_alone,
        judged_alone_tokens: answers.judged_alone_tokens,
        judged_alone_tokens_lost: answers.judged_alone_tokens_lost,
        judged_alone_tokens_repeated: answers.judged_alone_tokens_repeated,
        // `rids` is a number of requests.
        lacking_end: answers.lacking_end.rids,
        done: answers.done,
        done_without_finish: answers.done_without_finish,
        finish_contradicted: answers.finish_contradicted.rids,
        claiming: answers.claiming,
        tokens_claimed: answers.tokens_claimed,
        events: answers.events,
        event_tokens_max: answers.event_tokens_max,
    })
}

/// Numbers of finished responses: by the way in which they ended, by their own counts, and of their events.
pub(super) fn describe_responses(answers: &AnswerCounts) -> String {
    let mut line = format!("{} ended", count(answers.seen));
    for (responses, how) in [
        (answers.client_left, "by their clients"),
        (answers.server_left, "early by the server"),
        (answers.failed, "with an error"),
        (answers.short_writes, "with a client that read slowly"),
        (answers.lacking_end, "with neither a finish reason nor [DONE]"),
        (answers.done_without_finish, "with [DONE] but without a finish reason"),
        (answers.finish_contradicted, "with another finish reason than the engine's"),
    ] {
        if responses > 0 {
            append!(line, ", {} {how}", count(responses));
        }
    }
    append!(line, "{}{}", describe_claimed_and_listed_tokens(answers), describe_content_events(answers));
    line
}

/// Tokens that responses claim, and those listed by responses without frames to compare with. Empty without any.
fn describe_claimed_and_listed_tokens(answers: &AnswerCounts) -> String {
    let mut text = String::new();
    if answers.claiming > 0 {
        append!(text, "; {} claim {}", count(answers.claiming), plural(answers.tokens_claimed, "token"));
    }
    if answers.judged_alone > 0 {
        let listed = plural(answers.judged_alone_tokens, "token");
        append!(text, "; {} judged by their own count carry {listed}", count(answers.judged_alone));
    }
    text
}

/// Number of events with content, and the most tokens in one. Empty if neither is known.
fn describe_content_events(answers: &AnswerCounts) -> String {
    let mut text = String::new();
    if let Some(events) = answers.events {
        let events_text = if events == 0 { String::from("no event") } else { plural(events, "event") };
        append!(text, "; {events_text} with content");
    }
    if let Some(max) = answers.event_tokens_max {
        append!(text, ", up to {} in one", plural(max.into(), "token"));
    }
    text
}
