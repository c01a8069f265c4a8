//! Loading of the embedded object, with the settings that it needs before verification.

use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;

use aya::{Ebpf, EbpfLoader};
use object::{Object as _, ObjectSection as _};
use probe_ebpf::Offsets;
use probe_ebpf::egress::Places;

use crate::capability::{KernelVersion, Permissions};
use crate::examine::namespace::NamespaceKind;
use crate::plain::Plain;

/// Built by `cargo xtask ebpf` and checked by its `--check`; see probe-ebpf/object/SHA256SUMS.
#[cfg(target_arch = "x86_64")]
pub(crate) const OBJECT: &[u8] = aya::include_bytes_aligned!("../../probe-ebpf/object/tokengap-x86_64.bpf.o");
/// As above, for an architecture where it has not been tested.
#[cfg(target_arch = "aarch64")]
pub(crate) const OBJECT: &[u8] = aya::include_bytes_aligned!("../../probe-ebpf/object/tokengap-aarch64.bpf.o");

#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadSettings {
    /// Size of the ring in bytes: a power of 2, at least a page.
    pub(crate) ring_bytes: u32,
    /// Offsets of fields in kernel structs.
    pub(crate) offsets: Offsets,
    /// Account for thread times; required by the scheduler and the poll programs.
    pub(crate) accounting: bool,
    /// Offsets of fields for observing serving processes.
    pub(crate) places: Places,
}

impl LoadSettings {
    /// Settings for programs that observe nothing.
    pub(crate) fn minimal() -> Self {
        Self { ring_bytes: 64 << 10, offsets: Offsets::NONE, accounting: false, places: Places::default() }
    }
}

/// Parses the embedded object of eBPF programs and creates its maps. Gives the object's constants the values in `settings`, which cannot
/// change once a program is loaded. Loads no program yet.
pub(crate) fn load_object(settings: LoadSettings) -> Result<Ebpf, aya::EbpfError> {
    // The programs translate the ids of processes into this namespace.
    let namespace = own_pid_namespace();
    let all_levels = u8::MAX;
    let no_level = 0;
    let log_level = if shows_kernel_log() { all_levels } else { no_level };
    let changed_object = object_for_older_kernel();
    let must_exist = true;
    EbpfLoader::new()
        .override_global("OFFSETS", &Plain(settings.offsets), must_exist)
        .override_global("PLACES", &Plain(settings.places), must_exist)
        .override_global("ACCOUNTING", &u32::from(settings.accounting), must_exist)
        .override_global(aya_log::LEVEL, &log_level, must_exist)
        .override_global("NAMESPACE_DEV", &namespace.device, must_exist)
        .override_global("NAMESPACE_INO", &namespace.inode, must_exist)
        // The ring buffer, whose size in bytes is its number of entries.
        .map_max_entries("RECORDS", settings.ring_bytes)
        .load(changed_object.as_deref().map_or(OBJECT, |object| &object.bytes))
}

/// First kernel that gives programs private stacks: see `probe-ebpf/src/kernel/stack.rs`.
const FIRST_WITH_PRIVATE_STACKS: KernelVersion = KernelVersion::new(6, 13);
/// `call bpf_tail_call`
const TAIL_CALL: [u8; 8] = [0x85, 0, 0, 0, 12, 0, 0, 0];
/// `r0 = 0`
const NO_CALL: [u8; 8] = [0xb7, 0, 0, 0, 0, 0, 0, 0];

/// An object at the alignment that its parser needs.
#[repr(align(32))]
struct AlignedObject {
    bytes: [u8; OBJECT.len()],
}

/// The object without tail calls, for a kernel that needs none and may refuse them. `None` on a kernel with private stacks. Such a stack is
/// memory of the CPU, which another run of a uprobe can overwrite, and tail calls keep the programs off it.
fn object_for_older_kernel() -> Option<Box<AlignedObject>> {
    let has_private_stacks = Permissions::current().kernel() >= FIRST_WITH_PRIVATE_STACKS;
    if has_private_stacks { None } else { Some(object_without_tail_calls()) }
}

