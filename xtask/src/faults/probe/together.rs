//! Two probes on the same processes: each observes everything, and detaching one does not affect the other.

use std::path::Path;

use anyhow::Result;
use probe_user::Options;

use super::{Bench, Checks, Counts, Load, Pair, Seen};

pub(super) fn run(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let load = Load {
        count: if bench.long { 50_000 } else { 2_500 },
        connections: 2,
        // A rate low enough for the ring buffer while the other probe detaches, which can take seconds on a busy machine.
        rate: 1_500,
        sizes: "small",
        ..Load::STEADY
    };
    let wanted = u64::from(load.count * load.connections);
    let mut pair = Pair::start(bench, load, dir)?;
    let (mut remaining, mut detached) = (pair.attach(Options::default())?, pair.attach(Options::default())?);
    let (mut of_one, mut of_other) = (Counts::default(), Counts::default());
    pair.sender.go()?;
    while of_other.received < wanted / 2 {
        of_one.read_for(&mut remaining, std::time::Duration::from_millis(2))?;
        of_other.read_for(&mut detached, std::time::Duration::from_millis(2))?;
    }
    drop(detached);
    of_one.read_until(&mut remaining, |counts| counts.received >= wanted)?;
    checks.equal(
        "messages sent and received, as reported by the remaining probe",
        &(wanted, wanted, 0, 0),
        &(of_one.sent, of_one.received, of_one.lost, of_one.overflowed),
    );
    checks.equal(
        "records lost by the detached probe",
        &(0, 0),
        &(of_other.lost, of_other.overflowed),
    );
    drop(remaining);
    let arrived = pair.end(checks)?;
    Ok(Seen {
        messages: arrived.messages(),
        outcome: format!(
            "{arrived}; one probe observed all of them, the other {} until it detached",
            of_other.received
        ),
    })
}
