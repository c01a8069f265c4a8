//! Parser for HTTP/2 responses in the bytes that a server writes: the bodies of several streams, interleaved.

mod field_decoder;

use std::collections::BTreeMap;

use trace::event::UnknownArrival;

use self::field_decoder::{FieldDecoder, ResponseFields, ResponseHead};
use super::body_parser::BodyParser;
use super::buffer::BoundedBuffer;
use super::event::{ElementSink, ParseResponses, ResponseElement, is_rejection};
use super::grpc::{self, GrpcParser};
use super::sse::EventParser;
use super::{EVENT_START, Limits, Recognition, Unreadable};

/// Size of a frame's header: RFC 9113, section 4.1.
const HEAD_BYTES: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// Sizes of what may precede the fields of a frame: the id of a promised stream, or the priority.
const PROMISED_STREAM_BYTES: usize = 4;
const PRIORITY_BYTES: usize = 5;

/// Longest fields in bytes by which a connection is recognised after its start. Those of a response are much shorter.
const LONGEST_RECOGNISED_FIELDS: u32 = 1 << 10;

/// Parser of one connection.
#[derive(Debug, Default)]
pub(super) struct Http2Parser {
    limits: Limits,
    /// The first `head_length` bytes of an incomplete header.
    head: [u8; HEAD_BYTES],
    head_length: usize,
    /// The current frame.
    frame: Option<FrameHead>,
    /// Number of padding bytes at the end of the current frame; `None` before it is known.
    padding: Option<u32>,
    /// Number of bytes left of the current frame's payload.
    payload_left: u32,
    fields: FieldDecoder,
    /// An incomplete block of fields.
    block: FieldBlock,
    /// Open responses by stream. The oldest is evicted: its client may have cancelled it, which is not visible here.
    streams: BTreeMap<u32, StreamBody>,
    /// Whether no byte of the current frame's payload was processed yet.
    is_at_payload_start: bool,
}

#[derive(Debug)]
enum StreamBody {
    Known(BodyParser),
    /// The fields of the response are unknown, and so is its content until it shows.
    Unknown(UnknownBody),
}

/// A body whose content is unknown.
#[derive(Debug)]
struct UnknownBody {
    /// No byte of the body has been missed.
    is_observed_from_start: bool,
    /// The first bytes of the body or of a frame, while they are too few.
    start: Vec<u8>,
}

impl UnknownBody {
    /// A body of which no byte has been missed.
    fn from_start() -> Self {
        Self { is_observed_from_start: true, start: Vec::new() }
    }

    /// A body whose first bytes have been missed.
    fn joined_late() -> Self {
        Self { is_observed_from_start: false, start: Vec::new() }
    }

    /// Tries to recognise the content of the body with the next piece of a frame of `frame_length` bytes, which is kept for that. Uses the
    /// first bytes of the body, or those of the frame if the body was not observed from its start.
    fn recognise_with_piece(&mut self, piece: &[u8], frame_length: u32, is_start_of_frame: bool) -> BodyStart {
        if self.is_observed_from_start {
            self.start.extend_from_slice(piece);
            // These bytes may be of several frames.
            let length_of_one_frame = None;
            return recognise_body(&self.start, length_of_one_frame);
        }
        if is_start_of_frame {
            self.start.clear();
        } else if self.start.is_empty() {
            // The first bytes of this frame were others, so the rest of it tells nothing.
            return BodyStart::Other;
        }
        self.start.extend_from_slice(piece);
        // In the middle of a body, only a frame that is one message shows where messages begin.
        recognise_body(&self.start, Some(frame_length))
    }
}

/// A header block: the compressed fields of a response, which one or more frames carry.
#[derive(Debug, Default)]
struct FieldBlock {
    stream: u32,
    bytes: Vec<u8>,
    /// Number of bytes to skip before the fields: priorities, or a promised stream.
    bytes_to_skip: usize,
    ends_stream: bool,
    is_promised: bool,
    is_open: bool,
}

