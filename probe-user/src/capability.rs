//! What this process may do, and what each feature of the probe needs.

use std::fmt;
use std::fs;

use crate::examine::filter::Call;
use crate::examine::namespace::Kind;

/// A Linux capability that some feature needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Capability {
    /// Uprobes by `perf_event_open`, before Linux 6.6.
    SysAdmin,
    /// Maps and programs.
    Bpf,
    /// Tracing programs.
    Perfmon,
    /// Other users' `/proc/PID/root`, `maps` and sockets.
    SysPtrace,
    /// `/proc/PID/fd`, which only its owner and root may list.
    DacReadSearch,
}

impl Capability {
    /// Each of them.
    pub const ALL: [Self; 5] = [
        Self::SysAdmin,
        Self::Bpf,
        Self::Perfmon,
        Self::SysPtrace,
        Self::DacReadSearch,
    ];

    /// Its bit in `CapEff`; include/uapi/linux/capability.h.
    pub const fn bit(self) -> u32 {
        match self {
            Self::DacReadSearch => 2,
            Self::SysPtrace => 19,
            Self::SysAdmin => 21,
            Self::Perfmon => 38,
            Self::Bpf => 39,
        }
    }

    /// Its name as Kubernetes and Docker write it.
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

/// What the probe can observe, each with its own needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Feature {
    /// Frames sent and taken: uprobes on libzmq.
    Messages,
    /// Frames handled: a uprobe on `zmq_getsockopt`.
    Handled,
    /// On-CPU, waiting and blocked time at each frame: raw tracepoints of the scheduler.
    Scheduler,
    /// Wakeups and time away from the poll: uprobes on libc.
    Polls,
    /// Bytes in the sockets' kernel queues: `pidfd_getfd`.
    Queues,
    /// What is written for clients: raw tracepoints of system calls and of TCP.
    Egress,
    /// Functions of the engine's Python: `process_vm_readv`.
    PythonStacks,
}

impl Feature {
    /// Every feature, in the order they are shown.
    pub const ALL: [Self; 7] = [
        Self::Messages,
        Self::Handled,
        Self::Scheduler,
        Self::Polls,
        Self::Queues,
        Self::Egress,
        Self::PythonStacks,
    ];

    /// Capabilities it needs on a kernel of this version; measured with each of them alone (docs/internals/PROBE.md).
    pub const fn needs(self, kernel: (u32, u32)) -> &'static [Capability] {
        use Capability::{Bpf, DacReadSearch, Perfmon, SysAdmin, SysPtrace};
        // From 6.6 on a link of many uprobes asks for less than a perf event does.
        let links = kernel.0 > 6 || kernel.0 == 6 && kernel.1 >= 6;
        match self {
            Self::Messages | Self::Handled | Self::Polls if links => &[Bpf, Perfmon, SysPtrace],
            Self::Messages | Self::Handled | Self::Polls => &[SysAdmin, SysPtrace],
            Self::Scheduler | Self::Egress => &[Bpf, Perfmon],
            Self::Queues => &[SysPtrace, DacReadSearch],
            Self::PythonStacks => &[SysPtrace],
        }
    }

    /// System calls without which it is not there; a filter may refuse them in spite of every capability.
    pub const fn calls(self) -> &'static [Call] {
        match self {
            Self::Messages | Self::Handled | Self::Polls | Self::Scheduler | Self::Egress => &[Call::Bpf],
            Self::Queues => &[Call::PidfdGetfd],
            Self::PythonStacks => &[Call::ProcessVmReadv],
        }
    }

    /// Whether programs in the kernel are part of it.
    pub const fn is_in_kernel(self) -> bool {
        !matches!(self, Self::Queues | Self::PythonStacks)
    }

    /// A word or two for it, in tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Messages => "frames",
            Self::Handled => "handled",
            Self::Scheduler => "thread states",
            Self::Polls => "wakeups",
            Self::Queues => "kernel queues",
            Self::Egress => "deliveries",
            Self::PythonStacks => "Python stacks",
        }
    }

    /// Oldest kernel that has what it uses.
    pub const fn kernel(self) -> (u32, u32) {
        match self {
            Self::Messages | Self::Handled | Self::Polls => (5, 15),
            Self::Scheduler | Self::Egress => (5, 8),
            Self::Queues => (5, 6),
            Self::PythonStacks => (3, 2),
        }
    }

    /// What cannot be said without it.
    pub const fn without(self) -> &'static str {
        match self {
            Self::Messages => "frames are not observed: no gap, no backlog",
            Self::Handled => "the time a frame is handled is unknown",
            Self::Scheduler => "what the consumer's thread did while a frame waited is known per 100 ms only",
            Self::Polls => "frames per wakeup and the time away from the poll are unknown: no drop is predicted",
            Self::Queues => "bytes in the kernel's socket queues are unknown",
            Self::Egress => "what is delivered to clients is not observed: no drop is confirmed",
            Self::PythonStacks => "the functions that its Python runs are unknown",
        }
    }
}

