//! Reports about one connection: that it opened, what it carries, and how it ended, even if its task panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use trace::MonoNs;
use trace::event::MissedCause;

use super::Shared;
use super::observation::{Direction, Ending, Observation};

/// Reporter for one connection. Dropping it reports that the connection is closed.
#[derive(Debug)]
pub(super) struct Journal {
    pub(super) shared: Arc<Shared>,
    pub(super) pair: u16,
    pub(super) lane: u32,
    opened: MonoNs,
    announced: AtomicBool,
    cut_short: AtomicBool,
    ending: Mutex<Option<(Ending, Option<Direction>)>>,
}

impl Journal {
    pub(super) fn open(shared: Arc<Shared>, pair: u16, lane: u32) -> Arc<Self> {
        let journal = Self {
            shared,
            pair,
            lane,
            opened: MonoNs::now(),
            announced: AtomicBool::new(false),
            cut_short: AtomicBool::new(false),
            ending: Mutex::new(None),
        };
        journal.announce();
        Arc::new(journal)
    }

    /// Reports once that the connection opened. Returns false if the queue is full.
    fn announce(&self) -> bool {
        if !self.announced.load(Ordering::Relaxed) {
            let opened = Observation::Opened { pair: self.pair, lane: self.lane, at: self.opened };
            self.announced.store(self.shared.observations.push(opened).is_ok(), Ordering::Relaxed);
        }
        self.announced.load(Ordering::Relaxed)
    }

    /// Queues an observation, or returns it if the queue is full.
    pub(super) fn push(&self, observation: Observation) -> Result<(), Observation> {
        if self.announce() { self.shared.observations.push(observation) } else { Err(observation) }
    }

    /// Queues a rare observation that must not be lost. If the queue is full, it is queued after all frames.
    pub(super) fn push_rare(&self, observation: Observation) {
        let Err(observation) = self.push(observation) else {
            return;
        };
        if !self.announced.swap(true, Ordering::Relaxed) {
            self.push_late(Observation::Opened { pair: self.pair, lane: self.lane, at: self.opened });
        }
        self.push_late(observation);
    }

    fn push_late(&self, observation: Observation) {
        if !self.shared.observations.push_late(observation) {
            self.shared.counters.unreported.add(1);
        }
    }

    pub(super) fn record_cut(&self) {
        self.cut_short.store(true, Ordering::Relaxed);
        self.shared.counters.cut_short.add(1);
    }

    /// Sets the cause of the connection's end and the side that ended first.
    pub(super) fn end(&self, why: Ending, first: Option<Direction>) {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = Some((why, first));
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let recorded = self.ending.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (why, first) = recorded.unwrap_or(if std::thread::panicking() {
            (Ending::Panicked, None)
        } else {
            (Ending::Stopped, None)
        });
        self.push_rare(Observation::Closed {
            pair: self.pair,
            lane: self.lane,
            at: MonoNs::now(),
            cut_short: self.cut_short.load(Ordering::Relaxed),
            first,
            why,
        });
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

    /// Queues an observation, behind the number of earlier ones that were not queued. `None` stands for bytes that were not kept. Returns
    /// false if it is not queued.
    pub(super) fn report(&mut self, observation: Option<Observation>) -> bool {
        let queued = observation.is_some_and(|observation| {
            if self.unreported > 0 && self.journal.push(self.lost(self.unreported, MissedCause::QueueFull)).is_ok() {
                self.unreported = 0;
            }
            self.unreported == 0 && self.journal.push(observation).is_ok()
        });
        self.unreported += u64::from(!queued);
        queued
    }

    /// Queues a loss, which must itself not be lost.
    pub(super) fn report_lost(&self, count: u64, cause: MissedCause) {
        if count > 0 {
            self.journal.push_rare(self.lost(count, cause));
        }
    }

    fn lost(&self, count: u64, cause: MissedCause) -> Observation {
        Observation::Lost { pair: self.journal.pair, direction: self.direction, lane: self.journal.lane, count, cause }
    }

    /// Counts relayed bytes.
    pub(super) fn count(&self, bytes: usize) {
        let counters = &self.journal.shared.counters;
        match self.direction {
            Direction::Forward => counters.bytes_forward.add(bytes as u64),
            Direction::Backward => counters.bytes_backward.add(bytes as u64),
        }
    }

    /// Reports what is still unreported at the end.
    pub(super) fn end(&self) {
        self.report_lost(self.unreported, MissedCause::QueueFull);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::options::Options;

    #[test]
    fn a_panic_is_reported_as_an_ending() {
        let shared = Shared::new(Options::default());
        let task_shared = shared.clone();
        let task = std::thread::spawn(move || {
            let _journal = Journal::open(task_shared, 3, 7);
            panic!("on purpose");
        });
        assert!(task.join().is_err());
        assert!(matches!(shared.observations.poll(), Some(Observation::Opened { pair: 3, lane: 7, .. })));
        let last = shared.observations.poll();
        assert!(matches!(last, Some(Observation::Closed { lane: 7, why: Ending::Panicked, .. })), "{last:?}");
    }
}
