//! Frozen parts: the tap, the receiver, the analysis. Nothing may be lost, and memory in the tap must stay bounded.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use super::{Around, Bench, Checks, Held, Line, Load, Seen, Transport, lost};

/// Limit of the tap's memory above its idle use in KiB: the byte budget, the queue, and allocator slack.
const MOST: u64 = 160 << 10;

/// SIGSTOP and later SIGCONT for the tap: messages that libzmq queued meanwhile arrive.
pub(super) fn tap(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let still = Duration::from_secs(if bench.long { 60 } else { 10 });
    let load = Load {
        rate: 4_000,
        ..Load::STEADY
    };
    let line = Line::start(bench, Transport::Ipc, &[load], &Around::default(), dir)?;
    thread::sleep(Duration::from_secs(1));
    line.tap.signal(Signal::STOP)?;
    thread::sleep(still);
    line.tap.signal(Signal::CONT)?;
    thread::sleep(Duration::from_secs(1));
    let ran = line.end()?;
    ran.exact(checks);
    Ok(ran.told(format!("still for {} s", still.as_secs())))
}

/// SIGSTOP for the receiver: queues fill up to the senders, which block; the tap holds only its buffers.
pub(super) fn receiver(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let load = Load {
        room: 1_000,
        rate: 0,
        ..Load::STEADY
    };
    let line = Line::start(bench, Transport::Tcp, &[load], &Around::default(), dir)?;
    thread::sleep(Duration::from_secs(1));
    line.receiver.signal(Signal::STOP)?;
    thread::sleep(Duration::from_secs(1));
    let before = Held::by(line.tap.pid())?;
    thread::sleep(Duration::from_secs(if bench.long { 60 } else { 4 }));
    let after = Held::by(line.tap.pid())?;
    line.receiver.signal(Signal::CONT)?;
    thread::sleep(Duration::from_secs(1));
    let ran = line.end()?;
    ran.exact(checks);
    let grown = after.memory.saturating_sub(before.memory);
    checks.equal(&format!("no memory piles up ({grown} KiB)"), &true, &(grown < 4 << 10));
    Ok(ran.told(format!("the tap grew by {grown} KiB meanwhile")))
}

/// Blocks the ledger for some seconds: the queue and the budget fill, and dropped observations are counted.
pub(super) fn analysis(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let load = Load {
        rate: 20_000,
        sizes: "small",
        count: if bench.long { 200_000 } else { 30_000 },
        ..Load::STEADY
    };
    let line = Line::start(
        bench,
        Transport::Ipc,
        &[load],
        &Around::fault("ledger=block:4@500"),
        dir,
    )?;
    let idle = Held::by(line.tap.pid())?;
    thread::sleep(Duration::from_secs(3));
    let full = Held::by(line.tap.pid())?;
    let ran = line.sent()?;
    ran.exact(checks);
    let lacking = lost(&ran.report);
    checks.equal("observations were dropped", &true, &(lacking > 0));
    let grown = full.memory.saturating_sub(idle.memory);
    checks.equal(&format!("memory is bounded ({grown} KiB)"), &true, &(grown < MOST));
    Ok(ran.told(format!("{lacking} of them not observed, and counted")))
}
