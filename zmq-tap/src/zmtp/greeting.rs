//! What a peer says first: its version and its security mechanism.

use std::fmt;

use super::scanner::Opaque;

/// Length of a ZMTP 3 greeting in bytes.
const V3_LENGTH: usize = 64;
/// Length of a ZMTP 2.0 greeting: signature, revision, socket type. The identity frame follows.
pub(super) const V2_LENGTH: usize = 12;
/// A version 3 peer that answers a 2.0 peer sends its major version, then a socket type, then the identity frame's zero
/// flag byte; a version 3 greeting has the first letter of its mechanism here.
const DECIDES: usize = 12;

/// The framing that a greeting leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// ZMTP 2.0: no commands; the first frame is the identity.
    V2,
    /// ZMTP 3.x.
    V3 {
        /// 0 or 1 today.
        minor: u8,
    },
}

/// The security mechanism of a ZMTP 3 greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mechanism {
    /// None.
    Null,
    /// User name and password; messages travel in clear.
    Plain,
    /// Encrypted.
    Curve,
    /// May be encrypted.
    Gssapi,
    /// A name that ZMTP does not define.
    Other([u8; 20]),
}

/// A peer's greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Framing of what follows.
    pub version: Version,
    /// Security of what follows.
    pub mechanism: Mechanism,
}

/// Collects a greeting, however it is cut.
#[derive(Clone, Debug)]
pub(super) struct Reading {
    held: [u8; V3_LENGTH],
    have: usize,
}

/// What the bytes so far amount to.
pub(super) enum Step {
    More,
    /// The greeting is whole. A byte of the next frame may have been needed to tell.
    Whole(Greeting, Option<u8>),
    Not(Opaque),
}

impl Reading {
    pub(super) fn new() -> Self {
        Self {
            held: [0; V3_LENGTH],
            have: 0,
        }
    }

    /// Takes one byte and says what is known now.
    pub(super) fn push(&mut self, byte: u8) -> Step {
        self.held[self.have] = byte;
        self.have += 1;
        match (self.have, byte) {
            // ZMTP 1.0 without a signature opens with an anonymous identity frame: 01 00.
            (1, 0xff | 1) => Step::More,
            (2, 0) if self.held[0] == 1 => Step::Not(Opaque::Version1),
            (1, _) => Step::Not(Opaque::NotZmtp),
            (2, _) if self.held[0] == 1 => Step::Not(Opaque::NotZmtp),
            // An even last byte of the signature is the flag byte of a long ZMTP 1.0 frame (libzmq makes the same test).
            (10, last) if last & 1 == 0 => Step::Not(Opaque::Version1),
            (11, 0) => Step::Not(Opaque::Version1),
            (V2_LENGTH, _) if self.held[10] < 3 => Step::Whole(v2(), None),
            (have, 0) if have == DECIDES + 1 => Step::Whole(v2(), Some(0)),
            (V3_LENGTH, _) => {
                let mechanism = Mechanism::named(&self.held[12..32]);
                Step::Whole(
                    Greeting {
                        version: Version::V3 { minor: self.held[11] },
                        mechanism,
                    },
                    None,
                )
            }
            _ => Step::More,
        }
    }
}

fn v2() -> Greeting {
    Greeting {
        version: Version::V2,
        mechanism: Mechanism::Null,
    }
}

impl Mechanism {
    /// By the 20 octets of the greeting, padded with zeros.
    fn named(octets: &[u8]) -> Self {
        let end = octets.iter().position(|&byte| byte == 0).unwrap_or(octets.len());
        match &octets[..end] {
            b"NULL" => Self::Null,
            b"PLAIN" => Self::Plain,
            b"CURVE" => Self::Curve,
            b"GSSAPI" => Self::Gssapi,
            name => {
                let mut kept = [0; 20];
                let length = name.len().min(kept.len());
                kept[..length].copy_from_slice(&name[..length]);
                Self::Other(kept)
            }
        }
    }

    /// Whether messages can be read by a third party.
    pub fn is_clear(self) -> bool {
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
