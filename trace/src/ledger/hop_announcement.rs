//! Chunks that crossed a hop before it was known to lead to the tokenizer.

use super::delivery_tracker::DeliveryTracker;
use super::in_flight_entry::InFlightEntry;
use super::lane::PendingChunk;
use super::outcome::UnjudgedCause;
use super::stream::Stream;
use super::stream_count::Evidence;
use super::{Hop, Ledger};
use crate::event::{self, Capabilities};
use crate::id::{HopId, Ticket};

/// What a hop's chunks are expected to show before an announcement.
struct DeliveryTracking {
    tracks_deliveries: bool,
    may_lead_to_tokenizer: bool,
}

impl DeliveryTracking {
    fn of_hop(hop: &Hop) -> Self {
        Self { tracks_deliveries: hop.tracks_deliveries, may_lead_to_tokenizer: hop.last || hop.may_be_last }
    }
}

/// Number of the first chunk of this request in `queued`, which is sorted by request and number; `None` if it has none there.
fn first_queued_chunk_number(queued: &[PendingChunk], ticket: Ticket) -> Option<u32> {
    let index = queued.partition_point(|chunk| chunk.ticket < ticket);
    let first = queued.get(index).filter(|chunk| chunk.ticket == ticket)?;
    Some(first.number)
}

/// The delivery tracker's entry of a queued chunk of the stream (a request's chunks on one hop). `previous_end`: token count after the
/// queued chunk before it; `None` for the first one.
fn entry_of_queued_chunk(chunk: &PendingChunk, stream: &Stream, previous_end: Option<u32>) -> InFlightEntry {
    let start = chunk.end_count.saturating_sub(chunk.tokens);
    let gap_tokens = start.saturating_sub(previous_end.unwrap_or(start));
    // Tokens between two chunks were lost on the wire if the stream knows of such a loss; otherwise observations were missed.
    let was_lost_on_wire = stream.missing_tokens > 0;
    InFlightEntry {
        end_count: chunk.end_count,
        reported_count: chunk.end_count,
        tokens: chunk.tokens,
        missing_tokens: if was_lost_on_wire { gap_tokens } else { 0 },
        first_number: chunk.number,
        hop: stream.hop,
        // Unless the chunks list new ids only, their ids do not show their own tokens.
        is_imprecise: stream.count.evidence != Evidence::Delta,
        follows_gap: gap_tokens > 0 && !was_lost_on_wire,
        ..InFlightEntry::default()
    }
}

impl Ledger {
    /// Applies an announcement of a hop (channel between two processes). It may add the hop, rename it, or change what is observed of it.
    pub(super) fn apply_hop_announcement(&mut self, announced: &event::Hop<'_>) {
        // An announcement may change which of the known hops track deliveries.
        let previous_tracking: Vec<DeliveryTracking> = self.hops.all.iter().map(DeliveryTracking::of_hop).collect();
        let known = self.hops.get(announced.id);
        let previous_group = known.map(|hop| hop.group);
        let previous_stages = known.map(|hop| hop.shows).unwrap_or_default();
        let was_applied = self.hops.apply_announcement(announced, self.limits.hops);
        if !was_applied {
            self.limits.count_reached("hops");
            return;
        }
        // The announcement has added the hop, so this only looks it up.
        if let Some(hop_index) = self.hops.hop_index_or_add(announced.id, self.limits.hops) {
            let has_moved_to_group = previous_group.is_some_and(|group| group != self.hops.all[hop_index].group);
            if has_moved_to_group {
                self.move_streams_to_group_of(hop_index);
            }
            self.apply_observed_stages(hop_index, previous_stages, announced.capabilities);
        }
        // A hop that begins to track deliveries also tracks the chunks that it carried before. Known hops keep their indices.
        for (hop_index, previous) in previous_tracking.into_iter().enumerate() {
            let begins_to_track = self.hops.all[hop_index].tracks_deliveries && !previous.tracks_deliveries;
            if begins_to_track {
                self.track_earlier_chunks_of_hop(hop_index, previous.may_lead_to_tokenizer);
            }
        }
    }

