//! Hindsight ring: an always-on recording of the recent past.

use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Instant;

use super::super::error::RecordError;
use super::super::header::{Closing, Header};
use super::recorder::{Recorder, run};
use super::ring::Ring;
use super::worker::{Job, Store};
use super::{RecordOptions, Status, Summary};
use crate::clock::MonoNs;
use crate::event::Event;

/// Keeps the latest part of a run in a file of fixed size. The file can be opened like a recording, even after a crash.
#[derive(Debug)]
pub struct Hindsight {
    recorder: Recorder,
}

/// A dump in progress.
#[derive(Debug)]
pub struct Dumping {
    answer: Receiver<Result<Summary, RecordError>>,
    deadline: Instant,
    silent: Option<RecordError>,
}

const WRITER_CRASHED: &str = "the thread that writes the ring crashed. Please report this bug.";

impl Dumping {
    /// Result of the dump; `None` while it is in progress.
    pub fn poll(&mut self) -> Option<Result<Summary, RecordError>> {
        match self.answer.try_recv() {
            Ok(done) => Some(done),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(RecordError::Stopped(WRITER_CRASHED.into()))),
        }
    }

    /// Waits for the dump.
    pub fn wait(mut self) -> Result<Summary, RecordError> {
        match self.answer.recv_timeout(self.deadline.saturating_duration_since(Instant::now())) {
            Ok(done) => done,
            Err(RecvTimeoutError::Timeout) => Err(self.silent.take().unwrap_or(RecordError::Empty)),
            Err(RecvTimeoutError::Disconnected) => Err(RecordError::Stopped(WRITER_CRASHED.into())),
        }
    }
}

impl Hindsight {
    /// Creates a ring of `size` bytes, all reserved, readable by its owner only. An existing one may contain the last
    /// minutes of a killed run, so it is replaced only with `options.force`.
    pub fn create(path: &Path, size: u64, header: &Header, options: RecordOptions) -> Result<Self, RecordError> {
        let run = run();
        let ring = Ring::create(path, size, header, run, options.force)?;
        let recorder = Recorder::start(path, Store::Ring(ring), run, header, options)?;
        Ok(Self { recorder })
    }

    /// The ring's file.
    pub fn path(&self) -> &Path {
        self.recorder.path()
    }

    /// Like [`super::Recorder::event`].
    pub fn event(&mut self, event: &Event<'_>) {
        self.recorder.event(event);
    }

    /// Like [`super::Recorder::tick`].
    pub fn tick(&mut self, now: MonoNs) {
        self.recorder.tick(now);
    }

    /// Current status. `bytes` includes data overwritten since.
    pub fn status(&self) -> Status {
        self.recorder.status()
    }

    /// Copies the ring to a recording, on the ring's own thread. The ring continues meanwhile; records that do not fit in its queue are
    /// dropped and counted.
    pub fn start_dump(&mut self, to: &Path, closing: &Closing, force: bool) -> Result<Dumping, RecordError> {
        let deadline = self.recorder.deadline();
        let (to, closing) = (to.to_owned(), Box::new(closing.clone()));
        let silent = RecordError::Silent {
            path: to.clone(),
            seconds: deadline.saturating_duration_since(Instant::now()).as_secs(),
        };
        let answer = self.recorder.request(Instant::now(), |reply| Job::Dump { to, force, closing, reply })?;
        Ok(Dumping { answer, deadline, silent: Some(silent) })
    }

    /// Copies the ring to a recording and waits for the result.
    pub fn dump(&mut self, to: &Path, closing: &Closing, force: bool) -> Result<Summary, RecordError> {
        self.start_dump(to, closing, force)?.wait()
    }

    /// Writes the remaining data and waits until it is on disk. The ring's file is kept.
    pub fn finish(self) -> Result<Summary, RecordError> {
        self.recorder.finish(&Closing::default())
    }
}
