//! The report of a run, schema `tokengap.report/2`: fields may be added but never change their meaning. `null` means not observable with
//! the attached sources, never 0. All times are nanoseconds; `window_ns` and `at_ns` count from the start of the capture.

mod abandoned;
mod answers;
pub mod bar;
pub(crate) mod brief;
mod build;
mod connections;
mod evidence;
mod finding;
mod frontend;
pub mod hostile;
mod html;
mod judged;
mod losses;
pub(crate) mod markdown;
mod modes;
mod numbers;
mod pair;
mod pair_order;
mod pair_request;
mod pair_text;
mod path;
mod runs;
mod series;
mod slowest;
mod stacks;
pub mod stages;
pub(crate) mod table;
mod text;
mod tool_calls;
mod ttft;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use trace::detect::Severity;
use trace::detect::attribution::{LegKind, ThreadState};
use trace::engine::{Mode, Waiter};
use trace::stats::Spread;
use trace::{Analysis, MonoNs, ReportInput, SamplingCost};

pub use abandoned::{AbandonedReport, AbandonedRow, AbortRow};
pub use answers::AnswerCounts;
pub(crate) use brief::write_wrapped;
pub use brief::{Clock, NO_THROTTLING, NO_WAITS, describe_episodes, describe_place, is_identifier};
pub use connections::NewConnectionsReport;
pub use evidence::{EvidenceNumber, evidence_label};
pub use finding::{EpisodeLine, FindingLine};
pub use frontend::FrontendCounts;
pub use judged::{
    FaultKind, FindingSpan, Judgement, SeenTraffic, advise_on_unjudged, describe_observation_ends, headline_of_finding,
    headline_without_warning, judgements,
};
pub use losses::{LossLine, LossList, Losses, format_position_ranges, list_ids};
pub use modes::{ModeLine, Modes};
pub use pair::{AbsentMomentLine, PairLegLine, PairReport, PrefillName, PrefillServerLine};
pub use pair_request::PairRequestLine;
pub use path::LegLine;
pub use runs::{RunReport, RunsReport, list_runs, worst_run};
pub use series::{ChunkSeries, HopSeries, RequestSeries, Series, SpreadSeries, ThreadSeries, TokenSeries};
pub use slowest::SlowLine;
pub use stacks::{StackFunctionLine, StackLine, StackShare};
pub use tool_calls::{ToolCallCounts, ToolCallLine, explain_tool_calls};
pub use ttft::{RequestLegLine, TtftGroupLine, TtftLegLine, TtftReport, UnobservedMomentLine, describe_bottleneck};

/// Name of the schema in reports.
pub const SCHEMA: &str = "tokengap.report/2";

