//! Observer of one direction of an HTTP connection. The server's bytes are queued as they are and parsed elsewhere; the clients' bytes are
//! not observed.

use std::sync::Arc;

use trace::MonoNs;
use trace::event::LostCause;

use super::journal::Journal;
use super::observation::{Direction, Observation};
use super::watch::Onlooker;
use super::window::{Keep, Window};

/// Observer of one direction of an HTTP connection.
#[derive(Debug)]
pub(super) struct Bytewise {
    journal: Arc<Journal>,
    direction: Direction,
    /// The window holds the bytes of the last read.
    kept: bool,
    carried: bool,
    /// Number of unreported stretches of bytes since the last `Lost`.
    untold: u64,
}

impl Bytewise {
    pub(super) fn new(journal: Arc<Journal>, direction: Direction) -> Self {
        Self {
            journal,
            direction,
            kept: true,
            carried: false,
            untold: 0,
        }
    }

    fn is_told(&self) -> bool {
        self.direction == Direction::Backward
    }

    /// Reports unreported bytes, if there are any. Returns false if the queue is still full.
    fn tell_untold(&mut self) -> bool {
        if self.untold > 0 && self.journal.tell(self.lost()).is_ok() {
            self.untold = 0;
        }
        self.untold == 0
    }

    fn lost(&self) -> Observation {
        Observation::Lost {
            pair: self.journal.pair,
            direction: self.direction,
            lane: self.journal.lane,
            count: self.untold,
            cause: LostCause::QueueFull,
        }
    }
}

impl Onlooker for Bytewise {
    fn keep(&mut self) -> Keep {
        // Nothing is kept after it is written: the reader of the observations joins events that span several writes.
        Keep {
            from: u64::MAX,
            frame_end: None,
        }
    }

    fn forget(&mut self) {}

    fn read(&mut self, _bytes: &[u8], _at: MonoNs, kept: bool) {
        self.kept = kept;
    }

    fn wrote(&mut self, window: &mut Window, at: MonoNs) {
        self.carried = true;
        if !self.is_told() {
            return;
        }
        let told = self.kept && self.tell_untold() && {
            let (_, bytes) = window.cut(window.written());
            let (pair, lane) = (self.journal.pair, self.journal.lane);
            let passed = Observation::Passed { pair, lane, at, bytes };
            self.journal.tell(passed).is_ok()
        };
        if !told {
            self.untold += 1;
            self.journal.shared.counters.passed_untold.add(1);
        }
    }

    fn held_up(&mut self) {
        if self.is_told() {
            let (pair, lane) = (self.journal.pair, self.journal.lane);
            // Deliveries do not depend on this observation, so it may be dropped.
            let _ = self.journal.tell(Observation::HeldUp { pair, lane });
        }
    }

    fn count(&self, bytes: usize) {
        self.journal.count(self.direction, bytes);
    }

    fn has_carried(&self) -> bool {
        // A client that is gone needs no more data, and a reset reports its end to the server.
        self.is_told() && self.carried
    }
}

impl Drop for Bytewise {
    fn drop(&mut self) {
        if self.untold > 0 {
            self.journal.insist(self.lost());
        }
    }
}
