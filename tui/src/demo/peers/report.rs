//! What the peers tell of themselves, in place of a probe.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use trace::engine::Mode;
use trace::{HopId, MonoNs};

/// Reports kept for a source that is late: some seconds of the busiest scenario.
const QUEUE: usize = 1 << 16;

/// One peer did something.
#[derive(Clone, Debug)]
pub(in crate::demo) struct PeerEvent {
    pub(in crate::demo) at: MonoNs,
    pub(in crate::demo) did: Did,
}

/// What it did. A peer does not know the relay's lanes, so it names a frame by its fingerprint.
#[derive(Clone, Debug)]
pub(in crate::demo) enum Did {
    /// Took a frame out of its inbox, on its `wakeup`th return from its poll.
    Taken {
        hop: HopId,
        print: Fingerprint,
        wakeup: u64,
    },
    /// Was done with it.
    Handled { hop: HopId, print: Fingerprint },
    /// Gave tokens to a client.
    Delivered(Given),
    /// From now on new requests are served in this mode.
    Serves(Mode),
}

/// Tokens given to a client.
#[derive(Clone, Debug)]
pub(in crate::demo) struct Given {
    pub(in crate::demo) rid: Arc<str>,
    /// New tokens, or all so far, by `mode`.
    pub(in crate::demo) tokens: u32,
    pub(in crate::demo) mode: Mode,
    /// The count that comes with them.
    pub(in crate::demo) completion_tokens: u32,
    pub(in crate::demo) finished: bool,
}

/// Tells frames of one hop apart: no two of a run carry the same requests at the same counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::demo) struct Fingerprint(u64);

impl Fingerprint {
    pub(in crate::demo) fn of(message: &[u8]) -> Self {
        let mut hasher = DefaultHasher::new();
        hasher.write(message);
        Self(hasher.finish())
    }
}

/// The bounded queue from the peers to the source. When it is full a report is dropped and counted; the peers go on.
#[derive(Clone)]
pub(in crate::demo) struct Reports(Arc<Inner>);

struct Inner {
    now: Box<dyn Fn() -> MonoNs + Send + Sync>,
    queue: ArrayQueue<PeerEvent>,
    dropped: AtomicU64,
}

impl Reports {
    pub(in crate::demo) fn new() -> Self {
        Self::at_times_of(MonoNs::now)
    }

    /// Reports that take their times from `now`.
    pub(in crate::demo) fn at_times_of(now: impl Fn() -> MonoNs + Send + Sync + 'static) -> Self {
        Self(Arc::new(Inner {
            now: Box::new(now),
            queue: ArrayQueue::new(QUEUE),
            dropped: AtomicU64::new(0),
        }))
    }

    /// The time now.
    pub(in crate::demo) fn now(&self) -> MonoNs {
        (self.0.now)()
    }

    /// Reports that something was done just now.
    pub(in crate::demo) fn tell(&self, did: Did) {
        if self.0.queue.push(PeerEvent { at: self.now(), did }).is_err() {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The oldest report.
    pub(in crate::demo) fn next(&self) -> Option<PeerEvent> {
        self.0.queue.pop()
    }

    /// How many were dropped since the last time this was asked.
    pub(in crate::demo) fn take_dropped(&self) -> u64 {
        self.0.dropped.swap(0, Ordering::Relaxed)
    }
}
