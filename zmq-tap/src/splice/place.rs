//! The place of one socket file: taken, and given back.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, Uid, chownat, renameat_with};

use super::error::SpliceError;
use super::folder::Folder;
use super::note::{Move, aside};
use crate::relay::claim::{Identity, Note};

pub use super::note::is_ours;

/// Sockets of one name that may have been put aside before: each restart of an engine leaves at most one.
const MOST_ASIDE: u32 = 1_000;

/// A place that we have taken. Dropping it gives it back.
#[derive(Debug)]
pub struct Place {
    folder: Folder,
    name: String,
    moved: Move,
    note: Note,
    given_back: bool,
}

impl Place {
    /// Listens in the place of the socket `name`; that one is then at [`Place::aside`], as alive as before. Peers that are
    /// connected stay connected to it, whoever connects from now on comes to us.
    pub fn take(folder: &Folder, name: &str) -> Result<(UnixListener, Self), SpliceError> {
        if name.is_empty() || name.contains(['/', '\n']) {
            return Err(SpliceError::Name(name.into()));
        }
        let path = folder.at(name);
        let failed = |what, source| SpliceError::File {
            what,
            path: folder.shown(name),
            source,
        };
        let found = fs::symlink_metadata(&path).map_err(|source| failed("look at", source))?;
        if !found.file_type().is_socket() {
            return Err(SpliceError::NotASocket(folder.shown(name)));
        }
        let free = (1..=MOST_ASIDE)
            .map(|number| aside(name, number))
            .find(|aside| fs::symlink_metadata(folder.at(aside)).is_err());
        let Some(aside) = free else {
            return Err(failed("find a place to put aside", io::ErrorKind::AlreadyExists.into()));
        };
        let note = Note::make(&path)?;
        let engine = Identity::of(&found);
        let mut place = Self {
            folder: folder.clone(),
            name: name.into(),
            moved: Move {
                engine,
                ours: None,
                aside,
            },
            note,
            // Nothing is moved yet: dropping it now must not look for anything to give back.
            given_back: true,
        };
        let made = place.listen(&found);
        match made {
            Ok(listener) => {
                place.given_back = false;
                Ok((listener, place))
            }
            Err((what, source)) => {
                place.clear_away();
                place.note.remove();
                Err(failed(what, source))
            }
        }
    }

    /// Written down, made, given the engine's owner and mode, and only then exchanged.
    fn listen(&mut self, engine: &fs::Metadata) -> Result<UnixListener, (&'static str, io::Error)> {
        let ours = self.folder.at(&self.moved.aside);
        let note = |error| ("keep a note beside", error);
        self.note.write(&self.moved.written()).map_err(note)?;
        let listener = UnixListener::bind(&ours).map_err(|error| ("listen beside", error))?;
        let made = fs::symlink_metadata(&ours).map_err(|error| ("look beside", error))?;
        self.moved.ours = Some(Identity::of(&made));
        self.note.write(&self.moved.written()).map_err(note)?;
        admit_as(&ours, engine).map_err(|error| ("open a socket for the same users beside", error))?;
        // One step, so that whoever connects finds either the engine's socket or ours.
        let engines = self.folder.at(&self.name);
        renameat_with(CWD, &ours, CWD, &engines, RenameFlags::EXCHANGE)
            .map_err(|errno| ("take the place of", errno.into()))?;
        Ok(listener)
    }

    /// Where the engine's own socket is now; valid in this process only.
    pub fn aside(&self) -> std::path::PathBuf {
        self.folder.at(&self.moved.aside)
    }

    /// The place, as the engine knows it.
    pub fn shown(&self) -> std::path::PathBuf {
        self.folder.shown(&self.name)
    }

    /// The socket's name in its folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the place is still ours: an engine that starts anew removes what is there and listens itself.
    pub fn is_held(&self) -> bool {
        self.is(&self.name, self.moved.ours.as_ref())
    }

    /// Lets nobody in from now on: who connects finds nothing, and tries again.
    pub fn close(&self) {
        if self.is_held() {
            let _ = fs::remove_file(self.folder.at(&self.name));
        }
    }

    /// Puts the engine's socket back, in one step, over ours or where ours was.
    pub fn give_back(mut self) -> Result<(), SpliceError> {
        self.undo()
    }

    fn undo(&mut self) -> Result<(), SpliceError> {
        if std::mem::replace(&mut self.given_back, true) {
            return Ok(());
        }
        let (path, aside) = (self.folder.at(&self.name), self.folder.at(&self.moved.aside));
        let taken = fs::symlink_metadata(&path).is_ok();
        let result = if !self.is(&self.moved.aside, Some(&self.moved.engine)) || (taken && !self.is_held()) {
            self.close();
            Err(SpliceError::Gone {
                path: self.shown(),
                aside: self.folder.shown(&self.moved.aside),
            })
        } else {
            fs::rename(&aside, &path).map_err(|source| SpliceError::File {
                what: "put back",
                path: self.shown(),
                source,
            })
        };
        if result.is_ok() || matches!(result, Err(SpliceError::Gone { .. })) {
            self.clear_away();
            self.note.remove();
        }
        result
    }

    /// Removes what lies aside, if it is the socket that we made, or one of the engine's that it has itself replaced.
    fn clear_away(&self) {
        let aside = self.folder.at(&self.moved.aside);
        let ours = self.is(&self.moved.aside, self.moved.ours.as_ref());
        let dead = self.is(&self.moved.aside, Some(&self.moved.engine))
            && matches!(crate::relay::claim::is_listening(&aside), Ok(false));
        if ours || dead {
            let _ = fs::remove_file(aside);
        }
    }

    fn is(&self, name: &str, identity: Option<&Identity>) -> bool {
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

/// Gives the socket file at `path` the owner and the mode of `model`, so that the same peers may connect. It is held while
/// that is done: nobody can put another file under our hands.
fn admit_as(path: &Path, model: &fs::Metadata) -> io::Result<()> {
    let held = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let now = fs::symlink_metadata(path)?;
    if (now.uid(), now.gid()) != (model.uid(), model.gid()) {
        let (uid, gid) = (Uid::from_raw(model.uid()), Gid::from_raw(model.gid()));
        chownat(&held, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    let by_descriptor = format!("/proc/self/fd/{}", held.as_raw_fd());
    fs::set_permissions(by_descriptor, Permissions::from_mode(model.mode() & 0o7777))
}
