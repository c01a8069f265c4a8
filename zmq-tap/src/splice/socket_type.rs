//! Type of the ZMQ socket that listens on a socket file.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::HeldFile;
use crate::zmtp::{Mark, Scanner, ZmtpCommand};

/// Maximum wait for the listener's part of the handshake, which an I/O thread sends.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// Limit of the listener's part of the handshake in bytes.
const MAX_HANDSHAKE_BYTES: usize = 4096;

/// Length of a greeting in bytes.
const GREETING_BYTES: usize = 64;
/// Signature, version 3.0, and the mechanism `NULL`. The rest of the greeting is zeros.
const GREETING_START: &[u8] = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL";
/// Maximum size of a read in bytes.
const READ_BYTES: usize = 512;

/// Returns the type of the ZMQ socket that listens on a socket file, such as `PULL`.
///
/// Reads it from the handshake on a new connection, and leaves before that connection is a peer of the socket.
pub fn read_socket_type(socket: &HeldFile) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket.path())?;
    send_greeting(&mut stream)?;
    // The listener's greeting and its command READY, which names the type.
    let mut bytes = Vec::new();
    let mut scanner = Scanner::from_greeting();
    let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
    while bytes.len() < MAX_HANDSHAKE_BYTES {
        let mut buffer = [0; READ_BYTES];
        let count = read_before_deadline(deadline, &mut stream, &mut buffer)?;
        bytes.extend_from_slice(&buffer[..count]);
        // Set by the mark that ends the handshake. `None` while more bytes are needed.
        let mut socket_type = None;
        scanner.feed(&buffer[..count], &mut |mark| match mark {
            Mark::Command(ZmtpCommand::Ready, span) => {
                // All bytes since the greeting are kept, so a span is an index into them.
                let body = bytes.get(span.body as usize..span.end as usize);
                socket_type = body.map(parse_ready_command);
            }
            Mark::Opaque(why) => socket_type = Some(Err(io::Error::other(why))),
            _ => {}
        });
        if let Some(socket_type) = socket_type {
            return socket_type;
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

/// Sends the greeting of a ZMTP 3.0 peer. No READY follows it, so the listener never counts the connection as a peer of its socket.
fn send_greeting(stream: &mut UnixStream) -> io::Result<()> {
    let mut greeting = [0; GREETING_BYTES];
    greeting[..GREETING_START.len()].copy_from_slice(GREETING_START);
    stream.write_all(&greeting)
}

/// Type of the socket that sent a READY command with this body. Fails if the command does not name it.
fn parse_ready_command(body: &[u8]) -> io::Result<String> {
    socket_type_property(body).map(str::to_owned).ok_or(io::ErrorKind::InvalidData.into())
}

/// Reads the next bytes into `buffer`, and returns their number. Fails at the end of the stream, or if no byte comes before the deadline.
fn read_before_deadline(deadline: Instant, stream: &mut UnixStream, buffer: &mut [u8]) -> io::Result<usize> {
    let time_left = deadline.saturating_duration_since(Instant::now());
    // Zero would mean no timeout.
    stream.set_read_timeout(Some(time_left.max(Duration::from_millis(1))))?;
    match stream.read(buffer) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::TimedOut.into()),
        read => read,
    }
}

/// Value of the property `Socket-Type` in the body of a READY command. `None` if it is missing or cut short.
fn socket_type_property(body: &[u8]) -> Option<&str> {
    const NAME: &[u8] = b"Socket-Type";
    let name_at = memchr::memmem::find(body, NAME)?;
    // The name is followed by the value's length in four bytes, and the value.
    let (length, rest) = body[name_at + NAME.len()..].split_first_chunk::<4>()?;
    let value = rest.get(..u32::from_be_bytes(*length) as usize)?;
    str::from_utf8(value).ok()
}