/// The object without the tail calls of its uprobe programs. ARM64 kernels before Linux 6.0 refuse tail calls in programs that call
/// functions. The calls only keep the programs off private stacks, which these kernels do not have.
fn object_without_tail_calls() -> Box<AlignedObject> {
    let mut bytes: [u8; OBJECT.len()] = std::array::from_fn(|index| OBJECT[index]);
    for range in uprobe_code_ranges() {
        // An eBPF instruction has eight bytes.
        let (instructions, _) = bytes[range].as_chunks_mut();
        for instruction in instructions {
            if *instruction == TAIL_CALL {
                *instruction = NO_CALL;
            }
        }
    }
    Box::new(AlignedObject { bytes })
}

/// Byte ranges of the uprobe programs in the object. Empty if the object cannot be parsed. Its load then reports the error.
fn uprobe_code_ranges() -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let Ok(file) = object::File::parse(OBJECT) else { return ranges };
    for section in file.sections() {
        if matches!(section.name(), Ok("uprobe" | "uretprobe"))
            && let Some((start, length)) = section.file_range()
        {
            ranges.push(start as usize..(start + length) as usize);
        }
    }
    ranges
}

/// Identity of the current pid namespace; zeros in the initial one, where ids need no translation.
#[derive(Clone, Copy, Default)]
struct PidNamespace {
    device: u64,
    inode: u64,
}

/// The PID namespace of this process. Zeros if it is the initial one, or if it cannot be read.
fn own_pid_namespace() -> PidNamespace {
    match std::fs::metadata("/proc/self/ns/pid") {
        Ok(file) if file.ino() != NamespaceKind::Pid.initial_inode() => {
            PidNamespace { device: file.dev(), inode: file.ino() }
        }
        _ => PidNamespace::default(),
    }
}

/// Whether this process is in the initial pid namespace, or cannot find out.
pub(crate) fn is_in_initial_pid_namespace() -> bool {
    own_pid_namespace().inode == 0
}

/// Whether the log shows messages of the kernel side. Decided when the object is loaded.
pub(crate) fn shows_kernel_log() -> bool {
    tracing::enabled!(target: "probe", tracing::Level::DEBUG)
}

/// Forwards log messages of the kernel side (`aya-log`) to `tracing`.
pub(crate) struct KernelLog;

impl log::Log for KernelLog {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    /// Passes a line of the kernel's programs to tokengap's own log.
    fn log(&self, record: &log::Record<'_>) {
        match record.level() {
            log::Level::Error | log::Level::Warn => tracing::warn!(target: "probe", "{}", record.args()),
            _ => tracing::debug!(target: "probe", "{}", record.args()),
        }
    }

    fn flush(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_uprobe_program_with_a_stack_frame_has_a_tail_call_that_can_be_removed() {
        let without = object_without_tail_calls();
        let count = |bytes: &[u8]| {
            let code = uprobe_code_ranges().into_iter().map(|range| &bytes[range]);
            code.flat_map(|code| code.as_chunks().0.to_vec()).filter(|instruction| *instruction == TAIL_CALL).count()
        };
        // All but the empty one.
        let file = object::File::parse(OBJECT).expect("an ELF file");
        let programs = uprobe_programs(&file);
        assert_eq!((count(OBJECT), count(&without.bytes)), (programs - 1, 0));
        let changed = OBJECT.iter().zip(&without.bytes).filter(|(old, new)| old != new).count();
        assert_eq!(changed, 2 * (programs - 1), "an operation and its helper");
    }

    fn uprobe_programs(file: &object::File<'_>) -> usize {
        use object::{ObjectSymbol as _, SymbolKind};

        let is_uprobe = |symbol: &object::Symbol<'_, '_>| {
            let section = symbol.section_index().and_then(|index| file.section_by_index(index).ok());
            section.is_some_and(|section| matches!(section.name(), Ok("uprobe" | "uretprobe")))
        };
        file.symbols()
            .filter(|symbol| symbol.kind() == SymbolKind::Text && symbol.is_global())
            .filter(is_uprobe)
            .count()
    }
}
