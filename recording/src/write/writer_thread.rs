//! Thread that compresses and writes. Only this thread waits for the disk.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, OnceLock};

use trace::ReportInput;

use super::super::codec::BlockColumns;
use super::super::error::RecordError;
use super::super::header::EndReason;
use super::RecordingSummary;
use super::pack::{BlockPacker, UncompressedBlock};
use super::recording_files::{BlockRefused, RecordingFiles};
use super::ring_file::RingFile;

/// Commands to the worker, in order.
#[expect(clippy::large_enum_variant, reason = "nearly all are blocks; boxing them would allocate for each")]
pub(super) enum WriterJob {
    Block(UncompressedBlock),
    Dump { to: PathBuf, closing: Box<ReportInput>, reply: Sender<Result<RecordingSummary, RecordError>> },
    Finish { closing: Box<ReportInput>, reply: Sender<Result<RecordingSummary, RecordError>> },
}

/// State shared by both threads.
#[derive(Debug, Default)]
pub(super) struct WriterState {
    /// Requested path.
    pub(super) path: PathBuf,
    /// Bytes written to files.
    pub(super) bytes: AtomicU64,
    /// Records that were dropped.
    pub(super) dropped: AtomicU64,
    /// Reason why the recording ended before the run.
    pub(super) stopped: OnceLock<String>,
}

impl WriterState {
    /// Message for a thread that has ended without a reason.
    pub(super) fn crash_message(&self) -> String {
        format!("the thread that writes {} crashed. Please report this bug.", self.path.display())
    }

    /// Error of a request that the worker did not answer.
    pub(super) fn no_reply_error(&self) -> RecordError {
        RecordError::Stopped(self.stopped.get().cloned().unwrap_or_else(|| self.crash_message()))
    }

    /// Ends the recording before the run, for this reason.
    pub(super) fn stop_recording(&self, why: &str) {
        // The first reason counts.
        self.stopped.set(format!("recording stopped: {why}")).ok();
    }
}

/// Destination of blocks.
pub(super) enum BlockStore {
    Files(RecordingFiles),
    Ring(RingFile),
}

impl BlockStore {
    /// Number of the next section within the run.
    fn next_seq(&self) -> u64 {
        match self {
            Self::Files(files) => files.seq,
            Self::Ring(ring) => ring.seq,
        }
    }

    /// Path of the file that is written now.
    fn current_path(&self) -> &Path {
        match self {
            Self::Files(files) => files.current_path(),
            Self::Ring(ring) => &ring.path,
        }
    }
}

/// The thread that writes, with what it owns.
pub(super) struct WriterThread {
    pub(super) store: BlockStore,
    pub(super) packer: BlockPacker,
    pub(super) run: u64,
    pub(super) shared: Arc<WriterState>,
    /// Returns the buffers of written blocks to the recorder.
    pub(super) returned_columns: Sender<BlockColumns<Vec<u8>>>,
}

impl WriterThread {
    /// Executes jobs until one of them finishes the recording, or until its recorder is gone.
    pub(super) fn run_jobs(mut self, jobs: &Receiver<WriterJob>) {
        while let Ok(job) = jobs.recv() {
            match job {
                WriterJob::Block(block) => {
                    // A recording that has stopped takes no more blocks. Those still queued are only returned.
                    if self.shared.stopped.get().is_none() {
                        self.write_block(&block);
                    }
                    // If the caller has ended, the buffer is not needed.
                    self.returned_columns.send(block.columns).ok();
                }
                WriterJob::Dump { to, closing, reply } => {
                    // Without a receiver, nobody waits for the result.
                    reply.send(self.dump_ring(&to, &closing)).ok();
                }
                WriterJob::Finish { closing, reply } => {
                    reply.send(self.finish_store(&closing)).ok();
                    return;
                }
            }
        }
    }

