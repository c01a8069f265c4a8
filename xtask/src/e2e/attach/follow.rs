//! `attach --follow` over three engine restarts: started before the first engine, it must count the frames of all of them.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::super::check::Checks;
use super::super::plan::{Engine, Plan};
use super::super::process::Process;
use super::super::session::{Session, Setting};
use super::super::setup::Home;
use super::super::tap::Relay;

const LIVES: usize = 3;
const PATIENCE: Duration = Duration::from_mins(1);

pub(super) fn run(home: &Home, program: &Path, engine: &Engine, dir: &Path, checks: &mut Checks) -> Result<String> {
    let mut command = Command::new(program);
    command.args(["attach", "--follow", "--headless", "--json", "-v", "--duration", "300s"]);
    let mut follow = Process::start("follow", command, dir)?;
    let setting = Setting {
        plan: Plan::PLAIN,
        ..Setting::new(engine)
    };
    let mut sent = 0;
    for life in 0..LIVES {
        let place = dir.join(format!("life{life}"));
        std::fs::create_dir(&place)?;
        let mut session = Session::start(home, &setting, &Relay::Absent, &place)?;
        said(&mut follow, dir, "attached to", life + 1)?;
        session.go()?;
        let outcome = session.finish()?;
        sent += outcome.senders.iter().map(|s| s.totals.output.chunks).sum::<u64>();
        said(&mut follow, dir, "the engine has ended", life + 1)?;
    }
    follow.signal(Signal::INT)?;
    let report: Value = serde_json::from_str(&follow.end_well(PATIENCE)?.join("\n"))?;
    checks.equal(
        "chunks sent over three lives",
        &sent,
        &report["chunks"]["sent"].as_u64().unwrap_or_default(),
    );
    let degraded = report["self"]["degraded"].to_string();
    checks.equal(
        "the report says how often it ended",
        &true,
        &degraded.contains("it has ended 3 times"),
    );
    Ok(format!("{sent} chunks of {LIVES} lives"))
}

/// Waits until the log contains `word` the given number of times.
fn said(follow: &mut Process, dir: &Path, word: &str, times: usize) -> Result<()> {
    follow.remark(word, PATIENCE)?;
    let until = Instant::now() + PATIENCE;
    while std::fs::read_to_string(dir.join("follow.stderr"))?
        .matches(word)
        .count()
        < times
    {
        ensure!(
            Instant::now() < until,
            "attach did not say {word:?} for the time {times}"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}
