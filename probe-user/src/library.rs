//! The libzmq, libc and libssl files that a process has mapped, held open, and whether a libzmq's code is understood.

use std::collections::HashSet;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use adapter::discover::{EngineKind, InnerServer, Release};
use foreign::RegularFile;
use memchr::memmem;

use crate::discover::LibZmq;
use crate::discover::libzmq;
use crate::helper::{self, Helper};
use crate::probe_points::{self, Known, REMEMBERED, Sought};
use crate::proc::maps::{self, MappedFile};
use crate::proc::{ProcDir, ReadError};
use crate::programs::{MessagePoints, PointSet};

/// Maximum size of `/proc/PID/maps` in bytes, enough for tens of thousands of mapped files.
pub(crate) const LONGEST_MAPS: usize = 16 << 20;

/// Maximum number of files that a process may have mapped in place of one library. Each is held open.
const LARGEST_SET: usize = 8;

/// A library that a process has mapped.
#[derive(Debug)]
pub(crate) struct Library {
    /// The mapped file itself.
    pub(crate) file: RegularFile,
    /// Its path in the process's own root, for messages only.
    pub(crate) path: PathBuf,
    /// Whether plain buffers may be sent or received through it (`zmq_send`). pyzmq always uses messages (`zmq_msg_send`).
    pub(crate) buffers: bool,
}

/// The mapped files that contain libzmq.
pub(crate) fn libzmq(pid: u32) -> Result<Vec<Library>, ReadError> {
    let (process, files) = mapped(pid)?;
    let mut libraries = open_all(&process, &libzmq::mapped(&files))?;
    for library in &mut libraries {
        let file = files.iter().find(|file| file.path == library.path);
        library.buffers = file.is_none_or(|file| !of_pyzmq(file, &files));
    }
    Ok(libraries)
}

/// The mapped C library: glibc's `libc.so.6` (`libc-2.31.so` before 2.34) or musl's `ld-musl-<machine>.so.1`.
pub(crate) fn libc(pid: u32) -> Result<Vec<Library>, ReadError> {
    named(pid, is_libc_name)
}

pub(crate) fn is_libc_name(name: &[u8]) -> bool {
    name == b"libc.so.6" || name.starts_with(b"libc-2.") || name.starts_with(b"ld-musl-")
}

/// The mapped extension of an engine's inner server.
pub(crate) fn extension(pid: u32, server: &InnerServer) -> Result<Option<Library>, ReadError> {
    let (process, files) = mapped(pid)?;
    let found = files.iter().find(|file| (server.is_extension)(&file.path));
    found.map(|file| open_library(&process, file)).transpose()
}

/// The mapped files of OpenSSL: `libssl.so.3` from a distribution, `libssl-<hash>.so.3` from a wheel.
pub(crate) fn libssl(pid: u32) -> Result<Vec<Library>, ReadError> {
    named(pid, is_libssl_name)
}

pub(crate) fn is_libssl_name(name: &[u8]) -> bool {
    name.starts_with(b"libssl") && memmem::find(name, b".so").is_some()
}

fn named(pid: u32, is_it: impl Fn(&[u8]) -> bool) -> Result<Vec<Library>, ReadError> {
    let (process, files) = mapped(pid)?;
    let found: Vec<&MappedFile> = files.iter().filter(|file| is_it(file.name())).collect();
    open_all(&process, &found)
}

fn mapped(pid: u32) -> Result<(ProcDir, Vec<MappedFile>), ReadError> {
    let process = ProcDir::of(pid)?;
    let files = maps::files(&process.mappings(LONGEST_MAPS)?);
    Ok((process, files))
}

fn open_all(process: &ProcDir, files: &[&MappedFile]) -> Result<Vec<Library>, ReadError> {
    if files.len() > LARGEST_SET {
        return Err(ReadError::TooMany(LARGEST_SET));
    }
    files.iter().map(|file| open_library(process, file)).collect()
}

fn open_library(process: &ProcDir, file: &MappedFile) -> Result<Library, ReadError> {
    Ok(Library { file: process.open_library(file)?, path: file.path.clone(), buffers: false })
}

