//! Chunks of one request followed from hop to hop, and what became of each: joined here and nowhere else.

use super::losses::Losses;
use super::outcome::ChunkOutcome;
use super::recent_chunks::{ChunkRecord, RequestHistory};
use super::{Hop, Ledger, RequestNumbers};
use crate::clock::MonoNs;
use crate::event::{ToolCallOutcome, ToolCalls};
use crate::id::HopId;
use crate::path::{self, Ends};

/// What is known of a chunk's way to the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChunkState {
    /// Sent on a hop whose receives are not observed.
    #[default]
    Sent,
    /// Sent and not received.
    Waiting,
    /// Received; the rest is not observable, or has not happened yet.
    Received,
    /// Predicted loss: a later chunk arrived before the request's coroutine ran, on a release that keeps only the last chunk.
    DropPredicted,
    /// Its outcome is known, or known to be unknown.
    Judged(ChunkOutcome),
}

/// A chunk of the first hop, followed through all hops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkLife {
    /// When it was first sent; `None` if not observed.
    pub sent: Option<MonoNs>,
    /// Queue wait on each of [`RequestLife::legs`]; `None` if the receive was not observed.
    pub waits_ns: Vec<Option<u64>>,
    /// Wakeup in which the receiver of the last hop received it.
    pub wakeup: Option<u32>,
    /// Listed tokens.
    pub tokens: u32,
    /// `completion_tokens` after this chunk.
    pub end: Option<u32>,
    /// What became of it.
    pub state: ChunkState,
    /// The chunk that was judged: itself, or the one of a further hop in which it continues. `None` while it is in flight.
    pub judged: Option<ChunkRecord>,
    /// Number of the chunk of the first hop with which a process between two hops combined it (1-based): the first of those that continue
    /// in the same chunk. `None` for that one, and if it continues alone.
    pub combined_with: Option<usize>,
    /// For a chunk that was merged or lost, or may be: the chunk received next in the same wakeup.
    pub next_in_wakeup: Option<NextChunk>,
    /// How a part of a tool call that is in this chunk differs in the response.
    pub tool_call: Option<ToolCallOutcome>,
}

/// The chunk received after another one in the same wakeup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextChunk {
    /// Its number (1-based).
    pub number: usize,
    /// Time from receiving the one before to receiving this one.
    pub delay_ns: u64,
}

/// The request between two roles. A request that changes its worker crosses several hops between them.
#[derive(Clone, Debug)]
pub struct LifeLeg {
    /// The roles.
    pub ends: Ends<Box<str>>,
    /// Receives are observed on one of its hops.
    pub observes_received: bool,
    /// It leads to the tokenizer.
    pub is_last: bool,
    /// When its first chunk was sent there.
    pub first_sent: Option<MonoNs>,
    /// When its first chunk was received there.
    pub first_received: Option<MonoNs>,
    /// Its chunks there, in order of observation.
    pub chunks: Vec<ChunkRecord>,
}

/// The recent chunks of one request.
#[derive(Clone, Debug, Default)]
pub struct RequestLife {
    /// The legs that the chunks crossed, in the order of the path.
    pub legs: Vec<LifeLeg>,
    /// The chunks of the first leg.
    pub chunks: Vec<ChunkLife>,
}

impl ChunkState {
    /// Whether its tokens were merged or lost, or may have been.
    pub fn is_harmed(self) -> bool {
        !matches!(self, Self::Sent | Self::Waiting | Self::Received | Self::Judged(ChunkOutcome::Delivered))
    }
}

impl Ledger {
    /// Follows the chunks of a request through all hops. `history`: the request's [`Self::history`], or an earlier copy of it.
    pub fn life_of_request(&self, rid: &str, history: &RequestHistory, numbers: &RequestNumbers) -> RequestLife {
        let hops: Vec<CrossedHop<'_>> = self.hops().iter().filter_map(|hop| self.crossed_hop(hop)).collect();
        let mut legs = legs_crossed(history, &hops);
        // The numbers of a request are kept longer than its chunks.
        if let Some(origin) = legs.first_mut() {
            origin.first_sent = origin.first_sent.or(numbers.sent_first);
        }
        if let Some(last) = legs.last_mut() {
            last.first_received = last.first_received.or(numbers.received_first);
        }
        // Observed deliveries decide what became of a chunk; predictions are for runs without them.
        let predicted = if history.deliveries.is_empty() { self.latest_predicted_losses(rid) } else { None };
        let chunks = follow_chunks(&legs, predicted, self.tool_calls.find_response(rid));
        RequestLife { legs, chunks }
    }

    /// The hop as far as the life of a chunk needs it; `None` if the hop carries requests instead of chunks.
    fn crossed_hop<'l>(&'l self, hop: &'l Hop) -> Option<CrossedHop<'l>> {
        if hop.carries_requests {
            return None;
        }
        Some(CrossedHop {
            id: hop.id,
            ends: &self.groups()[hop.group].ends,
            observes_received: hop.capabilities().received,
            is_last: hop.last,
        })
    }