/// What this process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permissions {
    effective: u64,
    bounding: u64,
    kernel: (u32, u32),
    /// In a user namespace of its own: what is effective there is nothing outside of it.
    mapped: bool,
}

impl Permissions {
    /// Of the calling process; nothing is assumed where `/proc` does not say.
    pub fn here() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            effective: set(&status, "CapEff:").unwrap_or(0),
            bounding: set(&status, "CapBnd:").unwrap_or(0),
            kernel: version(&release).unwrap_or((0, 0)),
            mapped: Kind::User.is_initial() == Some(false),
        }
    }

    /// Whether a user namespace keeps the capabilities from being worth anything to the kernel.
    pub fn mapped(&self) -> bool {
        self.mapped
    }

    /// Whether `capability` would be effective if this process were root.
    pub fn may_have(&self, capability: Capability) -> bool {
        self.bounding >> capability.bit() & 1 == 1
    }

    /// The kernel's version, `(6, 18)`.
    pub fn kernel(&self) -> (u32, u32) {
        self.kernel
    }

    /// Whether `capability` is effective. `SYS_ADMIN` includes `BPF` and `PERFMON`, as in the kernel.
    pub fn has(&self, capability: Capability) -> bool {
        let bit = |c: Capability| self.effective >> c.bit() & 1 == 1;
        bit(capability) || matches!(capability, Capability::Bpf | Capability::Perfmon) && bit(Capability::SysAdmin)
    }

    /// Capabilities that `feature` needs and this process lacks.
    pub fn lacks(&self, feature: Feature) -> Vec<Capability> {
        feature
            .needs(self.kernel)
            .iter()
            .copied()
            .filter(|c| !self.has(*c))
            .collect()
    }
}

fn set(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix(name))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_status_and_release() {
        assert_eq!(
            set("Name:\tx\nCapEff:\t000001ffffffffff\n", "CapEff:"),
            Some(0x1ff_ffff_ffff)
        );
        assert_eq!(set("Name:\tx\n", "CapEff:"), None);
        assert_eq!(version("6.18.44-fc-v669\n"), Some((6, 18)));
        assert_eq!(version("5.15.0-1060-aws"), Some((5, 15)));
        assert_eq!(version("linux"), None);
    }

    #[test]
    fn sys_admin_stands_for_the_newer_two_and_not_for_ptrace() {
        let admin = Permissions {
            effective: 1 << 21,
            bounding: 0,
            mapped: false,
            kernel: (6, 1),
        };
        assert!(admin.lacks(Feature::Scheduler).is_empty());
        assert_eq!(admin.lacks(Feature::Messages), [Capability::SysPtrace]);
        let none = Permissions {
            effective: 0,
            bounding: 0,
            mapped: false,
            kernel: (6, 1),
        };
        assert_eq!(none.lacks(Feature::Polls), Feature::Polls.needs((6, 1)));
        let newer = Permissions {
            effective: 1 << 38 | 1 << 39 | 1 << 19,
            bounding: 0,
            mapped: false,
            kernel: (6, 6),
        };
        assert!(newer.lacks(Feature::Messages).is_empty());
    }
}
