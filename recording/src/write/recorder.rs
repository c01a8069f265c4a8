//! A recording of a run, or a ring with its recent past. Encodes records and hands over closed blocks to the thread that writes them; waits
//! only at the end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{
    Receiver, RecvTimeoutError, Sender, SyncSender, TryRecvError, TrySendError, channel, sync_channel,
};
use std::thread;
use std::time::{Duration, Instant};

use trace::clock::{Anchor, MonoNs, wall_ns};
use trace::event::Event;
use trace::{ReportInput, fault};

use super::super::codec::{Columns, Encoder};
use super::super::error::{PATIENCE, RecordError};
use super::super::header::Header;
use super::files::Files;
use super::pack::{BlockPacker, LEVEL, OpenBlock};
use super::ring::Ring;
use super::worker::{Job, Shared, Store, Worker};
use super::{RecordOptions, Status, Summary};

/// Maximum number of closed blocks waiting for the disk. Further ones are dropped and counted, unless the caller may wait.
const QUEUE_BLOCKS: usize = 16;
/// Interval between attempts to hand over a job at the end.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Writes a recording or a ring. File errors never stop the run: the recording stops, and [`Recorder::status`] has the reason.
#[derive(Debug)]
pub struct Recorder {
    encoder: Encoder,
    options: RecordOptions,
    anchor: Anchor,
    /// Number of records in closed blocks, including dropped ones.
    records: u64,
    spare: Option<Columns<Vec<u8>>>,
    jobs: SyncSender<Job>,
    empties: Receiver<Columns<Vec<u8>>>,
    shared: Arc<Shared>,
}

/// A request to the thread that writes.
#[derive(Debug)]
pub struct Pending {
    answer: Receiver<Result<Summary, RecordError>>,
    deadline: Instant,
    /// Requested file.
    path: PathBuf,
    shared: Arc<Shared>,
}

impl Pending {
    /// Its result; `None` while it is in progress.
    pub fn poll(&mut self) -> Option<Result<Summary, RecordError>> {
        match self.answer.try_recv() {
            Ok(done) => Some(done),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(self.shared.crashed())),
        }
    }

    /// Waits for its result.
    pub fn wait(self) -> Result<Summary, RecordError> {
        match self.answer.recv_timeout(self.deadline.saturating_duration_since(Instant::now())) {
            Ok(done) => done,
            Err(RecvTimeoutError::Timeout) => Err(RecordError::Silent(self.path)),
            Err(RecvTimeoutError::Disconnected) => Err(self.shared.crashed()),
        }
    }
}

impl Recorder {
    /// Creates the file, readable by its owner only, and the thread that writes it.
    pub fn create(path: &Path, header: &Header, options: RecordOptions) -> Result<Self, RecordError> {
        let run = run_id();
        let header = Header { part: 0, ..header.clone() };
        let store = Store::Files(Files::create(path, &header, run, options)?);
        Self::start(path, store, run, &header, options)
    }

    /// Creates a ring of `size` bytes, all reserved, readable by its owner only, that keeps the latest part of a run. It can be opened like a
    /// recording, even after a crash. An existing one may contain the last minutes of a killed run, so it is replaced only with
    /// `options.force`.
    pub fn ring(path: &Path, size: u64, header: &Header, options: RecordOptions) -> Result<Self, RecordError> {
        let run = run_id();
        let store = Store::Ring(Ring::create(path, size, header, run, options.force)?);
        Self::start(path, store, run, header, options)
    }

    /// Starts the thread that writes to `store`.
    fn start(
        path: &Path,
        store: Store,
        run: u64,
        header: &Header,
        options: RecordOptions,
    ) -> Result<Self, RecordError> {
        let failed = |error| RecordError::io("start writing to", path, error);
        let (jobs, inbox) = sync_channel(QUEUE_BLOCKS);
        let (emptied, empties) = channel();
        let shared = Arc::new(Shared { path: path.to_owned(), ..Shared::default() });
        let worker = Worker {
            store,
            packer: BlockPacker::of_level(LEVEL).map_err(failed)?,
            run,
            shared: Arc::clone(&shared),
            empties: emptied,
        };
        thread::Builder::new().name("recorder".into()).spawn(move || worker.work(&inbox)).map_err(failed)?;
        Ok(Self {
            encoder: Encoder::new(header.payload),
            options,
            anchor: header.anchor,
            records: 0,
            spare: None,
            jobs,
            empties,
            shared,
        })
    }

