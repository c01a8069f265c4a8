//! One link for all probe points of a program in a process (`BPF_TRACE_UPROBE_MULTI`, Linux 6.6). One call attaches it and one grace period
//! detaches it. It needs `BPF` and `PERFMON`, where a perf event needs `SYS_ADMIN`.
//!
//! aya 0.14 cannot load such programs. Therefore the object is parsed again and its instructions are relocated to the maps that aya
//! created. Two raw `bpf` calls load and attach the programs. If the kernel refuses, perf events are used instead
//! ([`super::AttachMethod`]).
#![expect(unsafe_code, reason = "bpf(2) has no safe wrapper that knows this attach type")]

use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, CString};
use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd as _, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use aya::Ebpf;
use aya_obj::Object;
use aya_obj::generated::bpf_insn;
use probe_ebpf::Cookie;

use super::map_data;
use crate::load;
use crate::programs::Batch;

// include/uapi/linux/bpf.h
const BPF_PROG_LOAD: libc::c_int = 5;
const BPF_LINK_CREATE: libc::c_int = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
const BPF_F_UPROBE_MULTI_RETURN: u32 = 1;

#[derive(Debug, thiserror::Error)]
pub(crate) enum MultiUprobeError {
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
    #[error("cannot attach to {count} probe points: {source}")]
    Attach { count: usize, source: io::Error },
}

#[derive(Debug)]
pub(crate) struct MultiUprobes {
    programs: HashMap<&'static str, MultiUprobeProgram>,
}

/// A program, with its descriptor once it is loaded. Loading is deferred, since verification takes up to 50 ms and some programs are never
/// needed.
#[derive(Debug)]
struct MultiUprobeProgram {
    name: &'static str,
    instructions: Vec<bpf_insn>,
    license: CString,
    descriptor: Option<OwnedFd>,
}

impl MultiUprobeProgram {
    /// The program with this name in the object, which is not loaded yet.
    fn from_object(object: &Object, name: &'static str) -> Result<Self, MultiUprobeError> {
        let program = object.programs.get(name).ok_or_else(|| missing_program(name))?;
        let function = &object.functions[&program.function_key()];
        Ok(Self {
            name,
            instructions: function.instructions.clone(),
            license: program.license.clone(),
            descriptor: None,
        })
    }

    /// Loads the program into the kernel at the first call. Returns its descriptor.
    fn load_once(&mut self) -> Result<&OwnedFd, MultiUprobeError> {
        if self.descriptor.is_none() {
            let loaded = load_program(&self.instructions, &self.license);
            self.descriptor = Some(loaded.map_err(|source| MultiUprobeError::Load { name: self.name, source })?);
        }
        // Set above, so the error does not occur.
        self.descriptor.as_ref().ok_or_else(|| missing_program(self.name))
    }
}

/// Parses the embedded object, and makes its programs refer to the maps that `ebpf` has created.
fn parse_and_relocate_object(ebpf: &Ebpf) -> Result<Object, MultiUprobeError> {
    let mut object = Object::parse(load::OBJECT).map_err(|error| MultiUprobeError::Object(error.to_string()))?;
    let code_sections: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    let maps = object.maps.clone();
    let mut created_maps = Vec::new();
    for (name, map) in &maps {
        if let Some(data) = ebpf.map(name).and_then(map_data) {
            created_maps.push((name.as_str(), data.fd().as_fd().as_raw_fd(), map));
        }
    }
    // Maps come first, because the instructions of called functions are then copied into the programs.
    object
        .relocate_maps(created_maps.into_iter(), &code_sections)
        .map_err(|error| MultiUprobeError::Object(error.to_string()))?;
    object.relocate_calls(&code_sections).map_err(|error| MultiUprobeError::Object(error.to_string()))?;
    Ok(object)
}

fn missing_program(name: &str) -> MultiUprobeError {
    MultiUprobeError::Object(format!("program {name} is missing"))
}

