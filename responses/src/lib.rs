//! Observation of an engine's responses to its clients, from the bytes that a server writes to its sockets (docs/internals/EGRESS.md).
//!
//! [`ResponseReader`] recognises the protocol of a connection. A parser of that protocol ([`ParseResponses`]), which is HTTP/1.x, HTTP/2 or
//! a [`StreamProtocol`], finds the [`ResponseElement`]s in the bytes. `OpenResponse` turns these into the [`trace::event`]s of a response.
//! No I/O.

mod body_parser;
mod buffer;
mod chunked;
mod content;
mod digest;
mod event;
mod fields;
mod framed;
mod frontend;
mod grpc;
mod http;
mod http2;
mod names;
mod observed_calls;
mod open_response;
mod protocol;
mod reader;
mod recent;
mod server;
mod sse;
mod text;

pub use content::ContentMatcher;
pub use digest::Digest;
pub use event::{Completion, ElementSink, ParseResponses, ResponseElement, ResponseForm};
pub use fields::BorrowedText;
pub use framed::{Framed, NextMessage, take_bytes};
pub use frontend::{Frontends, UnknownWait};
pub use protocol::StreamProtocol;
pub use reader::ResponseReader;
pub use server::{Server, Tls};
pub use text::{ChoiceText, Detokenize, Texts, TokenStream};

/// Memory limits of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest event, and longest JSON response, in bytes. Longer ones are counted as not read.
    pub event_bytes: usize,
    /// Longest head of a response in bytes.
    pub head_bytes: usize,
    /// Number of bytes searched for a readable position before a connection is abandoned.
    pub seek_bytes: u64,
    /// Maximum number of requests in one batch response that are counted separately.
    pub requests: usize,
    /// Maximum number of open responses on an HTTP/2 connection.
    pub streams: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { event_bytes: 8 << 20, head_bytes: 64 << 10, seek_bytes: 256 << 10, requests: 1024, streams: 1024 }
    }
}

/// Reason why a connection, or a body on it, is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// TLS encryption.
    #[error("it is encrypted (TLS)")]
    Tls,
    /// HTTP/2 headers that refer to earlier ones, which were not observed.
    #[error("its HTTP/2 headers refer to unobserved ones")]
    Fields,
    /// gRPC messages.
    #[error("its messages are gRPC")]
    Grpc,
    /// The connection was upgraded to another protocol, for example a websocket.
    #[error("it was upgraded to another protocol")]
    Upgraded,
    /// A body with a content coding.
    #[error("its bodies are compressed")]
    Compressed,
    /// The head is not valid HTTP/1.x.
    #[error("it is not HTTP/1")]
    Head,
    /// Invalid chunked coding.
    #[error("its HTTP chunks are inconsistent")]
    Chunks,
    /// Invalid frames of a [`StreamProtocol`].
    #[error("its frames are inconsistent")]
    Frames,
    /// Response streams over another transport than TCP.
    #[error("its responses use QUIC or another transport than TCP")]
    Transport,
    /// The observed process is the client on this connection.
    #[error("it carries outgoing requests")]
    Request,
    /// A ZMQ connection.
    #[error("it is a ZMQ connection")]
    Zmq,
    /// Unknown protocol.
    #[error("it uses an unknown protocol")]
    Unknown,
}

impl Unreadable {
    /// Whether responses to clients may be missed for this reason.
    pub(crate) fn hides_responses(self) -> bool {
        !matches!(self, Self::Request | Self::Zmq | Self::Unknown)
    }
}

/// Whether bytes begin a protocol, a message or an event, as far as they show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recognition {
    /// They do.
    Yes,
    /// They do not.
    No,
    /// More bytes are needed.
    TooShort,
}

impl Recognition {
    /// Whether `bytes` begin with `start`. [`Self::TooShort`] if they are only a part of it.
    pub fn begins_with(bytes: &[u8], start: &[u8]) -> Self {
        if bytes.starts_with(start) {
            Self::Yes
        } else if start.starts_with(bytes) {
            Self::TooShort
        } else {
            Self::No
        }
    }
}

/// Start of the data of a server-sent event.
const EVENT_START: &[u8] = b"data:";

/// Adds `times` to the counter of a reason, which the list gets if it has none.
fn add_to_count_of_reason<T: PartialEq>(counters: &mut Vec<(T, u64)>, reason: T, times: u64) {
    match counters.iter_mut().find(|(known, _)| *known == reason) {
        Some((_, count)) => *count += times,
        None => counters.push((reason, times)),
    }
}
