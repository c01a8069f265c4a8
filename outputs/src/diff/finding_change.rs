//! Findings of both runs, matched by kind and hop.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};
use trace::detect::Severity;
use trace::words::{count, duration, names};

use crate::report::{FaultKind, FindingLine, Report};

/// A finding of either run, compared with the other run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingChange {
    /// Kind of the detector.
    pub kind: String,
    /// Hop concerned; `null` if none.
    pub hop: Option<String>,
    /// Its state in the second run.
    pub state: FindingState,
    /// The finding in the first run; `null` without it.
    pub a: Option<FindingSide>,
    /// The finding in the second run; `null` without it.
    pub b: Option<FindingSide>,
    /// Its size before and after; empty if one is unknown.
    pub numbers: String,
    /// Why the run without it could not have shown it; `null` if it could.
    pub note: Option<String>,
}

/// A finding as one run has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FindingSide {
    /// Severity.
    pub severity: Severity,
    /// One sentence, with numbers.
    pub summary: String,
}

impl FindingSide {
    fn of_finding(finding: &FindingLine) -> Self {
        Self { severity: finding.severity, summary: finding.summary.clone() }
    }
}

/// State of a finding in the second run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingState {
    /// Only the second run has it; the note says if the first could not have shown it.
    New,
    /// More severe, or at least twice its size.
    Worse,
    /// Less severe, or at most half its size.
    Better,
    /// Only the first run has it.
    Gone,
    /// In both runs, neither worse nor better.
    Unchanged,
    /// Only the first run has it, and the second could not have shown it; the note says why.
    NotComparable,
}

names! {
    FindingState {
        New = "NEW",
        Worse = "WORSE",
        Better = "BETTER",
        Gone = "GONE",
        Unchanged = "UNCHANGED",
        NotComparable = "NOT COMPARABLE",
    }
}

impl FindingState {
    /// Whether it is a change for the worse.
    pub fn is_worse(self) -> bool {
        matches!(self, Self::New | Self::Worse)
    }

    /// Whether it is a change for the better.
    pub(crate) fn is_better(self) -> bool {
        matches!(self, Self::Better | Self::Gone)
    }
}

impl FindingChange {
    /// The worse severity of both runs.
    pub fn severity(&self) -> Severity {
        self.a.iter().chain(&self.b).map(|side| side.severity).max().unwrap_or_default()
    }

    /// `backlog on a->b`.
    pub(super) fn name(&self) -> String {
        self.hop.as_ref().map_or_else(|| self.kind.clone(), |hop| format!("{} on {hop}", self.kind))
    }
}

/// Findings of both runs: new ones first, then by severity.
pub(super) fn compare_findings(a: &Report, b: &Report) -> Vec<FindingChange> {
    let mut changes = Vec::new();
    let mut paired_findings: Vec<&FindingLine> = Vec::new();
    for after in &b.findings {
        let before = find_counterpart(after, a);
        paired_findings.extend(before);
        changes.push(change_between(a, b, before, Some(after)));
    }
    for before in &a.findings {
        // A pair is listed once, with the second run's finding.
        if !paired_findings.iter().any(|paired| std::ptr::eq(*paired, before)) {
            changes.push(change_between(a, b, Some(before), None));
        }
    }
    changes.sort_by_key(|change| {
        let state_rank = FindingState::ALL.iter().position(|state| *state == change.state);
        (std::cmp::Reverse(change.severity()), state_rank)
    });
    changes
}

/// The finding of the same kind and hop; else the only one of its kind, if both runs have one and its hop is another.
fn find_counterpart<'r>(finding: &FindingLine, other: &'r Report) -> Option<&'r FindingLine> {
    let mut of_same_kind = other.findings.iter().filter(|candidate| candidate.kind == finding.kind);
    let on_same_hop = of_same_kind.clone().find(|candidate| candidate.hop == finding.hop);
    // This finding names the hop with the longest wait, and there is one a run.
    let is_one_per_run = finding.kind == "first-token-gap";
    if on_same_hop.is_none() && is_one_per_run { of_same_kind.next() } else { on_same_hop }
}

/// Compares a finding of both runs. One of the sides is missing if only one run has it.
fn change_between(a: &Report, b: &Report, before: Option<&FindingLine>, after: Option<&FindingLine>) -> FindingChange {
    let (kind, hop) = after.or(before).map_or_else(Default::default, |named| (named.kind.clone(), named.hop.clone()));
    let sizes = size_in(before, a).zip(size_in(after, b));
    let mut note = None;
    let state = match (before, after) {
        (Some(before), Some(after)) => state_of_pair(before, after, sizes),
        (Some(_), None) => {
            note = unobserved_reason(&kind, b).map(|why| format!("second run: {why}"));
            // Without observation, the absence of a finding is no fact.
            if note.is_some() { FindingState::NotComparable } else { FindingState::Gone }
        }
        _ => {
            // A finding is a fact even if the first run could not show it.
            note = unobserved_reason(&kind, a).map(|why| format!("first run: {why}"));
            FindingState::New
        }
    };
    let numbers = sizes.map_or_else(String::new, |(before, after)| format!("{} -> {}", before.text(), after.text()));
    let a = before.map(FindingSide::of_finding);
    let b = after.map(FindingSide::of_finding);
    FindingChange { kind, hop, state, a, b, numbers, note }
}

