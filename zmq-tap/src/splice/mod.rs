//! Takeover of the path of a socket file that an engine listens on, and its restoration (docs/internals/SPLICE.md).
//!
//! An exchange of names moves the engine's socket aside, so that the path that peers connect to always has a listener. A note next to it
//! records the move, so that any later process can reverse it after a crash ([`restore_sockets`]).

mod held_path;
mod note;

mod restore;
mod socket_type;

use std::io;
use std::path::PathBuf;

use crate::relay::RelayError;

pub use crate::folder::{Folder, HeldFile};
pub use held_path::HeldPath;
pub use note::is_made_by_tokengap;
pub use restore::{Restored, restore_sockets};
pub use socket_type::read_socket_type;

/// Error of taking over or restoring a socket's path.
#[derive(Debug, thiserror::Error)]
pub enum SpliceError {
    /// The folder of the sockets cannot be opened or read.
    #[error("cannot open the folder {}: {}; it must exist, and be writable for tokengap's user", .0.display(), .1)]
    Folder(PathBuf, #[source] io::Error),
    /// A name that a note file cannot represent.
    #[error("{0:?} is not a plain file name: tokengap moves sockets only within their folder")]
    Name(String),
    /// No socket file has this name.
    #[error("{} is not a socket: nothing was moved", .0.display())]
    NotASocket(PathBuf),
    /// Another file has taken the place of the examined socket.
    #[error("{} was replaced while tokengap examined it: nothing was moved; try again", .0.display())]
    Replaced(PathBuf),
    /// This operation on a file failed.
    #[error("cannot {} {}: {}", .0, .1.display(), .2)]
    File(&'static str, PathBuf, #[source] io::Error),
    /// The note cannot be used, or another tokengap holds it.
    #[error(transparent)]
    Note(#[from] RelayError),
    /// The engine's socket with this original path is not at the second path, which it was moved to.
    #[error("{} is not where tokengap moved it; {} was not changed", .1.display(), .0.display())]
    Gone(PathBuf, PathBuf),
}
