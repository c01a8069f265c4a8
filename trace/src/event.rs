//! The event type that every source emits and every sink reads.
//!
//! An event borrows from the source's buffers: a frame of 256 chunks reaches the ledger without an allocation.
//! Sources emit the events of one lane in order. Between lanes and stages, timestamps may step back slightly.

mod arrival;
mod dispatch;
mod engine_times;
mod new;
mod pair_message;
mod samples;
mod tool_calls;

use serde::{Deserialize, Serialize};

use crate::clock::MonoNs;
pub use crate::engine::Engine;
use crate::engine::Mode;
use crate::id::{FrameId, HopId, ThreadId};
use crate::path::Ends;
use crate::words::names;
pub use arrival::{Arrival, ArrivalTimes, ConnectionTimes, TraceParent, Traced, UnknownArrival};
pub use dispatch::{Dispatch, DispatchKind, DispatchedRequest};
pub use engine_times::{EngineTimes, RequestTimes};
pub use pair_message::{PairMessage, PairMessageKind};
pub use samples::{Away, AwayState, CpuSample, PollUse, QueueSample, StackSample, ThreadPart};
pub use tool_calls::{ArgumentsPart, ToolCallOutcome, ToolCalls, UnjudgedReason};

/// One observation with its timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Event<'a> {
    /// Time on `CLOCK_MONOTONIC`, as precise as the source can determine it.
    #[serde(rename = "at_ns")]
    pub at: MonoNs,
    /// The observation.
    pub what: What<'a>,
}

