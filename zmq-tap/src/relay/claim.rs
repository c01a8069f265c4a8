//! Ownership of a socket file. A note next to it (`PATH.tokengap`) records its device, inode and time of creation, and stays locked while
//! tokengap runs. A later start can then tell a socket left by a killed tokengap from a socket that it must not touch.

use std::fs::{self, File, FileType, Metadata, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::endpoint::Endpoint;
use super::error::RelayError;

/// Identity of a file at its creation. The kernel reuses inode numbers, so the modification time is part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// Seconds and nanoseconds.
    pub(crate) created: (i64, i64),
}

impl Identity {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino(), created: (metadata.mtime(), metadata.mtime_nsec()) }
    }

    /// The fields as a note stores them.
    pub(crate) fn numbers(&self) -> String {
        format!("{} {} {}.{:09}", self.device, self.inode, self.created.0, self.created.1)
    }

    /// Parses the fields of a note.
    pub(crate) fn from_numbers(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let device = fields.next()?.parse().ok()?;
        let inode = fields.next()?.parse().ok()?;
        let (seconds, nanoseconds) = fields.next()?.split_once('.')?;
        let read = Self { device, inode, created: (seconds.parse().ok()?, nanoseconds.parse().ok()?) };
        (read.numbers() == text).then_some(read)
    }

    fn written(&self) -> String {
        format!("tokengap socket {}\n", self.numbers())
    }
}

/// A socket file made by tokengap, with its note. Dropping it removes both, unless another file has replaced the socket.
#[derive(Debug)]
pub(super) struct Claim {
    path: PathBuf,
    identity: Identity,
    note: Note,
}

/// A note next to a socket file, locked while this process runs.
#[derive(Debug)]
pub(crate) struct Note {
    path: PathBuf,
    file: File,
}

impl Claim {
    /// Listens at `path`. Replaces only a socket that a killed tokengap left there. A user without permission to connect to the socket
    /// file `upstream` cannot connect here either.
    pub(super) fn listen(path: &Path, upstream: Option<&Path>) -> Result<(UnixListener, Self), RelayError> {
        let endpoint = Endpoint::Path(path.to_owned());
        let failed = |error| RelayError::Bind(endpoint.clone(), error);
        let found = match fs::symlink_metadata(path) {
            Ok(metadata) => Some(metadata),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error)),
        };
        if let Some(metadata) = &found
            && !metadata.file_type().is_socket()
        {
            return Err(RelayError::NotASocket(path.to_owned(), kind(metadata.file_type())));
        }
        let mut note = Note::lock_own(path, found.is_none())?;
        if let Some(metadata) = &found {
            let ours = note.as_mut().is_some_and(|note| note.identifies(&Identity::of(metadata)));
            if is_listening(path).map_err(failed)? {
                return Err(RelayError::InUse(endpoint));
            }
            if !ours {
                return Err(RelayError::Foreign(path.to_owned()));
            }
            fs::remove_file(path).map_err(failed)?;
        }
        let Some(note) = note else {
            return Err(RelayError::Foreign(path.to_owned()));
        };
        let created = bind(path, upstream).and_then(|listener| Ok((listener, fs::symlink_metadata(path)?)));
        let (listener, metadata) = match created {
            Ok(created) => created,
            Err(error) => {
                note.remove();
                return Err(match error.kind() {
                    io::ErrorKind::AddrInUse => RelayError::InUse(endpoint),
                    _ => failed(error),
                });
            }
        };
        let claim = Self { path: path.to_owned(), identity: Identity::of(&metadata), note };
        claim
            .note
            .write(&claim.identity.written())
            .map_err(|error| RelayError::Note(claim.note.path.clone(), error))?;
        Ok((listener, claim))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let still_ours = fs::symlink_metadata(&self.path).is_ok_and(|found| Identity::of(&found) == self.identity);
        if still_ours {
            let _ = fs::remove_file(&self.path);
        }
        self.note.remove();
    }
}

impl Note {
    /// Creates the note next to `socket`, or reuses one that a killed tokengap left.
    pub(crate) fn create(socket: &Path) -> Result<Self, RelayError> {
        let created = Self::lock_own(socket, true)?;
        created.ok_or_else(|| RelayError::Foreign(socket.to_owned()))
    }

    /// Opens and locks the note next to `socket`, whichever user created it.
    pub(crate) fn lock(socket: &Path) -> Result<Option<Self>, RelayError> {
        Self::open(socket, false, false)
    }

    /// Opens and locks a note that is [`Self::is_own`]. Creates one if `create` is set and none exists. Refuses a file of another user, or
    /// one with a second name, even if it is locked, and never writes to it.
    fn lock_own(socket: &Path, create: bool) -> Result<Option<Self>, RelayError> {
        Self::open(socket, create, true)
    }

