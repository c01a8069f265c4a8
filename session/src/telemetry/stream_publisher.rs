//! The run's side of the streams: collects records into blocks and passes them to the endpoint's thread, which never delays the run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use std::{io, thread};

use hyper::body::Bytes;
use recording::{BlockWriter, RecordedPayload, StreamPacker, UncompressedBlock};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use trace::{Event, MonoNs, ReportInput};

/// Capacity of the queue to the endpoint's thread.
const MAX_JOBS: usize = 64;
const SECOND_NS: u64 = 1_000_000_000;
/// Maximum time for the clients to receive the end of the run.
const END_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between attempts to queue the end.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Work for the endpoint's thread, in order.
pub(super) enum StreamJob {
    Block(Box<UncompressedBlock>),
    Status(Box<ReportInput>),
    /// The end of the run. The endpoint's thread replies when the clients have received it.
    End(Box<ReportInput>, mpsc::Sender<()>),
}

impl StreamJob {
    /// Encodes this job as a section of the recording.
    pub(super) fn encode_section(&self, packer: &mut StreamPacker) -> io::Result<Bytes> {
        match self {
            Self::Block(block) => packer.pack_block(block).map(Bytes::copy_from_slice),
            Self::Status(status) => packer.pack_status(status).map(Bytes::from),
            Self::End(closing, _) => packer.pack_end(closing).map(Bytes::from),
        }
    }
}

/// Writes the recording for the clients of the endpoint.
pub(super) struct StreamPublisher {
    jobs: Sender<StreamJob>,
    blocks: BlockWriter,
    last_status: Option<MonoNs>,
    /// Blocks that the endpoint's thread was too slow to take.
    blocks_dropped: Arc<AtomicU64>,
    end: Option<SentEnd>,
}

/// The end of the run, once it was sent.
struct SentEnd {
    /// The endpoint's thread replies when the clients have received it.
    done_receiver: mpsc::Receiver<()>,
    deadline: Instant,
}

impl StreamPublisher {
    /// Creates the publisher, and the queue that the endpoint reads.
    pub(super) fn new(payload: RecordedPayload, blocks_dropped: Arc<AtomicU64>) -> (Self, Receiver<StreamJob>) {
        let (jobs, inbox) = channel(MAX_JOBS);
        (Self { jobs, blocks: BlockWriter::new(payload), last_status: None, blocks_dropped, end: None }, inbox)
    }

    /// Writes an event that the analysis has already applied.
    pub(super) fn write_event(&mut self, event: &Event<'_>) {
        self.blocks.record_event(event);
        if self.blocks.is_full() {
            self.hand_over_or_drop_block();
        }
    }

    /// Writes a tick that the analysis has already applied, and sends the block collected since the last tick. Once a second, also sends
    /// the contents of a report as of now.
    pub(super) fn write_tick(&mut self, now: MonoNs, input: &dyn Fn() -> ReportInput) {
        self.blocks.record_tick(now);
        self.hand_over_or_drop_block();
        if self.last_status.is_none_or(|sent_at| now.since(sent_at) >= SECOND_NS) {
            self.last_status = Some(now);
            // The next one replaces it, so a full queue costs nothing.
            let _ = self.jobs.try_send(StreamJob::Status(Box::new(input())));
        }
    }

    /// Hands the current block to the endpoint, or drops it if the endpoint does not keep up.
    fn hand_over_or_drop_block(&mut self) {
        if let Some(block) = self.blocks.close_block()
            && self.jobs.try_send(StreamJob::Block(Box::new(block))).is_err()
        {
            // Readers notice the gap in the numbers of the records.
            self.blocks_dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Sends the end of the run. Gives up after a time limit if the queue stays full.
    pub(super) fn send_end(&mut self, input: &ReportInput) {
        self.hand_over_or_drop_block();
        // The endpoint's thread replies when the clients have received the end.
        let (done_sender, done_receiver) = mpsc::channel();
        let mut end = StreamJob::End(Box::new(input.clone()), done_sender);
        let deadline = Instant::now() + END_TIMEOUT;
        // Only a full queue is tried again. Otherwise the end was sent, or nobody receives it because the endpoint's thread has ended.
        while let Err(TrySendError::Full(unsent)) = self.jobs.try_send(end) {
            if Instant::now() >= deadline {
                break;
            }
            end = unsent;
            thread::sleep(RETRY_INTERVAL);
        }
        self.end = Some(SentEnd { done_receiver, deadline });
    }

    /// Waits a limited time until the clients have received the end of the run. Does nothing if the end was not sent.
    pub(super) fn wait_until_clients_received_end(&mut self) {
        let Some(SentEnd { done_receiver, deadline }) = self.end.take() else { return };
        let remaining = deadline.saturating_duration_since(Instant::now());
        if done_receiver.recv_timeout(remaining) == Err(RecvTimeoutError::Timeout) {
            tracing::info!("metrics: some clients did not receive the end of the stream in time");
        }
    }
}
