//! CPython's `pickle.loads` and msgspec in their own process, which decodes on request.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::Context;

/// A Python process that decodes on request.
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

    /// Nanoseconds per message, averaged over `n` messages.
    pub(super) fn turn(&mut self, n: u32) -> anyhow::Result<f64> {
        writeln!(self.ask, "{n}")?;
        let mut line = String::new();
        self.answer.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("the peer said {line:?}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It exits when its stdin closes; the kill covers a peer that hangs.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
