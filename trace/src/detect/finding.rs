//! A detector's verdict, and the list of findings so far.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::explained_ttft::explained_ttft_ns;
use super::{ALL, DetectContext, Detector, Keep};
use crate::clock::MonoNs;
use crate::ledger::{AffectedRequests, CountedRids, OccurrenceTimes};
use crate::stats::WINDOW_NS;
use crate::words::names;

/// Kind of the findings about frames that wait, whatever their receiver does. One is only kept if no other finding explains the wait.
pub(super) const LATE_FRAMES: &str = "late-frames";

/// How bad a finding is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Information only.
    #[default]
    Info,
    /// Needs attention.
    Warning,
    /// Users are affected.
    Critical,
}

names! {
    Severity { Info = "info", Warning = "warning", Critical = "critical" }
}

impl Severity {
    pub(super) fn critical_if(critical: bool) -> Self {
        if critical { Self::Critical } else { Self::Warning }
    }
}

/// Result of one detector run for one place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Severity.
    pub severity: Severity,
    /// Hop concerned, that of deliveries included, or the role of the process that the problem is in; empty if none.
    pub hop: String,
    /// Worst affected request; empty if none.
    pub rid: String,
    /// Start of the problem; `None` means now, or the time of the first finding.
    pub since: Option<MonoNs>,
    /// Time of the last occurrence; `None` means now, if the number of occurrences has grown.
    pub last_at: Option<MonoNs>,
    /// All occurrences, where their times are recorded; not serialized.
    #[serde(skip)]
    pub times: OccurrenceTimes,
    /// Requests that it counts, where they are recorded; not serialized.
    #[serde(skip)]
    pub requests: CountedRids,
    /// Number of occurrences so far. `None` means a state, which lasts while it is found.
    pub occurrences: Option<u64>,
    /// One sentence, with numbers.
    pub summary: String,
    /// Numbers by name. Durations end in `_ns`.
    pub evidence: BTreeMap<String, Value>,
    /// Setting or release that fixes it, if known.
    pub advice: Option<String>,
    /// Among verdicts of equal severity on an intermittent problem, the one with the greatest weight is kept.
    pub weight: u64,
}

/// Evidence with the hop on which requests wait for the scheduler.
pub(super) const REQUESTS_HOP: &str = "requests_hop";

impl Verdict {
    /// Whether it concerns the hops of this name.
    pub fn concerns_hop(&self, name: &str) -> bool {
        self.hop == name || self.evidence.get(REQUESTS_HOP).is_some_and(|hop| hop == name)
    }

    pub(super) fn hop(&mut self, hop: &str) -> &mut Self {
        hop.clone_into(&mut self.hop);
        self
    }

    pub(super) fn rid(&mut self, rid: &str) -> &mut Self {
        rid.clone_into(&mut self.rid);
        self
    }

    /// Sets the affected requests with the worst one, and the times of the occurrences. Adds the number of affected requests under this name.
    pub(super) fn affected(&mut self, name: &str, seen: &AffectedRequests) -> &mut Self {
        self.rid(&seen.worst).times(seen.times).requests(&seen.requests).with(name, seen.rids)
    }

    /// Sets the start of the problem and the time of its last occurrence.
    pub(super) fn times(&mut self, times: OccurrenceTimes) -> &mut Self {
        self.times = times;
        self.since(times.first()).last_at(times.last())
    }

    /// Sets the requests that it counts.
    pub(super) fn requests(&mut self, requests: &CountedRids) -> &mut Self {
        self.requests = requests.clone();
        self
    }

    pub(super) fn last_at(&mut self, last_at: Option<MonoNs>) -> &mut Self {
        self.last_at = last_at;
        self
    }

    pub(super) fn since(&mut self, since: Option<MonoNs>) -> &mut Self {
        self.since = since;
        self
    }

    /// Sets the number of occurrences so far: the problem lasts until the last one is ten seconds ago.
    pub(super) fn occurrences(&mut self, count: u64) -> &mut Self {
        self.occurrences = Some(count);
        self
    }

    pub(super) fn with(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        self.evidence.insert(name.to_owned(), value.into());
        self
    }

    /// Adds a number as evidence, if it is known.
    pub(super) fn with_known(&mut self, name: &str, value: Option<impl Into<Value>>) -> &mut Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    pub(super) fn advice(&mut self, advice: impl Into<String>) -> &mut Self {
        self.advice = Some(advice.into());
        self
    }

