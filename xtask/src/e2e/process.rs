//! A child process that cannot leak: it is killed and reaped when dropped.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// A running child. Its standard output is read line by line; its standard error goes to a file.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
    stderr: PathBuf,
}

impl Process {
    /// Starts `command`. `name` is unique within `dir`, which holds its standard error.
    pub(crate) fn start(name: &str, mut command: Command, dir: &Path) -> Result<Self> {
        let stderr = dir.join(format!("{name}.stderr"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&stderr)?);
        let mut child = command.spawn().with_context(|| format!("starting {command:?}"))?;
        let stdin = child.stdin.take();
        let stdout = BufReader::new(child.stdout.take().context("no standard output")?);
        let (sender, lines) = channel();
        thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { name: name.into(), child, stdin, lines, stderr })
    }

    /// Waits for a line of standard output that begins with `word`; returns the rest of the line.
    pub(crate) fn line(&mut self, word: &str, patience: Duration) -> Result<String> {
        let until = Instant::now() + patience;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(word) {
                        return Ok(rest.trim().into());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{} did not print {word} within {patience:?}{}", self.name, self.stderr_note())
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("{} exited before it printed {word}{}", self.name, self.stderr_note())
                }
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes a line to its standard input.
    pub(crate) fn write_line(&mut self, word: &str) -> Result<()> {
        let stdin = self.stdin.as_mut().with_context(|| format!("{} has no standard input", self.name))?;
        writeln!(stdin, "{word}").with_context(|| format!("sending {word} to {}{}", self.name, self.stderr_note()))
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).with_context(|| format!("sending {signal:?} to {}", self.name))
    }

    /// Waits for its exit; returns its status and the unread lines of standard output.
    pub(crate) fn end(mut self, patience: Duration) -> Result<(ExitStatus, Vec<String>)> {
        let until = Instant::now() + patience;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if Instant::now() > until {
                bail!("{} did not exit within {patience:?}{}", self.name, self.stderr_note());
            }
            thread::sleep(Duration::from_millis(5));
        };
        Ok((status, self.lines.iter().collect()))
    }

    fn stderr_note(&self) -> String {
        stderr_tail(&self.stderr)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process has already exited and been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Last lines of the standard error file, for an error message.
fn stderr_tail(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<_> = text.lines().collect();
    let tail = lines[lines.len().saturating_sub(12)..].join("\n    ");
    if tail.is_empty() { String::new() } else { format!("; standard error:\n    {tail}") }
}
