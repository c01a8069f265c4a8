//! Messages to the scheduler: new requests and aborts.

use serde::{Deserialize, Serialize};

use crate::id::FrameId;

/// A message to the scheduler, or one request of it: a message with several requests is several events with one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Dispatch<'a> {
    /// Id of the frame.
    pub id: FrameId,
    /// Length of the message in bytes, without ZMTP headers; 0 in all events of a message but the first.
    pub bytes: u64,
    /// What the message asks for.
    pub kind: DispatchKind,
    /// Index of the request in the message.
    pub index: u32,
    /// The request; `None` in a message that names none.
    pub request: Option<DispatchedRequest<'a>>,
}

/// Kinds of message to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DispatchKind {
    /// New requests.
    Requests,
    /// Requests to abort. Without any, all are aborted.
    Aborts,
    /// Any other message.
    Control,
}

/// What a message to the scheduler tells of a request. Prompts are never read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DispatchedRequest<'a> {
    /// The engine's request id.
    pub rid: &'a str,
    /// Length of the prompt in tokens; `None` if the captured part of the message does not show it, and in an abort.
    pub prompt_tokens: Option<u32>,
    /// Room that joins the prefill and the decode server of one request: SGLang's `bootstrap_room`.
    pub room: Option<u64>,
    /// When the server saw the request, in nanoseconds of the wall clock: vLLM's `arrival_time`.
    pub arrived_unix_ns: Option<u64>,
}

impl<'a> DispatchedRequest<'a> {
    /// A request of which only the id is known.
    pub const fn new(rid: &'a str) -> Self {
        Self { rid, prompt_tokens: None, room: None, arrived_unix_ns: None }
    }
}
