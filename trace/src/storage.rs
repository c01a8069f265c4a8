//! Creating, renaming and removing files of results: recordings, rings, exports.
//!
//! A process that dropped the right to write them delegates these operations to another process with [`delegate`]. Writes to an open file
//! need no delegate.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;

/// Mode of new files: they contain request ids and endpoints.
const OWNER_ONLY: u32 = 0o600;

/// Opens a regular file that the user named, for reading. A FIFO or device in its place could block for ever, and is refused.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    Ok(file)
}

/// Refuses a file with a secret that belongs to another user than this process's and root, or that others may access: those in `others`, mode
/// bits.
pub fn check_secret(file: &File, others: u32) -> io::Result<()> {
    let refused = |why: String| io::Error::new(io::ErrorKind::InvalidData, why);
    let found = file.metadata()?;
    if found.mode() & others != 0 {
        return Err(refused(
            "other users can read it: run chmod 600 on it, and create a new one if it may have been read".into(),
        ));
    }
    let owner = found.uid();
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(refused(format!("it belongs to user {owner}, who can read it: use a file of your own")));
    }
    Ok(())
}

/// Another process that creates, renames and removes files.
pub trait Delegate: Send + Sync {
    /// As [`create`].
    fn create(&self, path: &Path) -> io::Result<File>;
    /// As [`rename`].
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// As [`remove`].
    fn remove(&self, path: &Path) -> io::Result<()>;
}

static DELEGATE: OnceLock<Box<dyn Delegate>> = OnceLock::new();

/// Delegates all operations from now on. Only the first call has an effect.
pub fn delegate(to: Box<dyn Delegate>) {
    let _ = DELEGATE.set(to);
}

/// Creates a file for reading and writing that only its owner may open. Fails if `path` exists, also as a symbolic link.
pub fn create(path: &Path) -> io::Result<File> {
    match DELEGATE.get() {
        Some(other) => other.create(path),
        None => create_here(path),
    }
}

/// Renames `from`, created by [`create`], to `to`, and replaces `to` if it exists.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    match DELEGATE.get() {
        Some(other) => other.rename(from, to),
        None => fs::rename(from, to),
    }
}

/// Removes a file created by [`create`].
pub fn remove(path: &Path) -> io::Result<()> {
    match DELEGATE.get() {
        Some(other) => other.remove(path),
        None => fs::remove_file(path),
    }
}

/// As [`create`], in this process: for a [`Delegate`].
pub fn create_here(path: &Path) -> io::Result<File> {
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
    fn a_fifo_or_device_in_place_of_a_file_is_refused_without_waiting() {
        let folder = tempfile::tempdir().expect("a folder");
        let fifo = folder.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR).expect("made");
        for path in [&fifo, folder.path(), Path::new("/dev/zero")] {
            assert!(open_regular(path).is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput), "{path:?}");
        }
    }

    #[test]
    fn a_secret_is_readable_by_its_owner_only() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let open = |mode, owner| {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).expect("set");
            rustix::fs::chown(file.path(), Some(owner), None).map(|()| check_secret(file.as_file(), 0o007))
        };
        let own_user = rustix::process::geteuid();
        for (mode, is_accepted) in [(0o600, true), (0o440, true), (0o604, false)] {
            assert_eq!(open(mode, own_user).expect("its owner").is_ok(), is_accepted, "{mode:o}");
        }
        match open(0o600, rustix::fs::Uid::from_raw(own_user.as_raw() + 1)) {
            Ok(opened) => assert!(opened.is_err_and(|error| error.to_string().contains("belongs to user"))),
            Err(error) => println!("SKIPPED: cannot give the file to another user: {error}"),
        }
    }

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
