//! Chunks that crossed a hop before it was known to lead to the tokenizer.

use super::Ledger;
use super::arithmetic::Evidence;
use super::chunkline::{Entering, Line};
use super::lane::PendingChunk;
use super::table::Ticket;
use crate::event;
use crate::id::HopId;

impl Ledger {
    /// Enters the announcement of a hop.
    pub(super) fn announced(&mut self, said: &event::Hop<'_>) {
        let before: Vec<(bool, bool)> = self.hops.all.iter().map(|hop| (hop.lines_up, hop.open)).collect();
        let known = self.hops.all.iter().find(|hop| hop.id == said.id);
        let (saw, line) = known.map(|hop| (hop.shows, Some(hop.group))).unwrap_or_default();
        if !self.hops.announce(said, self.limits.hops) {
            self.reached.hops += 1;
            return;
        }
        if let Some(place) = self.hops.place(said.id, self.limits.hops) {
            let named = &self.hops.all[place];
            if line.is_some_and(|line| line != named.group) {
                // Its streams move to its new group.
                let (line, ends) = (named.group, named.ends);
                let streams = self.table.iter_mut().flat_map(|request| &mut request.streams);
                for stream in streams.filter(|stream| stream.hop == said.id) {
                    stream.moves_to(line, ends);
                }
            }
            if saw.taken && !said.sees.taken {
                self.hide_takes(place);
            }
            if !saw.delivered && said.sees.delivered {
                self.give_up_waiting(said.id);
            }
        }
        for (place, (lined_up, open)) in before.into_iter().enumerate() {
            if self.hops.all[place].lines_up && !lined_up {
                self.adopt(place, open);
            }
        }
    }

    /// Marks the receives from the hop at `place` as unobserved from now on.
    fn hide_takes(&mut self, place: usize) {
        let hop = &mut self.hops.all[place];
        let waited = hop.counts.backlog;
        let (frames, chunks) = hop.forget_waiting();
        self.hops.groups[hop.group].backlog -= waited;
        self.pending_frames -= frames;
        self.pending_chunks -= chunks.len();
        let at = self.now;
        for chunk in chunks {
            let Some(request) = self.table.get_mut(chunk.ticket) else {
                continue;
            };
            request.first_take_missed |= chunk.first;
            if chunk.last {
                request.final_taken = true;
                self.settle_if_over(chunk.ticket, at);
            }
        }
    }

    /// Makes the chunks in flight on hop `id` unjudged: they may have been delivered while deliveries were not observed.
    fn give_up_waiting(&mut self, id: HopId) {
        for ticket in self.table.tickets() {
            let Some(request) = self.table.get_mut(ticket) else {
                continue;
            };
            let crosses = request.streams.iter().any(|stream| stream.hop == id);
            let Some(line) = request.line.as_mut().filter(|_| crosses) else {
                continue;
            };
            self.outstanding -= line.entries();
            self.shelf.ids -= line.ids_held();
            self.totals.chunks.fates.unjudged += line.give_up_waiting().0;
        }
    }

    /// Enters chunks that the hop at `place` carried before their deliveries were observed. If only the receiver was unknown, chunks still
    /// queued are judged by their deliveries. The others are unjudged.
    fn adopt(&mut self, place: usize, was_open: bool) {
        let hop = &self.hops.all[place];
        let late = hop.counts.chunks - hop.set_aside - hop.lined_up;
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
        let mut judged = 0;
        for ticket in self.table.tickets() {
            let from = waiting.partition_point(|chunk| chunk.ticket < ticket);
            let to = waiting.partition_point(|chunk| chunk.ticket <= ticket);
            judged += self.adopt_request(ticket, id, &waiting[from..to]);
        }
        self.totals.chunks.lined_up += late;
        self.totals.chunks.fates.unjudged += late.saturating_sub(judged);
        self.hops.all[place].lined_up += late;
    }

