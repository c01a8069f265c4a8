//! Expected report of Dynamo's streams.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::super::check::{Checks, SLOW, verdicts};
use super::super::truth::Client;
use super::at;
use super::bench::Outcome;

/// Received tokens, and tokens counted in the last chunk, by stream.
type Streams = BTreeMap<String, (Option<u64>, Option<u64>)>;

/// Checks streams that match no frames: each must equal what its client received, under the client's own id.
pub(super) fn apart(outcome: &Outcome, checks: &mut Checks) {
    frames(outcome, checks);
    checks.equal(
        "streams, what came and what they claim",
        &given(outcome),
        &said(outcome),
    );
    let (tokens, lost) = (ids(&outcome.clients), lost(outcome));
    let report = &outcome.report;
    checks.report_says(report, "/answers/seen", outcome.clients.len() as u64);
    checks.report_says(report, "/answers/apart", outcome.clients.len() as u64);
    checks.report_says(report, "/answers/apart_tokens", tokens);
    checks.report_says(report, "/answers/apart_tokens_lost", lost);
    for count in ["client_left", "server_left", "uncounted"] {
        checks.report_says(report, &format!("/answers/{count}"), 0);
    }
    checks.equal(
        "tokens.delivered, by request",
        &Value::Null,
        at(report, "/tokens/delivered"),
    );
}

/// Checks that every stream was matched to an SGLang request by its content.
pub(super) fn named_by_content(outcome: &Outcome, checks: &mut Checks) {
    let rids: BTreeSet<&str> = outcome.clients.iter().map(|client| client.rid.as_str()).collect();
    let named: BTreeSet<&str> = outcome.answers.iter().filter_map(|line| line["rid"].as_str()).collect();
    checks.equal("SGLang's ids of all streams", &rids, &named);
    let joined = rids.len() as u64;
    checks.report_says(&outcome.report, "/source/wire/joined_by_content/joined", joined);
    let pairs = at(&outcome.report, "/source/wire/joined_by_content/latest").as_array();
    let uuid = |pair: &&Value| {
        pair["context"].as_str().map(|id| id.replace('-', "")) == pair["rid"].as_str().map(str::to_owned)
    };
    let right = pairs.map(|pairs| pairs.iter().filter(uuid).count() as u64);
    checks.equal("pairs of ids that belong together", &Some(joined), &right);
}

/// Checks that the reader's pause is reported as held-up responses.
pub(super) fn held_up(outcome: &Outcome, checks: &mut Checks) {
    let held = at(&outcome.report, "/answers/held_up").as_u64();
    checks.equal(
        "streams whose socket took less than it was given",
        &true,
        &held.is_some_and(|n| n > 0),
    );
}

/// Checks streams matched to frames by SGLang's request id.
pub(super) fn joined(outcome: &Outcome, checks: &mut Checks) {
    frames(outcome, checks);
    let (tokens, lost) = (ids(&outcome.clients), lost(outcome));
    let report = &outcome.report;
    checks.report_says(report, "/tokens/delivered", tokens);
    checks.report_says(report, "/chunks/tokens_lost", lost);
    checks.report_says(report, "/chunks/outstanding", 0);
    checks.report_says(report, "/answers/seen", outcome.clients.len() as u64);
    checks.report_says(report, "/answers/apart", 0);
    let lossy = |lost: Option<u64>| lost.filter(|lost| *lost > 0);
    let expected: BTreeMap<&str, u64> = outcome
        .worker
        .clients
        .iter()
        .filter_map(|client| Some((client.rid.as_str(), lossy(client.lost)?)))
        .collect();
    let said: BTreeMap<&str, u64> = report["slowest"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|line| Some((line["rid"].as_str()?, lossy(line["tokens_lost"].as_u64())?)))
        .collect();
    checks.equal("requests that lost tokens, and how many", &expected, &said);
    quiet_but_for(outcome, &["dropped-chunks"], checks);
    checks.equal("degraded", &json!([]), at(report, "/self/degraded"));
}

