//! A running `tokengap attach`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::super::process::Process;

/// Time limit: scanning the processes of a busy machine and attaching to each takes seconds.
const ATTACHING: Duration = Duration::from_mins(1);

/// A running `tokengap attach` process.
#[derive(Debug)]
pub(in super::super) struct Watch(Process);

impl Watch {
    /// Starts attach without a target and waits until its probes are in place. If another engine runs on this machine, passes one pid of
    /// ours, from which attach must find the rest.
    pub(super) fn start(program: &Path, pid: u32, dir: &Path) -> Result<Self> {
        Self::start_with(program, pid, dir, &[])
    }

    /// Like [`Self::start`], with further options.
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
        // Report every request. The duration is only a safety limit in case this process is killed.
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

    /// Sends a signal that does not end the process.
    pub(in super::super) fn signal(&self, signal: Signal) -> Result<()> {
        self.0.signal(signal)
    }

    /// Stops it with SIGINT and returns its report.
    pub(in super::super) fn report(self) -> Result<Value> {
        self.0.signal(Signal::INT)?;
        let lines = self.0.end_well(ATTACHING)?;
        serde_json::from_str(&lines.join("\n")).context("attach's standard output is no JSON report")
    }

    /// Kills it with SIGKILL.
    pub(super) fn kill(self) -> Result<()> {
        self.0.signal(Signal::KILL)?;
        let (status, _) = self.0.end(Duration::from_secs(10))?;
        ensure!(!status.success(), "attach outlived SIGKILL");
        Ok(())
    }
}
