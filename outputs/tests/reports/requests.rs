//! Requests on their way to the scheduler: the state of the thread that receives them, and what is not observed of their times.

use outputs::metrics::{self, Value};
use outputs::report::{Clock, Report};
use trace::detect::attribution::ThreadState;
use trace::event::{
    Arrival, Away, AwayState, Capabilities, Chunk, CpuSample, Delivery, Dispatch, DispatchKind, DispatchedRequest,
    Event, Frame, Hop, Received, UnknownArrival, What,
};
use trace::{Analysis, Config, FrameId, HopId, MonoNs, ReportInput, ThreadId};

const MS: u64 = 1_000_000;
const OUTPUT: HopId = HopId(0);
const REQUESTS: HopId = HopId(1);
const SCHEDULER: ThreadId = ThreadId { pid: 7, tid: 7 };

struct Run(Analysis);

impl Run {
    fn new() -> Self {
        let mut run = Self(Analysis::new(Config::default()));
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::DELIVERED;
        run.apply(0, What::Hop(Hop::only(OUTPUT, "scheduler->tokenizer", capabilities)));
        let requests =
            Hop::with_requests(REQUESTS, "tokenizer->scheduler", Capabilities::SENT | Capabilities::RECEIVED);
        run.apply(0, What::Hop(requests));
        run
    }

    fn apply(&mut self, ms: u64, what: What<'_>) {
        self.0.apply(&Event::new(MonoNs(ms * MS), what));
    }

    /// A request that the scheduler receives `wait_ms` after its dispatch, and answers at once.
    fn request(&mut self, seq: u64, at_ms: u64, wait_ms: u64, rid: &str) {
        let request = Some(DispatchedRequest { prompt_tokens: Some(50), ..DispatchedRequest::new(rid) });
        let id = FrameId::new(REQUESTS, 0, seq);
        self.apply(
            at_ms,
            What::Dispatched(Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request }),
        );
        for sampled_ms in (at_ms + 100..=at_ms + wait_ms).step_by(100) {
            let away = Some(Away { state: AwayState::Stopped, place: "" });
            let sample = CpuSample { wait_ns: Some(0), away, ..CpuSample::new(SCHEDULER, "scheduler", 100 * MS, 0) };
            self.apply(sampled_ms, What::Cpu(sample));
        }
        let received_ms = at_ms + wait_ms;
        self.apply(received_ms, What::Received(Received { by: Some(SCHEDULER), ..Received::new(id) }));
        let id = FrameId::new(OUTPUT, 0, seq);
        self.apply(received_ms + 10, What::Sent(Frame::token_ids(id, 900, &[Chunk::counted(rid, 1, 1)])));
        self.apply(received_ms + 11, What::Received(Received::new(id)));
    }

    fn deliver(&mut self, at_ms: u64, rid: &str, unknown: Option<UnknownArrival>) {
        if let Some(why) = unknown {
            self.apply(at_ms, What::Arrived(Arrival { rid, times: Err(why) }));
        }
        self.apply(at_ms, What::Delivered(Delivery::new(rid, 1, Some(1))));
    }

    fn report(&self) -> Report {
        Report::of(&self.0, &ReportInput::for_source("attach"))
    }
}

#[test]
fn the_hop_of_requests_has_a_row_with_its_thread_and_no_share() {
    let mut run = Run::new();
    run.request(0, 10, 1, "a");
    run.request(1, 100, 3_000, "b");
    let report = run.report();
    let hop = report.hops.iter().find(|hop| hop.carries_requests).expect("a hop of requests");
    assert_eq!((hop.thread, hop.on_cpu), (Some(ThreadState::Stopped), Some(0.0)));
    assert_eq!(hop.queue_wait_mean_ns, Some(3_001 * MS / 2));
    assert!(report.path.iter().all(|leg| leg.name != hop.name), "it is not on the way of a chunk");
    assert!((report.path.iter().map(|leg| leg.share).sum::<f64>() - 1.0).abs() < 1e-9);
    let text = report.to_text(&Clock::of(&report, None));
    let row = text.lines().find(|line| line.starts_with("(requests) tokenizer->scheduler")).expect("a row");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[cells.len() - 3..], ["-", "-", "stopped"], "{row}");
    let markdown = report.to_markdown(&Clock::of(&report, None));
    assert!(markdown.contains("requests waiting on tokenizer"), "{markdown}");

    let input = ReportInput::for_source("attach");
    let input = metrics::Input { report: &input, version: "1", pushed: None, endpoint: None, pair_findings: &[] };
    let families = metrics::collect(&run.0, &input);
    let family = families.iter().find(|family| family.definition.name == "tokengap.hop.receiver").expect("sampled");
    let on_cpu = family.points.iter().find(|point| point.labels == ["tokenizer->scheduler", "on_cpu"]);
    assert_eq!(on_cpu.map(|point| &point.value), Some(&Value::Float(0.0)));
}

#[test]
fn what_is_not_observed_is_listed_by_moment_and_reason() {
    let mut run = Run::new();
    for (n, rid, unknown) in [
        (0, "a", Some(UnknownArrival::Http2)),
        (1, "b", Some(UnknownArrival::Http2)),
        (2, "c", Some(UnknownArrival::Tls)),
        (3, "d", None),
    ] {
        run.request(n, 100 * (n + 1), 1, rid);
        run.deliver(100 * (n + 1) + 20, rid, unknown);
    }
    let report = run.report();
    let ttft = report.ttft.as_ref().expect("dispatches were observed");
    let arrivals = ttft.absent.iter().filter(|line| line.moment.as_str() == "arrived");
    assert_eq!(arrivals.map(|line| line.requests).collect::<Vec<_>>(), [2, 1, 1]);
    let lines = ttft.describe_absent_moments();
    let before = "the time before the dispatch (arrival, reading, tokenisation) of";
    assert_eq!(lines[0], format!("{before} 2 requests: HTTP/2 interleaves the requests of a connection"));
    assert_eq!(lines[1], format!("{before} 1 request: the connection is encrypted (TLS)"));
    assert_eq!(lines[2], format!("{before} 1 request: arrivals on their connections are not observed"));
    // One reason for several moments of all requests.
    assert!(lines[3].starts_with("the entry to the queue, the entry to a batch: "), "{lines:?}");
    for text in [report.to_text(&Clock::of(&report, None)), report.to_markdown(&Clock::of(&report, None))] {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("not observed: {}", lines[0])), "{text}");
    }
}

#[test]
fn a_run_without_dispatches_says_that_ttft_is_not_observed() {
    for (kind, expected) in [
        ("tap", "requests on their way to the scheduler (TTFT and its parts; attach observes them)"),
        ("attach", "requests on their way to the scheduler (TTFT and its parts)"),
    ] {
        let mut analysis = Analysis::new(Config::default());
        analysis.apply(&Event::new(MonoNs(0), What::Hop(Hop::only(OUTPUT, "a->b", Capabilities::SENT))));
        let report = Report::of(&analysis, &ReportInput::for_source(kind));
        let text = report.to_text(&Clock::of(&report, None));
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(report.ttft.is_none() && words.contains(expected), "{text}");
    }
}
