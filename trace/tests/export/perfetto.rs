use std::collections::BTreeMap;

use serde_json::Value;
use trace::export::{Format, Options};

use super::export;

fn events(options: Options) -> (Vec<Value>, trace::report::Report) {
    let (text, report) = export(Format::Perfetto, options);
    (serde_json::from_str(&text).expect("one JSON array"), report)
}

fn named<'a>(events: &'a [Value], phase: &str, name: &str) -> Vec<&'a Value> {
    events
        .iter()
        .filter(|e| e["ph"] == phase && e["name"] == name)
        .collect()
}

fn nanos(event: &Value, field: &str) -> u64 {
    (event[field].as_f64().expect("a time") * 1e3).round() as u64
}

#[test]
fn counts_are_the_reports() {
    let (events, report) = events(Options {
        chunks: u32::MAX,
        ..Options::default()
    });
    let frames: u64 = report.hops.iter().filter_map(|hop| hop.frames_sent).sum();
    // An undecoded frame has an instant event instead of a slice.
    assert_eq!(
        named(&events, "X", "send").len() as u64,
        frames - report.own.frames_undecoded
    );
    assert_eq!(
        named(&events, "i", "frame undecoded").len() as u64,
        report.own.frames_undecoded
    );
    let taken: u64 = report.hops.iter().filter_map(|hop| hop.frames_taken).sum();
    assert_eq!(named(&events, "X", "take").len() as u64, taken);
    assert_eq!(named(&events, "n", "chunk sent").len() as u64, report.chunks.sent);
    let dropped: u64 = named(&events, "i", "chunks dropped")
        .iter()
        .filter_map(|e| e["args"]["chunks"].as_u64())
        .sum();
    assert_eq!(Some(dropped), report.chunks.dropped_confirmed);
    let requests = events
        .iter()
        .filter(|e| e["ph"] == "b" && e["args"]["state"].is_string());
    assert_eq!(requests.count() as u64, report.requests.seen);
    assert_eq!(named(&events, "n", "capture ended").len() as u64, report.requests.live);
    for finding in &report.findings {
        let [found] = named(&events, "i", &finding.kind)[..] else {
            panic!("{} once", finding.kind)
        };
        assert_eq!(nanos(found, "ts"), finding.at_ns);
    }
    let backlog = named(&events, "C", "backlog detokenizer->tokenizer");
    let most = backlog.iter().filter_map(|e| e["args"]["frames"].as_u64()).max();
    let line = report.hops.iter().find(|hop| hop.name == "detokenizer->tokenizer");
    assert_eq!(most, line.and_then(|hop| hop.backlog_max_frames));
}

#[test]
fn slices_of_a_thread_do_not_overlap() {
    let (events, _) = events(Options::default());
    let mut threads: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    for slice in events.iter().filter(|e| e["ph"] == "X") {
        let thread = (
            slice["pid"].as_u64().expect("a pid"),
            slice["tid"].as_u64().expect("a tid"),
        );
        let from = nanos(slice, "ts");
        threads
            .entry(thread)
            .or_default()
            .push((from, from + nanos(slice, "dur")));
    }
    assert!(
        threads.contains_key(&(4242, 4242)),
        "takes are drawn on the thread that made them"
    );
    assert!(
        threads.contains_key(&(4100, 4100)),
        "sends on the one scheduler there is"
    );
    for (thread, mut slices) in threads {
        slices.sort_unstable();
        assert!(slices.windows(2).all(|w| w[0].1 <= w[1].0), "{thread:?}: {slices:?}");
    }
}

#[test]
fn spans_of_a_request_open_and_close_like_brackets() {
    let (events, _) = events(Options::default());
    let mut open: BTreeMap<&str, Vec<(&str, u64)>> = BTreeMap::new();
    for event in &events {
        let phase = event["ph"].as_str().expect("a phase");
        let (Some(id), Some(name)) = (event["id2"]["local"].as_str(), event["name"].as_str()) else {
            continue;
        };
        let stack = open.entry(id).or_default();
        match phase {
            "b" => {
                let at = nanos(event, "ts");
                assert!(stack.last().is_none_or(|outer| outer.1 <= at), "{id}: {name}");
                stack.push((name, at));
            }
            "e" => {
                let begun = stack.pop().expect("it was begun");
                assert_eq!(begun.0, name, "{id}");
                assert!(begun.1 <= nanos(event, "ts"));
            }
            _ => {}
        }
    }
    assert!(open.len() == 12 && open.values().all(Vec::is_empty));
}

#[test]
fn arrows_end_where_others_begin() {
    let (events, _) = events(Options::default());
    let begun: Vec<&Value> = events
        .iter()
        .filter(|e| e["flow_out"] == true)
        .map(|e| &e["bind_id"])
        .collect();
    let ends: Vec<&Value> = events
        .iter()
        .filter(|e| e["flow_in"] == true)
        .map(|e| &e["bind_id"])
        .collect();
    assert!(!ends.is_empty() && ends.iter().all(|end| begun.contains(end)));
}

#[test]
fn a_trace_that_was_cut_still_begins_as_an_array_of_whole_lines() {
    let (text, _) = export(Format::Perfetto, Options::default());
    let cut = &text[..text.len() / 2];
    let whole = cut.rfind(",\n").expect("more than one event");
    let events: Vec<Value> = serde_json::from_str(&format!("{}]", &cut[..whole])).expect("an array");
    assert!(events.len() > 100);
}

#[test]
fn chunks_are_shown_up_to_the_limit_and_the_last_one_always() {
    let options = Options {
        rids: vec!["request-4".into()],
        chunks: 5,
        ..Options::default()
    };
    let (events, _) = events(options);
    let sent = named(&events, "n", "chunk sent");
    assert_eq!(sent.last().map(|chunk| &chunk["args"]["finish"]), Some(&"stop".into()));
    let all = sent.len() + named(&events, "n", "delivered").len();
    assert!(all < 40, "{all}");
}
