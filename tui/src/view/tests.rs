//! Every view and dialog at 80x24 and 200x50, drawn from a real analysis of synthetic events; every tab of recordings at more sizes.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use serde_json::Value;
use session::ScreenCommand;
use session::playback::{Play, PlaybackState, Position, Speed};
use session::sink::{OutputStatus, WrittenFile};
use trace::engine::{Drops, Engines, Facts};
use trace::event::{
    Answer, AnswerEnd, ArgumentsPart, Capabilities, CpuSample, Engine, Finish, Hop, Received, StackSample,
    ToolCallOutcome, ToolCalls, UnjudgedReason, What,
};
use trace::ledger::DEFAULT_CHUNK_HISTORY;
use trace::ledger::FrontendResponse;
use trace::{Analysis, Config, FrameId, HopId, ThreadId};

use super::chart::ChartSeries;
use super::*;
use crate::state::agreement::Replayed;
use crate::state::filter::RequestFilter;
use crate::state::model::RunValues;
use crate::state::refresh::FINISHED_SHOWN;
use crate::state::request_table::SortOrder;
use crate::state::scene::{MS, Scene};

mod completeness;

const SIZES: [(u16, u16); 2] = [(80, 24), (200, 50)];

/// Model and user interface state, with the scene they are drawn from.
pub(super) struct Fixture {
    pub(super) scene: Scene,
    pub(super) model: Model,
    pub(super) ui: Ui,
}

impl Fixture {
    fn of(scene: Scene) -> Self {
        Self { scene, model: Model::default(), ui: Ui::default() }
    }

    pub(super) fn refresh(&mut self) {
        let (cpu, rss_bytes) = (Some(0.042), Some(24 << 20));
        let values =
            RunValues { source: "demo".into(), stage: "live", cpu_share: cpu, rss_bytes, ..RunValues::default() };
        self.model.refresh(&self.scene.analysis, values);
        self.model.refresh_rows(&self.scene.analysis, FINISHED_SHOWN, &self.ui.pins);
        self.update();
    }

    /// Updates the selection and the detail as the run loop does before drawing.
    fn update(&mut self) {
        self.model.table.arrange(&self.ui.filter, self.ui.sort, &self.ui.pins);
        self.ui.update_selection(&self.model);
        if let (Tab::Request, Some(rid)) = (self.ui.tab, self.ui.selected_rid.clone()) {
            self.model.refresh_detail(&self.scene.analysis, &self.scene.pinned, &rid);
        }
    }

    fn press(&mut self, actions: &[Action]) {
        for &action in actions {
            self.ui.apply(action, &self.model);
            self.update();
        }
    }

    pub(super) fn drawn(&self, size: (u16, u16), locale: &str) -> String {
        on_terminal(size, |frame| drop(draw_screen(&self.model, &self.ui, theme(locale), frame)))
    }

    fn click_areas(&self) -> ClickAreas {
        let mut click_areas = ClickAreas::default();
        on_terminal((80, 24), |frame| click_areas = draw_screen(&self.model, &self.ui, theme("C"), frame));
        click_areas
    }

    fn snapshot(&self, name: &str) {
        for size in SIZES {
            insta::assert_snapshot!(format!("{name}_{}x{}", size.0, size.1), self.drawn(size, "C.UTF-8"));
        }
    }
}

fn theme(locale: &str) -> Theme {
    Theme::for_environment(
        None,
        |name| if ["NO_COLOR", "LANG"].contains(&name) { locale.to_owned() } else { String::new() },
    )
}

