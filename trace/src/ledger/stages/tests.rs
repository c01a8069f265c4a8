use super::*;
use crate::event::{Event, Stage, Told, What};
use crate::ledger::Limits;

const MS: u64 = 1_000_000;

fn say(ledger: &mut Ledger, at: u64, rid: &str, name: &str, by: &str) {
    let stage = Stage {
        rid,
        name,
        by,
        tokens: None,
        pending: None,
    };
    ledger.apply(&Event {
        at: MonoNs(at),
        what: What::Stage(stage),
    });
}

fn states(ledger: &mut Ledger, at: u64, states: u32) {
    let told = Told {
        by: "tokenizer",
        states: Some(states),
        ..Told::default()
    };
    ledger.apply(&Event {
        at: MonoNs(at),
        what: What::Told(told),
    });
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
fn the_gap_of_the_report_is_exact_in_whatever_order_its_lines_come() {
    for turn in 0..REPORT.len() {
        let mut ledger = Ledger::new(Limits::default());
        let mut lines = REPORT;
        lines.rotate_left(turn);
        for (name, at) in lines {
            say(&mut ledger, at, "5b920f43", name, "");
        }
        assert_eq!(ledger.worst_gap().map(|g| g.ns), Some(23_838_678_000));
        assert_eq!((ledger.gap().count(), ledger.totals().requests.seen), (1, 1));
        assert!(ledger.sees_gaps());
        let slow = &ledger.stages().slowest()[0];
        let names: Vec<&str> = slow.marks.list().iter().map(|m| ledger.stages().name(m)).collect();
        assert_eq!(
            names[2..4],
            ["first_output_stream", "first_token_generated"],
            "in the order of time"
        );
        assert_eq!(names.len(), 6);
    }
}

#[test]
fn a_request_of_two_servers_has_a_gap_on_each_and_the_worse_is_its_own() {
    let mut ledger = Ledger::new(Limits::default());
    for (at, name, by) in [
        (0, FIRST_SENT, "scheduler (prefill.log)"),
        (MS, FIRST_TAKEN, "tokenizer (prefill.log)"),
        (50 * MS, FIRST_SENT, "scheduler (decode.log)"),
        (9_050 * MS, FIRST_TAKEN, "tokenizer (decode.log)"),
        (9_051 * MS, FIRST_TAKEN, "tokenizer (decode.log)"),
    ] {
        say(&mut ledger, at, "a", name, by);
    }
    assert_eq!((ledger.gap().count(), ledger.gap().max()), (2, Some(9_000 * MS)));
    assert_eq!(
        ledger.request("a").map(super::super::Request::gap_ns),
        Some(Some(9_000 * MS))
    );
    assert_eq!(ledger.stages().counts.repeats, 1);
}

#[test]
fn gaps_are_set_against_the_states_of_their_moment() {
    let mut ledger = Ledger::new(Limits::default());
    for n in 1..=20_u64 {
        let (rid, at) = (format!("r{n}"), n * 1_000 * MS);
        say(&mut ledger, at, &rid, FIRST_SENT, "scheduler");
        states(&mut ledger, at + n * MS, (n * 40) as u32);
        say(&mut ledger, at + n * MS, &rid, FIRST_TAKEN, "tokenizer");
    }
    let found = ledger.stages().correlation().unwrap();
    assert_eq!((found.of, found.sampled), (20, 20));
    assert!((found.rho - 1.0).abs() < 1e-12);
    assert_eq!(ledger.stages().slowest()[0].marks.list()[1].states, Some(800));
    assert_eq!(ledger.stages().tellers()[0].states.most.map(|m| m.1), Some(800));
}

#[test]
fn what_is_told_is_bounded() {
    let mut ledger = Ledger::new(Limits::default());
    for n in 0..1_000_u64 {
        say(&mut ledger, n, "a", &format!("stage_{n}"), "");
        say(&mut ledger, n, &format!("r{n}"), FIRST_SENT, &format!("teller {n}"));
    }
    let counts = ledger.stages().counts;
    assert!(
        ledger
            .request("a")
            .is_some_and(|r| r.marks.as_ref().is_some_and(|m| m.list().len() <= 32))
    );
    assert!(counts.left_out > 1_000 && counts.told == 2_000, "{counts:?}");
}

#[test]
fn a_health_check_is_no_request() {
    let mut ledger = Ledger::new(Limits::default());
    say(&mut ledger, 1, "HEALTH_CHECK_1700000000.5", FIRST_SENT, "");
    say(&mut ledger, 2, "HEALTH_CHECK_1700000000.5", FIRST_TAKEN, "");
    let counts = ledger.totals().requests;
    assert_eq!((counts.seen, counts.health_checks, ledger.gap().count()), (0, 1, 0));
}

#[test]
fn the_end_of_a_request_is_told_once() {
    let mut ledger = Ledger::new(Limits::default());
    say(&mut ledger, 1, "a", "request_received", "");
    say(&mut ledger, 5, "a", "request_finished", "");
    say(&mut ledger, 5, "a", "decode_finished", "");
    assert_eq!((ledger.totals().requests.finished, ledger.live()), (1, 0));
}

#[test]
fn a_missing_line_is_no_wait_once_a_later_token_has_been_taken() {
    let mut ledger = Ledger::new(Limits::default());
    let waiting = |ledger: &Ledger| ledger.requests().filter(|r| r.waiting_since().is_some()).count();
    for (at, rid) in [(0, "a"), (MS, "b"), (2 * MS, "c"), (3 * MS, "d")] {
        say(&mut ledger, at, rid, FIRST_SENT, "scheduler");
    }
    assert_eq!(waiting(&ledger), 4);
    say(&mut ledger, 9 * MS, "b", FIRST_TAKEN, "tokenizer");
    assert_eq!(waiting(&ledger), 2, "a was sent before b");
    say(&mut ledger, 9 * MS, "c", "first_token_received", "handler");
    assert_eq!(waiting(&ledger), 1, "c has it");
    say(&mut ledger, 10 * MS, "a", FIRST_TAKEN, "tokenizer");
    assert_eq!(
        (ledger.gap().count(), ledger.gap().max()),
        (2, Some(10 * MS)),
        "a late word counts all the same"
    );
}

#[test]
fn a_request_whose_end_nobody_tells_is_over_and_not_lost() {
    let mut ledger = Ledger::new(Limits::default());
    say(&mut ledger, 1, "a", FIRST_SENT, "");
    say(&mut ledger, 2, "b", FIRST_SENT, "");
    say(&mut ledger, 3, "a", FIRST_TAKEN, "");
    for tick in 0..10 {
        ledger.tick(MonoNs(700_000 * MS + tick));
    }
    assert_eq!((ledger.live(), ledger.totals().requests.orphaned), (0, 1));
}

#[test]
fn room_is_made_by_those_past_their_wait_and_not_by_those_that_wait() {
    let mut ledger = Ledger::new(Limits {
        live_rids: 10,
        settle_ns: 100 * MS,
        ..Limits::default()
    });
    say(&mut ledger, 0, "waits", FIRST_SENT, "other scheduler");
    for n in 1..500_u64 {
        let (rid, at) = (format!("r{n}"), n * 50 * MS);
        say(&mut ledger, at, &rid, FIRST_SENT, "scheduler");
        say(&mut ledger, at + MS, &rid, FIRST_TAKEN, "tokenizer");
    }
    say(&mut ledger, 30_000 * MS, "waits", FIRST_TAKEN, "tokenizer");
    assert_eq!((ledger.totals().requests.seen, ledger.gap().count()), (500, 500));
    assert_eq!(ledger.gap().max(), Some(30_000 * MS));
    assert!(ledger.limits().iter().all(|l| l.times == 0), "nothing was lost by it");
}
