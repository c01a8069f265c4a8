//! The list of findings so far.

use std::collections::BTreeMap;

use super::explained_ttft::explained_ttft_ns;
use super::finding::{Finding, HopTarget, LATE_FRAMES, Severity, Verdict, Verdicts, holds_requests};
use super::held_requests::{HeldRequests, add_new_waits_to_held_requests, are_most_waits_known};
use super::{ALL, DetectContext, Detector, Keep};
use crate::clock::MonoNs;
use crate::stats::WINDOW_NS;

/// Findings so far: one per kind and hop.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    pub(super) list: Vec<Finding>,
    /// Time to first token that the findings of a kind explain; without kinds that explain none.
    pub(super) ttft_ns: BTreeMap<&'static str, u128>,
    /// Where the frames of each hop go that a finding names.
    pub(super) targets: BTreeMap<String, HopTarget>,
    /// Requests that findings about processes and hops held up.
    pub(super) held: Vec<HeldRequests>,
    /// Waits of requests that have been added to them.
    pub(super) seen_waits: u64,
    /// Time of the last update.
    pub(super) updated_at: MonoNs,
}

impl Findings {
    /// Runs every detector and adds its verdicts to the findings. Marks the findings as ended that no verdict supports any more. Then adds
    /// to findings what follows from the whole list, such as their share of the time to first token.
    pub fn run_detectors(&mut self, context: &DetectContext<'_>) {
        self.updated_at = context.now;
        // First undoes what `add_ttft_shares_and_limit_severities` added in the previous run. New verdicts are compared with those of the
        // detectors alone.
        self.remove_ttft_shares_and_severity_limits();
        let was_active: Vec<bool> = self.list.iter().map(|finding| finding.active).collect();
        for detector in ALL {
            self.run_detector(detector, context);
        }
        self.mark_activity_changes(&was_active, context.now);
        self.drop_explained_late_frame_findings();
        // Both use the complete list of findings, so they are last. The second also uses what the first looks up.
        self.look_up_hop_targets(context);
        self.add_ttft_shares_and_limit_severities(context);
    }

    /// Runs one detector and adds its verdicts to the findings of its kind. A finding without a new verdict is no longer active.
    fn run_detector(&mut self, detector: &Detector, context: &DetectContext<'_>) {
        self.note_explained_ttft(context, detector.kind);
        let mut found = Verdicts::default();
        (detector.check)(context, &mut found);
        // Before the verdicts are added, because each makes its finding active again.
        self.deactivate_findings(detector.kind);
        for verdict in found.list {
            self.record_problem_that_holds_requests(detector.kind, &verdict, context.now);
            self.add_verdict(detector, verdict, context.now);
        }
    }

    /// Notes how much time to first token the findings of this kind explain, if they explain any.
    fn note_explained_ttft(&mut self, context: &DetectContext<'_>, kind: &'static str) {
        if let Some(ns) = explained_ttft_ns(context.ledger.ttft(), kind).filter(|ns| *ns > 0) {
            self.ttft_ns.insert(kind, ns);
        }
    }

    /// Marks the findings of this kind as not active.
    fn deactivate_findings(&mut self, finding_kind: &str) {
        for finding in self.list.iter_mut().filter(|finding| finding.kind == finding_kind) {
            finding.active = false;
        }
    }

    /// Marks the findings that have become active, or have ended, as changed. `was_active` is in the order of the findings.
    fn mark_activity_changes(&mut self, was_active: &[bool], now: MonoNs) {
        for (index, finding) in self.list.iter_mut().enumerate() {
            // New findings are at the end, and were not active before.
            if finding.active != was_active.get(index).copied().unwrap_or(false) {
                finding.changed_at = Some(now);
            }
        }
    }

    /// Looks up where the frames of each finding's hop go.
    fn look_up_hop_targets(&mut self, context: &DetectContext<'_>) {
        self.targets.clear();
        for hop in self.list.iter().map(|finding| &finding.verdict.hop).filter(|hop| !hop.is_empty()) {
            self.targets.insert(hop.clone(), context.hop_target(hop));
        }
    }

