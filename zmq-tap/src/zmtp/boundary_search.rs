//! Search for frame boundaries in a stream that is joined midway.
//!
//! An anchor is a header directly before a payload that begins like a message of a known engine. At one position of random bytes, a false
//! anchor must be less likely than 2^-30, of which the header's flags give 2^-7. One anchor proves nothing. When the length in its header
//! leads exactly to another anchor, framing begins at the second one, and the frame before it is lost: 2^-60 per position. Over a tebibyte
//! of random bytes that is one false sync in a million attempts. Payloads are not random, but a payload that deceives the check must hold
//! whole ZMTP frames of such messages back to back: a recording of a stream inside a stream.
//!
//! The search holds fewer bytes than one anchor needs, and at most [`MAX_CANDIDATES`] candidates.

use super::greeting::ZmtpVersion;
use super::header::{self, CommandName, ZmtpCommand};
use adapter::decode::{Format, Opening};

/// Limit of anchors that wait for a successor. The farthest ones are discarded first.
const MAX_CANDIDATES: usize = 64;
/// Length of a search, in frames of the maximum length.
const FRAMES_TO_SEARCH: u64 = 4;
/// Bytes added at a time, to keep the held buffer small.
const PIECE: usize = 4096;

/// A frame that may have been found: its end, where the next frame must begin.
#[derive(Clone, Copy, Debug)]
struct FrameCandidate {
    /// Offset where the next header must be.
    end: u64,
    /// Required value of the byte before that header.
    tail: Option<u8>,
}

/// A search in progress.
#[derive(Clone, Debug)]
pub(super) struct BoundarySearch {
    /// Bytes without a decision yet.
    buffer: Vec<u8>,
    /// Stream offset of the first byte in `buffer`.
    buffer_start: u64,
    /// The byte before `buffer`; `None` at the start of the search.
    byte_before: Option<u8>,
    candidates: Vec<FrameCandidate>,
    /// Nearest `end` of all candidates.
    nearest_end: u64,
    max_frame_bytes: u64,
    formats: &'static [Format],
    /// Stream offset at which the search began.
    search_start: u64,
}

/// Position where framing begins.
pub(super) struct FrameBoundary {
    /// Stream offset of a frame's header.
    pub(super) at: u64,
    /// Bytes of the stream from there to the end of the consumed input.
    pub(super) buffer: Vec<u8>,
    /// Number of bytes consumed from the input slice.
    pub(super) consumed: usize,
}

impl BoundarySearch {
    /// Begins a search. `start_offset` is the stream offset of the next byte. Frames longer than `max_frame_bytes` are not considered.
    pub(super) fn new(start_offset: u64, max_frame_bytes: u64, formats: &'static [Format]) -> Self {
        Self {
            buffer: Vec::new(),
            buffer_start: start_offset,
            byte_before: None,
            candidates: Vec::new(),
            // No candidate ends anywhere yet.
            nearest_end: u64::MAX,
            max_frame_bytes,
            formats,
            search_start: start_offset,
        }
    }

    /// Begins a search at an offset where a frame may have ended. A frame of a known format that begins there proves the boundary on its
    /// own.
    pub(super) fn from_boundary(start_offset: u64, max_frame_bytes: u64, formats: &'static [Format]) -> Self {
        let mut search = Self::new(start_offset, max_frame_bytes, formats);
        // As if the search had found a frame that ends there. Its last byte is not known, so any is accepted.
        search.add_candidate(start_offset, None);
        search
    }

    /// Whether the search has gone so far that messages of the formats are ruled out. It is given up then, because searching costs more
    /// than framing.
    pub(super) fn is_exhausted(&self) -> bool {
        self.buffer_start - self.search_start > self.max_frame_bytes.saturating_mul(FRAMES_TO_SEARCH)
    }

