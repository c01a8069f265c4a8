use super::super::losses::LostRange;
use super::super::outcome::UnjudgedCause;
use super::*;
use crate::event::ArgumentsPart;
use ChunkOutcome::{Delivered, Dropped, Merged, Unjudged};

const MS: u64 = 1_000_000;

fn seen(hop: u16, end: u32, [sent, received]: [u64; 2], wakeup: u32) -> ChunkRecord {
    ChunkRecord {
        hop: HopId(hop),
        number: end,
        sent: Some(MonoNs(sent * MS)),
        received: Some(MonoNs(received * MS)),
        wakeup: Some(wakeup),
        tokens: 1,
        end: Some(end),
        outcome: None,
        judged_at: None,
        merged_into: None,
    }
}

fn judged(chunk: ChunkRecord, outcome: ChunkOutcome) -> ChunkRecord {
    ChunkRecord { outcome: Some(outcome), ..chunk }
}

/// Follows chunks over hops with these ends, numbered in this order.
fn follow(hops: &[(&str, &str)], chunks: Vec<ChunkRecord>) -> (Vec<LifeLeg>, Vec<ChunkLife>) {
    let ends: Vec<Ends<Box<str>>> = hops.iter().map(|&(from, to)| Ends::new(from, to).to_owned()).collect();
    let numbered = (0..).zip(&ends);
    let hops: Vec<CrossedHop<'_>> = numbered
        .map(|(id, ends)| CrossedHop {
            id: HopId(id),
            ends,
            observes_received: true,
            is_last: &*ends.to == "tokenizer",
        })
        .collect();
    let history = RequestHistory { chunks, ..RequestHistory::default() };
    let legs = legs_crossed(&history, &hops);
    let lives = follow_chunks(&legs, None, None);
    (legs, lives)
}

const DETOKENIZER: [(&str, &str); 2] = [("scheduler", "detokenizer"), ("detokenizer", "tokenizer")];

/// Expected pattern behind a detokenizer: each of its receives has its own wakeup, while those of the tokenizer share one.
#[test]
fn a_chunk_is_followed_through_every_hop_to_the_wakeup_that_drops_it() {
    let chunks = vec![
        seen(0, 1, [0, 1], 10),
        judged(seen(1, 1, [2, 465], 77), Dropped),
        seen(0, 2, [10, 11], 11),
        judged(seen(1, 2, [12, 466], 77), Delivered),
        seen(0, 3, [500, 501], 12),
        judged(seen(1, 3, [502, 503], 78), Delivered),
    ];
    let (legs, lives) = follow(&DETOKENIZER, chunks);
    assert_eq!(legs.iter().map(|leg| &*leg.ends.to).collect::<Vec<_>>(), ["detokenizer", "tokenizer"]);
    let lines: Vec<_> = lives.iter().map(|life| (life.waits_ns.clone(), life.wakeup, life.state)).collect();
    let expected = [
        (vec![Some(MS), Some(463 * MS)], Some(77), ChunkState::Judged(Dropped)),
        (vec![Some(MS), Some(454 * MS)], Some(77), ChunkState::Judged(Delivered)),
        (vec![Some(MS), Some(MS)], Some(78), ChunkState::Judged(Delivered)),
    ];
    assert_eq!(lines, expected);
    assert_eq!(lives[0].next_in_wakeup, Some(NextChunk { number: 2, delay_ns: MS }));
    assert_eq!(lives[1].next_in_wakeup, None);
}

#[test]
fn chunks_that_a_process_combines_have_the_outcome_of_the_one_in_which_they_continue() {
    let of_origin = (1..=4).map(|end| seen(0, end, [0, 1], 1));
    let combined = [judged(seen(1, 3, [2, 4], 5), Delivered), judged(seen(1, 4, [3, 9], 6), Dropped)];
    let (_, lives) = follow(&DETOKENIZER, of_origin.chain(combined).collect());
    let waits: Vec<_> = lives.iter().map(|life| life.waits_ns[1]).collect();
    assert_eq!(waits, [Some(2 * MS), Some(2 * MS), Some(2 * MS), Some(6 * MS)]);
    let states: Vec<_> = lives.iter().map(|life| (life.state, life.combined_with)).collect();
    let expected = [(Delivered, None), (Delivered, Some(1)), (Delivered, Some(1)), (Dropped, None)];
    assert_eq!(states, expected.map(|(outcome, first)| (ChunkState::Judged(outcome), first)));
}

#[test]
fn the_chunks_with_the_differing_part_of_a_tool_call_are_marked() {
    let part =
        ArgumentsPart { at: 1, chars: 9, tokens: [2, 3], whole_chunks: true, events: [1, 2], whole_events: true };
    let calls = ToolCalls { outcome: ToolCallOutcome::Missing, part: Some(part), ..ToolCalls::default() };
    let marked = (1..=4)
        .filter(|&end| tool_call_outcome_in_chunk(&seen(0, end, [0, 1], 1), Some(&calls)) == Some(calls.outcome));
    assert_eq!(marked.collect::<Vec<u32>>(), [2, 3]);
}

fn losses(position: u32, unlisted: u64) -> Losses {
    let range = LostRange { tokens: [position; 2], chunks: Some([position; 2]), ids: Vec::new() };
    Losses { ranges: vec![range], chunks: 1 + unlisted, tokens: 1 + unlisted, unlisted, ..Losses::default() }
}

fn state(chunk: &ChunkRecord, predicted: Option<&Losses>) -> ChunkState {
    state_of_chunk(chunk, Some(chunk), predicted, ChunkState::Waiting)
}

#[test]
fn an_outcome_takes_precedence_over_a_prediction() {
    let predicted = losses(2, 0);
    let chunk = seen(0, 2, [0, 1], 1);
    for outcome in [Delivered, Merged, Dropped, Unjudged(UnjudgedCause::Ambiguous)] {
        assert_eq!(state(&judged(chunk, outcome), Some(&predicted)), ChunkState::Judged(outcome));
    }
    assert_eq!(state(&chunk, Some(&predicted)), ChunkState::DropPredicted);
}

#[test]
fn without_an_outcome_predictions_and_receives_are_shown() {
    let chunk = seen(0, 3, [0, 1], 1);
    assert_eq!(state(&chunk, Some(&losses(2, 0))), ChunkState::Received);
    assert_eq!(state(&chunk, Some(&losses(2, 1))), ChunkState::DropPredicted, "it may be an unlisted one");
    assert_eq!(state(&ChunkRecord { received: None, ..chunk }, None), ChunkState::Waiting);
}