/// Text content of a terminal of this size.
fn on_terminal((width, height): (u16, u16), draw: impl FnOnce(&mut Frame<'_>)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal in memory");
    terminal.draw(draw).expect("drawn");
    let buffer = terminal.backend().buffer();
    let line =
        |y| (0..width).filter_map(|x| buffer.cell((x, y))).map(ratatui::buffer::Cell::symbol).collect::<String>();
    (0..height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
}

/// A 0.5.9 engine under load whose tokenizer falls behind for seconds, receives in bursts, and loses queued chunks.
pub(super) fn race() -> Fixture {
    let mut fixture = Fixture::of(Scene::delivering());
    let rids: Vec<String> =
        (0..24).map(|n| format!("{:032x}", 0x5b92_f00d_u128.wrapping_mul(0x9e37_79b9_7f4a_7c15 * (n + 1)))).collect();
    for frame in 0..300u64 {
        let at = 1_000 * MS + frame * 40 * MS;
        let started = (frame as usize / 4 + 1).min(rids.len());
        let of = |n: usize| (rids[n].as_str(), 1, frame as u32 + 1 - n as u32 * 4);
        let chunks: Vec<_> =
            (0..started).filter(|&n| frame >= n as u64 * 4 && !(n < 6 && frame > 200)).map(of).collect();
        fixture.scene.send(at, &chunks);
        if frame == 200 {
            let last: Vec<_> = (0..6).map(|n| (rids[n].as_str(), 1, 202 - n as u32 * 4)).collect();
            fixture.scene.finish(at + MS, &last, Finish::Stop);
        }
        // The tokenizer wakes at every fourth frame and receives two, so it falls behind.
        if frame % 4 == 3 {
            for take in 0..2 {
                let seq = frame / 4 * 2 + take;
                fixture.scene.receive(at + 5 * MS + take * MS, seq, frame);
            }
            let end = frame as u32 / 4 * 2 + 2;
            for (n, rid) in rids.iter().enumerate().take(4) {
                if let Some(to) = end.checked_sub(n as u32 * 4).filter(|&to| to > 1) {
                    fixture.scene.deliver(at + 9 * MS, rid, 1 + n as u32 % 2, to);
                }
            }
        }
        if frame % 5 == 0 {
            fixture.scene.tick(at + 10 * MS);
        }
    }
    fixture.refresh();
    fixture
}

/// A run observed by a tap alone.
fn tapped() -> Fixture {
    tapped_with_history(DEFAULT_CHUNK_HISTORY)
}

fn tapped_with_history(chunk_history: usize) -> Fixture {
    let mut fixture = Fixture::of(Scene::tapped_with_history(chunk_history));
    for frame in 0..100u64 {
        let at = 1_000 * MS + frame * 50 * MS;
        fixture.scene.send_on(0, at, &[("5b92f00d", 1, frame as u32 + 1)], None);
        fixture.scene.send_on(1, at + 2 * MS, &[("5b92f00d", 1, frame as u32 + 1)], None);
        fixture.scene.tick(at + 3 * MS);
    }
    fixture.refresh();
    fixture
}

#[test]
fn overview_matches_its_snapshots() {
    race().snapshot("overview");
    tapped().snapshot("overview_tapped");
    let mut empty = Fixture::of(Scene::new(&[]));
    empty.refresh();
    empty.snapshot("overview_empty");
}

/// Compares every curve on the screen with the series of the JSON report, second by second.
#[test]
fn every_curve_is_that_of_the_report() {
    let mut compared = 0;
    for (name, run) in Replayed::all() {
        let report: Value = serde_json::from_str(&run.report.to_json()).expect("JSON");
        let json = &report["series"];
        assert_eq!(json["slot_ns"], 1_000 * MS, "{name}: a slot of the report is a second");
        let mut model = Model::default();
        model.refresh(&run.analysis, RunValues::default());
        let seconds = model.curves.newest_second() + 1;
        // Both have the second that is not over.
        let slots = json["events_missed"].as_array().expect("slots").len() as u64;
        assert_eq!(seconds, slots, "{name}");
        let mut compare = |series: &ChartSeries<'_>, column: &Value| {
            let what = format!("{name}, {}", series.label);
            let Some(column) = column.as_array() else {
                assert!(column.is_null() && series.unobserved.is_some(), "{what}: {:?}", series.unobserved);
                return;
            };
            assert_eq!(series.unobserved, None, "{what}");
            let values = model.curves.column_values(&*series.second_value, seconds - 1, 1, seconds as usize);
            for (second, (drawn, value)) in values.iter().zip(column).enumerate() {
                let is_same = match (drawn, value.as_f64()) {
                    // The report rounds the shares of threads to four digits.
                    (Some(drawn), Some(value)) => (drawn - value).abs() <= 0.000_05,
                    (drawn, value) => *drawn == value,
                };
                assert!(is_same, "{what}, second {second}: {drawn:?} on the screen, {value} in the report");
                compared += 1;
            }
        };
        let hops = json["hops"].as_array().expect("hops");
        let backlogs = hops.iter().filter_map(|hop| hop["backlog_max_frames"].as_array());
        let max_backlog = backlogs
            .map(|column| column.iter().map(Value::as_u64).collect::<Vec<_>>())
            .reduce(|a, b| a.into_iter().zip(b).map(|(a, b)| a.max(b)).collect());
        let [tokens, backlog, gap, lost, merged, live] = overview::chart_series(&model);
        compare(&tokens, &json["tokens"]["sent"]);
        compare(&backlog, &max_backlog.into());
        compare(&gap, &json["gap_ns"]["p99"]);
        let confirmed = &json["chunks"]["dropped_confirmed"];
        let predicted = Some(&json["chunks"]["dropped_predicted"]).filter(|_| confirmed.is_null());
        // A prediction of none is no observation.
        let predicted =
            predicted.filter(|column| column.as_array().is_some_and(|slots| slots.iter().any(|slot| *slot != 0)));
        compare(&lost, predicted.unwrap_or(confirmed));
        compare(&merged, &json["chunks"]["merged"]);
        compare(&live, &json["requests"]["live"]);
        for hop in &model.hops {
            let json = hops.iter().find(|json| json["name"] == *hop.name).expect("the hop");
            let [backlog, queue_wait, frames] = hops::trend_series(hop, &model);
            compare(&backlog, &json["backlog_max_frames"]);
            compare(&queue_wait, &json["queue_wait_ns"]["p99"]);
            let sent = &json["frames_sent"];
            compare(&frames, if sent.is_null() { &json["frames_received"] } else { sent });
        }
        for thread in json["threads"].as_array().expect("threads") {
            let [pid, tid] = ["pid", "tid"].map(|key| thread[key].as_u64().expect("an id") as u32);
            let index = model.curves.thread_index(ThreadId { pid, tid }).expect("it has a curve");
            let [running, waiting, throttled] = cpu::thread_series(index);
            compare(&running, &thread["on_cpu"]);
            for (series, column) in [(waiting, &thread["run_wait"]), (throttled, &thread["throttled"])] {
                if !column.is_null() {
                    compare(&series, column);
                }
            }
        }
    }
    assert!(compared > 200, "{compared} values");
}

/// Cells of this width below the end of the heading; none if the heading is not on the screen.
fn cells_below(drawn: &str, heading: &str, width: usize, rows: usize) -> Vec<String> {
    let lines: Vec<Vec<char>> = drawn.lines().map(|line| line.chars().collect()).collect();
    let heading: Vec<char> = format!(" {heading}").chars().collect();
    let end_in = |line: &[char]| {
        let start = line.windows(heading.len()).position(|part| part == heading)?;
        let end = start + heading.len();
        line.get(end).is_none_or(|next| *next == ' ').then_some(end)
    };
    // The verdict is a sentence.
    let found = lines.iter().enumerate().skip(2).find_map(|(y, line)| Some((y, end_in(line)?)));
    let Some((y, end)) = found else { return Vec::new() };
    let cell = |line: &Vec<char>| line.iter().take(end).skip(end.saturating_sub(width)).collect::<String>();
    lines.iter().skip(y + 1).take(rows).map(|line| cell(line).trim().to_owned()).collect()
}

/// `805 ms`, `2m05s`, or a statement that there is none.
fn is_duration(text: &str) -> bool {
    let has_unit = [" ns", " us", " ms", " s", "s", "m", "h", "d"].iter().any(|unit| text.ends_with(unit));
    has_unit && text.starts_with(|c: char| c.is_ascii_digit()) || ["", "-", "none"].contains(&text)
}

fn assert_no_number_is_cut(drawn: &str) {
    let is_number = |word: &str| word.trim_start_matches(['+', '(', '<']).starts_with(|c: char| c.is_ascii_digit());
    for line in drawn.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        for (index, word) in words.iter().enumerate() {
            let before = index.checked_sub(1).map_or("", |before| words[before]);
            if let Some(start) = word.strip_suffix('…') {
                assert!(!is_number(start), "{word} in {line}");
                let is_cut_unit = ["m", "u", "n", "K", "Ki", "M", "Mi", "G", "Gi"].contains(&start);
                assert!(!(is_cut_unit && is_number(before)), "{before} {word} in {line}");
            }
            // Otherwise it ends a sentence, or has its unit in it.
            let is_bare = word.chars().all(|c| c.is_ascii_digit() || ".,".contains(c));
            if ["p50", "p90", "p99"].contains(&before) && is_bare {
                let next = words.get(index + 1).map_or("", |next| next.trim_end_matches([';', ',', ')']));
                assert!(is_duration(&format!("{word} {next}")), "{word} {next} in {line}");
            }
        }
        if let Some(shown) = line.strip_prefix(" gap p99 ") {
            let is_whole = ["ns", "us", "ms", "s", "none"].iter().any(|unit| shown.ends_with(&format!(" {unit}")));
            assert!(
                is_whole || is_duration(words.last().expect("a word")) || !shown.contains(|c: char| c.is_ascii_digit()),
                "{line}"
            );
        }
    }
}