impl FieldBlock {
    /// Begins the block of a frame `HEADERS` or `PUSH_PROMISE`.
    fn begin_block(&mut self, head: FrameHead) {
        self.stream = head.stream;
        self.bytes.clear();
        self.is_open = true;
        self.is_promised = head.kind == PUSH_PROMISE;
        // The flag has no meaning in a promise.
        self.ends_stream = !self.is_promised && head.has_flag(END_STREAM);
        // The fields follow the number of the promised stream, or the priority.
        self.bytes_to_skip = if self.is_promised {
            PROMISED_STREAM_BYTES
        } else if head.has_flag(PRIORITY) {
            PRIORITY_BYTES
        } else {
            0
        };
    }

    /// Adds a piece of a frame's content, up to `max_field_bytes` and one more, which shows that the block exceeds the limit.
    fn add_piece(&mut self, piece: &[u8], max_field_bytes: usize) {
        let skipped = self.bytes_to_skip.min(piece.len());
        self.bytes_to_skip -= skipped;
        let fields = &piece[skipped..];
        let space = (max_field_bytes + 1).saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&fields[..fields.len().min(space)]);
    }
}

/// What the first bytes of a body or frame show.
enum BodyStart {
    Recognised(BodyParser),
    TooShort,
    Other,
}

/// Recognises the content by its first bytes: of the whole body, or of a frame in the middle of it, whose length is then `frame_length`.
fn recognise_body(start: &[u8], frame_length: Option<u32>) -> BodyStart {
    // A start without any byte counts as too short.
    match Recognition::begins_with(start, EVENT_START) {
        Recognition::Yes => return BodyStart::Recognised(BodyParser::Events(EventParser::default())),
        Recognition::TooShort => return BodyStart::TooShort,
        Recognition::No => {}
    }
    match grpc::begins_with_message(start, frame_length) {
        Recognition::Yes => return BodyStart::Recognised(BodyParser::Grpc(GrpcParser::default())),
        Recognition::TooShort => return BodyStart::TooShort,
        Recognition::No => {}
    }
    // In the middle of a body, a brace or a bracket shows nothing.
    let is_whole_body = frame_length.is_none();
    if is_whole_body && matches!(start.first(), Some(b'{' | b'[')) {
        return BodyStart::Recognised(BodyParser::Json(BoundedBuffer::default()));
    }
    BodyStart::Other
}

/// Header of a frame.
#[derive(Clone, Copy, Debug)]
struct FrameHead {
    /// Size of the payload in bytes.
    length: u32,
    kind: u8,
    flags: u8,
    /// Stream, or 0 for the connection.
    stream: u32,
}

impl FrameHead {
    /// Parses a frame head. `None` if it is incomplete.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let [length_high, length_middle, length_low, kind, flags, stream @ ..] = bytes.first_chunk::<HEAD_BYTES>()?;
        Some(Self {
            length: u32::from_be_bytes([0, *length_high, *length_middle, *length_low]),
            kind: *kind,
            flags: *flags,
            // The highest bit is reserved.
            stream: u32::from_be_bytes(*stream) & 0x7fff_ffff,
        })
    }

    /// Whether the frame has a flag of its kind, such as `END_STREAM`.
    fn has_flag(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether a server may send a frame with this head.
    fn is_valid(&self) -> bool {
        match self.kind {
            // Clients open the streams of requests, with odd numbers.
            DATA | HEADERS | PUSH_PROMISE | CONTINUATION => self.stream % 2 == 1,
            // The payload is an error code of four bytes.
            RST_STREAM => self.stream != 0 && self.length == 4,
            // Six bytes for each setting.
            SETTINGS => self.stream == 0 && self.length.is_multiple_of(6),
            _ => true,
        }
    }
}

/// Head of the frame that begins a server's connection: `SETTINGS` that acknowledge nothing. Their length is below 64 KiB, and may be any.
const CONNECTION_HEAD: [Option<u8>; HEAD_BYTES] =
    [Some(0), None, None, Some(SETTINGS), Some(0), Some(0), Some(0), Some(0), Some(0)];

/// Whether the connection of a server begins with these bytes.
pub(super) fn begins_connection(bytes: &[u8]) -> Recognition {
    // `None` is expected where any byte is allowed.
    for (byte, expected) in bytes.iter().zip(CONNECTION_HEAD) {
        if expected.is_some_and(|expected| expected != *byte) {
            return Recognition::No;
        }
    }
    match FrameHead::parse(bytes) {
        None => Recognition::TooShort,
        Some(head) if head.is_valid() => Recognition::Yes,
        Some(_) => Recognition::No,
    }
}

