//! Thread that compresses and writes. Only this thread waits for the disk.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock};

use trace::ReportInput;

use super::super::codec::Columns;
use super::super::error::RecordError;
use super::super::header::Why;
use super::Summary;
use super::files::{Files, Refused};
use super::pack::{BlockPacker, OpenBlock};
use super::ring::Ring;

/// Commands to the worker, in order.
#[expect(clippy::large_enum_variant, reason = "nearly all are blocks; boxing them would allocate for each")]
pub(super) enum Job {
    Block(OpenBlock),
    Dump { to: PathBuf, closing: Box<ReportInput>, reply: Sender<Result<Summary, RecordError>> },
    Finish { closing: Box<ReportInput>, reply: Sender<Result<Summary, RecordError>> },
}

/// State shared by both threads.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Requested path.
    pub(super) path: PathBuf,
    pub(super) bytes: AtomicU64,
    pub(super) dropped: AtomicU64,
    /// Reason why the recording ended before the run.
    pub(super) stopped: OnceLock<String>,
}

impl Shared {
    pub(super) fn crash(&self) -> String {
        format!("the thread that writes {} crashed. Please report this bug.", self.path.display())
    }

    /// Error of a request that the worker did not answer.
    pub(super) fn crashed(&self) -> RecordError {
        RecordError::Stopped(self.stopped.get().cloned().unwrap_or_else(|| self.crash()))
    }

    pub(super) fn stop(&self, why: &str) {
        // The first reason counts.
        self.stopped.set(format!("recording stopped: {why}")).ok();
    }
}

/// Destination of blocks.
pub(super) enum Store {
    Files(Files),
    Ring(Ring),
}

pub(super) struct Worker {
    pub(super) store: Store,
    pub(super) packer: BlockPacker,
    pub(super) run: u64,
    pub(super) shared: Arc<Shared>,
    pub(super) empties: Sender<Columns<Vec<u8>>>,
}

impl Worker {
    pub(super) fn work(mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            match job {
                Job::Block(block) => {
                    if self.shared.stopped.get().is_none() {
                        self.block(&block);
                    }
                    // If the caller has ended, the buffer is not needed.
                    self.empties.send(block.columns).ok();
                }
                Job::Dump { to, closing, reply } => {
                    let dropped = self.shared.dropped.load(Ordering::Relaxed);
                    let dumped = match &self.store {
                        Store::Ring(ring) => ring.dump(&to, &closing, dropped),
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
        trace::fault::here("writer");
        let (path, seq) = match &self.store {
            Store::Files(files) => (files.path(), files.seq),
            Store::Ring(ring) => (&*ring.path, ring.seq),
        };
        let (section, sealed) = match self.packer.block(block, self.run, seq) {
            Ok(packed) => packed,
            Err(error) => {
                return self.shared.stop(&format!("cannot compress a block for {}: {error}", path.display()));
            }
        };
        let written = match &mut self.store {
            Store::Files(files) => files.block(section, sealed),
            Store::Ring(ring) => ring.block(section, sealed),
        };
        let dropped = &self.shared.dropped;
        match (written, &mut self.store) {
            (Ok(bytes), _) => {
                self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            // The block is larger than the whole ring; the next one may fit.
            (Err(Refused::Full(_)), Store::Ring(_)) => {
                dropped.fetch_add(block.content.records.into(), Ordering::Relaxed);
            }
            (Err(Refused::Full(max)), Store::Files(files)) => {
                let ended = files.end(Why::Full, dropped.load(Ordering::Relaxed), None);
                let how = ended.err().map(|error| format!("; {error}")).unwrap_or_default();
                let path = files.path().display();
                self.shared.stop(&format!("{path} has reached its size limit of {max} bytes{how}"));
            }
            (Err(Refused::Failed(error @ RecordError::Removed(_))), _) => self.shared.stop(&error.to_string()),
            (Err(Refused::Failed(error)), store) => {
                if let Store::Files(files) = store {
                    // Removing the last block may have freed space for an index. Without one, the file is scanned.
                    files.end(Why::Full, dropped.load(Ordering::Relaxed), None).ok();
                }
                self.shared.stop(&format!("{error}; earlier blocks are intact"));
            }
        }
    }

    fn finish(&mut self, closing: &ReportInput) -> Result<Summary, RecordError> {
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        let stopped = self.shared.stopped.get().cloned();
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
