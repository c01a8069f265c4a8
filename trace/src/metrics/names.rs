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
pub(super) const BUILD: Definition = gauge(
    "tokengap.build.info",
    Info,
    &["version"],
    "The tokengap that tells this",
);
pub(super) const ENGINE: Definition = gauge(
    "tokengap.engine.info",
    Info,
    &["engine", "version", "mode", "waiter"],
    "The engine as far as it is known; a label is empty where it is not",
);
pub(super) const ENGINE_ENDED: Definition = counter(
    "tokengap.engine.ended",
    Of("{time}"),
    &[],
    "How often the engine was seen to end; with --follow its next start is waited for",
);
pub(super) const SOURCE: Definition = gauge(
    "tokengap.source.info",
    Info,
    &["kind"],
    "Where the observations come from",
);
pub(super) const WINDOW: Definition = gauge("tokengap.window", Seconds, &[], "From the first event to the latest");

// Requests.
pub(super) const REQUESTS_SEEN: Definition = counter(
    "tokengap.requests.seen",
    Of("{request}"),
    &[],
    "Requests seen on any hop, health checks apart",
);
pub(super) const REQUESTS_FINISHED: Definition = counter(
    "tokengap.requests.finished",
    Of("{request}"),
    &[],
    "Requests with a finish reason in a frame, whatever the reason",
);
pub(super) const REQUESTS_ABORTED: Definition = counter(
    "tokengap.requests.aborted",
    Of("{request}"),
    &[],
    "Requests that an abort ended",
);
pub(super) const REQUESTS_JOINED_LATE: Definition = counter(
    "tokengap.requests.joined_late",
    Of("{request}"),
    &[],
    "Requests whose first chunk was not seen",
);
pub(super) const REQUESTS_OVERWRITTEN: Definition = counter(
    "tokengap.requests.overwritten",
    Of("{request}"),
    &[],
    "Requests whose rid another one took over in flight",
);
pub(super) const REQUESTS_ORPHANED: Definition = counter(
    "tokengap.requests.orphaned",
    Of("{request}"),
    &[],
    "Requests that were silent too long and were forgotten unfinished",
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
    "The server's own probes, judged nowhere",
);

// Tokens and chunks.
pub(super) const TOKENS_SENT: Definition = counter(
    "tokengap.tokens.sent",
    Of("{token}"),
    &[],
    "Tokens sent by the scheduler, by its own count",
);
pub(super) const TOKENS_TAKEN: Definition = counter(
    "tokengap.tokens.taken",
    Of("{token}"),
    &[],
    "Tokens taken by the tokenizer",
);
pub(super) const TOKENS_DELIVERED: Definition = counter(
    "tokengap.tokens.delivered",
    Of("{token}"),
    &[],
    "Tokens accepted for clients, each counted once",
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
    "Tokens missing on the wire by the streams' own arithmetic",
);
pub(super) const CHUNKS_SENT: Definition = counter(
    "tokengap.chunks.sent",
    Of("{chunk}"),
    &[],
    "Chunks sent by the scheduler",
);
pub(super) const CHUNKS_TAKEN: Definition = counter(
    "tokengap.chunks.taken",
    Of("{chunk}"),
    &[],
    "Chunks taken by the tokenizer",
);
pub(super) const CHUNKS_DELIVERED: Definition = counter(
    "tokengap.chunks.delivered",
    Of("{chunk}"),
    &[],
    "Chunks carried by a delivery; of those that share one, the first",
);
pub(super) const CHUNKS_COALESCED: Definition = counter(
    "tokengap.chunks.coalesced",
    Of("{chunk}"),
    &[],
    "Chunks whose tokens left inside another chunk's delivery",
);
pub(super) const CHUNKS_DROPPED: Definition = counter(
    "tokengap.chunks.dropped",
    Of("{chunk}"),
    &["certainty"],
    "Chunks that never reach the client: predicted from wakeups and the behaviour of the release, or confirmed by counting deliveries",
);
pub(super) const CHUNKS_UNJUDGED: Definition = counter(
    "tokengap.chunks.unjudged",
    Of("{chunk}"),
    &[],
    "Chunks whose delivery fell into a time of missed observations, or of which counts alone do not show whether they were delivered",
);
pub(super) const CHUNKS_OUTSTANDING: Definition = gauge(
    "tokengap.chunks.outstanding",
    Of("{chunk}"),
    &[],
    "Chunks sent and not delivered, those of closed requests included",
);

