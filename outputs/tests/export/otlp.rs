use std::collections::{BTreeMap, BTreeSet};

use outputs::export::{Format, LiveSpans, Opening, Options, Resource};
use serde_json::Value;
use trace::clock::Anchor;
use trace::{Analysis, MonoNs};

use super::{engine, export, lines, run};

fn spans(line: &Value) -> &[Value] {
    line["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().expect("spans")
}

fn attributes(span: &Value) -> BTreeMap<&str, &Value> {
    let list = span["attributes"].as_array().expect("attributes").iter();
    list.map(|a| (a["key"].as_str().expect("a key"), &a["value"])).collect()
}

fn int(value: &Value) -> u64 {
    value["intValue"].as_str().and_then(|n| n.parse().ok()).expect("an integer as text")
}

fn nanos(span: &Value, name: &str) -> u64 {
    span[name].as_str().and_then(|n| n.parse().ok()).expect("nanoseconds as text")
}

#[test]
fn every_request_and_the_capture_have_a_trace() {
    let (text, report) = export(Format::Otlp, Options::default());
    let lines = lines(&text);
    assert_eq!(lines.len() as u64, report.requests.seen + 1);
    let roots: Vec<&Value> = lines.iter().map(|line| &spans(line)[0]).collect();
    let traces: BTreeSet<&str> = roots.iter().filter_map(|span| span["traceId"].as_str()).collect();
    assert_eq!(traces.len(), lines.len());
    assert!(traces.contains("5b8efff798038103d269b633813fc60c"), "a UUID rid is used as the trace id");
    let (capture, requests) = roots.split_last().expect("the capture");
    assert_eq!(capture["name"], "capture");
    assert_eq!(int(attributes(capture)["tokengap.chunks.sent"]), report.chunks.sent);
    assert_eq!(capture["events"].as_array().map(Vec::len), Some(report.findings.len()));
    let sum = |key| requests.iter().map(|span| int(attributes(span)[key])).sum::<u64>();
    assert_eq!(sum("gen_ai.usage.output_tokens"), report.tokens.sent);
    assert_eq!(sum("tokengap.chunks.sent"), report.chunks.sent);
    assert_eq!(Some(sum("tokengap.chunks.dropped")), report.chunks.dropped_confirmed);
}

#[test]
fn a_request_joins_the_trace_of_its_caller() {
    let options = Options { rids: vec!["request-4".into()], ..Options::default() };
    let (text, report) = export(Format::Otlp, options);
    let lines = lines(&text);
    let (root, stages) = spans(&lines[0]).split_first().expect("the request");
    assert_eq!((&root["parentSpanId"], &root["flags"]), (&Value::from("00f067aa0ba902b7"), &Value::from(0x301)));
    assert_eq!(attributes(root)["tokengap.trace_id_from"]["stringValue"], "traceparent");
    assert!(stages.iter().all(|stage| stage["flags"] == 1) && !stages.is_empty());
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    assert!(spans(&lines[0]).iter().all(|span| span["traceId"] == trace), "{root}");
    let listed = report.slowest.iter().find(|line| line.rid == "request-4").expect("a listed request");
    assert_eq!(listed.trace_id.as_deref(), Some(trace));
}

#[test]
fn child_spans_do_not_exceed_their_parents() {
    let (text, _) = export(Format::Otlp, Options::default());
    let mut names = BTreeSet::new();
    for line in &lines(&text) {
        let spans = spans(line);
        let by_id: BTreeMap<&str, &Value> = spans.iter().map(|s| (s["spanId"].as_str().expect("an id"), s)).collect();
        assert_eq!(by_id.len(), spans.len());
        for span in &spans[1..] {
            names.insert(span["name"].as_str().expect("a name").to_owned());
            let parent = by_id[span["parentSpanId"].as_str().expect("a parent")];
            assert!(nanos(span, "startTimeUnixNano") <= nanos(span, "endTimeUnixNano"), "{span}");
            assert!(nanos(parent, "startTimeUnixNano") <= nanos(span, "startTimeUnixNano"), "{span}");
            assert!(nanos(span, "endTimeUnixNano") <= nanos(parent, "endTimeUnixNano"), "{span}");
        }
    }
    let expected = [
        "delivery",
        "detokenizer",
        "detokenizer->tokenizer",
        "dispatch",
        "first token gap",
        "intake+queue+prefill",
        "preparation+dispatch+intake+queue+prefill",
        "processing",
        "relay",
        "scheduler->detokenizer",
        "socket",
        "streaming",
    ];
    assert_eq!(names.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}

#[test]
fn log_statements_of_a_request_are_events_of_its_span() {
    let options = Options { rids: vec!["request-4".into()], ..Options::default() };
    let (text, _) = export(Format::Otlp, options);
    let lines = lines(&text);
    let root = &spans(&lines[0])[0];
    let events: Vec<&str> =
        root["events"].as_array().expect("events").iter().filter_map(|e| e["name"].as_str()).collect();
    assert!(
        events.contains(&"tokenizer_first_token")
            && events.contains(&"merged")
            && events.contains(&"dropped")
            && events.contains(&"answered")
    );
    assert_eq!(root["status"]["code"], 2, "it lost tokens");
}

#[test]
fn a_finding_of_a_live_run_has_a_span_at_the_start_and_one_at_the_end_of_each_episode() {
    let anchor = Anchor { mono: MonoNs(run::START), wall_ns: run::WALL };
    let resource = Resource::for_source("demo", "0.1.0");
    let mut live = LiveSpans::new(None, Opening::new("demo", "0.1.0", anchor), resource);
    let mut analysis = Analysis::new(engine::config());
    let events = run::events();
    let mut events = events.iter().peekable();
    // Long enough for findings to end.
    for second in 0..60 {
        let now = MonoNs(run::START + second * 1_000 * run::MS);
        while let Some(event) = events.next_if(|event| event.at < now) {
            analysis.apply(event);
        }
        analysis.tick(now);
        live.add_spans_closed_by_tick(now, &analysis);
    }
    let encoded = live.take_spans(&analysis).expect("spans");
    let line: Value = serde_json::from_slice(&encoded.json).expect("JSON");
    let ids: BTreeSet<&str> = spans(&line).iter().filter_map(|span| span["spanId"].as_str()).collect();
    assert_eq!(ids.len() as u64, encoded.items);
    let of_state = |state: &str| -> BTreeMap<&str, &Value> {
        let of_state =
            spans(&line).iter().filter(|span| attributes(span)["tokengap.finding.state"]["stringValue"] == state);
        of_state.map(|span| (span["name"].as_str().expect("a name"), span)).collect()
    };
    let began = of_state("began");
    let over = of_state("over");
    assert!(!over.is_empty());
    for finding in analysis.findings().into_iter().filter(|finding| finding.changed_at.is_some()) {
        assert!(began.contains_key(finding.kind), "{}", finding.kind);
        assert_eq!(over.contains_key(finding.kind), !finding.active, "{}", finding.kind);
        if let (Some(span), Some(last)) = (over.get(finding.kind), finding.times.episodes().last()) {
            let at = [last.first, last.last].map(|at| run::WALL + at.0 - run::START);
            assert_eq!([nanos(span, "startTimeUnixNano"), nanos(span, "endTimeUnixNano")], at, "{}", finding.kind);
        }
    }
}
