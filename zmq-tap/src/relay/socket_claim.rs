//! Ownership of a socket file. A note next to it (`PATH.tokengap`) records its device, inode and time of creation, and stays locked while
//! tokengap runs. A later start can then tell a socket left by a killed tokengap from a socket that it must not touch.

use std::ffi::{OsStr, OsString};
use std::fs::{File, FileType, Metadata};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, flock};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::endpoint::Endpoint;
use super::error::RelayError;
use crate::folder::{Folder, FolderEntry, HeldFile};

/// Identity of a file at its creation. The kernel reuses inode numbers, so the modification time is part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileIdentity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) modified_s: i64,
    pub(crate) modified_subsec_ns: i64,
}

impl FileIdentity {
    /// Identity of the file with this metadata.
    pub(crate) fn of_metadata(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            modified_s: metadata.mtime(),
            modified_subsec_ns: metadata.mtime_nsec(),
        }
    }

    /// The fields as a note stores them.
    pub(crate) fn to_numbers(&self) -> String {
        format!("{} {} {}.{:09}", self.device, self.inode, self.modified_s, self.modified_subsec_ns)
    }

    /// Parses the fields of a note. `None` unless the text is exactly as [`Self::to_numbers`] writes it.
    pub(crate) fn from_numbers(text: &str) -> Option<Self> {
        let mut fields = text.split(' ');
        let device = fields.next()?.parse().ok()?;
        let inode = fields.next()?.parse().ok()?;
        let (seconds, nanoseconds) = fields.next()?.split_once('.')?;
        let modified_s = seconds.parse().ok()?;
        let modified_subsec_ns = nanoseconds.parse().ok()?;
        let identity = Self { device, inode, modified_s, modified_subsec_ns };
        // Rejects other spellings of the same numbers and further fields.
        (identity.to_numbers() == text).then_some(identity)
    }

    /// Text of the note next to the socket with this identity.
    fn note_text(&self) -> String {
        format!("tokengap socket {}\n", self.to_numbers())
    }
}

/// Limit of the bytes read from a note. The longest note is under 600 bytes, but a file of another origin may have any length.
const MAX_NOTE_BYTES: u64 = 1_024;
/// Limit of attempts to lock a note that other processes remove or create meanwhile.
const MAX_NOTE_ATTEMPTS: usize = 8;

/// A socket file made by tokengap, with its note. Dropping it removes both, unless another file has replaced the socket.
#[derive(Debug)]
pub(super) struct SocketClaim {
    entry: FolderEntry,
    identity: FileIdentity,
    note: SocketNote,
}

/// A note next to a socket file, locked while this process runs.
#[derive(Debug)]
pub(crate) struct SocketNote {
    folder: Folder,
    name: OsString,
    file: File,
}

impl SocketClaim {
    /// Listens at the socket file `path`, which the claim removes when it is dropped. Replaces only a socket that a killed tokengap left
    /// there, as a note beside it shows. A user without permission to connect to the socket file `upstream_path` cannot connect here
    /// either.
    pub(super) fn listen(path: &Path, upstream_path: Option<&Path>) -> Result<(UnixListener, Self), RelayError> {
        let entry = FolderEntry::of_path(path).map_err(|error| listen_error(path, error))?;
        let found = entry.find_file().map_err(|error| listen_error(path, error))?;
        // The note is locked from here on, so that only one tokengap at a time uses the path.
        let note = match &found {
            Some(found) => Self::remove_abandoned_socket(path, &entry, found)?,
            None => SocketNote::create_for_socket(&entry.folder, &entry.name)?,
        };
        let bound = match bind_socket_file(path, &entry, upstream_path) {
            Ok(bound) => bound,
            Err(error) => {
                note.remove_note();
                return Err(bind_error(path, error));
            }
        };
        let claim = Self { entry, identity: FileIdentity::of_metadata(bound.file.metadata()), note };
        // By this identity, a later start recognises the socket.
        let written = claim.note.write_text(&claim.identity.note_text());
        written.map_err(|error| RelayError::Note(claim.note.shown_path(), error))?;
        Ok((bound.listener, claim))
    }

    /// Removes the file `found` at `path` if it is a socket that a killed tokengap left, and fails if it is any other file. Returns the
    /// note by which the socket was recognised.
    fn remove_abandoned_socket(path: &Path, entry: &FolderEntry, found: &HeldFile) -> Result<SocketNote, RelayError> {
        if !found.is_socket() {
            return Err(RelayError::NotASocket(path.to_owned(), kind_of_file(found.metadata().file_type())));
        }
        let mut note = SocketNote::open_and_lock(&entry.folder, &entry.name, MissingNote::IsNone)?;
        let identity = FileIdentity::of_metadata(found.metadata());
        let is_ours = note.as_mut().is_some_and(|note| note.identifies_socket(&identity));
        // Before the owner is judged, because "in use" says more. A socket that somebody listens on is never replaced.
        if is_listening(found).map_err(|error| listen_error(path, error))? {
            return Err(RelayError::InUse(Endpoint::Path(path.to_owned())));
        }
        let note = match note {
            Some(note) if is_ours => note,
            // Without a note that identifies it, the socket is another program's.
            _ => return Err(RelayError::Foreign(path.to_owned())),
        };
        entry.folder.remove_file(&entry.name, found.metadata()).map_err(|error| listen_error(path, error))?;
        Ok(note)
    }
}

