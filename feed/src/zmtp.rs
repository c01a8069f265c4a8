//! ZMTP 3.0 with the NULL mechanism, for the feed and the peers of `tokengap demo`: parses bytes into messages, without I/O.

use bytes::{Buf, BufMut, Bytes, BytesMut};

const GREETING: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Type of the own socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// PUB, the source of a feed.
    Publisher,
    /// SUB, a watcher.
    Subscriber,
    /// PUSH, a sender of the demo.
    Push,
    /// PULL, a receiver of the demo.
    Pull,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Publisher => "PUB",
            Self::Subscriber => "SUB",
            Self::Push => "PUSH",
            Self::Pull => "PULL",
        }
    }

    /// Socket types accepted at the other end.
    fn peers(self) -> &'static [&'static str] {
        match self {
            Self::Publisher => &["SUB", "XSUB"],
            Self::Subscriber => &["PUB", "XPUB"],
            Self::Push => &["PULL"],
            Self::Pull => &["PUSH"],
        }
    }
}

/// Limits on the peer's messages.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Longest message in bytes, summed over its frames.
    pub message: usize,
    /// Maximum number of frames in a message.
    pub frames: usize,
}

/// Protocol violations of the peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZmtpError {
    /// The greeting is invalid.
    #[error("the peer does not speak ZMTP 3")]
    NoZmtp,
    /// A mechanism other than NULL.
    #[error("the peer requires the security mechanism {0:?}; a feed supports only its own key (--feed-key)")]
    Mechanism(String),
    /// A socket type that does not match the own one.
    #[error("unexpected socket type {0}")]
    Type(String),
    /// Length of the message, and the limit.
    #[error("message of {0} bytes exceeds the limit of {1}")]
    TooLong(u64, usize),
    /// Maximum number of frames.
    #[error("message of more than {0} frames")]
    TooMany(usize),
    /// Any other violation.
    #[error("{0}")]
    Malformed(&'static str),
}

/// Parsed input of the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The handshake is complete.
    Open,
    /// A message, as its frames.
    Message(Vec<Bytes>),
    /// A topic, and whether it is subscribed or unsubscribed.
    Subscribe(Bytes, bool),
    /// A ping to answer with [`pong`].
    Ping(Bytes),
}

/// First bytes of each end: the greeting and READY, sent together.
pub fn opening(role: Role) -> Bytes {
    let mut out = BytesMut::with_capacity(GREETING + 40);
    out.put_slice(&[0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0]);
    out.put_slice(b"NULL");
    out.put_bytes(0, GREETING - out.len());
    let mut ready = b"\x05READY".to_vec();
    for (name, value) in [("Socket-Type", role.name()), ("Identity", "")] {
        ready.push(name.len() as u8);
        ready.extend_from_slice(name.as_bytes());
        ready.extend_from_slice(&(value.len() as u32).to_be_bytes());
        ready.extend_from_slice(value.as_bytes());
    }
    frame(&mut out, COMMAND, &ready);
    out.freeze()
}

/// Encodes a message of these frames.
pub fn message(frames: &[&[u8]]) -> Bytes {
    let mut out = BytesMut::with_capacity(frames.iter().map(|f| f.len() + 9).sum());
    for (index, bytes) in frames.iter().enumerate() {
        frame(&mut out, if index + 1 < frames.len() { MORE } else { 0 }, bytes);
    }
    out.freeze()
}

pub(crate) fn pong(context: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    frame(&mut out, COMMAND, &[b"\x04PONG", context].concat());
    out.freeze()
}

pub(crate) fn subscription(topic: &str) -> Bytes {
    message(&[&[b"\x01", topic.as_bytes()].concat()])
}

fn frame(out: &mut BytesMut, flags: u8, bytes: &[u8]) {
    if bytes.len() < 256 {
        out.put_slice(&[flags, bytes.len() as u8]);
    } else {
        out.put_u8(flags | LONG);
        out.put_u64(bytes.len() as u64);
    }
    out.put_slice(bytes);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    Ready,
    Open,
}

/// Protocol state of one end of a connection.
#[derive(Debug)]
pub struct Zmtp {
    role: Role,
    limits: Limits,
    stage: Stage,
    /// Received bytes, not parsed yet.
    pub inbox: BytesMut,
    frames: Vec<Bytes>,
    length: usize,
}

