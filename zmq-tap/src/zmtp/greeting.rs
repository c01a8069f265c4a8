//! The greeting that opens a connection: the peer's version and its security mechanism, or why its stream cannot be read.

use std::fmt;

/// Length of a ZMTP 3 greeting in bytes.
const V3_LENGTH: usize = 64;
/// Length of a ZMTP 2.0 greeting: signature, revision, socket type. The identity frame follows.
pub(super) const V2_LENGTH: usize = 12;
/// Index of the byte in which a 2.0 stream and a 3.x greeting differ. A version 3 peer that replies to a 2.0 peer sends its major version,
/// then a socket type, then the zero flag byte of the identity frame. A version 3 greeting has the first letter of its mechanism in that
/// place.
const DECIDING_BYTE: usize = 12;

/// Framing that a greeting selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// ZMTP 2.0: no commands; the first frame is the identity.
    V2,
    /// ZMTP 3.x.
    V3 {
        /// Minor version: 0 or 1.
        minor: u8,
    },
}

/// The security mechanism of a ZMTP 3 greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// None.
    Null,
    /// User name and password; messages are not encrypted.
    Plain,
    /// Encrypted.
    Curve,
    /// May be encrypted.
    Gssapi,
    /// A name that the ZMTP specifications do not define.
    Other([u8; 20]),
}

/// A peer's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Framing of the bytes after the greeting.
    pub version: Version,
    /// Security mechanism of the bytes after the greeting.
    pub mechanism: Mechanism,
}

/// Why a stream cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Opaque {
    /// The stream does not open with a ZMTP greeting. A ZMTP peer would reject it too.
    #[error("not ZMTP")]
    NotZmtp,
    /// ZMTP 1.0, which only libzmq 2.x speaks.
    #[error("ZMTP 1.0")]
    Version1,
    /// The mechanism hides messages from a third party.
    #[error("encrypted by {0}")]
    Encrypted(Mechanism),
    /// The stream was joined midway, or lost its framing, and a long stretch contained no message of a known format.
    #[error("no message of a known format was found")]
    Unframed,
}

/// Collects a greeting from slices of any length.
#[derive(Clone, Debug)]
pub(super) struct GreetingReader {
    bytes: [u8; V3_LENGTH],
    filled: usize,
}

/// Result of reading the greeting up to the current byte.
pub(super) enum Step {
    More,
    /// The greeting is complete. The second field is a byte of the next frame, if one was needed to decide.
    Complete(Greeting, Option<u8>),
    Invalid(Opaque),
}

impl GreetingReader {
    pub(super) fn new() -> Self {
        Self { bytes: [0; V3_LENGTH], filled: 0 }
    }

    /// Adds one byte and returns the result so far.
    pub(super) fn push(&mut self, byte: u8) -> Step {
        self.bytes[self.filled] = byte;
        self.filled += 1;
        match (self.filled, byte) {
            // ZMTP 1.0 without a signature opens with an anonymous identity frame: 01 00.
            (1, 0xff | 1) => Step::More,
            (2, 0) if self.bytes[0] == 1 => Step::Invalid(Opaque::Version1),
            (1, _) => Step::Invalid(Opaque::NotZmtp),
            (2, _) if self.bytes[0] == 1 => Step::Invalid(Opaque::NotZmtp),
            // An even last byte of the signature is the flag byte of a long ZMTP 1.0 frame (libzmq makes the same test).
            (10, last) if last & 1 == 0 => Step::Invalid(Opaque::Version1),
            (11, 0) => Step::Invalid(Opaque::Version1),
            (V2_LENGTH, _) if self.bytes[10] < 3 => Step::Complete(v2(), None),
            (filled, 0) if filled == DECIDING_BYTE + 1 => Step::Complete(v2(), Some(0)),
            (V3_LENGTH, _) => {
                let mechanism = Mechanism::named(&self.bytes[12..32]);
                Step::Complete(Greeting { version: Version::V3 { minor: self.bytes[11] }, mechanism }, None)
            }
            _ => Step::More,
        }
    }
}

fn v2() -> Greeting {
    Greeting { version: Version::V2, mechanism: Mechanism::Null }
}

impl Mechanism {
    /// Parses the 20 zero-padded octets of the greeting.
    fn named(octets: &[u8]) -> Self {
        let end = octets.iter().position(|&byte| byte == 0).unwrap_or(octets.len());
        match &octets[..end] {
            b"NULL" => Self::Null,
            b"PLAIN" => Self::Plain,
            b"CURVE" => Self::Curve,
            b"GSSAPI" => Self::Gssapi,
            name => {
                let mut padded = [0; 20];
                let length = name.len().min(padded.len());
                padded[..length].copy_from_slice(&name[..length]);
                Self::Other(padded)
            }
        }
    }

    /// Whether a third party can read the messages.
    pub(super) fn is_clear(self) -> bool {
        matches!(self, Self::Null | Self::Plain)
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Plain => f.write_str("PLAIN"),
            Self::Curve => f.write_str("CURVE"),
            Self::Gssapi => f.write_str("GSSAPI"),
            Self::Other(name) => write!(f, "{}", name.trim_ascii_end().escape_ascii()),
        }
    }
}