    /// Adds a number that is also the weight.
    pub(super) fn weighed(&mut self, name: &str, number: u64) -> &mut Self {
        self.weight(number).with(name, number)
    }

    pub(super) fn weight(&mut self, weight: u64) -> &mut Self {
        self.weight = weight;
        self
    }
}

#[derive(Debug, Default)]
pub(super) struct Verdicts {
    pub(super) list: Vec<Verdict>,
}

impl Verdicts {
    /// Adds a verdict and returns it for further evidence.
    pub(super) fn add_verdict(&mut self, severity: Severity, summary: String) -> &mut Verdict {
        let index = self.list.len();
        self.list.push(Verdict { severity, summary, ..Verdict::default() });
        &mut self.list[index]
    }
}

/// A verdict with its history.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Finding {
    /// Kind of its detector.
    pub kind: &'static str,
    /// Start of the problem.
    pub began: MonoNs,
    /// End of its last occurrence. A state occurs as long as detectors find it, so its end is correct to the interval between their runs.
    pub last_at: MonoNs,
    /// Whether it lasts: a state that the last detector run found, or occurrences in the last ten seconds.
    pub active: bool,
    /// Detector run that last changed `active`; `None` if it never lasted.
    pub changed_at: Option<MonoNs>,
    /// Latest verdict; for an intermittent problem, its worst moment.
    pub verdict: Verdict,
    /// Number of occurrences at `last_at`.
    pub occurrences: u64,
    /// Episodes from `began` to `last_at`.
    pub times: OccurrenceTimes,
}

/// Whether a problem lasts at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FindingPhase {
    /// It is found at this moment, or occurred in the second before.
    Lasts,
    /// It occurred in the last ten seconds, but not in the last one: it may occur again.
    Pauses,
    /// It is over.
    Ended,
}

impl Finding {
    /// Whether the problem lasts at `now`. Every output says it in the words for this phase.
    pub fn phase(&self, now: MonoNs) -> FindingPhase {
        FindingPhase::new(self.active, now.since(self.last_at))
    }

    /// Whether both were present at one time.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.began <= other.last_at && other.began <= self.last_at
    }

    /// End of the problem; `None` while it lasts.
    pub fn ended_at(&self) -> Option<MonoNs> {
        (!self.active).then_some(self.last_at)
    }
}

impl FindingPhase {
    /// Phase of a problem whose last occurrence was `since_last_ns` ago. `is_active`: it lasts, or that was less than ten seconds ago.
    pub fn new(is_active: bool, since_last_ns: u64) -> Self {
        const NOW_NS: u64 = 1_000_000_000;
        if !is_active {
            Self::Ended
        } else if since_last_ns < NOW_NS {
            Self::Lasts
        } else {
            Self::Pauses
        }
    }
}

/// Where the frames of a finding's hop go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum HopTarget {
    /// To the scheduler: they are requests.
    Scheduler,
    /// To the tokenizer.
    Tokenizer,
    /// To another process, or the finding has no hop.
    #[default]
    Other,
}

/// Findings so far: one per kind and hop.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    pub(super) list: Vec<Finding>,
    /// Time to first token that the findings of a kind explain; without kinds that explain none.
    pub(super) ttft_ns: BTreeMap<&'static str, u128>,
    /// Where the frames of each hop go that a finding names.
    pub(super) targets: BTreeMap<String, HopTarget>,
    /// Time of the last update.
    pub(super) updated_at: MonoNs,
}

impl Findings {
    /// Runs every detector.
    pub fn update(&mut self, context: &DetectContext<'_>) {
        self.updated_at = context.now;
        let was_active: Vec<bool> = self.list.iter().map(|finding| finding.active).collect();
        let mut found = Verdicts::default();
        for detector in ALL {
            if let Some(ns) = explained_ttft_ns(context.ledger.ttft(), detector.kind).filter(|ns| *ns > 0) {
                self.ttft_ns.insert(detector.kind, ns);
            }
            (detector.check)(context, &mut found);
            for finding in self.list.iter_mut().filter(|finding| finding.kind == detector.kind) {
                // Until a verdict finds it again.
                finding.active = false;
            }
            for verdict in found.list.drain(..) {
                self.add_verdict(detector, verdict, context.now);
            }
        }
        for (index, finding) in self.list.iter_mut().enumerate() {
            // New findings are at the end.
            if finding.active != was_active.get(index).copied().unwrap_or(false) {
                finding.changed_at = Some(context.now);
            }
        }
        self.drop_explained();
        self.targets.clear();
        for hop in self.list.iter().map(|finding| &finding.verdict.hop).filter(|hop| !hop.is_empty()) {
            self.targets.insert(hop.clone(), context.hop_target(hop));
        }
    }

