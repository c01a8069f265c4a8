//! Every output shows the same outcome, time and reason for each chunk, and the same counts for each request.

use std::collections::BTreeMap;
use std::fmt::Debug;

use outputs::export::{Export, Format, Opening, Options};
use outputs::report::Report;
use serde_json::Value;
use trace::clock::Anchor;
use trace::ledger::{ChunkState, RequestHistory};
use trace::{Analysis, Config, MonoNs, ReportInput};

use super::Replayed;
use super::scenes::{self, PlayScene, Step};
use crate::state::chunk_status::chunk_state_label;
use crate::state::model::Model;
use crate::state::pinned::PinnedHistories;
use crate::state::request_detail::RequestDetail;

/// Wall-clock time of the start of the scenes.
const WALL_NS: u64 = 1_763_690_000_123_456_789;

/// A chunk on a hop, by its number within its request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ChunkName {
    rid: String,
    hop: u64,
    number: u64,
}

/// Outcome of a chunk. Times are nanoseconds since the start of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Judgement {
    outcome: String,
    reason: Option<String>,
    at_ns: u64,
    merged_into: Option<u64>,
}

/// A frame on a connection of a hop.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FrameName {
    hop: u64,
    lane: u64,
    seq: u64,
}

impl FrameName {
    fn of(value: &Value) -> Self {
        let [hop, lane, seq] = ["hop_id", "lane", "seq"].map(|name| number(value, name).expect(name));
        Self { hop, lane, seq }
    }
}

/// When a chunk passed both ends of a hop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Passage {
    sent: Option<u64>,
    received: Option<u64>,
}

/// Chunks in proven losses at a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Drop {
    at_ns: u64,
    chunks: u64,
    tokens: u64,
}

/// A leg of the time to first token.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LegTime {
    name: String,
    ns: u64,
}

/// A run with all its outputs.
struct Run {
    name: &'static str,
    analysis: Analysis,
    report: Report,
    csv: String,
    otlp: String,
    perfetto: String,
    events: String,
}

impl Run {
    fn of_recording(name: &'static str, run: Replayed) -> Self {
        let [csv, otlp, perfetto, events] =
            [Format::Csv, Format::Otlp, Format::Perfetto, Format::Events].map(|format| run.export(format));
        let Replayed { analysis, report, .. } = run;
        Self { name, analysis, report, csv, otlp, perfetto, events }
    }

    fn of_scene(name: &'static str, play: PlayScene) -> Self {
        let config = Config { engines: engines::FACTS, chunk_history: 1 << 16, ..Config::default() };
        let mut analysis = Analysis::new(config);
        play(&mut |step| match step {
            Step::Event(event) => analysis.apply(event),
            Step::Tick(now) => analysis.tick(*now),
        });
        let report = Report::of(&analysis, &Self::input());
        let [csv, otlp, perfetto, events] = [Format::Csv, Format::Otlp, Format::Perfetto, Format::Events]
            .map(|format| Self::export_scene(play, config, format));
        Self { name, analysis, report, csv, otlp, perfetto, events }
    }

    fn input() -> ReportInput {
        ReportInput { slowest: 1_000, ..ReportInput::for_source("attach") }
    }

    fn export_scene(play: PlayScene, config: Config, format: Format) -> String {
        let mut opening = Opening::new("attach", "", Anchor { mono: scenes::START, wall_ns: WALL_NS });
        play(&mut |step| {
            if let Step::Event(event) = step {
                opening.read_if_in_opening(event);
            }
        });
        let mut out = Vec::new();
        let options = Options { chunks: u32::MAX, ..Options::default() };
        let mut export = Export::new(format, options, config, &opening, &mut out).expect("it starts");
        play(&mut |step| match step {
            Step::Event(event) => export.event(event).expect("it is written"),
            Step::Tick(now) => export.tick(*now).expect("it is written"),
        });
        export.finish(&Self::input()).expect("it is written");
        String::from_utf8(out).expect("text")
    }

    fn since_start(&self, at: MonoNs) -> u64 {
        at.since(self.analysis.ledger().started().expect("it has begun"))
    }

    fn detail(&self, rid: &str) -> RequestDetail {
        let mut model = Model::default();
        model.refresh_request_detail(&self.analysis, &PinnedHistories::default(), rid);
        model.detail.expect("a detail")
    }
}

