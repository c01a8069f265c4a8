//! Sections of the run's recording that clients can still get: a bounded past, then each new one.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hyper::body::Bytes;
use tokio::sync::Notify;

/// The store keeps the past that a new client gets, and a quarter of its size in addition. A client that falls further behind is dropped.
const SLACK_DIVISOR: usize = 4;
/// Minimum size of that addition, in bytes.
const MIN_SLACK_BYTES: usize = 1 << 20;

/// Maximum size of the past that new clients get of all runs together, in bytes.
#[derive(Debug)]
pub(super) struct PastLimit {
    bytes: usize,
    runs: AtomicUsize,
}

impl PastLimit {
    pub(super) fn new(bytes: usize) -> Self {
        Self { bytes, runs: AtomicUsize::new(0) }
    }

    fn bytes_per_run(&self) -> usize {
        self.bytes / self.runs.load(Ordering::Relaxed).max(1)
    }
}

/// The kept sections of a run, shared by the endpoint and its clients.
#[derive(Debug)]
pub(super) struct SectionStore {
    /// Preamble and header of the recording.
    start: Bytes,
    past_limit: Arc<PastLimit>,
    kept: Mutex<KeptSections>,
    arrived: Notify,
    /// Connections that stream the run.
    pub(super) streaming_connections: AtomicU64,
    /// Blocks of the recording that the endpoint's thread was too slow to take.
    pub(super) blocks_dropped: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct KeptSections {
    sections: VecDeque<Bytes>,
    /// Number of the oldest kept section.
    first_number: u64,
    bytes: usize,
    has_ended: bool,
}

impl KeptSections {
    /// Number of the next section to arrive.
    fn next_number(&self) -> u64 {
        self.first_number + self.sections.len() as u64
    }
}

impl SectionStore {
    /// Creates the store of a run, whose recording begins with `start`. Counts the run in `past_limit`, which all runs share.
    pub(super) fn new(start: Bytes, past_limit: Arc<PastLimit>) -> Self {
        past_limit.runs.fetch_add(1, Ordering::Relaxed);
        Self {
            start,
            past_limit,
            kept: Mutex::default(),
            arrived: Notify::new(),
            streaming_connections: AtomicU64::new(0),
            blocks_dropped: Arc::default(),
        }
    }

    /// Adds a section, and removes the oldest ones beyond the limit. The limit includes some slack: more than a new client gets of the
    /// past. Otherwise the next section would drop a new client that reads slowly. The newest section is kept, however large it is.
    pub(super) fn add_section(&self, section: Bytes) {
        let past_bytes = self.past_limit.bytes_per_run();
        let mut kept = self.lock_kept();
        kept.bytes += section.len();
        kept.sections.push_back(section);
        let slack_bytes = (past_bytes / SLACK_DIVISOR).max(MIN_SLACK_BYTES);
        let limit_bytes = past_bytes.saturating_add(slack_bytes);
        while kept.bytes > limit_bytes && kept.sections.len() > 1 {
            let removed = kept.sections.pop_front().map_or(0, |section| section.len());
            kept.bytes -= removed;
            kept.first_number += 1;
        }
        // Unlocked before the wake-up, because the clients that wake take the lock at once.
        drop(kept);
        self.arrived.notify_waiters();
    }

    /// Marks the end, after which no section follows. Wakes the clients that wait for one.
    pub(super) fn mark_end(&self) {
        self.lock_kept().has_ended = true;
        self.arrived.notify_waiters();
    }

    /// Position of a new client: before the past.
    pub(super) fn cursor(self: &Arc<Self>) -> SectionCursor {
        SectionCursor { store: Arc::clone(self), next_number: None }
    }

    /// Number of the oldest section that a new client gets. Counts back from the newest section until the limit of the past is reached.
    fn first_section_of_past(&self, kept: &KeptSections) -> u64 {
        let mut bytes_left = self.past_limit.bytes_per_run();
        let mut first_number = kept.next_number();
        for section in kept.sections.iter().rev() {
            if section.len() > bytes_left {
                break;
            }
            bytes_left -= section.len();
            first_number -= 1;
        }
        first_number
    }

