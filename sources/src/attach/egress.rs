//! Converts socket writes of serving processes into deliveries, in kernel order; parsed by `responses`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use adapter::discover::EngineKind;
use probe_user::Probe;
use probe_user::discover::{Engine, Process};
use probe_user::egress::{
    CAPTURE, CAPTURE_READ, ConnectionStep, ConnectionTracker, Kind, ListeningPorts, Record, Serves,
};
use responses::{Detokenize, ResponseReader, Server, Tls};
use serde_json::{Value, json};
use trace::MonoNs;
use trace::event::UnknownArrival;

use super::arrivals::{UnknownSpans, parse_arrival_times};
use super::frontends::FrontendWatch;
use super::inbox::RunId;
use super::lanes::Sink;
use super::log_thread::{LogThread, LoggedIds};
use super::node::Node;
use super::requests::RequestPlane;
use crate::tokenizer::{self, TokenizerThread};
use crate::translate::Clients;

/// Maximum number of connections parsed concurrently; writes on others are counted in `writes_beyond_limit`.
const MAX_CONNECTIONS: usize = 16_384;

/// A connection whose bytes tell nothing about responses.
#[derive(Debug)]
struct UselessConnection {
    socket: u64,
    is_tls: bool,
}

/// All client connections of an engine.
#[derive(Default)]
pub(super) struct Egress {
    pub(super) clients: Clients,
    /// By the kernel address of their sockets.
    connections: HashMap<u64, ClientConnection>,
    requests: RequestPlane,
    frontends: FrontendWatch,
    /// Set if a serving process connects to its clients. Its deliveries name requests only if its request plane does.
    request_plane: Option<EngineKind>,
    /// Connections that the kernel side must ignore.
    useless_connections: Vec<UselessConnection>,
    logs: LogThread,
    /// Reads the tokenizer of an engine whose messages carry no text, until it has finished.
    tokenizer_thread: Option<TokenizerThread>,
    /// Why there is no such tokenizer.
    no_tokenizer: Option<String>,
    writes_beyond_limit: u64,
    /// Set if arrivals of requests are observed.
    observes_arrivals: bool,
    /// Set if the spans of requests' callers are not observed.
    pub(super) ignores_callers: bool,
    unknown_spans: UnknownSpans,
}

/// Returns whether a process of the engine connects to this port with ZMQ.
fn is_zmq_port(engine: &Engine, port: u16) -> bool {
    let suffix = format!(":{port}");
    engine.hops.iter().any(|hop| {
        let is_on_port = hop.endpoint.starts_with("tcp://") && hop.endpoint.ends_with(&suffix);
        let sender = hop.from.and_then(|from| engine.process_with_pid(from.pid));
        // A client process that has libzmq loaded but runs no libzmq threads looks like a peer. Its connection is HTTP.
        is_on_port && sender.is_some_and(|sender| !sender.io_threads.is_empty())
    })
}

/// A connection on which responses are written.
struct ClientConnection {
    tracker: ConnectionTracker,
    reader: ResponseReader,
}

impl ClientConnection {
    /// A new connection. `unknown_arrival` is the reason to report for a request whose arrival is unknown; it is `None` if no arrivals are
    /// observed.
    fn new(is_of_frontend: bool, unknown_arrival: Option<UnknownArrival>) -> Self {
        let reader = if is_of_frontend { ResponseReader::of_frontend() } else { ResponseReader::default() };
        let mut reader = reader.with_protocols(engines::PROTOCOLS);
        if let Some(unknown) = unknown_arrival {
            reader = reader.with_arrivals(unknown);
        }
        Self { tracker: ConnectionTracker::default(), reader }
    }

    /// Reads the responses in a record of the connection. Returns whether the connection has been closed.
    #[inline]
    fn read_responses(&mut self, record: &Record<'_>, server: &mut Server, sink: Sink<'_>) -> bool {
        let Self { tracker, reader } = self;
        let at = MonoNs(record.head.at_ns);
        let mut is_closed = false;
        for step in tracker.interpret_record(record) {
            match step {
                // The new connection has the kernel address of an earlier one.
                ConnectionStep::Opened => reader.restart(),
                ConnectionStep::Bytes { bytes, begins: is_start_of_write } => {
                    reader.read_bytes(at, bytes, is_start_of_write, server, sink);
                }
                // Bytes before the next ones were not observed.
                ConnectionStep::Missed(_) => reader.record_gap(at, sink),
                // The full socket has accepted none or only a part of a write.
                ConnectionStep::HeldUp => reader.record_short_write(),
                ConnectionStep::Closed { end, unacknowledged } => {
                    reader.end_connection(at, end, unacknowledged, server, sink);
                    is_closed = true;
                }
            }
        }
        is_closed
    }
}

