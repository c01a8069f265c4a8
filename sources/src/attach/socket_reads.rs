//! Receives of processes without libzmq, found in their reads of ZMTP connections.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use probe_user::discover::{Engine, Process};
use probe_user::egress::{ConnectionStep, ConnectionTracker, Record};
use probe_user::process_files::uses_io_uring;
use probe_user::{Call, Message, Probe, SocketId};
use trace::MonoNs;
use zmq_tap::zmtp::{Element, FrameReader, Framing};

use super::lanes::{Lanes, Sink};
use super::observability::{Observability, ProcessPair};

/// Maximum number of connections; the others are counted in `connections_beyond_limit`.
const MAX_CONNECTIONS: usize = 1024;
/// Length of the shortest frame whose content proves that frames begin where presumed.
const MIN_PROOF: u64 = 8;

/// All connections of an engine that are read without libzmq.
#[derive(Default)]
pub(super) struct SocketReads {
    connections: HashMap<ReadSocket, ReadConnection>,
    /// Connections whose frames are not found at the moment, with the inode of the receiving socket.
    lost: BTreeSet<LostConnection>,
    /// Pairs of processes whose connections are newly observed.
    newly_observed: Vec<ProcessPair>,
    /// Pairs of processes without a connection left.
    closed: Vec<ProcessPair>,
    /// Number of times that frames were not found, except right after the attach.
    holes: u64,
    unreadable: BTreeSet<String>,
    connections_beyond_limit: usize,
}

/// A socket of the engine that is read without libzmq.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ReadSocket {
    reader_pid: u32,
    inode: u64,
}

/// A connection whose frames are not found at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LostConnection {
    pair: ProcessPair,
    /// Of the receiving socket.
    inode: u64,
}

struct ReadConnection {
    pair: ProcessPair,
    track: ConnectionTracker,
    reader: FrameReader,
    /// Number of the next frame.
    seq: u64,
}

/// The processes at the ends of each connection over which `receiver_pid` receives, by the inode of its socket.
fn process_pairs_by_receiving_inode(receiver_pid: u32, engine: &Engine) -> BTreeMap<u64, ProcessPair> {
    let mut pair_by_inode = BTreeMap::new();
    for lane in engine.routes().iter().flat_map(|route| &route.lanes) {
        if let (Some(from), Some(to)) = (lane.from, lane.to)
            && to.pid == receiver_pid
        {
            pair_by_inode.insert(to.inode, ProcessPair { sender_pid: from.pid, receiver_pid });
        }
    }
    pair_by_inode
}

/// Processes the frames that are found in bytes read from a connection, and the places at which none are found.
struct ReadElements<'a> {
    /// When the bytes were read.
    at: MonoNs,
    /// Thread that read them.
    tid: u32,
    socket: SocketId,
    /// Entry of the connection in `lost`.
    connection: LostConnection,
    /// Number of the next frame.
    seq: &'a mut u64,
    lost: &'a mut BTreeSet<LostConnection>,
    holes: &'a mut u64,
    lanes: &'a mut Lanes,
    sink: Sink<'a>,
}

