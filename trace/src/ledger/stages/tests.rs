use super::*;
use crate::engine::example::{self, FIRST_RECEIVED, FIRST_SENT};
use crate::event::{Event, LoggedState, Stage, What};
use crate::ledger::{Limits, Request};

const MS: u64 = 1_000_000;

fn log_stage(ledger: &mut Ledger, at: u64, rid: &str, name: &str, by: &str) {
    let stage = Stage::new(rid, name, by);
    ledger.apply(&Event::new(MonoNs(at), What::Stage(stage)));
}

fn states(ledger: &mut Ledger, at: u64, states: u32) {
    let logged = LoggedState { by: "tokenizer", states: Some(states), ..LoggedState::default() };
    ledger.apply(&Event::new(MonoNs(at), What::LoggedState(logged)));
}

/// Stages of a request from a bug report, in nanoseconds since midnight.
const REPORT: [(&str, u64); 6] = [
    ("transfer_done", 22_879_083_017_000),
    ("waiting_to_running", 22_879_083_052_000),
    ("first_token_generated", 22_879_095_685_000),
    ("first_output_stream", 22_879_091_650_000),
    ("tokenizer_first_token", 22_902_930_328_000),
    ("first_token_received", 22_902_930_440_000),
];

#[test]
fn the_gap_is_exact_for_any_order_of_log_lines() {
    for turn in 0..REPORT.len() {
        let mut ledger = Ledger::new(Limits::default()).with_engines(example::ENGINES);
        let mut lines = REPORT;
        lines.rotate_left(turn);
        for (name, at) in lines {
            log_stage(&mut ledger, at, "5b920f43", name, "");
        }
        assert_eq!(ledger.worst_gap().map(|g| g.ns), Some(23_838_678_000));
        assert_eq!((ledger.gap().count(), ledger.totals().requests.seen), (1, 1));
        assert!(ledger.observes_gaps());
        let slow = &ledger.stages().slowest()[0];
        let names: Vec<&str> = slow.marks.list().iter().map(|m| ledger.stages().name_of(m)).collect();
        assert_eq!(names[2..4], ["first_output_stream", "first_token_generated"], "in order of time");
        assert_eq!(names.len(), 6);
    }
}

#[test]
fn a_gap_in_one_line_counts_once_and_after_logged_ends() {
    let mut ledger = Ledger::new(Limits::default()).with_engines(example::ENGINES);
    let log_gap = |ledger: &mut Ledger, at: u64, rid: &str, by: &str| {
        let stage = Stage { gap_ns: Some(7_000 * MS), ..Stage::new(rid, "first_token", by) };
        ledger.apply(&Event::new(MonoNs(at), What::Stage(stage)));
    };
    log_gap(&mut ledger, 9_000 * MS, "a", "tokenizer (server.log)");
    log_gap(&mut ledger, 9_500 * MS, "a", "tokenizer (requests.log)");
    assert!(ledger.observes_gaps());
    assert_eq!((ledger.gap().count(), ledger.worst_gap().map(|gap| gap.ns)), (1, Some(7_000 * MS)));
    assert_eq!(ledger.request("a").and_then(|request| request.sent_first), Some(MonoNs(2_000 * MS)));
    assert_eq!(ledger.stages().slowest()[0].gap_ns, 7_000 * MS);
    log_stage(&mut ledger, 10_000 * MS, "b", FIRST_SENT, "scheduler");
    log_stage(&mut ledger, 13_000 * MS, "b", FIRST_RECEIVED, "tokenizer");
    log_gap(&mut ledger, 13_000 * MS, "b", "tokenizer");
    assert_eq!((ledger.gap().count(), ledger.request("b").and_then(Request::gap_ns)), (2, Some(3_000 * MS)));
}

#[test]
fn a_request_on_two_servers_has_two_gaps_and_reports_the_worse() {
    let mut ledger = Ledger::new(Limits::default()).with_engines(example::ENGINES);
    for (at, name, by) in [
        (0, FIRST_SENT, "scheduler (prefill.log)"),
        (MS, FIRST_RECEIVED, "tokenizer (prefill.log)"),
        (50 * MS, FIRST_SENT, "scheduler (decode.log)"),
        (9_050 * MS, FIRST_RECEIVED, "tokenizer (decode.log)"),
        (9_051 * MS, FIRST_RECEIVED, "tokenizer (decode.log)"),
    ] {
        log_stage(&mut ledger, at, "a", name, by);
    }
    assert_eq!((ledger.gap().count(), ledger.gap().max()), (2, Some(9_000 * MS)));
    assert_eq!(ledger.request("a").map(Request::gap_ns), Some(Some(9_000 * MS)));
    assert_eq!(ledger.stages().counts.repeats, 1);
}

