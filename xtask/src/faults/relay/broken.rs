//! Faults that break every connection by ending the tap. A relay that only copies measures libzmq's own losses for comparison.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use zmq_tap::relay::Options;

use super::super::peers::{Load, Loss, Receiver, Sender};
use super::super::tap::{Around, Ends, Held, Tap};
use super::{Bench, Checks, Seen, Transport};

/// Number of breaks; a long run has enough of them for a mean.
fn breaks(bench: &Bench) -> usize {
    if bench.long { 30 } else { 3 }
}

/// Pauses between a death and the next start, and between two breaks.
const CLOSED: Duration = Duration::from_millis(300);
const BETWEEN: Duration = Duration::from_millis(900);

const LOAD: Load = Load {
    rate: 3_000,
    ..Load::STEADY
};

/// Kills the tap with SIGKILL under traffic and restarts it.
pub(super) fn killed(bench: &Bench, transport: Transport, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    compared(bench, transport, dir, checks, &Tap::kill)
}

/// Limits memory until the tap aborts, as when a pod exceeds its limit.
pub(super) fn starved(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let starve = |mut tap: Tap| {
        let pid = Pid::from_raw(tap.pid() as i32).context("a process has an id")?;
        let none = Rlimit {
            current: Some(1 << 20),
            maximum: Some(1 << 20),
        };
        prlimit(Some(pid), Resource::As, none).context("setting a limit")?;
        // If it survives with the memory it has, nothing was lost, and a kill ends it instead.
        let until = std::time::Instant::now() + Duration::from_secs(1);
        while tap.ended()?.is_none() && std::time::Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
        match tap.ended()? {
            Some(_) => Ok(()),
            None => tap.kill(),
        }
    };
    compared(bench, Transport::Ipc, dir, checks, &starve)
}

/// Compares the same breaks with tokengap's relay and with a plain one. Beyond the plain relay's losses, which are in kernel queues and
/// libzmq, tokengap may lose only what it held at each break.
fn compared(
    bench: &Bench,
    transport: Transport,
    dir: &Path,
    checks: &mut Checks,
    end: &dyn Fn(Tap) -> Result<()>,
) -> Result<Seen> {
    let mut losses = Vec::new();
    let mut messages = 0;
    for (name, ours) in [("ours", true), ("plain", false)] {
        let dir = dir.join(name);
        std::fs::create_dir(&dir)?;
        let start = |number: usize, ends: &Ends| {
            let name = format!("relay{number}");
            if ours {
                Tap::start(bench, &name, ends, &Around::default(), &dir)
            } else {
                Tap::plain(&name, ends, &dir)
            }
        };
        let (sent, loss) = one(bench, transport, &dir, checks, &start, end)?;
        messages += sent;
        losses.push((sent, loss));
    }
    let [(sent, ours), (plain_sent, plain)] = losses[..] else {
        unreachable!("two were tried")
    };
    let held = Options::default().buffer_bytes as u64 * u64::from(LOAD.connections) * breaks(bench) as u64;
    checks.equal(
        &format!(
            "lost at most the relay's own {held} bytes more than with a plain relay ({} and {})",
            ours.bytes, plain.bytes
        ),
        &true,
        &(ours.bytes <= plain.bytes + held),
    );
    Ok(Seen {
        messages,
        told: format!(
            "lost {} of {sent} messages at {} breaks; a plain relay {} of {plain_sent}",
            ours.messages,
            breaks(bench),
            plain.messages
        ),
    })
}

fn one(
    bench: &Bench,
    transport: Transport,
    dir: &Path,
    checks: &mut Checks,
    start: &dyn Fn(usize, &Ends) -> Result<Tap>,
    end: &dyn Fn(Tap) -> Result<()>,
) -> Result<(u64, Loss)> {
    let ends = Ends::new(transport, dir)?;
    let receiver = Receiver::start(bench, &ends.back, 0, dir)?;
    let mut relay = start(0, &ends)?;
    let mut sender = Sender::start(bench, "sender", &ends.front, LOAD, dir)?;
    sender.go()?;
    for number in 1..=breaks(bench) {
        thread::sleep(BETWEEN);
        end(relay)?;
        thread::sleep(CLOSED);
        relay = start(number, &ends)?;
    }
    thread::sleep(BETWEEN);
    let files = Held::by(relay.pid())?.files;
    checks.equal(
        "files that the last relay has open: a few, and two a connection",
        &true,
        &(files < 32),
    );
    let arrived = receiver.end(sender.end()?)?;
    let loss = arrived.but_for_breaks(breaks(bench), checks);
    relay.kill()?;
    Ok((arrived.messages(), loss))
}
