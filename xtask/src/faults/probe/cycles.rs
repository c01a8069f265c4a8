//! Repeated attach, observe and detach under traffic: nothing may leak on either side.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use probe_user::Options;

use super::{Bench, Checks, Held, Load, Objects, Pair, Seen, Told};

/// Allowed memory growth over all cycles in KiB, for allocator slack. A leak of one page a cycle would be 2,000 in 500 cycles.
const MOST_KIB: u64 = 1_500;

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
    let mut before = None;
    let (mut told, mut held, mut blind) = (Told::default(), Objects::default(), 0);
    for cycle in 0..cycles {
        let mut probe = pair.attach(Options::default())?;
        held.merge(Objects::of(own)?);
        let mut this = Told::default();
        this.read_for(&mut probe, Duration::from_millis(40))?;
        // Wait for traffic: on a busy machine the peers may not have run.
        this.read_until(&mut probe, |told| told.sent > 0 && told.taken > 0)?;
        blind += u32::from(this.sent == 0 || this.taken == 0);
        told.sent += this.sent;
        told.taken += this.taken;
        told.lost += this.lost + this.overflowed;
        drop(probe);
        // Measure after one-time allocations: libraries, buffers, and the kernel's page for a process's first uprobe.
        if cycle == 4 {
            before = Some((Held::by(own)?, pair.pids().map(Held::by)));
        }
    }
    checks.equal("cycles that saw nothing", &0, &blind);
    checks.equal("records lost", &0, &told.lost);
    let left = held.gone_within(Duration::from_secs(10));
    checks.equal(
        "programs, links and maps left in the kernel",
        &Objects::default(),
        &left,
    );
    let mut grown = Vec::new();
    if let Some((own_before, before)) = before {
        let sides = [("tokengap", own, Ok(own_before))].into_iter();
        let [receiver, sender] = pair.pids();
        let [of_receiver, of_sender] = before;
        for (name, pid, before) in sides.chain([("receiver", receiver, of_receiver), ("sender", sender, of_sender)]) {
            let (before, after) = (before?, Held::by(pid)?);
            // Allow fewer, because the kernel may still be removing links of the previous probe at the first reading.
            let mut same = |what: &str, before: u64, after: u64| {
                let told = format!("no more {what} of the {name} ({before}, then {after})");
                checks.equal(&told, &true, &(after <= before));
            };
            same("open files", before.files as u64, after.files as u64);
            same("threads", before.threads, after.threads);
            let more = after.mappings.saturating_sub(before.mappings);
            checks.equal(
                &format!("a leak of mappings in the {name} ({more})"),
                &true,
                &(more < 20),
            );
            let kib = after.memory.saturating_sub(before.memory);
            checks.equal(
                &format!("a leak of memory in the {name} ({kib} KiB)"),
                &true,
                &(kib < MOST_KIB),
            );
            grown.push(format!("{name} {kib} KiB"));
        }
    }
    let arrived = pair.end()?;
    arrived.exactly(checks);
    Ok(Seen {
        messages: arrived.messages(),
        told: format!(
            "{cycles} cycles, {held} all gone; grown: {}; {arrived}",
            grown.join(", ")
        ),
    })
}
