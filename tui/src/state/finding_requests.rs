//! Which requests a finding is about, as a filter of the table.

use trace::detect::Finding;

use super::Model;

/// Filters for the requests that a kind of finding is about.
pub(crate) const FILTERS_OF_FINDINGS: [(&str, &str); 12] = [
    ("dropped-chunks", "drop>0"),
    ("dropped-chunks-predicted", "flag:DROPPED?"),
    ("merged-chunks", "merged>0"),
    ("would-drop", "merged>0"),
    ("first-token-gap", "flag:GAP"),
    ("damaged-tool-calls", "flag:TOOL-CALL"),
    ("rid-changed-worker", "flag:MOVED"),
    ("wire-loss", "flag:WIRE-LOSS"),
    ("inflation", "flag:INFLATE"),
    ("stalled-stream", "flag:STALL"),
    ("abandoned-requests", "flag:ABANDON"),
    ("unanswered-requests", "flag:STALL state:waiting"),
];

impl Model {
    /// Filter for the requests that the finding is about: by its kind, else those whose frames waited on its hop while it lasted, else those in
    /// flight then.
    pub(super) fn filter_of_finding(&self, finding: &Finding) -> String {
        if let Some((_, filter)) = FILTERS_OF_FINDINGS.iter().find(|(kind, _)| *kind == finding.kind) {
            return String::from(*filter);
        }
        let from = format_milliseconds(finding.began.since(self.started_at));
        let to = format_milliseconds(finding.last_at.since(self.started_at));
        let hop = &finding.verdict.hop;
        if is_about_waiting_frames(finding.kind) && !hop.is_empty() {
            // A filter's terms are separated by spaces.
            return format!("waited:{}@{from}..{to}", hop.replace(' ', "_"));
        }
        format!("at:{from}..{to}")
    }
}

/// Seconds as a filter reads them: `1.234s`. Rounded down, since the end of a range is the whole millisecond.
fn format_milliseconds(ns: u64) -> String {
    let ms = ns / 1_000_000;
    format!("{}.{:03}s", ms / 1_000, ms % 1_000)
}

/// Whether findings of this kind say that frames wait on a hop, because they pile up or because their receiver is away.
fn is_about_waiting_frames(kind: &str) -> bool {
    ["backlog", "late-frames"].contains(&kind) || kind.starts_with("consumer-")
}