/// Error of binding the socket file `path`, which has its own message if another listener is there.
fn bind_error(path: &Path, error: io::Error) -> RelayError {
    match error.kind() {
        io::ErrorKind::AddrInUse => RelayError::InUse(Endpoint::Path(path.to_owned())),
        _ => listen_error(path, error),
    }
}

/// Error of listening at the socket file `path`.
fn listen_error(path: &Path, error: io::Error) -> RelayError {
    RelayError::Bind(Endpoint::Path(path.to_owned()), error)
}

impl Drop for SocketClaim {
    /// Removes the note, and the socket file unless another file has replaced it.
    fn drop(&mut self) {
        if let Ok(Some(found)) = self.entry.find_file()
            && FileIdentity::of_metadata(found.metadata()) == self.identity
        {
            // Nothing more can be done at the end. The next start reports a file that stays.
            let _ = self.entry.folder.remove_file(&self.entry.name, found.metadata());
        }
        self.note.remove_note();
    }
}

impl SocketNote {
    /// Creates the note next to the socket `name`, or reuses one that a killed tokengap left.
    pub(crate) fn create(folder: &Folder, name: &str) -> Result<Self, RelayError> {
        Self::create_for_socket(folder, name.as_ref())
    }

    /// Creates or reuses the note next to the socket `socket_name`, which may not be UTF-8.
    fn create_for_socket(folder: &Folder, socket_name: &OsStr) -> Result<Self, RelayError> {
        // A missing note is created, so the result is never `None`; the error is only a fallback.
        let created = Self::open_and_lock(folder, socket_name, MissingNote::IsCreated)?;
        created.ok_or_else(|| RelayError::Foreign(folder.shown(socket_name)))
    }

    /// Opens and locks the note next to the socket `name`. Returns `None` if there is none.
    pub(crate) fn lock(folder: &Folder, name: &str) -> Result<Option<Self>, RelayError> {
        Self::open_and_lock(folder, name.as_ref(), MissingNote::IsNone)
    }

    /// Opens and locks the note next to the socket `socket_name`. If there is none, creates it or returns `None`, as `if_missing` says.
    /// Refuses a file of another user, a link, or a file with a second name, without opening it for its content.
    fn open_and_lock(
        folder: &Folder,
        socket_name: &OsStr,
        if_missing: MissingNote,
    ) -> Result<Option<Self>, RelayError> {
        let mut name = socket_name.to_owned();
        name.push(".tokengap");
        let shown = folder.shown(&name);
        for _ in 0..MAX_NOTE_ATTEMPTS {
            let found = folder.find_file(&name).map_err(|error| note_error(&shown, error))?;
            let file = match found {
                Some(found) if !is_own(found.metadata()) => return Err(RelayError::ForeignNote(shown)),
                Some(found) => found.open_content().map_err(|error| note_error(&shown, error))?,
                None if if_missing == MissingNote::IsNone => return Ok(None),
                None => match folder.create_file(&name) {
                    // Another process created it in between, so that the next attempt finds it.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                    created => created.map_err(|error| note_error(&shown, error))?,
                },
            };
            let is_locked = try_lock(&file).map_err(|error| note_error(&shown, error))?;
            if !is_locked {
                return Err(RelayError::InUseByTokengap(Endpoint::Path(folder.shown(socket_name))));
            }
            let note = Self { folder: folder.clone(), name: name.clone(), file };
            // A tokengap that stops removes its note, so the locked file may have left the folder. Then try again.
            if note.is_still_at_its_name() {
                return Ok(Some(note));
            }
        }
        Err(note_error(&shown, Errno::AGAIN.into()))
    }

    /// Returns whether the note was not removed or replaced since it was opened.
    fn is_still_at_its_name(&self) -> bool {
        let Ok(open_file) = self.file.metadata() else { return false };
        let Ok(Some(file_at_name)) = self.folder.find_file(&self.name) else { return false };
        file_at_name.is_same_file(&open_file) && is_own(&open_file)
    }

    /// Path of the note, as messages name it.
    fn shown_path(&self) -> PathBuf {
        self.folder.shown(&self.name)
    }

    /// Whether the note was written for the socket with this identity.
    fn identifies_socket(&mut self, identity: &FileIdentity) -> bool {
        self.read_text().is_some_and(|text| text == identity.note_text())
    }

    /// Reads the note. Returns `None` if it cannot be read or is not UTF-8.
    pub(crate) fn read_text(&mut self) -> Option<String> {
        let mut text = String::new();
        let read = self.file.rewind().and_then(|()| (&self.file).take(MAX_NOTE_BYTES).read_to_string(&mut text));
        read.is_ok().then_some(text)
    }

