//! Whether a seccomp filter keeps a system call from us: each is made with arguments that the kernel itself refuses, in
//! another way.

#![expect(unsafe_code, reason = "system calls with arguments that no wrapper makes")]

use std::fs;

use rustix::io::Errno;

/// A system call that the probe makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Maps and programs.
    Bpf,
    /// Uprobes before Linux 6.6.
    PerfEventOpen,
    /// Socket queues.
    PidfdGetfd,
    /// Python stacks.
    ProcessVmReadv,
}

impl Call {
    /// Each of them.
    pub const ALL: [Self; 4] = [Self::Bpf, Self::PerfEventOpen, Self::PidfdGetfd, Self::ProcessVmReadv];

    /// Its name, as filters have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bpf => "bpf",
            Self::PerfEventOpen => "perf_event_open",
            Self::PidfdGetfd => "pidfd_getfd",
            Self::ProcessVmReadv => "process_vm_readv",
        }
    }

    /// Makes the call, to no effect; the error.
    fn errno(self) -> Option<Errno> {
        let nothing = std::ptr::null::<u8>();
        let (zero, none) = (0_usize, -1_i64);
        // SAFETY: no command 9999 exists (EINVAL); a null attribute is not read (EFAULT); -1 is no descriptor (EBADF);
        // no bytes of ourselves are copied.
        let returned = unsafe {
            match self {
                Self::Bpf => libc::syscall(libc::SYS_bpf, 9999_usize, nothing, zero),
                Self::PerfEventOpen => libc::syscall(libc::SYS_perf_event_open, nothing, zero, none, none, zero),
                Self::PidfdGetfd => libc::syscall(libc::SYS_pidfd_getfd, none, zero, zero),
                Self::ProcessVmReadv => {
                    let pid = i64::from(libc::getpid());
                    libc::syscall(libc::SYS_process_vm_readv, pid, nothing, zero, nothing, zero, zero)
                }
            }
        };
        (returned < 0)
            .then(std::io::Error::last_os_error)
            .and_then(|error| Errno::from_io_error(&error))
    }

    /// Tries it.
    pub fn attempt(self) -> Attempt {
        let errno = self.errno();
        let refused = [Errno::PERM, Errno::ACCESS, Errno::NOSYS];
        Attempt {
            call: self,
            refused: errno.filter(|errno| refused.contains(errno)).map(Errno::raw_os_error),
        }
    }
}

/// How a call went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// Which.
    pub call: Call,
    /// The error with which it was refused before the kernel looked at its arguments.
    pub refused: Option<i32>,
}

/// Calls that are refused, where there is a filter; a kernel without one refuses by capability and says so elsewhere.
pub fn refused() -> Vec<Call> {
    if mode() != Some(Mode::Filter) {
        return Vec::new();
    }
    let attempts = Call::ALL.into_iter().map(Call::attempt);
    attempts.filter(|a| a.refused.is_some()).map(|a| a.call).collect()
}

/// What seccomp does to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Off,
    /// Four calls are allowed.
    Strict,
    /// A filter decides.
    Filter,
}

/// Of the calling process; `None` where the kernel does not say.
pub fn mode() -> Option<Mode> {
    parse(&fs::read_to_string("/proc/self/status").ok()?)
}

fn parse(status: &str) -> Option<Mode> {
    let line = status.lines().find_map(|line| line.strip_prefix("Seccomp:"))?;
    match line.trim() {
        "0" => Some(Mode::Off),
        "1" => Some(Mode::Strict),
        "2" => Some(Mode::Filter),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_itself_refuses_none_of_the_harmless_calls() {
        if mode() != Some(Mode::Off) {
            return eprintln!("SKIPPED: this process is filtered");
        }
        for call in [Call::PerfEventOpen, Call::PidfdGetfd, Call::ProcessVmReadv] {
            assert_eq!(call.attempt().refused, None, "{call:?}");
        }
        assert_eq!(Call::PidfdGetfd.errno(), Some(Errno::BADF));
        assert_eq!(Call::ProcessVmReadv.errno(), None);
        assert_eq!(refused(), []);
    }

    #[test]
    fn modes_of_status() {
        assert_eq!(
            parse("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"),
            Some(Mode::Filter)
        );
        assert_eq!(parse("Seccomp:\t0\n"), Some(Mode::Off));
        assert_eq!(parse("Name:\tx\n"), None);
    }
}
