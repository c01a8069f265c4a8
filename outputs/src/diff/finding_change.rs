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

/// Whether the second run is better or worse than the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Better,
    Worse,
    /// Neither, or not comparable.
    Same,
}

impl FindingState {
    /// Whether it is a change for the worse.
    pub fn is_worse(self) -> bool {
        self.direction() == Direction::Worse
    }

    /// Whether it is a change for the worse, for the better, or neither.
    pub(super) fn direction(self) -> Direction {
        match self {
            Self::New | Self::Worse => Direction::Worse,
            Self::Better | Self::Gone => Direction::Better,
            Self::Unchanged | Self::NotComparable => Direction::Same,
        }
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
        if let Some(before) = find_counterpart(after, a) {
            paired_findings.push(before);
            changes.push(FindingChange::of_both(before, after, SizeChange::between(before, a, after, b)));
        } else {
            changes.push(FindingChange::of_second(after, a));
        }
    }
    for before in &a.findings {
        // A pair is listed once, with the second run's finding.
        if !paired_findings.iter().any(|paired| std::ptr::eq(*paired, before)) {
            changes.push(FindingChange::of_first(before, b));
        }
    }
    changes.sort_by_key(|change| {
        let state_rank = FindingState::ALL.iter().position(|state| *state == change.state);
        (std::cmp::Reverse(change.severity()), state_rank)
    });
    changes
}

/// Kinds of which a run has at most one finding. Its place may be another one in the other run: where requests wait longest, the last process
/// of another engine, or none in a report of an older version.
const ONE_PER_RUN: [&str; 6] =
    ["first-token-gap", "dropped-chunks", "dropped-chunks-predicted", "merged-chunks", "would-drop", "late-dispatch"];

/// The other run's finding of the same kind and hop; or of the same kind, if a run has at most one of it.
fn find_counterpart<'r>(finding: &FindingLine, other: &'r Report) -> Option<&'r FindingLine> {
    let mut of_same_kind = other.findings.iter().filter(|candidate| candidate.kind == finding.kind);
    let on_same_hop = of_same_kind.clone().find(|candidate| candidate.hop == finding.hop);
    let is_one_per_run = ONE_PER_RUN.contains(&&*finding.kind);
    if on_same_hop.is_none() && is_one_per_run { of_same_kind.next() } else { on_same_hop }
}

impl FindingChange {
    /// A finding with this name and state, and nothing else.
    fn named(finding: &FindingLine, state: FindingState) -> Self {
        Self {
            kind: finding.kind.clone(),
            hop: finding.hop.clone(),
            state,
            a: None,
            b: None,
            numbers: String::new(),
            note: None,
        }
    }

    /// A finding that both runs have.
    fn of_both(before: &FindingLine, after: &FindingLine, sizes: Option<SizeChange>) -> Self {
        Self {
            a: Some(FindingSide::of_finding(before)),
            b: Some(FindingSide::of_finding(after)),
            numbers: sizes.map_or_else(String::new, SizeChange::text),
            ..Self::named(after, state_of_pair(before, after, sizes))
        }
    }

    /// A finding that only the second run has. It is a fact even if the first run could not show it.
    fn of_second(after: &FindingLine, a: &Report) -> Self {
        Self {
            b: Some(FindingSide::of_finding(after)),
            note: unobserved_reason(&after.kind, a).map(|why| format!("first run: {why}")),
            ..Self::named(after, FindingState::New)
        }
    }

    /// A finding that only the first run has. If the second run could not show it, its absence is no fact.
    fn of_first(before: &FindingLine, b: &Report) -> Self {
        let note = unobserved_reason(&before.kind, b).map(|why| format!("second run: {why}"));
        let state = if note.is_some() { FindingState::NotComparable } else { FindingState::Gone };
        Self { a: Some(FindingSide::of_finding(before)), note, ..Self::named(before, state) }
    }
}

/// How a finding that both runs have has changed: by its severity or, if that is equal, by its size per traffic.
fn state_of_pair(before: &FindingLine, after: &FindingLine, sizes: Option<SizeChange>) -> FindingState {
    /// Smallest factor between the sizes of a changed finding: one number a run has no noise to compare with.
    const LEAST_FACTOR: f64 = 2.0;
    match after.severity.cmp(&before.severity) {
        Ordering::Greater => return FindingState::Worse,
        Ordering::Less => return FindingState::Better,
        Ordering::Equal => {}
    }
    let Some(SizeChange { before, after }) = sizes else { return FindingState::Unchanged };
    if after.rate >= LEAST_FACTOR * before.rate {
        FindingState::Worse
    } else if before.rate >= LEAST_FACTOR * after.rate {
        FindingState::Better
    } else {
        FindingState::Unchanged
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

/// Sizes of a finding in both runs.
#[derive(Clone, Copy)]
struct SizeChange {
    before: Size,
    after: Size,
}

impl SizeChange {
    /// Sizes of a finding of run `a` and of its counterpart in run `b`; `None` if findings of this kind have no size.
    fn between(before: &FindingLine, a: &Report, after: &FindingLine, b: &Report) -> Option<Self> {
        Some(Self { before: size_in(before, a)?, after: size_in(after, b)? })
    }

    /// `12 -> 0`.
    fn text(self) -> String {
        format!("{} -> {}", self.before.text(), self.after.text())
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

/// Size of a finding, in relation to the traffic of its run; `None` if its kind has no size.
fn size_in(finding: &FindingLine, report: &Report) -> Option<Size> {
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