// Times.
pub(super) const GAP: Definition = histogram(
    "tokengap.gap",
    Seconds,
    &[],
    "First take at the tokenizer minus first send by the scheduler, a value a request",
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
    "Inter-token latency at the scheduler: each token's share of the time between chunks",
);
pub(super) const ITL_DELIVERED_BY_TOKEN: Definition = histogram(
    "tokengap.itl.delivered_by_token",
    Seconds,
    &[],
    "Inter-token latency as the client saw it: each token's share of the time between deliveries",
);

// Responses.
pub(super) const ANSWERS: Definition = counter(
    "tokengap.answers.ended",
    Of("{response}"),
    &["end"],
    "Finished responses to clients, by the side that ended them",
);
pub(super) const ANSWERS_HELD_UP: Definition = counter(
    "tokengap.answers.held_up",
    Of("{response}"),
    &[],
    "Responses whose socket took less than it was given: the client read more slowly than the server wrote",
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
    "Tokens that responses without frames claim in their last event and did not carry",
);

// Hops.
pub(super) const PATH_SHARE: Definition = gauge(
    "tokengap.path.share",
    Ratio,
    &["leg", "kind", "of"],
    "Part of the time between scheduler and tokenizer that went to a leg of the path over the run, of first tokens or of chunks",
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
    "Frames that the relay wrote on",
);
pub(super) const HOP_FRAMES_TAKEN: Definition = counter(
    "tokengap.hop.frames.taken",
    Of("{frame}"),
    &["hop"],
    "Frames that the application took",
);
pub(super) const HOP_FRAMES_UNDECODED: Definition = counter(
    "tokengap.hop.frames.undecoded",
    Of("{frame}"),
    &["hop"],
    "Frames that could not be read",
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
    "Frames sent and not taken",
);
pub(super) const HOP_BACKLOG_CHUNKS: Definition = gauge(
    "tokengap.hop.backlog.chunks",
    Of("{chunk}"),
    &["hop"],
    "Chunks inside them; absent while some are only counted, for a limit of memory",
);
pub(super) const HOP_BACKLOG_BYTES: Definition = gauge(
    "tokengap.hop.backlog.size",
    Bytes,
    &["hop"],
    "Bytes of the waiting frames; absent while some are only counted, for a limit of memory",
);
pub(super) const HOP_BACKLOG_MAX: Definition = gauge(
    "tokengap.hop.backlog.max_frames",
    Of("{frame}"),
    &["hop"],
    "The most frames that were sent and not taken at one time of the run",
);
pub(super) const HOP_OLDEST: Definition = gauge(
    "tokengap.hop.oldest_waiting",
    Seconds,
    &["hop"],
    "Age of the frame that waits longest for its take; 0 when none waits",
);
pub(super) const HOP_KERNEL_RECEIVE: Definition = gauge(
    "tokengap.hop.kernel.receive",
    Bytes,
    &["hop"],
    "Bytes in the receivers' sockets that their libzmq has not read",
);
pub(super) const HOP_KERNEL_SEND: Definition = gauge(
    "tokengap.hop.kernel.send",
    Bytes,
    &["hop"],
    "Bytes in the senders' sockets; on Unix sockets the same ones with the kernel's overhead",
);
pub(super) const HOP_RESIDENCE: Definition = histogram(
    "tokengap.hop.residence",
    Seconds,
    &["hop"],
    "Taken minus sent, a value a frame",
);
pub(super) const HOP_RELAY: Definition = histogram(
    "tokengap.hop.relay",
    Seconds,
    &["hop"],
    "Forwarded minus sent: the time inside the relay",
);
pub(super) const HOP_HANDLING: Definition =
    histogram("tokengap.hop.handling", Seconds, &["hop"], "Handled minus taken");
pub(super) const HOP_RECV_WAIT: Definition = histogram(
    "tokengap.hop.recv_wait",
    Seconds,
    &["hop"],
    "Taken minus asked for: tiny while the receiver is behind",
);
pub(super) const HOP_WAKEUP: Definition = histogram(
    "tokengap.hop.wakeup.frames",
    Of("{frame}"),
    &["hop"],
    "Frames taken in one wakeup, over wakeups that have ended",
);

