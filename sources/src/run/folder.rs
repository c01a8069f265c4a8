//! Folder for the child's temporary files, in which its sockets appear.

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use tempfile::TempDir;
use zmq_tap::splice::Folder;

/// Permissions of a folder that only its owner can enter.
const PRIVATE_MODE: u32 = 0o700;
/// Permissions of the group and of others to write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// A folder that no other user can enter.
#[derive(Debug)]
pub struct PrivateFolder {
    path: PathBuf,
    /// The folder, whatever its path leads to later.
    pub held: Folder,
    /// Removed with its contents when the run is over; `None` for a folder named by the user.
    own: Option<TempDir>,
}

impl PrivateFolder {
    /// Opens the folder `named`, creating it if missing, and keeps it at the end. Without a name, creates a folder that is removed at the
    /// end.
    pub fn open_named_or_create_temporary(named: Option<&Path>) -> anyhow::Result<Self> {
        match named {
            Some(path) => Self::open_user_named_folder(path),
            None => Self::create_temporary(),
        }
    }

    /// Opens the folder that the user named, creating it if missing. Fails if other users can write to it.
    fn open_user_named_folder(path: &Path) -> anyhow::Result<Self> {
        let created = DirBuilder::new().mode(PRIVATE_MODE).recursive(true).create(path);
        created.with_context(|| format!("cannot create the folder {}", path.display()))?;
        // Resolved now, because links in the path may be changed later.
        let path = path.canonicalize()?;
        let held = open_folder(&path)?;
        let metadata = held.metadata()?;
        let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
        let is_writable_by_others = metadata.mode() & WRITABLE_BY_OTHERS != 0;
        ensure!(
            is_own && !is_writable_by_others,
            "{} is writable by other users: tokengap trusts the sockets in it, so use a private folder (chmod 700)",
            path.display()
        );
        Ok(Self { path, held, own: None })
    }

    /// Creates a folder that is removed with its contents at the end.
    fn create_temporary() -> anyhow::Result<Self> {
        let own = tempfile::Builder::new()
            .prefix("tokengap-run-")
            .permissions(Permissions::from_mode(PRIVATE_MODE))
            .tempdir()
            .context("cannot create a folder for the command's sockets")?;
        let path = own.path().to_owned();
        Ok(Self { held: open_folder(&path)?, path, own: Some(own) })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether it is removed at the end.
    pub fn is_own(&self) -> bool {
        self.own.is_some()
    }
}

fn open_folder(path: &Path) -> anyhow::Result<Folder> {
    Folder::open(path, path).with_context(|| format!("cannot open the folder {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_temporary_folder_is_private_and_removed_a_named_one_remains() {
        let private = PrivateFolder::open_named_or_create_temporary(None).expect("made");
        let path = private.path().to_owned();
        assert_eq!(path.metadata().expect("there").mode() & 0o777, 0o700);
        drop(private);
        assert!(!path.exists());

        let parent = tempfile::tempdir().expect("a folder");
        let path = parent.path().join("a/b");
        drop(PrivateFolder::open_named_or_create_temporary(Some(&path)).expect("made"));
        assert_eq!(path.metadata().expect("kept").mode() & 0o777, 0o700);
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).expect("set");
        let error = PrivateFolder::open_named_or_create_temporary(Some(&path)).expect_err("anybody may write there");
        assert!(error.to_string().contains("chmod 700"), "{error}");
    }
}
