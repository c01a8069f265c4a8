//! The engine as a child of `tokengap run`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::e2e::check::{Checks, same_bytes, verdicts};
use crate::e2e::plan::{Engine, Plan};
use crate::e2e::process::Process;
use crate::e2e::session::Outcome;
use crate::e2e::setup::Home;
use crate::e2e::truth::Truth;

const PATIENCE: Duration = Duration::from_secs(90);
/// Exit code of the engine, which tokengap must pass through.
const EXIT: u8 = 7;

/// Starts the whole engine under `tokengap run`.
fn start(home: &Home, program: &Path, engine: &Engine, plan: Plan, dir: &Path) -> Result<Process> {
    let mut command = Command::new(program);
    command.current_dir(&home.root);
    command
        .args(["run", "--headless", "--json", "--report"])
        .arg(dir.join("report.json"));
    command.arg("--").arg(&home.python);
    command.args([
        "-m",
        "engine",
        &engine.release,
        "launch",
        "--detokenizer",
        "--gap",
        "1e-3",
        "--deadline",
        "60",
    ]);
    command
        .args(["--exit", &EXIT.to_string(), "--truths"])
        .arg(dir)
        .args(plan.options());
    command.env("PYTHONPATH", home.source(&engine.release));
    command.env("SGLANG_USE_PICKLE_IPC", if engine.msgpack { "0" } else { "1" });
    // `tokengap run` creates its folder here, so that leftovers are detected.
    let temporary = dir.join("tmp");
    fs::create_dir(&temporary)?;
    command.env("TMPDIR", temporary);
    Process::start("run", command, dir)
}

/// Reads the truth files of all engine processes.
fn truths(dir: &Path, report: Option<Value>) -> Result<Outcome> {
    Ok(Outcome {
        senders: vec![Truth::read(&dir.join("sender0.truth"))?],
        detokenizer: Some(Truth::read(&dir.join("detokenizer.truth"))?),
        receiver: Truth::read(&dir.join("receiver.truth"))?,
        clients: None,
        each_client: Vec::new(),
        report,
    })
}

/// Checks a run from the first frame to the exit code.
pub(super) fn whole(home: &Home, program: &Path, engine: &Engine, dir: &Path, checks: &mut Checks) -> Result<String> {
    let plan = Plan {
        rounds: 3,
        ..Plan::MIXED
    };
    let mut process = start(home, program, engine, plan, dir)?;
    process
        .line("LAUNCHED", PATIENCE)
        .context("the child's output passes through")?;
    let (status, _) = process.end(PATIENCE)?;
    checks.equal("the engine's exit code", &Some(i32::from(EXIT)), &status.code());
    let report: Value = serde_json::from_slice(&fs::read(dir.join("report.json"))?)?;
    let outcome = truths(dir, None)?;
    same_bytes(&outcome, checks);
    let detokenizer = outcome.detokenizer.as_ref().context("a detokenizer ran")?;
    let sender = &outcome.senders[0].totals;
    let frames = sender.output.frames + sender.control.frames + detokenizer.totals.output.frames;
    let hops = report["hops"].as_array().into_iter().flatten();
    let reported: u64 = hops.filter_map(|hop| hop["frames_sent"].as_u64()).sum();
    checks.equal("frames seen, from the first", &frames, &reported);
    checks.report_says(&report, "/requests/finished", sender.output.finishes);
    checks.report_says(&report, "/self/frames_undecoded", 0);
    checks.report_says(&report, "/source/wire/run/sockets_relayed", 2);
    checks.equal(
        "what went past the relay",
        &Some(&Vec::new()),
        &report["source"]["wire"]["run"]["past_the_relay"].as_array(),
    );
    verdicts(&report, outcome.lost(), &[], checks);
    checks.equal("folders left behind", &0, &fs::read_dir(dir.join("tmp"))?.count());
    Ok(format!(
        "{frames} frames of 2 sockets relayed from the first on, exit code {EXIT}"
    ))
}

/// Connects to its own sockets immediately, some before any relay can exist, and holds all for a second.
const EAGER: &str = "
import os, socket, tempfile, time
held = []
for number in range(8):
    listener, peer = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    path = os.path.join(tempfile.gettempdir(), f'eager{number}')
    listener.bind(path)
    listener.listen()
    peer.connect(path)
    held.append((listener, peer, listener.accept()))
