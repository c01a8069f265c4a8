//! Byte stream of a connection: plain, or encrypted with Noise when both ends share a key.
//!
//! `Noise_NNpsk0`: neither side can finish the handshake without the key. Recorded traffic stays unreadable even if the key leaks later. A
//! two-byte length precedes every Noise message.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use snow::{Builder, HandshakeState, StatelessTransportState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use crate::key::Key;
use crate::message::SCHEMA;
use crate::zmtp::Role;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bytes of a handshake message: an ephemeral key and a tag.
const HANDSHAKE: usize = 48;
const TAG: usize = 16;
const LONGEST: usize = 65_535;
/// Bytes per read.
const READ: usize = 64 * 1024;

/// Reading half of a connection.
pub(crate) struct Incoming {
    stream: OwnedReadHalf,
    cipher: Option<Cipher>,
}

struct Cipher {
    state: Arc<StatelessTransportState>,
    nonce: u64,
    sealed: BytesMut,
    plain: Vec<u8>,
}

/// Writing half of a connection.
pub(crate) struct Outgoing {
    stream: OwnedWriteHalf,
    cipher: Option<(Arc<StatelessTransportState>, u64)>,
    sealed: Vec<u8>,
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
    let state = match key {
        Some(key) => Some(Arc::new(handshake(&mut stream, key, role).await?)),
        None => None,
    };
    let (read, write) = stream.into_split();
    let incoming = Incoming {
        stream: read,
        cipher: state.clone().map(|state| Cipher {
            state,
            nonce: 0,
            sealed: BytesMut::new(),
            plain: vec![0; LONGEST],
        }),
    };
    let outgoing = Outgoing {
        stream: write,
        cipher: state.map(|state| (state, 0)),
        sealed: Vec::new(),
        stall,
    };
    Ok((incoming, outgoing))
}

/// The watcher sends first, so that a source replies only to a peer that has proven it knows the key.
async fn handshake(stream: &mut TcpStream, key: &Key, role: Role) -> io::Result<StatelessTransportState> {
    let pattern = PATTERN.parse().map_err(io::Error::other)?;
    let builder = Builder::new(pattern)
        .psk(0, key.bytes())
        .and_then(|b| b.prologue(SCHEMA.as_bytes()))
        .map_err(io::Error::other)?;
    let mut state = match role {
        Role::Subscriber => builder.build_initiator(),
        Role::Publisher => builder.build_responder(),
    }
    .map_err(io::Error::other)?;
    match role {
        Role::Subscriber => {
            send(stream, &mut state).await?;
            receive(stream, &mut state).await?;
        }
        Role::Publisher => {
            receive(stream, &mut state).await?;
            send(stream, &mut state).await?;
        }
    }
    state.into_stateless_transport_mode().map_err(io::Error::other)
}

async fn send(stream: &mut TcpStream, state: &mut HandshakeState) -> io::Result<()> {
    let mut out = [0; 2 + HANDSHAKE];
    let length = state.write_message(&[], &mut out[2..]).map_err(io::Error::other)?;
    out[..2].copy_from_slice(&(length as u16).to_be_bytes());
    stream.write_all(&out[..2 + length]).await
}

async fn receive(stream: &mut TcpStream, state: &mut HandshakeState) -> io::Result<()> {
    let mut received = [0; 2 + HANDSHAKE];
    stream.read_exact(&mut received[..2]).await?;
    if received[..2] != (HANDSHAKE as u16).to_be_bytes() {
        let what = if received[0] == 0xff {
            "the peer has no key: it speaks unencrypted ZMTP"
        } else {
            "the peer does not speak the feed protocol"
        };
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    stream.read_exact(&mut received[2..]).await?;
    state
        .read_message(&received[2..], &mut [])
        .map(drop)
        .map_err(|_| io::Error::new(io::ErrorKind::PermissionDenied, "the peer has a different key"))
}

impl Incoming {
    /// Appends received bytes to `inbox` and returns their number; 0 is end of stream. Cancel safe.
    pub(crate) async fn read(&mut self, inbox: &mut BytesMut) -> io::Result<usize> {
        let Some(cipher) = &mut self.cipher else {
            inbox.reserve(READ);
            return self.stream.read_buf(inbox).await;
        };
        loop {
            if let Some(length) = cipher.open(inbox)? {
                return Ok(length);
            }
            cipher.sealed.reserve(READ);
            if self.stream.read_buf(&mut cipher.sealed).await? == 0 {
                return Ok(0);
            }
        }
    }
}

impl Cipher {
    /// Decrypts the next Noise message if it is complete.
    fn open(&mut self, inbox: &mut BytesMut) -> io::Result<Option<usize>> {
        let Some(length) = self.sealed.first_chunk::<2>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes(*length));
        if self.sealed.len() < 2 + length {
            return Ok(None);
        }
        let sealed = self.sealed.split_to(2 + length);
        let opened = self.state.read_message(self.nonce, &sealed[2..], &mut self.plain);
        let opened =
            opened.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a message was altered in transit"))?;
        if opened == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an empty message"));
        }
        self.nonce += 1;
        inbox.extend_from_slice(&self.plain[..opened]);
        Ok(Some(opened))
    }
}

impl Outgoing {
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some((state, nonce)) = &mut self.cipher else {
            return write_all(&mut self.stream, bytes, self.stall).await;
        };
        for piece in bytes.chunks(LONGEST - TAG) {
            self.sealed.resize(2 + piece.len() + TAG, 0);
            let length = state
                .write_message(*nonce, piece, &mut self.sealed[2..])
                .map_err(io::Error::other)?;
            *nonce += 1;
            self.sealed[..2].copy_from_slice(&(length as u16).to_be_bytes());
            write_all(&mut self.stream, &self.sealed[..2 + length], self.stall).await?;
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
