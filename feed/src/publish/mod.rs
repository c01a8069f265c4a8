//! The source's end: a ZMQ PUB socket that never waits for who watches.
//!
//! The caller's thread collects records into blocks and, when somebody has come, makes an image of the state. Everything else happens
//! on a thread of the feed's own; between the two is a queue of fixed length.

mod events;
mod job;
mod peer;
mod queue;
mod room;
mod serve;

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

use self::job::Job;
use self::serve::Shared;
use crate::image::{Image, ImageError};
use crate::key::Key;

/// Jobs between the run and the feed's thread.
const JOBS: usize = 64;
/// An image costs the run some time: at most one in so many nanoseconds, for all who have come meanwhile.
const IMAGE_EVERY_NS: u64 = 1_000_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// How long the end may take to reach the watchers.
const LAST: Duration = Duration::from_secs(2);
/// How often it is looked whether there is room for the last job.
const ROOM: Duration = Duration::from_millis(5);

/// What to publish, where, and for how many.
#[derive(Clone, Debug)]
pub struct PublishOptions {
    /// Where to listen. Whether others than this machine may come is the caller's to decide.
    pub address: SocketAddr,
    /// Without one everything is sent as it is, to whoever connects.
    pub key: Option<Key>,
    /// What watchers call the run.
    pub pod: String,
    /// Most connections. Those that have not said what they want yet make room for newer ones.
    pub watchers: usize,
    /// Most bytes that wait for one watcher; a single message may be longer.
    pub queue_bytes: usize,
    /// How long a watcher may take until it has said what it wants.
    pub patience: Duration,
    /// How long a watcher may take no byte of what is sent to it before its connection is ended.
    pub stall: Duration,
}

/// It cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The address is taken, or not ours.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// Where.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The system refused something else.
    #[error("cannot start the feed: {0}")]
    Start(io::Error),
}

/// How it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Connections that have said what they want.
    pub watchers: u64,
    /// Bytes sent to all of them.
    pub bytes: u64,
    /// Messages that some watcher was too slow for, summed over watchers.
    pub dropped: u64,
    /// Connections that were refused: no room, no key, no feed's protocol, or too slow.
    pub refused: u64,
}

/// A run being published.
pub struct Publisher {
    header: Header,
    address: SocketAddr,
    jobs: Sender<Job>,
    shared: Arc<Shared>,
    blocks: BlockWriter,
    /// Somebody takes blocks.
    active: bool,
    /// States sent.
    starts: u64,
    imaged: Option<MonoNs>,
    second: Option<MonoNs>,
    trouble: Option<String>,
}

/// What only the caller can tell, when it is wanted.
pub struct Telling<'a> {
    /// The analysis, after the tick.
    pub analysis: &'a Analysis,
    /// What a report says beside the events.
    pub input: &'a dyn Fn() -> ReportInput,
    /// What a screen keeps of the past.
    pub history: &'a dyn Fn() -> Result<Image, ImageError>,
}

impl Publisher {
    /// Listens, and starts the thread that serves.
    pub fn start(options: PublishOptions, header: Header) -> Result<Self, PublishError> {
        let bind = |error| PublishError::Bind {
            address: options.address,
            error,
        };
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
            imaged: None,
            second: None,
            trouble: None,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// How it stands.
    pub fn status(&self) -> Published {
        self.shared.status()
    }

    /// What went wrong, once.
    pub fn trouble(&mut self) -> Option<String> {
        self.trouble.take().or_else(|| self.shared.take_trouble())
    }

    /// Enters an event that the analysis has entered.
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

    /// Enters a tick that the analysis has made: what was collected since the last one is sent.
    pub fn tick(&mut self, now: MonoNs, telling: &Telling<'_>) {
        if self.active {
            self.blocks.tick(now);
            self.send_block();
            // A state on its way has followers that are not counted yet: without what comes behind it they would stand still.
            let on_its_way = self.shared.started.load(Ordering::Acquire) < self.starts;
            self.active = on_its_way || self.shared.streams.load(Ordering::Acquire) > 0;
        } else {
            self.blocks.pass_tick();
        }
        if self.shared.wants.load(Ordering::Acquire) > 0 && self.imaged.is_none_or(|at| now.since(at) >= IMAGE_EVERY_NS)
        {
            self.imaged = Some(now);
            self.send_start(telling);
        }
        if self.second.is_none_or(|at| now.since(at) >= SECOND_NS) {
            self.second = Some(now);
            self.each_second(telling);
        }
    }

    fn each_second(&mut self, telling: &Telling<'_>) {
        if self.active {
            let closing = Closing::of(&(telling.input)());
            self.send(Job::About(Box::new(closing)));
        }
        if self.shared.reports.load(Ordering::Acquire) > 0 {
            let report: Report = telling.analysis.report(&(telling.input)());
            self.send(Job::Report(Box::new(report)));
        }
    }

    fn send_block(&mut self) {
        if let Some(block) = self.blocks.close() {
            self.send(Job::Block(Box::new(block)));
        }
    }

    /// From here on whoever wants the stream goes on from this state.
    fn send_start(&mut self, telling: &Telling<'_>) {
        self.active = true;
        let start = self.state(telling, true);
        if self.send(Job::Start(Box::new(start))) {
            self.starts += 1;
        }
    }

    /// Where the run stands, with the images that it is gone on from where they are wanted.
    fn state(&mut self, telling: &Telling<'_>, images: bool) -> job::Start {
        let image = images.then(|| Image::of(telling.analysis));
        if let Some(Err(error)) = &image {
            self.trouble = Some(format!("feed: {error}; watchers begin without the past"));
        }
        job::Start {
            record: self.blocks.next_record(),
            closing: Closing::of(&(telling.input)()),
            image: image.and_then(Result::ok),
            history: images.then(|| (telling.history)().ok()).flatten(),
        }
    }

    /// Hands something over; what does not fit leaves a hole that every watcher sees. Whether it did.
    fn send(&mut self, job: Job) -> bool {
        match self.jobs.try_send(job) {
            Ok(()) => return true,
            Err(TrySendError::Full(_)) => self.shared.skip(),
            Err(TrySendError::Closed(_)) if self.trouble.is_none() => {
                self.active = false;
                self.trouble = Some("feed: the thread that serves it has failed (this is a bug)".into());
            }
            Err(TrySendError::Closed(_)) => {}
        }
        false
    }

    /// Tells the watchers that the run is over, and waits a little until they know. Who is behind has the last state first.
    pub fn finish(mut self, telling: &Telling<'_>) -> Published {
        self.send_block();
        let followed = self.shared.is_followed();
        let (done, is_done) = channel();
        let mut end = Job::End(Box::new(self.state(telling, followed)), done);
        let until = Instant::now() + LAST;
        while let Err(TrySendError::Full(back)) = self.jobs.try_send(end) {
            if Instant::now() >= until {
                break;
            }
            end = back;
            thread::sleep(ROOM);
        }
        let left = until.saturating_duration_since(Instant::now());
        if is_done.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            tracing::info!("feed: some watcher was not told of the end in time");
        }
        self.shared.status()
    }

    /// What the run is.
    pub fn header(&self) -> &Header {
        &self.header
    }
}
