//! Parser for HTTP/2 responses in the bytes that a server writes: the bodies of several streams, interleaved.

mod fields;
mod frame;

use std::collections::BTreeMap;

use super::event::{Emit, Item};
use super::grpc;
use super::payload::{Content, Payload};
use super::{Limits, Unreadable};
use fields::{Fields, Response};
use frame::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, Head, PADDED, PRIORITY, PUSH_PROMISE, RST_STREAM,
    SETTINGS, Step,
};

/// Longest fields in bytes by which a connection is recognised after its start. Those of a response are much shorter.
const LONGEST_JOINED: u32 = 1 << 10;

/// The responses of one connection.
#[derive(Debug)]
pub(super) struct Connection {
    limits: Limits,
    frames: Frames,
    frame: Option<Head>,
    /// Number of padding bytes at the end of the current frame; `None` before it is known.
    padding: Option<u32>,
    /// Number of payload bytes of the current frame that were not consumed.
    left: u32,
    fields: Fields,
    /// An incomplete block of fields.
    block: Block,
    /// Open responses by stream. The oldest is evicted: its client may have cancelled it, which is not visible here.
    streams: BTreeMap<u32, Body>,
    /// No byte of the current frame's payload was processed.
    fresh: bool,
}

#[derive(Debug)]
enum Body {
    Known(Payload),
    /// The fields of the response are unknown, and so is its content until it shows.
    Unknown {
        /// No byte of the body has been missed.
        whole: bool,
        /// The first bytes of the body or of a frame, while they are too few.
        start: Vec<u8>,
    },
}

#[derive(Debug, Default)]
struct Block {
    stream: u32,
    bytes: Vec<u8>,
    /// Number of bytes to skip before the fields: priorities, or a promised stream.
    skip: usize,
    ends_stream: bool,
    promised: bool,
    open: bool,
}

impl Body {
    fn unknown(whole: bool) -> Self {
        Self::Unknown { whole, start: Vec::new() }
    }
}

/// Whether the connection of a server begins with these bytes; `None` if they are too few.
pub(super) fn begins(bytes: &[u8]) -> Option<bool> {
    // A SETTINGS frame that acknowledges nothing.
    let expected = [Some(0), None, None, Some(SETTINGS), Some(0), Some(0), Some(0), Some(0), Some(0)];
    let differs = |(byte, expected): (&u8, Option<u8>)| expected.is_some_and(|expected| expected != *byte);
    if bytes.iter().zip(expected).any(differs) {
        return Some(false);
    }
    Head::parse(bytes).map(|head| head.is_valid())
}

/// Whether these bytes, the start of a write, begin with a frame of a response: an event, a gRPC message, or fields before another frame. `None` if they are
/// too few.
pub(super) fn continues(bytes: &[u8]) -> Option<bool> {
    let Some(head) = Head::parse(bytes) else {
        let kind = bytes.get(3).is_none_or(|kind| matches!(*kind, DATA | HEADERS));
        return if bytes.first() == Some(&0) && kind { None } else { Some(false) };
    };
    let payload = &bytes[frame::HEAD..];
    let (flags, event) = (head.flags & !END_STREAM, b"data:");
    match head.kind {
        _ if !head.is_valid() || bytes[0] != 0 => Some(false),
        DATA if flags == 0 && head.length as usize >= event.len() => match payload.get(..event.len()) {
            Some(start) if start == event => Some(true),
            None if event.starts_with(payload) => None,
            _ => grpc::begins(payload, Some(head.length)),
        },
        HEADERS if flags & !PRIORITY == END_HEADERS && head.length <= LONGEST_JOINED => {
            Head::parse(payload.get(head.length as usize..)?).map(|next| next.kind <= CONTINUATION && next.is_valid())
        }
        _ => Some(false),
    }
}

impl Connection {
    /// `from_start`: the first byte is the first of the connection. Otherwise it is the first of a frame.
    pub(super) fn new(limits: Limits, from_start: bool) -> Self {
        Self {
            limits,
            frames: Frames::default(),
            frame: None,
            padding: None,
            left: 0,
            fields: Fields::new(from_start),
            block: Block::default(),
            streams: BTreeMap::new(),
            fresh: false,
        }
    }