/// The state of a record's connection, which its first record adds. Also counts a new TLS connection in `tls_counts`. A connection that is
/// not of the same kind of process any more is replaced: one that answers clients, or a frontend.
#[inline]
fn find_or_add_connection<'c>(
    connections: &'c mut HashMap<u64, ClientConnection>,
    record: &Record<'_>,
    is_of_frontend: bool,
    unknown_arrival: Option<UnknownArrival>,
    tls_counts: Option<&mut Tls>,
) -> &'c mut ClientConnection {
    let connection = connections.entry(record.head.socket).or_insert_with(|| {
        if is_tls_record(record)
            && let Some(counts) = tls_counts
        {
            counts.plain += 1;
        }
        ClientConnection::new(is_of_frontend, unknown_arrival)
    });
    if matches!(record.kind, Kind::Wrote | Kind::Request) && connection.reader.is_of_frontend() != is_of_frontend {
        // The new connection has the kernel address of another process's, whose last write was reported after its end.
        *connection = ClientConnection::new(is_of_frontend, unknown_arrival);
    }
    connection
}

/// Whether a record is of the plain bytes of a TLS connection.
#[inline]
fn is_tls_record(record: &Record<'_>) -> bool {
    matches!(record.kind, Kind::Tls | Kind::TlsClosed)
}

/// The ports on which a process listens for clients, which are all but those of ZMQ.
fn client_ports_of(listening: &ListeningPorts, engine: &Engine) -> ListeningPorts {
    let mut ports = listening.ports.clone();
    ports.retain(|port| !is_zmq_port(engine, *port));
    ListeningPorts { ports, network_namespace: listening.network_namespace }
}

/// Keeps the ids of a request that a worker has logged.
fn record_logged_ids(ids: &LoggedIds, server: &mut Server, requests: &mut RequestPlane) {
    server.record_logged_rid(&ids.context, &ids.rid);
    requests.has_named_rids = true;
}

impl Egress {
    pub(super) fn new(clients: Clients) -> Self {
        Self { clients, ..Self::default() }
    }

    /// Uses the tokenizer that the user named.
    pub(super) fn set_detokenizer(&mut self, tokenizer: Arc<dyn Detokenize>) {
        self.clients.server.texts.detokenizer = Some(tokenizer);
    }

    /// Notes that text cannot be compared with token ids, because those stay inside the process.
    pub(super) fn record_ids_unread(&mut self) {
        self.no_tokenizer = Some("the ids passed to a server inside the process are not read".to_owned());
    }

    /// Starts a thread that parses the `tokenizer.json` of an engine whose messages carry no text, or notes why there is none.
    pub(super) fn start_reading_tokenizer(&mut self, json: Result<Vec<u8>, String>) {
        match json {
            Ok(json) => self.tokenizer_thread = tokenizer::start_reading_tokenizer(json),
            Err(why) => self.no_tokenizer = Some(format!("{why}; name the model's tokenizer.json with --tokenizer")),
        }
    }

    /// Uses the tokenizer from now on, if the thread that reads it has finished. If it could not be read, keeps the reason.
    pub(super) fn use_tokenizer_once_read(&mut self) {
        let has_finished = self.tokenizer_thread.as_ref().is_some_and(TokenizerThread::is_finished);
        if !has_finished {
            return;
        }
        let Some(thread) = self.tokenizer_thread.take() else { return };
        // Joining a thread that has finished does not block. A panic of the thread leaves no result.
        let Ok(result) = thread.join() else { return };
        match result {
            Ok(tokenizer) => self.clients.server.texts.detokenizer = Some(tokenizer),
            Err(why) => self.no_tokenizer = Some(why),
        }
    }

