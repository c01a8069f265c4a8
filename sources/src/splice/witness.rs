//! Probe on both ends of the hops during a move, on its own thread. It counts sent messages and checks that they are received in order. For
//! every request, it checks that token counts add up across the move. The message rate is measured before anything is changed.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use adapter::decode::{Decoders, LONGEST, SocketFormat};
use foreign::kernel;
use probe_user::discover::Engine;
use probe_user::matcher::MatcherLimits;
use probe_user::{Capture, Matcher, Message, Observation, Probe, ProbeOptions, SocketId, Target};
use trace::Analysis;
use trace::event::{Capabilities, Event, Hop, Missed, MissedCause, What};
use trace::{Config, FrameId, HopId};

/// Maximum number of bytes copied of a received message.
const MAX_RECEIVED_BYTES: u32 = 1 << 20;
/// Maximum number of bytes copied of a sent message, which is enough for the [`Matcher`].
const MAX_SENT_BYTES: u32 = 4096;
/// Size of the probe's ring buffer, in bytes.
const RING_BYTES: u32 = 32 << 20;
/// Maximum wait of a poll of the probe.
const MAX_POLL: Duration = Duration::from_millis(4);
/// Interval of the checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of requests followed across the move.
const MAX_RIDS: usize = 262_144;

/// Results so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Messages passed to libzmq by the senders.
    pub sent: u64,
    /// Messages received by the receivers.
    pub received: u64,
    /// Requests that started before the last mark and continued after it.
    pub crossed: u64,
    /// Messages that could not be decoded or were missed. They lead to no conclusion.
    pub unread: u64,
    /// Descriptions of counts that do not add up.
    pub broken: Vec<String>,
}

/// The watching thread. Dropping this value ends it.
pub struct Witness {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    /// Asks the thread to end.
    is_end_requested: AtomicBool,
    /// Asks the thread to mark the live requests.
    is_mark_requested: AtomicBool,
    seen: Mutex<Seen>,
}

impl Witness {
    /// Starts watching the messages of these processes on a thread. An error says why their messages cannot be observed.
    pub fn start(sender_pids: &BTreeSet<u32>, receiver_pids: &BTreeSet<u32>) -> Result<Self, String> {
        let targets = probe_targets_for(sender_pids, receiver_pids);
        let shared = Arc::new(Shared::default());
        let thread_shared = Arc::clone(&shared);
        let sender_pids = sender_pids.clone();
        let receiver_pids = receiver_pids.clone();
        let (attach_sender, attach_result) = channel();
        let thread = thread::Builder::new().name("witness".into()).spawn(move || {
            match Probe::attach(&targets, sends_and_receives_only()) {
                Ok(probe) => check_messages(probe, &thread_shared, &sender_pids, &receiver_pids, &attach_sender),
                Err(error) => drop(attach_sender.send(Err(error.to_string()))),
            }
        });
        let thread = thread.map_err(|error| error.to_string())?;
        // Waits until the probe is attached or has failed. Without a message, the thread has panicked.
        let attached = attach_result.recv().unwrap_or(Err("its thread failed".into()));
        attached?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Results so far.
    pub fn seen(&self) -> Seen {
        self.shared.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Marks the requests that are live now as those that cross the move.
    pub(crate) fn mark_live_requests(&self) {
        self.shared.is_mark_requested.store(true, Ordering::Relaxed);
    }
}

/// The processes to probe, with the number of bytes to copy of their messages. What a sender receives is not checked.
fn probe_targets_for(sender_pids: &BTreeSet<u32>, receiver_pids: &BTreeSet<u32>) -> Vec<Target> {
    let mut targets = Vec::new();
    for pid in sender_pids | receiver_pids {
        let received = if receiver_pids.contains(&pid) { MAX_RECEIVED_BYTES } else { 0 };
        targets.push(Target { pid, capture: Capture { sent: MAX_SENT_BYTES, received } });
    }
    targets
}

/// Options of a probe that observes nothing but sends and receives.
fn sends_and_receives_only() -> ProbeOptions {
    ProbeOptions { processed: false, scheduler: false, polls: false, ring_bytes: RING_BYTES, ..ProbeOptions::default() }
}

impl Drop for Witness {
    /// Ends the thread, after it has read what was observed so far.
    fn drop(&mut self) {
        self.shared.is_end_requested.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed.
            let _ = thread.join();
        }
    }
}

/// The thread of the witness: checks the messages that the probe observes, until the end is asked for or the probe fails. Updates the
/// results in `shared`. First reports to `attach_sender` that the probe is attached.
fn check_messages(
    mut probe: Probe,
    shared: &Shared,
    sender_pids: &BTreeSet<u32>,
    receiver_pids: &BTreeSet<u32>,
    attach_sender: &Sender<Result<(), String>>,
) {
    // Sends are counted from the attach on, so the rate measurement waits for it.
    let _ = attach_sender.send(Ok(()));
    let mut check = MessageCheck::new();
    let mut checked_at = Instant::now();
    loop {
        // Read before the poll. The last poll thus begins after the end was asked for, and includes all observations until then.
        let is_ending = shared.is_end_requested.load(Ordering::Relaxed);
        // Asked for when hops are moved: the requests that are live then are followed across the move.
        if shared.is_mark_requested.swap(false, Ordering::Relaxed) {
            check.requests.mark_live();
        }
        let polled =
            probe.poll(MAX_POLL, |observation| check.check_observation(&observation, sender_pids, receiver_pids));
        if is_ending || checked_at.elapsed() >= CHECK_INTERVAL {
            checked_at = Instant::now();
            check.update_broken_findings();
        }
        if let Err(error) = &polled {
            check.seen.broken.push(format!("the probe ended: {error}"));
        }
        check.seen.clone_into(&mut shared.seen.lock().unwrap_or_else(PoisonError::into_inner));
        if (is_ending && !probe.has_unread()) || polled.is_err() {
            return;
        }
    }
}

/// Checks the order of messages, and their token counts with an analysis in which every receiver's inbox is a hop.
struct MessageCheck {
    analysis: Analysis,
    decoders: Decoders,
    matcher: Matcher,
    receiving_sockets: HashMap<SocketId, ReceivingSocket>,
    requests: FollowedRequests,
    seen: Seen,
}

/// Requests that are followed across the move.
#[derive(Default)]
struct FollowedRequests {
    live_rids: BTreeSet<String>,
    /// Requests that were live at the last mark, and of which no chunk was received since.
    marked_rids: BTreeSet<String>,
}

impl FollowedRequests {
    /// Marks the live requests.
    fn mark_live(&mut self) {
        self.marked_rids.clone_from(&self.live_rids);
    }

