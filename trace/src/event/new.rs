//! Constructors of events. Fields without an argument get their most frequent value.

use std::ops::BitOr;

use super::{
    Answer, AnswerEnd, Capabilities, Chunk, CpuSample, Delivery, Event, Frame, Hop, IdColumn, Kind, Missed,
    MissedCause, Received, Response, Stage, ThreadPart, Undecoded, What,
};
use crate::clock::MonoNs;
use crate::engine::Mode;
use crate::id::{FrameId, HopId, ThreadId};
use crate::path::Ends;

impl<'a> Event<'a> {
    /// The observation `what` at the time `at`.
    pub const fn new(at: MonoNs, what: What<'a>) -> Self {
        Self { at, what }
    }
}

impl<'a> Hop<'a> {
    /// Creates a hop that is not known to be the first or the last of the path. Its endpoint and worker number are unknown.
    pub fn new(id: HopId, ends: impl Into<Ends<&'a str>>, capabilities: Capabilities) -> Self {
        Self {
            id,
            ends: ends.into(),
            endpoint: "",
            worker: None,
            origin: false,
            last: false,
            carries_requests: false,
            capabilities,
        }
    }

    /// A hop to the scheduler.
    pub fn with_requests(id: HopId, ends: impl Into<Ends<&'a str>>, capabilities: Capabilities) -> Self {
        Self { carries_requests: true, ..Self::new(id, ends, capabilities) }
    }

    /// The only hop of the path, from the scheduler to the tokenizer.
    pub fn only(id: HopId, ends: impl Into<Ends<&'a str>>, capabilities: Capabilities) -> Self {
        Self { origin: true, last: true, ..Self::new(id, ends, capabilities) }
    }
}

impl Capabilities {
    const NONE: Self = Self { sent: false, forwarded: false, received: false, processed: false, delivered: false };
    /// Only `sent`.
    pub const SENT: Self = Self { sent: true, ..Self::NONE };
    /// Only `forwarded`.
    pub const FORWARDED: Self = Self { forwarded: true, ..Self::NONE };
    /// Only `received`.
    pub const RECEIVED: Self = Self { received: true, ..Self::NONE };
    /// Only `processed`.
    pub const PROCESSED: Self = Self { processed: true, ..Self::NONE };
    /// Only `delivered`.
    pub const DELIVERED: Self = Self { delivered: true, ..Self::NONE };
}

/// Union of both sets of capabilities.
impl BitOr for Capabilities {
    type Output = Self;

    /// Returns each capability that at least one of the two has.
    fn bitor(self, other: Self) -> Self {
        Self {
            sent: self.sent || other.sent,
            forwarded: self.forwarded || other.forwarded,
            received: self.received || other.received,
            processed: self.processed || other.processed,
            delivered: self.delivered || other.delivered,
        }
    }
}

impl<'a> Frame<'a> {
    /// A message with new token ids.
    pub const fn token_ids(id: FrameId, bytes: u64, chunks: &'a [Chunk<'a>]) -> Self {
        Self { id, bytes, forwarded: None, kind: Kind::TokenIds, ids: IdColumn::Delta, chunks }
    }
}

impl Received<'_> {
    /// A receive of which only the frame is known.
    pub const fn new(id: FrameId) -> Self {
        Self { id, wakeup: None, by: None, frame: None }
    }

    /// A receive in this wakeup of an unknown thread.
    pub const fn in_wakeup(id: FrameId, wakeup: u64) -> Self {
        Self { wakeup: Some(wakeup), ..Self::new(id) }
    }
}

impl<'a> Delivery<'a> {
    /// Creates the delivery of new tokens in an event of a streamed response, which is not the last one.
    pub const fn new(rid: &'a str, tokens: u32, completion_tokens: Option<u32>) -> Self {
        Self {
            rid,
            tokens,
            mode: Mode::Incremental,
            completion_tokens,
            finished: false,
            response: Response::Streamed,
            without_text: 0,
        }
    }
}

impl<'a> Answer<'a> {
    /// Creates a complete response to a client that read as fast as the server wrote.
    pub const fn new(rid: &'a str, tokens: Option<u32>, completion_tokens: Option<u32>) -> Self {
        Self {
            rid,
            tokens,
            completion_tokens,
            end: AnswerEnd::Whole,
            short_writes: 0,
            unacknowledged: None,
            content: None,
            tool_calls: None,
        }
    }
}

impl<'a> CpuSample<'a> {
    /// Creates a sample of a main thread, of which only the time on a CPU (`on_ns` of `interval_ns`) is known.
    pub const fn new(thread: ThreadId, role: &'a str, interval_ns: u64, on_ns: u64) -> Self {
        Self {
            thread,
            role,
            name: "",
            part: ThreadPart::Main,
            interval_ns,
            on_ns,
            wait_ns: None,
            throttled_ns: None,
            poll: None,
            away: None,
        }
    }
}

impl<'a> Stage<'a> {
    /// A stage without counts.
    pub const fn new(rid: &'a str, name: &'a str, by: &'a str) -> Self {
        Self { rid, name, by, tokens: None, pending: None, gap_ns: None }
    }
}

impl<'a> Undecoded<'a> {
    /// A frame whose time of forwarding was not observed.
    pub const fn new(id: FrameId, bytes: u64, reason: &'a str) -> Self {
        Self { id, bytes, forwarded: None, reason }
    }
}

impl Missed {
    /// `count` observations of `hop`, missed for this cause.
    pub const fn new(hop: Option<HopId>, count: u64, cause: MissedCause) -> Self {
        Self { hop, count, cause }
    }
}