impl ReadElements<'_> {
    /// Processes an element that the reader of a ZMTP connection has found in its bytes: a frame, or the place from which on frames are
    /// found or not found. Returns whether the element proves that frames begin where the reader presumes. Only a frame whose send was
    /// observed proves it.
    #[inline]
    fn process_element_and_check_proof(&mut self, element: &Element<'_>) -> bool {
        match element {
            Element::Frame(frame) => {
                let call = Call { at: self.at, socket: self.socket, tid: self.tid, seq: *self.seq, wakeup: None };
                *self.seq += 1;
                let message = Message { call, bytes: frame.bytes, more: frame.more, payload: frame.payload };
                let is_send_observed = self.lanes.match_receive_with_send_and_emit(&message, &mut *self.sink);
                // A shorter frame may match the send of another one by chance.
                is_send_observed && frame.bytes >= MIN_PROOF
            }
            // From here on, no frame is found in the bytes. `were_found` says whether any was before.
            Element::Lost { proven: were_found } => {
                self.record_frames_not_found_from_here(*were_found);
                false
            }
            // From here on, frames are found.
            Element::Found => {
                self.record_frames_found_from_here();
                false
            }
        }
    }

    /// Notes that the frames of the connection cannot be found from here on. `were_found_before` is false right after the attach: no frame
    /// was found yet, so none has been lost.
    fn record_frames_not_found_from_here(&mut self, were_found_before: bool) {
        self.lost.insert(self.connection);
        if were_found_before {
            *self.holes += 1;
            self.lanes.report_unframed_hops_into(self.socket, self.at, &mut *self.sink);
        }
        let paths = &mut self.lanes.paths;
        paths.observability.mark_connection_unread(self.connection.pair);
        paths.update_and_announce_receivers(self.at, &mut *self.sink);
    }

    /// Notes that the frames of the connection are found from here on. Receives between its processes are observed once this is so for all
    /// their connections.
    fn record_frames_found_from_here(&mut self) {
        self.lost.remove(&self.connection);
        let pair = self.connection.pair;
        if !has_lost_connection(self.lost, pair) {
            let paths = &mut self.lanes.paths;
            paths.observability.mark_connection_read(pair, self.at);
            paths.update_and_announce_receivers(self.at, &mut *self.sink);
        }
    }
}

