//! Where ZMTP messages begin and end in a byte stream, without I/O and without keeping the bytes.
//!
//! [`Scanner`] is fed slices of one direction of a connection as they come, of any length, and answers with [`Mark`]s
//! whose positions are offsets from the first byte it was fed. It allocates nothing for what a peer claims: a length is
//! only ever counted down. Sources: RFC 23 and 37 (ZMTP 3.0, 3.1), RFC 15 (ZMTP 2.0), and what libzmq 4.2 to 4.3 sends.

mod anchor;
mod command;
mod greeting;
mod header;
mod scanner;
mod seek;

pub use command::Command;
pub use greeting::{Greeting, Mechanism, Version};
pub use header::Garbage;
pub use scanner::{Mark, Opaque, Pending, Scanner, Span};

#[cfg(test)]
mod tests;
