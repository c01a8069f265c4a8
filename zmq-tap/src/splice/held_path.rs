//! Takeover and restoration of the path of one socket file.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

use super::note::{MoveRecord, name_aside};
use super::{Folder, HeldFile, SpliceError};
use crate::relay::PairSockets;
use crate::relay::socket_claim::{FileIdentity, SocketNote, is_listening};

/// Limit of earlier sockets moved aside under one name. Each restart of an engine leaves at most one.
const MAX_ASIDE: u32 = 1_000;

/// A socket path held by tokengap. Dropping it restores the engine's socket.
#[derive(Debug)]
pub struct HeldPath {
    folder: Folder,
    name: String,
    /// The engine's socket, wherever its name leads.
    engine: HeldFile,
    moved: MoveRecord,
    note: SocketNote,
    /// Nothing is left to restore, or it was tried.
    is_restored: bool,
}

impl HeldPath {
    /// Opens the socket file `name` without connecting to it. Fails if the file is missing or no socket, or if `name` is more than a file
    /// name.
    pub fn find_socket(folder: &Folder, name: &str) -> Result<HeldFile, SpliceError> {
        if name.is_empty() || name.contains(['/', '\n']) {
            return Err(SpliceError::Name(name.into()));
        }
        let found = folder.find_file(name).and_then(|file| file.ok_or(io::ErrorKind::NotFound.into()));
        let file = found.map_err(|error| SpliceError::File("examine", folder.shown(name), error))?;
        if file.is_socket() { Ok(file) } else { Err(SpliceError::NotASocket(folder.shown(name))) }
    }

    /// Listens in place of the engine's socket `name`, and moves that socket to another name, [`HeldPath::aside`], where it stays usable.
    /// Connected peers stay connected to the engine; new connections reach tokengap. Fails if the file at `name` is not `engine`.
    pub fn take_over(folder: &Folder, name: &str, engine: HeldFile) -> Result<(UnixListener, Self), SpliceError> {
        let found = Self::find_socket(folder, name)?;
        if !found.is_same_file(engine.metadata()) {
            return Err(SpliceError::Replaced(folder.shown(name)));
        }
        let aside = find_free_name_aside(folder, name)?;
        let note = SocketNote::create(folder, name)?;
        let mut held = Self {
            folder: folder.clone(),
            name: name.into(),
            moved: MoveRecord { engine: FileIdentity::of_metadata(engine.metadata()), ours: None, aside },
            engine,
            note,
            // Nothing is moved yet: until then, dropping `held` must not try to restore.
            is_restored: true,
        };
        match held.listen_and_exchange() {
            Ok(listener) => {
                held.is_restored = false;
                Ok((listener, held))
            }
            Err(error) => {
                held.remove_leftovers();
                held.note.remove_note();
                Err(error)
            }
        }
    }

    /// Writes what is known of the move into the note.
    fn write_note(&self) -> Result<(), SpliceError> {
        self.note.write_text(&self.moved.to_text()).map_err(|error| self.file_error("write a note next to", error))
    }

    /// Error with the message "cannot OPERATION PATH: ERROR". The operation is a verb such as "put back", and the path the original one of
    /// the socket.
    fn file_error(&self, operation: &'static str, error: io::Error) -> SpliceError {
        SpliceError::File(operation, self.shown(), error)
    }

    /// Binds tokengap's socket under the name aside, gives it the owner and mode of the engine's socket, and exchanges the names of both.
    /// The note, by which a later start can reverse this after a crash, is written before each change.
    fn listen_and_exchange(&mut self) -> Result<UnixListener, SpliceError> {
        // Before there is a socket, so that a cleanup finds the socket even if this process is killed in between.
        self.write_note()?;
        let aside = &self.moved.aside;
        let listener = UnixListener::bind(self.folder.path_of_file(aside))
            .map_err(|error| self.file_error("listen next to", error))?;
        let created = find_own_socket(&self.folder, aside)
            .map_err(|error| self.file_error("examine the new socket next to", error))?;
        self.moved.ours = Some(FileIdentity::of_metadata(created.metadata()));
        // Again, with the identity of the new socket, by which a cleanup recognises it.
        self.write_note()?;
        copy_owner_and_mode(&created, self.engine.metadata())
            .map_err(|error| self.file_error("create a socket with the same permissions next to", error))?;
        // One atomic step, so that a connecting peer finds either the engine's socket or tokengap's.
        self.folder.exchange_names(&self.moved.aside, &self.name).map_err(|error| self.file_error("replace", error))?;
        Ok(listener)
    }

    /// Files for the relay, which connects to the engine's socket by its descriptor.
    pub fn pair_sockets(&self, listener: UnixListener) -> io::Result<PairSockets> {
        Ok(PairSockets { listener: listener.into(), upstream: Some(self.engine.to_descriptor()?) })
    }

    /// Current path of the engine's own socket; valid in this process only.
    pub fn aside(&self) -> PathBuf {
        self.folder.path_of_file(&self.moved.aside)
    }

