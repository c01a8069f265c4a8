//! Tokens that never reached their client: chunks dropped, as deliveries prove or wakeups predict, and damaged arguments of tool calls.

use super::{DetectContext, Severity, Verdicts, advice};
use crate::engine::EngineState;
use crate::event::ToolCallOutcome;
use crate::ledger::ToolCallResponses;
use crate::words::{count, plural, share};

/// Share of dropped chunks that is critical.
pub(super) const CRITICAL_SHARE: f64 = 0.001;

/// Reports chunks whose tokens are in no delivery to a client.
pub(super) fn detect_dropped_chunks(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let totals = context.ledger.totals();
    // How the chunks reached clients: delivered alone, merged with a later one, or dropped.
    let outcomes = totals.chunks.outcomes;
    let affected_requests = &totals.drops;
    if outcomes.tokens_lost == 0 {
        return;
    }
    let judged_chunks = outcomes.delivered + outcomes.merged + outcomes.dropped;
    let severity = Severity::critical_if(outcomes.dropped as f64 >= CRITICAL_SHARE * judged_chunks as f64);
    let tokens_lost_from_text = totals.tokens.lost_from_text;
    let advice = lost_tokens_advice(context.ledger.engine(), outcomes.tokens_lost, tokens_lost_from_text);
    let summary = format!(
        "{} never delivered: {} lost ({} of chunks) in {}",
        plural(outcomes.dropped, "chunk"),
        plural(outcomes.tokens_lost, "token"),
        share(outcomes.dropped, judged_chunks),
        plural(affected_requests.rids, "request"),
    );
    verdicts
        .add_verdict(severity, summary)
        .hop(&context.delivery_hop())
        .affected("requests", affected_requests)
        .occurrences(outcomes.tokens_lost)
        .with("chunks_dropped", outcomes.dropped)
        .with_weight("tokens_lost", outcomes.tokens_lost)
        .with("worst_tokens_lost", affected_requests.amount)
        .with_known("tokens_lost_from_text", Some(tokens_lost_from_text).filter(|tokens| *tokens > 0))
        .advice(advice);
}

/// Advice for lost tokens. `lost_from_text` of them were cut from the text of a chunk, which has another fix than dropped chunks.
fn lost_tokens_advice(engine: &EngineState, tokens_lost: u64, lost_from_text: u64) -> String {
    if lost_from_text == 0 {
        advice::dropped_chunks_advice(engine)
    } else if lost_from_text == tokens_lost {
        advice::lost_text_advice(engine)
    } else {
        format!(
            "{}; for {} of them: {}",
            advice::dropped_chunks_advice(engine),
            plural(lost_from_text, "token"),
            advice::lost_text_advice(engine)
        )
    }
}

/// Reports responses that carry fewer tokens than their last event counts. Judges only responses that were matched to no frame.
pub(super) fn detect_short_answers(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let answers = &context.ledger.totals().answers;
    // Responses matched to no frame are judged by their own events alone.
    let short_responses = &answers.judged_alone_lost;
    let tokens_lost = answers.judged_alone_tokens_lost;
    if tokens_lost == 0 {
        return;
    }
    let responses = plural(short_responses.rids, "response");
    let openai_tokens_lost = answers.openai_tokens_lost;
    // OpenAI endpoints may list fewer ids than they count without losing text.
    let are_all_openai = openai_tokens_lost == tokens_lost;
    let summary = if are_all_openai {
        format!("{} missing in the events of {responses}, by their last counts", plural(tokens_lost, "token id"))
    } else {
        format!(
            "{} lost in {responses}: each response carried fewer tokens than its last event counted",
            plural(tokens_lost, "token"),
        )
    };
    let advice = missing_tokens_advice(context.ledger.engine(), tokens_lost, openai_tokens_lost);
    verdicts
        .add_verdict(Severity::Critical, summary)
        .affected("responses", short_responses)
        .occurrences(tokens_lost)
        .with("responses_whole", answers.judged_alone)
        .with_weight("tokens_lost", tokens_lost)
        .with("worst_tokens_lost", short_responses.amount)
        .advice(advice);
}

