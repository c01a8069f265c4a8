//! Tool calls of responses: comparison of their arguments with the engine's text, and the process at fault.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use trace::clock::MonoNs;
use trace::event::{ArgumentsPart, Finish, ToolCallOutcome, ToolCalls, UnjudgedReason};
use trace::ledger::{Ledger, ToolCallResponse};
use trace::words::{count, plural};

use super::Report;
use super::brief::write_indented;
use super::hostile::escape_and_cut_line as escape_line;

/// Maximum number of responses in the text; the JSON lists more.
const MAX_EXPLAINED: usize = 5;

/// Responses with tool calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallCounts {
    /// Responses whose arguments are those that the engine sent.
    pub complete: u64,
    /// Responses with complete JSON in a form that cannot be compared with the engine's text.
    pub rewritten: u64,
    /// Responses in which the engine's text ends inside the arguments.
    pub unfinished: u64,
    /// Responses that were not compared, or whose arguments differ without proof of a loss.
    pub unjudged: u64,
    /// The same by reason.
    pub unjudged_by_reason: BTreeMap<UnjudgedReason, u64>,
    /// Responses that lack a call of the engine's text.
    pub absent: u64,
    /// Responses with characters replaced by U+FFFD.
    pub garbled: u64,
    /// Responses with two parts exchanged.
    pub swapped: u64,
    /// Responses with a part written twice.
    pub repeated: u64,
    /// Responses without a part that the engine sent.
    pub missing: u64,
    /// The latest damaged responses, then the latest others; at most a thousand of each.
    pub lines: Vec<ToolCallLine>,
}

/// Tool calls of one response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallLine {
    /// The engine's request id.
    pub rid: String,
    /// When the response ended.
    pub at_ns: u64,
    /// Number of tool calls, and the one described.
    #[serde(flatten)]
    pub calls: ToolCalls,
    /// The party that changed the arguments: `serving-process`, `parser`, `nobody`; `null` if not judged.
    pub by: Option<String>,
}

impl ToolCallLine {
    /// The tool calls of a response, with its end since the start of the capture.
    fn new(response: &ToolCallResponse, capture_start: MonoNs) -> Self {
        Self {
            rid: response.rid.to_string(),
            at_ns: response.at.since(capture_start),
            by: party_that_changed_arguments(&response.calls).map(str::to_owned),
            calls: response.calls,
        }
    }
}

/// Numbers of responses with tool calls by outcome, and the latest of these responses. `None` if no response had tool calls.
pub(super) fn tool_call_counts(ledger: &Ledger, capture_start: MonoNs) -> Option<ToolCallCounts> {
    let responses = ledger.tool_calls();
    let outcomes = &responses.outcomes;
    if outcomes.is_empty() {
        return None;
    }
    Some(ToolCallCounts {
        complete: responses_with(outcomes, ToolCallOutcome::Complete),
        rewritten: responses_with(outcomes, ToolCallOutcome::Rewritten),
        unfinished: responses_with(outcomes, ToolCallOutcome::Unfinished),
        unjudged: responses_with(outcomes, ToolCallOutcome::Unjudged),
        unjudged_by_reason: responses.unjudged.clone(),
        absent: responses_with(outcomes, ToolCallOutcome::Absent),
        garbled: responses_with(outcomes, ToolCallOutcome::Garbled),
        swapped: responses_with(outcomes, ToolCallOutcome::Swapped),
        repeated: responses_with(outcomes, ToolCallOutcome::Repeated),
        missing: responses_with(outcomes, ToolCallOutcome::Missing),
        lines: responses.latest().map(|response| ToolCallLine::new(response, capture_start)).collect(),
    })
}

/// Number of responses with this outcome.
fn responses_with(outcomes: &BTreeMap<ToolCallOutcome, u64>, outcome: ToolCallOutcome) -> u64 {
    outcomes.get(&outcome).copied().unwrap_or_default()
}

/// The party that changed the arguments; `None` if that is not judged.
fn party_that_changed_arguments(calls: &ToolCalls) -> Option<&'static str> {
    match calls.outcome {
        ToolCallOutcome::Complete | ToolCallOutcome::Unfinished => Some("nobody"),
        ToolCallOutcome::Rewritten | ToolCallOutcome::Unjudged | ToolCallOutcome::Absent => None,
        // All others are damaged arguments.
        _ if calls.is_by_parser() => Some("parser"),
        _ => Some("serving-process"),
    }
}

/// Describes the tool calls of a response: the outcome, its place, whether the text was on the wire, and the party at fault.
pub fn explain_tool_calls(calls: &ToolCalls) -> String {
    match calls.outcome {
        ToolCallOutcome::Complete => {
            let which = plural(calls.calls.into(), "tool call");
            format!(
                "{which}: complete. The arguments are those in the engine's frames; nothing was lost before the client's connection"
            )
        }
        ToolCallOutcome::Rewritten => {
            let which = name_call(calls);
            format!(
                "{which}: the arguments are complete JSON. The engine's text has another form (XML, Python) and is not compared"
            )
        }
        ToolCallOutcome::Unfinished => describe_unfinished_call(calls),
        ToolCallOutcome::Unjudged => describe_unjudged_calls(calls),
        ToolCallOutcome::Absent => describe_absent_calls(calls),
        ToolCallOutcome::Missing => describe_damage(calls, "in no event of the response"),
        ToolCallOutcome::Repeated => describe_damage(calls, "in the response twice"),
        ToolCallOutcome::Swapped => describe_damage(calls, "in the response in another order"),
        ToolCallOutcome::Garbled => describe_damage(calls, "in the response with U+FFFD instead"),
    }
}

