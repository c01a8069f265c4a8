//! Report format: every field of the schema, null for unobserved values, and the text output.

use crate::engine;
use outputs::report::{Clock, LegLine, Report};
use serde_json::Value;
use trace::clock::MonoNs;
use trace::detect::attribution::{LegKind, ThreadState};
use trace::engine::Mode;
use trace::event::{
    Capabilities, Chunk, Delivery, Engine, Event, Finish, Frame, Hop, Missed, MissedCause, Received, Undecoded, What,
};
use trace::ledger::LostRange;
use trace::{Analysis, FrameId, HopId, ReportInput};

const MS: u64 = 1_000_000;
const START: u64 = 77_000 * MS;

struct Run {
    analysis: Analysis,
    seq: u64,
}

impl Run {
    fn new(name: &str, capabilities: Capabilities, last: bool) -> Self {
        let mut run = Self { analysis: Analysis::new(engine::config()), seq: 0 };
        let endpoint = "ipc:///tmp/tmpk2v9x1";
        run.apply(0, What::Hop(Hop { endpoint, origin: true, last, ..Hop::new(HopId(0), name, capabilities) }));
        run
    }

    fn apply(&mut self, ms: u64, what: What<'_>) {
        self.analysis.apply(&Event::new(MonoNs(START + ms * MS), what));
    }

    fn id(seq: u64) -> FrameId {
        FrameId::new(HopId(0), 0, seq)
    }

    fn send(&mut self, ms: u64, chunks: &[(&str, u32, u32, Option<Finish>)]) {
        let chunk = |&(rid, listed, completion, finish)| Chunk {
            prompt_tokens: Some(512),
            cached_tokens: Some(0),
            finish,
            retractions: Some(0),
            ..Chunk::counted(rid, listed, completion)
        };
        let chunks: Vec<Chunk<'_>> = chunks.iter().map(chunk).collect();
        let id = Self::id(self.seq);
        self.seq += 1;
        let frame = Frame { forwarded: Some(MonoNs(START + (ms + 1) * MS)), ..Frame::token_ids(id, 1_240, &chunks) };
        self.apply(ms, What::Sent(frame));
    }

    fn receive(&mut self, ms: u64, seq: u64, wakeup: u64) {
        self.apply(ms, What::Received(Received::in_wakeup(Self::id(seq), wakeup)));
        self.apply(ms + 1, What::Processed(Self::id(seq)));
    }

    fn deliver(&mut self, ms: u64, rid: &str, tokens: u32, completion: u32, finished: bool) {
        let completion_tokens = Some(completion);
        self.apply(ms, What::Delivered(Delivery { finished, ..Delivery::new(rid, tokens, completion_tokens) }));
    }
}

const SLOW: &str = "5b920f43-0d4e-4c7c-9b36-2f6a3a2f9e11";
const FAST: &str = "9f1c2a77d1f84f0b8a53c6b0f2de4417";

/// A 0.5.9 engine that keeps the last chunk, observed from send to delivery: one delayed first token, two dropped chunks.
fn everything_seen() -> Report {
    let capabilities = Capabilities::SENT
        | Capabilities::FORWARDED
        | Capabilities::RECEIVED
        | Capabilities::PROCESSED
        | Capabilities::DELIVERED;
    let mut run = Run::new("scheduler->tokenizer", capabilities, true);
    run.apply(
        0,
        What::Engine(Engine {
            version: Some("0.5.9"),
            mode: Some(Mode::Incremental),
            turnaround: Some(3),
            ..Engine::default()
        }),
    );
    run.send(10, &[(FAST, 1, 1, None)]);
    run.receive(11, 0, 1);
    run.deliver(12, FAST, 1, 1, false);
    run.send(23, &[(FAST, 1, 2, None), (SLOW, 1, 1, None)]);
    run.send(36, &[(FAST, 2, 4, None), (SLOW, 1, 2, None)]);
    run.send(49, &[(FAST, 1, 5, Some(Finish::Stop)), (SLOW, 1, 3, Some(Finish::Length))]);
    for seq in 1..4 {
        run.receive(23_862, seq, 2);
    }
    run.deliver(23_866, FAST, 1, 5, true);
    run.deliver(23_867, SLOW, 3, 3, true);
    run.analysis.tick(MonoNs(START + 23_900 * MS));
    Report::of(
        &run.analysis,
        &ReportInput {
            cpu_ns: Some(412 * MS),
            rss_bytes: Some(9_400_000),
            demo: Some(serde_json::json!({"scenario": "race", "seed": 1, "truth": {"chunks_dropped": 2}})),
            ..ReportInput::for_source("demo")
        },
    )
}