impl SocketReads {
    /// Observes what the `processes`, which have no libzmq, read from their current connections in `engine`. For a new process, this must
    /// run before the probe is added. An error says why the kernel side failed.
    pub(super) fn observe_connections_of<'p>(
        &mut self,
        engine: &Engine,
        processes: impl Iterator<Item = &'p Process>,
        probe: &mut Probe,
    ) -> Result<(), String> {
        self.connections_beyond_limit = 0;
        for process in processes {
            let pid = process.id.pid;
            if uses_io_uring(pid) {
                self.unreadable
                    .insert(format!("socket reads: pid {pid} reads through io_uring, which is not observed"));
                continue;
            }
            let mut pair_by_inode = process_pairs_by_receiving_inode(pid, engine);
            self.drop_connections_beyond_limit(pid, &mut pair_by_inode);
            let sockets: BTreeSet<u64> = pair_by_inode.keys().copied().collect();
            let is_observable = probe.observe_zmtp_reads(pid, &sockets).map_err(|error| error.to_string())?;
            // The probe reports the reason, which is the same for all processes.
            if !is_observable {
                return Ok(());
            }
            self.replace_connections_of(pid, &pair_by_inode);
        }
        Ok(())
    }

    /// Drops connections of a process until they fit into the limit together with those of the other processes, and counts them.
    fn drop_connections_beyond_limit(&mut self, pid: u32, pair_by_inode: &mut BTreeMap<u64, ProcessPair>) {
        let connections_of_others = self.connections.keys().filter(|socket| socket.reader_pid != pid).count();
        while connections_of_others + pair_by_inode.len() > MAX_CONNECTIONS {
            pair_by_inode.pop_last();
            self.connections_beyond_limit += 1;
        }
    }

    /// Replaces the known connections over which process `pid` receives. `pair_by_inode` has the current ones by the inode of the receiving
    /// socket. Connections that were known before keep their state.
    fn replace_connections_of(&mut self, pid: u32, pair_by_inode: &BTreeMap<u64, ProcessPair>) {
        let known_connections = self.connections.iter().filter(|(socket, _)| socket.reader_pid == pid);
        let pairs_before: BTreeSet<ProcessPair> = known_connections.map(|(_, connection)| connection.pair).collect();
        let pairs_now: BTreeSet<ProcessPair> = pair_by_inode.values().copied().collect();
        // Compared by pair, because a pair with another connection left is still observed.
        self.closed.extend(pairs_before.difference(&pairs_now));
        self.connections.retain(|socket, _| socket.reader_pid != pid || pair_by_inode.contains_key(&socket.inode));
        self.lost.retain(|lost| lost.pair.receiver_pid != pid || pair_by_inode.contains_key(&lost.inode));
        for (&inode, &pair) in pair_by_inode {
            self.connections.entry(ReadSocket { reader_pid: pid, inode }).or_insert_with(|| {
                // Its receives count as observed once older records have been read.
                self.newly_observed.push(pair);
                ReadConnection {
                    pair,
                    track: ConnectionTracker::default(),
                    reader: FrameReader::new(engines::FORMATS),
                    seq: 0,
                }
            });
        }
    }

    /// Marks in `observability` the pairs of processes whose connections are observed from `now` on, and those whose connections have
    /// closed. Call this once older records have been read. Returns whether any pair has changed.
    pub(super) fn apply_connection_changes(&mut self, observability: &mut Observability, now: MonoNs) -> bool {
        let has_changed = !self.newly_observed.is_empty() || !self.closed.is_empty();
        // Closed pairs come first: a pair that has connected again since is in both lists, and is then observed.
        for pair in self.closed.drain(..) {
            observability.mark_connection_unread(pair);
        }
        for pair in self.newly_observed.drain(..) {
            // Not observed while the frames of another connection between the two cannot be found.
            if !has_lost_connection(&self.lost, pair) {
                observability.mark_connection_read(pair, now);
            }
        }
        has_changed
    }

    pub(super) fn observes_process(&self, pid: u32) -> bool {
        self.connections.keys().any(|socket| socket.reader_pid == pid)
    }

    pub(super) fn connection_count(&self) -> usize {
        self.connections.len()
    }

    /// Forgets the connections over which an exited process received.
    pub(super) fn remove_process(&mut self, pid: u32) {
        self.connections.retain(|socket, _| socket.reader_pid != pid);
        self.lost.retain(|lost| lost.pair.receiver_pid != pid);
    }

    /// Finds frames in a record of bytes that process `pid` has read from a ZMTP connection, and emits them as received. Does nothing for a
    /// connection that is not observed.
    pub(super) fn emit_frames_of_read(&mut self, pid: u32, record: &Record<'_>, lanes: &mut Lanes, sink: Sink<'_>) {
        let at = MonoNs(record.head.at_ns);
        let inode = record.head.socket;
        let Some(connection) = self.connections.get_mut(&ReadSocket { reader_pid: pid, inode }) else {
            return;
        };
        let ReadConnection { pair, track, reader, seq } = connection;
        let mut elements = ReadElements {
            at,
            tid: record.head.tid,
            socket: SocketId { pid, address: inode },
            connection: LostConnection { pair: *pair, inode },
            seq,
            lost: &mut self.lost,
            holes: &mut self.holes,
            lanes,
            sink,
        };
        let mut process_element = |element: Element<'_>| elements.process_element_and_check_proof(&element);
        for step in track.interpret_record(record) {
            match step {
                ConnectionStep::Bytes { bytes, .. } if !bytes.is_empty() => reader.feed(bytes, &mut process_element),
                // Bytes of the stream were not observed, so the next frame must be searched.
                ConnectionStep::Bytes { .. } | ConnectionStep::Missed(_) => reader.record_hole(&mut process_element),
                ConnectionStep::Opened | ConnectionStep::HeldUp | ConnectionStep::Closed { .. } => {}
            }
        }
        if let Framing::Unreadable(why) = reader.framing() {
            let line = format!("socket reads: frames that pid {pid} receives cannot be found in its connection: {why}");
            self.unreadable.insert(line);
        }
    }

    /// Lines for the report: limits of the observation, and traffic that was not observable.
    pub(super) fn degraded_lines(&self) -> Vec<String> {
        let mut degraded: Vec<String> = Vec::new();
        let pids: BTreeSet<u32> = self.connections.keys().map(|socket| socket.reader_pid).collect();
        // A process has several connections, and is named once.
        for pid in pids {
            degraded.push(format!(
                "pid {pid}: frames are observed when the process reads them from its sockets, as it has no libzmq; when it processes them is not observed"
            ));
        }
        degraded.extend(self.unreadable.iter().cloned());
        for LostConnection { pair: ProcessPair { receiver_pid: pid, .. }, .. } in &self.lost {
            degraded.push(format!("socket reads: frames that pid {pid} receives are not found at the moment"));
        }
        if self.holes > 0 {
            degraded.push(format!(
                "socket reads: frames could not be followed {} times; those received meanwhile are not judged",
                self.holes
            ));
        }
        if self.connections_beyond_limit > 0 {
            degraded.push(format!("socket reads: {} connections beyond the limit", self.connections_beyond_limit));
        }
        degraded
    }
}

