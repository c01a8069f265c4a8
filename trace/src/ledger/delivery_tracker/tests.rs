//! Tests of the delivery tracker alone: covered, merged and dropped chunks.

use super::*;

/// Each chunk's ids are the positions of its tokens.
fn push(tracker: &mut DeliveryTracker, entry: InFlightEntry, whole: bool) {
    let ids: Vec<i64> = (entry.end_count - entry.tokens..entry.end_count).map(|place| i64::from(place) + 1).collect();
    tracker.push_chunk(entry, &ids, whole);
}

fn put(tracker: &mut DeliveryTracker, end: u32, counted: u32, tokens: u32, whole: bool) {
    let nth = tracker.in_flight.len() as u32 + 1;
    push(
        tracker,
        InFlightEntry {
            end_count: end,
            reported_count: counted,
            tokens,
            first_number: nth,
            ..InFlightEntry::default()
        },
        whole,
    );
}

/// Chunks known only by their counts.
fn imprecise(ends: &[u32]) -> DeliveryTracker {
    let mut tracker = DeliveryTracker::new(0, None);
    let mut before = 0;
    for (nth, &end) in (1..).zip(ends) {
        let tokens = end - std::mem::replace(&mut before, end);
        push(
            &mut tracker,
            InFlightEntry {
                end_count: end,
                reported_count: end,
                tokens,
                first_number: nth,
                is_imprecise: true,
                ..InFlightEntry::default()
            },
            true,
        );
    }
    tracker
}

/// Returns (delivered, merged, dropped, tokens lost, unjudged).
fn counts(outcomes: OutcomeCounts) -> [u64; 5] {
    [outcomes.delivered, outcomes.merged, outcomes.dropped, outcomes.tokens_lost, outcomes.unjudged]
}

fn tracker(chunks: &[(u32, u32)]) -> DeliveryTracker {
    let mut tracker = DeliveryTracker::new(0, None);
    for &(end, tokens) in chunks {
        put(&mut tracker, end, end, tokens, true);
    }
    tracker
}

fn delivery(mode: Mode, tokens: u32, to: u32, finished: bool) -> Delivery<'static> {
    Delivery { mode, finished, ..Delivery::new("r", tokens, Some(to)) }
}

fn incremental(tokens: u32, to: u32) -> Delivery<'static> {
    delivery(Mode::Incremental, tokens, to, false)
}

#[test]
fn deliveries_cover_merge_or_drop_the_chunks_before_their_end() {
    const ONE: [u64; 5] = [1, 0, 0, 0, 0];
    let finished = |tokens, to| delivery(Mode::Incremental, tokens, to, true);
    let without_text = Delivery { without_text: 1, ..incremental(3, 3) };
    let whole = [(1, 1), (2, 1), (4, 2), (5, 1)];
    let finish = [(1, 1), (1, 0)];
    let missed = DeliveryTracker { epoch: 1, ..tracker(&[(1, 1), (2, 1), (3, 1)]) };
    for (case, mut tracker, deliveries) in [
        (
            "chunks without text come with others",
            tracker(&[(1, 1), (2, 1), (3, 1)]),
            [(without_text, [2, 1, 0, 0, 0])].as_slice(),
        ),
        ("a waiter merges", tracker(&whole), &[(incremental(4, 4), [1, 2, 0, 0, 0]), (incremental(1, 5), ONE)]),
        ("an empty finish is merged", tracker(&finish), &[(finished(1, 1), [1, 1, 0, 0, 0])]),
        ("an empty finish replaces a chunk", tracker(&finish), &[(finished(0, 1), [1, 0, 1, 1, 0])]),
        ("an empty finish is separate", tracker(&finish), &[(incremental(1, 1), ONE), (finished(0, 1), ONE)]),
        ("deliveries were missed", missed, &[(incremental(1, 3), [1, 0, 0, 0, 2])]),
        // The column does not show where the chunk begins. Tokens before it were delivered before observation began.
        ("an imprecise first chunk", imprecise(&[5, 6]), &[(incremental(1, 5), ONE), (incremental(1, 6), ONE)]),
        // Counts do not show a frame lost before the first hop. Its tokens are not dropped from the next chunk.
        ("a frame was lost before a chunk", imprecise(&[1, 3]), &[(incremental(1, 1), ONE), (incremental(1, 3), ONE)]),
        // Two chunks merged across such a frame may carry as many tokens as the second chunk alone.
        ("imprecise chunks may be merged", imprecise(&[1, 4]), &[(incremental(2, 4), [1, 0, 0, 0, 1])]),
        ("imprecise chunks are merged", imprecise(&[2, 5]), &[(incremental(5, 5), [1, 1, 0, 0, 0])]),
        // A request's last chunk may carry no tokens; those delivered with it may belong to the previous chunk.
        ("an imprecise finish of three chunks", imprecise(&[1, 2, 3]), &[(finished(1, 3), [1, 0, 1, 1, 1])]),
        ("an imprecise finish of two chunks", imprecise(&[1, 2]), &[(finished(1, 2), [1, 0, 0, 0, 1])]),
        // The wire lost token 2, and the frame of token 3 was not observed. A delivery of tokens 1 and 3 does not drop token 1.
        ("a delivery ends after the observed chunks", tracker(&[(1, 1)]), &[(incremental(2, 3), [0, 0, 0, 0, 1])]),
    ] {
        for (delivery, expected) in deliveries {
            assert_eq!(counts(tracker.judge_delivery(delivery, 0).judged.count_outcomes()), *expected, "{case}");
        }
    }
}

