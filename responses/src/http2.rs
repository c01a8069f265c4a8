//! Parser for HTTP/2 responses in the bytes that a server writes: the bodies of several streams, interleaved.

use std::collections::BTreeMap;
use std::fmt;

use loona_hpack::Decoder;

use super::body_parser::BodyParser;
use super::buffer::BoundedBuffer;
use super::event::{ResponseElement, is_rejection};
use super::grpc::{self, GrpcParser};
use super::sse::EventParser;
use super::{Limits, Unreadable};

/// Size of a frame's header: RFC 9113, section 4.1.
const HEAD: usize = 9;

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

/// Longest fields in bytes by which a connection is recognised after its start. Those of a response are much shorter.
const LONGEST_JOINED: u32 = 1 << 10;

/// Receiver of the elements of a connection's streams.
type EmitOnStream<'e> = dyn FnMut(u32, ResponseElement<'_>) + 'e;

/// Parser of one connection.
#[derive(Debug, Default)]
pub(super) struct Http2Parser {
    limits: Limits,
    /// The first `known` bytes of an incomplete header.
    head: [u8; HEAD],
    known: usize,
    /// The current frame.
    frame: Option<FrameHead>,
    /// Number of padding bytes at the end of the current frame; `None` before it is known.
    padding: Option<u32>,
    /// Number of bytes left of the current frame's payload.
    left: u32,
    fields: FieldDecoder,
    /// An incomplete block of fields.
    block: FieldBlock,
    /// Open responses by stream. The oldest is evicted: its client may have cancelled it, which is not visible here.
    streams: BTreeMap<u32, StreamBody>,
    /// No byte of the current frame's payload was processed.
    is_frame_fresh: bool,
}

#[derive(Debug)]
enum StreamBody {
    Known(BodyParser),
    /// The fields of the response are unknown, and so is its content until it shows.
    Unknown {
        /// No byte of the body has been missed.
        is_complete: bool,
        /// The first bytes of the body or of a frame, while they are too few.
        start: Vec<u8>,
    },
}

#[derive(Debug, Default)]
struct FieldBlock {
    stream: u32,
    bytes: Vec<u8>,
    /// Number of bytes to skip before the fields: priorities, or a promised stream.
    skip: usize,
    ends_stream: bool,
    promised: bool,
    open: bool,
}

impl StreamBody {
    fn unknown(is_complete: bool) -> Self {
        Self::Unknown { is_complete, start: Vec::new() }
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
    const EVENT: &[u8] = b"data:";
    if start.starts_with(EVENT) {
        return BodyStart::Recognised(BodyParser::Events(EventParser::default()));
    }
    // This includes no bytes at all.
    if EVENT.starts_with(start) {
        return BodyStart::TooShort;
    }
    match grpc::begins_with_message(start, frame_length) {
        None => return BodyStart::TooShort,
        Some(true) => return BodyStart::Recognised(BodyParser::Grpc(GrpcParser::default())),
        Some(false) => {}
    }
    let is_whole_body = frame_length.is_none();
    match start.first() {
        Some(b'{' | b'[') if is_whole_body => BodyStart::Recognised(BodyParser::Json(BoundedBuffer::default())),
        _ => BodyStart::Other,
    }
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
        let [a, b, c, kind, flags, stream @ ..] = bytes.first_chunk::<HEAD>()?;
        Some(Self {
            length: u32::from_be_bytes([0, *a, *b, *c]),
            kind: *kind,
            flags: *flags,
            // The highest bit is reserved.
            stream: u32::from_be_bytes(*stream) & 0x7fff_ffff,
        })
    }

