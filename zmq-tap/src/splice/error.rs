//! Why a socket's place is not taken, or not given back.

use std::io;
use std::path::PathBuf;

use crate::relay::RelayError;

/// Why a socket's place is not taken, or not given back.
#[derive(Debug, thiserror::Error)]
pub enum SpliceError {
    /// The folder of the sockets cannot be used.
    #[error("cannot open the folder {}: {source}; it must exist, and be writable for tokengap's user", .path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A name that a note cannot hold.
    #[error("{0:?} is no plain file name: tokengap moves sockets within their folder only")]
    Name(String),
    /// There is no socket file of that name.
    #[error("{} is not a socket: nothing was moved", .0.display())]
    NotASocket(PathBuf),
    /// A file operation failed.
    #[error("cannot {what} {}: {source}; nothing was left moved", .path.display())]
    File {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The note, or another tokengap.
    #[error(transparent)]
    Note(#[from] RelayError),
    /// The engine's socket is not where it was put.
    #[error("{} is not where tokengap had put it, and {} was left as it is", .aside.display(), .path.display())]
    Gone {
        /// Its own place.
        path: PathBuf,
        /// Where it was put.
        aside: PathBuf,
    },
}
