//! Checks of the report against the truth.

use std::collections::HashMap;
use std::fmt;

use serde_json::{Value, json};

use super::session::{HOPS, ONLY_HOP, Outcome};
use super::truth::{Counts, Sent, Taken};

/// A failed comparison.
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
    /// Number of comparisons made.
    pub(crate) made: u32,
    pub(crate) mismatches: Vec<Mismatch>,
}

impl Checks {
    /// Compares two values.
    pub(crate) fn equal<T: PartialEq + fmt::Debug>(&mut self, what: &str, expected: &T, got: &T) {
        self.made += 1;
        if expected != got {
            let (expected, got) = (format!("{expected:?}"), format!("{got:?}"));
            self.mismatches.push(Mismatch {
                what: what.into(),
                expected,
                got,
            });
        }
    }

    /// Compares a number in the report.
    pub(crate) fn report_says(&mut self, report: &Value, pointer: &str, expected: u64) {
        let got = report.pointer(pointer).unwrap_or(&Value::Null);
        self.made += 1;
        if *got != json!(expected) {
            let (expected, got) = (expected.to_string(), got.to_string());
            self.mismatches.push(Mismatch {
                what: format!("report {pointer}"),
                expected,
                got,
            });
        }
    }
}

/// Checks of an undisturbed run: every byte arrives, the report counts exactly what was sent, and it reports no more losses than the
/// clients have.
pub(crate) fn exact(outcome: &Outcome, checks: &mut Checks) {
    arrives_and_adds_up(outcome, checks);
    if let Some(report) = &outcome.report {
        checks.report_says(report, "/self/events_missed", 0);
        verdicts(report, outcome.lost(), &[], checks);
    }
}

/// The same with strangers connected: the tap may report their connections as unreadable, and nothing else.
pub(crate) fn exact_beside_strangers(outcome: &Outcome, strangers: u64, checks: &mut Checks) {
    arrives_and_adds_up(outcome, checks);
    if let Some(report) = &outcome.report {
        let lost = report["self"]["events_missed"].as_u64();
        checks.equal(
            "at most the strangers were not observed",
            &true,
            &lost.is_some_and(|lost| lost <= strangers),
        );
        checks.equal(
            "all of that unframed",
            &lost,
            &report["self"]["missed_by_cause"]["unframed"].as_u64(),
        );
        verdicts(report, outcome.lost(), &["missed-observations"], checks);
    }
}

fn arrives_and_adds_up(outcome: &Outcome, checks: &mut Checks) {
    same_bytes(outcome, checks);
    let finishes: u64 = outcome.senders.iter().map(|sender| sender.totals.output.finishes).sum();
    // Some releases also reply to requests aborted in the queue.
    let given = outcome.receiver.totals.given.finished;
    checks.equal(
        "every client whose request finished was told so",
        &true,
        &(given >= finishes),
    );
    if let Some(clients) = &outcome.clients {
        checks.equal(
            "what came out of HTTP against what went in",
            &outcome.receiver.totals.given,
            clients,
        );
    }
    if let Some(report) = &outcome.report {
        counts_are_exact(outcome, report, checks);
        release_is_right(outcome, report, checks);
    }
}

/// Checks that each process received exactly the messages sent to it.
pub(crate) fn same_bytes(outcome: &Outcome, checks: &mut Checks) {
    let control = || outcome.senders.iter().map(|sender| on(&sender.sent, "control"));
    let output = || outcome.senders.iter().map(|sender| on(&sender.sent, "output"));
    match &outcome.detokenizer {
        None => {
            let to_tokenizer: Vec<_> = output().chain(control()).collect();
            arrived("tokenizer", &to_tokenizer, &outcome.receiver.taken, checks);
        }
        Some(detokenizer) => {
            let to_detokenizer: Vec<_> = output().collect();
            arrived("detokenizer", &to_detokenizer, &detokenizer.taken, checks);
            let to_tokenizer: Vec<_> = control().chain([on(&detokenizer.sent, "output")]).collect();
            arrived("tokenizer", &to_tokenizer, &outcome.receiver.taken, checks);
        }
    }
}

fn on<'a>(sent: &'a [Sent], socket: &str) -> Vec<&'a str> {
    sent.iter()
        .filter(|message| message.on == socket)
        .map(|message| message.hash.as_str())
        .collect()
}

/// Checks that every message arrived once, in order within its connection.
fn arrived(at: &str, connections: &[Vec<&str>], taken: &[Taken], checks: &mut Checks) {
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
        checks.equal(
            &format!("connection {number} into the {at} kept its order"),
            &true,
            &in_order,
        );
    }
}