fn number(value: &Value, name: &str) -> Option<u64> {
    value[name].as_u64()
}

fn text(value: &Value, name: &str) -> String {
    value[name].as_str().unwrap_or_else(|| panic!("{name} in {value}")).to_owned()
}

/// Microseconds as nanoseconds.
fn nanos(value: &Value, name: &str) -> u64 {
    (value[name].as_f64().expect(name) * 1e3).round() as u64
}

/// Content of the events export.
#[derive(Default)]
struct EventLines {
    judged: BTreeMap<ChunkName, Judgement>,
    /// Passages of a request's chunks on a hop, in the order observed.
    passages: BTreeMap<(String, u64), Vec<Passage>>,
    deliveries: BTreeMap<String, Vec<u64>>,
    first_deliveries: BTreeMap<String, u64>,
    drops: BTreeMap<String, Vec<Drop>>,
    queue_waits: BTreeMap<FrameName, u64>,
}

impl EventLines {
    fn read(text_of_events: &str) -> Self {
        let lines = text_of_events.lines().map(|line| serde_json::from_str(line).expect("JSON"));
        let lines: Vec<Value> = lines.collect();
        let mut all = Self::default();
        let mut sent: BTreeMap<FrameName, u64> = BTreeMap::new();
        let mut received: BTreeMap<FrameName, u64> = BTreeMap::new();
        for line in &lines {
            let at_ns = number(line, "at_ns").expect("a time");
            match line["type"].as_str() {
                Some("sent" | "dispatched" | "undecoded") => {
                    sent.entry(FrameName::of(line)).or_insert(at_ns);
                }
                Some("received") => {
                    received.insert(FrameName::of(line), at_ns);
                }
                Some("delivered") => all.add_delivery(line, at_ns),
                Some("judged") => all.add_judged(line, at_ns),
                _ => {}
            }
        }
        let aborts: Vec<FrameName> = lines.iter().filter(|line| line["kind"] == "abort").map(FrameName::of).collect();
        for line in lines.iter().filter(|line| line["type"] == "chunk") {
            let frame = FrameName::of(line);
            if aborts.contains(&frame) {
                // Its chunks only name requests.
                continue;
            }
            let passage = Passage { sent: sent.get(&frame).copied(), received: received.get(&frame).copied() };
            all.passages.entry((text(line, "rid"), frame.hop)).or_default().push(passage);
        }
        for (frame, sent_at) in sent {
            // Perfetto draws no arrow back in time.
            if let Some(&received_at) = received.get(&frame).filter(|received_at| **received_at > sent_at) {
                all.queue_waits.insert(frame, received_at - sent_at);
            }
        }
        all
    }

    fn add_delivery(&mut self, line: &Value, at_ns: u64) {
        let rid = text(line, "rid");
        if line["first_token_received"] == true {
            self.first_deliveries.insert(rid.clone(), at_ns);
        }
        self.deliveries.entry(rid).or_default().push(at_ns);
    }

    fn add_judged(&mut self, line: &Value, at_ns: u64) {
        let rid = text(line, "rid");
        let judgement = Judgement {
            outcome: text(line, "outcome"),
            reason: line["unjudged_because"].as_str().map(str::to_owned),
            at_ns,
            merged_into: number(line, "merged_into"),
        };
        let [first, chunks, hop, tokens] =
            ["chunk", "chunks", "hop_id", "tokens_lost"].map(|name| number(line, name).expect(name));
        for chunk in first..first + chunks {
            let name = ChunkName { rid: rid.clone(), hop, number: chunk };
            let before = self.judged.insert(name, judgement.clone());
            assert_eq!(before, None, "chunk {chunk} of {rid} is judged once");
        }
        if judgement.outcome == "dropped" {
            let drops = self.drops.entry(rid).or_default();
            if drops.last().is_none_or(|last| last.at_ns != at_ns) {
                drops.push(Drop { at_ns, ..Drop::default() });
            }
            if let Some(last) = drops.last_mut() {
                last.chunks += chunks;
                last.tokens += tokens;
            }
        }
    }

    fn count_of(&self, outcome: &str) -> u64 {
        self.judged.values().filter(|judged| judged.outcome == outcome).count() as u64
    }

