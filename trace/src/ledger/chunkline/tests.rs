//! Tests of the delivery tracker alone: covered, merged and dropped chunks.

use super::*;

/// Each chunk's ids are the positions of its tokens.
fn put(line: &mut Line, end: u32, said: u32, tokens: u32, whole: bool) {
    let ids: Vec<i64> = (end - tokens..end).map(|place| i64::from(place) + 1).collect();
    let nth = line.outstanding.len() as u32 + 1;
    let chunk = Entering {
        end,
        said,
        tokens,
        missing: 0,
        nth,
        ids: &ids,
        vague: false,
        rebased: false,
    };
    line.push(chunk, whole);
}

/// Chunks known only by their counts.
fn vague(ends: &[u32]) -> Line {
    let mut line = Line::new(0, None);
    let mut before = 0;
    for (nth, &end) in (1..).zip(ends) {
        let ids: Vec<i64> = (before..end).map(|place| i64::from(place) + 1).collect();
        let chunk = Entering {
            end,
            said: end,
            tokens: end - before,
            missing: 0,
            nth,
            ids: &ids,
            vague: true,
            rebased: false,
        };
        line.push(chunk, true);
        before = end;
    }
    line
}

/// Returns (delivered, coalesced, dropped, tokens lost, unjudged).
fn told(fates: Fates) -> [u64; 5] {
    [
        fates.delivered,
        fates.coalesced,
        fates.dropped,
        fates.tokens_lost,
        fates.unjudged,
    ]
}

fn line(chunks: &[(u32, u32)]) -> Line {
    let mut line = Line::new(0, None);
    for &(end, tokens) in chunks {
        put(&mut line, end, end, tokens, true);
    }
    line
}

fn delivery(mode: Mode, tokens: u32, to: u32, finished: bool) -> Delivery<'static> {
    Delivery {
        rid: "r",
        tokens,
        mode,
        completion_tokens: Some(to),
        finished,
        response: Response::Streamed,
    }
}

fn incremental(tokens: u32, to: u32) -> Delivery<'static> {
    delivery(Mode::Incremental, tokens, to, false)
}

#[test]
fn a_waiter_that_keeps_the_last_chunk_drops_the_others() {
    let mut line = line(&[(1, 1), (2, 1), (4, 2), (5, 1)]);
    let outcome = line.deliver(&incremental(1, 5), 0);
    assert_eq!(
        outcome.fates,
        Fates {
            delivered: 1,
            dropped: 3,
            tokens_lost: 4,
            ..Fates::default()
        }
    );
    assert_eq!((outcome.new, line.outstanding()), (1, 0));
}

#[test]
fn a_waiter_that_merges_loses_nothing() {
    let mut line = line(&[(1, 1), (2, 1), (4, 2), (5, 1)]);
    assert_eq!(
        line.deliver(&incremental(4, 4), 0).fates,
        Fates {
            delivered: 1,
            coalesced: 2,
            ..Fates::default()
        }
    );
    assert_eq!(
        line.deliver(&incremental(1, 5), 0).fates,
        Fates {
            delivered: 1,
            ..Fates::default()
        }
    );
}

#[test]
fn cumulative_deliveries_cover_what_they_skip() {
    let mut line = line(&[(1, 1), (2, 1), (3, 1), (4, 1)]);
    let outcome = line.deliver(&delivery(Mode::Cumulative, 3, 3, false), 0);
    assert_eq!(
        outcome.fates,
        Fates {
            delivered: 1,
            coalesced: 2,
            ..Fates::default()
        }
    );
    assert_eq!((outcome.new, line.outstanding()), (3, 1));
}

#[test]
fn an_empty_finish_travels_with_its_merge_or_alone() {
    let mut merged = line(&[(1, 1), (1, 0)]);
    let last = delivery(Mode::Incremental, 1, 1, true);
    assert_eq!(
        merged.deliver(&last, 0).fates,
        Fates {
            delivered: 1,
            coalesced: 1,
            ..Fates::default()
        }
    );
    let mut kept = line(&[(1, 1), (1, 0)]);
    let empty = delivery(Mode::Incremental, 0, 1, true);
    let fates = Fates {
        delivered: 1,
        dropped: 1,
        tokens_lost: 1,
        ..Fates::default()
    };
    assert_eq!(kept.deliver(&empty, 0).fates, fates);
    let mut apart = line(&[(1, 1), (1, 0)]);
    assert_eq!(
        apart.deliver(&incremental(1, 1), 0).fates,
        Fates {
            delivered: 1,
            ..Fates::default()
        }
    );
    assert_eq!(
        apart.deliver(&empty, 0).fates,
        Fates {
            delivered: 1,
            ..Fates::default()
        }
    );
}

