//! What may stand between two libzmq peers, and how each is started.

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
    /// `zmq_proxy`, by its role in the C peers.
    ZmqProxy(&'static str),
    /// The `zeromq` crate, which has no libzmq in it.
    Crate,
    Socat,
    /// A loop of system calls in C, by its name there.
    Floor(&'static str),
    /// That of `read` and `write`, and the decoder.
    Least,
}

/// All of them, as the tables name them. Direct comes first.
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

/// The ways that can be taken here; says which cannot, and why.
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
    /// Whether it says at its end how many messages it has seen.
    pub(super) fn tells_seen(self) -> bool {
        matches!(self, Self::Counting | Self::Decoding | Self::Least)
    }

    /// Starts whatever stands between `front`, where senders connect, and `back`, where the receiver listens. `message` is what will pass.
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
                // As much at once as the others. For one connection it needs no child, whose CPU time nobody could read.
                let path = |at: &str| at.trim_start_matches("ipc://").to_owned();
                let several = if connections > 1 { ",fork,backlog=128" } else { "" };
                let listens = format!("UNIX-LISTEN:{}{several}", path(front));
                let connects = format!("UNIX-CONNECT:{}", path(back));
                // It complains of every connection that is over.
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

/// Waits for a socket that its owner does not tell of.
fn appears(path: &Path) -> Result<()> {
    let until = Instant::now() + STARTUP;
    while !path.try_exists().with_context(|| path.display().to_string())? {
        ensure!(Instant::now() < until, "nobody listens at {}", path.display());
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}