    /// Notes a received chunk. Returns whether it is the first one since the last mark of a request that was live at that mark.
    fn note_chunk_and_check_crossing(&mut self, rid: &str, is_finished: bool) -> bool {
        if is_finished {
            self.live_rids.remove(rid);
        } else if self.live_rids.len() < MAX_RIDS && !self.live_rids.contains(rid) {
            self.live_rids.insert(rid.to_owned());
        }
        self.marked_rids.remove(rid)
    }
}

/// A receiving socket.
struct ReceivingSocket {
    hop: HopId,
    /// Number of its next message.
    seq: u64,
    /// Format of its messages, once known.
    carries: SocketFormat,
}

impl ReceivingSocket {
    /// Id of the next message. The socket is one lane, because it shows the messages of all its connections in one order.
    fn take_next_message_id(&mut self) -> FrameId {
        let only_lane = 0;
        let id = FrameId::new(self.hop, only_lane, self.seq);
        self.seq += 1;
        id
    }
}

/// State of a receiving socket. Its first message makes the socket a hop of its own.
fn find_or_add_receiving_socket(
    receiving_sockets: &mut HashMap<SocketId, ReceivingSocket>,
    socket: SocketId,
) -> &mut ReceivingSocket {
    // Sockets beyond the range of ids share the last one.
    let next_hop = HopId(receiving_sockets.len().min(usize::from(u16::MAX)) as u16);
    receiving_sockets.entry(socket).or_insert(ReceivingSocket {
        hop: next_hop,
        seq: 0,
        carries: SocketFormat::default(),
    })
}

impl MessageCheck {
    /// A check without any message so far.
    fn new() -> Self {
        Self {
            analysis: Analysis::new(Config { engines: engines::FACTS, ..Config::default() }),
            decoders: Decoders::new(engines::FORMATS, LONGEST),
            matcher: Matcher::new(MatcherLimits::default()),
            receiving_sockets: HashMap::new(),
            requests: FollowedRequests::default(),
            seen: Seen::default(),
        }
    }

    /// Counts and checks what the probe has observed of the senders and receivers.
    fn check_observation(
        &mut self,
        observation: &Observation<'_>,
        sender_pids: &BTreeSet<u32>,
        receiver_pids: &BTreeSet<u32>,
    ) {
        match observation {
            Observation::Sent(message) if sender_pids.contains(&message.call.socket.pid) => {
                self.seen.sent += 1;
                self.matcher.record_send(message);
            }
            Observation::Unsent(call) => {
                self.matcher.record_refused_send(call);
            }
            Observation::Received(message) if receiver_pids.contains(&message.call.socket.pid) => {
                self.check_received(message);
            }
            Observation::Lost { count, .. } => self.record_lost(*count),
            _ => {}
        }
    }