    /// Records that the problem of a verdict lasts, so that requests that wait during this time count as held up by it. Ignores kinds of
    /// problems that hold up no requests.
    fn record_problem_that_holds_requests(&mut self, kind: &'static str, verdict: &Verdict, now: MonoNs) {
        if !holds_requests(kind) || verdict.hop.is_empty() {
            return;
        }
        let known = self.held.iter_mut().find(|requests| requests.are_of_finding(kind, &verdict.hop));
        if let Some(held_requests) = known {
            held_requests.record_problem_span(verdict, now);
        } else {
            let mut held_requests = HeldRequests::new(kind, &verdict.hop);
            held_requests.record_problem_span(verdict, now);
            self.held.push(held_requests);
        }
    }

    /// Removes from findings what [`Self::add_ttft_shares_and_limit_severities`] added after the last run of the detectors.
    fn remove_ttft_shares_and_severity_limits(&mut self) {
        for held_requests in &mut self.held {
            let mut list = self.list.iter_mut();
            let held_finding = list.find(|finding| held_requests.are_of_finding(finding.kind, &finding.verdict.hop));
            if let Some(finding) = held_finding {
                held_requests.remove_ttft_share_and_severity_limit(finding);
            }
        }
    }

    /// Adds to each finding about a process or hop the share of the time to first token that it explains. If another cause explains far
    /// more of this time, lowers the severity of the finding to that of the cause. The next run of the detectors first undoes both.
    fn add_ttft_shares_and_limit_severities(&mut self, context: &DetectContext<'_>) {
        // The first `seen_waits` waits of requests were added after earlier runs of the detectors.
        add_new_waits_to_held_requests(context, &mut self.held, self.seen_waits);
        self.seen_waits = context.ledger.count_process_waits();
        // All limits are computed before any finding is changed, because each finding is compared with the others.
        let limits: Vec<Option<Severity>> = self.list.iter().map(|finding| self.limit_of(finding, context)).collect();
        for held_requests in &mut self.held {
            let mut limited_findings = self.list.iter_mut().zip(&limits);
            let held_finding =
                limited_findings.find(|(finding, _)| held_requests.are_of_finding(finding.kind, &finding.verdict.hop));
            if let Some((finding, limit)) = held_finding {
                held_requests.add_ttft_share_and_limit_severity(context, finding, *limit);
            }
        }
    }

    /// Severity that a finding does not exceed, as far as the requests that it held up are known; `None` without a limit.
    fn limit_of(&self, finding: &Finding, context: &DetectContext<'_>) -> Option<Severity> {
        self.max_severity_by_other_causes(finding).filter(|_| are_most_waits_known(context, &finding.verdict.hop))
    }

    /// Drops each finding about late frames that other findings about the same hop explain in all of its episodes. An episode is a time in
    /// which frames were late.
    fn drop_explained_late_frame_findings(&mut self) {
        // All decisions are made before any finding is removed, because each finding is compared with the whole list.
        let are_kept: Vec<bool> = self
            .list
            .iter()
            .map(|finding| finding.kind != LATE_FRAMES || !self.are_all_episodes_explained(finding))
            .collect();
        // `retain` visits the findings in the order of the list, which is the order of the decisions.
        let mut decisions = are_kept.into_iter();
        self.list.retain(|_| decisions.next().unwrap_or(true));
    }

    /// Whether other findings explain every episode of a finding about late frames. An episode is a time in which frames were late. A
    /// finding explains it if it is about the same hop, overlaps the episode, and is worse than information.
    fn are_all_episodes_explained(&self, late_finding: &Finding) -> bool {
        let is_explanation = |other: &Finding| {
            other.kind != LATE_FRAMES
                && other.verdict.hop == late_finding.verdict.hop
                && other.verdict.severity > Severity::Info
        };
        for episode in late_finding.times.episodes() {
            let mut explanations = self.list.iter().filter(|other| is_explanation(other));
            if !explanations.any(|explanation| explanation.times.overlap(episode)) {
                return false;
            }
        }
        true
    }

    /// Adds a verdict to the known finding of its kind and hop, or as a new finding. If the detector keeps a single finding for all hops,
    /// adds the verdict to that one.
    fn add_verdict(&mut self, detector: &Detector, verdict: Verdict, now: MonoNs) {
        let covers_all_hops = detector.keep == Keep::LatestOfAllHops;
        let known = self
            .list
            .iter_mut()
            .find(|finding| finding.kind == detector.kind && (covers_all_hops || finding.verdict.hop == verdict.hop));
        match known {
            Some(known) => update_finding(known, verdict, detector.keep, now),
            None => self.list.push(new_finding(detector.kind, verdict, now)),
        }
    }