    /// Losses predicted for a live request, or for the latest closed one with this rid.
    fn latest_predicted_losses(&self, rid: &str) -> Option<&Losses> {
        if let Some(request) = self.request(rid) {
            return request.predicted();
        }
        let closed = self.lossy_requests().rev().find(|lossy| &*lossy.rid == rid);
        closed?.predicted.as_deref()
    }
}

/// A hop that carries output.
struct CrossedHop<'l> {
    id: HopId,
    ends: &'l Ends<Box<str>>,
    observes_received: bool,
    is_last: bool,
}

/// The legs that the chunks crossed, in the order of the path. A leg is the hops (channels) between the same two roles.
fn legs_crossed(history: &RequestHistory, hops: &[CrossedHop<'_>]) -> Vec<LifeLeg> {
    let mut legs: Vec<LifeLeg> = Vec::new();
    for hop in hops {
        // Hops between the same ends are one leg.
        if legs.iter().any(|leg| leg.ends == *hop.ends) {
            continue;
        }
        let hops_of_leg: Vec<&CrossedHop<'_>> = hops.iter().filter(|other| other.ends == hop.ends).collect();
        legs.extend(leg_over_hops(history, &hops_of_leg));
    }
    // The leg that begins at the scheduler comes first: its sender is behind no other hop.
    let all_ends: Vec<Ends<&str>> = hops.iter().map(|hop| hop.ends.as_str()).collect();
    legs.sort_by_key(|leg| path::max_hops_before_role(&all_ends, &leg.ends.from));
    legs
}

/// The leg over these hops, which have the same ends; `None` if none of the chunks crossed it.
fn leg_over_hops(history: &RequestHistory, hops_of_leg: &[&CrossedHop<'_>]) -> Option<LifeLeg> {
    let first_hop = hops_of_leg.first()?;
    let is_on_leg = |chunk: &&ChunkRecord| hops_of_leg.iter().any(|hop| hop.id == chunk.hop);
    let chunks: Vec<ChunkRecord> = history.chunks.iter().filter(is_on_leg).copied().collect();
    if chunks.is_empty() {
        return None;
    }
    // If early chunks were overwritten, the first ones in the history are not the request's first.
    let has_first_chunk = history.since.is_none();
    let chunks_from_first = if has_first_chunk { &chunks[..] } else { &[] };
    Some(LifeLeg {
        ends: first_hop.ends.clone(),
        observes_received: hops_of_leg.iter().any(|hop| hop.observes_received),
        is_last: first_hop.is_last,
        first_sent: chunks_from_first.iter().find_map(|chunk| chunk.sent),
        first_received: chunks_from_first.iter().find_map(|chunk| chunk.received),
        chunks,
    })
}

/// Follows each chunk of the first leg through all legs (hops between the same two roles) by token count. A process between two hops may
/// combine chunks. So on each leg, a chunk continues in the first chunk whose count is not below its own, and has the outcome of that one.
fn follow_chunks(
    legs: &[LifeLeg],
    predicted_losses: Option<&Losses>,
    tool_calls: Option<&ToolCalls>,
) -> Vec<ChunkLife> {
    let Some((origin, further_legs)) = legs.split_first() else { return Vec::new() };
    let if_not_received = if origin.observes_received { ChunkState::Waiting } else { ChunkState::Sent };
    // Token counts only grow, so the search on each leg goes on where it found the previous chunk.
    let mut search_from = vec![0; further_legs.len()];
    let mut on_last_leg: Vec<Option<&ChunkRecord>> = Vec::new();
    let mut lives: Vec<ChunkLife> = Vec::new();
    for (index, chunk) in origin.chunks.iter().enumerate() {
        // The chunk itself, and the one of each further leg in which it continues.
        let mut on_each_leg = vec![Some(chunk)];
        for (leg, from) in further_legs.iter().zip(&mut search_from) {
            on_each_leg.push(find_continuation(&leg.chunks, from, chunk, index));
        }
        // Its outcome is that on the last leg that has one.
        let judged = on_each_leg.iter().rev().flatten().find(|seen| seen.outcome.is_some());
        let last = on_each_leg.last().copied().flatten();
        // Chunks that continue in the same one follow each other. Each is combined with the first of them.
        let last_of_previous = on_last_leg.last().copied().flatten();
        let is_combined = is_same_chunk(last_of_previous, last);
        // Numbers count from 1 and indices from 0, so this is the number of the previous chunk.
        let previous_number = index;
        let first_combined = lives.last().map(|previous| previous.combined_with.unwrap_or(previous_number));
        let combined_with = if is_combined { first_combined } else { None };
        lives.push(ChunkLife {
            sent: chunk.sent,
            waits_ns: on_each_leg.iter().map(|seen| queue_wait_ns(seen.as_ref()?)).collect(),
            wakeup: last.and_then(|seen| seen.wakeup),
            tokens: chunk.tokens,
            end: chunk.end,
            state: state_of_chunk(chunk, judged.copied(), predicted_losses, if_not_received),
            judged: judged.copied().copied(),
            combined_with,
            next_in_wakeup: None,
            tool_call: tool_call_outcome_in_chunk(chunk, tool_calls),
        });
        on_last_leg.push(last);
    }
    set_next_in_wakeup(&mut lives, &on_last_leg);
    lives
}

/// Whether both are the same chunk of a leg.
fn is_same_chunk(one: Option<&ChunkRecord>, other: Option<&ChunkRecord>) -> bool {
    let (Some(one), Some(other)) = (one, other) else { return false };
    std::ptr::eq(one, other)
}

/// Sets `next_in_wakeup` of each chunk that was merged or lost: the chunk received next in the same wakeup, which may have replaced it.
/// `on_last_leg`: for each chunk, the one of the last leg in which it continues.
fn set_next_in_wakeup(lives: &mut [ChunkLife], on_last_leg: &[Option<&ChunkRecord>]) {
    for (index, pair) in on_last_leg.windows(2).enumerate() {
        let [Some(chunk), Some(next)] = pair else { continue };
        if !lives[index].state.is_harmed() {
            continue;
        }
        // Indices count from 0, numbers from 1.
        let next_number = index + 2;
        lives[index].next_in_wakeup =
            receive_delay_in_wakeup_ns(chunk, next).map(|delay_ns| NextChunk { number: next_number, delay_ns });
    }
}

/// Finds the chunk of a further leg (`later_chunks`) that carries on `chunk`, the one at `chunk_index` on the first leg. `None` if there is
/// none. Moves `search_from` to the first chunk whose token count is not lower, which is where the search for the next chunk begins.
fn find_continuation<'c>(
    later_chunks: &'c [ChunkRecord],
    search_from: &mut usize,
    chunk: &ChunkRecord,
    chunk_index: usize,
) -> Option<&'c ChunkRecord> {
    let same_index = later_chunks.get(chunk_index);
    // A chunk without a token count continues in the one with the same number.
    let Some(end) = chunk.end else { return same_index };
    skip_lower_counts(later_chunks, search_from, end);
    let first_not_below = later_chunks.get(*search_from);
    if first_not_below.is_some_and(|seen| seen.end.is_some()) {
        return first_not_below;
    }
    // Without token counts, only the order of the chunks relates them.
    same_index.filter(|seen| seen.end.is_none())
}

