//! Requests that continued although nobody took their outputs.

use serde::{Deserialize, Serialize};
use trace::clock::MonoNs;
use trace::ledger::{AbandonedRequest, Ledger};
use trace::words::{count, duration, plural};

use super::brief::{row, wrap};
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
    #[serde(default)]
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
    fn new(one: &AbandonedRequest, from: MonoNs) -> Self {
        Self {
            rid: one.rid.to_string(),
            since_ns: one.since.since(from),
            length_ns: one.length_ns(),
            outputs: one.outputs,
            tokens: one.tokens,
            abort: one.abort.map(|abort| AbortRow {
                sent_ns: abort.sent.since(from),
                received_ns: abort.received.map(|received| received.since(from)),
                ignored: one.has_ignored_abort(),
            }),
        }
    }
}

/// `None` without abandoned requests.
pub(super) fn abandoned(ledger: &Ledger, from: MonoNs) -> Option<AbandonedReport> {
    let all = ledger.abandoned_requests();
    (all.requests > 0).then(|| AbandonedReport {
        by: all.source_name().to_owned(),
        requests: all.requests,
        outputs: all.outputs,
        tokens: all.tokens,
        aborts_observed: !all.is_logged() && ledger.observes_aborts(),
        longest: all.longest().iter().map(|one| AbandonedRow::new(one, from)).collect(),
    })
}

/// Writes the number of requests and one line for each of the longest.
pub(super) fn render(out: &mut String, report: &Report, clock: &Clock) {
    let Some(abandoned) = &report.abandoned else { return };
    let amount = thrown_away(abandoned.outputs, abandoned.tokens);
    row(out, "abandoned", &format!("{}, {amount}, by {}", plural(abandoned.requests, "request"), abandoned.by));
    for one in &abandoned.longest {
        let since = clock.moment(one.since_ns);
        let amount = thrown_away(one.outputs, one.tokens);
        let abort =
            one.abort.as_ref().map_or(if abandoned.aborts_observed { "; no abort was sent" } else { "" }, |abort| {
                match abort {
                    AbortRow { ignored: true, .. } => "; its abort was received and ignored",
                    AbortRow { received_ns: Some(_), .. } => "; its abort was received",
                    AbortRow { received_ns: None, .. } => "; an abort was sent",
                }
            });
        wrap(
            out,
            &format!("{} since {since}, for {}, {amount}{abort}", one.rid, duration(one.length_ns)),
            "  ",
            "    ",
        );
    }
    let more = abandoned.requests.saturating_sub(abandoned.longest.len() as u64);
    if more > 0 {
        wrap(out, &format!("{} more", count(more)), "  ", "    ");
    }
    out.push('\n');
}

fn thrown_away(outputs: u64, tokens: Option<u64>) -> String {
    let amount = tokens.map_or_else(|| plural(outputs, "output"), |tokens| plural(tokens, "token"));
    format!("{amount} thrown away")
}