fn counts_are_exact(outcome: &Outcome, report: &Value, checks: &mut Checks) {
    let output: Counts = outcome.senders.iter().map(|sender| sender.totals.output).sum();
    let control: Counts = outcome.senders.iter().map(|sender| sender.totals.control).sum();
    let hops = match &outcome.detokenizer {
        None => vec![(ONLY_HOP, output + control)],
        Some(detokenizer) => vec![(HOPS[0], output), (HOPS[1], detokenizer.totals.output + control)],
    };
    let reported = report["hops"].as_array().cloned().unwrap_or_default();
    let names: Vec<_> = reported.iter().filter_map(|hop| hop["name"].as_str()).collect();
    for (name, counts) in &hops {
        match reported.iter().find(|hop| hop["name"] == *name) {
            Some(hop) => {
                for (field, expected) in [
                    ("frames_sent", counts.frames),
                    ("frames_forwarded", counts.frames),
                    ("chunks", counts.chunks),
                    ("bytes", counts.bytes),
                ] {
                    checks.equal(&format!("report hop {name} {field}"), &json!(expected), &hop[field]);
                }
            }
            None => checks.equal("report hops", &hops.iter().map(|hop| hop.0).collect::<Vec<_>>(), &names),
        }
    }
    if outcome.senders.len() > 1 {
        connections(outcome, &reported, checks);
    }
    checks.report_says(report, "/chunks/sent", output.chunks);
    checks.report_says(report, "/tokens/sent", output.tokens);
    checks.report_says(report, "/requests/seen", output.requests + control.abort_messages);
    checks.report_says(report, "/requests/finished", output.finishes);
    checks.report_says(report, "/requests/aborted", output.aborts + control.abort_messages);
    checks.report_says(report, "/self/frames_undecoded", 0);
}

/// Checks that every data-parallel rank is a connection of the scheduler's hop, with the chunks and tokens that the rank sent.
fn connections(outcome: &Outcome, reported: &[Value], checks: &mut Checks) {
    let mut sent: Vec<_> = outcome
        .senders
        .iter()
        .map(|sender| json!([sender.totals.output.frames, sender.totals.output.chunks]))
        .collect();
    // Hops are listed in order of first observation.
    let by_scheduler = |hop: &&Value| hop["name"].as_str().is_some_and(|name| name.starts_with("scheduler->"));
    let lanes = reported
        .iter()
        .find(by_scheduler)
        .and_then(|hop| hop["lanes"].as_array());
    let mut said: Vec<_> = lanes
        .into_iter()
        .flatten()
        .map(|lane| json!([lane["frames"], lane["chunks"]]))
        .collect();
    sent.sort_by_key(ToString::to_string);
    said.sort_by_key(ToString::to_string);
    checks.equal("frames and chunks of each rank's connection", &sent, &said);
}

/// Checks that the release that the tap inferred from frames, or that attach detected, is the running one or a range that contains it.
pub(crate) fn release_is_right(outcome: &Outcome, report: &Value, checks: &mut Checks) {
    let ran = &outcome.senders[0].totals.release;
    let said = report["source"]["engine_version"].as_str().unwrap_or_default();
    let (first, last) = said.split_once("..").unwrap_or((said, said));
    let contains = order(first) <= order(ran) && order(ran) <= order(last);
    checks.equal(
        &format!("{ran} lies in the release range recognised, {said:?}"),
        &true,
        &contains,
    );
}

/// Sort key of a release: `0.5.10rc0` < `0.5.10` < `0.5.10.post1`.
fn order(release: &str) -> Vec<i64> {
    let spaced = if release.contains("rc") || release.contains("post") {
        release.replace("rc", ".-1.").replace("post", "1.")
    } else {
        format!("{release}.0")
    };
    spaced.split('.').filter_map(|part| part.parse().ok()).collect()
}

/// Findings caused by a process that is too slow for its load or short of CPU, and by the merging that follows.
pub(crate) const SLOW: [&str; 7] = [
    "first-token-gap",
    "backlog-growing",
    "consumer-cpu-bound",
    "consumer-starved",
    "consumer-asleep",
    "io-thread-starved",
    "coalescing",
];
/// Findings of tokens lost to clients.
const LOSS: [&str; 3] = ["dropped-chunks", "dropped-chunks-predicted", "short-answers"];

/// Checks the report's warnings: only `allowed` kinds, and lost tokens exactly if clients lack some. Where deliveries are observed, that
/// loss must be critical and come first. Each warning must name an action.
pub(crate) fn verdicts(report: &Value, lost: u64, allowed: &[&str], checks: &mut Checks) {
    let warnings: Vec<&Value> = report["findings"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|finding| finding["severity"] != "info")
        .collect();
    let kind = |finding: &Value| finding["kind"].as_str().unwrap_or_default().to_owned();
    let is_known = |finding: &&&Value| {
        let kind = kind(finding);
        allowed.contains(&&*kind) || lost > 0 && LOSS.contains(&&*kind)
    };
    let unexpected: Vec<String> = warnings
        .iter()
        .filter(|finding| !is_known(finding))
        .map(|finding| format!("{}: {}", kind(finding), finding["summary"].as_str().unwrap_or_default()))
        .collect();
    checks.equal("warnings that nothing bears out", &Vec::new(), &unexpected);
    let without: Vec<String> = warnings
        .iter()
        .filter(|f| !f["advice"].is_string())
        .map(|f| kind(f))
        .collect();
    checks.equal("warnings without advice", &Vec::new(), &without);
    if lost > 0 && report.pointer("/chunks/tokens_lost").is_some_and(Value::is_u64) {
        let first = warnings.first().copied().unwrap_or(&Value::Null);
        checks.equal("the headline is critical", &json!("critical"), &first["severity"]);
        let told = LOSS.contains(&&*kind(first));
        checks.equal(&format!("the headline is the loss, not {}", kind(first)), &true, &told);
    }
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn releases_compare_as_they_came_out() {
        let came_out = ["0.4.6.post4", "0.5.9", "0.5.10rc0", "0.5.10", "0.5.10.post1", "0.5.23"];
        assert!(came_out.windows(2).all(|pair| order(pair[0]) < order(pair[1])));
    }
}
