//! Reasons why a message cannot be decoded.

use thiserror::Error;

/// A message that was observed but not understood. It is counted and relayed; no part of it is used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Undecoded {
    /// Neither a pickle of protocol 2 to 5 nor a msgpack array that begins with a class name.
    #[error("neither a pickle (protocol 2 to 5) nor a tagged msgpack array: it begins with {first:02x?}")]
    Codec {
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
    /// A pickle opcode that no SGLang release writes and that would reach outside the message.
    #[error("refused at byte {at}: pickle opcode {op:#04x} ({what})")]
    Refused {
        /// Position in the message.
        at: usize,
        /// The opcode.
        op: u8,
        /// Meaning of the opcode.
        what: &'static str,
    },
    /// An object of a class that no release sends over these sockets.
    #[error("unknown class {class}: not one of SGLang's io_struct; is this socket an output hop?")]
    UnknownClass {
        /// The class as the message names it, at most 120 characters.
        class: String,
    },
    /// The class is known, but its fields fit no release in the table.
    #[error("{class} with {fields} fields fits no known release: {what}; a newer table may (`cargo xtask schemas`)")]
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
    /// A limit was reached.
    #[error("limit reached: more than {value} in `{limit}`")]
    Limit {
        /// Name of the field of [`super::Limits`].
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
            Self::Limit { .. } => "limit",
        }
    }
}
