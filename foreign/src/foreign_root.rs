//! The root directory of another process.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use rustix::path::Arg;

use crate::regular_file::SYSFS;
use crate::{ExpectedFile, ReadError, RegularFile};

/// Attempts to resolve a path. Bounded, because any process may rename files all the time.
const MAX_ATTEMPTS: usize = 32;

/// The root directory of another process, held open. Absolute and `..` links of a path below it stay below it, and links of `/proc` are
/// refused, so a container cannot make us open a file of the host.
#[derive(Debug)]
pub struct ForeignRoot {
    folder: OwnedFd,
}

impl ForeignRoot {
    /// The root of the process that has this id now.
    pub fn of_process(pid: u32) -> Result<Self, ReadError> {
        Self::open_folder(CWD, format!("/proc/{pid}/root"))
    }

    /// The root of the process whose directory in `/proc` is open, even if its id has been reused.
    pub fn of_proc_dir(process: impl AsFd) -> Result<Self, ReadError> {
        Self::open_folder(process, "root")
    }

    /// Opens a folder for the resolution of paths below it only.
    fn open_folder(at: impl AsFd, path: impl Arg) -> Result<Self, ReadError> {
        let folder = openat(at, path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { folder })
    }

    /// Opens the regular file at an absolute path of the process.
    pub fn open_regular(&self, path: impl Arg, expected: ExpectedFile) -> Result<RegularFile, ReadError> {
        RegularFile::open_located(&self.open_path(path, OFlags::PATH)?, expected)
    }

    /// Reads a regular file of at most `limit` bytes.
    pub fn read(&self, path: impl Arg, limit: usize) -> Result<Vec<u8>, ReadError> {
        self.open_regular(path, ExpectedFile::ANY)?.read(limit)
    }

    /// Reads the content of a file of sysfs in this root, of at most `limit` bytes.
    pub fn read_sysfs(&self, path: impl Arg, limit: usize) -> Result<Vec<u8>, ReadError> {
        let located = self.open_path(path, OFlags::PATH)?;
        RegularFile::open_located_if_accepted(&located, ExpectedFile::ANY, |file_system| file_system == SYSFS)?
            .read(limit)
    }

    /// Names in a directory, of which at most `max_names` are read.
    pub fn list_names(&self, path: &Path, max_names: usize) -> Result<Vec<OsString>, ReadError> {
        let dir = Dir::new(self.open_path(path, OFlags::RDONLY | OFlags::DIRECTORY)?)?;
        let mut names = Vec::new();
        for entry in dir.take(max_names) {
            names.push(OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned());
        }
        Ok(names)
    }

    /// Opens the file or folder at a path in this root, with these flags. Tries again while the kernel reports that the path was changing.
    fn open_path(&self, path: impl Arg, flags: OFlags) -> Result<OwnedFd, ReadError> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        path.into_with_c_str(|path| {
            for _ in 0..MAX_ATTEMPTS {
                match openat2(&self.folder, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
                    // Something on this machine was renamed or mounted while the kernel resolved a `..`.
                    Err(Errno::AGAIN) => {}
                    result => return result,
                }
            }
            // Renamed or mounted during every attempt.
            Err(Errno::AGAIN)
        })
        .map_err(ReadError::from)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use rustix::fs::mkfifoat;

    use super::*;

    /// A folder whose `root` stands for the root of a process.
    fn container() -> (tempfile::TempDir, ForeignRoot) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("secret"), "inside").unwrap();
        fs::write(folder.path().join("secret"), "outside").unwrap();
        let process = openat(CWD, folder.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        (folder, ForeignRoot::of_proc_dir(&process).unwrap())
    }

    #[test]
    fn a_link_in_a_container_stays_in_it() {
        let (folder, root) = container();
        let inside = folder.path().join("root");
        symlink("/secret", inside.join("absolute")).unwrap();
        symlink("../secret", inside.join("parent")).unwrap();
        symlink(folder.path().join("secret"), inside.join("host")).unwrap();
        for path in ["/secret", "/absolute", "/parent", "/../../secret", "secret"] {
            assert_eq!(root.read(path, 100).unwrap(), b"inside", "{path}");
        }
        assert_eq!(root.read("/host", 100), Err(ReadError::Gone));
    }

    #[test]
    fn a_link_to_a_process_or_a_device_is_not_opened() {
        let root = ForeignRoot::of_process(std::process::id()).unwrap();
        assert_eq!(root.read("/proc/self/root/etc/passwd", 100).err(), Some(ReadError::Os(Errno::LOOP)));
        assert_eq!(root.read("/proc/self/status", 1 << 20), Err(ReadError::UnexpectedFileSystem));
        assert_eq!(root.read("/dev/zero", 100), Err(ReadError::NotRegular));
        assert_eq!(root.read_sysfs("/etc/passwd", 1 << 20), Err(ReadError::UnexpectedFileSystem));
        let (folder, root) = container();
        mkfifoat(CWD, folder.path().join("root/fifo"), Mode::RUSR).unwrap();
        assert_eq!(root.read("/fifo", 100), Err(ReadError::NotRegular));
    }

    #[test]
    fn a_file_that_is_swapped_for_a_link_after_the_check_is_still_the_checked_one() {
        let (folder, root) = container();
        let path = folder.path().join("root/secret");
        let opened = root.open_regular("/secret", ExpectedFile::ANY).unwrap();
        fs::remove_file(&path).unwrap();
        symlink(folder.path().join("secret"), &path).unwrap();
        assert_eq!(fs::read(opened.path()).unwrap(), b"inside");
    }

    #[test]
    fn the_names_in_a_directory_are_limited() {
        let (folder, root) = container();
        for n in 0..9 {
            fs::write(folder.path().join(format!("root/{n}")), "").unwrap();
        }
        assert_eq!(root.list_names(Path::new("/"), 4).unwrap().len(), 4);
        assert_eq!(root.list_names(Path::new("/none"), 4), Err(ReadError::Gone));
    }
}
