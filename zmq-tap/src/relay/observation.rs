//! Observations of the traffic that the relay copies.

use std::io;

use bytes::Bytes;
use trace::MonoNs;
use trace::event::MissedCause;

use crate::zmtp::{Garbage, Opaque};

/// Direction of the byte flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the peer that connected to the relay, to the upstream.
    Forward,
    /// From the upstream to the peer that connected.
    Backward,
}

/// One observation. The observations of one connection are in order: [`Observed::Opened`] first, [`Observed::Closed`] last.
#[derive(Clone, Debug)]
pub struct Observation {
    /// Index of the pair.
    pub pair: u16,
    /// Number of the connection within its pair.
    pub lane: u32,
    /// Content of the observation.
    pub what: Observed,
}

/// Content of an observation.
#[derive(Clone, Debug)]
pub enum Observed {
    /// The connection was established through to its upstream at this time.
    Opened(MonoNs),
    /// Both directions of the connection have ended.
    Closed {
        /// Time of the event.
        at: MonoNs,
        /// The side whose stream ended or failed first: `Forward` is the connecting side. `None`: neither did.
        first: Option<Direction>,
        /// Cause of the end.
        why: Ending,
    },
    /// A whole message was relayed.
    Frame {
        /// Direction of the message.
        direction: Direction,
        /// Number of the message within its lane and direction, from 0. Commands do not count; messages without a `Frame` do.
        seq: u64,
        /// Time when the read that returned its last byte finished.
        read_at: MonoNs,
        /// Time when the other socket accepted its last byte.
        written_at: MonoNs,
        /// Length in bytes of all parts, without ZMTP headers.
        bytes: u64,
        /// The message itself.
        payload: Payload,
    },
    /// Bytes from an HTTP server were relayed to its client. All bytes of a connection are reported in order, except those that a `Lost`
    /// reports.
    Passed {
        /// Time when the client's socket accepted them.
        at: MonoNs,
        /// The bytes.
        bytes: Bytes,
    },
    /// The client's socket accepted none or only a part of the bytes, so the server's data waits.
    HeldUp,
    /// The connection was closed because its upstream did not accept.
    Refused,
    /// The peer that sends in this direction refused the connection with the ZMTP command `ERROR`, for example because of its address.
    Rejected(Direction),
    /// The stream of this direction cannot be read. Its bytes are copied anyway.
    Unread(Direction, Unread),
    /// Messages were relayed without a `Frame`, or HTTP bytes without a `Passed`. Emitted before the lane's next `Frame` or `Passed`.
    Lost {
        /// Direction of the messages.
        direction: Direction,
        /// Number of messages, or of stretches of bytes. For [`MissedCause::Unframed`] it counts stretches, because the messages in them
        /// cannot be counted.
        count: u64,
        /// Cause of the loss.
        cause: MissedCause,
    },
}

/// A message's bytes. They share memory with the relay's read blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A message of one part.
    Whole(Bytes),
    /// A message of several parts, in order.
    Multipart(Vec<Bytes>),
    /// The bytes were relayed without being kept.
    NotKept(NotKept),
}

/// Why a message's bytes were not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NotKept {
    /// Longer than `RelayOptions::max_frame_bytes`.
    TooLarge,
    /// More parts than `RelayOptions::max_parts`.
    TooManyParts,
    /// `RelayOptions::budget_bytes` was exhausted.
    Budget,
}

/// Why a stream, or a stretch of it, cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// The whole stream, permanently.
    #[error("{0}")]
    Opaque(#[from] Opaque),
    /// A stretch, until framing is found again.
    #[error("{0}")]
    Garbage(#[from] Garbage),
}

/// Cause of a connection's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ending {
    /// Both sides closed normally.
    #[error("closed")]
    Closed,
    /// The connecting side failed.
    #[error("the connecting side failed: {0}")]
    Connector(io::ErrorKind),
    /// The upstream failed.
    #[error("the upstream failed: {0}")]
    Upstream(io::ErrorKind),
    /// The relay was stopped.
    #[error("the relay was stopped")]
    Stopped,
    /// Bug in tokengap: this connection's task panicked. Other connections continue.
    #[error("internal error")]
    Panicked,
}