/// Report of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Summary in one sentence, the first line of every other form.
    pub verdict: String,
    /// Worst severity among the findings; `null` without any. A finding that is over keeps its severity.
    pub severity: Option<Severity>,
    /// Kinds of faults that the run could have shown.
    pub judged: Vec<Judgement>,
    /// Source of the observations.
    pub source: Source,
    /// Start and end of the capture.
    pub window_ns: [u64; 2],
    /// Start and end on the observed machine's `CLOCK_MONOTONIC`. All other times are relative to the start.
    pub window_mono_ns: [u64; 2],
    /// Start and end since the Unix epoch, by that machine's wall clock; `null` if unknown.
    pub window_wall_ns: Option<[u64; 2]>,
    /// Requests by outcome.
    pub requests: Requests,
    /// Requests on their way to their first token; `null` if no message to the scheduler was observed.
    pub dispatched: Option<Dispatched>,
    /// Where the time to first token goes; `null` if no message to the scheduler was observed.
    pub ttft: Option<TtftReport>,
    /// Connections that clients opened; absent if none was observed to open.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new_connections: Option<NewConnectionsReport>,
    /// The part of its prefill servers in a decode server's requests; absent unless both were observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pair: Option<Box<PairReport>>,
    /// Times of requests that the engine itself sends; `null` if none of its output was observed.
    pub engine_times: Option<EngineTimesCounts>,
    /// Tokens by the last stage they reached.
    pub tokens: Tokens,
    /// First receive at the tokenizer minus first send by the scheduler, over requests.
    pub gap_ns: Option<Gap>,
    /// Requests with the longest waits, worst gap first.
    pub slowest: Vec<SlowLine>,
    /// Chunks by outcome.
    pub chunks: Chunks,
    /// Lost tokens by request.
    pub losses: Losses,
    /// Responses to clients; absent if the end of none was observed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answers: Option<AnswerCounts>,
    /// Responses with an error status, by HTTP status; absent without any.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rejected: BTreeMap<u16, u64>,
    /// Responses with tool calls; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<ToolCallCounts>,
    /// Requests that continued after their client left; absent without any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abandoned: Option<AbandonedReport>,
    /// Waits of responses in a frontend; absent if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frontend: Option<FrontendCounts>,
    /// Time between chunks of one request.
    pub itl_ns: Itl,
    /// Output modes and their cost.
    pub modes: Modes,
    /// Hops; hops of the same name are one entry.
    pub hops: Vec<HopLine>,
    /// Time of chunks between scheduler and tokenizer, by leg; absent if no leg was observed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<LegLine>,
    /// CPU by thread.
    pub cpu: Option<Vec<CpuLine>>,
    /// Data from the engine's own log; absent if none was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<stages::StageReport>,
    /// Python functions of the engine by role; `null` when no stacks were sampled.
    pub stacks: Option<Vec<StackLine>>,
    /// Time series of the run; `null` before the first event.
    pub series: Option<Series>,
    /// Findings, worst first.
    pub findings: Vec<FindingLine>,
    /// Cost of observation, and missed observations.
    #[serde(rename = "self")]
    pub own: Own,
    /// Memory limits and how often each was reached.
    pub limits: BTreeMap<String, LimitLine>,
    /// Ground truth of the demo.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demo: Option<Value>,
}

impl Report {
    /// Report of the run so far, after a final detector run.
    pub fn of(analysis: &Analysis, input: &ReportInput) -> Self {
        build::build_report(analysis, input)
    }

    /// Renders one JSON document.
    pub fn to_json(&self) -> String {
        // Only maps with other keys than text cannot be written, of which a report has none.
        let json = serde_json::to_string_pretty(self).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"));
        hostile::escape_output(&json, hostile::EscapeForm::Json).into_owned()
    }

    /// Renders text of at most 100 columns.
    pub fn to_text(&self, clock: &Clock) -> String {
        text::render_text(self, clock)
    }

    /// Whether all data comes from the engine's own log. Then no frame was observed, and counts of 0 frames, chunks or tokens mean nothing.
    pub(crate) fn is_log_only(&self) -> bool {
        self.hops.is_empty() && self.stages.is_some()
    }

    /// Whether a listed request is known to be slow: gaps were observed, or its time to first token.
    pub(crate) fn has_slowest(&self) -> bool {
        let has_gaps = self.gap_ns.is_some() && !self.slowest.is_empty();
        has_gaps || self.slowest.iter().any(|line| line.ttft_ns.is_some())
    }

    /// Renders Markdown, short enough for an issue.
    pub fn to_markdown(&self, clock: &Clock) -> String {
        markdown::render_markdown(self, clock)
    }

    /// Renders one HTML page without scripts or external resources.
    pub fn to_html(&self, clock: &Clock) -> String {
        html::render_page(self, clock)
    }

    /// Length of the capture. All times of the report count from its start.
    pub fn capture_length_ns(&self) -> u64 {
        let [_start_ns, end_ns] = self.window_ns;
        end_ns
    }

    /// Start of the capture on the observed machine's clock.
    pub fn capture_start(&self) -> MonoNs {
        let [start_ns, _end_ns] = self.window_mono_ns;
        MonoNs(start_ns)
    }

    /// End of the capture on the observed machine's clock.
    pub fn capture_end(&self) -> MonoNs {
        let [_start_ns, end_ns] = self.window_mono_ns;
        MonoNs(end_ns)
    }

    /// The finding of the headline, which is above `info`.
    pub fn worst_finding(&self) -> Option<&FindingLine> {
        self.findings.first().filter(|worst| worst.severity > Severity::Info)
    }
}

