//! Kernel queue depths of each hop as events: the sockets found by discovery, every 100 ms while frames flow. A thread of its own reads
//! them, since the first read of a TCP socket searches all sockets of its network namespace.

use std::collections::{BTreeMap, HashSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use adapter::discover::{Carries, End, HopSeen};
use probe_user::discover::Engine;
use probe_user::queue::{QueueDepth, Queues};
use trace::MonoNs;
use trace::event::{Event, QueueSample, What};

use super::lanes::Sink;

/// Interval between samples while frames flow.
const INTERVAL: Duration = Duration::from_millis(100);
/// Interval while no frames flow.
const REST_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of connections sampled; the others are counted in `connections_beyond_limit`.
const MAX_CONNECTIONS: usize = 256;

/// The ends of a connection, if known.
#[derive(Clone, Copy, Debug)]
struct ConnectionEnds {
    sender: Option<End>,
    receiver: Option<End>,
}

/// Maximum number of readings that were not fetched yet; further ones are dropped.
const QUEUE_LENGTH: usize = 4_096;

/// Bytes in the queues of a hop.
#[derive(Clone, Debug, PartialEq, Eq)]
struct QueueReading {
    at: MonoNs,
    hop: String,
    receive_bytes: Option<u64>,
    send_bytes: Option<u64>,
}

/// What the thread could not read.
#[derive(Clone, Debug, Default)]
pub(super) struct QueueProblems {
    /// Number of connections beyond the limit.
    pub(super) connections_beyond_limit: usize,
    /// First error that prevented reading a socket.
    pub(super) refused: Option<String>,
}

/// Message to the thread.
enum QueueCommand {
    /// Watch only the sockets of this engine that carry output.
    Rewire(Box<Engine>),
    /// Whether frames flow, which selects the interval.
    SetTraffic(bool),
}

/// Samples of the queues of an engine. The thread ends with this value.
pub(super) struct QueueWatch {
    commands: Sender<QueueCommand>,
    readings: Receiver<QueueReading>,
    problems: Arc<Mutex<QueueProblems>>,
    /// As the thread was told last.
    has_traffic: bool,
}

impl QueueWatch {
    /// Starts the thread that asks the kernel for the queues of the engine's sockets.
    pub(super) fn start() -> std::io::Result<Self> {
        let (commands, received_commands) = channel();
        let (reading_sender, readings) = sync_channel(QUEUE_LENGTH);
        let problems = Arc::<Mutex<QueueProblems>>::default();
        let thread_problems = Arc::clone(&problems);
        thread::Builder::new()
            .name("queues".into())
            .spawn(move || run_queue_thread(&received_commands, &reading_sender, &thread_problems))?;
        Ok(Self { commands, readings, problems, has_traffic: false })
    }

    /// Watches only the sockets of `engine` that carry output.
    pub(super) fn watch_connections_of(&self, engine: &Engine) {
        // Fails only if the thread has crashed, which was printed.
        let _ = self.commands.send(QueueCommand::Rewire(Box::new(engine.clone())));
    }

    /// Emits the samples taken since the last call. Never waits. `has_traffic` says whether frames flow, and sets the interval of samples.
    pub(super) fn emit_new_samples(&mut self, has_traffic: bool, sink: Sink<'_>) {
        if has_traffic != self.has_traffic {
            self.has_traffic = has_traffic;
            // Fails only if the thread has crashed, which was printed.
            let _ = self.commands.send(QueueCommand::SetTraffic(has_traffic));
        }
        // Limited to a full channel, so that the loop ends even if the thread sends meanwhile.
        for QueueReading { at, hop, receive_bytes, send_bytes } in self.readings.try_iter().take(QUEUE_LENGTH) {
            sink(&Event::new(at, What::Queue(QueueSample { hop: &hop, receive_bytes, send_bytes })));
        }
    }

    pub(super) fn problems(&self) -> QueueProblems {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The thread: takes samples and sends them, until the other end of `commands` is dropped. Each engine has such a thread, so it costs
/// nothing between samples: it sleeps until the next one is due or a command comes.
fn run_queue_thread(
    commands: &Receiver<QueueCommand>,
    sender: &SyncSender<QueueReading>,
    problems: &Mutex<QueueProblems>,
) {
    let mut sampler = QueueSampler::default();
    let mut interval = REST_INTERVAL;
    loop {
        match commands.recv_timeout(sampler.time_until_due(interval)) {
            Ok(QueueCommand::Rewire(engine)) => sampler.watch_connections_of(&engine),
            Ok(QueueCommand::SetTraffic(has_traffic)) => interval = if has_traffic { INTERVAL } else { REST_INTERVAL },
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        sampler.sample_queues_when_due(interval, &mut |reading| {
            // Dropped if the run loop is late: the next sample replaces it.
            let _ = sender.try_send(reading);
        });
        problems.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&sampler.problems);
    }
}

/// Connections in the order in which they are sampled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LaneGroup {
    Output,
    /// Between two processes of the engine, so that it may carry output.
    InsideEngine,
    Other,
}

impl LaneGroup {
    /// Group of a connection, by what discovery knows of it.
    fn of_connection(connection: &HopSeen, engine: &Engine) -> Self {
        if connection.carries == Carries::Output {
            Self::Output
        } else if has_process(engine, connection.from) && has_process(engine, connection.to) {
            Self::InsideEngine
        } else {
            Self::Other
        }
    }
}

fn has_process(engine: &Engine, end: Option<End>) -> bool {
    end.is_some_and(|end| engine.process_with_pid(end.pid).is_some())
}

#[derive(Default)]
struct QueueSampler {
    /// Both ends of each connection, by hop name.
    hops: BTreeMap<String, Vec<ConnectionEnds>>,
    sockets: Queues,
    last_sample_at: Option<Instant>,
    problems: QueueProblems,
}

impl QueueSampler {
    /// Replaces the watched connections by those that the engine has now, up to a limit. A route is a hop of the engine, and its lanes are
    /// the connections that belong to it.
    fn watch_connections_of(&mut self, engine: &Engine) {
        self.hops.clear();
        self.problems.connections_beyond_limit = 0;
        let routes = engine.routes();
        let mut watched = 0;
        // The least important connections come last and are left out first. Connections of clients, of which there may be thousands, look
        // like hops when no sender is known, as after the engine's end.
        for group in [LaneGroup::Output, LaneGroup::InsideEngine, LaneGroup::Other] {
            for route in &routes {
                for lane in route.lanes.iter().filter(|lane| LaneGroup::of_connection(lane, engine) == group) {
                    if watched < MAX_CONNECTIONS {
                        watched += 1;
                        let connections = self.hops.entry(route.ends.to_string()).or_default();
                        connections.push(ConnectionEnds { sender: lane.from, receiver: lane.to });
                    } else if group != LaneGroup::Other {
                        // Connections of clients, which are in the group `Other`, need no sample and are not counted.
                        self.problems.connections_beyond_limit += 1;
                    }
                }
            }
        }
        self.forget_unwatched_sockets();
    }

    /// Forgets the sockets that belong to no watched connection any more.
    fn forget_unwatched_sockets(&mut self) {
        let connections = self.hops.values().flatten();
        let used: HashSet<End> = connections.flat_map(|ends| [ends.sender, ends.receiver]).flatten().collect();
        self.sockets.retain_sockets(|socket| used.contains(socket));
    }

    /// Time until the next sample at this interval.
    fn time_until_due(&self, interval: Duration) -> Duration {
        // Without connections there is nothing to sample, until a command adds some.
        let until_first_sample = if self.hops.is_empty() { interval } else { Duration::ZERO };
        self.last_sample_at.map_or(until_first_sample, |last| interval.saturating_sub(last.elapsed()))
    }

    /// Reads the kernel's queues of all hops if a sample is due at this interval. Passes a reading of each hop to `emit`: the bytes that
    /// wait at the senders of its connections, and those that wait at their receivers.
    fn sample_queues_when_due(&mut self, interval: Duration, emit: &mut dyn FnMut(QueueReading)) {
        if !self.time_until_due(interval).is_zero() {
            return;
        }
        if self.hops.is_empty() {
            // The first sample follows as soon as the connections are known.
            return;
        }
        self.last_sample_at = Some(Instant::now());
        // Moved out for the loop, because `read_queue_depth` borrows the whole sampler.
        let hops = std::mem::take(&mut self.hops);
        for (name, connections) in &hops {
            let mut receive_bytes = None;
            let mut send_bytes = None;
            for ends in connections {
                let depth_at_sender = self.read_queue_depth(ends.sender);
                add_bytes_if_known(&mut send_bytes, depth_at_sender.and_then(|depth| depth.send_bytes));
                let depth_at_receiver = self.read_queue_depth(ends.receiver);
                add_bytes_if_known(&mut receive_bytes, depth_at_receiver.and_then(|depth| depth.receive_bytes));
            }
            if receive_bytes.is_some() || send_bytes.is_some() {
                emit(QueueReading { at: MonoNs::now(), hop: name.clone(), receive_bytes, send_bytes });
            }
        }
        self.hops = hops;
    }

    /// Bytes in the queues of a connection's end. `None` if the end is unknown or the kernel does not show them. Keeps the first error for
    /// the report.
    fn read_queue_depth(&mut self, end: Option<End>) -> Option<QueueDepth> {
        let end = end?;
        match self.sockets.read_queue_depth(end) {
            Ok(depth) => depth,
            Err(error) => {
                self.problems.refused.get_or_insert_with(|| error.to_string());
                None
            }
        }
    }
}

/// Adds a number of bytes to a sum, if the number is known. The sum is `None` until a number was added.
fn add_bytes_if_known(sum: &mut Option<u64>, bytes: Option<u64>) {
    if let Some(bytes) = bytes {
        *sum.get_or_insert(0) += bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::fs::MetadataExt as _;
    use std::os::unix::net::UnixStream;

    use adapter::discover::{Confidence, Role};
    use engines::sglang::discover::role::{SCHEDULER, TOKENIZER};

    use super::super::engine_search::tests::titled;
    use super::*;

    fn end(fd: i32, role: Role) -> End {
        End {
            pid: std::process::id(),
            fd: fd as u32,
            inode: std::fs::metadata(format!("/proc/self/fd/{fd}")).map_or(1, |found| found.ino()),
            role,
        }
    }

    fn hop(from: i32, to: i32, carries: Carries) -> HopSeen {
        HopSeen {
            from: Some(end(from, SCHEDULER)),
            to: Some(end(to, TOKENIZER)),
            endpoint: String::new(),
            carries,
            confidence: Confidence::Certain,
        }
    }

    fn poll_samples(watch: &mut QueueSampler) -> Vec<(String, Option<u64>)> {
        let mut samples = Vec::new();
        watch.sample_queues_when_due(INTERVAL, &mut |reading| samples.push((reading.hop, reading.receive_bytes)));
        samples
    }

    #[test]
    fn same_named_connections_are_summed_without_requests() {
        let mut pairs: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        for (from, _) in &mut pairs {
            from.write_all(&[7; 1000]).unwrap();
        }
        let carries = [Carries::Output, Carries::Output, Carries::Requests];
        let hops =
            pairs.iter().zip(carries).map(|((from, to), carries)| hop(from.as_raw_fd(), to.as_raw_fd(), carries));
        let engine = Engine { hops: hops.collect(), ..Engine::default() };
        let mut watch = QueueSampler::default();
        watch.watch_connections_of(&engine);
        assert_eq!(poll_samples(&mut watch), [("scheduler->tokenizer".to_owned(), Some(2000))]);
        assert_eq!(poll_samples(&mut watch), [], "not again before its time");
    }

    #[test]
    fn clients_take_no_place_of_connections_with_output() {
        let (mut from, to) = UnixStream::pair().unwrap();
        from.write_all(&[7; 1000]).unwrap();
        let mut hops: Vec<_> = (0..300).map(|_| hop(1_000_000, 1_000_001, Carries::Unknown)).collect();
        hops.push(hop(from.as_raw_fd(), to.as_raw_fd(), Carries::Output));
        let mut watch = QueueSampler::default();
        watch.watch_connections_of(&Engine { hops: hops.clone(), ..Engine::default() });
        assert_eq!(poll_samples(&mut watch), [("scheduler->tokenizer".to_owned(), Some(1000))]);
        assert_eq!(watch.problems.connections_beyond_limit, 0);
        // Inside the engine they may carry output.
        watch.watch_connections_of(&Engine { hops: hops.clone(), ..titled(std::process::id(), Vec::new()) });
        assert_eq!(watch.problems.connections_beyond_limit, 301 - MAX_CONNECTIONS);
        for hop in &mut hops {
            hop.carries = Carries::Output;
        }
        watch.watch_connections_of(&Engine { hops, ..Engine::default() });
        assert_eq!(watch.problems.connections_beyond_limit, 301 - MAX_CONNECTIONS);
    }

    #[test]
    fn the_thread_samples_the_sockets_of_the_last_engine() {
        let (mut from, to) = UnixStream::pair().unwrap();
        from.write_all(&[7; 1000]).unwrap();
        let hops = vec![hop(from.as_raw_fd(), to.as_raw_fd(), Carries::Output)];
        let mut watch = QueueWatch::start().unwrap();
        watch.watch_connections_of(&Engine { hops, ..Engine::default() });
        let mut bytes = None;
        let until = Instant::now() + Duration::from_secs(30);
        while bytes.is_none() && Instant::now() < until {
            watch.emit_new_samples(true, &mut |event| {
                if let What::Queue(sample) = event.what {
                    bytes = sample.receive_bytes;
                }
            });
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(bytes, Some(1000));
        assert_eq!(watch.problems().refused, None);
    }

    #[test]
    fn a_closed_socket_is_skipped_without_an_error() {
        let mut watch = QueueSampler::default();
        let engine = Engine { hops: vec![hop(1_000_000, 1_000_001, Carries::Output)], ..Engine::default() };
        watch.watch_connections_of(&engine);
        assert_eq!(poll_samples(&mut watch), []);
        assert_eq!(watch.problems.refused, None);
    }
}
