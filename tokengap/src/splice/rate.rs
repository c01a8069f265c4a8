//! Message rate of the senders, measured before anything is changed.

use std::thread;
use std::time::{Duration, Instant};

use probe_user::discover::Engine;

use super::witness::Witness;

/// Measuring time.
const WINDOW: Duration = Duration::from_secs(1);

/// A rate, and how it was measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rate {
    pub(crate) per_second: u64,
    pub(crate) by: &'static str,
}

/// Rate counted by the probe. Without a probe, estimated from wake-ups of the senders' I/O threads: about one per message while they keep
/// up.
pub(crate) fn measure(witness: Option<&Witness>, engine: &Engine, senders: &[u32]) -> Option<Rate> {
    let count = || match witness {
        Some(witness) => Some(witness.seen().sent),
        None => wakeups(engine, senders),
    };
    let (began, before) = (Instant::now(), count()?);
    thread::sleep(WINDOW);
    let grown = count()?.saturating_sub(before);
    Some(Rate {
        per_second: (grown as f64 / began.elapsed().as_secs_f64()).ceil() as u64,
        by: match witness {
            Some(_) => "counted where they enter libzmq",
            None => "estimated from the wake-ups of the senders' I/O threads",
        },
    })
}

/// Total wake-ups; `None` if no I/O thread is known.
fn wakeups(engine: &Engine, senders: &[u32]) -> Option<u64> {
    let processes = engine.processes.iter().filter(|p| senders.contains(&p.id.pid));
    let threads = processes.flat_map(|p| p.io_threads.iter().map(|tid| (p.id.pid, *tid)));
    threads
        .map(|(pid, tid)| switches(pid, tid))
        .sum::<Option<u64>>()
        .filter(|&sum| sum > 0)
}

fn switches(pid: u32, tid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let count = status
        .lines()
        .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    count.trim().parse().ok()
}