/// Source of the observations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// `demo`, `tap`, `attach`, ...
    pub kind: String,
    /// Name of the engine, in lower case.
    pub engine: String,
    /// Release, or the range of releases that match the wire format.
    pub engine_version: Option<String>,
    /// Output mode: from its release or flags, else from deliveries.
    pub mode: Option<Mode>,
    /// How its waiters process queued chunks.
    pub waiter: Option<Waiter>,
    /// Codecs and schemas reported by the source.
    pub wire: Option<Value>,
    /// First release that drops no queued chunk, if earlier ones do.
    pub drops_fixed_in: Option<String>,
}

/// Numbers of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Requests on any hop, without health checks.
    pub seen: u64,
    /// Requests with a finish reason, of any kind, in a frame.
    pub finished: u64,
    /// Requests that finished otherwise than by an abort, and whose end has reached the tokenizer; `null` in reports of older versions.
    pub completed: Option<u64>,
    /// Requests that ended with an abort: in such a frame, or by an `AbortReq` alone.
    pub aborted: u64,
    /// Requests at the end of the window that had not ended for their clients.
    pub live: u64,
    /// Of those, the ones whose end the scheduler has sent, while the tokenizer has not received it.
    #[serde(default)]
    pub ends_in_transit: u64,
    /// Requests whose first observed chunk was not their first.
    pub joined_late: u64,
    /// Requests whose rid was reused by another request in flight.
    pub overwritten: u64,
    /// Requests removed unfinished after a long silence.
    pub orphaned: u64,
    /// Health checks of the server, excluded from all findings.
    pub health_checks: u64,
}

/// Numbers of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Sent by the scheduler, by its own counts.
    pub sent: u64,
    /// Received by the tokenizer.
    pub received: Option<u64>,
    /// Delivered, each counted once; `null` if every response carries text only.
    pub delivered: Option<u64>,
    /// Sent to the tokenizer for text-only responses. Their delivery is unknown, and `delivered` excludes them.
    pub uncounted: Option<u64>,
    /// Missing on the wire, from the streams' own counts.
    pub missing_on_wire: u64,
}

/// The gap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// Number of requests whose first send and first receive were both observed.
    pub count: u64,
    /// Median.
    pub p50: Option<u64>,
    /// 90th percentile.
    pub p90: Option<u64>,
    /// 99th percentile.
    pub p99: Option<u64>,
    /// Maximum.
    pub max: Option<u64>,
    /// Request with the maximum; empty if there is none.
    pub max_rid: String,
    /// Non-empty buckets of the distribution: start, end (exclusive), number of requests.
    pub classes: Vec<[u64; 3]>,
}

/// Numbers of chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunks {
    /// Sent by the scheduler.
    pub sent: u64,
    /// Received by the tokenizer.
    pub received: Option<u64>,
    /// Carried by a delivery; of merged chunks, the first.
    pub delivered: Option<u64>,
    /// Merged into another chunk's delivery.
    pub merged: Option<u64>,
    /// Predicted drops: received in one wakeup with an earlier chunk of the request, in incremental mode on a release that keeps the last.
    pub dropped_predicted: Option<u64>,
    /// Dropped: in no delivery although a later chunk was delivered. Proven by counts.
    pub dropped_confirmed: Option<u64>,
    /// Tokens in the dropped chunks.
    pub tokens_lost: Option<u64>,
    /// Not delivered at the end of the window or of their request.
    pub in_flight: Option<u64>,
    /// Unknown outcome: observations were missed, or counts do not show which delivery carried the chunk.
    pub unjudged: Option<u64>,
}

/// Requests from their dispatch to their first chunk. Their wait for the scheduler's receive is the queue wait of the hop to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dispatched {
    /// Requests sent to the scheduler, without health checks.
    pub requests: u64,
    /// Requests that it was asked to abort.
    pub aborts: u64,
    /// Requests without a chunk at the end.
    pub waiting: u64,
    /// How long the longest of those has waited since its dispatch; `null` if none waits.
    pub waiting_longest_ns: Option<u64>,
    /// Requests that the scheduler does not answer at the end although it answered later ones, as in the metric of this name.
    #[serde(default)]
    pub unanswered: u64,
    /// All requests that it did not answer while it answered later ones: those, and those that it answered in the end.
    #[serde(default)]
    pub unanswered_total: u64,
    /// Those that are not answered at the end, oldest first, at most 16.
    #[serde(default)]
    pub unanswered_longest: Vec<UnansweredRow>,
}