/// Only a relay, on an unknown release, with one undecoded frame and missed observations.
fn sends_seen() -> Report {
    let capabilities = Capabilities::SENT | Capabilities::FORWARDED;
    let mut run = Run::new("scheduler->detokenizer", capabilities, false);
    run.send(0, &[(FAST, 1, 1, None)]);
    run.seq += 1;
    run.apply(5, What::Undecoded(Undecoded::new(Run::id(1), 64, "class unknown")));
    run.seq += 2;
    run.apply(6, What::Missed(Missed::new(Some(HopId(0)), 2, MissedCause::QueueFull)));
    run.send(40, &[(FAST, 1, 9, Some(Finish::Abort)), ("HEALTH_CHECK_1768", 1, 1, Some(Finish::Length))]);
    run.analysis.tick(MonoNs(START + 1_000 * MS));
    let degraded = vec![Value::from("egress: no CAP_BPF; run as root or grant CAP_BPF and CAP_PERFMON")];
    Report::of(&run.analysis, &ReportInput { degraded, ..ReportInput::for_source("tap") })
}

/// Name of a hop of 31 characters, the longest that the table of hops does not cut.
const LONG_HOP: &str = "detokenizer-router->detokenizer";

/// The completely observed run with a long name of its hop, wide numbers, and the longest state of a thread.
fn with_long_names() -> Report {
    let mut report = everything_seen();
    let hop = &mut report.hops[0];
    LONG_HOP.clone_into(&mut hop.name);
    hop.frames_sent = Some(12_345_678);
    hop.frames_received = Some(12_345_678);
    // 1022.5 KiB.
    hop.bytes = 1_047_000;
    let leg = &mut report.path[0];
    LONG_HOP.clone_into(&mut leg.name);
    leg.thread = Some(ThreadState::Starved);
    let inside =
        LegLine { name: String::from("detokenizer-router"), kind: LegKind::Inside, thread: None, ..leg.clone() };
    report.path.push(inside);
    report
}

fn text_of(report: &Report) -> String {
    report.to_text(&Clock::of(report, None))
}

