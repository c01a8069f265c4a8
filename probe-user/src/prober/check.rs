//! Checks that a requested uprobe is one of the probe's: a known program and probe point, in the code of a library of a process that has
//! libzmq or an extension of an engine mapped.
//! Whether an offset begins an instruction is not checked, since that needs a parser of the file.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use foreign::CachedIdentity;
use probe_ebpf::{Cookie, MAX_TARGETS, ProbePoint};

use crate::discover::libzmq::is_libzmq_name;
use crate::library::{LONGEST_MAPS, is_libc_name, is_libssl_name};
use crate::proc::ProcDir;
use crate::proc::maps::{ExecutableMapping, executable_mappings};
use crate::programs::{Batch, POLL_ENTERED, POLL_LEFT, TLS_ENTERED, TLS_RETURNED, ZMQ, ZMQ_RETURNED};

/// Whether a path is an extension with a server inside a process of an engine.
pub type IsExtension = fn(&Path) -> bool;

/// Checks a batch for process `pid`. The error names the violated rule.
pub(super) fn check_batch(
    target: u32,
    pid: u32,
    batch: &Batch,
    library: BorrowedFd<'_>,
    is_extension: IsExtension,
) -> Result<(), String> {
    if target >= MAX_TARGETS {
        return Err(format!("no target has number {target}"));
    }
    let points = permitted_points(batch.program, batch.returns);
    if !batch.points.iter().all(|(_, cookie)| is_cookie_of(*cookie, target, points)) {
        return Err(format!("a cookie is not one of program {} for target {target}", batch.program));
    }
    let file = CachedIdentity::of(library).map_err(|error| format!("cannot examine the library: {error}"))?;
    if !file.is_regular {
        return Err(String::from("the library is not a regular file"));
    }
    let process = ProcDir::of(pid).map_err(|error| format!("process {pid}: {error}"))?;
    let maps = process.mappings(LONGEST_MAPS).map_err(|error| format!("mappings of process {pid}: {error}"))?;
    // A probe inside an instruction would change it. Only programs that use ZeroMQ are exposed to that.
    if !executable_mappings(&maps).any(|mapping| is_library_of(ZMQ, mapping.path, is_extension)) {
        return Err(format!("process {pid} has neither libzmq nor an extension of an engine mapped"));
    }
    let is_this_file = |mapping: &ExecutableMapping<'_>| match process.identify_mapped(mapping.range) {
        Ok(mapped) => mapped == file,
        // Without the capability to follow the entries of `map_files`, the inode in `maps` must do.
        Err(_) => mapping.inode == file.inode,
    };
    let named = |mapping: &ExecutableMapping<'_>| is_library_of(batch.program, mapping.path, is_extension);
    let mappings: Vec<_> = executable_mappings(&maps).filter(named).filter(is_this_file).collect();
    if mappings.is_empty() {
        return Err(format!("process {pid} executes no code of this file as a library of program {}", batch.program));
    }
    let is_code = |offset: u64| mappings.iter().any(|mapping| mapping.file_range().contains(&offset));
    if !batch.points.iter().all(|(offset, _)| is_code(*offset)) {
        return Err(format!("an offset is outside the code of the file in process {pid}"));
    }
    Ok(())
}

/// Probe points of a program.
fn permitted_points(program: &str, returns: bool) -> &'static [ProbePoint] {
    use ProbePoint::{
        BufferRecv, BufferRecvReturn, BufferSend, Epoll, EpollReturn, Method, MethodReturn, Option, OptionAsked, Poll,
        Received, Recv, RecvReturn, Refused, Send, SendReturn, TlsFree, TlsWrite, TlsWriteEx, Waits,
    };
    match (program, returns) {
        (ZMQ, false) => &[Send, BufferSend, Recv, BufferRecv, Option, Received, Refused, OptionAsked, Waits, Method],
        (ZMQ_RETURNED, true) => &[RecvReturn, BufferRecvReturn, SendReturn, MethodReturn],
        (POLL_ENTERED, false) => &[Poll, Epoll],
        (POLL_LEFT, true) => &[EpollReturn],
        (TLS_ENTERED, false) => &[TlsWrite, TlsWriteEx, TlsFree],
        (TLS_RETURNED, true) => &[TlsWrite, TlsWriteEx],
        _ => &[],
    }
}

