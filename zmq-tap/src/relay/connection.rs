//! One connection: two directions, each of which ends independently.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::RelayState;
use super::byte_watch::ByteWatch;
use super::endpoint::{Endpoint, Pair};
use super::journal::{ConnectionEnd, Journal};
use super::observation::{Direction, Ending, Observation, Observed};
use super::pump::{DirectionEnd, copy_until_end};
use super::socket::Socket;
use super::stream_window::StreamWindow;
use super::thread::Signal;
use super::upstream::{UpstreamChanged, UpstreamSocket};
use super::zmtp_watch::{StreamObserver, ZmtpWatch};

/// A pair, and the signal that its connections wait for before they are connected to the upstream.
#[derive(Debug)]
pub(super) struct RelayRoute {
    pub(super) index: u16,
    pub(super) pair: Pair,
    pub(super) gate: Signal,
    pub(super) upstream: UpstreamSocket,
}

/// Relays one accepted connection to the pair's upstream until it ends. If the upstream cannot be reached, counts why and closes the
/// connection. `lane`: number of the connection among those of its pair.
pub(super) async fn serve_connection(
    shared: Arc<RelayState>,
    route: Arc<RelayRoute>,
    lane: u32,
    accepted: Socket,
    stop: Signal,
) {
    let patience = shared.options.connect_patience;
    let connect_upstream = async {
        // At a takeover, the gate opens once the receiver has read everything of the senders' old connections.
        route.gate.received().await;
        connect_with_retries(&route, &accepted, patience).await
    };
    let connected = tokio::select! {
        connected = connect_upstream => connected,
        () = stop.received() => return,
    };
    let upstream = match connected {
        Ok(upstream) => upstream,
        Err(failure) => return record_connect_failure(failure, &shared, &route, lane, &accepted),
    };
    let journal = Journal::open(shared, route.index, lane);
    let end = if route.pair.upstream.is_opaque() {
        relay_both_directions(&journal, &accepted, &upstream, &stop, ByteWatch::new).await
    } else {
        relay_both_directions(&journal, &accepted, &upstream, &stop, ZmtpWatch::new).await
    };
    // Close the sockets before reporting the end, so that an observer of the end finds them gone.
    drop((accepted, upstream));
    journal.record_end(end);
}

/// Counts a connection that has no upstream, by the reason. It closes when the caller drops `accepted`.
fn record_connect_failure(
    failure: ConnectFailure,
    shared: &RelayState,
    route: &RelayRoute,
    lane: u32,
    accepted: &Socket,
) {
    match failure {
        ConnectFailure::Distrusted => shared.counters.upstreams_distrusted.add(1),
        ConnectFailure::Forbidden => shared.counters.upstreams_forbidden.add(1),
        ConnectFailure::Unanswered => {
            shared.counters.connections_unanswered.add(1);
            if route.pair.upstream.is_opaque() {
                // Reply with a reset, as the server's own host does when nothing listens on the port.
                accepted.reset_on_close();
            }
            // If the queue is full, the observation is dropped: the counter above has the failure anyway.
            let _ = shared.observations.push(Observation { pair: route.index, lane, what: Observed::Refused });
        }
    }
}

/// Copies the bytes of both directions between the connection that was `accepted` and the one to the `upstream`. Ends when both directions
/// have ended, and some time after one has failed or the relay stops. Returns how the connection ended.
async fn relay_both_directions<W: StreamObserver>(
    journal: &Arc<Journal>,
    accepted: &Socket,
    upstream: &Socket,
    stop: &Signal,
    new_observer: impl Fn(Arc<Journal>, Direction) -> W,
) -> ConnectionEnd {
    let options = &journal.shared.options;
    let forward_window = StreamWindow::new(journal.shared.pool.clone(), options.buffer_bytes);
    let backward_window = StreamWindow::new(journal.shared.pool.clone(), options.buffer_bytes);
    let mut forward_watch = new_observer(journal.clone(), Direction::Forward);
    let mut backward_watch = new_observer(journal.clone(), Direction::Backward);
    let mut forward_end = None;
    let mut backward_end = None;
    let mut is_stopping = false;
    let mut first_ended = None;
    let mut leave_deadline = None;
    {
        let mut forward = pin!(copy_until_end(accepted, upstream, &mut forward_watch, forward_window));
        let mut backward = pin!(copy_until_end(upstream, accepted, &mut backward_watch, backward_window));
        let mut deadline = None;
        while forward_end.is_none() || backward_end.is_none() {
            tokio::select! {
                end = &mut forward, if forward_end.is_none() => {
                    forward_end = Some(end);
                    first_ended = first_ended.or(Some(source_direction_of_side_that_ended(end, Direction::Forward)));
                }
                end = &mut backward, if backward_end.is_none() => {
                    backward_end = Some(end);
                    first_ended = first_ended.or(Some(source_direction_of_side_that_ended(end, Direction::Backward)));
                }
                () = stop.received(), if !is_stopping => {
                    is_stopping = true;
                    if options.ask_to_leave {
                        // libzmq closes in response, between two of its writes, so that its last bytes are whole messages.
                        accepted.end_writing();
                        leave_deadline = Some(Instant::now() + options.drain / 2);
                    } else {
                        accepted.end_reading();
                        upstream.end_reading();
                    }
                }
                // The peer, which was asked to leave, did not close its connection in response.
                () = wait_until(leave_deadline) => {
                    leave_deadline = None;
                    // What the kernel has accepted is still read.
                    accepted.end_reading();
                    upstream.end_reading();
                }
                // The bytes on their way were given their time.
                () = wait_until(deadline) => break,
            }
            // The other side gets a reset, and needs no further bytes.
            if is_reportable_by_reset(forward_end) || is_reportable_by_reset(backward_end) {
                break;
            }
            let is_ending = is_stopping || has_failed(forward_end) || has_failed(backward_end);
            if is_ending && deadline.is_none() {
                // The bytes on their way to the other side get this long.
                deadline = Some(Instant::now() + options.drain);
            }
        }
    }
    // Pass a failure on as a reset, unless the reset can discard messages that the kernel still holds for that side.
    if connector_failure(forward_end, backward_end).is_some() && !forward_watch.has_relayed() {
        upstream.reset_on_close();
    }
    if upstream_failure(forward_end, backward_end).is_some() && !backward_watch.has_relayed() {
        accepted.reset_on_close();
    }
    if is_stopping {
        return ConnectionEnd { cause: Ending::Stopped, first: None };
    }
    ConnectionEnd { cause: cause_of_end(forward_end, backward_end), first: first_ended }
}