#[test]
fn numbers_of_recordings_keep_their_units_at_every_size() {
    let mut checked = 0;
    for (name, run) in Replayed::all() {
        let mut fixture = Fixture::of(Scene::delivering());
        fixture.scene.analysis = run.analysis;
        fixture.refresh();
        for tab in Tab::ALL {
            fixture.press(&[Action::OpenTab(tab)]);
            for (width, height) in [(60, 20), (72, 24), (79, 24), (80, 24), (100, 30), (200, 60)] {
                let drawn = fixture.drawn((width, height), "C.UTF-8");
                let what = format!("{name}, {tab:?} at {width}x{height}:\n{drawn}");
                assert!(drawn.lines().skip(2).filter(|line| !line.is_empty()).count() >= 3, "blank: {what}");
                assert_no_number_is_cut(&drawn);
                let columns: &[&str] = match fixture.ui.tab {
                    Tab::Overview => &["p50", "p90"],
                    Tab::Requests => &["age", "gap", "silence"],
                    Tab::Request => &["sent at", "waited"],
                    Tab::Hops => &["p50", "p99"],
                    _ => &[],
                };
                // The rows below the other tables have other columns.
                let rows = if fixture.ui.tab == Tab::Requests { 4 } else { 1 };
                for cell in columns.iter().flat_map(|heading| cells_below(&drawn, heading, 7, rows)) {
                    assert!(is_duration(&cell), "{cell:?} of {what}");
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 300, "{checked} cells");
}

#[test]
fn abandoned_requests_are_on_the_overview() {
    let mut fixture = Fixture::of(Scene::delivering());
    for count in 1..=10 {
        let at = u64::from(count) * 1_000 * MS;
        fixture.scene.send(at, &[("5b92f00d", 1, count)]);
        if count == 1 {
            fixture.scene.deliver(at + MS, "5b92f00d", 1, 1);
            let left = Answer { end: AnswerEnd::ClientLeft, ..Answer::new("5b92f00d", Some(1), None) };
            fixture.scene.emit(at + 2 * MS, What::Answered(left));
        }
    }
    fixture.refresh();
    let abandoned = fixture.scene.analysis.ledger().abandoned_requests();
    assert_eq!((abandoned.requests, abandoned.tokens), (1, Some(9)));
    for size in SIZES {
        assert!(fixture.drawn(size, "C").contains(" 1 abandoned of 1: "), "{}", fixture.drawn(size, "C"));
    }
}

#[test]
fn a_path_that_does_not_fit_is_drawn_as_a_list() {
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
    let hops = ["scheduler->router", "router->detokenizer", "detokenizer->router2", "router2->tokenizer"];
    let mut fixture = Fixture::of(Scene::new(&hops.map(|name| (name, capabilities))));
    fixture.scene.send(MS, &[("5b92f00d", 1, 1)]);
    fixture.refresh();
    fixture.snapshot("overview_routers");
}

#[test]
fn hops_with_long_names_match_their_snapshots() {
    let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
    let hops = ["scheduler->detokenizer-router", "detokenizer-router->detokenizer", "detokenizer->worker"];
    let mut fixture = Fixture::of(Scene::new(&hops.map(|name| (name, capabilities))));
    fixture.scene.send(MS, &[("5b92f00d", 1, 1)]);
    fixture.refresh();
    fixture.press(&[Action::OpenTab(Tab::Hops)]);
    fixture.snapshot("hops_routers");
}

#[test]
fn requests_match_their_snapshots() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Requests)]);
    fixture.snapshot("requests");
    fixture.press(&[Action::MoveSelection(2), Action::PinRequest, Action::TypeFilter]);
    fixture.press(&"gap>1s drpo>0".chars().map(Action::TypeCharacter).collect::<Vec<_>>());
    fixture.snapshot("requests_filter_mistake");
    fixture.press(&[
        Action::EraseText,
        Action::TypeCharacter('0'),
        Action::AcceptText,
        Action::StepSortColumn(1),
        Action::ReverseSort,
    ]);
    fixture.snapshot("requests_filtered");
}

