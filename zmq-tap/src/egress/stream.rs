//! One direction of one connection: detection of its protocol, and its content.

use std::borrow::Cow;

use memchr::memmem;

use super::chunked::hex;
use super::event::{self, Completion, Form, Hints, Undecoded};
use super::http::Responses;
use super::http2::{self, Connection};
use super::payload;
use super::response_plane::{self, Frames};
use super::text::ChoiceText;
use super::{Limits, Unreadable};

/// Number of bytes that suffice to identify every supported protocol.
const DETECT_BYTES: usize = 40;

/// An element found in the bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item<'a> {
    /// The HTTP/2 stream of the next element.
    Stream(u32),
    /// Start of a response.
    Began,
    /// Start of a Dynamo response stream, with the stream's name.
    Subject(&'a str),
    /// An event of a response, for one request.
    Completion(Completion<'a>),
    /// An event that could not be read, so its content is unknown.
    Undecoded,
    /// End of a complete response.
    Ended,
    /// The response was aborted by a failure of the server.
    Failed,
    /// Bytes before this point were skipped: an attach in the middle of an event, or unobserved bytes.
    Resumed,
    /// Number of gRPC messages that were not read.
    Unread(u64),
    /// A body, or the rest of the connection, cannot be read.
    Unreadable(Unreadable),
}

/// Reader of the bytes that one side of a connection writes.
#[derive(Debug)]
pub struct Stream {
    limits: Limits,
    state: State,
    /// Number of bytes in which nothing was recognised.
    passed: u64,
}

#[derive(Debug)]
enum State {
    /// Searching for a readable position. Holds bytes that are too few to decide.
    Seeking(Vec<u8>),
    Http(Box<Responses>),
    Http2(Box<Connection>),
    Plane(Box<Plane>),
    Unreadable,
}

#[derive(Clone, Debug)]
struct Plane {
    frames: Frames,
    subject: String,
}

enum Guess {
    Http,
    /// The first frame of an HTTP/2 connection, or a later one.
    Http2 {
        first: bool,
    },
    Events,
    Plane,
    No(Unreadable),
    Unknown,
    Short,
}

impl Stream {
    /// Starts at any point of a connection.
    pub fn new(limits: Limits) -> Self {
        Self { limits, state: State::Seeking(Vec::new()), passed: 0 }
    }

    /// Whether no further byte of the connection will be read.
    pub fn is_unreadable(&self) -> bool {
        matches!(self.state, State::Unreadable)
    }

    /// Records that bytes were not observed. The reader searches for the next readable position.
    pub fn missed(&mut self) {
        self.passed = self.passed.max(1);
        self.state = match &self.state {
            // A connection carries one request, so nothing after a gap can be interpreted.
            State::Plane(_) | State::Unreadable => State::Unreadable,
            State::Http(_) | State::Http2(_) | State::Seeking(_) => State::Seeking(Vec::new()),
        };
    }

    /// Processes the end of the connection, which also ends a body without a length.
    pub fn closed(&mut self, emit: &mut dyn FnMut(Item<'_>)) {
        if let State::Http(responses) = &mut self.state {
            responses.closed(|item| convert(&item, emit));
        }
    }

    /// Parses the next bytes. `begins` marks the start of a write.
    pub fn feed(&mut self, bytes: &[u8], begins: bool, emit: &mut dyn FnMut(Item<'_>)) {
        match &mut self.state {
            State::Unreadable => {}
            State::Http(responses) => {
                let mut broken = None;
                responses.feed(bytes, |item| {
                    if let payload::Item::Broken(why) = item {
                        broken = Some(why);
                    } else {
                        convert(&item, emit);
                    }
                });
                match broken {
                    // The server's framing was valid so far, so bytes must have been missed.
                    Some(Unreadable::Chunks) => {
                        self.missed();
                        emit(Item::Undecoded);
                    }
                    Some(why) => self.give_up(why, emit),
                    None => {}
                }
            }
            State::Http2(connection) => {
                let mut broken = None;
                connection.feed(bytes, &mut |stream, item| {
                    if let payload::Item::Broken(why) = item {
                        broken = Some(why);
                    } else {
                        emit(Item::Stream(stream));
                        convert(&item, emit);
                    }
                });
                if let Some(why) = broken {
                    self.give_up(why, emit);
                }
            }
            State::Plane(plane) => {
                let Plane { frames, subject } = &mut **plane;
                let mut broken = None;
                frames.feed(bytes, |item| match item {
                    response_plane::Item::Subject(name) => {
                        name.clone_into(subject);
                        emit(Item::Subject(name));
                    }
                    response_plane::Item::Chunk(chunk) => emit(Item::Completion(Completion {
                        rid: choice(subject, chunk.index),
                        form: Form::ResponsePlane,
                        tokens: chunk.tokens,
                        completion_tokens: chunk.completion_tokens,
                        choice: 0,
                        hints: Hints::default(),
                        text: ChoiceText::default(),
                        finished: chunk.finished,
                        whole: false,
                        ids: chunk.ids,
                    })),
                    response_plane::Item::Undecoded => emit(Item::Undecoded),
                    response_plane::Item::Ended => emit(Item::Ended),
                    response_plane::Item::Failed => emit(Item::Failed),
                    response_plane::Item::Broken(why) => broken = Some(why),
                });
                if let Some(why) = broken {
                    self.give_up(why, emit);
                }
            }
            State::Seeking(pending) if pending.is_empty() => self.seek(bytes, begins, emit),
            State::Seeking(pending) => {
                let mut pending = std::mem::take(pending);
                pending.extend_from_slice(bytes);
                self.seek(&pending, true, emit);
            }
        }
    }

    fn give_up(&mut self, why: Unreadable, emit: &mut dyn FnMut(Item<'_>)) {
        self.state = State::Unreadable;
        emit(Item::Unreadable(why));
    }

    fn seek(&mut self, bytes: &[u8], begins: bool, emit: &mut dyn FnMut(Item<'_>)) {
        let at_start = if begins || self.passed == 0 { guess(bytes) } else { Guess::Unknown };
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
            Guess::Http => State::Http(Box::new(Responses::new(self.limits))),
            Guess::Http2 { first } => State::Http2(Box::new(Connection::new(self.limits, first && self.passed == 0))),
            Guess::Events => State::Http(Box::new(Responses::within_events(self.limits))),
            Guess::Plane => {
                let (frames, subject) = (Frames::new(self.limits), String::new());
                State::Plane(Box::new(Plane { frames, subject }))
            }
        };
        if std::mem::take(&mut self.passed) > 0 {
            emit(Item::Resumed);
        }
        self.feed(&bytes[at..], false, emit);
    }
}

/// Name of one choice. The choices of a request share a stream and are counted separately.
fn choice(subject: &str, index: u32) -> Cow<'_, str> {
    match index {
        0 => Cow::Borrowed(subject),
        _ => Cow::Owned(format!("{subject}#{index}")),
    }
}

/// Converts an element of HTTP into an element of the stream.
fn convert(item: &payload::Item<'_>, emit: &mut dyn FnMut(Item<'_>)) {
    match *item {
        payload::Item::Began => emit(Item::Began),
        payload::Item::Event(data) => match event::event(data) {
            Ok(completion) => emit(Item::Completion(completion)),
            Err(Undecoded::Malformed) => emit(Item::Undecoded),
            Err(Undecoded::Failed) => emit(Item::Failed),
            Err(Undecoded::OtherKind) => {}
        },
        // JSON responses are of many kinds; those without the form of a completion are ignored.
        payload::Item::Json(json) => drop(event::body(json, |completion| emit(Item::Completion(completion)))),
        payload::Item::TooLong => emit(Item::Undecoded),
        payload::Item::Ended => emit(Item::Ended),
        payload::Item::Output(output) => {
            emit(output.completion(false).map_or(Item::Undecoded, Item::Completion));
        }
        payload::Item::Text(output) => emit(output.completion(true).map_or(Item::Undecoded, Item::Completion)),
        payload::Item::Unread(count) => emit(Item::Unread(count)),
        payload::Item::Reset => {
            emit(Item::Failed);
            emit(Item::Ended);
        }
        payload::Item::Body(why) | payload::Item::Broken(why) => emit(Item::Unreadable(why)),
    }
}

/// Guesses the protocol from the first bytes of a connection or of a write.
fn guess(bytes: &[u8]) -> Guess {
    const REQUESTS: [&[u8]; 6] = [b"GET ", b"POST ", b"PUT ", b"HEAD ", b"DELETE ", b"PRI * HTTP/2"];
    let begins = |word: &[u8]| bytes.iter().zip(word).all(|(a, b)| a == b);
    let short = |needed: usize| bytes.len() < needed;
    if bytes.is_empty() {
        return Guess::Short;
    }
    if begins(b"HTTP/1.") {
        return if short(7) { Guess::Short } else { Guess::Http };
    }
    match (response_plane::begins(bytes), http2::begins(bytes), http2::continues(bytes)) {
        (Some(true), ..) => return Guess::Plane,
        (_, Some(true), _) => return Guess::Http2 { first: true },
        (.., Some(true)) => return Guess::Http2 { first: false },
        // All begin with zeros.
        (None, ..) | (_, None, _) | (.., None) => return Guess::Short,
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
