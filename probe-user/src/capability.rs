//! Capabilities of this process, and requirements of each feature of the probe.

use std::fmt;
use std::sync::OnceLock;

use foreign::kernel::{self, status_field};

use crate::examine::filter::SystemCall;
use crate::examine::namespace::NamespaceKind;

/// Version of a kernel, without its patch level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the fields' names are enough")]
pub struct KernelVersion {
    pub major: u32,
    pub minor: u32,
}

impl KernelVersion {
    /// The version `major.minor`.
    pub const fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }

    /// Parses a release such as `6.18.5-cloud`.
    fn parse(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        Some(Self { major: numbers.next()?.ok()?, minor: numbers.next()?.ok()? })
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A Linux capability that a feature requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Capability {
    /// Uprobes through `perf_event_open`, before Linux 6.6.
    SysAdmin,
    /// Creating maps and loading programs.
    Bpf,
    /// Loading tracing programs.
    Perfmon,
    /// Access to other users' `/proc/PID/root`, `maps` and sockets.
    SysPtrace,
    /// Listing `/proc/PID/fd`, otherwise reserved for its owner and root.
    DacReadSearch,
}

impl Capability {
    /// All capabilities that any feature requires.
    pub const ALL: [Self; 5] = [Self::SysAdmin, Self::Bpf, Self::Perfmon, Self::SysPtrace, Self::DacReadSearch];

    /// Bit in `CapEff`; see include/uapi/linux/capability.h.
    pub const fn bit_number(self) -> u32 {
        match self {
            Self::DacReadSearch => 2,
            Self::SysPtrace => 19,
            Self::SysAdmin => 21,
            Self::Perfmon => 38,
            Self::Bpf => 39,
        }
    }

    /// Name in the notation of Kubernetes and Docker.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SysAdmin => "SYS_ADMIN",
            Self::Bpf => "BPF",
            Self::Perfmon => "PERFMON",
            Self::SysPtrace => "SYS_PTRACE",
            Self::DacReadSearch => "DAC_READ_SEARCH",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CAP_{}", self.name())
    }
}

/// A group of observations with its own requirements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    /// Frames sent and received: uprobes on libzmq.
    Messages,
    /// Frames processed: a uprobe on `zmq_getsockopt`.
    Processed,
    /// On-CPU, waiting and blocked time at each frame: raw tracepoints of the scheduler.
    Scheduler,
    /// Wakeups and time outside of polls: uprobes on libc.
    Polls,
    /// Bytes in the sockets' kernel queues: netlink `sock_diag`.
    Queues,
    /// Responses to clients: raw tracepoints of system calls and of TCP.
    Egress,
    /// Arrivals of requests: raw tracepoints of sockets.
    Arrivals,
    /// Frames that a process receives without libzmq: a raw tracepoint of socket reads.
    SocketReads,
    /// Functions in the engine's Python code: `process_vm_readv`.
    PythonStacks,
    /// Plain bytes of TLS responses: uprobes on OpenSSL.
    Tls,
}

impl Feature {
    /// All features without an option of their own, in display order.
    pub const ALL: [Self; 9] = [
        Self::Messages,
        Self::Processed,
        Self::Scheduler,
        Self::Polls,
        Self::Queues,
        Self::Egress,
        Self::Arrivals,
        Self::SocketReads,
        Self::PythonStacks,
    ];

