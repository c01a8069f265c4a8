//! Plain values shown on the screen, read from the analysis a few times a second.

use std::collections::BTreeMap;

use outputs::report::bar::Segment;
use outputs::report::{Chunks, Itl, Requests, StackLine, Tokens, TtftGroupLine};
use session::playback::{PlaybackState, Position};
use session::sink::OutputStatus;
use session::units::{format_elapsed_clock, format_wall_time};
use trace::MonoNs;
use trace::detect::order::FindingRank;
use trace::detect::{Finding, FindingPhase};
use trace::ledger::RequestSummary;
use trace::path::Ends;
use trace::stats::{RecentWindow, Spread};

use super::curves::Curves;
use super::flags::{Health, RunVerdict};
use super::pods::{PairLine, PairRequest, PodLine};
use super::request_detail::RequestDetail;
use super::request_table::RequestTable;
use super::run_time::{RunClock, RunSpan};
use super::threads::ThreadLine;
use super::waiting::WaitingRequests;

/// Everything shown on the screen. `None` means not observable with the attached source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Model {
    pub(crate) run: RunValues,
    /// Version and mode of the engine, as text.
    pub(crate) engine: String,
    /// Time of the first event, and the time since.
    pub(crate) started_at: MonoNs,
    pub(crate) running_ns: u64,
    pub(crate) verdict: RunVerdict,
    /// Window of all current figures.
    pub(crate) recent_window: RecentWindow,
    /// Current rates of the scheduler's sends; `None` if those are not observed any more, or if the run has just begun.
    pub(crate) send_rates: Option<SendRates>,
    pub(crate) requests: Requests,
    /// Requests that continued after their client left.
    pub(crate) abandoned_requests: u64,
    /// Requests that the scheduler does not answer while it answers later ones.
    pub(crate) unanswered_requests: u64,
    /// Responses with an error status, or in which the server wrote an error.
    pub(crate) error_responses: u64,
    pub(crate) tokens: Tokens,
    pub(crate) gap: FirstTokenGap,
    pub(crate) chunks: Chunks,
    /// When the tokenizer's receives, and deliveries, ceased to be observed.
    pub(crate) receives_end: Option<MonoNs>,
    /// The same of the scheduler's sends.
    pub(crate) sends_end: Option<MonoNs>,
    pub(crate) deliveries_end: Option<MonoNs>,
    /// Chunks predicted to be merged, under the conditions of predicted drops; `None` if they cannot be predicted.
    pub(crate) merged_predicted: Option<u64>,
    pub(crate) itl: Itl,
    /// Hops grouped by name, in the order of the path.
    pub(crate) hops: Vec<HopSummary>,
    /// Breakdown of the time to first token over the run.
    pub(crate) first_token_path: Vec<Segment>,
    /// Role whose receive ends it; `None` if no hop is observed.
    pub(crate) first_token_end: Option<String>,
    /// Times to first token of most requests; `None` if no dispatch was observed.
    pub(crate) ttft: Option<TtftGroupLine>,
    /// The leg that takes most of the time to first token, or that it is unknown.
    pub(crate) bottleneck: String,
    /// What is not observed of the time to first token, with the reasons.
    pub(crate) ttft_absences: Vec<String>,
    pub(crate) table: RequestTable,
    /// Finished requests in the ledger that the table omits.
    pub(crate) rows_left_out: u64,
    /// Finished requests that are only part of the totals and that no filter finds.
    pub(crate) rows_evicted: u64,
    /// Summaries of finished pinned requests by rid, kept for when the ledger has evicted them.
    pub(crate) pinned: BTreeMap<String, RequestSummary>,
    pub(crate) detail: Option<RequestDetail>,
    /// In the order of the report.
    pub(crate) findings: Vec<Finding>,
    /// Highest rank of one among those of other runs.
    pub(crate) worst_rank: FindingRank,
    /// Changes of the receiver of the selected finding's worst request; `None` unless the finding is about them and they are known.
    pub(crate) receiver_changes: Option<String>,
    /// Threads of the engine; `None` if threads are not observed.
    pub(crate) threads: Option<Vec<ThreadLine>>,
    /// Functions the threads ran in, by role; empty if no stacks are sampled.
    pub(crate) stacks: Vec<StackLine>,
    /// Playback position of a recording; `None` for live sources.
    pub(crate) position: Option<Position>,
    pub(crate) writing: OutputStatus,
    /// Runs served by other tokengap processes, and the index of the shown one; empty for other sources.
    pub(crate) pods: Vec<PodLine>,
    pub(crate) shown_pod: usize,
    /// Pairs among the runs.
    pub(crate) pairs: Vec<PairLine>,
    /// The request of the detail on both servers of its pair; `None` if it is of none, or not joined yet.
    pub(crate) pair_request: Option<PairRequest>,
    /// Remark below the list of runs.
    pub(crate) run_list_note: Option<String>,
    pub(crate) curves: Curves,
    /// Wall clock at the start of the run, in nanoseconds since the epoch; `None` if unknown.
    pub(crate) wall_start_ns: Option<u64>,
}

