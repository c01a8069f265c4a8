//! Files in a folder that another user may write to, by descriptor: a path is resolved once, and later operations apply to the file that
//! was examined.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, RenameFlags, ResolveFlags, Uid, chownat, openat, openat2, renameat, renameat_with,
    unlinkat,
};
use rustix::io::Errno;

/// A folder that is held open, so that files are found in it even if its path changes.
#[derive(Clone, Debug)]
pub struct Folder {
    fd: Arc<OwnedFd>,
    shown_path: PathBuf,
}

/// A folder, and the name of a file in it.
#[derive(Clone, Debug)]
pub(crate) struct FolderEntry {
    pub(crate) folder: Folder,
    pub(crate) name: OsString,
}

/// A file that is held open as `O_PATH`: no longer found by its name, and not open for its content.
#[derive(Clone, Debug)]
pub struct HeldFile {
    file: Arc<File>,
    metadata: Metadata,
}

/// Flags of an open that reads nothing.
const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// Attempts to resolve a path below a root. Bounded, because any process may rename files all the time.
const MAX_ATTEMPTS: usize = 32;

impl Folder {
    /// Opens the folder at `path`. Errors and reports show it as `shown_path`.
    pub fn open(path: &Path, shown_path: &Path) -> io::Result<Self> {
        let fd = openat(CWD, path, PATH_ONLY | OFlags::DIRECTORY, Mode::empty())?;
        Ok(Self { fd: Arc::new(fd), shown_path: shown_path.to_owned() })
    }

    /// Opens the folder that a process with the root folder `root` sees at `path`. Links do not lead out of `root`.
    pub fn open_in_root(root: &Path, path: &Path) -> io::Result<Self> {
        let root = openat(CWD, root, PATH_ONLY | OFlags::DIRECTORY, Mode::empty())?;
        // Links such as those in `/proc/PID/fd` lead out of any root.
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        for _ in 0..MAX_ATTEMPTS {
            let opened = openat2(&root, path, PATH_ONLY | OFlags::DIRECTORY, Mode::empty(), resolve);
            // Something on this machine was renamed or mounted while the kernel resolved a `..`.
            if matches!(opened, Err(Errno::AGAIN)) {
                continue;
            }
            let fd = Arc::new(opened?);
            return Ok(Self { fd, shown_path: path.to_owned() });
        }
        Err(Errno::AGAIN.into())
    }

    /// Path of the file `name`: short enough for a socket address, and valid in this process only.
    pub(crate) fn path_of_file(&self, name: impl AsRef<OsStr>) -> PathBuf {
        let mut path = self.path();
        path.push(name.as_ref());
        path
    }

    /// Path of the folder itself, valid in this process only.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.fd.as_raw_fd()).into()
    }

    /// Path of the file as its owner knows it.
    pub fn shown(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.shown_path.join(name.as_ref())
    }

    /// Type, owner and mode of the folder.
    pub fn metadata(&self) -> io::Result<Metadata> {
        File::from(self.fd.try_clone()?).metadata()
    }

    /// Sets whether programs started from now on inherit the descriptor.
    pub fn set_inheritable(&self, is_inheritable: bool) -> io::Result<()> {
        let flags = if is_inheritable { rustix::io::FdFlags::empty() } else { rustix::io::FdFlags::CLOEXEC };
        Ok(rustix::io::fcntl_setfd(&self.fd, flags)?)
    }

    /// Opens the file `name` without following a link; a link is returned itself. `None` if no such file exists.
    pub fn find_file(&self, name: impl AsRef<OsStr>) -> io::Result<Option<HeldFile>> {
        match openat(&self.fd, name.as_ref(), PATH_ONLY | OFlags::NOFOLLOW, Mode::empty()) {
            Ok(fd) => HeldFile::new(fd).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Creates a regular file for reading and writing that only its owner may open. Fails if the name exists.
    pub fn create_file(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(&self.fd, name.as_ref(), flags, Mode::RUSR | Mode::WUSR)?.into())
    }

    /// Renames a file within the folder, and replaces an existing one.
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(renameat(&self.fd, from.as_ref(), &self.fd, to.as_ref())?)
    }

    /// Exchanges two names in one step.
    pub(crate) fn exchange_names(&self, one: &str, other: &str) -> io::Result<()> {
        Ok(renameat_with(&self.fd, one, &self.fd, other, RenameFlags::EXCHANGE)?)
    }

    /// Removes the name `name` if it still leads to the file `expected`. Does nothing, and succeeds, if it does not.
    pub fn remove_file(&self, name: impl AsRef<OsStr>, expected: &Metadata) -> io::Result<()> {
        match self.find_file(name.as_ref())? {
            Some(found) if found.is_same_file(expected) => Ok(unlinkat(&self.fd, name.as_ref(), AtFlags::empty())?),
            // Nothing has the name, or another file, which is not ours to remove.
            _ => Ok(()),
        }
    }
}

