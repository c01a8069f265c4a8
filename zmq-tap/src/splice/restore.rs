//! Restoration after a crash: reads the notes and moves the recorded sockets back.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use super::note::Move;
use super::{Folder, SpliceError};
use crate::relay::RelayError;
use crate::relay::claim::{Identity, Note, is_listening};

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
}

/// The file found under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Missing,
    Engine,
    /// A socket made by tokengap that no longer has a listener.
    Ours,
    Other,
}

/// Action for a socket's name and for its name aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    PutBack,
    /// The engine's socket is back at its path. The flag: tokengap's own socket is aside.
    Clean {
        aside: bool,
    },
    /// Nothing to restore. The flags: tokengap's own socket is under the name, or aside.
    Forget {
        name: bool,
        aside: bool,
    },
    /// The engine's old socket is aside while another socket has its path.
    Replaced,
}

fn decide(name: Found, aside: Found) -> Step {
    match (name, aside) {
        (Found::Engine, aside) => Step::Clean { aside: aside == Found::Ours },
        (Found::Missing | Found::Ours, Found::Engine) => Step::PutBack,
        (Found::Other, Found::Engine) => Step::Replaced,
        (name, aside) => Step::Forget { name: name == Found::Ours, aside: aside == Found::Ours },
    }
}

/// Reverses every move that a note in `folder` records and whose tokengap has exited. The operation is idempotent. It changes only sockets
/// that a note of the current user identifies by device, inode and time of creation, and follows no links.
pub fn restore(folder: &Folder) -> Result<Vec<Restored>, SpliceError> {
    let failed = |error| SpliceError::Folder(folder.shown(""), error);
    let mut restored = Vec::new();
    for entry in fs::read_dir(folder.path()).map_err(failed)?.take(MAX_FILES) {
        let file = entry.map_err(failed)?.file_name();
        let name = file.to_str().and_then(|file| file.strip_suffix(".tokengap"));
        if let Some(name) = name
            && let Some(outcome) = restore_one(folder, name)
        {
            restored.push(outcome);
        }
    }
    Ok(restored)
}

/// Restores one socket. Returns `None` if the note does not describe a move.
fn restore_one(folder: &Folder, name: &str) -> Option<Restored> {
    let (path, shown) = (folder.at(name), folder.shown(name));
    let mut note = match Note::lock(&path) {
        Ok(note) => note?,
        Err(RelayError::InUseByTokengap(_)) => return Some(Restored::Held(shown)),
        Err(error) => return Some(Restored::Refused(shown, error.to_string())),
    };
    let moved = Move::read(&note.read()?, name)?;
    if !note.is_own() {
        let why = "its note belongs to another user: run this command as that user";
        return Some(Restored::Refused(shown, why.into()));
    }
    let aside = folder.at(&moved.aside);
    let step = decide(identify(&path, &moved), identify(&aside, &moved));
    match step {
        Step::PutBack => {
            if let Err(error) = fs::rename(&aside, &path) {
                return Some(Restored::Refused(shown, format!("cannot move it back: {error}")));
            }
        }
        Step::Replaced if !matches!(is_listening(&aside), Ok(false)) => {
            let why = format!(
                "another socket has taken its place, and the engine still listens on {}",
                folder.shown(&moved.aside).display()
            );
            return Some(Restored::Refused(shown, why));
        }
        Step::Clean { aside: false } => {}
        Step::Replaced | Step::Clean { aside: true } => {
            let _ = fs::remove_file(&aside);
        }
        Step::Forget { name: at_name, aside: at_aside } => {
            for (ours, path) in [(at_name, &path), (at_aside, &aside)] {
                if ours {
                    let _ = fs::remove_file(path);
                }
            }
        }
    }
    note.remove();
    Some(match step {
        Step::PutBack => Restored::Back(shown),
        Step::Clean { .. } => Restored::WasBack(shown),
        Step::Forget { .. } | Step::Replaced => Restored::Superseded(shown),
    })
}

fn identify(path: &std::path::Path, moved: &Move) -> Found {
    let Ok(found) = fs::symlink_metadata(path) else {
        return Found::Missing;
    };
    let is = Identity::of(&found);
    if is == moved.engine {
        Found::Engine
    } else if moved.ours.as_ref() == Some(&is)
        || (moved.ours.is_none() && found.file_type().is_socket() && path.ends_with(&moved.aside))
    {
        // This socket was made just before its identity could be recorded: only tokengap uses this name.
        Found::Ours
    } else {
        Found::Other
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Found; 4] = [Found::Missing, Found::Engine, Found::Ours, Found::Other];

    #[test]
    fn only_sockets_of_tokengap_are_removed_or_replaced() {
        for name in ALL {
            for aside in ALL {
                match decide(name, aside) {
                    Step::PutBack => {
                        assert_eq!(aside, Found::Engine);
                        assert!(matches!(name, Found::Missing | Found::Ours));
                    }
                    Step::Clean { aside: removes } => {
                        assert_eq!((name, removes), (Found::Engine, aside == Found::Ours));
                    }
                    Step::Forget { name: at_name, aside: at_aside } => {
                        assert_eq!((at_name, at_aside), (name == Found::Ours, aside == Found::Ours));
                        assert!(name != Found::Engine && aside != Found::Engine);
                    }
                    Step::Replaced => assert_eq!((name, aside), (Found::Other, Found::Engine)),
                }
            }
        }
    }
}
