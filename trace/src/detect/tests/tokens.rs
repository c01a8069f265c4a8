//! Findings about tokens: lost, merged, counted twice, or out of order.

use super::{SECOND, Scene};
use crate::detect::Severity;
use crate::engine::{Mode, example};
use crate::event::{
    Answer, ArgumentsPart, Capabilities, Chunk, Delivery, Engine, Finish, Hop, Response, ToolCallOutcome, ToolCalls,
    What,
};
use crate::id::HopId;
use crate::ledger::Limits;

#[test]
fn text_left_out_is_not_blamed_on_the_waiter() {
    let mut scene = Scene::delivering();
    scene.stream(0, "a", 1..=4);
    let delivery = Delivery { finished: true, response: Response::Text, ..Delivery::new("a", 1, Some(4)) };
    scene.apply(8, What::Delivered(delivery));
    let found = scene.check("dropped-chunks", 9);
    assert_eq!(found[0].hop, "tokenizer->client");
    assert_eq!(found[0].evidence["tokens_lost_from_text"], found[0].evidence["tokens_lost"]);
    let advice = found[0].advice.as_deref().expect("advice");
    assert!(advice.contains("middleware") && !advice.contains("0.5.10"), "{advice}");
}

#[test]
fn predicted_drops_need_a_shared_wakeup_and_are_not_confirmed() {
    let mut scene = Scene::skip_path();
    scene.send(0, &[("a", 1, 1), ("b", 1, 1)]);
    scene.send(1, &[("a", 1, 2)]);
    scene.receive_in_wakeup(2, 0, 7);
    assert!(scene.check("dropped-chunks-predicted", 3).is_empty());
    scene.receive_in_wakeup(3, 1, 7);
    let found = scene.check("dropped-chunks-predicted", 4);
    assert_eq!(found[0].evidence["chunks_dropped_predicted"], 1);
    assert!(found[0].advice.as_deref().is_some_and(|a| a.contains("0.5.10")));
    assert!(scene.check("dropped-chunks", 4).is_empty());
}

#[test]
fn predicted_drops_without_affected_ids_are_informational() {
    let mut scene = Scene::skip_path();
    scene.send(0, &[("a", 1, 1)]);
    scene.send(1, &[("a", 1, 2)]);
    scene.receive_in_wakeup(2, 0, 7);
    scene.receive_in_wakeup(3, 1, 7);
    assert_eq!(scene.check("dropped-chunks-predicted", 4)[0].severity, Severity::Warning);
    let text = Hop { last: true, ..Hop::new(HopId(1), "detokenizer->tokenizer", Capabilities::default()) };
    scene.apply(5, What::Hop(text));
    assert_eq!(scene.check("dropped-chunks-predicted", 6)[0].severity, Severity::Info);
}

#[test]
fn no_drop_is_predicted_for_a_response_without_gaps() {
    for response in [Response::Text, Response::Whole] {
        let mut scene = Scene::skip_path();
        scene.stream(0, "a", 1..=4);
        scene.receive_in_wakeup(5, 0, 7);
        scene.receive_in_wakeup(6, 1, 7);
        assert_eq!(scene.check("dropped-chunks-predicted", 7).len(), 1);
        scene.respond(8, response, "a", u32::from(response == Response::Whole) * 4);
        scene.receive_in_wakeup(9, 2, 8);
        scene.receive_in_wakeup(10, 3, 8);
        assert!(scene.check("dropped-chunks-predicted", 11).is_empty(), "{response:?}");
    }
}

#[test]
fn a_short_response_of_an_untracked_request_is_reported() {
    let mut scene = Scene::skip_path();
    let answer = |rid, tokens| Answer::new(rid, Some(tokens), Some(8));
    scene.apply(1, What::Answered(answer("whole", 8)));
    assert!(scene.check("short-answers", 2).is_empty());
    scene.apply(3, What::Answered(answer("short", 5)));
    let found = scene.check("short-answers", 4);
    assert_eq!(&*found[0].rid, "short");
    assert_eq!(found[0].evidence["tokens_lost"], 3);
}

#[test]
fn observed_deliveries_confirm_drops() {
    let mut scene = Scene::delivering();
    scene.stream(0, "a", 1..=3);
    scene.deliver(5, "a", 1, 3, false);
    let found = scene.check("dropped-chunks", 6);
    assert_eq!(found[0].severity, Severity::Critical);
    assert_eq!(found[0].evidence["tokens_lost"], 2);
}