    /// Moves the streams (a request's chunks on one hop) of a renamed hop to the group of its new name.
    fn move_streams_to_group_of(&mut self, hop_index: usize) {
        let hop = &self.hops.all[hop_index];
        let streams = self.table.iter_mut().flat_map(|request| &mut request.streams);
        for stream in streams.filter(|stream| stream.hop == hop.id) {
            stream.group = hop.group as u32;
            stream.ends = hop.ends;
        }
    }

    /// Applies a change in which stages of the frames on the hop at `hop_index` are observed: `previous_stages` until now,
    /// `announced_stages` from now on.
    fn apply_observed_stages(
        &mut self,
        hop_index: usize,
        previous_stages: Capabilities,
        announced_stages: Capabilities,
    ) {
        self.hops.all[hop_index].update_observation_ends(self.now, previous_stages);
        if previous_stages.received && !announced_stages.received {
            self.stop_observing_receives(hop_index);
        }
        if !previous_stages.delivered && announced_stages.delivered {
            self.unjudge_carried_chunks(hop_index);
        }
    }

    /// Marks the receives from the hop (channel) at `hop_index` as unobserved from now on. Nothing queued on it waits for its receive any
    /// more.
    fn stop_observing_receives(&mut self, hop_index: usize) {
        let hop = &mut self.hops.all[hop_index];
        let mut chunks = Vec::new();
        for lane in hop.lanes.values_mut() {
            // Moves the chunks of the lane to `chunks`.
            let frames = lane.move_all_chunks_and_count_frames(&mut chunks);
            self.pending_frames -= frames;
        }
        self.hops.groups[hop.group].backlog -= hop.counts.backlog;
        hop.counts.backlog = 0;
        self.pending_chunks -= chunks.len();
        for chunk in chunks {
            self.stop_waiting_for_receive(chunk);
        }
    }

    /// Marks the receive of a chunk as one that will not be observed. Otherwise a request that has ended would wait for it until its
    /// timeout.
    fn stop_waiting_for_receive(&mut self, chunk: PendingChunk) {
        let Some(request) = self.table.get_mut(chunk.ticket) else { return };
        request.first_receive_missed |= chunk.is_first;
        if chunk.is_last {
            request.final_received = true;
            self.close_soon_if_all_arrived(chunk.ticket, self.now);
        }
    }

    /// Makes the chunks unjudged that have crossed a hop whose deliveries are observed from now on: they may have been delivered before.
    /// Chunks that are still queued on the hop cannot have been delivered, and stay in flight.
    fn unjudge_carried_chunks(&mut self, hop_index: usize) {
        let hop = &mut self.hops.all[hop_index];
        // Receives before now may be reported later. Their chunks may have been delivered before, too.
        if hop.counts.chunks > 0 {
            hop.deliveries_observed_at = self.now;
        }
        let id = hop.id;
        let queued = hop.sorted_queued_chunks();
        for ticket in self.table.tickets() {
            let Some(request) = self.table.get_mut(ticket) else { continue };
            let has_crossed_hop = request.streams.iter().any(|stream| stream.hop == id);
            if !has_crossed_hop {
                continue;
            }
            let Some(tracker) = &mut request.tracker else { continue };
            let first_queued = first_queued_chunk_number(&queued, ticket);
            // Memory use is added again below, with what is left of the tracker.
            tracker.subtract_from_memory_use(&mut self.loss_memory);
            let is_still_queued = |entry: &InFlightEntry| {
                entry.hop == id && first_queued.is_some_and(|first_queued| first_queued <= entry.first_number)
            };
            let judged = tracker.unjudge_chunks_before_awaited(UnjudgedCause::UnobservedDeliveries, is_still_queued);
            tracker.add_to_memory_use(&mut self.loss_memory);
            self.record_outcomes(self.now, ticket, &judged);
        }
    }

