//! Numeric codes of event enums. A code never changes its meaning; new variants get new codes.

use trace::engine::{Mode, Waiter};
use trace::event::{
    AnswerEnd, AnswerFinish, AnswerForm, AwayState, DispatchKind, Finish, IdColumn, Kind, MissedCause, PairMessageKind,
    Response, ThreadPart, ToolCallOutcome, UnjudgedReason, UnknownArrival,
};

use super::bytes::{EnumCode, MalformedBlock};

/// Numbers each variant of an enum.
macro_rules! codes {
    ($($type:ident { $($word:ident = $code:literal),* $(,)? })*) => {$(
        impl EnumCode for $type {
            /// Code of the variant.
            fn to_code(self) -> u8 {
                match self {
                    $(Self::$word => $code),*
                }
            }

            /// Variant with this code. The error names the enum.
            fn from_code(code: u8) -> Result<Self, MalformedBlock> {
                match code {
                    $($code => Ok(Self::$word),)*
                    _ => Err(MalformedBlock(concat!("an unknown ", stringify!($type)))),
                }
            }
        }
    )*};
}

codes! {
    Kind { TokenIds = 0, Text = 1, Embedding = 2, Multimodal = 3, Abort = 4, Control = 5, Failed = 6 }
    IdColumn { Delta = 0, Cumulative = 1, DeltaAfterPromptTail = 2, Absent = 3, Undecided = 4, Uncounted = 5 }
    Finish { Length = 0, Stop = 1, Abort = 2, Other = 3 }
    Mode { Incremental = 0, Cumulative = 1 }
    Waiter { KeepsLast = 0, YieldsAll = 1, Merges = 2 }
    ThreadPart { Main = 0, Io = 1, Other = 2 }
    AwayState { Stopped = 0, Traced = 1, Frozen = 2, Blocked = 3, Polling = 4, Asleep = 5 }
    Response { Streamed = 0, Whole = 1, Text = 2 }
    ToolCallOutcome { Complete = 0, Rewritten = 1, Unfinished = 2, Unjudged = 3, Swapped = 4, Repeated = 5, Missing = 6, Absent = 7, Garbled = 8 }
    UnjudgedReason { Differs = 0, Missed = 1, EndedEarly = 2, NoText = 3, Unreadable = 4 }
    AnswerEnd { Whole = 0, ClientLeft = 1, ServerLeft = 2, Unknown = 3, Failed = 4 }
    AnswerForm { Generate = 0, OpenAi = 1 }
    AnswerFinish { Stop = 0, Length = 1, ToolCalls = 2, Abort = 3, Other = 4 }
    DispatchKind { Requests = 0, Aborts = 1, Control = 2 }
    PairMessageKind { Allocated = 0, Transferred = 1, Failed = 2 }
    UnknownArrival { Http2 = 0, Tls = 1, Pipelined = 2, Protocol = 3, Missed = 4 }
    MissedCause { QueueFull = 0, Unframed = 1, TooLarge = 2, CutShort = 3, Ended = 4 }
}

/// Kind of a record: the low bits of its `op`. From [`op::FIRST_RARE`] on, its content is in `rare` after its length, so that a reader can
/// skip unknown kinds.
pub(super) mod op {
    pub(in crate::codec) const TICK: u8 = 0;
    pub(in crate::codec) const SENT: u8 = 1;
    /// Time of forwarding of a frame, in files before 2.6.
    pub(in crate::codec) const FORWARDED: u8 = 2;
    pub(in crate::codec) const RECEIVED: u8 = 3;
    pub(in crate::codec) const PROCESSED: u8 = 4;
    pub(in crate::codec) const DELIVERED: u8 = 5;
    /// First kind whose records start with a length.
    pub(in crate::codec) const FIRST_RARE: u8 = 8;
    pub(in crate::codec) const ANCHOR: u8 = 8;
    pub(in crate::codec) const ENGINE: u8 = 9;
    pub(in crate::codec) const HOP: u8 = 10;
    pub(in crate::codec) const UNDECODED: u8 = 11;
    pub(in crate::codec) const CPU: u8 = 12;
    pub(in crate::codec) const QUEUE: u8 = 13;
    pub(in crate::codec) const STACK: u8 = 14;
    pub(in crate::codec) const STAGE: u8 = 15;
    pub(in crate::codec) const LOGGED_STATE: u8 = 16;
    pub(in crate::codec) const MERGED: u8 = 17;
    pub(in crate::codec) const MISSED: u8 = 18;
    pub(in crate::codec) const ANSWERED: u8 = 19;
    pub(in crate::codec) const SEND_WAIT: u8 = 20;
    pub(in crate::codec) const FRONTEND_WAIT: u8 = 21;
    pub(in crate::codec) const DISPATCHED: u8 = 22;
    pub(in crate::codec) const ARRIVED: u8 = 24;
    pub(in crate::codec) const REQUEST_TIMES: u8 = 23;
    pub(in crate::codec) const REJECTED: u8 = 25;
    pub(in crate::codec) const TRACED: u8 = 26;
    pub(in crate::codec) const PAIR_MESSAGE: u8 = 27;

    /// Mask of the bits with the kind.
    pub(in crate::codec) const KIND_MASK: u8 = 0x1f;
    /// A received frame with its content, because its send was not observed.
    pub(in crate::codec) const HAS_FRAME: u8 = 0x20;
    /// The id of that frame differs from the id in the receive.
    pub(in crate::codec) const HAS_OTHER_FRAME_ID: u8 = 0x40;
    /// A sent frame with its time of forwarding.
    pub(in crate::codec) const HAS_FORWARD_TIME: u8 = 0x20;
    /// The frame id, or the whole delivery, is as predicted.
    pub(in crate::codec) const IS_PREDICTED: u8 = 0x80;
}
