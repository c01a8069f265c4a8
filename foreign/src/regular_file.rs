//! A regular file that was checked before it was opened.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, fstatfs, openat};
use rustix::path::Arg;

use crate::ReadError;

/// Size of the first read. A larger buffer grows only with the file's content.
const FIRST_READ_BYTES: usize = 4096;

/// File system type of `/sys`.
pub(crate) const SYSFS: u32 = 0x6265_6572;
/// File systems whose files the kernel makes (linux/magic.h). Their files count as regular, but reading one may block or have effects.
const KERNEL_FILE_SYSTEMS: [u32; 21] = [
    0x9fa0, // proc
    SYSFS,
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x7363_6673, // securityfs
    0xf97c_ff8c, // selinux
    0x4341_5d53, // smack
    0x5a3c_69f0, // apparmor
    0xcafe_4a11, // bpf
    0x6265_6570, // configfs
    0xde5e_81e4, // efivarfs
    0x6165_676c, // pstore
    0x1cd1,      // devpts
    0x4249_4e4d, // binfmt_misc
    0x6c6f_6f70, // binder
    0x0765_5821, // resctrl
    0x6573_5543, // fusectl
    0x6e73_6673, // nsfs
    0x0904_1934, // anonymous inodes
];

/// Properties that a file must have; `None` if any value is acceptable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpectedFile {
    /// Device, as in `stat`. Overlayfs shows another one in `/proc/PID/maps`.
    pub device: Option<u64>,
    /// Inode number.
    pub inode: Option<u64>,
    /// User id of the owner.
    pub owner_uid: Option<u32>,
}

impl ExpectedFile {
    /// Any regular file.
    pub const ANY: Self = Self { device: None, inode: None, owner_uid: None };

    /// Whether a file with this status has all properties that are expected.
    fn accepts(&self, found: &Stat) -> bool {
        self.device.is_none_or(|device| device == found.st_dev)
            && self.inode.is_none_or(|inode| inode == found.st_ino)
            && self.owner_uid.is_none_or(|owner_uid| owner_uid == found.st_uid)
    }
}

/// A regular file of a disk, open for reading.
#[derive(Debug)]
pub struct RegularFile {
    file: File,
    /// Device.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// User id of the owner.
    pub owner_uid: u32,
    /// Size when it was opened.
    pub size_bytes: u64,
}

impl RegularFile {
    /// Opens the file at a path of the current root. Follows links; for a file of another process use [`crate::ForeignRoot`].
    pub fn open(path: impl Arg, expected: ExpectedFile) -> Result<Self, ReadError> {
        Self::open_at(CWD, path, expected)
    }

    /// Opens the file at a path relative to a folder, such as an entry of `/proc/PID/fd`. Follows links.
    pub fn open_at(folder: impl AsFd, path: impl Arg, expected: ExpectedFile) -> Result<Self, ReadError> {
        let located = openat(folder, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        Self::open_located(&located, expected)
    }

    /// Opens a file that was located with `O_PATH`, if it is regular and expected. Until then nothing has been opened for its content.
    pub fn open_located(located: &OwnedFd, expected: ExpectedFile) -> Result<Self, ReadError> {
        Self::open_located_if_accepted(located, expected, |file_system| !KERNEL_FILE_SYSTEMS.contains(&file_system))
    }

    /// Opens a file that was located with `O_PATH`, which does not open its content. The file must be regular and expected, and
    /// `accepts_file_system` must accept the type of its file system. All this is checked before the open, because opening a device, a pipe
    /// or a file of the kernel may have effects.
    pub(crate) fn open_located_if_accepted(
        located: &OwnedFd,
        expected: ExpectedFile,
        accepts_file_system: impl FnOnce(u32) -> bool,
    ) -> Result<Self, ReadError> {
        let found = fstat(located)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(ReadError::NotRegular);
        }
        if !accepts_file_system(fstatfs(located)?.f_type as u32) {
            return Err(ReadError::UnexpectedFileSystem);
        }
        if !expected.accepts(&found) {
            return Err(ReadError::Replaced);
        }
        // `NONBLOCK` does not wait for the holder of a lease on the file.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        // Opened by its descriptor, because another file may have its name by now.
        let file = File::from(openat(CWD, descriptor_path(located.as_fd()), flags, Mode::empty())?);
        let opened = fstat(&file)?;
        // Only the located file has passed the checks.
        let is_same_file = opened.st_dev == found.st_dev && opened.st_ino == found.st_ino;
        if !is_same_file {
            return Err(ReadError::Replaced);
        }
        Ok(Self::from_status(file, &opened))
    }

    /// Accepts a file that another process has opened for this one. Fails if it is not regular or not the expected one.
    pub fn check_received(file: OwnedFd, expected: ExpectedFile) -> Result<Self, ReadError> {
        let found = fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(ReadError::NotRegular);
        }
        if !expected.accepts(&found) {
            return Err(ReadError::Replaced);
        }
        Ok(Self::from_status(file.into(), &found))
    }

    /// The file with its properties, as the kernel reported them after the open.
    fn from_status(file: File, status: &Stat) -> Self {
        Self {
            device: status.st_dev,
            inode: status.st_ino,
            owner_uid: status.st_uid,
            size_bytes: u64::try_from(status.st_size).unwrap_or(0),
            file,
        }
    }

    /// Path by which the kernel reaches this file, however it is renamed. Valid while it is open, in this process only.
    pub fn path(&self) -> PathBuf {
        descriptor_path(self.file.as_fd())
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The open file.
    pub fn into_file(self) -> File {
        self.file
    }

    /// Reads the whole file if it has at most `limit` bytes.
    pub fn read(&self, limit: usize) -> Result<Vec<u8>, ReadError> {
        read_to_limit(&self.file, limit)
    }
}

