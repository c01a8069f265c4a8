//! The four verdicts on a consumer's CPU, each on a real tokenizer that is late for exactly that reason. The right verdict must appear, and
//! the other three must not.
//!
//! Other load on the machine must not change a verdict, so the scenarios set scheduling priorities explicitly.

mod pressure;

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use super::Options;
use super::attach::kernel;
use super::attach::watch::Watch;
use super::check::{Checks, same_bytes};
use super::plan::{Engine, Plan};
use super::session::{Session, Setting};
use super::setup::Home;
use super::table::Table;
use super::tap::Relay;
use pressure::{Neighbours, Quota, after_all, before_all, cpus, pin, threads};

/// Observation time while the tokenizer is late.
const LATE: Duration = Duration::from_secs(5);
/// Time after which the probe has noticed that the tokenizer moved to another cgroup.
const NOTICED: Duration = Duration::from_millis(1_500);
const VERDICTS: [&str; 4] = [
    "consumer-cpu-bound",
    "consumer-throttled",
    "consumer-starved",
    "io-thread-starved",
];

/// Condition that keeps a tokenizer late, until dropped.
#[derive(Default)]
struct Pressure {
    _neighbours: Option<Neighbours>,
    _quota: Option<Quota>,
}

/// A verdict, and the condition that causes it.
struct Case {
    verdict: &'static str,
    /// Expected dominant state of the thread's time.
    thread: &'static str,
    /// The tokenizer's clients need CPU for every output.
    busy: bool,
    press: fn(u32) -> Result<Pressure>,
    /// Further checks of the evidence.
    holds: fn(&Value, &mut Checks),
}

const CASES: [Case; 4] = [
    Case {
        verdict: VERDICTS[0],
        thread: "cpu-bound",
        busy: true,
        press: |pid| {
            threads(pid)?.into_keys().try_for_each(before_all)?;
            Ok(Pressure::default())
        },
        holds: |report, checks| {
            let evidence = evidence(report, VERDICTS[0]);
            let recv_wait = evidence["recv_wait_p50_ns"].as_u64();
            checks.equal(
                "the wait for a frame is tiny",
                &true,
                &recv_wait.is_some_and(|ns| ns < 5_000_000),
            );
            let asleep = evidence["blocked"].as_f64();
            checks.equal(
                "it hardly sleeps: not I/O",
                &true,
                &asleep.is_some_and(|share| share < 0.1),
            );
            checks.equal(
                "the kernel holds nothing",
                &Some(0),
                &evidence["kernel_bytes_max"].as_u64(),
            );
            profile(report, checks);
        },
    },
    Case {
        verdict: VERDICTS[1],
        thread: "throttled",
        busy: true,
        press: |pid| {
            Ok(Pressure {
                _quota: Some(Quota::on(pid)?),
                ..Pressure::default()
            })
        },
        holds: |_, _| {},
    },
    Case {
        verdict: VERDICTS[2],
        thread: "starved",
        busy: true,
        press: |pid| {
            let (_, cpu) = cpus()?;
            for tid in threads(pid)?.into_keys() {
                pin(tid, cpu)?;
            }
            Ok(Pressure {
                _neighbours: Some(Neighbours::on(cpu, 4)?),
                ..Pressure::default()
            })
        },
        holds: |_, _| {},
    },
    Case {
        verdict: VERDICTS[3],
        thread: "asleep",
        busy: false,
        press: |pid| {
            let (consumer, io) = cpus()?;
            for (tid, name) in threads(pid)? {
                let moves_bytes = name.starts_with("ZMQbg/IO");
                if moves_bytes {
                    pin(tid, io)?;
                    after_all(tid)?;
                } else {
                    pin(tid, consumer)?;
                    before_all(tid)?;
                }
            }
            // A low-priority thread waits longer for its share, the more neighbours it has.
            Ok(Pressure {
                _neighbours: Some(Neighbours::on(io, 16)?),
                ..Pressure::default()
            })
        },
        holds: |_, _| {},
    },
];

/// All rows of the table for these verdicts.
pub(super) fn rows(table: &mut Table, options: &Options, home: &Home, program: &Path, engines: &[Engine]) {
    let usual = |engine: &&Engine| engine.release == "0.5.9";
    let Some(engine) = engines
        .iter()
        .find(usual)
        .or(engines.first())
        .filter(|_| !options.quick)
    else {
        return;
    };
    for case in &CASES {
        let refusal = kernel::refusal().or_else(|| match case.verdict {
            "consumer-throttled" => Quota::refusal(),
            "io-thread-starved" if cpus().is_ok_and(|(first, last)| first == last) => Some("needs two CPUs".into()),
            _ => None,
        });
        match refusal {
            Some(why) => table.skip(options, engine, case.verdict, &why),
            None => table.row(options, engine, case.verdict, |checks, dir| {
                run(home, program, engine, case, dir, checks)
            }),
        }
    }
}

