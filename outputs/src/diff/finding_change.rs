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

    /// Position in a list of findings of equal severity, the new ones first: that of the state in `ALL`.
    fn list_position(self) -> Option<usize> {
        Self::ALL.iter().position(|state| *state == self)
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

    /// Kind and hop: `backlog on a->b`.
    pub(super) fn name(&self) -> String {
        self.hop.as_ref().map_or_else(|| self.kind.clone(), |hop| format!("{} on {hop}", self.kind))
    }
}

/// Compares the findings of both runs. The most severe come first, and among those of equal severity the new ones.
pub(super) fn compare_findings(a: &Report, b: &Report) -> Vec<FindingChange> {
    let mut changes = Vec::new();
    let mut paired_findings: Vec<&FindingLine> = Vec::new();
    for after in &b.findings {
        if let Some(before) = find_counterpart(after, a) {
            paired_findings.push(before);
            changes.push(FindingChange::of_pair(before, after, SizeChange::of_pair(before, a, after, b)));
        } else {
            changes.push(FindingChange::only_in_second(after, a));
        }
    }
    for before in &a.findings {
        // Two findings may be equal in all fields, so their addresses tell them apart.
        let is_paired = paired_findings.iter().any(|paired| std::ptr::eq(*paired, before));
        // A pair is listed once, with the second run's finding.
        if !is_paired {
            changes.push(FindingChange::only_in_first(before, b));
        }
    }
    changes.sort_by_key(|change| (std::cmp::Reverse(change.severity()), change.state.list_position()));
    changes
}

/// Kinds of which a run has at most one finding. Its place may be another one in the other run: where requests wait longest, the last
/// process of another engine, or none in a report of an older version.
const KINDS_FOUND_ONCE: [&str; 12] = [
    "first-token-gap",
    "dropped-chunks",
    "dropped-chunks-predicted",
    "merged-chunks",
    "would-drop",
    "late-read",
    "late-dispatch",
    "late-intake",
    "queued",
    "slow-prefill",
    "inflation",
    "abandoned-requests",
];

/// The other run's finding of the same kind and hop; `None` if it has none. For a kind that a run has at most once, a finding on another
/// hop counts, too.
fn find_counterpart<'r>(finding: &FindingLine, other_report: &'r Report) -> Option<&'r FindingLine> {
    let of_same_kind: Vec<&FindingLine> =
        other_report.findings.iter().filter(|candidate| candidate.kind == finding.kind).collect();
    let on_same_hop = of_same_kind.iter().copied().find(|candidate| candidate.hop == finding.hop);
    if on_same_hop.is_some() {
        return on_same_hop;
    }
    // The only finding of such a kind may be about another hop in the other run.
    let is_found_once = KINDS_FOUND_ONCE.contains(&finding.kind.as_str());
    if is_found_once { of_same_kind.first().copied() } else { None }
}

impl FindingChange {
    /// A change with this state, and the finding's kind and hop. The caller fills in what each run has.
    fn without_sides(finding: &FindingLine, state: FindingState) -> Self {
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

    /// A finding that both runs have. `sizes` are its sizes in both, if findings of its kind have one.
    fn of_pair(before: &FindingLine, after: &FindingLine, sizes: Option<SizeChange>) -> Self {
        Self {
            a: Some(FindingSide::of_finding(before)),
            b: Some(FindingSide::of_finding(after)),
            numbers: sizes.map_or_else(String::new, SizeChange::describe),
            ..Self::without_sides(after, state_of_pair(before, after, sizes))
        }
    }

    /// A finding that only the second run has. It counts as new. If the first run could not have had it, the note says why.
    fn only_in_second(after: &FindingLine, first_report: &Report) -> Self {
        Self {
            b: Some(FindingSide::of_finding(after)),
            note: reason_finding_is_unobservable(&after.kind, first_report).map(|why| format!("first run: {why}")),
            ..Self::without_sides(after, FindingState::New)
        }
    }

    /// A finding that only the first run has. It counts as gone, unless the second run could not have had it: then the two are not
    /// comparable, and the note says why.
    fn only_in_first(before: &FindingLine, second_report: &Report) -> Self {
        let note = reason_finding_is_unobservable(&before.kind, second_report).map(|why| format!("second run: {why}"));
        let state = if note.is_some() { FindingState::NotComparable } else { FindingState::Gone };
        Self { a: Some(FindingSide::of_finding(before)), note, ..Self::without_sides(before, state) }
    }
}

/// State of a finding of both runs. Compares the severities and, only if they are equal, the sizes.
fn state_of_pair(before: &FindingLine, after: &FindingLine, sizes: Option<SizeChange>) -> FindingState {
    match after.severity.cmp(&before.severity) {
        Ordering::Greater => FindingState::Worse,
        Ordering::Less => FindingState::Better,
        Ordering::Equal => sizes.map_or(FindingState::Unchanged, SizeChange::state_by_rates),
    }
}

/// Size of a finding.
#[derive(Clone, Copy)]
struct FindingSize {
    number: u64,
    /// The number, or its ratio to the traffic of its run.
    rate: f64,
    /// Name of the evidence, with the unit.
    key: &'static str,
}

impl FindingSize {
    /// Whether the number counts nanoseconds.
    fn is_duration(self) -> bool {
        self.key.ends_with("_ns")
    }

