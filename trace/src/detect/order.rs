//! Order of findings in a run, in a pair of servers and over the runs of a machine. The first one is the headline.

use std::cmp::Reverse;

use serde_json::Value;

use super::attribution::ThreadState;
use super::finding::{HopTarget, is_about_receiver};
use super::ttft::MINOR_TIMES;
use super::{ALL, Finding, Findings, Severity};
use crate::clock::MonoNs;
use crate::stats::WINDOW_NS;

/// The first kind in [`ALL`] that explains time to first token.
const FIRST_KIND_OF_TTFT: &str = "first-token-gap";

/// How findings of several servers compare: by severity; of equal ones, those of the last ten seconds come first, then those that explain
/// more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FindingRank {
    /// Severity.
    pub severity: Severity,
    /// It lasts, or occurred in the last ten seconds: see [`is_recent`].
    pub is_recent: bool,
    /// [`Findings::explained_ns`].
    pub explained_ns: u64,
}

impl FindingRank {
    /// The same without the time that the finding explains.
    #[must_use]
    pub fn without_explained_time(self) -> Self {
        Self { explained_ns: 0, ..self }
    }
}

/// Whether a finding lasts, or lasted until the last ten seconds. A cause that ended within them is as recent as its consequences, which
/// are counted for longer.
pub fn is_recent(is_active: bool, since_last_ns: u64) -> bool {
    is_active || since_last_ns < WINDOW_NS
}

/// Index of a kind in [`ALL`]; `None` if no detector has it.
fn detector_index(kind: &str) -> Option<usize> {
    ALL.iter().position(|detector| detector.kind == kind)
}

/// Longest wait in the evidence of a finding: that of the oldest frame or request, or a silence of the engine. 0 if it has neither.
fn longest_wait_in_evidence_ns(finding: &Finding) -> u64 {
    let evidence = &finding.verdict.evidence;
    let mut longest_ns = 0;
    for name in ["oldest_waiting_ns", "silence_ns"] {
        let wait_ns = evidence.get(name).and_then(Value::as_u64);
        longest_ns = longest_ns.max(wait_ns.unwrap_or(0));
    }
    longest_ns
}

/// Whether a finding about requests says that their thread was in the state that findings of `cause_kind` report, such as frozen. `false`
/// for kinds that report no such state.
fn names_thread_state_of_cause(requests_finding: &Finding, cause_kind: &str) -> bool {
    let state = match cause_kind {
        "consumer-frozen" => ThreadState::Frozen,
        "consumer-throttled" => ThreadState::Throttled,
        "consumer-starved" => ThreadState::Starved,
        _ => return false,
    };
    // State of the thread for which the requests waited.
    let measured_state = requests_finding.verdict.evidence.get("thread").and_then(|thread| thread.as_str());
    measured_state == Some(state.as_str())
}

/// Sort key of a finding. The first field that differs decides; `false` sorts before `true`.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SortKey {
    severity: Reverse<Severity>,
    is_over: bool,
    /// Index in [`ALL`]; the same for all kinds that explain time to first token.
    index: Option<usize>,
    explained_ns: Reverse<Option<u128>>,
    is_inactive: bool,
    /// Index of its own kind in [`ALL`].
    own_index: Option<usize>,
    began: MonoNs,
}

impl Findings {
    /// Returns the findings, worst first. Within a severity, those of the last ten seconds come first, and then the order of [`ALL`]
    /// decides. Findings that explain time to first token have one place in that order, and are sorted there by how much they explain. A
    /// cause comes before its consequences.
    pub fn sorted_worst_first(&self) -> Vec<&Finding> {
        let mut list: Vec<&Finding> = self.list.iter().collect();
        list.sort_by_key(|finding| self.sort_key(finding));
        self.move_causes_before_consequences(&mut list);
        list
    }

    /// Key by which a finding is sorted among the others, before causes are moved ahead of their consequences. Keys are compared field by
    /// field, in the order of the fields.
    fn sort_key(&self, finding: &Finding) -> SortKey {
        let explained_ns = self.ttft_ns.get(finding.kind).copied();
        let own_index = detector_index(finding.kind);
        // All kinds that explain time to first token have the same index, so that `explained_ns`, the next field, decides among them.
        let explains_ttft = explained_ns.is_some();
        let index = if explains_ttft { detector_index(FIRST_KIND_OF_TTFT) } else { own_index };
        SortKey {
            severity: Reverse(finding.verdict.severity),
            is_over: !self.is_recent(finding),
            index,
            explained_ns: Reverse(explained_ns),
            is_inactive: !finding.active,
            own_index,
            began: finding.began,
        }
    }

    /// Moves the cause of a finding before it, if it stands behind it. Only causes of the same severity that are equally recent are moved.
    fn move_causes_before_consequences(&self, list: &mut [&Finding]) {
        for index in 0..list.len() {
            let consequence = list[index];
            let from_consequence = &mut list[index..];
            let cause_position =
                from_consequence.iter().position(|other| self.is_equally_severe_cause(consequence, other));
            if let Some(position) = cause_position {
                // The cause takes the place of the consequence. The consequence and all between them move back by one.
                from_consequence[..=position].rotate_right(1);
            }
        }
    }

