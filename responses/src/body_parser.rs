//! The body of one response, whatever carries it: events, JSON, or gRPC messages.

use super::buffer::BoundedBuffer;
use super::event::{ElementSink, ResponseElement, parse_body, parse_event};
use super::grpc::GrpcParser;
use super::sse::EventParser;
use super::{Limits, Unreadable};

/// Whether the value of a header `content-type` begins with this type. Parameters, such as a character set, follow it.
fn begins_with_type(content_type: &[u8], media_type: &[u8]) -> bool {
    content_type.get(..media_type.len()).is_some_and(|start| start.eq_ignore_ascii_case(media_type))
}

#[derive(Debug, Default)]
pub(super) enum BodyParser {
    Events(EventParser),
    /// The JSON body so far.
    Json(BoundedBuffer),
    /// A JSON body for which memory was short.
    UnkeptJson,
    Grpc(GrpcParser),
    /// Not of interest, or unreadable.
    #[default]
    Other,
}

/// Parser of a body as its headers describe it.
pub(super) struct ContentParser {
    pub(super) parser: BodyParser,
    /// Why a body of interest cannot be read.
    pub(super) unreadable: Option<Unreadable>,
}

impl ContentParser {
    /// Parser of content that is not of interest.
    pub(super) fn ignoring() -> Self {
        Self { parser: BodyParser::Other, unreadable: None }
    }

    /// Parser of content with this header `content-type`. Other types, and content without one, are ignored. Compressed content of interest
    /// is unreadable.
    pub(super) fn for_content(content_type: Option<&[u8]>, is_compressed: bool) -> Self {
        let content_type = content_type.unwrap_or_default();
        let parser = if begins_with_type(content_type, b"text/event-stream") {
            BodyParser::Events(EventParser::default())
        } else if begins_with_type(content_type, b"application/json") {
            BodyParser::Json(BoundedBuffer::default())
        } else if begins_with_type(content_type, b"application/grpc") {
            BodyParser::Grpc(GrpcParser::default())
        } else {
            return Self::ignoring();
        };
        // Compression hides only bodies that would be read.
        if is_compressed {
            return Self { parser: BodyParser::Other, unreadable: Some(Unreadable::Compressed) };
        }
        Self { parser, unreadable: None }
    }
}

impl BodyParser {
    /// Parses the next piece of the body, and emits the elements that it completes. JSON is only collected until the body ends.
    pub(super) fn parse(&mut self, piece: &[u8], limits: &Limits, elements: &mut ElementSink<'_>) {
        match self {
            Self::Events(events) => {
                events.parse(piece, limits.event_bytes, |data| emit_event(data, elements));
            }
            Self::Json(json) => {
                let is_kept = keep_json(json, piece, limits.event_bytes);
                // Memory is short, so the rest of the body is ignored.
                if !is_kept {
                    *self = Self::UnkeptJson;
                }
            }
            Self::Grpc(messages) => messages.parse(piece, limits.event_bytes, elements),
            Self::UnkeptJson | Self::Other => {}
        }
    }

    /// Ends the body. Parses collected JSON, and emits the last elements. A body that could not be kept is emitted as undecoded.
    pub(super) fn end_body(self, limits: &Limits, elements: &mut ElementSink<'_>) {
        match self {
            Self::UnkeptJson => elements.push(ResponseElement::Undecoded),
            Self::Json(json) if json.len() > limits.event_bytes => elements.push(ResponseElement::Undecoded),
            Self::Json(json) => parse_body(&json, elements),
            Self::Grpc(messages) => messages.end_body(elements),
            Self::Events(_) | Self::Other => {}
        }
        elements.push(ResponseElement::Ended);
    }
}

/// Emits the element of a server-sent event. Without `data`, the event was too long to be kept.
#[inline]
fn emit_event(data: Option<&[u8]>, elements: &mut ElementSink<'_>) {
    let Some(data) = data else { return elements.push(ResponseElement::Undecoded) };
    // Events of other applications have no element.
    if let Some(element) = parse_event(data) {
        elements.push(element);
    }
}

/// Keeps a piece of a JSON body, up to one byte beyond `limit`: that byte shows that the body exceeds it. Returns false if memory is short.
#[inline]
fn keep_json(kept: &mut BoundedBuffer, piece: &[u8], limit: usize) -> bool {
    let space = (limit + 1).saturating_sub(kept.len());
    kept.extend(&piece[..piece.len().min(space)]).is_ok()
}