/// Whether these bytes, the start of a write, begin with a frame of a response: an event, a gRPC message, or fields before another frame.
pub(super) fn begins_with_response(bytes: &[u8]) -> Recognition {
    // The length of these frames is below 64 KiB, so the first of its three bytes is 0.
    let is_short_frame = bytes.first() == Some(&0);
    // The kind of the frame follows its length.
    let may_be_response = bytes.get(3).is_none_or(|kind| matches!(*kind, DATA | HEADERS));
    if !is_short_frame || !may_be_response {
        return Recognition::No;
    }
    let Some(head) = FrameHead::parse(bytes) else { return Recognition::TooShort };
    if !head.is_valid() {
        return Recognition::No;
    }
    let payload = &bytes[HEAD_BYTES..];
    if head.kind == DATA { recognise_response_data(head, payload) } else { recognise_response_fields(head, payload) }
}

/// Whether the payload of a frame `DATA` begins with an event, or is one gRPC message.
fn recognise_response_data(head: FrameHead, payload: &[u8]) -> Recognition {
    let has_other_flags = head.flags & !END_STREAM != 0;
    if has_other_flags || (head.length as usize) < EVENT_START.len() {
        return Recognition::No;
    }
    match Recognition::begins_with(payload, EVENT_START) {
        Recognition::No => grpc::begins_with_message(payload, Some(head.length)),
        recognised => recognised,
    }
}

/// Whether a frame `HEADERS` has all fields of a response, and another valid frame follows it.
fn recognise_response_fields(head: FrameHead, payload: &[u8]) -> Recognition {
    let has_all_fields = head.flags & !(END_STREAM | PRIORITY) == END_HEADERS;
    if !has_all_fields || head.length > LONGEST_RECOGNISED_FIELDS {
        return Recognition::No;
    }
    let behind_fields = payload.get(head.length as usize..);
    let Some(next_frame) = behind_fields.and_then(FrameHead::parse) else {
        return Recognition::TooShort;
    };
    // The kinds of the RFC end with CONTINUATION.
    let is_known_kind = next_frame.kind <= CONTINUATION;
    if is_known_kind && next_frame.is_valid() { Recognition::Yes } else { Recognition::No }
}

impl Http2Parser {
    /// Creates a parser whose first byte is the first of the connection (`from_start`), or else the first of a frame.
    pub(super) fn new(limits: Limits, from_start: bool) -> Self {
        // Without the first fields, no later ones can be decompressed.
        let fields = if from_start { FieldDecoder::for_whole_connection() } else { FieldDecoder::default() };
        Self { limits, fields, ..Self::default() }
    }
}

impl ParseResponses for Http2Parser {
    fn parse(&mut self, mut input: &[u8], elements: &mut ElementSink<'_>) -> Result<(), Unreadable> {
        loop {
            let Some(head) = self.take_frame_head(&mut input)? else { return Ok(()) };
            if self.payload_left > 0 {
                // The payload goes on in the next bytes.
                if input.is_empty() {
                    return Ok(());
                }
                let (piece, rest) = input.split_at(input.len().min(self.payload_left as usize));
                input = rest;
                self.parse_payload(head, piece, elements)?;
            }
            if self.payload_left == 0 {
                self.end_frame(head, elements)?;
            }
        }
    }

    fn resumes_after_gap(&self) -> bool {
        true
    }

    fn why_arrivals_hidden(&self) -> Option<UnknownArrival> {
        Some(UnknownArrival::Http2)
    }
}

impl Http2Parser {
    /// Returns the head of the current frame. If the previous frame has ended, takes the next head from `input`, and begins its frame.
    /// `None` while the head is incomplete.
    fn take_frame_head(&mut self, input: &mut &[u8]) -> Result<Option<FrameHead>, Unreadable> {
        if self.frame.is_some() {
            return Ok(self.frame);
        }
        // The head may arrive in several pieces.
        let (piece, rest) = input.split_at(input.len().min(HEAD_BYTES - self.head_length));
        self.head[self.head_length..][..piece.len()].copy_from_slice(piece);
        self.head_length += piece.len();
        *input = rest;
        let Some(head) = FrameHead::parse(&self.head[..self.head_length]) else { return Ok(None) };
        self.begin_frame(head)?;
        Ok(Some(head))
    }