/// A request without an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnansweredRow {
    /// The engine's request id.
    pub rid: String,
    /// When it was sent to the scheduler.
    pub since_ns: u64,
    /// When the scheduler received it; `null` if that was not observed.
    pub scheduler_received_ns: Option<u64>,
    /// Length of its prompt; `null` if the message did not show it.
    pub prompt_tokens: Option<u32>,
    /// Number of requests answered since the first answer to a request that was sent later.
    pub answered_since: u64,
}

/// Times of requests that the engine itself sends with their first tokens: entry to its queue and to a batch, and the end of the prefill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineTimesCounts {
    /// Requests with any of them.
    pub requests: u64,
    /// Times that cannot be true, and are left out.
    pub impossible: u64,
    /// Why other requests have no `queued_ns` and `batch_entered_ns`.
    pub absent: String,
    /// Why other requests have no `prefill_finished_ns`.
    pub prefill_absent: String,
}

/// Time between chunks with tokens of one request, by chunk and by token. By token, the time is divided by the tokens of the later chunk
/// and counted once for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Itl {
    /// Between the scheduler's sends of chunks of one request.
    pub sent: Option<Spread>,
    /// Between deliveries of one request.
    pub delivered: Option<Spread>,
    /// By token, between sends: inter-token latency of the engine.
    pub sent_by_token: Option<Spread>,
    /// By token, between deliveries: inter-token latency at the client.
    pub delivered_by_token: Option<Spread>,
}

/// Traffic on the hops of one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HopLine {
    /// `from->to` with role names.
    pub name: String,
    /// Whether it leads to the scheduler and carries requests. Then it has no chunks and no tokens.
    #[serde(default)]
    pub carries_requests: bool,
    /// Frames that entered the hop.
    pub frames_sent: Option<u64>,
    /// Frames forwarded by the relay.
    pub frames_forwarded: Option<u64>,
    /// Frames received by the application.
    pub frames_received: Option<u64>,
    /// Chunks in the frames.
    pub chunks: u64,
    /// New tokens in them, from the streams' own counts.
    pub tokens: u64,
    /// Bytes of the frames.
    pub bytes: u64,
    /// Time of its last frame; `null` without one.
    #[serde(default)]
    pub last_frame_ns: Option<u64>,
    /// Frames per second over the window.
    pub frames_per_s: f64,
    /// Chunks per second over the window.
    pub chunks_per_s: f64,
    /// Frames sent but not received at the end.
    pub backlog_frames: Option<u64>,
    /// Largest backlog in frames.
    pub backlog_max_frames: Option<u64>,
    /// Queue wait: received minus sent.
    pub queue_wait_ns: Option<Spread>,
    /// Its mean over frames.
    pub queue_wait_mean_ns: Option<u64>,
    /// Non-empty buckets of the queue wait: start, end (exclusive), number of frames.
    pub queue_wait_classes: Vec<[u64; 3]>,
    /// Wait of the content in the sender: see [`trace::event::SendWait`]. `null` if messages have no timestamp and are sent through libzmq.
    pub send_wait_ns: Option<Spread>,
    /// Forwarded minus sent: the time inside the relay.
    pub relay_ns: Option<Spread>,
    /// Processed minus received.
    pub processing_ns: Option<Spread>,
    /// Received minus requested: how long receivers waited for a frame. Near zero while they are behind.
    pub recv_wait_ns: Option<Spread>,
    /// Maximum number of frames received in one wakeup; `null` until a receiver has waited for a frame again.
    pub wakeup_frames_max: Option<u32>,
    /// Number of frames received in one wakeup, over finished wakeups.
    pub wakeup_frames: Option<Spread>,
    /// Maximum bytes of the hop in the kernel, not yet read by the receivers' libzmq.
    pub kernel_bytes_max: Option<u64>,
    /// Maximum number of frames in libzmq's own queues: sent, not received, and not in the kernel.
    pub inbox_max_frames: Option<u64>,
    /// Undecodable frames, by reason.
    pub undecoded: BTreeMap<String, u64>,
    /// Share of the window in which a receiver was processing a frame, mean over receivers; `null` if not observed.
    pub busy: Option<f64>,
    /// State of the receiving thread while frames waited; `null` if it was not sampled in such a time.
    pub thread: Option<ThreadState>,
    /// Share of that time in which it ran; `null` likewise.
    pub on_cpu: Option<f64>,
    /// Share of that time in which it waited for a CPU.
    pub run_wait: Option<f64>,
    /// Ratio of the busiest receiver's chunks to their mean: 1 is even; `null` with a single receiver.
    pub imbalance: Option<f64>,
    /// Requests with chunks at more than one receiver.
    pub rids_moved: u64,
    /// Chunks received after a later one of their request.
    pub out_of_order: u64,
    /// The individual hops, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workers: Option<Vec<WorkerLine>>,
    /// Individual connections, the 64 busiest first, if a receiver has several senders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lanes: Option<Vec<LaneLine>>,
}

