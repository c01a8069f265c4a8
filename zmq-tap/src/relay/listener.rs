//! Listening for the senders of one pair.

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
use super::connection;
use super::endpoint::{Endpoint, Pair};
use super::error::RelayError;
use super::socket::Socket;
use super::stop::Stop;

/// A bound listener, not yet part of a runtime.
#[derive(Debug)]
pub(super) enum Bound {
    Unix(StdUnixListener, Option<Claim>),
    Tcp(StdTcpListener),
}

impl Bound {
    /// Listens; gives the endpoint as it turned out (a TCP port may be the kernel's choice).
    pub(super) fn listen(endpoint: &Endpoint) -> Result<(Self, Endpoint), RelayError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => RelayError::InUse(endpoint.clone()),
            _ => RelayError::Bind {
                endpoint: endpoint.clone(),
                source,
            },
        };
        let (bound, actual) = match endpoint {
            Endpoint::Path(path) => {
                let (listener, claim) = Claim::listen(path)?;
                (Self::Unix(listener, Some(claim)), endpoint.clone())
            }
            Endpoint::Abstract(name) => {
                let address = UnixAddr::from_abstract_name(name).map_err(failed)?;
                (
                    Self::Unix(StdUnixListener::bind_addr(&address).map_err(failed)?, None),
                    endpoint.clone(),
                )
            }
            Endpoint::Tcp { host, port } => {
                let bound = match host {
                    Some(host) => StdTcpListener::bind((host.as_str(), *port)),
                    None => StdTcpListener::bind((Ipv4Addr::UNSPECIFIED, *port)),
                };
                let bound = bound.map_err(failed)?;
                let port = bound.local_addr().map_err(failed)?.port();
                (
                    Self::Tcp(bound),
                    Endpoint::Tcp {
                        host: host.clone(),
                        port,
                    },
                )
            }
        };
        let nonblocking = match &bound {
            Self::Unix(listener, _) => listener.set_nonblocking(true),
            Self::Tcp(listener) => listener.set_nonblocking(true),
        };
        nonblocking.map_err(failed)?;
        Ok((bound, actual))
    }
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0)),
            Self::Tcp(listener) => Socket::tcp(listener.accept().await?.0),
        }
    }
}

/// Accepts connections of one pair until told to stop, then sees the open ones to their end.
pub(super) async fn serve(shared: Arc<Shared>, place: u16, pair: Pair, bound: Bound, mut stop: Stop) -> io::Result<()> {
    let (listener, claim) = match bound {
        Bound::Unix(listener, claim) => (Listener::Unix(UnixListener::from_std(listener)?), claim),
        Bound::Tcp(listener) => (Listener::Tcp(TcpListener::from_std(listener)?), None),
    };
    let upstream = Arc::new(pair.upstream);
    let mut connections = JoinSet::new();
    let (hand_down, mut lane) = (stop.clone(), 0);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(socket) => {
                    if !shared.admit() {
                        continue;
                    }
                    let guest = Guest(shared.clone());
                    let served = connection::serve(shared.clone(), (place, lane), socket, upstream.clone(), hand_down.clone());
                    connections.spawn(async move {
                        let _guest = guest;
                        served.await;
                    });
                    lane += 1;
                }
                Err(error) => {
                    tracing::debug!(%error, listen = %pair.listen, "cannot accept");
                    shared.counters.accept_errors.add(1);
                    // Out of file descriptors, most likely: what is open goes on, the rest waits in the kernel.
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
            Some(over) = connections.join_next() => note_panic(&shared, &over),
            () = stop.heard() => break,
        }
    }
    // The socket file goes before the listener does: nobody finds a name that refuses.
    drop(claim);
    drop(listener);
    while let Some(over) = connections.join_next().await {
        note_panic(&shared, &over);
    }
    Ok(())
}

fn note_panic(shared: &Shared, over: &Result<(), tokio::task::JoinError>) {
    if over.as_ref().is_err_and(tokio::task::JoinError::is_panic) {
        shared.counters.panics.add(1);
        tracing::error!("a connection's task panicked; the others go on");
    }
}

/// Holds a place among `Options::max_connections`.
struct Guest(Arc<Shared>);

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.counters.connections_open.subtract(1);
    }
}

impl Shared {
    /// Takes a place among the connections, to be given back by [`Guest`].
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
