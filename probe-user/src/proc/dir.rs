//! A process's directory in `/proc`, held open.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use foreign::{CachedIdentity, ExpectedFile, ForeignRoot, ReadError, RegularFile, read_to_limit};
use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use rustix::path::Arg;

use super::Listing;
use super::maps::{AddressRange, MappedFile};
use crate::message::decode_message;
use crate::opener_client::request::{
    OpenDescriptor, OpenRequest, ProcessKey, ProcessLink, ProcessRequest, ThreadFile, fits_request,
};
use crate::opener_client::{self, Opener, OpenerReply};

/// Maximum size of a file about a thread.
const MAX_THREAD_FILE_BYTES: usize = 4096;

/// Initial capacity for the target of a link. A longer target only costs another allocation.
const USUAL_LINK_BYTES: usize = 128;

/// Lists at most `limit` pids.
pub(crate) fn list_pids(limit: usize) -> Result<Listing<u32>, ReadError> {
    list_numeric_names(open_dir(CWD, "/proc")?, limit)
}

/// Files that every user may read are read here, all others through the opener, if there is one.
#[derive(Debug)]
pub(crate) struct ProcDir {
    pub(crate) pid: u32,
    pub(crate) path: PathBuf,
    dir: OwnedFd,
    opener: Option<&'static Opener>,
}

impl ProcDir {
    /// Opens a process's directory. Later reads reach this process, or fail once it has exited.
    pub(crate) fn open(pid: u32) -> Result<Self, ReadError> {
        Self::with_opener(pid, opener_client::connected_opener())
    }

    /// Opens a process's directory. If there is an `opener`, which is a process with more rights, it opens the files in the directory that
    /// not every user may read.
    pub(crate) fn with_opener(pid: u32, opener: Option<&'static Opener>) -> Result<Self, ReadError> {
        let path = PathBuf::from(format!("/proc/{pid}"));
        let dir = open_dir(CWD, &path)?;
        Ok(Self { pid, path, dir, opener })
    }

    /// Inode of the directory, which no other process has while this one is open.
    pub(crate) fn inode(&self) -> Result<u64, ReadError> {
        Ok(fstat(&self.dir)?.st_ino)
    }

    /// Sends a request about this process to the opener, which has the rights to open its files, and returns the result. `None` if there is
    /// no opener. Then tokengap's own process opens the files.
    fn ask_opener(&self, request: ProcessRequest) -> Option<Result<OpenerReply, ReadError>> {
        let opener = self.opener?;
        // The inode of the directory shows the opener whether another process has the id by then.
        let inode = match self.inode() {
            Ok(inode) => inode,
            Err(error) => return Some(Err(error)),
        };
        let key = ProcessKey { pid: self.pid, inode };
        Some(opener.send_request(&OpenRequest::Process(key, request)))
    }

    /// Sends a request to the opener, and fails without one.
    fn require_opener(&self, request: ProcessRequest) -> Result<OpenerReply, ReadError> {
        self.ask_opener(request).unwrap_or(Err(ReadError::OpenerEnded))
    }

    /// Reads a whole file that every user may read, of at most `limit` bytes.
    pub(crate) fn read(&self, name: &str, limit: usize) -> Result<Vec<u8>, ReadError> {
        read_to_limit(&File::from(self.open_file(name)?), limit)
    }

