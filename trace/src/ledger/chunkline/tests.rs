//! A line of chunks by itself: what a delivery covers, merges and drops.

use super::*;

/// Each chunk's ids are the places of its tokens.
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
    };
    line.push(chunk, whole);
}

fn line(chunks: &[(u32, u32)]) -> Line {
    let mut line = Line::new(0);
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
