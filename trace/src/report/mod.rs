//! The report of a run, schema `tokengap.report/1`: fields may be added, never change their meaning. `null` is "not observable
//! with what was attached", never 0. All times are nanoseconds; `window_ns` and `at_ns` count from the start of the capture.

pub mod bar;
pub(crate) mod brief;
mod build;
mod cpu;
pub mod hostile;
mod hot;
mod html;
mod input;
mod losses;
mod losses_text;
mod markdown;
mod modes;
mod modes_text;
mod moment;
mod path;
mod path_text;
mod series;
mod slowest;
pub mod stages;
mod stages_text;
mod text;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::detect::attribution::{LegKind, ThreadState};
pub use build::build;
pub(crate) use build::dropped_predicted;
pub use hot::{HotFunctionLine, HotLine, HotShare, SamplingCost};
pub use input::ReportInput;
pub use losses::{LossLine, LossList, Losses, RangeLine, ids, places};
pub use modes::{ModeLine, Modes};
pub use moment::Clock;
pub use path::LegLine;
pub(crate) use path::legs;
pub use series::{ChunkSeries, HopSeries, RequestSeries, Series, SpreadSeries, ThreadSeries, TokenSeries};
pub use slowest::{SlowLine, TokenItl};
pub(crate) use text::wrap;

use crate::detect::Severity;
use crate::engine::{Mode, Waiter};

/// The schema's name, as reports carry it.
pub const SCHEMA: &str = "tokengap.report/1";

/// A report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: String,
    /// Where the observations come from.
    pub source: Source,
    /// Begin and end of the capture.
    pub window_ns: [u64; 2],
    /// The same on the clock of the machine that was watched, `CLOCK_MONOTONIC`: what every other time is added to.
    pub window_mono_ns: [u64; 2],
    /// The same since the Unix epoch, by the wall clock of that machine; `null` when nobody knows.
    #[serde(default)]
    pub window_wall_ns: Option<[u64; 2]>,
    /// Requests by what became of them.
    pub requests: Requests,
    /// Tokens by how far they came.
    pub tokens: Tokens,
    /// First take at the tokenizer minus first send by the scheduler, over requests.
    pub gap_ns: Option<Gap>,
    /// The requests that waited longest, the worst gap first.
    pub slowest: Vec<SlowLine>,
    /// Chunks by what became of them.
    pub chunks: Chunks,
    /// Which requests lost which tokens; empty in reports of versions that did not tell.
    #[serde(default)]
    pub losses: Losses,
    /// Responses to clients; absent where none was seen to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<AnswerCounts>,
    /// Time between chunks of one request.
    pub itl_ns: Itl,
    /// What is handed on and what that costs; empty in reports of versions that did not tell.
    #[serde(default)]
    pub modes: Modes,
    /// Hops; those of one name as one.
    pub hops: Vec<HopLine>,
    /// Where a chunk's time goes between scheduler and tokenizer, leg by leg; absent where no leg was seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub path: Vec<LegLine>,
    /// CPU by thread.
    pub cpu: Option<Vec<CpuLine>>,
    /// What the engine's own log tells; absent where none was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stages: Option<stages::StageReport>,
    /// Functions of the engine's Python, by role; `null` when no stacks were sampled.
    #[serde(default)]
    pub hot: Option<Vec<HotLine>>,
    /// How the run went, slot by slot; `null` in reports of versions that did not keep it.
    #[serde(default)]
    pub series: Option<Series>,
    /// Findings, worst first.
    pub findings: Vec<FindingLine>,
    /// What observing cost, and what it missed.
    #[serde(rename = "self")]
    pub own: Own,
    /// Limits of memory and how often they were reached.
    pub limits: BTreeMap<String, LimitLine>,
    /// What the demo's own peers know to be true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demo: Option<Value>,
}

