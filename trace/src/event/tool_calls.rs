//! Tool calls of a response, compared with the text in the engine's frames.

use serde::{Deserialize, Serialize};

use super::Finish;
use crate::words::names;

/// Tool calls of one response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCalls {
    /// Number of tool calls in the response.
    pub calls: u32,
    /// Number of the call that the other fields describe (1-based): the first with the worst outcome.
    pub call: u32,
    /// How its arguments differ from the engine's text.
    pub outcome: ToolCallOutcome,
    /// Why the engine ended the request; `None` if that was not observed.
    pub finish: Option<Finish>,
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
}

/// Result of comparing the arguments of a tool call with the engine's text, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolCallOutcome {
    /// They are the JSON value that the engine sent.
    Complete,
    /// They are complete JSON, and the engine's text has another form (XML, Python).
    Rewritten,
    /// The engine's text ends inside the call, and all before its end was written or held back by the parser.
    Unfinished,
    /// They differ in a way that proves nothing.
    Unjudged,
    /// Two neighbouring parts were exchanged.
    Swapped,
    /// A part was written twice.
    Repeated,
    /// A part was not written, though later text or the end of the response was.
    Missing,
}

names! {
    ToolCallOutcome {
        Complete = "complete",
        Rewritten = "rewritten",
        Unfinished = "unfinished",
        Unjudged = "unjudged",
        Swapped = "swapped",
        Repeated = "repeated",
        Missing = "missing",
    }
}

impl ToolCallOutcome {
    /// Whether the serving process damaged the arguments.
    pub fn is_damaged(self) -> bool {
        matches!(self, Self::Swapped | Self::Repeated | Self::Missing)
    }
}
