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
}

/// The state of a record's connection. The first record of a connection adds it, and a new TLS connection is also counted in `tls_counts`.
/// A write from the other kind of process, frontend or not, replaces the connection by a new one.
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
        // The kernel has given the address of an ended connection to this new one. The end was not noticed, because the last write of
        // the ended connection was reported after it.
        *connection = ClientConnection::new(is_of_frontend, unknown_arrival);
    }
    connection
}

/// Passes the arrival of a request, and the span of its caller, to the reader of the connection, on which the response will follow. Does
/// nothing if the record has no times.
#[inline]
fn pass_arrival_to_reader(record: &Record<'_>, reader: &mut ResponseReader, unknown_spans: &mut UnknownSpans) {
    if let Some(times) = parse_arrival_times(record.payload) {
        reader.record_arrival(times, unknown_spans.parse_caller_and_count_unknown(record.payload));
    }
}

/// Passes what a record says about its connection to the connection's reader, which emits the deliveries of tokens in written responses.
/// Returns whether the connection has closed.
#[inline]
fn pass_record_to_reader(
    record: &Record<'_>,
    connection: &mut ClientConnection,
    server: &mut Server,
    sink: Sink<'_>,
) -> bool {
    let ClientConnection { tracker, reader } = connection;
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
    pub(super) fn record_that_ids_stay_in_process(&mut self) {
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

    /// Starts observing what a process writes to its clients, and when their requests arrive. Must run before the process's messages are
    /// observed, so that no response to them is missed. `listening` has all ports on which the process listens.
    ///
    /// Returns whether the writes are observed: false if the process serves no client through a socket. An error says why the kernel side
    /// cannot observe them.
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
        // Set if the process connects to its clients itself, over a request plane, instead of listening for them.
        let request_plane = process.connects_to_clients;
        let client_ports = client_ports_of(listening, engine);
        // A process that neither connects to clients nor listens for them has its clients inside itself, and writes nothing to a socket.
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
    pub(super) fn record_newly_logged_ids(&mut self) {
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

    /// Processes a record of the kernel side about a connection of process `pid`: a request that the process has read, or response bytes
    /// that it has written. The connection's reader parses the response bytes, and emits the deliveries of tokens that they contain.
    pub(super) fn read_record(&mut self, pid: u32, record: &Record<'_>, sink: Sink<'_>) {
        if record.kind == Kind::Read {
            return self.read_request(record);
        }
        if self.is_beyond_limit(record.head.socket) {
            return self.skip_write_beyond_limit(record);
        }
        let is_of_frontend = self.frontends.observed.contains(&pid);
        let unknown_arrival = self.reason_of_unknown_arrivals(is_tls_record(record));
        let Self { clients, connections, requests, logs, unknown_spans, .. } = self;
        let server = &mut clients.server;
        let tls_counts = server.tls.as_mut();
        let connection = find_or_add_connection(connections, record, is_of_frontend, unknown_arrival, tls_counts);
        if record.kind == Kind::Request {
            return pass_arrival_to_reader(record, &mut connection.reader, unknown_spans);
        }
        // The worker logs the ids before it passes the request to the engine, perhaps after the log was read for this poll.
        if record.kind == Kind::Wrote && connection.reader.lacks_request_id(server) {
            logs.read_ids_written_so_far(|ids| record_logged_ids(&ids, server, requests));
        }
        let is_closed = pass_record_to_reader(record, connection, server, sink);
        let is_useless = connection.reader.is_unreadable();
        self.forget_ended_or_useless_connection(record, is_closed, is_useless);
    }

    /// Whether a connection is not parsed, because too many others are.
    #[inline]
    fn is_beyond_limit(&self, socket: u64) -> bool {
        self.connections.len() >= MAX_CONNECTIONS && !self.connections.contains_key(&socket)
    }

    /// Counts a write on a connection that is not parsed. The kernel side then stops copying the connection's bytes.
    fn skip_write_beyond_limit(&mut self, record: &Record<'_>) {
        self.writes_beyond_limit += 1;
        self.useless_connections.push(UselessConnection { socket: record.head.socket, is_tls: is_tls_record(record) });
    }

    /// Forgets the connection of a record if it has closed (`is_closed`), or if its bytes turned out to be no responses (`is_useless`).
    #[inline]
    fn forget_ended_or_useless_connection(&mut self, record: &Record<'_>, is_closed: bool, is_useless: bool) {
        let socket = record.head.socket;
        let is_tls = is_tls_record(record);
        if is_useless {
            self.forget_useless_connection(socket, is_tls);
        }
        if is_closed {
            self.connections.remove(&socket);
            self.requests.connections.remove(&socket);
        } else if is_useless && !self.requests.may_carry_requests(socket) {
            // The kernel side then stops copying its bytes.
            self.useless_connections.push(UselessConnection { socket, is_tls });
        }
    }

    /// Reads a request, or its cancellation, that a process has received over its request plane: the connections over which frontends pass
    /// requests to workers. Reads of processes without a request plane do not matter.
    fn read_request(&mut self, record: &Record<'_>) {
        let Some(plane) = self.request_plane else { return };
        if !plane.cancels(record.payload) {
            self.requests.announce_requests_in(record, plane, &mut self.clients.server);
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
        let mut degraded = self.clients.server.degraded_lines();
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
mod tests;
