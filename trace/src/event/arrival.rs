//! When requests reached the server, and the traces of their callers.

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

impl ConnectionTimes {
    /// How long it waited until the server accepted it; `None` if not observed.
    pub fn accept_wait_ns(&self) -> Option<u64> {
        Some(self.accepted?.since(self.opened))
    }
}

/// The span in which the caller sent a request. Emitted behind its [`Arrival`], if its head names one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Traced<'a> {
    /// The engine's request id.
    pub rid: &'a str,
    /// Span of the caller.
    pub parent: TraceParent,
}

/// A caller's span: the header `traceparent` of W3C Trace Context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct TraceParent {
    /// Upper half of the trace's id.
    pub trace_id_high: u64,
    /// Lower half of the trace's id.
    pub trace_id_low: u64,
    /// Id of the span; not 0.
    pub parent_id: u64,
    /// Whether the caller may have recorded its span.
    pub is_sampled: bool,
}

impl TraceParent {
    /// The trace's id: 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        format!("{:016x}{:016x}", self.trace_id_high, self.trace_id_low)
    }

    /// The span's id: 16 hexadecimal digits.
    pub fn span_id(&self) -> String {
        format!("{:016x}", self.parent_id)
    }
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
