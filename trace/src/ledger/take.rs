//! Events of a frame after its send: forwarded, received, processed.

use super::Ledger;
use super::hop::{EarlyTake, Trip};
use super::lane::{Load, PendingChunk, Sent};
use super::passage::Room;
use super::table::AHEAD;
use super::waits::{Wait, Waits};
use crate::clock::MonoNs;
use crate::engine::{EngineState, Mode, Waiter};
use crate::event::Taken;
use crate::id::FrameId;

/// How long a receive waits for its send before the send counts as missed, in nanoseconds.
const EARLY_NS: u64 = 5_000_000_000;

/// Whether the waiter called at `called` has not run yet when a chunk is received at `now`.
fn meet(called: Trip, now: Trip, engine: &EngineState) -> bool {
    let apart = now.frame.saturating_sub(called.frame);
    (called.by, called.burst) == (now.by, now.burst) && engine.still_waits(apart)
}

/// Receive of a frame, applied to its chunks.
#[derive(Clone, Copy)]
struct Take {
    /// Time of the receive, or of its detection if it was not observed.
    at: MonoNs,
    /// Index of the hop.
    place: usize,
    trip: Option<Trip>,
    /// When the frame was sent on this hop.
    sent: Option<MonoNs>,
    /// The receive was observed, so `at` is exact.
    seen: bool,
}

impl Ledger {
    /// Enters the send of a frame. `scratch` has its chunks that wait for a receive.
    pub(super) fn enter_sent(&mut self, at: MonoNs, id: FrameId, place: usize, load: Load) {
        let chunks = self.scratch.len();
        let hop = &mut self.hops.all[place];
        hop.counts.frames_sent += 1;
        let Some(lane) = hop.lanes.get_mut(&id.lane) else {
            return;
        };
        if hop.shows.forwarded {
            if self.pending_frames >= self.limits.pending_frames {
                self.reached.pending_frames += 1;
                self.pending_frames -= usize::from(lane.forget_forward());
            }
            if self.pending_frames < self.limits.pending_frames {
                lane.await_forward(id.seq, at);
                self.pending_frames += 1;
            }
        }
        if !hop.shows.taken {
            return;
        }
        let early = hop
            .early
            .iter()
            .position(|e| e.id == id)
            .and_then(|at| hop.early.remove(at));
        if let Some(early) = early {
            let group = &mut self.hops.groups[hop.group];
            let ns = early.at.since(at);
            group.resided(early.at, ns);
            hop.residence.record(ns);
            hop.chunk_waits.record_n(early.at, ns, chunks as u64);
            self.take_scratch(Take {
                at: early.at,
                place,
                trip: early.trip,
                sent: Some(at),
                seen: true,
            });
            return;
        }
        while self.pending_frames >= self.limits.pending_frames
            || self.pending_chunks + chunks > self.limits.pending_chunks
        {
            let for_chunks = self.pending_frames < self.limits.pending_frames;
            *(if for_chunks {
                &mut self.reached.pending_chunks
            } else {
                &mut self.reached.pending_frames
            }) += 1;
            // The newest frame of a lane is never evicted.
            let Some(gone) = lane.forget() else { break };
            self.pending_frames -= 1;
            self.pending_chunks -= gone.len();
            for chunk in gone.filter(|chunk| chunk.first) {
                if let Some(request) = self.table.get_mut(chunk.ticket) {
                    request.first_take_missed = true;
                }
            }
        }
        lane.push(id.seq, at, chunks as u32, load);
        lane.chunks.extend(&self.scratch);
        self.scratch.clear();
        self.pending_frames += 1;
        self.pending_chunks += chunks;
        hop.counts.backlog += 1;
        hop.counts.backlog_max = hop.counts.backlog_max.max(hop.counts.backlog);
        let group = &mut self.hops.groups[hop.group];
        group.backlog += 1;
        group.backlog_slot = group.backlog_slot.max(group.backlog);
        if group.backlog > group.backlog_max {
            (group.backlog_max, group.backlog_max_at) = (group.backlog, at);
        }
    }

    pub(super) fn forwarded(&mut self, at: MonoNs, id: FrameId) {
        let Some(place) = self.hops.place(id.hop, self.limits.hops) else {
            return;
        };
        let hop = &mut self.hops.all[place];
        hop.counts.frames_forwarded += 1;
        let Some(lane) = hop.lanes.get_mut(&id.lane) else {
            return;
        };
        let (sent, left) = lane.forwarded(id.seq);
        self.pending_frames -= left;
        if let Some(sent) = sent {
            self.hops.groups[hop.group].relay.record(at, at.since(sent));
        }
    }

    pub(super) fn handled(&mut self, at: MonoNs, id: FrameId) {
        let Some(place) = self.hops.place(id.hop, self.limits.hops) else {
            return;
        };
        let hop = &mut self.hops.all[place];
        hop.counts.frames_handled += 1;
        hop.asked = Some(at);
        let (by, handling) = (hop.by, hop.handled(id).map(|taken| at.since(taken)));
        if let Some(ns) = handling {
            hop.counts.busy_ns = hop.counts.busy_ns.saturating_add(ns);
            self.hops.groups[hop.group].handling.record(at, ns);
        }
        if let Some(thread) = by.and_then(|by| self.threads.get_mut(by)) {
            thread.asks(at);
            thread.handled(handling.unwrap_or(0));
        }
    }