    /// Parses the next bytes of the connection. Emits each element behind its stream. After an error, no further byte can be read.
    pub(super) fn feed(&mut self, mut input: &[u8], emit: &mut Emit<'_>) -> Result<(), Unreadable> {
        let mut emit = |stream: u32, item: Item<'_>| {
            emit(Item::Stream(stream));
            emit(item);
        };
        while let Some(step) = self.frames.next(&mut input) {
            let valid = match step {
                Step::Head(head) => self.begin(head),
                Step::Payload(piece) => self.payload(piece, &mut emit),
                Step::End => self.end(&mut emit),
            };
            valid.ok_or(Unreadable::Frames)?;
        }
        Ok(())
    }

    /// Processes the header of a frame; `None` if it is invalid here.
    fn begin(&mut self, head: Head) -> Option<()> {
        // Nothing may interrupt a block of fields.
        let continues = head.kind == CONTINUATION && head.stream == self.block.stream;
        if !head.is_valid() || self.block.open != continues {
            return None;
        }
        let padded = matches!(head.kind, DATA | HEADERS | PUSH_PROMISE) && head.has(PADDED);
        (self.frame, self.left, self.fresh) = (Some(head), head.length, true);
        self.padding = (!padded).then_some(0);
        if matches!(head.kind, HEADERS | PUSH_PROMISE) {
            let promised = head.kind == PUSH_PROMISE;
            self.block.bytes.clear();
            (self.block.stream, self.block.promised, self.block.open) = (head.stream, promised, true);
            self.block.ends_stream = !promised && head.has(END_STREAM);
            self.block.skip = match (promised, head.has(PRIORITY)) {
                (true, _) => 4,
                (false, true) => 5,
                (false, false) => 0,
            };
        }
        Some(())
    }

    /// Processes a piece of the current frame; `None` if the padding exceeds the frame.
    fn payload(&mut self, mut piece: &[u8], emit: &mut dyn FnMut(u32, Item<'_>)) -> Option<()> {
        let head = self.frame?;
        let padding = if let Some(padding) = self.padding {
            padding
        } else {
            let (length, rest) = piece.split_first()?;
            (piece, self.left) = (rest, self.left - 1);
            let length = u32::from(*length);
            *self.padding.insert(Some(length).filter(|length| *length <= self.left)?)
        };
        let content = self.left.saturating_sub(padding);
        self.left -= piece.len() as u32;
        let piece = &piece[..piece.len().min(content as usize)];
        match head.kind {
            DATA => self.data(head.stream, piece, emit),
            HEADERS | PUSH_PROMISE | CONTINUATION => {
                let skipped = self.block.skip.min(piece.len());
                self.block.skip -= skipped;
                let piece = &piece[skipped..];
                let space = (self.limits.head_bytes + 1).saturating_sub(self.block.bytes.len());
                self.block.bytes.extend_from_slice(&piece[..piece.len().min(space)]);
            }
            _ => {}
        }
        Some(())
    }

    fn end(&mut self, emit: &mut dyn FnMut(u32, Item<'_>)) -> Option<()> {
        let head = self.frame.take()?;
        // The length of the padding is missing.
        self.padding?;
        match head.kind {
            DATA if head.has(END_STREAM) => self.ended(head.stream, emit),
            HEADERS | PUSH_PROMISE | CONTINUATION if head.has(END_HEADERS) => self.response(emit),
            RST_STREAM if self.streams.remove(&head.stream).is_some() => {
                emit(head.stream, Item::Failed);
                emit(head.stream, Item::Ended);
            }
            _ => {}
        }
        Some(())
    }

    /// Processes a complete block of fields.
    fn response(&mut self, emit: &mut dyn FnMut(u32, Item<'_>)) {
        self.block.open = false;
        let Block { stream, promised, ends_stream, .. } = self.block;
        let response = if self.block.bytes.len() > self.limits.head_bytes {
            self.fields.missed();
            Response::Unknown
        } else {
            self.fields.read(&self.block.bytes)
        };
        if promised || response == Response::Informational {
            return;
        }
        // Unknown fields that end a stream of which nothing was observed may be trailers.
        let trailers = self.streams.contains_key(&stream) || response == Response::Unknown && ends_stream;
        if !trailers {
            emit(stream, Item::Began);
            let body = match response {
                Response::Final(content, unreadable) => {
                    if let Some(why) = unreadable {
                        emit(stream, Item::Unreadable(why));
                    }
                    Body::Known(Payload::new(content))
                }
                _ => Body::unknown(true),
            };
            self.open(stream, body);
        }
        if ends_stream {
            self.ended(stream, emit);
        }
    }

    fn open(&mut self, stream: u32, body: Body) {
        if self.streams.len() >= self.limits.streams {
            self.streams.pop_first();
        }
        self.streams.insert(stream, body);
    }

    fn data(&mut self, stream: u32, piece: &[u8], emit: &mut dyn FnMut(u32, Item<'_>)) {
        let fresh = std::mem::take(&mut self.fresh);
        if !self.streams.contains_key(&stream) {
            self.open(stream, Body::unknown(false));
        }
        let frame = self.frame.map(|head| head.length);
        let Some(body) = self.streams.get_mut(&stream) else {
            return;
        };
        let (whole, start) = match body {
            Body::Known(payload) => return payload.feed(piece, &self.limits, &mut |item| emit(stream, item)),
            Body::Unknown { whole, start } => (*whole, start),
        };
        if fresh && !whole {
            start.clear();
        } else if start.is_empty() && !whole {
            return;
        }
        start.extend_from_slice(piece);
        let events = b"data:";
        // In the middle of a body, only a frame that is one message shows where messages begin.
        let grpc = grpc::begins(start, frame.filter(|_| !whole));
        let content = match start.first() {
            None => return,
            _ if start.starts_with(events) => Content::Events,
            _ if events.starts_with(start) || grpc.is_none() => return,
            _ if grpc == Some(true) => Content::Grpc,
            Some(b'{' | b'[') if whole => Content::Json,
            _ if whole => {
                emit(stream, Item::Unreadable(Unreadable::Fields));
                Content::Other
            }
            _ => return start.clear(),
        };
        let (mut payload, start) = (Payload::new(content), std::mem::take(start));
        payload.feed(&start, &self.limits, &mut |item| emit(stream, item));
        *body = Body::Known(payload);
    }

    fn ended(&mut self, stream: u32, emit: &mut dyn FnMut(u32, Item<'_>)) {
        match self.streams.remove(&stream) {
            Some(Body::Known(mut payload)) => payload.end(&self.limits, &mut |item| emit(stream, item)),
            Some(Body::Unknown { .. }) | None => emit(stream, Item::Ended),
        }
    }
}
