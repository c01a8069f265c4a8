//! Checks that attach does not change the engine's behaviour: messages and client outputs are the same with and without it.
//!
//! Runs in lockstep, because otherwise timing decides which of several queued chunks a client gets.

use std::path::Path;

use anyhow::{Context, Result};

use super::super::check::{Checks, same_bytes};
use super::super::plan::{Engine, Plan};
use super::super::session::{Outcome, Session, Setting};
use super::super::setup::Home;
use super::super::summary;
use super::super::tap::Relay;
use super::watch::Watch;

pub(super) fn run(home: &Home, program: &Path, engine: &Engine, dir: &Path, checks: &mut Checks) -> Result<String> {
    let setting = Setting {
        plan: Plan {
            rounds: 1,
            ..Plan::MIXED
        },
        gap_ms: 0,
        lockstep: true,
        ..Setting::new(engine)
    };
    let walk = |name: &str, watched: bool| -> Result<Outcome> {
        let folder = dir.join(name);
        std::fs::create_dir(&folder)?;
        let mut session = Session::start(home, &setting, &Relay::Absent, &folder)?;
        let more = ["--python-stacks", "100"];
        let watch = watched
            .then(|| Watch::start_with(program, session.tokenizer_pid(), &folder, &more))
            .transpose()?;
        session.go()?;
        session.walk()?;
        let mut outcome = session.finish()?;
        outcome.report = watch.map(Watch::report).transpose()?;
        Ok(outcome)
    };
    let (without, with) = (walk("without", false)?, walk("with", true)?);
    for outcome in [&with, &without] {
        same_bytes(outcome, checks);
    }
    let said = |outcome: &Outcome| -> Vec<_> {
        let sent = outcome.senders.iter().flat_map(|sender| &sender.sent);
        sent.map(|sent| (sent.on.clone(), sent.chunks.clone())).collect()
    };
    checks.equal("messages, each with what it says", &said(&without), &said(&with));
    let given = |outcome: &Outcome| {
        let mut clients = outcome.receiver.clients.clone();
        clients.sort_unstable();
        clients
    };
    checks.equal("what each client was given", &given(&without), &given(&with));
    checks.equal(
        "frames that the tokenizer took",
        &without.receiver.totals.frames,
        &with.receiver.totals.frames,
    );
    let report = with.report.as_ref().context("attach gave no report")?;
    checks.report_says(report, "/hops/0/frames_taken", with.receiver.totals.frames);
    Ok(summary(&with))
}