impl Model {
    /// Hops that carry output.
    pub(crate) fn output_hops(&self) -> impl Iterator<Item = &HopSummary> {
        self.hops.iter().filter(|hop| !hop.carries_requests)
    }

    /// Keeps what is known of a request on both servers of its pair, prefill and decode, for the view. Keeps nothing unless the detail is
    /// about this request, in the run that is shown.
    pub(crate) fn set_pair_request_if_shown(&mut self, request: Option<&PairRequest>, shown_run_index: usize) {
        let shown_rid = self.detail.as_ref().map(|detail| detail.rid.as_str());
        let is_shown = request.is_some_and(|request| {
            request.shown.run_index == shown_run_index && Some(request.shown.rid.as_str()) == shown_rid
        });
        self.pair_request = if is_shown { request.cloned() } else { None };
    }

    /// Keeps the lines of all watched runs, of which this model shows one, and the pairs among them. Servers of a pair are joined already,
    /// so they lose the advice to join them. A decode server adopts the finding of its pair, if that is worse than its own.
    pub(crate) fn set_runs_with_pair_findings(&mut self, runs: &[PodLine], pairs: &[PairLine], shown_run_index: usize) {
        runs.clone_into(&mut self.pods);
        pairs.clone_into(&mut self.pairs);
        self.shown_pod = shown_run_index;
        // The shown run has its verdict twice: in its line and in this model.
        if let Some(shown) = self.pods.get(shown_run_index)
            && self.pairs.iter().any(|pair| pair.has_server(&shown.name))
        {
            self.verdict.remove_advice_to_join();
        }
        for pair in &self.pairs {
            for server in self.pods.iter_mut().filter(|run| pair.has_server(&run.name)) {
                server.figures.verdict.remove_advice_to_join();
            }
            let decode = self.pods.iter_mut().find(|run| run.name == pair.decode);
            if let (Some(decode), Some(finding)) = (decode, &pair.finding) {
                decode.figures.adopt_pair_finding_if_worse(finding);
            }
        }
    }

    /// Begin and length of the whole run: of a recording to its end, otherwise until now.
    pub(crate) fn run_span(&self) -> RunSpan {
        match &self.position {
            Some(recording) => RunSpan { wall_start_ns: recording.start_wall_ns(), length_ns: recording.whole_ns },
            None => RunSpan { wall_start_ns: self.wall_start_ns, length_ns: self.running_ns },
        }
    }

    /// Start of the finding, relative to the start of the run.
    pub(crate) fn finding_start_ns(&self, finding: &Finding) -> u64 {
        finding.began.since(self.started_at)
    }

    /// Whether the shown moment is the last of a run that is over, so that nothing lasts.
    pub(crate) fn is_at_end(&self) -> bool {
        let replay_ended = self.position.as_ref().is_some_and(|position| position.doing == PlaybackState::Ended);
        replay_ended || self.run.stage == "ended"
    }

