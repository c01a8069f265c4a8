//! Creating, renaming and removing files of results: recordings, rings, exports.
//!
//! A process that dropped the right to write them delegates these operations to another process with [`delegate`]. Writes to an open file
//! need no delegate.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::OnceLock;

/// Mode of new files: they contain request ids and endpoints.
const OWNER_ONLY: u32 = 0o600;

/// Another process that creates, renames and removes files.
pub trait Delegate: Send + Sync {
    /// Creates a file that only its owner may open. Fails if it exists.
    fn create(&self, path: &Path) -> io::Result<File>;
    /// Renames a file, and replaces `to` if it exists.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

static DELEGATE: OnceLock<Box<dyn Delegate>> = OnceLock::new();

/// Delegates all operations from now on. Only the first call has an effect.
pub fn delegate(to: Box<dyn Delegate>) {
    // A later call fails and changes nothing.
    let _ = DELEGATE.set(to);
}

/// Creates a file for reading and writing that only its owner may open. Fails if `path` exists, also as a symbolic link.
pub fn create(path: &Path) -> io::Result<File> {
    match DELEGATE.get() {
        Some(delegate) => delegate.create(path),
        None => create_here(path),
    }
}

/// Renames `from`, created by [`create`], to `to`, and replaces `to` if it exists.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match DELEGATE.get() {
        Some(delegate) => delegate.rename(from, to),
        None => fs::rename(from, to),
    }
}

/// Removes a file created by [`create`].
pub fn remove(path: &Path) -> io::Result<()> {
    match DELEGATE.get() {
        Some(delegate) => delegate.remove(path),
        None => fs::remove_file(path),
    }
}

/// Creates a file for reading and writing that only its owner may open, without a delegate. Fails if `path` exists, also as a link.
pub(crate) fn create_here(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(OWNER_ONLY)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
        .open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn new_files_are_private_and_never_overwrite() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, link) = (folder.path().join("run.tgap"), folder.path().join("link"));
        let file = create(&path).expect("created");
        assert_eq!(file.metadata().expect("open").permissions().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink("elsewhere", &link).expect("linked");
        for there in [&path, &link] {
            let error = create(there).expect_err("it exists");
            assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        }
        remove(&path).expect("removed");
        assert!(!path.exists());
    }
}