    /// Begins the frame with this head. Fails if the head is invalid, or if it interrupts a block of header fields that spans several
    /// frames.
    fn begin_frame(&mut self, head: FrameHead) -> Result<(), Unreadable> {
        let continues_block = head.kind == CONTINUATION && head.stream == self.block.stream;
        // Nothing may interrupt an open block of fields, and only an open one can be continued.
        let follows_last_frame = self.block.is_open == continues_block;
        if !head.is_valid() || !follows_last_frame {
            return Err(Unreadable::Frames);
        }
        self.frame = Some(head);
        self.head_length = 0;
        self.payload_left = head.length;
        self.is_at_payload_start = true;
        let has_padding = matches!(head.kind, DATA | HEADERS | PUSH_PROMISE) && head.has_flag(PADDED);
        // `None` until the first byte of a padded payload is read, which is the length of the padding.
        self.padding = if has_padding { None } else { Some(0) };
        if matches!(head.kind, HEADERS | PUSH_PROMISE) {
            self.block.begin_block(head);
        }
        Ok(())
    }

    /// Processes a piece of the current frame's payload, which is not empty. Passes on its content, without the padding.
    fn parse_payload(
        &mut self,
        head: FrameHead,
        mut piece: &[u8],
        elements: &mut ElementSink<'_>,
    ) -> Result<(), Unreadable> {
        let padding = match self.padding {
            Some(padding) => padding,
            None => self.take_padding_length(&mut piece)?,
        };
        // The padding is at the end of the payload. Nothing is left of the content once only padding follows.
        let content_bytes = self.payload_left.saturating_sub(padding);
        self.payload_left -= piece.len() as u32;
        let content = &piece[..piece.len().min(content_bytes as usize)];
        match head.kind {
            DATA => self.parse_data(head, content, elements),
            HEADERS | PUSH_PROMISE | CONTINUATION => self.block.add_piece(content, self.limits.head_bytes),
            _ => {}
        }
        Ok(())
    }

    /// Removes the length of the padding from `piece`: the first byte of a padded payload. An error if it exceeds the rest of the payload.
    fn take_padding_length(&mut self, piece: &mut &[u8]) -> Result<u32, Unreadable> {
        let (length, rest) = piece.split_first().ok_or(Unreadable::Frames)?;
        *piece = rest;
        self.payload_left -= 1;
        let padding = u32::from(*length);
        if padding > self.payload_left {
            return Err(Unreadable::Frames);
        }
        self.padding = Some(padding);
        Ok(padding)
    }

    /// Processes the end of a frame.
    fn end_frame(&mut self, head: FrameHead, elements: &mut ElementSink<'_>) -> Result<(), Unreadable> {
        self.frame = None;
        // The frame is padded, but its payload is empty, so it does not even have the length of the padding.
        let lacks_padding_length = self.padding.is_none();
        if lacks_padding_length {
            return Err(Unreadable::Frames);
        }
        match head.kind {
            DATA if head.has_flag(END_STREAM) => self.end_stream(head.stream, elements),
            HEADERS | PUSH_PROMISE | CONTINUATION if head.has_flag(END_HEADERS) => self.end_header_block(elements),
            RST_STREAM => self.reset_stream(head.stream, elements),
            _ => {}
        }
        Ok(())
    }

    /// Ends the response of a stream that the server resets, if it is in progress.
    fn reset_stream(&mut self, stream: u32, elements: &mut ElementSink<'_>) {
        if self.streams.remove(&stream).is_some() {
            elements.push_of_stream(stream, ResponseElement::CutShort);
            elements.push_of_stream(stream, ResponseElement::Ended);
        }
    }

