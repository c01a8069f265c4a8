//! What leaves an engine for its clients, out of the bytes that a server writes to its sockets (docs/internals/EGRESS.md).
//!
//! [`Stream`] finds responses and events in the bytes of one connection, wherever they are cut: HTTP/1.x with server-sent
//! events or JSON, and Dynamo's response plane. [`Reader`] tells them as [`trace::event`]s. No I/O.

mod chunked;
mod content;
mod event;
mod fields;
mod hidden;
mod http;
mod names;
mod reader;
mod request_plane;
mod response_plane;
mod sse;
mod stream;

use std::fmt;

pub use content::Content;
pub use event::{Form, NotRead, Said, body, event};
pub use reader::{Closing, Reader, Server};
pub use request_plane::{Asked, Requests};
pub use stream::{Item, Stream};

/// Bounds of one connection's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Longest event, and longest answer in JSON, in bytes; longer ones are counted as not read.
    pub event_bytes: usize,
    /// Longest head of a response in bytes.
    pub head_bytes: usize,
    /// Bytes in which a readable place is looked for before a connection is given up.
    pub seek_bytes: u64,
    /// Requests of one response, of a batch, that are summed up apart.
    pub requests: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            event_bytes: 8 << 20,
            head_bytes: 64 << 10,
            seek_bytes: 256 << 10,
            requests: 1024,
        }
    }
}

/// Why a connection, or a body on it, is not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unreadable {
    /// Encrypted.
    Tls,
    /// HTTP/2: its header compression and interleaving are not read.
    Http2,
    /// The connection left HTTP: a websocket, an upgrade.
    Upgraded,
    /// A body with a content coding.
    Compressed,
    /// A head that is none of HTTP/1.x.
    Head,
    /// Chunked coding that does not add up.
    Chunks,
    /// Frames of a response plane that do not add up.
    Frames,
    /// A response plane that answers over QUIC.
    Quic,
    /// The process is the client here.
    Request,
    /// A ZMQ connection.
    Zmq,
    /// Nothing known.
    Unknown,
}

impl Unreadable {
    /// Whether responses to clients may pass unseen for it.
    pub fn hides_responses(self) -> bool {
        !matches!(self, Self::Request | Self::Zmq | Self::Unknown)
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tls => "it is encrypted (TLS)",
            Self::Http2 => "it is HTTP/2",
            Self::Upgraded => "it was upgraded to another protocol",
            Self::Compressed => "its bodies are compressed",
            Self::Head => "its heads are not those of HTTP/1",
            Self::Chunks => "its chunks do not add up",
            Self::Frames => "its frames do not add up",
            Self::Quic => "it is answered over QUIC",
            Self::Request => "requests go out on it",
            Self::Zmq => "it is a ZMQ connection",
            Self::Unknown => "it is no protocol known here",
        })
    }
}
