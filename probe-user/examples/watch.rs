//! Watches processes and prints what their ZMQ sockets do: `watch SECONDS PID...` (as root).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use probe_user::{Capture, Observation, Options, Probe, Target};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let seconds: f64 = args.next().ok_or("usage: watch SECONDS PID...")?.parse()?;
    let mut targets = Vec::new();
    for pid in args {
        targets.push(Target {
            pid: pid.parse()?,
            capture: Capture {
                sent: 4096,
                taken: 4096,
            },
        });
    }
    let begun = Instant::now();
    let mut probe = Probe::attach(&targets, Options::default())?;
    println!("attached in {:?}", begun.elapsed());
    for degraded in probe.degraded() {
        println!("without: {degraded}");
    }
    let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < seconds {
        probe.poll(Duration::from_millis(2), |seen| {
            let (key, bytes) = match seen {
                Observation::Sent(m) => (format!("{:?} sent", m.call.socket), m.bytes),
                Observation::Taken { message: m, .. } => (format!("{:?} taken", m.call.socket), m.bytes),
                Observation::Handled(c) => (format!("{:?} handled", c.socket), 0),
                Observation::Unsent(c) => (format!("{:?} unsent", c.socket), 0),
                Observation::Lost { cause, count } => (format!("lost: {}", cause.words()), count),
                Observation::Exited { pid } => (format!("exited {pid}"), 0),
            };
            let (n, total) = counts.entry(key).or_default();
            (*n, *total) = (*n + 1, *total + bytes);
        })?;
    }
    for (what, (n, bytes)) in counts {
        println!("{what}: {n} ({bytes} bytes)");
    }
    for (pid, thread) in probe.threads()? {
        println!(
            "thread {}/{}: on {} wait {} blocked {} us, polls {} waits {} in poll {} us",
            pid,
            thread.tid,
            thread.on_ns / 1000,
            thread.wait_ns / 1000,
            thread.blocked_ns / 1000,
            thread.polls,
            thread.waits,
            thread.polled_ns / 1000
        );
    }
    let begun = Instant::now();
    drop(probe);
    println!("detached in {:?}", begun.elapsed());
    Ok(())
}