    /// Opens a file of the directory in this process, not through the opener.
    fn open_file(&self, name: &str) -> Result<OwnedFd, ReadError> {
        Ok(openat(&self.dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Opens the list of the process's mappings. If there is an opener process, that one opens it.
    pub(crate) fn open_mappings(&self) -> Result<OwnedFd, ReadError> {
        match self.ask_opener(ProcessRequest::Mappings) {
            Some(opened) => opened?.into_file(),
            None => self.open_file("maps"),
        }
    }

    /// Reads the list of its mappings, of at most `limit` bytes.
    pub(crate) fn mappings(&self, limit: usize) -> Result<Vec<u8>, ReadError> {
        read_to_limit(&File::from(self.open_mappings()?), limit)
    }

    /// Opens `environ` of the process. If there is an opener process, that one opens it.
    pub(crate) fn open_environment(&self) -> Result<OwnedFd, ReadError> {
        match self.ask_opener(ProcessRequest::Environment) {
            Some(opened) => opened?.into_file(),
            None => self.open_file("environ"),
        }
    }

    /// Reads its environment, of at most `limit` bytes.
    pub(crate) fn environment(&self, limit: usize) -> Result<Vec<u8>, ReadError> {
        read_to_limit(&File::from(self.open_environment()?), limit)
    }

    /// Path that a link leads to, in the process's own root. If there is an opener process, that one reads it.
    pub(crate) fn read_process_link(&self, link: ProcessLink) -> Result<PathBuf, ReadError> {
        match self.ask_opener(ProcessRequest::Link(link)) {
            Some(opened) => Ok(PathBuf::from(OsString::from_vec(opened?.content))),
            None => self.read_link(link.name()),
        }
    }

    fn read_link(&self, name: &str) -> Result<PathBuf, ReadError> {
        let target = readlinkat(&self.dir, name, Vec::with_capacity(USUAL_LINK_BYTES))?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    /// Inode of the process's network namespace.
    pub(crate) fn network_namespace_inode(&self) -> Result<u64, ReadError> {
        match self.ask_opener(ProcessRequest::NetworkNamespace) {
            Some(opened) => Ok(opened?.number()),
            None => inode_in_brackets(self.read_link("ns/net")?.as_os_str().as_bytes()).ok_or(ReadError::Gone),
        }
    }

    /// Opens its network namespace for entering.
    pub(crate) fn open_network_namespace(&self) -> Result<OwnedFd, ReadError> {
        self.open_file("ns/net")
    }

    /// Ids of its threads, at most `limit`.
    pub(crate) fn list_threads(&self, limit: usize) -> Result<Listing<u32>, ReadError> {
        list_numeric_names(open_dir(&self.dir, "task")?, limit)
    }

    /// Reads a file about a thread. If there is an opener process, that one reads it. Without the right to trace the thread, the file shows
    /// nothing.
    pub(crate) fn read_thread_file(&self, tid: u32, file: ThreadFile) -> Result<Vec<u8>, ReadError> {
        match self.ask_opener(ProcessRequest::ThreadFile { tid, file }) {
            Some(opened) => Ok(opened?.content),
            None => self.read(&format!("task/{tid}/{}", file.name()), MAX_THREAD_FILE_BYTES),
        }
    }

    /// The sockets of the process, and whether it uses `io_uring`. Reads at most `max_descriptors`.
    pub(crate) fn list_sockets_and_io_urings(
        &self,
        max_descriptors: usize,
    ) -> Result<Listing<OpenDescriptor>, ReadError> {
        let limit_u32 = u32::try_from(max_descriptors).unwrap_or(u32::MAX);
        if let Some(opened) = self.ask_opener(ProcessRequest::Descriptors { limit: limit_u32 }) {
            return listing_of_reply(&opened?);
        }
        let fds = list_numeric_names(open_dir(&self.dir, "fd")?, max_descriptors)?;
        let found = fds.items.into_iter().filter_map(|fd| {
            // A descriptor that was closed since the listing is skipped.
            let target = self.read_link(&format!("fd/{fd}")).ok()?;
            parse_descriptor(fd, &target)
        });
        Ok(Listing { items: found.collect(), is_truncated: fds.is_truncated })
    }

    /// The sockets of the process. Reads at most `max_descriptors`.
    pub(crate) fn list_sockets(&self, max_descriptors: usize) -> Result<Listing<SocketDescriptor>, ReadError> {
        let descriptors = self.list_sockets_and_io_urings(max_descriptors)?;
        let sockets = descriptors.items.into_iter().filter_map(|descriptor| match descriptor {
            OpenDescriptor::Socket { fd, inode } => Some(SocketDescriptor { fd, inode }),
            OpenDescriptor::IoUring => None,
        });
        Ok(Listing { items: sockets.collect(), is_truncated: descriptors.is_truncated })
    }

    /// Opens a mapped library. Opens it by its path if that still leads to the same file. Otherwise opens it by `map_files`, for which a
    /// capability is needed.
    pub(crate) fn open_library(&self, file: &MappedFile) -> Result<RegularFile, ReadError> {
        // The device is not compared, since overlayfs shows different ones in `maps` and `stat`.
        let expected = ExpectedFile { inode: Some(file.inode), ..ExpectedFile::ANY };
        let AddressRange { start, end } = file.range;
        if let Some(opened) = self.ask_opener(ProcessRequest::Library { start, end }) {
            return opened?.into_regular_file(expected);
        }
        // Another file may have the path of a deleted one.
        if !file.is_deleted {
            let by_path = self.own_root()?.open_regular(&file.path, expected);
            // If this process may not read the file, it may not read it through `map_files` either.
            if matches!(by_path, Ok(_) | Err(ReadError::Denied)) {
                return by_path;
            }
        }
        self.open_mapped(file.range)
    }

    /// Opens a mapped file by its address range, even if it has been deleted. Needs `CAP_SYS_ADMIN`, or `CAP_CHECKPOINT_RESTORE` since
    /// Linux 5.9.
    fn open_mapped(&self, AddressRange { start, end }: AddressRange) -> Result<RegularFile, ReadError> {
        RegularFile::open_at(&self.dir, format!("map_files/{start:x}-{end:x}"), ExpectedFile::ANY)
    }

    /// Opens the file that the process has as standard output (1) or error (2).
    pub(crate) fn open_output(&self, descriptor: u32) -> Result<RegularFile, ReadError> {
        match self.ask_opener(ProcessRequest::Output { descriptor }) {
            Some(opened) => opened?.into_regular_file(ExpectedFile::ANY),
            None => RegularFile::open_by_process(&self.dir, descriptor),
        }
    }

    /// Status of the file that the process has as standard output (1) or error (2).
    pub(crate) fn output_status(&self, descriptor: u32) -> Result<FileStatus, ReadError> {
        match self.ask_opener(ProcessRequest::OutputStatus { descriptor }) {
            Some(opened) => Ok(FileStatus::from_numbers(opened?.numbers)),
            None => Ok(FileStatus::from_stat(&statat(&self.dir, format!("fd/{descriptor}"), AtFlags::empty())?)),
        }
    }

    /// The process's own root directory. If there is an opener process, that one opens the files in it.
    pub(crate) fn root(&self) -> Result<ProcessRoot<'_>, ReadError> {
        match self.opener {
            Some(_) => Ok(ProcessRoot::Remote(self)),
            None => self.own_root().map(ProcessRoot::Local),
        }
    }

    fn own_root(&self) -> Result<ForeignRoot, ReadError> {
        ForeignRoot::of_proc_dir(&self.dir)
    }

    /// Identity of a mapped file, by its address range. Needs `CAP_SYS_ADMIN` or `CAP_CHECKPOINT_RESTORE`.
    pub(crate) fn identify_mapped_file(
        &self,
        AddressRange { start, end }: AddressRange,
    ) -> Result<CachedIdentity, ReadError> {
        Ok(CachedIdentity::of_entry(&self.dir, format!("map_files/{start:x}-{end:x}"))?)
    }
}

impl AsFd for ProcDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }
}

/// An open socket of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketDescriptor {
    pub(crate) fd: u32,
    pub(crate) inode: u64,
}

