//! A process that reads Python stacks for `attach --python-stacks`.
//!
//! Reading maps files of the target, whose owner can truncate them at any time, and the kernel then ends the reading process by SIGBUS. So
//! it is a child, which another child starts and starts again. Both are started before tokengap drops its rights, because afterwards it
//! can start no process. The reading child drops all rights except to read other processes. Both end when tokengap does.

mod message;
mod serve;

use std::collections::BTreeSet;
use std::io::BufReader;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::Context;
use probe_user::python::UnreadableProcess;
use probe_user::{Degraded, discarded_output};
use trace::SamplingCost;

pub(crate) use message::ThreadSamples;
use message::{ReaderStatus, StackMessage, StackRequest};
pub use serve::{serve_samples, supervise_reader};

/// Maximum number of undelivered thread samples.
const QUEUE_LENGTH: usize = 4_096;

/// Handle of the reading process.
#[derive(Debug)]
pub(crate) struct StackReader {
    shared: Arc<Mutex<ReaderState>>,
    samples: Mutex<Receiver<ThreadSamples>>,
}

#[derive(Debug)]
struct ReaderState {
    /// This side of the connection.
    socket: UnixStream,
    request: StackRequest,
    status: ReaderStatus,
    /// Cost of reading processes that have ended.
    cost_of_ended_readers: SamplingCost,
    /// How often the reading process ended.
    endings: u32,
    /// Why it ended the last time.
    last_ending: Option<String>,
    /// The reading process has ended for good.
    is_over: bool,
    /// Arguments of [`receive`] until its thread is started. A thread that was started before tokengap drops its rights would keep them.
    unstarted: Option<UnstartedReceiver>,
}

#[derive(Debug)]
struct UnstartedReceiver {
    from: BufReader<UnixStream>,
    sender: SyncSender<ThreadSamples>,
}

impl UnstartedReceiver {
    /// Starts the thread that receives the messages of the reading process.
    fn start_receiving_thread(self, shared: Arc<Mutex<ReaderState>>) -> std::io::Result<()> {
        let Self { from, sender } = self;
        thread::Builder::new().name("stacks".into()).spawn(move || receive_messages(from, &shared, &sender))?;
        Ok(())
    }
}

impl StackReader {
    /// Starts the process, which samples nothing yet. Starts no thread, because a thread started now would keep tokengap's rights.
    pub(crate) fn start(hertz: u32) -> anyhow::Result<Self> {
        let failed = "cannot start the process that reads Python stacks";
        let (socket, child_end) = UnixStream::pair().context(failed)?;
        let mut command = Command::new("/proc/self/exe");
        command.arg("stacks").stdin(OwnedFd::from(child_end)).stdout(discarded_output().context(failed)?);
        let started = command.spawn();
        // `command` holds the child's end of the socket. If that stayed open here, the child's exit would go unnoticed.
        drop(command);
        started.context(failed)?;
        let from = BufReader::new(socket.try_clone().context(failed)?);
        let (sender, samples) = sync_channel(QUEUE_LENGTH);
        let state = ReaderState {
            socket,
            request: StackRequest { hertz, pids: Vec::new() },
            status: ReaderStatus::default(),
            cost_of_ended_readers: SamplingCost::default(),
            endings: 0,
            last_ending: None,
            is_over: false,
            unstarted: Some(UnstartedReceiver { from, sender }),
        };
        let shared = Arc::new(Mutex::new(state));
        Ok(Self { shared, samples: Mutex::new(samples) })
    }

    /// Samples exactly these processes from now on. The first call also starts the thread that receives the samples.
    pub(crate) fn sample_processes(&self, pids: impl IntoIterator<Item = u32>) {
        let mut state = lock(&self.shared);
        // By now, tokengap has dropped its rights, so the new thread has none either.
        if let Some(receiver) = state.unstarted.take()
            && let Err(error) = receiver.start_receiving_thread(Arc::clone(&self.shared))
        {
            state.is_over = true;
            state.last_ending = Some(format!("an error (cannot start a thread that receives samples: {error})"));
        }
        state.request.pids = pids.into_iter().collect();
        state.send_request();
    }

    /// Passes the samples since the last call to `each`. Never waits.
    pub(crate) fn take_new_samples(&self, mut each: impl FnMut(ThreadSamples)) {
        // At most one queue, so that a fast reader cannot keep this loop busy.
        for samples in lock(&self.samples).try_iter().take(QUEUE_LENGTH) {
            each(samples);
        }
    }

