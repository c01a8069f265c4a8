//! Prints the activity of processes' ZMQ sockets:
//! `watch SECONDS PID... [--capture BYTES] [--received BYTES] [--ring BYTES] [--without processed|refused|scheduler|polls]...` (as root).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use probe_user::{Capture, Observation, Options, Probe, Target};

const USAGE: &str = "usage: watch SECONDS PID... [--capture BYTES] [--received BYTES] [--ring BYTES] [--without processed|refused|scheduler|polls]...";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let seconds: f64 = args.next().ok_or(USAGE)?.parse()?;
    let (mut options, mut pids, mut bytes, mut received) = (Options::default(), Vec::new(), 4096, None);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--capture" => bytes = args.next().ok_or(USAGE)?.parse()?,
            "--received" => received = Some(args.next().ok_or(USAGE)?.parse()?),
            "--ring" => options.ring_bytes = args.next().ok_or(USAGE)?.parse()?,
            "--without" => match args.next().as_deref() {
                Some("processed") => options.processed = false,
                Some("refused") => options.refused = false,
                Some("scheduler") => options.scheduler = false,
                Some("polls") => options.polls = false,
                _ => return Err(USAGE.into()),
            },
            pid => pids.push(pid.parse()?),
        }
    }
    let capture = Capture { sent: bytes, received: received.unwrap_or(bytes) };
    let targets: Vec<Target> = pids.into_iter().map(|pid| Target { pid, capture }).collect();
    let begun = Instant::now();
    let mut probe = Probe::attach(&targets, options)?;
    println!("attached in {:?}", begun.elapsed());
    for degraded in probe.degraded() {
        println!("without: {degraded}; {}", degraded.remedy());
    }
    let mut counts: BTreeMap<String, (u64, u64)> = BTreeMap::new();
    let begun = Instant::now();
    while begun.elapsed().as_secs_f64() < seconds {
        probe.poll(Duration::from_millis(2), |seen| {
            let (key, n, bytes) = match seen {
                Observation::Sent(m) => (format!("{:?} sent", m.call.socket), 1, m.bytes),
                Observation::Received(m) => (format!("{:?} received", m.call.socket), 1, m.bytes),
                Observation::Processed(c) => (format!("{:?} processed", c.socket), 1, 0),
                Observation::Returned(c) => (format!("{:?} returned", c.socket), 1, 0),
                Observation::Unsent(c) => (format!("{:?} refused", c.socket), 1, 0),
                Observation::Egress { pid, record } => {
                    (format!("{pid} {:?}", record.kind), 1, record.payload.len() as u64)
                }
                Observation::Lost { cause, count } => (format!("lost: {}", cause.words()), count, 0),
                Observation::Exited { pid } => (format!("process {pid} ended"), 1, 0),
            };
            let total = counts.entry(key).or_default();
            *total = (total.0 + n, total.1 + bytes);
        })?;
    }
    for (what, (n, bytes)) in counts {
        println!("{what}: {n} ({bytes} bytes)");
    }
    for (pid, thread) in probe.threads()? {
        println!(
            "thread {pid}/{}: on {} wait {} blocked {} us, {} event-loop polls, {} wakeups, {} us in event-loop polls",
            thread.tid,
            thread.on_ns / 1000,
            thread.wait_ns / 1000,
            thread.blocked_ns / 1000,
            thread.epolls,
            thread.waits,
            thread.polled_ns / 1000
        );
    }
    let begun = Instant::now();
    drop(probe);
    println!("detached in {:?}", begun.elapsed());
    Ok(())
}