/// An observation of a stage, a process or the relay.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What<'a> {
    /// Properties of the engine; replaces any earlier `Engine` event.
    Engine(Engine<'a>),
    /// A hop exists. Emitted before its first frame, and again when its name becomes known.
    Hop(Hop<'a>),
    /// A message, or a further request of one, entered the hop to the scheduler. Its receive is a `Received` event.
    Dispatched(Dispatch<'a>),
    /// The scheduler of one server of a pair told the other's something about a request.
    PairMessage(PairMessage),
    /// A frame entered a hop (`zmq_msg_send`, or its last byte reached the relay). Carries the decoded content.
    Sent(Frame<'a>),
    /// Content of a frame waited in the sender before the frame was sent. Emitted behind `Sent`.
    SendWait(SendWait),
    /// The engine's own times of a request whose first tokens a frame contains. Emitted behind `Sent`.
    RequestTimes(RequestTimes<'a>),
    /// The application received the frame from its socket (`zmq_msg_recv` returned it).
    Received(Received<'a>),
    /// The application asked for the next frame: this one is processed.
    Processed(FrameId),
    /// A request, whose response begins, had reached the server.
    Arrived(Arrival<'a>),
    /// A request belongs to a trace of its caller.
    Traced(Traced<'a>),
    /// Tokens of one request were accepted for the client.
    Delivered(Delivery<'a>),
    /// A response to a client ended.
    Answered(Answer<'a>),
    /// A response with an error status began.
    Rejected(Rejection),
    /// A response waited in a frontend.
    FrontendWait(FrontendWait<'a>),
    /// A frame crossed the hop and could not be decoded. Its content is unknown, so a missing chunk proves nothing.
    Undecoded(Undecoded<'a>),
    /// CPU use of one engine thread over the interval that ends now.
    Cpu(CpuSample<'a>),
    /// Bytes in the kernel queues of a hop at this instant.
    Queue(QueueSample<'a>),
    /// Stack samples of an engine thread, by function.
    Stack(StackSample<'a>),
    /// The engine's log or tracing reports that a request reached a stage.
    Stage(Stage<'a>),
    /// The engine's log reports the state of a process.
    LoggedState(LoggedState<'a>),
    /// The engine's log reports merged chunks of a request.
    Merged(Merged<'a>),
    /// tokengap missed observations. Anything derived from them is void from here on.
    Missed(Missed),
}

/// A directed ZMQ channel between two roles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hop<'a> {
    /// Id carried by the hop's frames.
    pub id: HopId,
    /// Roles at its ends. Hops with the same ends share one line of the report.
    #[serde(borrow)]
    pub ends: Ends<&'a str>,
    /// Endpoint in ZMQ notation; empty when unknown.
    pub endpoint: &'a str,
    /// Index of the receiver within its worker group.
    pub worker: Option<u16>,
    /// First hop of the path: its sends are the scheduler's.
    pub origin: bool,
    /// Last hop of the path: its receives are the tokenizer's.
    pub last: bool,
    /// It leads to the scheduler and carries requests: no tokens cross it.
    #[serde(default)]
    pub carries_requests: bool,
    /// Stages that the source can observe here. An unobserved stage is `null` in reports, never 0.
    pub capabilities: Capabilities,
}

/// The stages of a frame that a source can observe on a hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "one flag per stage, each read by its name")]
pub struct Capabilities {
    /// `Sent` events are observed.
    pub sent: bool,
    /// Times of forwarding are observed (the relay is in the path).
    pub forwarded: bool,
    /// `Received` events are observed.
    pub received: bool,
    /// `Processed` events are observed.
    pub processed: bool,
    /// `Delivered` events are observed for requests that cross this hop.
    pub delivered: bool,
}

/// One ZMQ message with its decoded content.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Frame<'a> {
    /// Id of the frame.
    pub id: FrameId,
    /// Length of the message in bytes, without ZMTP headers.
    pub bytes: u64,
    /// When the relay wrote its last byte to the receiver's socket; `None` if not observed.
    pub forwarded: Option<MonoNs>,
    /// Kind of message.
    pub kind: Kind,
    /// Meaning of its `output_ids` column in the release that wrote it.
    pub ids: IdColumn,
    /// Entries per request; empty for control messages and idle batches.
    pub chunks: &'a [Chunk<'a>],
}

/// Time that a message's content waited in the sender: from the sender's own timestamp in the message to the send, or, to a server in the
/// same process, from the send until that server took it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SendWait {
    /// Hop of the message.
    pub hop: HopId,
    /// Length of the wait.
    pub ns: u64,
}

/// Kinds of message that matter to the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Token ids: the scheduler's output.
    TokenIds,
    /// Text: the detokenizer's output.
    Text,
    /// Embeddings, from the scheduler.
    Embedding,
    /// Any other output.
    Multimodal,
    /// Abort of requests: each chunk names one, with [`Finish::Abort`] and no counts.
    Abort,
    /// Any other message on these sockets.
    Control,
    /// The engine reports that it failed and sends no more output.
    Failed,
}

impl Kind {
    /// Whether such a message concerns the engine and no single request.
    pub fn is_control(self) -> bool {
        matches!(self, Self::Control | Self::Failed)
    }
}

/// Meaning of the ids and counts of a frame's chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdColumn {
    /// New ids only.
    Delta,
    /// All ids so far.
    Cumulative,
    /// New ids, but a stream's first chunk may list up to 5 ids of the prompt's tail before them.
    DeltaAfterPromptTail,
    /// The column is absent or empty by design; only `completion_tokens` counts.
    Absent,
    /// `Delta` or `Cumulative`: the message does not show which. Each stream's second chunk decides: as many ids as `completion_tokens`
    /// means cumulative, fewer means new ids only.
    Undecided,
    /// New ids only, and the format has no `completion_tokens`. Positions are sums of the observed ids. A format with `prompt_tokens` sets
    /// them on a stream's first chunk only, which shows that the stream begins there.
    Uncounted,
}

/// One request's part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Chunk<'a> {
    /// The engine's request id.
    pub rid: &'a str,
    /// Number of ids listed for the request; `None` when the frame lists none by design.
    pub listed: Option<u32>,
    /// Cumulative count of generated tokens, as the scheduler keeps it.
    pub completion_tokens: Option<u32>,
    /// Length of the prompt in tokens.
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: Option<u32>,
    /// Set on a request's last chunk.
    pub finish: Option<Finish>,
    /// How often the scheduler has retracted the request so far.
    pub retractions: Option<u32>,
    /// Receiver that serves the request, where a router chooses among several: its endpoint or another key.
    pub worker: Option<&'a str>,
    /// The listed ids; empty unless token payloads are captured.
    #[serde(skip_serializing_if = "<[i64]>::is_empty")]
    pub ids: &'a [i64],
    /// The text of the new tokens, if the message carries text and its comparison with responses is on. Never recorded or exported.
    #[serde(skip)]
    pub text: Option<&'a str>,
}

impl<'a> Chunk<'a> {
    /// Creates a part of the output of this request, of which nothing else is known.
    pub const fn new(rid: &'a str) -> Self {
        Self {
            rid,
            listed: None,
            completion_tokens: None,
            prompt_tokens: None,
            cached_tokens: None,
            finish: None,
            retractions: None,
            worker: None,
            ids: &[],
            text: None,
        }
    }

    /// The part of a request that lists this many ids and has this count.
    pub const fn counted(rid: &'a str, listed: u32, completion_tokens: u32) -> Self {
        Self { listed: Some(listed), completion_tokens: Some(completion_tokens), ..Self::new(rid) }
    }
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// Reached its length limit.
    Length,
    /// Matched a stop token or string.
    Stop,
    /// Aborted by the client, the scheduler or an error.
    Abort,
    /// A finish reason unknown to this version.
    Other,
}

/// A frame received by the application.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Received<'a> {
    /// Id of the frame.
    pub id: FrameId,
    /// Number of the receiver's wakeup from its poll; frames received in one wakeup share it. `None` when not observed.
    pub wakeup: Option<u64>,
    /// Receiving thread. Its samples show what the receiver did while frames waited. `None` when not observed.
    pub by: Option<ThreadId>,
    /// Decoded content if the frame's `Sent` was not observed; otherwise `None`.
    pub frame: Option<Frame<'a>>,
}

/// Tokens of one request accepted for its client.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Delivery<'a> {
    /// The engine's request id.
    pub rid: &'a str,
    /// Number of tokens in this delivery: new ones in incremental mode, all so far in cumulative mode.
    pub tokens: u32,
    /// Whether `tokens` counts new tokens or all so far.
    pub mode: Mode,
    /// The cumulative count the delivery claims.
    pub completion_tokens: Option<u32>,
    /// Whether the delivery marks the request as finished.
    pub finished: bool,
    /// How the response carries tokens.
    pub response: Response,
    /// Number of its chunks that have no text of their own, such as a part of a character, and come with the text of others. They count as
    /// delivered, not as merged.
    pub without_text: u32,
}

/// How a response to a client carries tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// Events, each with its token ids or all text so far.
    #[default]
    Streamed,
    /// One body at the end: a single delivery by design.
    Whole,
    /// Events with text only. Their tokens are known if the text equals that of known chunks. Otherwise the delivery has no
    /// `completion_tokens`, and no further one of the response is emitted.
    Text,
}

impl Delivery<'_> {
    /// Whether the response carries text whose tokens are unknown.
    pub fn is_uncounted(&self) -> bool {
        self.response == Response::Text && self.completion_tokens.is_none()
    }
}

/// One request's part of a response to a client, emitted when the response ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Answer<'a> {
    /// The engine's request id. If the response does not carry it, the stream's own name.
    pub rid: &'a str,
    /// Total number of tokens carried; `None` if it carries text only or was only partly observed.
    pub tokens: Option<u32>,
    /// Cumulative count claimed by its last event; `None` if it claims none.
    pub completion_tokens: Option<u32>,
    /// How it ended.
    pub end: AnswerEnd,
    /// Writes that the socket accepted only in part or not at all: the client read more slowly than the server wrote.
    pub short_writes: u32,
    /// Bytes accepted for the client but unacknowledged when the connection ended; `None` while it stays open.
    pub unacknowledged: Option<u64>,
    /// Its content by its own words; `None` for a response that is not read event by event over HTTP.
    pub content: Option<AnswerContent>,
    /// Its tool calls; `None` without any.
    pub tool_calls: Option<ToolCalls>,
}

/// What one request's part of an HTTP response shows about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct AnswerContent {
    /// Endpoint, by the form of its events.
    pub form: AnswerForm,
    /// Number of events with text or tokens.
    pub events: u32,
    /// Maximum number of tokens in one event, by its ids or by the growth of its usage; `None` if no event shows its tokens.
    pub event_tokens_max: Option<u32>,
    /// A stream that was written to its end, with neither a finish reason nor `[DONE]`.
    pub lacks_end: bool,
    /// Its own finish reason; `None` if it has none, or was observed in part.
    pub finish: Option<AnswerFinish>,
    /// Whether `[DONE]` was written; `None` for a body, and for a response that was observed in part.
    pub done: Option<bool>,
}

impl AnswerContent {
    /// Content of a response without events.
    pub const fn new(form: AnswerForm) -> Self {
        Self { form, events: 0, event_tokens_max: None, lacks_end: false, finish: None, done: None }
    }

    /// Whether a stream ended with `[DONE]`, but without a finish reason.
    pub fn is_done_without_finish(&self) -> bool {
        self.done == Some(true) && self.finish.is_none()
    }
}

/// Finish reason of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerFinish {
    /// The model ended, or a stop string matched.
    Stop,
    /// It reached its maximum number of tokens.
    Length,
    /// It ends with tool calls.
    ToolCalls,
    /// It was aborted.
    Abort,
    /// Another reason, or different ones of several choices.
    Other,
}

impl AnswerFinish {
    /// The finish reason that an endpoint calls by this name.
    pub fn from_name(name: &str) -> Self {
        match name {
            "stop" => Self::Stop,
            "length" => Self::Length,
            "tool_calls" => Self::ToolCalls,
            "abort" => Self::Abort,
            _ => Self::Other,
        }
    }

    /// Whether the finish reason of a response contradicts `engine_finish`, the one in the engine's frames. Two reasons contradict each
    /// other if one says that the text is complete and the other that it is cut. All other reasons come from the server, which may replace
    /// the engine's. `may_server_stop_later`: the server itself looks for stop strings, so it may call a text complete that the engine cut.
    pub fn contradicts(self, engine_finish: Finish, may_server_stop_later: bool) -> bool {
        match (self, engine_finish) {
            (Self::Length, Finish::Stop) => true,
            (Self::Stop, Finish::Length) => !may_server_stop_later,
            _ => false,
        }
    }
}

/// Form of the events of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerForm {
    /// The engine's own endpoint, with `meta_info`.
    Generate,
    /// `/v1/completions` or `/v1/chat/completions`.
    OpenAi,
}

/// How a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerEnd {
    /// Its last byte was accepted for the client.
    Whole,
    /// The client closed or reset the connection first.
    ClientLeft,
    /// The server closed the connection first.
    ServerLeft,
    /// The server wrote an error instead of the rest: an event, or the whole body.
    Failed,
    /// The connection closed; which side closed it first is unknown.
    Unknown,
}

/// A request that was rejected: its response has an error status, or only an error event, and need not name the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Rejection {
    /// HTTP status: from 400 on, or 200 of a stream with only an error event.
    pub status: u16,
}