    /// Starts observing what a process writes to its clients, and when their requests arrive. Must run before its messages are observed, so
    /// that no response to them is missed. `listening` has all ports on which the process listens. Returns whether its writes are observed:
    /// false if it serves no client through a socket. An error says why they cannot be observed.
    pub(super) fn observe_serving(
        &mut self,
        probe: &mut Probe,
        process: &Process,
        listening: &ListeningPorts,
        engine: &Engine,
    ) -> Result<bool, String> {
        let pid = process.id.pid;
        if !process.answers_clients() {
            return Ok(false);
        }
        // The kind of an engine that connects to its clients itself, over a request plane.
        let request_plane = process.connects_to_clients;
        let client_ports = client_ports_of(listening, engine);
        // If it neither connects to its clients nor listens for them, they are in its process, and nothing is written to a socket.
        if request_plane.is_none() && client_ports.ports.is_empty() {
            return Ok(false);
        }
        let copied = self.choose_copied_bytes(request_plane.is_some());
        let is_observed = probe.observe_serving(pid, copied).map_err(|error| error.to_string())?;
        self.clients.is_observed |= is_observed;
        // Over a request plane, requests do not arrive at a listening port.
        if is_observed && request_plane.is_none() {
            self.observes_arrivals |= probe.observe_arrivals(pid, client_ports).map_err(|error| error.to_string())?;
        }
        // A frontend that has exited may have had this process id.
        self.frontends.observed.remove(&pid);
        if is_observed && let Some(plane) = request_plane {
            self.use_request_plane(plane, process);
        }
        Ok(is_observed)
    }

    /// What the kernel side copies of a serving process: the beginning of each write, and of each read if it has a request plane. It also
    /// searches requests for the spans of their callers, unless those are ignored.
    fn choose_copied_bytes(&self, has_request_plane: bool) -> Serves {
        Serves {
            written: CAPTURE,
            read: if has_request_plane { CAPTURE_READ } else { 0 },
            callers: u32::from(!self.ignores_callers),
        }
    }

    /// Prepares for the clients of a process that are reached over a request plane. The id that such a client gives a request is matched
    /// with the engine's by the tokens of the request, or by the log of the process.
    fn use_request_plane(&mut self, plane: EngineKind, process: &Process) {
        self.request_plane = Some(plane);
        self.clients.server.content.enable();
        self.logs.follow_output(process);
    }

    /// Observes frontends between a server and its clients. Does nothing for an engine without a request plane, over which frontends pass
    /// requests to its workers.
    pub(super) fn watch_frontends(&mut self, run: RunId, engine: &Engine, node: &mut Node) {
        if self.request_plane.is_some() {
            self.frontends.observe_new_frontends(run, engine, node);
            // Stays set once any frontend was observed.
            self.clients.server.frontends.observed |= !self.frontends.observed.is_empty();
        }
    }

    /// Also follows the log of a worker. Waits until the log is open, unless the ring is read already: opening may block.
    pub(super) fn follow_log(&mut self, log: &Path, is_ring_read: bool) -> std::io::Result<()> {
        if is_ring_read { self.logs.follow_log_without_waiting(log) } else { self.logs.follow_log_and_wait(log) }
    }

    /// Passes the request ids of new log lines to the server's state, which joins them with the responses.
    pub(super) fn read_logs(&mut self) {
        let Self { logs, clients, requests, .. } = self;
        logs.read_new_ids(|ids| record_logged_ids(&ids, &mut clients.server, requests));
    }

    /// Statistics and latest pairs of requests matched between frontend and engine by their tokens; `None` without any.
    pub(super) fn matched_pairs_json(&self) -> Option<Value> {
        let content = &self.clients.server.content;
        if content.joined == 0 {
            return None;
        }
        // A context is the id that the frontend gives a request; the rid is the engine's.
        let latest: Vec<Value> =
            content.pairs.iter().map(|(context, rid)| json!({"context": context, "rid": rid})).collect();
        Some(json!({
            "joined": content.joined,
            "ambiguous": content.ambiguous,
            "unknown": content.unknown,
            "latest": latest,
        }))
    }

    /// Returns whether deliveries are observable; they are not if all traffic is encrypted or contains only text.
    pub(super) fn shows_deliveries(&self) -> bool {
        // A delivery must name its request. With a request plane, it does so only if the plane's messages or the responses have an id.
        let can_name_requests =
            self.request_plane.is_none() || self.requests.has_named_rids || self.clients.response_id.is_some();
        self.clients.is_observed && can_name_requests && self.clients.server.shows_deliveries()
    }

