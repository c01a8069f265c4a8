//! Decides when to dump the ring automatically: some seconds after a finding starts, so that its onset is included.

use std::collections::HashSet;

use trace::MonoNs;
use trace::detect::{Finding, Severity};

use crate::playback::FindingKey;

/// Delay after the detector run that first reported the finding.
const DUMP_DELAY_NS: u64 = 5_000_000_000;

/// Conditions and limits of automatic dumps.
#[derive(Clone, Copy, Debug)]
pub struct DumpRules {
    /// Minimum severity.
    pub min_severity: Severity,
    /// Minimum time between two dumps.
    pub min_interval_ns: Option<u64>,
    /// Maximum number of dumps kept.
    pub max_dumps: Option<u32>,
}

#[derive(Debug)]
struct ScheduledDump {
    at: MonoNs,
    reason: String,
}

/// Detects findings that start.
#[derive(Debug)]
pub(super) struct DumpTrigger {
    pub(super) rules: DumpRules,
    last_dump: Option<MonoNs>,
    /// Findings that have already triggered a dump.
    dumped_findings: HashSet<FindingKey>,
    scheduled: Option<ScheduledDump>,
}

impl DumpTrigger {
    pub(super) fn new(rules: DumpRules) -> Self {
        Self { rules, last_dump: None, dumped_findings: HashSet::new(), scheduled: None }
    }

    /// Schedules a dump of the hindsight ring, some seconds from now, if a severe finding has started. Then returns the reason of the
    /// scheduled dump if it is due now, and the caller makes that dump. `None` if no dump is due. `dump_count` counts the existing dumps.
    pub(super) fn schedule_dump_and_take_due_reason<'a>(
        &mut self,
        now: MonoNs,
        findings: impl IntoIterator<Item = &'a Finding>,
        dump_count: &dyn Fn() -> usize,
    ) -> Option<String> {
        self.schedule_dump(now, findings, dump_count);
        let is_due = self.scheduled.as_ref().is_some_and(|dump| dump.at <= now);
        if !is_due {
            return None;
        }
        self.last_dump = Some(now);
        // Without a minimum interval between dumps, each finding causes a single dump. With one, a finding that starts again may cause
        // another dump, because the interval limits their number.
        if self.rules.min_interval_ns.is_some() {
            self.dumped_findings.clear();
        }
        self.scheduled.take().map(|dump| dump.reason)
    }

    /// Schedules a dump if a severe finding has started since the last dump and the limits permit it.
    fn schedule_dump<'a>(
        &mut self,
        now: MonoNs,
        findings: impl IntoIterator<Item = &'a Finding>,
        dump_count: &dyn Fn() -> usize,
    ) {
        for finding in findings {
            let key = FindingKey::from(finding);
            let is_wanted = self.wants_dump(finding, &key, now);
            // The limit is checked last, because counting the dumps reads a folder. A finding that is skipped at the limit is checked
            // again at the next tick, while it is active.
            if is_wanted && !self.is_at_the_limit(dump_count) {
                self.dumped_findings.insert(key);
                // The delay lets the dump contain what follows the start of the finding.
                let at = MonoNs(now.0.saturating_add(DUMP_DELAY_NS));
                // One dump covers all findings that start before it.
                self.scheduled.get_or_insert_with(|| ScheduledDump { at, reason: finding.kind.to_owned() });
            }
        }
    }

    fn is_at_the_limit(&self, dump_count: &dyn Fn() -> usize) -> bool {
        self.rules.max_dumps.is_some_and(|max| dump_count() >= max as usize)
    }

    /// Whether a dump is to be made for the finding, apart from the limit of their number: it is severe, it has no dump, and none was made
    /// just before.
    fn wants_dump(&self, finding: &Finding, key: &FindingKey, now: MonoNs) -> bool {
        let is_severe = finding.active && finding.verdict.severity >= self.rules.min_severity;
        is_severe && !self.is_too_soon_after_last_dump(now) && !self.dumped_findings.contains(key)
    }

    /// Whether the last dump is less than the minimum interval ago. Never before the first dump, or without a minimum interval.
    fn is_too_soon_after_last_dump(&self, now: MonoNs) -> bool {
        let (Some(last_dump), Some(min_interval_ns)) = (self.last_dump, self.rules.min_interval_ns) else {
            return false;
        };
        now.since(last_dump) < min_interval_ns
    }

    /// Reason of a dump that is not due yet when the run ends.
    pub(super) fn scheduled_reason(&self) -> Option<&str> {
        self.scheduled.as_ref().map(|dump| dump.reason.as_str())
    }
}

#[cfg(test)]
mod tests {
    use trace::detect::Verdict;

    use super::*;

    fn finding(kind: &'static str, severity: Severity, active: bool) -> Finding {
        let verdict = Verdict { severity, ..Verdict::default() };
        Finding { kind, active, verdict, ..Finding::default() }
    }

    fn rules(every: Option<u64>, max: Option<u32>) -> DumpRules {
        DumpRules {
            min_severity: Severity::Critical,
            min_interval_ns: every.map(|seconds| seconds * 1_000_000_000),
            max_dumps: max,
        }
    }

    const NONE: &dyn Fn() -> usize = &|| 0;

    fn second(n: u64) -> MonoNs {
        MonoNs(n * 1_000_000_000)
    }

    #[test]
    fn a_minimum_interval_dumps_a_lasting_finding_again_up_to_the_limit() {
        let mut trigger = DumpTrigger::new(rules(Some(60), Some(2)));
        let drops = finding("drops", Severity::Critical, true);
        let mut written = Vec::new();
        for n in 0..300 {
            if trigger.schedule_dump_and_take_due_reason(second(n), [&drops], &|| written.len()).is_some() {
                written.push(n);
            }
        }
        assert_eq!(written, [5, 70]);
        trigger.rules = rules(Some(60), Some(3));
        assert_eq!(trigger.schedule_dump_and_take_due_reason(second(300), [&drops], &|| 2), None);
        assert!(trigger.schedule_dump_and_take_due_reason(second(305), [&drops], &|| 2).is_some());
        assert_eq!(
            trigger.schedule_dump_and_take_due_reason(second(400), [&drops], &|| 3),
            None,
            "an earlier run's count"
        );
        assert_eq!(trigger.scheduled_reason(), None);
        trigger.schedule_dump_and_take_due_reason(second(410), [&drops], &|| 2);
        assert!(trigger.scheduled_reason().is_some(), "one was moved away");
    }

    #[test]
    fn a_finding_is_dumped_once_after_its_onset() {
        let mut trigger = DumpTrigger::new(rules(None, None));
        let drops = finding("drops", Severity::Critical, true);
        assert_eq!(
            trigger.schedule_dump_and_take_due_reason(second(1), [&finding("drops", Severity::Warning, true)], NONE),
            None
        );
        assert_eq!(trigger.schedule_dump_and_take_due_reason(second(2), [&drops], NONE), None);
        assert_eq!(trigger.scheduled_reason(), Some("drops"));
        assert_eq!(trigger.schedule_dump_and_take_due_reason(second(6), [&drops], NONE), None);
        assert_eq!(trigger.schedule_dump_and_take_due_reason(second(7), [&drops], NONE), Some("drops".into()));
        assert_eq!(trigger.schedule_dump_and_take_due_reason(second(60), [&drops], NONE), None);
        let gap = finding("gap", Severity::Critical, false);
        assert_eq!(
            (trigger.schedule_dump_and_take_due_reason(second(61), [&gap], NONE), trigger.scheduled_reason()),
            (None, None),
            "an inactive finding"
        );
    }
}
