//! Arbitrary events in arbitrary order: no panic, valid invariants, and a report.

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use trace::engine::{Mode, Waiter};
use trace::event::{
    Capabilities, Chunk, Delivery, Engine, Event, Finish, Frame, Hop, IdColumn, Kind, Missed, MissedCause, Received,
    Undecoded, What,
};
use trace::ledger::Limits;
use trace::report::ReportInput;
use trace::{Analysis, Config, FrameId, HopId, MonoNs};

/// An owned event.
#[derive(Clone, Debug)]
enum Step {
    Engine(Option<String>, Option<Mode>, Option<Waiter>, Option<u8>),
    Hop(u16, String, bool, bool, [bool; 5]),
    Frame(FrameId, Kind, IdColumn, Vec<Part>, bool),
    Stage(FrameId, u8, Option<u64>),
    Delivered(String, u32, bool, Option<u32>, bool),
    Undecoded(FrameId),
    Missed(Option<u16>, u64),
    Tick,
}

#[derive(Clone, Debug)]
struct Part {
    rid: String,
    listed: Option<u32>,
    completion: Option<u32>,
    finish: Option<Finish>,
    retractions: Option<u32>,
}

/// Mostly small numbers, so that values collide, and extreme ones.
fn number() -> impl Strategy<Value = u32> {
    prop_oneof![6 => 0_u32..8, 1 => any::<u32>(), 1 => Just(u32::MAX)]
}

fn rid() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-d]", 1 => Just(String::new()), 1 => Just(String::from("HEALTH_CHECK_1")), 1 => "\\PC{0,12}"]
}

fn id() -> impl Strategy<Value = FrameId> {
    let seq = prop_oneof![8 => 0_u64..12, 1 => Just(u64::MAX - 1), 1 => any::<u64>()];
    (0_u16..5, 0_u32..4, seq).prop_map(|(hop, lane, seq)| FrameId::new(HopId(hop), lane, seq))
}

fn finish() -> impl Strategy<Value = Option<Finish>> {
    prop_oneof![
        6 => Just(None),
        1 => Just(Some(Finish::Stop)),
        1 => Just(Some(Finish::Abort)),
        1 => Just(Some(Finish::Other)),
    ]
}

fn part() -> impl Strategy<Value = Part> {
    (rid(), of(number()), of(number()), finish(), of(number())).prop_map(
        |(rid, listed, completion, finish, retractions)| Part {
            rid,
            listed,
            completion,
            finish,
            retractions,
        },
    )
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        6 => Just(Kind::TokenIds),
        1 => Just(Kind::Text),
        1 => Just(Kind::Abort),
        1 => Just(Kind::Control),
        1 => Just(Kind::Embedding),
    ];
    let ids = prop_oneof![
        Just(IdColumn::Delta),
        Just(IdColumn::Cumulative),
        Just(IdColumn::DeltaAfterPromptTail),
        Just(IdColumn::Absent),
        Just(IdColumn::Undecided),
    ];
    let mode = prop_oneof![Just(Mode::Incremental), Just(Mode::Cumulative)];
    let waiter = prop_oneof![Just(Waiter::KeepsLast), Just(Waiter::YieldsAll), Just(Waiter::Merges)];
    prop_oneof![
        1 => (of("\\PC{0,12}"), of(mode), of(waiter), of(any::<u8>())).prop_map(|(v, m, w, t)| Step::Engine(v, m, w, t)),
        2 => (0_u16..5, "[ab]", any::<bool>(), any::<bool>(), any::<[bool; 5]>())
            .prop_map(|(id, name, origin, last, capabilities)| Step::Hop(id, name, origin, last, capabilities)),
        8 => (id(), kind, ids, vec(part(), 0..4), any::<bool>()).prop_map(|(f, k, i, p, s)| Step::Frame(f, k, i, p, s)),
        8 => (id(), any::<u8>(), of(0_u64..3)).prop_map(|(id, stage, wakeup)| Step::Stage(id, stage, wakeup)),
        6 => (rid(), number(), any::<bool>(), of(number()), any::<bool>())
            .prop_map(|(rid, tokens, mode, to, end)| Step::Delivered(rid, tokens, mode, to, end)),
        1 => id().prop_map(Step::Undecoded),
        1 => (of(0_u16..5), 0_u64..4).prop_map(|(hop, count)| Step::Missed(hop, count)),
        2 => Just(Step::Tick),
    ]
}

