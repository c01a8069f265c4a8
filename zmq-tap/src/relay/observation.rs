//! What the relay tells of the traffic that passes through it.

use std::io;

use bytes::Bytes;
use trace::MonoNs;
use trace::event::LostCause;

use crate::zmtp::{Garbage, Opaque};

/// Which way bytes flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the peer that connected to the relay, to the upstream.
    Forward,
    /// From the upstream to the peer that connected.
    Backward,
}

/// One observation. Those of one connection come in order: `Opened` first, `Closed` last.
#[derive(Clone, Debug)]
pub enum Observation {
    /// A connection is through to its upstream.
    Opened {
        /// Place of the pair in the list the relay was started with.
        pair: u16,
        /// The connection's number within its pair.
        lane: u32,
        /// When.
        at: MonoNs,
    },
    /// A connection is over, both directions.
    Closed {
        /// Place of the pair in the list the relay was started with.
        pair: u16,
        /// The connection's number within its pair.
        lane: u32,
        /// When.
        at: MonoNs,
        /// A direction ended inside a message, so that its receiver has a part of it only.
        cut_short: bool,
        /// The side whose stream ended or failed before the other's: `Forward` is the connecting one. `None`: neither did.
        first: Option<Direction>,
        /// What ended it.
        why: Ending,
    },
    /// A whole message has been passed on.
    Frame {
        /// Place of the pair in the list the relay was started with.
        pair: u16,
        /// Which way it went.
        direction: Direction,
        /// The connection's number within its pair.
        lane: u32,
        /// The message's number within its lane and direction, from 0. Commands are not counted; lost ones are.
        seq: u64,
        /// When the read that brought its last byte returned.
        read_at: MonoNs,
        /// When the other socket had accepted its last byte.
        written_at: MonoNs,
        /// Length in bytes, all parts together, without ZMTP headers.
        bytes: u64,
        /// The message itself.
        payload: Payload,
    },
    /// Bytes of a server of HTTP were passed on to its client. All of a connection's bytes come, in order, but for those
    /// that a `Lost` stands for.
    Passed {
        /// Place of the pair in the list the relay was started with.
        pair: u16,
        /// The connection's number within its pair.
        lane: u32,
        /// When the client's socket had accepted them.
        at: MonoNs,
        /// The bytes.
        bytes: Bytes,
    },
    /// The client's socket took less than it was given, or nothing: what the server says waits.
    HeldUp {
        /// Place of the pair in the list the relay was started with.
        pair: u16,
        /// The connection's number within its pair.
        lane: u32,
    },
    /// A connection was closed because nobody accepted at its upstream.
    Refused {
        /// Place of the pair in the list the relay was started with.
        pair: u16,
    },
    /// A stream passes that cannot be read; its bytes are copied all the same.
    Unread {
        /// Place of the pair in the list the relay was started with.
        pair: u16,
        /// Which way it goes.
        direction: Direction,
        /// The connection's number within its pair.
        lane: u32,
        /// When this became known.
        at: MonoNs,
        /// Why it cannot be read.
        why: Unread,
    },
    /// Messages passed of which no `Frame` was or will be told. Comes before the lane's next `Frame`. For HTTP: bytes, before the
    /// lane's next `Passed`.
    Lost {
        /// Place of the pair in the list the relay was started with.
        pair: u16,
        /// Which way they went.
        direction: Direction,
        /// The connection's number within its pair.
        lane: u32,
        /// How many messages, or stretches of bytes; for [`LostCause::Unframed`] how many stretches, since messages in them cannot be counted.
        count: u64,
        /// Why.
        cause: LostCause,
    },
}

/// A message's bytes, sharing the memory that they were read into.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// A message of one part.
    Whole(Bytes),
    /// A message of several parts, in order.
    Multipart(Vec<Bytes>),
    /// The bytes went by and were not kept.
    NotKept(NotKept),
}

/// Why a message's bytes were not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NotKept {
    /// Longer than `Options::max_frame_bytes`.
    #[error("longer than the capture limit")]
    TooLarge,
    /// More parts than `Options::max_parts`.
    #[error("more parts than the capture limit")]
    TooManyParts,
    /// `Options::budget_bytes` was in use.
    #[error("no memory left in the capture budget")]
    Budget,
}

/// Why a stream, or a stretch of it, cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// For good, from its beginning.
    #[error("{0}")]
    Opaque(#[from] Opaque),
    /// Until framing is found again.
    #[error("{0}")]
    Garbage(#[from] Garbage),
}

/// What ended a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ending {
    /// Both sides closed in order.
    #[error("closed")]
    Closed,
    /// The side that had connected failed.
    #[error("the connecting side failed: {0}")]
    Connector(io::ErrorKind),
    /// The upstream failed.
    #[error("the upstream failed: {0}")]
    Upstream(io::ErrorKind),
    /// The relay was stopped.
    #[error("the relay was stopped")]
    Stopped,
    /// A defect of ours: this connection's task panicked, the others go on.
    #[error("internal error")]
    Panicked,
}
