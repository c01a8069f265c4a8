//! Every curve on the screen, and the numbers beside it, compared with the report.

use outputs::report::Report;
use serde_json::Value;
use trace::{ReportInput, ThreadId};

use super::*;
use crate::state::tests::agreement::Replayed;
use crate::state::ui::SECONDS_PER_COLUMN;
use crate::view::chart::{ChartSeries, SeriesNumbers, TimeWindow};
use crate::view::{cpu, hops, overview};

/// Seconds of the report that a screen shows, as JSON.
struct ReportedSeconds {
    columns: Value,
    /// Number of the first one, counted from the start of the run.
    first: u64,
    count: u64,
}

impl ReportedSeconds {
    /// The slots of the report are seconds; those of a long run come in addition to longer ones.
    fn of_report(report: &Report) -> Self {
        let report: Value = serde_json::from_str(&report.to_json()).expect("JSON");
        let series = &report["series"];
        let columns = if series["by_second"].is_null() { series } else { &series["by_second"] };
        assert_eq!(columns["slot_ns"], 1_000 * MS, "a slot is a second");
        let count = columns["events_missed"].as_array().expect("slots").len() as u64;
        let first = columns["from_ns"].as_u64().expect("a time") / (1_000 * MS);
        Self { columns: columns.clone(), first, count }
    }

    fn newest(&self) -> u64 {
        self.first + self.count - 1
    }

    /// Maximum of a column over the kept ones of the `step` seconds that end with this one.
    fn max_of(&self, column: &[Value], last: u64, step: u64) -> Option<f64> {
        let seconds = (last + 1).saturating_sub(step).max(self.first)..=last;
        seconds.filter_map(|second| column[(second - self.first) as usize].as_f64()).reduce(f64::max)
    }

    /// Largest backlog of any hop.
    fn max_backlog(&self) -> Value {
        let hops = self.columns["hops"].as_array().expect("hops");
        let backlogs = hops.iter().filter_map(|hop| hop["backlog_max_frames"].as_array());
        let columns = backlogs.map(|column| column.iter().map(Value::as_u64).collect::<Vec<_>>());
        columns.reduce(|a, b| a.into_iter().zip(b).map(|(a, b)| a.max(b)).collect()).into()
    }

    /// Lost chunks: those confirmed, else those predicted. A prediction of none is no observation.
    fn lost_chunks(&self) -> &Value {
        let confirmed = &self.columns["chunks"]["dropped_confirmed"];
        let predicted = &self.columns["chunks"]["dropped_predicted"];
        let is_any_predicted =
            predicted.as_array().is_some_and(|slots| slots.iter().any(|slot| slot.as_u64().unwrap_or(0) > 0));
        if confirmed.is_null() && is_any_predicted { predicted } else { confirmed }
    }
}

/// A curve on the screen, and the column of the report with the same values.
struct CurvePair<'a> {
    curve: ChartSeries<'a>,
    column: &'a Value,
    /// The report rounds the shares of threads to four digits.
    is_rounded: bool,
}

impl<'a> CurvePair<'a> {
    fn new(curve: ChartSeries<'a>, column: &'a Value) -> Self {
        Self { curve, column, is_rounded: false }
    }

