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
/// Bytes added at a time, to keep the held buffer small.
const PIECE: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct AnchorCandidate {
    /// Offset where the next header must be.
    end: u64,
    /// Required value of the byte before that header.
    tail: Option<u8>,
}

#[derive(Clone, Debug)]
pub(super) struct BoundarySearch {
    /// Bytes without a decision yet; the first is at stream offset `at`.
    buffer: Vec<u8>,
    at: u64,
    /// The byte before `buffer`.
    before: Option<u8>,
    candidates: Vec<AnchorCandidate>,
    /// Nearest `end` of all candidates.
    nearest: u64,
    max_frame_bytes: u64,
    formats: &'static [Format],
    start_at: u64,
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
    /// `at` is the stream offset of the next byte. Frames longer than `max_frame_bytes` are not considered.
    pub(super) fn new(at: u64, max_frame_bytes: u64, formats: &'static [Format]) -> Self {
        Self {
            buffer: Vec::new(),
            at,
            before: None,
            candidates: Vec::new(),
            nearest: u64::MAX,
            max_frame_bytes,
            formats,
            start_at: at,
        }
    }

    /// As [`Self::new`], but a single anchor suffices at the first byte.
    pub(super) fn from_boundary(at: u64, max_frame_bytes: u64, formats: &'static [Format]) -> Self {
        let mut search = Self::new(at, max_frame_bytes, formats);
        search.add_candidate(at, None);
        search
    }

    /// Whether the search is long enough to rule out messages of the formats. Searching costs more than framing.
    pub(super) fn is_exhausted(&self) -> bool {
        self.at - self.start_at > self.max_frame_bytes.saturating_mul(4)
    }

    /// Searches the next bytes. Returns the boundary once it is certain.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Option<FrameBoundary> {
        let mut consumed = 0;
        // In pieces, so that a large read is not buffered whole.
        for piece in bytes.chunks(PIECE) {
            self.buffer.extend_from_slice(piece);
            consumed += piece.len();
            if let Some(start) = self.search_buffer() {
                return Some(FrameBoundary {
                    at: self.at + start as u64,
                    buffer: self.buffer.split_off(start),
                    consumed,
                });
            }
        }
        None
    }

    /// Decides on as many positions as possible. Returns the index in `buffer` of a proved header.
    fn search_buffer(&mut self) -> Option<usize> {
        let mut start = 0;
        while let Some(&first) = self.buffer.get(start) {
            let at = self.at + start as u64;
            // Only a few byte values can begin a header, and few positions are the end of a candidate.
            if may_begin_with(first) || at == self.nearest {
                match self.test_position(at, start) {
                    PositionTest::Boundary => return Some(start),
                    PositionTest::NoBoundary => {}
                    PositionTest::NeedsBytes => break,
                }
                if at == self.nearest {
                    self.candidates.retain(|candidate| candidate.end > at);
                    self.update_nearest();
                }
            }
            start += 1;
        }
        if start > 0 {
            self.before = Some(self.buffer[start - 1]);
        }
        self.buffer.drain(..start);
        self.at += start as u64;
        None
    }

    /// Tests the offset `at`, which is `buffer[start]`. If a frame may begin there, its end becomes a candidate.
    fn test_position(&mut self, at: u64, start: usize) -> PositionTest {
        let rest = &self.buffer[start..];
        let is_expected = at == self.nearest && self.completes_candidate(at, start);
        let mut test = test_anchor(rest, self.max_frame_bytes, self.formats);
        if is_expected && matches!(test, FrameTest::Yes { .. }) {
            return PositionTest::Boundary;
        }
        if is_expected && test == FrameTest::No {
            // Heartbeats may occur between two messages.
            test = test_heartbeat(rest);
        }
        match test {
            FrameTest::More => PositionTest::NeedsBytes,
            FrameTest::No => PositionTest::NoBoundary,
            FrameTest::Yes { length, tail } => {
                self.add_candidate(at.saturating_add(length), tail);
                PositionTest::NoBoundary
            }
        }
    }

    /// Whether a candidate ends at the offset `at`, which is `buffer[start]`, with the last byte that it must have.
    fn completes_candidate(&self, at: u64, start: usize) -> bool {
        let byte_before = if start > 0 { Some(self.buffer[start - 1]) } else { self.before };
        self.candidates
            .iter()
            .any(|candidate| candidate.end == at && (candidate.tail.is_none() || candidate.tail == byte_before))
    }

    /// Adds a place at which a frame may end.
    fn add_candidate(&mut self, end: u64, tail: Option<u8>) {
        self.candidates.push(AnchorCandidate { end, tail });
        if self.candidates.len() > MAX_CANDIDATES {
            // The farthest one takes longest to be confirmed.
            let farthest = (0..self.candidates.len()).max_by_key(|&index| self.candidates[index].end);
            if let Some(index) = farthest {
                self.candidates.swap_remove(index);
            }
        }
        self.update_nearest();
    }

    fn update_nearest(&mut self) {
        self.nearest = self.candidates.iter().map(|candidate| candidate.end).min().unwrap_or(u64::MAX);
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

/// Whether a heartbeat command begins at the front of `bytes`.
fn test_heartbeat(bytes: &[u8]) -> FrameTest {
    let Some((&SHORT_COMMAND, rest)) = bytes.split_first() else { return FrameTest::No };
    let Some((&length, body)) = rest.split_first() else { return FrameTest::More };
    // Real ones are shorter, and a shorter range deceives less often.
    if !(HEARTBEAT_NAME_BYTES..128).contains(&usize::from(length)) {
        return FrameTest::No;
    }
    let mut name = CommandName::default();
    name.append(body);
    if name.command() == ZmtpCommand::Heartbeat {
        FrameTest::Yes { length: 2 + u64::from(length), tail: None }
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

/// Whether an anchor may begin with this byte: only single-part messages, with flags 0 (short) or 2 (long).
fn may_begin_with(flags: u8) -> bool {
    // The last frame of a message: only the flag of a long one may be set.
    flags & !2 == 0
}

/// Tests for an anchor at the front of `bytes`. Bodies longer than `max_frame_bytes` are rejected.
fn test_anchor(bytes: &[u8], max_frame_bytes: u64, formats: &[Format]) -> FrameTest {
    let Some(&flags) = bytes.first() else { return FrameTest::More };
    if !may_begin_with(flags) {
        return FrameTest::No;
    }
    let body_at = if flags == 0 { 2 } else { header::MAX_HEADER_BYTES };
    // Rejects nearly all positions by one byte.
    if let Some(&first) = bytes.get(body_at)
        && !formats.iter().any(|format| (format.may_begin_with)(first))
    {
        return FrameTest::No;
    }
    let header = match header::parse_header(bytes, ZmtpVersion::V3) {
        Ok(Some(header)) if header.length <= max_frame_bytes => header,
        Ok(None) => return FrameTest::More,
        _ => return FrameTest::No,
    };
    let body = &bytes[header.size..];
    let mut verdict = FrameTest::No;
    for format in formats {
        match (format.opening)(body, header.length) {
            Opening::No => {}
            Opening::More => verdict = FrameTest::More,
            Opening::Yes(tail) => {
                return FrameTest::Yes { length: header.size as u64 + header.length, tail };
            }
        }
    }
    verdict
}
