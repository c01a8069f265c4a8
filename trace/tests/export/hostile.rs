//! Rids that come again, limits that are too small, stages out of order: still a row for each request, and the report's sums.

use std::collections::HashMap;

use proptest::prelude::*;
use serde_json::Value;
use trace::event::{Chunk, Event, Finish, Frame, Hop, IdColumn, Kind, Sees, Taken, What};
use trace::export::{Export, Format, Opening, Options};
use trace::ledger::Limits;
use trace::report::{Report, ReportInput};
use trace::{Config, FrameId, HopId, MonoNs};

#[derive(Clone, Debug)]
enum Op {
    /// A frame with a chunk for each of these rids: its count, and whether it is the last.
    Send(Vec<(u8, u32, bool)>),
    /// Takes the frame so many sends from the latest; 0 is one that has not been sent yet.
    Take(u64),
    Handle(u64),
    Tick(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let part = (0_u8..6, 1_u32..5, prop::bool::weighted(0.2));
    let op = prop_oneof![
        4 => prop::collection::vec(part, 1..5).prop_map(Op::Send),
        2 => (0_u64..6).prop_map(Op::Take),
        1 => (0_u64..6).prop_map(Op::Handle),
        1 => (1_u64..3_000).prop_map(Op::Tick),
    ];
    prop::collection::vec(op, 1..120)
}

fn play(format: Format, ops: &[Op], live_rids: usize) -> (String, Report) {
    let limits = Limits {
        live_rids,
        finished_kept: 0,
        pending_frames: 3,
        ..Limits::default()
    };
    let config = Config {
        limits,
        ..Config::default()
    };
    let opening = Opening::new("tap", "0.1.0", MonoNs(0), 0);
    let options = Options {
        chunks: 2,
        ..Options::default()
    };
    let mut out = Vec::new();
    let mut export = Export::new(format, options, config, &opening, &mut out).expect("a vector");
    let hop = Hop {
        id: HopId(0),
        name: "scheduler->tokenizer",
        endpoint: "",
        worker: None,
        origin: true,
        last: true,
        sees: Sees {
            sent: true,
            taken: true,
            handled: true,
            ..Sees::default()
        },
    };
    let (mut at, mut seq) = (1, 0_u64);
    let mut enter = |at: u64, what| {
        let at = MonoNs(at * 1_000_000);
        export.event(&Event { at, what }).expect("a vector");
    };
    enter(at, What::Hop(hop));
    for op in ops {
        let id = |seq| FrameId {
            hop: HopId(0),
            lane: 0,
            seq,
        };
        at += 1;
        match op {
            Op::Send(parts) => {
                let rids: Vec<String> = parts.iter().map(|part| format!("rid-{}", part.0)).collect();
                let chunks: Vec<Chunk<'_>> = parts.iter().zip(&rids).map(|(part, rid)| chunk(part, rid)).collect();
                let frame = Frame {
                    id: id(seq),
                    bytes: 100,
                    kind: Kind::TokenIds,
                    ids: IdColumn::Delta,
                    chunks: &chunks,
                };
                enter(at, What::Sent(frame));
                seq += 1;
            }
            Op::Take(back) => {
                let taken = Taken {
                    id: id(seq.saturating_sub(*back)),
                    wakeup: Some(at),
                    by: None,
                    frame: None,
                };
                enter(at, What::Taken(taken));
            }
            Op::Handle(back) => enter(at, What::Handled(id(seq.saturating_sub(*back)))),
            Op::Tick(ms) => {
                at += ms;
                export_tick(&mut enter, at);
            }
        }
    }
    let report = export.finish(&ReportInput::of("tap")).expect("a vector");
    (String::from_utf8(out).expect("UTF-8"), report)
}

fn chunk<'a>(&(_, count, last): &(u8, u32, bool), rid: &'a str) -> Chunk<'a> {
    Chunk {
        rid,
        listed: Some(1),
        completion_tokens: Some(count),
        prompt_tokens: None,
        cached_tokens: None,
        finish: last.then_some(Finish::Stop),
        retractions: None,
        worker: None,
        ids: &[],
    }
}
