//! Frames of a stream that is joined at any byte and may have holes, with the bytes that identify each frame.

use super::scanner::{Mark, Scanner, Span};
use super::{Opaque, header};
use adapter::decode::Format;

/// Number of bytes kept of each end of a longer body.
const END_BYTES: usize = 2048;
/// Number of bytes kept of a frame: its header and both ends of its body.
const MAX_KEPT_BYTES: usize = header::MAX_HEADER_BYTES + 2 * END_BYTES;

/// A complete frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Length of the body.
    pub bytes: u64,
    /// More parts of the same message follow.
    pub more: bool,
    /// The body, or the first and the last half of 4,096 bytes of a longer one.
    pub payload: &'a [u8],
}

/// Element of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element<'a> {
    /// A frame ends here.
    Frame(Frame<'a>),
    /// Frames from here on are not reported until [`Element::Found`].
    Lost {
        /// Whether the position of frames was known before.
        proven: bool,
    },
    /// A frame begins here, and all frames from it on are reported.
    Found,
}

/// Whether the element is a frame that the receiver knows. Means nothing for other elements.
type IsKnownFrame = bool;

/// Knowledge about the position of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// The stream was presumably joined between two frames. The first known frame proves it.
    Presumed,
    /// Known.
    Proven,
    /// Unknown, until a frame of a known format is found.
    Searched,
    /// No frame can be found in this stream.
    Unreadable(Opaque),
}

/// Reader of one direction of a connection.
#[derive(Clone, Debug)]
pub struct FrameReader {
    scanner: Scanner,
    /// Searches the same bytes while the position is presumed, to find a contradiction.
    search: Option<Scanner>,
    assembly: FrameAssembly,
}

impl FrameReader {
    /// Creates a reader of a stream that is presumably joined between two frames. Beside the reader, a search of the same bytes tests that
    /// presumption.
    pub fn new(formats: &'static [Format]) -> Self {
        Self {
            scanner: Scanner::between_frames(formats),
            search: Some(Scanner::mid_stream(formats)),
            assembly: FrameAssembly {
                framing: Framing::Presumed,
                has_unknown_frame: false,
                // No bytes yet, so both offsets are that of the first byte.
                kept: Vec::new(),
                kept_start: 0,
                kept_end: 0,
            },
        }
    }

    /// Knowledge about the position of frames.
    pub fn framing(&self) -> Framing {
        self.assembly.framing
    }

