//! Why a relay does not start.

use std::io;
use std::path::PathBuf;

use super::endpoint::Endpoint;

/// Why a relay does not start.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// There is nothing to relay, or more than 32,767 pairs.
    #[error("{0} pairs of endpoints: give at least one, and at most 32,767")]
    Pairs(usize),
    /// It would talk to itself.
    #[error(
        "{0} is both the listener and the upstream: the relay would connect to itself; give it another place to listen at"
    )]
    Itself(Endpoint),
    /// Clients of HTTP on one side, ZMQ on the other.
    #[error(
        "{listen} and {upstream} do not belong together: one speaks HTTP and the other does not; give http:// for both or for neither"
    )]
    Mixed {
        /// Where it would listen.
        listen: Endpoint,
        /// Where the bytes would go.
        upstream: Endpoint,
    },
    /// Somebody is listening there.
    #[error(
        "{0} is in use: somebody listens there. Move that listener to another endpoint and name it as the upstream, or listen elsewhere"
    )]
    InUse(Endpoint),
    /// Another tokengap relays there.
    #[error("{0} is in use by another tokengap: stop that one first, or listen elsewhere")]
    InUseByTokengap(Endpoint),
    /// A socket file that a dead process left, and not one of ours.
    #[error("{} is a socket that nobody listens on, and not one that tokengap left: if its owner is gone for good, remove it with: rm '{}'", .0.display(), .0.display())]
    Foreign(PathBuf),
    /// The place of our note has another user's file, or one that has another name as well.
    #[error("{} belongs to another user or has a second name, so tokengap neither trusts nor overwrites it: remove it, or listen in a folder that only you may write to", .0.display())]
    ForeignNote(PathBuf),
    /// Something else is in that place.
    #[error("{} is {what}, not a socket: tokengap does not touch it; remove it yourself or listen elsewhere", .path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
        /// A directory, a symbolic link ...
        what: &'static str,
    },
    /// The note beside the socket, by which a later start knows the socket as ours, cannot be kept.
    #[error("cannot keep the note {}: {source}; the folder must be writable for the relay's user", .path.display())]
    Note {
        /// Where the note would be.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The system refuses to listen there.
    #[error("cannot listen at {endpoint}: {source}")]
    Bind {
        /// Where.
        endpoint: Endpoint,
        /// What the system says.
        source: io::Error,
    },
    /// It was asked for more after its end.
    #[error("the relay has been stopped: start another")]
    Stopped,
    /// The relay's thread could not be started.
    #[error("cannot start the relay's thread: {0}")]
    Thread(#[source] io::Error),
}
