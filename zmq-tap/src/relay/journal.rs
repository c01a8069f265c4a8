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
    /// The end that [`Self::record_end`] was told.
    end: Mutex<Option<ConnectionEnd>>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionEnd {
    pub(super) cause: Ending,
    /// The side that ended first; `None` if neither did.
    pub(super) first: Option<Direction>,
}

impl Journal {
    /// Creates the journal of a connection, and reports that the connection was opened. `lane` is the number of the connection among those
    /// of its pair.
    pub(super) fn open(shared: Arc<RelayState>, pair: u16, lane: u32) -> Arc<Self> {
        let journal = Self {
            shared,
            pair,
            lane,
            opened_at: MonoNs::now(),
            // Set once the opening is queued.
            is_announced: AtomicBool::new(false),
            end: Mutex::new(None),
        };
        // If the queue is full, the next observation reports the opening first.
        journal.try_report_opening();
        Arc::new(journal)
    }

    /// The observation that `what` happened on this connection.
    fn observation(&self, what: Observed) -> Observation {
        Observation { pair: self.pair, lane: self.lane, what }
    }

    /// Reports that the connection opened, unless it is reported already. Returns false if the queue is full.
    fn try_report_opening(&self) -> bool {
        if self.is_announced.load(Ordering::Relaxed) {
            return true;
        }
        let opened = self.observation(Observed::Opened(self.opened_at));
        let is_queued = self.shared.observations.push(opened).is_ok();
        self.is_announced.store(is_queued, Ordering::Relaxed);
        is_queued
    }

    /// Queues an observation, or returns it if the queue is full.
    pub(super) fn push(&self, what: Observed) -> Result<(), Observation> {
        let observation = self.observation(what);
        if self.try_report_opening() { self.shared.observations.push(observation) } else { Err(observation) }
    }

    /// Queues a rare observation that must not be lost. If the queue is full, it goes to a second queue, which is read after all frames.
    pub(super) fn push_rare_observation(&self, what: Observed) {
        // `Ok` means that it is queued like a frame.
        let Err(observation) = self.push(what) else { return };
        let was_announced = self.is_announced.swap(true, Ordering::Relaxed);
        if !was_announced {
            // The second queue is read in order, so the opening precedes all other observations of its connection.
            self.push_late_or_count(self.observation(Observed::Opened(self.opened_at)));
        }
        self.push_late_or_count(observation);
    }

    /// Queues an observation after all frames. Counts it as unreported if even that queue is full.
    fn push_late_or_count(&self, observation: Observation) {
        if !self.shared.observations.try_push_late(observation) {
            self.shared.counters.unreported.add(1);
        }
    }

    /// Sets the end that is reported when the journal is dropped.
    pub(super) fn record_end(&self, end: ConnectionEnd) {
        *self.end.lock().unwrap_or_else(PoisonError::into_inner) = Some(end);
    }
}

impl Drop for Journal {
    /// Reports that the connection has closed, and why.
    fn drop(&mut self) {
        let recorded = self.end.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Without a recorded end, the task panicked, or the relay dropped it. Then neither side has ended first.
        let cause_if_unrecorded = if std::thread::panicking() { Ending::Panicked } else { Ending::Stopped };
        let end = recorded.unwrap_or(ConnectionEnd { cause: cause_if_unrecorded, first: None });
        self.push_rare_observation(Observed::Closed { at: MonoNs::now(), first: end.first, why: end.cause });
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
    /// Creates a reporter that has nothing left to report.
    pub(super) fn new(journal: Arc<Journal>, direction: Direction) -> Self {
        Self { journal, direction, unreported: 0 }
    }

    /// Queues an observation, or counts it as unreported if the queue is full.
    pub(super) fn report_or_count(&mut self, what: Observed) {
        // The reader must learn of a gap before it gets what follows.
        let is_queued = self.try_report_gap() && self.journal.push(what).is_ok();
        if !is_queued {
            self.count_unreported();
        }
    }

    /// Reports the number of earlier observations that were not queued. Returns false if the queue is still full.
    fn try_report_gap(&mut self) -> bool {
        if self.unreported == 0 {
            return true;
        }
        let is_queued = self.journal.push(self.loss_of(self.unreported, MissedCause::QueueFull)).is_ok();
        if is_queued {
            self.unreported = 0;
        }
        is_queued
    }

    /// Counts a message, or a stretch of bytes, that is not reported.
    pub(super) fn count_unreported(&mut self) {
        self.unreported += 1;
        self.journal.shared.counters.dropped.add(1);
    }

    /// Reports the loss of `count` messages, by an observation that must itself not be lost. Does nothing if `count` is 0.
    pub(super) fn report_lost_messages(&self, count: u64, cause: MissedCause) {
        if count > 0 {
            self.journal.push_rare_observation(self.loss_of(count, cause));
        }
    }

    /// The observation that `count` messages of this direction are missing.
    fn loss_of(&self, count: u64, cause: MissedCause) -> Observed {
        Observed::Lost { direction: self.direction, count, cause }
    }

    /// Counts bytes that were written in this direction.
    pub(super) fn count_relayed_bytes(&self, bytes: usize) {
        let counters = &self.journal.shared.counters;
        match self.direction {
            Direction::Forward => counters.bytes_forward.add(bytes as u64),
            Direction::Backward => counters.bytes_backward.add(bytes as u64),
        }
    }
}

impl Drop for Reporter {
    /// Reports the observations that found the queue full and were not reported as lost yet.
    fn drop(&mut self) {
        self.report_lost_messages(self.unreported, MissedCause::QueueFull);
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
