//! The child program: start, signal forwarding, and termination.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use foreign::kernel;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::origin::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

/// Forwarded signals.
const SIGNALS: [i32; 7] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH];

/// Interval of checks whether the child has exited.
const EXIT_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// A shell reports the end by signal N as exit code 128 + N.
const SIGNAL_EXIT_BASE: i32 = 128;

/// Signals caught for a child. Install before starting it, so that no signal is missed.
pub struct Forwarding {
    caught: SignalsInfo<WithOrigin>,
}

impl Forwarding {
    /// Catches the signals. Ignored ones remain ignored, also in the child (`nohup`).
    pub fn catch_signals() -> anyhow::Result<Self> {
        // Read first: a signal that is caught no longer counts as ignored.
        let ignored = ignored_signal_mask();
        let mut wanted = SIGNALS.to_vec();
        wanted.retain(|signal| {
            // The lowest bit is signal 1.
            let is_ignored = ignored & (1 << (signal - 1)) != 0;
            !is_ignored
        });
        let caught = SignalsInfo::new(wanted).context("cannot listen for signals")?;
        Ok(Self { caught })
    }

    /// Forwards signals to `child`, except those sent by a terminal, which reach the child as a member of the process group.
    pub fn forward_to(mut self, child: &Arc<Child>) -> io::Result<()> {
        let child = Arc::clone(child);
        thread::Builder::new().name("signals".into()).spawn(move || {
            for Origin { signal, cause, .. } in self.caught.forever() {
                // The kernel is the sender of a signal from a terminal.
                if cause != Cause::Kernel
                    && let Some(signal) = Signal::from_named_raw(signal)
                {
                    child.send_signal(signal);
                }
            }
        })?;
        Ok(())
    }
}

/// Mask of the signals that were ignored when tokengap started: bit N-1 is set for signal N.
fn ignored_signal_mask() -> u64 {
    let status = kernel::read("/proc/self/status", kernel::MAX_STATUS_BYTES).unwrap_or_default();
    let mask = kernel::status_field(&status, "SigIgn:");
    mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0)
}

/// Exit code of an ended process as a shell reports it: 128 plus the signal number if a signal ended the process.
fn shell_exit_code(status: ExitStatus) -> u8 {
    let code = match status.signal() {
        Some(signal) => SIGNAL_EXIT_BASE + signal,
        // Without a signal, there is always a code.
        None => status.code().unwrap_or(u8::MAX.into()),
    };
    // Both are below 256.
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// The program, during and after its execution.
pub struct Child {
    name: String,
    pid: u32,
    process: Mutex<std::process::Child>,
}

impl Child {
    /// Starts `command` with `folder` for its temporary files. Its output goes to `output`, or is inherited.
    pub fn start(command: &[OsString], folder: &Path, output: Option<File>) -> anyhow::Result<Arc<Self>> {
        let (program, args) = command.split_first().context("no command to run")?;
        let mut process = Command::new(program);
        process.args(args).env("TMPDIR", folder);
        if let Some(output) = output {
            // The screen uses the terminal, so the child must neither read from it nor write to it.
            process.stdin(Stdio::null());
            process.stdout(output.try_clone()?).stderr(output);
        }
        let name = Path::new(program).file_name().unwrap_or(OsStr::new("?"));
        let process = process.spawn().with_context(|| format!("cannot start {}", program.display()))?;
        Ok(Arc::new(Self {
            name: format!("{} ({})", name.display(), process.id()),
            pid: process.id(),
            process: Mutex::new(process),
        }))
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Name and pid of the program, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether it has exited.
    pub fn has_ended(&self) -> bool {
        self.status().is_some()
    }

    /// Exit status; `None` while it runs.
    fn status(&self) -> Option<ExitStatus> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).try_wait().ok().flatten()
    }

    /// Sends a signal unless the child has exited, because its pid may have been reused.
    fn send_signal(&self, signal: Signal) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(None) = process.try_wait() {
            // It may exit before the signal. Until it is reaped, which takes this lock, no other process gets its pid.
            let _ = kill_process(Pid::from_child(&process), signal);
        }
    }

    /// Sends SIGTERM to the child, which asks it to exit.
    pub fn ask_to_end(&self) {
        self.send_signal(Signal::TERM);
    }

    /// Waits for the exit, and returns the exit code as reported by a shell: 128 plus the signal number if a signal ended the child. A
    /// child that does not exit within `patience` is killed, after a message for `warn`.
    pub fn exit_code_after_wait_or_kill(&self, patience: Duration, warn: &dyn Fn(&str)) -> u8 {
        let until = Instant::now() + patience;
        loop {
            if let Some(status) = self.status() {
                return shell_exit_code(status);
            }
            // Repeated at each turn until the kill takes effect.
            if Instant::now() >= until {
                warn(&format!("{} does not exit; killing it", self.name));
                self.send_signal(Signal::KILL);
            }
            thread::sleep(EXIT_CHECK_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Arc<Child> {
        let command = ["sh", "-c", script].map(OsString::from);
        let signals = Forwarding::catch_signals().expect("caught");
        let child = Child::start(&command, Path::new("/tmp"), None).expect("started");
        signals.forward_to(&child).expect("passed on");
        child
    }

    #[test]
    fn exit_codes_follow_the_shell_convention() {
        let patience = Duration::from_secs(20);
        let ignore = |_: &str| ();
        assert_eq!(start("exit 0").exit_code_after_wait_or_kill(patience, &ignore), 0);
        assert_eq!(start("exit 77").exit_code_after_wait_or_kill(patience, &ignore), 77);
        assert_eq!(start("kill -9 $$").exit_code_after_wait_or_kill(patience, &ignore), 137);
        let terminated = start("sleep 20 & wait");
        terminated.ask_to_end();
        assert_eq!(terminated.exit_code_after_wait_or_kill(patience, &ignore), 143);
        let stubborn = start("trap '' TERM; while :; do sleep 0.1; done");
        assert_eq!(stubborn.exit_code_after_wait_or_kill(Duration::from_millis(100), &ignore), 137);
    }

    #[test]
    fn a_failed_start_is_reported() {
        let error = Child::start(&["/no/such/engine".into()], Path::new("/tmp"), None);
        assert!(format!("{:#}", error.err().expect("refused")).contains("/no/such/engine"));
    }
}
