//! The ledger against a naive engine under random schedules: equal counts if everything is observed, no false findings otherwise.

mod world;

use std::collections::BTreeMap;

use proptest::prelude::*;
use trace::report::ReportInput;
use trace::{Config, ledger::Limits};
use world::{LostTokens, Op, Policy, Truth, World};

fn policies() -> impl Strategy<Value = Policy> {
    prop_oneof![
        Just(Policy::KeepsLast),
        Just(Policy::YieldsAll),
        Just(Policy::Merges),
        Just(Policy::Cumulative),
    ]
}

fn sends() -> impl Strategy<Value = Op> {
    let part = (0_usize..3, 0_u32..5, prop::bool::weighted(0.05));
    (0_u32..2, prop::collection::vec(part, 1..4)).prop_map(|(lane, parts)| Op::Send { lane, parts })
}

fn ordinary() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => sends(),
        3 => (0_u32..2).prop_map(|lane| Op::Receive { lane }),
        1 => Just(Op::Poll),
        2 => (0_u32..2).prop_map(|lane| Op::Forward { lane }),
        3 => (0_usize..6).prop_map(|request| Op::Serve { request }),
    ]
}

/// Schedules observed completely. Requests finish, are aborted, and their slots are reused.
fn fully_observed() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(ordinary(), 1..300)
}

/// Like [`fully_observed`], with retracted requests that recompute their tokens.
fn recomputed() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![20 => ordinary(), 1 => (0_usize..6).prop_map(|request| Op::Retract { request })];
    prop::collection::vec(op, 1..300)
}

/// Schedules with missed frames and deliveries.
fn partly_observed() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        20 => ordinary(),
        1 => (0_usize..6).prop_map(|request| Op::Retract { request }),
        1 => (0_u32..2).prop_map(|lane| Op::MissSend { lane }),
        1 => Just(Op::MissDelivery),
    ];
    prop::collection::vec(op, 1..300)
}

/// Schedules with frames lost on the wire.
fn lossy_wire() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![15 => sends(), 5 => ordinary(), 1 => (0_u32..2).prop_map(|lane| Op::LoseFrame { lane })];
    prop::collection::vec(op, 1..200)
}

fn run(policy: Policy, ops: &[Op], config: Config) -> World {
    let mut world = World::new(policy, config);
    for op in ops {
        world.step(op);
    }
    world
}

/// Whether `reported` equals `truth`. Chunk 0 (a range of several chunks) matches any chunk.
fn is_equal(reported: &BTreeMap<String, LostTokens>, truth: &BTreeMap<String, LostTokens>) -> bool {
    reported.len() == truth.len()
        && is_subset(reported, truth)
        && reported.iter().all(|(rid, lost)| lost.len() == truth[rid].len())
}

/// Whether every loss in `reported` is also in `truth`.
fn is_subset(reported: &BTreeMap<String, LostTokens>, truth: &BTreeMap<String, LostTokens>) -> bool {
    reported.iter().all(|(rid, lost)| {
        let true_losses = truth.get(rid);
        lost.iter().all(|(position, &(chunk, id))| {
            true_losses
                .and_then(|lost| lost.get(position))
                .is_some_and(|&(nth, of)| id == of && (chunk == 0 || chunk == nth))
        })
    })
}

