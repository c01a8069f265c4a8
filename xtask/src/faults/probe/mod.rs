//! Faults of the probe and its targets: targets must keep working, and no tokengap objects may remain in them or in the kernel.

mod cycles;
mod targets;

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use probe_user::{Capture, Loss, Observation, Probe, ProbeOptions, Target};

use super::kernel::KernelObjects;
use super::peers::{Peer, PeerLoad, PeerPair};
use super::{FaultChecks, FaultSetup};

/// A fault of the table.
pub(super) struct ProbeFault {
    pub(super) name: &'static str,
    /// What is done.
    pub(super) what: &'static str,
    pub(super) inject: fn(&FaultSetup, &mut FaultChecks) -> Result<()>,
}

impl ProbeFault {
    /// A fault by its name, what is done, and the function that does it and checks the outcome.
    const fn new(
        name: &'static str,
        what: &'static str,
        inject: fn(&FaultSetup, &mut FaultChecks) -> Result<()>,
    ) -> Self {
        Self { name, what, inject }
    }
}

/// All faults, in the order of the table.
pub(super) const FAULTS: &[ProbeFault] = &[
    ProbeFault::new("attached and detached", "50 times (500 with --long) under traffic", cycles::attach_repeatedly),
    ProbeFault::new(
        "target dies at attach",
        "SIGKILL for a sender at every stage of an attach; a new one replaces it",
        targets::kill_target_at_attach,
    ),
    ProbeFault::new(
        "target execs",
        "the sender execs another program with the same process id; attached again",
        targets::exec_target_and_attach_again,
    ),
    ProbeFault::new(
        "target stopped",
        "SIGSTOP for the sender before the attach, SIGCONT after it",
        targets::stop_target,
    ),
    ProbeFault::new("target frozen", "the same with the cgroup freezer", targets::attach_to_target_frozen_by_cgroup),
    ProbeFault::new(
        "two at once",
        "two probes on the same processes; one detaches under traffic",
        cycles::attach_two_probes,
    ),
    ProbeFault::new("ring overflow", "a ring buffer of 64 KiB that is not read for a while", fill_ring),
];

/// Bytes captured of each message.
const CAPTURE: Capture = Capture { sent: 4096, received: 4096 };

/// Attaches a probe to these processes.
fn attach_probe(pids: &[u32], options: ProbeOptions) -> Result<Probe> {
    let targets: Vec<_> = pids.iter().map(|pid| Target { pid: *pid, capture: CAPTURE }).collect();
    Probe::attach(&targets, options).context("attaching")
}

/// Counts of a probe's observations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    sent: u64,
    received: u64,
    /// Records dropped because the ring buffer was full.
    overflowed: u64,
    /// Other missed observations.
    lost: u64,
    exited: u64,
}

impl Counts {
    /// Number of records that arrived or were counted as dropped.
    fn known_messages(&self) -> u64 {
        self.sent + self.received + self.overflowed
    }

    /// Counts one observation by its kind.
    fn count_observation(&mut self, seen: &Observation<'_>) {
        match seen {
            Observation::Sent(_) => self.sent += 1,
            Observation::Received(_) => self.received += 1,
            Observation::Lost { cause: Loss::RingFull, count } => self.overflowed += count,
            // Not counted. A record whose content was missed arrives nevertheless, and the others are about no send or receive.
            Observation::Lost { cause: Loss::PayloadFault, .. }
            | Observation::Unsent(_)
            | Observation::Processed(_)
            | Observation::Returned(_)
            | Observation::Egress { .. } => {}
            // Any other cause.
            Observation::Lost { count, .. } => self.lost += count,
            Observation::Exited { .. } => self.exited += 1,
        }
    }

    /// Reads and counts observations for `time`.
    fn read_for(&mut self, probe: &mut Probe, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        self.read_until(probe, |_| Instant::now() >= until)
    }

    /// Reads and counts observations until `done` is true of the counts, for at most three minutes.
    fn read_until(&mut self, probe: &mut Probe, done: impl Fn(&Self) -> bool) -> Result<()> {
        let until = Instant::now() + Duration::from_mins(3);
        while !done(self) && Instant::now() < until {
            probe.poll(Duration::from_millis(2), |seen| self.count_observation(&seen))?;
        }
        Ok(())
    }
}

/// Size of the ring buffer that is filled, and number of reads of 20 ms after which the wait for all records is given up.
const RING_BYTES: u32 = 64 << 10;
const MAX_READS: usize = 3_000;

/// Fills the ring buffer. Every dropped record must be counted, and later messages must be reported again.
fn fill_ring(setup: &FaultSetup, checks: &mut FaultChecks) -> Result<()> {
    let load =
        PeerLoad { count: if setup.is_long { 500_000 } else { 20_000 }, connections: 2, rate: 0, ..PeerLoad::STEADY };
    let wanted = u64::from(load.count * load.connections);
    // Exactly one record per message on either side.
    let options = ProbeOptions {
        ring_bytes: RING_BYTES,
        processed: false,
        scheduler: false,
        polls: false,
        ..ProbeOptions::default()
    };
    let mut pair = PeerPair::start(load, &setup.endpoint)?;
    let mut probe = attach_probe(&pair.pids(), options)?;
    pair.sender.start_sending()?;
    // A record for the send and one for the receive of each message.
    let records = 2 * wanted;
    let counts = read_rarely_until(&mut probe, records)?;
    checks.expect_equal(
        "records received or counted as dropped, one per sent and per received message",
        &records,
        &counts.known_messages(),
    );
    checks.expect_equal("lost for another reason", &0, &counts.lost);
    // A few records could also be dropped without the pauses.
    checks.expect_true("the ring buffer was full", counts.overflowed > wanted / 10);
    drop(probe);
    pair.finish_and_compare_sides(checks)?;
    let received = counts.sent + counts.received;
    let dropped = counts.overflowed;
    checks.outcome = format!("{received} received and {dropped} counted as dropped, of {records} in total");
    Ok(())
}

/// Reads with pauses, in which the ring buffer becomes full, until `records` are received or counted as dropped. Gives up after about a
/// minute. Returns the counts.
fn read_rarely_until(probe: &mut Probe, records: u64) -> Result<Counts> {
    let mut counts = Counts::default();
    for _ in 0..MAX_READS {
        thread::sleep(Duration::from_millis(20));
        counts.read_for(probe, Duration::from_millis(1))?;
        if counts.known_messages() >= records {
            break;
        }
    }
    // The probe reads its counters of losses every 100 ms, so the last losses may not be counted yet.
    counts.read_for(probe, Duration::from_millis(300))?;
    Ok(counts)
}
