//! The `OpenAI` endpoints, served by the engine's own serving classes: text only, and a token count at the end on request.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::super::check::{Checks, same_bytes};
use super::super::plan::{Engine, Plan};
use super::super::session::Setting;
use super::super::setup::Home;
use super::super::summary;
use super::Way;
use super::check::finding;

/// Half of the clients use `/v1/completions`, the other half `/v1/chat/completions`.
const REQUESTS: u32 = 16;

/// Runs with all frames queued before the tokenizer receives the first. A release that keeps only the last chunk sends cumulative text, so
/// nothing is lost.
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
            requests: REQUESTS,
            ..Plan::PLAIN
        },
        gap_ms: 0,
        backlog: true,
        detokenizer: true,
        http: true,
        receiver: &["--openai"],
        clients: &["--openai"],
        ..Setting::new(engine)
    };
    let outcome = way.watch(home, program, &setting, dir)?;
    same_bytes(&outcome, checks);
    let report = outcome.report.as_ref().context("no report was made")?;
    checks.report_says(report, "/answers/seen", REQUESTS.into());
    checks.report_says(report, "/answers/uncounted", REQUESTS.into());
    checks.report_says(report, "/answers/client_left", 0);
    checks.report_says(report, "/answers/server_left", 0);
    for pointer in ["/tokens/delivered", "/chunks/dropped_confirmed", "/chunks/tokens_lost"] {
        checks.equal(pointer, &Some(&Value::Null), &report.pointer(pointer));
    }
    checks.equal("the finding of confirmed loss", &(0, 0), &finding(report));
    let said = report["self"]["degraded"].to_string();
    checks.equal(
        "that they cannot be counted is said",
        &true,
        &said.contains(&format!("{REQUESTS} answers carried text without token ids")),
    );
    // Words equal tokens here, so the clients can count them: nothing was lost.
    let clients = outcome.clients.as_ref().context("no clients")?;
    let tokens = u64::from(setting.plan.requests * setting.plan.tokens);
    checks.equal("tokens in the clients' text", &tokens, &clients.ids);
    checks.equal("tokens that usage claims", &tokens, &clients.completion_tokens);
    Ok(summary(&outcome))
}