#[test]
fn gaps_correlate_with_the_states_logged_at_their_time() {
    let mut ledger = Ledger::new(Limits::default()).with_engines(example::ENGINES);
    for n in 1..=20_u64 {
        let (rid, at) = (format!("r{n}"), n * 1_000 * MS);
        log_stage(&mut ledger, at, &rid, FIRST_SENT, "scheduler");
        states(&mut ledger, at + n * MS, (n * 40) as u32);
        log_stage(&mut ledger, at + n * MS, &rid, FIRST_RECEIVED, "tokenizer");
    }
    let found = ledger.stages().correlation().unwrap();
    assert_eq!((found.of, found.sampled), (20, 20));
    assert!((found.rho - 1.0).abs() < 1e-12);
    assert_eq!(ledger.stages().slowest()[0].marks.list()[1].states, Some(800));
    assert_eq!(ledger.stages().processes()[0].states.max.map(|max| max.value), Some(800));
}

#[test]
fn logged_stages_are_bounded() {
    let mut ledger = Ledger::new(Limits::default()).with_engines(example::ENGINES);
    for n in 0..1_000_u64 {
        log_stage(&mut ledger, n, "a", &format!("stage_{n}"), "");
        log_stage(&mut ledger, n, &format!("r{n}"), FIRST_SENT, &format!("process {n}"));
    }
    let counts = ledger.stages().counts;
    assert!(ledger.request("a").is_some_and(|r| r.marks.as_ref().is_some_and(|m| m.list().len() <= 32)));
    assert!(counts.left_out > 1_000 && counts.logged == 2_000, "{counts:?}");
}

#[test]
fn health_checks_are_not_counted_as_requests() {
    let mut ledger = Ledger::new(Limits::default()).with_engines(example::ENGINES);
    log_stage(&mut ledger, 1, "HEALTH_CHECK_1700000000.5", FIRST_SENT, "");
    log_stage(&mut ledger, 2, "HEALTH_CHECK_1700000000.5", FIRST_RECEIVED, "");
    let counts = ledger.totals().requests;
    assert_eq!((counts.seen, counts.health_checks, ledger.gap().count()), (0, 1, 0));
}

#[test]
fn a_request_with_several_end_stages_finishes_once() {
    let mut ledger = Ledger::new(Limits::default()).with_engines(example::ENGINES);
    log_stage(&mut ledger, 1, "a", "request_received", "");
    log_stage(&mut ledger, 5, "a", "request_finished", "");
    log_stage(&mut ledger, 5, "a", "decode_finished", "");
    assert_eq!((ledger.totals().requests.finished, ledger.live_count()), (1, 0));
}

#[test]
fn a_request_with_a_later_receive_no_longer_waits() {
    let mut ledger = Ledger::new(Limits::default()).with_engines(example::ENGINES);
    let waiting = |ledger: &Ledger| ledger.requests().filter(|r| r.first_token_waiting_since().is_some()).count();
    for (at, rid) in [(0, "a"), (MS, "b"), (2 * MS, "c"), (3 * MS, "d")] {
        log_stage(&mut ledger, at, rid, FIRST_SENT, "scheduler");
    }
    assert_eq!(waiting(&ledger), 4);
    log_stage(&mut ledger, 9 * MS, "b", FIRST_RECEIVED, "tokenizer");
    assert_eq!(waiting(&ledger), 2, "a was sent before b");
    log_stage(&mut ledger, 9 * MS, "c", "first_token_received", "handler");
    assert_eq!(waiting(&ledger), 1, "c received it");
    log_stage(&mut ledger, 10 * MS, "a", FIRST_RECEIVED, "tokenizer");
    assert_eq!((ledger.gap().count(), ledger.gap().max()), (2, Some(10 * MS)), "a line logged late counts too");
}

#[test]
fn a_request_without_a_logged_end_is_closed_and_not_lost() {
    let mut ledger = Ledger::new(Limits::default()).with_engines(example::ENGINES);
    log_stage(&mut ledger, 1, "a", FIRST_SENT, "");
    log_stage(&mut ledger, 2, "b", FIRST_SENT, "");
    log_stage(&mut ledger, 3, "a", FIRST_RECEIVED, "");
    for tick in 0..10 {
        ledger.tick(MonoNs(700_000 * MS + tick));
    }
    assert_eq!((ledger.live_count(), ledger.totals().requests.orphaned), (0, 1));
}

#[test]
fn requests_that_still_wait_are_evicted_last() {
    let mut ledger =
        Ledger::new(Limits { live_rids: 10, settle_ns: 100 * MS, ..Limits::default() }).with_engines(example::ENGINES);
    log_stage(&mut ledger, 0, "waits", FIRST_SENT, "other scheduler");
    for n in 1..500_u64 {
        let (rid, at) = (format!("r{n}"), n * 50 * MS);
        log_stage(&mut ledger, at, &rid, FIRST_SENT, "scheduler");
        log_stage(&mut ledger, at + MS, &rid, FIRST_RECEIVED, "tokenizer");
    }
    log_stage(&mut ledger, 30_000 * MS, "waits", FIRST_RECEIVED, "tokenizer");
    assert_eq!((ledger.totals().requests.seen, ledger.gap().count()), (500, 500));
    assert_eq!(ledger.gap().max(), Some(30_000 * MS));
    assert!(ledger.limits().iter().all(|l| l.times == 0), "no limit was reached");
}
