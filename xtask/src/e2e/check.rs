//! What the report must say, given the truth, and where it differs.

use std::collections::HashMap;
use std::fmt;

use serde_json::{Value, json};

use super::session::Outcome;
use super::truth::{Counts, Sent, Taken};

/// One thing that is not as it must be.
#[derive(Debug)]
pub(crate) struct Mismatch {
    what: String,
    expected: String,
    got: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: expected {}, got {}", self.what, self.expected, self.got)
    }
}

/// Collects mismatches.
#[derive(Debug, Default)]
pub(crate) struct Checks {
    /// How many comparisons were made.
    pub(crate) made: u32,
    pub(crate) mismatches: Vec<Mismatch>,
}

impl Checks {
    /// Compares two values.
    pub(crate) fn equal<T: PartialEq + fmt::Debug>(&mut self, what: &str, expected: &T, got: &T) {
        self.made += 1;
        if expected != got {
            let (expected, got) = (format!("{expected:?}"), format!("{got:?}"));
            self.mismatches.push(Mismatch { what: what.into(), expected, got });
        }
    }

    fn report_says(&mut self, report: &Value, pointer: &str, expected: u64) {
        let got = report.pointer(pointer).unwrap_or(&Value::Null);
        self.made += 1;
        if *got != json!(expected) {
            let (expected, got) = (expected.to_string(), got.to_string());
            self.mismatches.push(Mismatch { what: format!("report {pointer}"), expected, got });
        }
    }
}

/// Everything that holds when nothing was killed: every byte arrives, and the report counts exactly what was sent.
pub(crate) fn exact(outcome: &Outcome, checks: &mut Checks) {
    same_bytes(outcome, checks);
    if let Some(report) = &outcome.report {
        report_is_exact(outcome, report, checks);
    }
}

/// What each connection carried equals what the next process took from it, message by message.
fn same_bytes(outcome: &Outcome, checks: &mut Checks) {
    let control = || outcome.senders.iter().map(|sender| on(&sender.sent, "control"));
    let output = || outcome.senders.iter().map(|sender| on(&sender.sent, "output"));
    match &outcome.detokenizer {
        None => arrived("tokenizer", output().chain(control()).collect(), &outcome.receiver.taken, checks),
        Some(detokenizer) => {
            arrived("detokenizer", output().collect(), &detokenizer.taken, checks);
            let to_tokenizer = control().chain([on(&detokenizer.sent, "output")]).collect();
            arrived("tokenizer", to_tokenizer, &outcome.receiver.taken, checks);
        }
    }
}

fn on<'a>(sent: &'a [Sent], socket: &str) -> Vec<&'a str> {
    sent.iter().filter(|message| message.on == socket).map(|message| message.hash.as_str()).collect()
}

/// Every message of every connection arrived once, and those of one connection in their order.
fn arrived(at: &str, connections: Vec<Vec<&str>>, taken: &[Taken], checks: &mut Checks) {
    let mut balance: HashMap<&str, i64> = HashMap::new();
    for hash in connections.iter().flatten() {
        *balance.entry(hash).or_default() += 1;
    }
    for message in taken {
        *balance.entry(&message.hash).or_default() -= 1;
    }
    let missing: i64 = balance.values().filter(|count| **count > 0).sum();
    let strange: i64 = -balance.values().filter(|count| **count < 0).sum::<i64>();
    checks.equal(&format!("messages that never reached the {at}"), &0, &missing);
    checks.equal(&format!("messages at the {at} that nobody sent"), &0, &strange);
    for (number, sent) in connections.iter().enumerate() {
        let mut taken = taken.iter();
        let in_order = sent.iter().all(|hash| taken.any(|message| message.hash == *hash));
        checks.equal(&format!("connection {number} into the {at} kept its order"), &true, &in_order);
    }
}

fn report_is_exact(outcome: &Outcome, report: &Value, checks: &mut Checks) {
    let output: Counts = outcome.senders.iter().map(|sender| sender.totals.output).sum();
    let control: Counts = outcome.senders.iter().map(|sender| sender.totals.control).sum();
    let hops = match &outcome.detokenizer {
        None => vec![("scheduler->tokenizer", output + control)],
        Some(detokenizer) => vec![
            ("scheduler->detokenizer", output),
            ("detokenizer->tokenizer", detokenizer.totals.output + control),
        ],
    };
    let reported = report["hops"].as_array().cloned().unwrap_or_default();
    let names: Vec<_> = reported.iter().filter_map(|hop| hop["name"].as_str()).collect();
    for (name, counts) in &hops {
        match reported.iter().find(|hop| hop["name"] == *name) {
            Some(hop) => {
                for (field, expected) in
                    [("frames_sent", counts.frames), ("chunks", counts.chunks), ("bytes", counts.bytes)]
                {
                    checks.equal(&format!("report hop {name} {field}"), &json!(expected), &hop[field]);
                }
            }
            None => checks.equal("report hops", &hops.iter().map(|hop| hop.0).collect::<Vec<_>>(), &names),
        }
    }
    checks.report_says(report, "/chunks/sent", output.chunks);
    checks.report_says(report, "/tokens/sent", output.tokens);
    checks.report_says(report, "/requests/seen", output.requests + control.abort_messages);
    checks.report_says(report, "/requests/finished", output.finishes);
    checks.report_says(report, "/requests/aborted", output.aborts + control.abort_messages);
    checks.report_says(report, "/self/frames_undecoded", 0);
    checks.report_says(report, "/self/events_lost", 0);
    let alarms: Vec<_> = report["findings"].as_array().into_iter().flatten().filter(|finding| is_alarm(finding)).collect();
    checks.equal("findings of loss on a lossless wire", &Vec::new(), &alarms);
}

/// Findings that a lossless wire must not give.
fn is_alarm(finding: &Value) -> bool {
    let kinds = ["wire-loss", "wire-arithmetic", "dropped-chunks", "undecoded", "own-loss", "limit-reached"];
    finding["kind"].as_str().is_some_and(|kind| kinds.contains(&kind))
}
