//! Attaches and detaches under traffic, repeatedly and of two probes at once.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use probe_user::ProbeOptions;

use super::{Counts, FaultChecks, FaultSetup, KernelObjects, PeerLoad, PeerPair, attach_probe};

/// Resources of a process and their allowed growth over all cycles. Memory has allocator slack: a leak of one page a cycle would be 2,000
/// KiB in 500 cycles.
const RESOURCES: [(&str, u64); 4] = [("open files", 0), ("threads", 0), ("mappings", 19), ("KiB", 1_499)];

/// Cycle after which the resources are read first. Up to then, one-time allocations are made: libraries, buffers, and the kernel's page
/// for a process's first uprobe.
const LAST_WARM_UP_CYCLE: u32 = 4;

/// Time between attaching and detaching.
const CYCLE_TIME: Duration = Duration::from_millis(40);

/// Index of the memory in [`RESOURCES`].
const MEMORY: usize = 3;

/// Attaches, observes and detaches again and again. Checks that neither tokengap nor the observed processes leak resources.
pub(super) fn attach_repeatedly(setup: &FaultSetup, checks: &mut FaultChecks) -> Result<()> {
    let cycles = if setup.is_long { 500 } else { 50 };
    let load = PeerLoad { rate: 2_000, sizes: "small", ..PeerLoad::STEADY };
    let mut pair = PeerPair::start(load, &setup.endpoint)?;
    pair.sender.start_sending()?;
    let own_pid = std::process::id();
    let mut first_readings = Vec::new();
    let mut records_lost = 0;
    let mut objects = KernelObjects::default();
    let mut cycles_without_observations = 0;
    for cycle in 0..cycles {
        let counts = observe_for_a_cycle(&pair, &mut objects)?;
        cycles_without_observations += u32::from(counts.sent == 0 || counts.received == 0);
        records_lost += counts.lost + counts.overflowed;
        // Growth counts from here, because the first cycles make allocations that stay.
        if cycle == LAST_WARM_UP_CYCLE {
            let [receiver, sender] = pair.pids();
            for (name, pid) in [("tokengap", own_pid), ("receiver", receiver), ("sender", sender)] {
                first_readings.push(FirstReading { name, pid, resources: resources_held_by(pid)? });
            }
        }
    }
    checks.expect_equal("cycles without observations", &0, &cycles_without_observations);
    checks.expect_equal("records lost", &0, &records_lost);
    objects.wait_and_check_freed(checks);
    let mut grown = Vec::new();
    for first in &first_readings {
        let grown_kib = first.check_growth_and_get_grown_kib(checks)?;
        grown.push(format!("{} {grown_kib} KiB", first.name));
    }
    let arrived = pair.finish_and_compare_sides(checks)?;
    let grown = grown.join(", ");
    checks.outcome = format!("{cycles} cycles, {objects}, all freed; growth: {grown}; {arrived}");
    Ok(())
}

/// Attaches a probe to the pair, counts what it observes, and detaches it. Adds the kernel objects of the probe to `objects`.
fn observe_for_a_cycle(pair: &PeerPair, objects: &mut KernelObjects) -> Result<Counts> {
    let mut probe = attach_probe(&pair.pids(), ProbeOptions::default())?;
    objects.add_objects_held_by(std::process::id())?;
    let mut counts = Counts::default();
    counts.read_for(&mut probe, CYCLE_TIME)?;
    // Wait for traffic: on a busy machine the peers may not have run.
    counts.read_until(&mut probe, |counts| counts.sent > 0 && counts.received > 0)?;
    // Dropping the probe detaches it.
    Ok(counts)
}

/// What a process held after the first cycles.
struct FirstReading {
    name: &'static str,
    pid: u32,
    resources: [u64; RESOURCES.len()],
}

impl FirstReading {
    /// Checks that each resource of the process has grown by no more than its limit. Returns the growth of its memory in KiB.
    fn check_growth_and_get_grown_kib(&self, checks: &mut FaultChecks) -> Result<u64> {
        let now = resources_held_by(self.pid)?;
        for (index, (what, slack)) in RESOURCES.into_iter().enumerate() {
            let before = self.resources[index];
            let after = now[index];
            let claim = format!("{what} of the {} do not grow ({before}, then {after})", self.name);
            // Allow fewer, because the kernel may still be removing links of the previous probe at the first reading.
            checks.expect_true(&claim, after <= before + slack);
        }
        Ok(now[MEMORY].saturating_sub(self.resources[MEMORY]))
    }
}

/// Attaches two probes to the same processes. Each must observe everything, and detaching one must not affect the other.
pub(super) fn attach_two_probes(setup: &FaultSetup, checks: &mut FaultChecks) -> Result<()> {
    let load = PeerLoad {
        count: if setup.is_long { 50_000 } else { 2_500 },
        connections: 2,
        // A rate low enough for the ring buffer while the other probe detaches, which can take seconds on a busy machine.
        rate: 1_500,
        sizes: "small",
        ..PeerLoad::STEADY
    };
    let wanted = u64::from(load.count * load.connections);
    let mut pair = PeerPair::start(load, &setup.endpoint)?;
    let mut remaining = attach_probe(&pair.pids(), ProbeOptions::default())?;
    let mut detached = attach_probe(&pair.pids(), ProbeOptions::default())?;
    let mut of_remaining = Counts::default();
    let mut of_detached = Counts::default();
    pair.sender.start_sending()?;
    while of_detached.received < wanted / 2 {
        of_remaining.read_for(&mut remaining, Duration::from_millis(2))?;
        of_detached.read_for(&mut detached, Duration::from_millis(2))?;
    }
    drop(detached);
    of_remaining.read_until(&mut remaining, |counts| counts.received >= wanted)?;
    checks.expect_equal(
        "messages sent and received, as reported by the remaining probe",
        &(wanted, wanted, 0, 0),
        &(of_remaining.sent, of_remaining.received, of_remaining.lost, of_remaining.overflowed),
    );
    checks.expect_equal("records lost by the detached probe", &(0, 0), &(of_detached.lost, of_detached.overflowed));
    drop(remaining);
    let arrived = pair.finish_and_compare_sides(checks)?;
    let received = of_detached.received;
    checks.outcome = format!("{arrived}; one probe observed all of them, the other {received} until it detached");
    Ok(())
}

/// Amounts of [`RESOURCES`] that a process holds, in their order, from `/proc`.
fn resources_held_by(pid: u32) -> Result<[u64; RESOURCES.len()]> {
    let proc = format!("/proc/{pid}");
    let status = fs::read_to_string(format!("{proc}/status")).with_context(|| format!("reading {proc}/status"))?;
    let [threads, resident_kib] = ["Threads:", "VmRSS:"].map(|name| {
        let value = status.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    });
    let files = fs::read_dir(format!("{proc}/fd"))?.count() as u64;
    let mappings = fs::read_to_string(format!("{proc}/maps"))?.lines().count() as u64;
    Ok([files, threads, mappings, resident_kib])
}
