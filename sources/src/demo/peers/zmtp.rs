//! ZMTP 3.0 between the demo's peers: PUSH and PULL without security, each message one frame. The relay's tests speak through another
//! implementation.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Longest accepted frame, in bytes. The largest of the demo holds a chunk of thousands of requests.
const MAX_BYTES: u64 = 64 << 20;
const GREETING_BYTES: usize = 64;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Greeting and READY command of a socket.
pub(super) fn opening(socket_type: &str) -> Vec<u8> {
    let mut bytes = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL".to_vec();
    bytes.resize(GREETING_BYTES, 0);
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend((socket_type.len() as u32).to_be_bytes());
    ready.extend(socket_type.as_bytes());
    bytes.extend([COMMAND, ready.len() as u8]);
    bytes.extend(ready);
    bytes
}

/// A message of one frame.
pub(super) fn message(payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(payload.len() + 9);
    bytes.push(LONG);
    bytes.extend((payload.len() as u64).to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Reads the greeting and READY command of the other end.
pub(super) async fn read_opening(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    let mut greeting = [0; GREETING_BYTES];
    stream.read_exact(&mut greeting).await?;
    let (flags, ready) = read_frame(stream).await?;
    if greeting[0] != 0xff || flags & COMMAND == 0 || !ready.starts_with(b"\x05READY") {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the other end does not speak ZMTP 3"));
    }
    Ok(())
}

/// Reads the next message.
pub(super) async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Bytes> {
    loop {
        let (flags, payload) = read_frame(stream).await?;
        if flags & COMMAND == 0 {
            return Ok(payload);
        }
    }
}

/// Reads a frame with its flags.
async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(u8, Bytes)> {
    let flags = stream.read_u8().await?;
    let length = if flags & LONG == 0 { u64::from(stream.read_u8().await?) } else { stream.read_u64().await? };
    if length > MAX_BYTES {
        let why = format!("a frame of {length} bytes exceeds the limit of {MAX_BYTES}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).await?;
    Ok((flags, payload.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn messages_of_any_length_are_read_after_the_handshake() {
        let payloads = [vec![], vec![7; 200], vec![8; 70_000]];
        let mut bytes = opening("PUSH");
        for payload in &payloads {
            bytes.extend(message(payload));
        }
        let mut stream = &bytes[..];
        read_opening(&mut stream).await.expect("a handshake");
        for payload in &payloads {
            assert_eq!(read_message(&mut stream).await.expect("a message"), payload);
        }
        assert!(read_message(&mut stream).await.is_err(), "the end");
        let oversized = [&[LONG][..], &u64::MAX.to_be_bytes()].concat();
        assert!(read_message(&mut &oversized[..]).await.is_err_and(|error| error.to_string().contains("limit")));
        assert!(read_opening(&mut &[b'x'; 100][..]).await.is_err());
    }
}
