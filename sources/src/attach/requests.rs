//! Requests that a worker reads from frontends. They supply the ids for responses, which use separate connections.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use adapter::discover::EngineKind;
use adapter::requests::{ParseRequests, RequestIds};
use probe_user::egress::{ConnectionStep, ConnectionTracker, Record};
use responses::{Server, Unreadable};

/// Maximum number of connections parsed concurrently; frontends have a few.
const MAX_CONNECTIONS: usize = 1024;

/// A connection on which a frontend may send requests.
pub(super) struct FrontendConnection {
    tracker: ConnectionTracker,
    parser: Box<dyn ParseRequests>,
}

/// All connections that a worker reads from.
#[derive(Default)]
pub(super) struct RequestPlane {
    /// By the kernel address of their sockets.
    pub(super) connections: HashMap<u64, FrontendConnection>,
    /// Set once a request contains the id from which the engine derives its rid.
    pub(super) has_named_rids: bool,
}

/// The connection with this socket, which its first record adds. `None` for a worker of a kind that reads no requests from frontends.
#[inline]
fn find_or_add_connection(
    connections: &mut HashMap<u64, FrontendConnection>,
    socket: u64,
    worker_kind: EngineKind,
) -> Option<&mut FrontendConnection> {
    match connections.entry(socket) {
        Entry::Occupied(entry) => Some(entry.into_mut()),
        Entry::Vacant(entry) => {
            let parser = worker_kind.request_parser()?;
            Some(entry.insert(FrontendConnection { tracker: ConnectionTracker::default(), parser }))
        }
    }
}

/// Passes the ids of a request to `server`, which joins them with its response. The subject is the name of the response's stream.
#[inline]
fn announce_request(request: RequestIds<'_>, server: &mut Server) {
    // The response does not come over TCP, so its deliveries are not observed.
    if !request.has_readable_response {
        server.count_unreadable(Unreadable::Transport);
    }
    if let Some(subject) = request.subject {
        server.record_announced_stream(subject, request.context, request.rid);
    }
}

impl RequestPlane {
    /// Processes data that a worker of this kind has read from a frontend. Passes the ids of the requests in it to `server`, which joins
    /// them with responses.
    pub(super) fn announce_requests_in(&mut self, record: &Record<'_>, worker_kind: EngineKind, server: &mut Server) {
        let socket = record.head.socket;
        // Requests on further connections are not read.
        if self.connections.len() >= MAX_CONNECTIONS && !self.connections.contains_key(&socket) {
            return;
        }
        let connection = find_or_add_connection(&mut self.connections, socket, worker_kind);
        let Some(FrontendConnection { tracker, parser }) = connection else { return };
        for step in tracker.interpret_record(record) {
            match step {
                ConnectionStep::Missed(count) => parser.missed(count.into()),
                ConnectionStep::Bytes { bytes, begins: is_start_of_write } => {
                    parser.parse(bytes, is_start_of_write, &mut |request| {
                        // Without an id, the request is joined by the worker's log or by its tokens.
                        self.has_named_rids |= request.subject.is_some() && request.rid.is_some();
                        announce_request(request, server);
                    });
                }
                // Only the requests themselves are of interest here.
                ConnectionStep::Opened | ConnectionStep::HeldUp | ConnectionStep::Closed { .. } => {}
            }
        }
    }

    /// Whether the connection with this socket carries requests, or may do so: its bytes do not show another protocol.
    pub(super) fn may_carry_requests(&self, socket: u64) -> bool {
        self.connections.get(&socket).is_some_and(|connection| !connection.parser.is_other())
    }
}

#[cfg(test)]
mod tests {
    use probe_user::egress::Kind;

    use super::*;

    fn read(socket: u64, consumed: u32, payload: &[u8]) -> Record<'_> {
        let mut record = Record { kind: Kind::Read, head: probe_user::egress::Head::default(), payload };
        (record.head.socket, record.head.written) = (socket, consumed);
        (record.head.accepted, record.head.captured) = (payload.len() as i64, payload.len() as u32);
        record
    }

    fn dynamo() -> EngineKind {
        *engines::DISCOVERED.iter().find(|kind| kind.name() == "dynamo").expect("known")
    }

    #[test]
    fn a_connection_that_may_carry_requests_is_relevant() {
        let (mut plane, mut server) = (RequestPlane::default(), Server::default());
        plane.announce_requests_in(&read(2, 4, b"GET "), dynamo(), &mut server);
        assert!(!plane.has_named_rids && plane.may_carry_requests(2) && !plane.may_carry_requests(1));
    }

    #[test]
    fn responses_over_other_transports_are_reported_as_unreadable() {
        for transport in ["quic-response", "velo"] {
            let (mut plane, mut server) = (RequestPlane::default(), Server::default());
            let control = format!(r#"{{"id":"c","connection_info":{{"transport":"{transport}","info":"{{}}"}}}}"#);
            let (path, headers) = (b"1/generate", b"{}");
            let length = |bytes: &[u8]| (bytes.len() as u64).to_be_bytes();
            let mut message = [&[0, 10][..], path, &[0, 2], headers].concat();
            message.extend((24 + control.len() as u32).to_be_bytes());
            message.extend([&length(control.as_bytes())[..], &[0; 16], control.as_bytes()].concat());
            plane.announce_requests_in(&read(1, message.len() as u32, &message), dynamo(), &mut server);
            assert_eq!(server.unreadable, [(Unreadable::Transport, 1)], "{transport}");
        }
    }
}
