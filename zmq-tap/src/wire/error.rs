//! Why a message could not be decoded.

use thiserror::Error;

/// A message that was seen and not understood. It is counted and passed on; nothing of it is used.
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
        /// Where the value that does not fit begins.
        at: usize,
    },
    /// The bytes break the rules of their codec.
    #[error("malformed at byte {at}: {what}")]
    Malformed {
        /// Position in the message.
        at: usize,
        /// Which rule.
        what: &'static str,
    },
    /// A pickle opcode that no SGLang release writes here and that would reach outside the message.
    #[error("refused at byte {at}: pickle opcode {op:#04x} ({what})")]
    Refused {
        /// Position in the message.
        at: usize,
        /// The opcode.
        op: u8,
        /// What it asks for.
        what: &'static str,
    },
    /// An object of a class that no release sends over these sockets.
    #[error("unknown class {class}: not one of SGLang's io_struct; is this socket an output hop?")]
    UnknownClass {
        /// The class as the message names it, at most 120 characters.
        class: String,
    },
    /// The class is known, its fields fit no release in the table.
    #[error("{class} with {fields} fields fits no known release: {what}; a newer table may (`cargo xtask schemas`)")]
    Layout {
        /// The class.
        class: &'static str,
        /// How many fields the message gives it.
        fields: usize,
        /// What does not fit.
        what: &'static str,
    },
    /// A field holds what it never holds.
    #[error("{class}.{field}[{row}]: {what}")]
    Column {
        /// The class.
        class: &'static str,
        /// The field.
        field: &'static str,
        /// Which request of the batch; 0 where the whole column is meant.
        row: usize,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A limit was reached.
    #[error("limit reached: more than {value} in `{limit}`")]
    Limit {
        /// The name of the field of [`super::Limits`].
        limit: &'static str,
        /// Its value.
        value: usize,
    },
}

impl Undecoded {
    /// A short name that does not change, to count by.
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