/// Whether the frames of a connection between the two processes are not found at the moment.
fn has_lost_connection(lost_connections: &BTreeSet<LostConnection>, pair: ProcessPair) -> bool {
    // Connections are ordered by pair first, so those of this pair lie between these two.
    let first = LostConnection { pair, inode: 0 };
    let last = LostConnection { pair, inode: u64::MAX };
    lost_connections.range(first..=last).next().is_some()
}

#[cfg(test)]
mod tests {
    use engines::sglang::discover::role::{SCHEDULER, TOKENIZER};
    use outputs::report::Report;
    use probe_user::egress::{Head, Kind};
    use trace::event::Event;
    use trace::{Analysis, Config, ReportInput};

    use super::super::roles::Roles;
    use super::*;
    use crate::translate::Clients;

    const FRAME: &[u8] = include_bytes!("../../../zmq-tap/fixtures/messages/0.5.9/skip_delta_256rid.pkl");
    const SENDER: u32 = 1;
    const READER: u32 = 2;
    const INODE: u64 = 77;

    /// A scheduler and a tokenizer without libzmq.
    struct Run {
        lanes: Lanes,
        reads: SocketReads,
        analysis: Analysis,
        sent: u64,
        /// Bytes of the connection up to the next one to be read.
        position: u32,
    }

    impl Run {
        fn new() -> Self {
            let parts = [(SENDER, SCHEDULER), (READER, TOKENIZER)];
            let roles = Roles::from_roles_and_connections(&parts, &[(SENDER, READER)]);
            let mut observability = Observability::new(true, false);
            observability.mark_watched(SENDER, MonoNs(0));
            let pair = ProcessPair { sender_pid: SENDER, receiver_pid: READER };
            let connection = ReadConnection {
                pair,
                track: ConnectionTracker::default(),
                reader: FrameReader::new(engines::FORMATS),
                seq: 0,
            };
            let mut reads = SocketReads {
                connections: [(ReadSocket { reader_pid: READER, inode: INODE }, connection)].into(),
                newly_observed: vec![pair],
                ..SocketReads::default()
            };
            reads.apply_connection_changes(&mut observability, MonoNs(0));
            Self {
                lanes: Lanes::new(roles, observability),
                reads,
                analysis: Analysis::new(Config { engines: engines::FACTS, ..Config::default() }),
                sent: 0,
                position: 0,
            }
        }

        /// Sends a frame with rids of its own, and returns its bytes on the wire.
        fn send(&mut self) -> Vec<u8> {
            let mut body = FRAME.to_vec();
            let rid = body.windows(8).position(|at| at == b"d5a06630").expect("a rid");
            body[rid..rid + 8].copy_from_slice(format!("{:08}", self.sent).as_bytes());
            let call = Call {
                at: MonoNs((self.sent + 1) * 1_000_000),
                socket: SocketId { pid: SENDER, address: 1 },
                tid: SENDER,
                seq: self.sent,
                wakeup: None,
            };
            let message = Message { call, bytes: body.len() as u64, more: false, payload: &body };
            self.sent += 1;
            self.lanes.record_send(&message, &mut Clients::default(), &mut |event| self.analysis.apply(event));
            let mut wire = vec![2];
            wire.extend((body.len() as u64).to_be_bytes());
            wire.extend(body);
            wire
        }