    /// Cost of all sampling so far, over all reading processes.
    pub(crate) fn total_cost(&self) -> SamplingCost {
        let state = lock(&self.shared);
        let current = state.status.cost;
        let hertz = state.request.hertz;
        // A restarted reader states 0 processes until its first status.
        let processes = current.processes.max(state.cost_of_ended_readers.processes);
        SamplingCost { hertz, processes, ..sum_costs(state.cost_of_ended_readers, current) }
    }

    /// Resident memory of the reading process; `None` if it is unknown.
    pub(crate) fn rss_bytes(&self) -> Option<u64> {
        lock(&self.shared).status.rss_bytes
    }

    /// Processes among `pids` that cannot be read, each with its cause and remedy.
    pub(crate) fn refusals_among(&self, pids: &BTreeSet<u32>) -> Vec<Degraded> {
        let state = lock(&self.shared);
        let refused = state.status.refusals.iter().filter(|refused| pids.contains(&refused.pid));
        refused.cloned().map(UnreadableProcess::explain).collect()
    }

    /// Whether the reading process has ended and is not started again.
    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.shared).is_over
    }

    /// Lines for the report about limitations of the samples, and about ends of the process that reads them.
    pub(crate) fn report_lines(&self) -> Vec<String> {
        let state = lock(&self.shared);
        let mut notes = state.status.notes.clone();
        if let Some(reason) = &state.last_ending {
            let times = if state.endings == 1 { "once".to_owned() } else { format!("{} times", state.endings) };
            let what = if state.is_over {
                "is not started again"
            } else {
                "was started again; samples in between are missing"
            };
            notes.push(format!(
                "python stacks: the process that reads them ended {times}, last by {reason}, and {what}"
            ));
        } else if state.is_over {
            notes.push("python stacks: the process that starts their reader has ended".to_owned());
        }
        notes
    }
}

impl ReaderState {
    /// Sends the request to the reading process. A failure is only logged.
    fn send_request(&mut self) {
        // Fails after the process has ended, whose reason `receive_messages` gets.
        if let Err(error) = self.request.write(&mut self.socket) {
            tracing::debug!("python stacks: {error}");
        }
    }

    /// Records that the reading process has ended, with the reason. If another one was started in its place (`is_restarted`), asks it for
    /// the same samples.
    fn record_reader_end(&mut self, reason: String, is_restarted: bool) {
        self.endings += 1;
        self.last_ending = Some(reason);
        self.is_over |= !is_restarted;
        // The successor counts its costs from 0, so the costs of its predecessors are kept in a sum. Only the number of processes is the
        // last one.
        let last_status = std::mem::take(&mut self.status);
        let last_cost = last_status.cost;
        self.cost_of_ended_readers =
            SamplingCost { processes: last_cost.processes, ..sum_costs(self.cost_of_ended_readers, last_cost) };
        // The refusals hold until the successor reports its own.
        self.status.refusals = last_status.refusals;
        if is_restarted {
            self.send_request();
        }
    }
}

/// The thread: receives messages until the end of the stream. Drops samples while the queue is full, so that it keeps up with the process.
fn receive_messages(mut from: BufReader<UnixStream>, shared: &Mutex<ReaderState>, sender: &SyncSender<ThreadSamples>) {
    while let Ok(Some(message)) = StackMessage::read(&mut from) {
        match message {
            StackMessage::Samples(samples) => {
                if let Err(TrySendError::Full(_)) = sender.try_send(samples) {
                    // Counted in `cost_of_ended_readers`, because the next status replaces the current cost.
                    lock(shared).cost_of_ended_readers.dropped += 1;
                }
            }
            StackMessage::Status(status) => lock(shared).status = status,
            StackMessage::Ended { reason, is_restarted } => lock(shared).record_reader_end(reason, is_restarted),
        }
    }
    lock(shared).is_over = true;
}

/// Cost of two reading processes, one after the other: counts are added, and the settings are those of the later one.
fn sum_costs(earlier: SamplingCost, later: SamplingCost) -> SamplingCost {
    SamplingCost {
        hertz: later.hertz,
        processes: later.processes,
        readings: earlier.readings.saturating_add(later.readings),
        failed: earlier.failed.saturating_add(later.failed),
        late: earlier.late.saturating_add(later.late),
        dropped: earlier.dropped.saturating_add(later.dropped),
        cpu_ns: earlier.cpu_ns.saturating_add(later.cpu_ns),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
