//! Faults of the probe and its targets: targets must keep working, and no tokengap objects may remain in them or in the kernel.

mod cycles;
mod overflow;
mod targets;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use probe_user::{Capture, Loss, Observation, Options, Probe, Target};

use super::Seen;
use super::peers::{Arrived, Load, Receiver, Sender};
use crate::e2e::check::Checks;
use crate::e2e::kernel::Objects;

/// One row of the table.
pub(super) struct Fault {
    pub(super) name: &'static str,
    /// Description of the fault.
    pub(super) what: &'static str,
    /// The first argument asks for an overnight load.
    pub(super) run: fn(bool, &Path, &mut Checks) -> Result<Seen>,
}

/// All faults, in the order of the table.
pub(super) const FAULTS: &[Fault] = &[
    Fault { name: "attached and detached", what: "50 times (500 with --long) under traffic", run: cycles::run },
    Fault {
        name: "target dies at attach",
        what: "SIGKILL for a sender at every stage of an attach; a new one replaces it",
        run: targets::dies,
    },
    Fault {
        name: "target execs",
        what: "the sender execs another program with the same process id; attached again",
        run: targets::execs,
    },
    Fault {
        name: "target stopped",
        what: "SIGSTOP for the sender before the attach, SIGCONT after it",
        run: targets::stopped,
    },
    Fault { name: "target frozen", what: "the same with the cgroup freezer", run: targets::in_freezer },
    Fault {
        name: "two at once",
        what: "two probes on the same processes; one detaches under traffic",
        run: cycles::together,
    },
    Fault { name: "ring overflow", what: "a ring buffer of 64 KiB that is not read for a while", run: overflow::run },
];

/// Bytes captured of each message.
const CAPTURE: Capture = Capture { sent: 4096, received: 4096 };

/// A sender connected directly to its receiver.
struct Pair {
    receiver: Receiver,
    sender: Sender,
}

impl Pair {
    /// Starts both processes; the sender waits for a command.
    fn start(load: Load, dir: &Path) -> Result<Self> {
        let endpoint = format!("ipc://{}", dir.join("hop").display());
        Ok(Self { receiver: Receiver::start(&endpoint, dir)?, sender: Sender::start("sender", &endpoint, load, dir)? })
    }

    fn pids(&self) -> [u32; 2] {
        [self.receiver.pid(), self.sender.pid()]
    }

    /// Attaches to both processes.
    fn attach(&self, options: Options) -> Result<Probe> {
        attach(&self.pids(), options)
    }

    /// Stops both processes, and checks that everything arrived.
    fn end(self, checks: &mut Checks) -> Result<Arrived> {
        self.receiver.end(self.sender, checks)
    }
}

fn attach(pids: &[u32], options: Options) -> Result<Probe> {
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
    fn count(&mut self, seen: &Observation<'_>) {
        match seen {
            Observation::Sent(_) => self.sent += 1,
            Observation::Received(_) => self.received += 1,
            Observation::Lost { cause: Loss::RingFull, count } => self.overflowed += count,
            // The record exists, but its content was missed.
            Observation::Lost { cause: Loss::PayloadFault, .. }
            | Observation::Unsent(_)
            | Observation::Processed(_)
            | Observation::Returned(_)
            | Observation::Egress { .. } => {}
            Observation::Lost { count, .. } => self.lost += count,
            Observation::Exited { .. } => self.exited += 1,
        }
    }

    /// Reads for `time`.
    fn read_for(&mut self, probe: &mut Probe, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        self.read_until(probe, |_| Instant::now() >= until)
    }

    /// Reads until `done`, for at most three minutes.
    fn read_until(&mut self, probe: &mut Probe, done: impl Fn(&Self) -> bool) -> Result<()> {
        let until = Instant::now() + Duration::from_mins(3);
        while !done(self) && Instant::now() < until {
            probe.poll(Duration::from_millis(2), |seen| self.count(&seen))?;
        }
        Ok(())
    }
}
