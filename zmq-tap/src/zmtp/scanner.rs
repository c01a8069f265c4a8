//! The scanner, which turns bytes into marks.

use super::boundary_search::BoundarySearch;
use super::greeting::{GreetingReader, GreetingStep, Opaque, V2_LENGTH, ZmtpVersion};
use super::header::{self, CommandName, FrameHeader, Garbage, ZmtpCommand};
use adapter::decode::Format;

/// Position of a frame, in offsets from the first byte fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First byte of its header.
    pub header: u64,
    /// First byte of its body.
    pub body: u64,
    /// First byte after its body.
    pub end: u64,
}

/// An element of the stream, emitted when its last byte is fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// A complete command (or a ZMTP 2.0 identity).
    Command(ZmtpCommand, Span),
    /// A complete message frame.
    Frame {
        /// Position of the frame.
        span: Span,
        /// More parts of this message follow.
        more: bool,
    },
    /// No frame can begin here. The scanner searches the following bytes for the next frame.
    Garbage {
        /// Offset of the invalid header.
        at: u64,
        /// Reason why the header is invalid.
        why: Garbage,
    },
    /// Framing is known from the next frame's header on. Frames before it were not seen.
    Synced {
        /// Offset of that header.
        at: u64,
    },
    /// No byte of this stream can be read, now or later.
    Opaque(Opaque),
}

/// The incomplete message at the end of the bytes fed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingMessage {
    /// Offset of the first byte of its first frame's header.
    pub start: u64,
    /// Offset of the end of the current frame, as its header claims; `None` until that header is complete.
    pub frame_end: Option<u64>,
}

/// Number of bytes at the front of the input that a step has processed.
type ConsumedBytes = usize;

/// Scans one direction of one connection.
#[derive(Clone, Debug)]
pub struct Scanner {
    /// Number of bytes fed, and so the offset of the next byte.
    fed_bytes: u64,
    version: ZmtpVersion,
    /// Offset of the current multipart message, once its first frame is complete.
    message_start: Option<u64>,
    state: ScannerState,
    /// Length in bytes of the longest frame that may prove a boundary.
    max_searched_frame_bytes: u64,
    /// Formats whose messages may prove a boundary.
    formats: &'static [Format],
}

/// What the next byte is a part of.
#[derive(Clone, Debug)]
enum ScannerState {
    Greeting(GreetingReader),
    /// A frame's header, of which `filled` bytes are known.
    Header {
        buffer: [u8; header::MAX_HEADER_BYTES],
        filled: usize,
    },
    /// A frame's body.
    Body {
        header: FrameHeader,
        /// Offset of the header.
        start: u64,
        bytes_left: u64,
        /// First bytes of the body, if it is a command.
        name: CommandName,
    },
    /// Anything, until a frame is found.
    Seeking(BoundarySearch),
    /// A stream that was given up.
    Opaque,
}

/// State before the first byte of a frame.
const BEFORE_HEADER: ScannerState = ScannerState::Header { buffer: [0; header::MAX_HEADER_BYTES], filled: 0 };

impl Scanner {
    /// Default length in bytes of the longest frame that may prove a boundary.
    pub const SEEK_LONGEST: u64 = 16 << 20;

    /// Creates a scanner for a stream from its first byte.
    pub fn from_greeting() -> Self {
        Self {
            fed_bytes: 0,
            // Until the greeting says otherwise.
            version: ZmtpVersion::V3,
            message_start: None,
            state: ScannerState::Greeting(GreetingReader::new()),
            max_searched_frame_bytes: Self::SEEK_LONGEST,
            formats: &[],
        }
    }

    /// Creates a scanner for a stream that is joined somewhere after its handshake. It emits [`Mark::Synced`] after one whole message
    /// frame of these formats and the start of the next. It gives up after four times the length of the longest frame
    /// ([`Opaque::Unframed`]).
    pub fn mid_stream(formats: &'static [Format]) -> Self {
        let state = ScannerState::Seeking(BoundarySearch::new(0, Self::SEEK_LONGEST, formats));
        Self { state, formats, ..Self::from_greeting() }
    }

    /// Creates a scanner for a stream that is joined between two frames.
    pub(crate) fn between_frames(formats: &'static [Format]) -> Self {
        Self { state: BEFORE_HEADER, formats, ..Self::from_greeting() }
    }

    /// Searches for the start of a frame, because the bytes before the next one were not fed. A message frame of a known format directly at
    /// the next byte is accepted without a second one behind it.
    pub fn search_next_frame(&mut self) {
        self.message_start = None;
        self.state = ScannerState::Seeking(BoundarySearch::from_boundary(
            self.fed_bytes,
            self.max_searched_frame_bytes,
            self.formats,
        ));
    }

