//! Observer of one direction of a ZMTP connection: scans bytes as they are read and reports messages as they are written.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use trace::MonoNs;
use trace::event::MissedCause;

use super::assembly::{AssembledMessage, MessageAssembly};
use super::journal::{Journal, Reporter};
use super::observation::{Direction, NotKept, Observed, Payload, Unread};
use super::stream_window::{StreamSlice, StreamWindow};
use crate::zmtp::{Opaque, PendingMessage, Scanner};

/// Observer of the bytes of one direction while they are copied. It neither delays nor changes them.
pub(super) trait StreamObserver {
    /// Position of the incomplete message, whose bytes the window must keep.
    fn message_to_keep(&mut self) -> PendingMessage;

    /// Notes that the window could not keep those bytes.
    fn note_discarded_message(&mut self);

    /// Observes bytes that were just read. `is_kept`: the window holds them, and all earlier bytes that [`Self::message_to_keep`] asked
    /// for.
    fn observe_read(&mut self, bytes: &[u8], at: MonoNs, is_kept: bool);

    /// Counts `count` bytes that have been written, and reports them or their messages.
    fn observe_written(&mut self, window: &mut StreamWindow, count: usize, at: MonoNs);

    /// Notes that the sink accepted none or only a part of the bytes. Does nothing by default.
    fn note_short_write(&mut self) {}

    /// Whether data went this way that a reset of the other side can discard.
    fn has_relayed(&self) -> bool;
}

/// Observer of one direction of a ZMTP connection.
#[derive(Debug)]
pub(super) struct ZmtpWatch {
    reporter: Reporter,
    scanner: Scanner,
    assembly: MessageAssembly,
    /// Number of the next message.
    seq: u64,
    /// A part of the stream could not be read.
    has_unreadable_part: bool,
}

impl ZmtpWatch {
    /// Creates an observer of a stream from its greeting on, which reports to `journal`.
    pub(super) fn new(journal: Arc<Journal>, direction: Direction) -> Self {
        let options = &journal.shared.options;
        let assembly = MessageAssembly::new(options.max_frame_bytes, options.max_parts);
        // After an invalid header, a message of one of the formats shows where frames begin again.
        let scanner = Scanner::from_greeting().recovering(options.formats, options.max_frame_bytes);
        Self { reporter: Reporter::new(journal, direction), scanner, assembly, seq: 0, has_unreadable_part: false }
    }

    /// Reports a message whose last byte was written at `written_at`. Its bytes are a part of `written`.
    fn report_frame(&mut self, message: AssembledMessage, written: &StreamSlice, written_at: MonoNs) {
        let seq = self.seq;
        self.seq += 1;
        self.reporter.report_or_count(Observed::Frame {
            direction: self.reporter.direction,
            seq,
            read_at: message.read_at,
            written_at,
            bytes: message.bytes,
            payload: payload_of_message(message, written),
        });
    }

    /// Reports that the stream, or a stretch of it, could not be read, and why. Also reports its messages as lost, if it may have had any.
    fn report_unread(&mut self, why: Unread) {
        self.has_unreadable_part = true;
        self.reporter.journal.push_rare_observation(Observed::Unread(self.reporter.direction, why));
        // A peer that does not speak ZMTP had no messages to lose. A stretch that stays unframed was reported when it began.
        let has_no_new_loss = matches!(why, Unread::Opaque(Opaque::NotZmtp | Opaque::Unframed));
        if !has_no_new_loss {
            // The messages of a stretch cannot be counted, so the stretch counts as one.
            self.reporter.report_lost_messages(1, MissedCause::Unframed);
        }
    }
}

/// The bytes of a message, which are a part of `written` if they were kept.
fn payload_of_message(message: AssembledMessage, written: &StreamSlice) -> Payload {
    let earlier_parts = match message.earlier_parts {
        Ok(earlier_parts) => earlier_parts,
        Err(why) => return Payload::NotKept(why),
    };
    let payload = if earlier_parts.is_empty() {
        written.bytes_at_offsets(message.last_part).map(Payload::Whole)
    } else {
        bytes_of_parts(earlier_parts, message.last_part, written).map(Payload::Multipart)
    };
    // What is no longer in the window was discarded for the budget.
    payload.unwrap_or(Payload::NotKept(NotKept::Budget))
}

