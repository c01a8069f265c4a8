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
    /// Filter for the requests that the finding is about. If these are not known, it is one for the requests at the time and the hop of the
    /// finding.
    pub(super) fn requests_of_finding(&self, finding: &Finding) -> FindingRequests {
        let Some(filter) = filter_text_of_known_requests(finding) else {
            return self.requests_at_time_of(finding);
        };
        let order = if LATE_FIRST_TOKENS.contains(&finding.kind) {
            // The latest first tokens come first.
            Some(SortOrder { column: RequestColumn::with_heading("ttft"), is_descending: true })
        } else {
            None
        };
        FindingRequests { filter, description: format!("requests of {}", finding.kind), order }
    }

    /// Filter for the requests while the finding lasted. If the finding is about waiting frames of a hop, those with a frame that waited
    /// there. Otherwise all that were in flight.
    fn requests_at_time_of(&self, finding: &Finding) -> FindingRequests {
        let kind = finding.kind;
        let hop = typed_hop_name(finding);
        let from = format_milliseconds(finding.began.since(self.started_at));
        let to = format_milliseconds(finding.last_at.since(self.started_at));
        let (filter, description) = if is_about_waiting_frames(kind) && !hop.is_empty() {
            (format!("waited:{hop}@{from}..{to}"), format!("requests of {kind}"))
        } else {
            (format!("at:{from}..{to}"), format!("{kind} counts no requests: those in flight while it lasted"))
        };
        FindingRequests { filter, description, order: None }
    }
}

/// Filter for the requests that the finding is about. It selects them by what their rows show or, if there is no such filter for this kind,
/// by the finding that has counted them. `None` if there are none to select.
fn filter_text_of_known_requests(finding: &Finding) -> Option<String> {
    let kind = finding.kind;
    if let Some((_, filter)) = FILTERS_OF_FINDINGS.iter().find(|(known, _)| *known == kind) {
        return Some(String::from(*filter));
    }
    if finding.verdict.requests.counted() == 0 {
        return None;
    }
    let hop = typed_hop_name(finding);
    // Several findings may have this kind, each about another hop.
    let hop_suffix = if hop.is_empty() { hop } else { format!("@{hop}") };
    Some(format!("finding:{kind}{hop_suffix}"))
}

/// Name of the finding's hop as a filter has it, with `_` for spaces, because these separate the terms. Empty without a hop.
fn typed_hop_name(finding: &Finding) -> String {
    finding.verdict.hop.replace(' ', "_")
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