    /// Whether `cause` is a cause of the consequence, of the same severity and equally recent.
    fn is_equally_severe_cause(&self, consequence: &Finding, cause: &Finding) -> bool {
        self.is_caused_by(consequence, cause)
            && cause.verdict.severity == consequence.verdict.severity
            && self.is_recent(cause) == self.is_recent(consequence)
    }

    /// Whether one finding is a consequence of the other. They must overlap in time. Also, both must be about the same hop, or the
    /// consequence must be about what the receiver of the cause's hop does with what it receives.
    fn is_caused_by(&self, consequence: &Finding, cause: &Finding) -> bool {
        // Such a cause says why a receiving thread did not process its frames, such as that it was stopped.
        let is_cause_about_receiver = is_about_receiver(cause.kind);
        // Process to which the frames of the cause's hop go.
        let receiver = self.targets.get(&cause.verdict.hop).copied().unwrap_or_default();
        let may_be_cause = match consequence.kind {
            // The scheduler could not receive the requests.
            "late-receive" | "late-intake" => {
                (is_cause_about_receiver && receiver == HopTarget::Scheduler) || cause.kind == "engine-silent"
            }
            "late-read" | "late-dispatch" => {
                // The thread of the tokenizer that receives frames also reads and dispatches requests.
                let stops_reads =
                    cause.kind == "consumer-stopped" || names_thread_state_of_cause(consequence, cause.kind);
                stops_reads && receiver == HopTarget::Tokenizer
            }
            // Chunks that queued up for the tokenizer were merged or replaced.
            "merged-chunks" | "would-drop" => is_cause_about_receiver && receiver == HopTarget::Tokenizer,
            // Frames piled up on the hop, or were received together.
            "backlog" | "burst" => is_cause_about_receiver && cause.verdict.hop == consequence.verdict.hop,
            _ => false,
        };
        may_be_cause && cause.overlaps(consequence)
    }

    fn is_recent(&self, finding: &Finding) -> bool {
        is_recent(finding.active, self.updated_at.since(finding.last_at))
    }

    /// Time that a finding explains. This is the longest of four times: the time to first token of its kind, that of the requests that it
    /// held up, its longest wait, and the time of its consequences.
    pub fn explained_ns(&self, finding: &Finding) -> u64 {
        let own_ns = self.ttft_of_kind_ns(finding.kind).max(longest_wait_in_evidence_ns(finding));
        own_ns.max(self.explained_with_consequences_ns(finding))
    }

    /// Time to first token of the requests that the finding held up.
    fn held_ns(&self, finding: &Finding) -> u64 {
        let held = self.held.iter().find(|requests| requests.are_of_finding(finding.kind, &finding.verdict.hop));
        held.map_or(0, |held| u64::try_from(held.part.ns).unwrap_or(u64::MAX))
    }

    /// Time to first token that a finding explains. It is the time of the requests that the finding held up, or the time that one of its
    /// consequences explains, whichever is longer.
    fn explained_with_consequences_ns(&self, finding: &Finding) -> u64 {
        let consequences = self.list.iter().filter(|other| self.is_caused_by(other, finding));
        let consequence_ns = consequences.map(|other| self.ttft_of_kind_ns(other.kind)).max();
        self.held_ns(finding).max(consequence_ns.unwrap_or(0))
    }

    /// Severity that a finding about a receiving thread must not exceed. It is that of the worst cause that explains far more time to first
    /// token than the finding. `None` without such a cause. Also `None` while the problem lasts, because not all requests that it holds up
    /// are known yet.
    pub(super) fn max_severity_by_other_causes(&self, finding: &Finding) -> Option<Severity> {
        if finding.active || !is_about_receiver(finding.kind) {
            return None;
        }
        // At least 1. Otherwise a cause that explains nothing would explain "far more" than a finding that explains nothing.
        let explained_ns = self.explained_with_consequences_ns(finding).max(1);
        let far_more_ns = u128::from(explained_ns).saturating_mul(MINOR_TIMES);
        // Late dispatches set no limit, because slow clients may have caused them.
        let other_causes = self.list.iter().filter(|other| other.kind != "late-dispatch");
        let greater_causes = other_causes.filter(|other| u128::from(self.ttft_of_kind_ns(other.kind)) >= far_more_ns);
        let worst_severity = greater_causes.map(|other| other.verdict.severity).max()?;
        // A cause that is information only must not lower the severity.
        if worst_severity > Severity::Info { Some(worst_severity) } else { None }
    }

    fn ttft_of_kind_ns(&self, kind: &str) -> u64 {
        let ns = self.ttft_ns.get(kind).copied().unwrap_or(0);
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Rank by which a finding is compared with findings of other runs.
    pub fn rank(&self, finding: &Finding) -> FindingRank {
        FindingRank {
            severity: finding.verdict.severity,
            is_recent: self.is_recent(finding),
            explained_ns: self.explained_ns(finding),
        }
    }
}
