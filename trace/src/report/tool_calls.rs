//! Tool calls of responses: comparison of their arguments with the engine's text, and the process at fault.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::Report;
use super::hostile::plain;
use super::wrap::wrap;
use crate::clock::MonoNs;
use crate::event::{ArgumentsPart, Finish, ToolCallOutcome, ToolCalls};
use crate::ledger::Ledger;
use crate::words::{count, plural};

/// Maximum number of responses in the text; the JSON lists more.
const LIMIT: usize = 5;

/// Responses with tool calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCallCounts {
    /// Responses whose arguments are those that the engine sent.
    pub complete: u64,
    /// Responses with complete JSON in a form that cannot be compared with the engine's text.
    pub rewritten: u64,
    /// Responses in which the engine's text ends inside the arguments.
    pub unfinished: u64,
    /// Responses whose arguments differ in a way that proves nothing.
    pub unjudged: u64,
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

/// Converts the responses kept by the ledger. `None` if no response had tool calls that were compared.
pub(super) fn tool_calls(ledger: &Ledger, from: MonoNs) -> Option<ToolCallCounts> {
    let responses = ledger.tool_calls();
    let of = |outcome| responses.outcomes.get(&outcome).copied().unwrap_or_default();
    (!responses.outcomes.is_empty()).then(|| ToolCallCounts {
        complete: of(ToolCallOutcome::Complete),
        rewritten: of(ToolCallOutcome::Rewritten),
        unfinished: of(ToolCallOutcome::Unfinished),
        unjudged: of(ToolCallOutcome::Unjudged),
        swapped: of(ToolCallOutcome::Swapped),
        repeated: of(ToolCallOutcome::Repeated),
        missing: of(ToolCallOutcome::Missing),
        lines: responses
            .latest()
            .map(|response| ToolCallLine {
                rid: response.rid.to_string(),
                at_ns: response.at.since(from),
                by: by(&response.calls).map(str::to_owned),
                calls: response.calls,
            })
            .collect(),
    })
}

/// The party that changed the arguments.
fn by(calls: &ToolCalls) -> Option<&'static str> {
    match calls.outcome {
        ToolCallOutcome::Complete | ToolCallOutcome::Unfinished => Some("nobody"),
        ToolCallOutcome::Rewritten | ToolCallOutcome::Unjudged => None,
        _ if calls.part.is_some_and(|part| !part.whole_chunks) => Some("parser"),
        _ => Some("serving-process"),
    }
}

/// Describes the tool calls of a response: the outcome, its place, whether the text was on the wire, and the party at fault.
pub fn explain_tool_calls(calls: &ToolCalls) -> String {
    let which = format!("tool call {} of {}", calls.call, calls.calls);
    let finish = calls.finish.map_or("unknown", Finish::as_str);
    match calls.outcome {
        ToolCallOutcome::Complete => {
            let which = plural(calls.calls.into(), "tool call");
            format!(
                "{which}: complete. The arguments are those in the engine's frames; nothing was lost before the client's connection"
            )
        }
        ToolCallOutcome::Rewritten => {
            format!(
                "{which}: the arguments are complete JSON. The engine's text has another form (XML, Python) and is not compared"
            )
        }
        ToolCallOutcome::Unfinished => {
            let rest = calls.part.map_or_else(String::new, |part| {
                let n = plural(part.chars.into(), "character");
                format!(", except for {n} that the parser holds back until it can parse them")
            });
            let limit = if calls.finish == Some(Finish::Length) {
                ": raise the request's max_tokens"
            } else {
                ""
            };
            format!(
                "{which}: the engine's output ends inside the call (finish reason {finish}). All of it was written to the client{rest}; nobody lost text{limit}"
            )
        }
        ToolCallOutcome::Unjudged => format!(
            "{which}: the arguments are not the text in the engine's frames, in a way that proves no loss (finish reason {finish}); not judged"
        ),
        ToolCallOutcome::Missing => damaged(&which, calls.part, "in no event of the response"),
        ToolCallOutcome::Repeated => damaged(&which, calls.part, "in the response twice"),
        ToolCallOutcome::Swapped => damaged(&which, calls.part, "in the response in another order"),
    }
}

fn damaged(which: &str, part: Option<ArgumentsPart>, how: &str) -> String {
    let Some(part) = part else {
        return format!(
            "{which}: a part of the arguments is in the engine's frames, and {how}. By: the serving process"
        );
    };
    let tokens = match part.tokens {
        [first, last] if first >= last => format!("token {last}"),
        [first, last] => format!("tokens {first} to {last}"),
    };
    let by = if part.whole_chunks {
        "They are whole chunks. By: the serving process"
    } else {
        "They are a part of a chunk. By: a parser in the serving process"
    };
    format!(
        "{which}: {} from character {} of the arguments on ({tokens} of the output) are in the engine's frames, and {how}. {by}",
        plural(part.chars.into(), "character"),
        count(part.at.into())
    )
}

impl ToolCallCounts {
    /// Numbers of responses: `12 complete, 1 with missing text`.
    pub(super) fn summary(&self) -> String {
        let counts = [
            (self.complete, "complete"),
            (self.rewritten, "in another form"),
            (self.unfinished, "not finished by the engine"),
            (self.unjudged, "not judged"),
            (self.missing, "with missing text"),
            (self.repeated, "with repeated text"),
            (self.swapped, "with swapped text"),
        ];
        let counted = counts.iter().filter(|(n, _)| *n > 0);
        let counted: Vec<String> = counted.map(|(n, what)| format!("{} {what}", count(*n))).collect();
        counted.join(", ")
    }

    /// Request and explanation of the first few responses whose arguments are not complete.
    pub(super) fn notable(&self) -> impl Iterator<Item = (String, String)> {
        let notable = self
            .lines
            .iter()
            .filter(|line| line.calls.outcome >= ToolCallOutcome::Unfinished);
        notable
            .take(LIMIT)
            .map(|line| (plain(&line.rid), explain_tool_calls(&line.calls)))
    }
}

pub(super) fn render(out: &mut String, report: &Report) {
    let Some(calls) = &report.tool_calls else { return };
    let _ = writeln!(out, "TOOL CALLS of responses: {}", calls.summary());
    for (rid, explanation) in calls.notable() {
        wrap(out, &format!("{rid}: {explanation}"), "  ", "    ");
    }
    let _ = writeln!(out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_explanation_names_place_and_fault() {
        let missing = |whole_chunks| ToolCalls {
            calls: 2,
            call: 1,
            outcome: ToolCallOutcome::Missing,
            finish: Some(Finish::Stop),
            part: Some(ArgumentsPart {
                at: 10,
                chars: 5,
                tokens: [15, 16],
                whole_chunks,
            }),
        };
        assert_eq!(
            explain_tool_calls(&missing(true)),
            "tool call 1 of 2: 5 characters from character 10 of the arguments on (tokens 15 to 16 of the output) are in the engine's frames, and in no event of the response. They are whole chunks. By: the serving process"
        );
        assert!(explain_tool_calls(&missing(false)).ends_with("By: a parser in the serving process"));
        let cut = ToolCalls {
            outcome: ToolCallOutcome::Unfinished,
            finish: Some(Finish::Length),
            part: None,
            ..missing(true)
        };
        assert!(explain_tool_calls(&cut).contains("nobody lost text: raise the request's max_tokens"));
    }
}