/// Every field exists, and those that a relay alone cannot observe are null. Text fits a terminal.
#[test]
fn reports_equal_their_snapshots() {
    let (everything, sends, long_names) = (everything_seen(), sends_seen(), with_long_names());
    for report in [&everything, &sends, &long_names] {
        let text = text_of(report);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
    let text = text_of(&long_names);
    let rows_of_hop = text.lines().filter(|line| line.starts_with(LONG_HOP)).count();
    assert_eq!(rows_of_hop, 2, "its name is whole in the table of hops and in that of legs: {text}");
    assert!(text.contains("waiting for a CPU\n") && text.contains("no frame waits\n"), "{text}");
    let nothing = Report::of(&Analysis::new(engine::config()), &ReportInput::for_source("tap"));
    insta::assert_snapshot!("everything_seen_as_text", text_of(&everything));
    insta::assert_snapshot!("sends_seen_as_json", sends.to_json());
    insta::assert_snapshot!("sends_seen_as_text", text_of(&sends));
    insta::assert_snapshot!("nothing_seen_as_text", text_of(&nothing));
    let start = 1_763_712_000_000_000_000;
    // The series has a slot for each second; it has its own tests.
    let mut dated = Report { series: None, ..everything };
    insta::assert_snapshot!("everything_seen_as_json", dated.to_json());
    dated.window_wall_ns = Some([start, start + dated.window_ns[1]]);
    let zone = jiff::tz::TimeZone::fixed(jiff::tz::offset(1));
    let clock = Clock::of(&dated, Some(zone));
    insta::assert_snapshot!("everything_seen_as_markdown", dated.to_markdown(&clock));
    insta::assert_snapshot!("everything_seen_as_text_with_wall_clock", dated.to_text(&clock));
}

#[test]
fn a_report_round_trips_through_json() {
    for report in [everything_seen(), sends_seen()] {
        let parsed: Report = serde_json::from_str(&report.to_json()).expect("the report's own JSON parses");
        assert_eq!(parsed, report);
    }
}

#[test]
fn slowest_requests_are_sorted_by_gap_and_limited() {
    let mut run = Run::new("scheduler->tokenizer", Capabilities::SENT | Capabilities::RECEIVED, true);
    // Gaps of 5, 60, 20 and 40 ms, and one first token sent 30 ms before the end and not received.
    for (seq, (rid, gap)) in [("a", 5), ("b", 60), ("c", 20), ("d", 40)].into_iter().enumerate() {
        run.send(100 * seq as u64, &[(rid, 1, 1, None)]);
        run.receive(100 * seq as u64 + gap, seq as u64, seq as u64);
    }
    run.send(470, &[("e", 1, 1, None)]);
    run.analysis.tick(MonoNs(START + 500 * MS));
    let listed = |slowest| {
        let report = Report::of(&run.analysis, &ReportInput { slowest, ..ReportInput::for_source("attach") });
        let lines = report.slowest.iter();
        lines.map(|line| (line.rid.clone(), line.gap_ns.map(|ns| ns / MS))).collect::<Vec<_>>()
    };
    let expected = [("b", Some(60)), ("d", Some(40)), ("e", None), ("c", Some(20)), ("a", Some(5))]
        .map(|(rid, gap)| (rid.to_owned(), gap));
    assert_eq!(listed(10), expected);
    assert_eq!(listed(3), expected[..3]);
    assert!(listed(0).is_empty());
}

/// The completely observed run, with hostile names.
fn hostile() -> Report {
    let mut report = everything_seen();
    let name = "<script>alert(1)</script>\"'`|@here\n# x\u{202e}\u{1b}[2J";
    let finding = &mut report.findings[0];
    for text in [
        &mut report.verdict,
        &mut report.source.kind,
        &mut report.source.engine,
        &mut report.slowest[0].rid,
        &mut report.hops[0].name,
        &mut finding.rid,
        &mut finding.summary,
        &mut finding.kind,
    ] {
        name.clone_into(text);
    }
    report.findings[0].advice = Some(name.to_owned());
    report.findings[0].hop = Some(name.to_owned());
    report.findings[0].evidence.insert(name.to_owned(), name.into());
    report.source.engine_version = Some(name.to_owned());
    report.slowest[0].finish = Some(name.to_owned());
    report.own.degraded = vec![name.into()];
    let series = report.series.as_mut().expect("the run has slots");
    name.clone_into(&mut series.hops[0].name);
    report
}

#[test]
fn the_html_page_escapes_hostile_names_and_loads_no_resources() {
    let report = hostile();
    let page = report.to_html(&Clock::of(&report, None));
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;") && !page.contains("<script"), "it is escaped");
    assert!(!page.contains(['\u{202e}', '\u{1b}']) && page.contains("default-src 'none'"));
    for loads in ["src=", "url(", "http:", "https:", "@import", "<link", "<img", "onload"] {
        assert!(!page.contains(loads), "{loads}");
    }
    let opened = |tag: &str| page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
    for tag in ["html", "main", "section", "table", "tbody", "tr", "ol", "li", "dl", "svg", "figure", "a", "p"] {
        assert_eq!(opened(tag), page.matches(&format!("</{tag}>")).count(), "{tag} is closed as often as opened");
    }
}

#[test]
fn markdown_and_text_neutralise_mentions_and_control_characters() {
    let report = hostile();
    for text in [report.to_markdown(&Clock::of(&report, None)), text_of(&report)] {
        assert!(!text.contains(['\u{202e}', '\u{1b}']), "{text}");
    }
    let markdown = report.to_markdown(&Clock::of(&report, None));
    assert!(!markdown.lines().any(|line| line.starts_with("# ")), "{markdown}");
    // Text between backticks is not markup. The hostile names have a single one, so two enclose them.
    let outside: String = markdown.split("``").step_by(2).collect();
    assert!(!outside.contains("<script") && !markdown.contains("**since** @here"), "{markdown}");
}

#[test]
fn every_report_format_lists_unobserved_values() {
    let report = sends_seen();
    let clock = Clock::of(&report, None);
    for text in [text_of(&report), report.to_markdown(&clock), report.to_html(&clock)] {
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("deliveries to clients") && words.contains("no CAP_BPF"), "{text}");
    }
    assert!(!report.to_html(&clock).contains("Worst requests"), "no request waits where receives are not observed");
}

