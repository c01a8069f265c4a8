//! Which requests a finding is about, as a filter of the table.

use trace::detect::Finding;

use super::Model;
use super::request_row::RequestColumn;
use super::request_table::SortOrder;

/// Filters for the requests that a kind of finding is about, where their rows show it.
pub(crate) const FILTERS_OF_FINDINGS: [(&str, &str); 10] = [
    ("dropped-chunks", "drop>0"),
    ("dropped-chunks-predicted", "flag:DROPPED?"),
    ("merged-chunks", "merged>0"),
    ("would-drop", "merged>0"),
    ("first-token-gap", "flag:GAP"),
    ("damaged-tool-calls", "flag:TOOL-CALL"),
    ("rid-changed-worker", "flag:MOVED"),
    ("wire-loss", "flag:WIRE-LOSS"),
    ("inflation", "flag:INFLATE"),
    ("abandoned-requests", "flag:ABANDON"),
];

/// Findings about requests whose first token came late.
const LATE_FIRST_TOKENS: [&str; 8] = [
    "engine-silent",
    "late-read",
    "late-dispatch",
    "late-receive",
    "late-intake",
    "queued",
    "slow-prefill",
    "slow-first-token",
];

/// Requests of a finding, as a list of the table.
pub(super) struct FindingRequests {
    pub(super) filter: String,
    /// `requests of queued`, or which others are listed.
    pub(super) description: String,
    /// Order that shows the worst ones first; `None` for any order.
    pub(super) order: Option<SortOrder>,
}

impl Model {
    /// Filter that lists the requests of the finding. The first of these that applies: those whose rows show the problem, those that the
    /// finding has counted, those with a frame that waited on its hop while it lasted, all that were in flight while it lasted.
    pub(super) fn requests_of_finding(&self, finding: &Finding) -> FindingRequests {
        let kind = finding.kind;
        let description = format!("requests of {kind}");
        let is_about_late_tokens = LATE_FIRST_TOKENS.contains(&kind);
        let ttft = RequestColumn::with_heading("ttft");
        // The latest first tokens come first.
        let order = is_about_late_tokens.then_some(SortOrder { column: ttft, is_descending: true });
        if let Some((_, filter)) = FILTERS_OF_FINDINGS.iter().find(|(known, _)| *known == kind) {
            return FindingRequests { filter: String::from(*filter), description, order };
        }
        // Spaces separate the terms of a filter, so the name of a hop has `_` for them.
        let hop = finding.verdict.hop.replace(' ', "_");
        if finding.verdict.requests.counted() > 0 {
            let hop_suffix = if hop.is_empty() { hop } else { format!("@{hop}") };
            return FindingRequests { filter: format!("finding:{kind}{hop_suffix}"), description, order };
        }
        let from = format_milliseconds(finding.began.since(self.started_at));
        let to = format_milliseconds(finding.last_at.since(self.started_at));
        if is_about_waiting_frames(kind) && !hop.is_empty() {
            return FindingRequests { filter: format!("waited:{hop}@{from}..{to}"), description, order: None };
        }
        let description = format!("{kind} counts no requests: those in flight while it lasted");
        FindingRequests { filter: format!("at:{from}..{to}"), description, order: None }
    }
}

/// Seconds as a filter reads them: `1.234s`. Rounded down, since the end of a range is the whole millisecond.
fn format_milliseconds(ns: u64) -> String {
    let ms = ns / 1_000_000;
    format!("{}.{:03}s", ms / 1_000, ms % 1_000)
}

/// Whether findings of this kind say that frames wait on a hop, because they pile up or because their receiver is away.
fn is_about_waiting_frames(kind: &str) -> bool {
    ["backlog", "late-frames", "io-thread-starved"].contains(&kind) || kind.starts_with("consumer-")
}
