//! Screen, exports, report, comparison and metrics show the same chunks, requests and headline, on every recording in the repository.

mod chunks;
mod scenes;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;

use outputs::diff::{Diff, DiffOptions, NamedRun};
use outputs::export::{Format, Options, export_recording};
use outputs::metrics::{self, Input, Value as MetricValue};
use outputs::report::{Clock, Report};
use recording::{Record, Recording};
use serde_json::Value;
use trace::detect::{FindingPhase, Severity};
use trace::{Analysis, Config, ReportInput};

use crate::state::flags::Health;
use crate::state::model::{Model, RunValues};

/// All recordings in the repository. The last one has a run of which no delivery is observed, and whose losses are not judged.
const RECORDINGS: [&str; 6] = [
    "2.0-attach-0.5.9",
    "2.0-demo-race",
    "2.0-egress-0.5.9",
    "2.0-stopped-0.5.9",
    "2.0-tap-0.5.9",
    "2.8-attach-vllm-0.32.0",
];

pub(crate) struct Replayed {
    recording: Recording,
    pub(crate) analysis: Analysis,
    pub(crate) report: Report,
}

impl Replayed {
    pub(crate) const NAMES: [&str; 6] = RECORDINGS;

    /// Replays every recording in the repository.
    pub(crate) fn all() -> impl Iterator<Item = (&'static str, Self)> {
        RECORDINGS.into_iter().map(|name| (name, Self::new(name, &mut |_, _| {})))
    }

    /// Checks each recording by its name, in a thread of its own: one after the other they would take most of the time of all tests.
    pub(crate) fn check_each<T: Send>(check: impl Fn(&'static str) -> T + Sync) -> Vec<T> {
        let check = &check;
        std::thread::scope(|scope| {
            let threads = Self::NAMES.map(|name| scope.spawn(move || check(name)));
            threads.map(|thread| thread.join().expect("the check of a recording passes")).into()
        })
    }

    pub(crate) fn new(name: &str, at_tick: &mut dyn FnMut(&Analysis, &ReportInput)) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../recording/fixtures");
        let file = folder.join(format!("{name}.tgap"));
        let recording = Recording::open(file).expect("a recording");
        let config = Config { engines: engines::FACTS, chunk_history: 1 << 20, ..recording.header().config };
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
        export_recording(&self.recording, engines::FACTS, format, options, &mut out, &mut |_, _| {})
            .expect("it is written");
        String::from_utf8(out).expect("text")
    }
}

fn assert_same<T: PartialEq + Debug>(what: &str, one: &T, other: &T) {
    assert_eq!(one, other, "{what}");
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
        (None, _) if report.findings.is_empty() => Health::Unknown,
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
    let diff = Diff::of_runs(run, run, &DiffOptions::default());
    assert_same(name, &[&diff.a.verdict, &diff.b.verdict], &[headline, headline]);
    let input = Input { report: input, version: "", pushed: None, endpoint: None, pair_findings: &[] };
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
    } else {
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