#[test]
fn one_request_matches_its_snapshots() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Requests), Action::OpenSelection]);
    fixture.snapshot("request");
    fixture.press(&[Action::SeekHarmedChunk(1), Action::SeekHarmedChunk(1), Action::SeekHarmedChunk(1)]);
    assert_eq!(fixture.ui.selected_index(Tab::Request), 4, "chunks 1, 3 and 5 were dropped");
    fixture.press(&[Action::SeekHarmedChunk(-1)]);
    assert_eq!(fixture.ui.selected_index(Tab::Request), 2);
    let mut tapped = tapped();
    tapped.press(&[Action::OpenTab(Tab::Request)]);
    tapped.snapshot("request_tapped");
    let mut evicted = tapped_with_history(0);
    evicted.press(&[Action::OpenTab(Tab::Request)]);
    evicted.snapshot("request_evicted");
}

#[test]
fn a_damaged_tool_call_is_explained_on_the_request_screen() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Requests), Action::OpenSelection]);
    let (tokens, events) = ([3, 4], [3, 4]);
    let calls = ToolCalls {
        calls: 2,
        absent: 0,
        call: 1,
        outcome: ToolCallOutcome::Missing,
        reason: None,
        finish: Some(Finish::Stop),
        events: 7,
        part: Some(ArgumentsPart { at: 10, chars: 5, tokens, whole_chunks: true, events, whole_events: true }),
    };
    let unjudged =
        ToolCalls { outcome: ToolCallOutcome::Unjudged, reason: Some(UnjudgedReason::Missed), part: None, ..calls };
    let rid = fixture.ui.selected_rid.clone().expect("a request");
    let answer = |tool_calls| Answer { tool_calls: Some(tool_calls), ..Answer::new(&rid, None, None) };
    fixture.scene.emit(13_000 * MS, What::Answered(answer(unjudged)));
    fixture.refresh();
    let drawn = fixture.drawn(SIZES[1], "C.UTF-8");
    assert!(drawn.contains("2 tool calls: not judged: a part of the response"), "{drawn}");
    fixture.scene.emit(13_001 * MS, What::Answered(answer(calls)));
    fixture.refresh();
    fixture.snapshot("request_tool_calls");
    fixture.ui.filter = RequestFilter::parse("flag:tool-call").expect("a filter");
    fixture.press(&[Action::OpenTab(Tab::Requests)]);
    assert_eq!(fixture.model.table.visible_count(), 1);
}

