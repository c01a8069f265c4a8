//! Screen, exports, report, comparison and metrics show the same chunks, requests and headline, on every recording in the repository.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;

use outputs::diff::{Diff, DiffOptions, NamedRun};
use outputs::export::{Format, Options, recorded};
use outputs::metrics::{self, Input, Value as MetricValue};
use outputs::report::{Clock, Report};
use recording::{Record, Recording};
use serde_json::Value;
use trace::detect::{FindingPhase, Severity};
use trace::event::{Delivery, Response, What};
use trace::ledger::Ledger;
use trace::time_series::SCREEN_SECONDS;
use trace::{Analysis, Config, ReportInput};

use super::chunk_status::ChunkStatus;
use super::flags::Health;
use super::model::{Model, RunValues};
use super::pinned::PinnedHistories;
use super::scene::{MS, Scene};

/// Number of chunks of a request that were merged and dropped, and of its lost tokens; `None` if its deliveries are not observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct HarmCounts {
    merged: Option<u64>,
    dropped: Option<u64>,
    tokens_lost: Option<u64>,
}

/// A chunk on a hop: rid, hop and number.
type ChunkName = (String, u64, u64);

/// All recordings in the repository.
const RECORDINGS: [&str; 5] = ["attach-0.5.9", "demo-race", "egress-0.5.9", "stopped-0.5.9", "tap-0.5.9"];

pub(crate) struct Replayed {
    recording: Recording,
    pub(crate) analysis: Analysis,
    pub(crate) report: Report,
}

impl Replayed {
    pub(crate) const NAMES: [&str; 5] = RECORDINGS;

    /// Replays every recording in the repository.
    pub(crate) fn all() -> impl Iterator<Item = (&'static str, Self)> {
        RECORDINGS.into_iter().map(|name| (name, Self::new(name, &mut |_, _| {})))
    }

    pub(crate) fn new(name: &str, at_tick: &mut dyn FnMut(&Analysis, &ReportInput)) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recording/fixtures");
        let file = folder.join(format!("2.0-{name}.tgap"));
        let recording = Recording::open(file).expect("a recording");
        let config = Config {
            engines: engines::FACTS,
            chunk_history: 1 << 20,
            recent_seconds: SCREEN_SECONDS,
            ..recording.header().config
        };
        let mut analysis = Analysis::new(config);
        let mut reader = recording.reader();
        while let Some(record) = reader.next().expect("it is undamaged") {
            match record {
                Record::Event(event) => analysis.apply(&event),
                Record::Tick(now) => {
                    analysis.tick(now);
                    at_tick(&analysis, &recording.input());
                }
                Record::Anchor(_) | Record::Closing(_) => {}
            }
        }
        let report = Report::of(&analysis, &recording.input());
        Self { recording, analysis, report }
    }

    fn export(&self, format: Format) -> String {
        let mut out = Vec::new();
        let options = Options { chunks: u32::MAX, ..Options::default() };
        recorded(&self.recording, engines::FACTS, format, options, &mut out, &mut |_, _| {}).expect("it is written");
        String::from_utf8(out).expect("text")
    }

    fn ledger(&self) -> &Ledger {
        self.analysis.ledger()
    }

    fn rids(&self) -> Vec<String> {
        let live = self.ledger().requests().map(|request| request.rid.to_string());
        live.chain(self.ledger().finished().map(|summary| summary.rid.to_string())).collect()
    }
}

fn counts_from_csv(text: &str) -> BTreeMap<String, HarmCounts> {
    let mut lines = text.lines();
    let head: Vec<&str> = lines.next().expect("a head").split(',').collect();
    let [rid, merged, dropped, lost] = ["rid", "chunks_merged", "chunks_dropped", "tokens_lost"]
        .map(|name| head.iter().position(|column| *column == name).expect(name));
    let rows = lines.map(|line| {
        // Quoted cells contain commas.
        let mut is_quoted = false;
        let cells = line.split(|c: char| {
            is_quoted ^= c == '"';
            c == ',' && !is_quoted
        });
        let cells: Vec<&str> = cells.collect();
        let [merged, dropped, tokens_lost] = [merged, dropped, lost].map(|column| cells[column].parse().ok());
        (cells[rid].to_owned(), HarmCounts { merged, dropped, tokens_lost })
    });
    rows.collect()
}