        /// Reads bytes shortly after the last send.
        fn read(&mut self, bytes: &[u8]) {
            self.skip(bytes);
            let head = Head {
                at_ns: self.sent * 1_000_000 + 500_000,
                socket: INODE,
                accepted: bytes.len() as i64,
                written: self.position,
                tid: 9,
                ..Head::default()
            };
            let record = Record { kind: Kind::Zmtp, head, payload: bytes };
            self.reads.emit_frames_of_read(READER, &record, &mut self.lanes, &mut |event: &Event<'_>| {
                self.analysis.apply(event);
            });
        }

        /// Bytes that were read unobserved.
        fn skip(&mut self, bytes: &[u8]) {
            self.position = self.position.wrapping_add(bytes.len() as u32);
        }

        /// Frames sent and received, frames queued, and the longest wait.
        fn hop(&self) -> (u64, Option<u64>, Option<u64>, Option<u64>) {
            let report = Report::of(&self.analysis, &ReportInput::for_source("attach"));
            let hop = &report.hops[0];
            let wait = hop.queue_wait_ns.as_ref().map(|wait| wait.max);
            (hop.frames_sent.unwrap_or(0), hop.frames_received, hop.backlog_frames, wait)
        }
    }

    #[test]
    fn every_frame_from_the_attach_on_is_received_when_its_last_byte_is_read() {
        let mut run = Run::new();
        for n in 0..20 {
            let wire = run.send();
            let cut = 1 + n * 37;
            run.read(&wire[..cut]);
            run.read(&wire[cut..]);
        }
        assert_eq!(run.hop(), (20, Some(20), Some(0), Some(500_000)));
        assert_eq!(run.lanes.frames_without_send, 0);
        assert_eq!(run.reads.degraded_lines().len(), 1, "{:?}", run.reads.degraded_lines());
        let report = Report::of(&run.analysis, &ReportInput::for_source("attach"));
        assert!(report.hops[0].processing_ns.is_none());
    }

    #[test]
    fn frames_that_are_not_found_are_neither_received_nor_queued() {
        let mut run = Run::new();
        let first = run.send();
        run.read(&first);
        // A hole within frames 1 and 2.
        let (one, two) = (run.send(), run.send());
        run.read(&one[..50]);
        run.skip(&one[50..]);
        run.skip(&two[..60]);
        run.read(&two[60..]);
        let unknown = run.hop();
        assert_eq!(unknown.2, Some(0), "frames sent before the hole are not known to wait");
        let (three, four, five) = (run.send(), run.send(), run.send());
        for wire in [three, four, five] {
            run.read(&wire);
        }
        let found = run.hop();
        assert_eq!((found.0, found.2), (6, Some(0)));
        assert_eq!(run.reads.degraded_lines().len(), 2, "{:?}", run.reads.degraded_lines());
        let report = Report::of(&run.analysis, &ReportInput::for_source("attach"));
        assert_eq!(report.own.missed_by_cause["unframed"], 1);
    }

    #[test]
    fn without_known_bytes_receives_are_not_observed() {
        let mut run = Run::new();
        let wire = run.send();
        let before = run.hop();
        assert_eq!((before.1, before.2), (Some(0), Some(1)));
        run.skip(&wire);
        run.read(&[]);
        let after = run.hop();
        assert_eq!((after.1, after.2), (None, None));
        let degraded = run.reads.degraded_lines();
        let is_named = |line: &String| line.contains("not found at the moment");
        assert!(degraded.iter().any(is_named), "{degraded:?}");
    }
}
