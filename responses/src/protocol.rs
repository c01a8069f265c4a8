//! Protocols by which a worker sends responses to a frontend, besides HTTP. The crate `engines` has them.

use std::fmt;

use super::event::Emit;
use super::{Limits, Unreadable};

/// A protocol that carries one response stream on a connection.
#[derive(Clone, Copy, Debug)]
pub struct StreamProtocol {
    /// Whether a connection with these first bytes speaks it. `None` if more bytes are needed.
    pub begins: fn(&[u8]) -> Option<bool>,
    /// Creates a parser of one connection, from its first byte on.
    pub parser: fn(Limits) -> Box<dyn ParseStream>,
}

/// Parser of one connection.
pub trait ParseStream: fmt::Debug + Send {
    /// Parses the next bytes of the connection. After an error, no further byte can be read.
    fn parse(&mut self, bytes: &[u8], emit: &mut Emit<'_>) -> Result<(), Unreadable>;
}