    /// Requested path.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Records an event. Never waits. Allocates nothing for a chunk of a request already in the block.
    pub fn event(&mut self, event: &Event<'_>) {
        if self.has_stopped() {
            return;
        }
        fault::here("recorder");
        if !self.encoder.event(event) {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.close_if_due(event.at);
    }

    /// Records a tick of the analysis and, at intervals, both clocks.
    pub fn tick(&mut self, now: MonoNs) {
        if self.has_stopped() {
            return;
        }
        self.encoder.tick(now);
        if self.options.anchor_every_ns.is_some_and(|ns| now.since(self.anchor.mono) >= ns) {
            self.anchor = Anchor::now();
            self.encoder.anchor(self.anchor);
        }
        self.close_if_due(now);
    }

    /// Current status. The bytes of a ring include data overwritten since.
    pub fn status(&self) -> Status {
        Status {
            bytes: self.shared.bytes.load(Ordering::Relaxed),
            records: self.records + u64::from(self.encoder.content.records),
            dropped: self.shared.dropped.load(Ordering::Relaxed),
            stopped: self.shared.stopped.get().cloned(),
        }
    }

    fn has_stopped(&self) -> bool {
        self.shared.stopped.get().is_some()
    }

    fn close_if_due(&mut self, now: MonoNs) {
        let old = now.since(self.encoder.content.from) >= self.options.block_ns;
        if old || self.encoder.is_full(self.options.block_bytes) {
            let job = self.close();
            self.submit(job);
        }
    }

    fn close(&mut self) -> Job {
        let empty = self.spare.take().or_else(|| self.empties.try_recv().ok());
        let (columns, content) = self.encoder.close(empty.unwrap_or_default());
        let first_record = self.records;
        self.records += u64::from(content.records);
        Job::Block(OpenBlock { columns, content, first_record, anchor: self.anchor })
    }

    fn submit(&mut self, job: Job) {
        let submitted = if self.options.wait {
            self.jobs.send(job).map_err(|error| TrySendError::Disconnected(error.0))
        } else {
            self.jobs.try_send(job)
        };
        match submitted {
            Err(TrySendError::Full(Job::Block(block))) => {
                self.shared.dropped.fetch_add(block.content.records.into(), Ordering::Relaxed);
                self.spare = Some(block.columns);
            }
            // Jobs that need a reply use `push` instead.
            Ok(()) | Err(TrySendError::Full(_)) => {}
            Err(TrySendError::Disconnected(_)) => {
                self.shared.stop(&self.shared.crash());
            }
        }
    }

    /// Copies a ring to a recording, on the ring's own thread. The ring continues meanwhile; records that do not fit in its queue are dropped
    /// and counted.
    pub fn dump(&mut self, to: &Path, closing: &ReportInput) -> Result<Pending, RecordError> {
        let (path, closing) = (to.to_owned(), Box::new(closing.clone()));
        self.request(to.to_owned(), false, |reply| Job::Dump { to: path, closing, reply })
    }

    /// Writes the remaining data, the closing section and the index, and waits until they are on disk. The file of a ring keeps its form. A
    /// stop at the size limit or after an earlier error is not an error here: the summary reports it.
    pub fn finish(mut self, closing: &ReportInput) -> Result<Summary, RecordError> {
        let (path, closing) = (self.path().to_owned(), Box::new(closing.clone()));
        self.request(path, true, |reply| Job::Finish { closing, reply })?.wait()
    }

    /// Closes the current block and sends a job about the file `path`. If `patient`, waits for space in the queue.
    fn request(
        &mut self,
        path: PathBuf,
        patient: bool,
        job: impl FnOnce(Sender<Result<Summary, RecordError>>) -> Job,
    ) -> Result<Pending, RecordError> {
        let deadline = Instant::now() + PATIENCE;
        let until = patient.then_some(deadline);
        if self.encoder.content.records > 0 {
            let block = self.close();
            self.push(block, until)?;
        }
        let (reply, answer) = channel();
        self.push(job(reply), until)?;
        Ok(Pending { answer, deadline, path, shared: Arc::clone(&self.shared) })
    }

    fn push(&self, mut job: Job, deadline: Option<Instant>) -> Result<(), RecordError> {
        loop {
            match self.jobs.try_send(job) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(back)) if deadline.is_some_and(|at| Instant::now() < at) => {
                    job = back;
                    thread::sleep(RETRY_INTERVAL);
                }
                Err(TrySendError::Full(back)) => {
                    if let Job::Block(block) = back {
                        self.shared.dropped.fetch_add(block.content.records.into(), Ordering::Relaxed);
                    }
                    return Err(RecordError::Silent(self.path().to_owned()));
                }
                Err(TrySendError::Disconnected(_)) => return Err(self.shared.crashed()),
            }
        }
    }
}

impl Drop for Recorder {
    /// Hands over the last block if the run ends without `finish`.
    fn drop(&mut self) {
        if self.encoder.content.records > 0 && !self.has_stopped() {
            let job = self.close();
            self.submit(job);
        }
    }
}

/// Creates a run id, which distinguishes the sections of this run from others.
pub(crate) fn run_id() -> u64 {
    use std::hash::BuildHasher;
    hashbrown::DefaultHashBuilder::default().hash_one((wall_ns(), MonoNs::now(), std::process::id()))
}
