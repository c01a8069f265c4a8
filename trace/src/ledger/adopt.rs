//! Chunks that crossed a hop before it was known to lead to the tokenizer.

use super::Ledger;
use super::arithmetic::Evidence;
use super::delivery_tracker::{DeliveryTracker, Entry};
use super::lane::PendingChunk;
use super::outcome::UnjudgedCause;
use crate::event;
use crate::id::{HopId, Ticket};

impl Ledger {
    pub(super) fn announced(&mut self, announced: &event::Hop<'_>) {
        let before: Vec<(bool, bool)> = self.hops.all.iter().map(|hop| (hop.tracks_deliveries, hop.open)).collect();
        let known = self.hops.all.iter().find(|hop| hop.id == announced.id);
        let (previous, group) = known.map(|hop| (hop.shows, Some(hop.group))).unwrap_or_default();
        if !self.hops.announce(announced, self.limits.hops) {
            self.limits.reached("hops");
            return;
        }
        if let Some(place) = self.hops.place(announced.id, self.limits.hops) {
            let named = &self.hops.all[place];
            if group.is_some_and(|group| group != named.group) {
                // Its streams move to its new group.
                let (group, ends) = (named.group, named.ends);
                let streams = self.table.iter_mut().flat_map(|request| &mut request.streams);
                for stream in streams.filter(|stream| stream.hop == announced.id) {
                    (stream.group, stream.ends) = (group as u32, ends);
                }
            }
            if previous.received && !announced.capabilities.received {
                self.hide_receives(place);
            }
            if !previous.delivered && announced.capabilities.delivered {
                self.give_up_waiting(announced.id);
            }
        }
        for (place, (tracked, open)) in before.into_iter().enumerate() {
            if self.hops.all[place].tracks_deliveries && !tracked {
                self.adopt(place, open);
            }
        }
    }

    /// Marks the receives from the hop at `place` as unobserved from now on.
    fn hide_receives(&mut self, place: usize) {
        let hop = &mut self.hops.all[place];
        let mut chunks = Vec::new();
        for lane in hop.lanes.values_mut() {
            self.pending_frames -= lane.forget_waiting(&mut chunks);
        }
        self.hops.groups[hop.group].backlog -= std::mem::take(&mut hop.counts.backlog);
        self.pending_chunks -= chunks.len();
        let at = self.now;
        for chunk in chunks {
            let Some(request) = self.table.get_mut(chunk.ticket) else {
                continue;
            };
            request.first_receive_missed |= chunk.first;
            if chunk.last {
                request.final_received = true;
                self.settle_if_finished(chunk.ticket, at);
            }
        }
    }

    /// Makes the chunks in flight on hop `id` unjudged: they may have been delivered while deliveries were not observed.
    fn give_up_waiting(&mut self, id: HopId) {
        for ticket in self.table.tickets() {
            if self.table.get(ticket).is_some_and(|request| request.streams.iter().any(|stream| stream.hop == id)) {
                self.stop_waiting(self.now, ticket, UnjudgedCause::UnobservedDeliveries);
            }
        }
    }

    /// Records chunks that the hop at `place` carried before their deliveries were observed. If only the receiver was unknown, chunks still
    /// queued are judged by their deliveries. The others are unjudged.
    fn adopt(&mut self, place: usize, was_open: bool) {
        let hop = &self.hops.all[place];
        let late = hop.counts.chunks - hop.untracked_chunks - hop.tracked_chunks;
        if late == 0 {
            return;
        }
        let id = hop.id;
        let mut waiting: Vec<PendingChunk> = Vec::new();
        if was_open {
            waiting.extend(hop.lanes.values().flat_map(|lane| lane.chunks.iter().copied()));
            // Lanes are unordered, and the chunks of one request may be in several.
            waiting.sort_unstable_by_key(|chunk| (chunk.ticket, chunk.nth));
        }
        let mut entered = 0;
        for ticket in self.table.tickets() {
            let from = waiting.partition_point(|chunk| chunk.ticket < ticket);
            let to = waiting.partition_point(|chunk| chunk.ticket <= ticket);
            entered += self.adopt_request(ticket, id, &waiting[from..to]);
        }
        self.totals.chunks.tracked += late;
        // The others belong to closed requests.
        self.totals.chunks.outcomes.unjudged += late.saturating_sub(entered);
        self.hops.all[place].tracked_chunks += late;
    }

    /// Records the chunks of one request on hop `id`; `waiting` are those still queued. Returns how many were entered.
    fn adopt_request(&mut self, ticket: Ticket, id: HopId, waiting: &[PendingChunk]) -> u64 {
        let Some(request) = self.table.get_mut(ticket) else {
            return 0;
        };
        let Some(stream) = request.streams.iter().find(|stream| stream.hop == id) else {
            return 0;
        };
        // Counts of a retracted request run behind, and pending chunks do not show by how much.
        let waiting = if request.retractions > 0 || stream.count.high == 0 { &[] } else { waiting };
        let early = self.early.of(&request.rid, stream.first_at);
        let tracker = request.tracker.get_or_insert_with(|| Box::new(DeliveryTracker::new(self.delivery_epoch, early)));
        tracker.incomplete |= !stream.whole();
        let known = tracker.entered + waiting.len() as u64;
        let passed = u64::from(stream.chunks).saturating_sub(known);
        let mut judged = Vec::new();
        if passed > 0 {
            // The first chunks passed before deliveries were observed.
            let count = u32::try_from(passed).unwrap_or(u32::MAX);
            judged.push(tracker.skip(id, 1, count, UnjudgedCause::UnobservedDeliveries));
        }
        let mut entered = passed;
        let mut before = None;
        let mut finished = false;
        for chunk in waiting {
            // A repeated finish.
            if finished && chunk.tokens == 0 {
                continue;
            }
            let from = chunk.end.saturating_sub(chunk.tokens);
            let gap = from.saturating_sub(before.unwrap_or(from));
            let on_wire = stream.missing > 0;
            let entry = Entry {
                end: chunk.end,
                counted: chunk.end,
                tokens: chunk.tokens,
                missing: if on_wire { gap } else { 0 },
                nth: chunk.nth,
                hop: id,
                imprecise: stream.count.evidence != Evidence::Delta,
                after_gap: gap > 0 && !on_wire,
                ..Entry::default()
            };
            let fits = self.limits.has_room(tracker.entries(), self.shelf.entries);
            tracker.release(&mut self.shelf);
            judged.push(tracker.push(entry, &[], fits));
            tracker.hold(&mut self.shelf);
            entered += 1;
            (before, finished) = (Some(chunk.end), chunk.last);
        }
        for judged in judged {
            self.enter_outcomes(self.now, ticket, &judged);
        }
        entered
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use crate::event::{Capabilities, Chunk, IdColumn};
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
        (path.ledger().totals().chunks.outcomes, path.ledger().undelivered())
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
}