    /// Searches the next bytes for the start of a frame. Returns the position once it is certain, with the bytes from there on. `None`
    /// until then.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Option<FrameBoundary> {
        let mut consumed = 0;
        // In pieces, so that a large read is not buffered whole.
        for piece in bytes.chunks(PIECE) {
            self.buffer.extend_from_slice(piece);
            consumed += piece.len();
            if let Some(header_index) = self.find_boundary_index() {
                return Some(FrameBoundary {
                    at: self.buffer_start + header_index as u64,
                    buffer: self.buffer.split_off(header_index),
                    consumed,
                });
            }
        }
        None
    }

    /// Searches the buffer for the start of a frame that is certain, and returns its index. Bytes that look like a frame, a candidate, may
    /// occur by chance. So a frame is certain only if it begins directly behind a candidate. `None` if more bytes are needed; then the
    /// tested positions leave the buffer.
    fn find_boundary_index(&mut self) -> Option<usize> {
        let mut index = 0;
        while let Some(&first) = self.buffer.get(index) {
            let offset = self.buffer_start + index as u64;
            let is_end_of_candidate = offset == self.nearest_end;
            // Most positions need no test, because few byte values can begin a header.
            if may_begin_with(first) || is_end_of_candidate {
                match self.test_position_or_add_candidate(index) {
                    PositionTest::Boundary => return Some(index),
                    PositionTest::NoBoundary => {}
                    PositionTest::NeedsBytes => break,
                }
                // The position behind such a candidate is tested, so it is of no more use.
                if is_end_of_candidate {
                    self.forget_candidates_up_to(offset);
                }
            }
            index += 1;
        }
        self.forget_first_bytes(index);
        None
    }

    /// Removes the first `count` bytes from the buffer, because their positions are decided.
    #[inline]
    fn forget_first_bytes(&mut self, count: usize) {
        if count > 0 {
            // A candidate that ends directly before the buffer may require this byte.
            self.byte_before = Some(self.buffer[count - 1]);
        }
        self.buffer.drain(..count);
        self.buffer_start += count as u64;
    }

    /// Removes the candidates that end at `offset` or before, behind which a frame was looked for.
    #[inline]
    fn forget_candidates_up_to(&mut self, offset: u64) {
        self.candidates.retain(|candidate| candidate.end > offset);
        self.update_nearest_end();
    }

    /// Tests whether a frame certainly begins at `buffer[index]`. It must look like a message of a known format. And a candidate, which is
    /// a possible frame found earlier, must end directly before it. Without such a candidate, the frame becomes a candidate itself.
    fn test_position_or_add_candidate(&mut self, index: usize) -> PositionTest {
        let offset = self.buffer_start + index as u64;
        let rest = &self.buffer[index..];
        // Compared with the nearest end first, which is faster than with all candidates.
        let is_behind_candidate = offset == self.nearest_end && self.has_candidate_ending_before(index);
        let mut test = test_known_frame(rest, self.max_frame_bytes, self.formats);
        if is_behind_candidate {
            match test {
                FrameTest::Yes { .. } => return PositionTest::Boundary,
                // A heartbeat may stand between two messages. It becomes a candidate, so that the message behind it is certain.
                FrameTest::No => test = test_heartbeat(rest),
                FrameTest::More => {}
            }
        }
        match test {
            FrameTest::More => PositionTest::NeedsBytes,
            FrameTest::No => PositionTest::NoBoundary,
            FrameTest::Yes { length, tail } => {
                self.add_candidate(offset.saturating_add(length), tail);
                PositionTest::NoBoundary
            }
        }
    }

    /// Whether a candidate, which is a possible frame found earlier, ends directly before `buffer[index]`. Its format may require a certain
    /// last byte.
    fn has_candidate_ending_before(&self, index: usize) -> bool {
        let offset = self.buffer_start + index as u64;
        let byte_before = if index > 0 { Some(self.buffer[index - 1]) } else { self.byte_before };
        self.candidates.iter().any(|candidate| {
            let has_required_tail = candidate.tail.is_none() || candidate.tail == byte_before;
            candidate.end == offset && has_required_tail
        })
    }

    /// Adds a candidate: a possible frame that ends at `end_offset`. `required_last_byte` is `None` unless its format has a fixed one.
    fn add_candidate(&mut self, end_offset: u64, required_last_byte: Option<u8>) {
        self.candidates.push(FrameCandidate { end: end_offset, tail: required_last_byte });
        if self.candidates.len() > MAX_CANDIDATES {
            // The one with the farthest end takes longest to be confirmed.
            let farthest = (0..self.candidates.len()).max_by_key(|&index| self.candidates[index].end);
            if let Some(index) = farthest {
                self.candidates.swap_remove(index);
            }
        }
        self.update_nearest_end();
    }

    /// Sets the nearest end again after the candidates have changed.
    fn update_nearest_end(&mut self) {
        self.nearest_end = self.candidates.iter().map(|candidate| candidate.end).min().unwrap_or(u64::MAX);
    }
}

