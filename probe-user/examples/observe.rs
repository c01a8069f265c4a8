//! Observes processes until stdin closes, for `cargo xtask bench probe` and `cargo xtask bench egress`.
//!
//! `observe WAY PID...` prints "attached", and at the end the number of missed observations and of all. WAY is a variant of the probe, or empty programs
//! at its probe points, which measure the cost of the kernel's traps.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs;
use std::io::Read as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use adapter::discover::{Function, InnerServer, Role};
use probe_user::egress::{CAPTURE, Serves};
use probe_user::empty_probes::{self, Traps};
use probe_user::{Capture, Observation, Probe, ProbeOptions, Target};

/// Only the probes of messages.
const MESSAGES: ProbeOptions = ProbeOptions {
    ring_bytes: 8 << 20,
    processed: false,
    scheduler: false,
    polls: false,
    tls: false,
    every_call: false,
    perf_events: false,
};
const KIB: u32 = 1 << 10;

/// Observes the processes in the way that the first argument names. The other arguments are their pids. Empty programs and the probes of
/// reads and writes are attached to the last process only.
fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let pids = words.iter().skip(1).map(|pid| pid.parse());
    let pids: Vec<u32> = pids.collect::<Result<_, _>>()?;
    let (Some(way), Some(&pid)) = (words.first(), pids.last()) else {
        return Err("usage: observe WAY PID...".into());
    };
    // Bytes that are captured of a sent and of a received message.
    let messages = |options, sent, received| attach_to_messages(&pids, options, Capture { sent, received });
    match way.as_str() {
        "nothing" => observe(Probe::attach(&[], MESSAGES)?),
        "traps" => empty(pid, Traps::ProbePoints),
        "traps-at-calls" => empty(pid, Traps::Calls),
        "traps-everywhere" => empty(pid, Traps::All),
        "lengths" => observe(messages(MESSAGES, 0, 0)?),
        "lengths-everything" => observe(messages(ProbeOptions::default(), 0, 0)?),
        "content" => observe(messages(MESSAGES, 16 * KIB, 4 * KIB)?),
        "content-both-ways" => observe(messages(MESSAGES, 16 * KIB, 16 * KIB)?),
        "content-everything" => observe(messages(ProbeOptions::default(), 16 * KIB, 4 * KIB)?),
        "content-no-polls" => {
            let options = ProbeOptions { polls: false, ..ProbeOptions::default() };
            observe(messages(options, 16 * KIB, 4 * KIB)?)
        }
        "socket-reads" => observe(socket_reads(pid)?),
        "writes" => observe(writes(pid, MESSAGES)?),
        "writes-any-call" => observe(writes(pid, ProbeOptions { every_call: true, ..MESSAGES })?),
        "writes-tls" => observe(writes(pid, ProbeOptions { tls: true, ..MESSAGES })?),
        _ => Err(format!("unknown WAY {way}").into()),
    }
}

/// Attaches to the messages of the processes. Fails if any of the features in `options` cannot be attached.
fn attach_to_messages(pids: &[u32], options: ProbeOptions, capture: Capture) -> Result<Probe, Box<dyn Error>> {
    let targets: Vec<Target> = pids.iter().map(|&pid| Target { pid, capture }).collect();
    let probe = Probe::attach(&targets, options)?;
    match probe.degraded().first() {
        Some(lacking) => Err(format!("{lacking}; {}", lacking.remedy()).into()),
        None => Ok(probe),
    }
}

/// Attaches to the reads of every socket of a process, and to nothing in its libzmq.
fn socket_reads(pid: u32) -> Result<Probe, Box<dyn Error>> {
    let mut probe = Probe::attach(&[], MESSAGES)?;
    let files = fs::read_dir(format!("/proc/{pid}/fd"))?.filter_map(|file| fs::read_link(file.ok()?.path()).ok());
    let inode = |file: std::path::PathBuf| file.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok();
    if !probe.observe_zmtp_reads(pid, &files.filter_map(inode).collect::<BTreeSet<u64>>())? {
        return Err(format!("{:?}", probe.degraded()).into());
    }
    // A method that no file has, in place of the functions of libzmq.
    let server =
        InnerServer { role: Role::new(0, "receiver", Function::Receiver), is_extension: |_| false, methods: &[] };
    probe.observe_inner_server(pid, server);
    probe.add_targets(&[Target { pid, capture: Capture::default() }])?;
    Ok(probe)
}

/// Attaches to the responses that the process writes.
fn writes(pid: u32, options: ProbeOptions) -> Result<Probe, Box<dyn Error>> {
    let mut probe = Probe::attach(&[], options)?;
    let (written, read) = (CAPTURE, 0);
    probe.observe_serving(pid, Serves { written, read, ..Serves::default() })?;
    probe.add_targets(&[Target { pid, capture: Capture::default() }])?;
    Ok(probe)
}

fn empty(pid: u32, traps: Traps) -> Result<(), Box<dyn Error>> {
    let _probes = empty_probes::attach_empty_probes(pid, traps)?;
    println!("attached");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    println!("0 0");
    Ok(())
}

/// Reads as `tokengap attach` does, until standard input is closed: drains the ring, then sleeps. Prints the number of missed observations
/// and of all.
fn observe(mut probe: Probe) -> Result<(), Box<dyn Error>> {
    let should_stop = AtomicBool::new(false);
    let mut missed = 0;
    let mut all = 0;
    thread::scope(|scope| {
        // Reading blocks, so it has a thread of its own.
        scope.spawn(|| {
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            should_stop.store(true, Ordering::Relaxed);
        });
        println!("attached");
        while !should_stop.load(Ordering::Relaxed) {
            let read = probe.poll(Duration::ZERO, |observation| {
                if let Observation::Lost { count, .. } = observation {
                    missed += count;
                }
            })?;
            all += read;
            if read == 0 {
                thread::sleep(Duration::from_millis(2));
            }
        }
        println!("{missed} {all}");
        Ok(())
    })
}
