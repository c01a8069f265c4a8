//! One link for all probe points of a program in a process (`BPF_TRACE_UPROBE_MULTI`, Linux 6.6). One call attaches it and one grace period
//! detaches it. It needs `BPF` and `PERFMON`, where a perf event needs `SYS_ADMIN`.
//!
//! aya 0.14 cannot load such programs. Therefore the object is parsed again and its instructions are relocated to the maps that aya
//! created. Two raw `bpf` calls load and attach the programs. If the kernel refuses, perf events are used instead ([`super::AttachMethod`]).
#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper that knows this attach type")]

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use aya::Ebpf;
use aya_obj::Object;
use aya_obj::generated::bpf_insn;
use probe_ebpf::Cookie;

use super::map_data;
use crate::load;

// include/uapi/linux/bpf.h
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
const BPF_F_UPROBE_MULTI_RETURN: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub(crate) enum MultiError {
    #[error("the embedded object: {0}")]
    Object(String),
    #[error("cannot load {name} for multiple probe points: {source}")]
    Load { name: &'static str, source: io::Error },
    #[error("the kernel has no multi-uprobe links (Linux 6.6)")]
    NoLinks,
    #[error(
        "the kernel's multi-uprobe links observe only the main thread of a process (fixed in Linux 6.6.33 and 6.10)"
    )]
    MainThreadOnly,
    #[error("cannot attach to {places} probe points: {source}")]
    Attach { places: usize, source: io::Error },
}

#[derive(Debug)]
pub(crate) struct Multi {
    programs: HashMap<&'static str, Program>,
}

/// A program, with its descriptor once it is loaded. Loading is deferred, since verification takes up to 50 ms and some programs are never
/// needed.
#[derive(Debug)]
struct Program {
    name: &'static str,
    instructions: Vec<bpf_insn>,
    license: CString,
    loaded: Option<OwnedFd>,
}

impl Program {
    fn load(&mut self) -> Result<&OwnedFd, MultiError> {
        if self.loaded.is_none() {
            let loaded = load_program(&self.instructions, &self.license);
            let loaded = loaded.map_err(|source| MultiError::Load { name: self.name, source })?;
            self.loaded = Some(loaded);
        }
        self.loaded.as_ref().ok_or_else(|| unknown(self.name))
    }
}

fn unknown(name: &str) -> MultiError {
    MultiError::Object(format!("program {name} is missing"))
}

