//! The source's end: a ZMQ PUB socket that never waits for a watcher.
//!
//! The caller's thread collects records into blocks and, when a watcher has joined, makes an image of the state. Everything else runs on
//! the feed's own thread, behind a queue of fixed length.

mod peer;
mod queue;
mod serve;
mod shared;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{Sender, error::TrySendError};
use trace::record::{BlockWriter, Closing, Header};
use trace::report::{Report, ReportInput};
use trace::{Analysis, Event, MonoNs};

use self::shared::{Job, Shared, State};
use crate::image::{Image, ImageError};
use crate::key::Key;

/// Capacity of the queue between the run and the feed's thread.
const JOBS: usize = 64;
/// Minimum nanoseconds between two images, because each costs the run time. One image serves all watchers that wait.
const IMAGE_EVERY_NS: u64 = 1_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Time limit for delivering the end to the watchers.
const LAST: Duration = Duration::from_secs(2);
/// Interval between attempts to queue the last job.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Options of a [`Publisher`].
#[derive(Clone, Debug)]
pub struct PublishOptions {
    /// Address to listen on. The caller decides whether remote peers are allowed.
    pub address: SocketAddr,
    /// Pre-shared key. Without one, the feed is unencrypted and open to anyone who connects.
    pub key: Option<Key>,
    /// Name of the run shown to watchers.
    pub pod: String,
    /// Connection limit. At the limit, a new connection replaces the oldest one that has no subscription.
    pub watchers: usize,
    /// Limit on the bytes queued for one watcher; a single message may be longer.
    pub queue_bytes: usize,
    /// Time limit for a watcher's first subscription.
    pub patience: Duration,
    /// Time without progress on a write after which the connection is closed.
    pub stall: Duration,
}

/// Reasons why publishing cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The address is in use or not local.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// The requested address.
        address: SocketAddr,
        /// The operating system's error.
        error: io::Error,
    },
    /// Another system call failed.
    #[error("cannot start the feed: {0}")]
    Start(io::Error),
}

/// Counters of a publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Connections with at least one subscription.
    pub watchers: u64,
    /// Bytes sent to all watchers.
    pub bytes: u64,
    /// Messages dropped because a watcher was too slow, summed over watchers.
    pub dropped: u64,
    /// Refused connections: over the limit, wrong key, wrong protocol, or too slow.
    pub refused: u64,
}

/// Publishes a run.
pub struct Publisher {
    header: Header,
    address: SocketAddr,
    jobs: Sender<Job>,
    shared: Arc<Shared>,
    blocks: BlockWriter,
    /// Whether any watcher receives blocks.
    active: bool,
    /// States handed to the feed's thread.
    starts: u64,
    last_image: Option<MonoNs>,
    last_second: Option<MonoNs>,
    problem: Option<String>,
}

/// State of the caller, read only when it is needed.
pub struct RunState<'a> {
    /// The analysis, after the tick.
    pub analysis: &'a Analysis,
    /// Report fields that do not derive from events.
    pub input: &'a dyn Fn() -> ReportInput,
    /// The screen's history.
    pub history: &'a dyn Fn() -> Result<Image, ImageError>,
}