    fn has_flag(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Whether a server may send a frame with this head.
    fn is_valid(&self) -> bool {
        match self.kind {
            // Clients open the streams of requests, with odd numbers.
            DATA | HEADERS | PUSH_PROMISE | CONTINUATION => self.stream % 2 == 1,
            RST_STREAM => self.stream != 0 && self.length == 4,
            // Six bytes for each setting.
            SETTINGS => self.stream == 0 && self.length.is_multiple_of(6),
            _ => true,
        }
    }
}

/// Whether the connection of a server begins with these bytes; `None` if they are too few.
pub(super) fn begins_connection(bytes: &[u8]) -> Option<bool> {
    // A SETTINGS frame that acknowledges nothing.
    let expected = [Some(0), None, None, Some(SETTINGS), Some(0), Some(0), Some(0), Some(0), Some(0)];
    if bytes.iter().zip(expected).any(|(byte, expected)| expected.is_some_and(|expected| expected != *byte)) {
        return Some(false);
    }
    FrameHead::parse(bytes).map(|head| head.is_valid())
}

/// Whether these bytes, the start of a write, begin with a frame of a response: an event, a gRPC message, or fields before another frame. `None` if they are
/// too few.
pub(super) fn begins_with_response(bytes: &[u8]) -> Option<bool> {
    let Some(head) = FrameHead::parse(bytes) else {
        // The length of these frames is below 64 KiB.
        let is_short = bytes.first() == Some(&0);
        let may_be_response = bytes.get(3).is_none_or(|kind| matches!(*kind, DATA | HEADERS));
        return if is_short && may_be_response { None } else { Some(false) };
    };
    let payload = &bytes[HEAD..];
    let flags = head.flags & !END_STREAM;
    let event = b"data:";
    match head.kind {
        _ if !head.is_valid() || bytes[0] != 0 => Some(false),
        DATA if flags == 0 && head.length as usize >= event.len() => match payload.get(..event.len()) {
            Some(start) if start == event => Some(true),
            None if event.starts_with(payload) => None,
            _ => grpc::begins_with_message(payload, Some(head.length)),
        },
        HEADERS if flags & !PRIORITY == END_HEADERS && head.length <= LONGEST_JOINED => {
            let next = FrameHead::parse(payload.get(head.length as usize..)?)?;
            Some(next.kind <= CONTINUATION && next.is_valid())
        }
        _ => Some(false),
    }
}

impl Http2Parser {
    /// `from_start`: the first byte is the first of the connection. Otherwise it is the first of a frame.
    pub(super) fn new(limits: Limits, from_start: bool) -> Self {
        Self { limits, fields: FieldDecoder::new(from_start), ..Self::default() }
    }

    /// Parses the next bytes of the connection. Emits each element with its stream. After an error, no further byte can be read.
    pub(super) fn parse(&mut self, mut input: &[u8], emit: &mut EmitOnStream<'_>) -> Result<(), Unreadable> {
        loop {
            let head = if let Some(head) = self.frame {
                head
            } else {
                let (piece, rest) = input.split_at(input.len().min(HEAD - self.known));
                self.head[self.known..][..piece.len()].copy_from_slice(piece);
                self.known += piece.len();
                input = rest;
                // The head of a frame may arrive in several pieces.
                let Some(head) = FrameHead::parse(&self.head[..self.known]) else { return Ok(()) };
                self.begin_frame(head).ok_or(Unreadable::Frames)?
            };
            if self.left > 0 {
                if input.is_empty() {
                    return Ok(());
                }
                let (piece, rest) = input.split_at(input.len().min(self.left as usize));
                input = rest;
                self.parse_payload(head, piece, emit).ok_or(Unreadable::Frames)?;
            }
            if self.left == 0 {
                self.end_frame(head, emit).ok_or(Unreadable::Frames)?;
            }
        }
    }

    /// Processes the header of a frame; `None` if it is invalid here.
    fn begin_frame(&mut self, head: FrameHead) -> Option<FrameHead> {
        // Nothing may interrupt a block of fields.
        let continues = head.kind == CONTINUATION && head.stream == self.block.stream;
        if !head.is_valid() || self.block.open != continues {
            return None;
        }
        let padded = matches!(head.kind, DATA | HEADERS | PUSH_PROMISE) && head.has_flag(PADDED);
        (self.frame, self.known, self.left, self.is_frame_fresh) = (Some(head), 0, head.length, true);
        self.padding = (!padded).then_some(0);
        if matches!(head.kind, HEADERS | PUSH_PROMISE) {
            let promised = head.kind == PUSH_PROMISE;
            self.block.bytes.clear();
            (self.block.stream, self.block.promised, self.block.open) = (head.stream, promised, true);
            self.block.ends_stream = !promised && head.has_flag(END_STREAM);
            // The id of the promised stream, or the priority, precede the fields.
            self.block.skip = match (promised, head.has_flag(PRIORITY)) {
                (true, _) => 4,
                (false, true) => 5,
                (false, false) => 0,
            };
        }
        Some(head)
    }