    fn count_of_rid(&self, rid: &str, outcome: &str) -> u64 {
        self.judged.iter().filter(|(name, judged)| name.rid == rid && judged.outcome == outcome).count() as u64
    }
}

/// Rows of CSV by rid, each by column.
fn csv_rows(csv: &str) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut lines = csv.lines();
    let head: Vec<&str> = lines.next().expect("a head").split(',').collect();
    let rows = lines.map(|line| {
        // Quoted cells contain commas.
        let mut is_quoted = false;
        let cells = line.split(|c: char| {
            is_quoted ^= c == '"';
            c == ',' && !is_quoted
        });
        head.iter().map(|name| (*name).to_owned()).zip(cells.map(str::to_owned)).collect::<BTreeMap<_, _>>()
    });
    rows.map(|row| (row["rid"].clone(), row)).collect()
}

/// One request in the Perfetto export.
#[derive(Default)]
struct PerfettoRow {
    sent: Vec<u64>,
    delivered: Vec<u64>,
    drops: Vec<Drop>,
    first_delivery: Option<u64>,
    facts: Value,
}

fn perfetto_rows(events: &[Value]) -> BTreeMap<String, PerfettoRow> {
    let mut rows: BTreeMap<String, PerfettoRow> = BTreeMap::new();
    for event in events {
        let Some(rid) = event["id2"]["local"].as_str() else { continue };
        let row = rows.entry(rid.to_owned()).or_default();
        let at_ns = nanos(event, "ts");
        let args = &event["args"];
        match (event["ph"].as_str(), event["name"].as_str()) {
            (Some("n"), Some("chunk sent")) => row.sent.push(at_ns),
            (Some("n"), Some("delivered")) => row.delivered.push(at_ns),
            (Some("n"), Some("first_token_received")) => row.first_delivery = Some(at_ns),
            (Some("n"), Some("chunks dropped")) => {
                let [chunks, tokens] = ["chunks", "tokens"].map(|name| number(args, name).expect(name));
                row.drops.push(Drop { at_ns, chunks, tokens });
            }
            (Some("b"), _) if args["state"].is_string() => row.facts = args.clone(),
            _ => {}
        }
    }
    rows
}

/// One request in the OTLP export.
struct OtlpSpan {
    attributes: BTreeMap<String, Value>,
    drops: Vec<Drop>,
    first_delivery: Option<u64>,
    notes_left_out: u64,
    /// Lengths of its stages by name.
    stages: BTreeMap<String, u64>,
}

fn attributes_of(value: &Value) -> BTreeMap<String, Value> {
    let list = value["attributes"].as_array().expect("attributes");
    list.iter().map(|attribute| (text(attribute, "key"), attribute["value"].clone())).collect()
}

fn int_of(attributes: &BTreeMap<String, Value>, name: &str) -> Option<u64> {
    attributes.get(name)?["intValue"].as_str()?.parse().ok()
}

fn length_ns(span: &Value) -> u64 {
    let [from, to] = ["startTimeUnixNano", "endTimeUnixNano"].map(|name| text(span, name).parse::<u64>().expect(name));
    to - from
}

fn otlp_spans(otlp: &str, wall_start_ns: u64) -> BTreeMap<String, OtlpSpan> {
    let mut all = BTreeMap::new();
    for line in otlp.lines() {
        let document: Value = serde_json::from_str(line).expect("JSON");
        let spans = document.pointer("/resourceSpans/0/scopeSpans/0/spans").and_then(Value::as_array).expect("spans");
        for span in spans.iter().filter(|span| span["name"] == "request") {
            let attributes = attributes_of(span);
            let rid = text(&attributes["gen_ai.response.id"], "stringValue");
            let mut drops = Vec::new();
            let mut first_delivery = None;
            for event in span["events"].as_array().expect("events") {
                let wall_ns: u64 = text(event, "timeUnixNano").parse().expect("a number");
                let at_ns = wall_ns.saturating_sub(wall_start_ns);
                let of_event = attributes_of(event);
                if event["name"] == "dropped" {
                    let [chunks, tokens] =
                        ["tokengap.chunks", "tokengap.tokens"].map(|name| int_of(&of_event, name).expect(name));
                    drops.push(Drop { at_ns, chunks, tokens });
                } else if event["name"] == "first_token_received" {
                    first_delivery = Some(at_ns);
                }
            }
            let of_trace = spans.iter().filter(|stage| stage["traceId"] == span["traceId"]);
            let stages = of_trace.map(|stage| (text(stage, "name"), length_ns(stage))).collect();
            let notes_left_out = number(span, "droppedEventsCount").expect("a number");
            all.insert(rid, OtlpSpan { attributes, drops, first_delivery, notes_left_out, stages });
        }
    }
    all
}

