//! Capabilities of this process, and requirements of each feature of the probe.

use std::fmt;
use std::sync::OnceLock;

use foreign::kernel;

use crate::examine::filter::Call;
use crate::examine::namespace::Kind;
use crate::proc::stat::field;

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
    pub const fn bit(self) -> u32 {
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
    /// Frames that a process receives without libzmq: a raw tracepoint of socket reads.
    SocketReads,
    /// Functions in the engine's Python code: `process_vm_readv`.
    PythonStacks,
    /// Plain bytes of TLS responses: uprobes on OpenSSL.
    Tls,
}

impl Feature {
    /// All features without an option of their own, in display order.
    pub const ALL: [Self; 8] = [
        Self::Messages,
        Self::Processed,
        Self::Scheduler,
        Self::Polls,
        Self::Queues,
        Self::Egress,
        Self::SocketReads,
        Self::PythonStacks,
    ];

    /// Capabilities that the feature requires on this kernel version, determined by testing each alone (docs/internals/PROBE.md).
    pub const fn needs(self, kernel: (u32, u32)) -> &'static [Capability] {
        use Capability::{Bpf, DacReadSearch, Perfmon, SysAdmin, SysPtrace};
        // From Linux 6.6 on, a multi-uprobe link requires fewer capabilities than a perf event.
        let links = kernel.0 > 6 || kernel.0 == 6 && kernel.1 >= 6;
        match self {
            Self::Messages | Self::Processed | Self::Polls | Self::Tls if links => &[Bpf, Perfmon, SysPtrace],
            Self::Messages | Self::Processed | Self::Polls | Self::Tls => &[SysAdmin, SysPtrace],
            Self::Scheduler | Self::Egress | Self::SocketReads => &[Bpf, Perfmon],
            Self::Queues => &[SysPtrace, DacReadSearch],
            Self::PythonStacks => &[SysPtrace],
        }
    }

    /// System calls that the feature depends on. A seccomp filter may refuse them despite all capabilities.
    pub const fn calls(self) -> &'static [Call] {
        match self {
            Self::Queues => &[],
            Self::PythonStacks => &[Call::ProcessVmReadv],
            _ => &[Call::Bpf],
        }
    }

    /// Whether the feature loads programs into the kernel.
    pub(crate) const fn is_in_kernel(self) -> bool {
        !matches!(self, Self::Queues | Self::PythonStacks)
    }

    /// Short name for tables.
    pub const fn name(self) -> &'static str {
        self.facts().0
    }

    /// Oldest supported kernel version.
    pub const fn kernel(self) -> (u32, u32) {
        self.facts().1
    }

    /// What the oldest supported kernel introduced: a function that programs call, a tracepoint, or a system call.
    pub(crate) const fn kernel_feature(self) -> &'static str {
        match self {
            Self::Messages | Self::Processed | Self::Polls | Self::Tls => "bpf_get_attach_cookie",
            Self::Scheduler => "bpf_task_pt_regs",
            Self::Queues => "sock_diag",
            Self::Egress => "the BPF ring buffer",
            Self::SocketReads => "the tracepoint sock_recv_length",
            Self::PythonStacks => "process_vm_readv",
        }
    }

    /// Consequence of not having the feature.
    pub const fn without(self) -> &'static str {
        self.facts().2
    }

    const fn facts(self) -> (&'static str, (u32, u32), &'static str) {
        match self {
            Self::Messages => ("frames", (5, 15), "frames are not observed: no gap, no backlog"),
            Self::Processed => ("processed", (5, 15), "the time when a frame is processed is unknown"),
            Self::Scheduler => ("thread states", (5, 15), "consumer thread states are only sampled every 100 ms"),
            Self::Polls => {
                let without = "frames per wakeup and time away from the poll are unknown: no drop can be predicted";
                ("wakeups", (5, 15), without)
            }
            Self::Queues => ("kernel queues", (3, 3), "bytes in the kernel's socket queues are unknown"),
            Self::Egress => ("deliveries", (5, 8), "deliveries to clients are not observed: no drop can be confirmed"),
            Self::SocketReads => {
                let without =
                    "frames that a process without libzmq receives are not observed: no queue wait, no backlog";
                ("socket reads", (6, 5), without)
            }
            Self::PythonStacks => ("Python stacks", (3, 2), "the Python functions of the tokenizer are unknown"),
            Self::Tls => ("TLS responses", (5, 15), "TLS responses are not read: their deliveries are unknown"),
        }
    }
}

