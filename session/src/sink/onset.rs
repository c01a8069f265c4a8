//! Decides when to dump the ring automatically: some seconds after a finding starts, so that its onset is included.

use std::collections::HashSet;

use trace::MonoNs;
use trace::detect::{Finding, Severity};

/// Delay after the detector run that first reported the finding.
const AFTER_NS: u64 = 5_000_000_000;

/// Conditions and limits of automatic dumps.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Minimum severity.
    pub min_severity: Severity,
    /// Minimum time between two dumps.
    pub min_interval_ns: Option<u64>,
    /// Maximum number of dumps kept.
    pub max_dumps: Option<u32>,
}

/// Detects findings that start.
#[derive(Debug)]
pub(super) struct Onset {
    pub(super) rules: Rules,
    last: Option<MonoNs>,
    /// Kind and hop of findings that have already triggered a dump.
    known: HashSet<(&'static str, String)>,
    due: Option<(MonoNs, String)>,
}

impl Onset {
    pub(super) fn new(rules: Rules) -> Self {
        Self { rules, last: None, known: HashSet::new(), due: None }
    }

    /// Checks the findings and returns the reason for a dump that is due now. `copies` counts the existing dumps.
    pub(super) fn check<'a>(
        &mut self,
        now: MonoNs,
        findings: impl IntoIterator<Item = &'a Finding>,
        copies: &dyn Fn() -> usize,
    ) -> Option<String> {
        for finding in findings {
            let severe = finding.active && finding.verdict.severity >= self.rules.min_severity;
            let name = (finding.kind, finding.verdict.hop.clone());
            let due = severe && !self.is_too_soon(now) && !self.known.contains(&name);
            // A finding skipped because of a limit is checked again while it is active.
            if due && !self.is_at_the_limit(copies) {
                self.known.insert(name);
                let when = MonoNs(now.0.saturating_add(AFTER_NS));
                self.due.get_or_insert_with(|| (when, finding.kind.to_owned()));
            }
        }
        let (_, why) = self.due.take_if(|(due, _)| *due <= now)?;
        self.last = Some(now);
        // With a minimum interval, findings that start again later are dumped again.
        if self.rules.min_interval_ns.is_some() {
            self.known.clear();
        }
        Some(why)
    }

    fn is_at_the_limit(&self, copies: &dyn Fn() -> usize) -> bool {
        self.rules.max_dumps.is_some_and(|max| copies() >= max as usize)
    }

    fn is_too_soon(&self, now: MonoNs) -> bool {
        let since = self.last.map(|last| now.since(last));
        since.is_some_and(|since| self.rules.min_interval_ns.is_some_and(|every| since < every))
    }

    /// Reason of a dump that is not due yet when the run ends.
    pub(super) fn pending(&self) -> Option<&str> {
        self.due.as_ref().map(|(_, why)| why.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use trace::detect::Verdict;

    use super::*;

    fn finding(kind: &'static str, severity: Severity, active: bool) -> Finding {
        let verdict = Verdict {
            severity,
            hop: String::new(),
            rid: String::new(),
            since: None,
            summary: String::new(),
            evidence: BTreeMap::default(),
            advice: None,
            weight: 0,
        };
        Finding { kind, began: MonoNs(0), active, verdict }
    }

    fn rules(every: Option<u64>, max: Option<u32>) -> Rules {
        Rules { min_severity: Severity::Critical, min_interval_ns: every.map(|s| s * 1_000_000_000), max_dumps: max }
    }

    const NONE: &dyn Fn() -> usize = &|| 0;

    fn second(n: u64) -> MonoNs {
        MonoNs(n * 1_000_000_000)
    }

    #[test]
    fn a_minimum_interval_dumps_a_lasting_finding_again_up_to_the_limit() {
        let mut onset = Onset::new(rules(Some(60), Some(2)));
        let drops = finding("drops", Severity::Critical, true);
        let mut written = Vec::new();
        for n in 0..300 {
            if onset.check(second(n), [&drops], &|| written.len()).is_some() {
                written.push(n);
            }
        }
        assert_eq!(written, [5, 70]);
        onset.rules = rules(Some(60), Some(3));
        assert_eq!(onset.check(second(300), [&drops], &|| 2), None);
        assert!(onset.check(second(305), [&drops], &|| 2).is_some());
        assert_eq!(onset.check(second(400), [&drops], &|| 3), None, "an earlier run's count");
        assert_eq!(onset.pending(), None);
        onset.check(second(410), [&drops], &|| 2);
        assert!(onset.pending().is_some(), "one was moved away");
    }

    #[test]
    fn a_finding_is_dumped_once_after_its_onset() {
        let mut onset = Onset::new(rules(None, None));
        let drops = finding("drops", Severity::Critical, true);
        assert_eq!(onset.check(second(1), [&finding("drops", Severity::Warning, true)], NONE), None);
        assert_eq!(onset.check(second(2), [&drops], NONE), None);
        assert_eq!(onset.pending(), Some("drops"));
        assert_eq!(onset.check(second(6), [&drops], NONE), None);
        assert_eq!(onset.check(second(7), [&drops], NONE), Some("drops".into()));
        assert_eq!(onset.check(second(60), [&drops], NONE), None);
        let gap = finding("gap", Severity::Critical, false);
        assert_eq!((onset.check(second(61), [&gap], NONE), onset.pending()), (None, None), "an inactive finding");
    }
}
