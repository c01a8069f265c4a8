//! The receiver's socket file that the relay connects to. Others may be able to replace it: it is opened without following a link, and it
//! and its folder must always belong to the same users.

use std::error::Error;
use std::fmt;
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
    held_file: Option<OwnedFd>,
    /// User id of the owner of the folder that was first found at the path.
    folder_owner: OnceLock<u32>,
    /// User id of the owner of the socket that was first found at the path.
    socket_owner: OnceLock<u32>,
}

impl UpstreamSocket {
    /// Remembers who owns the socket file of `endpoint` and its folder. Fails if the file is not a socket. Does nothing for other endpoints.
    pub(super) fn with_current_owners(endpoint: &Endpoint) -> Result<Self, RelayError> {
        let upstream = Self::default();
        let Endpoint::Path(path) = endpoint else { return Ok(upstream) };
        // The first call sets the expected owners. The opened file is not needed yet.
        if let Err(error) = upstream.open_socket_of_same_owners(path) {
            // The server may start after the relay: then the owner of the first socket found later is the expected one.
            if error.kind() != io::ErrorKind::NotFound {
                return Err(RelayError::Upstream(path.clone(), error));
            }
        }
        Ok(upstream)
    }

    /// Uses `held_file` for all connections, if it is given.
    pub(super) fn with_held_file(self, held_file: Option<OwnedFd>) -> Self {
        Self { held_file, ..self }
    }

    /// Connects to the socket file that is held open, or to the one at `path` now if none is held.
    pub(super) async fn connect(&self, path: &Path) -> io::Result<UnixStream> {
        if let Some(file) = &self.held_file {
            return UnixStream::connect(descriptor_path(file)).await;
        }
        let socket_file = self.open_socket_of_same_owners(path)?;
        // Through the descriptor, since another file may have replaced the checked one at `path`.
        UnixStream::connect(socket_file.path()).await
    }

    /// Opens the socket file at `path`, and refuses any other kind of file. The first call remembers the owners of the socket and of its
    /// folder. Later calls refuse a socket if one of these owners has changed.
    fn open_socket_of_same_owners(&self, path: &Path) -> io::Result<HeldFile> {
        let entry = FolderEntry::of_path(path)?;
        require_first_owner(OwnedFile::Folder, &self.folder_owner, entry.folder.metadata()?.uid())?;
        let file = entry.find_file()?.ok_or(io::ErrorKind::NotFound)?;
        if !file.is_socket() {
            let what = if file.metadata().is_symlink() { "a symbolic link" } else { "no socket" };
            return Err(refusal_error(UpstreamChanged::NotASocket(what)));
        }
        require_first_owner(OwnedFile::Socket, &self.socket_owner, file.owner_uid())?;
        Ok(file)
    }
}

/// A file whose owner must not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnedFile {
    Folder,
    Socket,
}

impl fmt::Display for OwnedFile {
    /// Writes the subject of [`UpstreamChanged::Owner`]'s message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Folder => "its folder",
            Self::Socket => "it",
        })
    }
}

/// Why the relay does not connect to the file at the upstream's path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UpstreamChanged {
    #[error("it is {0}: name the socket file itself")]
    NotASocket(&'static str),
    #[error("{what} belongs to user {found}, and belonged to user {expected} before")]
    Owner { what: OwnedFile, expected: u32, found: u32 },
}

/// Requires that the owner with the user id `found` is the one that was found first. The first call sets `first_owner`.
fn require_first_owner(what: OwnedFile, first_owner: &OnceLock<u32>, found: u32) -> io::Result<()> {
    let expected = *first_owner.get_or_init(|| found);
    if found == expected { Ok(()) } else { Err(refusal_error(UpstreamChanged::Owner { what, expected, found })) }
}

/// The refusal as an error, by which [`UpstreamChanged::is_cause`] recognises it.
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
        let upstream = UpstreamSocket::with_current_owners(&Endpoint::Path(path.clone())).expect("it may be missing");
        symlink("real", &path).expect("linked");
        let error = upstream.open_socket_of_same_owners(&path).expect_err("a link");
        assert!(UpstreamChanged::is_cause(&error) && error.to_string().contains("a symbolic link"), "{error}");
        let error = UpstreamSocket::with_current_owners(&Endpoint::Path(path)).expect_err("a link");
        assert!(error.to_string().contains("name the socket file itself"), "{error}");
        let own = rustix::process::geteuid().as_raw();
        for upstream in [
            UpstreamSocket { socket_owner: OnceLock::from(own + 1), ..UpstreamSocket::default() },
            UpstreamSocket { folder_owner: OnceLock::from(own + 1), ..UpstreamSocket::default() },
        ] {
            let error = upstream.open_socket_of_same_owners(&folder.path().join("real")).expect_err("another owner");
            assert!(UpstreamChanged::is_cause(&error) && error.to_string().contains("belongs to user"), "{error}");
        }
    }
}
