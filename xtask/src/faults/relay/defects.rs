//! Injected internal defects (`trace::fault`): a panic in any part of the analysis disables the analysis, and relaying continues without
//! loss.

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;

use super::super::tap::{degraded, lost, seen};
use super::{Around, Bench, Checks, Line, Load, Seen, Transport};

const LOAD: Load = Load {
    sizes: "small",
    ..Load::STEADY
};

/// Makes one part panic during a run: relaying continues, and the report names the disabled part with `word`.
pub(super) fn panics(bench: &Bench, fault: &str, word: &str, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let around = Around {
        options: vec!["--record".into(), "run.tgap".into()],
        ..Around::fault(fault)
    };
    let line = Line::start(bench, Transport::Ipc, &[LOAD], &around, dir)?;
    thread::sleep(Duration::from_secs(3));
    let ran = line.end()?;
    ran.arrived.exactly(checks);
    let said = degraded(&ran.report);
    let told = said.iter().find(|said| said.starts_with(word));
    checks.equal(&format!("the report says so: {said:?}"), &true, &told.is_some());
    if word != "analysis:" {
        let all = seen(&ran.report) + lost(&ran.report);
        checks.equal("the analysis goes on", &ran.arrived.messages(), &all);
    }
    Ok(ran.told(told.map_or_else(String::new, |told| format!("says \"{told}\""))))
}

/// Shifts the wall clock during a recording: only its clock anchors change.
pub(super) fn clock(bench: &Bench, dir: &Path, checks: &mut Checks) -> Result<Seen> {
    let around = Around {
        options: vec!["--record".into(), "run.tgap".into()],
        ..Around::fault("clock=jump")
    };
    let line = Line::start(bench, Transport::Tcp, &[LOAD], &around, dir)?;
    thread::sleep(Duration::from_secs(3));
    let ran = line.end()?;
    ran.exact(checks);
    let replayed = bench.report(&dir.join("run.tgap"))?;
    for part in ["requests", "tokens", "chunks", "hops", "gap_ns", "findings"] {
        checks.equal(&format!("the replay's {part}"), &ran.report[part], &replayed[part]);
    }
    let length = |report: &Value| -> Option<u64> {
        let window = &report["window_ns"];
        Some(window[1].as_u64()? - window[0].as_u64()?)
    };
    checks.equal(
        "no jump in the run's own time",
        &true,
        &length(&ran.report).is_some_and(|length| length < 60_000_000_000),
    );
    Ok(ran.told("replay and live report are the same"))
}
