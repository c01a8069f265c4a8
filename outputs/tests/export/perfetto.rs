use std::collections::{BTreeMap, BTreeSet};

use outputs::export::{Format, Options};
use serde_json::Value;

use super::export;

fn events(options: Options) -> (Vec<Value>, outputs::report::Report) {
    let (text, report) = export(Format::Perfetto, options);
    (serde_json::from_str(&text).expect("one JSON array"), report)
}

fn named<'a>(events: &'a [Value], phase: &str, name: &str) -> Vec<&'a Value> {
    events.iter().filter(|e| e["ph"] == phase && e["name"] == name).collect()
}

fn nanos(event: &Value, field: &str) -> u64 {
    (event[field].as_f64().expect("a time") * 1e3).round() as u64
}

#[test]
fn counts_match_the_report() {
    let (events, report) = events(Options { chunks: u32::MAX, ..Options::default() });
    let frames: u64 = report.hops.iter().filter_map(|hop| hop.frames_sent).sum();
    // An undecoded frame has an instant event instead of a slice.
    assert_eq!(named(&events, "X", "send").len() as u64, frames - report.own.frames_undecoded);
    assert_eq!(named(&events, "i", "frame undecoded").len() as u64, report.own.frames_undecoded);
    let received: u64 = report.hops.iter().filter_map(|hop| hop.frames_received).sum();
    assert_eq!(named(&events, "X", "receive").len() as u64, received);
    assert_eq!(named(&events, "n", "chunk sent").len() as u64, report.chunks.sent);
    let dropped: u64 = named(&events, "n", "chunks dropped").iter().filter_map(|e| e["args"]["chunks"].as_u64()).sum();
    assert_eq!(Some(dropped), report.chunks.dropped_confirmed);
    let requests = events.iter().filter(|e| e["ph"] == "b" && e["args"]["state"].is_string());
    assert_eq!(requests.count() as u64, report.requests.seen);
    assert_eq!(named(&events, "n", "capture ended").len() as u64, report.requests.live);
    for finding in &report.findings {
        let [found] = named(&events, "i", &finding.kind)[..] else { panic!("{} once", finding.kind) };
        assert_eq!(nanos(found, "ts"), finding.at_ns);
    }
    let backlog = named(&events, "C", "backlog detokenizer->tokenizer");
    let maximum = backlog.iter().filter_map(|e| e["args"]["frames"].as_u64()).max();
    let line = report.hops.iter().find(|hop| hop.name == "detokenizer->tokenizer");
    assert_eq!(maximum, line.and_then(|hop| hop.backlog_max_frames));
}

#[test]
fn slices_of_a_thread_do_not_overlap() {
    let (events, _) = events(Options::default());
    let mut threads: BTreeMap<(u64, u64), Vec<(u64, u64)>> = BTreeMap::new();
    for slice in events.iter().filter(|e| e["ph"] == "X") {
        let thread = (slice["pid"].as_u64().expect("a pid"), slice["tid"].as_u64().expect("a tid"));
        let from = nanos(slice, "ts");
        threads.entry(thread).or_default().push((from, from + nanos(slice, "dur")));
    }
    assert!(threads.contains_key(&(4242, 4242)), "receives are on their thread");
    assert!(threads.contains_key(&(4100, 4100)), "sends are on the only scheduler");
    for (thread, mut slices) in threads {
        slices.sort_unstable();
        assert!(slices.windows(2).all(|w| w[0].1 <= w[1].0), "{thread:?}: {slices:?}");
    }
}

/// Checks that request spans nest in name and time and that every end of a flow has a start. Returns the number of requests.
pub(crate) fn check(events: &[Value]) -> u64 {
    let mut open: BTreeMap<&str, Vec<(&str, u64)>> = BTreeMap::new();
    let mut requests = 0;
    for event in events {
        let phase = event["ph"].as_str().expect("a phase");
        let (Some(id), Some(name)) = (event["id2"]["local"].as_str(), event["name"].as_str()) else {
            continue;
        };
        let stack = open.entry(id).or_default();
        match phase {
            "b" => {
                let at = nanos(event, "ts");
                requests += u64::from(stack.is_empty());
                assert!(stack.last().is_none_or(|outer| outer.1 <= at), "{id}: {name}");
                stack.push((name, at));
            }
            "e" => {
                let start = stack.pop().expect("a start for every end");
                assert_eq!(start.0, name, "{id}");
                assert!(start.1 <= nanos(event, "ts"));
            }
            _ => {}
        }
    }
    assert!(open.values().all(Vec::is_empty));
    let flows = |flow: &str| -> BTreeSet<String> {
        events.iter().filter(|e| e[flow] == true).map(|e| e["bind_id"].to_string()).collect()
    };
    assert!(flows("flow_in").is_subset(&flows("flow_out")));
    requests
}

#[test]
fn request_spans_are_nested_and_flows_have_both_ends() {
    let (events, _) = events(Options::default());
    assert_eq!(check(&events), 12);
    assert!(events.iter().any(|e| e["flow_in"] == true));
}

#[test]
fn a_truncated_trace_is_the_start_of_a_json_array() {
    let (text, _) = export(Format::Perfetto, Options::default());
    let truncated = &text[..text.len() / 2];
    let last_line = truncated.rfind(",\n").expect("more than one event");
    let events: Vec<Value> = serde_json::from_str(&format!("{}]", &truncated[..last_line])).expect("an array");
    assert!(events.len() > 100);
}

#[test]
fn chunks_are_limited_but_the_last_one_is_always_shown() {
    let options = Options { rids: vec!["request-4".into()], chunks: 5, ..Options::default() };
    let (events, _) = events(options);
    let sent = named(&events, "n", "chunk sent");
    assert_eq!(sent.last().map(|chunk| &chunk["args"]["finish"]), Some(&"stop".into()));
    let all = sent.len() + named(&events, "n", "delivered").len();
    assert!(all < 40, "{all}");
}
