//! Detection of system calls refused by a seccomp filter. Each call is tried with arguments that the kernel itself rejects with a different
//! error.

#![expect(unsafe_code, reason = "no safe wrapper makes calls with invalid arguments")]

use std::sync::OnceLock;

use foreign::kernel::{self, status_field};
use rustix::io::Errno;

/// A system call that the probe uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemCall {
    /// Creating maps and loading programs.
    Bpf,
    /// Attaching uprobes before Linux 6.6.
    PerfEventOpen,
    /// Borrowing a sender's socket (`splice`).
    PidfdGetfd,
    /// Reading Python stacks.
    ProcessVmReadv,
}

impl SystemCall {
    /// All of these system calls.
    pub const ALL: [Self; 4] = [Self::Bpf, Self::PerfEventOpen, Self::PidfdGetfd, Self::ProcessVmReadv];

    /// Name in the notation of seccomp filters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bpf => "bpf",
            Self::PerfEventOpen => "perf_event_open",
            Self::PidfdGetfd => "pidfd_getfd",
            Self::ProcessVmReadv => "process_vm_readv",
        }
    }

    /// Makes the call with ineffective arguments and returns its error; `None` if it succeeds.
    fn try_call_without_effect(self) -> Option<Errno> {
        let nothing = std::ptr::null::<u8>();
        let zero = 0_usize;
        let none = -1_i64;
        let unknown_command = 9999_usize;
        // SAFETY: no command 9999 exists (EINVAL); a null attribute is not read (EFAULT); -1 is not a descriptor (EBADF);
        // `process_vm_readv` copies zero bytes.
        let returned = unsafe {
            match self {
                Self::Bpf => libc::syscall(libc::SYS_bpf, unknown_command, nothing, zero),
                Self::PerfEventOpen => libc::syscall(libc::SYS_perf_event_open, nothing, zero, none, none, zero),
                Self::PidfdGetfd => libc::syscall(libc::SYS_pidfd_getfd, none, zero, zero),
                Self::ProcessVmReadv => {
                    let pid = i64::from(libc::getpid());
                    libc::syscall(libc::SYS_process_vm_readv, pid, nothing, zero, nothing, zero, zero)
                }
            }
        };
        if returned >= 0 {
            return None;
        }
        Errno::from_io_error(&std::io::Error::last_os_error())
    }

    /// Tries the system call without an effect. Returns the error number of a refusal, which comes before any check of the arguments.
    /// `None` if the call is permitted.
    pub fn probe_refusal_errno(self) -> Option<i32> {
        match self.try_call_without_effect()? {
            refused @ (Errno::PERM | Errno::ACCESS | Errno::NOSYS) => Some(refused.raw_os_error()),
            // The kernel's own error for the arguments.
            _ => None,
        }
    }
}

/// Calls that a seccomp filter refused at the first call of this function, before tokengap installs filters of its own. Without a filter,
/// a refusal is due to capabilities and reported elsewhere.
pub fn calls_refused_by_seccomp() -> Vec<SystemCall> {
    static FILTERED: OnceLock<Vec<SystemCall>> = OnceLock::new();
    FILTERED
        .get_or_init(|| {
            if seccomp_mode() != Some(SeccompMode::Filter) {
                return Vec::new();
            }
            SystemCall::ALL.into_iter().filter(|call| call.probe_refusal_errno().is_some()).collect()
        })
        .clone()
}

/// Seccomp mode of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeccompMode {
    /// Seccomp is off.
    Off,
    /// Only four calls are allowed.
    Strict,
    /// A filter decides.
    Filter,
}

/// Seccomp mode of the calling process; `None` if the kernel does not report it.
pub fn seccomp_mode() -> Option<SeccompMode> {
    let status = kernel::read("/proc/self/status", kernel::MAX_STATUS_BYTES).ok()?;
    match status_field(&status, "Seccomp:")? {
        "0" => Some(SeccompMode::Off),
        "1" => Some(SeccompMode::Strict),
        "2" => Some(SeccompMode::Filter),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_rejects_none_of_the_harmless_calls() {
        if seccomp_mode() != Some(SeccompMode::Off) {
            return eprintln!("SKIPPED: this process is filtered");
        }
        for call in [SystemCall::PerfEventOpen, SystemCall::PidfdGetfd, SystemCall::ProcessVmReadv] {
            assert_eq!(call.probe_refusal_errno(), None, "{call:?}");
        }
        assert_eq!(SystemCall::PidfdGetfd.try_call_without_effect(), Some(Errno::BADF));
        assert_eq!(SystemCall::ProcessVmReadv.try_call_without_effect(), None);
        assert_eq!(calls_refused_by_seccomp(), []);
    }
}