    /// Copies the ring to a recording at `path_of_copy`, which ends with the data for a report, `closing`. Fails for a recording, which
    /// cannot be copied.
    fn dump_ring(&self, path_of_copy: &Path, closing: &ReportInput) -> Result<RecordingSummary, RecordError> {
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        match &self.store {
            BlockStore::Ring(ring) => ring.copy_to_recording(path_of_copy, closing, dropped),
            BlockStore::Files(_) => Err(RecordError::Empty),
        }
    }

    /// Compresses a block and writes it to the recording or the ring. An error ends the recording, but not the run.
    fn write_block(&mut self, block: &UncompressedBlock) {
        // Tests can inject a fault here.
        trace::fault::inject_at("writer");
        let seq = self.store.next_seq();
        let sealed = match self.packer.pack_section(block, self.run, seq) {
            Ok(sealed) => sealed,
            Err(error) => {
                let path = self.store.current_path().display();
                self.shared.stop_recording(&format!("cannot compress a block for {path}: {error}"));
                return;
            }
        };
        let written = match &mut self.store {
            BlockStore::Files(files) => files.append_block(sealed.section, sealed.bytes),
            BlockStore::Ring(ring) => ring.write_block(sealed.section, sealed.bytes),
        };
        match written {
            Ok(bytes) => {
                self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(BlockRefused::Full { max_bytes }) => self.refuse_block_that_exceeds(max_bytes, block.content.records),
            Err(BlockRefused::Failed(error)) => self.stop_after_error(&error),
        }
    }

    /// Ends the recording, because a block with this number of records would exceed its size limit, `max_bytes`. A ring goes on, and only
    /// drops the block.
    fn refuse_block_that_exceeds(&mut self, max_bytes: u64, records: u32) {
        let dropped = &self.shared.dropped;
        match &mut self.store {
            // The block is larger than the whole ring; the next one may fit.
            BlockStore::Ring(_) => {
                dropped.fetch_add(records.into(), Ordering::Relaxed);
            }
            BlockStore::Files(files) => {
                // The data for a report is known only at the end of the run.
                let closing = None;
                let ended = files.end_file(EndReason::Full, dropped.load(Ordering::Relaxed), closing);
                let end_error = ended.err().map(|error| format!("; {error}")).unwrap_or_default();
                let path = files.current_path().display();
                let why = format!("{path} has reached its size limit of {max_bytes} bytes{end_error}");
                self.shared.stop_recording(&why);
            }
        }
    }

    /// Stops the recording after a block could not be written. Ends the file if it still exists.
    fn stop_after_error(&mut self, error: &RecordError) {
        // Nothing of a removed file is left to be ended.
        if matches!(error, RecordError::Removed(_)) {
            self.shared.stop_recording(&error.to_string());
            return;
        }
        if let BlockStore::Files(files) = &mut self.store {
            let dropped = self.shared.dropped.load(Ordering::Relaxed);
            // The disk may have space for the end, because the truncated block was removed. If not, readers find the blocks without an
            // index.
            let closing = None;
            // `Full` stands for any end before that of the run.
            files.end_file(EndReason::Full, dropped, closing).ok();
        }
        self.shared.stop_recording(&format!("{error}; earlier blocks are intact"));
    }

    /// Writes the end of the recording, with the data for a report, `closing`. A ring has no end, so it is only synchronised with the disk.
    fn finish_store(&mut self, closing: &ReportInput) -> Result<RecordingSummary, RecordError> {
        let dropped = self.shared.dropped.load(Ordering::Relaxed);
        let stopped = self.shared.stopped.get().cloned();
        match &mut self.store {
            BlockStore::Ring(ring) => ring.sync_and_summarise(dropped),
            BlockStore::Files(files) => {
                // A recording that has stopped by itself already has its end.
                if stopped.is_none() {
                    files.end_file(EndReason::Finished, dropped, Some(closing))?;
                }
                Ok(RecordingSummary { dropped, stopped, ..files.summarise_recording() })
            }
        }
    }
}