    /// Processes a record of the kernel side about a connection of process `pid`: a request that the process has read, or bytes of a
    /// response that it has written. Deliveries of tokens in them are emitted.
    pub(super) fn read_record(&mut self, pid: u32, record: &Record<'_>, sink: Sink<'_>) {
        if record.kind == Kind::Read {
            return self.read_request(record);
        }
        let socket = record.head.socket;
        let is_tls = is_tls_record(record);
        let is_full = self.connections.len() >= MAX_CONNECTIONS;
        if is_full && !self.connections.contains_key(&socket) {
            self.writes_beyond_limit += 1;
            // The kernel side then stops copying its bytes.
            self.useless_connections.push(UselessConnection { socket, is_tls });
            return;
        }
        let is_of_frontend = self.frontends.observed.contains(&pid);
        let unknown_arrival = self.reason_of_unknown_arrivals(is_tls);
        let server = &mut self.clients.server;
        let tls_counts = server.tls.as_mut();
        let connection =
            find_or_add_connection(&mut self.connections, record, is_of_frontend, unknown_arrival, tls_counts);
        let reader = &mut connection.reader;
        // The worker logs the ids before it passes the request to the engine, perhaps after the log was read for this poll.
        if record.kind == Kind::Wrote && reader.lacks_request_id(server) {
            self.logs.read_ids_written_so_far(|ids| record_logged_ids(&ids, server, &mut self.requests));
        }
        if record.kind == Kind::Request {
            if let Some(times) = parse_arrival_times(record.payload) {
                reader.record_arrival(times, self.unknown_spans.parse_caller_and_count_unknown(record.payload));
            }
            return;
        }
        let is_closed = connection.read_responses(record, server, sink);
        // Its bytes turned out to be no responses.
        let is_useless = connection.reader.is_unreadable();
        if is_useless {
            self.forget_useless_connection(socket, is_tls);
        }
        if is_closed {
            self.connections.remove(&socket);
            self.requests.connections.remove(&socket);
        } else if is_useless && !self.requests.is_relevant(socket) {
            // The kernel side then stops copying its bytes.
            self.useless_connections.push(UselessConnection { socket, is_tls });
        }
    }

    /// Reads a request, or its cancellation, that a process has received over its request plane: the connections over which frontends pass
    /// requests to workers. Reads of processes without a request plane do not matter.
    fn read_request(&mut self, record: &Record<'_>) {
        let Some(plane) = self.request_plane else { return };
        if !plane.cancels(record.payload) {
            self.requests.read_record(record, plane, &mut self.clients.server);
        } else if let Some(connection) = self.connections.get_mut(&record.head.socket) {
            connection.reader.record_cancel();
        }
    }

    /// What to report for a request of a new connection whose arrival is not observed; `None` if no arrivals are observed.
    #[inline]
    fn reason_of_unknown_arrivals(&self, is_tls: bool) -> Option<UnknownArrival> {
        let reason = if is_tls { UnknownArrival::Tls } else { UnknownArrival::Missed };
        self.observes_arrivals.then_some(reason)
    }

    /// Forgets a connection whose bytes are no responses. It no longer counts as one to a client: the server itself may be the client.
    fn forget_useless_connection(&mut self, socket: u64, is_tls: bool) {
        if is_tls && let Some(counts) = &mut self.clients.server.tls {
            counts.plain = counts.plain.saturating_sub(1);
        }
        self.connections.remove(&socket);
    }

    /// Notes that the plain bytes of TLS connections are observed, if they are.
    pub(super) fn record_tls_observed(&mut self, probe: &Probe) {
        if self.clients.server.tls.is_none() && probe.observes_tls() {
            self.clients.server.tls = Some(Tls::default());
        }
    }

    /// Makes the kernel side stop copying connections that tell nothing about responses.
    pub(super) fn ignore_useless_connections(&mut self, probe: &mut Probe) {
        for UselessConnection { socket, is_tls } in self.useless_connections.drain(..) {
            let ignored = if is_tls { probe.ignore_tls_connection(socket) } else { probe.ignore_connection(socket) };
            // An error changes no result: the bytes of the connection are then copied in vain.
            if let Err(error) = ignored {
                tracing::debug!("cannot ignore a connection: {error}");
            }
        }
    }

    /// Lines for the report about traffic that was not observable.
    pub(super) fn degraded(&self) -> Vec<String> {
        let mut degraded = self.clients.server.degraded();
        degraded.extend(self.frontends.degraded_lines(&self.clients.server.frontends));
        if self.logs.is_stalled() {
            degraded.push("egress: a worker's log does not answer: requests may not be identified".to_owned());
        }
        // With a request plane, requests are matched by ids or tokens, and text is not compared.
        let needs_tokenizer = self.request_plane.is_none() && self.clients.server.text_only > 0;
        if needs_tokenizer && let Some(why) = &self.no_tokenizer {
            degraded.push(format!("egress: their text cannot be compared with token ids: {why}"));
        }
        degraded.extend(self.unknown_spans.degraded_lines());
        if self.writes_beyond_limit > 0 {
            degraded.push(format!("egress: {} writes on connections beyond the limit", self.writes_beyond_limit));
        }
        degraded
    }
}