impl Zmtp {
    /// Creates the state of a new connection.
    pub fn new(role: Role, limits: Limits) -> Self {
        Self { role, limits, stage: Stage::Greeting, inbox: BytesMut::new(), frames: Vec::new(), length: 0 }
    }

    /// Returns the next complete input; `None` when more bytes are needed.
    pub fn next_input(&mut self) -> Result<Option<Input>, ZmtpError> {
        if self.stage == Stage::Greeting {
            if !self.greeting()? {
                return Ok(None);
            }
            self.stage = Stage::Ready;
        }
        while let Some((flags, bytes)) = self.frame()? {
            if flags & COMMAND != 0 {
                if let Some(input) = self.command(&bytes)? {
                    return Ok(Some(input));
                }
                continue;
            }
            if self.stage != Stage::Open {
                return Err(ZmtpError::Malformed("message received before the end of the handshake"));
            }
            self.length += bytes.len();
            self.frames.push(bytes);
            if self.frames.len() > self.limits.frames {
                return Err(ZmtpError::TooMany(self.limits.frames));
            }
            if flags & MORE == 0 {
                self.length = 0;
                return Ok(Some(self.complete()));
            }
        }
        Ok(None)
    }

    fn complete(&mut self) -> Input {
        let mut frames = std::mem::take(&mut self.frames);
        match (self.role, frames.first().and_then(|f| f.first())) {
            (Role::Publisher, Some(&flag @ (0 | 1))) => Input::Subscribe(frames.swap_remove(0).slice(1..), flag == 1),
            _ => Input::Message(frames),
        }
    }

    fn greeting(&mut self) -> Result<bool, ZmtpError> {
        let inbox = &self.inbox;
        let is_invalid =
            |index: usize, is_valid: &dyn Fn(u8) -> bool| inbox.get(index).is_some_and(|&byte| !is_valid(byte));
        if is_invalid(0, &|b| b == 0xff) || is_invalid(9, &|b| b == 0x7f) || is_invalid(10, &|b| b >= 3) {
            return Err(ZmtpError::NoZmtp);
        }
        if inbox.len() < GREETING {
            return Ok(false);
        }
        let mechanism = inbox[12..32].split(|&b| b == 0).next().unwrap_or_default();
        if mechanism != b"NULL" {
            return Err(ZmtpError::Mechanism(String::from_utf8_lossy(mechanism).into_owned()));
        }
        self.inbox.advance(GREETING);
        Ok(true)
    }

    /// Returns the next complete frame. Checks its length before the body arrives.
    fn frame(&mut self) -> Result<Option<(u8, Bytes)>, ZmtpError> {
        let Some(&flags) = self.inbox.first() else {
            return Ok(None);
        };
        if flags & !(MORE | LONG | COMMAND) != 0 || flags & (MORE | COMMAND) == MORE | COMMAND {
            return Err(ZmtpError::Malformed("frame with invalid ZMTP flags"));
        }
        let head = if flags & LONG == 0 { 2 } else { 9 };
        if self.inbox.len() < head {
            return Ok(None);
        }
        let length = match self.inbox[1..head] {
            [short] => u64::from(short),
            ref long => long.iter().fold(0, |n, &b| n << 8 | u64::from(b)),
        };
        let remaining = self.limits.message.saturating_sub(self.length);
        if length > remaining as u64 {
            return Err(ZmtpError::TooLong(length.saturating_add(self.length as u64), self.limits.message));
        }
        let length = length as usize;
        if self.inbox.len() - head < length {
            self.inbox.reserve(head + length - self.inbox.len());
            return Ok(None);
        }
        self.inbox.advance(head);
        Ok(Some((flags, self.inbox.split_to(length).freeze())))
    }