#[test]
fn missed_deliveries_are_not_taken_for_drops() {
    let mut line = line(&[(1, 1), (2, 1), (3, 1)]);
    let outcome = line.deliver(&incremental(1, 3), 1);
    assert_eq!(
        outcome.fates,
        Fates {
            delivered: 1,
            unjudged: 2,
            ..Fates::default()
        }
    );
}

#[test]
fn an_aborts_repeated_id_delivers_nothing_new() {
    let mut line = line(&[(1, 1), (2, 1)]);
    line.deliver(&incremental(2, 2), 0);
    let outcome = line.deliver(&delivery(Mode::Incremental, 1, 2, true), 0);
    assert_eq!((outcome.new, outcome.repeated, outcome.fates), (0, 1, Fates::default()));
}

#[test]
fn a_merge_across_a_recomputing_stretch_drops_nothing() {
    let mut line = line(&[(99, 99)]);
    line.deliver(&incremental(99, 99), 0);
    put(&mut line, 100, 100, 1, true);
    put(&mut line, 100, 51, 0, true);
    let fates = line.deliver(&incremental(1, 51), 0).fates;
    assert_eq!(
        fates,
        Fates {
            delivered: 1,
            coalesced: 1,
            ..Fates::default()
        }
    );
    put(&mut line, 101, 101, 1, true);
    assert_eq!(
        line.deliver(&incremental(1, 101), 0).fates,
        Fates {
            delivered: 1,
            ..Fates::default()
        }
    );
}

#[test]
fn a_full_line_keeps_exact_tokens() {
    let mut line = line(&[(1, 1)]);
    for end in 2..=4 {
        put(&mut line, end, end, 1, false);
    }
    put(&mut line, 5, 5, 1, true);
    assert_eq!((line.entries(), line.outstanding()), (2, 5));
    let outcome = line.deliver(&incremental(1, 5), 0);
    assert_eq!(
        outcome.fates,
        Fates {
            delivered: 1,
            dropped: 4,
            tokens_lost: 4,
            ..Fates::default()
        }
    );
}

/// The column does not show where the chunk begins. Tokens before it were delivered before observation began and are not dropped.
#[test]
fn a_first_chunk_that_does_not_show_its_beginning_loses_nothing_before_it() {
    let mut line = vague(&[5, 6]);
    assert_eq!(told(line.deliver(&incremental(1, 5), 0).fates), [1, 0, 0, 0, 0]);
    assert_eq!(told(line.deliver(&incremental(1, 6), 0).fates), [1, 0, 0, 0, 0]);
}

/// Counts do not show a frame lost before the first hop. Its tokens must not count as dropped from the next chunk.
#[test]
fn tokens_of_a_frame_that_vanished_are_not_dropped_from_the_chunk_behind_it() {
    let mut line = vague(&[1, 3]);
    line.deliver(&incremental(1, 1), 0);
    assert_eq!(told(line.deliver(&incremental(1, 3), 0).fates), [1, 0, 0, 0, 0]);
}

/// Two chunks merged across such a frame may carry as many tokens as the second chunk alone.
#[test]
fn a_merge_across_counts_that_do_not_tell_is_no_drop() {
    let mut line = vague(&[1, 4]);
    assert_eq!(told(line.deliver(&incremental(2, 4), 0).fates), [1, 0, 0, 0, 1]);
}

#[test]
fn what_counts_alone_prove_dropped_is_each_chunks_last_token() {
    let mut line = vague(&[1, 4, 5]);
    let outcome = line.deliver(&incremental(1, 5), 0);
    assert_eq!(told(outcome.fates), [1, 0, 2, 2, 0]);
    let places: Vec<_> = outcome.lost.iter().map(|lost| (lost.tokens, &*lost.ids)).collect();
    assert_eq!(places, [([1, 1], &[1][..]), ([4, 4], &[4][..])]);
    // A delivery of all 5 tokens contains both chunks.
    assert_eq!(
        told(vague(&[2, 5]).deliver(&incremental(5, 5), 0).fates),
        [1, 1, 0, 0, 0]
    );
}

/// A request's last chunk may carry no tokens; those delivered with it may belong to the previous chunk.
#[test]
fn a_finish_whose_tokens_are_not_shown_proves_no_drop() {
    let mut line = vague(&[1, 2, 3]);
    let last = delivery(Mode::Incremental, 1, 3, true);
    assert_eq!(told(line.deliver(&last, 0).fates), [1, 0, 1, 1, 1]);
    assert_eq!(
        told(
            vague(&[1, 2])
                .deliver(&delivery(Mode::Incremental, 1, 2, true), 0)
                .fates
        ),
        [1, 0, 0, 0, 1]
    );
}

