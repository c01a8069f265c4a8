//! What attach costs the real `TokenizerManager`, and what it costs itself: the engine's own code takes frames at full speed
//! with nothing attached, with tokengap and with py-spy, in turns; then at an engine's pace, where tokengap's CPU and
//! memory are read.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::aims;
use super::observed::Observed;
use super::venv;
use crate::e2e::plan::{Engine, Plan};
use crate::e2e::process::Process;
use crate::e2e::session::{Session, Setting};
use crate::e2e::setup::Home;
use crate::e2e::tap::Relay;

/// Attaching on a busy machine.
const ATTACHING: Duration = Duration::from_secs(30);
/// Some starts and ends of requests around the pace that is measured.
const SETTLE: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Turns each way takes; medians are compared
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The engine's release (cargo xtask engine RELEASE makes it ready)
    #[arg(long, default_value = "0.5.9")]
    release: String,
    /// Requests in every frame
    #[arg(long, default_value_t = 64)]
    requests: u32,
    /// Frames in a turn
    #[arg(long, default_value_t = 2_000)]
    frames: u32,
    /// Seconds at 200 frames a second of 256 requests each, for tokengap's own cost; 0 leaves that out
    #[arg(long, default_value_t = 20)]
    pace: u64,
    /// The tokengap program
    #[arg(long, value_name = "FILE")]
    tokengap: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Alone,
    Tokengap,
    PySpy,
}

const WAYS: [(Way, &str); 3] = [
    (Way::Alone, "nothing attached"),
    (Way::Tokengap, "attached"),
    (Way::PySpy, "py-spy record, 100 Hz"),
];

pub(crate) fn run(args: &Args) -> Result<()> {
    let home = Home::find();
    let program = args
        .tokengap
        .clone()
        .unwrap_or_else(|| home.root.join("target/release/tokengap"));
    ensure!(
        program.exists(),
        "{}: cargo build --release -p tui makes it",
        program.display()
    );
    home.prepare(&[&args.release])?;
    let engine = Engine {
        release: args.release.clone(),
        msgpack: false,
    };
    full_speed(args, &home, &engine, &program)?;
    if args.pace > 0 {
        own_cost(args, &home, &engine, &program)?;
    }
    Ok(())
}