/// Names the described one of the response's tool calls: `tool call 1 of 2`.
fn name_call(calls: &ToolCalls) -> String {
    format!("tool call {} of {}", calls.call, calls.calls)
}

/// The engine's finish reason of the response, for a sentence.
fn name_finish(calls: &ToolCalls) -> &'static str {
    calls.finish.map_or("unknown", Finish::as_str)
}

/// Describes a call that the engine's output does not complete. The part, if any, is text that the parser holds back.
fn describe_unfinished_call(calls: &ToolCalls) -> String {
    let which = name_call(calls);
    let finish = name_finish(calls);
    let rest = calls.part.map_or_else(String::new, |part| {
        let held_back = plural(part.chars.into(), "character");
        format!(", except for {held_back} that the parser holds back until it can parse them")
    });
    let advice = if calls.finish == Some(Finish::Length) { ": raise the request's max_tokens" } else { "" };
    format!(
        "{which}: the engine's output ends inside the call (finish reason {finish}). All of it was written to the client{rest}; nobody lost text{advice}"
    )
}

/// Describes calls that were not judged: their arguments differ without proof of a loss, or were not compared.
fn describe_unjudged_calls(calls: &ToolCalls) -> String {
    match calls.reason {
        None | Some(UnjudgedReason::Differs) => format!(
            "{}: the arguments are not the text in the engine's frames, in a way that proves no loss (finish reason {}); not judged",
            name_call(calls),
            name_finish(calls)
        ),
        Some(reason) => {
            format!("{}: not judged: {}", plural(calls.calls.into(), "tool call"), describe_why_unjudged(reason))
        }
    }
}

/// Why tool calls were not judged, in words.
fn describe_why_unjudged(reason: UnjudgedReason) -> &'static str {
    match reason {
        UnjudgedReason::Differs => "the difference proves no loss",
        UnjudgedReason::Missed => "a part of the response or of the engine's frames was not observed",
        UnjudgedReason::EndedEarly => "the response ended early",
        UnjudgedReason::NoText => "no observed frame has text to compare with",
        UnjudgedReason::Unreadable => "the calls are too long, or in an unknown form",
    }
}

/// Describes tool calls in the engine's frames that the response does not have.
fn describe_absent_calls(calls: &ToolCalls) -> String {
    let place = calls.part.map_or_else(String::new, |part| format!(" ({} of the output)", describe_token_range(part)));
    format!(
        "{} of {} in the engine's frames: in no field of the response, which has {}. The first is call {}{place}. Not judged: a parser leaves out calls of functions that the request does not offer",
        plural(calls.absent.into(), "tool call"),
        count(u64::from(calls.calls) + u64::from(calls.absent)),
        count(calls.calls.into()),
        count(calls.call.into()),
    )
}

/// Tokens of the part, counted from 1: `tokens 3 to 5`.
fn describe_token_range(part: ArgumentsPart) -> String {
    match part.tokens {
        // A part inside one token.
        [first, last] if first >= last => format!("token {last}"),
        [first, last] => format!("tokens {first} to {last}"),
    }
}

/// Place of the damaged part among the events that carry the call's arguments: in events, or between two of them.
fn describe_place_among_events(calls: &ToolCalls, part: ArgumentsPart) -> String {
    let of_events = format!("of the {} with its arguments", plural(calls.events.into(), "event"));
    // The two events before and behind a missing part, or those with the first and the last character of another part. Events count from 1,
    // and 0 stands for none.
    match part.events {
        [0, 0] => format!("None {of_events} has them"),
        [0, behind] => format!("Place: before event {behind} {of_events}"),
        [before, 0] => format!("Place: behind event {before} {of_events}"),
        [first, last] if first == last => format!("Place: event {first} {of_events}"),
        [first, last] => format!("Place: events {first} and {last} {of_events}"),
    }
}

/// Describes arguments of which a part did not reach the client as the engine sent it. `place_in_response`: where the part is in the
/// response.
fn describe_damage(calls: &ToolCalls, place_in_response: &str) -> String {
    let which = name_call(calls);
    let Some(part) = calls.part else {
        return format!(
            "{which}: a part of the arguments is in the engine's frames, and {place_in_response}. By: the serving process"
        );
    };
    let cause = if calls.outcome == ToolCallOutcome::Garbled {
        "A character was cut. By: the serving process"
    } else {
        describe_cause_by_extent(part)
    };
    format!(
        "{which}: {} from character {} of the arguments on ({} of the output) are in the engine's frames, and {place_in_response}. {}. {cause}",
        plural(part.chars.into(), "character"),
        count(part.at.into()),
        describe_token_range(part),
        describe_place_among_events(calls, part)
    )
}

