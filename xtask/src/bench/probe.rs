//! Probe overhead in its target: thread CPU time per pyzmq send and receive pair, with and without the probe, in alternating turns.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use probe_user::floor::{Floor, Traps};
use probe_user::{Capture, Observation, Options, Probe, Target};

use super::aims;
use crate::e2e::setup::Home;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Turns per variant; the result is the median of the differences
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Pairs of send and receive in a turn
    #[arg(long, default_value_t = 30_000)]
    pairs: u64,
    /// A Python with pyzmq; that of the engine's harness when not given (cargo xtask engine 0.5.9 makes it)
    #[arg(long, value_name = "FILE")]
    python: Option<std::path::PathBuf>,
}

/// Options that attach only tokengap's message probes.
const MESSAGES: Options = Options {
    ring_bytes: 8 << 20,
    wake_bytes: 0,
    handled: false,
    refused: true,
    scheduler: false,
    polls: false,
    every_call: false,
    diagnostics: false,
};

/// Observer attached in a turn.
#[derive(Clone, Copy)]
enum Way {
    Traps(Traps),
    Probe(Options, Capture),
    Bpftrace,
}

/// Message sizes, and the observer for each.
fn ways() -> Vec<(usize, &'static str, Way)> {
    let lengths = Capture::default();
    let whole = |sent, taken| Capture { sent, taken };
    vec![
        (100, "traps alone, at tokengap's places", Way::Traps(Traps::Sites)),
        (100, "traps alone, at entries and a return", Way::Traps(Traps::Calls)),
        (100, "lengths", Way::Probe(MESSAGES, lengths)),
        (
            100,
            "lengths, everything attached",
            Way::Probe(Options::default(), lengths),
        ),
        (100, "bpftrace, lengths", Way::Bpftrace),
        (
            16 << 10,
            "16 KiB sent, both ends of it taken",
            Way::Probe(MESSAGES, whole(16 << 10, 4 << 10)),
        ),
        (
            16 << 10,
            "the same, everything attached",
            Way::Probe(Options::default(), whole(16 << 10, 4 << 10)),
        ),
        (
            16 << 10,
            "16 KiB both ways",
            Way::Probe(MESSAGES, whole(16 << 10, 16 << 10)),
        ),
    ]
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let python = args.python.clone().unwrap_or_else(|| Home::find().python);
    println!(
        "{:38} {:>8} {:>9} {:>18} {:>10} {:>10}",
        "CPU ns per pyzmq send and recv", "without", "added", "(least..most)", "attach ms", "detach ms"
    );
    let ways = ways();
    let mut medians = Vec::new();
    let sizes = ways.iter().map(|(size, ..)| *size);
    for size in sizes.collect::<std::collections::BTreeSet<_>>() {
        let mut peer = Peer::start(&python, size)?;
        peer.turn(args.pairs)?;
        let mut rows: Vec<_> = ways
            .iter()
            .filter(|way| way.0 == size)
            .map(|way| (way, Row::default()))
            .collect();
        for _ in 0..args.rounds {
            for ((_, name, way), row) in &mut rows {
                row.turn(&mut peer, args.pairs, *way)
                    .with_context(|| (*name).to_owned())?;
            }
        }
        for ((_, name, way), mut row) in rows {
            row.print(name);
            if let (Some(us), 100) = (row.us(), size) {
                medians.push((way, us));
            }
        }
    }
    said(&medians)
}

/// Prints our overhead beside that of bare traps and of bpftrace.
fn said(medians: &[(&Way, f64)]) -> Result<()> {
    let of = |is: fn(&Way) -> bool| medians.iter().find(|(way, _)| is(way)).map(|(_, us)| *us);
    let Some(ours) = of(|way| matches!(way, Way::Probe(..))) else {
        return Ok(());
    };
    let traps = of(|way| matches!(way, Way::Traps(Traps::Sites)));
    let bpftrace = of(|way| matches!(way, Way::Bpftrace));
    let beside = [("the traps alone", traps), ("bpftrace", bpftrace)];
    let beside: Vec<_> = beside.into_iter().filter_map(|(what, us)| Some((what, us?))).collect();
    aims::came("probe.pair", ours, &beside)?;
    bpftrace.map_or(Ok(()), |us| aims::came("probe.bpftrace", ours / us, &[]))
}

/// Measurements of one way over all turns.
#[derive(Default)]
struct Row {
    without: Vec<f64>,
    added: Vec<f64>,
    attach_ms: Vec<f64>,
    detach_ms: Vec<f64>,
    lost: u64,
    absent: bool,
}

impl Row {
    /// Measures without the observer, with it, and without it again.
    fn turn(&mut self, peer: &mut Peer, pairs: u64, way: Way) -> Result<()> {
        let before = peer.turn(pairs)?;
        let begun = Instant::now();
        let Some(attached) = Attached::attach(peer.pid, way)? else {
            self.absent = true;
            return Ok(());
        };
        self.attach_ms.push(begun.elapsed().as_secs_f64() * 1e3);
        let with = peer.turn(pairs)?;
        let (lost, detached) = attached.detach()?;
        self.lost += lost;
        self.detach_ms.push(detached.as_secs_f64() * 1e3);
        let without = f64::midpoint(before, peer.turn(pairs)?);
        self.without.push(without);
        self.added.push(with - without);
        Ok(())
    }

    /// Median of the added microseconds, available after printing.
    fn us(&self) -> Option<f64> {
        self.added.get(self.added.len() / 2).map(|ns| ns / 1e3)
    }

