//! The libzmq, libc and libssl files that a process has mapped, held open, and whether a libzmq's code is understood.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use adapter::discover::{EngineKind, InnerServer};
use foreign::RegularFile;
use memchr::memmem;
use trace::engine::Version;

use crate::discover::LibZmq;
use crate::discover::libzmq;
use crate::helper;
use crate::probe_points::{MAX_CACHED, ProbePointCache, Sought, read_library_file};
use crate::proc::maps::{self, MappedFile};
use crate::proc::{ProcDir, ReadError};
use crate::programs::{MessagePoints, PointSet};

/// Maximum size of `/proc/PID/maps` in bytes, enough for tens of thousands of mapped files.
pub(crate) const MAX_MAPS_BYTES: usize = 16 << 20;

/// Maximum number of files that a process may have mapped in place of one library. Each is held open.
const MAX_FILES_PER_LIBRARY: usize = 8;

/// A library that a process has mapped.
#[derive(Debug)]
pub(crate) struct Library {
    /// The mapped file itself.
    pub(crate) file: RegularFile,
    /// Its path in the process's own root, for messages only.
    pub(crate) path: PathBuf,
    /// Whether plain buffers may be sent or received through it (`zmq_send`). pyzmq always uses messages (`zmq_msg_send`).
    pub(crate) may_use_buffers: bool,
}

/// Opens the files with libzmq that the process has mapped.
pub(crate) fn open_libzmq(pid: u32) -> Result<Vec<Library>, ReadError> {
    let MappedFiles { process, files } = MappedFiles::read(pid)?;
    let libzmq_files = libzmq::mapped_libzmq_files(&files);
    let mut libraries = open_libraries(&process, &libzmq_files)?;
    // pyzmq sends and receives message structs only. Other users may pass plain buffers (`zmq_send`), which need further probes.
    for (library, file) in libraries.iter_mut().zip(libzmq_files) {
        library.may_use_buffers = !is_used_by_pyzmq_only(file, &files);
    }
    Ok(libraries)
}

/// The mapped C library: glibc's `libc.so.6` (`libc-2.31.so` before 2.34) or musl's `ld-musl-<machine>.so.1`.
pub(crate) fn open_libc(pid: u32) -> Result<Vec<Library>, ReadError> {
    open_libraries_named(pid, is_libc_name)
}

/// Whether a file with this name is the C library.
pub(crate) fn is_libc_name(name: &[u8]) -> bool {
    name == b"libc.so.6" || name.starts_with(b"libc-2.") || name.starts_with(b"ld-musl-")
}

/// Opens the mapped Python extension that contains `server`, which is an engine's server inside this process. `None` if the process has
/// mapped none.
pub(crate) fn open_extension(pid: u32, server: &InnerServer) -> Result<Option<Library>, ReadError> {
    let MappedFiles { process, files } = MappedFiles::read(pid)?;
    let extension = files.iter().find(|file| (server.is_extension)(&file.path));
    match extension {
        Some(file) => open_library(&process, file).map(Some),
        None => Ok(None),
    }
}

/// The mapped files of OpenSSL: `libssl.so.3` from a distribution, `libssl-<hash>.so.3` from a wheel.
pub(crate) fn open_libssl(pid: u32) -> Result<Vec<Library>, ReadError> {
    open_libraries_named(pid, is_libssl_name)
}

/// Whether a file with this name is OpenSSL's `libssl`.
pub(crate) fn is_libssl_name(name: &[u8]) -> bool {
    name.starts_with(b"libssl") && memmem::find(name, b".so").is_some()
}

/// Opens all mapped files of the process whose names `is_wanted` recognises.
fn open_libraries_named(pid: u32, is_wanted: impl Fn(&[u8]) -> bool) -> Result<Vec<Library>, ReadError> {
    let MappedFiles { process, files } = MappedFiles::read(pid)?;
    let wanted: Vec<&MappedFile> = files.iter().filter(|file| is_wanted(file.name())).collect();
    open_libraries(&process, &wanted)
}

/// The files that a process has mapped.
struct MappedFiles {
    process: ProcDir,
    files: Vec<MappedFile>,
}

