//! Message boundaries of ZMTP in a byte stream, without I/O and without keeping the bytes.
//!
//! [`Scanner`] accepts one direction of a connection in slices of any length and emits [`Mark`]s. Their positions are offsets from the
//! first byte fed. A length that a peer claims is only counted down and allocates nothing. Sources: RFC 23 and 37 (ZMTP 3.0, 3.1), RFC 15
//! (ZMTP 2.0), and the output of libzmq 4.2 to 4.3.

mod boundary_search;
mod greeting;
mod header;
mod reader;
mod scanner;

pub use greeting::{Mechanism, Opaque};
#[cfg(target_os = "linux")]
pub(crate) use header::MAX_HEADER_BYTES;
pub use header::{Garbage, ZmtpCommand};
pub use reader::{Element, Frame, FrameReader, Framing};
pub use scanner::{Mark, PendingMessage, Scanner, Span};