/// Identity and size of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStatus {
    /// Device.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size_bytes: u64,
}

impl FileStatus {
    pub(crate) fn from_stat(status: &Stat) -> Self {
        let size_bytes = u64::try_from(status.st_size).unwrap_or(0);
        Self { device: status.st_dev, inode: status.st_ino, size_bytes }
    }

    pub(crate) const fn from_numbers([device, inode, size_bytes]: [u64; 3]) -> Self {
        Self { device, inode, size_bytes }
    }

    pub(crate) const fn to_numbers(self) -> [u64; 3] {
        [self.device, self.inode, self.size_bytes]
    }
}

/// The root directory of a process, of which only files with the release of a package, tokenizers and names of packages are read.
pub(crate) enum ProcessRoot<'a> {
    /// Opened by this process.
    Local(ForeignRoot),
    /// Reached through the opener.
    Remote(&'a ProcDir),
}

impl ProcessRoot<'_> {
    /// Opens the regular file at a path in this root. An opener process opens only files with metadata of packages or models.
    pub(crate) fn open_metadata(&self, path: &Path) -> Result<RegularFile, ReadError> {
        match self {
            Self::Local(root) => root.open_regular(path, ExpectedFile::ANY),
            Self::Remote(process) => {
                let request = ProcessRequest::MetadataFile(path_from_root(path)?);
                process.require_opener(request)?.into_regular_file(ExpectedFile::ANY)
            }
        }
    }

    /// Reads a regular file of at most `limit` bytes.
    pub(crate) fn read(&self, path: &Path, limit: usize) -> Result<Vec<u8>, ReadError> {
        self.open_metadata(path)?.read(limit)
    }

    /// Names in a folder, of which at most `max_names` are read. An opener process returns only those of packages.
    pub(crate) fn package_names(&self, folder: &Path, max_names: usize) -> Result<Vec<OsString>, ReadError> {
        match self {
            Self::Local(root) => root.list_names(folder, max_names),
            Self::Remote(process) => {
                let request = ProcessRequest::PackageNames(path_from_root(folder)?);
                let opened = process.require_opener(request)?;
                // The names are separated by NUL.
                let names = opened.content.split(|&byte| byte == 0).filter(|name| !name.is_empty());
                Ok(names.map(|name| OsStr::from_bytes(name).to_owned()).collect())
            }
        }
    }
}

