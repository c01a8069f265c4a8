//! Protocols of connections: their recognition, and those by which a worker sends responses to a frontend, which the crate `engines` has.

use memchr::memmem;

use super::chunked::parse_hex;
use super::event::ParseResponses;
use super::http2;
use super::{EVENT_START, Limits, Recognition, Unreadable};

/// Number of bytes that suffice to identify every protocol of this crate.
const DETECT_BYTES: usize = 40;

/// A protocol that carries one response stream on a connection.
#[derive(Clone, Copy, Debug)]
pub struct StreamProtocol {
    /// Whether a connection with these first bytes speaks it.
    pub begins: fn(&[u8]) -> Recognition,
    /// Creates a parser of one connection, from its first byte on.
    pub parser: fn(Limits) -> Box<dyn ParseResponses>,
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

/// Detects the protocol of a server's bytes from the first ones of a connection or of a write.
pub(super) fn detect_protocol(bytes: &[u8], protocols: &[StreamProtocol]) -> Detected {
    const REQUESTS: [&[u8]; 6] = [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"PRI * HTTP/2"];
    match Recognition::begins_with(bytes, b"HTTP/1.") {
        Recognition::Yes => return Detected::Http,
        // This includes no byte at all.
        Recognition::TooShort => return Detected::Short,
        Recognition::No => {}
    }
    if let Some(binary) = detect_binary_protocol(bytes, protocols) {
        return binary;
    }
    // A record of TLS: its type, and its version.
    if let [0x14..=0x17, 0x03, 0..=4, ..] = bytes {
        return Detected::Unreadable(Unreadable::Tls);
    }
    // The process that writes these bytes is the client.
    if REQUESTS.iter().any(|word| bytes.starts_with(word)) {
        return Detected::Unreadable(Unreadable::Request);
    }
    // The signature of a ZMTP greeting.
    if bytes.first() == Some(&0xff) && bytes.get(9) == Some(&0x7f) {
        return Detected::Unreadable(Unreadable::Zmq);
    }
    detect_chunk_with_event(bytes)
}

/// Detects a protocol with binary frames: HTTP/2, or one of `protocols`. [`Detected::Short`] if more bytes are needed to tell. `None` for
/// any other protocol.
fn detect_binary_protocol(bytes: &[u8], protocols: &[StreamProtocol]) -> Option<Detected> {
    let mut is_too_short = false;
    for protocol in protocols {
        match (protocol.begins)(bytes) {
            Recognition::Yes => return Some(Detected::Stream(*protocol)),
            Recognition::TooShort => is_too_short = true,
            Recognition::No => {}
        }
    }
    match http2::begins_connection(bytes) {
        Recognition::Yes => return Some(Detected::Http2 { is_first: true }),
        Recognition::TooShort => is_too_short = true,
        Recognition::No => {}
    }
    match http2::begins_with_response(bytes) {
        Recognition::Yes => return Some(Detected::Http2 { is_first: false }),
        Recognition::TooShort => is_too_short = true,
        Recognition::No => {}
    }
    // The frames of several protocols may begin with zeros, so too few bytes for one may still be enough for the next.
    if is_too_short { Some(Detected::Short) } else { None }
}

/// Detects a chunk of an HTTP/1 body: a line with its size, and data. Only a chunk whose data begins with a server-sent event is
/// recognised.
fn detect_chunk_with_event(bytes: &[u8]) -> Detected {
    let Some(chunk_data) = behind_size_line(bytes) else {
        let may_be_size_line = bytes.len() < DETECT_BYTES && bytes.iter().all(u8::is_ascii_hexdigit);
        return if may_be_size_line { Detected::Short } else { Detected::Unknown };
    };
    match Recognition::begins_with(chunk_data, EVENT_START) {
        Recognition::Yes => Detected::Events,
        Recognition::TooShort => Detected::Short,
        Recognition::No => Detected::Unknown,
    }
}

/// The bytes behind a chunk's size line; `None` if `bytes` do not begin with a complete one.
fn behind_size_line(bytes: &[u8]) -> Option<&[u8]> {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (size, rest) = bytes.split_at(digits);
    // Only whether the size is valid is of interest.
    parse_hex(size)?;
    rest.strip_prefix(b"\r\n")
}

/// Offset of the first chunk of a chunked body whose data begins with an event; `None` if there is none.
pub(super) fn find_chunk_with_event(bytes: &[u8]) -> Option<usize> {
    for end_of_size_line in memmem::find_iter(bytes, b"\r\ndata:") {
        // The size line is read backwards from its end.
        let up_to_line_end = &bytes[..end_of_size_line];
        let digits = up_to_line_end.iter().rev().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let chunk = end_of_size_line - digits;
        let is_line_start = chunk == 0 || bytes[..chunk].ends_with(b"\r\n");
        if digits > 0 && is_line_start {
            return Some(chunk);
        }
    }
    None
}
