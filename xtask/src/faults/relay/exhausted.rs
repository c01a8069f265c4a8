//! Exhausted resources: file descriptors, memory, disk.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::super::raw;
use super::super::tap::degraded;
use super::{Around, Bench, Checks, Line, Load, Seen, Transport, lost};

/// Opens connections until file descriptors run out: open ones continue, and waiting ones are accepted later.
pub(super) fn files(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let around = Around::before("ulimit -n 64");
    let mut line = Line::start(bench, Transport::Ipc, &[Load::STEADY], &around, dir)?;
    thread::sleep(Duration::from_secs(1));
    // Each connection uses two descriptors of the tap while it has any; the rest wait in the kernel.
    let mut guests = Vec::new();
    for _ in 0..100 {
        guests.push(raw::say(&line.ends.front, &raw::handshake())?);
    }
    thread::sleep(Duration::from_secs(1));
    // A sender that connects now has all of its messages relayed later.
    line.join(Load {
        first: 10,
        connections: 2,
        ..Load::STEADY
    })?;
    thread::sleep(Duration::from_secs(1));
    drop(guests);
    thread::sleep(Duration::from_secs(2));
    let ran = line.end()?;
    ran.exact(checks);
    says(checks, &degraded(&ran.report), "open files");
    Ok(ran.told("said so"))
}

/// Exercises all uses of memory at once, under a limit just above the promised maximum.
pub(super) fn memory(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let load = Load {
        rate: 0,
        count: if bench.long { 50_000 } else { 6_000 },
        ..Load::STEADY
    };
    let around = Around {
        before: "ulimit -d 196608",
        options: vec!["--record".into(), "run.tgap".into()],
        ..Around::fault("ledger=block:2@500")
    };
    let line = Line::start(bench, Transport::Ipc, &[load], &around, dir)?;
    let ran = line.sent()?;
    ran.exact(checks);
    Ok(ran.told(format!("{} not observed, and counted", lost(&ran.report))))
}

/// A full disk: the recording ends, reports the error, and remains readable up to that point.
pub(super) fn disk(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    std::fs::create_dir(dir.join("disk"))?;
    let around = Around {
        before: "mount -t tmpfs -o size=64k none disk",
        own_mounts: true,
        options: vec!["--record".into(), "disk/run.tgap".into()],
        ..Around::default()
    };
    let load = Load {
        sizes: "small",
        ..Load::STEADY
    };
    let line = Line::start(bench, Transport::Ipc, &[load], &around, dir)?;
    thread::sleep(Duration::from_secs(4));
    let ran = line.end()?;
    ran.exact(checks);
    says(checks, &degraded(&ran.report), "No space left on device");
    Ok(ran.told("the recording ended, and said so"))
}

/// Checks that the list of degraded parts names the shortage.
fn says(checks: &mut Checks, degraded: &[&str], shortage: &str) {
    checks.equal(
        &format!("the report says so: {degraded:?}"),
        &true,
        &degraded.iter().any(|said| said.contains(shortage)),
    );
}