    /// Compares all columns at every zoom, and the numbers beside them. Returns how many values are equal.
    fn assert_same(&self, name: &str, model: &Model, reported: &ReportedSeconds) -> usize {
        let what = format!("{name}, {}", self.curve.label);
        let Some(column) = self.column.as_array() else {
            assert!(self.column.is_null() && self.curve.unobserved.is_some(), "{what}: {:?}", self.curve.unobserved);
            return 0;
        };
        assert_eq!(self.curve.unobserved, None, "{what}");
        let newest = reported.newest();
        let mut compared = 0;
        for step in SECONDS_PER_COLUMN {
            let columns = reported.count.div_ceil(step);
            let drawn = model.curves.column_values(&*self.curve.second_value, newest, step, columns as usize);
            let ends = (0..columns).rev().map(|columns_before| newest - columns_before * step);
            let expected: Vec<Option<f64>> = ends.map(|last| reported.max_of(column, last, step)).collect();
            for (index, (drawn, expected)) in drawn.iter().zip(&expected).enumerate() {
                let is_same = match (drawn, expected) {
                    (Some(drawn), Some(expected)) if self.is_rounded => (drawn - expected).abs() <= 0.000_05,
                    (drawn, expected) => drawn == expected,
                };
                assert!(is_same, "{what}, column {index} of {step} s: {drawn:?} on the screen, not {expected:?}");
            }
            compared += expected.len();
            if !self.is_rounded && expected.iter().any(Option::is_some) {
                let window = TimeWindow { end: newest, step, idle_after_s: 0 };
                let SeriesNumbers { last, max } = self.curve.format_numbers(&drawn, window);
                assert_eq!(max, (self.curve.format)(expected.iter().flatten().copied().fold(0.0, f64::max)), "{what}");
                if let Some(value) = expected[expected.len() - 1] {
                    assert_eq!(last, (self.curve.format)(value), "{what}");
                } else {
                    assert!(["none", "unknown"].contains(&&*last), "{what}: {last}");
                }
            }
        }
        compared
    }
}

/// Compares every curve of every tab with the report of the same analysis. Returns the number of values.
fn assert_curves_of_report(name: &str, analysis: &Analysis, report: &Report) -> usize {
    let reported = ReportedSeconds::of_report(report);
    let mut model = Model::default();
    model.refresh(analysis, RunValues::default());
    // Both have the second that is not over.
    assert_eq!(model.curves.newest_second(), reported.newest(), "{name}");
    assert_eq!(model.curves.seconds_before_newest() + 1, reported.count, "{name}");
    let json = &reported.columns;
    let max_backlog = reported.max_backlog();
    let [tokens, backlog, gap, lost, merged, live] = overview::chart_series(&model);
    let mut pairs = vec![
        CurvePair::new(tokens, &json["tokens"]["sent"]),
        CurvePair::new(backlog, &max_backlog),
        CurvePair::new(gap, &json["gap_ns"]["p99"]),
        CurvePair::new(lost, reported.lost_chunks()),
        CurvePair::new(merged, &json["chunks"]["merged"]),
        CurvePair::new(live, &json["requests"]["live"]),
    ];
    for hop in &model.hops {
        let mut hops = json["hops"].as_array().expect("hops").iter();
        let reported_hop = hops.find(|reported_hop| reported_hop["name"] == *hop.name).expect("the hop");
        let [backlog, queue_wait, frames] = hops::trend_series(hop, &model);
        pairs.push(CurvePair::new(backlog, &reported_hop["backlog_max_frames"]));
        pairs.push(CurvePair::new(queue_wait, &reported_hop["queue_wait_ns"]["p99"]));
        let sent = &reported_hop["frames_sent"];
        pairs.push(CurvePair::new(frames, if sent.is_null() { &reported_hop["frames_received"] } else { sent }));
    }
    for thread in json["threads"].as_array().expect("threads") {
        let [pid, tid] = ["pid", "tid"].map(|key| thread[key].as_u64().expect("an id") as u32);
        let index = model.curves.thread_index(ThreadId { pid, tid }).expect("it has a curve");
        let [running, waiting, throttled] = cpu::thread_series(index);
        for (curve, column) in [(running, "on_cpu"), (waiting, "run_wait"), (throttled, "throttled")] {
            if !thread[column].is_null() {
                pairs.push(CurvePair { is_rounded: true, ..CurvePair::new(curve, &thread[column]) });
            }
        }
    }
    pairs.iter().map(|pair| pair.assert_same(name, &model, &reported)).sum()
}

/// A run of so many seconds with bursts of another size in each, pauses, and a change of frames that wait.
fn busy_scene(seconds: u64) -> Scene {
    let mut scene = Scene::delivering();
    for second in 0..seconds {
        let at = second * 1_000 * MS;
        // Pauses of a few seconds.
        if second % 40 >= 35 {
            continue;
        }
        let rid = format!("r{second}");
        let tokens = (second * 37 % 101 + 1) as u32;
        let seq = scene.sent_frames(0);
        scene.send(at + 10 * MS, &[(&*rid, tokens, tokens)]);
        scene.finish(at + 20 * MS, &[(&*rid, 1, tokens + 1)], Finish::Length);
        let wait_ms = second * 13 % 500;
        scene.receive(at + (30 + wait_ms) * MS, seq, 2 * second);
        scene.receive(at + (31 + wait_ms) * MS, seq + 1, 2 * second + 1);
        scene.deliver(at + (40 + wait_ms) * MS, &rid, tokens + 1, tokens + 1);
        scene.tick(at + 900 * MS);
    }
    scene.tick(seconds * 1_000 * MS + 400 * MS);
    scene
}

