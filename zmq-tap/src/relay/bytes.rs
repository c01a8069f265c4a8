//! Observer of one direction of a connection without ZMTP. The server's bytes are queued as they are and parsed elsewhere; the clients' bytes
//! are not observed.

use std::sync::Arc;

use trace::MonoNs;

use super::journal::{Journal, Reporter};
use super::observation::{Direction, Observed};
use super::watch::Observer;
use super::window::Window;
use crate::zmtp::Pending;

/// Observer of one direction of a connection without ZMTP.
#[derive(Debug)]
pub(super) struct ByteWatch {
    reporter: Reporter,
    /// The window holds the bytes of the last read.
    kept: bool,
    relayed: bool,
}

impl ByteWatch {
    pub(super) fn new(journal: Arc<Journal>, direction: Direction) -> Self {
        Self { reporter: Reporter::new(journal, direction), kept: true, relayed: false }
    }

    fn is_reported(&self) -> bool {
        self.reporter.direction == Direction::Backward
    }
}

impl Observer for ByteWatch {
    fn keep(&mut self) -> Pending {
        // Nothing is kept after it is written: the reader of the observations joins events that span several writes.
        Pending { start: u64::MAX, frame_end: None }
    }

    fn forget(&mut self) {}

    fn read(&mut self, _bytes: &[u8], _at: MonoNs, kept: bool) {
        self.kept = kept;
    }

    fn wrote(&mut self, window: &mut Window, count: usize, at: MonoNs) {
        self.reporter.count(count);
        self.relayed = true;
        if self.is_reported() {
            let passed = self.kept.then(|| Observed::Passed { at, bytes: window.cut(window.written()).1 });
            self.reporter.report(passed);
        }
    }

    fn short_writes(&mut self) {
        if self.is_reported() {
            // Deliveries do not depend on this observation, so it may be dropped.
            let _ = self.reporter.journal.push(Observed::HeldUp);
        }
    }

    fn has_relayed(&self) -> bool {
        // A client that is gone needs no more data, and a reset reports its end to the server.
        self.is_reported() && self.relayed
    }
}