    pub(super) fn taken(&mut self, at: MonoNs, taken: &Taken<'_>) {
        let id = taken.id;
        let place = match &taken.frame {
            Some(_) => self.place(at, id),
            None => self.hops.place(id.hop, self.limits.hops),
        };
        let Some(place) = place else { return };
        let hop = &mut self.hops.all[place];
        hop.counts.frames_taken += 1;
        hop.took(id, at);
        let group = &mut self.hops.groups[hop.group];
        if let Some(frames) = taken.wakeup.and_then(|wakeup| hop.woke(wakeup)) {
            group.wakeups.record(at, u64::from(frames));
        }
        self.totals.predicted.wakeups_seen |= taken.wakeup.is_some() && hop.last;
        hop.by = taken.by.or(hop.by);
        let asked = self.taker(at, place, taken.by);
        let mut take = Take {
            at,
            place,
            trip: None,
            sent: None,
            seen: true,
        };
        if let Some(frame) = &taken.frame {
            take.trip = taken
                .wakeup
                .map(|wakeup| self.trip(place, (wakeup, taken.by), at, asked, None));
            self.scratch.clear();
            self.content(at, place, frame, false);
            self.take_scratch(take);
            return;
        }
        self.overtake(id, place, at);
        let hop = &mut self.hops.all[place];
        let sent = hop
            .lanes
            .get_mut(&id.lane)
            .map_or(Sent::NotYet, |lane| lane.take(id.seq));
        let sent_at = match sent {
            Sent::At { at, .. } => Some(at),
            _ => None,
        };
        let trip = taken
            .wakeup
            .map(|wakeup| self.trip(place, (wakeup, taken.by), at, asked, sent_at));
        take.trip = trip;
        match sent {
            Sent::At { at: sent, chunks } => {
                self.left(place, id.lane, chunks);
                let hop = &mut self.hops.all[place];
                hop.residence.record(at.since(sent));
                hop.chunk_waits.record_n(at, at.since(sent), chunks.into());
                self.hops.groups[hop.group].resided(at, at.since(sent));
                take.sent = Some(sent);
                self.take_scratch(take);
            }
            Sent::NotYet if self.hops.all[place].shows.sent => {
                let hop = &mut self.hops.all[place];
                if hop.early.len() >= self.limits.early_takes {
                    hop.early.pop_front();
                    self.reached.early_takes += 1;
                }
                hop.early.push_back(EarlyTake { id, at, trip });
            }
            Sent::NotYet | Sent::Forgotten => {}
        }
    }

    /// A lane keeps its order, so frames sent before the received one were received too, unobserved.
    fn overtake(&mut self, id: FrameId, place: usize, at: MonoNs) {
        let hop = &mut self.hops.all[place];
        if let Some(lane) = hop.lanes.get_mut(&id.lane) {
            let overtaken = lane.first_waiting().is_some_and(|first| first <= id.seq);
            let forgotten = lane.forgotten_before(id.seq);
            hop.counts.backlog -= forgotten;
            self.hops.groups[hop.group].backlog -= forgotten;
            if overtaken {
                hop.counts.frames_taken += forgotten;
                hop.counts.takes_inferred += forgotten;
            }
        }
        while let Some(chunks) = self.hops.all[place]
            .lanes
            .get_mut(&id.lane)
            .and_then(|l| l.overtaken(id.seq))
        {
            let hop = &mut self.hops.all[place];
            hop.counts.frames_taken += 1;
            hop.counts.takes_inferred += 1;
            self.left(place, id.lane, chunks);
            self.take_scratch(Take {
                at,
                place,
                trip: None,
                sent: None,
                seen: false,
            });
        }
    }

    /// Subtracts a frame that has left its lane from the queue totals, and moves its chunks to `scratch`.
    fn left(&mut self, place: usize, lane: u32, chunks: u32) {
        let hop = &mut self.hops.all[place];
        hop.counts.backlog -= 1;
        self.hops.groups[hop.group].backlog -= 1;
        self.pending_frames -= 1;
        self.pending_chunks -= chunks as usize;
        self.scratch.clear();
        if let Some(lane) = hop.lanes.get_mut(&lane) {
            lane.pop_chunks(chunks as usize, &mut self.scratch);
        }
    }

    fn take_scratch(&mut self, take: Take) {
        let chunks = std::mem::take(&mut self.scratch);
        let last = self.hops.all[take.place].last;
        for block in chunks.chunks(AHEAD) {
            for chunk in block {
                self.table.fetch(chunk.ticket);
            }
            for chunk in block {
                if chunk.nth == 1 && take.seen {
                    self.first_received(take, *chunk);
                }
                if last {
                    self.take_chunk(take, *chunk);
                } else if take.seen {
                    self.pass_chunk(take, *chunk);
                }
            }
        }
        self.scratch = chunks;
        self.scratch.clear();
    }