fn attribute_of_span<'a>(span: &'a Value, name: &str) -> Option<&'a Value> {
    let attributes = span["attributes"].as_array().expect("attributes");
    attributes.iter().find(|attribute| attribute["key"] == name).map(|attribute| &attribute["value"])
}

fn counts_from_otlp(text: &str) -> BTreeMap<String, HarmCounts> {
    let mut all = BTreeMap::new();
    for line in text.lines() {
        let document: Value = serde_json::from_str(line).expect("JSON");
        for span in document.pointer("/resourceSpans/0/scopeSpans/0/spans").and_then(Value::as_array).expect("spans") {
            if span["name"] == "request" {
                let rid = attribute_of_span(span, "gen_ai.response.id").expect("a rid");
                let [merged, dropped, tokens_lost] =
                    ["tokengap.chunks.merged", "tokengap.chunks.dropped", "tokengap.tokens.lost"]
                        .map(|name| attribute_of_span(span, name)?["intValue"].as_str()?.parse().ok());
                let rid = rid["stringValue"].as_str().expect("text").to_owned();
                all.insert(rid, HarmCounts { merged, dropped, tokens_lost });
            }
        }
    }
    all
}

fn counts_from_perfetto(text: &str) -> BTreeMap<String, HarmCounts> {
    let events: Vec<Value> = serde_json::from_str(text).expect("JSON");
    let facts = events.iter().map(|event| &event["args"]).filter(|args| args["state"].is_string());
    facts
        .map(|args| {
            let counts = HarmCounts {
                merged: args["chunks_merged"].as_u64(),
                dropped: args["chunks_dropped"].as_u64(),
                tokens_lost: args["tokens_lost"].as_u64(),
            };
            (args["rid"].as_str().expect("a rid").to_owned(), counts)
        })
        .collect()
}

/// Outcome of each chunk, by name, and the sums over each request.
fn outcomes_from_events(text: &str) -> (BTreeMap<ChunkName, String>, BTreeMap<String, HarmCounts>) {
    let mut chunks = BTreeMap::new();
    let mut counts: BTreeMap<String, HarmCounts> = BTreeMap::new();
    for line in text.lines() {
        let line: Value = serde_json::from_str(line).expect("JSON");
        if line["type"] != "judged" {
            continue;
        }
        let rid = line["rid"].as_str().expect("a rid");
        let outcome = line["outcome"].as_str().expect("an outcome");
        let [first, judged, hop, tokens_lost] = ["chunk", "chunks", "hop_id", "tokens_lost"]
            .map(|name| line[name].as_u64().unwrap_or_else(|| panic!("{name} in {line}")));
        for chunk in first..first + judged {
            let before = chunks.insert((rid.to_owned(), hop, chunk), outcome.to_owned());
            assert_eq!(before, None, "chunk {chunk} of {rid} is judged once");
        }
        let sums = counts.entry(rid.to_owned()).or_default();
        let merged = if outcome == "merged" { judged } else { 0 };
        let dropped = if outcome == "dropped" { judged } else { 0 };
        sums.merged = Some(sums.merged.unwrap_or(0) + merged);
        sums.dropped = Some(sums.dropped.unwrap_or(0) + dropped);
        sums.tokens_lost = Some(sums.tokens_lost.unwrap_or(0) + tokens_lost);
    }
    (chunks, counts)
}

fn assert_same<T: PartialEq + Debug>(what: &str, one: &T, other: &T) {
    assert_eq!(one, other, "{what}");
}

