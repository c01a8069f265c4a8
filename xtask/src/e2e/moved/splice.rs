//! Sockets of a running engine, moved behind the relay and back.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;

use crate::e2e::check::{Checks, same_bytes};
use crate::e2e::plan::{Engine, Plan};
use crate::e2e::process::Process;
use crate::e2e::session::{Session, Setting};
use crate::e2e::setup::Home;
use crate::e2e::tap::Relay;

const PATIENCE: Duration = Duration::from_secs(30);
/// Number of times that the same run is spliced.
const TIMES: u32 = 5;

/// A frame about every 3 ms on each of two hops for the whole test.
fn steady(engine: &Engine, rounds: u32) -> Setting {
    Setting {
        plan: Plan {
            requests: 8,
            rounds,
            ..Plan::PLAIN
        },
        detokenizer: true,
        gap_ms: 2,
        ..Setting::new(engine)
    }
}

fn splice(program: &Path, name: &str, session: &Session<'_>, dir: &Path, args: &[&str]) -> Result<Process> {
    let mut command = Command::new(program);
    command.args([
        "splice",
        "--headless",
        "--json",
        "--pid",
        &session.tokenizer_pid().to_string(),
    ]);
    command.args(args);
    Process::start(name, command, dir)
}

/// Repeatedly splices and restores, by timeout and by SIGTERM, and checks the refusal above the limit. Nothing may be lost.
pub(super) fn again_and_again(
    home: &Home,
    program: &Path,
    engine: &Engine,
    dir: &Path,
    checks: &mut Checks,
) -> Result<String> {
    let setting = steady(engine, 160);
    let mut session = Session::start(home, &setting, &Relay::Absent, dir)?;
    session.go()?;
    thread::sleep(Duration::from_millis(500));
    let refused = splice(program, "refused", &session, dir, &["--yes", "--max-rate", "20"])?;
    let (status, _) = refused.end(PATIENCE)?;
    checks.equal("above the limit it is refused", &Some(2), &status.code());
    let (mut frames, mut away, mut rate) = (0, Vec::new(), 0);
    for time in 0..TIMES {
        let mut spliced = splice(
            program,
            &format!("splice{time}"),
            &session,
            dir,
            &["--yes", "--duration", "1s"],
        )?;
        if time % 2 == 1 {
            spliced.remark("moved; connections", PATIENCE)?;
            thread::sleep(Duration::from_millis(300));
            spliced.signal(Signal::TERM)?;
        }
        let lines = spliced.end_well(PATIENCE)?;
        let report: Value = serde_json::from_str(&lines.join("\n")).context("its standard output is no report")?;
        let moved = &report["source"]["wire"]["splice"];
        checks.equal("doubts", &Some(&Vec::new()), &moved["doubts"].as_array());
        checks.equal(
            "what did not add up",
            &Some(&Vec::new()),
            &moved["continuity"]["broken"].as_array(),
        );
        checks.equal(
            "messages unread",
            &Some(0),
            &moved["continuity"]["messages_unread"].as_u64(),
        );
        let across = moved["continuity"]["requests_across"].as_u64();
        checks.equal(
            "requests went on across the move",
            &true,
            &across.is_some_and(|count| count > 0),
        );
        let hops = report["hops"].as_array().into_iter().flatten();
        let through: u64 = hops.filter_map(|hop| hop["frames_sent"].as_u64()).sum();
        checks.equal("frames went through the relay", &true, &(through > 50));
        frames += through;
        away.push(moved["moved_in_ms"].as_u64().unwrap_or_default());
        rate = rate.max(moved["messages_per_second"].as_u64().unwrap_or_default());
    }
    let outcome = session.finish()?;
    same_bytes(&outcome, checks);
    away.sort_unstable();
    Ok(format!(
        "{TIMES} splices at up to {rate} messages a second, away {} to {} ms, {frames} frames through the relay, none lost",
        away[0],
        away[away.len() - 1]
    ))
}

/// Kills tokengap while the hops are moved: the guard restores them, and later frames arrive.
pub(super) fn killed(home: &Home, program: &Path, engine: &Engine, dir: &Path, checks: &mut Checks) -> Result<String> {
    let setting = steady(engine, 30);
    let mut session = Session::start(home, &setting, &Relay::Absent, dir)?;
    session.go()?;
    thread::sleep(Duration::from_millis(500));
    let mut spliced = splice(program, "splice", &session, dir, &["--yes"])?;
    spliced.remark("moved; connections", PATIENCE)?;
    thread::sleep(Duration::from_secs(1));
    spliced.signal(Signal::KILL)?;
    spliced.end(PATIENCE)?;
    let restored = Command::new(program)
        .args(["splice", "--restore", "--folder"])
        .arg(dir)
        .output()?;
    checks.equal("the way back can be asked for again", &true, &restored.status.success());
    let outcome = session.finish()?;
    let sent: usize = outcome.senders.iter().map(|sender| sender.sent.len()).sum();
    let detokenizer = outcome.detokenizer.as_ref().context("a detokenizer ran")?;
    let last = |hashes: Vec<&String>| hashes.last().map(ToString::to_string);
    let taken: std::collections::HashSet<&String> = detokenizer.taken.iter().map(|message| &message.hash).collect();
    let output = || {
        outcome
            .senders
            .iter()
            .flat_map(|sender| &sender.sent)
            .filter(|sent| sent.on == "output")
    };
    let lost = output().filter(|sent| !taken.contains(&sent.hash)).count();
    checks.equal("what a killed relay takes with it is little", &true, &(lost < 50));
    let final_sent = last(output().map(|sent| &sent.hash).collect());
    let final_taken = last(detokenizer.taken.iter().map(|taken| &taken.hash).collect());
    checks.equal("the last message arrives without tokengap", &final_sent, &final_taken);
    Ok(format!(
        "killed while moved: {lost} of {sent} messages lost, the rest arrived by the engine's own sockets"
    ))
}
