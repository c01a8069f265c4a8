//! Minimal buffers between the engine's traffic and tokengap: observations that do not fit are counted as missed, and never reported as
//! lost by the engine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::Signal;
use serde_json::Value;

use super::attach::{kernel, watch::Watch};
use super::check::{Checks, same_bytes};
use super::plan::{Engine, Plan};
use super::session::{Outcome, Session, Setting};
use super::setup::Home;
use super::table::Table;
use super::tap::Relay;
use super::{Options, summary};

/// Findings that the engine loses or mixes up tokens.
const ACCUSATIONS: [&str; 8] = [
    "dropped-chunks",
    "wire-loss",
    "wire-arithmetic",
    "short-answers",
    "inflation",
    "out-of-order",
    "stalled-stream",
    "rid-changed-worker",
];

pub(super) fn rows(table: &mut Table, options: &Options, home: &Home, program: &Path, engines: &[Engine]) {
    let Some(engine) = engines.last() else { return };
    let setting = Setting {
        plan: Plan {
            requests: 16,
            rounds: 12,
            ..Plan::PLAIN
        },
        gap_ms: 0,
        ..Setting::new(engine)
    };
    table.row(options, engine, "tap, tiny queue", |checks, dir| {
        let relay = Relay::Tokengap(with_options(program, "--queue-frames 2", dir)?);
        let mut session = Session::start(home, &setting, &relay, dir)?;
        session.go()?;
        judged(&session.finish()?, checks)
    });
    let name = "attach, tiny ring";
    match kernel::refusal() {
        Some(why) => table.skip(options, engine, name, &why),
        None => table.row(options, engine, name, |checks, dir| {
            let mut session = Session::start(home, &setting, &Relay::Absent, dir)?;
            let watch = Watch::start_with(program, session.tokenizer_pid(), dir, &["--ring", "65536"])?;
            session.go()?;
            // Pause the reader so that the ring buffer overflows.
            thread::sleep(Duration::from_millis(200));
            watch.signal(Signal::STOP)?;
            thread::sleep(Duration::from_millis(600));
            watch.signal(Signal::CONT)?;
            let mut outcome = session.finish()?;
            outcome.report = Some(watch.report()?);
            judged(&outcome, checks)
        }),
    }
}

/// Creates a wrapper that runs `program` with additional options.
fn with_options(program: &Path, options: &str, dir: &Path) -> Result<PathBuf> {
    let path = dir.join("narrow");
    fs::write(
        &path,
        format!("#!/bin/sh\nexec '{}' \"$@\" {options}\n", program.display()),
    )?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).context("making a program of it")?;
    Ok(path)
}

/// Checks that some observations were missed and that the report does not blame the engine for them.
fn judged(outcome: &Outcome, checks: &mut Checks) -> Result<String> {
    same_bytes(outcome, checks);
    let report = outcome.report.as_ref().context("there is no report")?;
    let number = |pointer: &str| report.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
    let lost = number("/self/events_missed");
    let unannounced = number("/self/frames_unannounced");
    checks.equal("something escaped us, and is counted", &true, &(lost + unannounced > 0));
    let sent: u64 = outcome.senders.iter().map(|sender| sender.totals.output.tokens).sum();
    let told = number("/tokens/sent");
    checks.equal("no more tokens are told than were sent", &true, &(told <= sent));
    checks.equal(
        "tokens that are told to be missing on the wire",
        &0,
        &number("/tokens/missing_on_wire"),
    );
    checks.equal(
        "no more tokens are told to be lost than clients miss",
        &true,
        &(number("/chunks/tokens_lost") <= outcome.receiver.totals.given.lost),
    );
    let findings = report["findings"].as_array().into_iter().flatten();
    let kinds: Vec<&str> = findings.filter_map(|finding| finding["kind"].as_str()).collect();
    let mut accused: Vec<&str> = kinds
        .iter()
        .copied()
        .filter(|kind| ACCUSATIONS.contains(kind))
        .collect();
    if outcome.receiver.totals.given.lost > 0 {
        accused.retain(|kind| *kind != "dropped-chunks");
    }
    checks.equal("accusations", &Vec::<&str>::new(), &accused);
    checks.equal(
        "the loss is a finding of its own",
        &true,
        &kinds.contains(&"missed-observations"),
    );
    Ok(format!(
        "{lost} observations missed, {told} of {sent} tokens seen; {}",
        summary(outcome)
    ))
}