impl HopLine {
    /// Number of chunks; for a hop to the scheduler, that it carries requests.
    pub(crate) fn chunk_count(&self) -> String {
        if self.carries_requests { "requests".to_owned() } else { trace::words::count(self.chunks) }
    }
}

/// One connection into a receiver, from one sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaneLine {
    /// Its number, in the order in which the source observed the connections.
    pub lane: u32,
    /// Index of the receiver in its group.
    pub worker: Option<u16>,
    /// Frames that entered the hop.
    pub frames: u64,
    /// Chunks in the frames.
    pub chunks: u64,
    /// New tokens in the chunks.
    pub tokens: u64,
    /// Share of the line's chunks, from 0 to 1.
    pub share: Option<f64>,
}

/// One of several hops of a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerLine {
    /// New tokens sent to it.
    pub tokens: u64,
    /// Share of the line's chunks, from 0 to 1.
    pub share: Option<f64>,
    /// Queue wait (received minus sent) in buckets of an eighth; `null` if receives are not observed.
    pub queue_wait_ns: Option<Spread>,
    /// Share of the window in which its receiver was processing a frame.
    pub busy: Option<f64>,
    /// Index of the receiver in its group.
    pub worker: Option<u16>,
    /// Endpoint.
    pub endpoint: String,
    /// Frames that entered the hop.
    pub frames_sent: Option<u64>,
    /// Frames received by the application.
    pub frames_received: Option<u64>,
    /// Chunks in the frames.
    pub chunks: u64,
    /// Bytes of the frames.
    pub bytes: u64,
    /// Largest backlog in frames.
    pub backlog_max_frames: Option<u64>,
}

/// CPU use of one thread; each value is a share of one core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuLine {
    /// `scheduler`, `tokenizer`, ...
    pub role: String,
    /// Process id.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Name of the thread in the kernel.
    pub name: String,
    /// Whether it receives frames from a hop.
    pub receives: bool,
    /// Time on a CPU.
    pub on_cpu: Option<f64>,
    /// Time waiting for a CPU.
    pub run_wait: Option<f64>,
    /// Time throttled by a cgroup quota.
    pub throttled: Option<f64>,
    /// Time outside the poll of its event loop.
    pub away_from_poll: Option<f64>,
    /// Idle polls of its event loop per second.
    pub wakeups_per_s: Option<f64>,
}

/// Cost of observation, and missed observations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Own {
    /// CPU time spent.
    pub cpu_ns: Option<u64>,
    /// Resident memory.
    pub rss_bytes: Option<u64>,
    /// Events applied.
    pub events: u64,
    /// Missed observations counted by the source. Tokens lost by the engine are in `chunks.tokens_lost`.
    pub events_missed: u64,
    /// Missed observations by cause.
    pub missed_by_cause: BTreeMap<String, u64>,
    /// Missed frames that the source did not report, detected from the numbering of their lanes.
    pub frames_unannounced: u64,
    /// Undecodable frames.
    pub frames_undecoded: u64,
    /// Targets that could not be attached, each with its fix.
    pub degraded: Vec<Value>,
    /// Cost of reading Python stacks; absent when none were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<SamplingCost>,
}

impl Own {
    /// Number of missed observations, reported by the source or not.
    pub fn missed(&self) -> u64 {
        self.events_missed.saturating_add(self.frames_unannounced)
    }
}

/// A limit of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitLine {
    /// Its value.
    pub limit: u64,
    /// How often it was reached.
    pub reached: u64,
}
