//! A full ring buffer: every dropped record is counted, and later messages are reported again.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use probe_user::Options;

use super::{Checks, Counts, Load, Pair, Seen};

pub(super) fn run(long: bool, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let load = Load { count: if long { 500_000 } else { 20_000 }, connections: 2, rate: 0, ..Load::STEADY };
    let wanted = u64::from(load.count * load.connections);
    // Exactly one record per message on either side.
    let options =
        Options { ring_bytes: 64 << 10, processed: false, scheduler: false, polls: false, ..Options::default() };
    let mut pair = Pair::start(load, dir)?;
    let mut probe = pair.attach(options)?;
    pair.sender.go()?;
    let mut counts = Counts::default();
    // Read rarely, so that the ring buffer often alternates between full and empty.
    let both = |counts: &Counts| counts.sent + counts.received + counts.overflowed;
    for _ in 0..3_000 {
        thread::sleep(Duration::from_millis(20));
        counts.read_for(&mut probe, Duration::from_millis(1))?;
        if both(&counts) >= 2 * wanted {
            break;
        }
    }
    // Loss counters are read every 100 ms.
    counts.read_for(&mut probe, Duration::from_millis(300))?;
    checks.equal(
        "records received or counted as dropped, one per sent and per received message",
        &(2 * wanted),
        &both(&counts),
    );
    checks.equal("lost for another reason", &0, &counts.lost);
    checks.holds("the ring buffer was full", counts.overflowed > wanted / 10);
    drop(probe);
    let arrived = pair.end(checks)?;
    Ok(Seen::of(
        &arrived,
        format!(
            "{} received and {} counted as dropped, of {} in total",
            counts.sent + counts.received,
            counts.overflowed,
            2 * wanted
        ),
    ))
}