#[test]
fn a_waiter_that_keeps_the_last_chunk_drops_the_others() {
    let mut tracker = tracker(&[(1, 1), (2, 1), (4, 2), (5, 1)]);
    let outcome = tracker.judge_delivery(&incremental(1, 5), 0);
    assert_eq!(counts(outcome.judged.count_outcomes()), [1, 0, 3, 4, 0]);
    assert_eq!((outcome.new_tokens, tracker.chunks_in_flight), (1, 0));
}

#[test]
fn cumulative_deliveries_cover_what_they_skip() {
    let mut tracker = tracker(&[(1, 1), (2, 1), (3, 1), (4, 1)]);
    let outcome = tracker.judge_delivery(&delivery(Mode::Cumulative, 3, 3, false), 0);
    assert_eq!(counts(outcome.judged.count_outcomes()), [1, 2, 0, 0, 0]);
    assert_eq!((outcome.new_tokens, tracker.chunks_in_flight), (3, 1));
}

#[test]
fn an_aborts_repeated_id_delivers_nothing_new() {
    let mut tracker = tracker(&[(1, 1), (2, 1)]);
    tracker.judge_delivery(&incremental(2, 2), 0);
    let outcome = tracker.judge_delivery(&delivery(Mode::Incremental, 1, 2, true), 0);
    assert_eq!((outcome.new_tokens, outcome.judged.count_outcomes()), (0, OutcomeCounts::default()));
}

#[test]
fn a_merge_across_recomputed_chunks_is_not_a_drop() {
    let mut tracker = tracker(&[(99, 99)]);
    tracker.judge_delivery(&incremental(99, 99), 0);
    put(&mut tracker, 100, 100, 1, true);
    put(&mut tracker, 100, 51, 0, true);
    let outcomes = tracker.judge_delivery(&incremental(1, 51), 0).judged.count_outcomes();
    assert_eq!(counts(outcomes), [1, 1, 0, 0, 0]);
    put(&mut tracker, 101, 101, 1, true);
    assert_eq!(counts(tracker.judge_delivery(&incremental(1, 101), 0).judged.count_outcomes()), [1, 0, 0, 0, 0]);
}

#[test]
fn a_full_tracker_keeps_exact_token_counts() {
    let mut tracker = tracker(&[(1, 1)]);
    for end in 2..=4 {
        put(&mut tracker, end, end, 1, false);
    }
    put(&mut tracker, 5, 5, 1, true);
    assert_eq!((tracker.entry_count(), tracker.chunks_in_flight), (2, 5));
    let outcome = tracker.judge_delivery(&incremental(1, 5), 0);
    assert_eq!(counts(outcome.judged.count_outcomes()), [1, 0, 4, 4, 0]);
}

#[test]
fn counts_alone_prove_only_the_last_token_of_each_chunk_dropped() {
    let mut tracker = imprecise(&[1, 4, 5]);
    let outcome = tracker.judge_delivery(&incremental(1, 5), 0);
    assert_eq!(counts(outcome.judged.count_outcomes()), [1, 0, 2, 2, 0]);
    let places: Vec<_> = outcome.lost_ranges.iter().map(|lost| (lost.tokens, &*lost.ids)).collect();
    assert_eq!(places, [([1, 1], &[1][..]), ([4, 4], &[4][..])]);
}

/// Two empty chunks with counts 1 and 3 share an entry at the limit. Two deliveries end with them, but match neither, since a shared
/// entry has no count of its own. The chunks must be unjudged, not dropped.
#[test]
fn merged_entries_of_a_recomputing_request_match_no_delivery() {
    let mut tracker = tracker(&[(2, 2), (3, 1)]);
    put(&mut tracker, 3, 1, 0, true);
    put(&mut tracker, 3, 3, 0, false);
    assert_eq!(counts(tracker.judge_delivery(&incremental(3, 1), 0).judged.count_outcomes()), [0; 5]);
    assert_eq!(counts(tracker.judge_delivery(&incremental(0, 3), 0).judged.count_outcomes()), [0, 0, 0, 0, 4]);
    assert_eq!((tracker.chunks_in_flight, tracker.entries_behind), (0, 0));
    put(&mut tracker, 4, 4, 1, true);
    assert_eq!(counts(tracker.judge_delivery(&incremental(1, 4), 0).judged.count_outcomes()), [1, 0, 0, 0, 0]);
}

