//! Attach on an engine that answers over HTTP: what it says was delivered and lost must be what the clients, processes of their
//! own, were given and not given.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::json;

use super::super::check::Checks;
use super::super::plan::{Engine, Plan};
use super::super::session::{Outcome, Setting};
use super::super::setup::Home;
use super::super::{Options, Table, summary};
use super::{RELEASES, Scenario, check, kernel, score, watched};

/// What is run with each release.
const SCENARIOS: [Scenario; 6] = [
    ("egress", |_| {}),
    ("egress, backlog", backlog),
    ("egress, asyncio, backlog", |setting| {
        backlog(setting);
        setting.receiver = &["--loop", "asyncio"];
    }),
    ("egress, cumulative, backlog", |setting| {
        backlog(setting);
        setting.receiver = &["--cumulative"];
    }),
    ("egress, detokenizer", |setting| setting.detokenizer = true),
    ("egress, detokenizer, backlog", |setting| {
        backlog(setting);
        setting.detokenizer = true;
    }),
];

/// All frames wait before the tokenizer takes the first.
pub(in super::super) fn backlog(setting: &mut Setting) {
    setting.plan = Plan {
        tokens: 200,
        ..Plan::PLAIN
    };
    setting.gap_ms = 0;
    setting.backlog = true;
}

/// The rows of the table that are about deliveries.
pub(super) fn rows(table: &mut Table, options: &Options, home: &Home, program: &Path, engines: &[Engine]) {
    let usual = |engine: &&Engine| !options.releases.is_empty() || RELEASES.contains(&engine.release.as_str());
    let refusal = kernel::refusal();
    for engine in engines.iter().filter(usual) {
        for (name, change) in &SCENARIOS {
            if let Some(why) = &refusal {
                table.skip(options, engine, name, why);
                continue;
            }
            let mut setting = Setting::new(engine);
            setting.http = true;
            change(&mut setting);
            table.row(options, engine, name, |checks, dir| {
                let outcome = watched(home, program, &setting, dir)?;
                check::exact(&outcome, checks);
                delivered(&outcome, checks);
                score::confirmed(&outcome, checks);
                Ok(summary(&outcome))
            });
        }
    }
}

/// The report against each client's own count.
fn delivered(outcome: &Outcome, checks: &mut Checks) {
    let (Some(report), Some(totals)) = (&outcome.report, &outcome.clients) else {
        return;
    };
    checks.equal("clients without ids", &0, &totals.clients_without_ids);
    let given: u64 = outcome.each_client.iter().map(|client| client.tokens).sum();
    checks.report_says(report, "/tokens/delivered", given);
    checks.report_says(report, "/chunks/tokens_lost", totals.lost);
    checks.report_says(report, "/chunks/unjudged", 0);
    checks.report_says(report, "/chunks/outstanding", 0);
    checks.equal("degraded", &json!([]), &report["self"]["degraded"]);
    let lost: BTreeMap<&str, u64> = outcome
        .each_client
        .iter()
        .filter_map(|client| Some((client.rid.as_str(), client.lost.filter(|&lost| lost > 0)?)))
        .collect();
    let said: BTreeMap<&str, u64> = report["slowest"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|line| {
            Some((
                line["rid"].as_str()?,
                line["tokens_lost"].as_u64().filter(|&lost| lost > 0)?,
            ))
        })
        .collect();
    checks.equal("requests that lost tokens, and how many", &lost, &said);
    let finding = report["findings"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|finding| finding["kind"] == "dropped-chunks");
    let told = finding.map_or((0, 0), |finding| {
        let of = |name: &str| finding["evidence"][name].as_u64().unwrap_or(0);
        (of("requests"), of("tokens_lost"))
    });
    checks.equal(
        "the finding's requests and tokens",
        &(totals.clients_with_loss, totals.lost),
        &told,
    );
}
