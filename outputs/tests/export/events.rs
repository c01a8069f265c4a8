use outputs::export::{Format, Options};
use serde_json::Value;

use super::{export, lines};

const SCHEMA: &str = include_str!("../../../docs/reference/events.schema.json");

fn of<'a>(lines: &'a [Value], kind: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["type"] == kind).collect()
}

#[test]
fn every_line_matches_the_schema() {
    let schema: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    let validator = jsonschema::validator_for(&schema).expect("a schema");
    let (text, _) = export(Format::Events, Options { tokens: true, ..Options::default() });
    let lines = lines(&text);
    for line in &lines {
        if let Err(error) = validator.validate(line) {
            panic!("{error}\n{line}");
        }
    }
    let mut untested: Vec<&str> = schema["oneOf"]
        .as_array()
        .expect("one for each type")
        .iter()
        .filter_map(|one| one["properties"]["type"]["const"].as_str())
        .collect();
    untested.retain(|kind| of(&lines, kind).is_empty());
    assert!(untested.is_empty(), "no line of type {untested:?} was tested");
    let invalid =
        serde_json::json!({"type": "processed", "at_ns": 1, "wall_ns": 2, "hop": "a->b", "hop_id": 0, "lane": 0});
    assert!(!validator.is_valid(&invalid), "a line without seq passes");
}

#[test]
fn counts_match_the_report() {
    let (text, report) = export(Format::Events, Options::default());
    let lines = lines(&text);
    let sent = of(&lines, "chunk");
    let sent = sent.iter().filter(|c| c["hop"] == "scheduler->detokenizer");
    assert_eq!(sent.count() as u64, report.chunks.sent);
    let [end] = of(&lines, "end")[..] else { panic!("one end") };
    assert_eq!(end["chunks_sent"], report.chunks.sent);
    assert_eq!(end["chunks_dropped_confirmed"].as_u64(), report.chunks.dropped_confirmed);
    assert_eq!(end["requests_seen"], report.requests.seen);
    for (outcome, in_report) in [
        ("delivered", report.chunks.delivered),
        ("merged", report.chunks.merged),
        ("dropped", report.chunks.dropped_confirmed),
        ("unjudged", report.chunks.unjudged),
    ] {
        let judged = of(&lines, "judged").into_iter().filter(|line| line["outcome"] == outcome);
        assert_eq!(Some(judged.filter_map(|line| line["chunks"].as_u64()).sum()), in_report, "{outcome}");
    }
    let delivered: u64 = of(&lines, "delivered").iter().filter_map(|d| d["tokens"].as_u64()).sum();
    assert_eq!(Some(delivered), report.tokens.delivered);
    let found: Vec<_> = of(&lines, "finding").iter().map(|f| f["at_ns"].as_u64()).collect();
    assert_eq!(found, report.findings.iter().map(|f| Some(f.at_ns)).collect::<Vec<_>>());
    assert_eq!(lines[0]["wall_ns"], super::run::WALL, "times count from the first event");
}

#[test]
fn rooms_are_text_that_no_reader_rounds() {
    let (text, _) = export(Format::Events, Options::default());
    let lines = lines(&text);
    let rooms: Vec<_> = ["dispatched", "pair_message"].into_iter().flat_map(|kind| of(&lines, kind)).collect();
    assert_eq!(rooms.len(), 3);
    let expected = super::run::ROOM.to_string();
    assert!(rooms.iter().all(|line| line["room"] == *expected), "{rooms:?}");
}
