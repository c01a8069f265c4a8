//! Encryption of a connection whose ends share a key.
//!
//! `Noise_NNpsk0`: neither side can finish the handshake without the key. Recorded traffic stays unreadable even if the key leaks later. A
//! two-byte length precedes every Noise message.

use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use snow::{Builder, HandshakeState, StatelessTransportState};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::key::Key;
use crate::message::SCHEMA;
use crate::zmtp::Role;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
/// Bytes of a handshake message: an ephemeral key and a tag.
const HANDSHAKE: usize = 48;
const TAG: usize = 16;
const LONGEST: usize = 65_535;
/// Longest input of [`Sealer::seal`].
pub(crate) const PIECE: usize = LONGEST - TAG;

/// Decrypts received bytes.
pub(crate) struct Opener {
    state: Arc<StatelessTransportState>,
    nonce: u64,
    sealed: BytesMut,
    plain: Vec<u8>,
}

/// Encrypts bytes to send.
pub(crate) struct Sealer {
    state: Arc<StatelessTransportState>,
    nonce: u64,
    sealed: Vec<u8>,
}

/// The watcher sends first, so that a source replies only to a peer that has proven it knows the key.
pub(crate) async fn handshake(stream: &mut TcpStream, key: &Key, role: Role) -> io::Result<(Opener, Sealer)> {
    let pattern = PATTERN.parse().map_err(io::Error::other)?;
    let builder = Builder::new(pattern)
        .psk(0, key.bytes())
        .and_then(|b| b.prologue(SCHEMA.as_bytes()))
        .map_err(io::Error::other)?;
    let replies = role == Role::Publisher;
    let state = if replies { builder.build_responder() } else { builder.build_initiator() };
    let mut state = state.map_err(io::Error::other)?;
    for receives in [replies, !replies] {
        if receives {
            receive(stream, &mut state).await?;
        } else {
            send(stream, &mut state).await?;
        }
    }
    let state = Arc::new(state.into_stateless_transport_mode().map_err(io::Error::other)?);
    let opener = Opener { state: Arc::clone(&state), nonce: 0, sealed: BytesMut::new(), plain: vec![0; LONGEST] };
    let sealer = Sealer { state, nonce: 0, sealed: Vec::new() };
    Ok((opener, sealer))
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

impl Opener {
    /// Buffer to which received bytes are appended.
    pub(crate) fn sealed(&mut self) -> &mut BytesMut {
        &mut self.sealed
    }

    /// Decrypts the next Noise message into `inbox` if it is complete, and returns its length.
    pub(crate) fn open(&mut self, inbox: &mut BytesMut) -> io::Result<Option<usize>> {
        let Some(length) = self.sealed.first_chunk::<2>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes(*length));
        if self.sealed.len() < 2 + length {
            return Ok(None);
        }
        let sealed = self.sealed.split_to(2 + length);
        let invalid = |what| io::Error::new(io::ErrorKind::InvalidData, what);
        let opened = self.state.read_message(self.nonce, &sealed[2..], &mut self.plain);
        let opened = opened.map_err(|_| invalid("a message was altered in transit"))?;
        if opened == 0 {
            return Err(invalid("an empty message"));
        }
        self.nonce += 1;
        inbox.extend_from_slice(&self.plain[..opened]);
        Ok(Some(opened))
    }
}

impl Sealer {
    /// Encrypts a piece as one Noise message, with its length.
    pub(crate) fn seal(&mut self, piece: &[u8]) -> io::Result<&[u8]> {
        self.sealed.resize(2 + piece.len() + TAG, 0);
        let length = self.state.write_message(self.nonce, piece, &mut self.sealed[2..]).map_err(io::Error::other)?;
        self.nonce += 1;
        self.sealed[..2].copy_from_slice(&(length as u16).to_be_bytes());
        Ok(&self.sealed[..2 + length])
    }
}
