//! Real libzmq peers (`peer.py`) and their counts of sent and received messages.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde::Deserialize;
use serde_json::json;

use super::Bench;
use crate::e2e::check::Checks;
use crate::e2e::process::Process;

const STARTUP: Duration = Duration::from_secs(30);
/// Time limit for sending the remaining messages after a fault.
const FINISH: Duration = Duration::from_mins(10);

/// Load of a sender process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    /// Number of its first connection; unique among the connections of one receiver.
    pub(super) first: u32,
    pub(super) connections: u32,
    /// Messages per connection; 0 means until stopped.
    pub(super) count: u32,
    /// Messages per second over all connections; 0 means full speed.
    pub(super) rate: u32,
    /// `small`, `mixed`, `large` or `huge`, as in `peer.py`.
    pub(super) sizes: &'static str,
    /// High-water mark; 0 means none.
    pub(super) room: u32,
}

impl Load {
    /// Four connections at a steady rate until stopped.
    pub(super) const STEADY: Self = Self {
        first: 0,
        connections: 4,
        count: 0,
        rate: 10_000,
        sizes: "mixed",
        room: 0,
    };
}

/// A process with PUSH sockets.
pub(super) struct Sender(Process);

/// A process with a PULL socket.
pub(super) struct Receiver(Process);

/// The sender's counts of one connection.
#[derive(Debug, Deserialize)]
pub(super) struct Sent {
    count: u64,
    bytes: u64,
    digest: String,
}

/// The receiver's counts of one connection.
#[derive(Debug, Deserialize)]
struct Got {
    count: u64,
    bytes: u64,
    digest: String,
    /// Ranges of skipped message numbers.
    missing: Vec<(u64, u64)>,
    repeated: u64,
    backwards: u64,
}

#[derive(Debug, Deserialize)]
struct Senders {
    connections: BTreeMap<u32, Sent>,
}

/// The receiver's counts.
#[derive(Debug, Deserialize)]
struct Taken {
    connections: BTreeMap<u32, Got>,
    corrupt: u64,
    strange: u64,
}

impl Sender {
    /// Starts a sender that connects to `endpoint`, and waits until it is ready.
    pub(super) fn start(bench: &Bench, name: &str, endpoint: &str, load: Load, dir: &Path) -> Result<Self> {
        let mut command = peer(bench, "send", endpoint);
        command.args(["--sizes", load.sizes]);
        let numbers = [
            ("--first", load.first),
            ("--connections", load.connections),
            ("--count", load.count),
            ("--rate", load.rate),
            ("--room", load.room),
        ];
        for (option, number) in numbers {
            command.args([option, &number.to_string()]);
        }
        let mut process = Process::start(name, command, dir)?;
        process.line("READY", STARTUP)?;
        Ok(Self(process))
    }

    pub(super) fn go(&mut self) -> Result<()> {
        self.0.say("go")
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.pid()
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        self.0.signal(signal)
    }

    /// Makes it exec itself under the same process id, and waits until it is ready.
    pub(super) fn become_another(&mut self) -> Result<()> {
        self.0.say("exec")?;
        self.0.line("READY", STARTUP).map(drop)
    }

    /// Kills it with SIGKILL.
    pub(super) fn kill(self) -> Result<()> {
        self.0.signal(Signal::KILL)?;
        self.0.end(STARTUP).map(drop)
    }

    /// Waits until it has sent its count.
    pub(super) fn sent(mut self) -> Result<BTreeMap<u32, Sent>> {
        let said = self.0.line("DONE", FINISH)?;
        let said: Senders = serde_json::from_str(&said).context("a sender's totals")?;
        Ok(said.connections)
    }

    /// Stops it after everything is sent.
    pub(super) fn end(mut self) -> Result<BTreeMap<u32, Sent>> {
        // Ignore errors: a sender that has sent its count has exited, and its totals are available anyway.
        let _ = self.0.say("end");
        self.sent()
    }
}

