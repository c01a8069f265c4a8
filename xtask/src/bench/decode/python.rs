//! CPython's `pickle.loads` and msgspec, in a process of their own that decodes when told to.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context;

/// A Python process that decodes when told to.
pub(super) struct Peer {
    process: Child,
    ask: ChildStdin,
    answer: BufReader<ChildStdout>,
}

impl Peer {
    pub(super) fn start(python: &Path, message: &Path, class: &str, fields: &[String]) -> anyhow::Result<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/decode/peer.py");
        let mut process = Command::new(python)
            .arg(script)
            .arg(message)
            .arg(class)
            .args(fields)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| python.display().to_string())?;
        let ask = process.stdin.take().context("the peer's stdin")?;
        let answer = BufReader::new(process.stdout.take().context("the peer's stdout")?);
        Ok(Self { process, ask, answer })
    }

    /// Nanoseconds a message over `n` messages.
    pub(super) fn turn(&mut self, n: u32) -> anyhow::Result<f64> {
        writeln!(self.ask, "{n}")?;
        let mut line = String::new();
        self.answer.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("the peer said {line:?}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends with its stdin; killing it by its own id covers a peer that hangs.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
