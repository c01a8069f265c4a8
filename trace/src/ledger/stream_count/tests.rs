//! Tests of the steps of one stream: counts, listed ids, retractions, and the conclusions from them.

use super::*;

fn reported(claim: IdColumn, listed: u32, completion: u32) -> ReportedCounts {
    ReportedCounts {
        claim,
        listed: Some(listed),
        completion_tokens: Some(completion),
        finish: None,
        retracted: false,
        watched_frames: Some(0),
    }
}

/// Records (listed, completion) pairs and returns the steps.
fn verdicts(claim: IdColumn, chunks: &[(u32, u32)]) -> (StreamCount, Vec<CountStep>) {
    let mut count = StreamCount::default();
    let steps = chunks
        .iter()
        .map(|&(listed, completion)| count.count_and_check_chunk(reported(claim, listed, completion), 0))
        .collect();
    (count, steps)
}

#[test]
fn speculative_bursts_and_stream_intervals_add_up() {
    let (_, steps) = verdicts(IdColumn::Delta, &[(1, 1), (4, 5), (50, 55), (0, 55), (1, 56)]);
    assert!(steps.iter().all(|s| s.verdict == CountVerdict::Fits), "{steps:?}");
    assert_eq!(steps.iter().map(|s| s.new).sum::<u32>(), 56);
}

#[test]
fn without_counts_a_streams_count_is_the_sum_of_its_ids() {
    let next = |listed, watched| ReportedCounts {
        completion_tokens: None,
        watched_frames: watched,
        ..reported(IdColumn::Uncounted, listed, 0)
    };
    for (watched, begins) in [
        (Some(LONG_WATCHED_FRAMES), CountVerdict::Fits),
        (Some(3), CountVerdict::JoinedLate),
        (None, CountVerdict::JoinedLate),
    ] {
        let mut count = StreamCount::default();
        assert_eq!(count.count_and_check_chunk(next(1, watched), 0), CountStep::new(1, 1, begins));
        assert_eq!(count.count_and_check_chunk(next(4, watched), 0), CountStep::fits(4));
        assert_eq!((count.highest, count.is_whole), (5, begins == CountVerdict::Fits));
        assert_eq!(count.count_and_check_chunk(next(2, watched), 1), CountStep::new(2, 2, CountVerdict::Rebased));
        assert_eq!((count.highest, count.is_whole), (7, false));
        let last = ReportedCounts { finish: Some(Finish::Stop), ..next(0, watched) };
        assert_eq!(count.count_and_check_chunk(last, 1), CountStep::fits(0));
        assert_eq!(count.count_and_check_chunk(last, 1).verdict, CountVerdict::Repeat);
        assert_eq!(count.count_and_check_chunk(next(1, watched), 1).verdict, CountVerdict::Restart);
    }
}

#[test]
fn a_missing_frame_loses_exactly_its_tokens() {
    let (_, steps) = verdicts(IdColumn::Delta, &[(1, 1), (1, 2), (2, 7), (1, 8)]);
    assert_eq!(steps[2], CountStep::new(5, 2, CountVerdict::Loss { missing: 3 }));
    assert_eq!(steps[3].verdict, CountVerdict::Fits);
}

#[test]
fn recomputing_after_a_retraction_with_embeds_is_healthy() {
    let (_, steps) = verdicts(IdColumn::Delta, &[(1, 1), (99, 100), (0, 1), (0, 60), (0, 99), (3, 103), (1, 104)]);
    assert!(steps.iter().all(|s| s.verdict == CountVerdict::Fits), "{steps:?}");
    assert_eq!(steps.iter().map(|s| s.new).sum::<u32>(), 104);
}

#[test]
fn joining_while_a_request_recomputes_is_not_a_loss() {
    let (_, steps) = verdicts(IdColumn::Delta, &[(0, 50), (0, 51), (0, 99), (3, 103), (1, 104)]);
    let expected =
        [CountVerdict::JoinedLate, CountVerdict::Fits, CountVerdict::Fits, CountVerdict::Rebased, CountVerdict::Fits];
    assert_eq!(steps.iter().map(|s| s.verdict).collect::<Vec<_>>(), expected);
    assert_eq!(steps.iter().map(|s| s.new).sum::<u32>(), 4);
}

#[test]
fn a_missed_observation_rebases_to_the_schedulers_count() {
    let mut count = StreamCount::default();
    count.count_and_check_chunk(reported(IdColumn::Delta, 1, 1), 0);
    let step = count.count_and_check_chunk(reported(IdColumn::Delta, 1, 9), 1);
    assert_eq!(step, CountStep::new(8, 1, CountVerdict::Rebased));
    assert_eq!(count.count_and_check_chunk(reported(IdColumn::Delta, 1, 10), 1).verdict, CountVerdict::Fits);
}

