//! Responses as operators posted them (`posted/README.md`), read as an HTTP pair of `tap` reads them: without any frame.

use std::path::Path;

use outputs::report::{AnswerCounts, Clock, FindingLine, Report};
use responses::{ResponseReader, Server};
use trace::event::AnswerEnd;
use trace::{Analysis, Config, MonoNs, ReportInput};

/// Report of one connection that carries this body, one event a write.
fn report_of_body(body: &[u8]) -> Report {
    let mut analysis = Analysis::new(Config { engines: engines::FACTS, ..Config::default() });
    let (mut reader, mut server) = (ResponseReader::default(), Server::new(None));
    let head =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut writes = vec![head.to_vec()];
    let text = String::from_utf8_lossy(body);
    for event in text.split("\n\n").filter(|event| !event.trim().is_empty()) {
        writes.push(format!("{:x}\r\n{event}\n\n\r\n", event.len() + 2).into_bytes());
    }
    writes.push(b"0\r\n\r\n".to_vec());
    for (at, write) in (1..).zip(&writes) {
        reader.read_bytes(MonoNs(at), write, true, &mut server, &mut |event| analysis.apply(event));
    }
    reader.end_connection(MonoNs(1_000), AnswerEnd::ClientLeft, None, &mut server, &mut |event| analysis.apply(event));
    analysis.tick(MonoNs(2_000));
    Report::of(&analysis, &ReportInput::for_source("tap"))
}

fn posted(name: &str) -> Report {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/posted");
    let mut files = std::fs::read_dir(folder).expect("the responses").flatten().map(|entry| entry.path());
    let is_named =
        |path: &std::path::PathBuf| path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(name));
    let file = files.find(is_named).expect("a response of this name");
    report_of_body(&std::fs::read(file).expect("it reads"))
}

fn answers(report: &Report) -> AnswerCounts {
    report.answers.expect("a response ended")
}

fn only_finding<'r>(report: &'r Report, kind: &str) -> &'r FindingLine {
    let kinds: Vec<_> = report.findings.iter().map(|finding| &*finding.kind).collect();
    assert_eq!(kinds, [kind]);
    &report.findings[0]
}

/// The first line of a report without findings.
fn judged_in_one_response(report: &Report) -> &str {
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    report.verdict.split("; ").next().unwrap_or_default()
}

#[test]
fn text_without_ids_is_counted_and_not_judged() {
    let report = posted("a-");
    let found = answers(&report);
    assert_eq!((found.claiming, found.tokens_claimed, found.events), (1, 20, Some(5)));
    assert_eq!(judged_in_one_response(&report), "NO FINDINGS in 1 response");
    assert!(report.verdict.contains("lost tokens (responses list no token ids"), "{}", report.verdict);
}

#[test]
fn a_claimed_token_without_text_is_shown() {
    let report = posted("b-");
    let found = answers(&report);
    assert_eq!((found.tokens_claimed, found.events), (1, Some(0)));
    let text = report.to_text(&Clock::of(&report, None));
    assert!(text.contains("1 ended; 1 claim 1 token; no event with content"), "{text}");
    assert_eq!(judged_in_one_response(&report), "NO FINDINGS in 1 response");
}

#[test]
fn unlisted_ids_have_the_advice_of_the_engine_that_lists_ids() {
    let report = posted("c-");
    let finding = only_finding(&report, "short-answers");
    assert_eq!(finding.evidence["tokens_lost"], 12);
    assert_eq!(answers(&report).tokens_claimed, 25);
    let advice = finding.advice.as_deref().expect("advice");
    assert!(advice.starts_with("vLLM") && !advice.contains("stream-output"), "{advice}");
}

#[test]
fn a_loss_on_the_engines_own_endpoint_has_its_own_advice() {
    let report = posted("d-");
    let finding = only_finding(&report, "short-answers");
    assert_eq!(finding.evidence["tokens_lost"], 4);
    assert!(finding.advice.as_deref().is_some_and(|advice| advice.contains("0.5.17")), "{finding:?}");
}

#[test]
fn a_stream_without_an_end_is_reported() {
    let report = posted("g-");
    let finding = only_finding(&report, "unfinished-responses");
    assert_eq!(
        (finding.evidence["responses"].as_u64(), finding.evidence["worst_events"].as_u64()),
        (Some(1), Some(12))
    );
    assert_eq!(answers(&report).lacking_end, 1);
}

#[test]
fn repeated_events_are_reported() {
    let report = posted("i-");
    let finding = only_finding(&report, "repeated-ids");
    assert_eq!(finding.evidence["tokens_repeated"], 3);
    assert_eq!((answers(&report).tokens_claimed, answers(&report).judged_alone_tokens), (4, 7));
}

#[test]
fn continuous_usage_shows_the_tokens_of_each_event() {
    let event = |text: &str, tokens: u32| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\
             \"finish_reason\":null}}],\"usage\":{{\"prompt_tokens\":5,\"completion_tokens\":{tokens}}}}}\n\n"
        )
    };
    let mut body = event("", 0);
    (1..=6).for_each(|tokens| body.push_str(&event("w ", tokens)));
    body.push_str(&event("w w w", 26));
    body.push_str("data: {\"id\":\"chatcmpl-1\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n");
    let found = answers(&report_of_body(body.as_bytes()));
    assert_eq!((found.tokens_claimed, found.event_tokens_max, found.events), (26, Some(20), Some(7)));
}

/// Ends of streams that clients accept.
#[test]
fn a_finish_reason_or_a_final_marker_or_an_error_is_an_end() {
    let chunk = |finish: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"w\"}},\"finish_reason\":{finish}}}]}}\n\n"
        )
    };
    let error = "data: {\"error\":{\"message\":\"out of memory\",\"code\":500}}\n\n";
    for (body, lacking, done, done_without_finish) in [
        (chunk("null"), 1, 0, 0),
        (chunk("\"stop\""), 0, 0, 0),
        (chunk("\"stop\"") + "data: [DONE]\n\n", 0, 1, 0),
        (chunk("null") + "data: [DONE]\n\n", 0, 1, 1),
        (chunk("null") + error, 0, 0, 0),
        (String::from("data: [DONE]\n\n"), 0, 0, 0),
    ] {
        let answers = report_of_body(body.as_bytes()).answers;
        let found = answers.map_or((0, 0, 0), |found| (found.lacking_end, found.done, found.done_without_finish));
        assert_eq!(found, (lacking, done, done_without_finish), "{body}");
    }
}
