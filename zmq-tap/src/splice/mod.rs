//! Takeover of the path of a socket file that an engine listens on, and its restoration (docs/internals/SPLICE.md).
//!
//! An exchange of names moves the engine's socket aside, so that the path that peers connect to always has a listener. A note next to it
//! records the move, so that any later process can reverse it after a crash ([`restore`]).

mod note;
mod place;
mod restore;
mod socket_type;

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use crate::relay::RelayError;

pub use note::is_ours;
pub use place::Place;
pub use restore::{Restored, restore};
pub use socket_type::socket_type;

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

/// A folder of sockets, in any mount namespace reachable through `/proc/PID/root`. It is held open, so that files are found in it even if
/// its path changes.
#[derive(Clone, Debug)]
pub struct Folder {
    fd: Arc<OwnedFd>,
    shown: PathBuf,
}

impl Folder {
    /// Opens `path`. Errors and reports show it as `shown`.
    pub fn open(path: &Path, shown: &Path) -> Result<Self, SpliceError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => Ok(Self { fd: Arc::new(fd), shown: shown.to_owned() }),
            Err(errno) => Err(SpliceError::Folder(shown.to_owned(), errno.into())),
        }
    }

    /// Path of the file `name`: short enough for a socket address, and valid in this process only.
    pub fn at(&self, name: impl AsRef<OsStr>) -> PathBuf {
        let mut path = self.path();
        path.push(name.as_ref());
        path
    }

    /// Path of the folder itself, valid in this process only.
    fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd()).into()
    }

    /// Path of the file as its owner knows it.
    pub fn shown(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.shown.join(name.as_ref())
    }
}
