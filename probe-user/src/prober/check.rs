//! Checks that a requested set of probe points belongs to a library of a process that uses `ZeroMQ`: the process executes code of this very
//! file, under a name that the set belongs to.

use std::ffi::OsStr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use foreign::CachedIdentity;

use crate::discover::libzmq::is_libzmq_name;
use crate::library::{MAX_MAPS_BYTES, is_libc_name, is_libssl_name};
use crate::proc::ProcDir;
use crate::proc::maps::{ExecutableMapping, executable_mappings};
use crate::programs::{Batch, PointSet};
use adapter::discover::InnerServer;

/// Number of [`crate::locator::Sought::Functions`] in requests for an analysis.
const SOUGHT_FUNCTIONS: u32 = 0;

/// The code of a library that a process executes.
#[derive(Debug, PartialEq)]
pub(super) struct LibraryCode {
    pub(super) identity: CachedIdentity,
    /// Number of the server whose extension it is, among all servers; [`SOUGHT_FUNCTIONS`] for other libraries.
    pub(super) sought_number: u32,
    /// File offsets of the executable mappings.
    ranges: Vec<Range<u64>>,
}

impl LibraryCode {
    /// Whether all probe points are in this code.
    pub(super) fn contains(&self, batch: &Batch) -> bool {
        batch.points.iter().all(|(offset, _)| self.ranges.iter().any(|range| range.contains(offset)))
    }
}

/// Identity of an open file. Refuses a file that is not a regular one.
fn identity_of_regular_file(file: BorrowedFd<'_>) -> Result<CachedIdentity, String> {
    let identity = CachedIdentity::of_file(file).map_err(|error| format!("cannot examine the library: {error}"))?;
    if !identity.is_regular {
        return Err(String::from("the library is not a regular file"));
    }
    Ok(identity)
}

/// Checks that process `pid` uses libzmq, and that it has the code of `library` mapped as a library for this set of probe points. Returns
/// the ranges of that code in the file. The error names the violated rule.
pub(super) fn check_library_and_find_code(
    pid: u32,
    set: PointSet,
    library: BorrowedFd<'_>,
    servers: &[InnerServer],
) -> Result<LibraryCode, String> {
    let identity = identity_of_regular_file(library)?;
    let process = ProcDir::open(pid).map_err(|error| format!("process {pid}: {error}"))?;
    let maps = process.mappings(MAX_MAPS_BYTES).map_err(|error| format!("mappings of process {pid}: {error}"))?;
    // Only programs that use ZeroMQ can get probes.
    if !executable_mappings(&maps).any(|mapping| uses_zmq(mapping.path, servers)) {
        return Err(format!("process {pid} has neither libzmq nor an extension of an engine mapped"));
    }
    // `sought_number` says what an analysis must find: functions, or the method of an engine's server.
    let mut code = LibraryCode { identity, sought_number: SOUGHT_FUNCTIONS, ranges: Vec::new() };
    for mapping in executable_mappings(&maps) {
        // Other libraries have none of these probe points.
        let Some(sought_number) = sought_number_in_library(set, mapping.path, servers) else { continue };
        if is_mapping_of_file(&process, &mapping, identity) {
            code.sought_number = sought_number;
            // A library may have its code in several mappings.
            code.ranges.push(mapping.file_range());
        }
    }
    if code.ranges.is_empty() {
        return Err(format!("process {pid} executes no code of this file as a library for these probes"));
    }
    Ok(code)
}

/// Whether this mapping of the process is one of the file. Without the capability to follow the entries of `map_files`, only the inode in
/// `maps` is compared.
fn is_mapping_of_file(process: &ProcDir, mapping: &ExecutableMapping<'_>, file: CachedIdentity) -> bool {
    match process.identify_mapped_file(mapping.range) {
        Ok(mapped) => mapped == file,
        Err(_) => mapping.inode == file.inode,
    }
}

/// Whether this is the name of a libzmq, or of an extension with a server.
fn uses_zmq(path: &[u8], servers: &[InnerServer]) -> bool {
    is_libzmq_name(file_name(path)) || server_number_of_extension(path, servers).is_some()
}