    /// Records the chunks that the hop (channel) at `hop_index` carried before their deliveries were observed. Those still queued on it
    /// are judged by their deliveries, if the hop may have led to the tokenizer. The others are unjudged.
    fn track_earlier_chunks_of_hop(&mut self, hop_index: usize, may_have_led_to_tokenizer: bool) {
        let hop = &self.hops.all[hop_index];
        // Chunks without an expected delivery are not counted, nor are those that are tracked already.
        let earlier_chunks = hop.counts.chunks - hop.untracked_chunks - hop.tracked_chunks;
        if earlier_chunks == 0 {
            return;
        }
        let id = hop.id;
        let queued = if may_have_led_to_tokenizer { hop.sorted_queued_chunks() } else { Vec::new() };
        let mut recorded_chunks = 0;
        for ticket in self.table.tickets() {
            // Sorted by request, so the chunks of one request follow each other.
            let from = queued.partition_point(|chunk| chunk.ticket < ticket);
            let to = queued.partition_point(|chunk| chunk.ticket <= ticket);
            let queued_of_request = &queued[from..to];
            recorded_chunks += self.track_and_count_earlier_chunks_of_request(ticket, id, queued_of_request);
        }
        self.totals.chunks.tracked += earlier_chunks;
        // The others belong to requests whose records are closed.
        self.totals.chunks.outcomes.unjudged += earlier_chunks.saturating_sub(recorded_chunks);
        self.hops.all[hop_index].tracked_chunks += earlier_chunks;
    }