#[test]
fn only_damaged_tool_calls_are_reported() {
    let mut scene = Scene::delivering();
    let mut answer = |rid, outcome, whole_chunks| {
        let part = ArgumentsPart { at: 3, chars: 7, tokens: [4, 5], whole_chunks, events: [1, 1], whole_events: false };
        let calls = ToolCalls { calls: 1, call: 1, outcome, events: 2, part: Some(part), ..ToolCalls::default() };
        let answer = Answer { tool_calls: Some(calls), ..Answer::new(rid, None, None) };
        scene.apply(1, What::Answered(answer));
        scene.check("damaged-tool-calls", 2)
    };
    assert_eq!(answer("a", ToolCallOutcome::Unfinished, true).len(), 0);
    let found = answer("b", ToolCallOutcome::Missing, false);
    assert_eq!((&*found[0].rid, &found[0].evidence["responses"]), ("b", &1.into()));
    assert!(found[0].advice.as_deref().is_some_and(|advice| advice.contains("parser")));
    assert!(found[0].summary.contains("1 of 2 responses"));
}

#[test]
fn a_lost_frame_is_reported_and_an_unobserved_one_is_not() {
    let mut scene = Scene::skip_path();
    scene.send(0, &[("a", 1, 1)]);
    scene.lose(1);
    scene.send(2, &[("a", 1, 9)]);
    assert!(scene.check("wire-loss", 3).is_empty(), "missed observations are not losses on the wire");
    scene.send(3, &[("a", 1, 12)]);
    let found = scene.check("wire-loss", 4);
    assert_eq!((&*found[0].rid, &found[0].evidence["tokens_missing"]), ("a", &2.into()));
}

#[test]
fn unexplained_extra_ids_are_reported() {
    let mut scene = Scene::skip_path();
    scene.send(0, &[("a", 5, 5)]);
    scene.send(1, &[("a", 1, 6)]);
    assert!(scene.check("wire-arithmetic", 2).is_empty());
    scene.send(2, &[("a", 4, 8)]);
    assert_eq!(scene.check("wire-arithmetic", 3)[0].evidence["most_extra_ids"], 2);
}

#[test]
fn an_overtaken_chunk_is_reported() {
    let mut scene = Scene::workers(2);
    scene.stream(0, "a", 1..=4);
    assert!(scene.check("out-of-order", SECOND).is_empty());
    scene.send_to(1, 5, "a", 6);
    scene.send_to(0, 6, "a", 5);
    let found = scene.check("out-of-order", SECOND);
    assert_eq!((&*found[0].rid, &found[0].evidence["chunks"]), ("a", &1.into()));
}

#[test]
fn a_count_restart_after_a_retraction_is_not_out_of_order() {
    let mut scene = Scene::workers(2);
    scene.stream(0, "a", 1..=6);
    for n in 7..=9 {
        scene.send_chunk(0, n, Chunk { retractions: Some(1), ..Chunk::counted("a", 1, n as u32 - 4) });
    }
    assert!(scene.check("out-of-order", SECOND).is_empty());
}

#[test]
fn chunks_of_a_possible_next_request_with_the_same_rid_are_not_out_of_order() {
    let mut scene = Scene::workers(2);
    for rid in ["late", "again"] {
        scene.stream(0, rid, 1..=3);
        scene.send_chunk(0, 4, Chunk { finish: Some(Finish::Stop), ..Chunk::counted(rid, 1, 4) });
    }
    scene.send_to(1, 5, "late", 3);
    let found = scene.check("out-of-order", SECOND);
    assert_eq!((&*found[0].rid, &found[0].evidence["chunks"]), ("late", &1.into()));
    // Its beginning may be in the unreadable frame.
    scene.send_undecodable(1, 6, "truncated");
    scene.send_to(1, 7, "again", 2);
    assert_eq!(scene.check("out-of-order", SECOND), found);
}

#[test]
fn only_a_request_that_changes_workers_is_reported() {
    let mut scene = Scene::workers(2);
    scene.stream(0, "stays", 1..=3);
    scene.stream(1, "moves", 1..=3);
    assert!(scene.check("rid-changed-worker", SECOND).is_empty());
    scene.send_to(0, 4, "moves", 4);
    let found = scene.check("rid-changed-worker", SECOND);
    assert_eq!((&*found[0].rid, &found[0].evidence["requests"]), ("moves", &1.into()));
    assert_eq!(found[0].evidence["chunks_out_of_order"], 0);
    let has_changed = |rid| scene.ledger.numbers(scene.ledger.request(rid).expect("it is live")).changed_receiver;
    assert_eq!((has_changed("stays"), has_changed("moves")), (false, true));
}

