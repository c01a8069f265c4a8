//! A process's directory in `/proc`, held open.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use foreign::{ExpectedFile, ForeignRoot, ReadError, RegularFile, read_to_limit};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Stat, openat, readlinkat, statat};
use rustix::path::Arg;

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
        read_to_limit(&File::from(fd), limit)
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
    pub(crate) fn open_in_root(&self, path: &Path, expected: ExpectedFile) -> Result<RegularFile, ReadError> {
        self.root()?.open_regular(path, expected)
    }

    /// Opens a mapped file by its address range, even if it has been deleted. Needs `CAP_SYS_ADMIN`, or `CAP_CHECKPOINT_RESTORE` since
    /// Linux 5.9.
    pub(crate) fn open_mapped(&self, (start, end): (u64, u64)) -> Result<RegularFile, ReadError> {
        RegularFile::open_at(&self.dir, format!("map_files/{start:x}-{end:x}"), ExpectedFile::ANY)
    }

    /// The process's own root.
    pub(crate) fn root(&self) -> Result<ForeignRoot, ReadError> {
        ForeignRoot::of_proc_dir(&self.dir)
    }

    /// Status of a mapped file, by its address range. Needs the same capabilities as [`Self::open_mapped`].
    pub(crate) fn stat_mapped(&self, (start, end): (u64, u64)) -> Result<Stat, ReadError> {
        Ok(statat(&self.dir, format!("map_files/{start:x}-{end:x}"), AtFlags::empty())?)
    }
}

fn open_dir(at: impl AsFd, path: impl Arg) -> Result<OwnedFd, ReadError> {
    Ok(openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
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
    fn namespace_links_give_their_inode() {
        assert_eq!(bracketed(b"net:[4026531840]"), Some(4_026_531_840));
        assert_eq!(bracketed(b"/dev/null"), None);
        assert_eq!(bracketed(b"socket:[x]"), None);
    }
}
