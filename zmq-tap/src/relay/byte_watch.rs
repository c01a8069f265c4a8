//! Observer of one direction of a connection without ZMTP. The server's bytes are queued as they are and parsed elsewhere; the clients'
//! bytes are not observed.

use std::sync::Arc;

use trace::MonoNs;

use super::journal::{Journal, Reporter};
use super::observation::{Direction, Observed};
use super::stream_window::StreamWindow;
use super::zmtp_watch::StreamObserver;
use crate::zmtp::PendingMessage;

/// Observer of one direction of a connection without ZMTP.
#[derive(Debug)]
pub(super) struct ByteWatch {
    reporter: Reporter,
    /// The window holds the bytes of the last read.
    is_kept: bool,
    has_relayed: bool,
}

impl ByteWatch {
    /// Creates an observer that reports to `journal`.
    pub(super) fn new(journal: Arc<Journal>, direction: Direction) -> Self {
        Self { reporter: Reporter::new(journal, direction), is_kept: true, has_relayed: false }
    }

    /// Whether the server sends the bytes of this direction. Only these are reported, because only they have tokens.
    fn is_from_server(&self) -> bool {
        self.reporter.direction == Direction::Backward
    }
}

impl StreamObserver for ByteWatch {
    /// No bytes: they are reported as soon as they are written. The reader of the observations joins events that span several writes.
    fn message_to_keep(&mut self) -> PendingMessage {
        // This start is beyond any byte of the stream.
        PendingMessage { start: u64::MAX, frame_end: None }
    }

    /// Nothing is kept for a message, so nothing can be lost.
    fn note_discarded_message(&mut self) {}

    /// Remembers whether the window holds the bytes, which are reported once they are written.
    fn observe_read(&mut self, _bytes: &[u8], _at: MonoNs, is_kept: bool) {
        self.is_kept = is_kept;
    }

    /// Counts the written bytes, and reports them if the server sent them.
    fn observe_written(&mut self, window: &mut StreamWindow, count: usize, at: MonoNs) {
        self.reporter.count_relayed_bytes(count);
        self.has_relayed = true;
        if !self.is_from_server() {
            return;
        }
        // Without budget, the window no longer holds the bytes, so they can only be counted.
        if self.is_kept {
            let bytes = window.take_bytes_before(window.written()).bytes;
            self.reporter.report_or_count(Observed::Passed { at, bytes });
        } else {
            self.reporter.count_unreported();
        }
    }

    /// Reports that the client does not keep up with the server.
    fn note_short_write(&mut self) {
        if self.is_from_server() {
            // Deliveries do not depend on this observation, so it may be dropped.
            let _ = self.reporter.journal.push(Observed::HeldUp);
        }
    }

    fn has_relayed(&self) -> bool {
        // A client that is gone needs no more data, and a reset reports its end to the server.
        self.is_from_server() && self.has_relayed
    }
}
