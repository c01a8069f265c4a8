//! Process of a turn, and its cost.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};

/// A child process, killed with its children when dropped.
pub(super) struct Process {
    child: Child,
    says: Option<BufReader<ChildStdout>>,
}

/// CPU time in microseconds, from the scheduler's accounting.
#[derive(Clone, Copy, Default)]
pub(super) struct Cpu {
    /// CPU time of the named copying thread, or of all threads if there is none.
    pub(super) copying: f64,
    pub(super) all: f64,
}

impl Process {
    pub(super) fn start(command: &mut Command) -> Result<Self> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.with_context(|| format!("{command:?}"))?;
        let says = child.stdout.take().map(BufReader::new);
        Ok(Self { child, says })
    }

    pub(super) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.says.as_mut().context("it says nothing")?.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }

    pub(super) fn expect(&mut self, word: &str) -> Result<()> {
        let said = self.line()?;
        if said != word {
            bail!("a peer said {said:?} instead of {word}");
        }
        Ok(())
    }

    pub(super) fn wait(&mut self) -> Result<()> {
        self.child.wait()?;
        Ok(())
    }

    /// CPU time so far, of the process and its children.
    pub(super) fn cpu(&self) -> Result<Cpu> {
        let mut cpu = Cpu::default();
        for process in self.with_children() {
            for task in fs::read_dir(process.join("task"))? {
                let task = task?.path();
                let spent = fs::read_to_string(task.join("schedstat"))?;
                let spent: f64 = spent.split(' ').next().context("schedstat")?.parse()?;
                cpu.all += spent / 1e3;
                if fs::read_to_string(task.join("comm"))?.trim() == "tokengap-relay" {
                    cpu.copying += spent / 1e3;
                }
            }
        }
        if cpu.copying == 0.0 {
            cpu.copying = cpu.all;
        }
        Ok(cpu)
    }

    /// Peak resident memory in MiB, summed over the process and its children. `None` if one has ended.
    pub(super) fn peak_mib(&self) -> Option<f64> {
        let peak = |process: PathBuf| {
            let status = fs::read_to_string(process.join("status")).ok()?;
            let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
            peak.trim().trim_end_matches(" kB").parse::<f64>().ok()
        };
        let kib: Option<f64> = self.with_children().map(peak).sum();
        Some(kib? / 1_024.0)
    }

    fn with_children(&self) -> impl Iterator<Item = PathBuf> {
        let id = self.child.id();
        // Kernels without this file report no children.
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
        let children: Vec<u32> = children.split_whitespace().filter_map(|id| id.parse().ok()).collect();
        let ids = std::iter::once(id).chain(children);
        ids.map(|id| PathBuf::from(format!("/proc/{id}")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