impl Publisher {
    /// Listens and starts the feed's thread.
    pub fn start(options: PublishOptions, header: Header) -> Result<Self, PublishError> {
        let bind = |error| PublishError::Bind { address: options.address, error };
        let listener = std::net::TcpListener::bind(options.address).map_err(bind)?;
        listener.set_nonblocking(true).map_err(PublishError::Start)?;
        let address = listener.local_addr().map_err(PublishError::Start)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(PublishError::Start)?;
        let shared = Arc::new(Shared::new(&header, options.pod.clone()));
        let (jobs, inbox) = tokio::sync::mpsc::channel(JOBS);
        let (served, blocks) = (Arc::clone(&shared), BlockWriter::new(header.payload));
        thread::Builder::new()
            .name("feed".into())
            .spawn(move || runtime.block_on(serve::serve(listener, options, served, inbox)))
            .map_err(PublishError::Start)?;
        Ok(Self {
            header,
            address,
            jobs,
            shared,
            blocks,
            active: false,
            starts: 0,
            last_image: None,
            last_second: None,
            problem: None,
        })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Current counters.
    pub fn status(&self) -> Published {
        self.shared.status()
    }

    /// Returns the latest problem once.
    pub fn trouble(&mut self) -> Option<String> {
        self.problem.take().or_else(|| self.shared.take_problem())
    }

    /// Adds an event that the analysis has already applied.
    pub fn event(&mut self, event: &Event<'_>) {
        if !self.active {
            self.blocks.pass(event);
            return;
        }
        self.blocks.event(event);
        if self.blocks.is_full() {
            self.send_block();
        }
    }

    /// Adds a tick that the analysis has already applied, and sends the block collected since the last one.
    pub fn tick(&mut self, now: MonoNs, run: &RunState<'_>) {
        if self.active {
            self.blocks.tick(now);
            self.send_block();
            // Watchers that receive a queued state are not counted yet. Keep sending blocks, or they would freeze after the state.
            let pending = self.shared.started.load(Ordering::Acquire) < self.starts;
            self.active = pending || self.shared.streams.load(Ordering::Acquire) > 0;
        } else {
            self.blocks.pass_tick();
        }
        if self.shared.wants.load(Ordering::Acquire) > 0
            && self.last_image.is_none_or(|at| now.since(at) >= IMAGE_EVERY_NS)
        {
            self.last_image = Some(now);
            self.send_start(run);
        }
        if self.last_second.is_none_or(|at| now.since(at) >= SECOND_NS) {
            self.last_second = Some(now);
            self.send_every_second(run);
        }
    }

    fn send_every_second(&mut self, run: &RunState<'_>) {
        if self.active {
            let closing = Closing::of(&(run.input)());
            self.send(Job::About(Box::new(closing)));
        }
        if self.shared.reports.load(Ordering::Acquire) > 0 {
            let report: Report = run.analysis.report(&(run.input)());
            self.send(Job::Report(Box::new(report)));
        }
    }

    fn send_block(&mut self) {
        if let Some(block) = self.blocks.close() {
            self.send(Job::Block(Box::new(block)));
        }
    }

    /// Sends the current state; watchers that wait for one continue from it.
    fn send_start(&mut self, run: &RunState<'_>) {
        self.active = true;
        let state = self.state(run, true);
        if self.send(Job::Start(Box::new(state))) {
            self.starts += 1;
        }
    }

    /// Returns the state of the run, with images if `images` is set.
    fn state(&mut self, run: &RunState<'_>, images: bool) -> State {
        let image = images.then(|| Image::of(run.analysis));
        if let Some(Err(error)) = &image {
            self.problem = Some(format!("feed: {error}; new watchers start without earlier state"));
        }
        State {
            record: self.blocks.next_record(),
            closing: Closing::of(&(run.input)()),
            image: image.and_then(Result::ok),
            history: images.then(|| (run.history)().ok()).flatten(),
        }
    }

    /// Queues a job and returns whether it fitted. A job that does not fit leaves a gap that every watcher sees.
    fn send(&mut self, job: Job) -> bool {
        match self.jobs.try_send(job) {
            Ok(()) => return true,
            Err(TrySendError::Full(_)) => self.shared.skip(),
            Err(TrySendError::Closed(_)) if self.problem.is_none() => {
                self.active = false;
                self.problem = Some("feed: its thread crashed. Please report this bug.".into());
            }
            Err(TrySendError::Closed(_)) => {}
        }
        false
    }

    /// Sends the end of the run and waits briefly for delivery. Watchers that are behind get the last state first.
    pub fn finish(mut self, run: &RunState<'_>) -> Published {
        self.send_block();
        let followed = self.shared.is_followed();
        let (done, is_done) = channel();
        let mut end = Job::End(Box::new(self.state(run, followed)), done);
        let until = Instant::now() + LAST;
        while let Err(TrySendError::Full(back)) = self.jobs.try_send(end) {
            if Instant::now() >= until {
                break;
            }
            end = back;
            thread::sleep(RETRY_INTERVAL);
        }
        let left = until.saturating_duration_since(Instant::now());
        if is_done.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            tracing::info!("feed: some watchers did not receive the end of the stream in time");
        }
        self.shared.status()
    }

    /// Header of the run.
    pub fn header(&self) -> &Header {
        &self.header
    }
}