    /// Processes a piece of the current frame; `None` if the padding exceeds the frame.
    fn parse_payload(&mut self, head: FrameHead, mut piece: &[u8], emit: &mut EmitOnStream<'_>) -> Option<()> {
        let padding = if let Some(padding) = self.padding {
            padding
        } else {
            let (length, rest) = piece.split_first()?;
            piece = rest;
            self.left -= 1;
            let length = u32::from(*length);
            *self.padding.insert(Some(length).filter(|length| *length <= self.left)?)
        };
        let content = self.left.saturating_sub(padding);
        self.left -= piece.len() as u32;
        let piece = &piece[..piece.len().min(content as usize)];
        match head.kind {
            DATA => self.parse_data(head, piece, emit),
            HEADERS | PUSH_PROMISE | CONTINUATION => {
                let skipped = self.block.skip.min(piece.len());
                self.block.skip -= skipped;
                let piece = &piece[skipped..];
                // One byte more than the limit shows that the block exceeds it.
                let space = (self.limits.head_bytes + 1).saturating_sub(self.block.bytes.len());
                self.block.bytes.extend_from_slice(&piece[..piece.len().min(space)]);
            }
            _ => {}
        }
        Some(())
    }

    /// Processes the end of a frame. `None` if the frame was malformed.
    fn end_frame(&mut self, head: FrameHead, emit: &mut EmitOnStream<'_>) -> Option<()> {
        self.frame = None;
        // The length of the padding is missing.
        self.padding?;
        match head.kind {
            DATA if head.has_flag(END_STREAM) => self.end_stream(head.stream, emit),
            HEADERS | PUSH_PROMISE | CONTINUATION if head.has_flag(END_HEADERS) => self.begin_response(emit),
            RST_STREAM if self.streams.remove(&head.stream).is_some() => {
                emit(head.stream, ResponseElement::CutShort);
                emit(head.stream, ResponseElement::Ended);
            }
            _ => {}
        }
        Some(())
    }

    /// Processes a complete block of fields: the head of a response, which begins it, or its trailers.
    fn begin_response(&mut self, emit: &mut EmitOnStream<'_>) {
        self.block.open = false;
        let FieldBlock { stream, promised, ends_stream, .. } = self.block;
        let response = if self.block.bytes.len() > self.limits.head_bytes {
            // A block that is not decoded leaves the sender's table unknown.
            self.fields.forget_table();
            ResponseHead::Unknown
        } else {
            self.fields.decode_block(&self.block.bytes)
        };
        let mut error_status = None;
        let (body, unreadable) = match response {
            // Decoded only for the table: no request asked for a pushed response.
            _ if promised => return,
            ResponseHead::Informational => return,
            ResponseHead::Final { body, unreadable, status, body_bytes } => {
                let body_bytes = if ends_stream { Some(0) } else { body_bytes };
                error_status = status.filter(|status| is_rejection(*status, body_bytes));
                (Some(StreamBody::Known(body)), unreadable)
            }
            // They may be trailers if they end a stream of which nothing was observed.
            ResponseHead::Unknown => ((!ends_stream).then(|| StreamBody::unknown(true)), None),
        };
        if let Some(body) = body.filter(|_| !self.streams.contains_key(&stream)) {
            emit(stream, ResponseElement::Began);
            if let Some(status) = error_status {
                emit(stream, ResponseElement::Rejected(status));
            }
            if let Some(why) = unreadable {
                emit(stream, ResponseElement::Unreadable(why));
            }
            self.open_stream(stream, body);
        }
        if ends_stream {
            self.end_stream(stream, emit);
        }
    }

    /// Adds a stream. Beyond the limit, the one with the lowest number, which is the oldest, is forgotten.
    fn open_stream(&mut self, stream: u32, body: StreamBody) {
        if self.streams.len() >= self.limits.streams {
            self.streams.pop_first();
        }
        self.streams.insert(stream, body);
    }

