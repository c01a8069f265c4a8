//! When requests reached the server.

use serde::{Deserialize, Serialize};

use crate::clock::MonoNs;
use crate::words::names;

/// When a request reached the server, or why that is unknown. Emitted with the first event of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Arrival<'a> {
    /// The engine's request id.
    pub rid: &'a str,
    /// Its times.
    pub times: Result<ArrivalTimes, UnknownArrival>,
}

/// Times of a request at the server's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalTimes {
    /// When its first bytes were in the socket.
    pub arrived: MonoNs,
    /// When the server had read its first bytes.
    pub read: MonoNs,
    /// Times of its connection; `None` unless it is the first request of one that was opened since the attach.
    pub connection: Option<ConnectionTimes>,
}

/// Times of a connection that a client opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionTimes {
    /// When its handshake was complete.
    pub opened: MonoNs,
    /// When the server had accepted it; `None` if not observed.
    pub accepted: Option<MonoNs>,
}

/// Why it is unknown when a request reached the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownArrival {
    /// The requests of an HTTP/2 connection are interleaved.
    Http2,
    /// The connection is encrypted.
    Tls,
    /// The client sent a request before the response to the one before it had ended.
    Pipelined,
    /// The server has opened the connection itself.
    Protocol,
    /// Nothing of it was observed: its connection is older than the attach, or an observation was missed.
    Missed,
}

names! {
    UnknownArrival {
        Http2 = "http2",
        Tls = "tls",
        Pipelined = "pipelined",
        Protocol = "protocol",
        Missed = "missed",
    }
}
