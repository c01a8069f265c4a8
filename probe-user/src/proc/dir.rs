//! A process's directory in `/proc`, held open.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlinkat};
use rustix::io::Errno;
use rustix::path::Arg;

/// Maximum size of one read from /proc.
const PIECE: usize = 4096;

/// Error of reading a file in `/proc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Permission denied: another user's process, or a hardened `/proc`.
    #[error("not permitted")]
    Denied,
    /// The process or file does not exist, or no longer exists.
    #[error("not there")]
    Gone,
    /// Longer than the limit for this file.
    #[error("longer than {0} bytes")]
    TooLong(usize),
    /// A device, pipe or directory in place of a regular file.
    #[error("not a regular file")]
    NotRegular,
    /// Any other error from the kernel.
    #[error("{0}")]
    Os(Errno),
}

impl From<Errno> for ReadError {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::ACCESS | Errno::PERM => Self::Denied,
            Errno::NOENT | Errno::SRCH | Errno::NOTDIR => Self::Gone,
            other => Self::Os(other),
        }
    }
}

impl From<std::io::Error> for ReadError {
    fn from(e: std::io::Error) -> Self {
        Errno::from_io_error(&e).unwrap_or(Errno::IO).into()
    }
}

/// Lists at most `limit` pids. The flag tells whether there are more.
pub(crate) fn pids(limit: usize) -> Result<(Vec<u32>, bool), ReadError> {
    numbers(open_dir(CWD, "/proc")?, limit)
}

#[derive(Debug)]
pub(crate) struct ProcDir {
    pub(crate) pid: u32,
    pub(crate) path: PathBuf,
    dir: OwnedFd,
}

impl ProcDir {
    /// Opens a process's directory. Later reads reach this process, or fail once it has exited.
    pub(crate) fn of(pid: u32) -> Result<Self, ReadError> {
        let path = PathBuf::from(format!("/proc/{pid}"));
        let dir = open_dir(CWD, &path)?;
        Ok(Self { pid, path, dir })
    }

