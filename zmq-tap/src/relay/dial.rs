//! Connecting to an upstream that may not listen yet.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::endpoint::Endpoint;
use super::socket::Socket;

const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// Connects, with retries for `patience`. An HTTP server that refuses is not retried, since its clients expect an immediate error. Returns
/// `None` if no listener accepted, or if `peer` has disconnected.
pub(super) async fn dial(upstream: &Endpoint, peer: &Socket, patience: Duration) -> Option<Socket> {
    let deadline = Instant::now() + patience;
    let mut pause = FIRST_PAUSE;
    loop {
        match timeout_at(deadline, connect(upstream)).await {
            Ok(Ok(socket)) => return Some(socket),
            Ok(Err(error)) => tracing::debug!(%upstream, %error, "upstream does not accept"),
            Err(_) => return None,
        }
        let next = Instant::now() + pause;
        if upstream.speaks_http() || next >= deadline || peer.is_closed_by_peer().await {
            return None;
        }
        sleep_until(next).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn connect(endpoint: &Endpoint) -> io::Result<Socket> {
    match endpoint {
        Endpoint::Path(path) => Socket::unix(UnixStream::connect(path).await?),
        Endpoint::Abstract(name) => {
            // The kernel and tokio denote an abstract name by a leading zero byte.
            let address = OsString::from_vec([b"\0", name.as_bytes()].concat());
            Socket::unix(UnixStream::connect(address).await?)
        }
        Endpoint::Tcp { host, port } | Endpoint::Http { host, port } => {
            let host = host.as_deref().unwrap_or("127.0.0.1");
            Socket::tcp(TcpStream::connect((host, *port)).await?)
        }
    }
}
