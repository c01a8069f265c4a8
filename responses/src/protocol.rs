//! Protocols of connections: their recognition, and those by which a worker sends responses to a frontend, which the crate `engines` has.

use std::fmt;

use memchr::memmem;

use super::chunked::parse_hex;
use super::event::Emit;
use super::http2;
use super::{Limits, Unreadable};

/// Number of bytes that suffice to identify every protocol of this crate.
const DETECT_BYTES: usize = 40;

/// A protocol that carries one response stream on a connection.
#[derive(Clone, Copy, Debug)]
pub struct StreamProtocol {
    /// Whether a connection with these first bytes speaks it. `None` if more bytes are needed.
    pub begins: fn(&[u8]) -> Option<bool>,
    /// Creates a parser of one connection, from its first byte on.
    pub parser: fn(Limits) -> Box<dyn ParseStream>,
}

/// Parser of one connection.
pub trait ParseStream: fmt::Debug + Send {
    /// Parses the next bytes of the connection. After an error, no further byte can be read.
    fn parse(&mut self, bytes: &[u8], emit: &mut Emit<'_>) -> Result<(), Unreadable>;
}

/// A readable position, or why there is none.
pub(super) enum Detected {
    /// The head of an HTTP/1 response.
    Http,
    /// The first frame of an HTTP/2 connection, or a later one.
    Http2 {
        is_first: bool,
    },
    /// A chunk of an HTTP/1 body that begins with a server-sent event.
    Events,
    Stream(StreamProtocol),
    Unreadable(Unreadable),
    Unknown,
    /// More bytes are needed.
    Short,
}

/// Detects the protocol from the first bytes of a connection or of a write.
pub(super) fn detect_protocol(bytes: &[u8], protocols: &[StreamProtocol]) -> Detected {
    const REQUESTS: [&[u8]; 6] = [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"PRI * HTTP/2"];
    if bytes.is_empty() {
        return Detected::Short;
    }
    if bytes.starts_with(b"HTTP/1.") {
        return Detected::Http;
    }
    if b"HTTP/1.".starts_with(bytes) {
        return Detected::Short;
    }
    if let Some(protocol) = protocols.iter().find(|protocol| (protocol.begins)(bytes) == Some(true)) {
        return Detected::Stream(*protocol);
    }
    match (http2::begins_connection(bytes), http2::begins_with_response(bytes)) {
        (Some(true), _) => return Detected::Http2 { is_first: true },
        (_, Some(true)) => return Detected::Http2 { is_first: false },
        (None, _) | (_, None) => return Detected::Short,
        // Several may begin with zeros.
        _ if protocols.iter().any(|protocol| (protocol.begins)(bytes).is_none()) => return Detected::Short,
        _ => {}
    }
    // A record of TLS: its type, and its version.
    if let [0x14..=0x17, 0x03, 0..=4, ..] = bytes {
        return Detected::Unreadable(Unreadable::Tls);
    }
    if REQUESTS.iter().any(|word| bytes.starts_with(word)) {
        return Detected::Unreadable(Unreadable::Request);
    }
    // The signature of a ZMTP greeting.
    if bytes[0] == 0xff && bytes.get(9) == Some(&0x7f) {
        return Detected::Unreadable(Unreadable::Zmq);
    }
    match size_line(bytes) {
        Some(after) if bytes[after..].starts_with(b"data:") => Detected::Events,
        Some(after) if bytes.len() - after < 5 && b"data:".starts_with(&bytes[after..]) => Detected::Short,
        None if bytes.len() < DETECT_BYTES && bytes.iter().all(u8::is_ascii_hexdigit) => Detected::Short,
        _ => Detected::Unknown,
    }
}

/// Offset of the line after a chunk's size line.
fn size_line(bytes: &[u8]) -> Option<usize> {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    parse_hex(&bytes[..digits])?;
    bytes[digits..].starts_with(b"\r\n").then_some(digits + 2)
}

/// Offset of the first chunk of a chunked body whose data begins with an event.
pub(super) fn find_chunk_with_event(bytes: &[u8]) -> Option<usize> {
    for end_of_size_line in memmem::find_iter(bytes, b"\r\ndata:") {
        // The size line is read backwards from its end.
        let before = &bytes[..end_of_size_line];
        let digits = before.iter().rev().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let chunk = end_of_size_line - digits;
        let is_line_start = chunk == 0 || bytes[..chunk].ends_with(b"\r\n");
        if digits > 0 && is_line_start {
            return Some(chunk);
        }
    }
    None
}