    /// Replaces the text of the note.
    pub(crate) fn write_text(&self, text: &str) -> io::Result<()> {
        // A note that is cut short by a kill is not taken for a valid one.
        self.file.set_len(0)?;
        (&self.file).rewind()?;
        (&self.file).write_all(text.as_bytes())
    }

    /// Removes the note, unless another file has its name.
    pub(crate) fn remove_note(&self) {
        if let Ok(open) = self.file.metadata() {
            // A note that stays is harmless: it is unlocked from now on, and a later start uses it again.
            let _ = self.folder.remove_file(&self.name, &open);
        }
    }
}

/// What to do if a socket has no note yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MissingNote {
    IsCreated,
    IsNone,
}

/// Locks a note. Returns false if another process has locked it.
fn try_lock(note: &File) -> io::Result<bool> {
    match flock(note, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Error of an operation on the note at the path `shown`.
fn note_error(shown: &Path, error: io::Error) -> RelayError {
    RelayError::Note(shown.to_owned(), error)
}

/// Whether only tokengap's own user can have created this note.
pub(crate) fn is_own(note: &Metadata) -> bool {
    // A file with a second name may be any file of this user, linked here by somebody else.
    note.is_file() && note.uid() == rustix::process::geteuid().as_raw() && note.nlink() == 1
}

/// Mode bits that let everybody read, write and execute.
const ALL_PERMISSIONS: u32 = 0o777;
/// The same, except that users outside the owner's group may not write, as connecting to a socket requires.
const NO_WRITE_FOR_OTHERS: u32 = 0o775;

/// A listener and its socket file.
struct BoundSocket {
    listener: UnixListener,
    file: HeldFile,
}

/// Binds a socket file at `path`, which `entry` also names, with at most the permissions of the socket file `upstream_path`. While
/// `upstream_path` does not exist, others get no write permission.
fn bind_socket_file(path: &Path, entry: &FolderEntry, upstream_path: Option<&Path>) -> io::Result<BoundSocket> {
    // The kernel makes the file with all permissions but those of the umask. So no one else can connect before the mode is set.
    let umask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    // By its path, since the kernel shows this name to tools that list sockets.
    let bound = UnixListener::bind(path);
    // Before an error returns, because the umask is that of the whole process.
    rustix::process::umask(umask);
    let listener = bound?;
    let own_user = rustix::process::geteuid().as_raw();
    // Whoever may write to the folder may have replaced the socket.
    let file = entry.find_file()?.filter(|file| file.is_socket() && file.owner_uid() == own_user);
    let file = file.ok_or_else(|| io::Error::other("another process replaced the socket file"))?;
    let default_mode = ALL_PERMISSIONS & !umask.bits();
    let max_mode = upstream_path.map_or(ALL_PERMISSIONS, permissions_of_upstream_socket);
    if let Err(error) = file.set_mode(default_mode & max_mode) {
        // The first error is the one to report.
        let _ = entry.folder.remove_file(&entry.name, file.metadata());
        return Err(error);
    }
    Ok(BoundSocket { listener, file })
}

/// Permissions of the socket file at `upstream_path`. While there is none, others get no write permission, without which nobody can
/// connect.
fn permissions_of_upstream_socket(upstream_path: &Path) -> u32 {
    match FolderEntry::of_path(upstream_path).and_then(|entry| entry.find_file()) {
        Ok(Some(file)) if file.is_socket() => file.metadata().permissions().mode(),
        _ => NO_WRITE_FOR_OTHERS,
    }
}

/// Kind of a file that is no socket, in words for an error message.
fn kind_of_file(file: FileType) -> &'static str {
    if file.is_symlink() {
        "a symbolic link"
    } else if file.is_dir() {
        "a folder"
    } else {
        "a file"
    }
}

/// Whether a process listens at a socket file. Never blocks; a listener with a full queue counts as listening.
pub(crate) fn is_listening(socket: &HeldFile) -> io::Result<bool> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&probe, &SocketAddrUnix::new(socket.path())?) {
        // `PROTOTYPE` means a listener for another type of socket.
        Ok(()) | Err(Errno::AGAIN | Errno::PROTOTYPE) => Ok(true),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

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
        let refused = SocketClaim::listen(&socket, None).expect_err("a foreign note");
        assert!(matches!(&refused, RelayError::ForeignNote(path) if *path == planted), "{refused}");
        assert_eq!(fs::read(&precious).expect("it exists"), b"precious");
        fs::remove_file(&planted).expect("removed");
        drop(SocketClaim::listen(&socket, None).expect("nothing is in the way"));
    }

    #[test]
    fn a_socket_has_no_wider_permissions_than_its_upstream() {
        let folder = tempfile::tempdir().expect("a folder");
        let (listen, upstream) = (folder.path().join("listen"), folder.path().join("upstream"));
        let _bound = UnixListener::bind(&upstream).expect("bound");
        fs::set_permissions(&upstream, Permissions::from_mode(0o700)).expect("closed to others");
        let _claim = SocketClaim::listen(&listen, Some(&upstream)).expect("the listener accepts");
        let mode = fs::metadata(&listen).expect("it exists").permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}