/// Whether only pyzmq uses this file: it is in the wheel's `pyzmq.libs`, or linked into its module, and the module is loaded.
fn of_pyzmq(file: &MappedFile, files: &[MappedFile]) -> bool {
    let has = |file: &MappedFile, part: &str| {
        memmem::find(file.path.as_os_str().as_encoded_bytes(), part.as_bytes()).is_some()
    };
    let module = "/zmq/backend/";
    has(file, module) || has(file, "/pyzmq.libs/") && files.iter().any(|file| has(file, module))
}

/// Reads the libraries that probes need before a process is probed. The first read of a file may take long, or for ever on a file system
/// that does not answer.
#[derive(Debug, Default)]
pub struct LibraryReader(HashSet<(u64, u64)>);

impl LibraryReader {
    /// Reads the libraries of this process. Those that cannot be read are reported when the process is probed.
    pub fn read(&mut self, pid: u32, inner_server: Option<EngineKind>) {
        let messages = PointSet::Messages(MessagePoints { processed: true, buffers: false });
        let polls = PointSet::Polls { with_returns: false };
        for (found, set) in [(libzmq(pid), messages), (libc(pid), polls), (libssl(pid), PointSet::Tls)] {
            for library in found.into_iter().flatten() {
                self.read_once(pid, &library, set);
            }
        }
        let server = inner_server.and_then(|engine| engine.inner_server());
        if let Some(server) = server
            && let Ok(Some(library)) = extension(pid, &server)
        {
            self.read_once(pid, &library, PointSet::Method);
        }
    }

    fn read_once(&mut self, pid: u32, library: &Library, set: PointSet) {
        if self.0.len() == REMEMBERED {
            self.0.clear();
        }
        if !self.0.insert((library.file.device, library.file.inode)) {
            return;
        }
        let read = probe_points::read(&library.file).map(drop).map_err(|error| error.to_string());
        let analyse =
            |helper: &Helper| helper.analyse(pid, set, library.file.as_fd()).map_err(|error| error.to_string());
        if let Err(error) = read.and_then(|()| helper::connected().map_or(Ok(()), analyse)) {
            tracing::debug!("pid {pid}: {}: {error}", library.path.display());
        }
    }
}

/// How the probe can attach to a libzmq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeSupport {
    /// A receive and a refused send are each observed at a single point; otherwise at entry and return.
    pub single_points: bool,
    /// Whether its release has the known message layout (4.2.5 to 4.3.5); `None` if the file name does not contain the release.
    pub layout: Option<bool>,
}

/// Analyses the code of a libzmq that process `pid` has mapped. The error names a missing file or symbol.
pub fn understood(pid: u32, libzmq: &LibZmq) -> Result<CodeSupport, String> {
    let (process, files) = mapped(pid).map_err(|error| format!("cannot read its mapped files: {error}"))?;
    let file = files.iter().find(|file| file.path == libzmq.path).ok_or("it is no longer mapped")?;
    let library = open_library(&process, file).map_err(|error| format!("cannot open its file: {error}"))?;
    let failed = |error| format!("{}: {error}", library.path.display());
    let probe_points = Known::default().find(Sought::Functions, &library.file).map_err(failed)?;
    for symbol in ["zmq_msg_send", "zmq_msg_recv", "zmq_getsockopt"] {
        probe_points.entry(symbol).map_err(failed)?;
    }
    let known = |release: Release| ([4, 2, 5]..=[4, 3, 5]).contains(&release.number);
    Ok(CodeSupport {
        single_points: probe_points.received.is_some() && probe_points.refused.is_some(),
        layout: libzmq.release.map(known),
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
        let files = maps::files(WHEEL.as_bytes());
        let found = libzmq::mapped(&files);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].name(), b"libzmq-2f02442c.so.5.2.5");
        assert!(of_pyzmq(found[0], &files));
        // Another module calls this library, in an unknown way.
        let other = maps::files(WHEEL.replace("/zmq/backend/", "/other/").as_bytes());
        assert!(!of_pyzmq(found[0], &other));
    }

    #[test]
    fn a_module_with_libzmq_linked_in_is_chosen() {
        let module = WHEEL.lines().nth(2).expect("the module's line");
        let files = maps::files(module.as_bytes());
        assert_eq!(libzmq::mapped(&files)[0].name(), b"_zmq.abi3.so");
    }

    #[test]
    fn the_c_library_of_this_process_can_be_opened() {
        let found = libc(std::process::id()).expect("our own maps are readable");
        assert!(!found.is_empty() && found.iter().all(|library| library.file.size_bytes > 0));
    }
}
