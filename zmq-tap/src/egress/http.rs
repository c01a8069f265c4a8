//! Parser for HTTP/1.x responses in the bytes that a server writes: heads and bodies, several per connection.

use super::chunked::{Chunked, Progress};
use super::sse::{Events, Found};
use super::{Limits, Unreadable};

/// Maximum number of headers in one response.
const MAX_HEADERS: usize = 64;

/// An element found in the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Item<'a> {
    /// Start of a response.
    Began,
    /// The data of a server-sent event.
    Event(&'a [u8]),
    /// The whole body of a JSON response.
    Json(&'a [u8]),
    /// An event or body longer than the limit was skipped.
    TooLong,
    /// A body that cannot be read, although its length is known.
    Body(Unreadable),
    /// End of a response.
    Ended,
    /// The rest of this connection cannot be read.
    Broken(Unreadable),
}

/// The responses of one connection.
#[derive(Clone, Debug)]
pub(super) struct Responses {
    limits: Limits,
    state: State,
    /// An incomplete head or JSON body.
    partial: Vec<u8>,
    events: Events,
}

#[derive(Clone, Debug)]
enum State {
    Head,
    Body { framing: Framing, content: Content },
    Broken,
}

#[derive(Clone, Debug)]
enum Framing {
    Chunked(Chunked),
    Length(u64),
    UntilClosed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Events,
    Json,
    /// Not of interest, or unreadable.
    Other,
}

impl Responses {
    /// Starts at the first byte of a connection.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            state: State::Head,
            partial: Vec::new(),
            events: Events::default(),
        }
    }

    /// Starts inside an event stream, at the beginning of a chunk.
    pub(super) fn within_events(limits: Limits) -> Self {
        let framing = Framing::Chunked(Chunked::default());
        Self {
            state: State::Body {
                framing,
                content: Content::Events,
            },
            ..Self::new(limits)
        }
    }

    /// Processes the end of the connection, which ends a body without a declared length.
    pub(super) fn closed(&mut self, mut emit: impl FnMut(Item<'_>)) {
        if let State::Body {
            framing: Framing::UntilClosed,
            content,
        } = self.state
            && !(content == Content::Events && self.events.is_inside())
        {
            self.end(content, &mut emit);
        }
    }

    /// Parses the next bytes of the connection.
    pub(super) fn feed(&mut self, mut input: &[u8], mut emit: impl FnMut(Item<'_>)) {
        while !input.is_empty() {
            match &mut self.state {
                State::Broken => return,
                State::Head => self.head(&mut input, &mut emit),
                State::Body { framing, content } => {
                    let content = *content;
                    // A response to HEAD announces a body that never follows.
                    if matches!(framing, Framing::Length(_)) && self.partial.is_empty() && input.starts_with(b"HTTP/1.")
                    {
                        self.end(Content::Other, &mut emit);
                        continue;
                    }
                    let (partial, events, limits) = (&mut self.partial, &mut self.events, &self.limits);
                    let mut data = |piece: &[u8]| match content {
                        Content::Events => events.feed(piece, limits.event_bytes, |found| {
                            emit(match found {
                                Found::Data(data) => Item::Event(data),
                                Found::TooLong => Item::TooLong,
                            });
                        }),
                        Content::Json => {
                            let space = (limits.event_bytes + 1).saturating_sub(partial.len());
                            partial.extend_from_slice(&piece[..piece.len().min(space)]);
                        }
                        Content::Other => {}
                    };
                    match framing {
                        Framing::Chunked(chunked) => match chunked.feed(&mut input, data) {
                            Progress::More => {}
                            Progress::Done => self.end(content, &mut emit),
                            Progress::Broken => return self.give_up(Unreadable::Chunks, &mut emit),
                        },
                        Framing::Length(left) => {
                            let take = input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                            data(&input[..take]);
                            input = &input[take..];
                            *left -= take as u64;
                            if *left == 0 {
                                self.end(content, &mut emit);
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
    }

    fn give_up(&mut self, why: Unreadable, emit: &mut impl FnMut(Item<'_>)) {
        self.state = State::Broken;
        self.partial = Vec::new();
        self.events = Events::default();
        emit(Item::Broken(why));
    }

    fn end(&mut self, content: Content, emit: &mut impl FnMut(Item<'_>)) {
        if content == Content::Json && !self.partial.is_empty() {
            emit(if self.partial.len() > self.limits.event_bytes {
                Item::TooLong
            } else {
                Item::Json(&self.partial)
            });
        }
        self.partial.clear();
        self.events.clear();
        self.state = State::Head;
        emit(Item::Ended);
    }

    fn head(&mut self, input: &mut &[u8], emit: &mut impl FnMut(Item<'_>)) {
        let before = self.partial.len();
        let space = self.limits.head_bytes.saturating_sub(before);
        self.partial.extend_from_slice(&input[..input.len().min(space)]);
        // Line ends between two responses belong to neither of them.
        let blank = self
            .partial
            .iter()
            .take_while(|byte| matches!(byte, b'\r' | b'\n'))
            .count();
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let length = match response.parse(&self.partial[blank..]) {
            Ok(httparse::Status::Complete(length)) => blank + length,
            Ok(httparse::Status::Partial) if self.partial.len() < self.limits.head_bytes => {
                *input = &[];
                return;
            }
            _ => return self.give_up(Unreadable::Head, emit),
        };
        let form = Form::of(&response);
        *input = &input[length - before..];
        self.partial.clear();
        match form {
            Form::NoBody => {}
            Form::Upgraded => self.give_up(Unreadable::Upgraded, emit),
            Form::Body {
                framing,
                content,
                unreadable,
            } => {
                self.state = State::Body { framing, content };
                emit(Item::Began);
                if let Some(why) = unreadable {
                    emit(Item::Body(why));
                }
                if let State::Body {
                    framing: Framing::Length(0),
                    ..
                } = self.state
                {
                    self.end(content, emit);
                }
            }
        }
    }
}

/// The form of a body, as its head declares it.
enum Form {
    NoBody,
    Upgraded,
    Body {
        framing: Framing,
        content: Content,
        unreadable: Option<Unreadable>,
    },
}

impl Form {
    fn of(response: &httparse::Response<'_, '_>) -> Self {
        let header = |name: &str| {
            let found = response
                .headers
                .iter()
                .rfind(|header| header.name.eq_ignore_ascii_case(name));
            found.map(|header| header.value.trim_ascii())
        };
        match response.code {
            Some(101) => return Self::Upgraded,
            Some(100..=199 | 204 | 304) => return Self::NoBody,
            _ => {}
        }
        let is = |value: Option<&[u8]>, word: &[u8]| {
            value.is_some_and(|value| {
                value
                    .get(..word.len())
                    .is_some_and(|start| start.eq_ignore_ascii_case(word))
            })
        };
        let coding = header("transfer-encoding");
        let framing = match (coding, header("content-length")) {
            (Some(coding), _) if coding.to_ascii_lowercase().ends_with(b"chunked") => {
                Framing::Chunked(Chunked::default())
            }
            (None, Some(length)) => match std::str::from_utf8(length).ok().and_then(|digits| digits.parse().ok()) {
                Some(length) => Framing::Length(length),
                None => Framing::UntilClosed,
            },
            _ => Framing::UntilClosed,
        };
        let kind = header("content-type");
        let compressed = header("content-encoding").is_some_and(|coding| !coding.eq_ignore_ascii_case(b"identity"))
            || coding.is_some_and(|coding| !coding.eq_ignore_ascii_case(b"chunked"));
        let of_interest = if is(kind, b"text/event-stream") {
            Content::Events
        } else if is(kind, b"application/json") {
            Content::Json
        } else {
            Content::Other
        };
        let unreadable = (compressed && of_interest != Content::Other).then_some(Unreadable::Compressed);
        let content = if compressed { Content::Other } else { of_interest };
        Self::Body {
            framing,
            content,
            unreadable,
        }
    }
}
