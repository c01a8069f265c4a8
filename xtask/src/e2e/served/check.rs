//! Checks of reported deliveries against each client's own count.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::check::Checks;
use super::super::session::Outcome;
use super::super::truth::Client;

/// Compares the report with each client's own count.
pub(super) fn delivered(outcome: &Outcome, checks: &mut Checks) {
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
    let lost: BTreeMap<&str, u64> = losses(&outcome.each_client).collect();
    checks.equal(
        "requests that lost tokens, and how many",
        &lost,
        &said_lost(report).collect(),
    );
    checks.equal(
        "the finding's requests and tokens",
        &(totals.clients_with_loss, totals.lost),
        &finding(report),
    );
    let answers = outcome.each_client.len() as u64;
    let left = |who: &str| report["answers"][who].as_u64();
    checks.equal(
        "clients and servers that left",
        &(Some(0), Some(0)),
        &(left("client_left"), left("server_left")),
    );
    // Only some releases reply to requests dropped in the queue.
    let seen = report["answers"]["seen"].as_u64();
    checks.equal(
        "no more answers than clients",
        &true,
        &seen.is_some_and(|seen| 0 < seen && seen <= answers),
    );
}

/// Checks runs whose clients are inside the engine's process: deliveries cannot be observed, so loss is predicted, never confirmed.
pub(super) fn predicted_only(outcome: &Outcome, checks: &mut Checks) {
    let Some(report) = &outcome.report else { return };
    for pointer in [
        "/tokens/delivered",
        "/chunks/delivered",
        "/chunks/dropped_confirmed",
        "/chunks/tokens_lost",
        "/chunks/coalesced",
    ] {
        checks.equal(pointer, &Some(&Value::Null), &report.pointer(pointer));
    }
    checks.equal("answers", &Value::Null, &report["answers"]);
    let confirms = |finding: &&Value| {
        let summary = finding["summary"].as_str().unwrap_or_default();
        finding["kind"] == "short-answers" || summary.contains("never delivered")
    };
    let confirmed: Vec<_> = findings(report).filter(confirms).collect();
    checks.equal("findings that confirm what was not seen", &Vec::new(), &confirmed);
}

/// Clients that lost tokens, with the number lost.
pub(super) fn losses(clients: &[Client]) -> impl Iterator<Item = (&str, u64)> {
    let lost = clients
        .iter()
        .map(|client| (client.rid.as_str(), client.lost.unwrap_or(0)));
    lost.filter(|(_, lost)| *lost > 0)
}

/// The same according to the report.
pub(super) fn said_lost(report: &Value) -> impl Iterator<Item = (&str, u64)> {
    let lines = report["slowest"].as_array().into_iter().flatten();
    let lost = lines.filter_map(|line| Some((line["rid"].as_str()?, line["tokens_lost"].as_u64()?)));
    lost.filter(|(_, lost)| *lost > 0)
}

/// Requests and tokens in the finding of confirmed loss.
pub(super) fn finding(report: &Value) -> (u64, u64) {
    let found = findings(report).find(|finding| finding["kind"] == "dropped-chunks");
    found.map_or((0, 0), |finding| {
        let of = |name: &str| finding["evidence"][name].as_u64().unwrap_or(0);
        (of("requests"), of("tokens_lost"))
    })
}

fn findings(report: &Value) -> impl Iterator<Item = &Value> {
    report["findings"].as_array().into_iter().flatten()
}
