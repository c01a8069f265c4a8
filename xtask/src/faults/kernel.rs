//! Kernel objects held for a process's probes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use aya::maps::loaded_maps;
use aya::programs::{loaded_links, loaded_programs};
use serde::Serialize;

use super::FaultChecks;

/// Ids of programs, links and maps, by kind. The kernel does not reuse an id soon.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub(super) struct KernelObjects {
    ids_by_kind: BTreeMap<&'static str, BTreeSet<u32>>,
}

/// Kinds, each with the field of `fdinfo` that has the id.
const KINDS: [(&str, &str); 3] = [("programs", "prog_id:"), ("links", "link_id:"), ("maps", "map_id:")];

/// Time after their last use in which the kernel must have freed the objects.
const MAX_TIME_TO_FREE: Duration = Duration::from_secs(10);

impl KernelObjects {
    /// Adds the objects that a process holds open.
    pub(super) fn add_objects_held_by(&mut self, pid: u32) -> Result<()> {
        let folder = Path::new("/proc").join(pid.to_string()).join("fdinfo");
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            // A descriptor may be closed during the scan.
            let text = fs::read_to_string(entry?.path()).unwrap_or_default();
            for (kind, field) in KINDS {
                let ids = text.lines().filter_map(|line| line.strip_prefix(field)?.trim().parse::<u32>().ok());
                self.ids_by_kind.entry(kind).or_default().extend(ids);
            }
        }
        Ok(())
    }

    /// All objects in the kernel.
    fn all_in_kernel() -> Self {
        // An object that disappears during the scan yields an error; skip it.
        let programs = loaded_programs().flatten().map(|program| program.id()).collect();
        let links = loaded_links().flatten().map(|link| link.id()).collect();
        let maps = loaded_maps().flatten().map(|map| map.id()).collect();
        Self { ids_by_kind: [("programs", programs), ("links", links), ("maps", maps)].into() }
    }

    /// Number of these objects that the kernel has not freed.
    fn count_present(&self) -> usize {
        let all = Self::all_in_kernel();
        self.ids_by_kind.iter().map(|(kind, ids)| ids.intersection(&all.ids_by_kind[kind]).count()).sum()
    }

    /// Waits until the kernel has freed all of them, at most [`MAX_TIME_TO_FREE`], and notes those that are left as a failure.
    pub(super) fn wait_and_check_freed(&self, checks: &mut FaultChecks) {
        let until = Instant::now() + MAX_TIME_TO_FREE;
        while self.count_present() > 0 && Instant::now() < until {
            thread::sleep(Duration::from_millis(50));
        }
        checks.expect_equal("programs, links and maps left in the kernel", &0, &self.count_present());
    }
}

impl fmt::Display for KernelObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [programs, links, maps] = KINDS.map(|(kind, _)| self.ids_by_kind.get(kind).map_or(0, BTreeSet::len));
        write!(f, "{programs} programs, {links} links, {maps} maps")
    }
}

/// `cargo xtask kernel-objects`: prints the ids of all programs, links and maps in the kernel, for the rows in `testbed/e2e`.
pub(crate) fn print_kernel_objects() -> Result<()> {
    println!("{}", serde_json::to_string(&KernelObjects::all_in_kernel())?);
    Ok(())
}