    /// Capabilities that the feature requires on this kernel version, determined by testing each alone (docs/internals/PROBE.md).
    pub const fn required_capabilities(self, kernel: KernelVersion) -> &'static [Capability] {
        use Capability::{Bpf, DacReadSearch, Perfmon, SysAdmin, SysPtrace};
        // From Linux 6.6 on, a multi-uprobe link requires fewer capabilities than a perf event.
        let has_multi_uprobe_links = kernel.major > 6 || (kernel.major == 6 && kernel.minor >= 6);
        let for_uprobes: &'static [Capability] =
            if has_multi_uprobe_links { &[Bpf, Perfmon, SysPtrace] } else { &[SysAdmin, SysPtrace] };
        match self {
            // Uprobes are probes in the code of another process.
            Self::Messages | Self::Processed | Self::Polls | Self::Tls => for_uprobes,
            Self::Scheduler | Self::Egress | Self::Arrivals | Self::SocketReads => &[Bpf, Perfmon],
            Self::Queues => &[SysPtrace, DacReadSearch],
            Self::PythonStacks => &[SysPtrace],
        }
    }

    /// System calls that the feature depends on. A seccomp filter may refuse them despite all capabilities.
    pub const fn required_calls(self) -> &'static [SystemCall] {
        match self {
            Self::Queues => &[],
            Self::PythonStacks => &[SystemCall::ProcessVmReadv],
            // All others attach programs in the kernel.
            _ => &[SystemCall::Bpf],
        }
    }

    /// Whether the feature loads programs into the kernel.
    pub(crate) const fn is_in_kernel(self) -> bool {
        !matches!(self, Self::Queues | Self::PythonStacks)
    }

    /// Short name for tables.
    pub const fn name(self) -> &'static str {
        self.feature_facts().name
    }

    /// Oldest supported kernel version.
    pub const fn oldest_kernel(self) -> KernelVersion {
        self.feature_facts().oldest_kernel
    }

    /// Kernel feature that sets the oldest supported release: a function that programs call, a tracepoint, or a system call.
    pub(crate) const fn kernel_feature_name(self) -> &'static str {
        match self {
            Self::Messages | Self::Processed | Self::Polls | Self::Tls => "bpf_get_attach_cookie",
            Self::Scheduler => "bpf_task_pt_regs",
            Self::Queues => "sock_diag",
            Self::Egress => "the BPF ring buffer",
            Self::Arrivals | Self::SocketReads => "the tracepoint sock_recv_length",
            Self::PythonStacks => "process_vm_readv",
        }
    }

    /// Consequence of not having the feature.
    pub const fn consequence_of_lack(self) -> &'static str {
        self.feature_facts().consequence_of_lack
    }

    /// Name, oldest kernel, and what is lost where the feature does not work.
    const fn feature_facts(self) -> FeatureFacts {
        // `major` and `minor` are the version of the oldest kernel.
        const fn facts(name: &'static str, major: u32, minor: u32, consequence_of_lack: &'static str) -> FeatureFacts {
            FeatureFacts { name, oldest_kernel: KernelVersion::new(major, minor), consequence_of_lack }
        }
        match self {
            Self::Messages => facts("frames", 5, 15, "frames are not observed: no gap, no backlog"),
            Self::Processed => facts("processed", 5, 15, "the time when a frame is processed is unknown"),
            Self::Scheduler => facts("thread states", 5, 15, "consumer thread states are only sampled every 100 ms"),
            Self::Polls => facts(
                "wakeups",
                5,
                15,
                "frames per wakeup and time away from the poll are unknown: no drop can be predicted",
            ),
            Self::Queues => facts("kernel queues", 3, 3, "bytes in the kernel's socket queues are unknown"),
            Self::Egress => {
                facts("deliveries", 5, 8, "deliveries to clients are not observed: no drop can be confirmed")
            }
            Self::Arrivals => facts("arrivals", 6, 5, "the time when a request reached the server is unknown"),
            Self::SocketReads => facts(
                "socket reads",
                6,
                5,
                "frames that a process without libzmq receives are not observed: no queue wait, no backlog",
            ),
            Self::PythonStacks => facts("Python stacks", 3, 2, "the Python functions of the tokenizer are unknown"),
            Self::Tls => facts("TLS responses", 5, 15, "TLS responses are not read: their deliveries are unknown"),
        }
    }
}

struct FeatureFacts {
    name: &'static str,
    oldest_kernel: KernelVersion,
    consequence_of_lack: &'static str,
}

/// Permissions of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    /// Bits of the effective capabilities.
    effective: u64,
    /// Bits of the capabilities that a program started by root can have.
    bounding: u64,
    kernel: KernelVersion,
    /// The process is in a separate user namespace, where its effective capabilities do not apply outside.
    is_in_user_namespace: bool,
    /// Uprobes are attached by perf events although the kernel's version has multi-uprobe links.
    uses_perf_events: bool,
}

impl Permissions {
    /// Permissions of the calling process at the first call. A process that passes the use of its capabilities to a helper, and then
    /// drops them, calls this before. A permission that `/proc` does not show counts as missing.
    pub fn current() -> Self {
        static CURRENT: OnceLock<Permissions> = OnceLock::new();
        *CURRENT.get_or_init(Self::read_own)
    }

