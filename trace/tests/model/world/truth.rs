//! What really was.

use std::collections::BTreeSet;
use std::rc::Rc;

/// One request, from its first token to its end: the truth about it.
#[derive(Debug, Default)]
pub(crate) struct Life {
    pub(crate) rid: Rc<str>,
    /// Tokens that the scheduler made and meant to send.
    pub(crate) made: u32,
    /// When its first frame left the scheduler, and when that was taken by the tokenizer.
    pub(crate) first_sent: Option<u64>,
    pub(crate) first_taken: Option<u64>,
    /// Places whose frame never left the scheduler.
    pub(crate) cut: BTreeSet<u32>,
    /// Places that the tokenizer took and gave to nobody, though it went on serving.
    pub(crate) dropped: BTreeSet<u32>,
    pub(crate) chunks_dropped: u64,
    /// Its last word has been sent.
    pub(crate) over: bool,
    /// When anything was last heard of it.
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
    pub(crate) chunks_taken: u64,
    pub(crate) tokens_taken: u64,
    pub(crate) chunks_delivered: u64,
    pub(crate) tokens_delivered: u64,
    pub(crate) coalesced: u64,
    pub(crate) dropped: u64,
    pub(crate) tokens_lost: u64,
    pub(crate) tokens_cut: u64,
    /// Chunks that have entered the tokenizer's hop and are neither delivered nor lost.
    pub(crate) outstanding: u64,
    /// Answers that are over, and those that the client or the server left before their end.
    pub(crate) answers: u64,
    pub(crate) client_left: u64,
    pub(crate) server_left: u64,
}

/// What crossed the hops of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HopTruth {
    pub(crate) frames_sent: u64,
    pub(crate) frames_taken: u64,
    pub(crate) backlog_max: u64,
    pub(crate) chunks: u64,
    pub(crate) tokens: u64,
}
