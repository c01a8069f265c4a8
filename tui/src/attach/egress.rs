//! From what serving processes wrote to their sockets to deliveries: the kernel's order, read by `zmq_tap::egress`.

use std::collections::HashMap;
use std::path::Path;

use probe_user::Probe;
use probe_user::discover::{Engine, Process, Role};
use probe_user::egress::{CAPTURE, CAPTURE_READ, Kind, Record, Serves, Step, Track, listening};
use serde_json::{Value, json};
use trace::MonoNs;
use trace::engine::Mode;
use trace::event::{Frame, Kind as FrameKind};
use zmq_tap::egress::{Closing, Limits, Reader, Server};

use super::lanes::Sink;
use super::requests::{RequestPlane, Word};
use super::submitted::Logs;

/// Most connections that are read at once; more are counted in `left_out`.
const MOST_CONNECTIONS: usize = 16_384;

/// All connections to the clients of an engine.
pub(super) struct Egress {
    server: Server,
    connections: HashMap<u64, Connection>,
    requests: RequestPlane,
    /// Some process serves, and its writes are observed.
    serves: bool,
    /// One of them is a Dynamo worker: what it delivers names no request unless its request plane tells.
    dynamo: bool,
    /// Connections to be told apart from those of use, in the kernel.
    useless: Vec<u64>,
    /// What the workers' logs tell.
    logs: Logs,
    left_out: u64,
}

struct Connection {
    track: Track,
    reader: Reader,
}

impl Egress {
    pub(super) fn new(mode: Option<Mode>) -> Self {
        Self {
            server: Server::new(mode),
            connections: HashMap::new(),
            requests: RequestPlane::default(),
            serves: false,
            dynamo: false,
            useless: Vec::new(),
            logs: Logs::default(),
            left_out: 0,
        }
    }

    /// Begins to observe what a process writes, if it is one that answers clients; before its messages are. Returns whether it
    /// does, or why it cannot.
    pub(super) fn serve(&mut self, probe: &mut Probe, process: &Process, engine: &Engine) -> Result<bool, String> {
        let pid = process.id.pid;
        if !matches!(process.role, Role::Tokenizer | Role::TokenizerWorker) {
            return Ok(false);
        }
        let ports = listening(pid).map_err(|error| format!("where pid {pid} listens cannot be read: {error}"))?;
        // A client that has libzmq loaded and no thread of it looks like a peer; its connection is HTTP all the same.
        let speaks_zmq = |pid: u32| {
            engine
                .process(pid)
                .is_some_and(|process| !process.io_threads.is_empty())
        };
        let of_zmq = |port: &u16| {
            let here = |endpoint: &str| endpoint.starts_with("tcp://") && endpoint.ends_with(&format!(":{port}"));
            let mut hops = engine.hops.iter();
            hops.any(|hop| here(&hop.endpoint) && hop.from.is_some_and(|from| speaks_zmq(from.pid)))
        };
        // Who listens nowhere has its clients inside: what they get is not written. A Dynamo worker dials its clients.
        if !process.dynamo && ports.iter().all(of_zmq) {
            return Ok(false);
        }
        let serves = Serves {
            written: CAPTURE,
            read: if process.dynamo { CAPTURE_READ } else { 0 },
        };
        let observed = probe.serve(pid, serves).map_err(|error| error.to_string())?;
        self.serves |= observed;
        if observed && process.dynamo {
            self.dynamo = true;
            self.server.content.compare();
            self.logs.follow_output(process);
        }
        Ok(observed)
    }

    /// Follows a worker's log as well.
    pub(super) fn follow(&mut self, log: &Path) -> std::io::Result<()> {
        self.logs.follow(log)
    }

    /// Whether streams are told apart by their tokens, so that those of the frames are needed.
    pub(super) fn compares(&self) -> bool {
        self.server.content.compares()
    }

    /// A frame left the scheduler.
    pub(super) fn sent(&mut self, frame: &Frame<'_>) {
        if frame.kind != FrameKind::TokenIds {
            return;
        }
        for chunk in frame.chunks {
            if let Some(count) = chunk.completion_tokens {
                self.server.content.sent(chunk.rid, chunk.ids, count);
            }
        }
    }

    /// What logs have told since.
    pub(super) fn read_logs(&mut self) {
        let (server, names) = (&mut self.server, &mut self.requests.names_rids);
        self.logs.poll(|context, rid| {
            server.submitted(context, rid);
            *names = true;
        });
    }

    /// How frontend and SGLang call the same requests, as far as their tokens told.
    pub(super) fn pairs(&self) -> Option<Value> {
        let content = &self.server.content;
        (content.joined > 0).then(|| {
            let pairs = content.pairs.iter();
            json!({
                "joined": content.joined,
                "ambiguous": content.ambiguous,
                "unknown": content.unknown,
                "latest": pairs.map(|(context, rid)| json!({"context": context, "rid": rid})).collect::<Vec<_>>(),
            })
        })
    }

    /// Whether deliveries can be seen: not so where all that passes is encrypted, or text alone.
    pub(super) fn sees(&self) -> bool {
        let named = !self.dynamo || self.requests.names_rids;
        self.serves && named && self.server.shows_deliveries()
    }

    /// Something happened to a connection.
    pub(super) fn enter(&mut self, record: &Record<'_>, sink: Sink<'_>) {
        let (at, socket) = (MonoNs(record.head.at_ns), record.head.socket);
        if record.kind == Kind::Read {
            if self.requests.enter(record, &mut self.server) == Word::Stop
                && let Some(connection) = self.connections.get_mut(&socket)
            {
                connection.reader.stopped();
            }
            return;
        }
        let full = self.connections.len() >= MOST_CONNECTIONS;
        if full && !self.connections.contains_key(&socket) {
            self.left_out += 1;
            self.useless.push(socket);
            return;
        }
        let connection = self.connections.entry(socket).or_insert_with(|| Connection {
            track: Track::default(),
            reader: Reader::new(Limits::default()),
        });
        let Connection { track, reader } = connection;
        let (server, mut closed) = (&mut self.server, false);
        track.enter(record, |step| match step {
            Step::Bytes { bytes, begins } => reader.feed(at, bytes, begins, server, sink),
            Step::Missed => reader.missed(at, sink),
            Step::HeldUp => reader.held_up(),
            Step::Closed {
                by_client,
                unacknowledged,
            } => {
                let unacknowledged = Some(u64::from(unacknowledged));
                let closing = Closing {
                    by_client,
                    unacknowledged,
                };
                reader.closed(at, closing, server, sink);
                closed = true;
            }
        });
        let useless = reader.is_unreadable();
        if closed || useless {
            self.connections.remove(&socket);
        }
        if closed {
            self.requests.closed(socket);
        }
        if useless && !closed && !self.requests.is_of_use(socket) {
            self.useless.push(socket);
        }
    }

    /// Tells the kernel which connections are of no use.
    pub(super) fn ignore(&mut self, probe: &mut Probe) {
        for socket in self.useless.drain(..) {
            if let Err(error) = probe.ignore(socket) {
                tracing::debug!("cannot ignore a connection: {error}");
            }
        }
    }

    /// What passed and was not observable.
    pub(super) fn degraded(&self) -> Vec<String> {
        let mut degraded = self.server.degraded();
        if self.left_out > 0 {
            degraded.push(format!(
                "egress: {} writes on connections beyond the limit",
                self.left_out
            ));
        }
        degraded
    }
}
