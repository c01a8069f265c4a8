//! `cargo xtask plain-relay`: only copies bytes between connections. It is the baseline for the tap: it shows how many messages libzmq
//! itself loses when a relay in the path is killed.

use std::io::copy;
use std::net::{Shutdown, SocketAddr};
use std::thread;

use anyhow::{Context, Result, bail};
use socket2::{Domain, SockAddr, Socket, Type};

/// Connections that may wait to be accepted.
const MAX_PENDING_CONNECTIONS: i32 = 128;

/// Pairs of endpoints, as for `tokengap tap`.
#[derive(clap::Args, Debug)]
pub(crate) struct PlainRelayOptions {
    #[arg(long, required = true)]
    listen: Vec<String>,
    #[arg(long, required = true)]
    upstream: Vec<String>,
}

/// Relays each `listen` endpoint to the `upstream` at the same position, until killed. Fails if a listener fails.
pub(crate) fn relay_until_killed(options: &PlainRelayOptions) -> Result<()> {
    let mut listeners = Vec::new();
    for (front, back) in options.listen.iter().zip(&options.upstream) {
        let listener = listen_at(front)?;
        let upstream = parse_endpoint(back)?;
        listeners.push(thread::spawn(move || relay_connections(&listener, &upstream)));
    }
    for listener in listeners {
        listener.join().expect("no listener panics")?;
    }
    Ok(())
}

/// Parses a ZMQ endpoint into a socket address.
fn parse_endpoint(endpoint: &str) -> Result<SockAddr> {
    match endpoint.split_once("://") {
        Some(("ipc", path)) => Ok(SockAddr::unix(path)?),
        Some(("tcp" | "http", address)) => Ok(SockAddr::from(address.parse::<SocketAddr>()?)),
        _ => bail!("{endpoint} is not an ipc, tcp or http endpoint"),
    }
}

/// Listens at a ZMQ endpoint, in place of a relay that was killed and left its socket file.
fn listen_at(endpoint: &str) -> Result<Socket> {
    let address = parse_endpoint(endpoint)?;
    if let Some(left_by_a_killed_relay) = address.as_pathname().filter(|path| path.exists()) {
        std::fs::remove_file(left_by_a_killed_relay)?;
    }
    let socket = Socket::new(address.domain(), Type::STREAM, None)?;
    if address.domain() != Domain::UNIX {
        // Connections of a killed relay keep its port occupied for a while.
        socket.set_reuse_address(true)?;
    }
    socket.bind(&address).with_context(|| format!("binding {endpoint}"))?;
    socket.listen(MAX_PENDING_CONNECTIONS)?;
    Ok(socket)
}

/// Connects each accepted connection with `upstream`, and copies both directions. Ends if accept fails, for example without a free file
/// descriptor.
fn relay_connections(listener: &Socket, upstream: &SockAddr) -> Result<()> {
    loop {
        let (sender, _) = listener.accept()?;
        let receiver = Socket::new(upstream.domain(), Type::STREAM, None)?;
        // The upstream may not listen yet. The sender's libzmq sees its connection closed, and tries again.
        if receiver.connect(upstream).is_err() {
            continue;
        }
        // A thread for each direction.
        for (from, to) in [(sender.try_clone()?, receiver.try_clone()?), (receiver, sender)] {
            thread::spawn(move || copy_one_way(&from, &to));
        }
    }
}

/// Copies one direction until it ends, then shuts down the write side. A reset counts as an end.
fn copy_one_way(mut from: &Socket, mut to: &Socket) {
    let _ = copy(&mut from, &mut to);
    // Fails if the other direction was reset, too.
    let _ = to.shutdown(Shutdown::Write);
}
