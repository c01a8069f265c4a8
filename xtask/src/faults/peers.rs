//! Real libzmq peers (`engine/e2e/peer.py`) and their counts of sent and received messages.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::json;

use crate::e2e::check::Checks;
use crate::e2e::process::Process;
use crate::e2e::setup::python;
use crate::script::root;

const STARTUP: Duration = Duration::from_secs(30);
/// Time limit for sending the remaining messages after a fault.
const FINISH: Duration = Duration::from_mins(10);

/// Load of a sender process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Number of its first connection, unique for each receiver.
    pub(super) first: u32,
    pub(super) connections: u32,
    /// Messages per connection; 0 means until stopped.
    pub(super) count: u32,
    /// Messages per second over all connections; 0 means full speed.
    pub(super) rate: u32,
    /// `small` or `mixed`, as in `peer.py`.
    pub(super) sizes: &'static str,
}

impl Load {
    /// Four connections at a steady rate until stopped.
    pub(super) const STEADY: Self = Self { first: 0, connections: 4, count: 0, rate: 10_000, sizes: "mixed" };
}

/// A process with PUSH sockets.
pub(super) struct Sender(Process);

/// A process with a PULL socket.
pub(super) struct Receiver(Process);

/// One side's counts of one connection.
#[derive(Debug, Deserialize)]
pub(super) struct Side {
    count: u64,
    bytes: u64,
    digest: String,
    /// Messages received twice or out of order.
    #[serde(default)]
    repeated: u64,
    #[serde(default)]
    backwards: u64,
}

/// Counts of one process by connection.
#[derive(Debug, Default, Deserialize)]
struct Sides {
    connections: BTreeMap<u32, Side>,
    #[serde(default)]
    corrupt: u64,
    #[serde(default)]
    strange: u64,
}

impl Sender {
    /// Starts a sender that connects to `endpoint`, and waits until it is ready.
    pub(super) fn start(name: &str, endpoint: &str, load: Load, dir: &Path) -> Result<Self> {
        let mut command = peer("send", endpoint);
        command.args(["--sizes", load.sizes]);
        let numbers = [
            ("--first", load.first),
            ("--connections", load.connections),
            ("--count", load.count),
            ("--rate", load.rate),
        ];
        for (option, number) in numbers {
            command.args([option, &number.to_string()]);
        }
        let mut process = Process::start(name, command, dir)?;
        process.line("READY", STARTUP)?;
        Ok(Self(process))
    }

    pub(super) fn go(&mut self) -> Result<()> {
        self.0.write_line("go")
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.pid()
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        self.0.signal(signal)
    }

    /// Makes the process exec itself with the same process id, and waits until it is ready.
    pub(super) fn become_another(&mut self) -> Result<()> {
        self.0.write_line("exec")?;
        self.0.line("READY", STARTUP).map(drop)
    }

    /// Sends SIGKILL.
    pub(super) fn kill(self) -> Result<()> {
        self.0.signal(Signal::KILL)?;
        self.0.end(STARTUP).map(drop)
    }

    /// Stops the process once everything is sent.
    fn end(mut self) -> Result<Sides> {
        // Ignore errors: a sender that has sent its count has exited, but its totals are available.
        let _ = self.0.write_line("end");
        serde_json::from_str(&self.0.line("DONE", FINISH)?).context("a sender's totals")
    }
}

impl Receiver {
    /// Starts a receiver that binds `endpoint`.
    pub(super) fn start(endpoint: &str, dir: &Path) -> Result<Self> {
        let mut process = Process::start("receiver", peer("receive", endpoint), dir)?;
        process.line("READY", STARTUP)?;
        Ok(Self(process))
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Stops the sender, waits until all sent messages have arrived or no more arrive, and compares both sides.
    pub(super) fn end(mut self, sender: Sender, checks: &mut Checks) -> Result<Arrived> {
        let sent = sender.end()?.connections;
        let counts: BTreeMap<_, _> = sent.iter().map(|(number, sent)| (number, sent.count)).collect();
        self.0.write_line(&format!("end {}", json!(counts)))?;
        let received: Sides = serde_json::from_str(&self.0.line("DONE", FINISH)?).context("the receiver's totals")?;
        // Other senders to the same endpoint were killed, but this one lost nothing.
        checks.equal("messages with a wrong hash", &0, &received.corrupt);
        checks.equal("messages that were never sent", &0, &received.strange);
        for (number, sent) in &sent {
            let of = |side: &Side| (side.count, side.bytes, side.digest.clone(), side.repeated, side.backwards);
            let got = received.connections.get(number).map(of);
            let what = format!("messages, bytes, digest, repeated and out of order on connection {number}");
            checks.equal(&what, &Some(of(sent)), &got);
        }
        Ok(Arrived(sent))
    }
}

fn peer(role: &str, endpoint: &str) -> Command {
    let mut command = Command::new(python());
    command.arg(root().join("engine/e2e/peer.py")).args([role, endpoint]);
    command
}

/// Messages that arrived unchanged.
#[derive(Debug)]
pub(super) struct Arrived(BTreeMap<u32, Side>);

impl Arrived {
    pub(super) fn messages(&self) -> u64 {
        self.0.values().map(|sent| sent.count).sum()
    }
}

impl fmt::Display for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = self.0.values().map(|sent| sent.bytes).sum::<u64>() as f64 / 1e6;
        let (messages, connections) = (self.messages(), self.0.len());
        write!(f, "{messages} messages, {megabytes:.0} MB, {connections} connections")
    }
}