#[test]
fn the_first_cumulative_delivery_of_a_late_join_counts_no_new_tokens() {
    let mut tracker = DeliveryTracker::new(0, None);
    tracker.is_incomplete = true;
    let outcome = tracker.judge_delivery(&delivery(Mode::Cumulative, 7, 7, false), 0);
    assert_eq!((outcome.new_tokens, outcome.missed_deliveries), (0, true));
    put(&mut tracker, 8, 8, 1, true);
    let outcome = tracker.judge_delivery(&delivery(Mode::Cumulative, 8, 8, false), 0);
    assert_eq!((outcome.new_tokens, counts(outcome.judged.count_outcomes())), (1, [1, 0, 0, 0, 0]));
}

#[test]
fn a_delivery_reported_before_its_chunk_is_not_a_drop() {
    let mut tracker = DeliveryTracker::new(0, Some(1));
    put(&mut tracker, 1, 1, 1, true);
    put(&mut tracker, 2, 2, 1, true);
    assert_eq!(counts(tracker.outcomes), [0, 0, 0, 0, 1]);
    assert_eq!(counts(tracker.judge_delivery(&incremental(1, 2), 0).judged.count_outcomes()), [1, 0, 0, 0, 0]);
}

#[test]
fn chunks_queued_for_another_worker_are_not_dropped() {
    let mut tracker = tracker(&[]);
    tracker.set_hop_of_next_chunk(HopId(1));
    put(&mut tracker, 1, 1, 1, true);
    tracker.set_hop_of_next_chunk(HopId(2));
    put(&mut tracker, 2, 2, 1, true);
    assert_eq!(counts(tracker.judge_delivery(&incremental(1, 2), 0).judged.count_outcomes()), [1, 0, 0, 0, 1]);
    tracker.set_hop_of_next_chunk(HopId(2));
    put(&mut tracker, 3, 3, 1, true);
    put(&mut tracker, 4, 4, 1, true);
    assert_eq!(counts(tracker.judge_delivery(&incremental(1, 4), 0).judged.count_outcomes()), [1, 0, 1, 1, 0]);
}

/// Tokens 2, 3 and 5 share an entry at the limit, and token 4 never arrived. After the delivery of 3, the delivery of 5 proves no drop.
#[test]
fn chunks_of_a_shared_entry_that_are_delivered_one_by_one_do_not_count_as_merged() {
    for mode in [Mode::Incremental, Mode::Cumulative] {
        let mut tracker = DeliveryTracker::new(0, None);
        put(&mut tracker, 1, 1, 1, true);
        for end in 2..=4 {
            put(&mut tracker, end, end, 1, end == 2);
        }
        for to in 1..=4 {
            let tokens = if mode == Mode::Cumulative { to } else { 1 };
            tracker.judge_delivery(&delivery(mode, tokens, to, false), 0);
        }
        assert_eq!(counts(tracker.outcomes), [1, 0, 0, 0, 3], "{mode:?}");
    }
}

#[test]
fn a_delivery_that_ends_inside_a_merged_entry_proves_no_later_drop() {
    let mut tracker = imprecise(&[1]);
    put(&mut tracker, 2, 2, 1, true);
    put(&mut tracker, 3, 3, 1, false);
    put(&mut tracker, 5, 5, 1, false);
    tracker.judge_delivery(&incremental(1, 3), 1);
    assert_eq!(counts(tracker.judge_delivery(&incremental(1, 5), 1).judged.count_outcomes()), [0, 0, 0, 0, 3]);
}

#[test]
fn chunks_merged_with_unobserved_tokens_are_not_dropped() {
    let mut tracker = tracker(&[(1, 1), (2, 1)]);
    tracker.judge_delivery(&incremental(1, 1), 0);
    push(
        &mut tracker,
        InFlightEntry {
            end_count: 4,
            reported_count: 4,
            tokens: 1,
            first_number: 3,
            follows_gap: true,
            ..InFlightEntry::default()
        },
        true,
    );
    // The delivery holds tokens 2 and 4; token 3 was lost on the wire.
    assert_eq!(counts(tracker.judge_delivery(&incremental(2, 4), 0).judged.count_outcomes()), [1, 0, 0, 0, 1]);
}

#[test]
fn a_chunk_that_ends_before_its_neighbour_in_an_entry_runs_behind() {
    let mut tracker = tracker(&[(4, 4)]);
    put(&mut tracker, 2, 2, 1, false);
    assert_eq!(counts(tracker.judge_delivery(&incremental(4, 4), 0).judged.count_outcomes()), [0, 0, 0, 0, 2]);
    assert_eq!((tracker.entries_behind, tracker.chunks_in_flight), (0, 0));
}

#[test]
fn counts_at_the_limit_of_their_type_are_kept() {
    let mut tracker = tracker(&[]);
    put(&mut tracker, u32::MAX, u32::MAX, 1, true);
    put(&mut tracker, u32::MAX, u32::MAX, 1, false);
    assert_eq!((tracker.chunks_in_flight, tracker.in_flight.len()), (2, 1));
}