/// Moves `chunk_index` to the first chunk from there on whose token count is not lower than `min_end_count`, or that has none.
fn skip_lower_counts(chunks: &[ChunkRecord], chunk_index: &mut usize, min_end_count: u32) {
    while chunks.get(*chunk_index).and_then(|seen| seen.end).is_some_and(|seen_end| seen_end < min_end_count) {
        *chunk_index += 1;
    }
}

/// State of the chunk `first_leg_chunk` of the first leg. It is the outcome of `judged_chunk`, the chunk on a later leg that carries it on,
/// if one has an outcome. Without that, a loss may be predicted. Otherwise, the state is that it was received, or else `if_not_received`.
fn state_of_chunk(
    first_leg_chunk: &ChunkRecord,
    judged_chunk: Option<&ChunkRecord>,
    predicted_losses: Option<&Losses>,
    if_not_received: ChunkState,
) -> ChunkState {
    if let Some(outcome) = judged_chunk.and_then(|chunk| chunk.outcome) {
        return ChunkState::Judged(outcome);
    }
    if let Some(losses) = predicted_losses
        && let Some(end) = first_leg_chunk.end
        && losses.may_contain_token(end)
    {
        return ChunkState::DropPredicted;
    }
    if first_leg_chunk.received.is_some() { ChunkState::Received } else { if_not_received }
}

/// Outcome of the response's tool calls, if the chunk has a token of the part that differs from the engine's; `None` otherwise.
fn tool_call_outcome_in_chunk(chunk: &ChunkRecord, calls: Option<&ToolCalls>) -> Option<ToolCallOutcome> {
    let calls = calls?;
    let [first_token, last_token] = calls.part?.tokens;
    let end = chunk.end?;
    // Tokens are counted from 1: the chunk has those from `start + 1` to `end`.
    let start = end.saturating_sub(chunk.tokens);
    (first_token <= end && start < last_token).then_some(calls.outcome)
}

fn queue_wait_ns(chunk: &ChunkRecord) -> Option<u64> {
    Some(chunk.received?.since(chunk.sent?))
}

/// Time between the receives of two chunks; `None` unless both were received in the same wakeup.
fn receive_delay_in_wakeup_ns(chunk: &ChunkRecord, next: &ChunkRecord) -> Option<u64> {
    let wakeup = chunk.wakeup?;
    let next_wakeup = next.wakeup?;
    let received = chunk.received?;
    let delay_ns = next.received?.since(received);
    (wakeup == next_wakeup).then_some(delay_ns)
}

#[cfg(test)]
mod tests;
