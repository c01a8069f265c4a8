//! The one type every source speaks and every sink reads.
//!
//! An event borrows from the source's buffers: a frame of 256 chunks passes from wire to ledger without an allocation.
//! Sources give events in the order of their lanes; between lanes and stages times may step back a little.

use serde::{Deserialize, Serialize};

use crate::clock::MonoNs;
use crate::engine::{Mode, Waiter};
use crate::id::{FrameId, HopId, ThreadId};

/// One observation, and when it was made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Event<'a> {
    /// When it happened on `CLOCK_MONOTONIC`, as near as the source can tell.
    #[serde(rename = "at_ns")]
    pub at: MonoNs,
    /// What happened.
    pub what: What<'a>,
}

/// What was observed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum What<'a> {
    /// The source learned something about the engine; replaces what it said before.
    Engine(Engine<'a>),
    /// A hop exists; said before any frame on it, and again when its name becomes known.
    Hop(Hop<'a>),
    /// A frame entered a hop (`zmq_msg_send`, or its last byte reached the relay). Carries what the frame says.
    Sent(Frame<'a>),
    /// The relay wrote the frame's last byte to the receiver's socket.
    Forwarded(FrameId),
    /// The application took the frame out of its socket (`zmq_msg_recv` returned it).
    Taken(Taken<'a>),
    /// The application asked for the next frame: it is done with this one.
    Handled(FrameId),
    /// Tokens of one request were accepted for the client.
    Delivered(Delivery<'a>),
    /// A response to a client is over.
    Answered(Answer<'a>),
    /// A frame crossed the hop and could not be read: what it says is unknown, so nothing may be concluded from its absence.
    Undecoded(Undecoded<'a>),
    /// How a thread of the engine spent the interval that ends now.
    Cpu(CpuSample<'a>),
    /// What the kernel holds of a hop now.
    Queue(QueueSample<'a>),
    /// The functions a thread of the engine ran in, by sampling.
    Hot(HotSample<'a>),
    /// The engine says that a request reached a stage: its log, or its own tracing.
    Stage(Stage<'a>),
    /// The engine says how it stands: its log.
    Told(Told<'a>),
    /// The engine says that it merged queued chunks of a request: its log.
    Merged(Merged<'a>),
    /// We missed observations: whatever rested on them is void from here on.
    Lost(Lost),
}

/// What is known of the engine. `None` is "not known", never a guess.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Engine<'a> {
    /// Release, for example `0.5.9`; a range `0.5.12..0.5.13` where only the wire's form is known.
    pub version: Option<&'a str>,
    /// What the tokenizer hands to its waiters.
    pub mode: Option<Mode>,
    /// What a waiter does with several queued chunks.
    pub waiter: Option<Waiter>,
    /// Event-loop turns from a waiter's wake-up call to its run. 3 on CPython up to 3.11 (`asyncio.wait_for` makes a task),
    /// 1 from 3.12 on, more where the consumer takes extra turns; measured, docs/internals/WIRE.md.
    pub turnaround: Option<u8>,
}

/// A directed ZMQ channel between two roles.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Hop<'a> {
    /// The id that frames on it carry.
    pub id: HopId,
    /// `from->to` in the words of the path: `scheduler->tokenizer`. Hops of one name are reported as one line.
    pub name: &'a str,
    /// Where it is, as ZMQ writes endpoints; empty when unknown.
    pub endpoint: &'a str,
    /// Which member of a worker group is at the receiving end.
    pub worker: Option<u16>,
    /// The first hop of the path: its sends are the scheduler's.
    pub origin: bool,
    /// The last hop of the path: its takes are the tokenizer's.
    pub last: bool,
    /// Which stages the source can see here. A stage that is not seen is `null` in reports, never 0.
    pub sees: Sees,
}

/// The stages of a frame that a source can observe on a hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "one switch a stage, each read by its name")]
pub struct Sees {
    /// `Sent` events come.
    pub sent: bool,
    /// `Forwarded` events come (the relay is in the path).
    pub forwarded: bool,
    /// `Taken` events come.
    pub taken: bool,
    /// `Handled` events come.
    pub handled: bool,
    /// `Delivered` events come for requests that cross this hop.
    pub delivered: bool,
}

impl Sees {
    /// What either sees.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            sent: self.sent || other.sent,
            forwarded: self.forwarded || other.forwarded,
            taken: self.taken || other.taken,
            handled: self.handled || other.handled,
            delivered: self.delivered || other.delivered,
        }
    }
}

/// One ZMQ message and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Frame<'a> {
    /// Which frame.
    pub id: FrameId,
    /// Length of the message in bytes, without ZMTP headers.
    pub bytes: u64,
    /// What kind of message it is.
    pub kind: Kind,
    /// What its `output_ids` column means in the release that wrote it.
    pub ids: IdColumn,
    /// The requests it speaks of; empty for control messages and idle batches.
    pub chunks: &'a [Chunk<'a>],
}

/// Kinds of message that matter to the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// `BatchTokenIDOut` / `BatchTokenIDOutput`: the scheduler's output.
    TokenIds,
    /// `BatchStrOut` / `BatchStrOutput`: the detokenizer's output.
    Text,
    /// `BatchEmbeddingOut` / `BatchEmbeddingOutput`.
    Embedding,
    /// `BatchMultimodalOut` and its siblings.
    Multimodal,
    /// `AbortReq`: its one chunk names the request, with [`Finish::Abort`] and no counts.
    Abort,
    /// Anything else that crosses these sockets.
    Control,
}

/// What the ids listed in a chunk are, by release (docs/internals/WIRE.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IdColumn {
    /// New ids only (0.4.6.post4 and later).
    Delta,
    /// All ids so far (up to 0.4.6.post3).
    Cumulative,
    /// New ids, but a stream's first chunk may list up to 5 ids of the prompt's tail before them (text frames of 0.5.1 to 0.5.4.post2).
    DeltaAfterPromptTail,
    /// The column is absent or empty by design; only `completion_tokens` counts.
    Absent,
    /// The message's layout is shared by releases on both sides of 0.4.6.post4: `Delta` or `Cumulative`. Each stream's
    /// second chunk tells: ids listed as many as `completion_tokens` counts are cumulative, fewer are new ones.
    Undecided,
}

/// One request's part of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Chunk<'a> {
    /// SGLang's request id.
    pub rid: &'a str,
    /// How many ids the frame lists for it; `None` when the frame lists none by design.
    pub listed: Option<u32>,
    /// Cumulative count of generated tokens, as the scheduler keeps it.
    pub completion_tokens: Option<u32>,
    /// Length of the prompt.
    pub prompt_tokens: Option<u32>,
    /// Prompt tokens found in the prefix cache.
    pub cached_tokens: Option<u32>,
    /// Set on a request's last chunk.
    pub finish: Option<Finish>,
    /// How often the scheduler has retracted the request so far.
    pub retractions: Option<u32>,
    /// `http_worker_ipc`: the tokenizer worker that waits for it.
    pub worker: Option<&'a str>,
    /// The listed ids; empty unless token payload was asked for.
    #[serde(skip_serializing_if = "<[i64]>::is_empty")]
    pub ids: &'a [i64],
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
    /// A type this version does not know.
    Other,
}

/// A frame leaving the receiver's inbox.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Taken<'a> {
    /// Which frame.
    pub id: FrameId,
    /// Counts the receiver's trips to its poll: frames taken in one wakeup share it. `None` when not observed.
    pub wakeup: Option<u64>,
    /// The thread that took it: its samples tell what the receiver did while frames waited. `None` when not observed.
    pub by: Option<ThreadId>,
    /// What the frame says, when its `Sent` was never observed; `None` when it was.
    pub frame: Option<Frame<'a>>,
}

/// Tokens of one request, accepted for its client.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Delivery<'a> {
    /// SGLang's request id.
    pub rid: &'a str,
    /// Tokens in this delivery: new ones in incremental mode, all so far in cumulative mode.
    pub tokens: u32,
    /// Whether `tokens` counts new ones or all so far.
    pub mode: Mode,
    /// The cumulative count the delivery claims.
    pub completion_tokens: Option<u32>,
    /// The delivery says the request is finished.
    pub finished: bool,
    /// How its response carries tokens.
    pub response: Response,
}

/// How a response to a client carries tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Response {
    /// Events, each with the ids of its tokens or all text so far.
    #[default]
    Streamed,
    /// One body at the end: it delivers once by design.
    Whole,
    /// Events with text only: how many tokens they deliver is unknown. Said once, with 0 tokens, by the first of them.
    Text,
}

