//! A detector's verdict, and a verdict with its history.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clock::MonoNs;
use crate::ledger::{AffectedRequests, CountedRids, OccurrenceTimes};
use crate::words::names;

/// Kind of the findings about frames that wait, whatever their receiver does. One is only kept if no other finding explains the wait.
pub(super) const LATE_FRAMES: &str = "late-frames";

/// Whether findings of this kind say what a thread did while frames waited for it.
pub(super) fn is_about_receiver(kind: &str) -> bool {
    kind.starts_with("consumer-") || kind == "io-thread-starved"
}

/// Whether requests are counted that findings of this kind held up.
pub(super) fn holds_requests(kind: &str) -> bool {
    is_about_receiver(kind) || kind == "backlog" || kind == LATE_FRAMES
}

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

    /// Sets the name of the affected hop. A process whose problem concerns no hop is named by its role instead.
    pub(super) fn hop(&mut self, hop: &str) -> &mut Self {
        hop.clone_into(&mut self.hop);
        self
    }

    pub(super) fn rid(&mut self, rid: &str) -> &mut Self {
        rid.clone_into(&mut self.rid);
        self
    }

    /// Sets the affected requests with the worst one, and the times of the occurrences. Adds the number of affected requests under this
    /// name.
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

    /// Sets the number of occurrences so far. A problem with such a number lasts until ten seconds after its last occurrence.
    pub(super) fn occurrences(&mut self, count: u64) -> &mut Self {
        self.occurrences = Some(count);
        self
    }

    /// Adds a value as evidence under this name.
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

    /// Adds a number as evidence that is also the weight. Of two verdicts with equal severity, the one with more weight is the worse one.
    pub(super) fn with_weight(&mut self, name: &str, number: u64) -> &mut Self {
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
    /// Adds a verdict and returns it, so that the caller can add its evidence and advice.
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

/// Time after its last occurrence for which a problem is said to last.
pub const LASTING_NS: u64 = 1_000_000_000;

impl FindingPhase {
    /// Phase of a problem whose last occurrence was `since_last_ns` ago. A problem stays active for ten seconds after its last occurrence,
    /// and then ends. While it is active but does not occur, it pauses.
    pub fn new(is_active: bool, since_last_ns: u64) -> Self {
        if !is_active {
            Self::Ended
        } else if since_last_ns < LASTING_NS {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_lasts_for_a_second_and_is_over_after_ten() {
        const SECOND: u64 = 1_000_000_000;
        let phases = [(true, 0), (true, SECOND), (false, 0)].map(|(active, ns)| FindingPhase::new(active, ns));
        assert_eq!(phases, [FindingPhase::Lasts, FindingPhase::Pauses, FindingPhase::Ended]);
    }
}
