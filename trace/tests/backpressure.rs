//! Diagnosis of a slow tokenizer: the scheduler makes a token every 13 ms, but the client waits half a minute for its first one.
//! The report must blame the tokenizer's own computation, not its sockets: its receive wait is tiny.
//! Two variants must blame a CPU quota and other threads.

#[path = "common/engine.rs"]
mod engine;

use trace::engine::Mode;
use trace::event::{
    Capabilities, Chunk, CpuSample, Engine, Event, Frame, Hop, PollUse, QueueSample, Received, ThreadPart, What,
};
use trace::report::{FindingLine, Report, ReportInput};
use trace::{Analysis, FrameId, HopId, MonoNs, ThreadId};

const MS: u64 = 1_000_000;
const HOP: &str = "scheduler->tokenizer";
const RECEIVER: ThreadId = ThreadId { pid: 4711, tid: 4711 };
/// Duration of a scheduler step, and the tokenizer's time per frame.
const STEP_MS: u64 = 13;
const PROCESSING_MS: u64 = 40;

struct Server {
    analysis: Analysis,
}

impl Server {
    fn apply(&mut self, at: u64, what: What<'_>) {
        let at = MonoNs(at);
        self.analysis.apply(&Event { at, what });
    }

    fn send(&mut self, at: u64, seq: u64) {
        let rid = format!("rid-{seq}");
        let chunk = Chunk {
            prompt_tokens: Some(4_096),
            cached_tokens: Some(0),
            retractions: Some(0),
            ..Chunk::counted(&rid, 1, 1)
        };
        self.apply(at, What::Sent(Frame::token_ids(id(seq), 25_500, &[chunk])));
    }

    /// Samples the last 100 ms of the tokenizer's thread: milliseconds on a CPU, runnable, and throttled (part of runnable).
    fn sample(&mut self, at: u64, [on, wait, throttled]: [u64; 3]) {
        let poll = PollUse { interval_ns: 100 * MS, polled_ns: MS, wakeups: 0 };
        let sample = CpuSample {
            name: "sglang::http_se",
            wait_ns: Some(wait * MS),
            throttled_ns: (throttled > 0).then_some(throttled * MS),
            poll: Some(poll),
            ..CpuSample::new(RECEIVER, "tokenizer", 100 * MS, on * MS)
        };
        self.apply(at, What::Cpu(sample));
        let others = CpuSample {
            thread: ThreadId { tid: 4720, ..RECEIVER },
            name: "asyncio_0",
            part: ThreadPart::Other,
            poll: None,
            away: None,
            on_ns: 50 * MS,
            wait_ns: Some(0),
            ..sample
        };
        self.apply(at, What::Cpu(others));
        let queue = QueueSample { hop: HOP, receive_bytes: Some(0), send_bytes: Some(0) };
        self.apply(at, What::Queue(queue));
    }
}

fn id(seq: u64) -> FrameId {
    let hop = HopId(0);
    FrameId { hop, lane: 0, seq }
}

/// Runs the server for 30 s. `shares` are the arguments of `Server::sample`.
fn thirty_seconds(shares: [u64; 3]) -> Report {
    let analysis = Analysis::new(engine::config());
    let mut server = Server { analysis };
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::PROCESSED;
    let hop = Hop { endpoint: "ipc:///tmp/tmpk2v9x1", ..Hop::only(HopId(0), HOP, capabilities) };
    server.apply(0, What::Hop(hop));
    let mode = Some(Mode::Incremental);
    let engine = Engine { version: Some("0.5.9"), mode, ..Engine::default() };
    server.apply(0, What::Engine(engine));
    let (mut sent, mut received) = (0, 0);
    for ms in 1..=30_000 {
        let at = ms * MS;
        if ms % STEP_MS == 0 {
            server.send(at, sent);
            sent += 1;
        }
        if ms % PROCESSING_MS == 0 && received < sent {
            // The previous frame is processed 0.2 ms before the next is received.
            if received > 0 {
                server.apply(at - MS / 5, What::Processed(id(received - 1)));
            }
            let receive = Received { by: Some(RECEIVER), ..Received::in_wakeup(id(received), 1) };
            server.apply(at, What::Received(receive));
            received += 1;
        }
        if ms % 100 == 0 {
            server.sample(at, shares);
            server.analysis.tick(MonoNs(at));
        }
    }
    server.analysis.report(&ReportInput::of("attach"))
}