    /// Original path of the socket, as the engine knows it.
    pub fn shown(&self) -> PathBuf {
        self.folder.shown(&self.name)
    }

    /// Whether the path still leads to tokengap's socket. A restarted engine removes that file and binds its own.
    pub fn is_held(&self) -> bool {
        self.find_ours(&self.name).is_some()
    }

    /// Stops accepting new peers: they find no socket file, and retry.
    pub fn stop_accepting(&self) {
        if let Some(ours) = self.find_ours(&self.name) {
            // If it stays, peers are refused only later, when the listener closes.
            let _ = self.folder.remove_file(&self.name, ours.metadata());
        }
    }

    /// Moves the engine's socket back in one atomic step, over tokengap's or to the empty path.
    pub fn give_back(mut self) -> Result<(), SpliceError> {
        self.restore_socket()
    }

    /// Moves the engine's socket back to its name from the name aside. Fails if it is no longer aside, or if another file has its name.
    /// Does nothing the second time.
    fn restore_socket(&mut self) -> Result<(), SpliceError> {
        if self.is_restored {
            return Ok(());
        }
        // Set even if it fails, so that it is tried once.
        self.is_restored = true;
        let is_engine_aside = self.open_if_identical(&self.moved.aside, &self.moved.engine).is_some();
        let is_path_free = matches!(self.folder.find_file(&self.name), Ok(None));
        // The rename replaces a socket of tokengap's at the path, but never another file.
        let can_put_back = is_engine_aside && (is_path_free || self.is_held());
        if can_put_back {
            let renamed = self.folder.rename(&self.moved.aside, &self.name);
            // An error returns with the note in place, by which a later start can restore the socket.
            renamed.map_err(|error| self.file_error("put back", error))?;
        } else {
            self.stop_accepting();
        }
        self.remove_leftovers();
        self.note.remove_note();
        if can_put_back { Ok(()) } else { Err(SpliceError::Gone(self.shown(), self.folder.shown(&self.moved.aside))) }
    }

    /// Removes the file aside if it is tokengap's socket, or an engine socket without a listener. A file that cannot be removed stays: its
    /// name is only skipped by later moves.
    fn remove_leftovers(&self) {
        let aside = &self.moved.aside;
        if let Some(ours) = self.find_ours(aside) {
            let _ = self.folder.remove_file(aside, ours.metadata());
        } else if let Some(engine) = self.open_if_identical(aside, &self.moved.engine)
            && matches!(is_listening(&engine), Ok(false))
        {
            let _ = self.folder.remove_file(aside, engine.metadata());
        }
    }

    /// Opens the file `name` if it is tokengap's socket. `None` also before that socket exists.
    fn find_ours(&self, name: &str) -> Option<HeldFile> {
        self.open_if_identical(name, self.moved.ours.as_ref()?)
    }

    /// Opens the file `name` if it is the one with this identity. `None` also if it cannot be opened.
    fn open_if_identical(&self, name: &str, identity: &FileIdentity) -> Option<HeldFile> {
        let file = self.folder.find_file(name).ok()??;
        let is_identical = *identity == FileIdentity::of_metadata(file.metadata());
        is_identical.then_some(file)
    }
}

impl Drop for HeldPath {
    /// Restores the engine's socket. A failure can only be logged here.
    fn drop(&mut self) {
        if let Err(error) = self.restore_socket() {
            tracing::error!("{error}");
        }
    }
}

/// The first name to which the socket `name` can be moved, because no file has it: a rename would replace that file. Fails if all are in
/// use.
fn find_free_name_aside(folder: &Folder, name: &str) -> Result<String, SpliceError> {
    for number in 1..=MAX_ASIDE {
        let aside = name_aside(name, number);
        if matches!(folder.find_file(&aside), Ok(None)) {
            return Ok(aside);
        }
    }
    let error = io::ErrorKind::AlreadyExists.into();
    Err(SpliceError::File("find a name for moving aside", folder.shown(name), error))
}

/// Opens the socket that was just bound. Whoever may write to the folder may have replaced it.
fn find_own_socket(folder: &Folder, name: &str) -> io::Result<HeldFile> {
    let own_user = rustix::process::geteuid().as_raw();
    let own_socket = folder.find_file(name)?.filter(|file| file.is_socket() && file.owner_uid() == own_user);
    own_socket.ok_or_else(|| io::Error::other("another process replaced it"))
}

/// Gives a socket file the owner and mode of `model`, so that the same peers may connect.
fn copy_owner_and_mode(socket: &HeldFile, model: &Metadata) -> io::Result<()> {
    let current = socket.metadata();
    let has_same_owner = current.uid() == model.uid() && current.gid() == model.gid();
    // Changing the owner needs rights, which the engine's own user may lack.
    if !has_same_owner {
        socket.set_owner(model.uid(), model.gid())?;
    }
    socket.set_mode(model.mode())
}
