//! Watched runs of other tokengap processes: one line each, and their sum.

use super::flags::Verdict;

labelled! {
    /// State of the connection to a source.
    #[derive(Default)]
    pub Link {
        /// Not reached yet.
        #[default]
        Away = "away",
        /// Connected and receiving messages.
        Live = "live",
        /// Connected, but no messages arrive.
        Silent = "SILENT",
        /// Was reached before, but is not connected.
        Lost = "LOST",
        /// Ended normally.
        Ended = "ended",
    }
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodLine {
    /// Name reported by the source, or its address until the name is known.
    pub name: String,
    /// State of the connection.
    pub link: Link,
    /// Time in this connection state, in nanoseconds.
    pub since_ns: u64,
    /// Reason why the source is away or lost.
    pub why: String,
    /// Missed records.
    pub missed: u64,
    /// Wall-clock time at which its numbers begin, in nanoseconds since the Unix epoch, if the run began earlier.
    pub begun_wall_ns: Option<u64>,
    /// Key figures.
    pub brief: Brief,
}

/// Key figures of a run. `None` means not observable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Brief {
    pub(crate) tokens_per_s: f64,
    pub(crate) live: u64,
    pub(crate) seen: u64,
    /// First-token gap over the last ten seconds.
    pub(crate) gap_p99: Option<u64>,
    /// Frames sent but not received.
    pub(crate) backlog: Option<u64>,
    /// Tokens proven lost.
    pub(crate) tokens_lost: Option<u64>,
    pub(crate) verdict: Verdict,
}

impl Brief {
    /// Key figures of all runs: sums, the longest gap and the worst verdict.
    pub(crate) fn all(pods: &[PodLine]) -> Self {
        let briefs = || pods.iter().map(|pod| &pod.brief);
        let worst = pods.iter().max_by_key(|pod| pod.brief.verdict.health);
        Self {
            tokens_per_s: briefs().map(|b| b.tokens_per_s).sum(),
            live: briefs().map(|b| b.live).sum(),
            seen: briefs().map(|b| b.seen).sum(),
            gap_p99: briefs().filter_map(|b| b.gap_p99).max(),
            backlog: sum(briefs().map(|b| b.backlog)),
            tokens_lost: sum(briefs().map(|b| b.tokens_lost)),
            verdict: worst.map_or_else(Verdict::default, |pod| Verdict {
                health: pod.brief.verdict.health,
                text: format!("{}: {}", pod.name, pod.brief.verdict.text),
            }),
        }
    }
}

/// Sum of the known values; `None` if none is known.
pub(super) fn sum(of: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    of.flatten().reduce(|a, b| a + b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::flags::Health;

    fn pod(name: &str, tokens_per_s: f64, gap_p99: Option<u64>, health: Health) -> PodLine {
        let verdict = Verdict { health, text: "as it is".into() };
        PodLine {
            name: name.into(),
            brief: Brief { tokens_per_s, gap_p99, verdict, ..Brief::default() },
            ..PodLine::default()
        }
    }

    #[test]
    fn the_sum_has_the_longest_gap_and_worst_verdict_and_keeps_unknowns() {
        let all = Brief::all(&[
            pod("a", 10.0, Some(5), Health::Good),
            pod("b", 20.0, Some(9), Health::Critical),
            pod("c", 0.0, None, Health::Unknown),
        ]);
        assert!((all.tokens_per_s - 30.0).abs() < 1e-9);
        assert_eq!((all.gap_p99, all.tokens_lost, all.backlog), (Some(9), None, None));
        assert_eq!(all.verdict.text, "b: as it is");
        assert_eq!(Brief::all(&[]), Brief::default());
    }
}