/// The wire lost token 2, and the frame of token 3 was not observed. A delivery of tokens 1 and 3 must not drop token 1.
#[test]
fn a_delivery_that_reaches_past_what_was_seen_proves_no_drop() {
    let mut line = line(&[(1, 1)]);
    assert_eq!(told(line.deliver(&incremental(2, 3), 0).fates), [0, 0, 0, 0, 1]);
}

/// Two empty chunks with counts 1 and 3 share an entry at the limit. Two deliveries end with them, but match neither, since a shared
/// entry has no count of its own. The chunks must be unjudged, not dropped.
#[test]
fn neighbours_whose_counts_run_behind_are_found_by_none() {
    let mut line = line(&[(2, 2), (3, 1)]);
    put(&mut line, 3, 1, 0, true);
    put(&mut line, 3, 3, 0, false);
    assert_eq!(told(line.deliver(&incremental(3, 1), 0).fates), [0; 5]);
    assert_eq!(told(line.deliver(&incremental(0, 3), 0).fates), [0, 0, 0, 0, 4]);
    assert_eq!((line.outstanding(), line.behind), (0, 0));
    put(&mut line, 4, 4, 1, true);
    assert_eq!(told(line.deliver(&incremental(1, 4), 0).fates), [1, 0, 0, 0, 0]);
}

#[test]
fn a_client_who_is_met_in_mid_stream_is_given_nothing_new_by_all_so_far() {
    let mut line = Line::new(0, None);
    line.scarred = true;
    let outcome = line.deliver(&delivery(Mode::Cumulative, 7, 7, false), 0);
    assert_eq!((outcome.new, outcome.missed), (0, true));
    put(&mut line, 8, 8, 1, true);
    let outcome = line.deliver(&delivery(Mode::Cumulative, 8, 8, false), 0);
    assert_eq!((outcome.new, told(outcome.fates)), (1, [1, 0, 0, 0, 0]));
}

#[test]
fn a_delivery_told_before_its_chunk_is_no_drop_of_it() {
    let mut line = Line::new(0, Some(1));
    put(&mut line, 1, 1, 1, true);
    put(&mut line, 2, 2, 1, true);
    assert_eq!(told(line.fates), [0, 0, 0, 0, 1]);
    assert_eq!(told(line.deliver(&incremental(1, 2), 0).fates), [1, 0, 0, 0, 0]);
}

#[test]
fn what_waits_for_another_worker_is_no_drop_of_this_one() {
    let mut line = line(&[]);
    line.comes_by(HopId(1));
    put(&mut line, 1, 1, 1, true);
    line.comes_by(HopId(2));
    put(&mut line, 2, 2, 1, true);
    assert_eq!(told(line.deliver(&incremental(1, 2), 0).fates), [1, 0, 0, 0, 1]);
    line.comes_by(HopId(2));
    put(&mut line, 3, 3, 1, true);
    put(&mut line, 4, 4, 1, true);
    assert_eq!(told(line.deliver(&incremental(1, 4), 0).fates), [1, 0, 1, 1, 0]);
}

/// Tokens 2, 3 and 5 share an entry at the limit, and token 4 never arrived. After the delivery of 3, the delivery of 5 proves no drop.
#[test]
fn behind_a_delivery_of_what_is_not_here_by_itself_nothing_is_dropped() {
    let mut line = vague(&[1]);
    put(&mut line, 2, 2, 1, true);
    put(&mut line, 3, 3, 1, false);
    put(&mut line, 5, 5, 1, false);
    line.deliver(&incremental(1, 3), 1);
    assert_eq!(told(line.deliver(&incremental(1, 5), 1).fates), [0, 0, 0, 0, 3]);
}

#[test]
fn what_was_merged_with_tokens_that_nobody_saw_is_not_dropped() {
    let mut line = line(&[(1, 1), (2, 1)]);
    line.deliver(&incremental(1, 1), 0);
    let rebased = Entering {
        end: 4,
        said: 4,
        tokens: 1,
        missing: 0,
        nth: 3,
        ids: &[4],
        vague: false,
        rebased: true,
    };
    line.push(rebased, true);
    // The delivery holds tokens 2 and 4; token 3 was lost on the wire.
    assert_eq!(told(line.deliver(&incremental(2, 4), 0).fates), [1, 0, 0, 0, 1]);
}
