//! List of all metrics, used for encoding, documentation and tests.

use super::Unit::{Bytes, Info, Of, Ratio, Seconds};
use super::{Definition, Kind, Unit};

const fn counter(name: &'static str, unit: Unit, labels: &'static [&'static str], help: &'static str) -> Definition {
    define(Kind::Counter, name, unit, labels, help)
}

const fn gauge(name: &'static str, unit: Unit, labels: &'static [&'static str], help: &'static str) -> Definition {
    define(Kind::Gauge, name, unit, labels, help)
}

const fn histogram(name: &'static str, unit: Unit, labels: &'static [&'static str], help: &'static str) -> Definition {
    define(Kind::Histogram, name, unit, labels, help)
}

const fn define(
    kind: Kind,
    name: &'static str,
    unit: Unit,
    labels: &'static [&'static str],
    help: &'static str,
) -> Definition {
    Definition {
        name,
        kind,
        unit,
        labels,
        help,
    }
}

// The run and the engine.
pub(super) const BUILD: Definition = gauge("tokengap.build.info", Info, &["version"], "Version of tokengap");
pub(super) const ENGINE: Definition = gauge(
    "tokengap.engine.info",
    Info,
    &["engine", "version", "mode", "waiter"],
    "Engine; labels are empty if unknown",
);
pub(super) const ENGINE_ENDED: Definition = counter(
    "tokengap.engine.ended",
    Of("{time}"),
    &[],
    "Number of times the engine exited; with --follow, tokengap waits for the next one",
);
pub(super) const SOURCE: Definition = gauge("tokengap.source.info", Info, &["kind"], "Source of the observations");
pub(super) const WINDOW: Definition = gauge(
    "tokengap.window",
    Seconds,
    &[],
    "Time from the first to the latest event",
);

// Requests.
pub(super) const REQUESTS_SEEN: Definition = counter(
    "tokengap.requests.seen",
    Of("{request}"),
    &[],
    "Requests observed on any hop, without health checks",
);
pub(super) const REQUESTS_FINISHED: Definition = counter(
    "tokengap.requests.finished",
    Of("{request}"),
    &[],
    "Requests with a finish reason, of any kind, in a frame",
);
pub(super) const REQUESTS_ABORTED: Definition = counter(
    "tokengap.requests.aborted",
    Of("{request}"),
    &[],
    "Requests that ended with an abort",
);
pub(super) const REQUESTS_JOINED_LATE: Definition = counter(
    "tokengap.requests.joined_late",
    Of("{request}"),
    &[],
    "Requests whose first chunk was not observed",
);
pub(super) const REQUESTS_OVERWRITTEN: Definition = counter(
    "tokengap.requests.overwritten",
    Of("{request}"),
    &[],
    "Requests whose rid was reused while in flight",
);
pub(super) const REQUESTS_ORPHANED: Definition = counter(
    "tokengap.requests.orphaned",
    Of("{request}"),
    &[],
    "Unfinished requests evicted after a long silence",
);
pub(super) const REQUESTS_LIVE: Definition = gauge(
    "tokengap.requests.live",
    Of("{request}"),
    &[],
    "Requests that have not ended",
);
pub(super) const HEALTH_CHECKS: Definition = counter(
    "tokengap.health_checks",
    Of("{request}"),
    &[],
    "The server's own health checks, which are not judged",
);

// Tokens and chunks.
pub(super) const TOKENS_SENT: Definition = counter(
    "tokengap.tokens.sent",
    Of("{token}"),
    &[],
    "Tokens sent by the scheduler according to its own count",
);
pub(super) const TOKENS_RECEIVED: Definition = counter(
    "tokengap.tokens.received",
    Of("{token}"),
    &[],
    "Tokens received by the tokenizer",
);
pub(super) const TOKENS_DELIVERED: Definition = counter(
    "tokengap.tokens.delivered",
    Of("{token}"),
    &[],
    "Tokens accepted by the kernel for clients, each counted once",
);
pub(super) const TOKENS_LOST: Definition = counter(
    "tokengap.tokens.lost",
    Of("{token}"),
    &[],
    "Tokens in chunks that are confirmed to be dropped",
);
pub(super) const TOKENS_MISSING_ON_WIRE: Definition = counter(
    "tokengap.tokens.missing_on_wire",
    Of("{token}"),
    &[],
    "Tokens missing on the wire according to the streams' own counts",
);
pub(super) const CHUNKS_SENT: Definition = counter(
    "tokengap.chunks.sent",
    Of("{chunk}"),
    &[],
    "Chunks sent by the scheduler",
);
pub(super) const CHUNKS_RECEIVED: Definition = counter(
    "tokengap.chunks.received",
    Of("{chunk}"),
    &[],
    "Chunks received by the tokenizer",
);
pub(super) const CHUNKS_DELIVERED: Definition = counter(
    "tokengap.chunks.delivered",
    Of("{chunk}"),
    &[],
    "Delivered chunks; of chunks merged into one delivery, only the first",
);
pub(super) const CHUNKS_MERGED: Definition = counter(
    "tokengap.chunks.merged",
    Of("{chunk}"),
    &[],
    "Chunks delivered merged with another chunk",
);
pub(super) const CHUNKS_DROPPED: Definition = counter(
    "tokengap.chunks.dropped",
    Of("{chunk}"),
    &[],
    "Chunks that never reached the client, confirmed by counting deliveries",
);
pub(super) const CHUNKS_PREDICTED_DROPPED: Definition = counter(
    "tokengap.chunks.predicted_dropped",
    Of("{chunk}"),
    &[],
    "Chunks predicted to be dropped, from wakeups and the behaviour of the release",
);
pub(super) const CHUNKS_UNJUDGED: Definition = counter(
    "tokengap.chunks.unjudged",
    Of("{chunk}"),
    &[],
    "Chunks whose delivery is unknown: observations were missed, or counts alone do not show it",
);
pub(super) const CHUNKS_IN_FLIGHT: Definition = gauge(
    "tokengap.chunks.in_flight",
    Of("{chunk}"),
    &[],
    "Chunks sent but not delivered, including those of closed requests",
);

// Times.
pub(super) const GAP: Definition = histogram(
    "tokengap.gap",
    Seconds,
    &[],
    "First receive at the tokenizer minus first send by the scheduler, one value per request",
);
pub(super) const ITL_SENT: Definition = histogram(
    "tokengap.itl.sent",
    Seconds,
    &[],
    "Time between chunks of one request at the scheduler",
);
pub(super) const ITL_DELIVERED: Definition = histogram(
    "tokengap.itl.delivered",
    Seconds,
    &[],
    "Time between deliveries of one request to its client",
);
pub(super) const ITL_SENT_BY_TOKEN: Definition = histogram(
    "tokengap.itl.sent_by_token",
    Seconds,
    &[],
    "Inter-token latency at the scheduler: time between chunks divided by the tokens of a chunk",
);
pub(super) const ITL_DELIVERED_BY_TOKEN: Definition = histogram(
    "tokengap.itl.delivered_by_token",
    Seconds,
    &[],
    "Inter-token latency at the client: time between deliveries divided by the tokens of a delivery",
);
pub(super) const FRONTEND_WAIT: Definition = histogram(
    "tokengap.frontend.wait",
    Seconds,
    &["of"],
    "Wait in a frontend after the server's write, by response, of first_token or last_token",
);

// Responses.
pub(super) const ANSWERS: Definition = counter(
    "tokengap.answers.ended",
    Of("{response}"),
    &["end"],
    "Finished responses to clients, by the side that closed them",
);
pub(super) const ANSWERS_SHORT_WRITES: Definition = counter(
    "tokengap.answers.short_writes",
    Of("{response}"),
    &[],
    "Responses whose socket accepted only part of a write: the client read more slowly than the server wrote",
);
pub(super) const ANSWERS_UNCOUNTED: Definition = counter(
    "tokengap.answers.uncounted",
    Of("{response}"),
    &[],
    "Responses whose tokens could not be counted",
);
pub(super) const ANSWERS_TOKENS_LOST: Definition = counter(
    "tokengap.answers.tokens_lost",
    Of("{token}"),
    &[],
    "Tokens that responses without frames claimed in their last event but did not carry",
);

// Hops.
pub(super) const PATH_SHARE: Definition = gauge(
    "tokengap.path.share",
    Ratio,
    &["leg", "kind", "of"],
    "Share of a leg in the time between scheduler and tokenizer over the run, for first tokens or chunks",
);
pub(super) const HOP_FRAMES_SENT: Definition = counter(
    "tokengap.hop.frames.sent",
    Of("{frame}"),
    &["hop"],
    "Frames that entered the hop",
);
pub(super) const HOP_FRAMES_FORWARDED: Definition = counter(
    "tokengap.hop.frames.forwarded",
    Of("{frame}"),
    &["hop"],
    "Frames that the relay forwarded",
);
pub(super) const HOP_FRAMES_RECEIVED: Definition = counter(
    "tokengap.hop.frames.received",
    Of("{frame}"),
    &["hop"],
    "Frames that the application received",
);
pub(super) const HOP_FRAMES_UNDECODED: Definition = counter(
    "tokengap.hop.frames.undecoded",
    Of("{frame}"),
    &["hop"],
    "Frames that could not be decoded",
);
pub(super) const HOP_CHUNKS: Definition = counter(
    "tokengap.hop.chunks",
    Of("{chunk}"),
    &["hop"],
    "Chunks inside the hop's frames",
);
pub(super) const HOP_BYTES: Definition = counter("tokengap.hop.payload", Bytes, &["hop"], "Bytes of the hop's frames");
pub(super) const HOP_BACKLOG_FRAMES: Definition = gauge(
    "tokengap.hop.backlog.frames",
    Of("{frame}"),
    &["hop"],
    "Frames sent but not received",
);
pub(super) const HOP_BACKLOG_CHUNKS: Definition = gauge(
    "tokengap.hop.backlog.chunks",
    Of("{chunk}"),
    &["hop"],
    "Chunks in queued frames; absent if some were evicted at a memory limit",
);
pub(super) const HOP_BACKLOG_BYTES: Definition = gauge(
    "tokengap.hop.backlog.size",
    Bytes,
    &["hop"],
    "Bytes of queued frames; absent if some were evicted at a memory limit",
);
pub(super) const HOP_BACKLOG_MAX: Definition = gauge(
    "tokengap.hop.backlog.max_frames",
    Of("{frame}"),
    &["hop"],
    "Maximum number of queued frames during the run",
);
pub(super) const HOP_OLDEST: Definition = gauge(
    "tokengap.hop.oldest_waiting",
    Seconds,
    &["hop"],
    "Age of the oldest queued frame; 0 if none",
);
pub(super) const HOP_KERNEL_RECEIVE: Definition = gauge(
    "tokengap.hop.kernel.receive",
    Bytes,
    &["hop"],
    "Bytes in the receivers' sockets that libzmq has not read",
);
pub(super) const HOP_KERNEL_SEND: Definition = gauge(
    "tokengap.hop.kernel.send",
    Bytes,
    &["hop"],
    "Bytes in the senders' sockets; on Unix sockets, the same bytes plus kernel overhead",
);
pub(super) const HOP_QUEUE_WAIT: Definition = histogram(
    "tokengap.hop.queue_wait",
    Seconds,
    &["hop"],
    "Received minus sent, one value per frame",
);
pub(super) const HOP_SEND_WAIT: Definition = histogram(
    "tokengap.hop.send_wait",
    Seconds,
    &["hop"],
    "Wait of the content in the sender: from the engine's own timestamp to the send (vLLM), or until SGLang's Rust server took it",
);
pub(super) const HOP_RELAY: Definition = histogram(
    "tokengap.hop.relay",
    Seconds,
    &["hop"],
    "Forwarded minus sent: the time inside the relay",
);
pub(super) const HOP_PROCESSING: Definition =
    histogram("tokengap.hop.processing", Seconds, &["hop"], "Processed minus received");
pub(super) const HOP_RECV_WAIT: Definition = histogram(
    "tokengap.hop.recv_wait",
    Seconds,
    &["hop"],
    "Received minus requested: near zero while the receiver is behind",
);
pub(super) const HOP_WAKEUP: Definition = histogram(
    "tokengap.hop.wakeup.frames",
    Of("{frame}"),
    &["hop"],
    "Frames received per completed wakeup",
);

// CPU.
pub(super) const CPU_STATE: Definition = counter(
    "tokengap.cpu.time",
    Seconds,
    &["role", "part", "state"],
    "Time of the engine's threads by state: on_cpu, run_wait (runnable, waiting for a CPU), throttled (by a CPU quota), asleep",
);
pub(super) const CPU_OBSERVED: Definition = counter(
    "tokengap.cpu.observed",
    Seconds,
    &["role", "part"],
    "Observed time of the threads, the total of all states",
);
pub(super) const CONSUMER_CPU: Definition = gauge(
    "tokengap.consumer.cpu",
    Ratio,
    &["role", "state"],
    "Share of each state in the last 10 seconds of the role's busiest receiving thread",
);
pub(super) const POLL_AWAY: Definition = counter(
    "tokengap.consumer.poll_away",
    Seconds,
    &["role"],
    "Time that event loops of receiving threads were away from their poll",
);
pub(super) const POLL_OBSERVED: Definition = counter(
    "tokengap.consumer.poll_observed",
    Seconds,
    &["role"],
    "Observed time of those event loops",
);

// Findings.
pub(super) const FINDINGS: Definition = counter(
    "tokengap.findings",
    Of("{finding}"),
    &["kind"],
    "Findings of the report, one per kind and hop",
);
pub(super) const FINDINGS_ACTIVE: Definition = gauge(
    "tokengap.active_findings",
    Of("{finding}"),
    &["kind", "severity"],
    "Active findings by current severity",
);

// Tokengap itself.
pub(super) const SELF_EVENTS: Definition = counter("tokengap.self.events", Of("{event}"), &[], "Observations entered");
pub(super) const SELF_EVENTS_LOST: Definition = counter(
    "tokengap.self.events_missed",
    Of("{event}"),
    &["cause"],
    "Observations missed by tokengap; findings do not rely on them",
);
pub(super) const SELF_FRAMES_UNANNOUNCED: Definition = counter(
    "tokengap.self.frames.unannounced",
    Of("{frame}"),
    &[],
    "Frames not observed at all, according to their connection's numbering",
);
pub(super) const SELF_FRAMES_UNDECODED: Definition = counter(
    "tokengap.self.frames.undecoded",
    Of("{frame}"),
    &[],
    "Frames that could not be decoded",
);
pub(super) const SELF_LIMIT_REACHED: Definition = counter(
    "tokengap.self.limit_reached",
    Of("{time}"),
    &["limit"],
    "Number of times a memory limit was reached",
);
pub(super) const SELF_DEGRADED: Definition = gauge(
    "tokengap.self.degraded",
    Of("{reason}"),
    &[],
    "Features that are unavailable or failed; the report describes each",
);
pub(super) const SELF_CPU: Definition = counter("tokengap.self.cpu", Seconds, &[], "CPU time of this process");
pub(super) const SELF_MEMORY: Definition = gauge(
    "tokengap.self.resident_memory",
    Bytes,
    &[],
    "Resident memory of this process",
);
pub(super) const SELF_LABELS_LEFT_OUT: Definition = gauge(
    "tokengap.self.labels_left_out",
    Of("{label}"),
    &["label"],
    "Label values without a series because the limit on series was reached",
);
pub(super) const SELF_PUSHED: Definition = counter(
    "tokengap.self.pushed",
    Of("{item}"),
    &["signal"],
    "Spans and metric points accepted by the OTLP receiver",
);
pub(super) const SELF_PUSH_DROPPED: Definition = counter(
    "tokengap.self.push_dropped",
    Of("{item}"),
    &["signal"],
    "Spans and metric points dropped: queue full, refused by the receiver, or receiver unreachable",
);

/// All metrics, in output order.
pub const ALL: &[&Definition] = &[
    &BUILD,
    &ENGINE,
    &ENGINE_ENDED,
    &SOURCE,
    &WINDOW,
    &REQUESTS_SEEN,
    &REQUESTS_FINISHED,
    &REQUESTS_ABORTED,
    &REQUESTS_JOINED_LATE,
    &REQUESTS_OVERWRITTEN,
    &REQUESTS_ORPHANED,
    &REQUESTS_LIVE,
    &HEALTH_CHECKS,
    &TOKENS_SENT,
    &TOKENS_RECEIVED,
    &TOKENS_DELIVERED,
    &TOKENS_LOST,
    &TOKENS_MISSING_ON_WIRE,
    &CHUNKS_SENT,
    &CHUNKS_RECEIVED,
    &CHUNKS_DELIVERED,
    &CHUNKS_MERGED,
    &CHUNKS_DROPPED,
    &CHUNKS_PREDICTED_DROPPED,
    &CHUNKS_UNJUDGED,
    &CHUNKS_IN_FLIGHT,
    &GAP,
    &ITL_SENT,
    &ITL_DELIVERED,
    &ITL_SENT_BY_TOKEN,
    &ITL_DELIVERED_BY_TOKEN,
    &FRONTEND_WAIT,
    &ANSWERS,
    &ANSWERS_SHORT_WRITES,
    &ANSWERS_UNCOUNTED,
    &ANSWERS_TOKENS_LOST,
    &PATH_SHARE,
    &HOP_FRAMES_SENT,
    &HOP_FRAMES_FORWARDED,
    &HOP_FRAMES_RECEIVED,
    &HOP_FRAMES_UNDECODED,
    &HOP_CHUNKS,
    &HOP_BYTES,
    &HOP_BACKLOG_FRAMES,
    &HOP_BACKLOG_CHUNKS,
    &HOP_BACKLOG_BYTES,
    &HOP_BACKLOG_MAX,
    &HOP_OLDEST,
    &HOP_KERNEL_RECEIVE,
    &HOP_KERNEL_SEND,
    &HOP_QUEUE_WAIT,
    &HOP_SEND_WAIT,
    &HOP_RELAY,
    &HOP_PROCESSING,
    &HOP_RECV_WAIT,
    &HOP_WAKEUP,
    &CPU_STATE,
    &CPU_OBSERVED,
    &CONSUMER_CPU,
    &POLL_AWAY,
    &POLL_OBSERVED,
    &FINDINGS,
    &FINDINGS_ACTIVE,
    &SELF_EVENTS,
    &SELF_EVENTS_LOST,
    &SELF_FRAMES_UNANNOUNCED,
    &SELF_FRAMES_UNDECODED,
    &SELF_LIMIT_REACHED,
    &SELF_DEGRADED,
    &SELF_CPU,
    &SELF_MEMORY,
    &SELF_LABELS_LEFT_OUT,
    &SELF_PUSHED,
    &SELF_PUSH_DROPPED,
];