impl MultiUprobes {
    /// Prepares the programs with these names for the maps of `ebpf`, all of which must still be present there. Loads the first one
    /// to test kernel support ([`check_multi_link_support`]); the others load at their first attach.
    pub(crate) fn prepare(ebpf: &Ebpf, program_names: &[&'static str]) -> Result<Self, MultiUprobeError> {
        let object = parse_and_relocate_object(ebpf)?;
        let mut programs = HashMap::new();
        for &name in program_names {
            programs.insert(name, MultiUprobeProgram::from_object(&object, name)?);
        }
        if let Some(first) = program_names.first().and_then(|name| programs.get_mut(name)) {
            check_multi_link_support(first.load_once()?)?;
        }
        Ok(Self { programs })
    }

    /// Loads the programs that are not loaded yet.
    pub(crate) fn load_all_programs(&mut self) -> Result<(), MultiUprobeError> {
        for program in self.programs.values_mut() {
            program.load_once()?;
        }
        Ok(())
    }

    /// Attaches a batch, which is a program with its probe points, to process `pid` by one link. The points are offsets in the file at
    /// `library_path`. Loads the program if it is not loaded yet.
    pub(crate) fn attach_batch(
        &mut self,
        batch: &Batch,
        library_path: &Path,
        pid: NonZeroU32,
    ) -> Result<OwnedFd, MultiUprobeError> {
        let failed = |source| MultiUprobeError::Attach { count: batch.points.len(), source };
        let program = self.programs.get_mut(batch.program).ok_or_else(|| missing_program(batch.program))?;
        let descriptor = program.load_once()?;
        let file = CString::new(library_path.as_os_str().as_bytes()).map_err(|error| failed(error.into()))?;
        create_link(descriptor, batch.is_at_returns, &file, pid.get(), &batch.points).map_err(failed)
    }
}

/// Tests whether the kernel supports links for multiple probe points. Like libbpf, it tries links that must fail, and judges the errors. A
/// successful load proves nothing, because before 6.6 the kernel does not check the attach type of a program of this kind.
fn check_multi_link_support(program: &OwnedFd) -> Result<(), MultiUprobeError> {
    const ANY_PROCESS: u32 = 0;
    const NO_PROCESS: u32 = u32::MAX;
    // Both links name a folder, which cannot be probed.
    let refusal_of_folder = refusal_of_link(program, ANY_PROCESS);
    let refusal_of_process = refusal_of_link(program, NO_PROCESS);
    judge_link_support(refusal_of_folder, refusal_of_process)
}

/// Error number with which the kernel refuses to link a folder, for process `pid` or, if that is 0, for any process. `None` if it accepts
/// the link.
fn refusal_of_link(program: &OwnedFd, pid: u32) -> Option<i32> {
    let link = create_link(program, false, c"/", pid, &[(0, Cookie(0))]);
    link.err()?.raw_os_error()
}

/// Judges whether the kernel supports these links. The arguments are its error numbers for two links: one to a folder in any process, and
/// one to a folder in an impossible process. `None` stands for an accepted link.
fn judge_link_support(folder_errno: Option<i32>, process_errno: Option<i32>) -> Result<(), MultiUprobeError> {
    match (folder_errno, process_errno) {
        // As it should be, the kernel refuses the impossible process before it looks at the folder.
        (Some(libc::EBADF), Some(libc::EINVAL)) => Ok(()),
        // The first kernels with these links check the file before the process, and compare the process id with that of a thread.
        (Some(libc::EBADF), _) => Err(MultiUprobeError::MainThreadOnly),
        _ => Err(MultiUprobeError::NoLinks),
    }
}

/// Attaches a program to all points of a file with one link, for one process. A point is an offset in the file, with a cookie that the
/// program can read. `is_at_returns`: the program runs at the returns of the functions that begin at the points.
fn create_link(
    program: &OwnedFd,
    is_at_returns: bool,
    file: &CStr,
    pid: u32,
    points: &[(u64, Cookie)],
) -> io::Result<OwnedFd> {
    let offsets: Vec<u64> = points.iter().map(|(offset, _)| *offset).collect();
    let cookies: Vec<u64> = points.iter().map(|(_, cookie)| cookie.0).collect();
    let attribute = LinkCreateAttribute {
        program: program.as_raw_fd() as u32,
        // The path and the process id below name the target.
        target: 0,
        attach_type: BPF_TRACE_UPROBE_MULTI,
        flags: 0,
        path: file.as_ptr() as u64,
        offsets: offsets.as_ptr() as u64,
        // Reference counters are for USDT probes.
        counters: 0,
        cookies: cookies.as_ptr() as u64,
        count: points.len() as u32,
        multi_flags: if is_at_returns { BPF_F_UPROBE_MULTI_RETURN } else { 0 },
        pid,
        reserved: 0,
    };
    // SAFETY: path, offsets and cookies outlive the call, and `count` is the length of both arrays.
    unsafe { bpf(BPF_LINK_CREATE, &attribute) }
}

/// `link_create` in `union bpf_attr`, up to the end of `uprobe_multi`.
#[repr(C)]
struct LinkCreateAttribute {
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
struct ProgramLoadAttribute {
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

/// Loads a program for links to multiple probe points into the kernel.
fn load_program(instructions: &[bpf_insn], license: &CString) -> io::Result<OwnedFd> {
    let attribute = ProgramLoadAttribute {
        kind: BPF_PROG_TYPE_KPROBE,
        count: instructions.len() as u32,
        instructions: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        // No buffer for the verifier's log, no kernel version, flags or network interface.
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

/// Makes the system call `bpf`. Returns the descriptor that the command creates.
///
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
        assert!(judge_link_support(Some(libc::EBADF), Some(libc::EINVAL)).is_ok());
        // Linux 5.15 to 6.5 load the program and refuse every link.
        let before = judge_link_support(Some(libc::EINVAL), Some(libc::EINVAL));
        assert!(matches!(before, Err(MultiUprobeError::NoLinks)));
        // Linux 6.6 as released.
        let first = judge_link_support(Some(libc::EBADF), Some(libc::EBADF));
        assert!(matches!(first, Err(MultiUprobeError::MainThreadOnly)));
        // A link that should have failed.
        assert!(matches!(judge_link_support(None, None), Err(MultiUprobeError::NoLinks)));
    }
}