/// Checks that every tracked chunk has exactly one outcome or is in flight.
fn check_one_outcome_per_chunk(world: &World) -> Result<(), TestCaseError> {
    let ledger = world.analysis.ledger();
    let (chunks, f) = (ledger.totals().chunks, ledger.totals().chunks.fates);
    let settled = f.delivered + f.merged + f.dropped + f.unjudged;
    let in_flight: u64 = ledger.requests().filter_map(trace::ledger::Request::in_flight).sum();
    prop_assert_eq!(chunks.tracked, settled + in_flight + chunks.undelivered);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn observed_frames_are_counted_exactly(policy in policies(), ops in fully_observed()) {
        let world = run(policy, &ops, Config::default());
        prop_assert_eq!(world.reported(), world.truth());
        check_one_outcome_per_chunk(&world)?;
        let report = world.analysis.report(&ReportInput::of("model"));
        let has_finding = |kind: &str| report.findings.iter().any(|f| f.kind == kind);
        prop_assert!(!has_finding("wire-loss") && !has_finding("wire-arithmetic") && !has_finding("missed-observations"));
        prop_assert_eq!(has_finding("dropped-chunks"), world.truth.dropped > 0);
        let (confirmed, predicted) = (report.losses.confirmed, report.losses.predicted);
        let reported = World::listed(confirmed, true);
        prop_assert!(is_equal(&reported, &world.lost), "{reported:?} {:?}", world.lost);
        let reported = World::listed(predicted, false);
        prop_assert!(is_equal(&reported, &world.predicted_lost), "{reported:?} {:?}", world.predicted_lost);
    }

    #[test]
    fn empty_chunks_of_a_recomputing_request_change_no_count(policy in policies(), ops in recomputed()) {
        let world = run(policy, &ops, Config::default());
        // An empty chunk may report the same count as a full one. Only the next delivery shows whether it was merged.
        let settled = |t: Truth| Truth { merged: t.merged + t.in_flight, in_flight: 0, ..t };
        prop_assert_eq!(settled(world.reported()), settled(world.truth()));
        check_one_outcome_per_chunk(&world)?;
        let report = world.analysis.report(&ReportInput::of("model"));
        prop_assert!(!report.findings.iter().any(|f| f.kind.starts_with("wire-")));
    }

    #[test]
    fn missed_observations_cause_no_findings(policy in policies(), ops in partly_observed()) {
        let world = run(policy, &ops, Config::default());
        let (reported, truth) = (world.reported(), world.truth());
        prop_assert_eq!(reported.missing_on_wire, 0);
        prop_assert!(reported.dropped <= truth.dropped, "{reported:?} {truth:?}");
        prop_assert!(reported.tokens_lost <= truth.tokens_lost, "{reported:?} {truth:?}");
        check_one_outcome_per_chunk(&world)?;
        let report = world.analysis.report(&ReportInput::of("model"));
        prop_assert!(!report.findings.iter().any(|f| f.kind == "wire-loss"));
        let reported = World::listed(report.losses.confirmed, true);
        prop_assert!(is_subset(&reported, &world.lost), "{reported:?} {:?}", world.lost);
        prop_assert_eq!(report.own.events_missed > 0, world.incomplete);
    }

    #[test]
    fn frames_removed_from_the_wire_are_counted_exactly(ops in lossy_wire()) {
        let world = run(Policy::YieldsAll, &ops, Config::default());
        prop_assert_eq!(world.reported().missing_on_wire, world.truth().missing_on_wire);
        check_one_outcome_per_chunk(&world)?;
    }

    #[test]
    fn small_limits_keep_the_totals_balanced(policy in policies(), ops in partly_observed()) {
        let limits = Limits {
            live_rids: 3,
            finished_kept: 2,
            hops: 1,
            lanes_per_hop: 1,
            pending_frames: 4,
            pending_chunks: 6,
            in_flight_per_rid: 3,
            in_flight: 5,
            ..Limits::default()
        };
        let world = run(policy, &ops, Config { limits, ..Config::default() });
        check_one_outcome_per_chunk(&world)?;
        let ledger = world.analysis.ledger();
        prop_assert!(ledger.remembered() <= 3 && ledger.finished_count() <= 2);
        prop_assert!(world.reported().backlog <= world.truth().backlog);
        prop_assert_eq!(ledger.totals().wire_loss.1, 0);
    }
}

#[test]
fn tokens_are_counted_exactly_at_the_in_flight_limit() {
    let limits = Limits {
        in_flight_per_rid: 2,
        ..Limits::default()
    };
    let mut world = World::new(
        Policy::KeepsLast,
        Config {
            limits,
            ..Config::default()
        },
    );
    for _ in 0..50 {
        world.step(&Op::Send {
            lane: 0,
            parts: vec![(0, 2, false)],
        });
    }
    for _ in 0..50 {
        world.step(&Op::Receive { lane: 0 });
    }
    world.step(&Op::Serve { request: 0 });
    let reported: Truth = world.reported();
    assert_eq!(reported.tokens_delivered, 2);
    assert_eq!(reported.in_flight, 0);
}