    /// Records the queue wait of a request's first chunk.
    fn first_received(&mut self, take: Take, chunk: PendingChunk) {
        let hop = &mut self.hops.all[take.place];
        let request = self.table.get_mut(chunk.ticket);
        let whole = request.is_some_and(|r| r.streams.iter().any(|s| s.hop == hop.id && s.whole()));
        if let Some(sent) = take.sent.filter(|_| whole) {
            hop.first_waits.record_n(take.at, take.at.since(sent), 1);
        }
    }

    /// Records the receive of a chunk by a process that forwards it.
    fn pass_chunk(&mut self, take: Take, chunk: PendingChunk) {
        let by = self.hops.all[take.place].ends.to;
        if let Some(request) = self.table.get_mut(chunk.ticket) {
            let mut room = Room {
                limits: &self.limits,
                reached: &mut self.reached,
            };
            let first = chunk.nth == 1;
            self.hops
                .passages
                .taken(request, by, (chunk.end, first), take.at, &mut room);
        }
    }

    fn take_chunk(&mut self, take: Take, chunk: PendingChunk) {
        let Take { at, trip, .. } = take;
        self.totals.chunks.taken += 1;
        self.totals.tokens.taken += u64::from(chunk.tokens);
        let Some(request) = self.table.get_mut(chunk.ticket) else {
            return;
        };
        request.tokens_taken = request.tokens_taken.saturating_add(chunk.tokens);
        if request.taken_first.is_none() && !(chunk.first && take.seen) {
            request.first_take_missed = true;
        }
        if chunk.first && take.seen && request.taken_first.is_none() {
            request.taken_first = Some(at);
            if let Some(sent) = request.sent_first.filter(|_| !request.outlived) {
                let gap = at.since(sent);
                request.gap_ns = Some(gap);
                self.gap.record(at, gap);
                self.gap_slot.record(gap);
                if gap >= self.worst_gap.ns {
                    self.worst_gap.ns = gap;
                    self.worst_gap.rid = request.rid.clone();
                    self.worst_gap.at = at;
                }
                let hop = &self.hops.all[take.place];
                if let Some((by, arrived)) = hop.by.zip(take.sent).filter(|_| Waits::resolves(gap)) {
                    self.waits.push(Wait {
                        rid: request.rid.clone(),
                        sent,
                        arrived,
                        taken: at,
                        group: hop.group,
                        by,
                    });
                }
            }
        }
        if let (Some(now), Some(called)) = (trip, request.called)
            && !request.skips_nothing
            && !request.is_shared()
            && meet(called, now, &self.engine)
        {
            request.burst += 1;
            let predicted = &mut self.totals.predicted;
            predicted.burst_max = predicted.burst_max.max(request.burst);
            let (waiter, mode) = (self.engine.waiter, self.engine.mode);
            if (waiter, mode) == (Some(Waiter::KeepsLast), Some(Mode::Incremental)) {
                let new_rid = request.predicted.is_none();
                request.foresee_drop(&mut self.shelf, &self.limits, &mut self.reached);
                let chunks = request.predicted.as_ref().map_or(0, |losses| losses.chunks);
                self.totals.foreseen.enter(at, &request.rid, chunks, new_rid);
            }
            *match (waiter, mode) {
                (Some(Waiter::KeepsLast), Some(Mode::Incremental)) => &mut predicted.dropped,
                (Some(Waiter::KeepsLast), Some(Mode::Cumulative)) | (Some(Waiter::Merges), _) => {
                    &mut predicted.coalesced
                }
                (Some(Waiter::YieldsAll), _) => &mut predicted.passed,
                _ => &mut predicted.unknown,
            } += 1;
            predicted.replaced += u64::from((waiter, mode) == (Some(Waiter::KeepsLast), Some(Mode::Cumulative)));
            let new_rid = !std::mem::replace(&mut request.burst_seen, true);
            self.totals
                .bursts
                .enter(at, &request.rid, u64::from(request.burst), new_rid);
        } else {
            request.called = trip;
            request.burst = 1;
        }
        request.taken_last = [chunk.end, chunk.tokens, chunk.nth];
        if chunk.last {
            request.final_taken = true;
            self.settle_if_over(chunk.ticket, at);
        }
    }

    /// Drops old receives without a send: their sends were missed.
    pub(super) fn age_early_takes(&mut self, now: MonoNs) {
        for hop in &mut self.hops.all {
            while hop.early.front().is_some_and(|e| now.since(e.at) > EARLY_NS) {
                hop.early.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::hop::Burst;

    #[test]
    fn a_receiver_that_waited_for_a_frame_begins_another_burst() {
        let mut burst = Burst::default();
        assert_eq!((burst.enter(7, false), burst.enter(7, false)), ((1, 0), (1, 1)));
        assert_eq!((burst.enter(7, true), burst.enter(7, false)), ((2, 0), (2, 1)));
        assert_eq!(burst.enter(8, false), (3, 0));
    }
}
