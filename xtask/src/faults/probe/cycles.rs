//! Repeated attach, observe and detach under traffic. Neither side may leak resources.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use probe_user::Options;

use super::{Bench, Checks, Counts, Load, Objects, Pair, Resources, Seen};

/// Allowed memory growth over all cycles in KiB, for allocator slack. A leak of one page a cycle would be 2,000 in 500 cycles.
const MAX_KIB: u64 = 1_500;

pub(super) fn run(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let cycles = if bench.long { 500 } else { 50 };
    let load = Load {
        rate: 2_000,
        sizes: "small",
        ..Load::STEADY
    };
    let mut pair = Pair::start(bench, load, dir)?;
    pair.sender.go()?;
    let own = std::process::id();
    let mut before = Vec::new();
    let (mut counts, mut objects, mut blind) = (Counts::default(), Objects::default(), 0);
    for cycle in 0..cycles {
        let mut probe = pair.attach(Options::default())?;
        objects.merge(Objects::of(own)?);
        let mut this = Counts::default();
        this.read_for(&mut probe, Duration::from_millis(40))?;
        // Wait for traffic: on a busy machine the peers may not have run.
        this.read_until(&mut probe, |counts| counts.sent > 0 && counts.received > 0)?;
        blind += u32::from(this.sent == 0 || this.received == 0);
        counts.sent += this.sent;
        counts.received += this.received;
        counts.lost += this.lost + this.overflowed;
        drop(probe);
        // Measure after one-time allocations: libraries, buffers, and the kernel's page for a process's first uprobe.
        if cycle == 4 {
            let [receiver, sender] = pair.pids();
            for (name, pid) in [("tokengap", own), ("receiver", receiver), ("sender", sender)] {
                before.push((name, pid, Resources::of(pid)?));
            }
        }
    }
    checks.equal("cycles without observations", &0, &blind);
    checks.equal("records lost", &0, &counts.lost);
    objects.check_freed(checks);
    let mut grown = Vec::new();
    for (name, pid, before) in before {
        let after = Resources::of(pid)?;
        // Allow fewer, because the kernel may still be removing links of the previous probe at the first reading.
        let bounds = [
            ("open files", before.files, after.files, 0),
            ("threads", before.threads, after.threads, 0),
            ("mappings", before.mappings, after.mappings, 19),
            ("KiB", before.memory, after.memory, MAX_KIB - 1),
        ];
        for (what, before, after, slack) in bounds {
            let claim = format!("{what} of the {name} do not grow ({before}, then {after})");
            checks.holds(&claim, after <= before + slack);
        }
        grown.push(format!("{name} {} KiB", after.memory.saturating_sub(before.memory)));
    }
    let arrived = pair.end(checks)?;
    Ok(Seen {
        messages: arrived.messages(),
        outcome: format!(
            "{cycles} cycles, {objects}, all freed; growth: {}; {arrived}",
            grown.join(", ")
        ),
    })
}
