//! Clients that disconnect or stop reading: distinguished from losses inside the engine.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};

use super::super::check::{Checks, same_bytes};
use super::super::plan::{Engine, Plan};
use super::super::session::Setting;
use super::super::setup::Home;
use super::super::summary;
use super::Way;
use super::check::{finding, losses, said_lost};

/// Number of clients of each kind: those that close, reset, or stop reading.
const EACH: u64 = 3;

/// Runs the scenario.
pub(super) fn run(
    way: Way,
    home: &Home,
    program: &Path,
    engine: &Engine,
    dir: &Path,
    checks: &mut Checks,
) -> Result<String> {
    let setting = Setting {
        plan: Plan {
            requests: 12,
            tokens: 150,
            ..Plan::PLAIN
        },
        gap_ms: 4,
        http: true,
        clients: &["--closing", "3", "--resetting", "3", "--stuck", "3"],
        ..Setting::new(engine)
    };
    let outcome = way.watch(home, program, &setting, dir)?;
    same_bytes(&outcome, checks);
    let report = outcome.report.as_ref().context("no report was made")?;
    checks.report_says(report, "/answers/client_left", 3 * EACH);
    checks.report_says(report, "/answers/server_left", 0);
    let held_up = report["answers"]["held_up"].as_u64();
    checks.equal(
        "those that stopped reading were noticed",
        &true,
        &held_up.is_some_and(|n| n >= EACH),
    );
    checks.report_says(report, "/self/events_missed", 0);
    checks.report_says(report, "/chunks/unjudged", 0);
    // For clients that stayed, trust their own counts. For those that left, the server knows which chunks it skipped.
    let stayed: Vec<_> = outcome
        .each_client
        .iter()
        .filter(|client| client.left.is_none())
        .cloned()
        .collect();
    checks.equal(
        "clients that stayed",
        &(setting.plan.requests as usize - 9),
        &stayed.len(),
    );
    let skipped: BTreeMap<&str, u64> = losses(&outcome.receiver.clients).collect();
    let said: BTreeMap<&str, u64> = said_lost(report).collect();
    for client in &stayed {
        let (rid, lost) = (client.rid.as_str(), client.lost.unwrap_or(0));
        checks.equal(&format!("lost of {rid}"), &lost, &said.get(rid).copied().unwrap_or(0));
    }
    let unexplained: Vec<_> = said
        .iter()
        .filter(|(rid, lost)| **lost > skipped.get(*rid).copied().unwrap_or(0))
        .collect();
    checks.equal("losses that the engine did not cause", &Vec::new(), &unexplained);
    checks.equal(
        "the finding's requests and tokens",
        &(said.len() as u64, said.values().sum()),
        &finding(report),
    );
    let outstanding = report["chunks"]["outstanding"].as_u64();
    checks.equal(
        "what was not written any more is outstanding",
        &true,
        &outstanding.is_some_and(|n| n > 0),
    );
    Ok(summary(&outcome))
}