/// One request's part of a response to a client, when the response is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Answer<'a> {
    /// `SGLang`'s request id; where the response does not carry it (Dynamo's response plane), the stream's own name.
    pub rid: &'a str,
    /// Tokens it carried in all; `None` where it carries text only, or not all of it was observed.
    pub tokens: Option<u32>,
    /// The cumulative count that its last event claims; `None` where it claims none.
    pub completion_tokens: Option<u32>,
    /// How it ended.
    pub end: AnswerEnd,
    /// Writes that the socket took in part or not at all: the client read more slowly than the server wrote.
    pub held_up: u32,
    /// Bytes accepted for the client and not acknowledged by its machine when the connection ended; `None` while it stays open.
    pub unacknowledged: Option<u64>,
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
}

/// A frame that was seen and not understood.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Undecoded<'a> {
    /// Which frame.
    pub id: FrameId,
    /// Its length in bytes.
    pub bytes: u64,
    /// Why, in words.
    pub reason: &'a str,
}

/// One thread of the engine over an interval of about 100 ms, or a second for threads that have no part in the path.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CpuSample<'a> {
    /// Which thread.
    pub thread: ThreadId,
    /// Its process's role, in the words of hop names.
    pub role: &'a str,
    /// Its name as the kernel keeps it: at most 15 bytes; empty when unknown.
    pub name: &'a str,
    /// What it is to its process.
    pub part: ThreadPart,
    /// Length of the interval in nanoseconds.
    pub interval_ns: u64,
    /// Nanoseconds of it on a CPU.
    pub on_ns: u64,
    /// Nanoseconds of it runnable without a CPU, time held back by a quota included; `None` without `CONFIG_SCHED_INFO`.
    pub wait_ns: Option<u64>,
    /// Nanoseconds for which the quota of its cgroup was used up (`cpu.stat`, summed over CPUs); `None` without a quota.
    pub throttled_ns: Option<u64>,
    /// Its event loop's poll; `None` when not observed, or not looked at for this sample.
    pub poll: Option<PollUse>,
    /// Why it does not run, at the end of the interval; `None` when it runs, when no frame waits, or when not looked at.
    pub away: Option<Away<'a>>,
}

