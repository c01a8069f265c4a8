//! The feed's thread: accepts watchers, encodes the run's jobs, and queues them for the watchers.

use std::io;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_bytes::ByteBuf;
use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;
use trace::MonoNs;
use trace::clock::wall_ns;
use trace::record::{BlockPacker, Header};

use super::connections::Connections;
use super::events::EventBodies;
use super::job::{self, Job};
use super::queue::{Flow, Queue};
use super::{PublishOptions, Published, peer};
use crate::message::{self, Head, Kind, SCHEMA, Start, Topic, body};
use crate::zmtp;

/// Time limit for emptying the queues at the end.
const LAST: Duration = Duration::from_millis(1_500);

/// State shared by the run and the feed's thread.
#[derive(Debug)]
pub(super) struct Shared {
    header: Header,
    pod: String,
    instance: String,
    pub(super) bytes: AtomicU64,
    /// Watchers that wait for a state, that receive the stream or its events, and that receive reports.
    pub(super) wants: AtomicUsize,
    pub(super) streams: AtomicUsize,
    pub(super) reports: AtomicUsize,
    /// States queued for watchers. Once a state counts here, `streams` includes the watchers that continue from it.
    pub(super) started: AtomicU64,
    events: AtomicUsize,
    /// Messages dropped for watchers that have left.
    dropped_before: AtomicU64,
    /// Connections closed or refused.
    refused: AtomicU64,
    queues: Mutex<Vec<Arc<Queue>>>,
    problem: Mutex<Option<String>>,
}

impl Shared {
    pub(super) fn new(header: &Header, pod: String) -> Self {
        Self {
            header: header.clone(),
            pod,
            instance: format!("{:016x}{:08x}", wall_ns(), std::process::id()),
            bytes: AtomicU64::new(0),
            wants: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
            reports: AtomicUsize::new(0),
            started: AtomicU64::new(0),
            events: AtomicUsize::new(0),
            dropped_before: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            queues: Mutex::default(),
            problem: Mutex::default(),
        }
    }

