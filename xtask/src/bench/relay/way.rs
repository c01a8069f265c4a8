//! Ways to connect two libzmq peers, and how to start each.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::process::Process;

const STARTUP: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Direct,
    Counting,
    Decoding,
    /// `zmq_proxy`, with its role name in the C peers.
    ZmqProxy(&'static str),
    /// The `zeromq` crate, which does not use libzmq.
    Crate,
    Socat,
    /// A loop of system calls in C, by its role name there.
    Floor(&'static str),
    /// A loop of `read` and `write` in Rust, with the decoder.
    Least,
}

/// All ways with their names in the tables; direct comes first.
pub(super) const WAYS: [(Way, &str); 11] = [
    (Way::Direct, "direct"),
    (Way::Counting, "tokengap, frames counted"),
    (Way::Decoding, "tokengap, frames decoded"),
    (Way::ZmqProxy("proxy"), "zmq_proxy"),
    (Way::ZmqProxy("capture"), "zmq_proxy and capture"),
    (Way::Crate, "zeromq crate"),
    (Way::Socat, "socat"),
    (Way::Floor("copy"), "floor: read, write"),
    (Way::Floor("splice"), "floor: splice"),
    (Way::Floor("tee"), "floor: splice, tee, read"),
    (Way::Least, "floor: read, write, decode"),
];

/// The ways available on this machine; prints why others are not.
pub(super) fn possible() -> Vec<(Way, &'static str)> {
    let socat = Command::new("socat")
        .arg("-V")
        .output()
        .is_ok_and(|said| said.status.success());
    if !socat {
        println!("SKIPPED: socat, which is not there: apt-get install socat");
    }
    WAYS.into_iter()
        .filter(|(way, _)| socat || *way != Way::Socat)
        .collect()
}

impl Way {
    /// Whether it prints the number of observed messages at its end.
    pub(super) fn tells_seen(self) -> bool {
        matches!(self, Self::Counting | Self::Decoding | Self::Least)
    }

    /// Starts the process between `front`, where senders connect, and `back`, where the receiver listens. `message` is the file of the
    /// traffic's message.
    pub(super) fn start(
        self,
        peer: &Path,
        (front, back): (&str, &str),
        message: &Path,
        connections: u32,
    ) -> Result<Option<Process>> {
        let ours = |mode| -> Result<Process> {
            let serve = ["bench", "relay", "--serve", front, back, mode];
            Process::start(Command::new(std::env::current_exe()?).args(serve).arg(message))
        };
        let mut between = match self {
            Self::Direct => return Ok(None),
            Self::Counting => ours("count")?,
            Self::Decoding => ours("decode")?,
            Self::Crate => ours("crate")?,
            Self::Least => ours("least")?,
            Self::ZmqProxy(role) | Self::Floor(role) => Process::start(Command::new(peer).args([role, front, back]))?,
            Self::Socat => {
                // Same buffer size as the others. A single connection needs no forked child, whose CPU time could not be read.
                let path = |at: &str| at.trim_start_matches("ipc://").to_owned();
                let several = if connections > 1 { ",fork,backlog=128" } else { "" };
                let listens = format!("UNIX-LISTEN:{}{several}", path(front));
                let connects = format!("UNIX-CONNECT:{}", path(back));
                // Discard stderr: socat logs every closed connection.
                let mut socat = Command::new("socat");
                socat.args(["-b", "131072", &listens, &connects]).stderr(Stdio::null());
                let started = Process::start(&mut socat)?;
                appears(&PathBuf::from(path(front)))?;
                return Ok(Some(started));
            }
        };
        between.expect("READY")?;
        Ok(Some(between))
    }
}

/// Waits for a socket file whose owner does not announce it.
fn appears(path: &Path) -> Result<()> {
    let until = Instant::now() + STARTUP;
    while !path.try_exists().with_context(|| path.display().to_string())? {
        ensure!(Instant::now() < until, "nobody listens at {}", path.display());
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