/// The path in the form that a request needs. A relative path begins at the root. An error if it does not fit a request.
fn path_from_root(path: &Path) -> Result<PathBuf, ReadError> {
    let path = Path::new("/").join(path);
    if fits_request(&path) { Ok(path) } else { Err(ReadError::Gone) }
}

/// Kind of a descriptor, by the target of its link in `/proc/PID/fd`. `None` if it is neither a socket nor `io_uring`.
fn parse_descriptor(fd: u32, target: &Path) -> Option<OpenDescriptor> {
    let name = target.as_os_str().as_bytes();
    if name == b"anon_inode:[io_uring]" {
        return Some(OpenDescriptor::IoUring);
    }
    if !name.starts_with(b"socket:") {
        return None;
    }
    Some(OpenDescriptor::Socket { fd, inode: inode_in_brackets(name)? })
}

fn open_dir(at: impl AsFd, path: impl Arg) -> Result<OwnedFd, ReadError> {
    Ok(openat(at, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// The descriptors in the opener's reply, whose number is 1 if the list is truncated.
fn listing_of_reply(reply: &OpenerReply) -> Result<Listing<OpenDescriptor>, ReadError> {
    let items = decode_message(&reply.content).ok_or(ReadError::Os(Errno::PROTO))?;
    Ok(Listing { items, is_truncated: reply.number() != 0 })
}

/// Lists the numeric names in a directory, at most `max_numbers`.
fn list_numeric_names(dir: OwnedFd, max_numbers: usize) -> Result<Listing<u32>, ReadError> {
    let mut items = Vec::new();
    for entry in Dir::new(dir)? {
        let entry = entry?;
        let name = std::str::from_utf8(entry.file_name().to_bytes());
        // Names that are no numbers are not processes, threads or descriptors.
        let Some(number) = name.ok().and_then(|name| name.parse().ok()) else { continue };
        if items.len() == max_numbers {
            return Ok(Listing { items, is_truncated: true });
        }
        items.push(number);
    }
    Ok(Listing { items, is_truncated: false })
}

/// Inode in a link such as `socket:[123]` or `net:[4026531840]`.
fn inode_in_brackets(name: &[u8]) -> Option<u64> {
    let (_kind, rest) = std::str::from_utf8(name).ok()?.split_once('[')?;
    rest.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_current_process() {
        let me = ProcDir::open(std::process::id()).unwrap();
        assert_eq!(me.read_process_link(ProcessLink::Program).unwrap(), std::env::current_exe().unwrap());
        assert!(me.network_namespace_inode().unwrap() > 0);
        assert_eq!(me.read("cmdline", 1), Err(ReadError::TooLong(1)));
        assert_eq!(me.read("no-such-file", 1), Err(ReadError::Gone));
    }

    #[test]
    fn finds_its_own_socket() {
        let (a, _b) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&a) as u32;
        let me = ProcDir::open(std::process::id()).unwrap();
        let sockets = me.list_sockets(100_000).unwrap();
        assert!(sockets.items.iter().any(|socket| socket.fd == fd && socket.inode > 0));
        assert!(!sockets.is_truncated);
    }

    #[test]
    fn reads_of_an_exited_process_fail_as_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dir = ProcDir::open(child.id()).unwrap();
        child.wait().unwrap();
        assert_eq!(dir.read("stat", 4096), Err(ReadError::Gone));
    }

    #[test]
    fn namespace_links_give_their_inode() {
        assert_eq!(inode_in_brackets(b"net:[4026531840]"), Some(4_026_531_840));
        assert_eq!(inode_in_brackets(b"/dev/null"), None);
        assert_eq!(inode_in_brackets(b"socket:[x]"), None);
    }
}