/// How a finding that both runs have has changed: by its severity, else by its size per traffic.
fn state_of_pair(before: &FindingLine, after: &FindingLine, sizes: Option<(Size, Size)>) -> FindingState {
    /// Smallest factor between the sizes of a changed finding: one number a run has no noise to compare with.
    const LEAST_FACTOR: f64 = 2.0;
    match (after.severity.cmp(&before.severity), sizes) {
        (Ordering::Greater, _) => FindingState::Worse,
        (Ordering::Less, _) => FindingState::Better,
        (_, Some((a, b))) if b.rate >= LEAST_FACTOR * a.rate => FindingState::Worse,
        (_, Some((a, b))) if a.rate >= LEAST_FACTOR * b.rate => FindingState::Better,
        _ => FindingState::Unchanged,
    }
}

/// Size of a finding.
#[derive(Clone, Copy)]
struct Size {
    number: u64,
    /// The number, or its ratio to the traffic of its run.
    rate: f64,
    is_duration: bool,
}

impl Size {
    fn text(self) -> String {
        if self.is_duration { duration(self.number) } else { count(self.number) }
    }
}

/// Traffic by which the size of a finding is divided.
#[derive(Clone, Copy)]
enum GrowsWith {
    /// A maximum, comparable as it is.
    Nothing,
    Requests,
    Chunks,
}

/// Evidence that is the size of a finding. Other kinds are compared by severity alone.
const SIZES: [(&str, &str, GrowsWith); 17] = [
    ("dropped-chunks", "chunks_dropped", GrowsWith::Chunks),
    ("dropped-chunks-predicted", "chunks_dropped_predicted", GrowsWith::Chunks),
    ("merged-chunks", "chunks", GrowsWith::Chunks),
    ("first-token-gap", "max_ns", GrowsWith::Nothing),
    ("engine-silent", "silence_ns", GrowsWith::Nothing),
    ("health-check-failed", "silent_ns", GrowsWith::Nothing),
    ("late-send", "send_wait_max_ns", GrowsWith::Nothing),
    ("late-frames", "wait_max_ns", GrowsWith::Nothing),
    ("consumer-throttled", "oldest_waiting_ns", GrowsWith::Nothing),
    ("consumer-starved", "oldest_waiting_ns", GrowsWith::Nothing),
    ("backlog", "backlog_frames", GrowsWith::Nothing),
    ("burst", "frames_max", GrowsWith::Nothing),
    ("rid-changed-worker", "requests", GrowsWith::Requests),
    ("stalled-stream", "requests", GrowsWith::Requests),
    ("unanswered-requests", "requests", GrowsWith::Requests),
    ("aborted-retries", "requests", GrowsWith::Requests),
    ("abandoned-requests", "outputs", GrowsWith::Chunks),
];

/// Size of a finding, in relation to the traffic of its run.
fn size_in(finding: Option<&FindingLine>, report: &Report) -> Option<Size> {
    let finding = finding?;
    let (_, key, grows_with) = SIZES.iter().find(|(kind, ..)| *kind == finding.kind)?;
    let number = finding.evidence.get(*key)?.as_u64()?;
    let traffic = match grows_with {
        GrowsWith::Nothing => 1,
        GrowsWith::Requests => report.requests.seen,
        GrowsWith::Chunks => report.chunks.sent,
    };
    Some(Size { number, rate: number as f64 / traffic.max(1) as f64, is_duration: key.ends_with("_ns") })
}

/// Why a run could not have had a finding of this kind; `None` if it could.
fn unobserved_reason(kind: &str, report: &Report) -> Option<String> {
    // Without deliveries, losses are only predicted.
    if kind == "dropped-chunks" && report.chunks.dropped_confirmed.is_none() {
        return Some(String::from("deliveries are not observed"));
    }
    if kind == "dropped-chunks-predicted" && report.chunks.dropped_predicted.is_some() {
        return None;
    }
    let fault = match kind {
        "dropped-chunks" | "short-answers" | "repeated-ids" | "dropped-chunks-predicted" => FaultKind::LostTokens,
        "first-token-gap" => FaultKind::FirstTokenGap,
        "engine-silent" => FaultKind::EngineSilence,
        "backlog" | "burst" | "late-frames" | "worker-imbalance" => FaultKind::Queues,
        "late-delivery" | "merged-chunks" => FaultKind::Delivery,
        "abandoned-requests" | "aborted-retries" => FaultKind::Clients,
        "late-read" | "late-dispatch" | "late-receive" | "late-intake" | "queued" | "slow-prefill"
        | "slow-first-token" => FaultKind::LateRequests,
        _ if kind.starts_with("consumer-") || kind == "io-thread-starved" => {
            return report.cpu.is_none().then(|| String::from("threads are not observed"));
        }
        _ => return None,
    };
    report.judged.iter().find(|judgement| judgement.fault == fault)?.reason.clone()
}
