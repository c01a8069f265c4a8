//! Ground truth of a run.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Lost tokens of a request, by position: the number of the chunk.
pub(crate) type LostTokens = BTreeMap<u32, u32>;

#[derive(Debug, Default)]
pub(crate) struct RequestTruth {
    pub(crate) rid: Rc<str>,
    /// Tokens that the scheduler generated, lost ones included.
    pub(crate) generated: u32,
    /// When its first frame left the scheduler, and when the tokenizer received its first chunk.
    pub(crate) first_sent: Option<u64>,
    pub(crate) first_received: Option<u64>,
    /// Positions of tokens whose frame was lost before the first hop.
    pub(crate) lost_on_wire: BTreeSet<u32>,
    /// Positions of tokens that the tokenizer received and dropped, though later ones were delivered.
    pub(crate) dropped: LostTokens,
    /// Tokens predicted as lost: another chunk of the request arrived before its waiter ran.
    pub(crate) predicted: LostTokens,
    /// Tokens of frames lost since its last chunk that crossed the wire.
    pub(crate) lost_since: u64,
    pub(crate) chunks: u32,
    pub(crate) chunks_dropped: u64,
    /// Its finishing chunk has been sent.
    pub(crate) finished: bool,
    /// Time of its last event.
    pub(crate) last_at: u64,
}

/// Counts over the whole run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) requests: u64,
    pub(crate) finished: u64,
    pub(crate) aborted: u64,
    pub(crate) chunks_sent: u64,
    pub(crate) tokens_sent: u64,
    pub(crate) chunks_received: u64,
    pub(crate) tokens_received: u64,
    pub(crate) chunks_delivered: u64,
    pub(crate) tokens_delivered: u64,
    pub(crate) merged: u64,
    pub(crate) dropped: u64,
    pub(crate) tokens_lost: u64,
    pub(crate) tokens_missing_on_wire: u64,
    /// Chunks that entered the tokenizer's hop and are neither delivered nor lost.
    pub(crate) in_flight: u64,
    /// Ended responses, and those that the client or the server ended early.
    pub(crate) answers: u64,
    pub(crate) client_left: u64,
    pub(crate) server_left: u64,
}

/// Traffic of all hops with one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HopTruth {
    pub(crate) frames_sent: u64,
    pub(crate) frames_received: u64,
    pub(crate) backlog_max: u64,
    pub(crate) chunks: u64,
    pub(crate) tokens: u64,
}