/// Permissions of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    effective: u64,
    bounding: u64,
    kernel: (u32, u32),
    /// The process is in a separate user namespace, where its effective capabilities do not apply outside.
    mapped: bool,
    /// Uprobes are attached by perf events although the kernel's version has multi-uprobe links.
    perf_events: bool,
}

impl Permissions {
    /// Permissions of the calling process at the first call. A process that passes the use of its capabilities to a helper, and then
    /// drops them, calls this before. A permission that `/proc` does not show counts as missing.
    pub fn here() -> Self {
        static HERE: OnceLock<Permissions> = OnceLock::new();
        *HERE.get_or_init(Self::read)
    }

    fn read() -> Self {
        let status = kernel::read("/proc/self/status", 64 << 10).unwrap_or_default();
        let set = |name| u64::from_str_radix(field(&status, name)?, 16).ok();
        let release = kernel::read_text("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            effective: set("CapEff:").unwrap_or(0),
            bounding: set("CapBnd:").unwrap_or(0),
            kernel: version(&release).unwrap_or((0, 0)),
            mapped: Kind::User.is_initial() == Some(false),
            perf_events: false,
        }
    }

    /// The same permissions on a kernel whose multi-uprobe links are unusable, so that uprobes need perf events.
    pub(crate) fn with_perf_events(self) -> Self {
        Self { perf_events: true, ..self }
    }

    /// Whether a user namespace invalidates the capabilities for the kernel.
    pub fn mapped(&self) -> bool {
        self.mapped
    }

    /// Whether `capability` is effective if this process runs as root.
    pub fn may_have(&self, capability: Capability) -> bool {
        self.bounding >> capability.bit() & 1 == 1
    }

    /// Version of the kernel, for example `(6, 18)`.
    pub fn kernel(&self) -> (u32, u32) {
        self.kernel
    }

    /// Whether `capability` is effective. `SYS_ADMIN` includes `BPF` and `PERFMON`, as in the kernel.
    pub fn has(&self, capability: Capability) -> bool {
        let bit = |c: Capability| self.effective >> c.bit() & 1 == 1;
        bit(capability) || matches!(capability, Capability::Bpf | Capability::Perfmon) && bit(Capability::SysAdmin)
    }

    /// Capabilities that `feature` requires and this process lacks.
    pub fn lacks(&self, feature: Feature) -> Vec<Capability> {
        // The last version without these links.
        let kernel = if self.perf_events { self.kernel.min((6, 5)) } else { self.kernel };
        feature.needs(kernel).iter().copied().filter(|c| !self.has(*c)).collect()
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_release_parses() {
        assert_eq!(version("6.18.44-fc-v669\n"), Some((6, 18)));
        assert_eq!(version("5.15.0-1060-aws"), Some((5, 15)));
        assert_eq!(version("linux"), None);
    }

    #[test]
    fn sys_admin_implies_bpf_and_perfmon_but_not_ptrace() {
        let admin = Permissions { effective: 1 << 21, bounding: 0, mapped: false, perf_events: false, kernel: (6, 1) };
        assert!(admin.lacks(Feature::Scheduler).is_empty());
        assert_eq!(admin.lacks(Feature::Messages), [Capability::SysPtrace]);
        let none = Permissions { effective: 0, kernel: (6, 1), ..admin };
        assert_eq!(none.lacks(Feature::Polls), Feature::Polls.needs((6, 1)));
        let newer = Permissions { effective: 1 << 38 | 1 << 39 | 1 << 19, kernel: (6, 6), ..admin };
        assert!(newer.lacks(Feature::Messages).is_empty());
        assert_eq!(newer.with_perf_events().lacks(Feature::Messages), [Capability::SysAdmin]);
    }
}