#[test]
fn the_wait_in_a_frontend_is_on_the_request_screen() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Requests), Action::OpenSelection]);
    let detail = fixture.model.detail.as_mut().expect("a request");
    let (rid, first_token_ns) = (detail.rid.as_str().into(), Some(2_000_000_000));
    detail.facts.frontend = Some(FrontendResponse { rid, first_token_ns, last_token_ns: None });
    fixture.snapshot("request_frontend");
}

#[test]
fn hops_match_their_snapshots() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Hops)]);
    fixture.snapshot("hops");
    let mut fixture = tapped();
    fixture.press(&[Action::OpenTab(Tab::Hops)]);
    fixture.snapshot("hops_tapped");
}

#[test]
fn findings_match_their_snapshots() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Findings)]);
    fixture.model.run.degraded =
        vec!["probe: eBPF is not permitted here; add CAP_BPF and CAP_PERFMON to the container".into()];
    fixture.snapshot("findings");
    let degraded = Action::OpenItem(Tab::Findings, fixture.model.findings.len());
    fixture.press(&[degraded]);
    let drawn = fixture.drawn((60, 20), "C.UTF-8");
    let words = drawn.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&fixture.model.run.degraded[0]), "the whole text of {drawn}");
}

#[test]
fn requests_have_times_of_day() {
    let mut fixture = race();
    fixture.model.wall_start_ns = Some(1_795_273_142_700_000_000);
    fixture.refresh();
    fixture.press(&[Action::OpenTab(Tab::Requests)]);
    for size in SIZES {
        let drawn = fixture.drawn(size, "C.UTF-8");
        assert!(drawn.contains("live     14:59:03.700Z"), "{drawn}");
    }
    fixture.press(&[Action::OpenSelection]);
    let drawn = fixture.drawn((60, 20), "C.UTF-8");
    for text in ["began 14:59:03.700Z", "14:59:03.825Z   +125 ms  tokenizer received it"] {
        assert!(drawn.contains(text), "{text} in {drawn}");
    }
}