impl Report {
    /// As one JSON document.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"))
    }

    /// As text for people, at most 100 columns wide.
    pub fn to_text(&self) -> String {
        text::render(self)
    }

    /// Whether all of it comes from the engine's own log: no frame was observed, and its zeros of frames, chunks and tokens
    /// say nothing.
    pub fn is_told(&self) -> bool {
        self.hops.is_empty() && self.stages.is_some()
    }

    /// As Markdown, short enough to paste into an issue.
    pub fn to_markdown(&self, clock: &Clock) -> String {
        markdown::render(self, clock)
    }

    /// As one HTML page that loads nothing and runs nothing.
    pub fn to_html(&self, clock: &Clock) -> String {
        html::render(self, clock)
    }

    /// The worst severity among the findings.
    pub fn worst(&self) -> Option<Severity> {
        self.findings.iter().map(|f| f.severity).max()
    }
}

/// Where observations come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Source {
    /// `demo`, `tap`, `attach`, ...
    pub kind: String,
    /// `sglang`.
    pub engine: String,
    /// Release, or the range of releases that the wire allows.
    pub engine_version: Option<String>,
    /// What the tokenizer hands out: as its release or its flags say, else as deliveries show.
    pub mode: Option<Mode>,
    /// What its waiters do with queued chunks.
    pub waiter: Option<Waiter>,
    /// Codecs and schemas seen, as the source tells them.
    pub wire: Option<Value>,
}

/// Requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Seen on any hop, health checks apart.
    pub seen: u64,
    /// A finish reason was seen in a frame, whatever the reason.
    pub finished: u64,
    /// Ended by an abort: in such a frame, or by an `AbortReq` alone.
    pub aborted: u64,
    /// Not ended at the end of the window.
    pub live: u64,
    /// The first chunk seen was not the first.
    pub joined_late: u64,
    /// Another request took the rid over in flight.
    pub overwritten: u64,
    /// Silent too long, and forgotten unfinished.
    pub orphaned: u64,
    /// The server's own probes, judged nowhere.
    pub health_checks: u64,
}

/// Tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// Sent by the scheduler, by its own count.
    pub sent: u64,
    /// Taken by the tokenizer.
    pub taken: Option<u64>,
    /// Delivered, each counted once; `null` where every response carries text only.
    pub delivered: Option<u64>,
    /// Sent to the tokenizer for responses with text only: whether they were delivered is unknown, and `delivered` leaves them out.
    #[serde(default)]
    pub uncounted: Option<u64>,
    /// Missing on the wire by the streams' own arithmetic.
    pub missing_on_wire: u64,
}

/// The gap.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gap {
    /// Requests whose first send and first take were both seen.
    pub count: u64,
    /// Median.
    pub p50: Option<u64>,
    /// 90th percentile.
    pub p90: Option<u64>,
    /// 99th percentile.
    pub p99: Option<u64>,
    /// The worst.
    pub max: Option<u64>,
    /// And whose it was; empty when there is none.
    pub max_rid: String,
    /// The distribution, in classes that hold something: from, up to but not including, how many requests.
    #[serde(default)]
    pub classes: Vec<[u64; 3]>,
}

/// Chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunks {
    /// Sent by the scheduler.
    pub sent: u64,
    /// Taken by the tokenizer.
    pub taken: Option<u64>,
    /// Carried by a delivery; of those that share one, the first.
    pub delivered: Option<u64>,
    /// Chunks whose tokens left inside another chunk's delivery.
    pub coalesced: Option<u64>,
    /// Taken in one wakeup with an earlier chunk of their request, on a release that keeps the last and in incremental mode.
    pub dropped_predicted: Option<u64>,
    /// In no delivery, though a later one came: proven by counts.
    pub dropped_confirmed: Option<u64>,
    /// Tokens in those.
    pub tokens_lost: Option<u64>,
    /// Not delivered at the end of the window, or when their request was closed.
    pub outstanding: Option<u64>,
    /// Their delivery fell into a time of missed observations, or counts alone do not show which it carried.
    pub unjudged: Option<u64>,
}