    /// Whether the finding lasts at the shown moment.
    pub(crate) fn phase_of(&self, finding: &Finding) -> FindingPhase {
        finding.phase(MonoNs(self.started_at.0.saturating_add(self.running_ns)))
    }

    /// End of the finding on the run's clock: `to now`, `to end`, `last 0:12` if it may occur again, `to 0:12`.
    pub(crate) fn format_finding_end(&self, finding: &Finding) -> String {
        let last_at = format_elapsed_clock(finding.last_at.since(self.started_at));
        match self.phase_of(finding) {
            FindingPhase::Lasts if self.is_at_end() => String::from("to end"),
            FindingPhase::Lasts => String::from("to now"),
            FindingPhase::Pauses => format!("last {last_at}"),
            FindingPhase::Ended => format!("to {last_at}"),
        }
    }

    /// Length of the window of current figures: `last 10 s`, or `last 9.4 s`, since its last second need not be over.
    pub(crate) fn format_recent_seconds(&self) -> String {
        let seconds = format!("{:.1}", self.recent_window.length_ns() as f64 / 1e9);
        format!("last {} s", seconds.strip_suffix(".0").unwrap_or(&seconds))
    }

    /// Length of the window of current figures with one decimal, over which rates are means: `9.4 s`.
    pub(crate) fn format_rate_window(&self) -> String {
        format!("{:.1} s", self.recent_window.length_ns() as f64 / 1e9)
    }

    /// Time of day with milliseconds if known, else the time since the start of the run.
    pub(crate) fn format_exact_moment(&self, at: MonoNs) -> String {
        RunClock { started: self.started_at, wall_start_ns: self.wall_start_ns }.format_moment(at)
    }

    /// Time of day if known, else the time since the start of the run.
    pub(crate) fn format_moment(&self, ns: u64) -> String {
        let wall_time = self.wall_start_ns.and_then(|start_ns| format_wall_time(start_ns.checked_add(ns)?));
        wall_time.unwrap_or_else(|| format_elapsed_clock(ns))
    }
}

/// First-token gap over the last ten seconds and over the whole run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct FirstTokenGap {
    pub(crate) window: Option<Spread>,
    pub(crate) whole: Option<Spread>,
    pub(crate) worst_rid: String,
    /// Requests whose first token was sent and has not been received; `None` unless sends and receives are observable.
    pub(crate) waiting: Option<WaitingRequests>,
    /// Requests that were sent to the scheduler and have no token yet; `None` without any.
    pub(crate) without_token: Option<WaitingRequests>,
}

impl FirstTokenGap {
    /// Requests that have no first token at their receiver yet, because it is on its way or was not sent; `None` without any.
    pub(crate) fn requests_without_first_token(&self) -> Option<WaitingRequests> {
        let token_sent = self.waiting.unwrap_or_default();
        let without_token = self.without_token.unwrap_or_default();
        let requests = token_sent.requests + without_token.requests;
        let longest_wait_ns = token_sent.longest_wait_ns.max(without_token.longest_wait_ns);
        (requests > 0).then_some(WaitingRequests { requests, longest_wait_ns })
    }
}

/// Mean rates per second over the window of current figures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct HopRates {
    pub(crate) frames: f64,
    pub(crate) chunks: f64,
    pub(crate) bytes: f64,
}

/// The same of the scheduler's sends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct SendRates {
    pub(crate) tokens: f64,
    /// `None` if the scheduler's hop is not known.
    pub(crate) frames: Option<f64>,
}