#[test]
fn the_cpu_tab_appears_with_thread_samples() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Cpu)]);
    assert_eq!(fixture.ui.tab, Tab::Overview, "there is no such tab before there is something on it");
    let threads = [
        ("scheduler", 4_000, 99, Some(0), None),
        ("tokenizer", 4_321, 61, Some(33), Some(2)),
        ("tokenizer", 4_329, 4, None, None),
        ("detokenizer", 4_330, 40, Some(45), Some(38)),
    ];
    for tenth in 130..230 {
        for &(role, tid, on_ms, wait_ms, throttled_ms) in &threads {
            let sample = CpuSample {
                name: "python3",
                wait_ns: wait_ms.map(|ms: u64| ms * MS),
                throttled_ns: throttled_ms.map(|ms: u64| ms * MS),
                ..CpuSample::new(ThreadId { pid: 4_000, tid }, role, 100 * MS, on_ms * MS)
            };
            fixture.scene.emit(tenth * 100 * MS, What::Cpu(sample));
        }
    }
    let (id, by) = (FrameId::new(HopId(0), 0, 150), Some(ThreadId { pid: 4_000, tid: 4_321 }));
    let received = Received { by, ..Received::new(id) };
    fixture.scene.emit(23_000 * MS, What::Received(received));
    fixture.refresh();
    fixture.snapshot("overview_cpu");
    fixture.press(&[Action::OpenTab(Tab::Cpu)]);
    fixture.snapshot("cpu");
    for (function, own, total) in [("_handle_batch_output", 61, 80), ("recv_pyobj", 20, 22), ("generate", 4, 4)] {
        let sample = StackSample {
            thread: ThreadId { pid: 4_000, tid: 4_321 },
            role: "tokenizer",
            function,
            file: "managers/tokenizer_manager.py",
            interval_ns: 1_000 * MS,
            samples: 100,
            total,
            own,
            gil: Some(own),
        };
        fixture.scene.emit(23_500 * MS, What::Stack(sample));
    }
    fixture.refresh();
    fixture.snapshot("cpu_functions");
}

#[test]
fn help_matches_its_snapshots() {
    let mut fixture = race();
    fixture.press(&[Action::ShowHelp]);
    fixture.snapshot("help");
    fixture.press(&[Action::MovePage(1), Action::MovePage(1)]);
    fixture.snapshot("help_end");
}