/// Why a connection ended whose directions ended like this. If both sides failed, the upstream's failure is the cause.
fn cause_of_end(forward: Option<DirectionEnd>, backward: Option<DirectionEnd>) -> Ending {
    if let Some(error) = upstream_failure(forward, backward) {
        Ending::Upstream(error)
    } else if let Some(error) = connector_failure(forward, backward) {
        Ending::Connector(error)
    } else {
        Ending::Closed
    }
}

/// Whether a reset can report the end of this direction to the other side: the source failed, and had sent nothing that a reset discards.
fn is_reportable_by_reset(end: Option<DirectionEnd>) -> bool {
    matches!(end, Some(DirectionEnd::Source { has_relayed: false, .. }))
}

/// Whether a direction ended by a failure of its source or its sink.
fn has_failed(end: Option<DirectionEnd>) -> bool {
    matches!(end, Some(DirectionEnd::Source { .. } | DirectionEnd::Sink(_)))
}

/// The side of the connection that caused the end of a direction: the source of its stream, unless the sink failed. A side is named by the
/// direction of which it is the source: `Forward` for the connecting side, and `Backward` for the upstream.
fn source_direction_of_side_that_ended(end: DirectionEnd, direction: Direction) -> Direction {
    let has_sink_failed = matches!(end, DirectionEnd::Sink(_));
    match direction {
        Direction::Forward if has_sink_failed => Direction::Backward,
        Direction::Backward if has_sink_failed => Direction::Forward,
        source => source,
    }
}

/// Waits until the deadline, or for ever without one.
async fn wait_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Error of the connecting side. It is the source of the forward direction and the sink of the backward one. `None` if it has not failed.
fn connector_failure(forward: Option<DirectionEnd>, backward: Option<DirectionEnd>) -> Option<io::ErrorKind> {
    if let Some(DirectionEnd::Source { kind, .. }) = forward {
        return Some(kind);
    }
    if let Some(DirectionEnd::Sink(kind)) = backward {
        return Some(kind);
    }
    None
}

/// Error of the upstream. It is the source of the backward direction and the sink of the forward one. `None` if it has not failed.
fn upstream_failure(forward: Option<DirectionEnd>, backward: Option<DirectionEnd>) -> Option<io::ErrorKind> {
    // Both sides have the same roles in opposite directions.
    connector_failure(backward, forward)
}

/// Pause before the second attempt to connect. It doubles with each further attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// Longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_millis(100);

/// Why a connection to the upstream was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectFailure {
    /// No listener accepted, or the peer has disconnected.
    Unanswered,
    /// The file at the upstream's path is not the expected socket.
    Distrusted,
    /// This user may not connect to the upstream's socket.
    Forbidden,
}

/// Connects to the route's upstream. Retries for `patience`, or until the peer of the `accepted` connection closes it. An HTTP server that
/// refuses is not retried, since its clients expect an immediate error.
async fn connect_with_retries(
    route: &RelayRoute,
    accepted: &Socket,
    patience: Duration,
) -> Result<Socket, ConnectFailure> {
    let upstream = &route.pair.upstream;
    let deadline = Instant::now() + patience;
    let mut pause = FIRST_PAUSE;
    loop {
        // Fails if the time is over.
        let Ok(connected) = timeout_at(deadline, connect_to_upstream(route)).await else {
            return Err(ConnectFailure::Unanswered);
        };
        let error = match connected {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        tracing::debug!(%upstream, %error, "upstream does not accept");
        // The file at the upstream's path has another owner than before, or is no socket.
        if UpstreamChanged::is_cause(&error) {
            return Err(ConnectFailure::Distrusted);
        }
        if error.kind() == io::ErrorKind::PermissionDenied {
            return Err(ConnectFailure::Forbidden);
        }
        let next_attempt = Instant::now() + pause;
        let may_retry = !upstream.is_opaque() && next_attempt < deadline;
        // A peer that has closed its connection does not wait any more.
        if !may_retry || accepted.is_closed_by_peer().await {
            return Err(ConnectFailure::Unanswered);
        }
        sleep_until(next_attempt).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Connects to the route's upstream once.
async fn connect_to_upstream(route: &RelayRoute) -> io::Result<Socket> {
    match &route.pair.upstream {
        // Connects to the file that is held open, or checks the owner of the one at `path`.
        Endpoint::Path(path) => Socket::from_unix(route.upstream.connect(path).await?),
        Endpoint::Abstract(name) => {
            // The kernel and tokio denote an abstract name by a leading zero byte.
            let address = OsString::from_vec([b"\0", name.as_bytes()].concat());
            Socket::from_unix(UnixStream::connect(address).await?)
        }
        Endpoint::Tcp { host, port, .. } => {
            // A listener on all addresses also listens on the loopback address.
            let host = host.as_deref().unwrap_or("127.0.0.1");
            Socket::from_tcp(TcpStream::connect((host, *port)).await?)
        }
    }
}