fn assert_same<T: PartialEq + Debug + ?Sized>(what: &str, one: &T, other: &T) {
    assert_eq!(one, other, "{what}");
}

/// Word of the screen for an outcome of the events.
fn word_on_screen(outcome: &str) -> &str {
    match outcome {
        "dropped" => "DROPPED",
        "unjudged" => "unknown",
        same => same,
    }
}

/// Compares the outcome of each chunk on the screen and in the events, its time and its reason.
fn assert_same_outcomes(run: &Run, rid: &str, detail: &RequestDetail, events: &EventLines) -> usize {
    let mut on_screen: BTreeMap<ChunkName, Judgement> = BTreeMap::new();
    for line in &detail.chunks {
        let Some(judged) = line.judged else {
            assert!(!matches!(line.state, ChunkState::Judged(_)), "{rid}: {line:?}");
            continue;
        };
        let name = ChunkName { rid: rid.to_owned(), hop: judged.hop.0.into(), number: judged.number.into() };
        let of_events = &events.judged[&name];
        assert_same(&format!("{name:?}"), &chunk_state_label(line.state), &word_on_screen(&of_events.outcome));
        let outcome = judged.outcome.expect("it was judged");
        let reason = match outcome {
            trace::ledger::ChunkOutcome::Unjudged(cause) => Some(cause.as_str().to_owned()),
            _ => None,
        };
        let judgement = Judgement {
            outcome: outcome.name().to_owned(),
            reason,
            at_ns: run.since_start(judged.judged_at.expect("a time")),
            merged_into: judged.merged_into.map(u64::from),
        };
        on_screen.insert(name, judgement);
    }
    let of_rid = events.judged.iter().filter(|(name, _)| name.rid == rid);
    let in_events: BTreeMap<ChunkName, Judgement> =
        of_rid.map(|(name, judged)| (name.clone(), judged.clone())).collect();
    assert_same(rid, &on_screen, &in_events);
    detail.chunks.len()
}

/// Compares when each chunk passed each hop, in the ledger, the events, Perfetto and on the screen.
fn assert_same_times(
    run: &Run,
    rid: &str,
    detail: &RequestDetail,
    history: &RequestHistory,
    events: &EventLines,
    row: &PerfettoRow,
) {
    let mut passages: BTreeMap<(String, u64), Vec<Passage>> = BTreeMap::new();
    for chunk in &history.chunks {
        let [sent, received] = [chunk.sent, chunk.received].map(|at| at.map(|at| run.since_start(at)));
        passages.entry((rid.to_owned(), chunk.hop.0.into())).or_default().push(Passage { sent, received });
    }
    let of_rid = events.passages.iter().filter(|((of, _), _)| of == rid);
    let in_events: BTreeMap<_, _> = of_rid.map(|(name, passages)| (name.clone(), passages.clone())).collect();
    assert_same(rid, &passages, &in_events);
    let sent: Vec<u64> = detail.chunks.iter().filter_map(|line| Some(run.since_start(line.sent?))).collect();
    assert_same(rid, &sent, &row.sent);
    let delivered: Vec<u64> = history.deliveries.iter().map(|delivery| run.since_start(delivery.at)).collect();
    assert_same(rid, &delivered, &row.delivered);
    assert_same(rid, &delivered, &events.deliveries.get(rid).cloned().unwrap_or_default());
}

