//! Errors that prevent a relay from starting.

use std::io;
use std::path::PathBuf;

use super::endpoint::{Endpoint, Pair};

/// Error that prevents a relay from starting.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// More than 32,767 pairs.
    #[error("too many pairs of endpoints: at most 32,767 are supported")]
    Pairs,
    /// Listener and upstream are the same endpoint.
    #[error(
        "{0} is both the listener and the upstream, so the relay would connect to itself: listen on another endpoint"
    )]
    Itself(Endpoint),
    /// One side speaks HTTP, the other ZMQ.
    #[error("{} and {} do not match: use http:// for both or for neither", .0.listen, .0.upstream)]
    Mixed(Pair),
    /// A process already listens there.
    #[error(
        "{0} is in use by another listener: move that listener to another endpoint and use it as the upstream, or listen elsewhere"
    )]
    InUse(Endpoint),
    /// Another tokengap relays there.
    #[error("{0} is in use by another tokengap: stop that one first, or listen elsewhere")]
    InUseByTokengap(Endpoint),
    /// A socket file of a dead process that was not a tokengap.
    #[error("{} is a socket without a listener that tokengap did not create: if its owner has exited, remove it with: rm '{}'", .0.display(), .0.display())]
    Foreign(PathBuf),
    /// The note's path holds another user's file, a file with a second name, or no regular file.
    #[error("{} belongs to another user, has a second name or is no regular file, so tokengap neither trusts nor overwrites it: remove it, or listen in a folder that only you may write to", .0.display())]
    ForeignNote(PathBuf),
    /// The path holds something other than a socket, such as "a symbolic link".
    #[error("{} is {}, not a socket: remove it or listen elsewhere", .0.display(), .1)]
    NotASocket(PathBuf, &'static str),
    /// The upstream's path leads to something other than a socket, or cannot be examined.
    #[error("cannot connect to {}: {}", .0.display(), .1)]
    Upstream(PathBuf, #[source] io::Error),
    /// The note next to the socket cannot be written. A later start recognises tokengap's own socket by it.
    #[error("cannot write {}: {}; the folder must be writable for the relay's user", .0.display(), .1)]
    Note(PathBuf, #[source] io::Error),
    /// The operating system refuses to listen there.
    #[error("cannot listen at {0}: {1}")]
    Bind(Endpoint, #[source] io::Error),
    /// A pair was added after the relay had stopped.
    #[error("the relay has been stopped")]
    Stopped,
    /// The relay's thread could not be started.
    #[error("cannot start the relay's thread: {0}")]
    Thread(#[source] io::Error),
}