    /// Drops findings about late frames if other findings about the same hop name the cause, or the harm, of each of its episodes.
    fn drop_explained(&mut self) {
        let explained: Vec<bool> =
            self.list.iter().map(|finding| finding.kind == LATE_FRAMES && self.is_explained(finding)).collect();
        let mut explained = explained.into_iter();
        self.list.retain(|_| explained.next() != Some(true));
    }

    fn is_explained(&self, late: &Finding) -> bool {
        late.times.episodes().iter().all(|episode| {
            let mut others =
                self.list.iter().filter(|other| other.kind != LATE_FRAMES && other.verdict.hop == late.verdict.hop);
            others.any(|other| other.verdict.severity > Severity::Info && other.times.overlap(episode))
        })
    }

    fn add_verdict(&mut self, &Detector { kind, keep, .. }: &Detector, verdict: Verdict, now: MonoNs) {
        if let Some(known) = self
            .list
            .iter_mut()
            .find(|f| f.kind == kind && (keep == Keep::LatestOfAllHops || f.verdict.hop == verdict.hop))
        {
            let is_state = verdict.occurrences.is_none();
            let occurrences = verdict.occurrences.unwrap_or(0);
            let last_at = match verdict.last_at {
                _ if is_state => now,
                Some(last_at) => last_at,
                // A count that does not grow means that nothing happened since the last check.
                None if occurrences > known.occurrences => now,
                None => known.last_at,
            };
            known.last_at = known.last_at.max(last_at);
            known.occurrences = known.occurrences.max(occurrences);
            known.active = now.since(known.last_at) < WINDOW_NS;
            known.began = verdict.since.map_or(known.began, |since| since.min(known.began));
            known.times.merge(&verdict.times);
            if verdict.times.first().is_none() && known.last_at > known.times.last().unwrap_or_default() {
                known.times.record_span(verdict.since.unwrap_or(last_at).min(last_at), last_at);
            } else if is_state {
                known.times.record(now);
            }
            let worse = (verdict.severity, verdict.weight) >= (known.verdict.severity, known.verdict.weight);
            if worse || keep != Keep::Worst {
                known.verdict = verdict;
            }
        } else {
            let began = verdict.since.unwrap_or(now);
            let occurrences = verdict.occurrences.unwrap_or(0);
            let last_at = verdict.last_at.filter(|_| verdict.occurrences.is_some()).unwrap_or(now).max(began);
            let active = now.since(last_at) < WINDOW_NS;
            let mut times = verdict.times;
            if times.first().is_none() {
                times.record_span(began, last_at);
            } else if verdict.occurrences.is_none() {
                times.record(last_at);
            }
            self.list.push(Finding { kind, began, last_at, active, changed_at: None, verdict, occurrences, times });
        }
    }

    /// Worst severity among the findings.
    pub fn worst(&self) -> Option<Severity> {
        self.list.iter().map(|f| f.verdict.severity).max()
    }
}

#[cfg(test)]
mod tests {
    use super::super::detector;
    use super::*;

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
        let list = findings.sorted();
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
    fn a_finding_lasts_for_a_second_and_is_over_after_ten() {
        const SECOND: u64 = 1_000_000_000;
        let phases = [(true, 0), (true, SECOND), (false, 0)].map(|(active, ns)| FindingPhase::new(active, ns));
        assert_eq!(phases, [FindingPhase::Lasts, FindingPhase::Pauses, FindingPhase::Ended]);
    }

    #[test]
    fn a_lasting_finding_shows_its_current_severity() {
        let mut findings = Findings::default();
        findings.add_verdict(&LASTING, verdict(Severity::Warning, 10), MonoNs(5));
        findings.add_verdict(&LASTING, verdict(Severity::Info, 11), MonoNs(6));
        assert_eq!(findings.worst(), Some(Severity::Info));
    }
}
