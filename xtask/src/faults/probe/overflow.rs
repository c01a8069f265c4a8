//! A full ring buffer: every dropped record is counted, and later messages are reported again.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use probe_user::Options;

use super::{Bench, Checks, Load, Pair, Seen, Told};

pub(super) fn run(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let load = Load {
        count: if bench.long { 500_000 } else { 20_000 },
        connections: 2,
        rate: 0,
        ..Load::STEADY
    };
    let wanted = u64::from(load.count * load.connections);
    // One record per message on either side, and no others.
    let options = Options {
        ring_bytes: 64 << 10,
        handled: false,
        refused: false,
        scheduler: false,
        polls: false,
        ..Options::default()
    };
    let mut pair = Pair::start(bench, load, dir)?;
    let mut probe = pair.attach(options)?;
    pair.sender.go()?;
    let mut told = Told::default();
    // Read rarely, so that the ring buffer often alternates between full and empty.
    let both = |told: &Told| told.sent + told.taken + told.overflowed;
    for _ in 0..3_000 {
        thread::sleep(Duration::from_millis(20));
        told.read_for(&mut probe, Duration::from_millis(1))?;
        if both(&told) >= 2 * wanted {
            break;
        }
    }
    // Loss counters are read every 100 ms.
    told.read_for(&mut probe, Duration::from_millis(300))?;
    checks.equal(
        "records told and counted as lost, of a record each for sent and taken",
        &(2 * wanted),
        &both(&told),
    );
    checks.equal("lost for another cause", &0, &told.lost);
    checks.equal("the ring was full", &true, &(told.overflowed > wanted / 10));
    drop(probe);
    let arrived = pair.end()?;
    arrived.exactly(checks);
    Ok(Seen {
        messages: arrived.messages(),
        told: format!(
            "{} told and {} counted as lost of {}, which is all",
            told.sent + told.taken,
            told.overflowed,
            2 * wanted
        ),
    })
}
