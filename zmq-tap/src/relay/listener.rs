//! The listener for the senders of one pair.

use std::io;
use std::net::{Ipv4Addr, TcpListener as StdTcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener as StdUnixListener};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinSet;

use super::Shared;
use super::claim::Claim;
use super::connection::{self, Route};
use super::endpoint::Endpoint;
use super::error::RelayError;
use super::socket::Socket;
use super::thread::Stop;

/// A listening socket; a socket file comes with its claim.
#[derive(Debug)]
pub(super) enum Listener {
    Unix(UnixListener, Option<Claim>),
    Tcp(TcpListener),
}

impl Listener {
    /// Binds a listener. Returns the actual endpoint, since the kernel may choose the TCP port. Needs a runtime's context.
    pub(super) fn bind(endpoint: &Endpoint, upstream: &Endpoint) -> Result<(Self, Endpoint), RelayError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => RelayError::InUse(endpoint.clone()),
            _ => RelayError::Bind { endpoint: endpoint.clone(), source },
        };
        match endpoint {
            Endpoint::Path(path) => {
                let upstream = match upstream {
                    Endpoint::Path(path) => Some(path.as_path()),
                    _ => None,
                };
                let (listener, claim) = Claim::listen(path, upstream)?;
                Ok((Self::unix(listener, Some(claim)).map_err(failed)?, endpoint.clone()))
            }
            Endpoint::Abstract(name) => {
                let listener = UnixAddr::from_abstract_name(name).and_then(|at| StdUnixListener::bind_addr(&at));
                let bound = listener.and_then(|listener| Self::unix(listener, None));
                Ok((bound.map_err(failed)?, endpoint.clone()))
            }
            Endpoint::Tcp { host, port } => {
                let (bound, port) = Self::tcp(host.as_deref(), *port).map_err(failed)?;
                let host = host.clone();
                Ok((bound, Endpoint::Tcp { host, port }))
            }
            Endpoint::Http { host, port } => {
                let (bound, port) = Self::tcp(host.as_deref(), *port).map_err(failed)?;
                let host = host.clone();
                Ok((bound, Endpoint::Http { host, port }))
            }
        }
    }

    /// Wraps a listener that the caller has bound. Needs a runtime's context.
    pub(super) fn from_bound(listener: StdUnixListener) -> io::Result<Self> {
        Self::unix(listener, None)
    }

    fn unix(listener: StdUnixListener, claim: Option<Claim>) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        Ok(Self::Unix(UnixListener::from_std(listener)?, claim))
    }

    fn tcp(host: Option<&str>, port: u16) -> io::Result<(Self, u16)> {
        let listener = match host {
            Some(host) => StdTcpListener::bind((host, port)),
            None => StdTcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        }?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        Ok((Self::Tcp(TcpListener::from_std(listener)?), port))
    }

    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Unix(listener, _) => Socket::unix(listener.accept().await?.0),
            Self::Tcp(listener) => Socket::tcp(listener.accept().await?.0),
        }
    }
}

/// Accepts connections of one pair until the relay stops, then waits for open connections to end.
pub(super) async fn serve(shared: Arc<Shared>, route: Route, mut listener: Listener, mut stop: Stop) {
    let route = Arc::new(route);
    let mut connections = JoinSet::new();
    let (connection_stop, mut lane) = (stop.clone(), 0);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(socket) => {
                    if !shared.admit() {
                        continue;
                    }
                    let slot = ConnectionSlot(shared.clone());
                    let served = connection::serve(shared.clone(), route.clone(), lane, socket, connection_stop.clone());
                    connections.spawn(async move {
                        let _slot = slot;
                        served.await;
                    });
                    lane += 1;
                }
                Err(error) => {
                    tracing::debug!(%error, listen = %route.pair.listen, "cannot accept");
                    shared.counters.accept_errors.add(1);
                    // Probably out of file descriptors: open connections continue, and new ones wait in the kernel.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(ended) = connections.join_next() => record_panic(&shared, &ended),
            () = stop.received() => break,
        }
    }
    if let Listener::Unix(_, claim) = &mut listener {
        // Remove the socket file before closing the listener, so that no peer finds a file that refuses connections.
        drop(claim.take());
    }
    drop(listener);
    while let Some(ended) = connections.join_next().await {
        record_panic(&shared, &ended);
    }
}

fn record_panic(shared: &Shared, ended: &Result<(), tokio::task::JoinError>) {
    if ended.as_ref().is_err_and(tokio::task::JoinError::is_panic) {
        shared.counters.panics.add(1);
        tracing::error!("a connection's task panicked; others continue");
    }
}

/// Counts one connection against `Options::max_connections` while it is open.
struct ConnectionSlot(Arc<Shared>);

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.counters.connections_open.subtract(1);
    }
}

impl Shared {
    /// Counts a new connection if the limit allows; [`ConnectionSlot`] reverses the count.
    fn admit(&self) -> bool {
        if self.counters.connections_open.get() >= self.options.max_connections as u64 {
            self.counters.connections_refused.add(1);
            return false;
        }
        self.counters.connections_open.add(1);
        self.counters.connections_total.add(1);
        true
    }
}
