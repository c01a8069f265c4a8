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

use trace::clock::{Anchor, MonoNs, wall_now_ns};
use trace::event::Event;
use trace::{ReportInput, fault};

use super::super::codec::{BlockColumns, EncodedBlock, Encoder};
use super::super::error::{DISK_TIMEOUT, RecordError};
use super::super::header::RecordingHeader;
use super::pack::{BlockPacker, FILE_LEVEL, UncompressedBlock};
use super::recording_files::RecordingFiles;
use super::ring_file::RingFile;
use super::writer_thread::{BlockStore, WriterJob, WriterState, WriterThread};
use super::{RecordOptions, RecordingStatus, RecordingSummary};

/// Maximum number of closed blocks waiting for the disk. Further ones are dropped and counted, unless the caller may wait.
const QUEUE_BLOCKS: usize = 16;
/// Interval between attempts to hand over a job at the end.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);

/// Writes a recording or a ring. File errors never stop the run: the recording stops, and [`Recorder::status`] has the reason.
#[derive(Debug)]
pub struct Recorder {
    encoder: Encoder,
    options: RecordOptions,
    /// Last reading of both clocks.
    last_anchor: Anchor,
    /// Number of records in closed blocks, including dropped ones.
    closed_records: u64,
    /// Buffer of a dropped block, for the next one.
    spare_columns: Option<BlockColumns<Vec<u8>>>,
    jobs: SyncSender<WriterJob>,
    /// Buffers of written blocks, for the next ones.
    empty_columns: Receiver<BlockColumns<Vec<u8>>>,
    shared: Arc<WriterState>,
}

/// A request to the thread that writes.
#[derive(Debug)]
pub struct PendingSummary {
    answer: Receiver<Result<RecordingSummary, RecordError>>,
    deadline: Instant,
    /// Requested file.
    path: PathBuf,
    shared: Arc<WriterState>,
}

impl PendingSummary {
    /// Returns the result of the request, or `None` while it is in progress.
    pub fn poll(&mut self) -> Option<Result<RecordingSummary, RecordError>> {
        match self.answer.try_recv() {
            Ok(result) => Some(result),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(self.shared.no_reply_error())),
        }
    }

    /// Waits for the result of the request. Fails if there is none by the deadline.
    pub fn wait(self) -> Result<RecordingSummary, RecordError> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        match self.answer.recv_timeout(remaining) {
            Ok(result) => result,
            Err(RecvTimeoutError::Timeout) => Err(RecordError::Silent(self.path)),
            Err(RecvTimeoutError::Disconnected) => Err(self.shared.no_reply_error()),
        }
    }
}

impl Recorder {
    /// Creates the file, readable by its owner only, and the thread that writes it.
    pub fn create(path: &Path, header: &RecordingHeader, options: RecordOptions) -> Result<Self, RecordError> {
        let run = new_run_id();
        let header = RecordingHeader { part: 0, ..header.clone() };
        let store = BlockStore::Files(RecordingFiles::create(path, &header, run, options)?);
        Self::start_writer_thread(path, store, run, &header, options)
    }

    /// Creates a ring: a file of `size` bytes that keeps the latest part of a run. All of its space is reserved, and only its owner can
    /// read it. It can be opened like a recording, even after a crash. An existing ring may contain the last minutes of a killed run, so it
    /// is replaced only with `options.force`.
    pub fn create_ring(
        path: &Path,
        size: u64,
        header: &RecordingHeader,
        options: RecordOptions,
    ) -> Result<Self, RecordError> {
        let run = new_run_id();
        let store = BlockStore::Ring(RingFile::create(path, size, header, run, options.force)?);
        Self::start_writer_thread(path, store, run, header, options)
    }

