//! The Requests tab.

use trace::detect::{Finding, Verdict};
use trace::event::{Dispatch, DispatchKind, DispatchedRequest};
use trace::{FrameId, MonoNs};

use super::*;
use crate::state::request_row::RequestColumn;
use crate::state::request_table::SortOrder;

#[test]
fn requests_match_their_snapshots() {
    let mut fixture = race();
    fixture.press(&[Action::OpenTab(Tab::Requests)]);
    fixture.snapshot("requests");
    fixture.press(&[Action::MoveSelection(2), Action::PinRequest, Action::TypeFilter]);
    fixture.press(&"gap>1s drpo>0".chars().map(Action::TypeCharacter).collect::<Vec<_>>());
    fixture.snapshot("requests_filter_mistake");
    fixture.press(&[
        Action::EraseText,
        Action::TypeCharacter('0'),
        Action::AcceptText,
        Action::StepSortColumn(1),
        Action::ReverseSort,
    ]);
    fixture.snapshot("requests_filtered");
}

#[test]
fn requests_have_times_of_day() {
    let mut fixture = race();
    fixture.model.wall_start_ns = Some(1_795_273_142_700_000_000);
    fixture.refresh();
    fixture.press(&[Action::OpenTab(Tab::Requests)]);
    for size in SIZES {
        let drawn = fixture.drawn(size, "C.UTF-8");
        assert!(drawn.contains("live     14:59:03.700Z"), "{drawn}");
    }
    fixture.press(&[Action::OpenSelection]);
    let drawn = fixture.drawn((60, 20), "C.UTF-8");
    for text in ["began 14:59:03.700Z", "14:59:03.825Z   +125 ms  tokenizer received it"] {
        assert!(drawn.contains(text), "{text} in {drawn}");
    }
}

#[test]
fn ten_thousand_requests_are_sorted_filtered_and_drawn() {
    let mut scene = Scene::delivering();
    for n in 0..10_000u64 {
        scene.send(MS * n, &[(format!("{n:032x}").as_str(), 1, 1)]);
    }
    let mut fixture = Fixture::of(scene);
    fixture.refresh();
    fixture.press(&[Action::OpenTab(Tab::Requests)]);
    fixture.ui.sort = SortOrder { column: RequestColumn::with_heading("gap"), is_descending: true };
    fixture.update();
    assert_eq!(
        (fixture.model.table.visible_count(), fixture.model.table.visible_row(0).map(|r| r.gap_ns)),
        (10_000, Some(Some(9_999 * MS)))
    );
    assert!(fixture.drawn((80, 24), "C.UTF-8").contains(" …00000000000000a "));
}

/// A request in flight at the same time, whose frames did not wait, is no part of a backlog.
#[test]
fn f_on_a_growing_backlog_lists_the_requests_whose_frames_waited() {
    let mut fixture = Fixture::of(Scene::delivering());
    for (at_ms, rid, completion) in [(0, "prompt", 1), (1_000, "late", 1), (5_000, "prompt", 2), (6_000, "later", 1)] {
        fixture.scene.send(at_ms * MS, &[(rid, 1, completion)]);
        let seq = fixture.scene.sent_frames(0) - 1;
        let wait_ms = if rid == "prompt" { 1 } else { 2_000 };
        fixture.scene.receive((at_ms + wait_ms) * MS, seq, seq);
    }
    fixture.scene.tick(9_000 * MS);
    fixture.refresh();
    let hop = String::from("scheduler->tokenizer");
    let [began, last_at] = [1_100, 2_500].map(|ms| MonoNs(ms * MS));
    let verdict = Verdict { hop, ..Verdict::default() };
    let finding = Finding { kind: "backlog", began, last_at, verdict, ..Finding::default() };
    fixture.model.findings = vec![finding];
    fixture.press(&[Action::OpenTab(Tab::Findings), Action::ListRequestsOfFinding]);
    assert_eq!(fixture.ui.filter.text, "waited:scheduler->tokenizer@1.100s..2.500s");
    let listed = |fixture: &Fixture| {
        let count = fixture.model.table.visible_count();
        fixture.model.table.visible_rows(0..count).iter().map(|row| row.rid.clone()).collect::<Vec<_>>()
    };
    assert_eq!(listed(&fixture), ["late"]);
    assert!(!fixture.ui.filter.may_lack_requests());
    type_filter(&mut fixture, "waited:Scheduler->tokenizer");
    fixture.press(&[Action::AcceptText]);
    let mut all = listed(&fixture);
    all.sort_unstable();
    assert_eq!(all, ["late", "later"], "at any time");
    type_filter(&mut fixture, "waited:scheduler->nobody");
    let drawn = fixture.drawn((80, 24), "C.UTF-8").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(drawn.contains("! no hop is named scheduler->nobody: the hops are scheduler->tokenizer"), "{drawn}");
}

