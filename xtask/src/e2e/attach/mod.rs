//! `tokengap attach` on the real engine: it detects the processes, observes them from outside, and its report of every request must match
//! the processes' own timestamps.

mod backlog;
pub(super) mod check;
mod expected;
mod follow;
pub(crate) mod kernel;
pub(super) mod score;
mod unchanged;
pub(super) mod watch;

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;

use self::watch::Watch;
use super::check::{Checks, same_bytes};
use super::plan::{Engine, Plan};
use super::session::{Outcome, Session, Setting};
use super::setup::Home;
use super::table::{Needs, Table};
use super::tap::{Relay, Transport};
use super::{Options, summary};

/// Subset of the releases of `e2e` that differ in their processes and their wire formats.
const RELEASES: [&str; 3] = ["0.5.6", "0.5.9", "0.5.23"];

/// Scenario name, and its changes to the default setting.
type Scenario = (&'static str, fn(&mut Setting));

/// `--quick` runs only the first.
const SCENARIOS: [Scenario; 6] = [
    ("attach", |_| {}),
    ("attach, slow", slow),
    ("attach, detokenizer", |setting| setting.detokenizer = true),
    ("attach, detokenizer, slow", |setting| {
        setting.detokenizer = true;
        slow(setting);
    }),
    ("attach, 3 ranks tcp, slow", |setting| {
        slow(setting);
        setting.plan.senders = 3;
        setting.plan.requests = 16;
        setting.plan.unary = 2;
        setting.transport = Transport::Tcp;
    }),
    ("attach, backlog", |setting| {
        setting.plan = Plan::PLAIN;
        setting.gap_ms = 0;
        setting.backlog = true;
    }),
];

/// A tokenizer that spends a millisecond of CPU per output, so that frames wait, on most releases for seconds.
fn slow(setting: &mut Setting) {
    setting.gap_ms = 1;
    setting.receiver = &["--busy", "1e-3"];
}

/// All rows of the table for attach.
pub(super) fn rows(table: &mut Table, options: &Options, home: &Home, program: &Path, engines: &[Engine]) {
    let wanted = if options.quick { 1 } else { SCENARIOS.len() };
    let usual = |engine: &&Engine| !options.releases.is_empty() || RELEASES.contains(&engine.release.as_str());
    let refusal = kernel::refusal();
    for engine in engines.iter().filter(usual) {
        for (name, change) in &SCENARIOS[..wanted] {
            if let Some(why) = &refusal {
                table.skip(options, engine, name, why);
                continue;
            }
            let mut setting = Setting::new(engine);
            change(&mut setting);
            table.row(options, engine, name, |checks, dir| {
                let outcome = watched(home, program, &setting, dir)?;
                let accuracy = check::exact(&outcome, checks);
                if !setting.receiver.is_empty() {
                    checks.equal("fifty frames waited at once", &true, &(accuracy.backlog >= 50));
                    gap_is_at_the_receiver(&outcome, checks);
                }
                Ok(format!("{accuracy}; {}", summary(&outcome)))
            });
        }
    }
    let Some(engine) = engines.last().filter(|_| !options.quick) else {
        return;
    };
    for engine in engines.iter().filter(usual) {
        let name = "attach, no wakeups";
        match &refusal {
            Some(why) => table.skip(options, engine, name, why),
            None => table.row(options, engine, name, |checks, dir| {
                without_wakeups(home, program, engine, dir, checks)
            }),
        }
    }
    table.needs(Needs::Core);
    score::rows(table, options, home, program, engines);
    for engine in engines.iter().filter(usual) {
        let name = "attach, against none";
        match &refusal {
            Some(why) => table.skip(options, engine, name, why),
            None => table.row(options, engine, name, |checks, dir| {
                unchanged::run(home, program, engine, dir, checks)
            }),
        }
    }
    table.needs(Needs::Machine);
    let name = "attach, following three lives";
    match &refusal {
        Some(why) => table.skip(options, engine, name, why),
        None => table.row(options, engine, name, |checks, dir| {
            follow::run(home, program, engine, dir, checks)
        }),
    }
    let name = "attach, killed";
    match &refusal {
        Some(why) => table.skip(options, engine, name, why),
        None => table.row(options, engine, name, |checks, dir| {
            killed(home, program, engine, dir, checks)
        }),
    }
}

/// Checks that the report attributes long first-token gaps to the busy receiver's hop and to no other.
fn gap_is_at_the_receiver(outcome: &Outcome, checks: &mut Checks) {
    let report = outcome
        .report
        .as_ref()
        .map_or(&Value::Null, |report| &report["findings"]);
    let mut findings = report.as_array().into_iter().flatten();
    if let Some(gap) = findings.find(|finding| finding["kind"] == "first-token-gap") {
        let sender = if outcome.detokenizer.is_some() {
            "detokenizer"
        } else {
            "scheduler"
        };
        let hop = format!("{sender}->tokenizer");
        checks.equal("the hop that first tokens wait on", &Some(&*hop), &gap["hop"].as_str());
    }
}

/// One run: starts the engine, then attach, then the load.
pub(super) fn watched(home: &Home, program: &Path, setting: &Setting, dir: &Path) -> Result<Outcome> {
    let mut session = Session::start(home, setting, &Relay::Absent, dir)?;
    let watch = Watch::start(program, session.tokenizer_pid(), dir)?;
    session.go()?;
    let mut outcome = session.finish()?;
    outcome.report = Some(watch.report()?);
    Ok(outcome)
}

/// `--no-wakeups`: all values are present except those derived from wakeups, which must be null.
fn without_wakeups(home: &Home, program: &Path, engine: &Engine, dir: &Path, checks: &mut Checks) -> Result<String> {
    let mut setting = Setting::new(engine);
    slow(&mut setting);
    let mut session = Session::start(home, &setting, &Relay::Absent, dir)?;
    let watch = Watch::start_with(program, session.tokenizer_pid(), dir, &["--no-wakeups"])?;
    session.go()?;
    let mut outcome = session.finish()?;
    let report = watch.report()?;
    for field in [
        "/chunks/dropped_predicted",
        "/hops/0/wakeup_frames_max",
        "/hops/0/wakeup_frames",
    ] {
        checks.equal(field, &Some(&Value::Null), &report.pointer(field));
    }
    let degraded = report["self"]["degraded"].to_string();
    checks.equal("it says why", &true, &degraded.contains("(--no-wakeups)"));
    outcome.report = Some(report);
    let accuracy = check::exact(&outcome, checks);
    Ok(format!("{accuracy}; {}", summary(&outcome)))
}

/// SIGKILL of tokengap during a run: the engine continues, and the kernel frees all of tokengap's objects.
fn killed(home: &Home, program: &Path, engine: &Engine, dir: &Path, checks: &mut Checks) -> Result<String> {
    let setting = Setting {
        plan: Plan {
            requests: 8,
            rounds: 20,
            ..Plan::PLAIN
        },
        ..Setting::new(engine)
    };
    let mut session = Session::start(home, &setting, &Relay::Absent, dir)?;
    let watch = Watch::start(program, session.tokenizer_pid(), dir)?;
    session.go()?;
    thread::sleep(Duration::from_secs(1));
    let ours = kernel::Objects::of(watch.pid())?;
    ensure!(
        ours.count() > 0,
        "attach holds no program, link or map that could stay behind"
    );
    checks.equal(
        "of its programs, links and maps, in the kernel while it runs",
        &ours,
        &ours.present(),
    );
    watch.kill()?;
    let left = ours.gone_within(Duration::from_secs(10));
    checks.equal(
        "programs, links and maps left behind",
        &kernel::Objects::default(),
        &left,
    );
    let outcome = session.finish()?;
    same_bytes(&outcome, checks);
    let expected = u64::from(setting.plan.requests * setting.plan.rounds);
    checks.equal(
        "clients with a finish",
        &expected,
        &outcome.receiver.totals.given.finished,
    );
    Ok(format!("{ours} gone; {}", summary(&outcome)))
}