    /// Enters the chunks of one request on hop `id`; `waiting` are those still queued. Returns how many its delivery tracker judges.
    fn adopt_request(&mut self, ticket: Ticket, id: HopId, waiting: &[PendingChunk]) -> u64 {
        let Some(request) = self.table.get_mut(ticket) else {
            return 0;
        };
        let Some(stream) = request.streams.iter().find(|stream| stream.hop == id) else {
            return 0;
        };
        // Counts of a retracted request run behind, and pending chunks do not show by how much.
        let waiting = if request.retractions > 0 || stream.count.high == 0 {
            &[]
        } else {
            waiting
        };
        let early = self.early.of(&request.rid, stream.first_at);
        let line = request
            .line
            .get_or_insert_with(|| Box::new(Line::new(self.delivery_epoch, early)));
        line.scarred |= !stream.whole();
        let known = line.entered() + waiting.len() as u64;
        let passed = u64::from(stream.chunks).saturating_sub(known);
        if passed > 0 {
            line.skip(passed);
        }
        let (mut before, mut finished, mut judged) = (None, false, 0);
        for chunk in waiting {
            // A repeated finish.
            if finished && chunk.tokens == 0 {
                continue;
            }
            let from = chunk.end.saturating_sub(chunk.tokens);
            let gap = from.saturating_sub(before.unwrap_or(from));
            let on_wire = stream.missing > 0;
            let room = line.entries() < self.limits.outstanding_per_rid && self.outstanding < self.limits.outstanding;
            let entries = line.entries();
            let fates = line.push(
                Entering {
                    end: chunk.end,
                    said: chunk.end,
                    tokens: chunk.tokens,
                    missing: if on_wire { gap } else { 0 },
                    nth: chunk.nth,
                    ids: &[],
                    vague: stream.evidence() != Evidence::Delta,
                    rebased: gap > 0 && !on_wire,
                },
                room,
            );
            self.reached.outstanding += u64::from(!room);
            self.outstanding += line.entries() - entries;
            self.totals.chunks.fates.add(fates);
            judged += 1;
            (before, finished) = (Some(chunk.end), chunk.last);
        }
        judged
    }
}

#[cfg(test)]
mod tests {
    use crate::clock::MonoNs;
    use crate::engine::Mode;
    use crate::event::{Chunk, Delivery, Event, Frame, Hop, IdColumn, Kind, Response, Sees, Taken, What};
    use crate::id::{FrameId, HopId};
    use crate::ledger::{Fates, Ledger, Limits};

    fn say(ledger: &mut Ledger, at: u64, what: What<'_>) {
        ledger.apply(&Event { at: MonoNs(at), what });
    }

    fn announce(ledger: &mut Ledger, name: &str, last: bool) {
        let hop = Hop {
            id: HopId(0),
            name,
            endpoint: "",
            worker: None,
            origin: false,
            last,
            sees: Sees {
                sent: true,
                taken: true,
                delivered: last,
                ..Sees::default()
            },
        };
        say(ledger, 0, What::Hop(hop));
    }

    fn id(seq: u64) -> FrameId {
        FrameId {
            hop: HopId(0),
            lane: 0,
            seq,
        }
    }

    fn send(ledger: &mut Ledger, count: u32) {
        let chunk = Chunk {
            rid: "a",
            listed: Some(1),
            completion_tokens: Some(count),
            prompt_tokens: None,
            cached_tokens: None,
            finish: None,
            retractions: None,
            worker: None,
            ids: &[],
        };
        let frame = Frame {
            id: id(u64::from(count) - 1),
            bytes: 100,
            kind: Kind::TokenIds,
            ids: IdColumn::Delta,
            chunks: &[chunk],
        };
        say(ledger, u64::from(count), What::Sent(frame));
    }

    fn take(ledger: &mut Ledger, seq: u64) {
        let taken = Taken {
            id: id(seq),
            wakeup: None,
            by: None,
            frame: None,
        };
        say(ledger, 10 + seq, What::Taken(taken));
    }

    fn deliver(ledger: &mut Ledger, tokens: u32, to: u32) {
        let delivery = Delivery {
            rid: "a",
            tokens,
            mode: Mode::Incremental,
            completion_tokens: Some(to),
            finished: false,
            response: Response::Streamed,
        };
        say(ledger, 20 + u64::from(to), What::Delivered(delivery));
        assert_eq!(ledger.balances(), Ok(()));
    }

    /// Three chunks sent, `taken` of them received before the receiver is known to be the tokenizer, and one delivery of the third.
    fn fates(before: &str, taken: u64) -> (Fates, u64) {
        let mut ledger = Ledger::new(Limits::default());
        announce(&mut ledger, before, false);
        (1..=3).for_each(|count| send(&mut ledger, count));
        (0..taken).for_each(|seq| take(&mut ledger, seq));
        announce(&mut ledger, "detokenizer->tokenizer", true);
        assert_eq!(ledger.balances(), Ok(()));
        deliver(&mut ledger, 1, 3);
        send(&mut ledger, 4);
        deliver(&mut ledger, 1, 4);
        (ledger.totals().chunks.fates, ledger.undelivered())
    }

    #[test]
    fn chunks_queued_before_their_receiver_is_known_are_judged() {
        let (fates, in_flight) = fates("detokenizer->?", 0);
        assert_eq!((fates.dropped, fates.tokens_lost, fates.delivered), (2, 2, 2));
        assert_eq!((fates.unjudged, in_flight), (0, 0));
    }

    #[test]
    fn chunks_received_before_their_receiver_is_known_are_unjudged() {
        for (before, taken) in [("detokenizer->?", 3), ("detokenizer->proxy", 0)] {
            let (fates, in_flight) = fates(before, taken);
            assert_eq!((fates.dropped, fates.tokens_lost), (0, 0), "{before}");
            assert_eq!((fates.unjudged, fates.delivered, in_flight), (3, 1, 0), "{before}");
        }
    }
}
