//! Moments of a request on its way through both servers of a pair.

use std::fmt;

use crate::clock::MonoNs;
use crate::words::names;

/// Moments of a request. Those up to the delivery form its path, in their order; the last three lie beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PairMoment {
    /// Its first bytes were in the decode server's socket.
    DecodeArrived,
    /// The decode server had read its first bytes.
    DecodeRead,
    /// The decode server's tokenizer sent it to its scheduler.
    DecodeRequest,
    /// The decode server's scheduler received it.
    DecodeReceived,
    /// The decode server had allocated memory for it.
    Allocated,
    /// The prefill server's tokenizer sent it to its scheduler.
    PrefillRequest,
    /// The prefill server's scheduler received it.
    PrefillReceived,
    /// It entered the prefill server's queue.
    PrefillQueued,
    /// Its prefill began.
    PrefillStarted,
    /// Its prefill ended.
    PrefillEnded,
    /// Its cache was in the decode server's memory.
    Transferred,
    /// It entered the decode server's queue: the decode server knew that the transfer had ended.
    DecodeQueued,
    /// It entered a batch of the decode server.
    DecodeBatch,
    /// The decode server's scheduler sent its first token.
    DecodeFrame,
    /// The decode server's tokenizer received its first token.
    TokenReceived,
    /// The decode server's tokenizer had processed the message with its first token.
    TokenProcessed,
    /// Its first token was accepted for its client, or for a router.
    Delivered,
    /// Its first bytes were in the prefill server's socket.
    PrefillArrived,
    /// The prefill server's scheduler sent its token.
    PrefillFrame,
    /// The prefill server's token was accepted for its client: the router.
    PrefillDelivered,
}

use PairMoment::{
    Allocated, DecodeArrived, DecodeBatch, DecodeFrame, DecodeQueued, DecodeRead, DecodeReceived, DecodeRequest,
    Delivered, PrefillArrived, PrefillDelivered, PrefillEnded, PrefillFrame, PrefillQueued, PrefillReceived,
    PrefillRequest, PrefillStarted, TokenProcessed, TokenReceived, Transferred,
};

names! {
    PairMoment {
        DecodeArrived = "decode_arrived",
        DecodeRead = "decode_read",
        DecodeRequest = "decode_request",
        DecodeReceived = "decode_scheduler_received",
        Allocated = "decode_allocated",
        PrefillRequest = "prefill_request",
        PrefillReceived = "prefill_scheduler_received",
        PrefillQueued = "prefill_queued",
        PrefillStarted = "prefill_started",
        PrefillEnded = "prefill_ended",
        Transferred = "transferred",
        DecodeQueued = "decode_queued",
        DecodeBatch = "decode_batch",
        DecodeFrame = "decode_frame",
        TokenReceived = "decode_token_received",
        TokenProcessed = "decode_token_processed",
        Delivered = "decode_delivered",
        PrefillArrived = "prefill_arrived",
        PrefillFrame = "prefill_frame",
        PrefillDelivered = "prefill_delivered",
    }
}

/// Number of all moments.
pub(super) const MOMENTS: usize = PairMoment::ALL.len();
/// Number of moments on the path.
pub(super) const PATH_MOMENTS: usize = Delivered as usize + 1;

/// A leg without moments between its ends.
struct SingleLeg {
    name: &'static str,
    description: &'static str,
}

const fn single_leg(name: &'static str, description: &'static str) -> SingleLeg {
    SingleLeg { name, description }
}

/// The leg that begins at each moment of the path but the last.
const LEGS: [SingleLeg; PATH_MOMENTS - 1] = [
    single_leg("socket", "waiting in decode's socket"),
    single_leg("preparation", "decode's tokenizer, until sent"),
    single_leg("dispatch", "waiting for decode's scheduler"),
    single_leg("decode-allocation", "decode: until memory is allocated"),
    single_leg("prefill-arrival", "until prefill's tokenizer sent it"),
    single_leg("prefill-dispatch", "waiting for prefill's scheduler"),
    single_leg("prefill-intake", "prefill: until queued"),
    single_leg("prefill-queue", "prefill's queue"),
    single_leg("prefill", "prefill"),
    single_leg("transfer", "transfer of the cache"),
    single_leg("transfer-notice", "until decode noticed its end"),
    single_leg("decode-queue", "decode's queue"),
    single_leg("decode-start", "decode: from batch to first token"),
    single_leg("output", "output to decode's tokenizer"),
    single_leg("processing", "decode's tokenizer, until processed"),
    single_leg("delivery", "decode's tokenizer, until written"),
];

