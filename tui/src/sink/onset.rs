//! When the ring is to be written out by itself: some seconds after a finding has begun, so that its onset is inside.

use std::collections::HashSet;

use trace::MonoNs;
use trace::detect::{Finding, Severity};

/// How long after the first look that found it.
const AFTER_NS: u64 = 5_000_000_000;

/// Watches for findings that begin.
#[derive(Debug)]
pub(super) struct Onset {
    least: Severity,
    /// Kind and hop of those that have begun; each is written out once.
    known: HashSet<(&'static str, String)>,
    due: Option<(MonoNs, String)>,
}

impl Onset {
    pub(super) fn new(least: Severity) -> Self {
        Self {
            least,
            known: HashSet::new(),
            due: None,
        }
    }

    /// Looks at what has been found; why the ring is to be written out now, if it is.
    pub(super) fn look<'a>(&mut self, now: MonoNs, findings: impl IntoIterator<Item = &'a Finding>) -> Option<String> {
        for finding in findings {
            let severe = finding.active && finding.verdict.severity >= self.least;
            if severe && self.known.insert((finding.kind, finding.verdict.hop.clone())) {
                let due = MonoNs(now.0.saturating_add(AFTER_NS));
                self.due.get_or_insert_with(|| (due, finding.kind.to_owned()));
            }
        }
        let (_, why) = self.due.take_if(|(due, _)| *due <= now)?;
        Some(why)
    }

    /// What still was to be written out when the run ended.
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
        Finding {
            kind,
            began: MonoNs(0),
            active,
            verdict,
        }
    }

    #[test]
    fn a_trouble_is_written_out_once_and_with_its_onset() {
        let mut onset = Onset::new(Severity::Critical);
        let second = |n: u64| MonoNs(n * 1_000_000_000);
        let drops = finding("drops", Severity::Critical, true);
        assert_eq!(
            onset.look(second(1), [&finding("drops", Severity::Warning, true)]),
            None
        );
        assert_eq!(onset.look(second(2), [&drops]), None);
        assert_eq!(onset.pending(), Some("drops"));
        assert_eq!(onset.look(second(6), [&drops]), None);
        assert_eq!(onset.look(second(7), [&drops]), Some("drops".into()));
        assert_eq!(onset.look(second(60), [&drops]), None);
        let gap = finding("gap", Severity::Critical, false);
        assert_eq!(
            (onset.look(second(61), [&gap]), onset.pending()),
            (None, None),
            "it is over"
        );
    }
}
