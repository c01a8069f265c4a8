//! CPython's `pickle.loads` and msgspec in a separate process that decodes on request.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A Python process that decodes one message.
pub(crate) struct Peer {
    process: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts the Python named by `TOKENGAP_BENCH_PYTHON`, which needs msgspec for newer releases. Fails without it.
    pub(crate) fn start(message: &Path, class: &str, schema: &str) -> Result<Self, String> {
        let python = std::env::var("TOKENGAP_BENCH_PYTHON").unwrap_or_else(|_| "python3".into());
        let mut process = Command::new(&python)
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/benches/decode/peer.py"))
            .arg(message)
            .arg(class)
            .args(fields(class, schema))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|why| format!("{python}: {why}"))?;
        let (requests, answers) = (process.stdin.take(), process.stdout.take());
        let mut peer =
            Self { process, requests: requests.expect("a pipe"), answers: BufReader::new(answers.expect("a pipe")) };
        peer.ask(1).map(|_| peer)
    }

    /// CPU time of decoding `n` times.
    pub(crate) fn turn(&mut self, n: u64) -> Duration {
        let ns = self.ask(n).expect("the peer answers");
        Duration::from_nanos((ns * n as f64) as u64)
    }

    /// Nanoseconds per message.
    fn ask(&mut self, n: u64) -> Result<f64, String> {
        let mut line = String::new();
        let answered = writeln!(self.requests, "{n}").and_then(|()| self.answers.read_line(&mut line));
        answered.map_err(|why| why.to_string())?;
        line.trim().parse().map_err(|_| format!("the peer answered {line:?}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Field names of a layout, for the peer's stand-in class.
fn fields(class: &str, schema: &str) -> Vec<String> {
    let table = include_str!("../../src/sglang/wire/schemas.txt");
    let mut rows = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let row = rows.find(|row| row.first() == Some(&class) && row.get(2) == Some(&schema));
    let row = row.unwrap_or_else(|| panic!("no layout of {class} for {schema}"));
    row[3..].iter().map(ToString::to_string).collect()
}
