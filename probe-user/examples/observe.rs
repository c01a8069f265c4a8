//! Observes a process until stdin closes, for `cargo xtask bench probe` and `cargo xtask bench egress`.
//!
//! `observe WAY PID` prints "attached", and at the end the number of missed observations. WAY is a variant of the probe, or empty programs
//! at its probe points, which measure the cost of the kernel's traps.

use std::error::Error;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use probe_user::egress::{CAPTURE, Serves};
use probe_user::empty_probes::{EmptyProbes, Traps};
use probe_user::{Capture, Observation, Options, Probe, Target};

/// Only the probes of messages.
const MESSAGES: Options = Options {
    ring_bytes: 8 << 20,
    wake_bytes: 0,
    processed: false,
    refused: true,
    scheduler: false,
    polls: false,
    tls: false,
    every_call: false,
    diagnostics: false,
};
const KIB: u32 = 1 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [way, pid] = words.as_slice() else {
        return Err("usage: observe WAY PID".into());
    };
    let pid = pid.parse()?;
    let messages = |options, sent, received| {
        let capture = Capture { sent, received };
        let probe = Probe::attach(&[Target { pid, capture }], options)?;
        match probe.degraded().first() {
            Some(lacking) => Err(format!("{lacking}; {}", lacking.remedy()).into()),
            None => Ok::<_, Box<dyn Error>>(probe),
        }
    };
    match way.as_str() {
        "traps" => empty(pid, Traps::ProbePoints),
        "traps-at-calls" => empty(pid, Traps::Calls),
        "traps-everywhere" => empty(pid, Traps::All),
        "lengths" => observe(messages(MESSAGES, 0, 0)?),
        "lengths-everything" => observe(messages(Options::default(), 0, 0)?),
        "content" => observe(messages(MESSAGES, 16 * KIB, 4 * KIB)?),
        "content-both-ways" => observe(messages(MESSAGES, 16 * KIB, 16 * KIB)?),
        "content-everything" => observe(messages(Options::default(), 16 * KIB, 4 * KIB)?),
        "writes" => observe(writes(pid, false)?),
        "writes-any-call" => observe(writes(pid, true)?),
        _ => Err(format!("unknown WAY {way}").into()),
    }
}

/// Attaches to the responses that the process writes.
fn writes(pid: u32, every_call: bool) -> Result<Probe, Box<dyn Error>> {
    let options = Options {
        scheduler: false,
        polls: false,
        every_call,
        ..Options::default()
    };
    let mut probe = Probe::attach(&[], options)?;
    let (written, read) = (CAPTURE, 0);
    probe.serve(pid, Serves { written, read })?;
    let capture = Capture { sent: 0, received: 0 };
    probe.add(&[Target { pid, capture }])?;
    Ok(probe)
}

fn empty(pid: u32, traps: Traps) -> Result<(), Box<dyn Error>> {
    let _probes = EmptyProbes::attach(pid, traps)?;
    println!("attached");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    println!("0");
    Ok(())
}

/// Reads as `tokengap attach` does: drains the ring, then sleeps.
fn observe(mut probe: Probe) -> Result<(), Box<dyn Error>> {
    let (stop, mut missed) = (AtomicBool::new(false), 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            stop.store(true, Ordering::Relaxed);
        });
        println!("attached");
        while !stop.load(Ordering::Relaxed) {
            let seen = probe.poll(Duration::ZERO, |seen| {
                if let Observation::Lost { count, .. } = seen {
                    missed += count;
                }
            })?;
            if seen == 0 {
                thread::sleep(Duration::from_millis(2));
            }
        }
        println!("{missed}");
        Ok(())
    })
}