    /// Passes a piece of a stream's data to the reader of its content, which is recognised by its first bytes if no head was seen.
    fn parse_data(&mut self, head: FrameHead, piece: &[u8], emit: &mut EmitOnStream<'_>) {
        let stream = head.stream;
        let is_start_of_frame = std::mem::take(&mut self.is_frame_fresh);
        if !self.streams.contains_key(&stream) {
            self.open_stream(stream, StreamBody::unknown(false));
        }
        let Some(body) = self.streams.get_mut(&stream) else { return };
        let (is_complete, start) = match body {
            StreamBody::Known(body) => return body.parse(piece, &self.limits, &mut |element| emit(stream, element)),
            StreamBody::Unknown { is_complete, start } => (*is_complete, start),
        };
        if !is_complete {
            // Only the first bytes of a frame can tell; what follows other first bytes is skipped.
            if is_start_of_frame {
                start.clear();
            } else if start.is_empty() {
                return;
            }
        }
        start.extend_from_slice(piece);
        // In the middle of a body, only a frame that is one message shows where messages begin.
        let frame_length = (!is_complete).then_some(head.length);
        let mut parser = match recognise_body(start, frame_length) {
            BodyStart::TooShort => return,
            BodyStart::Recognised(parser) => parser,
            BodyStart::Other if is_complete => {
                emit(stream, ResponseElement::Unreadable(Unreadable::Fields));
                BodyParser::Other
            }
            BodyStart::Other => return start.clear(),
        };
        parser.parse(start, &self.limits, &mut |element| emit(stream, element));
        *body = StreamBody::Known(parser);
    }

    /// Ends the response of a stream.
    fn end_stream(&mut self, stream: u32, emit: &mut EmitOnStream<'_>) {
        match self.streams.remove(&stream) {
            Some(StreamBody::Known(body)) => body.end_body(&self.limits, &mut |element| emit(stream, element)),
            Some(StreamBody::Unknown { .. }) | None => emit(stream, ResponseElement::Ended),
        }
    }
}

/// Largest table of earlier fields in bytes. Clients usually permit 4 KiB.
const MAX_TABLE: usize = 64 << 10;

/// Fields of a response that decide how its body is read.
enum ResponseHead {
    /// Another response of the same stream follows.
    Informational,
    /// Start of the response.
    Final {
        body: BodyParser,
        /// Why a body of interest cannot be read.
        unreadable: Option<Unreadable>,
        status: Option<u16>,
        body_bytes: Option<u64>,
    },
    /// The fields cannot be decompressed.
    Unknown,
}

/// Decoder of one connection's header fields. Their compression refers to earlier ones, so it needs all of them.
#[derive(Default)]
struct FieldDecoder(Option<Decoder<'static>>);

impl fmt::Debug for FieldDecoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("FieldDecoder").field(&self.0.is_some()).finish()
    }
}

impl FieldDecoder {
    /// `from_start`: every field of the connection will be observed.
    fn new(from_start: bool) -> Self {
        Self(from_start.then(|| {
            let mut decoder = Decoder::new();
            decoder.set_max_allowed_table_size(MAX_TABLE);
            decoder
        }))
    }

    /// Records that a field block was not observed completely.
    fn forget_table(&mut self) {
        self.0 = None;
    }

    /// Decompresses a block of fields.
    fn decode_block(&mut self, block: &[u8]) -> ResponseHead {
        let Some(decoder) = &mut self.0 else {
            return ResponseHead::Unknown;
        };
        let mut kind = None;
        let mut compressed = false;
        let mut status: Option<u16> = None;
        let mut body_bytes: Option<u64> = None;
        let read = decoder.decode_with_cb(block, |name, value| match &*name {
            b":status" => status = std::str::from_utf8(&value).ok().and_then(|digits| digits.parse().ok()),
            b"content-length" => body_bytes = std::str::from_utf8(&value).ok().and_then(|digits| digits.parse().ok()),
            b"content-type" => kind = Some(value.into_owned()),
            b"content-encoding" => compressed = !value.eq_ignore_ascii_case(b"identity"),
            _ => {}
        });
        // The sender's table of fields has changed with this block, so later blocks cannot be read either.
        if read.is_err() {
            self.forget_table();
            return ResponseHead::Unknown;
        }
        if status.is_some_and(|status| (100..200).contains(&status)) {
            return ResponseHead::Informational;
        }
        let (body, unreadable) = BodyParser::for_content(kind.as_deref(), compressed);
        ResponseHead::Final { body, unreadable, status, body_bytes }
    }
}