    /// Reads a whole file of at most `limit` bytes.
    pub(crate) fn read(&self, name: &str, limit: usize) -> Result<Vec<u8>, ReadError> {
        let fd = openat(&self.dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        read_to_limit(File::from(fd), limit)
    }

    pub(crate) fn link(&self, name: &str) -> Result<PathBuf, ReadError> {
        let target = readlinkat(&self.dir, name, Vec::with_capacity(128))?;
        Ok(PathBuf::from(std::ffi::OsString::from_vec(target.into_bytes())))
    }

    /// Inode of one of its namespaces (`net`, `pid`, `mnt`).
    pub(crate) fn namespace(&self, kind: &str) -> Result<u64, ReadError> {
        let link = self.link(&format!("ns/{kind}"))?;
        bracketed(link.as_os_str().as_bytes()).ok_or(ReadError::Gone)
    }

    /// Opens one of its namespaces for entering.
    pub(crate) fn open_namespace(&self, kind: &str) -> Result<OwnedFd, ReadError> {
        Ok(openat(&self.dir, format!("ns/{kind}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Numeric names in one of its directories (`fd`, `task`), at most `limit`. The flag tells whether there are more.
    pub(crate) fn numbers(&self, name: &str, limit: usize) -> Result<(Vec<u32>, bool), ReadError> {
        numbers(open_dir(&self.dir, name)?, limit)
    }

    /// Its sockets as descriptor and inode. Reads at most `limit` descriptors; the flag tells whether there are more.
    pub(crate) fn sockets(&self, limit: usize) -> Result<(Vec<(u32, u64)>, bool), ReadError> {
        let (fds, more) = self.numbers("fd", limit)?;
        let sockets = fds.into_iter().filter_map(|fd| {
            // A descriptor that was closed since the listing is skipped.
            let target = self.link(&format!("fd/{fd}")).ok()?;
            let name = target.as_os_str().as_bytes();
            name.starts_with(b"socket:").then(|| bracketed(name)).flatten().map(|inode| (fd, inode))
        });
        Ok((sockets.collect(), more))
    }

    /// Opens a regular file by an absolute path in the process's own root.
    pub(crate) fn open_in_root(&self, path: &Path) -> Result<File, ReadError> {
        open_if_regular(&self.resolve_in_root(path, OFlags::PATH)?)
    }

    /// Opens a mapped file by its address range, even if it has been deleted. Needs `CAP_SYS_ADMIN`, or `CAP_CHECKPOINT_RESTORE` since
    /// Linux 5.9.
    pub(crate) fn open_mapped(&self, (start, end): (u64, u64)) -> Result<File, ReadError> {
        let name = format!("map_files/{start:x}-{end:x}");
        open_if_regular(&openat(&self.dir, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Resolves a path inside the process's root. Symbolic links cannot leave it, so a container cannot make us read the host's files.
    fn resolve_in_root(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, ReadError> {
        let root = openat(&self.dir, "root", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        Ok(openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
    }

    /// Reads a file of at most `limit` bytes by its path in the process's own root.
    pub(crate) fn read_in_root(&self, path: &Path, limit: usize) -> Result<Vec<u8>, ReadError> {
        read_to_limit(self.open_in_root(path)?, limit)
    }

    /// Names in a directory of the process's own root, at most `limit`.
    pub(crate) fn names_in_root(&self, path: &Path, limit: usize) -> Result<Vec<std::ffi::OsString>, ReadError> {
        let dir = Dir::new(self.resolve_in_root(path, OFlags::RDONLY | OFlags::DIRECTORY)?)?;
        let mut names = Vec::new();
        for entry in dir.take(limit) {
            names.push(OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned());
        }
        Ok(names)
    }
}

fn open_dir(at: impl AsFd, path: impl Arg) -> Result<OwnedFd, ReadError> {
    Ok(openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a located file. Never opens a device or pipe of a container, since merely opening one may have side effects.
fn open_if_regular(located: &OwnedFd) -> Result<File, ReadError> {
    if FileType::from_raw_mode(fstat(located)?.st_mode) != FileType::RegularFile {
        return Err(ReadError::NotRegular);
    }
    let path = format!("/proc/self/fd/{}", located.as_raw_fd());
    Ok(File::from(openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?))
}

fn read_to_limit(file: File, limit: usize) -> Result<Vec<u8>, ReadError> {
    // Use the largest size of one read from /proc. With every further read the kernel searches for its position again, in socket tables
    // from the start.
    let mut bytes = Vec::with_capacity(PIECE.min(limit));
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > limit { Err(ReadError::TooLong(limit)) } else { Ok(bytes) }
}

/// Numeric names in a directory, at most `limit`. The flag tells whether there are more.
fn numbers(dir: OwnedFd, limit: usize) -> Result<(Vec<u32>, bool), ReadError> {
    let mut numbers = Vec::new();
    for entry in Dir::new(dir)? {
        let Some(n) = std::str::from_utf8(entry?.file_name().to_bytes()).ok().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if numbers.len() == limit {
            return Ok((numbers, true));
        }
        numbers.push(n);
    }
    Ok((numbers, false))
}

/// Inode in a link such as `socket:[123]` or `net:[4026531840]`.
fn bracketed(name: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(name).ok()?;
    text.split_once('[')?.1.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_current_process() {
        let me = ProcDir::of(std::process::id()).unwrap();
        assert_eq!(me.link("exe").unwrap(), std::env::current_exe().unwrap());
        assert!(me.namespace("net").unwrap() > 0);
        assert_eq!(me.read("cmdline", 1), Err(ReadError::TooLong(1)));
        assert_eq!(me.read("no-such-file", 1), Err(ReadError::Gone));
    }

    #[test]
    fn finds_its_own_socket() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&a) as u32;
        let me = ProcDir::of(std::process::id()).unwrap();
        let (sockets, more) = me.sockets(100_000).unwrap();
        assert!(sockets.iter().any(|&(socket_fd, inode)| socket_fd == fd && inode > 0));
        assert!(!more);
    }

    #[test]
    fn reads_of_an_exited_process_fail_as_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dir = ProcDir::of(child.id()).unwrap();
        child.wait().unwrap();
        assert_eq!(dir.read("stat", 4096), Err(ReadError::Gone));
    }

    #[test]
    fn only_regular_files_are_opened() {
        let me = ProcDir::of(std::process::id()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "Version: 0.5.9\n").unwrap();
        assert_eq!(me.read_in_root(file.path(), 100).unwrap(), b"Version: 0.5.9\n");
        assert_eq!(me.read_in_root(Path::new("/dev/null"), 100), Err(ReadError::NotRegular));
        assert_eq!(me.read_in_root(Path::new("/tmp"), 100), Err(ReadError::NotRegular));
        assert_eq!(me.read_in_root(Path::new("/no/such/file"), 100), Err(ReadError::Gone));
    }

    #[test]
    fn a_link_in_a_container_stays_in_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("secret"), "inside").unwrap();
        std::os::unix::fs::symlink("/secret", folder.path().join("link")).unwrap();
        // A directory with its own `root` entry represents a process with a different root.
        std::os::unix::fs::symlink(folder.path(), folder.path().join("root")).unwrap();
        let dir = open_dir(CWD, folder.path()).unwrap();
        let process = ProcDir { pid: 1, path: folder.path().to_owned(), dir };
        assert_eq!(process.read_in_root(Path::new("/link"), 100).unwrap(), b"inside");
        assert_eq!(process.read_in_root(Path::new("/../../../link"), 100).unwrap(), b"inside");
    }

    #[test]
    fn namespace_links_give_their_inode() {
        assert_eq!(bracketed(b"net:[4026531840]"), Some(4_026_531_840));
        assert_eq!(bracketed(b"/dev/null"), None);
        assert_eq!(bracketed(b"socket:[x]"), None);
    }
}