/// The tokenizer takes what waits for it, as fast as it can.
fn full_speed(args: &Args, home: &Home, engine: &Engine, program: &Path) -> Result<()> {
    let mut setting = Setting::new(engine);
    setting.plan = Plan {
        requests: args.requests,
        tokens: args.frames,
        ..Plan::PLAIN
    };
    setting.gap_ms = 0;
    setting.backlog = true;
    let py_spy = match venv::with("py-spy") {
        Ok(programs) => Some(programs.join("py-spy")),
        Err(error) => {
            println!("SKIPPED: py-spy cannot be installed: {error:#}");
            None
        }
    };
    let mut turns = WAYS.map(|_| Vec::new());
    for round in 0..=args.rounds {
        for (turns, (way, name)) in turns.iter_mut().zip(WAYS) {
            let program = match way {
                Way::Alone | Way::Tokengap => program,
                Way::PySpy => match &py_spy {
                    Some(py_spy) => py_spy,
                    None => continue,
                },
            };
            let turn = turn(home, &setting, way, program).context(name)?;
            // The first round warms up.
            if round > 0 {
                turns.push(turn);
            }
        }
    }
    println!(
        "{:28} {:>12} {:>7} {:>14} {:>7}",
        format!("{} TokenizerManager", args.release),
        "frames/s",
        "ratio",
        "CPU us/frame",
        "ratio"
    );
    let medians = turns.map(|turns| {
        let median = |of: fn(&Turn) -> f64| {
            let mut values: Vec<f64> = turns.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        median(|turn| turn.frames_s).zip(median(|turn| turn.cpu_us))
    });
    let Some((alone, cpu_alone)) = medians[0] else {
        bail!("no turn with nothing attached")
    };
    for (median, (_, name)) in medians.into_iter().zip(WAYS) {
        match median {
            Some((frames_s, cpu_us)) => println!(
                "{name:28} {frames_s:12.0} {:7.3} {cpu_us:14.1} {:7.3}",
                frames_s / alone,
                cpu_alone / cpu_us
            ),
            None => println!("{name:28} SKIPPED"),
        }
    }
    let speed = |median: Option<(f64, f64)>| median.map(|(_, cpu_us)| cpu_alone / cpu_us);
    let py_spy: Vec<_> = speed(medians[2])
        .map(|speed| ("py-spy record", speed))
        .into_iter()
        .collect();
    speed(medians[1]).map_or(Ok(()), |speed| aims::came("target", speed, &py_spy))
}

struct Turn {
    frames_s: f64,
    /// CPU time of the tokenizer's thread per frame.
    cpu_us: f64,
}

/// One turn, with `program` attached where something is.
fn turn(home: &Home, setting: &Setting, way: Way, program: &Path) -> Result<Turn> {
    let dir = tempfile::tempdir()?;
    let mut session = Session::start(home, setting, &Relay::Absent, dir.path())?;
    let pid = session.tokenizer_pid();
    let attached = match way {
        Way::Alone => None,
        Way::Tokengap => Some(Attached::Tokengap(attach(program, pid, dir.path())?)),
        Way::PySpy => Some(py_spy(program, pid, dir.path())?),
    };
    let before = on_cpu(pid).context("the tokenizer's CPU time")?;
    session.go()?;
    let watched = thread::spawn(move || {
        let mut last = before;
        while let Some(now) = on_cpu(pid) {
            last = now;
            thread::sleep(Duration::from_millis(5));
        }
        last - before
    });
    let outcome = session.finish()?;
    let cpu_ns = watched
        .join()
        .map_err(|_| anyhow::anyhow!("reading CPU times failed"))?;
    if let Some(attached) = attached {
        attached.end()?;
    }
    let taken = &outcome.receiver.taken;
    let (Some(first), Some(last)) = (taken.first(), taken.last()) else {
        bail!("the tokenizer took nothing")
    };
    Ok(Turn {
        frames_s: (taken.len() - 1) as f64 * 1e9 / (last.at_ns - first.at_ns) as f64,
        cpu_us: cpu_ns as f64 / 1e3 / taken.len() as f64,
    })
}

enum Attached {
    Tokengap(Process),
    /// With the file that it writes.
    PySpy(Child, PathBuf),
}

impl Attached {
    fn end(self) -> Result<()> {
        match self {
            Self::Tokengap(process) => {
                process.signal(Signal::INT)?;
                let report: Value = serde_json::from_str(&process.end_well(ATTACHING)?.join("\n"))?;
                let lost = &report["self"]["events_lost"];
                ensure!(lost == 0, "{lost} observations were lost");
            }
            Self::PySpy(mut child, samples) => {
                if let Some(pid) = Pid::from_raw(child.id() as i32) {
                    // It ends with its target.
                    let _ = kill_process(pid, Signal::INT);
                }
                child.wait()?;
                let samples = fs::metadata(&samples).map_or(0, |file| file.len());
                ensure!(samples > 0, "py-spy sampled nothing");
            }
        }
        Ok(())
    }
}

fn attach(program: &Path, pid: u32, dir: &Path) -> Result<Process> {
    let mut command = Command::new(program);
    command.args(["attach", "--headless", "--json", "--duration", "120s"]);
    command.args(["--pid", &pid.to_string()]);
    let mut process = Process::start("attach", command, dir)?;
    process.remark("attached to", ATTACHING)?;
    Ok(process)
}

/// Samples the process's stacks until it ends.
fn py_spy(program: &Path, pid: u32, dir: &Path) -> Result<Attached> {
    let samples = dir.join("py-spy.txt");
    let mut command = Command::new(program);
    command.args(["record", "--rate", "100", "--format", "raw"]);
    command.args(["--pid", &pid.to_string(), "--output"]).arg(&samples);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut child = child.with_context(|| program.display().to_string())?;
    thread::sleep(SETTLE);
    if let Some(status) = child.try_wait()? {
        bail!("{command:?}: {status}: it does not sample");
    }
    Ok(Attached::PySpy(child, samples))
}

/// tokengap's own CPU and memory, and how long it takes to come and go, at an engine's pace.
fn own_cost(args: &Args, home: &Home, engine: &Engine, program: &Path) -> Result<()> {
    const FRAMES_S: u64 = 200;
    let mut setting = Setting::new(engine);
    setting.plan = Plan {
        requests: 256,
        tokens: u32::try_from((args.pace + 2 * SETTLE.as_secs() + 2) * FRAMES_S)?,
        ..Plan::PLAIN
    };
    setting.gap_ms = u32::try_from(1_000 / FRAMES_S)?;
    let dir = tempfile::tempdir()?;
    let mut session = Session::start(home, &setting, &Relay::Absent, dir.path())?;
    let begun = Instant::now();
    let process = attach(program, session.tokenizer_pid(), dir.path())?;
    let attached = begun.elapsed();
    session.go()?;
    thread::sleep(SETTLE);
    let observed = Observed(process.pid());
    let (before, from) = (observed.cpu()?, Instant::now());
    thread::sleep(Duration::from_secs(args.pace));
    let (cpu, over) = (observed.cpu()?.saturating_sub(before), from.elapsed());
    let peak = observed.peak()?;
    let outcome = session.finish()?;
    process.signal(Signal::INT)?;
    let begun = Instant::now();
    let report: Value = serde_json::from_str(&process.end_well(ATTACHING)?.join("\n"))?;
    let ended = begun.elapsed();
    let taken = &outcome.receiver.taken;
    let (Some(first), Some(last)) = (taken.first(), taken.last()) else {
        bail!("the tokenizer took nothing")
    };
    println!(
        "{:.0} frames/s of 256 requests: {:.2} % of a core, {:.1} MiB at most, {} lost; attached in {} ms, ended in {} ms",
        (taken.len() - 1) as f64 * 1e9 / (last.at_ns - first.at_ns) as f64,
        cpu.as_secs_f64() * 100.0 / over.as_secs_f64(),
        peak as f64 / f64::from(1 << 20),
        report["self"]["events_lost"],
        attached.as_millis(),
        ended.as_millis()
    );
    Ok(())
}

/// Nanoseconds that a process's main thread was on a CPU; `None` when it has ended.
fn on_cpu(pid: u32) -> Option<u64> {
    let spent = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
    spent.split(' ').next()?.parse().ok().filter(|spent| *spent > 0)
}
