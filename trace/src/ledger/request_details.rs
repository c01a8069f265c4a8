//! Moments of a request that its chunks do not show.

use super::answer::ResponseEnd;
use crate::clock::MonoNs;
use crate::event::{ArrivalTimes, EngineTimes, TraceParent, UnknownArrival};
use crate::id::HopId;

/// When a request was on its way to the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestDispatch {
    /// When the tokenizer sent it.
    pub sent: MonoNs,
    /// When the scheduler received it; `None` if that was not observed, or it did not yet.
    pub received: Option<MonoNs>,
    /// Length of the prompt in tokens, if the message showed it.
    pub prompt_tokens: Option<u32>,
    /// Room that joins the prefill and the decode server of the request.
    pub room: Option<u64>,
    /// When the server saw it, in nanoseconds of the wall clock; `None` unless the engine's message says so.
    pub arrived_unix_ns: Option<u64>,
}

/// Requests of an engine at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineLoad {
    /// Those with output that had not ended.
    pub running: u64,
    /// Those dispatched, without output.
    pub waiting: u64,
}

/// What happened beside a request between its dispatch and its first chunk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DispatchWait {
    /// Hop of its message; if it was forwarded, the one on which it took longer.
    pub(super) hop: HopId,
    /// Other requests when its first chunk was sent.
    pub(super) load: EngineLoad,
    /// Time in which the engine sent output, without its pauses.
    pub(super) output_ns: u64,
    /// Another request with its rid waited, too: its chunks, and times, may be those of the other one.
    pub(super) is_ambiguous: bool,
}

/// Moments of a request before its first token, and how its response ended. Kept apart from its other data, because chunks do not need
/// them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestDetails {
    /// When it reached the server; `None` until its response begins, and where that is not observed.
    pub(super) arrival: Option<Result<ArrivalTimes, UnknownArrival>>,
    /// Span of its caller; `None` unless its head was observed and names one.
    pub(super) trace_parent: Option<TraceParent>,
    pub(super) dispatch: Option<RequestDispatch>,
    pub(super) wait: Option<DispatchWait>,
    pub(super) engine_times: Option<EngineTimes>,
    /// When the tokenizer had processed the message with its first chunk.
    pub(super) processed: Option<MonoNs>,
    /// `None` before that, and where responses are not observed.
    pub(super) response_end: Option<ResponseEnd>,
}

impl RequestDetails {
    /// Whether a moment before the first token is known.
    pub(super) fn has_early_moment(&self) -> bool {
        self.arrival.is_some() || self.dispatch.is_some() || self.engine_times.is_some()
    }
}