impl FolderEntry {
    /// Opens the folder that contains the file `path`. The file need not exist.
    pub(crate) fn of_path(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        // The parent of a bare file name is an empty path.
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let shown_path = parent;
        Ok(Self { folder: Folder::open(parent, shown_path)?, name: name.to_owned() })
    }

    /// Opens the file itself, without following a link. `None` if no such file exists.
    pub(crate) fn find_file(&self) -> io::Result<Option<HeldFile>> {
        self.folder.find_file(&self.name)
    }
}

impl HeldFile {
    /// Holds an open file, with its metadata as it is now.
    fn new(fd: OwnedFd) -> io::Result<Self> {
        let file = File::from(fd);
        let metadata = file.metadata()?;
        Ok(Self { file: Arc::new(file), metadata })
    }

    /// Its metadata when it was opened.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Whether it is a socket file.
    pub fn is_socket(&self) -> bool {
        self.metadata.file_type().is_socket()
    }

    /// Whether `metadata` is of this file, which its device and inode identify while it is held open.
    pub(crate) fn is_same_file(&self, metadata: &Metadata) -> bool {
        self.metadata.dev() == metadata.dev() && self.metadata.ino() == metadata.ino()
    }

    /// User that owns it.
    pub fn owner_uid(&self) -> u32 {
        self.metadata.uid()
    }

    /// A further descriptor of it.
    pub(crate) fn to_descriptor(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }

    /// A path that leads to this very file, in the calling thread only: the relay's thread has its own table of open files.
    pub fn path(&self) -> PathBuf {
        descriptor_path(&*self.file)
    }

    /// Opens a regular file for reading and writing.
    pub(crate) fn open_content(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(openat(CWD, self.path(), flags, Mode::empty())?.into())
    }

    /// Sets the permission bits of the file to those of `mode`.
    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        let permission_bits = mode & 0o7777;
        // chmod by the descriptor alone needs Linux 6.6.
        fs::set_permissions(self.path(), Permissions::from_mode(permission_bits))
    }

    /// Gives the file to this user and group.
    pub(crate) fn set_owner(&self, user: u32, group: u32) -> io::Result<()> {
        let user = Uid::from_raw(user);
        let group = Gid::from_raw(group);
        // The empty path stands for the open file itself.
        Ok(chownat(&*self.file, "", Some(user), Some(group), AtFlags::EMPTY_PATH)?)
    }
}

/// Path of an open file, valid in the calling thread only.
pub(crate) fn descriptor_path(fd: &impl AsRawFd) -> PathBuf {
    format!("/proc/thread-self/fd/{}", fd.as_raw_fd()).into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_held_socket_is_reached_after_its_name_became_a_link() {
        let folder = tempfile::tempdir().expect("a folder");
        let held_folder = Folder::open(folder.path(), folder.path()).expect("opened");
        let path = folder.path().join("socket");
        let engine = UnixListener::bind(&path).expect("bound");
        let other = UnixListener::bind(folder.path().join("other")).expect("bound");
        let held = held_folder.find_file("socket").expect("readable").expect("it exists");
        fs::rename(&path, folder.path().join("moved")).expect("renamed");
        symlink("other", &path).expect("linked");
        held.set_mode(0o600).expect("its owner may");
        UnixStream::connect(held.path()).expect("connected");
        engine.set_nonblocking(true).expect("set");
        other.set_nonblocking(true).expect("set");
        assert!(engine.accept().is_ok() && other.accept().is_err());
        let mode = |name: &str| fs::metadata(folder.path().join(name)).expect("it exists").mode() & 0o777;
        assert_eq!(mode("moved"), 0o600);
        assert_ne!(mode("other"), 0o600);
        assert!(!held_folder.find_file("socket").expect("readable").expect("it exists").is_socket(), "a link");
    }

    #[test]
    fn links_do_not_lead_out_of_a_root() {
        let outside = tempfile::tempdir().expect("a folder");
        fs::create_dir(outside.path().join("run")).expect("made");
        let root = tempfile::tempdir().expect("a folder");
        fs::create_dir_all(root.path().join("tmp")).expect("made");
        symlink(outside.path(), root.path().join("absolute")).expect("linked");
        symlink("../../../../../../../../../../../..", root.path().join("tmp/relative")).expect("linked");
        let open = |path: &str| Folder::open_in_root(root.path(), Path::new(path));
        assert_eq!(open("/absolute/run").expect_err("outside").kind(), io::ErrorKind::NotFound);
        let inode = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let own = inode(fs::metadata(root.path()).expect("it exists"));
        assert_eq!(inode(open("/tmp/relative").expect("opened").metadata().expect("open")), own, "the root itself");
        assert!(open("/tmp").is_ok());
    }
}
