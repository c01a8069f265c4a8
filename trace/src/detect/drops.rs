//! Tokens that never reached their client: chunks dropped, as deliveries prove or wakeups predict, and damaged arguments of tool calls.

use super::{DetectContext, Severity, Verdicts, advice};
use crate::event::ToolCallOutcome;
use crate::words::{count, plural, share};

/// Share of dropped chunks that is critical.
const CRITICAL_SHARE: f64 = 0.001;

pub(super) fn detect_dropped_chunks(context: &DetectContext<'_>, out: &mut Verdicts) {
    let totals = context.ledger.totals();
    let outcomes = totals.chunks.outcomes;
    let seen = &totals.drops;
    if outcomes.tokens_lost == 0 {
        return;
    }
    let judged = outcomes.delivered + outcomes.merged + outcomes.dropped;
    let severity = Severity::critical_if(outcomes.dropped as f64 >= CRITICAL_SHARE * judged as f64);
    let advice = match totals.tokens.lost_from_text {
        0 => advice::dropped_chunks_advice(context.ledger.engine()),
        text if text == outcomes.tokens_lost => advice::lost_text_advice(context.ledger.engine()),
        text => format!(
            "{}; for {} of them: {}",
            advice::dropped_chunks_advice(context.ledger.engine()),
            plural(text, "token"),
            advice::lost_text_advice(context.ledger.engine())
        ),
    };
    let summary = format!(
        "{} never delivered: {} lost ({} of chunks) in {}",
        plural(outcomes.dropped, "chunk"),
        plural(outcomes.tokens_lost, "token"),
        share(outcomes.dropped, judged),
        plural(seen.rids, "request"),
    );
    let from_text = (totals.tokens.lost_from_text > 0).then_some(totals.tokens.lost_from_text);
    out.add_verdict(severity, summary)
        .affected("requests", seen)
        .with("chunks_dropped", outcomes.dropped)
        .weighed("tokens_lost", outcomes.tokens_lost)
        .with("worst_tokens_lost", seen.amount)
        .with_known("tokens_lost_from_text", from_text)
        .advice(advice);
}

/// Responses matched to no frame: the count claimed by the last event against the tokens carried.
pub(super) fn detect_short_answers(context: &DetectContext<'_>, out: &mut Verdicts) {
    let answers = &context.ledger.totals().answers;
    let seen = &answers.judged_alone_lost;
    let lost = answers.judged_alone_tokens_lost;
    if lost == 0 {
        return;
    }
    let responses = plural(seen.rids, "response");
    let summary = if answers.openai_tokens_lost == lost {
        format!("{} missing in the events of {responses}, by their last counts", plural(lost, "token id"))
    } else {
        format!(
            "{} lost in {responses}: each response carried fewer tokens than its last event counts",
            plural(lost, "token"),
        )
    };
    out.add_verdict(Severity::Critical, summary)
        .affected("responses", seen)
        .with("responses_whole", answers.judged_alone)
        .weighed("tokens_lost", lost)
        .with("worst_tokens_lost", seen.amount)
        .advice(match answers.openai_tokens_lost {
            0 => advice::dropped_chunks_advice(context.ledger.engine()),
            openai if openai == lost => advice::unlisted_ids_advice(context.ledger.engine()),
            openai => format!(
                "{}; for {} of OpenAI endpoints: {}",
                advice::dropped_chunks_advice(context.ledger.engine()),
                plural(openai, "token"),
                advice::unlisted_ids_advice(context.ledger.engine())
            ),
        });
}

/// Responses matched to no frame that list more ids than their last event counts.
pub(super) fn detect_repeated_ids(context: &DetectContext<'_>, out: &mut Verdicts) {
    let answers = &context.ledger.totals().answers;
    let seen = &answers.judged_alone_repeated;
    let repeated = answers.judged_alone_tokens_repeated;
    if repeated == 0 {
        return;
    }
    let summary = format!(
        "the events of {} list {} more than their last event counts",
        plural(seen.rids, "response"),
        plural(repeated, "token id"),
    );
    out.add_verdict(Severity::Warning, summary)
        .affected("responses", seen)
        .weighed("tokens_repeated", repeated)
        .with("worst_tokens_repeated", seen.amount)
        .advice("events were written twice, or ids of other tokens are among them: look at the events of the worst response, and at retries in the server and its middleware");
}

