//! Restoration after a crash: reads the notes and moves the recorded sockets back.

use std::fs;
use std::io;
use std::path::PathBuf;

use super::note::MoveRecord;
use super::{Folder, HeldFile, SpliceError};
use crate::relay::RelayError;
use crate::relay::socket_claim::{FileIdentity, SocketNote, is_listening};

/// Limit of directory entries read in one folder.
const MAX_FILES: usize = 65_536;

/// Outcome for one note.
#[derive(Debug)]
pub enum Restored {
    /// The engine's socket is at its original path again.
    Back(PathBuf),
    /// The engine's socket was already at its path; leftover files were removed.
    WasBack(PathBuf),
    /// The engine has exited, or listens on a newer socket: nothing was left to restore.
    Superseded(PathBuf),
    /// A running tokengap holds the path.
    Held(PathBuf),
    /// Nothing was changed, for the given reason.
    Refused(PathBuf, String),
    /// The note belongs to another user, and was not read.
    OfAnother(PathBuf),
}

/// The file found under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileRole {
    /// No file has the name, or it cannot be opened.
    Missing,
    /// The engine's socket.
    Engine,
    /// A socket made by tokengap that no longer has a listener.
    Ours,
    /// Any other file.
    Other,
}

/// Action for a socket's name and for its name aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RestoreStep {
    /// The engine's socket is aside, and nothing of value has its path.
    PutBack,
    /// The engine's socket is back at its path. Only a socket of tokengap's may have to be removed aside.
    Clean,
    /// The engine's socket is at neither name. Only tokengap's own sockets are removed.
    Forget,
    /// The engine's old socket is aside while another socket has its path.
    Replaced,
}

/// How to restore the engine's socket, which was moved from its name to another one, aside. Decides by the files that have these names now.
fn decide_restore_step(file_at_name: FileRole, file_at_aside: FileRole) -> RestoreStep {
    if file_at_name == FileRole::Engine {
        // The engine's socket has its name again, so only leftovers are removed.
        RestoreStep::Clean
    } else if file_at_aside != FileRole::Engine {
        // The engine's socket has neither name, so there is nothing to restore.
        RestoreStep::Forget
    } else if file_at_name == FileRole::Other {
        // The engine's socket is aside, but another program's file has its name.
        RestoreStep::Replaced
    } else {
        // The engine's socket is aside. Its name is free, or has a socket of tokengap's, which may be replaced.
        RestoreStep::PutBack
    }
}

/// Moves sockets back to their names that a tokengap has moved to other names, unless that tokengap still runs. A note records each move:
/// a file `NAME.tokengap` in `folder`, beside the socket `NAME`. Follows no links, and changes only sockets that a note of the current user
/// identifies by device, inode and time of creation. A second call changes nothing.
pub fn restore_sockets(folder: &Folder) -> Result<Vec<Restored>, SpliceError> {
    let entries = fs::read_dir(folder.path()).map_err(|error| folder_error(folder, error))?;
    let mut restored = Vec::new();
    for entry in entries.take(MAX_FILES) {
        let file = entry.map_err(|error| folder_error(folder, error))?.file_name();
        let name = file.to_str().and_then(|file| file.strip_suffix(".tokengap"));
        if let Some(name) = name
            && let Some(outcome) = restore_socket(folder, name)
        {
            restored.push(outcome);
        }
    }
    Ok(restored)
}

/// Error of reading the folder itself.
fn folder_error(folder: &Folder, error: io::Error) -> SpliceError {
    // The empty name stands for the folder itself.
    SpliceError::Folder(folder.shown(""), error)
}

/// Restores the engine's socket `name`, which its note says was moved to another name, aside. Returns `None` if the note does not describe
/// a move.
fn restore_socket(folder: &Folder, name: &str) -> Option<Restored> {
    let shown = folder.shown(name);
    // Any user may leave a file of this name in a shared folder.
    let own_user = rustix::process::geteuid().as_raw();
    let note_file = folder.find_file(format!("{name}.tokengap")).ok().flatten()?;
    if note_file.owner_uid() != own_user {
        return Some(Restored::OfAnother(shown));
    }
    let mut note = match SocketNote::lock(folder, name) {
        Ok(note) => note?,
        Err(RelayError::InUseByTokengap(_)) => return Some(Restored::Held(shown)),
        Err(error) => return Some(Restored::Refused(shown, error.to_string())),
    };
    let moved = MoveRecord::parse(&note.read_text()?, name)?;
    let outcome = reverse_move(folder, name, &moved);
    // After a refusal, the note stays, so that a later call can try again.
    if !matches!(outcome, Restored::Refused(..)) {
        note.remove_note();
    }
    Some(outcome)
}