/// Whether the difference has whole chunks or events, and what that shows about its cause.
fn describe_cause_by_extent(part: ArgumentsPart) -> &'static str {
    match (part.whole_chunks, part.whole_events) {
        (true, true) => {
            "They are whole chunks and events. By: the serving process, which loses, repeats or reorders events"
        }
        (true, false) => {
            "They are whole chunks. By: the serving process, which loses, repeats or reorders chunks before its parser"
        }
        (false, true) => "They are whole events. By: the serving process, in its parser or behind it",
        (false, false) => "They are a part of a chunk and of an event. By: a parser in the serving process",
    }
}

/// Tool calls of one response in words.
pub(super) struct ExplainedCalls {
    pub(super) rid: String,
    pub(super) explanation: String,
}

impl ToolCallCounts {
    /// Numbers of responses: `12 complete, 1 with missing text`.
    pub(super) fn summarise_calls(&self) -> String {
        let counts = [
            (self.complete, "complete"),
            (self.rewritten, "in another form"),
            (self.unfinished, "not finished by the engine"),
            (self.unjudged, "not judged"),
            (self.absent, "without a call"),
            (self.missing, "with missing text"),
            (self.repeated, "with repeated text"),
            (self.swapped, "with swapped text"),
            (self.garbled, "with cut characters"),
        ];
        let mut parts = Vec::new();
        for (responses, what) in counts {
            if responses > 0 {
                parts.push(format!("{} {what}", count(responses)));
            }
        }
        parts.join(", ") + &self.summarise_reasons_not_judged()
    }

    /// Why responses were not judged, in parentheses: ` (not judged: 2 because the response ended early)`. Empty if all were.
    fn summarise_reasons_not_judged(&self) -> String {
        let each = self.unjudged_by_reason.iter();
        let reasons: Vec<String> = each
            .map(|(reason, responses)| format!("{} because {}", count(*responses), describe_why_unjudged(*reason)))
            .collect();
        if reasons.is_empty() { String::new() } else { format!(" (not judged: {})", reasons.join(", ")) }
    }

    /// The first few responses that were compared and whose arguments are not complete.
    pub(super) fn explain_first_incomplete_calls(&self) -> impl Iterator<Item = ExplainedCalls> {
        let incomplete = self.lines.iter().filter(|line| {
            // Texts that differ were compared, but their difference proves no loss.
            let is_compared = line.calls.reason.is_none_or(|reason| reason == UnjudgedReason::Differs);
            // The outcomes are ordered from the best to the worst.
            let is_incomplete = line.calls.outcome >= ToolCallOutcome::Unfinished;
            is_incomplete && is_compared
        });
        incomplete
            .take(MAX_EXPLAINED)
            .map(|line| ExplainedCalls { rid: escape_line(&line.rid), explanation: explain_tool_calls(&line.calls) })
    }
}

/// Writes the outcomes of tool calls, and an explanation of the first few that are not complete.
pub(super) fn write_tool_calls(out: &mut String, report: &Report) {
    let Some(calls) = &report.tool_calls else { return };
    append_line!(out, "TOOL CALLS of responses: {}", calls.summarise_calls());
    for ExplainedCalls { rid, explanation } in calls.explain_first_incomplete_calls() {
        write_indented(out, &format!("{rid}: {explanation}"));
    }
    append_line!(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_names_place_and_fault() {
        let missing = |whole_chunks, whole_events| ToolCalls {
            calls: 2,
            absent: 0,
            call: 1,
            outcome: ToolCallOutcome::Missing,
            reason: None,
            finish: Some(Finish::Stop),
            events: 7,
            part: Some(ArgumentsPart {
                at: 10,
                chars: 5,
                tokens: [15, 16],
                whole_chunks,
                events: [3, 4],
                whole_events,
            }),
        };
        assert_eq!(
            explain_tool_calls(&missing(true, true)),
            "tool call 1 of 2: 5 characters from character 10 of the arguments on (tokens 15 to 16 of the output) are in the engine's frames, and in no event of the response. Place: events 3 and 4 of the 7 events with its arguments. They are whole chunks and events. By: the serving process, which loses, repeats or reorders events"
        );
        assert!(explain_tool_calls(&missing(false, false)).ends_with("By: a parser in the serving process"));
        assert!(explain_tool_calls(&missing(false, true)).ends_with("in its parser or behind it"));
        let cut = ToolCalls {
            outcome: ToolCallOutcome::Unfinished,
            finish: Some(Finish::Length),
            part: None,
            ..missing(true, true)
        };
        assert!(explain_tool_calls(&cut).contains("nobody lost text: raise the request's max_tokens"));
        let absent = ToolCalls { absent: 1, call: 3, outcome: ToolCallOutcome::Absent, ..missing(false, false) };
        assert_eq!(
            explain_tool_calls(&absent),
            "1 tool call of 3 in the engine's frames: in no field of the response, which has 2. The first is call 3 (tokens 15 to 16 of the output). Not judged: a parser leaves out calls of functions that the request does not offer"
        );
    }
}