#[test]
fn a_consumer_that_sums_cumulative_counts_is_reported() {
    let mut scene = Scene::delivering();
    for n in 1..=9 {
        scene.send(n, &[("a", 1, n as u32)]);
        scene.deliver(n, "a", n as u32, n as u32, n == 9);
    }
    let found = scene.check("inflation", 10);
    assert_eq!(found[0].evidence["tokens_counted"], 45);
    assert_eq!(found[0].evidence["tokens_made"], 9);
    assert!(found[0].requests.contains("a") && !found[0].requests.contains("b"));
    let numbers = scene.ledger.finished().find(|summary| &*summary.rid == "a").map(|summary| summary.numbers);
    let numbers = numbers.or_else(|| Some(scene.ledger.numbers(scene.ledger.request("a")?)));
    assert!(numbers.is_some_and(|numbers| numbers.inflated), "exports mark the request");
}

#[test]
fn a_count_restart_after_an_unobserved_retraction_is_not_inflation() {
    let mut scene = Scene::delivering();
    scene.send(1, &[("a", 4, 4)]);
    scene.send(2, &[("a", 2, 6)]);
    // 20 tokens and a retraction, all unobserved. Merged, they are a delivery of 20 tokens with a count of 1.
    scene.deliver(3, "a", 20, 1, false);
    assert!(scene.check("inflation", 4).is_empty());
    // 40 tokens, a retraction, and 20 tokens again.
    scene.deliver(5, "a", 20, 20, false);
    assert!(scene.check("inflation", 6).is_empty());
}

#[test]
fn usage_that_sums_all_counts_is_reported_as_inflation_not_loss() {
    let mut scene = Scene::delivering();
    for n in 1..=9 {
        scene.send(n, &[("a", 1, n as u32)]);
        scene.deliver(n, "a", 1, n as u32, false);
    }
    let answer = |claimed| Answer::new("a", Some(9), Some(claimed));
    for claimed in [9, 44, 46] {
        scene.apply(10, What::Answered(answer(claimed)));
    }
    assert!(scene.check("summed-counts", 11).is_empty());
    scene.apply(12, What::Answered(answer(45)));
    let found = scene.check("summed-counts", 13);
    assert_eq!(found[0].severity, Severity::Warning);
    assert_eq!(found[0].evidence["tokens_counted"], 45);
    assert_eq!(found[0].evidence["tokens_made"], 9);
    // A delivery that claims such a sum says nothing about positions, so it proves no loss.
    scene.stream(0, "b", 1..=6);
    scene.deliver(30, "b", 1, 21, true);
    assert!(scene.check("dropped-chunks", 31).is_empty());
    assert_eq!(scene.check("summed-counts", 31)[0].evidence["requests"], 2);
}

#[test]
fn a_count_on_another_worker_is_not_a_sum_of_earlier_counts() {
    let mut workers = Scene::workers(2);
    workers.stream(0, "a", 1..=9);
    workers.stream(1, "a", 10..=45);
    workers.deliver(46, "a", 1, 45, true);
    assert!(workers.check("summed-counts", SECOND).is_empty());
}

#[test]
fn a_cumulative_stream_of_an_incremental_release_is_reported() {
    let mut scene = Scene::skip_path();
    for n in 1..=6 {
        scene.send(n, &[("a", n as u32, n as u32)]);
    }
    let found = scene.check("inflation", 7);
    assert_eq!(found[0].severity, Severity::Warning);
    assert_eq!(found[0].evidence["confirmed"], false);
}

#[test]
fn incremental_and_cumulative_deliveries_in_one_run_are_reported() {
    let mut scene = Scene::delivering();
    scene.send(0, &[("a", 1, 1)]);
    // The first delivery of a request is the same in both modes.
    scene.deliver_as(1, Mode::Cumulative, "a", 1, 1, false);
    scene.send(2, &[("a", 1, 2)]);
    scene.deliver(3, "a", 1, 2, false);
    assert!(scene.check("mode-mix", 4).is_empty());
    scene.deliver_as(5, Mode::Cumulative, "a", 2, 2, true);
    assert_eq!(scene.check("mode-mix", 6).len(), 1);
}

