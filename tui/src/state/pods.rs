//! Runs of the engines of a machine, or of other tokengap processes: one line each, and their sum; and the pairs among them.

use outputs::report::bar::{Segment, merge_small_segments};
use outputs::report::{FindingLine, PairReport, PairRequestLine, TtftGroupLine};
use trace::detect::order::FindingRank;
use trace::words::{count, plural};

use super::flags::{Health, RunVerdict};
use super::waiting::WaitingRequests;

labelled! {
    /// State of the connection to a source.
    #[derive(Default)]
    pub PodState {
        /// Not reached yet.
        #[default]
        Away = "away",
        /// Connected and receiving messages.
        Live = "live",
        /// Connected, but no messages arrive.
        Silent = "SILENT",
        /// Was reached before, but is not connected.
        Lost = "LOST",
        /// An engine of this machine that is not running, or that could not be attached to.
        Waiting = "waiting",
        /// Ended normally.
        Ended = "ended",
    }
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodLine {
    /// Name reported by the source, or its address until the name is known.
    pub name: String,
    /// Role of the engine: `prefill` or `decode`, otherwise `single`; empty if it is not known.
    pub role: &'static str,
    /// Port of the engine's HTTP server, if known.
    pub port: Option<u16>,
    /// Name of the model; empty if it is not known.
    pub model: String,
    /// State of the connection.
    pub state: PodState,
    /// Time in this connection state, in nanoseconds.
    pub state_age_ns: u64,
    /// Reason why the source is away or lost.
    pub reason: String,
    /// Missed records.
    pub records_missed: u64,
    /// Wall-clock time at which its numbers begin, in nanoseconds since the Unix epoch, if the run began earlier.
    pub begun_wall_ns: Option<u64>,
    /// Key figures.
    pub figures: KeyFigures,
}

impl PodLine {
    /// Whether this is a decode server, and of the same model as the prefill server as far as both are known.
    fn may_decode_for(&self, prefill: &Self) -> bool {
        let is_same_model = self.model == prefill.model || self.model.is_empty() || prefill.model.is_empty();
        self.role == "decode" && is_same_model
    }
}

/// A decode server with its prefill servers, joined while they run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PairLine {
    pub(crate) decode: String,
    pub(crate) prefill: Vec<String>,
    /// Requests of both sides.
    pub(crate) requests: u64,
    /// Number of finished requests of each server that were read, if there are more.
    pub(crate) newest_finished: Option<u64>,
    /// The leg that takes most of the time to first token.
    pub(crate) worst_leg: String,
    /// Its worst finding.
    pub(crate) finding: Option<PairProblem>,
}

/// A request that the screen shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownRequest {
    /// Index of the shown run.
    pub run_index: usize,
    /// Its id in that run.
    pub rid: String,
}

/// The shown request on its way through both servers of a pair.
#[derive(Clone, Debug, PartialEq)]
pub struct PairRequest {
    /// Which request it is.
    pub shown: ShownRequest,
    /// Name of the decode server.
    pub decode: String,
    /// Name of the prefill server.
    pub prefill: String,
    /// Its legs on both.
    pub line: PairRequestLine,
}

impl PairRequest {
    /// Describes the request: its servers with `arrow` between them, and its bootstrap room, the number by which both servers know it. If
    /// its id differs on the server that is not shown, that id follows.
    pub(crate) fn describe(&self, arrow: &str) -> String {
        let PairRequestLine { room, prefill_rid, decode_rid, .. } = &self.line;
        let room_suffix = room.as_ref().map_or_else(String::new, |room| format!(", room {room}"));
        let servers_and_room = format!("{} {arrow} {}{room_suffix}", self.prefill, self.decode);
        if prefill_rid == decode_rid {
            servers_and_room
        } else if self.shown.rid == *decode_rid {
            format!("{servers_and_room}, {prefill_rid} on {}", self.prefill)
        } else {
            format!("{servers_and_room}, {decode_rid} on {}", self.decode)
        }
    }

