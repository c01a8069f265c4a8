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
/// Index of the last byte of the signature.
const SIGNATURE_END: usize = 9;
/// Index of the major version, which follows the signature.
const VERSION_BYTE: usize = 10;
/// Smallest value of that byte in a ZMTP 3 greeting.
const FIRST_V3_REVISION: u8 = 3;
/// Index of the first byte of the mechanism in a ZMTP 3 greeting.
const MECHANISM_BYTE: usize = 12;

/// Framing that a greeting selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZmtpVersion {
    /// ZMTP 2.0: no commands; the first frame is the identity.
    V2,
    /// ZMTP 3.x.
    V3,
}

/// Name of the security mechanism in a ZMTP 3 greeting, padded with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mechanism {
    padded_name: [u8; 20],
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
pub(super) enum GreetingStep {
    /// More bytes are needed.
    More,
    /// The greeting ends with this byte.
    Complete {
        version: ZmtpVersion,
        /// A mechanism that may hide the messages.
        hidden_by: Option<Mechanism>,
        /// Whether the byte is the first of the next frame, which was needed to decide.
        has_begun_frame: bool,
    },
    /// No readable stream begins like this.
    Invalid(Opaque),
}

impl GreetingReader {
    /// Creates a reader that has no bytes yet.
    pub(super) fn new() -> Self {
        Self { bytes: [0; V3_LENGTH], filled: 0 }
    }

    /// Adds the next byte of the greeting, which opens a ZMTP connection, and returns the result so far. No byte may follow a result other
    /// than [`GreetingStep::More`].
    pub(super) fn push_byte(&mut self, byte: u8) -> GreetingStep {
        self.bytes[self.filled] = byte;
        self.filled += 1;
        if let Some(why) = self.reason_last_byte_is_invalid() {
            return GreetingStep::Invalid(why);
        }
        // At this length, signature, revision and socket type are complete. A greeting of version 2 has nothing else.
        let is_version_2 = self.filled == V2_LENGTH && self.bytes[VERSION_BYTE] < FIRST_V3_REVISION;
        if is_version_2 {
            return GreetingStep::Complete { version: ZmtpVersion::V2, hidden_by: None, has_begun_frame: false };
        }
        // A greeting of version 3 has the first letter of its mechanism here. A reply to version 2 has the zero flags of a frame.
        let is_reply_to_version_2 = self.filled == DECIDING_BYTE + 1 && byte == 0;
        if is_reply_to_version_2 {
            return GreetingStep::Complete { version: ZmtpVersion::V2, hidden_by: None, has_begun_frame: true };
        }
        if self.filled < V3_LENGTH {
            return GreetingStep::More;
        }
        let mechanism = Mechanism { padded_name: std::array::from_fn(|index| self.bytes[MECHANISM_BYTE + index]) };
        // NULL has no protection, and PLAIN protects only the handshake.
        let hides_messages = !matches!(mechanism.name(), b"NULL" | b"PLAIN");
        let hidden_by = hides_messages.then_some(mechanism);
        GreetingStep::Complete { version: ZmtpVersion::V3, hidden_by, has_begun_frame: false }
    }

    /// Why the last added byte makes the stream unreadable. `None` if the byte is valid at its place. A readable greeting begins with a
    /// signature of ten bytes, of which the first is ff and the last is odd, and then has the major version, which is not 0.
    fn reason_last_byte_is_invalid(&self) -> Option<Opaque> {
        let index = self.filled.checked_sub(1)?;
        let byte = self.bytes[index];
        let has_signature = self.bytes[0] == 0xff;
        if !has_signature {
            // ZMTP 1.0 may open with an anonymous identity frame instead: 01 00.
            return match (index, byte) {
                (0, 1) => None,
                (1, 0) => Some(Opaque::Version1),
                _ => Some(Opaque::NotZmtp),
            };
        }
        match index {
            // An even last byte of the signature is the flag byte of a long ZMTP 1.0 frame (libzmq makes the same test).
            SIGNATURE_END if byte.is_multiple_of(2) => Some(Opaque::Version1),
            VERSION_BYTE if byte == 0 => Some(Opaque::Version1),
            _ => None,
        }
    }
}

impl Mechanism {
    /// The name without its padding.
    fn name(&self) -> &[u8] {
        self.padded_name.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

impl fmt::Display for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name().trim_ascii_end().escape_ascii())
    }
}