/// The bytes of each part of a message. `None` if those of a part are not in `written`.
#[inline]
fn bytes_of_parts(earlier_parts: Vec<Range<u64>>, last_part: Range<u64>, written: &StreamSlice) -> Option<Vec<Bytes>> {
    let mut parts = Vec::with_capacity(earlier_parts.len() + 1);
    for part in earlier_parts {
        parts.push(written.bytes_at_offsets(part)?);
    }
    parts.push(written.bytes_at_offsets(last_part)?);
    Some(parts)
}

impl StreamObserver for ZmtpWatch {
    /// Position of the incomplete message, whose bytes the window must keep. A position behind all bytes if there is none, or if that
    /// message is not kept.
    fn message_to_keep(&mut self) -> PendingMessage {
        if let Some(pending) = self.scanner.pending() {
            // Its header may show only now that it is too long to be kept.
            self.assembly.discard_if_too_large(pending);
            if self.assembly.is_message_kept() {
                return pending;
            }
        }
        // Nothing read so far is needed.
        PendingMessage { start: self.scanner.position(), frame_end: None }
    }

    /// Marks the bytes of the incomplete message, if there is one, as not kept.
    fn note_discarded_message(&mut self) {
        if self.scanner.pending().is_some() {
            self.assembly.discard_message(NotKept::Budget);
        }
    }

    /// Scans the bytes for messages. Reports a part of the stream that cannot be read, and a rejected connection.
    fn observe_read(&mut self, bytes: &[u8], at: MonoNs, is_kept: bool) {
        let Self { scanner, assembly, .. } = self;
        scanner.feed(bytes, &mut |mark| assembly.apply_mark(mark, at, is_kept));
        if !is_kept {
            self.note_discarded_message();
        }
        // Taken, because a report changes `self`.
        for why in std::mem::take(&mut self.assembly.unread) {
            self.report_unread(why);
        }
        if self.assembly.is_rejected {
            // Cleared, so that it is reported once.
            self.assembly.is_rejected = false;
            self.reporter.journal.push_rare_observation(Observed::Rejected(self.reporter.direction));
        }
    }

    /// Counts the written bytes, and reports the messages whose last byte is written now.
    fn observe_written(&mut self, window: &mut StreamWindow, count: usize, at: MonoNs) {
        self.reporter.count_relayed_bytes(count);
        let mut completed = 0;
        let mut end_of_last_message = 0;
        for message in &self.assembly.complete {
            let is_written = message.last_part.end <= window.written();
            if !is_written {
                break;
            }
            completed += 1;
            end_of_last_message = message.last_part.end;
        }
        if completed == 0 {
            return;
        }
        // Their bytes leave the window together, and each message gets its part of them.
        let written = window.take_bytes_before(end_of_last_message);
        for _ in 0..completed {
            if let Some(message) = self.assembly.complete.pop_front() {
                self.report_frame(message, &written, at);
            }
        }
        let counters = &self.reporter.journal.shared.counters;
        match self.reporter.direction {
            Direction::Forward => counters.frames_forward.add(completed),
            Direction::Backward => counters.frames_backward.add(completed),
        }
    }

    /// Whether the stream had a message, the beginning of one, or an unreadable part that may have had some.
    fn has_relayed(&self) -> bool {
        self.seq > 0 || self.has_unreadable_part || self.scanner.pending().is_some()
    }
}

impl Drop for ZmtpWatch {
    /// Reports a message that the end of the stream has cut short.
    fn drop(&mut self) {
        if self.scanner.pending().is_some() {
            self.reporter.report_lost_messages(1, MissedCause::CutShort);
        }
    }
}
