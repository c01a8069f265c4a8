//! The relay between the engine's processes: `tokengap tap`, or one that only copies, for comparison.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::process::Process;

/// Transport of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// `ipc://` in the run's own folder.
    Ipc,
    /// `tcp://` on a free port of 127.0.0.1.
    Tcp,
}

impl Transport {
    /// Creates a new endpoint; `name` is unique within `dir`.
    pub(crate) fn endpoint(self, dir: &Path, name: &str) -> Result<String> {
        match self {
            Self::Ipc => Ok(format!("ipc://{}", dir.join(name).display())),
            Self::Tcp => Ok(format!("tcp://{}", free_address()?)),
        }
    }
}

/// Returns an address that is free now. Another process is unlikely to get it before it is bound.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Place of a relay in the path: senders connect to `front`, the receiver binds `back`.
#[derive(Clone, Debug)]
pub(crate) struct Splice {
    /// Hop name passed to the tap, which otherwise knows only the sender.
    pub(crate) hop: Option<&'static str>,
    pub(crate) front: String,
    pub(crate) back: String,
}

impl Splice {
    /// Endpoints for one relay.
    pub(crate) fn new(relay: &Relay, transport: Transport, dir: &Path, name: &str) -> Result<Self> {
        let back = transport.endpoint(dir, name)?;
        let front = match relay {
            Relay::Absent => back.clone(),
            Relay::Tokengap(_) | Relay::Plain => transport.endpoint(dir, &format!("{name}.tap"))?,
        };
        Ok(Self { hop: None, front, back })
    }

    /// Endpoints of a relay between the server at `url` and its clients.
    pub(crate) fn http(relay: &Relay, url: &str) -> Result<Self> {
        let front = match relay {
            Relay::Absent => url.into(),
            Relay::Tokengap(_) | Relay::Plain => format!("http://{}", free_address()?),
        };
        let (hop, back) = (None, url.into());
        Ok(Self { hop, front, back })
    }
}

/// Kind of relay.
#[derive(Clone, Debug)]
pub(crate) enum Relay {
    /// `tokengap tap`, which reports.
    Tokengap(PathBuf),
    /// `xtask plain-relay`, which copies without a report: the behaviour of the sockets alone.
    Plain,
    /// No relay: senders connect directly to the receiver.
    Absent,
}

/// A running relay.
#[derive(Debug)]
pub(crate) struct Tap {
    process: Process,
    reports: bool,
}

impl Tap {
    /// Starts the relay, if there is one, and waits until it listens; `name` is unique within `dir`.
    pub(crate) fn start(relay: &Relay, name: &str, splices: &[Splice], dir: &Path) -> Result<Option<Self>> {
        let mut command = match relay {
            Relay::Tokengap(program) => {
                let mut command = Command::new(program);
                // Report every request. The duration is only a safety limit in case this process is killed.
                command.args([
                    "tap",
                    "--headless",
                    "--json",
                    "--slowest",
                    "100000",
                    "--duration",
                    "300s",
                ]);
                command
            }
            Relay::Plain => {
                let mut command = Command::new(std::env::current_exe()?);
                command.arg("plain-relay");
                command
            }
            Relay::Absent => return Ok(None),
        };
        for splice in splices {
            command.args(["--listen", &splice.front, "--upstream", &splice.back]);
            command.args(splice.hop.iter().flat_map(|hop| ["--hop", hop]));
        }
        let mut process = Process::start(name, command, dir)?;
        for splice in splices {
            wait_until_bound(&splice.front, &mut process)?;
        }
        Ok(Some(Self {
            process,
            reports: matches!(relay, Relay::Tokengap(_)),
        }))
    }

    /// Stops it with `signal` and returns its report; `None` from a relay without one.
    pub(crate) fn report(self, signal: Signal) -> Result<Option<Value>> {
        if !self.reports {
            return self.kill().map(|()| None);
        }
        self.process.signal(signal)?;
        let lines = self.process.end_well(Duration::from_secs(15))?;
        let report = serde_json::from_str(&lines.join("\n")).context("the tap's standard output is no JSON report")?;
        Ok(Some(report))
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(self) -> Result<()> {
        self.process.signal(Signal::KILL)?;
        let (status, _) = self.process.end(Duration::from_secs(5))?;
        ensure!(!status.success(), "the tap outlived SIGKILL");
        Ok(())
    }
}

/// Waits until `endpoint` has a listener, without connecting to it: a connection would count as traffic.
pub(crate) fn wait_until_bound(endpoint: &str, by: &mut Process) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(10);
    while Instant::now() < until {
        let bound = match endpoint.split_once("://") {
            Some(("tcp" | "http", address)) => {
                let port: u16 = address.rsplit(':').next().unwrap_or_default().parse()?;
                // Fields of a line: number, local address, remote address, state (0A: listening).
                fs::read_to_string("/proc/net/tcp")?.lines().any(|line| {
                    let fields: Vec<_> = line.split_whitespace().collect();
                    fields.len() > 3 && fields[1].ends_with(&format!(":{port:04X}")) && fields[3] == "0A"
                })
            }
            Some(("ipc", path)) => fs::read_to_string("/proc/net/unix")?
                .lines()
                // Flags 00010000: accepting connections. A socket file without a listener is not in this list.
                .any(|line| line.ends_with(&format!(" {path}")) && line.contains(" 00010000 ")),
            _ => bail!("{endpoint} is neither tcp, http nor ipc"),
        };
        if bound {
            return Ok(());
        }
        if let Some(complaint) = by.ended()? {
            bail!("{complaint}");
        }
        thread::sleep(Duration::from_millis(5));
    }
    bail!("nobody listens on {endpoint}")
}