#[test]
fn incremental_and_cumulative_streams_on_one_hop_are_reported() {
    let mut scene = Scene::skip_path();
    for n in 1..=5 {
        scene.send(n, &[("new", 1, n as u32), ("all", n as u32, n as u32)]);
    }
    assert_eq!(scene.check("mode-mix", 6)[0].hop, "scheduler->tokenizer");
}

#[test]
fn merged_deliveries_are_reported_as_merged_not_lost() {
    let mut scene = Scene::delivering();
    scene.send(0, &[("a", 1, 1)]);
    scene.deliver(1, "a", 1, 1, false);
    assert!(scene.check("merged-chunks", 2).is_empty());
    scene.send(3, &[("a", 1, 2)]);
    scene.send(4, &[("a", 1, 3)]);
    scene.deliver(5, "a", 2, 3, false);
    let found = scene.check("merged-chunks", 6);
    assert_eq!(found[0].hop, "tokenizer->client");
    assert_eq!(found[0].evidence["chunks"], 1);
    assert_eq!(found[0].evidence["confirmed"], true);
    assert_eq!(found[0].evidence["tokens_per_event"], 2.0);
    assert!(found[0].summary.ends_with("in bursts: 2.0 tokens per event on average"), "{}", found[0].summary);
}

#[test]
fn advice_on_merging_depends_on_how_busy_the_receiver_is() {
    let advice_if_processed_at = |at| {
        let all = Capabilities::SENT | Capabilities::RECEIVED | Capabilities::PROCESSED | Capabilities::DELIVERED;
        let mut scene = Scene::empty(example::ENGINES, Limits::default()).with_hop(all);
        scene.send(0, &[("a", 1, 1)]);
        scene.send(1, &[("a", 1, 2)]);
        scene.receive(2, 0);
        scene.receive(2, 1);
        scene.apply(at, What::Processed(Scene::id(1)));
        scene.deliver(100, "a", 2, 2, false);
        scene.check("merged-chunks", 100)[0].advice.clone().expect("advice")
    };
    let (idle, busy) = (advice_if_processed_at(12), advice_if_processed_at(99));
    assert!(idle.contains("although it is busy only 10 % of the run") && !idle.contains("it is CPU-bound"), "{idle}");
    assert!(busy.contains("is busy 97 % of the run: --workers") && !busy.contains("CPU-bound"), "{busy}");
}

#[test]
fn a_non_streaming_response_is_not_reported_as_merging() {
    let mut scene = Scene::delivering();
    scene.stream(0, "a", 1..=3);
    scene.respond(5, Response::Whole, "a", 3);
    assert!(scene.check("merged-chunks", 6).is_empty());
    let outcomes = scene.ledger.totals().chunks.outcomes;
    assert_eq!((outcomes.delivered, outcomes.merged), (3, 0));
    assert_eq!(scene.ledger.check_balance(), Ok(()));
}

#[test]
fn chunks_of_a_text_only_response_are_unjudged_and_its_tokens_unknown() {
    let mut scene = Scene::delivering();
    scene.send(1, &[("a", 1, 1)]);
    scene.respond(2, Response::Text, "a", 0);
    scene.send(3, &[("a", 1, 2)]);
    let totals = scene.ledger.totals();
    assert_eq!((totals.chunks.outcomes.unjudged, totals.tokens.uncounted), (2, 2));
    assert_eq!((scene.ledger.undelivered_chunks(), scene.ledger.tokens_delivered()), (0, None));
    assert_eq!(scene.ledger.request("a").expect("it is live").outcomes(), None);
    scene.send(4, &[("b", 1, 1)]);
    scene.deliver(5, "b", 1, 1, false);
    assert_eq!(scene.ledger.tokens_delivered(), Some(1));
    assert_eq!(scene.ledger.check_balance(), Ok(()));
}

#[test]
fn would_drop_reports_replaced_chunks_and_merging_does_not() {
    let mut scene = Scene::delivering();
    scene.apply(0, What::Engine(Engine { version: Some("0.5.9"), mode: Some(Mode::Cumulative), ..Engine::default() }));
    scene.stream(0, "a", 1..=3);
    scene.deliver_as(5, Mode::Cumulative, "a", 3, 3, true);
    let found = scene.check("would-drop", 6);
    assert_eq!(found[0].severity, Severity::Info);
    assert_eq!(found[0].evidence["chunks"], 2);
    assert!(scene.check("merged-chunks", 6).is_empty());
}