    fn open(socket: &Path, create: bool, only_own: bool) -> Result<Option<Self>, RelayError> {
        let mut path = socket.as_os_str().to_owned();
        path.push(".tokengap");
        let path = PathBuf::from(path);
        let failed = |error: Errno| RelayError::Note(path.clone(), error.into());
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let flags = if create { flags | OFlags::CREATE } else { flags };
        // A tokengap that stops removes its note, so the locked file may have left the folder. Then try again.
        for _ in 0..8 {
            let note = match rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR) {
                Ok(file) => Self { path: path.clone(), file: file.into() },
                Err(Errno::NOENT) if !create => return Ok(None),
                Err(error) => return Err(failed(error)),
            };
            let trusted = !only_own || note.is_own();
            if !trusted && note.is_in_place() {
                return Err(RelayError::ForeignNote(path));
            }
            match flock(&note.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(RelayError::InUseByTokengap(Endpoint::Path(socket.to_owned()))),
                Err(error) => return Err(failed(error)),
            }
            if trusted && note.is_in_place() {
                return Ok(Some(note));
            }
        }
        Err(failed(Errno::AGAIN))
    }

    fn is_in_place(&self) -> bool {
        match (self.file.metadata(), fs::symlink_metadata(&self.path)) {
            (Ok(open), Ok(found)) => open.is_file() && (open.dev(), open.ino()) == (found.dev(), found.ino()),
            _ => false,
        }
    }

    fn identifies(&mut self, identity: &Identity) -> bool {
        self.read().is_some_and(|text| text == identity.written())
    }

    /// Reads the note. Returns `None` if it cannot be read or is not UTF-8.
    pub(crate) fn read(&mut self) -> Option<String> {
        let mut text = String::new();
        // The longest note is under 600 bytes, but a file of another origin may have any length.
        let read = self.file.rewind().and_then(|()| (&self.file).take(1_024).read_to_string(&mut text));
        read.is_ok().then_some(text)
    }

    /// Whether only tokengap's own user can have created it.
    pub(crate) fn is_own(&self) -> bool {
        let own = rustix::process::geteuid().as_raw();
        self.file.metadata().is_ok_and(|found| found.uid() == own && found.nlink() == 1)
    }

    /// Replaces the text of the note.
    pub(crate) fn write(&self, text: &str) -> io::Result<()> {
        self.file.set_len(0)?;
        (&self.file).rewind()?;
        (&self.file).write_all(text.as_bytes())
    }

    pub(crate) fn remove(&self) {
        if self.is_in_place() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Binds with at most the permissions of the socket file `upstream`. While `upstream` does not exist, others get no write permission.
fn bind(path: &Path, upstream: Option<&Path>) -> io::Result<UnixListener> {
    let umask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let bound = UnixListener::bind(path);
    rustix::process::umask(umask);
    let listener = bound?;
    let default_mode = 0o777 & !umask.bits();
    let upstream = upstream.map(|path| fs::metadata(path).map_or(0o775, |found| found.permissions().mode()));
    let mode = Permissions::from_mode(default_mode & upstream.unwrap_or(0o777));
    if let Err(error) = fs::set_permissions(path, mode) {
        let _ = fs::remove_file(path);
        return Err(error);
    }
    Ok(listener)
}

fn kind(file: FileType) -> &'static str {
    if file.is_symlink() {
        "a symbolic link"
    } else if file.is_dir() {
        "a folder"
    } else {
        "a file"
    }
}

/// Whether a process listens there. Never blocks; a listener with a full queue counts as listening.
pub(crate) fn is_listening(path: &Path) -> io::Result<bool> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&probe, &SocketAddrUnix::new(path)?) {
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hard_linked_note_is_neither_written_nor_trusted() {
        let folder = tempfile::tempdir().expect("a folder");
        let (socket, precious) = (folder.path().join("socket"), folder.path().join("precious"));
        fs::write(&precious, "precious").expect("written");
        let planted = folder.path().join("socket.tokengap");
        fs::hard_link(&precious, &planted).expect("a link");
        // A lock on the planted file must not be reported as a running tokengap.
        let locked = File::open(&planted).expect("opened");
        flock(&locked, FlockOperation::NonBlockingLockExclusive).expect("a lock");
        let refused = Claim::listen(&socket, None).expect_err("a foreign note");
        assert!(matches!(&refused, RelayError::ForeignNote(path) if *path == planted), "{refused}");
        assert_eq!(fs::read(&precious).expect("it exists"), b"precious");
        fs::remove_file(&planted).expect("removed");
        drop(Claim::listen(&socket, None).expect("nothing is in the way"));
    }

    #[test]
    fn a_socket_has_no_wider_permissions_than_its_upstream() {
        let folder = tempfile::tempdir().expect("a folder");
        let (listen, upstream) = (folder.path().join("listen"), folder.path().join("upstream"));
        let _bound = UnixListener::bind(&upstream).expect("bound");
        fs::set_permissions(&upstream, Permissions::from_mode(0o700)).expect("closed to others");
        let _claim = Claim::listen(&listen, Some(&upstream)).expect("the listener accepts");
        let mode = fs::metadata(&listen).expect("it exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}
