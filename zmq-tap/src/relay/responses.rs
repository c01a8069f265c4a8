//! Observer of one direction of an HTTP connection. The server's bytes are queued as they are and parsed elsewhere; the clients' bytes are
//! not observed.

use std::sync::Arc;

use trace::MonoNs;
use trace::event::MissedCause;

use super::journal::Journal;
use super::observation::{Direction, Observation};
use super::watch::Observer;
use super::window::{Keep, Window};

/// Observer of one direction of an HTTP connection.
#[derive(Debug)]
pub(super) struct ByteWatch {
    journal: Arc<Journal>,
    direction: Direction,
    /// The window holds the bytes of the last read.
    kept: bool,
    relayed: bool,
    /// Number of unreported stretches of bytes since the last `Lost`.
    unreported: u64,
}

impl ByteWatch {
    pub(super) fn new(journal: Arc<Journal>, direction: Direction) -> Self {
        Self { journal, direction, kept: true, relayed: false, unreported: 0 }
    }

    fn is_reported(&self) -> bool {
        self.direction == Direction::Backward
    }

    /// Reports unreported bytes, if there are any. Returns false if the queue is still full.
    fn report_missed(&mut self) -> bool {
        if self.unreported > 0 && self.journal.push(self.lost()).is_ok() {
            self.unreported = 0;
        }
        self.unreported == 0
    }

    fn lost(&self) -> Observation {
        Observation::Lost {
            pair: self.journal.pair,
            direction: self.direction,
            lane: self.journal.lane,
            count: self.unreported,
            cause: MissedCause::QueueFull,
        }
    }
}

impl Observer for ByteWatch {
    fn keep(&mut self) -> Keep {
        // Nothing is kept after it is written: the reader of the observations joins events that span several writes.
        Keep { from: u64::MAX, frame_end: None }
    }

    fn forget(&mut self) {}

    fn read(&mut self, _bytes: &[u8], _at: MonoNs, kept: bool) {
        self.kept = kept;
    }

    fn wrote(&mut self, window: &mut Window, at: MonoNs) {
        self.relayed = true;
        if !self.is_reported() {
            return;
        }
        let reported = self.kept && self.report_missed() && {
            let (_, bytes) = window.cut(window.written());
            let (pair, lane) = (self.journal.pair, self.journal.lane);
            let passed = Observation::Passed { pair, lane, at, bytes };
            self.journal.push(passed).is_ok()
        };
        if !reported {
            self.unreported += 1;
            self.journal.shared.counters.ranges_unreported.add(1);
        }
    }

    fn short_writes(&mut self) {
        if self.is_reported() {
            let (pair, lane) = (self.journal.pair, self.journal.lane);
            // Deliveries do not depend on this observation, so it may be dropped.
            let _ = self.journal.push(Observation::HeldUp { pair, lane });
        }
    }

    fn count(&self, bytes: usize) {
        self.journal.count(self.direction, bytes);
    }

    fn has_relayed(&self) -> bool {
        // A client that is gone needs no more data, and a reset reports its end to the server.
        self.is_reported() && self.relayed
    }
}

impl Drop for ByteWatch {
    fn drop(&mut self) {
        if self.unreported > 0 {
            self.journal.push_rare(self.lost());
        }
    }
}