impl MappedFiles {
    /// Reads the list of files that process `pid` has mapped.
    fn read(pid: u32) -> Result<Self, ReadError> {
        let process = ProcDir::open(pid)?;
        let files = maps::parse_mapped_files(&process.mappings(MAX_MAPS_BYTES)?);
        Ok(Self { process, files })
    }
}

/// Opens these mapped files of the process in their order. An error if there are too many.
fn open_libraries(process: &ProcDir, files: &[&MappedFile]) -> Result<Vec<Library>, ReadError> {
    // A process may map files of any name.
    if files.len() > MAX_FILES_PER_LIBRARY {
        return Err(ReadError::TooMany(MAX_FILES_PER_LIBRARY));
    }
    files.iter().map(|file| open_library(process, file)).collect()
}

/// Opens a mapped file. Whether plain buffers may be used is decided by the caller.
fn open_library(process: &ProcDir, file: &MappedFile) -> Result<Library, ReadError> {
    Ok(Library { file: process.open_library(file)?, path: file.path.clone(), may_use_buffers: false })
}

/// Whether only pyzmq uses this file. That is so for pyzmq's module with libzmq linked in. It is also so for the wheel's `pyzmq.libs`, if
/// the module is among the `mapped_files`.
fn is_used_by_pyzmq_only(file: &MappedFile, mapped_files: &[MappedFile]) -> bool {
    const MODULE: &str = "/zmq/backend/";
    if path_contains(file, MODULE) {
        return true;
    }
    let is_in_wheel = path_contains(file, "/pyzmq.libs/");
    is_in_wheel && mapped_files.iter().any(|mapped| path_contains(mapped, MODULE))
}

fn path_contains(file: &MappedFile, part: &str) -> bool {
    memmem::find(file.path.as_os_str().as_encoded_bytes(), part.as_bytes()).is_some()
}

/// Reads the libraries that probes need before a process is probed. The first read of a file may take long, or for ever on a file system
/// that does not answer.
#[derive(Debug, Default)]
pub struct LibraryReader {
    /// Files that were read.
    read_files: HashSet<LibraryFileId>,
}

/// Identity of a library's file.
#[derive(Debug, PartialEq, Eq, Hash)]
struct LibraryFileId {
    device: u64,
    inode: u64,
}

impl LibraryReader {
    /// Reads and analyses the libraries of process `pid` in advance, so that its probes can be attached without delay. Those that cannot be
    /// read are reported when the process is probed.
    pub fn read_and_analyse_libraries_of(&mut self, pid: u32, inner_server: Option<EngineKind>) {
        // Every analysis finds all points, so the flags that select among them do not matter here.
        let messages = PointSet::Messages(MessagePoints { processed: true, buffers: false });
        let polls = PointSet::Polls { with_returns: false };
        for library in open_libzmq(pid).unwrap_or_default() {
            self.read_and_analyse_if_new(pid, &library, messages);
        }
        for library in open_libc(pid).unwrap_or_default() {
            self.read_and_analyse_if_new(pid, &library, polls);
        }
        for library in open_libssl(pid).unwrap_or_default() {
            self.read_and_analyse_if_new(pid, &library, PointSet::Tls);
        }
        if let Some(server) = inner_server.and_then(|engine| engine.inner_server())
            && let Ok(Some(library)) = open_extension(pid, &server)
        {
            self.read_and_analyse_if_new(pid, &library, PointSet::Method);
        }
    }

    /// Reads and analyses a library whose file has not been read yet. The results fill the caches of the kernel and of the helper.
    fn read_and_analyse_if_new(&mut self, pid: u32, library: &Library, set: PointSet) {
        // At the limit, all files are forgotten. They are then read again, which costs time only.
        if self.read_files.len() == MAX_CACHED {
            self.read_files.clear();
        }
        let id = LibraryFileId { device: library.file.device, inode: library.file.inode };
        let is_new = self.read_files.insert(id);
        if !is_new {
            return;
        }
        // The error is reported when the process is probed.
        if let Err(error) = read_and_analyse(pid, library, set) {
            tracing::debug!("pid {pid}: {}: {error}", library.path.display());
        }
    }
}

