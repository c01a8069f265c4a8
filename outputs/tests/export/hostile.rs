//! Reused rids, small limits and stages out of order: exports still have one row per request and match the report's totals.

use std::collections::HashMap;

use outputs::export::{Export, Format, Opening, Options};
use outputs::report::Report;
use proptest::prelude::*;
use serde_json::Value;
use trace::clock::Anchor;
use trace::event::{Capabilities, Chunk, Event, Finish, Frame, Hop, Received, What};
use trace::ledger::Limits;
use trace::{Config, FrameId, HopId, MonoNs, ReportInput};

const MS: u64 = 1_000_000;

#[derive(Clone, Debug)]
enum Op {
    /// Sends a frame with one chunk for each of these: rid, count, and whether it is the last chunk.
    Send(Vec<(u8, u32, bool)>),
    /// Receives the n-th latest frame; 0 is a frame not sent yet.
    Receive(u64),
    Process(u64),
    Tick(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let part = (0_u8..6, 1_u32..5, prop::bool::weighted(0.2));
    let op = prop_oneof![
        4 => prop::collection::vec(part, 1..5).prop_map(Op::Send),
        2 => (0_u64..6).prop_map(Op::Receive),
        1 => (0_u64..6).prop_map(Op::Process),
        1 => (1_u64..3_000).prop_map(Op::Tick),
    ];
    prop::collection::vec(op, 1..120)
}

fn export_ops(format: Format, ops: &[Op], live_rids: usize) -> (String, Report) {
    let limits = Limits { live_rids, finished_kept: 0, pending_frames: 3, ..Limits::default() };
    let config = Config { limits, ..Config::default() };
    let opening = Opening::new("tap", "0.1.0", Anchor::default());
    let options = Options { chunks: 2, ..Options::default() };
    let mut out = Vec::new();
    let mut export = Export::new(format, options, config, &opening, &mut out).expect("a vector");
    let hop = Hop::only(
        HopId(0),
        "scheduler->tokenizer",
        Capabilities::SENT | Capabilities::RECEIVED | Capabilities::PROCESSED,
    );
    let (mut at, mut seq) = (1, 0_u64);
    apply(&mut export, at, What::Hop(hop));
    for op in ops {
        let id = |seq| FrameId::new(HopId(0), 0, seq);
        at += 1;
        match op {
            Op::Send(parts) => {
                let rids: Vec<String> = parts.iter().map(|part| format!("rid-{}", part.0)).collect();
                let chunks: Vec<Chunk<'_>> = parts.iter().zip(&rids).map(|(part, rid)| chunk(*part, rid)).collect();
                apply(&mut export, at, What::Sent(Frame::token_ids(id(seq), 100, &chunks)));
                seq += 1;
            }
            Op::Receive(back) => {
                let received = Received::in_wakeup(id(seq.saturating_sub(*back)), at);
                apply(&mut export, at, What::Received(received));
            }
            Op::Process(back) => apply(&mut export, at, What::Processed(id(seq.saturating_sub(*back)))),
            Op::Tick(ms) => {
                at += ms;
                export.tick(MonoNs(at * MS)).expect("a vector");
            }
        }
    }
    let report = export.finish(&ReportInput::for_source("tap")).expect("a vector");
    (String::from_utf8(out).expect("UTF-8"), report)
}

fn apply(export: &mut Export<'_>, at: u64, what: What<'_>) {
    let at = MonoNs(at * MS);
    export.event(&Event { at, what }).expect("a vector");
}

fn chunk((_, count, last): (u8, u32, bool), rid: &str) -> Chunk<'_> {
    Chunk { finish: last.then_some(Finish::Stop), ..Chunk::counted(rid, 1, count) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_request_has_one_row(ops in ops(), live_rids in 1_usize..8) {
        let (text, report) = export_ops(Format::Csv, &ops, live_rids);
        let mut reader = ::csv::Reader::from_reader(text.as_bytes());
        let rows: Vec<HashMap<String, String>> = reader.deserialize().map(|row| row.expect("a row")).collect();
        let sum = |column: &str| rows.iter().map(|row| row[column].parse::<u64>().expect("a count")).sum::<u64>();
        prop_assert_eq!(rows.len() as u64, report.requests.seen);
        prop_assert_eq!(sum("tokens_sent"), report.tokens.sent);
        prop_assert_eq!(sum("chunks_sent"), report.chunks.sent);
    }

    #[test]
    fn spans_are_nested_and_flows_have_both_ends(ops in ops(), live_rids in 1_usize..8) {
        let (text, report) = export_ops(Format::Perfetto, &ops, live_rids);
        let events: Vec<Value> = serde_json::from_str(&text).expect("one JSON array");
        prop_assert_eq!(super::perfetto::check(&events), report.requests.seen);
    }

    #[test]
    fn lines_are_json(ops in ops(), live_rids in 1_usize..8) {
        for format in [Format::Otlp, Format::Events] {
            let (text, report) = export_ops(format, &ops, live_rids);
            let lines = text.lines().map(serde_json::from_str::<Value>).collect::<Result<Vec<_>, _>>();
            let lines = lines.expect("JSON");
            if format == Format::Otlp {
                prop_assert_eq!(lines.len() as u64, report.requests.seen + 1);
            }
        }
    }
}
