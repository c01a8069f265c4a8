//! Tool calls of a response, compared with the text in the engine's frames.

use serde::{Deserialize, Serialize};

use super::Finish;
use crate::words::names;

/// Tool calls of one response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCalls {
    /// Number of tool calls in the response; of an unjudged one, in the observed part.
    pub calls: u32,
    /// Number of tool calls in the engine's text that are in no field of the response.
    pub absent: u32,
    /// Number of the call that the other fields describe (1-based): the first with the worst outcome. An absent call has its number in the
    /// engine's text.
    pub call: u32,
    /// How its arguments differ from the engine's text.
    pub outcome: ToolCallOutcome,
    /// Why they are unjudged; `None` with another outcome.
    pub reason: Option<UnjudgedReason>,
    /// Why the engine ended the request; `None` if that was not observed.
    pub finish: Option<Finish>,
    /// Number of events with arguments of this call.
    pub events: u32,
    /// The part that differs; `None` where nothing differs or its place is unknown.
    pub part: Option<ArgumentsPart>,
}

/// A part of the arguments as the engine sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgumentsPart {
    /// Position of its first character in the arguments (1-based).
    pub at: u32,
    /// Number of characters.
    pub chars: u32,
    /// Position of its first and last token in the output (1-based).
    pub tokens: [u32; 2],
    /// Whether it consists of whole chunks. A parser does not know where chunks end.
    pub whole_chunks: bool,
    /// Events with this call's arguments (1-based) at both ends of the difference: before and behind a missing part (0: none), and else those
    /// with its first and its last character.
    pub events: [u32; 2],
    /// Whether the difference begins and ends where events do, as that of a lost event does.
    pub whole_events: bool,
}

impl ToolCalls {
    /// Whether a parser changed the arguments: neither chunks nor events end where the difference does.
    pub fn is_by_parser(&self) -> bool {
        let is_inside = self.part.is_some_and(|part| !part.whole_chunks && !part.whole_events);
        self.outcome.is_damaged() && self.outcome != ToolCallOutcome::Garbled && is_inside
    }
}

/// Result of comparing the arguments of a tool call with the engine's text, from the best to the worst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolCallOutcome {
    /// They are the JSON value that the engine sent.
    #[default]
    Complete,
    /// They are complete JSON, and the engine's text has another form (XML, Python).
    Rewritten,
    /// The engine's text ends inside the call, and all before its end was written or held back by the parser.
    Unfinished,
    /// They were not compared, or differ in a way that proves nothing.
    Unjudged,
    /// The engine's text has a call that is in no field of the response. A parser may leave it out by design.
    Absent,
    /// Characters were replaced by U+FFFD, as where a character is cut.
    Garbled,
    /// Two neighbouring parts were exchanged.
    Swapped,
    /// A part was written twice.
    Repeated,
    /// A part was not written, though later text or the end of the response was.
    Missing,
}

/// Why the tool calls of a response are unjudged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnjudgedReason {
    /// The arguments differ from the engine's text in a way that proves no loss.
    Differs,
    /// A part of the response or of the engine's frames was not observed, or its text was evicted.
    Missed,
    /// The client or the server ended the response early.
    EndedEarly,
    /// No observed frame has text.
    NoText,
    /// They are too long, or have an unknown form.
    Unreadable,
}

names! {
    UnjudgedReason {
        Differs = "differs",
        Missed = "missed",
        EndedEarly = "ended_early",
        NoText = "no_text",
        Unreadable = "unreadable",
    }
    ToolCallOutcome {
        Complete = "complete",
        Rewritten = "rewritten",
        Unfinished = "unfinished",
        Unjudged = "unjudged",
        Absent = "absent",
        Garbled = "garbled",
        Swapped = "swapped",
        Repeated = "repeated",
        Missing = "missing",
    }
}

impl ToolCallOutcome {
    /// Whether the serving process damaged the arguments.
    pub fn is_damaged(self) -> bool {
        matches!(self, Self::Garbled | Self::Swapped | Self::Repeated | Self::Missing)
    }
}