    fn command(&mut self, bytes: &Bytes) -> Result<Option<Input>, ZmtpError> {
        let cut = ZmtpError::Malformed("truncated command");
        let length = *bytes.first().ok_or(cut.clone())? as usize;
        let name = bytes.get(1..=length).ok_or(cut)?;
        let rest = bytes.slice(1 + length..);
        match (self.stage, name) {
            (Stage::Ready, b"READY") => {
                let kind = socket_type(&rest).ok_or(ZmtpError::Malformed("READY command without a socket type"))?;
                if !self.role.peers().iter().any(|p| p.as_bytes() == kind) {
                    return Err(ZmtpError::Type(String::from_utf8_lossy(kind).chars().take(20).collect()));
                }
                self.stage = Stage::Open;
                Ok(Some(Input::Open))
            }
            (Stage::Ready, _) => Err(ZmtpError::Malformed("handshake without a READY command")),
            (_, b"SUBSCRIBE") => Ok(Some(Input::Subscribe(rest, true))),
            (_, b"CANCEL") => Ok(Some(Input::Subscribe(rest, false))),
            // The first two bytes are the ping's time to live.
            (_, b"PING") if rest.len() >= 2 => Ok(Some(Input::Ping(rest.slice(2..)))),
            _ => Ok(None),
        }
    }
}

fn socket_type(mut properties: &[u8]) -> Option<&[u8]> {
    loop {
        let (&length, rest) = properties.split_first()?;
        let (name, rest) = rest.split_at_checked(length.into())?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Some(value);
        }
        properties = rest;
    }
}

/// Limits of [`parse`].
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) const LIMITS: Limits = Limits { message: 4_096, frames: 3 };

/// Parses `bytes` in pieces of `piece` bytes and returns all inputs.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn parse(role: Role, bytes: &[u8], piece: usize) -> (Vec<Input>, Option<ZmtpError>) {
    let (mut zmtp, mut inputs) = (Zmtp::new(role, LIMITS), Vec::new());
    for part in bytes.chunks(piece) {
        zmtp.inbox.extend_from_slice(part);
        loop {
            match zmtp.next_input() {
                Ok(Some(input)) => inputs.push(input),
                Ok(None) => break,
                Err(error) => return (inputs, Some(error)),
            }
        }
    }
    (inputs, None)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn publisher_and_subscriber_complete_a_handshake() {
        let mut bytes = opening(Role::Subscriber).to_vec();
        bytes.extend_from_slice(&subscription("stream"));
        bytes.extend_from_slice(b"\x04\x09\x04PING\x00\x0aab");
        let expected =
            [Input::Open, Input::Subscribe(Bytes::from("stream"), true), Input::Ping(Bytes::from("ab"))].to_vec();
        for cut in [1, 7, 1_000] {
            assert_eq!(parse(Role::Publisher, &bytes, cut), (expected.clone(), None));
        }
    }

    #[test]
    fn invalid_or_oversized_zmtp_is_refused() {
        let refused = |bytes: &[u8]| parse(Role::Publisher, bytes, 64).1.map(|e| e.to_string()).unwrap_or_default();
        assert!(refused(b"GET / HTTP/1.1\r\n\r\n").contains("ZMTP"));
        let opened = opening(Role::Subscriber);
        let with = |more: &[u8]| refused(&[&opened[..], more].concat());
        assert!(with(b"\x02\x00\x00\x00\x00\x00\x00\x10\x01").contains("4097 bytes"));
        assert!(with(b"\x02\xff\xff\xff\xff\xff\xff\xff\xff").contains("exceeds the limit of"));
        assert!(with(&[1, 1, 9].repeat(4)).contains("3 frames"));
        assert!(with(&message(&[&[9; 4_000], &[9; 4_000]])).contains("8000 bytes"));
        assert!(with(b"\x40\x00").contains("flags"));
        assert!(refused(&opening(Role::Publisher)).contains("PUB"));
        let mut curve = opened.to_vec();
        curve[12..17].copy_from_slice(b"CURVE");
        assert!(refused(&curve).contains("CURVE"));
    }

    proptest! {
        #[test]
        fn input_after_the_handshake_is_independent_of_read_boundaries(bytes in prop::collection::vec(any::<u8>(), 0..400), cut in 1_usize..50) {
            crate::fuzzing::connection(&bytes, cut, true);
        }

        #[test]
        fn messages_round_trip(frames in prop::collection::vec(prop::collection::vec(2_u8.., 1..600), 1..4), cut in 1_usize..700) {
            let parts: Vec<&[u8]> = frames.iter().map(Vec::as_slice).collect();
            let bytes = [&opening(Role::Publisher)[..], &message(&parts)].concat();
            let (inputs, error) = parse(Role::Subscriber, &bytes, cut);
            prop_assert_eq!(error, None);
            let expected = Input::Message(frames.into_iter().map(Bytes::from).collect());
            prop_assert_eq!(&inputs[1], &expected);
        }
    }
}
