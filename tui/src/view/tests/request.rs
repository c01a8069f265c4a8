//! The Request tab.

use std::collections::BTreeMap;

use outputs::report::{PairRequestLine, RequestLegLine};
use trace::event::{Answer, ArgumentsPart, ToolCallOutcome, ToolCalls, UnjudgedReason};
use trace::ledger::FrontendResponse;

use super::*;
use crate::state::filter::RequestFilter;
use crate::state::pods::{PairRequest, ShownRequest};

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
fn a_request_of_a_pair_has_its_way_on_both_servers_on_the_request_screen() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Requests), Action::OpenSelection]);
    let rid = fixture.ui.selected_rid.clone().expect("a request");
    let leg = |name: &str, ms: u64| RequestLegLine { name: name.to_owned(), ns: ms * MS };
    let line = PairRequestLine {
        room: Some("7311".to_owned()),
        prefill_rid: "p-17".to_owned(),
        decode_rid: rid.clone(),
        ttft_ns: 800 * MS,
        moments: BTreeMap::new(),
        absent: BTreeMap::new(),
        legs: vec![leg("prefill-queue", 600), leg("prefill", 100), leg("transfer", 96), leg("output", 4)],
    };
    let shown = ShownRequest { run_index: 0, rid };
    let request = PairRequest { shown, decode: "sglang:30001".to_owned(), prefill: "sglang:30000".to_owned(), line };
    fixture.model.set_pair_request_if_shown(Some(&request), 1);
    assert_eq!(fixture.model.pair_request, None, "it is of another run");
    fixture.model.set_pair_request_if_shown(Some(&request), 0);
    fixture.snapshot("request_of_pair");
    let other = ShownRequest { rid: "p-17".to_owned(), ..request.shown.clone() };
    let on_prefill = PairRequest { shown: other, ..request };
    assert!(on_prefill.describe("->").ends_with(&format!("{} on sglang:30001", on_prefill.line.decode_rid)));
}
