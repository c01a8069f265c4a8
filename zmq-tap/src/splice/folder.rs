//! A folder that is held open, so that files are found in it even if its path changes.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};

use super::SpliceError;

/// A folder of sockets, in any mount namespace reachable through `/proc/PID/root`.
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
            Err(errno) => Err(SpliceError::Folder { path: shown.to_owned(), source: errno.into() }),
        }
    }

    /// Path of the file `name`: short enough for a socket address, and valid in this process only.
    pub fn at(&self, name: impl AsRef<OsStr>) -> PathBuf {
        let mut path = self.path();
        path.push(name.as_ref());
        path
    }

    /// Path of the folder itself, valid in this process only.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd()).into()
    }

    /// Path of the file as its owner knows it.
    pub fn shown(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.shown.join(name.as_ref())
    }
}
