//! Concurrent load: the demo with races, a tap between a real scheduler and tokenizer, and an attach to another pair that serves HTTP
//! clients. Each records, and each report is checked against the truth of its traffic source.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;

use super::engine::{Ends, Running, Totals};
use super::footprint::Footprint;
use crate::e2e::attach::kernel::refusal;
use crate::e2e::check::Checks;
use crate::e2e::process::Process;
use crate::e2e::record::same;
use crate::e2e::setup::Home;
use crate::e2e::tap::{Transport, wait_until_bound};

const ENDING: Duration = Duration::from_mins(1);

/// One tokengap process and its traffic.
pub(super) struct Load {
    pub(super) name: &'static str,
    pub(super) footprint: Footprint,
    tokengap: Process,
    recording: PathBuf,
    /// `None`: the demo, which is its own.
    engine: Option<Running>,
}

/// Result of one observer's run.
pub(super) struct Told {
    pub(super) carried: String,
    pub(super) report: String,
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.carried, self.report)
    }
}

/// Starts all of them; traffic flows when this returns.
pub(super) fn start(home: &Home, program: &Path, time: Duration, dir: &Path) -> Result<Vec<Load>> {
    let mut loads = vec![tap(home, program, time, dir)?];
    match refusal() {
        None => loads.push(attach(home, program, time, dir)?),
        Some(why) => println!("SKIPPED, attach: {why}"),
    }
    // It begins with its first message.
    loads.push(demo(program, dir)?);
    for load in &mut loads {
        if let Some(engine) = &mut load.engine {
            engine.go()?;
        }
    }
    Ok(loads)
}

/// A live source that records, with tables that soon fill up: growth after that is a leak.
fn live(program: &Path, source: &str, dir: &Path) -> (Command, PathBuf) {
    let recording = dir.join("run.tgap");
    let mut command = Command::new(program);
    command.args([
        source,
        "--headless",
        "--json",
        "--max-finished",
        "500",
        "--slowest",
        "50",
    ]);
    command.args(["--limit", "lossy_kept=500", "--limit", "lost_ranges=5000"]);
    // A safety limit in case this process is killed.
    command.args(["--duration", "48h"]);
    command.arg("--record").arg(&recording);
    (command, recording)
}

fn place(dir: &Path, name: &str) -> Result<PathBuf> {
    let place = dir.join(name);
    std::fs::create_dir(&place)?;
    Ok(place)
}

fn load(name: &'static str, tokengap: Process, recording: PathBuf, engine: Option<Running>) -> Load {
    Load {
        name,
        footprint: Footprint::of(tokengap.pid()),
        tokengap,
        recording,
        engine,
    }
}

fn demo(program: &Path, dir: &Path) -> Result<Load> {
    let dir = place(dir, "demo")?;
    let (mut command, recording) = live(program, "demo", &dir);
    command.args(["--scenario", "race"]);
    let process = Process::start("tokengap", command, &dir)?;
    Ok(load("demo", process, recording, None))
}

fn tap(home: &Home, program: &Path, time: Duration, dir: &Path) -> Result<Load> {
    let dir = place(dir, "tap")?;
    let front = Transport::Ipc.endpoint(&dir, "front")?;
    let back = Transport::Ipc.endpoint(&dir, "back")?;
    let (mut command, recording) = live(program, "tap", &dir);
    command.args(["--listen", &front, "--upstream", &back]);
    let mut process = Process::start("tokengap", command, &dir)?;
    let ends = Ends {
        back: &back,
        front: &front,
        http: false,
    };
    let engine = Running::start(home, &ends, time, &dir, || wait_until_bound(&front, &mut process))?;
    Ok(load("tap", process, recording, Some(engine)))
}

fn attach(home: &Home, program: &Path, time: Duration, dir: &Path) -> Result<Load> {
    let dir = place(dir, "attach")?;
    let back = Transport::Ipc.endpoint(&dir, "tokenizer")?;
    let ends = Ends {
        back: &back,
        front: &back,
        http: true,
    };
    let engine = Running::start(home, &ends, time, &dir, || Ok(()))?;
    let (mut command, recording) = live(program, "attach", &dir);
    command.args(["--pid", &engine.tokenizer_pid().to_string()]);
    let mut process = Process::start("tokengap", command, &dir)?;
    process.remark("attached to", ENDING)?;
    Ok(load("attach", process, recording, Some(engine)))
}