    /// Parts of its time to first token on both servers.
    pub(crate) fn segments(&self) -> Vec<Segment> {
        merge_small_segments(self.line.segments())
    }
}

/// The worst finding of a pair.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PairProblem {
    /// Kind of the finding.
    pub(crate) kind: String,
    pub(crate) verdict: RunVerdict,
    /// Rank of the finding among those of the runs.
    pub(crate) rank: FindingRank,
}

impl PairProblem {
    fn new(finding: &FindingLine) -> Self {
        let verdict = RunVerdict {
            health: finding.severity.into(),
            text: finding.summary.clone(),
            advice: finding.advice.clone(),
            ..RunVerdict::default()
        };
        let rank = FindingRank {
            severity: finding.severity,
            // A finding of the ten seconds before the join has no end.
            is_recent: finding.ended_at_ns.is_none(),
            explained_ns: finding.explained_ns.unwrap_or(0),
        };
        Self { kind: finding.kind.clone(), verdict, rank }
    }

    /// The finding of the highest rank, by which the report orders them; `None` if the pair has none.
    fn worst_of(report: &PairReport) -> Option<Self> {
        let problems = report.findings().iter().map(Self::new);
        // Of equal ones, `max_by_key` has the last, which is the first of the reversed list.
        problems.rev().max_by_key(|problem| problem.rank)
    }
}

impl PairLine {
    /// Whether the run with this name is one of its servers.
    pub(super) fn has_server(&self, name: &str) -> bool {
        self.decode == name || self.prefill.iter().any(|prefill| prefill == name)
    }

    /// The line of a pair whose decode server has this name. The report's headline names the leg, the part of the time to first token, that
    /// takes most of it.
    pub fn new(decode: &str, report: &PairReport) -> Self {
        Self {
            decode: decode.to_owned(),
            prefill: report.prefill.iter().map(|server| server.name.clone()).collect(),
            requests: report.requests,
            newest_finished: report.newest_finished,
            worst_leg: report.headline.clone(),
            finding: PairProblem::worst_of(report),
        }
    }

    /// Describes the servers, with this arrow between them, the number of requests found on both, and the part of the time to first token
    /// that takes most of it.
    pub fn describe(&self, arrow: &str) -> String {
        let servers = format!("{} {arrow} {}", self.prefill.join(" + "), self.decode);
        // The join reads a limited number of requests, so it may lack older ones.
        let newest =
            self.newest_finished.map_or_else(String::new, |limit| format!(" (newest {} of each)", count(limit)));
        format!("{servers}: {}{newest}; {}", plural(self.requests, "joined request"), self.worst_leg)
    }
}

/// Key figures of a run. `None` means not observable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KeyFigures {
    /// `None` before a second is over.
    pub(crate) tokens_per_s: Option<f64>,
    pub(crate) requests_live: u64,
    pub(crate) requests_seen: u64,
    /// Time to first token over the run.
    pub(crate) ttft_p50_ns: Option<u64>,
    pub(crate) ttft_p99_ns: Option<u64>,
    /// The longest part of the time to first token.
    pub(crate) worst_leg: Option<WorstLeg>,
    /// Requests that have no first token yet; `None` without any.
    pub(crate) waiting: Option<WaitingRequests>,
    /// First-token gap over the last ten seconds.
    pub(crate) gap_p99_ns: Option<u64>,
    /// Frames sent but not received.
    pub(crate) backlog_frames: Option<u64>,
    /// Tokens proven lost.
    pub(crate) tokens_lost: Option<u64>,
    /// Kind of the worst active finding, if it is at least a warning. Of a decode server, it may be that of its pair.
    pub(crate) finding: Option<String>,
    pub(crate) verdict: RunVerdict,
    /// Highest rank of a finding among those of other runs.
    pub(crate) worst_rank: FindingRank,
}

/// Part of the time to first token with the largest share.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WorstLeg {
    pub(crate) name: String,
    /// From 0 to 1.
    pub(crate) share: f64,
    /// It is the wait of the requests that have no first token yet, of which no leg is known.
    pub(crate) is_wait: bool,
}

