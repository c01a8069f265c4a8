//! Reasons why a message cannot be decoded.

use adapter::decode::Refused;
use thiserror::Error;

use crate::msgpack::InvalidMsgpack;

/// A message that was observed but not understood. It is counted and relayed; no part of it is used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Undecoded {
    /// None of the codecs that the engine sends.
    #[error("{expected}: it begins with {first:02x?}")]
    Codec {
        /// The codecs that were expected: `neither a pickle nor ...`.
        expected: &'static str,
        /// The message's first bytes.
        first: Vec<u8>,
    },
    /// The bytes end inside a value.
    #[error("cut short: the message ends inside a value at byte {at}")]
    Truncated {
        /// Start of the incomplete value.
        at: usize,
    },
    /// The bytes break the rules of their codec.
    #[error("malformed at byte {at}: {what}")]
    Malformed {
        /// Position in the message.
        at: usize,
        /// The rule that is broken.
        what: &'static str,
    },
    /// A pickle opcode that no release writes and that would reach outside the message.
    #[error("refused at byte {at}: pickle opcode {op:#04x} ({what})")]
    Refused {
        /// Position in the message.
        at: usize,
        /// The opcode.
        op: u8,
        /// Meaning of the opcode.
        what: &'static str,
    },
    /// An object of a class that no SGLang release sends over these sockets.
    #[error("unknown class {class}: not one of SGLang's io_struct; is this a socket of the engine's?")]
    UnknownClass {
        /// The class as the message names it, at most 120 characters.
        class: String,
    },
    /// The class is known, but its fields fit no release in the table.
    #[error(
        "{class} with {fields} fields matches no known release: {what}; update the table with `cargo xtask schemas`"
    )]
    Layout {
        /// The class.
        class: &'static str,
        /// Number of fields in the message.
        fields: usize,
        /// The mismatch.
        what: &'static str,
    },
    /// A field has an invalid value.
    #[error("{class}.{field}[{row}]: {what}")]
    Column {
        /// The class.
        class: &'static str,
        /// The field.
        field: &'static str,
        /// Index of the request in the batch; 0 if the error concerns the whole column.
        row: usize,
        /// The error in the value.
        what: &'static str,
    },
    /// The bytes that were captured do not show what the message asks for.
    #[error("only both ends of the message were captured, and they do not show {what}")]
    CutByCapture {
        /// What is missing.
        what: &'static str,
    },
    /// A limit was reached.
    #[error("limit reached: more than {value} in `{limit}`")]
    Limit {
        /// Name of the field of the decoder's limits.
        limit: &'static str,
        /// Value of that field.
        value: usize,
    },
}

impl Undecoded {
    /// Stable short name of the variant, for counting.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Codec { .. } => "codec",
            Self::Truncated { .. } => "truncated",
            Self::Malformed { .. } => "malformed",
            Self::Refused { .. } => "refused",
            Self::UnknownClass { .. } => "unknown-class",
            Self::Layout { .. } => "layout",
            Self::Column { .. } => "column",
            Self::CutByCapture { .. } => "cut-by-capture",
            Self::Limit { .. } => "limit",
        }
    }
}

impl From<Undecoded> for Refused {
    fn from(why: Undecoded) -> Self {
        Self { reason: why.reason(), detail: why.to_string() }
    }
}

impl From<InvalidMsgpack> for Undecoded {
    /// The same error, in the words for all messages.
    fn from(why: InvalidMsgpack) -> Self {
        match why {
            InvalidMsgpack::Truncated { at } => Self::Truncated { at },
            InvalidMsgpack::Reserved { at } => Self::Malformed { at, what: "0xc1 is not a msgpack type" },
        }
    }
}
