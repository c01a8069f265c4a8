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
use serde::Serialize;

use super::check::Checks;

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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
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

    /// All objects in the kernel.
    fn all() -> Self {
        // An object that disappears during the scan yields an error; skip it.
        Self {
            programs: loaded_programs().flatten().map(|program| program.id()).collect(),
            links: loaded_links().flatten().map(|link| link.id()).collect(),
            maps: loaded_maps().flatten().map(|map| map.id()).collect(),
        }
    }

    /// Subset that the kernel has not freed.
    fn present(&self) -> Self {
        let all = Self::all();
        let both = |ours: &BTreeSet<u32>, all: &BTreeSet<u32>| ours.intersection(all).copied().collect();
        Self {
            programs: both(&self.programs, &all.programs),
            links: both(&self.links, &all.links),
            maps: both(&self.maps, &all.maps),
        }
    }

    /// Checks that the kernel frees all of them shortly after their last use.
    pub(crate) fn check_freed(&self, checks: &mut Checks) {
        let until = Instant::now() + Duration::from_secs(10);
        let mut left = self.present();
        while left != Self::default() && Instant::now() < until {
            thread::sleep(Duration::from_millis(50));
            left = self.present();
        }
        checks.equal("programs, links and maps left in the kernel", &Self::default(), &left);
    }
}

impl fmt::Display for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (programs, links, maps) = (self.programs.len(), self.links.len(), self.maps.len());
        write!(f, "{programs} programs, {links} links, {maps} maps")
    }
}

/// `cargo xtask kernel-objects`: prints the ids of all programs, links and maps in the kernel, for the rows in `engine/e2e`.
pub(crate) fn list() -> Result<()> {
    println!("{}", serde_json::to_string(&Objects::all())?);
    Ok(())
}
