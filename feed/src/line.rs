//! Byte stream of a connection: plain, or encrypted when both ends share a key.

use std::io;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::key::Key;
use crate::noise::{Opener, PIECE, Sealer, handshake};
use crate::zmtp::Role;

const READ: usize = 64 * 1024;

/// Reading half of a connection.
pub(crate) struct Incoming {
    stream: OwnedReadHalf,
    opener: Option<Opener>,
}

/// Writing half of a connection.
pub(crate) struct Outgoing {
    stream: OwnedWriteHalf,
    sealer: Option<Sealer>,
    stall: Duration,
}

/// Sets up a connection, with a handshake when there is a key. A write fails when the peer accepts no bytes for `stall`.
pub(crate) async fn open(
    mut stream: TcpStream,
    key: Option<&Key>,
    role: Role,
    stall: Duration,
) -> io::Result<(Incoming, Outgoing)> {
    stream.set_nodelay(true)?;
    let ciphers = match key {
        Some(key) => Some(handshake(&mut stream, key, role).await?),
        None => None,
    };
    let (opener, sealer) = ciphers.unzip();
    let (read, write) = stream.into_split();
    Ok((Incoming { stream: read, opener }, Outgoing { stream: write, sealer, stall }))
}

impl Incoming {
    /// Appends received bytes to `inbox` and returns their number; 0 is end of stream. Cancel safe.
    pub(crate) async fn read(&mut self, inbox: &mut BytesMut) -> io::Result<usize> {
        let Some(opener) = &mut self.opener else {
            inbox.reserve(READ);
            return self.stream.read_buf(inbox).await;
        };
        loop {
            if let Some(length) = opener.open(inbox)? {
                return Ok(length);
            }
            let sealed = opener.sealed();
            sealed.reserve(READ);
            if self.stream.read_buf(sealed).await? == 0 {
                return Ok(0);
            }
        }
    }
}

impl Outgoing {
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(sealer) = &mut self.sealer else {
            return write_all(&mut self.stream, bytes, self.stall).await;
        };
        for piece in bytes.chunks(PIECE) {
            write_all(&mut self.stream, sealer.seal(piece)?, self.stall).await?;
        }
        Ok(())
    }
}

/// Writes all of `bytes`; fails only if the peer accepts none for `stall`.
async fn write_all(stream: &mut OwnedWriteHalf, mut bytes: &[u8], stall: Duration) -> io::Result<()> {
    while !bytes.is_empty() {
        let stalled = |_| io::Error::new(io::ErrorKind::TimedOut, "the peer stopped reading");
        let written = timeout(stall, stream.write(bytes)).await.map_err(stalled)??;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}