/// All hops with the same name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HopSummary {
    pub(crate) name: String,
    /// Index of its group in the ledger.
    pub(crate) group: usize,
    /// It leads to the scheduler.
    pub(crate) carries_requests: bool,
    pub(crate) observes_sends: bool,
    pub(crate) ends: Ends<Box<str>>,
    pub(crate) health: Health,
    /// The health is that of problems that are over.
    pub(crate) has_recovered: bool,
    /// `None` if what they count is not observed any more, or if the run has just begun.
    pub(crate) rates: Option<HopRates>,
    pub(crate) frames: u64,
    pub(crate) chunks: u64,
    pub(crate) bytes: u64,
    pub(crate) undecoded: u64,
    /// Reasons for undecoded frames, with counts, most frequent first.
    pub(crate) undecoded_reasons: Vec<(String, u64)>,
    /// When its receives ceased to be observed.
    pub(crate) receives_end: Option<MonoNs>,
    /// `None` also after that.
    pub(crate) backlog_frames: Option<u64>,
    pub(crate) backlog_max_frames: Option<u64>,
    /// Queue wait so far of the frame at the head of the queue.
    pub(crate) oldest_wait_ns: Option<u64>,
    pub(crate) queue_wait: Option<Spread>,
    /// Frames by queue wait over the whole run, in the classes of [`QUEUE_WAIT_BOUNDS_NS`].
    pub(crate) queue_wait_histogram: Vec<u64>,
    /// Time of the content in the sender, by its own timestamps.
    pub(crate) send_wait: Option<Spread>,
    pub(crate) relay_delay: Option<Spread>,
    pub(crate) processing_time: Option<Spread>,
    /// Share of the run during which receivers were processing a frame.
    pub(crate) busy_share: Option<f64>,
    /// State of the receiving thread while frames waited; `None` if not sampled.
    pub(crate) thread: Option<String>,
    /// `None` until a receiver has waited for a frame again.
    pub(crate) wakeup_frames_max: Option<u64>,
    /// Bytes in the receivers' kernel queues.
    pub(crate) kernel_queue: Option<KernelQueueBytes>,
    /// Maximum number of frames in libzmq's own queues, which follow the kernel's.
    pub(crate) inbox_max_frames: Option<u64>,
    /// Individual hops summed in this line.
    pub(crate) members: Vec<HopMember>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct KernelQueueBytes {
    pub(crate) current: u64,
    pub(crate) max: u64,
    /// Time of the last sample, if it is not recent.
    pub(crate) ended_at: Option<MonoNs>,
}

/// Upper bounds of the queue wait histogram; the last class is unbounded.
pub(crate) const QUEUE_WAIT_BOUNDS_NS: [u64; 7] =
    [100_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 5_000_000_000, 20_000_000_000];

/// One of several hops with the same name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct HopMember {
    pub(crate) worker: Option<u16>,
    pub(crate) endpoint: String,
    pub(crate) frames: u64,
    pub(crate) chunks: u64,
    pub(crate) backlog_frames: Option<u64>,
    /// Share of the run during which it was processing a frame.
    pub(crate) busy_share: Option<f64>,
}

/// Values of the run that the analysis does not know, and missed observations.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunValues {
    /// `demo`, `tap`.
    pub(crate) source: String,
    /// `live`, `ending`, `ended` or `replay`.
    pub(crate) stage: &'static str,
    /// Share of one core used by this process over the last second.
    pub(crate) cpu_share: Option<f64>,
    pub(crate) rss_bytes: Option<u64>,
    /// Observations that are unavailable or were given up, each with the command that fixes it, if any.
    pub(crate) degraded: Vec<String>,
    /// Set by the refresh.
    pub(crate) missed: u64,
    pub(crate) undecoded: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_lasts_now_after_the_end_of_the_run() {
        let lasting = Finding { began: MonoNs(1), last_at: MonoNs(2), active: true, ..Finding::default() };
        let mut model = Model::default();
        assert_eq!(model.format_finding_end(&lasting), "to now");
        model.run.stage = "ended";
        assert_eq!(model.format_finding_end(&lasting), "to end");
        model.running_ns = 5_000_000_000;
        assert_eq!(model.format_finding_end(&lasting), "last 0:00", "it occurred last five seconds ago");
        assert_eq!(model.format_finding_end(&Finding { active: false, ..lasting }), "to 0:00");
    }
}