/// Number of what an analysis must find in the library with this path, for this set of probe points. The number is that of
/// [`crate::locator::sought_by_number`]: 0 stands for functions. `None` if the set does not belong to this library.
fn sought_number_in_library(set: PointSet, path: &[u8], servers: &[InnerServer]) -> Option<u32> {
    let name = file_name(path);
    match set {
        PointSet::Messages(_) => is_libzmq_name(name).then_some(SOUGHT_FUNCTIONS),
        PointSet::Polls { .. } | PointSet::Accepts => is_libc_name(name).then_some(SOUGHT_FUNCTIONS),
        PointSet::Tls => is_libssl_name(name).then_some(SOUGHT_FUNCTIONS),
        PointSet::Method => server_number_of_extension(path, servers),
    }
}

/// Number of the server that the extension with this path contains. It is counted from 1, because 0 stands for functions instead of a
/// server's method. `None` if it is no such extension.
fn server_number_of_extension(path: &[u8], servers: &[InnerServer]) -> Option<u32> {
    let path = Path::new(OsStr::from_bytes(path));
    let index = servers.iter().position(|server| (server.is_extension)(path))?;
    u32::try_from(index + 1).ok()
}

/// Last part of a path; empty if there is none.
fn file_name(path: &[u8]) -> &[u8] {
    Path::new(OsStr::from_bytes(path)).file_name().map_or(b"", OsStr::as_bytes)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use probe_ebpf::{Cookie, ProbePoint};

    use super::*;
    use crate::library::open_libc;
    use crate::programs::{MessagePoints, POLL_ENTERED};
    use adapter::discover::{Function, Role};

    const POLLS: PointSet = PointSet::Polls { with_returns: false };

    /// This process has no libzmq. Its own program stands for an extension.
    fn own_server() -> [InnerServer; 1] {
        let is_extension = |path: &Path| std::env::current_exe().is_ok_and(|own| own == path);
        [InnerServer { role: Role::new(0, "server", Function::Receiver), is_extension, methods: &["push"] }]
    }

    fn own_libc() -> File {
        open_libc(std::process::id()).unwrap().remove(0).file.into_file()
    }

    fn polls(offset: u64) -> Batch {
        let points = vec![(offset, Cookie::new(ProbePoint::Poll, 3))];
        Batch { program: POLL_ENTERED, is_at_returns: false, points }
    }

    #[test]
    fn only_offsets_in_the_code_of_a_mapped_library_are_accepted() {
        let file = own_libc();
        let us = std::process::id();
        let code = check_library_and_find_code(us, POLLS, file.as_fd(), &own_server()).unwrap();
        assert_eq!(code.sought_number, 0);
        let offset = code.ranges[0].start;
        assert!(code.contains(&polls(offset + 64)));
        assert!(!code.contains(&polls(u64::MAX)) && !code.contains(&polls(0)), "outside the code");
        let other = check_library_and_find_code(us, POLLS, file.as_fd(), &[]).unwrap_err();
        assert!(other.contains("neither libzmq"), "{other}");
        let own = File::open("/proc/self/exe").unwrap();
        assert_eq!(
            check_library_and_find_code(us, PointSet::Method, own.as_fd(), &own_server()).unwrap().sought_number,
            1
        );
    }

    #[test]
    fn other_files_and_processes_are_refused() {
        let file = own_libc();
        let us = std::process::id();
        let refused =
            |pid, set, file: &File| check_library_and_find_code(pid, set, file.as_fd(), &own_server()).unwrap_err();
        let exe = File::open("/proc/self/exe").unwrap();
        assert!(refused(us, POLLS, &exe).contains("executes no code"));
        let copy = tempfile::NamedTempFile::new().unwrap();
        assert!(refused(us, POLLS, copy.as_file()).contains("executes no code"));
        assert!(refused(u32::MAX, POLLS, &file).contains("not there"));
        let socket = std::os::unix::net::UnixStream::pair().unwrap().0;
        let special = check_library_and_find_code(us, POLLS, socket.as_fd(), &own_server()).unwrap_err();
        assert!(special.contains("regular"), "{special}");
        // Sets of other libraries.
        let messages = PointSet::Messages(MessagePoints { processed: true, buffers: false });
        for set in [messages, PointSet::Tls, PointSet::Method] {
            assert!(refused(us, set, &file).contains("executes no code"), "{set:?}");
        }
    }
}