    fn queues(&self) -> MutexGuard<'_, Vec<Arc<Queue>>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn take_problem(&self) -> Option<String> {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn report_problem(&self, problem: String) {
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = Some(problem);
    }

    pub(super) fn status(&self) -> Published {
        let queues = self.queues();
        let dropped: u64 = queues.iter().map(|q| q.dropped()).sum();
        Published {
            watchers: queues.len() as u64,
            bytes: self.bytes.load(Ordering::Relaxed),
            dropped: dropped + self.dropped_before.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
        }
    }

    /// Records a gap: a stream message did not fit the queue to the feed's thread.
    pub(super) fn skip(&self) {
        self.queues().iter().for_each(|q| q.skip());
        self.count();
    }

    pub(super) fn joined(&self, queue: &Arc<Queue>) {
        self.queues().push(Arc::clone(queue));
        self.count();
    }

    fn left(&self, queue: &Arc<Queue>) {
        let mut queues = self.queues();
        queues.retain(|q| !Arc::ptr_eq(q, queue));
        drop(queues);
        self.dropped_before.fetch_add(queue.dropped(), Ordering::Relaxed);
        self.count();
    }

    /// Updates the counters that the run reads.
    pub(super) fn count(&self) {
        let queues = self.queues();
        let of = |which: &dyn Fn(&Queue) -> bool| queues.iter().filter(|q| which(q)).count();
        let events = of(&|q| q.wants(Topic::Events));
        let stream = |flow| of(&|q| q.flow() == flow);
        self.events.store(events, Ordering::Release);
        self.reports.store(of(&|q| q.wants(Topic::Report)), Ordering::Release);
        self.streams.store(stream(Flow::Receives) + events, Ordering::Release);
        // Watchers of events alone need no state, but blocks have to flow: request a start while no stream is active.
        let idle = usize::from(events > 0 && stream(Flow::Receives) == 0);
        self.wants.store(stream(Flow::Waits) + idle, Ordering::Release);
    }

    /// Counts a refused connection and logs the reason at powers of two, to bound the log.
    fn refuse(&self, why: std::fmt::Arguments<'_>) {
        let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
        if refused.is_power_of_two() {
            tracing::warn!("feed: refused {why}; {refused} in total");
        }
    }

    /// Whether any watcher subscribes to the stream.
    pub(super) fn is_followed(&self) -> bool {
        self.queues().iter().any(|q| q.flow() != Flow::None)
    }

    fn head(&self, kind: Kind, seq: u64) -> Head {
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

/// Serves until the run ends.
pub(super) async fn serve(
    listener: TcpListener,
    options: PublishOptions,
    shared: Arc<Shared>,
    mut jobs: Receiver<Job>,
) {
    let started = tokio::net::TcpListener::from_std(listener).and_then(|l| Ok((l, BlockPacker::new()?)));
    let (listener, packer) = match started {
        Ok(started) => started,
        Err(error) => return shared.report_problem(format!("feed: cannot serve: {error}")),
    };
    let mut sender = Sender {
        shared: Arc::clone(&shared),
        packer,
        events: EventBodies::default(),
        seq: [0; Topic::ALL.len()],
    };
    let (options, mut peers) = (Arc::new(options), JoinSet::new());
    let mut connections = Connections::new(options.watchers);
    loop {
        tokio::select! {
            job = jobs.recv() => match job {
                Some(Job::End(last, done)) => {
                    sender.end(*last);
                    drop(listener);
                    tokio::time::timeout(LAST, async { while peers.join_next().await.is_some() {} }).await.ok();
                    done.send(()).ok();
                    return;
                }
                Some(job) => sender.job(job),
                None => return,
            },
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => {
                    if connections.is_full() {
                        shared.refuse(format_args!("{from}: the limit of {} watchers is reached (--feed-watchers)", options.watchers));
                        continue;
                    }
                    if let Some(oldest) = connections.evict_for_new() {
                        shared.refuse(format_args!("{oldest}: replaced by a newer connection before it sent its request (--feed-watchers)"));
                    }
                    let queue = Arc::new(Queue::new(options.queue_bytes));
                    let (options, shared, peer_queue) = (Arc::clone(&options), Arc::clone(&shared), Arc::clone(&queue));
                    let task = peers.spawn(async move {
                        let served = peer::serve(stream, &options, &peer_queue, &shared).await;
                        shared.left(&peer_queue);
                        match served {
                            Ok(()) => tracing::info!("feed: the watcher at {from} disconnected"),
                            Err(error) if peer::is_refused(&error) => shared.refuse(format_args!("{from}: {error}")),
                            Err(error) => tracing::info!("feed: the watcher at {from}: {error}"),
                        }
                    });
                    connections.add(from, queue, task);
                }
                Err(error) => {
                    // Probably out of file descriptors: pause, or the same error would repeat at once.
                    tracing::warn!("feed: cannot accept: {error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = peers.join_next() => {}
        }
    }
}

struct Sender {
    shared: Arc<Shared>,
    packer: BlockPacker,
    events: EventBodies,
    /// Number of the last message of each topic.
    seq: [u64; Topic::ALL.len()],
}

impl Sender {
    fn job(&mut self, job: Job) {
        match job {
            Job::Block(block) => match self.packer.pack(&block).map(Bytes::copy_from_slice) {
                Ok(packed) => {
                    self.send(Topic::Stream, Kind::Block, body::block(&packed));
                    if self.shared.events.load(Ordering::Acquire) > 0 {
                        let events = self.events.of(&packed);
                        self.send(Topic::Events, Kind::Events, Ok(events));
                    }
                }
                Err(error) => self.failed(&error),
            },
            Job::Start(start) => self.start(*start),
            Job::About(closing) => self.send(Topic::Stream, Kind::About, body::about(*closing)),
            Job::Report(report) => self.send(Topic::Report, Kind::Report, body::report(&*report)),
            Job::End(..) => {}
        }
    }

    fn start(&mut self, start: job::Start) {
        if let Some(message) = self.state(start) {
            self.shared.queues().iter().for_each(|q| q.start(&message));
        }
        self.shared.count();
        self.shared.started.fetch_add(1, Ordering::Release);
    }

    fn end(&mut self, last: job::Start) {
        let closing = last.closing.clone();
        let state = self.state(last);
        let end = self.message(Topic::Stream, Kind::End, body::about(closing));
        for queue in &*self.shared.queues() {
            queue.end(state.as_ref(), end.as_ref());
        }
    }

    fn state(&self, start: job::Start) -> Option<Bytes> {
        let packed = |image: Option<crate::Image>| image.and_then(|i| i.pack().ok()).map(ByteBuf::from);
        let header = &self.shared.header;
        let start = Start {
            tokengap: header.tokengap.clone(),
            source: header.source.clone(),
            config: header.config,
            payload: header.payload,
            record: start.record,
            closing: start.closing,
            image: packed(start.image),
            history: packed(start.history),
        };
        let head = self.shared.head(Kind::Start, self.seq[Topic::Stream as usize]);
        match body::start(&start).and_then(|body| message::encode(&head, &body)) {
            Ok(bytes) => Some(zmtp::message(&[Topic::Stream.name().as_bytes(), &bytes])),
            Err(error) => {
                self.failed(&io::Error::other(error));
                None
            }
        }
    }

    fn send(&mut self, topic: Topic, kind: Kind, body: Result<Vec<u8>, rmp_serde::encode::Error>) {
        if let Some(message) = self.message(topic, kind, body) {
            for queue in &*self.shared.queues() {
                match topic {
                    Topic::Stream => queue.stream(&message),
                    Topic::Report | Topic::Events => queue.offer(topic, &message),
                }
            }
        }
        self.shared.count();
    }

    fn message(&mut self, topic: Topic, kind: Kind, body: Result<Vec<u8>, rmp_serde::encode::Error>) -> Option<Bytes> {
        let seq = &mut self.seq[topic as usize];
        *seq += 1;
        let head = self.shared.head(kind, *seq);
        match body.and_then(|body| message::encode(&head, &body)) {
            Ok(bytes) => Some(zmtp::message(&[topic.name().as_bytes(), &bytes])),
            Err(error) => {
                self.failed(&io::Error::other(error));
                None
            }
        }
    }

    fn failed(&self, error: &io::Error) {
        self.shared
            .report_problem(format!("feed: cannot encode a message: {error}"));
        self.shared.queues().iter().for_each(|q| q.skip());
    }
}