    /// The number for people.
    fn format_number(self) -> String {
        if self.is_duration() { duration(self.number) } else { count(self.number) }
    }

    /// The unit behind a space, ` requests`, taken from the name of the evidence (`requests_late`). Empty for a duration, whose number is
    /// formatted with its unit.
    fn unit_suffix(self) -> String {
        if self.is_duration() {
            return String::new();
        }
        let units = ["requests", "responses", "chunks", "tokens", "frames", "outputs"];
        let unit = units.iter().find(|unit| self.key.contains(*unit));
        unit.map_or_else(String::new, |unit| format!(" {unit}"))
    }
}

/// Sizes of a finding in both runs.
#[derive(Clone, Copy)]
struct SizeChange {
    before: FindingSize,
    after: FindingSize,
}

impl SizeChange {
    /// Sizes of a finding of run `a` and of its counterpart in run `b`; `None` if findings of this kind have no size.
    fn of_pair(before: &FindingLine, a: &Report, after: &FindingLine, b: &Report) -> Option<Self> {
        Some(Self { before: size_and_rate_of_finding(before, a)?, after: size_and_rate_of_finding(after, b)? })
    }

    /// State of a finding by its rates, the sizes divided by the traffic of their run: a run with twice the traffic has twice the size.
    fn state_by_rates(self) -> FindingState {
        /// Smallest factor between the rates of a changed finding. It is large because one number per run does not show the noise.
        const LEAST_FACTOR: f64 = 2.0;
        if self.after.rate >= LEAST_FACTOR * self.before.rate {
            FindingState::Worse
        } else if self.before.rate >= LEAST_FACTOR * self.after.rate {
            FindingState::Better
        } else {
            FindingState::Unchanged
        }
    }

