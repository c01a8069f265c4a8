//! Why a thread does not run: stopped, frozen, or asleep in a system call.

use std::path::Path;

use foreign::kernel;
use trace::event::AwayState;

use super::cgroup::{GroupLine, parse_groups};
use crate::opener_client::request::ThreadFile;
use crate::proc::{ProcDir, stat};

/// Kernel functions in which a thread of a frozen cgroup sleeps: version 2 (the second one if the first is inlined), version 1.
const FROZEN_IN: [&str; 3] = ["do_freezer_trap", "get_signal", "__refrigerator"];

/// State of a thread that does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwayReason {
    /// Why it does not run.
    pub state: AwayState,
    /// The system call, or the kernel function if the call cannot be read. Empty when unknown or irrelevant.
    pub waits_in: String,
}

impl AwayReason {
    /// Finds out why a thread does not run, from its files in `/proc`. `None` if it runs, if it waits for a CPU, or if it has exited.
    pub fn read(pid: u32, tid: u32) -> Option<Self> {
        let state_letter = read_state_letter(pid, tid)?;
        match state_letter {
            'T' | 't' => return Self::from_stop_letter(state_letter),
            // Asleep, asleep without interruption, idle, parked.
            'S' | 'D' | 'I' | 'P' => {}
            // Running, runnable or exited.
            _ => return None,
        }
        let process = ProcDir::open(pid).ok()?;
        // The kernel function in which the thread sleeps.
        let wait_function = read_wait_function(&process, tid);
        // A frozen thread sleeps in the kernel as well, so its state letter does not show it.
        if is_thread_frozen(pid, state_letter, &wait_function) {
            return Some(Self { state: AwayState::Frozen, waits_in: String::new() });
        }
        let system_call = read_thread_text(&process, tid, ThreadFile::SystemCall);
        // If the system call may not be read, or cannot be, only the kernel function is reported.
        let Some(call) = system_call.and_then(|line| parse_call_name(&line)) else {
            return Some(Self { state: AwayState::Asleep, waits_in: wait_function });
        };
        let state = if is_poll_call(&call) { AwayState::Polling } else { AwayState::Blocked };
        Some(Self { state, waits_in: call })
    }

    /// The stop of a thread in this state, by a signal or a debugger. `None` if the thread is in any other state.
    pub fn from_stop_letter(state_letter: char) -> Option<Self> {
        let state = match state_letter {
            'T' => AwayState::Stopped,
            't' => AwayState::Traced,
            _ => return None,
        };
        // A stopped thread waits for no system call.
        Some(Self { state, waits_in: String::new() })
    }
}