impl WorstLeg {
    /// The part that takes most of the requests' time. That is the longest leg of the times to first token (`ttft`), or the wait of the
    /// requests that have no first token yet (`total_wait_ns`), whichever is longer. `None` without requests of either kind.
    pub(super) fn find(ttft: Option<&TtftGroupLine>, total_wait_ns: u128) -> Option<Self> {
        let longest = ttft.and_then(TtftGroupLine::longest_leg);
        // Sums over all requests that have a first token.
        let total_ttft_ns = ttft.map_or(0.0, |ttft| ttft.mean_ns as f64 * ttft.ns.count as f64);
        let longest_leg_ns = longest.map_or(0.0, |leg| leg.share * total_ttft_ns);
        let waited_ns = total_wait_ns as f64;
        if waited_ns > longest_leg_ns {
            let share = waited_ns / (total_ttft_ns + waited_ns);
            return Some(Self { name: "waiting".to_owned(), share, is_wait: true });
        }
        longest.map(|leg| Self { name: leg.name.clone(), share: leg.share, is_wait: false })
    }
}

impl KeyFigures {
    /// Key figures of all runs (pods) together: sums of the traffic, the longest times, and the worst verdict.
    ///
    /// In a pair, a prefill and a decode server process the same request, and both send its first token. The request is counted once: on
    /// the decode server, if that is among the runs.
    pub(crate) fn combine(pods: &[PodLine]) -> Self {
        let mut combined = Self::default();
        for pod in pods {
            let figures = &pod.figures;
            let is_counted_by_decode_server =
                pod.role == "prefill" && pods.iter().any(|other| other.may_decode_for(pod));
            if !is_counted_by_decode_server {
                combined.add_traffic(figures);
            }
            // `None` is less than any known time.
            combined.gap_p99_ns = combined.gap_p99_ns.max(figures.gap_p99_ns);
            combined.ttft_p99_ns = combined.ttft_p99_ns.max(figures.ttft_p99_ns);
        }
        // A run without requests has nothing to lose, so its unknown values do not make a sum unknown.
        let with_requests = pods.iter().map(|pod| &pod.figures).filter(|figures| figures.requests_seen > 0);
        combined.backlog_frames = sum_or_unknown(with_requests.clone().map(|figures| figures.backlog_frames));
        combined.tokens_lost = sum_or_unknown(with_requests.map(|figures| figures.tokens_lost));
        combined.take_worst_verdict(pods);
        combined
    }

    /// Adds the requests and the token rate of one run. The sum of the rates stays unknown until one of them is known.
    fn add_traffic(&mut self, figures: &Self) {
        self.requests_live += figures.requests_live;
        self.requests_seen += figures.requests_seen;
        if let Some(rate) = figures.tokens_per_s {
            self.tokens_per_s = Some(self.tokens_per_s.unwrap_or(0.0) + rate);
        }
    }

    /// Takes over the finding of the pair whose decode server this run is, unless the run has a worse one of its own. The report of a
    /// decode server has the findings of its pair, too.
    pub(super) fn adopt_pair_finding_if_worse(&mut self, problem: &PairProblem) {
        // Mere information is in no headline.
        let is_problem = problem.verdict.health >= Health::Warning;
        // Of equal findings, the report has that of the pair first.
        if is_problem && problem.rank >= self.worst_rank {
            self.finding = Some(problem.kind.clone());
            self.verdict = problem.verdict.clone();
            self.worst_rank = problem.rank;
        }
    }

    /// Takes over the verdict of the worst run, with the name of the run before its text. Does nothing without runs.
    fn take_worst_verdict(&mut self, pods: &[PodLine]) {
        // Reversed, so that the first one counts of several that are equally bad.
        let worst = pods.iter().rev().max_by_key(|pod| (pod.figures.verdict.health, pod.figures.worst_rank));
        let Some(worst) = worst else { return };
        let verdict = &worst.figures.verdict;
        // A run that was not observed yet has no text.
        let separator = if verdict.text.is_empty() { "" } else { ": " };
        let text = format!("{}{separator}{}", worst.name, verdict.text);
        self.verdict = RunVerdict { text, ..verdict.clone() };
        self.worst_rank = worst.figures.worst_rank;
    }
}