/// Waits of one response in a frontend on the same machine, emitted when both its sides have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct FrontendWait<'a> {
    /// The engine's request id. If it is unknown, the frontend's.
    pub rid: &'a str,
    /// Time from the server's write of the first token to the frontend's first write with a part of it; `None` if the frontend may have
    /// held text back.
    pub first_token_ns: Option<u64>,
    /// Time from the server's write of the last token to the frontend's write of the finish reason; `None` if a side ended early.
    pub last_token_ns: Option<u64>,
}

impl FrontendWait<'_> {
    /// The longer of the two waits; `None` if neither is known.
    pub(crate) fn longest_ns(&self) -> Option<u64> {
        self.first_token_ns.max(self.last_token_ns)
    }
}

/// A frame that was observed but could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Undecoded<'a> {
    /// Id of the frame.
    pub id: FrameId,
    /// Its length in bytes.
    pub bytes: u64,
    /// When the relay wrote its last byte to the receiver's socket; `None` if not observed.
    pub forwarded: Option<MonoNs>,
    /// Reason, in words.
    pub reason: &'a str,
}

/// A request at a stage, named and timed by the engine itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stage<'a> {
    /// The engine's request id, possibly truncated: logs shorten it.
    pub rid: &'a str,
    /// The stage, as the log names it.
    pub name: &'a str,
    /// Source: a role, a process, or the log file; empty when unknown.
    pub by: &'a str,
    /// Tokens of the request at that time (`output_len`).
    pub tokens: Option<u32>,
    /// Requests or messages queued behind it (`pending`).
    pub pending: Option<u32>,
    /// Wait of a streamed request's first output between scheduler and receiver, if one line has the times of both ends. Only on the
    /// stage that ends the wait.
    pub gap_ns: Option<u64>,
}