/// Whether framing begins at the tested position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PositionTest {
    /// A frame begins here, and another one ended here.
    Boundary,
    NoBoundary,
    /// Too few bytes to tell.
    NeedsBytes,
}

/// Tests whether a heartbeat command begins at the front of `bytes`, which are not empty. The command has a byte of flags, a byte with the
/// length of its body, and the body, which begins with its name. Only short commands are recognised.
fn test_heartbeat(bytes: &[u8]) -> FrameTest {
    let Some((&SHORT_COMMAND, rest)) = bytes.split_first() else { return FrameTest::No };
    let Some((&length, body)) = rest.split_first() else { return FrameTest::More };
    let is_plausible_length = (HEARTBEAT_NAME_BYTES..MAX_HEARTBEAT_BYTES).contains(&usize::from(length));
    if !is_plausible_length {
        return FrameTest::No;
    }
    let mut name = CommandName::default();
    name.append_from(body);
    if name.command() == ZmtpCommand::Heartbeat {
        FrameTest::Yes { length: SHORT_HEADER_BYTES as u64 + u64::from(length), tail: None }
    } else if body.len() < HEARTBEAT_NAME_BYTES {
        FrameTest::More
    } else {
        FrameTest::No
    }
}

/// Flags of a command with its length in one byte.
const SHORT_COMMAND: u8 = 4;
/// Bytes of `PING` or `PONG` with the length of the name before it.
const HEARTBEAT_NAME_BYTES: usize = 5;
/// Bodies of heartbeats are shorter. Real ones are far shorter, and a narrow range deceives less often.
const MAX_HEARTBEAT_BYTES: usize = 128;
/// Length of a header with a one-byte length.
const SHORT_HEADER_BYTES: usize = 2;

/// Whether a message frame begins at the tested position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FrameTest {
    /// No frame begins here.
    No,
    /// Too few bytes to tell.
    More,
    /// A frame begins here.
    Yes {
        /// Distance from the first byte of the header to the first byte after the body.
        length: u64,
        /// Required last byte of the body, if the codec defines one.
        tail: Option<u8>,
    },
}

/// Whether a searched frame may begin with this byte: only single-part messages, with flags 0 (short) or 2 (long).
fn may_begin_with(flags: u8) -> bool {
    matches!(flags, 0 | 2)
}

/// Tests whether a frame begins at the front of `bytes` whose body begins like a message of one of the formats. Bodies longer than
/// `max_frame_bytes` are rejected.
fn test_known_frame(bytes: &[u8], max_frame_bytes: u64, formats: &[Format]) -> FrameTest {
    let Some(&flags) = bytes.first() else { return FrameTest::More };
    if !may_begin_with(flags) {
        return FrameTest::No;
    }
    // Flags of 0 mean a length of one byte, and the other possible ones a length of eight.
    let body_index = if flags == 0 { SHORT_HEADER_BYTES } else { header::MAX_HEADER_BYTES };
    // Tested before the header is parsed, because the first byte of the body rejects nearly all positions.
    if let Some(&first) = bytes.get(body_index)
        && !formats.iter().any(|format| (format.may_begin_with)(first))
    {
        return FrameTest::No;
    }
    let header = match header::parse_header(bytes, ZmtpVersion::V3) {
        Ok(Some(header)) if header.length <= max_frame_bytes => header,
        Ok(None) => return FrameTest::More,
        // Longer than any frame of interest, or invalid.
        Ok(Some(_)) | Err(_) => return FrameTest::No,
    };
    let body = &bytes[header.size..];
    let frame_bytes = header.size as u64 + header.length;
    test_body(body, header.length, frame_bytes, formats)
}

/// Tests whether `body`, of which only the first bytes may be known, begins like a message of `body_bytes` bytes of one of the formats.
/// `frame_bytes`: length of its frame, the header included.
#[inline]
fn test_body(body: &[u8], body_bytes: u64, frame_bytes: u64, formats: &[Format]) -> FrameTest {
    let mut needs_bytes = false;
    for format in formats {
        match (format.opening)(body, body_bytes) {
            Opening::No => {}
            // Another format may be certain already.
            Opening::More => needs_bytes = true,
            Opening::Yes(tail) => return FrameTest::Yes { length: frame_bytes, tail },
        }
    }
    if needs_bytes { FrameTest::More } else { FrameTest::No }
}