// CPU.
pub(super) const CPU_STATE: Definition = counter(
    "tokengap.cpu.time",
    Seconds,
    &["role", "part", "state"],
    "Time of the engine's threads by known state: on_cpu, run_wait (runnable, waiting for a CPU), throttled (by a CPU quota), asleep",
);
pub(super) const CPU_OBSERVED: Definition = counter(
    "tokengap.cpu.observed",
    Seconds,
    &["role", "part"],
    "Time for which they were watched: the states are shares of it",
);
pub(super) const CONSUMER_CPU: Definition = gauge(
    "tokengap.consumer.cpu",
    Ratio,
    &["role", "state"],
    "How the busiest thread of the role that takes frames spent the last 10 seconds",
);
pub(super) const POLL_AWAY: Definition = counter(
    "tokengap.consumer.poll_away",
    Seconds,
    &["role"],
    "Time that event loops of threads that take frames were away from their poll",
);
pub(super) const POLL_OBSERVED: Definition = counter(
    "tokengap.consumer.poll_observed",
    Seconds,
    &["role"],
    "Time for which that was watched",
);

// Findings.
pub(super) const FINDINGS: Definition = counter(
    "tokengap.findings",
    Of("{finding}"),
    &["kind"],
    "Findings of the report, one for each kind and hop",
);
pub(super) const FINDINGS_ACTIVE: Definition = gauge(
    "tokengap.active_findings",
    Of("{finding}"),
    &["kind", "severity"],
    "Those that the last look still found, by the severity they have now",
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
    "Frames that passed without any report, by their connection's numbering",
);
pub(super) const SELF_FRAMES_UNDECODED: Definition = counter(
    "tokengap.self.frames.undecoded",
    Of("{frame}"),
    &[],
    "Frames that could not be read",
);
pub(super) const SELF_LIMIT_REACHED: Definition = counter(
    "tokengap.self.limit_reached",
    Of("{time}"),
    &["limit"],
    "How often a limit of memory was reached",
);
pub(super) const SELF_DEGRADED: Definition = gauge(
    "tokengap.self.degraded",
    Of("{reason}"),
    &[],
    "Features that could not be attached or failed; the report describes each",
);
pub(super) const SELF_CPU: Definition = counter("tokengap.self.cpu", Seconds, &[], "CPU time of this process");
pub(super) const SELF_MEMORY: Definition = gauge("tokengap.self.resident_memory", Bytes, &[], "Its resident memory");
pub(super) const SELF_LABELS_LEFT_OUT: Definition = gauge(
    "tokengap.self.labels_left_out",
    Of("{label}"),
    &["label"],
    "Names that no series was made for, since there are more than their bound",
);
pub(super) const SELF_PUSHED: Definition = counter(
    "tokengap.self.pushed",
    Of("{item}"),
    &["signal"],
    "Spans and metric points that the OTLP receiver has accepted",
);
pub(super) const SELF_PUSH_DROPPED: Definition = counter(
    "tokengap.self.push_dropped",
    Of("{item}"),
    &["signal"],
    "Those that were given up: the queue was full, or the receiver refused them or could not be reached",
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
    &TOKENS_TAKEN,
    &TOKENS_DELIVERED,
    &TOKENS_LOST,
    &TOKENS_MISSING_ON_WIRE,
    &CHUNKS_SENT,
    &CHUNKS_TAKEN,
    &CHUNKS_DELIVERED,
    &CHUNKS_COALESCED,
    &CHUNKS_DROPPED,
    &CHUNKS_UNJUDGED,
    &CHUNKS_OUTSTANDING,
    &GAP,
    &ITL_SENT,
    &ITL_DELIVERED,
    &ITL_SENT_BY_TOKEN,
    &ITL_DELIVERED_BY_TOKEN,
    &ANSWERS,
    &ANSWERS_HELD_UP,
    &ANSWERS_UNCOUNTED,
    &ANSWERS_TOKENS_LOST,
    &PATH_SHARE,
    &HOP_FRAMES_SENT,
    &HOP_FRAMES_FORWARDED,
    &HOP_FRAMES_TAKEN,
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
    &HOP_RESIDENCE,
    &HOP_RELAY,
    &HOP_HANDLING,
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