/// Advice for tokens missing in responses. `openai_tokens_lost` of them are missing in responses of `OpenAI` endpoints.
fn missing_tokens_advice(engine: &EngineState, tokens_lost: u64, openai_tokens_lost: u64) -> String {
    if openai_tokens_lost == 0 {
        advice::dropped_chunks_advice(engine)
    } else if openai_tokens_lost == tokens_lost {
        advice::unlisted_ids_advice(engine)
    } else {
        format!(
            "{}; for {} of OpenAI endpoints: {}",
            advice::dropped_chunks_advice(engine),
            plural(openai_tokens_lost, "token"),
            advice::unlisted_ids_advice(engine)
        )
    }
}

/// Reports responses that list more token ids than their last event counts. Judges only responses that were matched to no frame.
pub(super) fn detect_repeated_ids(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let answers = &context.ledger.totals().answers;
    // Responses matched to no frame are judged by their own events alone.
    let long_responses = &answers.judged_alone_repeated;
    let tokens_repeated = answers.judged_alone_tokens_repeated;
    if tokens_repeated == 0 {
        return;
    }
    let summary = format!(
        "the events of {} listed {} more than their last event counted",
        plural(long_responses.rids, "response"),
        plural(tokens_repeated, "token id"),
    );
    verdicts.add_verdict(Severity::Warning, summary)
        .affected("responses", long_responses)
        .occurrences(tokens_repeated)
        .with_weight("tokens_repeated", tokens_repeated)
        .with("worst_tokens_repeated", long_responses.amount)
        .advice("events were written twice, or ids of other tokens are among them: look at the events of the worst response, and at retries in the server and its middleware");
}

/// Reports streams that were written to their end without a finish reason or `[DONE]`.
pub(super) fn detect_unfinished_responses(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let unfinished_responses = &context.ledger.totals().answers.lacking_end;
    if unfinished_responses.rids == 0 {
        return;
    }
    let summary = format!(
        "{} ended with neither a finish reason nor [DONE]: their clients cannot tell a complete text from a cut one",
        plural(unfinished_responses.rids, "response"),
    );
    verdicts
        .add_verdict(Severity::Warning, summary)
        .affected("responses", unfinished_responses)
        .occurrences(unfinished_responses.rids)
        .weight(unfinished_responses.rids)
        .with("worst_events", unfinished_responses.amount)
        .advice("the server's generator ended early: read its log for an exception or an abort of this request");
}

/// Reports responses whose finish reason contradicts the engine's: they say that a cut text is complete, or that a complete one is cut.
pub(super) fn detect_finish_mismatch(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let contradicted = &context.ledger.totals().answers.finish_contradicted;
    if contradicted.rids == 0 {
        return;
    }
    let summary = format!(
        "{} ended with a finish reason that contradicts the engine's: `stop` for `length`, or the reverse",
        plural(contradicted.rids, "response"),
    );
    verdicts.add_verdict(Severity::Warning, summary)
        .affected("responses", contradicted)
        .occurrences(contradicted.rids)
        .weight(contradicted.rids)
        .advice("clients take a cut text for a complete one, or retry a complete one: look at the last event of the worst response, and at what rewrites events between the engine and its clients");
}

/// Whether clients get text from a detokenizer. It cuts each piece from the full text, so only clients that read token ids miss tokens.
fn delivers_text(context: &DetectContext<'_>) -> bool {
    context.ledger.groups().iter().any(|group| group.name.starts_with("detokenizer->"))
}