/// Streams that were written to their end without saying that they end.
pub(super) fn detect_unfinished_responses(context: &DetectContext<'_>, out: &mut Verdicts) {
    let seen = &context.ledger.totals().answers.lacking_end;
    if seen.rids == 0 {
        return;
    }
    let summary = format!(
        "{} ended with neither a finish reason nor [DONE]: their clients cannot tell a complete text from a cut one",
        plural(seen.rids, "response"),
    );
    out.add_verdict(Severity::Warning, summary)
        .affected("responses", seen)
        .weight(seen.rids)
        .with("worst_events", seen.amount)
        .advice("the server's generator ended early: read its log for an exception or an abort of this request");
}

pub(super) fn detect_predicted_drops(context: &DetectContext<'_>, out: &mut Verdicts) {
    let totals = context.ledger.totals();
    // If deliveries are observed, they decide instead of the prediction.
    if totals.predicted.dropped == 0 || context.ledger.observes_deliveries() {
        return;
    }
    let at_most = if context.ledger.engine().turnaround.is_some() { "" } else { "up to " };
    // Text deltas are cut from the full text, so only clients that read token ids can miss tokens.
    let text = context.ledger.groups().iter().any(|g| g.name.starts_with("detokenizer->"));
    let (severity, whom) = if text {
        (Severity::Info, "for clients that read token ids; text and chat lose none")
    } else {
        (Severity::Warning, "each was received before its request's waiter had processed an earlier one")
    };
    let summary = format!(
        "{at_most}{} of {} dropped (predicted): {whom}",
        plural(totals.predicted.dropped, "chunk"),
        count(totals.chunks.received),
    );
    out.add_verdict(severity, summary)
        .affected("requests", &totals.bursts)
        .weighed("chunks_dropped_predicted", totals.predicted.dropped)
        .with("burst_max", totals.predicted.burst_max)
        .advice(advice::dropped_chunks_advice(context.ledger.engine()));
}

pub(super) fn detect_damaged_tool_calls(context: &DetectContext<'_>, out: &mut Verdicts) {
    let responses = context.ledger.tool_calls();
    let seen = &responses.damaged;
    let by_parser = responses.damaged_by_parser;
    if seen.rids == 0 {
        return;
    }
    let all: u64 = responses.outcomes.values().sum();
    let missing = responses.count_of(ToolCallOutcome::Missing);
    let repeated = responses.count_of(ToolCallOutcome::Repeated);
    let swapped = responses.count_of(ToolCallOutcome::Swapped);
    let garbled = responses.count_of(ToolCallOutcome::Garbled);
    let kinds = [
        (missing, "missing text"),
        (repeated, "repeated text"),
        (swapped, "swapped text"),
        (garbled, "cut characters"),
    ];
    let kinds = kinds.iter().filter(|(n, _)| *n > 0);
    let kinds: Vec<_> = kinds.map(|(n, kind)| format!("{kind} in {}", count(*n))).collect();
    let summary = format!(
        "the arguments of tool calls in {} of {} are not those that the engine sent: {}",
        count(seen.rids),
        plural(all, "response"),
        kinds.join(", "),
    );
    let place = "the request screen has the place";
    let events = "the serving process loses, repeats or reorders chunks or events";
    let parser = "its tool-call parser changes the arguments";
    let advice = if by_parser == 0 {
        format!("{events}; {place}")
    } else if by_parser == seen.rids {
        format!("{parser} within chunks and events; {place}")
    } else {
        format!("in {} {parser} within chunks and events; in the others {events}; {place}", count(by_parser))
    };
    out.add_verdict(Severity::Warning, summary)
        .affected("responses", seen)
        .weight(seen.rids)
        .with("responses_missing", missing)
        .with("responses_repeated", repeated)
        .with("responses_swapped", swapped)
        .with("responses_garbled", garbled)
        .with("responses_by_parser", by_parser)
        .with("worst_characters", seen.amount)
        .advice(advice);
}