impl Load {
    pub(super) fn look(&mut self, at: Duration) -> Result<()> {
        if let Some(complaint) = self.tokengap.ended()? {
            anyhow::bail!("{}: {complaint}", self.name);
        }
        self.footprint.look(at)
    }

    /// Ends the traffic, then the observer, and holds its report against the truth and against its recording.
    pub(super) fn end(self, program: &Path, checks: &mut Checks) -> Result<Told> {
        let totals = self.engine.map(Running::end).transpose()?;
        self.tokengap.signal(Signal::INT)?;
        let lines = self.tokengap.end_well(ENDING)?;
        let report: Value = serde_json::from_str(&lines.join("\n")).context("the report is no JSON")?;
        match &totals {
            None => demo_is_true(&report, checks),
            Some(totals) => engine_is_true(self.name, totals, &report, checks),
        }
        same(&self.recording, program, &report, checks)?;
        let size = std::fs::metadata(&self.recording)?.len();
        let lost = &report["self"]["events_missed"];
        Ok(Told {
            carried: format!(
                "{} requests, {} chunks, {} tokens",
                report["requests"]["seen"], report["chunks"]["sent"], report["tokens"]["sent"]
            ),
            report: format!(
                "sent, taken, delivered {}; {lost} observations missed; replay the same ({} KiB)",
                flow(&report),
                size >> 10
            ),
        })
    }
}

/// Tokens sent, received and delivered, as text; a dash for unobserved values.
fn flow(report: &Value) -> String {
    let tokens = ["sent", "taken", "delivered"].map(|stage| match report["tokens"][stage].as_u64() {
        Some(count) => count.to_string(),
        None => "-".into(),
    });
    tokens.join(" ≥ ")
}

/// The report says what the demo's own peers kept.
fn demo_is_true(report: &Value, checks: &mut Checks) {
    let truth = &report["demo"]["truth"];
    let pairs = [
        ("/requests/seen", "requests"),
        ("/chunks/sent", "chunks"),
        ("/tokens/sent", "tokens"),
        ("/chunks/dropped_confirmed", "chunks_dropped"),
        ("/chunks/tokens_lost", "tokens_lost"),
        ("/chunks/coalesced", "chunks_coalesced"),
    ];
    for (pointer, kept) in pairs {
        checks.report_says(report, pointer, truth[kept].as_u64().unwrap_or(u64::MAX));
    }
    in_order(report, checks);
}

/// The report says what the engine's processes say, or how much of it was not observed.
fn engine_is_true(name: &str, totals: &Totals, report: &Value, checks: &mut Checks) {
    let lost = report["self"]["events_missed"].as_u64().unwrap_or(u64::MAX);
    let frames = |stage: &str| -> u64 {
        let hops = report["hops"].as_array().into_iter().flatten();
        hops.filter_map(|hop| hop[stage].as_u64()).sum()
    };
    let sent = totals.sender.output.frames + totals.sender.control.frames;
    checks.equal(
        &format!("{name}: frames that the tokenizer took"),
        &sent,
        &totals.receiver.frames,
    );
    checks.equal(
        &format!("{name}: frames in the report, {lost} observations missed"),
        &true,
        &(frames("frames_sent") <= sent && frames("frames_sent") + lost >= sent),
    );
    if lost == 0 {
        checks.report_says(report, "/tokens/sent", totals.sender.output.tokens);
        checks.report_says(report, "/chunks/sent", totals.sender.output.chunks);
    }
    if let Some(clients) = totals.clients {
        checks.equal(
            &format!("{name}: frames taken, in the report"),
            &(sent - lost.min(sent)),
            &frames("frames_taken"),
        );
        checks.report_says(report, "/tokens/delivered", clients.ids);
    }
    in_order(report, checks);
}

/// Checks that delivered tokens do not exceed received ones, nor received ones sent ones.
fn in_order(report: &Value, checks: &mut Checks) {
    let tokens = ["sent", "taken", "delivered"].map(|stage| report["tokens"][stage].as_u64());
    let known: Vec<_> = tokens.into_iter().flatten().collect();
    checks.equal(
        "tokens sent, taken, delivered: never more",
        &true,
        &known.is_sorted_by(|a, b| a >= b),
    );
}
