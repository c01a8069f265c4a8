//! Parser for HTTP/1.x responses in the bytes that a server writes: heads and bodies, several per connection.

use super::chunked::{Chunked, Progress};
use super::event::{Emit, Item};
use super::payload::{Content, Payload};
use super::{Limits, Unreadable};

/// Maximum number of headers in one response.
const MAX_HEADERS: usize = 64;

/// The responses of one connection.
#[derive(Clone, Debug)]
pub(super) struct Responses {
    limits: Limits,
    state: State,
    /// An incomplete head.
    partial: Vec<u8>,
    payload: Payload,
}

#[derive(Clone, Debug)]
enum State {
    Head,
    Body(Framing),
}

#[derive(Clone, Debug)]
enum Framing {
    Chunked(Chunked),
    Length(u64),
    UntilClosed,
}

impl Responses {
    /// Starts at the first byte of a connection.
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, state: State::Head, partial: Vec::new(), payload: Payload::new(Content::Other) }
    }

    /// Starts inside an event stream, at the beginning of a chunk.
    pub(super) fn within_events(limits: Limits) -> Self {
        let framing = Framing::Chunked(Chunked::default());
        Self { state: State::Body(framing), payload: Payload::new(Content::Events), ..Self::new(limits) }
    }

    /// Processes the end of the connection, which ends a body without a declared length.
    pub(super) fn closed(&mut self, emit: &mut Emit<'_>) {
        if matches!(self.state, State::Body(Framing::UntilClosed)) && !self.payload.is_inside_event() {
            self.end(emit);
        }
    }

    /// Parses the next bytes of the connection. After an error, no further byte can be read.
    pub(super) fn feed(&mut self, mut input: &[u8], emit: &mut Emit<'_>) -> Result<(), Unreadable> {
        while !input.is_empty() {
            match &mut self.state {
                State::Head => self.head(&mut input, emit)?,
                State::Body(framing) => {
                    // A response to HEAD announces a body that never follows.
                    if matches!(framing, Framing::Length(_)) && self.payload.is_empty() && input.starts_with(b"HTTP/1.")
                    {
                        self.payload.begin(Content::Other);
                        self.end(emit);
                        continue;
                    }
                    let (payload, limits) = (&mut self.payload, &self.limits);
                    let mut data = |piece: &[u8]| payload.feed(piece, limits, emit);
                    match framing {
                        Framing::Chunked(chunked) => match chunked.feed(&mut input, data) {
                            Progress::More => {}
                            Progress::Done => self.end(emit),
                            Progress::Broken => return Err(Unreadable::Chunks),
                        },
                        Framing::Length(left) => {
                            let take = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                            data(&input[..take]);
                            input = &input[take..];
                            *left -= take as u64;
                            if *left == 0 {
                                self.end(emit);
                            }
                        }
                        Framing::UntilClosed => {
                            data(input);
                            input = &[];
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn end(&mut self, emit: &mut Emit<'_>) {
        self.state = State::Head;
        self.payload.end(&self.limits, emit);
    }

    fn head(&mut self, input: &mut &[u8], emit: &mut Emit<'_>) -> Result<(), Unreadable> {
        let before = self.partial.len();
        let space = self.limits.head_bytes.saturating_sub(before);
        self.partial.extend_from_slice(&input[..input.len().min(space)]);
        // Line ends between two responses belong to neither of them.
        let blank = self.partial.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let length = match response.parse(&self.partial[blank..]) {
            Ok(httparse::Status::Complete(length)) => blank + length,
            Ok(httparse::Status::Partial) if self.partial.len() < self.limits.head_bytes => {
                *input = &[];
                return Ok(());
            }
            _ => return Err(Unreadable::Head),
        };
        let body = match response.code {
            Some(101) => return Err(Unreadable::Upgraded),
            Some(100..=199 | 204 | 304) => None,
            _ => Some(body(&response)),
        };
        *input = &input[length - before..];
        self.partial.clear();
        let Some((framing, content, unreadable)) = body else { return Ok(()) };
        let is_empty = matches!(framing, Framing::Length(0));
        self.state = State::Body(framing);
        self.payload.begin(content);
        emit(Item::Began);
        if let Some(why) = unreadable {
            emit(Item::Unreadable(why));
        }
        if is_empty {
            self.end(emit);
        }
        Ok(())
    }
}

/// The form of a body, as its head declares it, and why a body of interest cannot be read.
fn body(response: &httparse::Response<'_, '_>) -> (Framing, Content, Option<Unreadable>) {
    let header = |name: &str| {
        let found = response.headers.iter().rfind(|header| header.name.eq_ignore_ascii_case(name));
        found.map(|header| header.value.trim_ascii())
    };
    let coding = header("transfer-encoding");
    let framing = match (coding, header("content-length")) {
        (Some(coding), _) if coding.to_ascii_lowercase().ends_with(b"chunked") => Framing::Chunked(Chunked::default()),
        (None, Some(length)) => match std::str::from_utf8(length).ok().and_then(|digits| digits.parse().ok()) {
            Some(length) => Framing::Length(length),
            None => Framing::UntilClosed,
        },
        _ => Framing::UntilClosed,
    };
    let compressed = header("content-encoding").is_some_and(|coding| !coding.eq_ignore_ascii_case(b"identity"))
        || coding.is_some_and(|coding| !coding.eq_ignore_ascii_case(b"chunked"));
    let (content, unreadable) = Content::of(header("content-type"), compressed);
    (framing, content, unreadable)
}