#[test]
fn a_prompt_tail_is_not_a_surplus() {
    let (_, steps) = verdicts(IdColumn::DeltaAfterPromptTail, &[(6, 1), (1, 2), (1, 3)]);
    assert!(steps.iter().all(|s| s.verdict == CountVerdict::Fits), "{steps:?}");
    assert_eq!(steps.iter().map(|s| s.new).sum::<u32>(), 3);
    let (_, steps) = verdicts(IdColumn::DeltaAfterPromptTail, &[(6, 1), (1, 3)]);
    assert_eq!(steps[1].verdict, CountVerdict::Loss { missing: 1 });
}

#[test]
fn a_wrong_delta_claim_is_rejected_after_three_chunks() {
    let (count, steps) = verdicts(IdColumn::Delta, &[(1, 1), (2, 2), (3, 3), (4, 4), (5, 5)]);
    assert_eq!(count.evidence, Evidence::Cumulative);
    for (at, listed, confirmed) in [(1, 2, false), (3, 4, true), (4, 5, true)] {
        let new = 1;
        assert_eq!(steps[at].verdict, CountVerdict::Inflated { listed, new, confirmed });
    }
    assert_eq!(steps.iter().map(|s| s.new).sum::<u32>(), 5);
}

#[test]
fn a_restart_in_flight_is_another_request() {
    let (_, steps) = verdicts(IdColumn::Delta, &[(1, 1), (1, 2), (1, 3), (1, 1)]);
    assert_eq!(steps[3].verdict, CountVerdict::Restart);
}

#[test]
fn a_second_finish_is_a_repeat_and_a_later_chunk_a_new_request() {
    let mut count = StreamCount::default();
    let finish = |listed, completion| ReportedCounts {
        finish: Some(Finish::Stop),
        ..reported(IdColumn::Cumulative, listed, completion)
    };
    count.count_and_check_chunk(reported(IdColumn::Cumulative, 1, 1), 0);
    assert_eq!(count.count_and_check_chunk(finish(2, 2), 0).verdict, CountVerdict::Fits);
    assert_eq!(count.count_and_check_chunk(finish(2, 2), 0).verdict, CountVerdict::Repeat);
    assert_eq!(count.count_and_check_chunk(reported(IdColumn::Cumulative, 1, 1), 0).verdict, CountVerdict::Restart);
}

#[test]
fn a_finish_trimmed_to_the_stop_string_is_not_a_surplus() {
    let mut count = StreamCount::default();
    count.count_and_check_chunk(reported(IdColumn::Delta, 10, 10), 0);
    let finish = ReportedCounts { finish: Some(Finish::Stop), ..reported(IdColumn::Delta, 0, 9) };
    assert_eq!(count.count_and_check_chunk(finish, 0), CountStep::new(0, 0, CountVerdict::Fits));
}

#[test]
fn streams_of_an_unknown_release_are_classified_by_their_ids() {
    let column = IdColumn::Absent;
    let (count, _) = verdicts(column, &[(1, 1), (2, 2), (3, 3)]);
    assert_eq!(count.evidence, Evidence::Cumulative);
    // A frame lost before the first decisive chunk is a loss: that chunk does not carry all new tokens.
    let (count, steps) = verdicts(IdColumn::Undecided, &[(1, 1), (1, 3)]);
    assert_eq!(count.evidence, Evidence::Delta);
    assert_eq!(steps[1].verdict, CountVerdict::Loss { missing: 1 });
    let (count, steps) = verdicts(column, &[(1, 1), (1, 2), (1, 4)]);
    assert_eq!(count.evidence, Evidence::Delta);
    assert_eq!(steps[2].verdict, CountVerdict::Loss { missing: 1 });
}

#[test]
fn on_an_unknown_layout_a_restart_of_cumulative_ids_is_another_request() {
    let (_, steps) = verdicts(IdColumn::Undecided, &[(1, 1), (2, 2), (3, 3), (1, 1)]);
    assert_eq!(steps[3].verdict, CountVerdict::Restart);
}

/// A chunk whose count is rejected as a sum still advances the stream by its ids. Otherwise the next chunk would show a loss.
#[test]
fn on_an_unknown_layout_ids_advance_the_stream_without_a_count() {
    let (mut count, _) = verdicts(IdColumn::Undecided, &[(1, 1), (2, 3)]);
    let uncounted = ReportedCounts { completion_tokens: None, ..reported(IdColumn::Undecided, 4, 0) };
    assert_eq!(count.count_and_check_chunk(uncounted, 0), CountStep::fits(4));
    assert_eq!(count.count_and_check_chunk(reported(IdColumn::Undecided, 1, 8), 0), CountStep::fits(1));
}

#[test]
fn on_an_unknown_layout_a_lower_count_after_a_miss_is_unjudged() {
    let mut count = StreamCount::default();
    count.count_and_check_chunk(reported(IdColumn::Undecided, 6, 6), 0);
    let finish = ReportedCounts { finish: Some(Finish::Stop), ..reported(IdColumn::Undecided, 1, 2) };
    assert_eq!(count.count_and_check_chunk(finish, 1).verdict, CountVerdict::Rebased);
    assert_eq!(count.highest, 2);
}
