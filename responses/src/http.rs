//! Parser for HTTP/1.x responses in the bytes that a server writes: heads and bodies, several per connection.

use std::str::FromStr;

use trace::event::UnknownArrival;

use super::body_parser::{BodyParser, ContentParser};
use super::chunked::ChunkedDecoder;
use super::event::{ElementSink, ParseResponses, ResponseElement, is_rejection};
use super::framed::take_bytes;
use super::sse::EventParser;
use super::{Limits, Unreadable};

/// Maximum number of headers in one response.
const MAX_HEADERS: usize = 64;

/// Parser of one connection.
#[derive(Debug)]
pub(super) struct HttpParser {
    limits: Limits,
    state: HttpState,
    /// The beginning of an incomplete head.
    partial_head: Vec<u8>,
    body: BodyParser,
}

/// Part of a response: its head, or a body by its framing.
#[derive(Clone, Debug)]
enum HttpState {
    Head,
    Chunked(ChunkedDecoder),
    Length {
        left: u64,
        /// Whether any byte of the body was observed.
        has_begun: bool,
    },
    UntilClosed,
}

impl HttpParser {
    /// Starts at the first byte of a connection.
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, state: HttpState::Head, partial_head: Vec::new(), body: BodyParser::Other }
    }

    /// Starts inside an event stream, at the beginning of a chunk.
    pub(super) fn within_events(limits: Limits) -> Self {
        let body = BodyParser::Events(EventParser::default());
        Self { state: HttpState::Chunked(ChunkedDecoder::default()), body, ..Self::new(limits) }
    }
}

impl ParseResponses for HttpParser {
    fn end_at_close_by_server(&mut self, elements: &mut ElementSink<'_>) {
        let is_inside_event = matches!(&self.body, BodyParser::Events(events) if events.is_inside_event());
        // Without a length, a body ends with its connection. Inside an event, it was cut.
        if matches!(self.state, HttpState::UntilClosed) && !is_inside_event {
            self.end_body(elements);
        }
    }

    /// Parses heads of responses, and bodies whose length their heads declare.
    fn parse(&mut self, mut input: &[u8], elements: &mut ElementSink<'_>) -> Result<(), Unreadable> {
        while !input.is_empty() {
            let Self { limits, state, body, .. } = self;
            // Each arm removes its bytes from `input`.
            let is_body_complete = match state {
                HttpState::Head => {
                    self.parse_head(&mut input, elements)?;
                    false
                }
                HttpState::Chunked(chunked) => {
                    chunked.parse(&mut input, |piece| body.parse(piece, limits, elements))?
                }
                // A response to HEAD announces a body that never follows. The next head shows that.
                HttpState::Length { has_begun: false, .. } if input.starts_with(b"HTTP/1.") => {
                    *body = BodyParser::Other;
                    true
                }
                HttpState::Length { left, has_begun } => {
                    *has_begun = true;
                    body.parse(take_bytes(&mut input, left), limits, elements);
                    *left == 0
                }
                HttpState::UntilClosed => {
                    // All bytes up to the end of the connection belong to the body.
                    body.parse(std::mem::take(&mut input), limits, elements);
                    false
                }
            };
            if is_body_complete {
                self.end_body(elements);
            }
        }
        Ok(())
    }

    fn resumes_after_gap(&self) -> bool {
        true
    }

    fn why_arrivals_hidden(&self) -> Option<UnknownArrival> {
        None
    }
}

impl HttpParser {
    /// Ends the body; the head of the next response follows.
    fn end_body(&mut self, elements: &mut ElementSink<'_>) {
        self.state = HttpState::Head;
        std::mem::take(&mut self.body).end_body(&self.limits, elements);
    }

