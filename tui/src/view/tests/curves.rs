//! Every curve on the screen, compared with the report.

use serde_json::Value;
use trace::ThreadId;

use super::*;
use crate::state::agreement::Replayed;
use crate::view::chart::ChartSeries;
use crate::view::{cpu, hops, overview};

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
