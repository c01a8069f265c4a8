//! Cost of attach for the real `TokenizerManager`, and for itself. The engine's own code receives frames at full speed ([`speed`]), then at
//! a realistic rate at which tokengap's CPU and memory are measured.

mod speed;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::observed::Observed;
use crate::e2e::plan::{Engine, Plan};
use crate::e2e::process::Process;
use crate::e2e::session::{Session, Setting};
use crate::e2e::setup::Home;
use crate::e2e::tap::Relay;

/// Time limit for attaching on a busy machine.
const ATTACHING: Duration = Duration::from_secs(30);
/// Time excluded at both ends of the measurement, when requests start and finish.
const SETTLE: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Engines that one after the other take frames at full speed
    #[arg(long, default_value_t = 6)]
    rounds: usize,
    /// The engine's release (cargo xtask engine RELEASE makes it ready)
    #[arg(long, default_value = "0.5.9")]
    release: String,
    /// Requests in every frame
    #[arg(long, default_value_t = 64)]
    requests: u32,
    /// Frames that each of them takes
    #[arg(long, default_value_t = 80_000)]
    frames: u32,
    /// Seconds at 200 frames a second of 256 requests each, for tokengap's own cost; 0 leaves that out
    #[arg(long, default_value_t = 20)]
    pace: u64,
    /// The tokengap program; given more than once, each has its turns in every engine
    #[arg(long, value_name = "FILE")]
    tokengap: Vec<PathBuf>,
    /// Leave out py-spy, so that there are more turns for tokengap
    #[arg(long)]
    no_peer: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let home = Home::find();
    let mut programs = args.tokengap.clone();
    if programs.is_empty() {
        programs.push(home.root.join("target/release/tokengap"));
    }
    for program in &programs {
        ensure!(
            program.exists(),
            "{}: cargo build --release -p tui makes it",
            program.display()
        );
    }
    home.prepare(&[&args.release])?;
    let engine = Engine {
        release: args.release.clone(),
        msgpack: false,
    };
    speed::measure(args, &home, &engine, &programs)?;
    if args.pace > 0 {
        for program in &programs {
            own_cost(args, &home, &engine, program)?;
        }
    }
    Ok(())
}

fn attach(program: &Path, pid: u32, dir: &Path, more: &[&str]) -> Result<Process> {
    let mut command = Command::new(program);
    command.args(["attach", "--headless", "--json", "--duration", "120s"]);
    // Name the role explicitly: the senders may have exited, so there are no sockets to detect it by.
    command.args(["--pid", &format!("{pid}=tokenizer")]).args(more);
    let mut process = Process::start("attach", command, dir)?;
    process.remark("attached to", ATTACHING)?;
    Ok(process)
}

/// CPU and memory of tokengap, and the time it takes to attach and detach, at a realistic rate.
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
    let process = attach(program, session.tokenizer_pid(), dir.path(), &[])?;
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
        report["self"]["events_missed"],
        attached.as_millis(),
        ended.as_millis()
    );
    Ok(())
}