/// Responses to clients that are over, a request each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerCounts {
    /// All of them.
    pub seen: u64,
    /// Left by the client before their end.
    pub client_left: u64,
    /// Left by the server before their end.
    pub server_left: u64,
    /// Whose socket took less than it was given at some time: the client read more slowly than the server wrote.
    pub held_up: u64,
    /// Whose tokens could not be counted: text alone, or not all of it was observed.
    pub uncounted: u64,
    /// Whole ones that no frame names (Dynamo's response plane).
    pub apart: u64,
    /// Tokens that those carried.
    pub apart_tokens: u64,
    /// Tokens that they claim in their last event and did not carry.
    pub apart_tokens_lost: u64,
}

/// Time between chunks of one request that carry tokens: by chunk, and by token, which is divided by the tokens of the later
/// chunk and counted once for each of them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Itl {
    /// Between sends of one request's chunks by the scheduler.
    pub sent: Option<Spread>,
    /// Between its deliveries.
    pub delivered: Option<Spread>,
    /// By token, between sends: what the engine made of inter-token latency.
    #[serde(default)]
    pub sent_by_token: Option<Spread>,
    /// By token, between deliveries: what the client saw of it.
    #[serde(default)]
    pub delivered_by_token: Option<Spread>,
}

/// A distribution in brief, in nanoseconds unless its field says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// Values entered.
    pub count: u64,
    /// Median.
    pub p50: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Largest.
    pub max: u64,
}

/// Hops of one name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HopLine {
    /// `from->to` in the words of the path.
    pub name: String,
    /// Frames that entered.
    pub frames_sent: Option<u64>,
    /// Frames that the relay wrote on.
    pub frames_forwarded: Option<u64>,
    /// Frames the application took.
    pub frames_taken: Option<u64>,
    /// Chunks in the frames.
    pub chunks: u64,
    /// New tokens in them, by the streams' own counts; `null` in reports of versions that did not keep it.
    #[serde(default)]
    pub tokens: Option<u64>,
    /// Bytes of the frames.
    pub bytes: u64,
    /// Frames per second over the window.
    pub frames_per_s: f64,
    /// Chunks per second over the window.
    pub chunks_per_s: f64,
    /// Frames sent and not taken at the end.
    pub backlog_frames: Option<u64>,
    /// The most there were.
    pub backlog_max_frames: Option<u64>,
    /// Taken minus sent.
    pub residence_ns: Option<Spread>,
    /// Its distribution, in classes that hold something: from, up to but not including, how many frames.
    #[serde(default)]
    pub residence_classes: Vec<[u64; 3]>,
    /// Forwarded minus sent: the time inside the relay.
    pub relay_ns: Option<Spread>,
    /// Handled minus taken.
    pub handling_ns: Option<Spread>,
    /// Taken minus asked for: how long receivers waited for a frame. Tiny while they are behind.
    pub recv_wait_ns: Option<Spread>,
    /// Most frames taken in one wakeup.
    pub wakeup_frames_max: Option<u32>,
    /// Frames taken in one wakeup, a count, over wakeups that have ended.
    pub wakeup_frames: Option<Spread>,
    /// The most bytes of the hop in the kernel, not yet read by the receivers' libzmq.
    pub kernel_bytes_max: Option<u64>,
    /// The most frames in libzmq's own queues: sent, not taken, and not in the kernel.
    pub inbox_max_frames: Option<u64>,
    /// Frames that could not be read, by reason.
    pub undecoded: BTreeMap<String, u64>,
    /// Share of the window for which a receiver had a frame in hand, mean over receivers; `null` where that is not seen.
    #[serde(default)]
    pub busy: Option<f64>,
    /// Chunks of the busiest receiver over their mean: 1 is even; `null` with a single receiver.
    #[serde(default)]
    pub imbalance: Option<f64>,
    /// Requests whose chunks went to more than one receiver; `null` in reports of versions that did not look.
    #[serde(default)]
    pub rids_moved: Option<u64>,
    /// Chunks that came after a later one of their request; likewise.
    #[serde(default)]
    pub out_of_order: Option<u64>,
    /// The hops behind this line, when there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workers: Option<Vec<WorkerLine>>,
    /// The connections behind it, the busiest first and 64 at most, when a receiver has several senders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<Vec<LaneLine>>,
}

