//! Entry of a chunk into the delivery tracker of its request.

use crate::event::Chunk;
use crate::ledger::delivery_tracker::DeliveryTracker;
use crate::ledger::frame::{CheckedChunk, FrameContext};
use crate::ledger::in_flight_entry::InFlightEntry;
use crate::ledger::limits::CountedLimits;
use crate::ledger::losses::LossMemory;
use crate::ledger::outcome::{JudgedList, UnjudgedCause};
use crate::ledger::stream::Stream;
use crate::ledger::stream_count::{CountStep, CountVerdict};
use crate::ledger::{Ledger, shared_rid};

impl Ledger {
    /// Records the chunk into its request's delivery tracker, which later finds out whether a delivery carried it. Returns the chunk if its
    /// outcome is decided already. `delivery_count`: the token count that its delivery will show.
    #[inline]
    pub(super) fn track_sent_chunk(
        &mut self,
        checked: CheckedChunk,
        context: &FrameContext,
        chunk: &Chunk<'_>,
        delivery_count: Option<u32>,
    ) -> JudgedList {
        let CheckedChunk { ticket, stream_index, step } = checked;
        let Some(request) = self.table.get_mut(ticket) else { return JudgedList::default() };
        let stream = &request.streams[stream_index];
        // The first chunk of a request creates its tracker.
        let tracker = request.tracker.get_or_insert_with(|| {
            let early_count = self.early_deliveries.early_delivered_count(chunk.rid, context.at);
            let mut tracker = DeliveryTracker::new(self.delivery_epoch, early_count);
            tracker.is_shared = request.sharing_requests > 0;
            tracker.previous_until = shared_rid::late_deliveries_until(&self.predecessors, ticket);
            Box::new(tracker)
        });
        // A chunk whose outcome no delivery can show does not wait for one.
        if let Some(cause) = unjudgeable_cause(tracker, context, delivery_count) {
            let skipped = 1;
            return tracker.skip_chunks(context.hop, stream.chunks, skipped, cause);
        }
        if step.verdict == CountVerdict::Late {
            // The receiver may pass on the chunks in either order.
            tracker.mark_uncertain();
        }
        tracker.set_hop_of_next_chunk(stream.hop);
        tracker.is_incomplete |= !stream.is_whole();
        let entry = entry_of_chunk(stream, step, context, delivery_count);
        if tracker.is_text_only {
            self.totals.tokens.uncounted += u64::from(entry.tokens);
        }
        push_entry_within_limits(tracker, entry, chunk, &mut self.limits, &mut self.loss_memory)
    }
}

/// Adds the entry of a chunk to its request's delivery tracker. At a limit, it is added without its ids, or shares the entry of the chunk
/// before. Returns the chunk if its outcome is decided already.
#[inline]
fn push_entry_within_limits(
    tracker: &mut DeliveryTracker,
    entry: InFlightEntry,
    chunk: &Chunk<'_>,
    limits: &mut CountedLimits,
    loss_memory: &mut LossMemory,
) -> JudgedList {
    let room_for_ids = limits.token_ids.saturating_sub(loss_memory.ids);
    let ids = carried_ids_within_limit(chunk, entry.tokens, room_for_ids);
    let are_ids_left_out = ids.is_empty() && !chunk.ids.is_empty() && entry.tokens > 0;
    if are_ids_left_out {
        limits.count_reached("token_ids");
    }
    let has_own_entry = limits.has_room_in_flight_else_count_reached(tracker.entry_count(), loss_memory.entries);
    // Memory is counted by difference: subtracted before the tracker changes, added after.
    tracker.subtract_from_memory_use(loss_memory);
    let judged = tracker.push_chunk(entry, ids, has_own_entry);
    tracker.add_to_memory_use(loss_memory);
    judged
}

/// Why the outcome of a chunk of the tracker's request will stay unknown; `None` if a delivery can show it. `delivery_count`: the token
/// count that its delivery would show.
#[inline]
fn unjudgeable_cause(
    tracker: &DeliveryTracker,
    context: &FrameContext,
    delivery_count: Option<u32>,
) -> Option<UnjudgedCause> {
    if tracker.is_shared {
        return Some(UnjudgedCause::SharedRid);
    }
    // A receiver that is not watched reports no delivery.
    if context.is_unwatched {
        return Some(UnjudgedCause::UnobservedDeliveries);
    }
    // Chunks and deliveries are matched by their counts.
    if delivery_count.is_none() { Some(UnjudgedCause::NoCount) } else { None }
}

/// The delivery tracker's entry of a chunk, which is the last one of its stream. `step`: the result of its count check. `delivery_count`:
/// the token count that its delivery will show.
#[inline]
fn entry_of_chunk(
    stream: &Stream,
    step: CountStep,
    context: &FrameContext,
    delivery_count: Option<u32>,
) -> InFlightEntry {
    // Only the growth of its count is known if its id column does not show its own tokens.
    let is_imprecise = !stream.shows_tokens(context.claimed_ids);
    let missing_tokens = match step.verdict {
        CountVerdict::Loss { missing } => missing,
        _ => 0,
    };
    InFlightEntry {
        end_count: stream.count.highest,
        reported_count: delivery_count.unwrap_or(stream.count.highest),
        tokens: if is_imprecise { step.new } else { step.carried },
        is_imprecise,
        // A rebased count does not continue from an observed chunk.
        follows_gap: step.verdict == CountVerdict::Rebased,
        missing_tokens,
        first_number: stream.chunks,
        hop: context.hop,
        ..InFlightEntry::default()
    }
}

/// Ids of the tokens that a chunk carries: the last `carried_tokens` of the ids that it lists. Empty if these are more than `max_ids`, or
/// if the chunk does not list all of them.
fn carried_ids_within_limit<'c>(chunk: &Chunk<'c>, carried_tokens: u32, max_ids: usize) -> &'c [i64] {
    let carried_tokens = carried_tokens as usize;
    if carried_tokens > max_ids {
        return &[];
    }
    match chunk.ids.len().checked_sub(carried_tokens) {
        Some(first) => &chunk.ids[first..],
        // Without ids of all its tokens, it is unknown which tokens these are.
        None => &[],
    }
}