    /// Checks a received message: passes it as a frame to the analysis, which compares the sum of each request's tokens with the count that
    /// the frames state. Also counts the requests that continue across the move. A message that no observed process has sent is not checked
    /// if it cannot be decoded.
    fn check_received(&mut self, message: &Message<'_>) {
        self.seen.received += 1;
        let at = message.call.at;
        let matched = self.matcher.match_receipt(message);
        let receiving_socket = find_or_add_receiving_socket(&mut self.receiving_sockets, message.call.socket);
        // Also numbers a message that is not checked, so that each frame has its place in the order.
        let id = receiving_socket.take_next_message_id();
        let batch = match self.decoders.decode(&mut receiving_socket.carries, &[message.payload]) {
            Ok(batch) => batch,
            // Another process sent it, such as a coordinator of several engines.
            Err(_) if matched.is_err() => return,
            Err(why) => {
                tracing::debug!("the witness cannot read a message of {} bytes: {why}", message.bytes);
                self.seen.unread += 1;
                self.analysis.apply(&missed_event(1));
                return;
            }
        };
        let is_first_of_socket = id.seq == 0;
        if is_first_of_socket {
            let hop = Hop::new(id.hop, "witness", Capabilities::SENT);
            self.analysis.apply(&Event::new(at, What::Hop(hop)));
        }
        for chunk in batch.chunks() {
            if self.requests.note_chunk_and_check_crossing(chunk.rid, chunk.finish.is_some()) {
                self.seen.crossed += 1;
            }
        }
        self.analysis.apply(&Event::new(at, What::Sent(batch.frame(id, message.bytes))));
    }

    /// Counts observations that the probe lost.
    fn record_lost(&mut self, count: u64) {
        self.seen.unread += count;
        self.analysis.apply(&missed_event(count));
    }

    /// Collects findings of the detectors that check wire arithmetic.
    fn update_broken_findings(&mut self) {
        self.analysis.tick(trace::MonoNs::now());
        let mut broken = Vec::new();
        for finding in self.analysis.findings() {
            // Other findings say nothing about the move.
            if matches!(finding.kind, "wire-loss" | "wire-arithmetic") {
                broken.push(format!("{}: {}", finding.kind, finding.verdict.summary));
            }
        }
        let skipped = self.matcher.misses().skipped;
        if skipped > 0 {
            broken.push(format!("{skipped} messages were lost, or received after later messages of their sender"));
        }
        self.seen.broken = broken;
    }
}

/// Event for `count` messages whose content is unknown.
fn missed_event(count: u64) -> Event<'static> {
    Event::new(trace::MonoNs::now(), What::Missed(Missed::new(None, count, MissedCause::QueueFull)))
}

/// Measuring time of the rate.
const RATE_WINDOW: Duration = Duration::from_secs(1);

/// A rate, and how it was measured.
#[derive(Clone, Copy, Debug)]
pub struct MessageRate {
    /// Number of messages.
    pub per_second: u64,
    /// Method of measurement.
    pub by: &'static str,
}

/// Number of messages that the senders have sent, as counted by the witness, which observes them with a probe. Without a witness, the
/// number of wake-ups of their I/O threads, which grows with it, or `None` if that is not known.
fn count_sends_or_io_wakeups(witness: Option<&Witness>, engine: &Engine, sender_pids: &[u32]) -> Option<u64> {
    match witness {
        Some(witness) => Some(witness.seen().sent),
        None => count_io_wakeups(engine, sender_pids),
    }
}

/// Measures the message rate for [`RATE_WINDOW`], with the witness's probe. Without a witness, estimates it from wake-ups of the senders'
/// I/O threads: about one per message while they keep up. `None` if these cannot be read.
pub(super) fn measure_message_rate(
    witness: Option<&Witness>,
    engine: &Engine,
    sender_pids: &[u32],
) -> Option<MessageRate> {
    let began = Instant::now();
    let count_before = count_sends_or_io_wakeups(witness, engine, sender_pids)?;
    thread::sleep(RATE_WINDOW);
    let sent = count_sends_or_io_wakeups(witness, engine, sender_pids)?.saturating_sub(count_before);
    Some(MessageRate {
        per_second: (sent as f64 / began.elapsed().as_secs_f64()).ceil() as u64,
        by: match witness {
            Some(_) => "counted where they enter libzmq",
            None => "estimated from the wake-ups of the senders' I/O threads",
        },
    })
}

/// How often the senders' I/O threads woke up so far. `None` if no such thread is known, or one cannot be read.
fn count_io_wakeups(engine: &Engine, sender_pids: &[u32]) -> Option<u64> {
    let mut wakeups = 0;
    for process in engine.processes.iter().filter(|process| sender_pids.contains(&process.id.pid)) {
        for tid in &process.io_threads {
            // A thread gives up its CPU voluntarily to wait, so it wakes up after each such switch.
            wakeups += voluntary_switches(process.id.pid, *tid)?;
        }
    }
    (wakeups > 0).then_some(wakeups)
}

/// How often a thread has given up its CPU. `None` if it is not readable.
fn voluntary_switches(pid: u32, tid: u32) -> Option<u64> {
    let status = kernel::read(format!("/proc/{pid}/task/{tid}/status"), kernel::MAX_STATUS_BYTES).ok()?;
    kernel::status_field(&status, "voluntary_ctxt_switches:")?.parse().ok()
}
