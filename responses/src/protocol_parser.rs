//! Parser of the bytes that one side of a connection writes: detects the protocol, and emits the elements of responses.

use memchr::memmem;

use super::chunked::hex;
use super::event::{Emit, ResponseElement};
use super::http::HttpParser;
use super::http2::{self, Http2Parser};
use super::{Limits, ParseStream, StreamProtocol, Unreadable};

/// Number of bytes that suffice to identify every protocol of this crate.
const DETECT_BYTES: usize = 40;

/// Parser of one side of a connection.
#[derive(Debug)]
pub(super) struct ProtocolParser {
    limits: Limits,
    protocols: &'static [StreamProtocol],
    state: State,
    /// Number of bytes in which nothing was recognised.
    passed: u64,
}

#[derive(Debug)]
enum State {
    /// Searching for a readable position. Holds bytes that are too few to decide.
    Seeking(Vec<u8>),
    Http(Box<HttpParser>),
    Http2(Box<Http2Parser>),
    Protocol(Box<dyn ParseStream>),
    Unreadable,
}

enum Guess {
    Http,
    /// The first frame of an HTTP/2 connection, or a later one.
    Http2 {
        first: bool,
    },
    Events,
    Protocol(StreamProtocol),
    No(Unreadable),
    Unknown,
    Short,
}

impl ProtocolParser {
    /// Starts at any point of a connection.
    pub(super) fn new(limits: Limits, protocols: &'static [StreamProtocol]) -> Self {
        Self { limits, protocols, state: State::Seeking(Vec::new()), passed: 0 }
    }

    /// Whether no further byte of the connection will be read.
    pub(super) fn is_unreadable(&self) -> bool {
        matches!(self.state, State::Unreadable)
    }

    /// Records that bytes were not observed. The reader searches for the next readable position.
    pub(super) fn record_gap(&mut self) {
        self.passed = self.passed.max(1);
        self.state = match &self.state {
            // Such a connection carries one response, so nothing after a gap can be interpreted.
            State::Protocol(_) | State::Unreadable => State::Unreadable,
            State::Http(_) | State::Http2(_) | State::Seeking(_) => State::Seeking(Vec::new()),
        };
    }

    /// Processes the end of the connection, which also ends a body without a length.
    pub(super) fn end_connection(&mut self, emit: &mut Emit<'_>) {
        if let State::Http(parser) = &mut self.state {
            parser.end_connection(emit);
        }
    }

    /// Parses the next bytes. `begins` marks the start of a write.
    pub(super) fn parse(&mut self, bytes: &[u8], begins: bool, emit: &mut Emit<'_>) {
        let read = match &mut self.state {
            State::Unreadable => return,
            State::Seeking(pending) if pending.is_empty() => return self.seek(bytes, begins, emit),
            State::Seeking(pending) => {
                let mut pending = std::mem::take(pending);
                pending.extend_from_slice(bytes);
                return self.seek(&pending, true, emit);
            }
            State::Http(parser) => parser.parse(bytes, emit),
            State::Http2(parser) => parser.parse(bytes, emit),
            State::Protocol(parser) => parser.parse(bytes, emit),
        };
        match read {
            Ok(()) => {}
            // The server's framing was valid so far, so bytes must have been missed.
            Err(Unreadable::Chunks) => {
                self.record_gap();
                emit(ResponseElement::Undecoded);
            }
            Err(why) => self.give_up(why, emit),
        }
    }

    fn give_up(&mut self, why: Unreadable, emit: &mut Emit<'_>) {
        self.state = State::Unreadable;
        emit(ResponseElement::Unreadable(why));
    }

    fn seek(&mut self, bytes: &[u8], begins: bool, emit: &mut Emit<'_>) {
        let at_start = if begins || self.passed == 0 { guess(bytes, self.protocols) } else { Guess::Unknown };
        let (at, found) = match at_start {
            Guess::Unknown => match event_within(bytes) {
                Some(at) => (at, Guess::Events),
                None => (bytes.len(), Guess::Unknown),
            },
            other => (0, other),
        };
        self.passed += at as u64;
        self.state = match found {
            Guess::Short => {
                self.state = State::Seeking(bytes.to_vec());
                return;
            }
            Guess::Unknown if self.passed > self.limits.seek_bytes => return self.give_up(Unreadable::Unknown, emit),
            Guess::Unknown => {
                self.state = State::Seeking(Vec::new());
                return;
            }
            Guess::No(why) => return self.give_up(why, emit),
            Guess::Http => State::Http(Box::new(HttpParser::new(self.limits))),
            Guess::Http2 { first } => State::Http2(Box::new(Http2Parser::new(self.limits, first && self.passed == 0))),
            Guess::Events => State::Http(Box::new(HttpParser::within_events(self.limits))),
            Guess::Protocol(protocol) => State::Protocol((protocol.parser)(self.limits)),
        };
        if std::mem::take(&mut self.passed) > 0 {
            emit(ResponseElement::Resumed);
        }
        self.parse(&bytes[at..], false, emit);
    }
}

/// Guesses the protocol from the first bytes of a connection or of a write.
fn guess(bytes: &[u8], protocols: &[StreamProtocol]) -> Guess {
    const REQUESTS: [&[u8]; 6] = [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"PRI * HTTP/2"];
    let begins = |word: &[u8]| bytes.iter().zip(word).all(|(a, b)| a == b);
    let short = |needed: usize| bytes.len() < needed;
    if bytes.is_empty() {
        return Guess::Short;
    }
    if begins(b"HTTP/1.") {
        return if short(7) { Guess::Short } else { Guess::Http };
    }
    if let Some(protocol) = protocols.iter().find(|protocol| (protocol.begins)(bytes) == Some(true)) {
        return Guess::Protocol(*protocol);
    }
    match (http2::begins(bytes), http2::continues(bytes)) {
        (Some(true), _) => return Guess::Http2 { first: true },
        (_, Some(true)) => return Guess::Http2 { first: false },
        (None, _) | (_, None) => return Guess::Short,
        // Several may begin with zeros.
        _ if protocols.iter().any(|protocol| (protocol.begins)(bytes).is_none()) => return Guess::Short,
        _ => {}
    }
    if let [0x14..=0x17, 0x03, 0..=4, ..] = bytes {
        return Guess::No(Unreadable::Tls);
    }
    if REQUESTS.iter().any(|word| begins(word) && !short(word.len())) {
        return Guess::No(Unreadable::Request);
    }
    if bytes[0] == 0xff && bytes.get(9) == Some(&0x7f) {
        return Guess::No(Unreadable::Zmq);
    }
    match size_line(bytes) {
        Some(after) if bytes[after..].starts_with(b"data:") => Guess::Events,
        Some(after) if bytes.len() - after < 5 && b"data:".starts_with(&bytes[after..]) => Guess::Short,
        None if short(DETECT_BYTES) && bytes.iter().all(u8::is_ascii_hexdigit) => Guess::Short,
        _ => Guess::Unknown,
    }
}

/// Offset of the line after a chunk's size line.
fn size_line(bytes: &[u8]) -> Option<usize> {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    hex(&bytes[..digits])?;
    bytes[digits..].starts_with(b"\r\n").then_some(digits + 2)
}

/// Offset of the first chunk whose data begins with an event.
fn event_within(bytes: &[u8]) -> Option<usize> {
    memmem::find_iter(bytes, b"\r\ndata:").find_map(|end| {
        let digits = bytes[..end].iter().rev().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let at = end - digits;
        let after_line_end = at == 0 || bytes[..at].ends_with(b"\r\n");
        (digits > 0 && after_line_end).then_some(at)
    })
}