fn is_cookie_of(cookie: Cookie, target: u32, points: &[ProbePoint]) -> bool {
    let point = cookie.0 as u8;
    (cookie.0 >> 8) as u16 == target as u16 && points.iter().any(|permitted| *permitted as u8 == point)
}

/// Whether the program belongs into a file with this path.
fn is_library_of(program: &str, path: &[u8], is_extension: IsExtension) -> bool {
    let path = Path::new(OsStr::from_bytes(path));
    let name = path.file_name().map_or(&b""[..], OsStr::as_bytes);
    match program {
        ZMQ | ZMQ_RETURNED => is_libzmq_name(name) || is_extension(path),
        POLL_ENTERED | POLL_LEFT => is_libc_name(name),
        TLS_ENTERED | TLS_RETURNED => is_libssl_name(name),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::library::libc;

    fn never(_: &Path) -> bool {
        false
    }

    /// This process has no libzmq. Its own program stands for an extension.
    fn is_own_program(path: &Path) -> bool {
        std::env::current_exe().is_ok_and(|own| own == path)
    }

    fn polls(target: u32, offset: u64) -> Batch {
        let points = vec![(offset, Cookie::new(ProbePoint::Poll, target))];
        Batch { program: POLL_ENTERED, returns: false, points }
    }

    /// The C library of this process, and a file offset in its code.
    fn own_libc() -> (File, u64) {
        let library = libc(std::process::id()).unwrap().remove(0);
        let maps = std::fs::read("/proc/self/maps").unwrap();
        let is_libc = |mapping: &ExecutableMapping<'_>| is_library_of(POLL_ENTERED, mapping.path, never);
        let offset = executable_mappings(&maps).find(is_libc).unwrap().file_range().start;
        (library.file.into_file(), offset)
    }

    #[test]
    fn a_probe_point_in_the_code_of_a_mapped_library_is_accepted() {
        let (file, offset) = own_libc();
        let us = std::process::id();
        assert_eq!(check_batch(3, us, &polls(3, offset + 64), file.as_fd(), is_own_program), Ok(()));
        let other = check_batch(3, us, &polls(3, offset + 64), file.as_fd(), never).unwrap_err();
        assert!(other.contains("neither libzmq"), "{other}");
        let outside = check_batch(3, us, &polls(3, u64::MAX), file.as_fd(), is_own_program).unwrap_err();
        assert!(outside.contains("outside the code"), "{outside}");
        let header = check_batch(3, us, &polls(3, 0), file.as_fd(), is_own_program).unwrap_err();
        assert!(header.contains("outside the code"), "{header}");
    }

    #[test]
    fn other_files_processes_and_cookies_are_refused() {
        let (file, offset) = own_libc();
        let us = std::process::id();
        let refused = |target, pid, batch: &Batch, file: &File| {
            check_batch(target, pid, batch, file.as_fd(), is_own_program).unwrap_err()
        };
        let exe = File::open("/proc/self/exe").unwrap();
        assert!(refused(3, us, &polls(3, offset), &exe).contains("executes no code"));
        let copy = tempfile::NamedTempFile::new().unwrap();
        assert!(refused(3, us, &polls(3, offset), copy.as_file()).contains("executes no code"));
        assert!(refused(3, us, &polls(4, offset), &file).contains("a cookie"), "another target's");
        assert!(refused(MAX_TARGETS, us, &polls(MAX_TARGETS, offset), &file).contains("no target"));
        assert!(refused(3, u32::MAX, &polls(3, offset), &file).contains("not there"));
        let socket = std::os::unix::net::UnixStream::pair().unwrap().0;
        let special = check_batch(3, us, &polls(3, offset), socket.as_fd(), is_own_program).unwrap_err();
        assert!(special.contains("regular"), "{special}");
        // Of another program, in a library of another program, and at the return of a function.
        let zmq = Batch { program: ZMQ, ..polls(3, offset) };
        assert!(refused(3, us, &zmq, &file).contains("a cookie"));
        let points = vec![(offset, Cookie::new(ProbePoint::Send, 3))];
        assert!(refused(3, us, &Batch { program: ZMQ, returns: false, points }, &file).contains("executes no code"));
        assert!(refused(3, us, &Batch { returns: true, ..polls(3, offset) }, &file).contains("a cookie"));
    }
}
