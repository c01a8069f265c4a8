//! Requests that a worker reads from frontends. They name the response streams, which use other connections.

use std::fmt;

/// Ids of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestIds<'a> {
    /// Name of the response stream; `None` when the response uses another transport.
    pub subject: Option<&'a str>,
    /// Request id of the frontend, which also appears in the HTTP response.
    pub context: &'a str,
    /// The engine's request id, if the request contains it.
    pub rid: Option<&'a str>,
    /// Whether the transport of the response can be read.
    pub has_readable_response: bool,
}

/// Parser of one connection from a frontend.
pub trait ParseRequests: fmt::Debug + Send {
    /// Parses the next bytes. `begins` marks the start of a read, where a message may begin.
    fn parse(&mut self, bytes: &[u8], begins: bool, emit: &mut dyn FnMut(RequestIds<'_>));

    /// Records that `bytes` bytes were not observed.
    fn missed(&mut self, bytes: u64);

    /// Whether enough bytes were skipped to conclude that the connection carries no requests.
    fn is_other(&self) -> bool;
}