/// State of an engine process, from its own log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LoggedState<'a> {
    /// Source: a role, a process, or the log file; empty when unknown.
    pub by: &'a str,
    /// Number of requests it holds state for (`states`).
    pub states: Option<u32>,
    /// Number of requests in the message just received (`rids`).
    pub rids: Option<u32>,
    /// Time it waited for that message, or has waited so far if `unanswered_since` is known.
    pub recv_wait_ns: Option<u64>,
    /// Whether more messages were ready behind it.
    pub more: Option<bool>,
    /// CPU use of the process, as a share of one core.
    pub cpu: Option<f64>,
    /// Kernel part of the CPU use, as a share of one core.
    pub cpu_system: Option<f64>,
    /// Time of a health check that no message has answered so far.
    pub unanswered_since: Option<MonoNs>,
}

/// Merged chunks of one request. No token is lost, but the client receives them late and in one burst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Merged<'a> {
    /// The engine's request id, possibly truncated.
    pub rid: &'a str,
    /// Number of chunks merged into one.
    pub chunks: u32,
    /// Source; empty when unknown.
    pub by: &'a str,
}

/// Observations that were discarded or could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Missed {
    /// Hop they belong to; `None` if it could be any.
    pub hop: Option<HopId>,
    /// Number of missed observations, as precise as it can be counted.
    pub count: u64,
    /// Cause.
    pub cause: MissedCause,
}