/// Checks that streams ended early by the client or the worker are not reported as losses.
pub(super) fn accidents(outcome: &Outcome, who: &str, checks: &mut Checks) {
    let report = &outcome.report;
    checks.report_says(report, "/answers/seen", outcome.clients.len() as u64);
    checks.report_says(report, &format!("/answers/{who}"), outcome.clients.len() as u64);
    checks.report_says(report, "/answers/apart_tokens_lost", 0);
    checks.report_says(report, "/self/events_missed", 0);
    quiet_but_for(outcome, &[], checks);
}

/// Checks that unreadable streams are reported as such.
pub(super) fn hidden(outcome: &Outcome, why: &str, checks: &mut Checks) {
    frames(outcome, checks);
    let report = &outcome.report;
    checks.equal("tokens.delivered", &Value::Null, at(report, "/tokens/delivered"));
    checks.equal("answers", &Value::Null, at(report, "/answers"));
    let degraded = report["self"]["degraded"].as_array().into_iter().flatten();
    let told = degraded.filter_map(Value::as_str).any(|line| line.contains(why));
    checks.equal(&format!("it says: {why}"), &true, &told);
    quiet_but_for(outcome, &[], checks);
}

/// Checks that only these kinds of warnings of lost tokens appear, and that at least one does.
pub(super) fn quiet_but_for(outcome: &Outcome, kinds: &[&str], checks: &mut Checks) {
    let lost = if kinds.is_empty() { 0 } else { lost(outcome) };
    verdicts(&outcome.report, lost, &SLOW, checks);
    if !kinds.is_empty() {
        let mut findings = outcome.report["findings"].as_array().into_iter().flatten();
        let told = findings.any(|finding| kinds.iter().any(|kind| finding["kind"] == *kind));
        checks.equal("a finding of the loss", &(lost > 0), &told);
        checks.equal("something was lost, so that this shows anything", &true, &(lost > 0));
    }
}

/// Checks the counts of frames.
fn frames(outcome: &Outcome, checks: &mut Checks) {
    let (report, output) = (&outcome.report, &outcome.sender.output);
    checks.report_says(report, "/requests/finished", output.finishes);
    checks.report_says(report, "/tokens/sent", output.tokens);
    checks.report_says(report, "/tokens/taken", output.tokens);
    checks.report_says(report, "/chunks/taken", output.chunks);
    checks.report_says(report, "/self/events_missed", 0);
    if outcome.clients.iter().all(|client| client.finish.is_some()) {
        let handed = outcome.worker.totals.given.ids;
        checks.equal("tokens at both ends of Dynamo", &handed, &ids(&outcome.clients));
    }
}

fn ids(clients: &[Client]) -> u64 {
    clients.iter().map(|client| client.ids).sum()
}

/// Tokens that the tokenizer's waiters did not receive. A frontend's clients cannot measure this: the frontend counts only what it
/// received.
fn lost(outcome: &Outcome) -> u64 {
    outcome.worker.totals.given.lost
}

fn given(outcome: &Outcome) -> Streams {
    let of = |clients: &[Client], what: fn(&Client) -> Option<u64>| -> BTreeMap<String, Option<u64>> {
        clients
            .iter()
            .map(|client| (client.rid.clone(), what(client)))
            .collect()
    };
    let claimed = of(&outcome.worker.clients, |client| client.completion_tokens);
    let came = of(&outcome.clients, |client| Some(client.ids));
    let streams = came.into_iter();
    streams
        .map(|(rid, came)| {
            let claimed = claimed.get(&rid).copied().flatten();
            (rid, (came, claimed))
        })
        .collect()
}

fn said(outcome: &Outcome) -> Streams {
    let one = |line: &Value| {
        // The clients' context ids are their request ids, written as UUIDs.
        let rid = line["rid"].as_str().unwrap_or_default().replace('-', "");
        (rid, (line["tokens"].as_u64(), line["completion_tokens"].as_u64()))
    };
    outcome.answers.iter().map(one).collect()
}
