//! Definitions of all metrics: name, type, unit, labels and meaning, used for encoding, documentation and tests.

use self::Unit::{Bytes, Info, Of, Ratio, Seconds};

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows, from 0 at the start of the run.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Values counted in fixed buckets.
    Histogram,
}

/// Unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// A share, from 0 to 1.
    Ratio,
    /// A count of things, in braces as UCUM writes custom units: `{frame}`.
    Of(&'static str),
    /// No unit: the labels carry the information.
    Info,
}

impl Unit {
    /// Unit in OTLP (UCUM).
    pub(crate) fn ucum_unit(self) -> &'static str {
        match self {
            Self::Seconds => "s",
            Self::Bytes => "By",
            Self::Ratio => "1",
            Self::Of(text) => text,
            Self::Info => "",
        }
    }

    /// Suffix of Prometheus names for this unit; empty for counts.
    pub(crate) fn unit_suffix(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Bytes => "bytes",
            Self::Ratio => "ratio",
            Self::Of(_) | Self::Info => "",
        }
    }
}

/// A metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// OpenTelemetry name: words separated by dots, without the unit.
    pub name: &'static str,
    /// Type of its values.
    pub kind: MetricKind,
    /// Unit of its values.
    pub unit: Unit,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// Help text: a sentence without its full stop.
    pub help: &'static str,
}

impl Definition {
    /// Whether its values describe this process. Those of other metrics describe a run, of which a process may have several.
    pub fn is_of_process(&self) -> bool {
        const OF_PROCESS: [Definition; 6] =
            [BUILD, SELF_CPU, SELF_MEMORY, SELF_STREAM_CLIENTS, SELF_STREAM_DROPPED, SELF_REFUSED];
        OF_PROCESS.iter().any(|definition| definition.name == self.name)
    }

    /// Prometheus name without the suffixes for unit and type.
    pub fn stem(&self) -> String {
        self.name.replace('.', "_")
    }

    /// Prometheus name, equal to the collectors' translation of [`Self::name`].
    pub fn prometheus_name(&self) -> String {
        // The name with underscores, without suffixes.
        let mut name = self.stem();
        let kind_suffix = if self.kind == MetricKind::Counter { "total" } else { "" };
        for suffix in [self.unit.unit_suffix(), kind_suffix] {
            if !suffix.is_empty() {
                name.push('_');
                name.push_str(suffix);
            }
        }
        name
    }
}

/// Defines each metric, with its name, unit, labels and help text, and the list of all.
macro_rules! metrics {
    ($($metric:ident = $kind:ident($name:literal, $unit:expr, [$($label:literal),*]) $help:literal;)+) => {
        $(pub(super) const $metric: Definition = Definition {
            name: $name,
            kind: MetricKind::$kind,
            unit: $unit,
            labels: &[$($label),*],
            help: $help,
        };)+

        /// All metrics, in output order.
        pub const ALL: &[&Definition] = &[$(&$metric),+];
    };
}