    /// Reads the capabilities and the kernel of this process.
    fn read_own() -> Self {
        let status = kernel::read("/proc/self/status", kernel::MAX_STATUS_BYTES).unwrap_or_default();
        let release = kernel::read_text("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            effective: capability_bits(&status, "CapEff:").unwrap_or(0),
            bounding: capability_bits(&status, "CapBnd:").unwrap_or(0),
            // An unknown version counts as too old for everything.
            kernel: KernelVersion::parse(&release).unwrap_or(KernelVersion::new(0, 0)),
            // A namespace that cannot be read counts as the initial one.
            is_in_user_namespace: NamespaceKind::User.is_initial() == Some(false),
            // `with_perf_events` sets it where they are used.
            uses_perf_events: false,
        }
    }

    /// The same permissions on a kernel whose multi-uprobe links are unusable, so that uprobes need perf events.
    pub(crate) fn with_perf_events(self) -> Self {
        Self { uses_perf_events: true, ..self }
    }

    /// Whether a user namespace invalidates the capabilities for the kernel.
    pub fn is_in_user_namespace(&self) -> bool {
        self.is_in_user_namespace
    }

    /// Whether `capability` is effective if this process runs as root.
    pub fn may_have(&self, capability: Capability) -> bool {
        has_bit(self.bounding, capability)
    }

    /// Version of the running kernel.
    pub fn kernel(&self) -> KernelVersion {
        self.kernel
    }

    /// Whether `capability` is effective. `SYS_ADMIN` includes `BPF` and `PERFMON`, as in the kernel.
    pub fn has(&self, capability: Capability) -> bool {
        let may_be_included = matches!(capability, Capability::Bpf | Capability::Perfmon);
        let is_included = may_be_included && has_bit(self.effective, Capability::SysAdmin);
        is_included || has_bit(self.effective, capability)
    }

    /// Capabilities that `feature` requires and this process lacks.
    pub fn capabilities_missing_for(&self, feature: Feature) -> Vec<Capability> {
        // Perf events need the same capabilities as in 6.5, the last version without multi-uprobe links.
        let kernel = if self.uses_perf_events { self.kernel.min(KernelVersion::new(6, 5)) } else { self.kernel };
        feature.required_capabilities(kernel).iter().copied().filter(|capability| !self.has(*capability)).collect()
    }
}

/// Whether a set of capabilities has this one.
fn has_bit(set: u64, capability: Capability) -> bool {
    set & (1 << capability.bit_number()) != 0
}

/// Set of capabilities in the line of `/proc/PID/status` with this key.
fn capability_bits(status: &[u8], key: &str) -> Option<u64> {
    u64::from_str_radix(status_field(status, key)?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_release_parses() {
        assert_eq!(KernelVersion::parse("6.18.44-fc-v669\n"), Some(KernelVersion::new(6, 18)));
        assert_eq!(KernelVersion::parse("5.15.0-1060-aws"), Some(KernelVersion::new(5, 15)));
        assert_eq!(KernelVersion::parse("linux"), None);
    }

    #[test]
    fn sys_admin_implies_bpf_and_perfmon_but_not_ptrace() {
        let admin = Permissions {
            effective: 1 << 21,
            bounding: 0,
            is_in_user_namespace: false,
            uses_perf_events: false,
            kernel: KernelVersion::new(6, 1),
        };
        assert!(admin.capabilities_missing_for(Feature::Scheduler).is_empty());
        assert_eq!(admin.capabilities_missing_for(Feature::Messages), [Capability::SysPtrace]);
        let none = Permissions { effective: 0, kernel: KernelVersion::new(6, 1), ..admin };
        assert_eq!(
            none.capabilities_missing_for(Feature::Polls),
            Feature::Polls.required_capabilities(KernelVersion::new(6, 1))
        );
        let newer = Permissions { effective: 1 << 38 | 1 << 39 | 1 << 19, kernel: KernelVersion::new(6, 6), ..admin };
        assert!(newer.capabilities_missing_for(Feature::Messages).is_empty());
        assert_eq!(newer.with_perf_events().capabilities_missing_for(Feature::Messages), [Capability::SysAdmin]);
    }
}