#[test]
fn every_curve_of_a_recording_is_that_of_the_report() {
    let mut compared = 0;
    for (name, run) in Replayed::all() {
        compared += assert_curves_of_report(name, &run.analysis, &run.report);
    }
    assert!(compared > 500, "{compared} values");
}

/// The report joins slots from ten minutes on, and the screen keeps an hour.
#[test]
fn every_curve_of_a_long_run_is_that_of_the_report() {
    for (seconds, slot_s, kept) in [(700, 2, 701), (3_700, 8, 3_600)] {
        let scene = busy_scene(seconds);
        let report = Report::of(&scene.analysis, &ReportInput::for_source("demo"));
        let compared = assert_curves_of_report(&format!("{seconds} s"), &scene.analysis, &report);
        assert!(compared > 9 * kept, "{compared} values");
        let series = report.series.as_ref().expect("slots");
        let by_second = series.by_second.as_ref().expect("slots are joined");
        assert_eq!((series.slot_ns, by_second.len()), (slot_s * 1_000 * MS, kept));
        // The longer slots are made of the same seconds.
        let first_slot = ((seconds + 1 - kept as u64).div_ceil(slot_s)) as usize;
        for slot in first_slot..series.len() {
            let first_second = slot * slot_s as usize - (seconds as usize + 1 - kept);
            let seconds = first_second..(first_second + slot_s as usize).min(kept);
            assert_eq!(series.tokens.sent[slot], by_second.tokens.sent[seconds.clone()].iter().copied().sum());
            let [joined, single] = [series, by_second].map(|series| &series.hops[0].backlog_max_frames);
            let [joined, single] = [joined, single].map(|column| column.as_ref().expect("backlogs"));
            assert_eq!(&joined[slot], single[seconds].iter().max().expect("seconds"));
        }
    }
}

/// Texts beside a chart: its last value and its maximum, in two cells of nine columns at the end of the row.
fn drawn_numbers(screen: &str, label: &str) -> [String; 2] {
    let line = screen.lines().find(|line| line.starts_with(&format!(" {label} "))).expect(label).trim_end();
    let mut cells = line.chars().skip(line.chars().count() - 19);
    let last: String = cells.by_ref().take(9).collect();
    let max: String = cells.collect();
    [last, max].map(|cell| cell.trim().to_owned())
}

#[test]
fn the_drawn_numbers_are_those_of_the_report() {
    let mut fixture = Fixture::of(busy_scene(700));
    fixture.refresh();
    let report = Report::of(&fixture.scene.analysis, &ReportInput::for_source("demo"));
    let reported = ReportedSeconds::of_report(&report);
    for (zoom_level, step) in SECONDS_PER_COLUMN.into_iter().enumerate() {
        fixture.ui.zoom_level = zoom_level;
        let screen = fixture.drawn((120, 60), "C");
        let columns = u64::from(chart::column_count(120));
        for (series, column) in overview::chart_series(&fixture.model).iter().zip([
            &reported.columns["tokens"]["sent"],
            &reported.max_backlog(),
            &reported.columns["gap_ns"]["p99"],
        ]) {
            let column = column.as_array().expect("values");
            let ends = (0..columns).filter_map(|before| reported.newest().checked_sub(before * step));
            let values: Vec<Option<f64>> = ends.map(|last| reported.max_of(column, last, step)).collect();
            let last = values[0].map_or("none".to_owned(), series.format);
            let max = (series.format)(values.iter().flatten().copied().fold(0.0, f64::max));
            assert_eq!(drawn_numbers(&screen, series.label), [last, max], "{}, {step} s:\n{screen}", series.label);
        }
    }
}