    /// Records the chunks of one request on hop `hop_id` in its delivery tracker. Chunks that are still queued (`queued_chunks`) wait there
    /// for their deliveries. The earlier ones are unjudged. Returns the number of recorded chunks.
    fn track_and_count_earlier_chunks_of_request(
        &mut self,
        ticket: Ticket,
        hop_id: HopId,
        queued_chunks: &[PendingChunk],
    ) -> u64 {
        let Some(request) = self.table.get_mut(ticket) else { return 0 };
        let Some(stream) = request.streams.iter().find(|stream| stream.hop == hop_id) else { return 0 };
        // Counts of a retracted request run behind, and pending chunks do not show by how much.
        let queued_chunks = if request.retractions > 0 || stream.count.highest == 0 { &[] } else { queued_chunks };
        let early = self.early_deliveries.early_delivered_count(&request.rid, stream.first_at);
        let tracker = request.tracker.get_or_insert_with(|| Box::new(DeliveryTracker::new(self.delivery_epoch, early)));
        tracker.is_incomplete |= !stream.is_whole();
        // The first chunks passed before deliveries were observed. They are all that the tracker does not have and that are not queued.
        let other_chunks = tracker.chunks_entered + queued_chunks.len() as u64;
        let passed_chunks = u64::from(stream.chunks).saturating_sub(other_chunks);
        let recorded_chunks = passed_chunks + queued_chunks.len() as u64;
        let mut judged = Vec::new();
        if passed_chunks > 0 {
            let count = u32::try_from(passed_chunks).unwrap_or(u32::MAX);
            let first = 1;
            judged.push(tracker.skip_chunks(hop_id, first, count, UnjudgedCause::UnobservedDeliveries));
        }
        let mut previous_end = None;
        for chunk in queued_chunks {
            let entry = entry_of_queued_chunk(chunk, stream, previous_end);
            let has_room =
                self.limits.has_room_in_flight_else_count_reached(tracker.entry_count(), self.loss_memory.entries);
            tracker.subtract_from_memory_use(&mut self.loss_memory);
            // Queued chunks do not keep the ids of their tokens.
            let ids: &[i64] = &[];
            judged.push(tracker.push_chunk(entry, ids, has_room));
            tracker.add_to_memory_use(&mut self.loss_memory);
            previous_end = Some(chunk.end_count);
        }
        for outcomes in judged {
            self.record_outcomes(self.now, ticket, &outcomes);
        }
        recorded_chunks
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use crate::event::{Capabilities, Chunk, Finish, IdColumn};
    use crate::ledger::OutcomeCounts;
    use crate::ledger::test_path::Path;

    /// Three chunks sent, `received` of them received before the receiver is known to be the tokenizer, and one delivery of the third.
    fn outcomes(before: &str, received: usize) -> (OutcomeCounts, u64) {
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
        let mut path = Path::new(Config::default());
        let send = |path: &mut Path, count| path.send(0, IdColumn::Delta, &[Chunk::counted("a", 1, count)]);
        path.announce(0, before, [false, false], capabilities);
        let frames = [1, 2, 3].map(|count| send(&mut path, count));
        frames.into_iter().take(received).for_each(|id| path.receive(id));
        path.announce(0, "detokenizer->tokenizer", [false, true], capabilities | Capabilities::DELIVERED);
        path.deliver(1, Some(3), false);
        send(&mut path, 4);
        path.deliver(1, Some(4), false);
        (path.ledger().totals().chunks.outcomes, path.ledger().undelivered_chunks())
    }

    #[test]
    fn chunks_queued_before_their_receiver_is_known_are_judged() {
        let (counts, in_flight) = outcomes("detokenizer->?", 0);
        assert_eq!((counts.dropped, counts.tokens_lost, counts.delivered), (2, 2, 2));
        assert_eq!((counts.unjudged, in_flight), (0, 0));
    }

    #[test]
    fn chunks_received_before_their_receiver_is_known_are_unjudged() {
        for (before, received) in [("detokenizer->?", 3), ("detokenizer->proxy", 0)] {
            let (counts, in_flight) = outcomes(before, received);
            assert_eq!((counts.dropped, counts.tokens_lost), (0, 0), "{before}");
            assert_eq!((counts.unjudged, counts.delivered, in_flight), (3, 1, 0), "{before}");
        }
    }

    #[test]
    fn a_repeated_finish_before_deliveries_are_observed_is_no_chunk() {
        for received in 0..=2 {
            let mut path = Path::new(Config::default());
            let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
            path.announce(0, "detokenizer->?", [false, false], capabilities);
            let frames = [1, 0].map(|tokens| {
                let chunk = Chunk { finish: Some(Finish::Length), ..Chunk::counted("a", tokens, 1) };
                path.send(0, IdColumn::Delta, &[chunk])
            });
            frames.into_iter().take(received).for_each(|id| path.receive(id));
            path.announce(0, "detokenizer->tokenizer", [false, true], capabilities | Capabilities::DELIVERED);
            assert_eq!(path.ledger().check_balance(), Ok(()), "{received} received");
            assert_eq!((path.ledger().totals().chunks.tracked, path.ledger().totals().chunks.repeats), (1, 1));
        }
    }

    #[test]
    fn chunks_queued_before_deliveries_are_observed_are_judged() {
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
        // Received chunks may have been delivered unobserved. So may others of their request, in the same delivery.
        for (received, expected) in [(0, [1, 2, 0]), (1, [1, 0, 2]), (2, [1, 0, 2]), (3, [0, 0, 3])] {
            let mut path = Path::new(Config::default());
            path.announce(0, "scheduler->tokenizer", [true, true], capabilities);
            let frames = [1, 2, 3].map(|count| path.send(0, IdColumn::Delta, &[Chunk::counted("a", 1, count)]));
            frames.into_iter().take(received).for_each(|id| path.receive(id));
            path.announce(0, "scheduler->tokenizer", [true, true], capabilities | Capabilities::DELIVERED);
            assert_eq!(path.ledger().totals().chunks.outcomes.unjudged, received as u64, "{received} received");
            frames.into_iter().skip(received).for_each(|id| path.receive(id));
            path.deliver(1, Some(3), false);
            let outcomes = path.ledger().totals().chunks.outcomes;
            assert_eq!(path.ledger().check_balance(), Ok(()));
            assert_eq!([outcomes.delivered, outcomes.dropped, outcomes.unjudged], expected, "{received} received");
        }
    }

    #[test]
    fn a_receive_reported_after_deliveries_became_observed_proves_no_drop() {
        let capabilities = Capabilities::SENT | Capabilities::RECEIVED;
        let mut path = Path::new(Config::default());
        path.announce(0, "scheduler->tokenizer", [true, true], capabilities);
        let frames = [1, 2].map(|count| path.send(0, IdColumn::Delta, &[Chunk::counted("a", 1, count)]));
        let received_at = path.now;
        path.now += 10 * path.step_ns;
        path.announce(0, "scheduler->tokenizer", [true, true], capabilities | Capabilities::DELIVERED);
        path.now = received_at;
        path.receive(frames[0]);
        path.now += 20 * path.step_ns;
        path.receive(frames[1]);
        path.deliver(1, Some(2), false);
        let outcomes = path.ledger().totals().chunks.outcomes;
        assert_eq!([outcomes.delivered, outcomes.dropped, outcomes.unjudged], [1, 0, 1]);
    }
}
