//! Loading of the embedded object, with the settings that it needs before verification.

use std::os::unix::fs::MetadataExt as _;

use aya::{Ebpf, EbpfLoader};
use probe_ebpf::Offsets;
use probe_ebpf::egress::Places;

use crate::examine::namespace::NamespaceKind;
use crate::plain::Plain;

/// Built by `cargo xtask ebpf` and checked by its `--check`; see probe-ebpf/object/SHA256SUMS.
#[cfg(target_arch = "x86_64")]
pub(crate) static OBJECT: &[u8] = aya::include_bytes_aligned!("../../probe-ebpf/object/tokengap-x86_64.bpf.o");
/// As above, for an architecture where it has not been tested.
#[cfg(target_arch = "aarch64")]
pub(crate) static OBJECT: &[u8] = aya::include_bytes_aligned!("../../probe-ebpf/object/tokengap-aarch64.bpf.o");

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

/// Creates the maps and prepares the programs without loading them.
pub(crate) fn load_object(settings: LoadSettings) -> Result<Ebpf, aya::EbpfError> {
    let namespace = own_pid_namespace();
    let log_level = if shows_kernel_log() { u8::MAX } else { 0 };
    EbpfLoader::new()
        .override_global("OFFSETS", &Plain(settings.offsets), true)
        .override_global("PLACES", &Plain(settings.places), true)
        .override_global("ACCOUNTING", &u32::from(settings.accounting), true)
        .override_global(aya_log::LEVEL, &log_level, true)
        .override_global("NAMESPACE_DEV", &namespace.device, true)
        .override_global("NAMESPACE_INO", &namespace.inode, true)
        .map_max_entries("RECORDS", settings.ring_bytes)
        .load(OBJECT)
}

/// Identity of the current pid namespace; zeros in the initial one, where ids need no translation.
#[derive(Clone, Copy, Default)]
struct PidNamespace {
    device: u64,
    inode: u64,
}

fn own_pid_namespace() -> PidNamespace {
    std::fs::metadata("/proc/self/ns/pid")
        .ok()
        .filter(|file| file.ino() != NamespaceKind::Pid.initial_inode())
        .map_or_else(PidNamespace::default, |file| PidNamespace { device: file.dev(), inode: file.ino() })
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

    fn log(&self, record: &log::Record<'_>) {
        match record.level() {
            log::Level::Error | log::Level::Warn => tracing::warn!(target: "probe", "{}", record.args()),
            _ => tracing::debug!(target: "probe", "{}", record.args()),
        }
    }

    fn flush(&self) {}
}