    /// `12 -> 20 requests`.
    fn describe(self) -> String {
        format!("{} -> {}{}", self.before.format_number(), self.after.format_number(), self.after.unit_suffix())
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

/// Evidence that is the size of a kind of findings.
struct SizeEvidence {
    kind: &'static str,
    /// Name of the evidence.
    key: &'static str,
    grows_with: GrowsWith,
}

/// Declares that the number of the evidence `key` is the size of findings of this kind.
const fn size(kind: &'static str, key: &'static str, grows_with: GrowsWith) -> SizeEvidence {
    SizeEvidence { kind, key, grows_with }
}

/// Kinds of findings that have a size. Others are compared by severity alone.
const SIZES_OF_KINDS: [SizeEvidence; 41] = [
    size("dropped-chunks", "chunks_dropped", GrowsWith::Chunks),
    size("dropped-chunks-predicted", "chunks_dropped_predicted", GrowsWith::Chunks),
    size("merged-chunks", "chunks", GrowsWith::Chunks),
    size("would-drop", "chunks", GrowsWith::Chunks),
    size("out-of-order", "chunks", GrowsWith::Chunks),
    size("wire-loss", "tokens_missing", GrowsWith::Chunks),
    size("abandoned-requests", "outputs", GrowsWith::Chunks),
    size("short-answers", "responses", GrowsWith::Requests),
    size("repeated-ids", "responses", GrowsWith::Requests),
    size("unfinished-responses", "responses", GrowsWith::Requests),
    size("damaged-tool-calls", "responses", GrowsWith::Requests),
    size("inflation", "requests", GrowsWith::Requests),
    size("summed-counts", "requests", GrowsWith::Requests),
    size("rid-changed-worker", "requests", GrowsWith::Requests),
    size("stalled-stream", "requests", GrowsWith::Requests),
    size("unanswered-requests", "requests", GrowsWith::Requests),
    size("aborted-retries", "requests", GrowsWith::Requests),
    size("late-read", "requests_late", GrowsWith::Requests),
    size("late-dispatch", "requests_late", GrowsWith::Requests),
    size("late-receive", "requests_late", GrowsWith::Requests),
    size("late-intake", "requests_late", GrowsWith::Requests),
    size("queued", "requests_late", GrowsWith::Requests),
    size("slow-prefill", "requests_late", GrowsWith::Requests),
    size("slow-first-token", "requests_late", GrowsWith::Requests),
    size("late-delivery", "requests_late", GrowsWith::Requests),
    size("late-frontend", "responses_late", GrowsWith::Requests),
    size("first-token-gap", "max_ns", GrowsWith::Nothing),
    size("engine-silent", "silence_ns", GrowsWith::Nothing),
    size("health-check-failed", "silent_ns", GrowsWith::Nothing),
    size("late-send", "send_wait_max_ns", GrowsWith::Nothing),
    size("late-frames", "wait_max_ns", GrowsWith::Nothing),
    size("consumer-stopped", "oldest_waiting_ns", GrowsWith::Nothing),
    size("consumer-frozen", "oldest_waiting_ns", GrowsWith::Nothing),
    size("consumer-blocked", "oldest_waiting_ns", GrowsWith::Nothing),
    size("consumer-asleep", "oldest_waiting_ns", GrowsWith::Nothing),
    size("consumer-cpu-bound", "oldest_waiting_ns", GrowsWith::Nothing),
    size("consumer-throttled", "oldest_waiting_ns", GrowsWith::Nothing),
    size("consumer-starved", "oldest_waiting_ns", GrowsWith::Nothing),
    size("io-thread-starved", "oldest_waiting_ns", GrowsWith::Nothing),
    size("backlog", "backlog_frames", GrowsWith::Nothing),
    size("burst", "frames_max", GrowsWith::Nothing),
];

/// Size of a finding, with its rate: the size divided by the traffic of its run. `None` if its kind has no size.
fn size_and_rate_of_finding(finding: &FindingLine, report: &Report) -> Option<FindingSize> {
    let SizeEvidence { key, grows_with, .. } = *SIZES_OF_KINDS.iter().find(|size| size.kind == finding.kind)?;
    let number = finding.evidence.get(key)?.as_u64()?;
    let traffic = match grows_with {
        // A maximum is comparable as it is.
        GrowsWith::Nothing => 1,
        GrowsWith::Requests => report.requests.seen,
        GrowsWith::Chunks => report.chunks.sent,
    };
    Some(FindingSize { number, rate: number as f64 / traffic.max(1) as f64, key })
}

/// Why a run could not have had a finding of this kind; `None` if it could.
fn reason_finding_is_unobservable(finding_kind: &str, report: &Report) -> Option<String> {
    // Without deliveries, losses are only predicted.
    if finding_kind == "dropped-chunks" && report.chunks.dropped_confirmed.is_none() {
        return Some(String::from("deliveries are not observed"));
    }
    // A run with a prediction, of losses or of none, could have had the finding.
    if finding_kind == "dropped-chunks-predicted" && report.chunks.dropped_predicted.is_some() {
        return None;
    }
    let is_about_thread = finding_kind.starts_with("consumer-") || finding_kind == "io-thread-starved";
    if is_about_thread && report.cpu.is_none() {
        return Some(String::from("threads are not observed"));
    }
    // Every run could have had a finding that belongs to no kind of fault.
    let fault = fault_required_for_finding(finding_kind)?;
    // A reason says why a fault was not judged. A judged one has none.
    report.judged.iter().find(|judgement| judgement.fault == fault)?.reason.clone()
}

/// The kind of fault that must be judged so that a run can have a finding of this kind; `None` if none must.
fn fault_required_for_finding(finding_kind: &str) -> Option<FaultKind> {
    match finding_kind {
        "dropped-chunks" | "short-answers" | "repeated-ids" | "dropped-chunks-predicted" => Some(FaultKind::LostTokens),
        "first-token-gap" => Some(FaultKind::FirstTokenGap),
        "engine-silent" => Some(FaultKind::EngineSilence),
        "backlog" | "burst" | "late-frames" | "worker-imbalance" => Some(FaultKind::Queues),
        "late-delivery" | "merged-chunks" => Some(FaultKind::Delivery),
        "abandoned-requests" | "aborted-retries" => Some(FaultKind::Clients),
        "late-read" | "late-dispatch" | "late-receive" | "late-intake" | "queued" | "slow-prefill"
        | "slow-first-token" => Some(FaultKind::LateRequests),
        // Every run could have a finding of another kind.
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trace::{Analysis, Config, ReportInput};

    use super::*;
    use crate::diff::{Diff, DiffOptions, NamedRun};

    /// A run with one finding, this many requests and the evidence that is its size.
    fn run(severity: &str, kind: &str, evidence: &str, size: u64, requests: u64) -> Report {
        let mut report = Report::of(&Analysis::new(Config::default()), &ReportInput::for_source("attach"));
        report.requests.seen = requests;
        report.chunks.sent = requests;
        let line = json!({
            "kind": kind, "severity": severity, "rid": "", "hop": null, "at_ns": 0, "advice": null,
            "summary": "2 of 9 requests: a sentence", "evidence": { evidence: size },
        });
        report.findings = vec![serde_json::from_value(line).expect("a finding")];
        report
    }

    fn compare(a: &Report, b: &Report) -> Diff {
        Diff::of_runs(NamedRun { name: "a", report: a }, NamedRun { name: "b", report: b }, &DiffOptions::default())
    }

    #[test]
    fn a_finding_is_worse_or_better_from_twice_its_size_on() {
        let late = |[size, requests]: [u64; 2]| run("warning", "late-dispatch", "requests_late", size, requests);
        // Late requests of all requests, before and after.
        for (before, after, state, verdict) in [
            ([10, 100], [20, 100], FindingState::Worse, "WORSE WARNING: late-dispatch 10 -> 20 requests"),
            ([20, 100], [10, 100], FindingState::Better, "BETTER WARNING: late-dispatch 20 -> 10 requests"),
            ([10, 100], [19, 100], FindingState::Unchanged, "NOT ENOUGH DATA"),
            // Twice the requests of twice the traffic are as many.
            ([10, 100], [20, 200], FindingState::Unchanged, "NOT ENOUGH DATA"),
        ] {
            let diff = compare(&late(before), &late(after));
            assert_eq!(diff.findings[0].state, state, "{verdict}");
            assert!(diff.verdict.starts_with(verdict), "{verdict}: {}", diff.verdict);
            assert_eq!(diff.is_worse(), state == FindingState::Worse);
        }
        let wait = |ns| run("warning", "consumer-stopped", "oldest_waiting_ns", ns, 1);
        let change = &compare(&wait(1_000_000_000), &wait(2_000_000_000)).findings[0];
        assert_eq!((change.state, change.numbers.as_str()), (FindingState::Worse, "1.000 s -> 2.000 s"));
    }

    #[test]
    fn another_severity_outweighs_the_size() {
        let warning = run("warning", "late-delivery", "requests_late", 50, 100);
        let critical = run("critical", "late-delivery", "requests_late", 10, 100);
        let worse = compare(&warning, &critical);
        assert!(worse.verdict.starts_with("WARNING -> CRITICAL: late-delivery 50 -> 10 requests"), "{}", worse.verdict);
        assert_eq!((worse.findings[0].state, worse.is_worse()), (FindingState::Worse, true));
        let better = compare(&critical, &warning);
        assert!(
            better.verdict.starts_with("CRITICAL -> WARNING: late-delivery 10 -> 50 requests"),
            "{}",
            better.verdict
        );
        assert_eq!((better.findings[0].state, better.is_worse()), (FindingState::Better, false));
        let unknown = compare(&warning, &run("warning", "late-delivery", "other", 9, 100));
        assert_eq!((unknown.findings[0].state, unknown.findings[0].numbers.as_str()), (FindingState::Unchanged, ""));
    }

    #[test]
    fn kinds_with_a_size_exist_and_have_one_size() {
        for (index, SizeEvidence { kind, .. }) in SIZES_OF_KINDS.iter().enumerate() {
            assert!(trace::detect::ALL.iter().any(|detector| detector.kind == *kind), "{kind}");
            assert!(!SIZES_OF_KINDS[..index].iter().any(|other| other.kind == *kind), "{kind} twice");
        }
    }
}