    /// Sets the formats whose messages may prove a boundary again after garbage, and the length in bytes of the longest such message.
    #[must_use]
    pub fn recovering(self, formats: &'static [Format], max_searched_frame_bytes: u64) -> Self {
        Self { max_searched_frame_bytes, formats, ..self }
    }

    /// Number of bytes fed.
    pub fn position(&self) -> u64 {
        self.fed_bytes
    }

    /// Returns the incomplete message, if any. A message has one or more parts, each in a frame of its own. Commands are no messages, but
    /// may stand between two parts.
    pub fn pending(&self) -> Option<PendingMessage> {
        // A message of several parts is incomplete even where no part has begun.
        let message_between_parts = self.message_start.map(|start| PendingMessage { start, frame_end: None });
        match &self.state {
            ScannerState::Header { filled: 0, .. } => message_between_parts,
            ScannerState::Header { buffer, .. } if header::is_command(buffer[0]) => message_between_parts,
            ScannerState::Body { header, .. } if header.is_command => message_between_parts,
            ScannerState::Header { filled, .. } => {
                let header_start = self.fed_bytes - *filled as u64;
                Some(PendingMessage { start: self.message_start.unwrap_or(header_start), frame_end: None })
            }
            ScannerState::Body { start: header_start, bytes_left, .. } => Some(PendingMessage {
                start: self.message_start.unwrap_or(*header_start),
                frame_end: self.fed_bytes.checked_add(*bytes_left),
            }),
            ScannerState::Greeting(_) | ScannerState::Seeking(_) | ScannerState::Opaque => None,
        }
    }

    /// Scans the next bytes of the stream and calls `emit_mark` for every element that ends in them, in order.
    pub fn feed(&mut self, mut bytes: &[u8], emit_mark: &mut impl FnMut(Mark)) {
        while !bytes.is_empty() {
            let consumed = match &mut self.state {
                ScannerState::Greeting(_) => self.scan_greeting(bytes[0], emit_mark),
                ScannerState::Header { .. } => self.scan_header(bytes, emit_mark),
                ScannerState::Body { .. } => self.scan_body(bytes, emit_mark),
                ScannerState::Seeking(_) => self.search_boundary(bytes, emit_mark),
                ScannerState::Opaque => {
                    self.fed_bytes += bytes.len() as u64;
                    bytes.len()
                }
            };
            bytes = &bytes[consumed..];
        }
    }

    /// Scans one byte of the greeting. Returns the number of bytes it took.
    fn scan_greeting(&mut self, byte: u8, emit_mark: &mut impl FnMut(Mark)) -> ConsumedBytes {
        // Called in this state only.
        let ScannerState::Greeting(reader) = &mut self.state else { return 0 };
        let step = reader.push_byte(byte);
        self.fed_bytes += 1;
        match step {
            GreetingStep::More => {}
            GreetingStep::Invalid(why) => self.stop_reading(why, emit_mark),
            GreetingStep::Complete { version, hidden_by, has_begun_frame } => {
                self.version = version;
                // If the last byte of the greeting also begins a frame, it is the zero byte that `buffer` has.
                let buffer = [0; header::MAX_HEADER_BYTES];
                self.state = ScannerState::Header { buffer, filled: usize::from(has_begun_frame) };
                if let Some(mechanism) = hidden_by {
                    self.stop_reading(Opaque::Encrypted(mechanism), emit_mark);
                }
            }
        }
        1
    }

    /// Scans bytes of a frame's body. Returns the number of bytes it took.
    #[inline]
    fn scan_body(&mut self, bytes: &[u8], emit_mark: &mut impl FnMut(Mark)) -> ConsumedBytes {
        // Called in this state only.
        let ScannerState::Body { bytes_left, header, name, .. } = &mut self.state else { return 0 };
        // A length has 64 bits, which an address may not have.
        let consumed = usize::try_from(*bytes_left).map_or(bytes.len(), |left| left.min(bytes.len()));
        if header.is_command {
            name.append_from(&bytes[..consumed]);
        }
        *bytes_left -= consumed as u64;
        self.fed_bytes += consumed as u64;
        self.emit_complete_frame(emit_mark);
        consumed
    }

    /// Gives the stream up, and emits the mark that says why.
    fn stop_reading(&mut self, why: Opaque, emit_mark: &mut impl FnMut(Mark)) {
        self.state = ScannerState::Opaque;
        emit_mark(Mark::Opaque(why));
    }