fn run(home: &Home, program: &Path, engine: &Engine, case: &Case, dir: &Path, checks: &mut Checks) -> Result<String> {
    // For busy cases, more work than a tokenizer with its own CPU can process in time; otherwise work for the whole time.
    let busy = Setting {
        plan: Plan {
            requests: 32,
            tokens: 200,
            ..Plan::PLAIN
        },
        gap_ms: 10,
        receiver: &["--busy", "2e-3"],
        ..Setting::new(engine)
    };
    let idle = Setting {
        plan: Plan {
            requests: 8,
            tokens: 800,
            ..Plan::PLAIN
        },
        gap_ms: 10,
        ..Setting::new(engine)
    };
    let setting = if case.busy { busy } else { idle };
    let mut session = Session::start(home, &setting, &Relay::Absent, dir)?;
    let pid = session.tokenizer_pid();
    let watch = Watch::start_with(program, pid, dir, &["--python-stacks", "100"])?;
    let pressure = (case.press)(pid).with_context(|| format!("making the tokenizer late for {}", case.verdict))?;
    thread::sleep(NOTICED);
    session.go()?;
    thread::sleep(LATE);
    // The report covers only the late period; drain afterwards.
    let report = watch.report()?;
    drop(pressure);
    let outcome = session.finish()?;
    same_bytes(&outcome, checks);
    checks.equal(
        "clients with a finish",
        &u64::from(setting.plan.requests),
        &outcome.receiver.totals.given.finished,
    );
    let said: Vec<&str> = VERDICTS
        .into_iter()
        .filter(|kind| finding(&report, kind).is_some())
        .collect();
    checks.equal("verdicts on the tokenizer's CPU", &vec![case.verdict], &said);
    for kind in &said {
        if *kind != case.verdict {
            checks.equal(&format!("{kind} says nothing"), &"", &summary_of(&report, kind));
        }
    }
    let hop = finding(&report, case.verdict).map(|f| &f["hop"]);
    checks.equal("on the hop", &Some(&Value::from("scheduler->tokenizer")), &hop);
    let mut legs = report["path"].as_array().into_iter().flatten();
    let leg = legs.find(|leg| leg["kind"] == "wait").unwrap_or(&Value::Null);
    checks.equal(
        "the thread's state on that hop",
        &Value::from(case.thread),
        &leg["thread"],
    );
    if let Some(gap) = finding(&report, "first-token-gap") {
        checks.equal(
            "the wait is attributed to the hop",
            &"scheduler->tokenizer",
            &gap["hop"].as_str().unwrap_or_default(),
        );
        checks.equal(
            "and to the thread",
            &leg["thread"],
            &gap["evidence"]["bottleneck_thread"],
        );
    }
    (case.holds)(&report, checks);
    Ok(summary_of(&report, case.verdict).to_owned())
}

/// Checks that the tokenizer's profile names the known slow function first, both for the whole run and while frames queued up.
fn profile(report: &Value, checks: &mut Checks) {
    let lines = report["hot"].as_array().into_iter().flatten();
    let tokenizer = lines.into_iter().find(|line| line["role"] == "tokenizer");
    let function = tokenizer.map_or(&Value::Null, |line| &line["functions"][0]);
    let name = function["function"].as_str().unwrap_or_default();
    checks.equal(
        "the hottest function",
        &"pause",
        &name.rsplit('.').next().unwrap_or_default(),
    );
    for when in ["all", "growing"] {
        let own = function[when]["own"].as_f64();
        checks.equal(
            &format!("half of the stacks end in it ({when})"),
            &true,
            &own.is_some_and(|own| own > 0.5),
        );
    }
    let listed = |wanted: &str| {
        let functions = tokenizer
            .and_then(|line| line["functions"].as_array())
            .into_iter()
            .flatten();
        functions
            .filter_map(|f| f["function"].as_str())
            .any(|name| name.ends_with(wanted))
    };
    checks.equal("its caller is listed", &true, &listed("consume"));
}

fn finding<'r>(report: &'r Value, kind: &str) -> Option<&'r Value> {
    report["findings"]
        .as_array()?
        .iter()
        .find(|finding| finding["kind"] == kind)
}

fn evidence<'r>(report: &'r Value, kind: &str) -> &'r Value {
    finding(report, kind).map_or(&Value::Null, |finding| &finding["evidence"])
}

fn summary_of<'r>(report: &'r Value, kind: &str) -> &'r str {
    finding(report, kind)
        .and_then(|finding| finding["summary"].as_str())
        .unwrap_or_default()
}