time.sleep(2)
";

/// Checks that a connection made before the relay is in place is detected and reported.
pub(super) fn past(home: &Home, program: &Path, dir: &Path, checks: &mut Checks) -> Result<String> {
    let mut command = Command::new(program);
    command
        .args(["run", "--headless", "--json", "--report"])
        .arg(dir.join("report.json"));
    command.arg("--").arg(&home.python).args(["-c", EAGER]);
    let temporary = dir.join("tmp");
    fs::create_dir(&temporary)?;
    command.env("TMPDIR", temporary);
    let (status, _) = Process::start("run", command, dir)?.end(PATIENCE)?;
    checks.equal("the command's exit code", &Some(0), &status.code());
    let report: Value = serde_json::from_slice(&fs::read(dir.join("report.json"))?)?;
    let past = report["source"]["wire"]["run"]["past_the_relay"].as_array();
    let past: Vec<&str> = past.into_iter().flatten().filter_map(Value::as_str).collect();
    checks.equal("some connection went past the relay", &false, &past.is_empty());
    let named = |told: &&str| told.starts_with("eager") && told.contains(": process ") && told.contains("relay");
    checks.equal(
        "each is named, with its process",
        &past.len(),
        &past.iter().filter(|t| named(t)).count(),
    );
    let degraded = report["self"]["degraded"].as_array().into_iter().flatten();
    let said = degraded
        .filter_map(Value::as_str)
        .filter(|line| past.contains(line))
        .count();
    checks.equal("and said in `degraded`", &past.len(), &said);
    Ok(format!(
        "{} of 8 connections were there before the relay; each is told of",
        past.len()
    ))
}

/// Terminates an engine that outlives its tokengap.
struct Launcher(Pid);

impl Drop for Launcher {
    fn drop(&mut self) {
        // It fails only if the engine has already exited.
        let _ = kill_process(self.0, Signal::TERM);
    }
}

/// Kills tokengap during a run: the guard restores the sockets, and the engine continues without it.
pub(super) fn killed(home: &Home, program: &Path, engine: &Engine, dir: &Path, checks: &mut Checks) -> Result<String> {
    let plan = Plan {
        requests: 8,
        rounds: 40,
        ..Plan::PLAIN
    };
    let mut process = start(home, program, engine, plan, dir)?;
    let launched = process.line("LAUNCHED", PATIENCE)?;
    let pid = launched.split_whitespace().next().and_then(|pid| pid.parse().ok());
    let launcher = Launcher(pid.and_then(Pid::from_raw).context("the launcher's pid")?);
    let sent = || fs::metadata(dir.join("sender0.truth")).map_or(0, |found| found.len());
    let until = Instant::now() + PATIENCE;
    while sent() < 100_000 {
        ensure!(Instant::now() < until, "nothing was sent within {PATIENCE:?}");
        thread::sleep(Duration::from_millis(20));
    }
    process.signal(Signal::KILL)?;
    // A killed relay loses the frames that it held, so the tokenizer may wait for a finish until its deadline. Check only that traffic
    // continues.
    let before = sent();
    let taken = || fs::metadata(dir.join("receiver.truth")).map_or(0, |found| found.len());
    let (taken_before, until) = (taken(), Instant::now() + PATIENCE);
    while taken() < taken_before + 100_000 {
        ensure!(
            Instant::now() < until,
            "nothing was taken within {PATIENCE:?} after tokengap was killed"
        );
        thread::sleep(Duration::from_millis(20));
    }
    let folder = fs::read_dir(dir.join("tmp"))?
        .next()
        .context("the run's folder is gone while the engine lives")??;
    let mut left: Vec<String> = fs::read_dir(folder.path())?
        .filter_map(|file| file.ok()?.file_name().into_string().ok())
        .collect();
    left.retain(|name| name.contains(".engine-") || name.contains(".tokengap"));
    checks.equal("notes and sockets left aside", &Vec::new(), &left);
    drop(launcher);
    let until = Instant::now() + PATIENCE;
    while fs::read_dir(dir.join("tmp"))?.count() > 0 {
        ensure!(Instant::now() < until, "the guard does not remove the run's folder");
        thread::sleep(Duration::from_millis(20));
    }
    Ok(format!(
        "killed after {before} bytes of truth; the engine went on by itself"
    ))
}