#[test]
fn screen_exports_and_report_tell_the_same() {
    let mut compared = 0;
    for (name, run) in Replayed::all() {
        let csv = counts_from_csv(&run.export(Format::Csv));
        assert_same(name, &counts_from_otlp(&run.export(Format::Otlp)), &csv);
        assert_same(name, &counts_from_perfetto(&run.export(Format::Perfetto)), &csv);
        let (judged, sums) = outcomes_from_events(&run.export(Format::Events));
        let observes_deliveries = run.report.chunks.delivered.is_some();
        assert_eq!(csv.len() as u64, run.report.requests.seen, "{name}");
        let rids = run.rids();
        assert_eq!(rids.len(), csv.len(), "{name}");
        let mut model = Model::default();
        for rid in &rids {
            let counts = csv[rid];
            if observes_deliveries {
                assert_same(rid, &sums[rid], &counts);
            }
            model.refresh_detail(&run.analysis, &PinnedHistories::default(), rid);
            let detail = model.detail.as_ref().expect("a detail");
            let on_screen = [ChunkStatus::Merged, ChunkStatus::Dropped]
                .map(|status| detail.chunks.iter().filter(|chunk| chunk.status == status).count() as u64);
            assert_same(rid, &on_screen, &[counts.merged.unwrap_or(0), counts.dropped.unwrap_or(0)]);
            for chunk in run.ledger().history(rid).chunks {
                let name = (rid.clone(), u64::from(chunk.hop.0), u64::from(chunk.number));
                let outcome = chunk.outcome.map(|outcome| outcome.name().to_owned());
                assert_same(&format!("{name:?}"), &outcome, &judged.get(&name).cloned());
                compared += 1;
            }
        }
        let report = &run.report.chunks;
        let merged: u64 = csv.values().filter_map(|counts| counts.merged).sum();
        let dropped: u64 = csv.values().filter_map(|counts| counts.dropped).sum();
        let tokens_lost: u64 = csv.values().filter_map(|counts| counts.tokens_lost).sum();
        assert_same(name, &merged, &report.merged.unwrap_or(0));
        assert_same(name, &dropped, &report.dropped_confirmed.unwrap_or(0));
        assert_same(name, &tokens_lost, &report.tokens_lost.unwrap_or(0));
    }
    assert!(compared > 10_000, "{compared} chunks");
}