/// Reads a library's file, and has the helper analyse it, if there is one.
fn read_and_analyse(pid: u32, library: &Library, set: PointSet) -> Result<(), String> {
    // The content is dropped: reading it brings the file into the page cache.
    read_library_file(&library.file).map_err(|error| error.to_string())?;
    if let Some(helper) = helper::connected_helper() {
        helper.analyse_library(pid, set, library.file.as_fd()).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Releases of libzmq with the message layout that the kernel side reads.
const KNOWN_LAYOUT_RELEASES: RangeInclusive<Version> = Version::new(4, 2, 5)..=Version::new(4, 3, 5);

/// How the probe can attach to a libzmq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeSupport {
    /// A receive and a refused send are each observed at a single point; otherwise at entry and return.
    pub has_single_points: bool,
    /// Whether its release has the known message layout (4.2.5 to 4.3.5); `None` if the file name does not contain the release.
    pub has_known_layout: Option<bool>,
}

/// Analyses the code of a libzmq that process `pid` has mapped. Returns whether it has the optional probe points, and whether its layout is
/// known. The error names a missing file or symbol.
pub fn analyse_libzmq(pid: u32, libzmq: &LibZmq) -> Result<CodeSupport, String> {
    let MappedFiles { process, files } =
        MappedFiles::read(pid).map_err(|error| format!("cannot read its mapped files: {error}"))?;
    let file = files.iter().find(|file| file.path == libzmq.path).ok_or("it is no longer mapped")?;
    let library = open_library(&process, file).map_err(|error| format!("cannot open its file: {error}"))?;
    let path = library.path.display();
    let probe_points = ProbePointCache::default().find_in_library(Sought::Functions, &library.file);
    let probe_points = probe_points.map_err(|error| format!("{path}: {error}"))?;
    // Without these functions, no message can be observed.
    for symbol in ["zmq_msg_send", "zmq_msg_recv", "zmq_getsockopt"] {
        probe_points.entry_offset_of(symbol).map_err(|error| format!("{path}: {error}"))?;
    }
    // `received` and `refused` are single points inside the functions, found only in code of a known form.
    Ok(CodeSupport {
        has_single_points: probe_points.received.is_some() && probe_points.refused.is_some(),
        has_known_layout: libzmq.release.map(|release| KNOWN_LAYOUT_RELEASES.contains(&release)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHEEL: &str = "\
7f12c0a00000-7f12c0a21000 r--p 00000000 fe:00 1052 /srv/venv/lib/python3.11/site-packages/pyzmq.libs/libzmq-2f02442c.so.5.2.5
7f12c0a21000-7f12c0ad2000 r-xp 00021000 fe:00 1052 /srv/venv/lib/python3.11/site-packages/pyzmq.libs/libzmq-2f02442c.so.5.2.5
7f12c1000000-7f12c1020000 r-xp 00000000 fe:00 1060 /srv/venv/lib/python3.11/site-packages/zmq/backend/cython/_zmq.abi3.so
7ffd1b5f2000-7ffd1b613000 rw-p 00000000 00:00 0 [stack]
";

    #[test]
    fn the_library_of_the_wheel_is_chosen_over_the_module_that_calls_it() {
        let files = maps::parse_mapped_files(WHEEL.as_bytes());
        let found = libzmq::mapped_libzmq_files(&files);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name(), b"libzmq-2f02442c.so.5.2.5");
        assert!(is_used_by_pyzmq_only(found[0], &files));
        // Another module calls this library, in an unknown way.
        let other = maps::parse_mapped_files(WHEEL.replace("/zmq/backend/", "/other/").as_bytes());
        assert!(!is_used_by_pyzmq_only(found[0], &other));
    }

    #[test]
    fn a_module_with_libzmq_linked_in_is_chosen() {
        let module = WHEEL.lines().nth(2).expect("the module's line");
        let files = maps::parse_mapped_files(module.as_bytes());
        assert_eq!(libzmq::mapped_libzmq_files(&files)[0].name(), b"_zmq.abi3.so");
    }

    #[test]
    fn the_c_library_of_this_process_can_be_opened() {
        let found = open_libc(std::process::id()).expect("our own maps are readable");
        assert!(!found.is_empty() && found.iter().all(|library| library.file.size_bytes > 0));
    }
}