    fn lock_kept(&self) -> MutexGuard<'_, KeptSections> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Position of a client in the stream.
#[derive(Clone, Debug)]
pub(super) struct SectionCursor {
    store: Arc<SectionStore>,
    /// Number of the next section; `None` before the start of the recording.
    next_number: Option<u64>,
}

/// Next part of the stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum StreamStep {
    Section(Bytes),
    /// The next section is not kept any more: the client was too slow.
    Behind,
    Ended,
}

impl SectionCursor {
    /// Next part of the stream, waiting for one if necessary.
    pub(super) async fn next(&mut self) -> StreamStep {
        loop {
            let store = Arc::clone(&self.store);
            // Created before the check, so that a section that arrives in between is noticed.
            let arrived = store.arrived.notified();
            if let Some(step) = self.try_next() {
                return step;
            }
            arrived.await;
        }
    }

    /// Next step of the stream for this client, without waiting. `None` if the run has produced nothing further yet. The store keeps only
    /// the latest sections. [`StreamStep::Behind`] if the client's next section was already removed.
    pub(super) fn try_next(&mut self) -> Option<StreamStep> {
        let kept = self.store.lock_kept();
        // The first step gives the start of the recording, which precedes all sections.
        let Some(next_number) = self.next_number else {
            self.next_number = Some(self.store.first_section_of_past(&kept));
            return Some(StreamStep::Section(self.store.start.clone()));
        };
        // Sections before the first kept one were removed.
        let Some(index) = next_number.checked_sub(kept.first_number) else { return Some(StreamStep::Behind) };
        match kept.sections.get(index as usize) {
            Some(section) => {
                self.next_number = Some(next_number + 1);
                Some(StreamStep::Section(section.clone()))
            }
            None => kept.has_ended.then_some(StreamStep::Ended),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(length: usize) -> Bytes {
        vec![0; length].into()
    }

    #[test]
    fn runs_share_the_limit_of_the_past() {
        let limit = Arc::new(PastLimit::new(3_000));
        let stores = [(); 3].map(|()| Arc::new(SectionStore::new(section(1), Arc::clone(&limit))));
        for store in &stores {
            for _ in 0..5 {
                store.add_section(section(600));
            }
            let mut client = store.cursor();
            let mut sections = 0;
            while client.try_next().is_some() {
                sections += 1;
            }
            assert_eq!(sections, 2, "the start, and 600 of its 1,000 bytes");
        }
    }

    #[test]
    fn a_new_client_gets_the_past_within_its_limit_and_a_slow_one_falls_behind() {
        let store = Arc::new(SectionStore::new(section(1), Arc::new(PastLimit::new(3_000))));
        for _ in 0..5 {
            store.add_section(section(1_000));
        }
        let mut client = store.cursor();
        assert_eq!(client.try_next(), Some(StreamStep::Section(section(1))));
        for _ in 0..3 {
            assert_eq!(client.try_next(), Some(StreamStep::Section(section(1_000))));
        }
        assert_eq!(client.try_next(), None, "nothing follows yet");
        let mut slow = client.clone();
        for _ in 0..3 {
            store.add_section(section(MIN_SLACK_BYTES / 2));
            assert_eq!(client.try_next(), Some(StreamStep::Section(section(MIN_SLACK_BYTES / 2))));
        }
        assert_eq!(slow.try_next(), Some(StreamStep::Behind));
        store.add_section(section(2 * MIN_SLACK_BYTES));
        assert_eq!(
            client.try_next(),
            Some(StreamStep::Section(section(2 * MIN_SLACK_BYTES))),
            "the newest is always kept"
        );
        store.mark_end();
        assert_eq!(client.try_next(), Some(StreamStep::Ended));
    }
}
