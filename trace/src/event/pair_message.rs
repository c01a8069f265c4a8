//! Messages between the schedulers of a prefill and a decode server.

use serde::{Deserialize, Serialize};

use crate::words::names;

/// What the scheduler of one server of a pair told the other's about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PairMessage {
    /// Room of the request, which both servers know.
    pub room: u64,
    /// What it was told.
    pub kind: PairMessageKind,
}

/// Kinds of messages between the schedulers of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PairMessageKind {
    /// Sent by the decode server: it has allocated memory for the request.
    Allocated,
    /// Sent by the prefill server: the request's cache is in that memory.
    Transferred,
    /// Sent by the prefill server: the transfer failed.
    Failed,
}

names! {
    PairMessageKind { Allocated = "allocated", Transferred = "transferred", Failed = "failed" }
}
