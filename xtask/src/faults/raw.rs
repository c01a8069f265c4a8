//! A peer that implements ZMTP by hand, including deliberate protocol errors.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result};
use socket2::{Socket, Type};

use crate::e2e::plain_relay::address;

/// First bytes of a PUSH socket: the greeting of ZMTP 3.1 with the NULL mechanism, and READY.
pub(super) fn handshake() -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 1];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    bytes.extend_from_slice(b"\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x04PUSH");
    bytes
}

/// Header of a message that claims `length` bytes.
pub(super) fn claim(length: u64) -> Vec<u8> {
    [&[2][..], &length.to_be_bytes()].concat()
}

/// Connects to an endpoint.
pub(super) fn connect(endpoint: &str) -> Result<Socket> {
    let at = address(endpoint)?;
    let socket = Socket::new(at.domain(), Type::STREAM, None)?;
    socket
        .connect(&at)
        .with_context(|| format!("connecting to {endpoint}"))?;
    socket.set_write_timeout(Some(Duration::from_millis(500)))?;
    Ok(socket)
}

/// Connects and sends `bytes`.
pub(super) fn say(endpoint: &str, bytes: &[u8]) -> Result<Socket> {
    let mut socket = connect(endpoint)?;
    // Ignore errors: the receiver may close the connection at any point.
    let _ = socket.write_all(bytes);
    Ok(socket)
}

/// Closes with a reset, where the transport supports it.
pub(super) fn reset(socket: Socket) -> Result<()> {
    socket.set_linger(Some(Duration::ZERO))?;
    drop(socket);
    Ok(())
}