    /// Scans bytes of a frame header, which may come in several pieces. After an invalid one, searches for the next frame. Returns the
    /// number of bytes it took.
    fn scan_header(&mut self, bytes: &[u8], emit_mark: &mut impl FnMut(Mark)) -> ConsumedBytes {
        // Called in this state only.
        let ScannerState::Header { buffer, filled } = &mut self.state else { return 0 };
        let buffered_before = *filled;
        let start = self.fed_bytes - buffered_before as u64;
        // Copies up to the length of the longest header, which may be more than this header has.
        let added = bytes.len().min(buffer.len() - buffered_before);
        let buffered = buffered_before + added;
        buffer[buffered_before..buffered].copy_from_slice(&bytes[..added]);
        match header::parse_header(&buffer[..buffered], self.version) {
            // The rest of the header comes with later input.
            Ok(None) => {
                *filled = buffered;
                self.fed_bytes += added as u64;
                added
            }
            // The end of the body must fit into an offset.
            Ok(Some(header)) if start.checked_add(header.size as u64 + header.length).is_some() => {
                self.begin_body(header, start, buffered_before, emit_mark)
            }
            Ok(Some(header)) => {
                emit_mark(Mark::Garbage { at: start, why: Garbage::Length(header.length) });
                self.search_after_invalid_header(buffered_before)
            }
            Err(why) => {
                emit_mark(Mark::Garbage { at: start, why });
                self.search_after_invalid_header(buffered_before)
            }
        }
    }

    /// Continues with the body of a frame after its complete header. The header begins at the offset `start`, and `buffered_before` of its
    /// bytes came with earlier input. Returns how many of its bytes came with this input.
    #[inline]
    fn begin_body(
        &mut self,
        header: FrameHeader,
        start: u64,
        buffered_before: usize,
        emit_mark: &mut impl FnMut(Mark),
    ) -> ConsumedBytes {
        let consumed = header.size - buffered_before;
        self.fed_bytes += consumed as u64;
        let name = CommandName::default();
        self.state = ScannerState::Body { header, start, bytes_left: header.length, name };
        // An empty body is complete already.
        self.emit_complete_frame(emit_mark);
        consumed
    }

    /// Searches for the next frame from the second byte of an invalid header on. Its first `buffered_before` bytes came with earlier input.
    /// Returns how many bytes of this input are consumed: the first byte of the header, or none if it came earlier.
    fn search_after_invalid_header(&mut self, buffered_before: usize) -> ConsumedBytes {
        // Called in this state only.
        let ScannerState::Header { buffer, .. } = self.state else { return 0 };
        // The message is lost, even if it has parts before this header.
        self.message_start = None;
        let header_start = self.fed_bytes - buffered_before as u64;
        let mut search = BoundarySearch::new(header_start + 1, self.max_searched_frame_bytes, self.formats);
        // The search gets the bytes of earlier input here, and this input from the caller. The header's first byte is left out.
        let consumed_of_header = buffered_before.max(1);
        // The result is `None`, because these bytes are too few for a boundary.
        search.feed(&buffer[1..consumed_of_header]);
        self.fed_bytes = header_start + consumed_of_header as u64;
        self.state = ScannerState::Seeking(search);
        consumed_of_header - buffered_before
    }

    /// Emits the mark of the current frame, a command or a part of a message, if its body is complete. Else does nothing.
    fn emit_complete_frame(&mut self, emit_mark: &mut impl FnMut(Mark)) {
        let ScannerState::Body { header, start, bytes_left: 0, name } = self.state else { return };
        let span = Span { header: start, body: start + header.size as u64, end: self.fed_bytes };
        self.state = BEFORE_HEADER;
        // The frame directly behind a ZMTP 2.0 greeting is the identity of the sender, not a message.
        if self.version == ZmtpVersion::V2 && span.header == V2_LENGTH as u64 {
            emit_mark(Mark::Command(ZmtpCommand::Other, span));
        } else if header.is_command {
            emit_mark(Mark::Command(name.command(), span));
        } else {
            // A message of several parts stays open until its last part.
            self.message_start = if header.more { Some(self.message_start.unwrap_or(start)) } else { None };
            emit_mark(Mark::Frame { span, more: header.more });
        }
    }

    /// Continues the search for the start of a frame, after a gap or an invalid header. Returns the number of bytes it took.
    fn search_boundary(&mut self, bytes: &[u8], emit_mark: &mut impl FnMut(Mark)) -> ConsumedBytes {
        // Called in this state only.
        let ScannerState::Seeking(search) = &mut self.state else { return 0 };
        let Some(boundary) = search.feed(bytes) else {
            self.fed_bytes += bytes.len() as u64;
            if search.is_exhausted() {
                self.stop_reading(Opaque::Unframed, emit_mark);
            }
            return bytes.len();
        };
        self.fed_bytes = boundary.at;
        self.state = BEFORE_HEADER;
        emit_mark(Mark::Synced { at: boundary.at });
        // The search has held back the bytes from the boundary on.
        self.feed(&boundary.buffer, emit_mark);
        boundary.consumed
    }
}
