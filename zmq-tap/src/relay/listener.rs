//! The listener for the senders of one pair.

use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener as StdUnixListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::ioctl_fionbio;
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;

use super::RelayState;
use super::connection::{self, RelayRoute};
use super::endpoint::{Endpoint, Pair};
use super::error::RelayError;
use super::socket::Socket;
use super::socket_claim::SocketClaim;
use super::thread::Signal;

/// Pause after a failed attempt to accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The bound listener of a pair.
pub(super) struct BoundListener {
    pub(super) socket: OwnedFd,
    /// The actual endpoint, since the kernel may choose the TCP port.
    pub(super) endpoint: Endpoint,
    /// The claim of a socket file.
    pub(super) claim: Option<SocketClaim>,
}

/// Binds the listening socket of a pair. Refuses a pair that would connect to itself, and one with HTTP on one side only.
pub(super) fn bind_listener(pair: &Pair) -> Result<BoundListener, RelayError> {
    let Pair { listen, upstream } = pair;
    // For each connection, the relay would accept another one, without end.
    if listen == upstream {
        return Err(RelayError::Itself(listen.clone()));
    }
    // The relay passes bytes on unchanged, so both sides must speak the same protocol.
    if listen.is_opaque() != upstream.is_opaque() {
        return Err(RelayError::Mixed(pair.clone()));
    }
    match listen {
        Endpoint::Path(path) => bind_socket_path(path, upstream),
        Endpoint::Abstract(name) => bind_abstract_name(name).map_err(|error| bind_error(listen, error)),
        Endpoint::Tcp { is_opaque, host, port } => {
            bind_tcp_port(*is_opaque, host.as_deref(), *port).map_err(|error| bind_error(listen, error))
        }
    }
}

/// Makes a socket file at `path`, with a claim by which it is removed later.
fn bind_socket_path(path: &Path, upstream: &Endpoint) -> Result<BoundListener, RelayError> {
    // Only a socket file has permissions, which the new one must not exceed.
    let upstream_path = match upstream {
        Endpoint::Path(upstream_path) => Some(upstream_path.as_path()),
        Endpoint::Abstract(_) | Endpoint::Tcp { .. } => None,
    };
    let (listener, claim) = SocketClaim::listen(path, upstream_path)?;
    Ok(BoundListener { socket: listener.into(), endpoint: Endpoint::Path(path.to_owned()), claim: Some(claim) })
}

/// Binds a name of the abstract namespace, which no file stands for.
fn bind_abstract_name(name: &str) -> io::Result<BoundListener> {
    let listener = StdUnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    Ok(BoundListener { socket: listener.into(), endpoint: Endpoint::Abstract(name.to_owned()), claim: None })
}

/// Error of listening at `listen`, which has its own message if another listener is there.
fn bind_error(listen: &Endpoint, error: io::Error) -> RelayError {
    match error.kind() {
        io::ErrorKind::AddrInUse => RelayError::InUse(listen.clone()),
        _ => RelayError::Bind(listen.clone(), error),
    }
}

/// Binds a port of `host`, or of all addresses. Port 0 stands for any free one, which the endpoint then names.
fn bind_tcp_port(is_opaque: bool, host: Option<&str>, port: u16) -> io::Result<BoundListener> {
    let listener = StdTcpListener::bind((host.unwrap_or("0.0.0.0"), port))?;
    let port = listener.local_addr()?.port();
    let endpoint = Endpoint::Tcp { is_opaque, host: host.map(str::to_owned), port };
    Ok(BoundListener { socket: listener.into(), endpoint, claim: None })
}

/// A listening socket.
#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Wraps the bound listener of `endpoint`. Needs a runtime's context.
    pub(super) fn new(bound: OwnedFd, endpoint: &Endpoint) -> io::Result<Self> {
        // The runtime requires it, and sockets are created without it.
        let is_nonblocking = true;
        ioctl_fionbio(&bound, is_nonblocking)?;
        Ok(match endpoint {
            Endpoint::Path(_) | Endpoint::Abstract(_) => Self::Unix(UnixListener::from_std(bound.into())?),
            Endpoint::Tcp { .. } => Self::Tcp(TcpListener::from_std(bound.into())?),
        })
    }

    /// Accepts the next connection.
    async fn accept_connection(&self) -> io::Result<Socket> {
        match self {
            Self::Unix(listener) => {
                let (stream, _peer_address) = listener.accept().await?;
                Socket::from_unix(stream)
            }
            Self::Tcp(listener) => {
                let (stream, _peer_address) = listener.accept().await?;
                Socket::from_tcp(stream)
            }
        }
    }
}

/// Accepts connections of one pair until the relay stops, then waits for open connections to end.
pub(super) async fn accept_connections(shared: Arc<RelayState>, route: RelayRoute, listener: Listener, stop: Signal) {
    let route = Arc::new(route);
    let mut connections = JoinSet::new();
    // Number of the next connection among those of this pair.
    let mut lane = 0;
    loop {
        tokio::select! {
            accepted = listener.accept_connection() => match accepted {
                Ok(socket) => {
                    let Some(slot) = ConnectionSlot::take_or_count_refusal(&shared) else {
                        // At the limit. Dropping the socket closes the connection.
                        continue;
                    };
                    let served = connection::serve_connection(shared.clone(), route.clone(), lane, socket, stop.clone());
                    connections.spawn(async move {
                        // Released when the task ends, even by a panic.
                        let _slot = slot;
                        served.await;
                    });
                    lane += 1;
                }
                Err(error) => {
                    tracing::debug!(%error, listen = %route.pair.listen, "cannot accept");
                    shared.counters.accept_errors.add(1);
                    // Probably out of file descriptors: open connections continue, and new ones wait in the kernel.
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(ended) = connections.join_next() => count_if_panicked(&shared, &ended),
            () = stop.received() => break,
        }
    }
    // From here on, a peer that connects is refused instead of waiting for nobody.
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        count_if_panicked(&shared, &ended);
    }
}

/// Counts the panic of a connection's task, if it ended by one.
fn count_if_panicked(shared: &RelayState, task_result: &Result<(), tokio::task::JoinError>) {
    if task_result.as_ref().is_err_and(tokio::task::JoinError::is_panic) {
        shared.counters.panics.add(1);
        tracing::error!("a connection's task panicked; others continue");
    }
}

/// Counts one connection against `RelayOptions::max_connections` while it is open.
struct ConnectionSlot {
    relay: Arc<RelayState>,
}

impl ConnectionSlot {
    /// Counts a new connection as open until the slot is dropped. If too many are open, counts it as refused instead and returns `None`.
    fn take_or_count_refusal(relay: &Arc<RelayState>) -> Option<Self> {
        let counters = &relay.counters;
        if counters.connections_open.get() >= relay.options.max_connections as u64 {
            counters.connections_refused.add(1);
            return None;
        }
        counters.connections_open.add(1);
        counters.connections_total.add(1);
        Some(Self { relay: relay.clone() })
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.relay.counters.connections_open.subtract(1);
    }
}