    fn print(&mut self, name: &str) {
        if self.absent {
            return println!("{name:38} not installed");
        }
        for values in [
            &mut self.without,
            &mut self.added,
            &mut self.attach_ms,
            &mut self.detach_ms,
        ] {
            values.sort_by(f64::total_cmp);
        }
        let median = |values: &[f64]| values[values.len() / 2];
        let (least, most) = (self.added[0], self.added[self.added.len() - 1]);
        let lost = if self.lost > 0 {
            format!("  {} lost", self.lost)
        } else {
            String::new()
        };
        println!(
            "{name:38} {:8.0} {:9.0} {:>18} {:10.0} {:10.0}{lost}",
            median(&self.without),
            median(&self.added),
            format!("({least:.0}..{most:.0})"),
            median(&self.attach_ms),
            median(&self.detach_ms),
        );
    }
}

/// Observer of the peer during a turn.
enum Attached {
    Floor(Floor),
    Probe {
        stop: Arc<AtomicBool>,
        reader: JoinHandle<Result<(u64, Duration)>>,
    },
    Bpftrace(Child),
}

impl Attached {
    fn attach(pid: u32, way: Way) -> Result<Option<Self>> {
        Ok(Some(match way {
            Way::Traps(traps) => Self::Floor(Floor::attach(pid, traps)?),
            Way::Probe(options, capture) => {
                let probe = Probe::attach(&[Target { pid, capture }], options)?;
                if let Some(lacking) = probe.degraded().first() {
                    bail!("{lacking}; {}", lacking.remedy());
                }
                let stop = Arc::new(AtomicBool::new(false));
                let told = Arc::clone(&stop);
                let reader = thread::spawn(move || read(probe, &told));
                Self::Probe { stop, reader }
            }
            Way::Bpftrace => match bpftrace(pid)? {
                Some(child) => Self::Bpftrace(child),
                None => return Ok(None),
            },
        }))
    }

    /// Number of missed observations, and the time that detaching took.
    fn detach(self) -> Result<(u64, Duration)> {
        let begun = Instant::now();
        match self {
            Self::Floor(floor) => drop(floor),
            Self::Probe { stop, reader } => {
                stop.store(true, Ordering::Relaxed);
                return reader.join().map_err(|_| anyhow::anyhow!("the reader failed"))?;
            }
            Self::Bpftrace(mut child) => {
                if let Some(pid) = rustix::process::Pid::from_raw(child.id() as i32) {
                    rustix::process::kill_process(pid, rustix::process::Signal::INT)?;
                }
                child.wait()?;
            }
        }
        Ok((0, begun.elapsed()))
    }
}

/// Reads as `tokengap attach` does: drain the ring, then sleep for 2 ms.
fn read(mut probe: Probe, stop: &AtomicBool) -> Result<(u64, Duration)> {
    let mut lost = 0;
    while !stop.load(Ordering::Relaxed) {
        let seen = probe.poll(Duration::ZERO, |seen| {
            if let Observation::Lost { count, .. } = seen {
                lost += count;
            }
        })?;
        if seen == 0 {
            thread::sleep(Duration::from_millis(2));
        }
    }
    let begun = Instant::now();
    drop(probe);
    Ok((lost, begun.elapsed()))
}

/// Observes the same with bpftrace: time, thread, socket and length of each message sent and received. `None` if bpftrace is not installed.
fn bpftrace(pid: u32) -> Result<Option<Child>> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let library = maps
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .find(|path| path.contains("/libzmq"))
        .context("the peer has no libzmq of its own mapped")?;
    let script = format!(
        "uprobe:{library}:zmq_msg_send {{ $m = arg0; if (*(uint8 *)($m + 42) == 101) {{ $n = (uint64)*(uint8 *)($m + 41); }} \
         else {{ $n = *(uint64 *)(*(uint64 *)($m + 8) + 8); }} printf(\"s %llu %d %llx %llu\\n\", nsecs, tid, arg1, $n); }} \
         uprobe:{library}:zmq_msg_recv {{ @socket[tid] = arg1; }} \
         uretprobe:{library}:zmq_msg_recv /(int32)retval >= 0/ \
         {{ printf(\"r %llu %d %llx %d\\n\", nsecs, tid, @socket[tid], (int32)retval); }} \
         BEGIN {{ printf(\"attached\\n\"); }}"
    );
    let child = Command::new("bpftrace")
        .args(["-p", &pid.to_string(), "-e", &script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = match child {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        child => child.context("bpftrace")?,
    };
    let mut says = BufReader::new(child.stdout.take().context("bpftrace's output")?);
    let mut line = String::new();
    while !line.contains("attached") {
        line.clear();
        ensure!(says.read_line(&mut line)? > 0, "bpftrace ended early");
    }
    // Drain its output so that it never blocks.
    thread::spawn(move || std::io::copy(&mut says, &mut std::io::sink()));
    Ok(Some(child))
}

/// The measured process.
struct Peer {
    child: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    pid: u32,
}

impl Peer {
    fn start(python: &Path, size: usize) -> Result<Self> {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/bench/probe_peer.py");
        let mut child = Command::new(python)
            .args([script, &size.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{}: cargo xtask engine 0.5.9 makes it", python.display()))?;
        let orders = child.stdin.take().context("the peer's input")?;
        let answers = BufReader::new(child.stdout.take().context("the peer's output")?);
        let pid = child.id();
        let mut peer = Self {
            child,
            orders,
            answers,
            pid,
        };
        peer.answer()?;
        Ok(peer)
    }

    fn answer(&mut self) -> Result<f64> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        line.trim().parse().with_context(|| format!("the peer said {line:?}"))
    }

    /// CPU nanoseconds per pair.
    fn turn(&mut self, pairs: u64) -> Result<f64> {
        writeln!(self.orders, "{pairs}")?;
        self.answer()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
