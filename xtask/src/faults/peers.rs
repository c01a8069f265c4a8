//! Real libzmq peers (`testbed/e2e/peer.py`) and their counts of sent and received messages.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde::Deserialize;
use serde_json::json;

use super::FaultChecks;
use crate::e2e::setup::harness_python;
use crate::script::project_root;

const STARTUP_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for sending the remaining messages after a fault.
const FINISH_TIMEOUT: Duration = Duration::from_mins(10);

/// Load of a sender process.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerLoad {
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

impl PeerLoad {
    /// Four connections at a steady rate until stopped.
    pub(super) const STEADY: Self = Self { first: 0, connections: 4, count: 0, rate: 10_000, sizes: "mixed" };
}

/// A process with PUSH sockets, or one with a PULL socket. It is killed and reaped when dropped.
pub(super) struct Peer {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

/// One side's counts of one connection.
#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Side {
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
#[derive(Deserialize)]
struct Sides {
    connections: BTreeMap<u32, Side>,
    /// Messages with a wrong hash.
    #[serde(default)]
    corrupt: u64,
    /// Messages that were never sent.
    #[serde(default)]
    strange: u64,
}

impl Peer {
    /// Starts a sender that connects to `endpoint`, and waits until it is ready.
    pub(super) fn start_sender(endpoint: &str, load: PeerLoad) -> Result<Self> {
        let numbers = [
            ("--first", load.first),
            ("--connections", load.connections),
            ("--count", load.count),
            ("--rate", load.rate),
        ];
        let numbers = numbers.map(|(option, number)| format!("{option}={number}"));
        Self::start(peer_command("send", endpoint).args(["--sizes", load.sizes]).args(numbers))
    }

    /// Starts a peer, and reads its output in a thread so that a line can be awaited with a time limit.
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting peer.py")?;
        let stdin = child.stdin.take().context("no standard input")?;
        let stdout = BufReader::new(child.stdout.take().context("no standard output")?);
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                // The peer was dropped, and nobody waits for its lines.
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let peer = Self { child, stdin, lines };
        peer.wait_for_line("READY", STARTUP_TIMEOUT)?;
        Ok(peer)
    }

    /// Waits for a line of standard output that begins with `word`, and returns the rest of it. Other lines are ignored.
    fn wait_for_line(&self, word: &str, time_limit: Duration) -> Result<String> {
        let until = Instant::now() + time_limit;
        loop {
            let line = self.lines.recv_timeout(until.saturating_duration_since(Instant::now()));
            let line = line.with_context(|| format!("peer {} did not print {word}", self.pid()))?;
            if let Some(rest) = line.strip_prefix(word) {
                return Ok(rest.to_owned());
            }
        }
    }

    /// Waits for the counts that the peer prints at its end.
    fn wait_for_totals(&self) -> Result<Sides> {
        serde_json::from_str(&self.wait_for_line("DONE", FINISH_TIMEOUT)?).context("a peer's totals")
    }

    fn write_line(&mut self, word: &str) -> Result<()> {
        writeln!(self.stdin, "{word}").with_context(|| format!("sending {word} to peer {}", self.pid()))
    }

    /// Makes a sender begin.
    pub(super) fn start_sending(&mut self) -> Result<()> {
        self.write_line("go")
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn send_signal(&self, signal: Signal) -> Result<()> {
        kill_process(Pid::from_child(&self.child), signal)
            .with_context(|| format!("sending {signal:?} to peer {}", self.pid()))
    }

    /// Makes the process exec itself with the same process id, and waits until it is ready.
    pub(super) fn exec_again(&mut self) -> Result<()> {
        self.write_line("exec")?;
        self.wait_for_line("READY", STARTUP_TIMEOUT).map(drop)
    }
}

impl Drop for Peer {
    /// Kills the process and reaps it.
    fn drop(&mut self) {
        // Both fail only if the process has already exited and been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A sender connected directly to its receiver.
pub(super) struct PeerPair {
    pub(super) receiver: Peer,
    pub(super) sender: Peer,
}

impl PeerPair {
    /// Starts both processes; the sender waits for a command.
    pub(super) fn start(load: PeerLoad, endpoint: &str) -> Result<Self> {
        let receiver = Peer::start(&mut peer_command("receive", endpoint))?;
        Ok(Self { receiver, sender: Peer::start_sender(endpoint, load)? })
    }

    /// Process ids of the receiver and the sender.
    pub(super) fn pids(&self) -> [u32; 2] {
        [self.receiver.pid(), self.sender.pid()]
    }

    /// Stops the sender once everything is sent, waits until all messages have arrived or no more arrive, and compares both sides.
    /// Describes the messages that arrived unchanged.
    pub(super) fn finish_and_compare_sides(mut self, checks: &mut FaultChecks) -> Result<String> {
        // Fails if the sender has sent all its messages, because it has exited then. Its totals are available nevertheless.
        let _ = self.sender.write_line("end");
        let sent = self.sender.wait_for_totals()?.connections;
        // The receiver waits for as many messages on each connection.
        let sent_counts: BTreeMap<_, _> = sent.iter().map(|(number, side)| (number, side.count)).collect();
        self.receiver.write_line(&format!("end {}", json!(sent_counts)))?;
        let received = self.receiver.wait_for_totals()?;
        checks.expect_equal("messages with a wrong hash", &0, &received.corrupt);
        checks.expect_equal("messages that were never sent", &0, &received.strange);
        // Connections of other senders, which a fault has killed, may lack messages and are not compared.
        for (number, side) in &sent {
            checks.expect_equal(&format!("connection {number}"), &Some(side), &received.connections.get(number));
        }
        let messages = sent.values().map(|side| side.count).sum();
        let megabytes = sent.values().map(|side| side.bytes).sum::<u64>() as f64 / 1e6;
        checks.messages = messages;
        Ok(format!("{messages} messages, {megabytes:.0} MB, {} connections", sent.len()))
    }
}

/// Command of a peer of this role, `send` or `receive`, at the endpoint.
fn peer_command(role: &str, endpoint: &str) -> Command {
    let mut command = Command::new(harness_python());
    command.arg(project_root().join("testbed/e2e/peer.py")).args([role, endpoint]);
    command
}
