//! CPU time and memory of a process from /proc; CPU time is the scheduler's own accounting.

use std::fs;
use std::time::Duration;

use anyhow::Context;

/// A process id to measure.
#[derive(Clone, Copy)]
pub(super) struct Observed(pub(super) u32);

impl Observed {
    /// User and system CPU time of all its current threads.
    pub(super) fn cpu(self) -> anyhow::Result<Duration> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.0)).context("the program has ended")?;
        let mut ns = 0;
        for task in tasks {
            let line = fs::read_to_string(task?.path().join("schedstat"))?;
            ns += line.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(Duration::from_nanos(ns))
    }

    /// Resident memory in bytes.
    pub(super) fn rss(self) -> anyhow::Result<u64> {
        self.status("VmRSS:")
    }

    /// Peak resident memory in bytes.
    pub(super) fn peak(self) -> anyhow::Result<u64> {
        self.status("VmHWM:")
    }

    fn status(self, field: &str) -> anyhow::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).context("the program has ended")?;
        let line = status.lines().find_map(|line| line.strip_prefix(field));
        let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
        Ok(kib.with_context(|| format!("its status has no {field}"))? << 10)
    }
}