/// Compares the queue wait of each frame in Perfetto with the events.
fn assert_same_queue_waits(name: &str, events: &EventLines, perfetto: &[Value]) {
    let mut waits: BTreeMap<FrameName, u64> = BTreeMap::new();
    for slice in perfetto.iter().filter(|event| event["ph"] == "X" && event["name"] == "receive") {
        if let Some(wait) = number(&slice["args"], "queue_wait_ns") {
            // The name of a hop may not be unique; the id of the flow is.
            let id = text(slice, "bind_id");
            let id = u64::from_str_radix(id.trim_start_matches("0x"), 16).expect("a hexadecimal number");
            waits.insert(FrameName { hop: id >> 48, lane: id >> 32 & 0xffff, seq: id & 0xffff_ffff }, wait);
        }
    }
    let differing = waits.iter().find(|(frame, wait)| events.queue_waits.get(frame) != Some(wait));
    assert_eq!((differing, waits.len()), (None, events.queue_waits.len()), "{name}");
}

/// Compares the numbers and times of one request in CSV, OTLP, Perfetto and the report.
fn assert_same_request(
    run: &Run,
    rid: &str,
    row: &BTreeMap<String, String>,
    span: &OtlpSpan,
    perfetto: &PerfettoRow,
    events: &EventLines,
) {
    let cell = |name: &str| row[name].parse::<u64>().ok();
    let outcomes = ["delivered", "merged", "dropped", "unjudged"];
    let in_csv = outcomes.map(|outcome| cell(&format!("chunks_{outcome}")));
    let in_otlp = outcomes.map(|outcome| int_of(&span.attributes, &format!("tokengap.chunks.{outcome}")));
    assert_same(rid, &in_otlp, &in_csv);
    let in_perfetto = outcomes.map(|outcome| number(&perfetto.facts, &format!("chunks_{outcome}")));
    assert_same(rid, &in_perfetto, &in_csv);
    let drops = events.drops.get(rid).cloned().unwrap_or_default();
    let tokens: u64 = drops.iter().map(|drop| drop.tokens).sum();
    let lost = cell("tokens_lost");
    let lost_elsewhere = [int_of(&span.attributes, "tokengap.tokens.lost"), number(&perfetto.facts, "tokens_lost")];
    assert_same(rid, &lost_elsewhere, &[lost; 2]);
    if lost.is_some() {
        assert_same(rid, &outcomes.map(|outcome| Some(events.count_of_rid(rid, outcome))), &in_csv);
        assert_same(rid, &lost, &Some(tokens));
    }
    // A timeline keeps a limited number of notes.
    let kept = drops.len().min(span.drops.len());
    assert!((drops.len() - kept) as u64 <= span.notes_left_out, "{rid}: {} of {}", kept, drops.len());
    assert_same(rid, &span.drops[..], &drops[..kept]);
    assert_same(rid, &perfetto.drops, &span.drops);
    let first_delivery = events.first_deliveries.get(rid).copied();
    let all = [cell("delivered_first_ns"), perfetto.first_delivery, span.first_delivery];
    assert_same(rid, &all, &[first_delivery; 3]);
    if let Some(line) = run.report.slowest.iter().find(|line| line.rid == rid) {
        assert_same(rid, &[line.dropped, line.tokens_lost], &[in_csv[2], lost]);
        let times = [line.first_sent_ns, line.first_received_ns, line.first_delivered_ns];
        assert_same(rid, &times, &["sent_first_ns", "received_first_ns", "delivered_first_ns"].map(cell));
        assert_same(rid, &line.ttft_ns, &cell("ttft_ns"));
        let legs: Vec<LegTime> =
            line.ttft_legs.iter().map(|leg| LegTime { name: leg.name.clone(), ns: leg.ns }).collect();
        assert_same_legs(rid, &legs, row, span);
    }
}

/// Compares the legs of the time to first token in the report with CSV, and those that OTLP has as spans of their own.
fn assert_same_legs(rid: &str, in_report: &[LegTime], row: &BTreeMap<String, String>, span: &OtlpSpan) {
    let in_csv = row["ttft_legs"].split_whitespace().map(|leg| {
        let (name, ns) = leg.split_once('=').expect("a length");
        LegTime { name: name.to_owned(), ns: ns.parse().expect("a number") }
    });
    assert_same(rid, &in_csv.collect::<Vec<_>>(), &in_report.to_vec());
    for leg in in_report {
        // A leg of its own column, unless it is made of several.
        if !leg.name.contains('+') {
            assert_same(rid, &row[&format!("ttft_{}_ns", leg.name)], &leg.ns.to_string());
        }
        // OTLP and Perfetto show the output hop by hop.
        if leg.name != "output" {
            assert_same(rid, &span.stages.get(&leg.name), &Some(&leg.ns));
        }
    }
}

