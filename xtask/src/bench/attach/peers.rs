//! A scheduler and a tokenizer in C on libzmq, which exchange real frames and count them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::super::observed::Observed;
use super::super::relay::FIXTURE;
use crate::e2e::process::Process;

/// Groups of [`REQUESTS`] requests sent in rotation: 4,096 live requests.
const GROUPS: usize = 16;
/// Requests per frame.
pub(super) const REQUESTS: usize = 256;
/// Time limit for starting, or for delivering the frames in flight on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Compiled peer program and its frames file.
pub(super) struct Kit {
    program: PathBuf,
    frames: PathBuf,
}

impl Kit {
    pub(super) fn make(folder: &Path) -> Result<Self> {
        let here = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/attach"));
        let (program, frames) = (folder.join("peer"), folder.join("frames"));
        let mut compiler = Command::new("cc");
        compiler
            .args(["-O2", "-Wall", "-o"])
            .arg(&program)
            .arg(here.join("peer.c"));
        let built = compiler.arg("-lzmq").status();
        ensure!(
            built.is_ok_and(|status| status.success()),
            "the peers need a C compiler and libzmq's headers: apt-get install gcc libzmq3-dev"
        );
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(FIXTURE);
        let mut script = Command::new("python3");
        script.arg(here.join("frames.py")).arg(&fixture);
        script.args([GROUPS, REQUESTS].map(|n| n.to_string())).arg(&frames);
        ensure!(
            script.status().context("python3")?.success(),
            "no frames could be made of {}",
            fixture.display()
        );
        Ok(Self { program, frames })
    }
}

/// The sender's own counts, summed over its orders.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Truth {
    pub(super) frames: u64,
    pub(super) tokens: u64,
    /// Requests whose first token was sent, and requests whose last token was sent.
    pub(super) begun: u64,
    pub(super) ended: u64,
    /// Sending time in seconds.
    pub(super) seconds: f64,
}

/// Both peers, connected.
pub(super) struct Peers {
    sender: Process,
    receiver: Process,
    pub(super) truth: Truth,
}

impl Peers {
    pub(super) fn start(kit: &Kit, folder: &Path) -> Result<Self> {
        let endpoint = format!("ipc://{}", folder.join("scheduler.ipc").display());
        let start = |name: &str, file: Option<&Path>| -> Result<Process> {
            let mut command = Command::new(&kit.program);
            command.args([name, &endpoint]).args(file);
            let mut process = Process::start(name, command, folder)?;
            process.line("READY", PATIENCE)?;
            Ok(process)
        };
        Ok(Self {
            receiver: start("recv", None)?,
            sender: start("send", Some(&kit.frames))?,
            truth: Truth::default(),
        })
    }

    /// The `--pid` arguments that name both peers.
    pub(super) fn named(&self) -> [String; 4] {
        let named = |pid: u32, role: &str| ["--pid".to_owned(), format!("{pid}={role}")];
        let [[a, b], [c, d]] = [
            named(self.sender.pid(), "scheduler"),
            named(self.receiver.pid(), "tokenizer"),
        ];
        [a, b, c, d]
    }

    /// Starts sending `frames` frames at `rate`; [`Self::done`] waits for them.
    pub(super) fn order(&mut self, frames: u64, rate: f64) -> Result<()> {
        self.sender.say(&format!("{frames} {rate}"))
    }

    /// Waits for the last order and returns the sender's counts.
    pub(super) fn done(&mut self, patience: Duration) -> Result<Truth> {
        let said = self.sender.line("", patience + PATIENCE)?;
        let numbers: Vec<f64> = said.split(' ').filter_map(|n| n.parse().ok()).collect();
        let [frames, tokens, begun, ended, seconds] = numbers[..] else {
            bail!("the sender said {said:?}")
        };
        let of = [frames, tokens, begun, ended].map(|n| n as u64);
        let sent = Truth {
            frames: of[0],
            tokens: of[1],
            begun: of[2],
            ended: of[3],
            seconds,
        };
        let all = &mut self.truth;
        (all.frames, all.tokens) = (all.frames + sent.frames, all.tokens + sent.tokens);
        (all.begun, all.ended) = (all.begun + sent.begun, all.ended + sent.ended);
        all.seconds += sent.seconds;
        Ok(sent)
    }

    /// Sends a few last frames slowly, whose sequence numbers reveal earlier losses, and waits until all are received.
    pub(super) fn settle(&mut self) -> Result<()> {
        self.order(32, 200.0)?;
        self.done(Duration::from_secs(1))?;
        let begun = std::time::Instant::now();
        loop {
            self.receiver.say("taken")?;
            let taken: u64 = self.receiver.line("", PATIENCE)?.parse()?;
            if taken == self.truth.frames {
                // The probe's reader polls every few milliseconds and reads its loss counters every 100 ms.
                std::thread::sleep(Duration::from_millis(500));
                return Ok(());
            }
            ensure!(
                begun.elapsed() < PATIENCE,
                "the receiver took {taken} of {} frames",
                self.truth.frames
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// CPU time of sender and receiver so far.
    pub(super) fn cpu(&self) -> Result<[Duration; 2]> {
        Ok([Observed(self.sender.pid()).cpu()?, Observed(self.receiver.pid()).cpu()?])
    }
}
