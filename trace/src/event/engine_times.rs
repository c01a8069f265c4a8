//! Moments of a request that the engine itself puts into its messages.

use serde::Serialize;

use crate::clock::MonoNs;

/// Moments of a request by the engine's own readings of `CLOCK_MONOTONIC`; `None` for one that the engine did not send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EngineTimes {
    /// When it entered the scheduler's queue.
    pub queued: Option<MonoNs>,
    /// When it first entered a batch.
    pub batch_entered: Option<MonoNs>,
    /// When its prefill ended.
    pub prefill_finished: Option<MonoNs>,
}

/// The engine's times of one request, from the message with its first tokens. Emitted behind `Sent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RequestTimes<'a> {
    /// The engine's request id.
    pub rid: &'a str,
    /// Its moments.
    pub times: EngineTimes,
    /// Number of times in the message that cannot be true: negative, not a number, or later than the moment that follows them. The last of
    /// these moments is the send of the message.
    pub impossible: u8,
}