/// Where a thread is that does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Away<'a> {
    /// Why it does not run.
    pub state: AwayState,
    /// The system call that it sleeps in, or the kernel's function; empty when unknown or of no meaning.
    pub place: &'a str,
}

/// Why a thread does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AwayState {
    /// Stopped by a signal (`SIGSTOP`).
    Stopped,
    /// Stopped by a debugger (`ptrace`).
    Traced,
    /// Its cgroup is frozen.
    Frozen,
    /// In a system call other than a poll.
    Blocked,
    /// In the poll of an event loop or of libzmq: it waits for something to do.
    Polling,
    /// In a system call that cannot be read.
    Asleep,
}

impl AwayState {
    /// Every state, in the order of their numbers.
    pub const ALL: [Self; 6] = [
        Self::Stopped,
        Self::Traced,
        Self::Frozen,
        Self::Blocked,
        Self::Polling,
        Self::Asleep,
    ];

    /// As events and evidence spell it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Traced => "traced",
            Self::Frozen => "frozen",
            Self::Blocked => "blocked",
            Self::Polling => "polling",
            Self::Asleep => "asleep",
        }
    }
}

/// A thread's part in its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ThreadPart {
    /// The main thread.
    Main,
    /// One of libzmq's I/O threads: moves bytes between the kernel's sockets and the queues that the application reads.
    Io,
    /// Any other.
    Other,
}

