//! Reports of the peers about their own actions, in place of a probe.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use trace::engine::Mode;
use trace::event::ArrivalTimes;
use trace::{FrameId, MonoNs};

/// Queue length for a source that lags; some seconds of the busiest scenario.
const QUEUE: usize = 1 << 16;

/// A timestamped action of a peer.
#[derive(Clone, Debug)]
pub(in crate::demo) struct PeerEvent {
    pub(in crate::demo) at: MonoNs,
    pub(in crate::demo) action: PeerAction,
}

#[derive(Clone, Debug)]
pub(in crate::demo) enum PeerAction {
    /// Received a frame from its inbox, in its `wakeup`th return from the poll; `None` if it never waits in one.
    Received { id: FrameId, wakeup: Option<u64> },
    /// Finished processing a frame.
    Processed(FrameId),
    /// Begins a response to a request that had reached it at these times.
    Responds { rid: Arc<str>, times: ArrivalTimes },
    /// Delivered tokens to a client.
    Delivered(PeerDelivery),
    /// Noticed that the client left after so many tokens.
    ClientLeft { rid: Arc<str>, tokens: u32 },
    /// Serves new requests in this mode from now on.
    Serves(Mode),
}

/// Tokens delivered to a client.
#[derive(Clone, Debug)]
pub(in crate::demo) struct PeerDelivery {
    pub(in crate::demo) rid: Arc<str>,
    /// New tokens, or all so far, depending on `mode`.
    pub(in crate::demo) tokens: u32,
    pub(in crate::demo) mode: Mode,
    /// Token count reported with the delivery.
    pub(in crate::demo) completion_tokens: u32,
    pub(in crate::demo) finished: bool,
}

/// Bounded queue from the peers to the source. If it is full, a report is dropped and counted.
#[derive(Clone)]
pub(in crate::demo) struct Reports {
    shared: Arc<ReportQueue>,
}

struct ReportQueue {
    now: Box<dyn Fn() -> MonoNs + Send + Sync>,
    queue: ArrayQueue<PeerEvent>,
    dropped: AtomicU64,
}

impl Reports {
    pub(in crate::demo) fn new() -> Self {
        Self::at_times_of(MonoNs::now)
    }

    /// Creates a queue whose reports get their times from `now`.
    pub(in crate::demo) fn at_times_of(now: impl Fn() -> MonoNs + Send + Sync + 'static) -> Self {
        let queue = ReportQueue { now: Box::new(now), queue: ArrayQueue::new(QUEUE), dropped: AtomicU64::new(0) };
        Self { shared: Arc::new(queue) }
    }

    /// Time that a report would get now.
    pub(in crate::demo) fn now(&self) -> MonoNs {
        (self.shared.now)()
    }

    /// Adds a report about an action that just happened. If the queue is full, the report is dropped and counted.
    pub(in crate::demo) fn push(&self, action: PeerAction) {
        if self.shared.queue.push(PeerEvent { at: self.now(), action }).is_err() {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes the oldest report; `None` if there is none.
    pub(in crate::demo) fn next(&self) -> Option<PeerEvent> {
        self.shared.queue.pop()
    }

    /// Number of reports dropped since the last call.
    pub(in crate::demo) fn take_dropped(&self) -> u64 {
        self.shared.dropped.swap(0, Ordering::Relaxed)
    }
}
