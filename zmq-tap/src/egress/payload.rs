//! The body of one response, whatever carries it: events, JSON, or gRPC messages.

use super::grpc::{self, Messages, Output};
use super::sse::{Events, Found};
use super::{Limits, Unreadable};

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
    /// Output of a request in a gRPC message.
    Output(Output<'a>),
    /// The same with text in place of token ids.
    Text(Output<'a>),
    /// Number of gRPC messages that were not read.
    Unread(u64),
    /// A body that cannot be read, although its length is known.
    Body(Unreadable),
    /// End of a response.
    Ended,
    /// The server aborted the response.
    Reset,
    /// The rest of this connection cannot be read.
    Broken(Unreadable),
}

/// Content of a body, as its head declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    Events,
    Json,
    /// gRPC messages.
    Grpc,
    /// Not of interest, or unreadable.
    Other,
}

impl Content {
    /// Content by the values of the headers `content-type` and `content-encoding`. The second value is why a body of interest cannot be
    /// read.
    pub(super) fn of(kind: Option<&[u8]>, compressed: bool) -> (Self, Option<Unreadable>) {
        let is = |word: &[u8]| {
            let start = kind.and_then(|kind| kind.get(..word.len()));
            start.is_some_and(|start| start.eq_ignore_ascii_case(word))
        };
        let content = if is(b"text/event-stream") {
            Self::Events
        } else if is(b"application/json") {
            Self::Json
        } else if is(b"application/grpc") {
            Self::Grpc
        } else {
            return (Self::Other, None);
        };
        if compressed { (Self::Other, Some(Unreadable::Compressed)) } else { (content, None) }
    }
}

impl<'a> From<grpc::Found<'a>> for Item<'a> {
    fn from(found: grpc::Found<'a>) -> Self {
        match found {
            grpc::Found::Output(output) => Self::Output(output),
            grpc::Found::Text(output) => Self::Text(output),
            grpc::Found::Json { json, whole: true } => Self::Json(json),
            grpc::Found::Json { json, whole: false } => Self::Event(json),
            grpc::Found::TooLong => Self::TooLong,
        }
    }
}

/// Parser of one body.
#[derive(Clone, Debug)]
pub(super) struct Payload {
    content: Content,
    events: Events,
    /// The JSON body so far.
    json: Vec<u8>,
    messages: Messages,
}

impl Payload {
    pub(super) fn new(content: Content) -> Self {
        Self { content, events: Events::default(), json: Vec::new(), messages: Messages::default() }
    }

    /// Starts the next body. Keeps the memory of the previous one.
    pub(super) fn begin(&mut self, content: Content) {
        self.content = content;
        self.json.clear();
        self.events.clear();
        self.messages.clear();
    }

    /// Whether no byte of the body has been kept.
    pub(super) fn is_empty(&self) -> bool {
        self.json.is_empty()
    }

    /// Whether the body ends inside an event.
    pub(super) fn is_inside_event(&self) -> bool {
        self.content == Content::Events && self.events.is_inside()
    }

    /// Parses the next piece.
    pub(super) fn feed(&mut self, piece: &[u8], limits: &Limits, emit: &mut impl FnMut(Item<'_>)) {
        match self.content {
            Content::Events => self.events.feed(piece, limits.event_bytes, |found| {
                emit(match found {
                    Found::Data(data) => Item::Event(data),
                    Found::TooLong => Item::TooLong,
                });
            }),
            Content::Json => {
                let space = (limits.event_bytes + 1).saturating_sub(self.json.len());
                self.json.extend_from_slice(&piece[..piece.len().min(space)]);
            }
            Content::Grpc => self.messages.feed(piece, limits.event_bytes, &mut |found| emit(found.into())),
            Content::Other => {}
        }
    }

    /// Processes the end of the body.
    pub(super) fn end(&mut self, limits: &Limits, emit: &mut impl FnMut(Item<'_>)) {
        if self.content == Content::Json && !self.json.is_empty() {
            emit(if self.json.len() > limits.event_bytes { Item::TooLong } else { Item::Json(&self.json) });
        }
        let mut end = Item::Ended;
        if self.content == Content::Grpc {
            let grpc::End { unread, failed } = self.messages.end(&mut |found| emit(found.into()));
            if unread > 0 {
                emit(Item::Body(Unreadable::Grpc));
                emit(Item::Unread(unread));
            }
            if failed {
                end = Item::Reset;
            }
        }
        self.begin(Content::Other);
        emit(end);
    }
}