    /// Starts the thread that writes to `store`, and returns the recorder that gives it blocks.
    fn start_writer_thread(
        path: &Path,
        store: BlockStore,
        run: u64,
        header: &RecordingHeader,
        options: RecordOptions,
    ) -> Result<Self, RecordError> {
        let io_error = |error| RecordError::io("start writing to", path, error);
        // Bounded, so that a slow disk cannot fill the memory.
        let (jobs, inbox) = sync_channel(QUEUE_BLOCKS);
        // Returns written blocks, so that their memory is used again.
        let (returned_columns, empty_columns) = channel();
        let shared = Arc::new(WriterState { path: path.to_owned(), ..WriterState::default() });
        let worker = WriterThread {
            store,
            packer: BlockPacker::with_level(FILE_LEVEL).map_err(io_error)?,
            run,
            shared: Arc::clone(&shared),
            returned_columns,
        };
        thread::Builder::new().name("recorder".into()).spawn(move || worker.run_jobs(&inbox)).map_err(io_error)?;
        Ok(Self {
            encoder: Encoder::new(header.payload),
            options,
            last_anchor: header.anchor,
            closed_records: 0,
            spare_columns: None,
            jobs,
            empty_columns,
            shared,
        })
    }

    /// Requested path.
    pub fn path(&self) -> &Path {
        &self.shared.path
    }