fn read_state_letter(pid: u32, tid: u32) -> Option<char> {
    let text = kernel::read_text(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat::state_letter(text.as_bytes())
}

/// Content of a file about a thread; `None` if it cannot be read.
fn read_thread_text(process: &ProcDir, tid: u32, file: ThreadFile) -> Option<String> {
    let text = process.read_thread_file(tid, file).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// The kernel function in which the thread sleeps. Empty if the kernel hides it.
fn read_wait_function(process: &ProcDir, tid: u32) -> String {
    let function = read_thread_text(process, tid, ThreadFile::WaitFunction).unwrap_or_default();
    // The kernel shows "0" when it hides the function.
    if function == "0" { String::new() } else { function }
}

/// Whether the cgroup freezer has frozen a sleeping thread. Its state and the kernel function in which it sleeps mostly show that, so that
/// the files of the cgroup need not be read.
fn is_thread_frozen(pid: u32, state_letter: char, wait_function: &str) -> bool {
    let waits_in_freezer = FROZEN_IN.contains(&wait_function);
    // Version 1 of the freezer leaves threads in state D. A hidden function may be the freezer's.
    let may_be_frozen = state_letter == 'D' || wait_function.is_empty();
    waits_in_freezer || (may_be_frozen && is_process_frozen(pid))
}

/// Whether the cgroup freezer has frozen the process, according to any of its control groups. False if they cannot be read.
fn is_process_frozen(pid: u32) -> bool {
    let text = kernel::read_text(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    parse_groups(&text).any(|group| is_frozen_group(&group))
}

/// Whether this control group is frozen, as its files show. `false` if they cannot be read.
fn is_frozen_group(group: &GroupLine<'_>) -> bool {
    let mount = Path::new("/sys/fs/cgroup");
    let path = group.path.trim_start_matches('/');
    if group.is_version_2() {
        // Version 2 is mounted alone, or in `unified` beside version 1.
        return file_has_line(&mount.join(path).join("cgroup.events"), "frozen 1")
            || file_has_line(&mount.join("unified").join(path).join("cgroup.events"), "frozen 1");
    }
    // In version 1, each controller has a mount of its own.
    group.has_controller("freezer") && file_has_line(&mount.join("freezer").join(path).join("freezer.state"), "FROZEN")
}

/// Whether a file has this line. False if it cannot be read.
fn file_has_line(path: &Path, wanted: &str) -> bool {
    kernel::read_text(path).unwrap_or_default().lines().any(|line| line.trim() == wanted)
}

/// Name of the system call in a line of `syscall`, for example `230 0x1 ..`. `None` for `running`, for `-1` (no call), and for
/// `restart_syscall`, which resumes any sleep or poll that a stop interrupted.
fn parse_call_name(line: &str) -> Option<String> {
    let number: libc::c_long = line.split_ascii_whitespace().next()?.parse().ok()?;
    if number < 0 || number == libc::SYS_restart_syscall {
        return None;
    }
    let named_call = BLOCKING_CALLS.iter().chain(LEGACY_CALLS).find(|(call, _)| *call == number);
    Some(match named_call {
        Some((_, name)) => (*name).to_owned(),
        None => format!("system call {number}"),
    })
}

/// Whether the call in a line of `syscall` is a poll.
pub(crate) fn is_poll_line(line: &str) -> bool {
    parse_call_name(line).is_some_and(|call| is_poll_call(&call))
}

/// Whether an event loop, or libzmq's own wait for a message, sleeps in this call while idle.
fn is_poll_call(call: &str) -> bool {
    call.starts_with("epoll_") || matches!(call, "poll" | "ppoll" | "select" | "pselect6")
}

macro_rules! named_calls {
    ($($name:ident = $number:ident)*) => {
        &[$((libc::$number, stringify!($name))),*]
    };
}

/// Blocking system calls that exist on every architecture.
const BLOCKING_CALLS: &[(libc::c_long, &str)] = named_calls! {
    accept4 = SYS_accept4
    clock_nanosleep = SYS_clock_nanosleep
    close = SYS_close
    connect = SYS_connect
    epoll_pwait = SYS_epoll_pwait
    epoll_pwait2 = SYS_epoll_pwait2
    fcntl = SYS_fcntl
    fdatasync = SYS_fdatasync
    flock = SYS_flock
    fsync = SYS_fsync
    futex = SYS_futex
    getdents64 = SYS_getdents64
    io_getevents = SYS_io_getevents
    io_uring_enter = SYS_io_uring_enter
    ioctl = SYS_ioctl
    madvise = SYS_madvise
    mmap = SYS_mmap
    munmap = SYS_munmap
    nanosleep = SYS_nanosleep
    openat = SYS_openat
    ppoll = SYS_ppoll
    pread64 = SYS_pread64
    pselect6 = SYS_pselect6
    pwrite64 = SYS_pwrite64
    read = SYS_read
    readv = SYS_readv
    recvfrom = SYS_recvfrom
    recvmsg = SYS_recvmsg
    sendfile = SYS_sendfile
    sendmmsg = SYS_sendmmsg
    sendmsg = SYS_sendmsg
    sendto = SYS_sendto
    statx = SYS_statx
    wait4 = SYS_wait4
    waitid = SYS_waitid
    write = SYS_write
    writev = SYS_writev
};

/// System calls that newer architectures lack.
#[cfg(target_arch = "x86_64")]
const LEGACY_CALLS: &[(libc::c_long, &str)] = named_calls! {
    accept = SYS_accept
    epoll_wait = SYS_epoll_wait
    open = SYS_open
    poll = SYS_poll
    select = SYS_select
};
#[cfg(not(target_arch = "x86_64"))]
const LEGACY_CALLS: &[(libc::c_long, &str)] = &[];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    /// A child process that ends with the test.
    struct Own(Child);

    impl Own {
        fn run(program: &str, args: &[&str]) -> Self {
            let mut command = Command::new(program);
            Self(command.args(args).stdin(Stdio::piped()).spawn().unwrap())
        }

        fn pid(&self) -> u32 {
            self.0.id()
        }

        /// Waits until the thread has a state accepted by `condition`.
        fn wait_for(&self, condition: &dyn Fn(&AwayReason) -> bool) -> AwayReason {
            let begun = Instant::now();
            loop {
                let away = AwayReason::read(self.pid(), self.pid());
                if let Some(away) = away.as_ref().filter(|away| condition(away)) {
                    return away.clone();
                }
                assert!(begun.elapsed() < Duration::from_mins(1), "{away:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }

        fn signal(&self, signal: rustix::process::Signal) {
            let pid = rustix::process::Pid::from_raw(self.pid() as i32).unwrap();
            rustix::process::kill_process(pid, signal).unwrap();
        }
    }

    impl Drop for Own {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn a_stopped_child_is_reported_until_it_continues() {
        let child = Own::run("sleep", &["1000"]);
        child.signal(rustix::process::Signal::STOP);
        assert_eq!(child.wait_for(&|away| away.state == AwayState::Stopped).waits_in, "");
        let stop = |pid| AwayReason::from_stop_letter(read_state_letter(pid, pid)?).map(|away| away.state);
        assert_eq!([stop(child.pid()), stop(std::process::id())], [Some(AwayState::Stopped), None]);
        child.signal(rustix::process::Signal::CONT);
        let away = child.wait_for(&|away| away.state != AwayState::Stopped);
        // An interrupted sleep resumes under another system call number.
        let known = away.state == AwayState::Blocked && away.waits_in.contains("nanosleep");
        assert!(known || away.state == AwayState::Asleep, "{away:?}");
    }

    #[test]
    fn a_child_blocked_in_a_read_is_reported_by_syscall_name() {
        let child = Own::run("cat", &[]);
        let away = child.wait_for(&|away| away.state == AwayState::Blocked && away.waits_in == "read");
        assert_eq!(away.waits_in, "read");
    }

    #[test]
    fn a_frozen_child_is_reported() {
        for (folder, file, on, off) in [
            ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
            ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
            ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"),
        ] {
            let group = Path::new(folder).join(format!("tokengap-test-{}", std::process::id()));
            // Skips what needs root, or a freezer of another cgroup version.
            if fs::create_dir(&group).is_err() {
                continue;
            }
            if group.join(file).exists() {
                let child = Own::run("sleep", &["1000"]);
                fs::write(group.join("cgroup.procs"), child.pid().to_string()).unwrap();
                fs::write(group.join(file), on).unwrap();
                child.wait_for(&|away| away.state == AwayState::Frozen);
                fs::write(group.join(file), off).unwrap();
                child.wait_for(&|away| away.state != AwayState::Frozen);
            }
            let begun = Instant::now();
            while fs::remove_dir(&group).is_err() && begun.elapsed() < Duration::from_secs(10) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn a_running_or_missing_thread_is_not_away() {
        let tid = rustix::thread::gettid().as_raw_pid() as u32;
        assert_eq!(AwayReason::read(std::process::id(), tid), None);
        assert_eq!(AwayReason::read(u32::MAX, 1), None);
    }

    #[test]
    fn syscall_lines_parse() {
        assert_eq!(parse_call_name("running\n"), None);
        assert_eq!(parse_call_name("-1 0x7fff 0x7f15\n"), None);
        assert_eq!(parse_call_name(&format!("{} 0x1\n", libc::SYS_futex)).as_deref(), Some("futex"));
        assert_eq!(parse_call_name("9999 0x1").as_deref(), Some("system call 9999"));
        assert!(is_poll_call("epoll_wait") && is_poll_call("poll") && !is_poll_call("futex"));
        assert!(is_poll_line(&format!("{} 0x1", libc::SYS_epoll_pwait2)) && !is_poll_line("running"));
    }
}
