//! One connection: two directions, each of which ends independently.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Shared;
use super::bytes::ByteWatch;
use super::endpoint::{Endpoint, Pair};
use super::journal::Journal;
use super::observation::{Direction, Ending, Observation, Observed};
use super::pump::{End, pump};
use super::socket::Socket;
use super::thread::Signal;
use super::upstream::{Upstream, UpstreamChanged};
use super::watch::{Observer, Watch};
use super::window::Window;

/// A pair, and the signal that its connections wait for before they are connected to the upstream.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) index: u16,
    pub(super) pair: Pair,
    pub(super) gate: Signal,
    pub(super) upstream: Upstream,
}

/// Relays one accepted connection until it ends.
pub(super) async fn serve(shared: Arc<Shared>, route: Arc<Route>, lane: u32, accepted: Socket, stop: Signal) {
    let patience = shared.options.connect_patience;
    let connected = async {
        route.gate.received().await;
        dial(&route, &accepted, patience).await
    };
    let dialled = tokio::select! {
        dialled = connected => dialled,
        () = stop.received() => return,
    };
    let dialled = match dialled {
        Ok(dialled) => dialled,
        Err(DialFailure::Distrusted) => return shared.counters.upstreams_distrusted.add(1),
        Err(DialFailure::Forbidden) => return shared.counters.upstreams_forbidden.add(1),
        Err(DialFailure::Unanswered) => {
            shared.counters.connections_unanswered.add(1);
            if route.pair.upstream.speaks_http() {
                // Reply with a reset, as the server's own host does when nothing listens on the port.
                accepted.reset_on_close();
            }
            let _ = shared.observations.push(Observation { pair: route.index, lane, what: Observed::Refused });
            return;
        }
    };
    let journal = Journal::open(shared, route.index, lane);
    let (ending, first) = if route.pair.upstream.speaks_http() {
        both_ways(&journal, &accepted, &dialled, &stop, ByteWatch::new).await
    } else {
        both_ways(&journal, &accepted, &dialled, &stop, Watch::new).await
    };
    // Close the sockets before reporting the end, so that an observer of the end finds them gone.
    drop((accepted, dialled));
    journal.end(ending, first);
}

/// Relays both directions. Returns the cause of the end and the side that ended first.
async fn both_ways<W: Observer>(
    journal: &Arc<Journal>,
    accepted: &Socket,
    upstream: &Socket,
    stop: &Signal,
    observer: impl Fn(Arc<Journal>, Direction) -> W,
) -> (Ending, Option<Direction>) {
    let window = || Window::new(journal.shared.pool.clone(), journal.shared.options.buffer_bytes);
    let mut forward_watch = observer(journal.clone(), Direction::Forward);
    let mut backward_watch = observer(journal.clone(), Direction::Backward);
    let (mut forward_end, mut backward_end) = (None, None);
    let (mut stopping, mut first) = (false, None);
    let options = &journal.shared.options;
    let mut leave_deadline = None;
    {
        let mut forward = pin!(pump(accepted, upstream, &mut forward_watch, window()));
        let mut backward = pin!(pump(upstream, accepted, &mut backward_watch, window()));
        let mut deadline = None;
        while forward_end.is_none() || backward_end.is_none() {
            tokio::select! {
                end = &mut forward, if forward_end.is_none() => {
                    forward_end = Some(end);
                    first = first.or(Some(ended_by(end, Direction::Forward)));
                }
                end = &mut backward, if backward_end.is_none() => {
                    backward_end = Some(end);
                    first = first.or(Some(ended_by(end, Direction::Backward)));
                }
                () = stop.received(), if !stopping => {
                    stopping = true;
                    if options.ask_to_leave {
                        accepted.end_writing();
                        leave_deadline = Some(Instant::now() + options.drain / 2);
                    } else {
                        accepted.end_reading();
                        upstream.end_reading();
                    }
                }
                // The peer did not close its connection in response.
                () = until(leave_deadline) => {
                    leave_deadline = None;
                    accepted.end_reading();
                    upstream.end_reading();
                }
                () = until(deadline) => break,
            }
            let reset = |end: Option<End>| matches!(end, Some(End::Source { relayed: false, .. }));
            if reset(forward_end) || reset(backward_end) {
                break;
            }
            let failed = |end: Option<End>| matches!(end, Some(End::Source { .. } | End::Sink(_)));
            if deadline.is_none() && (stopping || failed(forward_end) || failed(backward_end)) {
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
    if stopping {
        return (Ending::Stopped, None);
    }
    let ending = upstream_failure(forward_end, backward_end)
        .map(Ending::Upstream)
        .or(connector_failure(forward_end, backward_end).map(Ending::Connector))
        .unwrap_or(Ending::Closed);
    (ending, first)
}

/// The side that caused the end of a direction: the source of the stream, unless the sink failed.
fn ended_by(end: End, direction: Direction) -> Direction {
    match (end, direction) {
        (End::Sink(_), Direction::Forward) => Direction::Backward,
        (End::Sink(_), Direction::Backward) => Direction::Forward,
        (End::Finished | End::Source { .. }, direction) => direction,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn connector_failure(forward: Option<End>, backward: Option<End>) -> Option<io::ErrorKind> {
    match (forward, backward) {
        (Some(End::Source { kind, .. }), _) | (_, Some(End::Sink(kind))) => Some(kind),
        _ => None,
    }
}

fn upstream_failure(forward: Option<End>, backward: Option<End>) -> Option<io::ErrorKind> {
    connector_failure(backward, forward)
}

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Why a connection to the upstream was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DialFailure {
    /// No listener accepted, or the peer has disconnected.
    Unanswered,
    /// The file at the upstream's path is not the expected socket.
    Distrusted,
    /// This user may not connect to the upstream's socket.
    Forbidden,
}

/// Connects, with retries for `patience`. An HTTP server that refuses is not retried, since its clients expect an immediate error.
async fn dial(route: &Route, peer: &Socket, patience: Duration) -> Result<Socket, DialFailure> {
    let upstream = &route.pair.upstream;
    let deadline = Instant::now() + patience;
    let mut pause = FIRST_PAUSE;
    loop {
        match timeout_at(deadline, connect(route)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => {
                tracing::debug!(%upstream, %error, "upstream does not accept");
                if UpstreamChanged::is_cause(&error) {
                    return Err(DialFailure::Distrusted);
                }
                if error.kind() == io::ErrorKind::PermissionDenied {
                    return Err(DialFailure::Forbidden);
                }
            }
            Err(_) => return Err(DialFailure::Unanswered),
        }
        let next = Instant::now() + pause;
        if upstream.speaks_http() || next >= deadline || peer.is_closed_by_peer().await {
            return Err(DialFailure::Unanswered);
        }
        sleep_until(next).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn connect(route: &Route) -> io::Result<Socket> {
    match &route.pair.upstream {
        Endpoint::Path(path) => Socket::unix(route.upstream.connect(path).await?),
        Endpoint::Abstract(name) => {
            // The kernel and tokio denote an abstract name by a leading zero byte.
            let address = OsString::from_vec([b"\0", name.as_bytes()].concat());
            Socket::unix(UnixStream::connect(address).await?)
        }
        Endpoint::Tcp { host, port, .. } => {
            let host = host.as_deref().unwrap_or("127.0.0.1");
            Socket::tcp(TcpStream::connect((host, *port)).await?)
        }
    }
}