#[test]
fn the_start_menu_matches_its_snapshots() {
    use crate::state::picker::{SourceKind, SourceOffer, SourcePicker};
    let offer = |kind, title: &str, note: &str, command: &[&str]| SourceOffer {
        kind,
        title: title.into(),
        note: note.into(),
        command: command.iter().map(ToString::to_string).collect(),
    };
    let mut picker = SourcePicker::default();
    let mut offers = vec![
        offer(SourceKind::Demo, "race", "tokens are lost", &["demo", "--scenario", "race"]),
        offer(SourceKind::Demo, "backlog", "tokens wait", &["demo", "--scenario", "backlog"]),
    ];
    picker.replace_offers(offers.clone());
    let show = |picker: &SourcePicker, size| {
        on_terminal(size, |frame| drop(picker::draw_picker(picker, theme("C.UTF-8"), frame)))
    };
    insta::assert_snapshot!("pick_80x24", show(&picker, (80, 24)));
    let engine = ["attach", "--pid", "4711"];
    offers.push(offer(SourceKind::Engine, "SGLang 0.5.9", "attach to its 3 processes", &engine));
    picker.replace_offers(offers);
    picker.has_searched = true;
    picker.blind = vec!["processes of other users: CAP_SYS_PTRACE is missing".into()];
    insta::assert_snapshot!("pick_200x50", show(&picker, (200, 50)));
    for size in [(1, 1), (0, 0), (80, 5), (20, 6)] {
        show(&picker, size);
    }
    assert!(picker.apply(Action::OpenSelection).is_continue());
    let asking = show(&picker, (60, 20));
    assert!(asking.contains("! attach to SGLang 0.5.9, which is running? Enter: yes"), "{asking}");
}

/// Playback of the race as a recording of one minute.
fn replay() -> Fixture {
    let mut fixture = race();
    fixture.ui.is_replay = true;
    fixture.model.position = Some(Position {
        at_ns: 12_000 * MS,
        whole_ns: 60_000 * MS,
        wall_ns: Some(1_768_722_900_330_146_000),
        speed: Speed::default(),
        doing: PlaybackState::Playing,
        since_ns: None,
    });
    fixture
}

#[test]
fn a_replay_matches_its_snapshots() {
    let mut fixture = replay();
    fixture.snapshot("replay");
    fixture.press(&[Action::TypeTime]);
    fixture.press(&"1:2x".chars().map(Action::TypeCharacter).collect::<Vec<_>>());
    let position = fixture.model.position.as_mut().expect("a replay");
    (position.doing, position.since_ns) = (PlaybackState::Paused, Some(5_000 * MS));
    fixture.snapshot("replay_time");
    fixture.press(&[Action::EraseText]);
    fixture.press(&"2:00".chars().map(Action::TypeCharacter).collect::<Vec<_>>());
    let drawn = fixture.drawn((80, 24), "C.UTF-8");
    assert!(drawn.contains("! outside the run: 07:54:48Z to 07:55:48Z, 0:00 to 1:00"), "{drawn}");
    fixture.press(&[Action::GoBack, Action::ShowHelp, Action::MovePage(1)]);
    fixture.snapshot("replay_help");
}

#[test]
fn a_click_on_the_playback_bar_seeks() {
    let click_areas = replay().click_areas();
    let places: Vec<u64> = (0..80)
        .filter_map(|x| match click_areas.action_at(x, 22) {
            Some(Action::Command(ScreenCommand::Play(Play::To(ns)))) => Some(ns),
            _ => None,
        })
        .collect();
    assert!(places.len() >= 20 && places.is_sorted(), "{places:?}");
    assert_eq!((places.first(), places.last()), (Some(&0), Some(&(60_000 * MS))));
}

#[test]
fn outputs_in_progress_are_shown() {
    let mut fixture = race();
    let written = |bytes, dropped| WrittenFile { name: "run.tgap".into(), bytes, dropped };
    fixture.model.writing =
        OutputStatus { recording: Some(written(5 << 20, 12)), ring: Some(written(64 << 20, 0)), endpoint: None };
    fixture.snapshot("recording");
}