fn apply(analysis: &mut Analysis, at: MonoNs, step: &Step) {
    let mut apply_event = |what: What<'_>| analysis.apply(&Event { at, what });
    match step {
        Step::Engine(version, mode, waiter, turnaround) => apply_event(What::Engine(Engine {
            version: version.as_deref(),
            mode: *mode,
            waiter: *waiter,
            turnaround: *turnaround,
            ..Engine::default()
        })),
        Step::Hop(id, name, origin, last, [sent, forwarded, received, processed, delivered]) => {
            apply_event(What::Hop(Hop {
                origin: *origin,
                last: *last,
                ..Hop::new(
                    HopId(*id),
                    name.as_str(),
                    Capabilities {
                        sent: *sent,
                        forwarded: *forwarded,
                        received: *received,
                        processed: *processed,
                        delivered: *delivered,
                    },
                )
            }));
        }
        Step::Frame(id, kind, ids, parts, sent) => {
            let chunk = |p| -> Chunk<'_> {
                let Part {
                    rid,
                    listed,
                    completion,
                    finish,
                    retractions,
                }: &Part = p;
                Chunk {
                    listed: *listed,
                    completion_tokens: *completion,
                    prompt_tokens: *completion,
                    finish: *finish,
                    retractions: *retractions,
                    ..Chunk::new(rid)
                }
            };
            let chunks: Vec<Chunk<'_>> = parts.iter().map(chunk).collect();
            let frame = Frame {
                id: *id,
                bytes: u64::from(u32::MAX),
                forwarded: Some(MonoNs(id.seq)),
                kind: *kind,
                ids: *ids,
                chunks: &chunks,
            };
            let received = Received {
                frame: Some(frame),
                ..Received::new(*id)
            };
            apply_event(if *sent {
                What::Sent(frame)
            } else {
                What::Received(received)
            });
        }
        Step::Stage(id, stage, wakeup) => apply_event(match stage % 3 {
            0 => What::Processed(*id),
            _ => What::Received(Received {
                wakeup: *wakeup,
                ..Received::new(*id)
            }),
        }),
        Step::Delivered(rid, tokens, incremental, completion_tokens, finished) => {
            apply_event(What::Delivered(Delivery {
                mode: if *incremental {
                    Mode::Incremental
                } else {
                    Mode::Cumulative
                },
                finished: *finished,
                ..Delivery::new(rid, *tokens, *completion_tokens)
            }));
        }
        Step::Undecoded(id) => apply_event(What::Undecoded(Undecoded::new(*id, 7, "truncated"))),
        Step::Missed(hop, count) => {
            apply_event(What::Missed(Missed::new(hop.map(HopId), *count, MissedCause::Unframed)));
        }
        Step::Tick => analysis.tick(at),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_events_keep_the_ledger_consistent(steps in vec((step(), 0_u64..3_000_000_000), 0..200), small in any::<bool>()) {
        let limits = Limits {
            live_rids: 2,
            finished_kept: 1,
            hops: 3,
            lanes_per_hop: 2,
            pending_frames: 3,
            pending_chunks: 4,
            early_receives: 2,
            in_flight_per_rid: 2,
            in_flight: 3,
            settle_ns: 4_000_000_000,
            orphan_after_ns: 9_000_000_000,
            ..Limits::default()
        };
        let limits = if small { limits } else { Limits::default() };
        let mut analysis = Analysis::new(Config { limits, ..Config::default() });
        let mut now = 0;
        for (step, elapsed) in &steps {
            now += elapsed;
            // Times may step back slightly between lanes.
            apply(&mut analysis, MonoNs(now.saturating_sub(elapsed * 2)), step);
        }
        let ledger = analysis.ledger();
        let (chunks, f) = (ledger.totals().chunks, ledger.totals().chunks.fates);
        let lines: u64 = ledger.requests().filter_map(trace::ledger::Request::in_flight).sum();
        let fates = f.delivered + f.merged + f.dropped + f.unjudged;
        prop_assert_eq!(chunks.tracked, fates + lines + chunks.undelivered);
        prop_assert!(ledger.remembered() <= limits.live_rids && ledger.hops().len() <= limits.hops);
        let waiting: u64 = ledger.hops().iter().map(|h| h.counts().backlog).sum();
        prop_assert_eq!(waiting, ledger.groups().iter().map(|g| g.backlog).sum::<u64>());
        let report = analysis.report(&ReportInput::of("model"));
        prop_assert!(report.to_json().len() > 100 && report.to_text().lines().count() > 3);
    }
}