/// Sum of the known values; `None` if none is known.
pub(super) fn sum_known(values: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    values.flatten().reduce(|a, b| a + b)
}

/// Sum of the known values. `None` if a value is unknown and the others add up to 0, which would look like an observed 0.
fn sum_or_unknown(values: impl Iterator<Item = Option<u64>> + Clone) -> Option<u64> {
    let is_complete = values.clone().all(|value| value.is_some());
    sum_known(values).filter(|sum| is_complete || *sum > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::flags::Health;

    fn pod(name: &str, tokens_per_s: Option<f64>, gap_p99_ns: Option<u64>, health: Health) -> PodLine {
        let verdict = RunVerdict { health, text: "as it is".into(), ..RunVerdict::default() };
        PodLine {
            name: name.into(),
            figures: KeyFigures { tokens_per_s, gap_p99_ns, verdict, ..KeyFigures::default() },
            ..PodLine::default()
        }
    }

    #[test]
    fn the_sum_has_the_longest_gap_and_worst_verdict_and_keeps_unknowns() {
        let all = KeyFigures::combine(&[
            pod("a", Some(10.0), Some(5), Health::Good),
            pod("b", Some(20.0), Some(9), Health::Critical),
            pod("c", None, None, Health::Unknown),
        ]);
        assert!(all.tokens_per_s.is_some_and(|rate| (rate - 30.0).abs() < 1e-9));
        assert_eq!((all.gap_p99_ns, all.tokens_lost, all.backlog_frames), (Some(9), None, None));
        assert_eq!(all.verdict.text, "b: as it is");
        let mut longer = pod("d", None, None, Health::Critical);
        longer.figures.worst_rank.explained_ns = 1;
        let two = [pod("b", None, None, Health::Critical), longer, pod("e", None, None, Health::Critical)];
        assert_eq!(KeyFigures::combine(&two).verdict.text, "d: as it is");

        let of_role = |role| {
            let figures = KeyFigures { requests_seen: 100, tokens_per_s: Some(5.0), ..KeyFigures::default() };
            PodLine { role, figures, ..PodLine::default() }
        };
        let pair = [of_role("prefill"), of_role("decode"), of_role("single")];
        assert_eq!(KeyFigures::combine(&pair).requests_seen, 200, "a request of a pair counts once");
        assert_eq!(KeyFigures::combine(&pair[..1]).requests_seen, 100);
        assert_eq!(KeyFigures::combine(&[]), KeyFigures::default());

        let of_model = |role, model: &str| PodLine { model: model.into(), ..of_role(role) };
        let elsewhere = [of_model("prefill", "a"), of_model("decode", "b")];
        assert_eq!(KeyFigures::combine(&elsewhere).requests_seen, 200, "the decode server of the first is elsewhere");
        let same = [of_model("prefill", "a"), of_model("decode", "a"), of_model("prefill", "")];
        assert_eq!(KeyFigures::combine(&same).requests_seen, 100);
    }

    #[test]
    fn an_unknown_loss_is_no_loss_of_0() {
        for (lost, expected) in
            [([Some(0), Some(0)], Some(0)), ([Some(0), None], None), ([Some(7), None], Some(7)), ([None, None], None)]
        {
            let pods = lost.map(|tokens_lost| {
                let figures = KeyFigures { requests_seen: 1, tokens_lost, ..KeyFigures::default() };
                PodLine { figures, ..PodLine::default() }
            });
            assert_eq!(KeyFigures::combine(&pods).tokens_lost, expected, "{lost:?}");
            let with_idle = [pods[0].clone(), PodLine::default()];
            assert_eq!(KeyFigures::combine(&with_idle).tokens_lost, lost[0]);
        }
    }
}