/// Compares text and severity of the headline in every output of one moment.
fn assert_one_headline(name: &str, analysis: &Analysis, input: &ReportInput) {
    let report = Report::of(analysis, input);
    let headline = &report.verdict;
    let severity = report.severity.map(Severity::as_str);
    assert_same(name, &report.severity, &report.findings.iter().map(|finding| finding.severity).max());
    let clock = Clock::of(&report, None);
    let one_line = report.to_text(&clock).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(one_line.starts_with(headline), "{headline}: {one_line}");
    let markdown = report.to_markdown(&clock).replace(['\\', '\u{2060}'], "");
    assert!(markdown.starts_with(&format!("## {headline}\n")), "{headline}: {markdown}");
    let health = match (report.worst_finding(), headline.split(':').next()) {
        (Some(worst), _) => Health::from(worst.severity),
        (None, Some("HEALTHY")) => Health::Good,
        (None, Some("NOTHING OBSERVED")) => Health::Unknown,
        (None, _) => Health::Info,
    };
    let class = match health {
        Health::Critical => "critical",
        Health::Warning => "warning",
        Health::Good => "healthy",
        Health::Info | Health::Unknown => "none",
    };
    let paragraph = format!("<p class=\"verdict {class}\">{}</p>", headline.replace('>', "&gt;"));
    assert!(report.to_html(&clock).contains(&paragraph), "{paragraph}");
    let json: Value = serde_json::from_str(&report.to_json()).expect("JSON");
    assert_same(name, &(json["verdict"].as_str(), json["severity"].as_str()), &(Some(headline.as_str()), severity));
    let run = NamedRun { name, report: &report };
    let diff = Diff::of(run, run, &DiffOptions::default());
    assert_same(name, &[&diff.a.verdict, &diff.b.verdict], &[headline, headline]);
    let input = Input { report: input, version: "", pushed: None, endpoint: None };
    let families = metrics::collect(analysis, &input);
    let findings = families.iter().find(|family| family.definition.name == "tokengap.active_findings");
    let mut of_metrics: BTreeMap<(&str, &str), MetricValue> = BTreeMap::new();
    for point in findings.iter().flat_map(|family| &family.points) {
        of_metrics.insert((&point.labels[0], &point.labels[1]), point.value.clone());
    }
    let mut of_report: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for finding in &report.findings {
        let active = of_report.entry((&finding.kind, finding.severity.as_str())).or_default();
        *active += u64::from(finding.ended_at_ns.is_none());
    }
    let of_report = of_report.into_iter().map(|(labels, active)| (labels, MetricValue::Int(active))).collect();
    assert_same(name, &of_metrics, &of_report);

    let mut model = Model { wall_start_ns: report.window_wall_ns.map(|[start, _]| start), ..Model::default() };
    model.refresh(analysis, RunValues::default());
    for (shown, line) in model.findings.iter().zip(&report.findings) {
        assert_same(name, &shown.kind, &&*line.kind);
        let has_ended = model.phase_of(shown) == FindingPhase::Ended;
        assert_same(&line.kind, &has_ended, &line.ended_at_ns.is_some());
        let episodes = shown.times.episodes().iter();
        let episodes = episodes.map(|episode| [episode.first, episode.last].map(|at| at.since(model.started_at)));
        let listed = line.episodes.iter().map(|episode| [episode.at_ns, episode.last_at_ns]);
        assert_same(&line.kind, &episodes.collect::<Vec<_>>(), &listed.collect::<Vec<_>>());
        let ends = [line.episodes.first().map(|first| first.at_ns), line.episodes.last().map(|last| last.last_at_ns)];
        assert_same(&line.kind, &ends, &[Some(line.at_ns), Some(line.last_at_ns)]);
    }
    let on_screen = format!("{}: {}", model.verdict.health.label(), model.verdict.text);
    assert_same(&on_screen, &model.verdict.health, &health);
    if report.worst_finding().is_some() {
        assert_same(name, &on_screen, headline);
    } else if health != Health::Unknown {
        assert_same(name, &model.verdict.text, headline);
    }
}

#[test]
fn every_output_has_the_same_headline_and_severity_at_each_moment() {
    for name in RECORDINGS {
        let mut ticks = 0;
        let replayed = Replayed::new(name, &mut |analysis, input| {
            ticks += 1;
            if ticks % 8 == 0 {
                assert_one_headline(name, analysis, input);
            }
        });
        assert_one_headline(name, &replayed.analysis, &replayed.recording.input());
        assert!(ticks > 8, "{name}: {ticks}");
    }
}

#[test]
fn chunks_of_a_response_that_does_not_stream_are_delivered_everywhere() {
    let mut scene = Scene::delivering();
    scene.send(0, &[("a", 1, 1)]);
    scene.send(MS, &[("a", 1, 2)]);
    scene.send(2 * MS, &[("a", 1, 3)]);
    let whole = Delivery { response: Response::Whole, finished: true, ..Delivery::new("a", 3, Some(3)) };
    scene.emit(3 * MS, What::Delivered(whole));
    let mut model = Model::default();
    model.refresh_detail(&scene.analysis, &scene.pinned, "a");
    let detail = model.detail.expect("a detail");
    assert!(detail.chunks.iter().all(|chunk| chunk.status == ChunkStatus::Delivered), "{:?}", detail.chunks);
    let outcomes = scene.analysis.ledger().request("a").expect("it is live").outcomes().expect("they are observed");
    assert_eq!((outcomes.delivered, outcomes.merged), (3, 0));
}