    /// Processes a hole in the stream: the bytes before the next ones were not seen. Does nothing if the stream is unreadable anyway.
    pub fn record_hole(&mut self, on_element: &mut impl FnMut(Element<'_>) -> IsKnownFrame) {
        if !matches!(self.assembly.framing, Framing::Unreadable(_)) {
            self.assembly.lose_and_report_framing(on_element);
            self.assembly.forget_all_bytes(self.scanner.position());
            self.scanner.search_next_frame();
        }
    }

    /// Processes the next bytes. `on_element` returns whether it knows the frame. A stream that is joined midway is presumed to begin with
    /// a frame. The first known frame proves that, and a search that finds frames elsewhere disproves it.
    pub fn feed(&mut self, bytes: &[u8], on_element: &mut impl FnMut(Element<'_>) -> IsKnownFrame) {
        let Self { scanner, assembly, .. } = self;
        let bytes_start = scanner.position();
        scanner.feed(bytes, &mut |mark| assembly.apply_mark(mark, bytes, bytes_start, on_element));
        assembly.keep_bytes_up_to(bytes, bytes_start, scanner.position());
        if assembly.framing != Framing::Presumed {
            // Nothing is left to test.
            self.search = None;
        } else if self.search_disproves_presumption(bytes) {
            self.record_hole(on_element);
        }
    }

    /// Searches these bytes for frames, independently of the position where frames are presumed to begin. Returns whether they speak
    /// against that position.
    #[inline]
    fn search_disproves_presumption(&mut self, bytes: &[u8]) -> bool {
        let Some(search) = &mut self.search else { return false };
        let presumed_start = self.scanner.pending().map(|pending| pending.start);
        // A frame at the presumed position that is not known speaks against that position.
        let mut is_wrong = self.assembly.has_unknown_frame;
        search.feed(bytes, &mut |mark| match mark {
            Mark::Synced { at } => is_wrong |= Some(at) != presumed_start,
            // The search has found nothing. Without it, the presumption would stay untested.
            Mark::Opaque(_) => is_wrong = true,
            _ => {}
        });
        is_wrong
    }
}

/// The incomplete frame, or the latest bytes of a search.
#[derive(Clone, Debug)]
struct FrameAssembly {
    framing: Framing,
    /// A frame at a presumed position was not known.
    has_unknown_frame: bool,
    /// Beginning and end of the bytes from offset `kept_start` to offset `kept_end`.
    kept: Vec<u8>,
    /// Stream offset of the first kept byte.
    kept_start: u64,
    /// Stream offset after the last kept byte.
    kept_end: u64,
}

impl FrameAssembly {
    /// Processes an element of the stream, `mark`, which the scanner has found in `bytes`. They begin at the stream offset `bytes_start`.
    /// Calls `on_element` for a frame, and where the position of frames is found or lost. For a frame, `on_element` returns whether it
    /// knows the frame; for other elements, its result is ignored.
    fn apply_mark(
        &mut self,
        mark: Mark,
        bytes: &[u8],
        bytes_start: u64,
        on_element: &mut impl FnMut(Element<'_>) -> IsKnownFrame,
    ) {
        match mark {
            Mark::Frame { span, more } => {
                self.keep_bytes_up_to(bytes, bytes_start, span.end);
                self.report_frame(span, more, on_element);
                self.forget_all_bytes(span.end);
            }
            Mark::Command(_, span) => self.forget_all_bytes(span.end),
            Mark::Synced { at } => {
                self.forget_bytes_before_frame(at);
                self.framing = Framing::Proven;
                on_element(Element::Found);
            }
            Mark::Garbage { .. } => self.lose_and_report_framing(on_element),
            Mark::Opaque(why) => {
                self.lose_and_report_framing(on_element);
                self.framing = Framing::Unreadable(why);
            }
        }
    }

    /// Reports a complete frame, whose header and body are the kept bytes. If `on_element` knows the frame, the presumed position of frames
    /// is proven.
    fn report_frame(&mut self, span: Span, more: bool, on_element: &mut impl FnMut(Element<'_>) -> IsKnownFrame) {
        let header_bytes = (span.body - span.header) as usize;
        let payload = self.kept.get(header_bytes..).unwrap_or_default();
        let is_known = on_element(Element::Frame(Frame { bytes: span.end - span.body, more, payload }));
        if is_known && self.framing == Framing::Presumed {
            self.framing = Framing::Proven;
        }
        self.has_unknown_frame |= !is_known;
    }

    /// Marks the stream as one whose frames are not found any more, and reports this to `on_element`, if they were found until now. The
    /// result of `on_element` means nothing here.
    fn lose_and_report_framing(&mut self, on_element: &mut impl FnMut(Element<'_>) -> IsKnownFrame) {
        if matches!(self.framing, Framing::Presumed | Framing::Proven) {
            let proven = self.framing == Framing::Proven;
            self.framing = Framing::Searched;
            on_element(Element::Lost { proven });
        }
    }

    /// Keeps the bytes up to the stream offset `end`. They belong to the incomplete frame, or a frame is searched in them. `bytes` begins
    /// at the stream offset `bytes_start`, and its front may be kept already. Of a long frame, keeps only both ends.
    fn keep_bytes_up_to(&mut self, bytes: &[u8], bytes_start: u64, end: u64) {
        // Indexes in `bytes`.
        let first_new = self.kept_end.saturating_sub(bytes_start) as usize;
        let end_of_new = (end - bytes_start) as usize;
        // `None` if more than that is kept already.
        let Some(new_bytes) = bytes.get(first_new..end_of_new) else { return };
        self.kept.extend_from_slice(new_bytes);
        self.kept_end = end;
        // A peer may send a frame of any length.
        let surplus = self.kept.len().saturating_sub(MAX_KEPT_BYTES);
        if surplus == 0 {
            return;
        }
        if self.framing == Framing::Searched {
            // While searching, only the latest bytes can belong to the next frame.
            self.kept.drain(..surplus);
            self.kept_start = end - MAX_KEPT_BYTES as u64;
        } else {
            // Both ends of a frame are kept, and what lies between them is dropped.
            let front = header::MAX_HEADER_BYTES + END_BYTES;
            self.kept.drain(front..front + surplus);
        }
    }

    /// Forgets the kept bytes before offset `frame_start`, where a frame begins.
    #[inline]
    fn forget_bytes_before_frame(&mut self, frame_start: u64) {
        let begins_in_kept_bytes = (self.kept_start..self.kept_end).contains(&frame_start);
        if begins_in_kept_bytes {
            let bytes_before = (frame_start - self.kept_start) as usize;
            self.kept.drain(..self.kept.len().min(bytes_before));
            self.kept_start = frame_start;
        } else {
            self.forget_all_bytes(frame_start);
        }
    }

    /// Forgets all kept bytes. The next byte to keep is at `next_offset`.
    fn forget_all_bytes(&mut self, next_offset: u64) {
        self.kept.clear();
        self.kept_start = next_offset;
        self.kept_end = next_offset;
    }
}