/// Those that were received late, and those that wait.
#[test]
fn a_first_token_gap_lists_the_requests_that_it_counts() {
    let mut fixture = Fixture::of(Scene::delivering());
    fixture.scene.send(0, &[("received", 1, 1)]);
    fixture.scene.send(MS, &[("waiting", 1, 1)]);
    fixture.scene.receive(2_000 * MS, 0, 1);
    fixture.scene.send(2_900 * MS, &[("new", 1, 1)]);
    fixture.scene.tick(3_000 * MS);
    fixture.refresh();
    let finding = fixture.model.findings.iter().find(|finding| finding.kind == "first-token-gap");
    assert_eq!(finding.map(|finding| finding.verdict.requests.counted()), Some(2));
    type_filter(&mut fixture, "finding:first-token-gap");
    fixture.press(&[Action::AcceptText]);
    let mut listed: Vec<&str> = fixture.model.table.visible_rows(0..9).iter().map(|row| row.rid.as_str()).collect();
    listed.sort_unstable();
    assert_eq!(listed, ["received", "waiting"]);
}

#[test]
fn similar_rids_can_be_told_apart_on_a_narrow_screen() {
    let mut fixture = Fixture::of(Scene::delivering());
    for n in 0..20 {
        fixture.scene.send(n * MS, &[(format!("chatcmpl-bench-3335eef3-{}-0123456789abcdef", 100 + n).as_str(), 1, 1)]);
    }
    fixture.refresh();
    fixture.press(&[Action::OpenTab(Tab::Requests)]);
    let drawn = fixture.drawn((80, 24), "C.UTF-8");
    for n in 0..18 {
        assert!(drawn.contains(&format!("{n}-012")), "{n}: {drawn}");
    }
}

#[test]
fn a_missed_receive_is_no_wait_and_evicted_chunks_are_named() {
    let mut fixture = Fixture::of(Scene::delivering_with_history(4));
    fixture.scene.send(0, &[("missed", 1, 1)]);
    fixture.scene.send(10 * MS, &[("prompt", 1, 1)]);
    // A connection keeps the order, so the first frame was received before.
    fixture.scene.receive(20 * MS, 1, 1);
    fixture.scene.send(30 * MS, &[("waiting", 1, 1)]);
    fixture.scene.tick(2_000 * MS);
    fixture.refresh();
    type_filter(&mut fixture, "waited:scheduler->tokenizer");
    fixture.press(&[Action::AcceptText]);
    let table = &fixture.model.table;
    assert_eq!((table.visible_count(), table.visible_row(0).map(|row| row.rid.as_str())), (1, Some("waiting")));
    assert!(!fixture.ui.filter.may_lack_requests());
    fixture.scene.send(40 * MS, &[("last", 1, 1)]);
    fixture.update();
    assert!(fixture.ui.filter.may_lack_requests(), "the oldest event is not kept any more");
    let drawn = fixture.drawn((80, 24), "C.UTF-8");
    assert!(drawn.contains("; older chunks are evicted"), "{drawn}");
}

/// Presses `f` on each finding that counts requests, and compares the list with the count in its evidence.
fn assert_lists_have_the_counted_requests(fixture: &mut Fixture, kinds: &[&str]) {
    for kind in kinds {
        let index = fixture.model.findings.iter().position(|finding| finding.kind == *kind);
        let index = index.unwrap_or_else(|| panic!("{kind} in {:?}", fixture.model.findings));
        let finding = &fixture.model.findings[index];
        let counted = ["requests_late", "requests"].iter().find_map(|key| finding.verdict.evidence.get(*key)?.as_u64());
        assert_eq!(counted, Some(finding.verdict.requests.counted()), "{kind}");
        fixture.press(&[Action::OpenItem(Tab::Findings, index), Action::ListRequestsOfFinding]);
        assert_eq!(Some(fixture.model.table.matching_count as u64), counted, "{kind}: {}", fixture.ui.filter.text);
        let worst_rid = &fixture.model.findings[index].verdict.rid;
        assert!(worst_rid.is_empty() || fixture.ui.selected_rid.as_ref() == Some(worst_rid), "{kind}: {worst_rid}");
        let drawn = fixture.drawn((100, 30), "C.UTF-8");
        assert!(!drawn.contains("are kept"), "{kind}: {drawn}");
    }
}