    /// Worst severity among the findings; `None` without any.
    pub fn worst(&self) -> Option<Severity> {
        self.list.iter().map(|finding| finding.verdict.severity).max()
    }
}

/// Time of the latest occurrence of a known problem, by the verdict of a later check.
fn last_occurrence_at(known_finding: &Finding, verdict: &Verdict, now: MonoNs) -> MonoNs {
    // A verdict without a count of occurrences is about a state, which lasts as long as it is found.
    let Some(occurrences) = verdict.occurrences else { return now };
    if let Some(last_at) = verdict.last_at {
        return last_at;
    }
    // A count that does not grow means that nothing happened since the last check.
    if occurrences > known_finding.occurrences { now } else { known_finding.last_at }
}

/// Updates a finding with a verdict of a later check. `keep` says whether the finding then shows the later or the worse verdict.
fn update_finding(known_finding: &mut Finding, verdict: Verdict, keep: Keep, now: MonoNs) {
    let last_at = last_occurrence_at(known_finding, &verdict, now);
    known_finding.last_at = known_finding.last_at.max(last_at);
    known_finding.occurrences = known_finding.occurrences.max(verdict.occurrences.unwrap_or(0));
    // A problem that has not occurred for the length of the window is over.
    known_finding.active = now.since(known_finding.last_at) < WINDOW_NS;
    // A later check may show that the problem began earlier.
    if let Some(since) = verdict.since {
        known_finding.began = known_finding.began.min(since);
    }
    add_occurrence_times(known_finding, &verdict, last_at, now);
    // Verdicts are compared by their severity, then by their weight.
    let is_at_least_as_bad =
        (verdict.severity, verdict.weight) >= (known_finding.verdict.severity, known_finding.verdict.weight);
    // With `Keep::Worst`, a milder verdict does not replace the shown one.
    if keep != Keep::Worst || is_at_least_as_bad {
        known_finding.verdict = verdict;
    }
}

/// Adds the times of a verdict to those of a known finding. `last_at` is the last time at which its problem occurred, by this verdict.
fn add_occurrence_times(known_finding: &mut Finding, verdict: &Verdict, last_at: MonoNs, now: MonoNs) {
    known_finding.times.merge(&verdict.times);
    let has_own_times = verdict.times.first().is_some();
    let has_unrecorded_occurrence = known_finding.last_at > known_finding.times.last().unwrap_or_default();
    // A verdict without a count of occurrences is about a state, which lasts as long as it is found.
    let is_state = verdict.occurrences.is_none();
    if !has_own_times && has_unrecorded_occurrence {
        // The verdict says only when the problem began and when it occurred last.
        let began = verdict.since.unwrap_or(last_at).min(last_at);
        known_finding.times.record_span(began, last_at);
    } else if is_state {
        known_finding.times.record(now);
    }
}

/// Creates a finding from the first verdict of this kind on a hop.
fn new_finding(kind: &'static str, verdict: Verdict, now: MonoNs) -> Finding {
    // A verdict without a count of occurrences is about a state, which lasts as long as it is found.
    let is_state = verdict.occurrences.is_none();
    let occurrences = verdict.occurrences.unwrap_or(0);
    let began = verdict.since.unwrap_or(now);
    let last_occurrence = if is_state { now } else { verdict.last_at.unwrap_or(now) };
    let last_at = last_occurrence.max(began);
    // A problem that has not occurred for the length of the window is over.
    let active = now.since(last_at) < WINDOW_NS;
    let mut times = verdict.times;
    let has_times = times.first().is_some();
    if !has_times {
        // Without times of its own, the verdict is about the whole span.
        times.record_span(began, last_at);
    } else if is_state {
        // A state lasts until now, after the times that the verdict has.
        times.record(last_at);
    }
    Finding { kind, began, last_at, active, changed_at: None, verdict, occurrences, times }
}