/// Moves the engine's socket back to `name` if it is still at the other name, aside, and removes sockets that nobody listens on.
fn reverse_move(folder: &Folder, name: &str, moved: &MoveRecord) -> Restored {
    let shown = folder.shown(name);
    let at_name = ExaminedName::open(folder, name, moved);
    let at_aside = ExaminedName::open(folder, &moved.aside, moved);
    match decide_restore_step(at_name.role, at_aside.role) {
        RestoreStep::PutBack => match folder.rename(&moved.aside, name) {
            Ok(()) => Restored::Back(shown),
            Err(error) => Restored::Refused(shown, format!("cannot move it back: {error}")),
        },
        RestoreStep::Replaced if at_aside.may_be_listening() => {
            let why = format!(
                "another socket has taken its place, and the engine still listens on {}",
                folder.shown(&moved.aside).display()
            );
            Restored::Refused(shown, why)
        }
        RestoreStep::Replaced => {
            at_aside.remove_file(folder, &moved.aside);
            Restored::Superseded(shown)
        }
        RestoreStep::Clean => {
            at_aside.remove_if_ours(folder, &moved.aside);
            Restored::WasBack(shown)
        }
        RestoreStep::Forget => {
            at_name.remove_if_ours(folder, name);
            at_aside.remove_if_ours(folder, &moved.aside);
            Restored::Superseded(shown)
        }
    }
}

/// A name in the folder, with the file that it leads to.
struct ExaminedName {
    role: FileRole,
    /// The open file, unless it is missing.
    file: Option<HeldFile>,
}

impl ExaminedName {
    /// Opens the file with this name, and finds out whose it is: the engine's moved socket, a socket of tokengap's, or any other file.
    fn open(folder: &Folder, name: &str, moved: &MoveRecord) -> Self {
        let Ok(Some(file)) = folder.find_file(name) else {
            return Self { role: FileRole::Missing, file: None };
        };
        let identity = FileIdentity::of_metadata(file.metadata());
        let is_ours = match &moved.ours {
            Some(ours) => *ours == identity,
            // A socket made just before its identity could be recorded: only tokengap uses this name.
            None => file.is_socket() && name == moved.aside,
        };
        let role = if identity == moved.engine {
            FileRole::Engine
        } else if is_ours {
            FileRole::Ours
        } else {
            FileRole::Other
        };
        Self { role, file: Some(file) }
    }

    /// Removes a socket made by tokengap, unless another file has replaced it.
    fn remove_if_ours(&self, folder: &Folder, name: &str) {
        if self.role == FileRole::Ours {
            self.remove_file(folder, name);
        }
    }

    /// Whether the file has a listener, or the attempt to find out has failed. False without a file.
    fn may_be_listening(&self) -> bool {
        self.file.as_ref().is_some_and(|file| !matches!(is_listening(file), Ok(false)))
    }

    /// Removes the file, unless another one has replaced it.
    fn remove_file(&self, folder: &Folder, name: &str) {
        if let Some(file) = &self.file {
            // A file that stays has no listener, and a peer that finds it is refused and retries.
            let _ = folder.remove_file(name, file.metadata());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [FileRole; 4] = [FileRole::Missing, FileRole::Engine, FileRole::Ours, FileRole::Other];

    #[test]
    fn only_sockets_of_tokengap_are_removed_or_replaced() {
        for name in ALL {
            for aside in ALL {
                match decide_restore_step(name, aside) {
                    RestoreStep::PutBack => {
                        assert_eq!(aside, FileRole::Engine);
                        assert!(matches!(name, FileRole::Missing | FileRole::Ours));
                    }
                    RestoreStep::Clean => assert_eq!(name, FileRole::Engine),
                    RestoreStep::Forget => assert!(name != FileRole::Engine && aside != FileRole::Engine),
                    RestoreStep::Replaced => assert_eq!((name, aside), (FileRole::Other, FileRole::Engine)),
                }
            }
        }
    }
}
