//! Kernel objects held for a process's probes, and the permission to create them.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use aya::maps::loaded_maps;
use aya::programs::{loaded_links, loaded_programs};

/// Reason why attach cannot work here; `None` if it can. Capability bits are from include/uapi/linux/capability.h.
pub(crate) fn refusal() -> Option<String> {
    const SYS_ADMIN: u64 = 1 << 21;
    const SYS_PTRACE: u64 = 1 << 19;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0);
    let wanted = SYS_ADMIN | SYS_PTRACE;
    (effective & wanted != wanted).then(|| "needs root, or CAP_SYS_ADMIN and CAP_SYS_PTRACE".into())
}

/// Programs, links and maps by kernel ids, which the kernel does not reuse soon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    programs: BTreeSet<u32>,
    links: BTreeSet<u32>,
    maps: BTreeSet<u32>,
}

impl Objects {
    /// Objects that a process holds open.
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let folder = Path::new("/proc").join(pid.to_string()).join("fdinfo");
        let mut found = Self::default();
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            // A descriptor may be closed during the scan.
            let Ok(text) = fs::read_to_string(entry?.path()) else {
                continue;
            };
            for line in text.lines() {
                let number = |name| line.strip_prefix(name).and_then(|rest| rest.trim().parse::<u32>().ok());
                found.programs.extend(number("prog_id:"));
                found.links.extend(number("link_id:"));
                found.maps.extend(number("map_id:"));
            }
        }
        Ok(found)
    }

    /// Adds the objects of another scan.
    pub(crate) fn merge(&mut self, other: Self) {
        self.programs.extend(other.programs);
        self.links.extend(other.links);
        self.maps.extend(other.maps);
    }

    pub(crate) fn count(&self) -> usize {
        self.programs.len() + self.links.len() + self.maps.len()
    }

    /// The objects that the kernel still holds.
    pub(crate) fn present(&self) -> Self {
        // An object that disappears during the scan yields an error; skip it.
        let programs: BTreeSet<_> = loaded_programs()
            .filter_map(Result::ok)
            .map(|program| program.id())
            .collect();
        let links: BTreeSet<_> = loaded_links().filter_map(Result::ok).map(|link| link.id()).collect();
        let maps: BTreeSet<_> = loaded_maps().filter_map(Result::ok).map(|map| map.id()).collect();
        Self {
            programs: self.programs.intersection(&programs).copied().collect(),
            links: self.links.intersection(&links).copied().collect(),
            maps: self.maps.intersection(&maps).copied().collect(),
        }
    }

    /// Waits until the kernel has freed all of them; returns those that remain. The kernel frees them shortly after their last use.
    pub(crate) fn gone_within(&self, patience: Duration) -> Self {
        let until = Instant::now() + patience;
        loop {
            let left = self.present();
            if left.count() == 0 || Instant::now() > until {
                return left;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (programs, links, maps) = (self.programs.len(), self.links.len(), self.maps.len());
        write!(f, "{programs} programs, {links} links, {maps} maps")
    }
}