/// An event loop between polls, over an interval of its own: since the last sample of the thread that told of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PollUse {
    /// Length of the interval in nanoseconds.
    pub interval_ns: u64,
    /// Nanoseconds of it inside the poll; the rest the loop was away from it.
    pub polled_ns: u64,
    /// Polls that were allowed to sleep: the loop had nothing left to do.
    pub wakeups: u64,
}

/// Kernel queues of all connections of the hops of one name, at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct QueueSample<'a> {
    /// The hops' name.
    pub hop: &'a str,
    /// Bytes in the receivers' sockets, not yet read by libzmq (`SIOCINQ`); `None` when no receiver's socket can be read.
    pub receive_bytes: Option<u64>,
    /// Bytes in the senders' sockets, not yet read or acknowledged (`SIOCOUTQ`); on Unix sockets these are the same bytes
    /// with the kernel's overhead. `None` when no sender's socket can be read.
    pub send_bytes: Option<u64>,
}

/// One function of a sampled thread over an interval. A thread's functions of one interval come one after the other, all
/// intervals of a process's threads end together, and a thread that never ran is told once, without a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HotSample<'a> {
    /// Which thread.
    pub thread: ThreadId,
    /// Its process's role, in the words of hop names.
    pub role: &'a str,
    /// The function's name; empty when the thread ran nothing in the interval.
    pub function: &'a str,
    /// The file it is in, shortened to what tells it from others.
    pub file: &'a str,
    /// Length of the interval in nanoseconds.
    pub interval_ns: u64,
    /// How often the thread's stack was read in the interval.
    pub taken: u32,
    /// In how many of these the function was anywhere on the stack of a running thread.
    pub total: u32,
    /// In how many it was the innermost one of a running thread.
    pub own: u32,
    /// In how many it was the innermost one and the thread held the GIL; `None` where the owner cannot be read.
    pub gil: Option<u32>,
}

/// A request at a stage, in the engine's own words and by the engine's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stage<'a> {
    /// SGLang's request id, as far as the line gives it: logs cut it short.
    pub rid: &'a str,
    /// The stage: `first_output_stream`, `tokenizer_first_token`, ...
    pub name: &'a str,
    /// Who says it: a role, a process, or the log it stood in; empty when unknown.
    pub by: &'a str,
    /// Tokens the request had then (`output_len`).
    pub tokens: Option<u32>,
    /// Requests or messages that waited behind it (`pending`).
    pub pending: Option<u32>,
}

/// What a process of the engine says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Told<'a> {
    /// Who says it: a role, a process, or the log it stood in; empty when unknown.
    pub by: &'a str,
    /// Requests it holds state for (`states`).
    pub states: Option<u32>,
    /// Requests in the message it has just taken (`rids`).
    pub rids: Option<u32>,
    /// How long it waited for that message.
    pub recv_wait_ns: Option<u64>,
    /// More messages were ready behind it.
    pub more: Option<bool>,
    /// CPU of the process, as a share of one core.
    pub cpu: Option<f64>,
    /// The part of it in the kernel, likewise.
    pub cpu_system: Option<f64>,
}

/// Queued chunks of one request that became one: no token is lost by that, but clients see them late and at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Merged<'a> {
    /// SGLang's request id, as far as the line gives it.
    pub rid: &'a str,
    /// How many chunks became one.
    pub chunks: u32,
    /// Who says it; empty when unknown.
    pub by: &'a str,
}

/// Observations that were made and thrown away, or could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// The hop they belong to; `None` when it could be any.
    pub hop: Option<HopId>,
    /// How many, as far as it can be counted.
    pub count: u64,
    /// Why.
    pub cause: LostCause,
}

/// Why observations were lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LostCause {
    /// The queue between source and ledger was full.
    QueueFull,
    /// The byte stream could not be framed (garbage, encryption, an attach in mid-stream).
    Unframed,
    /// The frame was larger than the capture limit.
    TooLarge,
    /// A connection ended inside a frame.
    CutShort,
    /// The engine's processes have ended: what waited on their hops is taken by nobody. Counts nothing.
    Ended,
}
