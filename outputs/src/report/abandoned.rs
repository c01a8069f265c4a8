//! Requests that continued although nobody took their outputs.

use serde::{Deserialize, Serialize};
use trace::clock::MonoNs;
use trace::ledger::{AbandonedRequest, Ledger};
use trace::words::{count, duration, plural};

use super::brief::{write_indented, write_named_row};
use super::{Clock, Report};

/// Requests that continued after their client left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbandonedReport {
    /// What shows them: `responses and frames`, or `the engine's log`.
    pub by: String,
    /// Number of requests.
    pub requests: u64,
    /// Number of their outputs that were thrown away.
    pub outputs: u64,
    /// Number of tokens in them; `null` if the engine's log shows them, which does not count tokens.
    pub tokens: Option<u64>,
    /// Messages to the scheduler are observed and none was missed, so that a request without `abort` was sent none.
    #[serde(default)]
    pub aborts_observed: bool,
    /// Those that continued for longest, longest first.
    pub longest: Vec<AbandonedRow>,
}

/// An abandoned request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbandonedRow {
    /// The engine's request id.
    pub rid: String,
    /// Time when its client left, or of the first output that was thrown away according to the engine's log.
    pub since_ns: u64,
    /// Time from then to the latest output.
    pub length_ns: u64,
    /// Outputs that were thrown away.
    pub outputs: u64,
    /// Number of tokens in them; `null` if the engine's log shows them.
    pub tokens: Option<u64>,
    /// The abort that the scheduler was sent; `null` if none was observed.
    pub abort: Option<AbortRow>,
}

/// A message that asks the scheduler to abort a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortRow {
    /// When it was sent.
    pub sent_ns: u64,
    /// When the scheduler received it; `null` if that was not observed.
    pub received_ns: Option<u64>,
    /// The request continued for 5 s after that.
    pub ignored: bool,
}

impl AbandonedRow {
    /// A request, with its times since the start of the capture.
    fn new(request: &AbandonedRequest, capture_start: MonoNs) -> Self {
        let abandoned_at = request.since;
        Self {
            rid: request.rid.to_string(),
            since_ns: abandoned_at.since(capture_start),
            length_ns: request.length_ns(),
            outputs: request.outputs,
            tokens: request.tokens,
            abort: request.abort.map(|abort| AbortRow {
                sent_ns: abort.sent.since(capture_start),
                received_ns: abort.received.map(|received| received.since(capture_start)),
                ignored: request.has_ignored_abort(),
            }),
        }
    }

    /// What happened to its abort, to be appended to a sentence about the request; empty if aborts were not observed.
    fn describe_abort(&self, are_aborts_observed: bool) -> &'static str {
        match &self.abort {
            Some(AbortRow { ignored: true, .. }) => "; its abort was received and ignored",
            Some(AbortRow { received_ns: Some(_), .. }) => "; its abort was received",
            Some(AbortRow { received_ns: None, .. }) => "; an abort was sent",
            None if are_aborts_observed => "; no abort was sent",
            None => "",
        }
    }
}

/// The abandoned requests of the run; `None` without any.
pub(super) fn abandoned_report(ledger: &Ledger, capture_start: MonoNs) -> Option<AbandonedReport> {
    let abandoned = ledger.abandoned_requests();
    if abandoned.requests == 0 {
        return None;
    }
    Some(AbandonedReport {
        by: abandoned.source_name().to_owned(),
        requests: abandoned.requests,
        outputs: abandoned.outputs,
        tokens: abandoned.tokens,
        // An engine's log has no aborts.
        aborts_observed: !abandoned.is_logged() && ledger.observes_aborts(),
        longest: abandoned.longest().iter().map(|request| AbandonedRow::new(request, capture_start)).collect(),
    })
}

/// Writes the number of abandoned requests and one line for each of the longest. Writes nothing if there are none.
pub(super) fn write_abandoned(out: &mut String, report: &Report, clock: &Clock) {
    let Some(abandoned) = &report.abandoned else { return };
    let amount = describe_thrown_away(abandoned.outputs, abandoned.tokens);
    write_named_row(
        out,
        "abandoned",
        &format!("{}, {amount}, by {}", plural(abandoned.requests, "request"), abandoned.by),
    );
    for request in &abandoned.longest {
        let since = clock.describe_moment(request.since_ns);
        let length = duration(request.length_ns);
        let amount = describe_thrown_away(request.outputs, request.tokens);
        let abort = request.describe_abort(abandoned.aborts_observed);
        write_indented(out, &format!("{} since {since}, for {length}, {amount}{abort}", request.rid));
    }
    let not_listed = abandoned.requests.saturating_sub(abandoned.longest.len() as u64);
    if not_listed > 0 {
        write_indented(out, &format!("{} more", count(not_listed)));
    }
    out.push('\n');
}

/// `12 tokens thrown away`, or the number of outputs if their tokens are unknown.
fn describe_thrown_away(outputs: u64, tokens: Option<u64>) -> String {
    let amount = match tokens {
        Some(tokens) => plural(tokens, "token"),
        None => plural(outputs, "output"),
    };
    format!("{amount} thrown away")
}