/// One connection into a receiver: one sender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaneLine {
    /// Its number, in the order in which the source saw the hop's connections.
    pub lane: u32,
    /// Which member of the group receives.
    pub worker: Option<u16>,
    /// Frames that entered.
    pub frames: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// New tokens in those.
    pub tokens: u64,
    /// Its part of the line's chunks, from 0 to 1.
    pub share: Option<f64>,
}

/// One of several hops of a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerLine {
    /// New tokens that went to it; `null` in reports of versions that did not keep it.
    #[serde(default)]
    pub tokens: Option<u64>,
    /// Its part of the line's chunks, from 0 to 1.
    #[serde(default)]
    pub share: Option<f64>,
    /// Taken minus sent, in classes of an eighth; `null` where takes are not seen.
    #[serde(default)]
    pub residence_ns: Option<Spread>,
    /// Share of the window for which it had a frame in hand.
    #[serde(default)]
    pub busy: Option<f64>,
    /// Which member of the group receives.
    pub worker: Option<u16>,
    /// Where.
    pub endpoint: String,
    /// Frames that entered.
    pub frames_sent: Option<u64>,
    /// Frames the application took.
    pub frames_taken: Option<u64>,
    /// Chunks in the frames.
    pub chunks: u64,
    /// Bytes of the frames.
    pub bytes: u64,
    /// The most frames sent and not taken.
    pub backlog_max_frames: Option<u64>,
}

/// CPU of one thread, each a share of one core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuLine {
    /// `scheduler`, `tokenizer`, ...
    pub role: String,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// The thread's name, as the kernel keeps it.
    #[serde(default)]
    pub name: String,
    /// It takes frames from a hop.
    #[serde(default)]
    pub takes: bool,
    /// Time on a CPU.
    pub on_cpu: Option<f64>,
    /// Time allowed to run and waiting for one.
    pub run_wait: Option<f64>,
    /// Time held back by a cgroup's quota.
    pub throttled: Option<f64>,
    /// Time its event loop was away from its poll.
    #[serde(default)]
    pub away_from_poll: Option<f64>,
    /// Times a second that its event loop had nothing left to do.
    #[serde(default)]
    pub wakeups_per_s: Option<f64>,
}

/// One detector's verdict.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FindingLine {
    /// Which detector.
    pub kind: String,
    /// How bad.
    pub severity: Severity,
    /// The worst request; empty when it is about none.
    pub rid: String,
    /// The hop; `null` when it is about none.
    pub hop: Option<String>,
    /// When it began.
    pub at_ns: u64,
    /// One sentence, with numbers.
    pub summary: String,
    /// The numbers by name.
    pub evidence: BTreeMap<String, Value>,
    /// What answers it, where known.
    pub advice: Option<String>,
}

/// What observing cost, and what it missed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Own {
    /// CPU time spent.
    pub cpu_ns: Option<u64>,
    /// Resident memory.
    pub rss_bytes: Option<u64>,
    /// Events entered.
    pub events: u64,
    /// Observations missed, as the source counts them. Lost tokens are the engine's: `chunks.tokens_lost`.
    pub events_missed: u64,
    /// The same by cause.
    pub missed_by_cause: BTreeMap<String, u64>,
    /// Frames that passed without any report, by their lane's numbering.
    pub frames_unannounced: u64,
    /// Frames that could not be read.
    pub frames_undecoded: u64,
    /// What could not be attached, and what would allow it.
    pub degraded: Vec<Value>,
    /// What reading Python stacks cost; absent when none were read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<SamplingCost>,
}

impl Own {
    /// Observations missed, announced by the source or not.
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