/// Why observations were missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MissedCause {
    /// The queue between source and ledger was full.
    QueueFull,
    /// The byte stream could not be split into frames (garbage, encryption, or attached in mid-stream).
    Unframed,
    /// The frame was larger than the capture limit.
    TooLarge,
    /// A connection ended inside a frame.
    CutShort,
    /// The engine's processes ended, so queued frames were never received. Has no count.
    Ended,
}

names! {
    Kind {
        TokenIds = "token-ids",
        Text = "text",
        Embedding = "embedding",
        Multimodal = "multimodal",
        Abort = "abort",
        Control = "control",
        Failed = "failed",
    }
    DispatchKind { Requests = "requests", Aborts = "aborts", Control = "control" }
    Finish { Length = "length", Stop = "stop", Abort = "abort", Other = "other" }
    AnswerEnd {
        Whole = "whole", ClientLeft = "client-left", ServerLeft = "server-left", Failed = "failed", Unknown = "unknown"
    }
    AnswerFinish {
        Stop = "stop", Length = "length", ToolCalls = "tool_calls", Abort = "abort", Other = "other"
    }
    MissedCause {
        QueueFull = "queue-full",
        Unframed = "unframed",
        TooLarge = "too-large",
        CutShort = "cut-short",
        Ended = "ended",
    }
}
