//! Takeover and restoration of the path of one socket file.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Uid, chownat, renameat_with};

use super::note::{Move, aside};
use super::{Folder, SpliceError};
use crate::relay::claim::{Identity, Note};

/// Limit of earlier sockets moved aside under one name. Each restart of an engine leaves at most one.
const MAX_ASIDE: u32 = 1_000;

/// A socket path held by tokengap. Dropping it restores the engine's socket.
#[derive(Debug)]
pub struct Place {
    folder: Folder,
    name: String,
    moved: Move,
    note: Note,
    restored: bool,
}

impl Place {
    /// Listens at the path of the socket `name`, and moves that socket to [`Place::aside`], where it stays usable. Connected peers stay
    /// connected to the engine; new connections reach tokengap.
    pub fn take(folder: &Folder, name: &str) -> Result<(UnixListener, Self), SpliceError> {
        if name.is_empty() || name.contains(['/', '\n']) {
            return Err(SpliceError::Name(name.into()));
        }
        let path = folder.at(name);
        let failed = |what, error| SpliceError::File(what, folder.shown(name), error);
        let found = fs::symlink_metadata(&path).map_err(|source| failed("examine", source))?;
        if !found.file_type().is_socket() {
            return Err(SpliceError::NotASocket(folder.shown(name)));
        }
        let free = (1..=MAX_ASIDE)
            .map(|number| aside(name, number))
            .find(|aside| fs::symlink_metadata(folder.at(aside)).is_err());
        let Some(aside) = free else {
            return Err(failed("find a name for moving aside", io::ErrorKind::AlreadyExists.into()));
        };
        let note = Note::create(&path)?;
        let engine = Identity::of(&found);
        let mut place = Self {
            folder: folder.clone(),
            name: name.into(),
            moved: Move { engine, ours: None, aside },
            note,
            // Nothing is moved yet: until then, dropping `place` must not try to restore.
            restored: true,
        };
        let created = place.listen(&found);
        match created {
            Ok(listener) => {
                place.restored = false;
                Ok((listener, place))
            }
            Err((what, source)) => {
                place.remove_leftovers();
                place.note.remove();
                Err(failed(what, source))
            }
        }
    }

    /// Writes the note, binds the socket, copies the engine's owner and mode, and then exchanges the names.
    fn listen(&mut self, engine: &fs::Metadata) -> Result<UnixListener, (&'static str, io::Error)> {
        let ours = self.folder.at(&self.moved.aside);
        let note = |error| ("write a note next to", error);
        self.note.write(&self.moved.written()).map_err(note)?;
        let listener = UnixListener::bind(&ours).map_err(|error| ("listen next to", error))?;
        let created = fs::symlink_metadata(&ours).map_err(|error| ("examine the new socket next to", error))?;
        self.moved.ours = Some(Identity::of(&created));
        self.note.write(&self.moved.written()).map_err(note)?;
        copy_permissions(&ours, engine)
            .map_err(|error| ("create a socket with the same permissions next to", error))?;
        // One atomic step, so that a connecting peer finds either the engine's socket or tokengap's.
        let engines = self.folder.at(&self.name);
        renameat_with(CWD, &ours, CWD, &engines, RenameFlags::EXCHANGE).map_err(|errno| ("replace", errno.into()))?;
        Ok(listener)
    }

    /// Current path of the engine's own socket; valid in this process only.
    pub fn aside(&self) -> PathBuf {
        self.folder.at(&self.moved.aside)
    }

    /// Original path of the socket, as the engine knows it.
    pub fn shown(&self) -> PathBuf {
        self.folder.shown(&self.name)
    }

    /// Whether the path still leads to tokengap's socket. A restarted engine removes that file and binds its own.
    pub fn is_held(&self) -> bool {
        self.has_identity(&self.name, self.moved.ours.as_ref())
    }

    /// Stops accepting new peers: they find no socket file, and retry.
    pub fn close(&self) {
        if self.is_held() {
            let _ = fs::remove_file(self.folder.at(&self.name));
        }
    }

    /// Moves the engine's socket back in one atomic step, over tokengap's or to the empty path.
    pub fn give_back(mut self) -> Result<(), SpliceError> {
        self.undo()
    }

    fn undo(&mut self) -> Result<(), SpliceError> {
        if std::mem::replace(&mut self.restored, true) {
            return Ok(());
        }
        let (path, aside) = (self.folder.at(&self.name), self.folder.at(&self.moved.aside));
        let occupied = fs::symlink_metadata(&path).is_ok();
        let result = if !self.has_identity(&self.moved.aside, Some(&self.moved.engine)) || (occupied && !self.is_held())
        {
            self.close();
            Err(SpliceError::Gone(self.shown(), self.folder.shown(&self.moved.aside)))
        } else {
            fs::rename(&aside, &path).map_err(|error| SpliceError::File("put back", self.shown(), error))
        };
        if result.is_ok() || matches!(result, Err(SpliceError::Gone(..))) {
            self.remove_leftovers();
            self.note.remove();
        }
        result
    }

    /// Removes the file aside if it is tokengap's socket, or an engine socket without a listener.
    fn remove_leftovers(&self) {
        let aside = self.folder.at(&self.moved.aside);
        let ours = self.has_identity(&self.moved.aside, self.moved.ours.as_ref());
        let dead = self.has_identity(&self.moved.aside, Some(&self.moved.engine))
            && matches!(crate::relay::claim::is_listening(&aside), Ok(false));
        if ours || dead {
            let _ = fs::remove_file(aside);
        }
    }

    fn has_identity(&self, name: &str, identity: Option<&Identity>) -> bool {
        let found = fs::symlink_metadata(self.folder.at(name));
        found.is_ok_and(|found| identity == Some(&Identity::of(&found)))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = self.undo() {
            tracing::error!("{error}");
        }
    }
}

/// Gives the socket file at `path` the owner and mode of `model`, so that the same peers may connect. An open descriptor ensures that both
/// changes apply to one and the same file.
fn copy_permissions(path: &Path, model: &fs::Metadata) -> io::Result<()> {
    let opened = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let now = fs::symlink_metadata(path)?;
    if (now.uid(), now.gid()) != (model.uid(), model.gid()) {
        let (uid, gid) = (Uid::from_raw(model.uid()), Gid::from_raw(model.gid()));
        chownat(&opened, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    let by_descriptor = format!("/proc/self/fd/{}", opened.as_raw_fd());
    fs::set_permissions(by_descriptor, Permissions::from_mode(model.mode() & 0o7777))
}