impl PairMoment {
    pub(super) fn index(self) -> usize {
        self as usize
    }

    /// Whether it is a moment of the prefill server. Its time is then by that server's clock.
    pub fn is_of_prefill_server(self) -> bool {
        matches!(
            self,
            PrefillRequest
                | PrefillReceived
                | PrefillQueued
                | PrefillStarted
                | PrefillEnded
                | Transferred
                | PrefillArrived
                | PrefillFrame
                | PrefillDelivered
        )
    }

    /// Whether the decode server's own time to first token does not know it.
    pub(super) fn is_added_to_decode(self) -> bool {
        self == Allocated || self.is_of_prefill_server()
    }

    /// Whether the decode server's request waits for it only if it comes late: both servers are sent the request at once.
    pub(super) fn is_concurrent(self) -> bool {
        matches!(self, PrefillRequest | PrefillReceived)
    }

    /// Moments of the path in the order in which they are trusted if they contradict each other: messages, what is related to them, and
    /// the engine's own times. The decode server's own moments come first, because its time to first token lies between them.
    pub(super) const BY_TRUST: [Self; PATH_MOMENTS] = [
        DecodeArrived,
        DecodeRead,
        DecodeRequest,
        DecodeReceived,
        DecodeQueued,
        DecodeBatch,
        DecodeFrame,
        TokenReceived,
        TokenProcessed,
        Delivered,
        Allocated,
        Transferred,
        PrefillQueued,
        PrefillStarted,
        PrefillEnded,
        PrefillRequest,
        PrefillReceived,
    ];
}

/// A part of the time to first token of a pair, between two moments. Moments between them were not observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PairLeg {
    /// Its begin.
    pub from: PairMoment,
    /// Its end.
    pub to: PairMoment,
}

impl PairLeg {
    /// The single legs between its ends.
    fn parts(self) -> &'static [SingleLeg] {
        LEGS.get(self.from.index()..self.to.index()).unwrap_or_default()
    }

    /// Whether it depends on the difference of both clocks: its ends are stamped by different servers, or moved to the other one's.
    pub fn is_across_clocks(self) -> bool {
        let is_moved = self.from.is_concurrent() || self.to.is_concurrent();
        is_moved || self.from.is_of_prefill_server() != self.to.is_of_prefill_server()
    }

    /// Whether no moment lies between its ends.
    pub fn is_single(self) -> bool {
        self.parts().len() == 1
    }

    /// Describes where the time of the leg is spent. If moments between its ends were not observed, the leg has several parts. Their
    /// descriptions are joined by ` + `.
    pub fn describe(self) -> String {
        if (self.from, self.to) == (TokenReceived, Delivered) {
            // The description of the second of the two parts fits both.
            return LEGS[TokenProcessed.index()].description.to_owned();
        }
        if (self.from, self.to) == (DecodeReceived, PrefillQueued) {
            // Without the time of the allocation, it is unknown which of two parallel parts took the time.
            return String::from("decode's memory or prefill's intake");
        }
        let parts: Vec<&str> = self.parts().iter().map(|part| part.description).collect();
        parts.join(" + ")
    }
}

/// Its name; names joined by `+` if moments between its ends were not observed.
impl fmt::Display for PairLeg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.parts().iter().map(|part| part.name).collect();
        f.write_str(&names.join("+"))
    }
}

/// A leg of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimedPairLeg {
    pub(super) leg: PairLeg,
    pub(super) from: MonoNs,
    pub(super) to: MonoNs,
}

impl TimedPairLeg {
    pub(super) fn ns(self) -> u64 {
        self.to.since(self.from)
    }
}