impl Multi {
    /// Prepares the programs with these names for the maps of `ebpf`, all of which must still be present there. Loads the first one to test
    /// kernel support ([`check_links`]); the others load at their first attach.
    pub(crate) fn load(ebpf: &Ebpf, names: &[&'static str]) -> Result<Self, MultiError> {
        let wrong = |error: &dyn std::error::Error| MultiError::Object(error.to_string());
        let mut object = Object::parse(load::OBJECT).map_err(|e| wrong(&e))?;
        let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        let maps = object.maps.clone();
        let placed: Vec<_> = maps
            .iter()
            .filter_map(|(name, map)| Some((name.as_str(), map_data(ebpf.map(name)?)?.fd().as_fd().as_raw_fd(), map)))
            .collect();
        object.relocate_maps(placed.into_iter(), &text).map_err(|e| wrong(&e))?;
        object.relocate_calls(&text).map_err(|e| wrong(&e))?;
        let programs = names.iter().map(|name| {
            let program = object.programs.get(*name).ok_or_else(|| unknown(name))?;
            let function = &object.functions[&program.function_key()];
            let program = Program {
                name,
                instructions: function.instructions.clone(),
                license: program.license.clone(),
                loaded: None,
            };
            Ok((*name, program))
        });
        let mut programs: HashMap<_, _> = programs.collect::<Result<_, MultiError>>()?;
        if let Some(first) = names.first().and_then(|name| programs.get_mut(name)) {
            check_links(first.load()?)?;
        }
        Ok(Self { programs })
    }

    /// Loads the programs that are not loaded yet.
    pub(crate) fn load_all(&mut self) -> Result<(), MultiError> {
        self.programs.values_mut().try_for_each(|program| program.load().map(drop))
    }

    /// Attaches `name` to process `pid` at `points` (offsets in the file at `path`), or at the returns of the functions that begin there.
    pub(crate) fn attach(
        &mut self,
        name: &'static str,
        returns: bool,
        path: &Path,
        pid: u32,
        points: &[(u64, Cookie)],
    ) -> Result<OwnedFd, MultiError> {
        let failed = |source| MultiError::Attach { places: points.len(), source };
        let program = self.programs.get_mut(name).ok_or_else(|| unknown(name))?.load()?;
        let file = CString::new(path.as_os_str().as_bytes()).map_err(|error| failed(error.into()))?;
        create_link(program, returns, &file, pid, points).map_err(failed)
    }
}

/// Tests with links that must fail whether the kernel supports links for multiple probe points, as libbpf does. A successful load proves
/// nothing: before 6.6 the kernel does not check the attach type of a program of this kind.
fn check_links(program: &OwnedFd) -> Result<(), MultiError> {
    const NO_PROCESS: u32 = u32::MAX;
    let point = [(0, Cookie(0))];
    let refusal = |pid| create_link(program, false, c"/", pid, &point).err().and_then(|error| error.raw_os_error());
    judge_refusals(refusal(0), refusal(NO_PROCESS))
}

/// Interprets the errors of links to a folder, the second one in an impossible process.
fn judge_refusals(folder: Option<i32>, impossible_process: Option<i32>) -> Result<(), MultiError> {
    match (folder, impossible_process) {
        // A folder cannot be probed, and the process is checked before the file.
        (Some(libc::EBADF), Some(libc::EINVAL)) => Ok(()),
        // The first kernels with these links compare the id with that of a thread, and look it up after the file.
        (Some(libc::EBADF), _) => Err(MultiError::MainThreadOnly),
        _ => Err(MultiError::NoLinks),
    }
}

fn create_link(
    program: &OwnedFd,
    returns: bool,
    file: &CStr,
    pid: u32,
    points: &[(u64, Cookie)],
) -> io::Result<OwnedFd> {
    let offsets: Vec<u64> = points.iter().map(|(offset, _)| *offset).collect();
    let cookies: Vec<u64> = points.iter().map(|(_, cookie)| cookie.0).collect();
    let attribute = LinkCreate {
        program: program.as_raw_fd() as u32,
        target: 0,
        attach_type: BPF_TRACE_UPROBE_MULTI,
        flags: 0,
        path: file.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        counters: 0,
        cookies: cookies.as_ptr() as u64,
        count: points.len() as u32,
        multi_flags: if returns { BPF_F_UPROBE_MULTI_RETURN } else { 0 },
        pid,
        reserved: 0,
    };
    // SAFETY: path, offsets and cookies outlive the call, and `count` is the length of both arrays.
    unsafe { bpf(BPF_LINK_CREATE, &attribute) }
}

/// `link_create` in `union bpf_attr`, up to the end of `uprobe_multi`.
#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    counters: u64,
    cookies: u64,
    count: u32,
    multi_flags: u32,
    pid: u32,
    reserved: u32,
}

/// `BPF_PROG_LOAD` in `union bpf_attr`, up to `expected_attach_type`.
#[repr(C)]
struct ProgLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    expected_attach_type: u32,
}

fn load_program(instructions: &[bpf_insn], license: &CString) -> io::Result<OwnedFd> {
    let attribute = ProgLoad {
        kind: BPF_PROG_TYPE_KPROBE,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel_version: 0,
        flags: 0,
        name: *b"tokengap\0\0\0\0\0\0\0\0",
        interface: 0,
        expected_attach_type: BPF_TRACE_UPROBE_MULTI,
    };
    // SAFETY: instructions and license outlive the call.
    unsafe { bpf(BPF_PROG_LOAD, &attribute) }
}

/// # Safety
/// The addresses in `attribute` must be valid for the reads of `command`, and the command must return a descriptor.
unsafe fn bpf<T>(command: libc::c_int, attribute: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads the attribute and does not keep it; the caller guarantees the addresses in it.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(attribute), size_of::<T>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_without_usable_links_are_recognised() {
        assert!(judge_refusals(Some(libc::EBADF), Some(libc::EINVAL)).is_ok());
        // Linux 5.15 to 6.5 load the program and refuse every link.
        let before = judge_refusals(Some(libc::EINVAL), Some(libc::EINVAL));
        assert!(matches!(before, Err(MultiError::NoLinks)));
        // Linux 6.6 as released.
        let first = judge_refusals(Some(libc::EBADF), Some(libc::EBADF));
        assert!(matches!(first, Err(MultiError::MainThreadOnly)));
        // A link that should have failed.
        assert!(matches!(judge_refusals(None, None), Err(MultiError::NoLinks)));
    }
}
