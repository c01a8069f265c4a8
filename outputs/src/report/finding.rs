//! Findings of the report.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trace::clock::MonoNs;
use trace::detect::order::{FindingRank, is_recent};
use trace::detect::{Finding, Findings, Severity};
use trace::ledger::Episode;

/// One detector's verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FindingLine {
    /// Kind of the detector.
    pub kind: String,
    /// Severity.
    pub severity: Severity,
    /// Worst affected request; empty if none.
    pub rid: String,
    /// Hop concerned, that of deliveries included, or the role of the process that the problem is in; `null` if none.
    pub hop: Option<String>,
    /// Start of the problem.
    pub at_ns: u64,
    /// Last occurrence.
    #[serde(default)]
    pub last_at_ns: u64,
    /// End of the problem; `null` if it lasts at the end of the capture.
    pub ended_at_ns: Option<u64>,
    /// Time from the start to the last occurrence.
    #[serde(default)]
    pub duration_ns: u64,
    /// Occurrences, those within ten seconds as one episode, oldest first: at most eight.
    #[serde(default)]
    pub episodes: Vec<EpisodeLine>,
    /// Time that it explains: time to first token of all requests, or at least the longest wait. `null` if it explains none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub explained_ns: Option<u64>,
    /// Number of further episodes, each part of the one before it in the list.
    #[serde(default)]
    pub episodes_joined: u64,
    /// One sentence, with numbers.
    pub summary: String,
    /// Evidence by name.
    pub evidence: BTreeMap<String, Value>,
    /// Fix, if known.
    pub advice: Option<String>,
}

/// Occurrences that follow each other within ten seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpisodeLine {
    /// Start of the first one.
    pub at_ns: u64,
    /// End of the last one.
    pub last_at_ns: u64,
}

impl EpisodeLine {
    /// An episode, with times since the start of the capture.
    fn new(episode: &Episode, capture_start: MonoNs) -> Self {
        Self { at_ns: episode.first.since(capture_start), last_at_ns: episode.last.since(capture_start) }
    }
    /// The same episode on a clock that is ahead by `ahead_ns`.
    pub(super) fn shifted_by(self, ahead_ns: i64) -> Self {
        Self {
            at_ns: self.at_ns.saturating_add_signed(ahead_ns),
            last_at_ns: self.last_at_ns.saturating_add_signed(ahead_ns),
        }
    }
}

impl FindingLine {
    /// Rank that orders it among the findings of several servers: by severity, then whether it is recent, then the waiting time that it
    /// explains. The report ends at `end_ns`.
    pub(super) fn rank(&self, end_ns: u64) -> FindingRank {
        let is_active = self.ended_at_ns.is_none();
        let since_last_ns = end_ns.saturating_sub(self.last_at_ns);
        FindingRank {
            severity: self.severity,
            is_recent: is_recent(is_active, since_last_ns),
            explained_ns: self.explained_ns.unwrap_or(0),
        }
    }
}

/// All findings, worst first.
pub(super) fn finding_lines(findings: &Findings, capture_start: MonoNs) -> Vec<FindingLine> {
    findings.sorted_worst_first().into_iter().map(|finding| finding_line(findings, finding, capture_start)).collect()
}

/// A finding, with times since the start of the capture.
fn finding_line(findings: &Findings, finding: &Finding, capture_start: MonoNs) -> FindingLine {
    let verdict = &finding.verdict;
    FindingLine {
        kind: finding.kind.to_owned(),
        severity: verdict.severity,
        rid: verdict.rid.clone(),
        hop: (!verdict.hop.is_empty()).then(|| verdict.hop.clone()),
        at_ns: finding.began.since(capture_start),
        last_at_ns: finding.last_at.since(capture_start),
        ended_at_ns: finding.ended_at().map(|at| at.since(capture_start)),
        duration_ns: finding.last_at.since(finding.began),
        episodes: finding.times.episodes().iter().map(|episode| EpisodeLine::new(episode, capture_start)).collect(),
        // A finding that explains no waiting time has none, not 0.
        explained_ns: Some(findings.explained_ns(finding)).filter(|ns| *ns > 0),
        episodes_joined: finding.times.joined(),
        summary: verdict.summary.clone(),
        evidence: verdict.evidence.clone(),
        advice: verdict.advice.clone(),
    }
}

#[cfg(test)]
impl FindingLine {
    /// A finding of this kind and severity that has not ended. All other fields are empty.
    pub(crate) fn of_kind(kind: &str, severity: Severity) -> Self {
        Self {
            kind: kind.to_owned(),
            severity,
            rid: String::new(),
            hop: None,
            at_ns: 0,
            last_at_ns: 0,
            ended_at_ns: None,
            duration_ns: 0,
            episodes: Vec::new(),
            explained_ns: None,
            episodes_joined: 0,
            summary: String::new(),
            evidence: BTreeMap::new(),
            advice: None,
        }
    }
}