impl AsFd for RegularFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// A descriptor of the same file that only locates it. Closing the last one of an open file asks its file system, which may not answer.
pub fn locate_only(file: BorrowedFd<'_>) -> Result<OwnedFd, ReadError> {
    Ok(openat(CWD, descriptor_path(file), OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

/// Path of an open descriptor of this process.
fn descriptor_path(descriptor: BorrowedFd<'_>) -> PathBuf {
    Path::new("/proc/self/fd").join(descriptor.as_raw_fd().to_string())
}

/// Reads an open file to its end if it has at most `max_bytes`.
pub fn read_to_limit(file: &File, max_bytes: usize) -> Result<Vec<u8>, ReadError> {
    // Use the largest size of one read from /proc. With every further read the kernel searches for its position again, in socket tables
    // from the start.
    let mut bytes = Vec::with_capacity(FIRST_READ_BYTES.min(max_bytes));
    // One byte more shows that the file is longer.
    file.take(max_bytes as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > max_bytes { Err(ReadError::TooLong(max_bytes)) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use rustix::fs::mkfifoat;
    use tempfile::TempDir;

    use super::*;

    fn folder_with(name: &str, content: &str) -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        (folder, path)
    }

    fn refusal(path: &Path) -> Option<ReadError> {
        RegularFile::open(path, ExpectedFile::ANY).err()
    }

    #[test]
    fn only_regular_files_of_a_disk_are_opened() {
        let (folder, path) = folder_with("file", "content");
        let opened = RegularFile::open(&path, ExpectedFile::ANY).unwrap();
        assert_eq!((opened.read(7), opened.size_bytes), (Ok(b"content".to_vec()), 7));
        assert_eq!(RegularFile::open(&path, ExpectedFile::ANY).unwrap().read(6), Err(ReadError::TooLong(6)));
        assert_eq!(refusal(folder.path()), Some(ReadError::NotRegular));
        assert_eq!(refusal(Path::new("/dev/null")), Some(ReadError::NotRegular));
        assert_eq!(refusal(Path::new("/dev/ptmx")), Some(ReadError::NotRegular));
        assert_eq!(refusal(Path::new("/proc/self/status")), Some(ReadError::UnexpectedFileSystem));
        assert_eq!(refusal(&folder.path().join("nothing")), Some(ReadError::Gone));
    }

    #[test]
    fn a_fifo_does_not_block() {
        let (folder, path) = folder_with("file", "content");
        let fifo = folder.path().join("fifo");
        mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&fifo, &link).unwrap();
        let began = Instant::now();
        assert_eq!([refusal(&fifo), refusal(&link)], [Some(ReadError::NotRegular); 2]);
        assert_eq!(refusal(&path), None);
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn another_file_of_the_same_name_is_refused() {
        let (_folder, path) = folder_with("file", "first");
        let first = RegularFile::open(&path, ExpectedFile::ANY).unwrap();
        let same =
            ExpectedFile { device: Some(first.device), inode: Some(first.inode), owner_uid: Some(first.owner_uid) };
        assert!(RegularFile::open(&path, same).is_ok());
        std::fs::rename(&path, path.with_extension("moved")).unwrap();
        std::fs::write(&path, "second").unwrap();
        assert_eq!(RegularFile::open(&path, same).err(), Some(ReadError::Replaced));
        let other_owner = ExpectedFile { owner_uid: Some(first.owner_uid + 1), ..ExpectedFile::ANY };
        assert_eq!(RegularFile::open(&path, other_owner).err(), Some(ReadError::Replaced));
    }

    #[test]
    fn the_path_of_an_open_file_outlives_its_name() {
        let (folder, path) = folder_with("file", "content");
        let opened = RegularFile::open(&path, ExpectedFile::ANY).unwrap();
        std::fs::remove_file(&path).unwrap();
        mkfifoat(CWD, &path, Mode::RUSR).unwrap();
        assert_eq!(std::fs::read(opened.path()).unwrap(), b"content");
        assert_eq!(std::fs::metadata(opened.path()).unwrap().ino(), opened.inode);
        drop(folder);
    }

    #[test]
    fn a_name_that_alternates_with_a_fifo_never_blocks() {
        let (folder, path) = folder_with("file", "content");
        let fifo = folder.path().join("fifo");
        mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        let stop = AtomicBool::new(false);
        let end = Instant::now() + Duration::from_mins(1);
        let counts = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && Instant::now() < end {
                    rustix::fs::renameat_with(CWD, &path, CWD, &fifo, rustix::fs::RenameFlags::EXCHANGE).unwrap();
                }
            });
            let mut counts = [0; 2];
            while (counts.contains(&0) || counts[0] + counts[1] < 2_000) && Instant::now() < end {
                match RegularFile::open(&path, ExpectedFile::ANY).and_then(|file| file.read(100)) {
                    Ok(content) if content == b"content" => counts[0] += 1,
                    Err(ReadError::NotRegular) => counts[1] += 1,
                    _ => break,
                }
            }
            stop.store(true, Ordering::Relaxed);
            counts
        });
        assert!(counts[0] > 0 && counts[1] > 0 && counts[0] + counts[1] >= 2_000, "{counts:?}");
    }
}