#[cfg(test)]
mod tests {
    use probe_user::egress::{CallerSpan, Head, UnknownSpan};
    use trace::event::{Arrival, ArrivalTimes, ConnectionTimes, Event, Traced, What};

    use super::*;

    /// A response with one event.
    fn response() -> Vec<u8> {
        let event =
            "data: {\"id\":\"cmpl-1\",\"choices\":[{\"index\":0,\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\n";
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        format!("{head}{:x}\r\n{event}\r\n0\r\n\r\n", event.len()).into_bytes()
    }

    fn record(kind: Kind, written: u32, payload: &[u8]) -> Record<'_> {
        let mut head = Head { socket: 5, written, ..Head::default() };
        (head.accepted, head.captured) = (payload.len() as i64, payload.len() as u32);
        Record { kind, head, payload }
    }

    /// Number of responses in the writes of process `pid`, whose connection has the kernel address of an earlier one of process 1.
    fn responses(pid: u32) -> usize {
        let (worker, frontend, mut answers) = (1, 2, 0);
        let mut egress = Egress::new(Clients::default());
        egress.frontends.observed.insert(frontend);
        let mut count = |event: &Event<'_>| answers += usize::from(matches!(event.what, What::Answered(_)));
        // A write that is reported after the end of its connection registers the address again.
        egress.read_record(worker, &record(Kind::Wrote, 1, b"}"), &mut count);
        let mut opened = record(Kind::State, 0, b"");
        (opened.head.before, opened.head.state) = (3, 1);
        egress.read_record(worker, &opened, &mut count);
        let response = response();
        egress.read_record(pid, &record(Kind::Wrote, response.len() as u32, &response), &mut count);
        answers
    }

    /// What a connection shows, record by record.
    #[derive(Default)]
    struct Connection {
        egress: Egress,
        written: u32,
        tls: bool,
        arrivals: Vec<Result<ArrivalTimes, UnknownArrival>>,
        traces: Vec<String>,
    }

    impl Connection {
        fn observed() -> Self {
            let mut connection = Self { egress: Egress::new(Clients::default()), ..Self::default() };
            connection.egress.observes_arrivals = true;
            connection
        }

        /// The server writes.
        fn write(mut self, bytes: &[u8]) -> Self {
            self.written += bytes.len() as u32;
            let kind = if self.tls { Kind::Tls } else { Kind::Wrote };
            let Self { egress, arrivals, traces, written, .. } = &mut self;
            egress.read_record(1, &record(kind, *written, bytes), &mut |event| {
                if let What::Arrived(Arrival { rid: "cmpl-1", times }) = event.what {
                    arrivals.push(times);
                }
                if let What::Traced(Traced { rid: "cmpl-1", parent }) = event.what {
                    traces.push(parent.trace_id());
                }
            });
            self
        }

        /// The server begins to answer a request that arrived at `arrived_ns`, 10 ns after its connection was opened.
        fn answer(self, arrived_ns: u64) -> Self {
            self.answer_caller(arrived_ns, CallerSpan::ABSENT)
        }

        fn answer_caller(mut self, arrived_ns: u64, caller: CallerSpan) -> Self {
            let CallerSpan { trace_id: [high, low], span_id, flags, unknown } = caller;
            let last = u64::from(flags) | (u64::from(unknown) << 32);
            let words = [arrived_ns - 10, 0, arrived_ns, arrived_ns + 5, high, low, span_id, last];
            let payload: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            self.egress.read_record(1, &record(Kind::Request, self.written, &payload), &mut |_| {});
            self
        }

        /// The connection is closed, and another one gets its kernel address.
        fn reopen(mut self) -> Self {
            for (before, state) in [(1, 7), (3, 1)] {
                let mut change = record(Kind::State, 0, b"");
                (change.head.before, change.head.state) = (before, state);
                self.egress.read_record(1, &change, &mut |_| {});
            }
            self.written = 0;
            self
        }

        /// When each request arrived.
        fn arrived_ns(self) -> Vec<Result<u64, UnknownArrival>> {
            self.arrivals.into_iter().map(|times| times.map(|times| times.arrived.0)).collect()
        }
    }

    #[test]
    fn each_response_has_the_arrival_of_its_own_request() {
        let response = response();
        let (head, body) = response.split_at(40);
        let connection = Connection::observed().write(&response).answer(100).write(head).write(body);
        let connection = connection.answer(200).write(&response).write(&response).answer(300).write(&response);
        let connection = connection.reopen().answer(400).write(&response);
        let times = connection.arrivals[1].unwrap();
        assert_eq!((times.arrived.0, times.read.0), (100, 105));
        assert_eq!(times.connection, Some(ConnectionTimes { opened: MonoNs(90), accepted: None }));
        let missed = Err(UnknownArrival::Missed);
        assert_eq!(connection.arrived_ns(), [missed, Ok(100), Ok(200), missed, Ok(300), Ok(400)]);
        assert_eq!(Connection::default().answer(100).write(&response).arrived_ns(), []);
    }

    #[test]
    fn responses_without_a_body_take_their_requests_arrival_and_interim_ones_do_not() {
        let connection = Connection::observed().answer(100).write(b"HTTP/1.1 204 No Content\r\n\r\n");
        let connection = connection.answer(200).write(b"HTTP/1.1 100 Continue\r\n\r\n").answer(300);
        assert_eq!(connection.write(&response()).arrived_ns(), [Ok(200)]);
    }

    #[test]
    fn arrivals_are_unknown_once_a_client_sends_before_the_response_has_ended() {
        let response = response();
        let (begin, rest) = response.split_at(response.len() - 5);
        let connection = Connection::observed().answer(100).write(begin).answer(200).write(rest).write(&response);
        let pipelined = Err(UnknownArrival::Pipelined);
        let connection = connection.answer(300).write(&response);
        assert_eq!(connection.arrived_ns(), [Ok(100), pipelined, pipelined]);
    }

    #[test]
    fn arrivals_on_encrypted_connections_are_unknown() {
        let connection = Connection { tls: true, ..Connection::observed() };
        assert_eq!(connection.write(&response()).arrived_ns(), [Err(UnknownArrival::Tls)]);
    }

    /// Span of a caller in trace `trace_id`.
    fn caller(trace_id: u64) -> CallerSpan {
        CallerSpan { trace_id: [0, trace_id], span_id: 7, flags: 1, unknown: 0 }
    }

    #[test]
    fn each_response_has_the_trace_of_its_own_request() {
        let response = response();
        let connection = Connection::observed().answer_caller(100, caller(1)).write(&response);
        // The second names no span, and the record of the third is missed.
        let connection = connection.answer(200).write(&response).write(&response);
        let malformed = CallerSpan { unknown: UnknownSpan::Malformed as u32, ..CallerSpan::ABSENT };
        let connection = connection.answer_caller(400, malformed).write(&response);
        let connection = connection.answer_caller(500, CallerSpan::INCOMPLETE).write(&response);
        let connection = connection.answer_caller(600, caller(0xab)).write(&response);
        assert_eq!(connection.traces, [format!("{:032x}", 1), format!("{:032x}", 0xab)]);
        assert_eq!(connection.arrivals.len(), 6);
        let reasons = connection.egress.degraded();
        assert!(reasons.iter().any(|line| line.contains("1 malformed")), "{reasons:?}");
        assert!(reasons.iter().any(|line| line.contains("1 request heads were not in one read")), "{reasons:?}");
    }

    #[test]
    fn traces_are_unknown_where_arrivals_are() {
        let response = response();
        let (begin, rest) = response.split_at(response.len() - 5);
        let connection = Connection::observed().answer_caller(100, caller(1)).write(begin);
        let connection = connection.answer_caller(200, caller(2)).write(rest).write(&response);
        assert_eq!(connection.traces, [format!("{:032x}", 1)]);
        // The body that follows `100 Continue` may begin as a request does.
        let connection = Connection::observed().answer_caller(100, caller(1)).write(b"HTTP/1.1 100 Continue\r\n\r\n");
        let connection = connection.answer_caller(200, caller(2)).write(&response);
        assert_eq!(connection.traces, [format!("{:032x}", 1)]);
        let connection = Connection::observed().answer_caller(100, caller(1)).reopen().write(&response);
        assert_eq!(connection.traces, [""; 0]);
    }

    #[test]
    fn responses_of_a_frontend_are_no_answers_at_a_reused_address() {
        assert_eq!((responses(1), responses(2)), (1, 0));
    }
}
