//! Resources held by a process, from `/proc`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Resources {
    /// Resident memory in KiB.
    pub(super) memory: u64,
    pub(super) files: u64,
    pub(super) threads: u64,
    /// Number of memory mappings.
    pub(super) mappings: u64,
}

impl Resources {
    pub(super) fn of(pid: u32) -> Result<Self> {
        let proc = Path::new("/proc").join(pid.to_string());
        let status = fs::read_to_string(proc.join("status")).with_context(|| format!("reading /proc/{pid}/status"))?;
        let number = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok())
                .unwrap_or(0)
        };
        Ok(Self {
            memory: number("VmRSS:"),
            files: fs::read_dir(proc.join("fd"))?.count() as u64,
            threads: number("Threads:"),
            mappings: fs::read_to_string(proc.join("maps"))?.lines().count() as u64,
        })
    }
}
