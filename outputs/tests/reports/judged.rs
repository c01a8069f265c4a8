//! What each source can judge: the table in docs/reference/report.md, and the headline that follows from it.

use crate::engine;
use std::path::Path;

use outputs::report::{FaultKind, Report};
use trace::engine::Mode;
use trace::event::{
    Answer, AnswerContent, AnswerForm, Arrival, ArrivalTimes, Capabilities, Chunk, Delivery, Dispatch, DispatchKind,
    DispatchedRequest, Engine, Event, Frame, Hop, Received, Rejection, Stage, What,
};
use trace::{Analysis, FrameId, HopId, MonoNs, ReportInput};

const MS: u64 = 1_000_000;

/// A healthy run of one request with two chunks.
#[derive(Clone, Copy, Default)]
struct Observed {
    /// Stages of frames; `None` without frames.
    frames: Option<Capabilities>,
    /// Messages to the scheduler.
    requests: bool,
    responses: bool,
    stages: &'static [&'static str],
}

fn report(observed: Observed) -> Report {
    let mut analysis = Analysis::new(engine::config());
    let mut apply = |ms: u64, what: What<'_>| analysis.apply(&Event::new(MonoNs(ms * MS), what));
    if let Some(capabilities) = observed.frames {
        apply(0, What::Hop(Hop::only(HopId(0), "scheduler->tokenizer", capabilities)));
        let engine = Engine { version: Some(engine::DROPS), mode: Some(Mode::Incremental), ..Engine::default() };
        apply(0, What::Engine(engine));
        if observed.requests {
            apply(0, What::Hop(Hop::with_requests(HopId(1), "tokenizer->scheduler", capabilities)));
            let request = Some(DispatchedRequest { prompt_tokens: Some(50), ..DispatchedRequest::new("a") });
            let id = FrameId::new(HopId(1), 0, 0);
            let dispatch = Dispatch { id, bytes: 900, kind: DispatchKind::Requests, index: 0, request };
            apply(10, What::Dispatched(dispatch));
            apply(11, What::Received(Received::new(id)));
        }
        for count in 1..=2 {
            let (id, at) = (FrameId::new(HopId(0), 0, u64::from(count) - 1), u64::from(count) * 40);
            apply(at, What::Sent(Frame::token_ids(id, 900, &[Chunk::counted("a", 1, count)])));
            if capabilities.received {
                apply(at + 1, What::Received(Received::in_wakeup(id, u64::from(count))));
                apply(at + 2, What::Processed(id));
            }
            if capabilities.delivered {
                if observed.requests {
                    let times = ArrivalTimes { arrived: MonoNs(8 * MS), read: MonoNs(9 * MS), connection: None };
                    apply(at + 3, What::Arrived(Arrival { rid: "a", times: Ok(times) }));
                }
                apply(at + 3, What::Delivered(Delivery::new("a", 1, Some(count))));
            }
        }
    }
    for (at, stage) in (100..).zip(observed.stages) {
        apply(at, What::Stage(Stage::new("a", stage, "server.log")));
    }
    if observed.responses {
        let content = AnswerContent { events: 2, ..AnswerContent::new(AnswerForm::Generate) };
        apply(200, What::Answered(Answer { content: Some(content), ..Answer::new("a", Some(2), Some(2)) }));
    }
    analysis.tick(MonoNs(300 * MS));
    Report::of(&analysis, &ReportInput::for_source("test"))
}

/// The sources of the table, by its first column.
fn sources() -> Vec<(&'static str, Observed)> {
    let (sent, attached) = (Capabilities::SENT | Capabilities::FORWARDED, Capabilities::SENT | Capabilities::RECEIVED);
    let none = Observed::default();
    vec![
        (
            "`attach`",
            Observed { frames: Some(attached | Capabilities::DELIVERED), requests: true, responses: true, ..none },
        ),
        ("`attach --no-egress`", Observed { frames: Some(attached), requests: true, ..none }),
        ("`tap`, frames and HTTP", Observed { frames: Some(sent | Capabilities::DELIVERED), responses: true, ..none }),
        ("`tap`, frames", Observed { frames: Some(sent), ..none }),
        ("`tap`, HTTP", Observed { responses: true, ..none }),
        ("log, both times of first tokens", Observed { stages: &[engine::FIRST_SENT, engine::FIRST_RECEIVED], ..none }),
        ("other log", Observed { stages: &["request_received"], ..none }),
    ]
}

#[test]
fn the_table_of_judged_faults_is_that_of_the_analysis() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/report.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let heading: Vec<_> = FaultKind::ALL.iter().map(|fault| fault.as_str()).collect();
    assert!(page.contains(&format!("| source | {} |", heading.join(" | "))), "{heading:?}");
    for (source, observed) in sources() {
        let judged = report(observed).judged;
        let cells: Vec<_> = judged.iter().map(|judgement| if judgement.judged { "yes" } else { "no" }).collect();
        let row = format!("| {source} | {} |", cells.join(" | "));
        assert!(page.contains(&row), "the page lacks\n{row}");
    }
}

#[test]
fn a_headline_names_what_was_not_judged() {
    let headlines: Vec<_> = sources().into_iter().map(|(_, observed)| report(observed).verdict).collect();
    assert_eq!(
        headlines,
        [
            "HEALTHY: no findings; bottleneck: inside the scheduler: queue, prefill (83 % of TTFT, run and last 10 s)",
            "NO FINDINGS in 1 request; bottleneck: inside the scheduler: queue, prefill (94 % of TTFT, run and last 10 s); \
             not judged: lost tokens, late delivery (deliveries are not observed); \
             clients (responses are not observed); late requests (arrivals of requests are not observed)",
            "NO FINDINGS in 1 request; not judged: first-token gap, queues (receives are not observed); \
             late requests (requests on their way to the engine are not observed); bottleneck unknown",
            "NO FINDINGS in 1 request; not judged: first-token gap, queues (receives are not observed); \
             lost tokens, late delivery (deliveries are not observed); clients (responses are not observed); \
             late requests (requests on their way to the engine are not observed); bottleneck unknown",
            "NO FINDINGS in 1 response; not judged: first-token gap, engine silence, queues, late delivery, late requests \
             (no frames are observed); bottleneck unknown",
            "NO FINDINGS in 1 request; not judged: lost tokens, engine silence, queues, late delivery, clients, late requests \
             (the log does not show them); bottleneck unknown",
            "NOT JUDGED: 1 request, no findings; first-token gap (the log has not both times of a first token); \
             lost tokens, engine silence, queues, late delivery, clients, late requests (the log does not show them); bottleneck unknown",
        ]
    );
}

/// A stream that is refused has status 200.
#[test]
fn a_headline_counts_responses_with_an_error() {
    let mut analysis = Analysis::new(engine::config());
    for status in [503, 200, 200] {
        analysis.apply(&Event::new(MonoNs(MS), What::Rejected(Rejection { status })));
    }
    analysis.tick(MonoNs(300 * MS));
    let report = Report::of(&analysis, &ReportInput::for_source("test"));
    let begin = "NO FINDINGS in 3 responses; 3 responses with an error; not judged: ";
    assert!(report.verdict.starts_with(begin), "{}", report.verdict);
    let answers = report.answers.expect("two streams");
    assert_eq!((answers.seen, answers.failed, &report.rejected), (2, 2, &[(503, 1)].into()));
}