/// The report as text, Markdown and HTML.
fn forms_of(report: &Report) -> [String; 3] {
    let clock = Clock::of(report, None);
    [text_of(report), report.to_markdown(&clock), report.to_html(&clock)]
}

#[test]
fn a_prediction_of_no_drop_is_no_observation() {
    let mut report = everything_seen();
    report.chunks.dropped_predicted = Some(0);
    report.losses.predicted = None;
    assert!(text_of(&report).contains(" 0 dropped (predicted)"), "deliveries confirm it");
    report.losses.confirmed = None;
    let chunks = &mut report.chunks;
    [chunks.merged, chunks.dropped_confirmed, chunks.tokens_lost] = [None; 3];
    for text in forms_of(&report) {
        assert!(!text.contains("0 dropped (predicted)") && !text.contains("0 chunks predicted"), "{text}");
    }
    assert!(forms_of(&report)[2].contains("none is predicted, which shows nothing"));
    report.chunks.dropped_predicted = Some(7);
    for (text, shown) in forms_of(&report).iter().zip(["7 dropped", "7 chunks predicted", "7 chunks predicted"]) {
        assert!(text.contains(shown), "{text}");
    }
}

#[test]
fn markdown_cuts_no_headline() {
    let mut report = everything_seen();
    report.findings[0].summary = "word ".repeat(200);
    assert!(report.to_markdown(&Clock::of(&report, None)).contains(&report.findings[0].summary));
}

#[test]
fn markdown_lists_or_counts_all_positions_of_lost_tokens() {
    let mut report = everything_seen();
    let line = &mut report.losses.confirmed.as_mut().expect("losses").lines[0];
    let every_other = |position: u32| LostRange { tokens: [2 * position; 2], chunks: None, ids: Vec::new() };
    line.ranges = (1..=200).map(every_other).collect();
    let whole = report.to_markdown(&Clock::of(&report, None));
    assert!(whole.contains("| 2, 4, 6,") && whole.contains(", 398, 400 |"), "{whole}");
    report.losses.confirmed.as_mut().expect("losses").lines[0].ranges.extend((201..=209).map(every_other));
    let counted = report.to_markdown(&Clock::of(&report, None));
    assert!(counted.contains(", 398, 400, and 9 more ranges |"), "{counted}");
}

#[test]
fn a_headline_has_its_time_in_the_zone_of_the_report() {
    let mut report = everything_seen();
    report.window_wall_ns = Some([1_763_712_000_000_000_000, 1_763_712_024_000_000_000]);
    report.findings[0].ended_at_ns = Some(2_000_000_000);
    // No other problem outlasts it.
    report.findings.truncate(1);
    let zone = jiff::tz::TimeZone::fixed(jiff::tz::offset(1));
    let clock = Clock::of(&report, Some(zone));
    for text in [report.to_text(&clock), report.to_markdown(&clock), report.to_html(&clock)] {
        assert!(text.contains("CRITICAL: ended 09:00:02 +01, no frame since: "), "{text}");
    }
    assert!(text_of(&report).starts_with("CRITICAL: ended 08:00:02Z, no frame since: "));
}

#[test]
fn each_slot_of_a_chart_has_a_tooltip_with_its_own_numbers() {
    let report = everything_seen();
    let series = report.series.as_ref().expect("slots");
    let page = report.to_html(&Clock::of(&report, None));
    let sent: Vec<&str> = page.split("<title>").filter(|title| title.contains("tokens/s sent")).collect();
    assert_eq!(sent.len(), series.len());
    for (title, &tokens) in sent.iter().zip(&series.tokens.sent) {
        assert_eq!(title.contains(": 0 tokens/s sent"), tokens == Some(0), "{title}");
    }
}
