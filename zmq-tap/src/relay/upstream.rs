//! The receiver's socket file that the relay connects to. Others may be able to replace it: it is opened without following a link, and it
//! and its folder must always belong to the same users.

use std::error::Error;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::OnceLock;

use tokio::net::UnixStream;

use super::endpoint::Endpoint;
use super::error::RelayError;
use crate::folder::{FolderEntry, HeldFile, descriptor_path};

/// The socket file of an upstream.
#[derive(Debug, Default)]
pub(super) struct UpstreamSocket {
    /// The file itself, if it was opened when the relay took its place.
    held: Option<OwnedFd>,
    /// Owner of the folder that was first found at the path.
    folder_owner: OnceLock<u32>,
    /// Owner of the socket that was first found at the path.
    owner: OnceLock<u32>,
}

impl UpstreamSocket {
    /// Examines the file of `endpoint`, which may be missing: then the owner of the first socket found later is the expected one.
    pub(super) fn examine(endpoint: &Endpoint) -> Result<Self, RelayError> {
        let upstream = Self::default();
        if let Endpoint::Path(path) = endpoint {
            match upstream.open_checked(path) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(RelayError::Upstream(path.clone(), error)),
            }
        }
        Ok(upstream)
    }

    /// Uses `held` for all connections, if it is given.
    pub(super) fn with_held_file(self, held: Option<OwnedFd>) -> Self {
        Self { held, ..self }
    }

    /// Connects to the file that was checked, not to its path.
    pub(super) async fn connect(&self, path: &Path) -> io::Result<UnixStream> {
        match &self.held {
            Some(held) => UnixStream::connect(descriptor_path(held)).await,
            // The file at the path may be another one at each connection.
            None => UnixStream::connect(self.open_checked(path)?.path()).await,
        }
    }

    /// Opens the socket file, if it and its folder still have the owner that they had at the start.
    fn open_checked(&self, path: &Path) -> io::Result<HeldFile> {
        let entry = FolderEntry::of_path(path)?;
        require_owner("its folder", &self.folder_owner, entry.folder.metadata()?.uid())?;
        let found = entry.find_file()?.ok_or(io::ErrorKind::NotFound)?;
        if !found.is_socket() {
            let what = if found.metadata().is_symlink() { "a symbolic link" } else { "no socket" };
            return Err(refusal_error(UpstreamChanged::NotASocket(what)));
        }
        require_owner("it", &self.owner, found.owner_uid())?;
        Ok(found)
    }
}

/// Why the relay does not connect to the file at the upstream's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UpstreamChanged {
    #[error("it is {0}: name the socket file itself")]
    NotASocket(&'static str),
    #[error("{what} belongs to user {found}, and belonged to user {expected} before")]
    Owner { what: &'static str, expected: u32, found: u32 },
}

/// Requires the owner that was found first.
fn require_owner(what: &'static str, first: &OnceLock<u32>, found: u32) -> io::Result<()> {
    let expected = *first.get_or_init(|| found);
    if found == expected { Ok(()) } else { Err(refusal_error(UpstreamChanged::Owner { what, expected, found })) }
}

fn refusal_error(why: UpstreamChanged) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

impl UpstreamChanged {
    /// Whether `error` is such a refusal.
    pub(super) fn is_cause(error: &io::Error) -> bool {
        error.get_ref().is_some_and(<dyn Error + Send + Sync>::is::<Self>)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_link_and_a_socket_of_another_user_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let _listener = UnixListener::bind(folder.path().join("real")).expect("bound");
        let upstream = UpstreamSocket::examine(&Endpoint::Path(path.clone())).expect("it may be missing");
        symlink("real", &path).expect("linked");
        let error = upstream.open_checked(&path).expect_err("a link");
        assert!(UpstreamChanged::is_cause(&error) && error.to_string().contains("a symbolic link"), "{error}");
        let error = UpstreamSocket::examine(&Endpoint::Path(path)).expect_err("a link");
        assert!(error.to_string().contains("name the socket file itself"), "{error}");
        let own = rustix::process::geteuid().as_raw();
        for upstream in [
            UpstreamSocket { owner: OnceLock::from(own + 1), ..UpstreamSocket::default() },
            UpstreamSocket { folder_owner: OnceLock::from(own + 1), ..UpstreamSocket::default() },
        ] {
            let error = upstream.open_checked(&folder.path().join("real")).expect_err("another owner");
            assert!(UpstreamChanged::is_cause(&error) && error.to_string().contains("belongs to user"), "{error}");
        }
    }
}
