//! Wait of a response in a frontend: a process between the engine's server and the clients.

use serde::Serialize;

/// Waits of one response in a frontend on the same machine, emitted when both its sides have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FrontendWait<'a> {
    /// The engine's request id. If it is unknown, the frontend's.
    pub rid: &'a str,
    /// Time from the server's write of the first token to the frontend's first write with a part of it; `None` if the frontend may have
    /// held text back.
    pub first_token_ns: Option<u64>,
    /// Time from the server's write of the last token to the frontend's write of the finish reason; `None` if a side ended early.
    pub last_token_ns: Option<u64>,
}

impl FrontendWait<'_> {
    /// The longer of the two waits.
    pub fn longest_ns(&self) -> Option<u64> {
        self.first_token_ns.max(self.last_token_ns)
    }
}