#[cfg(test)]
mod tests {
    use super::super::detector;
    use super::*;
    use crate::ledger::OccurrenceTimes;

    const PASSING: Detector = detector("backlog", Keep::Worst, |_, _| {});
    const LASTING: Detector = detector("merged-chunks", Keep::Latest, |_, _| {});

    fn verdict(severity: Severity, weight: u64) -> Verdict {
        Verdict { severity, hop: "a->b".to_owned(), weight, ..Verdict::default() }
    }

    #[test]
    fn a_transient_finding_keeps_its_worst_value_and_start() {
        let mut findings = Findings::default();
        findings.add_verdict(&PASSING, verdict(Severity::Warning, 10), MonoNs(5));
        findings.add_verdict(&PASSING, verdict(Severity::Critical, 20), MonoNs(6));
        findings.add_verdict(&PASSING, verdict(Severity::Warning, 90), MonoNs(7));
        findings.add_verdict(&PASSING, Verdict { hop: "b->c".to_owned(), ..verdict(Severity::Warning, 90) }, MonoNs(7));
        let list = findings.sorted_worst_first();
        assert_eq!(list.len(), 2, "one finding per kind and hop");
        assert_eq!(list[0].verdict.severity, Severity::Critical);
        assert_eq!(list[0].verdict.weight, 20);
        assert_eq!((list[0].began, findings.worst()), (MonoNs(5), Some(Severity::Critical)));
    }

    #[test]
    fn occurrences_end_ten_seconds_after_the_last_and_a_state_at_once() {
        const SECOND: u64 = 1_000_000_000;
        let counted = |count| Verdict { occurrences: Some(count), ..verdict(Severity::Critical, count) };
        let mut findings = Findings::default();
        for (second, count) in [(1, 5), (3, 6), (12, 6), (13, 6)] {
            findings.add_verdict(&LASTING, counted(count), MonoNs(second * SECOND));
            let expected = (MonoNs(3.min(second) * SECOND), second < 13);
            assert_eq!((findings.list[0].last_at, findings.list[0].active), expected, "second {second}");
        }
        assert_eq!(findings.list[0].ended_at(), Some(MonoNs(3 * SECOND)));
        assert_eq!(findings.worst(), Some(Severity::Critical), "it keeps its severity");
        findings.add_verdict(&LASTING, counted(7), MonoNs(60 * SECOND));
        assert_eq!(findings.list[0].ended_at(), None, "it occurs again");
        findings.add_verdict(&LASTING, verdict(Severity::Critical, 7), MonoNs(90 * SECOND));
        assert_eq!(findings.list[0].last_at, MonoNs(90 * SECOND), "a state lasts while it is found");
    }

    #[test]
    fn each_episode_of_a_finding_is_kept() {
        const SECOND: u64 = 1_000_000_000;
        let mut findings = Findings::default();
        for second in [5, 6, 7, 60, 61] {
            findings.add_verdict(&PASSING, verdict(Severity::Warning, 10), MonoNs(second * SECOND));
        }
        let mut times = OccurrenceTimes::default();
        for second in [8, 70] {
            times.record(MonoNs(second * SECOND));
            let mut counted = verdict(Severity::Warning, 10);
            counted.times(times).occurrences(second);
            findings.add_verdict(&LASTING, counted, MonoNs(71 * SECOND));
        }
        let in_seconds = |finding: &Finding| -> Vec<[u64; 2]> {
            let episodes = finding.times.episodes().iter();
            episodes.map(|episode| [episode.first, episode.last].map(|at| at.0 / SECOND)).collect()
        };
        assert_eq!(findings.list.iter().map(in_seconds).collect::<Vec<_>>(), [[[5, 7], [60, 61]], [[8, 8], [70, 70]]]);
        for finding in &findings.list {
            assert_eq!((finding.times.first(), finding.times.last()), (Some(finding.began), Some(finding.last_at)));
        }
    }

    #[test]
    fn a_lasting_finding_shows_its_current_severity() {
        let mut findings = Findings::default();
        findings.add_verdict(&LASTING, verdict(Severity::Warning, 10), MonoNs(5));
        findings.add_verdict(&LASTING, verdict(Severity::Info, 11), MonoNs(6));
        assert_eq!(findings.worst(), Some(Severity::Info));
    }
}
