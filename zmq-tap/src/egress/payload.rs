//! The body of one response, whatever carries it: events, JSON, or gRPC messages.

use super::event::{Emit, Item, body, event};
use super::grpc::Messages;
use super::sse::Events;
use super::{Limits, Unreadable};

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
    pub(super) fn feed(&mut self, piece: &[u8], limits: &Limits, emit: &mut Emit<'_>) {
        match self.content {
            Content::Events => {
                self.events.feed(piece, limits.event_bytes, |data| emit(data.map_or(Item::Undecoded, event)));
            }
            Content::Json => {
                let space = (limits.event_bytes + 1).saturating_sub(self.json.len());
                self.json.extend_from_slice(&piece[..piece.len().min(space)]);
            }
            Content::Grpc => self.messages.feed(piece, limits.event_bytes, emit),
            Content::Other => {}
        }
    }

    /// Processes the end of the body.
    pub(super) fn end(&mut self, limits: &Limits, emit: &mut Emit<'_>) {
        match self.content {
            Content::Json if self.json.len() > limits.event_bytes => emit(Item::Undecoded),
            Content::Json => body(&self.json, emit),
            Content::Grpc => self.messages.end(emit),
            Content::Events | Content::Other => {}
        }
        self.begin(Content::Other);
        emit(Item::Ended);
    }
}