metrics! {
    // The run and the engine.
    BUILD = Gauge("tokengap.build.info", Info, ["version"]) "Version of tokengap";
    ENGINE = Gauge("tokengap.engine.info", Info, ["kind", "version", "mode", "waiter", "side"])
        "Engine; labels are empty if unknown; side of a pair: prefill or decode";
    ENGINE_ENDED = Counter("tokengap.engine.ended", Of("{time}"), [])
        "Number of times the engine exited; with --follow, tokengap waits for the next one";
    SOURCE = Gauge("tokengap.source.info", Info, ["kind"]) "Source of the observations";
    WINDOW = Gauge("tokengap.window", Seconds, []) "Time from the first to the latest event";

    // Requests.
    REQUESTS_SEEN = Counter("tokengap.requests.seen", Of("{request}"), [])
        "Requests observed on any hop, without health checks";
    REQUESTS_FINISHED = Counter("tokengap.requests.finished", Of("{request}"), [])
        "Requests with a finish reason, of any kind, in a frame";
    REQUESTS_ABORTED = Counter("tokengap.requests.aborted", Of("{request}"), []) "Requests that ended with an abort";
    REQUESTS_JOINED_LATE = Counter("tokengap.requests.joined_late", Of("{request}"), [])
        "Requests whose first chunk was not observed";
    REQUESTS_OVERWRITTEN = Counter("tokengap.requests.overwritten", Of("{request}"), [])
        "Requests whose rid was reused while in flight";
    REQUESTS_ORPHANED = Counter("tokengap.requests.orphaned", Of("{request}"), [])
        "Unfinished requests evicted after a long silence";
    REQUESTS_UNANSWERED = Gauge("tokengap.requests.unanswered", Of("{request}"), [])
        "Requests that the scheduler does not answer while it answers later ones";
    REQUESTS_ABANDONED = Gauge("tokengap.requests.abandoned", Of("{request}"), [])
        "Requests of the run that continued after their client left or after an abort";
    TOKENS_ABANDONED = Gauge("tokengap.tokens.abandoned", Of("{token}"), []) "Tokens generated for abandoned requests";
    REQUESTS_LIVE = Gauge("tokengap.requests.live", Of("{request}"), []) "Requests that have not ended";
    HEALTH_CHECKS = Counter("tokengap.health_checks", Of("{request}"), [])
        "The server's own health checks, which are not judged";

    // Tokens and chunks.
    TOKENS_SENT = Counter("tokengap.tokens.sent", Of("{token}"), [])
        "Tokens sent by the scheduler according to its own count";
    TOKENS_RECEIVED = Counter("tokengap.tokens.received", Of("{token}"), []) "Tokens received by the tokenizer";
    TOKENS_DELIVERED = Counter("tokengap.tokens.delivered", Of("{token}"), [])
        "Tokens accepted by the kernel for clients, each counted once";
    TOKENS_LOST = Counter("tokengap.tokens.lost", Of("{token}"), [])
        "Tokens in chunks that are confirmed to be dropped";
    TOKENS_MISSING_ON_WIRE = Counter("tokengap.tokens.missing_on_wire", Of("{token}"), [])
        "Tokens missing on the wire according to the streams' own counts";
    CHUNKS_SENT = Counter("tokengap.chunks.sent", Of("{chunk}"), []) "Chunks sent by the scheduler";
    CHUNKS_RECEIVED = Counter("tokengap.chunks.received", Of("{chunk}"), []) "Chunks received by the tokenizer";
    CHUNKS_DELIVERED = Counter("tokengap.chunks.delivered", Of("{chunk}"), [])
        "Delivered chunks; of chunks merged into one delivery, only the first";
    CHUNKS_MERGED = Counter("tokengap.chunks.merged", Of("{chunk}"), []) "Chunks delivered merged with another chunk";
    CHUNKS_DROPPED = Counter("tokengap.chunks.dropped", Of("{chunk}"), [])
        "Chunks that never reached the client, confirmed by counting deliveries";
    CHUNKS_PREDICTED_DROPPED = Counter("tokengap.chunks.predicted_dropped", Of("{chunk}"), [])
        "Chunks predicted to be dropped, from wakeups and the behaviour of the release";
    CHUNKS_UNJUDGED = Counter("tokengap.chunks.unjudged", Of("{chunk}"), [])
        "Chunks whose delivery is unknown: observations were missed, or counts alone do not show it";
    CHUNKS_IN_FLIGHT = Gauge("tokengap.chunks.in_flight", Of("{chunk}"), [])
        "Chunks sent but not delivered, including those of closed requests";

    // Times.
    GAP = Histogram("tokengap.gap", Seconds, [])
        "First receive at the tokenizer minus first send by the scheduler, one value per request";
    TTFT = Histogram("tokengap.ttft", Seconds, ["from", "to"])
        "Time to first token of streamed requests, between the first and the last moment that was observed";
    TTFT_LEG = Histogram("tokengap.ttft.leg", Seconds, ["leg"])
        "Parts of the time to first token; a name with + is a part whose inner moments were not observed";
    ACCEPT_WAIT = Histogram("tokengap.connections.accept_wait", Seconds, [])
        "Wait of new connections of clients until the server accepted them, one value per connection";
    ITL_SENT = Histogram("tokengap.itl.sent", Seconds, []) "Time between chunks of one request at the scheduler";
    ITL_DELIVERED = Histogram("tokengap.itl.delivered", Seconds, [])
        "Time between deliveries of one request to its client";
    ITL_SENT_BY_TOKEN = Histogram("tokengap.itl.sent_by_token", Seconds, [])
        "Inter-token latency at the scheduler: time between chunks divided by the tokens of a chunk";
    ITL_DELIVERED_BY_TOKEN = Histogram("tokengap.itl.delivered_by_token", Seconds, [])
        "Inter-token latency at the client: time between deliveries divided by the tokens of a delivery";
    FRONTEND_WAIT = Histogram("tokengap.frontend.wait", Seconds, ["of"])
        "Wait in a frontend after the server's write, by response, of first_token or last_token";

    // Responses.
    ANSWERS = Counter("tokengap.answers.ended", Of("{response}"), ["end"])
        "Finished responses to clients, by the side that closed them";
    ANSWERS_REJECTED = Counter("tokengap.answers.rejected", Of("{response}"), ["status"])
        "Responses with an error status, by HTTP status";
    ANSWERS_SHORT_WRITES = Counter("tokengap.answers.short_writes", Of("{response}"), [])
        "Responses whose socket accepted only part of a write: the client read more slowly than the server wrote";
    ANSWERS_UNCOUNTED = Counter("tokengap.answers.uncounted", Of("{response}"), [])
        "Responses whose tokens could not be counted";
    ANSWERS_TOKENS_LOST = Counter("tokengap.answers.tokens_lost", Of("{token}"), [])
        "Tokens that responses without frames claimed in their last event but did not carry";

    // Hops.
    PATH_SHARE = Gauge("tokengap.path.share", Ratio, ["leg", "kind", "of"])
        "Share of a leg in the time between scheduler and tokenizer over the run, for first tokens or chunks";
    HOP_FRAMES_SENT = Counter("tokengap.hop.frames.sent", Of("{frame}"), ["hop"]) "Frames that entered the hop";
    HOP_FRAMES_FORWARDED = Counter("tokengap.hop.frames.forwarded", Of("{frame}"), ["hop"])
        "Frames that the relay forwarded";
    HOP_FRAMES_RECEIVED = Counter("tokengap.hop.frames.received", Of("{frame}"), ["hop"])
        "Frames that the application received";
    HOP_FRAMES_UNDECODED = Counter("tokengap.hop.frames.undecoded", Of("{frame}"), ["hop"])
        "Frames that could not be decoded";
    HOP_CHUNKS = Counter("tokengap.hop.chunks", Of("{chunk}"), ["hop"]) "Chunks inside the hop's frames";
    HOP_BYTES = Counter("tokengap.hop.payload", Bytes, ["hop"]) "Bytes of the hop's frames";
    HOP_BACKLOG_FRAMES = Gauge("tokengap.hop.backlog.frames", Of("{frame}"), ["hop"]) "Frames sent but not received";
    HOP_BACKLOG_CHUNKS = Gauge("tokengap.hop.backlog.chunks", Of("{chunk}"), ["hop"])
        "Chunks in queued frames; absent if some were evicted at a memory limit";
    HOP_BACKLOG_BYTES = Gauge("tokengap.hop.backlog.size", Bytes, ["hop"])
        "Bytes of queued frames; absent if some were evicted at a memory limit";
    HOP_BACKLOG_MAX = Gauge("tokengap.hop.backlog.max_frames", Of("{frame}"), ["hop"])
        "Maximum number of queued frames during the run";
    HOP_OLDEST = Gauge("tokengap.hop.oldest_waiting", Seconds, ["hop"]) "Age of the oldest queued frame; 0 if none";
    HOP_KERNEL_RECEIVE = Gauge("tokengap.hop.kernel.receive", Bytes, ["hop"])
        "Bytes in the receivers' sockets that libzmq has not read";
    HOP_KERNEL_SEND = Gauge("tokengap.hop.kernel.send", Bytes, ["hop"])
        "Bytes in the senders' sockets; on Unix sockets, the same bytes plus kernel overhead";
    HOP_QUEUE_WAIT = Histogram("tokengap.hop.queue_wait", Seconds, ["hop"]) "Received minus sent, one value per frame";
    HOP_SEND_WAIT = Histogram("tokengap.hop.send_wait", Seconds, ["hop"])
        "Wait of the content in the sender: from the engine's own timestamp to the send, or until a server inside the sender took it";
    HOP_RELAY = Histogram("tokengap.hop.relay", Seconds, ["hop"]) "Forwarded minus sent: the time inside the relay";
    HOP_PROCESSING = Histogram("tokengap.hop.processing", Seconds, ["hop"]) "Processed minus received";
    HOP_RECV_WAIT = Histogram("tokengap.hop.recv_wait", Seconds, ["hop"])
        "Received minus requested: near zero while the receiver is behind";
    HOP_RECEIVER = Gauge("tokengap.hop.receiver", Ratio, ["hop", "state"])
        "Share of each state in the time of the receiving thread while frames waited on the hop, over the run";
    HOP_WAKEUP = Histogram("tokengap.hop.wakeup.frames", Of("{frame}"), ["hop"]) "Frames received per completed wakeup";

    // CPU.
    CPU_STATE = Counter("tokengap.cpu.time", Seconds, ["role", "part", "state"])
        "Time of the engine's threads by state: on_cpu, run_wait (waiting for a CPU), throttled (by a CPU quota), asleep";
    CPU_OBSERVED = Counter("tokengap.cpu.observed", Seconds, ["role", "part"])
        "Observed time of the threads, the total of all states";
    CONSUMER_CPU = Gauge("tokengap.consumer.cpu", Ratio, ["role", "state"])
        "Share of each state in the last 10 seconds of the role's busiest receiving thread";
    POLL_AWAY = Counter("tokengap.consumer.poll_away", Seconds, ["role"])
        "Time that event loops of receiving threads were away from their poll";
    POLL_OBSERVED = Counter("tokengap.consumer.poll_observed", Seconds, ["role"]) "Observed time of those event loops";

    // Findings.
    FINDINGS = Counter("tokengap.findings", Of("{finding}"), ["kind"]) "Findings of the report, one per kind and hop";
    FINDINGS_ACTIVE = Gauge("tokengap.active_findings", Of("{finding}"), ["kind", "severity"])
        "Active findings by current severity";
    FAULTS_JUDGED = Gauge("tokengap.faults.judged", Of("{fault}"), ["fault"])
        "1 if the run could have shown this kind of fault; 0 if no finding of it proves nothing";

    // Tokengap itself.
    SELF_EVENTS = Counter("tokengap.self.events", Of("{event}"), []) "Observations entered";
    SELF_EVENTS_LOST = Counter("tokengap.self.events_missed", Of("{event}"), ["cause"])
        "Observations missed by tokengap; findings do not rely on them";
    SELF_FRAMES_UNANNOUNCED = Counter("tokengap.self.frames.unannounced", Of("{frame}"), [])
        "Frames not observed at all, according to their connection's numbering";
    SELF_FRAMES_UNDECODED = Counter("tokengap.self.frames.undecoded", Of("{frame}"), [])
        "Frames that could not be decoded";
    SELF_LIMIT_REACHED = Counter("tokengap.self.limit_reached", Of("{time}"), ["limit"])
        "Number of times a memory limit was reached";
    SELF_DEGRADED = Gauge("tokengap.self.degraded", Of("{reason}"), [])
        "Features that are unavailable or failed; the report describes each";
    SELF_CPU = Counter("tokengap.self.cpu", Seconds, []) "CPU time of this process";
    SELF_MEMORY = Gauge("tokengap.self.resident_memory", Bytes, []) "Resident memory of this process";
    SELF_LABELS_LEFT_OUT = Gauge("tokengap.self.labels_left_out", Of("{label}"), ["label"])
        "Label values without a series because the limit on series was reached";
    SELF_PUSHED = Counter("tokengap.self.pushed", Of("{item}"), ["signal"])
        "Spans and metric points accepted by the OTLP receiver";
    SELF_PUSH_DROPPED = Counter("tokengap.self.push_dropped", Of("{item}"), ["signal"])
        "Spans and metric points dropped: queue full, refused by the receiver, or receiver unreachable";
    SELF_STREAM_CLIENTS = Gauge("tokengap.self.stream.clients", Of("{client}"), ["path"])
        "Current clients of `/recording` and `/events`";
    SELF_STREAM_DROPPED = Counter("tokengap.self.stream.dropped", Of("{client}"), ["path"])
        "Clients of `/recording` and `/events` dropped because they read too slowly";
    SELF_REFUSED = Counter("tokengap.self.refused", Of("{client}"), ["reason"])
        "Requests and connections refused: displaced, failed, unauthorized, or over the path's limit of clients";
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn metric_names_follow_the_conventions() {
        let mut known = BTreeSet::new();
        for metric in ALL {
            let name = metric.prometheus_name();
            assert!(
                name.starts_with("tokengap_")
                    && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
                "{name}"
            );
            assert!(known.insert(name.clone()), "{name} is there twice");
            assert!(!metric.help.ends_with('.') && !metric.help.is_empty(), "{name}");
            assert_eq!(name.ends_with("_total"), metric.kind == MetricKind::Counter, "{name}");
            let never = ["rid", "pid", "tid", "endpoint", "function"];
            assert!(metric.labels.iter().all(|label| !never.contains(label)), "{name}");
        }
    }

    #[test]
    fn the_documented_metrics_match_the_definitions() {
        let document = include_str!("../../../docs/reference/metrics.md");
        let (_, table) = document.split_once("| name | type | labels | |\n|---|---|---|---|\n").expect("a table");
        let line = |metric: &&Definition| {
            let kind = format!("{:?}", metric.kind).to_lowercase();
            let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
            format!("| `{}` | {kind} | {} | {} |", metric.prometheus_name(), labels.join(", "), metric.help)
        };
        let expected: Vec<String> = ALL.iter().map(line).collect();
        let found: Vec<&str> = table.lines().collect();
        assert_eq!(found, expected, "\n{}", expected.join("\n"));
    }
}