#[test]
fn a_too_small_terminal_shows_the_required_size() {
    let small = race().drawn((60, 6), "C.UTF-8");
    for text in [
        "needs 60x20; this is 60x6",
        "CRITICAL  146 chunks never delivered",
        "scheduler→tokenizer backlog 151, oldest 5.97 s",
    ] {
        assert!(small.contains(text), "{text} in {small}");
    }
    assert!(race().drawn((59, 24), "C.UTF-8").contains("needs 60x20; this is 59x24"));
    for size in [(1, 1), (0, 0), (80, 1), (5, 60)] {
        race().drawn(size, "C");
    }
}

#[test]
fn without_utf8_only_ascii_is_drawn() {
    let mut fixture = race();
    for tab in Tab::ALL {
        fixture.press(&[Action::OpenTab(tab)]);
        let text = fixture.drawn((200, 50), "C");
        assert!(text.is_ascii(), "{tab:?}: {text}");
    }
}

#[test]
fn clicks_on_tabs_and_rows_map_to_actions() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Requests)]);
    let click_areas = fixture.click_areas();
    assert_eq!(click_areas.action_at(12, 0), Some(Action::OpenTab(Tab::Overview)));
    assert_eq!(
        (click_areas.action_at(5, 4), click_areas.action_at(5, 5), click_areas.action_at(5, 1)),
        (Some(Action::SelectRow(0)), Some(Action::SelectRow(1)), None)
    );
}

#[test]
fn every_size_and_tab_can_be_drawn() {
    let mut fixture = race();
    for tab in Tab::ALL {
        fixture.press(&[Action::OpenTab(tab)]);
        for width in (58..260).step_by(13) {
            for height in (18..70).step_by(7) {
                fixture.drawn((width, height), "C.UTF-8");
            }
        }
    }
}

#[test]
fn ten_thousand_requests_are_sorted_filtered_and_drawn() {
    let mut scene = Scene::delivering();
    for n in 0..10_000u64 {
        scene.send(MS * n, &[(format!("{n:032x}").as_str(), 1, 1)]);
    }
    let mut fixture = Fixture::of(scene);
    fixture.refresh();
    fixture.press(&[Action::OpenTab(Tab::Requests)]);
    fixture.ui.sort =
        SortOrder { column: crate::state::request_row::RequestColumn::with_heading("gap"), is_descending: true };
    fixture.update();
    assert_eq!(
        (fixture.model.table.visible_count(), fixture.model.table.visible_row(0).map(|r| r.gap_ns)),
        (10_000, Some(Some(9_999 * MS)))
    );
    assert!(fixture.drawn((80, 24), "C.UTF-8").contains("0000…0"));
}

#[derive(Debug)]
struct Toy;

impl Facts for Toy {
    fn name(&self) -> &'static str {
        "toy"
    }

    fn title(&self) -> &'static str {
        "Toy"
    }

    fn drops(&self) -> Option<Drops> {
        Some(Drops { fixed_in: "2.0", flag: "--toy-incremental" })
    }
}

#[test]
fn an_engine_defined_in_this_file_is_shown() {
    let mut scene = Scene::delivering();
    scene.analysis = Analysis::new(Config { engines: Engines(&[&Toy]), ..Config::default() });
    let capabilities = Capabilities::SENT | Capabilities::DELIVERED;
    let hop = Hop { origin: true, last: true, ..Hop::new(HopId(0), "model->web", capabilities) };
    scene.emit(0, What::Hop(hop));
    scene.emit(0, What::Engine(Engine { name: Some("toy"), version: Some("1.0"), ..Engine::default() }));
    for count in 1..=60 {
        scene.send(u64::from(count) * 100 * MS, &[("a", 1, count)]);
        if count != 30 {
            scene.deliver(u64::from(count) * 100 * MS + MS, "a", 1, count);
        }
    }
    let mut fixture = Fixture::of(scene);
    fixture.refresh();
    let overview = fixture.drawn((200, 50), "C");
    assert!(overview.contains("Toy 1.0") && overview.contains("> web"), "{overview}");
    fixture.press(&[Action::OpenTab(Tab::Findings)]);
    let findings = fixture.drawn((200, 50), "C");
    assert!(findings.contains("2.0") && findings.contains("--toy-incremental"), "{findings}");
}
