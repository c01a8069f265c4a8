//! ZMTP commands: the handshake, subscriptions and heartbeats.

/// A command, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Ends the handshake; carries the socket type.
    Ready,
    /// The peer refuses the connection.
    Error,
    /// PLAIN and CURVE, client.
    Hello,
    /// PLAIN and CURVE, server.
    Welcome,
    /// PLAIN and CURVE, client.
    Initiate,
    /// SUB to PUB, ZMTP 3.1.
    Subscribe,
    /// SUB to PUB, ZMTP 3.1.
    Cancel,
    /// Heartbeat.
    Ping,
    /// Reply to a heartbeat.
    Pong,
    /// The identity frame that opens a ZMTP 2.0 stream. ZMTP 2.0 has no commands, but this frame is not a message either.
    Identity,
    /// Any other name.
    Other,
}

/// The first bytes of a command's body, enough to identify its name.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Name {
    buffer: [u8; 10],
    filled: usize,
}

impl Name {
    /// Appends bytes from the front of `bytes` until the buffer is full.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        let space = self.buffer.len() - self.filled;
        let added = &bytes[..bytes.len().min(space)];
        self.buffer[self.filled..self.filled + added.len()].copy_from_slice(added);
        self.filled += added.len();
    }

    pub(super) fn command(&self) -> Command {
        let buffer = &self.buffer[..self.filled];
        let name = buffer.split_first().and_then(|(&length, rest)| rest.get(..length.into()));
        match name {
            Some(b"READY") => Command::Ready,
            Some(b"ERROR") => Command::Error,
            Some(b"HELLO") => Command::Hello,
            Some(b"WELCOME") => Command::Welcome,
            Some(b"INITIATE") => Command::Initiate,
            Some(b"SUBSCRIBE") => Command::Subscribe,
            Some(b"CANCEL") => Command::Cancel,
            Some(b"PING") => Command::Ping,
            Some(b"PONG") => Command::Pong,
            _ => Command::Other,
        }
    }
}