    /// Processes a complete block of header fields: the head of a response, or its trailers, which are fields behind the body.
    fn end_header_block(&mut self, elements: &mut ElementSink<'_>) {
        self.block.is_open = false;
        // Decoded in any case, because later blocks may refer to these fields.
        let response = self.decode_block();
        let FieldBlock { stream, is_promised, ends_stream, .. } = self.block;
        // No request asked for a promised response.
        if is_promised {
            return;
        }
        // A response of the stream has begun already.
        let are_trailers = self.streams.contains_key(&stream);
        match response {
            // The response itself follows.
            ResponseHead::Informational => return,
            ResponseHead::Final(fields) if !are_trailers => self.begin_response(stream, fields, ends_stream, elements),
            // Unknown fields that end a stream of which nothing was observed may be trailers.
            ResponseHead::Unknown if !are_trailers && !ends_stream => {
                elements.push_of_stream(stream, ResponseElement::Began);
                self.open_stream(stream, StreamBody::Unknown(UnknownBody::from_start()));
            }
            // Trailers, of which only the end of the stream is of interest.
            ResponseHead::Final(_) | ResponseHead::Unknown => {}
        }
        if ends_stream {
            self.end_stream(stream, elements);
        }
    }

    /// Decodes the complete block of fields, which also updates the table of earlier fields.
    fn decode_block(&mut self) -> ResponseHead {
        if self.block.bytes.len() > self.limits.head_bytes {
            // A block that is not decoded leaves the sender's table unknown.
            self.fields.forget_table();
            return ResponseHead::Unknown;
        }
        self.fields.decode_block(&self.block.bytes)
    }

    /// Begins the response of a stream with the fields of its head. `ends_stream`: the response has no body.
    fn begin_response(
        &mut self,
        stream: u32,
        fields: ResponseFields,
        ends_stream: bool,
        elements: &mut ElementSink<'_>,
    ) {
        elements.push_of_stream(stream, ResponseElement::Began);
        let body_bytes = if ends_stream { Some(0) } else { fields.body_bytes };
        if let Some(status) = fields.status
            && is_rejection(status, body_bytes)
        {
            elements.push_of_stream(stream, ResponseElement::Rejected(status));
        }
        if let Some(why) = fields.content.unreadable {
            elements.push_of_stream(stream, ResponseElement::Unreadable(why));
        }
        self.open_stream(stream, StreamBody::Known(fields.content.parser));
    }

    /// Adds a stream. Beyond the limit, the one with the lowest number, which is the oldest, is forgotten.
    fn open_stream(&mut self, stream: u32, body: StreamBody) {
        if self.streams.len() >= self.limits.streams {
            self.streams.pop_first();
        }
        self.streams.insert(stream, body);
    }

    /// Passes a piece of a stream's data to the parser of its content, which is recognised by its first bytes if no head was read.
    fn parse_data(&mut self, head: FrameHead, piece: &[u8], elements: &mut ElementSink<'_>) {
        let stream = head.stream;
        let is_start_of_frame = std::mem::take(&mut self.is_at_payload_start);
        if !self.streams.contains_key(&stream) {
            // Its head came before the first observed byte.
            self.open_stream(stream, StreamBody::Unknown(UnknownBody::joined_late()));
        }
        // The stream is open here in any case.
        let Some(body) = self.streams.get_mut(&stream) else { return };
        let unknown = match body {
            StreamBody::Known(parser) => {
                return parser.parse(piece, &self.limits, &mut elements.of_stream(stream));
            }
            StreamBody::Unknown(unknown) => unknown,
        };
        match unknown.recognise_with_piece(piece, head.length, is_start_of_frame) {
            BodyStart::TooShort => {}
            BodyStart::Recognised(mut parser) => {
                parser.parse(&unknown.start, &self.limits, &mut elements.of_stream(stream));
                *body = StreamBody::Known(parser);
            }
            BodyStart::Other if unknown.is_observed_from_start => {
                elements.push_of_stream(stream, ResponseElement::Unreadable(Unreadable::Fields));
                *body = StreamBody::Known(BodyParser::Other);
            }
            // A later frame may be recognised.
            BodyStart::Other => unknown.start.clear(),
        }
    }

    /// Ends the response of a stream, even if no byte of it was observed.
    fn end_stream(&mut self, stream: u32, elements: &mut ElementSink<'_>) {
        match self.streams.remove(&stream) {
            Some(StreamBody::Known(body)) => body.end_body(&self.limits, &mut elements.of_stream(stream)),
            Some(StreamBody::Unknown(_)) | None => elements.push_of_stream(stream, ResponseElement::Ended),
        }
    }
}
