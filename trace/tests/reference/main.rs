//! The ledger against a naive engine under random schedules: equal counts if everything is observed, and no false accusation if not.

mod world;

use std::collections::BTreeMap;

use proptest::prelude::*;
use trace::report::ReportInput;
use trace::{Config, ledger::Limits};
use world::{Lost, Op, Policy, Truth, World};

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
        3 => (0_u32..2).prop_map(|lane| Op::Take { lane }),
        1 => Just(Op::Poll),
        2 => (0_u32..2).prop_map(|lane| Op::Forward { lane }),
        3 => (0_usize..6).prop_map(|request| Op::Serve { request }),
    ]
}

/// Schedules observed completely. Requests finish, are aborted, and their slots are reused.
fn seen() -> impl Strategy<Value = Vec<Op>> {
    prop::collection::vec(ordinary(), 1..300)
}

/// Like [`seen`], with retracted requests that recompute their tokens.
fn recomputed() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![20 => ordinary(), 1 => (0_usize..6).prop_map(|request| Op::Retract { request })];
    prop::collection::vec(op, 1..300)
}

/// Schedules with missed frames and deliveries.
fn hidden() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        20 => ordinary(),
        1 => (0_usize..6).prop_map(|request| Op::Retract { request }),
        1 => (0_u32..2).prop_map(|lane| Op::Blind { lane }),
        1 => Just(Op::Deaf),
    ];
    prop::collection::vec(op, 1..300)
}

/// Schedules with frames lost on the wire.
fn cut() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![15 => sends(), 5 => ordinary(), 1 => (0_u32..2).prop_map(|lane| Op::Cut { lane })];
    prop::collection::vec(op, 1..200)
}

fn run(policy: Policy, ops: &[Op], config: Config) -> World {
    let mut world = World::new(policy, config);
    for op in ops {
        world.step(op);
    }
    world
}

/// Whether `told` equals `truth`. Chunk 0 (a range of several chunks) matches any chunk.
fn same(told: &BTreeMap<String, Lost>, truth: &BTreeMap<String, Lost>) -> bool {
    told.len() == truth.len() && within(told, truth) && told.iter().all(|(rid, lost)| lost.len() == truth[rid].len())
}

/// Whether every loss in `told` is also in `truth`.
fn within(told: &BTreeMap<String, Lost>, truth: &BTreeMap<String, Lost>) -> bool {
    told.iter().all(|(rid, lost)| {
        let known = truth.get(rid);
        lost.iter().all(|(place, &(chunk, id))| {
            known
                .and_then(|lost| lost.get(place))
                .is_some_and(|&(nth, of)| id == of && (chunk == 0 || chunk == nth))
        })
    })
}

/// Checks that every tracked chunk has exactly one outcome or is in flight.
fn each_chunk_has_one_fate(world: &World) -> Result<(), TestCaseError> {
    let ledger = world.analysis.ledger();
    let (chunks, f) = (ledger.totals().chunks, ledger.totals().chunks.fates);
    let settled = f.delivered + f.coalesced + f.dropped + f.unjudged;
    let lines: u64 = ledger.requests().filter_map(trace::ledger::Request::outstanding).sum();
    prop_assert_eq!(chunks.lined_up, settled + lines + chunks.undelivered);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_seen_is_counted_exactly(policy in policies(), ops in seen()) {
        let world = run(policy, &ops, Config::default());
        prop_assert_eq!(world.told(), world.truth());
        each_chunk_has_one_fate(&world)?;
        let report = world.analysis.report(&ReportInput::of("model"));
        let accused = |kind: &str| report.findings.iter().any(|f| f.kind == kind);
        prop_assert!(!accused("wire-loss") && !accused("wire-arithmetic") && !accused("missed-observations"));
        prop_assert_eq!(accused("dropped-chunks"), world.truth.dropped > 0);
        let (proven, expected) = (report.losses.confirmed, report.losses.predicted);
        let told = World::listed(proven, true);
        prop_assert!(same(&told, &world.lost), "{told:?} {:?}", world.lost);
        let told = World::listed(expected, false);
        prop_assert!(same(&told, &world.bound), "{told:?} {:?}", world.bound);
    }

    #[test]
    fn empty_chunks_of_a_recomputing_request_change_no_count(policy in policies(), ops in recomputed()) {
        let world = run(policy, &ops, Config::default());
        // An empty chunk may report the same count as a full one. Only the next delivery shows whether it was merged.
        let settled = |t: Truth| Truth { coalesced: t.coalesced + t.outstanding, outstanding: 0, ..t };
        prop_assert_eq!(settled(world.told()), settled(world.truth()));
        each_chunk_has_one_fate(&world)?;
        let report = world.analysis.report(&ReportInput::of("model"));
        prop_assert!(!report.findings.iter().any(|f| f.kind.starts_with("wire-")));
    }

    #[test]
    fn what_escapes_us_accuses_nobody(policy in policies(), ops in hidden()) {
        let world = run(policy, &ops, Config::default());
        let (told, truth) = (world.told(), world.truth());
        prop_assert_eq!(told.missing_on_wire, 0);
        prop_assert!(told.dropped <= truth.dropped, "{told:?} {truth:?}");
        prop_assert!(told.tokens_lost <= truth.tokens_lost, "{told:?} {truth:?}");
        each_chunk_has_one_fate(&world)?;
        let report = world.analysis.report(&ReportInput::of("model"));
        prop_assert!(!report.findings.iter().any(|f| f.kind == "wire-loss"));
        let told = World::listed(report.losses.confirmed, true);
        prop_assert!(within(&told, &world.lost), "{told:?} {:?}", world.lost);
        prop_assert_eq!(report.own.events_missed > 0, world.hidden);
    }

    #[test]
    fn what_is_cut_from_the_wire_is_missed_exactly(ops in cut()) {
        let world = run(Policy::YieldsAll, &ops, Config::default());
        prop_assert_eq!(world.told().missing_on_wire, world.truth().missing_on_wire);
        each_chunk_has_one_fate(&world)?;
    }

    #[test]
    fn small_limits_cost_knowledge_and_never_the_balance(policy in policies(), ops in hidden()) {
        let limits = Limits {
            live_rids: 3,
            finished_kept: 2,
            hops: 1,
            lanes_per_hop: 1,
            pending_frames: 4,
            pending_chunks: 6,
            outstanding_per_rid: 3,
            outstanding: 5,
            ..Limits::default()
        };
        let world = run(policy, &ops, Config { limits, ..Config::default() });
        each_chunk_has_one_fate(&world)?;
        let ledger = world.analysis.ledger();
        prop_assert!(ledger.remembered() <= 3 && ledger.finished_count() <= 2);
        prop_assert!(world.told().backlog <= world.truth().backlog);
        prop_assert_eq!(ledger.totals().wire_loss.1, 0);
    }
}

#[test]
fn a_full_line_still_counts_tokens_exactly() {
    let limits = Limits {
        outstanding_per_rid: 2,
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
        world.step(&Op::Take { lane: 0 });
    }
    world.step(&Op::Serve { request: 0 });
    let told: Truth = world.told();
    assert_eq!(told.tokens_delivered, 2);
    assert_eq!(told.outstanding, 0);
}
