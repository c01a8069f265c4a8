//! The relay under test, started in the environment that a fault needs, and measured from outside.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::Bench;
use crate::e2e::process::Process;
use crate::e2e::tap::{Transport, wait_until_bound};

/// Time limit for exit. Draining takes at most 2.5 s; the rest allows for a busy machine.
const ENDING: Duration = Duration::from_mins(1);

/// Endpoints of senders and receiver.
#[derive(Clone, Debug)]
pub(super) struct Ends {
    pub(super) front: String,
    pub(super) back: String,
}

impl Ends {
    pub(super) fn new(transport: Transport, dir: &Path) -> Result<Self> {
        Ok(Self {
            front: transport.endpoint(dir, "front")?,
            back: transport.endpoint(dir, "back")?,
        })
    }
}

/// Environment of the relay.
#[derive(Clone, Debug, Default)]
pub(super) struct Around<'a> {
    /// Further options of `tokengap tap`.
    pub(super) options: Vec<String>,
    /// Shell commands run before it in the same process, for example to set limits.
    pub(super) before: &'a str,
    /// Use a separate mount namespace.
    pub(super) own_mounts: bool,
    /// Injected fault (`trace::fault`); needs the fault-injection build.
    pub(super) fault: Option<&'a str>,
}

impl<'a> Around<'a> {
    pub(super) fn before(before: &'a str) -> Self {
        Self {
            before,
            ..Self::default()
        }
    }

    /// An environment with an injected fault.
    pub(super) fn fault(fault: &'a str) -> Self {
        Self {
            fault: Some(fault),
            ..Self::default()
        }
    }
}

/// A running relay: tokengap's, or one that only copies.
pub(super) struct Tap {
    process: Process,
    name: String,
}

impl Tap {
    /// Starts `tokengap tap` and waits until it listens; `name` is unique within `dir`.
    pub(super) fn start(bench: &Bench, name: &str, ends: &Ends, around: &Around<'_>, dir: &Path) -> Result<Self> {
        let mut command = Command::new(if around.own_mounts { "unshare" } else { "sh" });
        if around.own_mounts {
            command.args(["--mount", "sh"]);
        }
        let program = match around.fault {
            Some(fault) => {
                command.env("TOKENGAP_FAULT", fault);
                &bench.faulty
            }
            None => &bench.tokengap,
        };
        let line = match around.before {
            "" => r#"exec "$0" "$@""#.to_owned(),
            before => format!(r#"{before} && exec "$0" "$@""#),
        };
        command.current_dir(dir).args(["-c", &line]).arg(program);
        command.args(["tap", "--headless", "--json", "--duration", "900s"]);
        command.args(["--listen", &ends.front, "--upstream", &ends.back]);
        command.args(&around.options);
        Self::run(name, command, ends, dir)
    }

    /// Starts a relay that only copies.
    pub(super) fn plain(name: &str, ends: &Ends, dir: &Path) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["plain-relay", "--listen", &ends.front, "--upstream", &ends.back]);
        Self::run(name, command, ends, dir)
    }

    fn run(name: &str, command: Command, ends: &Ends, dir: &Path) -> Result<Self> {
        let mut process = Process::start(name, command, dir)?;
        wait_until_bound(&ends.front, &mut process)?;
        let name = name.into();
        Ok(Self { process, name })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// Describes its exit, if it has exited.
    pub(super) fn ended(&mut self) -> Result<Option<String>> {
        self.process.ended()
    }

    /// Stops it with SIGTERM and returns its report.
    pub(super) fn report(self) -> Result<Value> {
        self.process.signal(Signal::TERM)?;
        let lines = self.process.end_well(ENDING)?;
        let said = lines.join("\n");
        serde_json::from_str(&said)
            .with_context(|| format!("{}'s standard output is no JSON report: {said}", self.name))
    }

    /// Kills it with SIGKILL.
    pub(super) fn kill(self) -> Result<()> {
        self.process.signal(Signal::KILL)?;
        let (status, _) = self.process.end(ENDING)?;
        ensure!(!status.success(), "{} outlived SIGKILL", self.name);
        Ok(())
    }
}

/// Resources held by a process, from `/proc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    /// Resident memory in KiB.
    pub(crate) memory: u64,
    /// Maximum number of open files of any thread: the relay's thread has a separate descriptor table.
    pub(crate) files: usize,
    pub(crate) threads: u64,
    /// Number of memory mappings.
    pub(crate) mappings: usize,
}

impl Held {
    pub(crate) fn by(pid: u32) -> Result<Self> {
        let proc = Path::new("/proc").join(pid.to_string());
        let status = fs::read_to_string(proc.join("status")).with_context(|| format!("reading of process {pid}"))?;
        let number = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
                .unwrap_or(0)
        };
        Ok(Self {
            memory: number("VmRSS:"),
            files: open_files(&proc.join("task"))?,
            threads: number("Threads:"),
            mappings: fs::read_to_string(proc.join("maps"))?.lines().count(),
        })
    }
}

/// Maximum number of open files of any thread in `tasks`. Threads may exit during the scan.
fn open_files(tasks: &Path) -> Result<usize> {
    let mut most = 0;
    for task in fs::read_dir(tasks)? {
        most = most.max(fs::read_dir(task?.path().join("fd")).map_or(0, Iterator::count));
    }
    Ok(most)
}

/// Degraded parts named in the report.
pub(super) fn degraded(report: &Value) -> Vec<&str> {
    let all = report["self"]["degraded"].as_array();
    all.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Messages that the report counts as observed, whether decoded or not.
pub(super) fn seen(report: &Value) -> u64 {
    let hops = report["hops"].as_array();
    hops.into_iter()
        .flatten()
        .filter_map(|hop| hop["frames_sent"].as_u64())
        .sum()
}

/// Messages that the report counts as missed, without unframed bytes from invalid peers.
pub(super) fn lost(report: &Value) -> u64 {
    let own = &report["self"];
    let unframed = own["missed_by_cause"]["unframed"].as_u64().unwrap_or(0);
    own["events_missed"].as_u64().unwrap_or(0) - unframed
}
