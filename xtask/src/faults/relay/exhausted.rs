//! What runs out: files, memory, the disk.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;

use super::super::raw;
use super::super::tap::degraded;
use super::{Around, Bench, Checks, Line, Load, Seen, Transport, lost};

/// Connections until no file is left: those that were open go on, those that wait are accepted when there is room again.
pub(super) fn files(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let around = Around::before("ulimit -n 64");
    let mut line = Line::start(bench, Transport::Ipc, &[Load::STEADY], &around, dir)?;
    thread::sleep(Duration::from_secs(1));
    // Each takes two files of the tap's, as long as it can have them; the kernel keeps the rest waiting.
    let mut guests = Vec::new();
    for _ in 0..100 {
        guests.push(raw::say(&line.ends.front, &raw::handshake())?);
    }
    thread::sleep(Duration::from_secs(1));
    // A sender that finds no room now has all of its messages carried later.
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

/// Everything that fills memory at once, under a limit that leaves no room for more than is promised.
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

/// A disk that is full at once: the recording ends, says so, and is readable up to there.
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

/// Whether one of what is degraded names the shortage.
fn says(checks: &mut Checks, degraded: &[&str], shortage: &str) {
    checks.equal(
        &format!("the report says so: {degraded:?}"),
        &true,
        &degraded.iter().any(|said| said.contains(shortage)),
    );
}