    /// Records an event, unless the recording has stopped. Waits only if [`RecordOptions::wait`] is set. Allocates nothing for a chunk of a
    /// request already in the block.
    pub fn record_event(&mut self, event: &Event<'_>) {
        if self.has_stopped() {
            return;
        }
        // Tests can inject a fault here.
        fault::inject_at("recorder");
        let is_written = self.encoder.write_event_or_loss(event);
        // An event that is too large was left out.
        if !is_written {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
        self.close_block_if_due(event.at);
    }

    /// Records a tick, at which the analysis looks for findings, and at intervals a reading of both clocks (an anchor). Does nothing once
    /// the recording has stopped.
    pub fn record_tick(&mut self, now: MonoNs) {
        if self.has_stopped() {
            return;
        }
        self.encoder.write_tick(now);
        let is_anchor_due = self.options.anchor_every_ns.is_some_and(|ns| now.since(self.last_anchor.mono) >= ns);
        if is_anchor_due {
            self.anchor(Anchor::now());
        }
        self.close_block_if_due(now);
    }

    /// Records a reading of both clocks.
    pub fn anchor(&mut self, anchor: Anchor) {
        self.last_anchor = anchor;
        self.encoder.write_anchor(anchor);
    }

    /// Current status. The bytes of a ring include data overwritten since.
    pub fn status(&self) -> RecordingStatus {
        RecordingStatus {
            bytes: self.shared.bytes.load(Ordering::Relaxed),
            records: self.closed_records + u64::from(self.encoder.content.records),
            dropped: self.shared.dropped.load(Ordering::Relaxed),
            stopped: self.shared.stopped.get().cloned(),
        }
    }

    /// Whether the recording has ended before the run.
    fn has_stopped(&self) -> bool {
        self.shared.stopped.get().is_some()
    }

    /// Closes the block if it is full, or old enough that its records must be on disk.
    fn close_block_if_due(&mut self, now: MonoNs) {
        let is_old = now.since(self.encoder.content.from) >= self.options.block_ns;
        if is_old || self.encoder.is_full(self.options.block_bytes) {
            let job = self.close_block();
            self.submit_block_or_drop(job);
        }
    }

    /// Ends the current block, and returns the job of writing it. Begins the next block in an empty buffer that the writer has returned, or
    /// in a new one.
    fn close_block(&mut self) -> WriterJob {
        let empty = self.spare_columns.take().or_else(|| self.empty_columns.try_recv().ok());
        let EncodedBlock { columns, content } = self.encoder.close_block(empty.unwrap_or_default());
        let first_record = self.closed_records;
        self.closed_records += u64::from(content.records);
        WriterJob::Block(UncompressedBlock { columns, content, first_record, anchor: self.last_anchor })
    }

    /// Passes a block to the writer's thread. If the queue is full, waits if [`RecordOptions::wait`] is set, and otherwise drops the block
    /// and counts its records.
    fn submit_block_or_drop(&mut self, block_job: WriterJob) {
        // Events of a file can wait, and events of a live run cannot.
        let submitted = if self.options.wait {
            // Fails only if the thread has ended. The error has the job.
            self.jobs.send(block_job).map_err(|error| TrySendError::Disconnected(error.0))
        } else {
            self.jobs.try_send(block_job)
        };
        match submitted {
            Ok(()) => {}
            Err(TrySendError::Disconnected(_)) => self.shared.stop_recording(&self.shared.crash_message()),
            Err(TrySendError::Full(unsent)) => self.drop_block(unsent),
        }
    }

    /// Drops a block for which the queue of the writer's thread has no space, and counts its records.
    fn drop_block(&mut self, block_job: WriterJob) {
        // Only blocks are dropped: `submit_job_or_fail` passes the jobs that need a reply.
        let WriterJob::Block(block) = block_job else { return };
        self.shared.dropped.fetch_add(block.content.records.into(), Ordering::Relaxed);
        // Kept for the next block, because the thread returns only buffers that it got.
        self.spare_columns = Some(block.columns);
    }

    /// Copies a ring to a recording, on the ring's own thread. The ring continues meanwhile; records that do not fit in its queue are
    /// dropped and counted.
    pub fn copy_ring_to(&mut self, path_of_copy: &Path, closing: &ReportInput) -> Result<PendingSummary, RecordError> {
        let path = path_of_copy.to_owned();
        let closing = Box::new(closing.clone());
        // The run must go on, so a full queue is an error.
        let may_wait = false;
        self.request_summary(path.clone(), may_wait, |reply| WriterJob::Dump { to: path, closing, reply })
    }

    /// Writes the remaining data, and waits until it is on disk. A recording also gets a closing section and an index, and a ring gets
    /// neither. If the recording has stopped at the size limit or after an earlier error, that is not an error here but in the summary.
    pub fn finish(mut self, closing: &ReportInput) -> Result<RecordingSummary, RecordError> {
        let path = self.path().to_owned();
        let closing = Box::new(closing.clone());
        let may_wait = true;
        let pending = self.request_summary(path, may_wait, |reply| WriterJob::Finish { closing, reply })?;
        pending.wait()
    }

    /// Asks the writer's thread to complete the file `path`: the recording itself, or the copy of a ring. The current block is written
    /// first. `job_with_reply` makes the job from the channel for its result, which the returned [`PendingSummary`] receives. If
    /// `may_wait`, waits for space in the queue of jobs.
    fn request_summary(
        &mut self,
        path: PathBuf,
        may_wait: bool,
        job_with_reply: impl FnOnce(Sender<Result<RecordingSummary, RecordError>>) -> WriterJob,
    ) -> Result<PendingSummary, RecordError> {
        let deadline = Instant::now() + DISK_TIMEOUT;
        let submit_deadline = may_wait.then_some(deadline);
        if self.encoder.content.records > 0 {
            let block = self.close_block();
            self.submit_job_or_fail(block, submit_deadline)?;
        }
        let (reply, answer) = channel();
        self.submit_job_or_fail(job_with_reply(reply), submit_deadline)?;
        Ok(PendingSummary { answer, deadline, path, shared: Arc::clone(&self.shared) })
    }

    /// Passes a job to the writer's thread. While the queue is full, tries again until `deadline`, or only once without a deadline. Then
    /// fails, and counts the records of a block as dropped.
    fn submit_job_or_fail(&self, mut job: WriterJob, deadline: Option<Instant>) -> Result<(), RecordError> {
        loop {
            // A channel has no send with a deadline. A full one returns the job, which is then tried again.
            job = match self.jobs.try_send(job) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Full(unsent)) => unsent,
                Err(TrySendError::Disconnected(_)) => return Err(self.shared.no_reply_error()),
            };
            let may_retry = deadline.is_some_and(|deadline| Instant::now() < deadline);
            if !may_retry {
                // The block is lost: the recording states how many records it had.
                if let WriterJob::Block(block) = job {
                    self.shared.dropped.fetch_add(block.content.records.into(), Ordering::Relaxed);
                }
                return Err(RecordError::Silent(self.path().to_owned()));
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }
}

impl Drop for Recorder {
    /// Hands over the last block if the run ends without `finish`.
    fn drop(&mut self) {
        if self.encoder.content.records > 0 && !self.has_stopped() {
            let job = self.close_block();
            self.submit_block_or_drop(job);
        }
    }
}

/// Creates a run id, which distinguishes the sections of this run from others.
pub(crate) fn new_run_id() -> u64 {
    use std::hash::BuildHasher;
    hashbrown::DefaultHashBuilder::default().hash_one((wall_now_ns(), MonoNs::now(), std::process::id()))
}
