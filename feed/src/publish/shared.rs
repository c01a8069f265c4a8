//! Jobs and state that the run and the feed's thread share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use trace::MonoNs;
use trace::clock::wall_ns;
use trace::record::{Header, OpenBlock};
use trace::report::{Report, ReportInput};

use super::Published;
use super::queue::{Flow, Queue};
use crate::image::Image;
use crate::message::{Head, Kind, SCHEMA, Topic};

/// Messages from the run to the feed's thread, in order.
pub(super) enum Job {
    Block(Box<OpenBlock>),
    /// State for watchers that wait for one.
    Start(Box<State>),
    About(Box<ReportInput>),
    Report(Box<Report>),
    /// The last state. The feed's thread replies when every watcher has received the end.
    End(Box<State>, Sender<()>),
}

/// The state and the number of the next record.
pub(super) struct State {
    pub(super) record: u64,
    pub(super) closing: ReportInput,
    pub(super) image: Option<Image>,
    pub(super) history: Option<Image>,
}

/// Data that some watcher needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    /// A state to start from.
    pub(super) start: bool,
    pub(super) blocks: bool,
    pub(super) reports: bool,
}

/// State shared by the run and the feed's thread.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) header: Header,
    pod: String,
    instance: String,
    address: SocketAddr,
    /// States queued for watchers. Once a state counts here, the demand for blocks includes the watchers that continue from it.
    pub(super) started: AtomicU64,
    /// Messages dropped for watchers that have left.
    dropped_before: AtomicU64,
    /// Connections closed or refused.
    refused: AtomicU64,
    queues: Mutex<Vec<Arc<Queue>>>,
    problem: Mutex<Option<String>>,
}

impl Shared {
    pub(super) fn new(header: Header, address: SocketAddr, pod: String) -> Self {
        Self {
            header,
            address,
            pod,
            instance: format!("{:016x}{:08x}", wall_ns(), std::process::id()),
            started: AtomicU64::new(0),
            dropped_before: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            queues: Mutex::default(),
            problem: Mutex::default(),
        }
    }

    pub(super) fn queues(&self) -> MutexGuard<'_, Vec<Arc<Queue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take_problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn report_problem(&self, problem: String) {
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
    }

    pub(super) fn status(&self) -> Published {
        let queues = self.queues();
        let dropped: u64 = queues.iter().map(|q| q.dropped()).sum();
        Published {
            address: self.address,
            watchers: queues.len() as u64,
            dropped: dropped + self.dropped_before.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    /// Records a gap: a stream message did not fit the queue to the feed's thread.
    pub(super) fn skip(&self) {
        self.queues().iter().for_each(|q| q.skip());
    }

    pub(super) fn left(&self, queue: &Arc<Queue>) {
        self.queues().retain(|q| !Arc::ptr_eq(q, queue));
        self.dropped_before.fetch_add(queue.dropped(), Ordering::Relaxed);
    }

    /// Whether this holds for any watcher.
    pub(super) fn any(&self, is: impl Fn(&Queue) -> bool) -> bool {
        self.queues().iter().any(|queue| is(queue))
    }

    /// Data that the current watchers need.
    pub(super) fn demand(&self) -> Demand {
        let events = self.any(|q| q.wants(Topic::Events));
        let receives = self.any(|q| q.flow() == Flow::Receives);
        Demand {
            // Watchers of events alone need no state, but blocks have to flow: request a start while no stream is active.
            start: self.any(|q| q.flow() == Flow::Waits) || events && !receives,
            blocks: receives || events,
            reports: self.any(|q| q.wants(Topic::Report)),
        }
    }

    /// Counts a refused connection and logs the reason at powers of two, to bound the log.
    pub(super) fn refuse(&self, why: std::fmt::Arguments<'_>) {
        let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        if refused.is_power_of_two() {
            tracing::warn!("feed: refused {why}; {refused} in total");
        }
    }

    pub(super) fn head(&self, kind: Kind, seq: u64) -> Head {
        Head {
            schema: SCHEMA.to_owned(),
            kind,
            pod: self.pod.clone(),
            instance: self.instance.clone(),
            seq,
            mono_ns: MonoNs::now().0,
            wall_ns: wall_ns(),
        }
    }
}
