//! Takeover of the path of a socket file that an engine listens on, and its restoration (docs/internals/SPLICE.md).
//!
//! An exchange of names moves the engine's socket aside, so that the path that peers connect to always has a listener. A note next to it
//! records the move, so that any later process can reverse it after a crash ([`restore`]).

mod folder;
mod note;
mod place;
mod restore;
mod socket_type;

use std::io;
use std::path::PathBuf;

use crate::relay::RelayError;

pub use folder::Folder;
pub use place::{Place, is_ours};
pub use restore::{Restored, restore};
pub use socket_type::socket_type;

/// Error of taking over or restoring a socket's path.
#[derive(Debug, thiserror::Error)]
pub enum SpliceError {
    /// The folder of the sockets cannot be opened or read.
    #[error("cannot open the folder {}: {source}; it must exist, and be writable for tokengap's user", .path.display())]
    Folder {
        /// Path of the folder.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// A name that a note file cannot represent.
    #[error("{0:?} is not a plain file name: tokengap moves sockets only within their folder")]
    Name(String),
    /// No socket file has this name.
    #[error("{} is not a socket: nothing was moved", .0.display())]
    NotASocket(PathBuf),
    /// A file operation failed.
    #[error("cannot {what} {}: {source}", .path.display())]
    File {
        /// The operation that failed.
        what: &'static str,
        /// The file it was applied to.
        path: PathBuf,
        /// Error from the operating system.
        source: io::Error,
    },
    /// The note cannot be used, or another tokengap holds it.
    #[error(transparent)]
    Note(#[from] RelayError),
    /// The engine's socket is not at the path it was moved to.
    #[error("{} is not where tokengap moved it; {} was not changed", .aside.display(), .path.display())]
    Gone {
        /// Original path of the socket.
        path: PathBuf,
        /// Path that it was moved to.
        aside: PathBuf,
    },
}