impl Receiver {
    /// Starts a receiver that binds `endpoint`.
    pub(super) fn start(bench: &Bench, endpoint: &str, room: u32, dir: &Path) -> Result<Self> {
        let mut command = peer(bench, "take", endpoint);
        command.args(["--room", &room.to_string()]);
        let mut process = Process::start("receiver", command, dir)?;
        process.line("READY", STARTUP)?;
        Ok(Self(process))
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<()> {
        self.0.signal(signal)
    }

    pub(super) fn pid(&self) -> u32 {
        self.0.pid()
    }

    /// Waits until all sent messages have arrived or no more come, and compares both sides.
    pub(super) fn end(mut self, sent: BTreeMap<u32, Sent>) -> Result<Arrived> {
        let counts: BTreeMap<_, _> = sent.iter().map(|(number, sent)| (number, sent.count)).collect();
        self.0.say(&format!("end {}", json!(counts)))?;
        let said = self.0.line("DONE", FINISH)?;
        let taken = serde_json::from_str(&said).context("the receiver's totals")?;
        Ok(Arrived { sent, taken })
    }
}

fn peer(bench: &Bench, role: &str, endpoint: &str) -> Command {
    let mut command = Command::new(&bench.home.python);
    command.arg(bench.home.root.join("xtask/src/faults/peer.py"));
    command.args([role, endpoint]);
    command
}

/// Sent and received messages.
#[derive(Debug)]
pub(super) struct Arrived {
    sent: BTreeMap<u32, Sent>,
    taken: Taken,
}

/// Messages that never arrived.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Loss {
    pub(super) messages: u64,
    pub(super) bytes: u64,
}

impl Arrived {
    pub(super) fn messages(&self) -> u64 {
        self.sent.values().map(|sent| sent.count).sum()
    }

    fn bytes(&self) -> u64 {
        self.sent.values().map(|sent| sent.bytes).sum()
    }

    /// Checks that received bytes equal sent bytes on every connection.
    pub(super) fn exactly(&self, checks: &mut Checks) {
        let loss = self.but_for_breaks(0, checks);
        checks.equal("messages lost", &0, &loss.messages);
        for (number, sent) in &self.sent {
            let digest = self.taken.connections.get(number).map(|got| got.digest.as_str());
            checks.equal(
                &format!("digest of connection {number}"),
                &Some(sent.digest.as_str()),
                &digest,
            );
        }
    }

    /// Checks that messages arrive unchanged, in order and once, except for one gap per connection for each of `breaks`.
    pub(super) fn but_for_breaks(&self, breaks: usize, checks: &mut Checks) -> Loss {
        checks.equal("messages whose hash is not theirs", &0, &self.taken.corrupt);
        checks.equal("messages that nobody sent", &0, &self.taken.strange);
        let mut loss = Loss::default();
        for (number, sent) in &self.sent {
            let Some(got) = self.taken.connections.get(number) else {
                loss.messages += sent.count;
                loss.bytes += sent.bytes;
                continue;
            };
            checks.equal(
                &format!("messages of connection {number} that came twice or out of order"),
                &(0, 0),
                &(got.repeated, got.backwards),
            );
            let holes: u64 = got.missing.iter().map(|(from, to)| to - from).sum();
            let at_the_end = sent.count.saturating_sub(got.count + holes);
            checks.equal(
                &format!("connection {number} lost no more than one stretch at a break"),
                &true,
                &(got.missing.len() <= breaks && at_the_end == 0),
            );
            loss.messages += sent.count - got.count;
            loss.bytes += sent.bytes - got.bytes;
        }
        loss
    }
}

impl fmt::Display for Arrived {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = self.bytes() as f64 / 1e6;
        write!(
            f,
            "{} messages, {megabytes:.0} MB, {} connections",
            self.messages(),
            self.sent.len()
        )
    }
}
