//! A running `tokengap attach`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::super::process::Process;

/// Looking through the processes of a busy machine and attaching to each takes seconds.
const ATTACHING: Duration = Duration::from_mins(1);

/// One attach.
#[derive(Debug)]
pub(in super::super) struct Watch(Process);

impl Watch {
    /// Starts it, without a word on what to watch, and waits until its probes are in place. Where another engine runs on
    /// this machine it cannot choose; only then it is told one pid of ours, and must find the rest.
    pub(super) fn start(program: &Path, pid: u32, dir: &Path) -> Result<Self> {
        Self::start_with(program, pid, dir, &[])
    }

    /// The same with further options.
    pub(in super::super) fn start_with(program: &Path, pid: u32, dir: &Path, more: &[&str]) -> Result<Self> {
        match Self::attach("attach", program, more, dir) {
            Err(error) if error.to_string().contains("engines were found") => {
                let pid = pid.to_string();
                Self::attach("attach-pid", program, &[&["--pid", &pid], more].concat(), dir)
            }
            other => other,
        }
    }

    fn attach(name: &str, program: &Path, which: &[&str], dir: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        // Every request in detail; the duration is only a bound, should this process be killed and not end it.
        command.args([
            "attach",
            "--headless",
            "--json",
            "--slowest",
            "100000",
            "--duration",
            "300s",
        ]);
        command.args(which);
        let mut process = Process::start(name, command, dir)?;
        process.remark("attached to", ATTACHING)?;
        Ok(Self(process))
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Sends it a signal that does not end it.
    pub(in super::super) fn signal(&self, signal: Signal) -> Result<()> {
        self.0.signal(signal)
    }

    /// Ends it as from a terminal and gives its report.
    pub(in super::super) fn report(self) -> Result<Value> {
        self.0.signal(Signal::INT)?;
        let lines = self.0.end_well(ATTACHING)?;
        serde_json::from_str(&lines.join("\n")).context("attach's standard output is no JSON report")
    }

    /// Ends it as an accident does.
    pub(super) fn kill(self) -> Result<()> {
        self.0.signal(Signal::KILL)?;
        let (status, _) = self.0.end(Duration::from_secs(10))?;
        ensure!(!status.success(), "attach outlived SIGKILL");
        Ok(())
    }
}