/// Reports chunks that were probably dropped. The prediction is based on the bursts in which chunks were received. It is used only if
/// deliveries are not observed.
pub(super) fn detect_predicted_drops(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let totals = context.ledger.totals();
    // If deliveries are observed, they decide instead of the prediction.
    if totals.predicted.dropped == 0 || context.ledger.observes_deliveries() {
        return;
    }
    // The turnaround is the time until the code that waits for a request's chunks runs again. If it is unknown, the prediction assumes the
    // longest possible time, a whole wakeup of the event loop. The number is then an upper limit.
    let is_upper_limit = context.ledger.engine().turnaround.is_none();
    let up_to = if is_upper_limit { "up to " } else { "" };
    let (severity, explanation) = if delivers_text(context) {
        (Severity::Info, "for clients that read token ids; text and chat lose none")
    } else {
        (Severity::Warning, "each was received before its request's waiter had processed an earlier one")
    };
    let summary = format!(
        "{up_to}{} of {} dropped (predicted): {explanation}",
        plural(totals.predicted.dropped, "chunk"),
        count(totals.chunks.received),
    );
    verdicts
        .add_verdict(severity, summary)
        .hop(&context.delivery_hop())
        .affected("requests", &totals.bursts)
        .occurrences(totals.predicted.dropped)
        .with_weight("chunks_dropped_predicted", totals.predicted.dropped)
        .with("burst_max", totals.predicted.burst_max)
        .advice(advice::dropped_chunks_advice(context.ledger.engine()));
}

/// Reports responses whose tool calls have other arguments than the engine sent.
pub(super) fn detect_damaged_tool_calls(context: &DetectContext<'_>, verdicts: &mut Verdicts) {
    let responses = context.ledger.tool_calls();
    let damaged = &responses.damaged;
    if damaged.rids == 0 {
        return;
    }
    let all_responses: u64 = responses.outcomes.values().sum();
    let summary = format!(
        "the arguments of tool calls in {} of {} were not those that the engine sent: {}",
        count(damaged.rids),
        plural(all_responses, "response"),
        list_damage(responses),
    );
    verdicts
        .add_verdict(Severity::Warning, summary)
        .affected("responses", damaged)
        .occurrences(damaged.rids)
        .weight(damaged.rids)
        .with("responses_missing", responses.count_of(ToolCallOutcome::Missing))
        .with("responses_repeated", responses.count_of(ToolCallOutcome::Repeated))
        .with("responses_swapped", responses.count_of(ToolCallOutcome::Swapped))
        .with("responses_garbled", responses.count_of(ToolCallOutcome::Garbled))
        .with("responses_by_parser", responses.damaged_by_parser)
        .with("worst_characters", damaged.amount)
        .advice(damaged_tool_calls_advice(damaged.rids, responses.damaged_by_parser));
}

/// Lists the kinds of damage, each with the number of its responses: `missing text in 3, cut characters in 1`.
fn list_damage(responses: &ToolCallResponses) -> String {
    let mut found_damage = Vec::new();
    for (outcome, damage) in [
        (ToolCallOutcome::Missing, "missing text"),
        (ToolCallOutcome::Repeated, "repeated text"),
        (ToolCallOutcome::Swapped, "swapped text"),
        (ToolCallOutcome::Garbled, "cut characters"),
    ] {
        let damaged_responses = responses.count_of(outcome);
        if damaged_responses > 0 {
            found_damage.push(format!("{damage} in {}", count(damaged_responses)));
        }
    }
    found_damage.join(", ")
}

/// Names the part of the server that damaged the arguments. Damage within a chunk is the tool-call parser's, other damage is not.
fn damaged_tool_calls_advice(damaged_responses: u64, damaged_by_parser: u64) -> String {
    let events = "the serving process loses, repeats or reorders chunks or events";
    let parser = "its tool-call parser changes the arguments within chunks and events";
    let causes = if damaged_by_parser == 0 {
        String::from(events)
    } else if damaged_by_parser == damaged_responses {
        String::from(parser)
    } else {
        format!("in {} {parser}; in the others {events}", count(damaged_by_parser))
    };
    format!("{causes}; the request screen has the place")
}
