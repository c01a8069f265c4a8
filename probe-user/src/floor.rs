//! Empty probes, which measure the kernel's own cost of a trap.

use std::num::NonZeroU32;

use aya::Ebpf;

use crate::attach::{self, Batch, Link, Way};
use crate::library;
use crate::load::{self, Settings};
use crate::probe::Options;
use crate::probe::multi::Multi;
use crate::probe_points::Known;

/// Name of a program that returns at once.
pub(crate) const NOTHING: &str = "nothing";

/// Set of probe points for the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traps {
    /// The points that [`crate::Probe`] needs to observe messages sent and received.
    ProbePoints,
    /// Entries of send and receive and the return of receive: the points needed without code analysis.
    Calls,
    /// Every point that [`crate::Probe`] uses with all its features.
    All,
}

/// Error of setting empty probes.
#[derive(Debug, thiserror::Error)]
#[error("cannot set probes in process {pid}: {why}; this needs the same privileges as observing frames")]
pub struct FloorError {
    pid: u32,
    why: String,
}

/// Empty probes in one process, detached when dropped.
#[derive(Debug)]
pub struct Floor {
    _links: Vec<Link>,
}

impl Floor {
    /// Attaches to process `pid`.
    pub fn attach(pid: u32, traps: Traps) -> Result<Self, FloorError> {
        let links = set(pid, traps);
        links.map(|links| Self { _links: links }).map_err(|error| FloorError {
            pid,
            why: error.to_string(),
        })
    }
}

fn set(pid: u32, traps: Traps) -> Result<Vec<Link>, Box<dyn std::error::Error>> {
    let mut ebpf: Ebpf = load::load(Settings::bare())?;
    let mut way = Multi::load(&ebpf, &[NOTHING]).map_or(Way::Perf, Way::Multi);
    let id = NonZeroU32::new(pid).ok_or("no process has this id")?;
    let (mut links, mut known) = (Vec::new(), Known::default());
    for library in library::libzmq(pid)? {
        let probe_points = known.of(&library.path)?;
        let (send, recv) = (probe_points.entry("zmq_msg_send")?, probe_points.entry("zmq_msg_recv")?);
        let batches = match (traps, probe_points.received) {
            (Traps::ProbePoints, Some(done)) => vec![Batch::of(NOTHING, false, [send, done.at])],
            (Traps::All, _) => attach::messages(&library, &probe_points, 0, &Options::default())?,
            _ => vec![
                Batch::of(NOTHING, false, [send, recv]),
                Batch::of(NOTHING, true, [recv]),
            ],
        };
        for batch in batches {
            links.extend(way.attach(&mut ebpf, &batch.with(NOTHING), &library.path, id)?);
        }
    }
    if links.is_empty() {
        return Err("libzmq is not loaded in it".into());
    }
    if traps == Traps::All {
        for library in library::libc(pid)? {
            for batch in attach::polls(&*known.of(&library.path)?, 0, false)? {
                links.extend(way.attach(&mut ebpf, &batch.with(NOTHING), &library.path, id)?);
            }
        }
    }
    Ok(links)
}
