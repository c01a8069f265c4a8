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
use trace::record::{BlockWriter, Header};
use trace::report::ReportInput;
use trace::{Analysis, Event, MonoNs};

use self::queue::Flow;
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

/// Time series of a run, for watchers that join late.
pub trait Past: Send {
    /// Adds the current values.
    fn remember(&mut self, analysis: &Analysis);

    /// The time series in the form in which they are sent.
    fn image(&self) -> Result<Image, ImageError>;
}

/// State of a publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// Address it listens on.
    pub address: SocketAddr,
    /// Connections with at least one subscription.
    pub watchers: u64,
    /// Messages dropped because a watcher was too slow, summed over watchers.
    pub dropped: u64,
    /// Refused connections: over the limit, wrong key, wrong protocol, or too slow.
    pub refused: u64,
}

/// Publishes a run.
pub struct Publisher {
    jobs: Sender<Job>,
    shared: Arc<Shared>,
    blocks: BlockWriter,
    past: Box<dyn Past>,
    /// Whether any watcher receives blocks.
    active: bool,
    /// States handed to the feed's thread.
    starts: u64,
    last_image: Option<MonoNs>,
    last_second: Option<MonoNs>,
    problem: Option<String>,
}

impl Publisher {
    /// Listens and starts the feed's thread.
    pub fn start(options: PublishOptions, header: Header, past: Box<dyn Past>) -> io::Result<Self> {
        let unbound = format!("cannot listen on {}", options.address);
        let unbound = |error: io::Error| io::Error::new(error.kind(), format!("{unbound}: {error}"));
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("cannot start the feed: {error}"));
        let listener = std::net::TcpListener::bind(options.address).map_err(unbound)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build().map_err(failed)?;
        let blocks = BlockWriter::new(header.payload);
        let shared = Arc::new(Shared::new(header, address, options.pod.clone()));
        let (jobs, inbox) = tokio::sync::mpsc::channel(JOBS);
        let served = Arc::clone(&shared);
        thread::Builder::new()
            .name("feed".into())
            .spawn(move || runtime.block_on(serve::serve(listener, options, served, inbox)))
            .map_err(failed)?;
        let (active, starts) = (false, 0);
        Ok(Self { jobs, shared, blocks, past, active, starts, last_image: None, last_second: None, problem: None })
    }

    /// Current state.
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
    pub fn tick(&mut self, now: MonoNs, analysis: &Analysis, input: &dyn Fn() -> ReportInput) {
        self.past.remember(analysis);
        // Watchers that receive a queued state are not counted yet. Keep sending blocks, or they would freeze after the state.
        let pending = self.shared.started.load(Ordering::Acquire) < self.starts;
        let demand = self.shared.demand();
        if self.active {
            self.blocks.tick(now);
            self.send_block();
            self.active &= pending || demand.blocks;
        } else {
            self.blocks.pass_tick();
        }
        if demand.start && self.last_image.is_none_or(|at| now.since(at) >= IMAGE_EVERY_NS) {
            self.last_image = Some(now);
            self.send_start(analysis, &input());
        }
        if self.last_second.is_none_or(|at| now.since(at) >= SECOND_NS) {
            self.last_second = Some(now);
            if self.active {
                self.send(Job::About(Box::new(input())));
            }
            if demand.reports {
                self.send(Job::Report(Box::new(analysis.report(&input()))));
            }
        }
    }

    fn send_block(&mut self) {
        if let Some(block) = self.blocks.close() {
            self.send(Job::Block(Box::new(block)));
        }
    }

    /// Sends the current state; watchers that wait for one continue from it.
    fn send_start(&mut self, analysis: &Analysis, input: &ReportInput) {
        self.active = true;
        let state = self.state(analysis, input, true);
        self.starts += u64::from(self.send(Job::Start(Box::new(state))));
    }

    /// Returns the state of the run, with images if `images` is set.
    fn state(&mut self, analysis: &Analysis, input: &ReportInput, images: bool) -> State {
        let image = images.then(|| Image::of(analysis));
        if let Some(Err(error)) = &image {
            self.problem = Some(format!("feed: {error}; new watchers start without earlier state"));
        }
        State {
            record: self.blocks.next_record(),
            closing: input.clone(),
            image: image.and_then(Result::ok),
            history: images.then(|| self.past.image().ok()).flatten(),
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
    pub fn finish(mut self, analysis: &Analysis, input: &ReportInput) -> Published {
        self.send_block();
        let followed = self.shared.any(|queue| queue.flow() != Flow::None);
        let (done, is_done) = channel();
        let mut end = Job::End(Box::new(self.state(analysis, input, followed)), done);
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
}