#[test]
fn f_on_late_first_tokens_lists_the_late_requests() {
    let mut fixture = Fixture::of(Scene::delivering());
    let requests = HopId(1);
    fixture.scene.emit(0, What::Hop(Hop::with_requests(requests, "tokenizer->scheduler", Capabilities::SENT)));
    for (number, (rid, wait_ms)) in (0..).zip([("a", 3_000), ("quick", 20), ("b", 4_000), ("c", 2_500)]) {
        let at_ms = number * 5_000;
        let id = FrameId::new(requests, 0, number);
        let request = DispatchedRequest { prompt_tokens: Some(512), ..DispatchedRequest::new(rid) };
        let kind = DispatchKind::Requests;
        let dispatch = Dispatch { id, bytes: 900, kind, index: 0, request: Some(request) };
        fixture.scene.emit(at_ms * MS, What::Dispatched(dispatch));
        fixture.scene.send((at_ms + wait_ms) * MS, &[(rid, 1, 1)]);
        fixture.scene.receive((at_ms + wait_ms + 1) * MS, number, number);
        fixture.scene.deliver((at_ms + wait_ms + 2) * MS, rid, 1, 1);
    }
    fixture.scene.tick(20_000 * MS);
    fixture.refresh();
    assert_lists_have_the_counted_requests(&mut fixture, &["slow-first-token"]);
    assert_eq!(fixture.ui.filter.text, "finding:slow-first-token");
    assert_eq!(fixture.ui.sort.column.definition_on_screen().head, "ttft");
    assert_eq!(fixture.model.table.visible_row(0).map(|row| row.rid.as_str()), Some("b"), "the longest is first");
}

#[test]
fn f_on_inflated_counts_lists_the_requests_and_their_flag_says_why() {
    let mut fixture = Fixture::of(Scene::delivering());
    for count in 1..=9_u32 {
        let at = u64::from(count) * 100 * MS;
        fixture.scene.send(at, &[("summed", 1, count), ("correct", 1, count)]);
        fixture.scene.receive(at + MS, u64::from(count) - 1, count.into());
        fixture.scene.deliver(at + 2 * MS, "summed", count, count);
        fixture.scene.deliver(at + 2 * MS, "correct", 1, count);
    }
    fixture.scene.tick(2_000 * MS);
    fixture.refresh();
    assert_lists_have_the_counted_requests(&mut fixture, &["inflation"]);
    assert_eq!(fixture.model.table.visible_row(0).map(|row| row.rid.as_str()), Some("summed"));
    fixture.press(&[Action::OpenSelection]);
    let drawn = fixture.drawn((100, 30), "C.UTF-8");
    assert!(drawn.contains("INFLATE its tokens so far were listed or counted as new ones"), "{drawn}");
}

#[test]
fn requests_of_a_finding_that_are_not_kept_are_counted() {
    let mut fixture = Fixture::of(Scene::delivering());
    fixture.scene.send(0, &[("kept", 1, 1)]);
    fixture.scene.tick(MS);
    fixture.refresh();
    let requests = ["kept", "evicted"].into_iter().collect();
    let verdict = Verdict { requests, hop: String::from("a->worker 1"), ..Verdict::default() };
    fixture.model.findings = vec![Finding { kind: "queued", verdict, ..Finding::default() }];
    fixture.press(&[Action::OpenTab(Tab::Findings), Action::ListRequestsOfFinding]);
    assert_eq!(fixture.ui.filter.text, "finding:queued@a->worker_1");
    let drawn = fixture.drawn((120, 30), "C.UTF-8");
    assert!(drawn.contains("1 of 1 requests  filter: finding:queued@a->worker_1; 1 of its 2 are kept"), "{drawn}");
    fixture.model.findings[0].verdict.requests = ["evicted"].into_iter().collect();
    fixture.model.refresh_rows(&fixture.scene.analysis, FINISHED_SHOWN, &fixture.ui.pins);
    fixture.update();
    let drawn = fixture.drawn((120, 30), "C.UTF-8");
    assert!(drawn.contains("the finding's requests are not kept"), "{drawn}");
    for (typed, expected) in [
        ("finding:queued", None),
        ("finding:burst", Some("! the run has no finding burst")),
        ("finding:queud", Some("did you mean queued?")),
        ("-finding:burst", Some("! the run has no finding burst")),
    ] {
        type_filter(&mut fixture, typed);
        let drawn = fixture.drawn((120, 30), "C.UTF-8");
        assert!(expected.is_none_or(|expected| drawn.contains(expected)), "{typed}: {drawn}");
        assert_eq!(drawn.contains("filter: ") && drawn.contains("! "), expected.is_some(), "{typed}: {drawn}");
    }
}
