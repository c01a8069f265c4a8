//! The body of one response, whatever carries it: events, JSON, or gRPC messages.

use super::buffer::Buffer;
use super::event::{Emit, ResponseElement, body, event};
use super::grpc::Messages;
use super::sse::Events;
use super::{Limits, Unreadable};

/// Parser of one body.
#[derive(Debug, Default)]
pub(super) enum BodyParser {
    Events(Events),
    /// The JSON body so far.
    Json(Buffer),
    /// A JSON body for which memory was short.
    UnkeptJson,
    Grpc(Messages),
    /// Not of interest, or unreadable.
    #[default]
    Other,
}

impl BodyParser {
    /// Parser by the values of the headers `content-type` and `content-encoding`. The second value is why a body of interest cannot be read.
    pub(super) fn of(kind: Option<&[u8]>, compressed: bool) -> (Self, Option<Unreadable>) {
        let is = |word: &[u8]| {
            let start = kind.and_then(|kind| kind.get(..word.len()));
            start.is_some_and(|start| start.eq_ignore_ascii_case(word))
        };
        let payload = if is(b"text/event-stream") {
            Self::Events(Events::default())
        } else if is(b"application/json") {
            Self::Json(Buffer::default())
        } else if is(b"application/grpc") {
            Self::Grpc(Messages::default())
        } else {
            return (Self::Other, None);
        };
        if compressed { (Self::Other, Some(Unreadable::Compressed)) } else { (payload, None) }
    }

    /// Parses the next piece.
    pub(super) fn parse(&mut self, piece: &[u8], limits: &Limits, emit: &mut Emit<'_>) {
        match self {
            Self::Events(events) => {
                events.parse(piece, limits.event_bytes, |data| emit(data.map_or(ResponseElement::Undecoded, event)));
            }
            Self::Json(json) => {
                let space = (limits.event_bytes + 1).saturating_sub(json.len());
                if json.extend(&piece[..piece.len().min(space)]).is_err() {
                    *self = Self::UnkeptJson;
                }
            }
            Self::Grpc(messages) => messages.parse(piece, limits.event_bytes, emit),
            Self::UnkeptJson | Self::Other => {}
        }
    }

    /// Processes the end of the body.
    pub(super) fn end(self, limits: &Limits, emit: &mut Emit<'_>) {
        match self {
            Self::UnkeptJson => emit(ResponseElement::Undecoded),
            Self::Json(json) if json.len() > limits.event_bytes => emit(ResponseElement::Undecoded),
            Self::Json(json) => body(&json, emit),
            Self::Grpc(messages) => messages.end(emit),
            Self::Events(_) | Self::Other => {}
        }
        emit(ResponseElement::Ended);
    }
}
