//! Reports about one connection: that it opened, what it carries, and how it ended, even if its task panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use trace::MonoNs;
use trace::event::MissedCause;

use super::RelayState;
use super::observation::{Direction, Ending, Observation, Observed};

/// Reporter for one connection. Dropping it reports that the connection is closed.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) shared: Arc<RelayState>,
    pair: u16,
    lane: u32,
    opened_at: MonoNs,
    /// The opening is reported.
    is_announced: AtomicBool,
    ending: Mutex<Option<(Ending, Option<Direction>)>>,
}

impl Journal {
    /// Begins the record of a connection, and reports that it was opened.
    pub(super) fn open(shared: Arc<RelayState>, pair: u16, lane: u32) -> Arc<Self> {
        let journal = Self {
            shared,
            pair,
            lane,
            opened_at: MonoNs::now(),
            is_announced: AtomicBool::new(false),
            ending: Mutex::new(None),
        };
        journal.report_opening();
        Arc::new(journal)
    }

    fn observation(&self, what: Observed) -> Observation {
        Observation { pair: self.pair, lane: self.lane, what }
    }

    /// Reports once that the connection opened. Returns false if the queue is full.
    fn report_opening(&self) -> bool {
        if !self.is_announced.load(Ordering::Relaxed) {
            let opened = self.observation(Observed::Opened(self.opened_at));
            self.is_announced.store(self.shared.observations.push(opened).is_ok(), Ordering::Relaxed);
        }
        self.is_announced.load(Ordering::Relaxed)
    }

    /// Queues an observation, or returns it if the queue is full.
    pub(super) fn push(&self, what: Observed) -> Result<(), Observation> {
        let observation = self.observation(what);
        if self.report_opening() { self.shared.observations.push(observation) } else { Err(observation) }
    }

    /// Queues a rare observation that must not be lost. If the queue is full, it is queued after all frames.
    pub(super) fn push_rare(&self, what: Observed) {
        let Err(observation) = self.push(what) else {
            return;
        };
        let opened = self.observation(Observed::Opened(self.opened_at));
        // Late observations are read in order, so this one precedes all others of its connection.
        let opened = (!self.is_announced.swap(true, Ordering::Relaxed)).then_some(opened);
        for late in opened.into_iter().chain([observation]) {
            if !self.shared.observations.push_late(late) {
                self.shared.counters.unreported.add(1);
            }
        }
    }

    /// Sets the cause of the connection's end and the side that ended first.
    pub(super) fn record_end(&self, why: Ending, first: Option<Direction>) {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = Some((why, first));
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let recorded = self.ending.lock().unwrap_or_else(PoisonError::into_inner).take();
        // No cause was set: the task panicked, or the relay dropped it.
        let unrecorded = if std::thread::panicking() { Ending::Panicked } else { Ending::Stopped };
        let (why, first) = recorded.unwrap_or((unrecorded, None));
        self.push_rare(Observed::Closed { at: MonoNs::now(), first, why });
    }
}

/// Reporter of one direction. It counts the observations that found the queue full.
#[derive(Debug)]
pub(super) struct Reporter {
    pub(super) journal: Arc<Journal>,
    pub(super) direction: Direction,
    /// Number of unreported messages, or stretches of bytes, since the last `Lost`.
    unreported: u64,
}

impl Reporter {
    pub(super) fn new(journal: Arc<Journal>, direction: Direction) -> Self {
        Self { journal, direction, unreported: 0 }
    }

    /// Queues an observation, behind the number of earlier ones that were not queued. `None` stands for bytes that were not kept.
    pub(super) fn report_observed(&mut self, what: Option<Observed>) {
        let queued = what.is_some_and(|what| {
            // The reader must learn of the gap before it gets what follows.
            if self.unreported > 0
                && self.journal.push(self.missed_observation(self.unreported, MissedCause::QueueFull)).is_ok()
            {
                self.unreported = 0;
            }
            self.unreported == 0 && self.journal.push(what).is_ok()
        });
        if !queued {
            self.unreported += 1;
            self.journal.shared.counters.dropped.add(1);
        }
    }

    /// Queues a loss, which must itself not be lost.
    pub(super) fn report_lost(&self, count: u64, cause: MissedCause) {
        if count > 0 {
            self.journal.push_rare(self.missed_observation(count, cause));
        }
    }

    fn missed_observation(&self, count: u64, cause: MissedCause) -> Observed {
        Observed::Lost { direction: self.direction, count, cause }
    }

    /// Counts bytes that were written in this direction.
    pub(super) fn count_relayed(&self, bytes: usize) {
        let counters = &self.journal.shared.counters;
        match self.direction {
            Direction::Forward => counters.bytes_forward.add(bytes as u64),
            Direction::Backward => counters.bytes_backward.add(bytes as u64),
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.report_lost(self.unreported, MissedCause::QueueFull);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::relay_options::RelayOptions;

    #[test]
    fn a_panic_is_reported_as_an_ending() {
        let shared = RelayState::new(RelayOptions::default());
        let task_shared = shared.clone();
        let task = std::thread::spawn(move || {
            let _journal = Journal::open(task_shared, 3, 7);
            panic!("on purpose");
        });
        assert!(task.join().is_err());
        let polled = || shared.observations.poll();
        assert!(matches!(polled(), Some(Observation { pair: 3, lane: 7, what: Observed::Opened(_) })));
        let last = polled();
        let closed =
            matches!(last, Some(Observation { lane: 7, what: Observed::Closed { why: Ending::Panicked, .. }, .. }));
        assert!(closed, "{last:?}");
    }
}
