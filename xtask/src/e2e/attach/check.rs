//! Checks of attach's report against the engine's timestamps.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

use super::super::check::{Checks, SLOW, release_is_right, same_bytes, verdicts};
use super::super::session::Outcome;
use super::super::truth::Counts;
use super::backlog::crossings;
use super::expected::{Between, expected};

/// Tolerance of a gap in nanoseconds: the engine's process can be descheduled between the call and the timestamp.
const NEAR: u64 = 1_000_000;
/// Maximum number of differing requests named in a failure.
const NAMED: usize = 5;

/// Accuracy of the report relative to the timestamps.
#[derive(Debug, Default)]
pub(in super::super) struct Accuracy {
    requests: usize,
    worst_gap_ns: u64,
    worst_off_ns: u64,
    /// Peak backlog in the report, and whether the timestamps allow only that value.
    pub(super) backlog: u64,
    backlog_exact: bool,
}

impl fmt::Display for Accuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = |ns: u64| ns as f64 / 1e6;
        write!(
            f,
            "{} gaps up to {:.0} ms, each within {:.3} ms; backlog {}{}",
            self.requests,
            millis(self.worst_gap_ns),
            millis(self.worst_off_ns),
            self.backlog,
            if self.backlog_exact { "" } else { " (stamps overlap)" }
        )
    }
}

/// Checks a run that was observed from its start to its end.
pub(in super::super) fn exact(outcome: &Outcome, checks: &mut Checks) -> Accuracy {
    same_bytes(outcome, checks);
    let mut accuracy = Accuracy::default();
    let Some(report) = &outcome.report else {
        return accuracy;
    };
    totals(outcome, report, checks);
    hops(outcome, report, checks, &mut accuracy);
    requests(outcome, report, checks, &mut accuracy);
    release_is_right(outcome, report, checks);
    // Every hop has one receiver here, however many sockets the scheduler has.
    let findings = report["findings"].as_array().into_iter().flatten();
    let uneven = findings.filter(|finding| finding["kind"] == "worker-imbalance");
    checks.equal("uneven workers where there is one", &0, &uneven.count());
    verdicts(report, outcome.lost(), &SLOW, checks);
    accuracy
}

fn totals(outcome: &Outcome, report: &Value, checks: &mut Checks) {
    let output: Counts = outcome.senders.iter().map(|sender| sender.totals.output).sum();
    let control: Counts = outcome.senders.iter().map(|sender| sender.totals.control).sum();
    let to_tokenizer = outcome.detokenizer.as_ref().map_or(output, |d| d.totals.output);
    checks.report_says(report, "/requests/seen", output.requests + control.abort_messages);
    checks.report_says(report, "/requests/finished", output.finishes);
    checks.report_says(report, "/requests/aborted", output.aborts + control.abort_messages);
    checks.report_says(report, "/requests/live", 0);
    checks.report_says(report, "/tokens/sent", output.tokens);
    checks.report_says(report, "/tokens/taken", output.tokens);
    checks.report_says(report, "/chunks/sent", output.chunks);
    checks.report_says(report, "/chunks/taken", to_tokenizer.chunks);
    checks.report_says(report, "/self/events_missed", 0);
    checks.report_says(report, "/self/frames_undecoded", 0);
    checks.report_says(report, "/self/frames_unannounced", 0);
}

fn hops(outcome: &Outcome, report: &Value, checks: &mut Checks, accuracy: &mut Accuracy) {
    let crossings = crossings(outcome);
    let lines: BTreeMap<&str, &Value> = report["hops"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|hop| Some((hop["name"].as_str()?, hop)))
        .collect();
    let names: (Vec<_>, Vec<_>) = (crossings.keys().copied().collect(), lines.keys().copied().collect());
    checks.equal("hops", &names.0, &names.1);
    accuracy.backlog_exact = true;
    for (name, crossing) in &crossings {
        let Some(line) = lines.get(name) else { continue };
        let (sent, taken) = crossing.frames();
        for (field, expected) in [("frames_sent", sent), ("frames_taken", taken), ("backlog_frames", 0)] {
            checks.equal(&format!("hop {name} {field}"), &json!(expected), &line[field]);
        }
        let bounds = crossing.highest();
        let said = line["backlog_max_frames"].as_u64();
        if !said.is_some_and(|said| bounds.contains(said)) {
            checks.equal(&format!("hop {name} backlog_max_frames"), &Some(bounds.0), &said);
        }
        accuracy.backlog = accuracy.backlog.max(said.unwrap_or(0));
        accuracy.backlog_exact &= bounds.width() == 0;
    }
}

fn requests(outcome: &Outcome, report: &Value, checks: &mut Checks, accuracy: &mut Accuracy) {
    let expected = expected(outcome);
    let start = report["window_mono_ns"][0].as_u64().unwrap_or(0);
    let lines: BTreeMap<&str, &Value> = report["slowest"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|line| Some((line["rid"].as_str()?, line)))
        .collect();
    let mut wrong: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (rid, truth) in &expected {
        let Some(line) = lines.get(rid) else {
            wrong.entry("is not listed").or_default().push((*rid).to_owned());
            continue;
        };
        let mut must = |what, good: bool, said: String| {
            if !good {
                wrong.entry(what).or_default().push(format!("{rid}: {said}"));
            }
        };
        let at = |field: &str| line[field].as_u64().map(|ns| ns + start);
        let (sent, taken, gap) = (at("first_sent_ns"), at("first_taken_ns"), line["gap_ns"].as_u64());
        must(
            "first send lies outside its stamps",
            sent.is_some_and(|ns| truth.first_sent.contains(ns)),
            format!("{sent:?}, not in {:?}", truth.first_sent),
        );
        must(
            "first take lies outside its stamps",
            matches!((taken, truth.first_taken), (Some(ns), Some(stamps)) if stamps.contains(ns)),
            format!("{taken:?}, not in {:?}", truth.first_taken),
        );
        let off = gap.zip(truth.gap_ns()).map(|(said, true_ns)| said.abs_diff(true_ns));
        // Widen the tolerance where the engine's own timestamps are further apart.
        let known_to = truth.first_sent.width() + truth.first_taken.map_or(0, Between::width);
        must(
            "gap is not what the stamps say",
            off.is_some_and(|off| off <= NEAR.max(known_to)),
            format!("{gap:?}, not {:?}", truth.gap_ns()),
        );
        let counts = json!([truth.chunks, truth.tokens, truth.tokens, truth.finish]);
        let said = json!([
            line["chunks_sent"],
            line["tokens_sent"],
            line["tokens_taken"],
            line["finish"]
        ]);
        must(
            "chunks, tokens sent and taken, finish differ",
            counts == said,
            format!("{said}, not {counts}"),
        );
        accuracy.worst_gap_ns = accuracy.worst_gap_ns.max(truth.gap_ns().unwrap_or(0));
        accuracy.worst_off_ns = accuracy.worst_off_ns.max(off.unwrap_or(0));
    }
    accuracy.requests = expected.len();
    checks.made += 4 * expected.len() as u32;
    for (what, mut which) in wrong {
        let count = which.len();
        which.truncate(NAMED);
        checks.equal(
            &format!("of {} requests, those whose {what}", expected.len()),
            &0,
            &count,
        );
        checks.equal(&format!("  among them, {what}"), &Vec::new(), &which);
    }
    checks.report_says(report, "/gap_ns/count", expected.len() as u64);
}