    /// Parses the next bytes of a response's head: status and headers. Begins the response once the head is complete, and leaves the bytes
    /// behind the head in `input`. Keeps an incomplete head for the next call.
    fn parse_head(&mut self, input: &mut &[u8], elements: &mut ElementSink<'_>) -> Result<(), Unreadable> {
        let earlier_bytes = self.partial_head.len();
        let space = self.limits.head_bytes.saturating_sub(earlier_bytes);
        self.partial_head.extend_from_slice(&input[..input.len().min(space)]);
        // Line ends between two responses belong to neither of them.
        let line_ends = self.partial_head.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let head_bytes = match response.parse(&self.partial_head[line_ends..]) {
            Ok(httparse::Status::Complete(length)) => line_ends + length,
            // The head goes on in the next bytes.
            Ok(httparse::Status::Partial) if self.partial_head.len() < self.limits.head_bytes => {
                *input = &[];
                return Ok(());
            }
            // Invalid, or longer than the limit.
            _ => return Err(Unreadable::Head),
        };
        let status = response.code;
        let body = body_after_head(&response)?;
        // The bytes behind the head belong to the body or to the next response. The earlier bytes of the head came with other input.
        *input = &input[head_bytes - earlier_bytes..];
        self.partial_head.clear();
        // The response itself follows its interim ones, which have no body.
        if let Some(body) = body {
            self.begin_response(status, body, elements);
        }
        Ok(())
    }

    /// Begins a response whose head is complete, and emits what the head shows. Ends it at once if no body follows.
    fn begin_response(&mut self, status: Option<u16>, body: DeclaredBody, elements: &mut ElementSink<'_>) {
        let DeclaredBody { state, content } = body;
        let body_bytes = if let HttpState::Length { left, .. } = state { Some(left) } else { None };
        self.state = state;
        self.body = content.parser;
        elements.push(ResponseElement::Began);
        if let Some(status) = status
            && is_rejection(status, body_bytes)
        {
            elements.push(ResponseElement::Rejected(status));
        }
        if let Some(why) = content.unreadable {
            elements.push(ResponseElement::Unreadable(why));
        }
        // No byte follows that would end it.
        if body_bytes == Some(0) {
            self.end_body(elements);
        }
    }
}

/// The form of a body, as its head declares it.
struct DeclaredBody {
    state: HttpState,
    content: ContentParser,
}

impl DeclaredBody {
    /// No body at all.
    fn empty() -> Self {
        Self { state: HttpState::Length { left: 0, has_begun: false }, content: ContentParser::ignoring() }
    }
}

/// Value of the last header with this name. `None` without one.
fn header_value<'a>(response: &'a httparse::Response<'_, '_>, name: &str) -> Option<&'a [u8]> {
    let found = response.headers.iter().rfind(|header| header.name.eq_ignore_ascii_case(name));
    found.map(|header| header.value.trim_ascii())
}

/// Body of the response with this head. `None` if the response is an interim one. Fails if another protocol follows.
fn body_after_head(response: &httparse::Response<'_, '_>) -> Result<Option<DeclaredBody>, Unreadable> {
    match response.code {
        // For example that of websockets.
        Some(101) => Err(Unreadable::Upgraded),
        Some(100..=199) => Ok(None),
        // Never with a body, whatever the head says.
        Some(204 | 304) => Ok(Some(DeclaredBody::empty())),
        _ => Ok(Some(declared_body(response))),
    }
}

/// Reads from the head of a response how its body is transferred, and how the body's content is to be read.
fn declared_body(response: &httparse::Response<'_, '_>) -> DeclaredBody {
    let coding = header_value(response, "transfer-encoding");
    // Without chunks and a length, a body ends with its connection.
    let mut state = HttpState::UntilClosed;
    if let Some(coding) = coding {
        // A transfer coding overrides a length. Of several, the last one shows where the body ends.
        if coding.to_ascii_lowercase().ends_with(b"chunked") {
            state = HttpState::Chunked(ChunkedDecoder::default());
        }
    } else if let Some(left) = header_value(response, "content-length").and_then(parse_decimal) {
        state = HttpState::Length { left, has_begun: false };
    }
    let encoding = header_value(response, "content-encoding");
    let is_encoded = encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case(b"identity"));
    // Any transfer coding but chunks alone compresses.
    let is_transfer_compressed = coding.is_some_and(|coding| !coding.eq_ignore_ascii_case(b"chunked"));
    let is_compressed = is_encoded || is_transfer_compressed;
    let content = ContentParser::for_content(header_value(response, "content-type"), is_compressed);
    DeclaredBody { state, content }
}

/// Parses a number in a header's value. `None` if it is anything else.
pub(super) fn parse_decimal<T: FromStr>(digits: &[u8]) -> Option<T> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}