/// Compares all outputs of a run. Returns the number of chunks compared.
fn assert_agreement(run: &Run) -> usize {
    let events = EventLines::read(&run.events);
    let rows = csv_rows(&run.csv);
    let first: Value = serde_json::from_str(run.events.lines().next().expect("a line")).expect("JSON");
    let spans = otlp_spans(&run.otlp, number(&first, "wall_ns").expect("a time"));
    let perfetto: Vec<Value> = serde_json::from_str(&run.perfetto).expect("JSON");
    let perfetto_rows = perfetto_rows(&perfetto);
    let ledger = run.analysis.ledger();
    assert_same_queue_waits(run.name, &events, &perfetto);
    assert_eq!(rows.len() as u64, run.report.requests.seen, "{}", run.name);
    let mut compared = 0;
    for (rid, row) in &rows {
        let detail = run.detail(rid);
        let perfetto_row = &perfetto_rows[rid];
        compared += assert_same_outcomes(run, rid, &detail, &events);
        assert_same_times(run, rid, &detail, &ledger.history(rid), &events, perfetto_row);
        assert_same_request(run, rid, row, &spans[rid], perfetto_row, &events);
    }
    let chunks = &run.report.chunks;
    let in_report = [chunks.delivered, chunks.merged, chunks.dropped_confirmed, chunks.unjudged];
    if chunks.delivered.is_some() {
        let in_events = ["delivered", "merged", "dropped", "unjudged"].map(|outcome| events.count_of(outcome));
        assert_same(run.name, &in_report, &in_events.map(Some));
        let in_flight = ledger.undelivered_chunks();
        assert_same(run.name, &chunks.in_flight, &Some(in_flight));
    }
    compared
}

#[test]
fn screen_exports_and_report_tell_the_same_of_each_chunk_of_every_recording() {
    let compared = Replayed::check_each(|name| {
        let replayed = Replayed::new(name, &mut |_, _| {});
        assert_agreement(&Run::of_recording(name, replayed))
    });
    let compared: usize = compared.iter().sum();
    assert!(compared > 5_000, "{compared} chunks");
}

#[test]
fn screen_exports_and_report_tell_the_same_of_each_chunk_of_every_scene() {
    for (name, play) in scenes::ALL {
        assert!(assert_agreement(&Run::of_scene(name, play)) > 0, "{name}");
    }
}

/// Labels of a request's chunks on the screen.
fn statuses(run: &Run, rid: &str) -> Vec<&'static str> {
    run.detail(rid).chunks.iter().map(|line| chunk_state_label(line.state)).collect()
}

/// Without these, the comparisons would compare nothing with nothing.
#[test]
fn the_scenes_have_every_outcome() {
    let runs: BTreeMap<&str, Run> =
        scenes::ALL.into_iter().map(|(name, play)| (name, Run::of_scene(name, play))).collect();
    let run = &runs["every outcome"];
    let cases: [(&str, &[&str]); 7] = [
        ("delivered", &["delivered"; 3]),
        ("merged", &["delivered", "delivered", "merged"]),
        ("dropped", &["delivered", "DROPPED", "delivered"]),
        ("first dropped", &["DROPPED", "delivered", "delivered"]),
        ("without count", &["unknown"]),
        ("waiting", &["waiting"]),
        ("missed", &["unknown", "unknown", "delivered"]),
    ];
    for (rid, expected) in cases {
        assert_eq!(statuses(run, rid), expected, "{rid}");
    }
    let run = &runs["a detokenizer that combines chunks"];
    assert_eq!(statuses(run, "combined"), ["delivered"; 3]);
    assert_eq!(statuses(run, "combined and dropped"), ["DROPPED", "delivered", "delivered"]);
    let combined: Vec<_> = run.detail("combined").chunks.iter().map(|line| line.combined_with).collect();
    assert_eq!(combined, [None, None, Some(2)]);
    assert_eq!(statuses(&runs["responses that do not stream"], "whole"), ["delivered"; 3]);
    assert_eq!(statuses(&runs["deliveries not observed"], "burst"), ["dropped?", "dropped?", "received"]);
    assert_eq!(statuses(&runs["sends of a tap"], "tapped"), ["sent"; 3]);
}
