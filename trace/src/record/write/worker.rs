//! Thread that compresses and writes. Only this thread waits for the disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};

use super::super::codec::Columns;
use super::super::error::RecordError;
use super::super::header::Why;
use super::Summary;
use super::files::{Files, Refused};
use super::pack::{OpenBlock, Packer};
use super::ring::Ring;
use crate::report::ReportInput;

/// Commands to the worker, in order.
#[expect(clippy::large_enum_variant, reason = "nearly all are blocks; boxing them would allocate for each")]
pub(super) enum Job {
    Block(OpenBlock),
    Dump { to: PathBuf, force: bool, closing: Box<ReportInput>, reply: Sender<Result<Summary, RecordError>> },
    Finish { closing: Box<ReportInput>, reply: Sender<Result<Summary, RecordError>> },
}

/// State shared by both threads.
#[derive(Debug)]
pub(super) struct Shared {
    /// Requested path.
    pub(super) path: PathBuf,
    pub(super) bytes: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) has_stopped: AtomicBool,
    stopped: Mutex<Option<String>>,
}

impl Shared {
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            bytes: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            has_stopped: AtomicBool::new(false),
            stopped: Mutex::new(None),
        }
    }

    pub(super) fn crash(&self) -> String {
        format!("the thread that writes {} crashed. Please report this bug.", self.path.display())
    }

    /// Error of a request that the worker did not answer.
    pub(super) fn crashed(&self) -> RecordError {
        RecordError::Stopped(self.stopped().unwrap_or_else(|| self.crash()))
    }

    pub(super) fn stopped(&self) -> Option<String> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn stop(&self, why: String) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
        self.has_stopped.store(true, Ordering::Release);
    }
}

/// Destination of blocks.
pub(super) enum Store {
    Files(Files),
    Ring(Ring),
}

impl Store {
    fn path(&self) -> &Path {
        match self {
            Self::Files(files) => files.path(),
            Self::Ring(ring) => ring.path(),
        }
    }

    fn next_seq(&self) -> u64 {
        match self {
            Self::Files(files) => files.next_seq(),
            Self::Ring(ring) => ring.next_seq(),
        }
    }
}

pub(super) struct Worker {
    pub(super) store: Store,
    pub(super) packer: Packer,
    pub(super) run: u64,
    pub(super) shared: Arc<Shared>,
    pub(super) empties: Sender<Columns<Vec<u8>>>,
}

impl Worker {
    pub(super) fn work(mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Block(block) => {
                    if !self.shared.has_stopped.load(Ordering::Acquire) {
                        self.block(&block);
                    }
                    // If the caller has ended, the buffer is not needed.
                    self.empties.send(block.columns).ok();
                }
                Job::Dump { to, force, closing, reply } => {
                    let dropped = self.shared.dropped.load(Ordering::Relaxed);
                    let dumped = match &self.store {
                        Store::Ring(ring) => ring.dump(&to, &closing, dropped, force),
                        Store::Files(_) => Err(RecordError::Empty),
                    };
                    reply.send(dumped).ok();
                }
                Job::Finish { closing, reply } => {
                    reply.send(self.finish(&closing)).ok();
                    return;
                }
            }
        }
    }

    fn block(&mut self, block: &OpenBlock) {
        crate::fault::here("writer");
        let (section, sealed) = match self.packer.block(block, self.run, self.store.next_seq()) {
            Ok(packed) => packed,
            Err(error) => {
                return self.stop(&format!("cannot compress a block for {}: {error}", self.store.path().display()));
            }
        };
        let written = match &mut self.store {
            Store::Files(files) => files.block(section, sealed),
            Store::Ring(ring) => ring.block(section, sealed),
        };
        match written {
            Ok(bytes) => {
                self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(Refused::Full(max)) => match &mut self.store {
                Store::Files(files) => {
                    let path = files.path().display().to_string();
                    let dropped = self.shared.dropped.load(Ordering::Relaxed);
                    let ended = files.end(Why::Full, dropped, None);
                    let how = ended.err().map(|error| format!("; {error}")).unwrap_or_default();
                    self.stop(&format!("{path} has reached its size limit of {max} bytes{how}"));
                }
                // The block is larger than the whole ring; the next one may fit.
                Store::Ring(_) => {
                    let records = u64::from(block.content.records);
                    self.shared.dropped.fetch_add(records, Ordering::Relaxed);
                }
            },
            Err(Refused::Removed) => {
                let path = self.store.path().to_owned();
                self.stop(&RecordError::Removed { path }.to_string());
            }
            Err(Refused::Failed(error)) => {
                let path = self.store.path().display().to_string();
                if let Store::Files(files) = &mut self.store {
                    // Removing the last block may have freed space for an index. Without one, the file is scanned.
                    files.end(Why::Full, self.shared.dropped.load(Ordering::Relaxed), None).ok();
                }
                self.stop(&format!("cannot write to {path}: {error}; earlier blocks are intact"));
            }
        }
    }

    fn stop(&self, why: &str) {
        self.shared.stop(format!("recording stopped: {why}"));
    }

    fn finish(&mut self, closing: &ReportInput) -> Result<Summary, RecordError> {
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        let stopped = self.shared.stopped();
        match &mut self.store {
            Store::Ring(ring) => ring.finish(dropped),
            Store::Files(files) => {
                if stopped.is_none() {
                    files.end(Why::Finished, dropped, Some(closing))?;
                }
                Ok(Summary { dropped, stopped, ..files.summary() })
            }
        }
    }
}