fn finding<'r>(report: &'r Report, kind: &str) -> Option<&'r FindingLine> {
    report.findings.iter().find(|f| f.kind == kind)
}

#[test]
fn a_cpu_bound_consumer_is_reported_as_the_bottleneck() {
    let report = thirty_seconds([97, 2, 0]);
    let hop = &report.hops[0];
    assert_eq!(hop.recv_wait_ns.map(|w| w.max), Some(MS / 5), "the thread never waits for a frame");
    assert_eq!(hop.kernel_bytes_max, Some(0));
    // The inbox maximum is over samples; the backlog may peak between two samples.
    assert!(hop.inbox_max_frames.zip(hop.backlog_max_frames).is_some_and(|(inbox, backlog)| inbox + 3 > backlog));
    assert!(hop.backlog_max_frames > Some(1_000), "{hop:?}");

    let bound = finding(&report, "consumer-cpu-bound").expect("the verdict");
    assert_eq!(bound.evidence["on_cpu"].as_f64(), Some(0.97));
    assert_eq!(bound.evidence["process_cpus"].as_f64(), Some(1.47));
    assert!(bound.summary.contains("all wait in libzmq's own queue"), "{}", bound.summary);
    for other in ["consumer-starved", "consumer-throttled", "io-thread-starved"] {
        assert_eq!(finding(&report, other), None);
    }

    let gap = finding(&report, "first-token-gap").expect("the symptom");
    let number = |name: &str| gap.evidence[name].as_u64().expect("a number");
    assert!(number("max_ns") > 20_000 * MS);
    let on_cpu = number("judged_on_cpu_ns") as f64 / number("judged_observed_ns") as f64;
    assert!((on_cpu - 0.97).abs() < 0.001, "{on_cpu}");
    // All of the wait is on the last hop, behind frames being processed.
    assert_eq!(number("worst_upstream_ns"), 0);
    assert!(number("worst_processing_ns") as f64 > 0.98 * number("worst_gap_ns") as f64);

    let tokenizer = &report.cpu.as_ref().expect("sampled")[0];
    assert!(tokenizer.receives && tokenizer.on_cpu.is_some_and(|share| (share - 0.97).abs() < 0.001));
    assert!(tokenizer.away_from_poll.is_some_and(|share| (share - 0.99).abs() < 0.001));
}

#[test]
fn a_cpu_quota_and_cpu_starvation_are_distinguished_from_a_cpu_bound_consumer() {
    let throttled = thirty_seconds([30, 68, 65]);
    let quota = finding(&throttled, "consumer-throttled").expect("the verdict");
    assert_eq!(quota.evidence["throttled"].as_f64(), Some(0.65));
    assert_eq!(quota.evidence["run_wait"].as_f64(), Some(0.03));
    assert!(finding(&throttled, "consumer-cpu-bound").is_none() && finding(&throttled, "consumer-starved").is_none());

    let starved = thirty_seconds([30, 68, 0]);
    assert!(finding(&starved, "consumer-starved").is_some());
    assert!(finding(&starved, "consumer-cpu-bound").is_none() && finding(&starved, "consumer-throttled").is_none());

    let asleep = thirty_seconds([10, 2, 0]);
    assert!(finding(&asleep, "backlog-growing").is_some(), "the backlog grows");
    assert!(!asleep.findings.iter().any(|f| f.kind.starts_with("consumer-")), "the cause is unknown");
}
