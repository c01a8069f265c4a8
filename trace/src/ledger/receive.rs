//! Stages of a frame after its send: forwarded, received, processed.

use super::Ledger;
use super::hop::{BurstPosition, EarlyReceive};
use super::lane::{Load, PendingChunk};
use super::limits::push_bounded;
use super::table::AHEAD;
use super::waits::{SHORTEST_NS, Wait};
use crate::clock::MonoNs;
use crate::engine::{EngineState, Mode, Waiter};
use crate::event::Received;
use crate::id::FrameId;

/// Whether the waiter woken at `called` has not run yet when a chunk is received at `now`.
fn waiter_is_pending(called: BurstPosition, now: BurstPosition, engine: &EngineState) -> bool {
    let frames = now.frame.saturating_sub(called.frame);
    (called.by, called.burst) == (now.by, now.burst) && engine.still_waits(frames)
}

/// Receive of a frame, applied to its chunks.
#[derive(Clone, Copy)]
struct Receive {
    /// Time of the receive, or of its detection if it was not observed.
    at: MonoNs,
    place: usize,
    position: Option<BurstPosition>,
    /// When the frame was sent on this hop.
    sent: Option<MonoNs>,
    /// The receive was observed, so `at` is exact.
    seen: bool,
}

impl Ledger {
    /// Records the send of a frame. `scratch` holds its chunks that wait for a receive.
    pub(super) fn enter_sent(&mut self, at: MonoNs, id: FrameId, place: usize, load: Load, forwarded: Option<MonoNs>) {
        let chunks = self.scratch.len();
        let hop = &mut self.hops.all[place];
        hop.counts.frames_sent += 1;
        if let Some(forwarded) = forwarded {
            hop.counts.frames_forwarded += 1;
            self.hops.groups[hop.group].relay.record(forwarded, forwarded.since(at));
        }
        let Some(lane) = hop.lanes.get_mut(&id.lane) else {
            return;
        };
        if !hop.shows.received {
            return;
        }
        let early = hop.early.iter().position(|e| e.id == id).and_then(|at| hop.early.remove(at));
        if let Some(early) = early {
            let receive = Receive { at: early.at, place, position: early.trip, sent: Some(at), seen: true };
            return self.receive_after_wait(receive, early.at.since(at));
        }
        while self.pending_frames >= self.limits.pending_frames
            || self.pending_chunks + chunks > self.limits.pending_chunks
        {
            let for_chunks = self.pending_frames < self.limits.pending_frames;
            self.limits.reached(if for_chunks { "pending_chunks" } else { "pending_frames" });
            // The newest frame of a lane is never evicted.
            let Some(evicted) = lane.forget() else { break };
            self.pending_frames -= 1;
            self.pending_chunks -= evicted.len();
            self.table.miss_receives(evicted);
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

    pub(super) fn processed(&mut self, at: MonoNs, id: FrameId) {
        let Some(place) = self.hops.place(id.hop, self.limits.hops) else {
            return;
        };
        let hop = &mut self.hops.all[place];
        hop.asked = Some(at);
        let (by, processing) = (hop.by, hop.processed(id).map(|received| at.since(received)));
        if let Some(ns) = processing {
            hop.counts.busy_ns = hop.counts.busy_ns.saturating_add(ns);
            self.hops.groups[hop.group].processing.record(at, ns);
        }
        if let Some(thread) = by.and_then(|by| self.threads.get_mut(by)) {
            thread.asked = Some(at);
            thread.sums.processing_ns = thread.sums.processing_ns.saturating_add(processing.unwrap_or(0));
        }
    }

    pub(super) fn received(&mut self, at: MonoNs, received: &Received<'_>) {
        let id = received.id;
        self.history.received(at, id, received.wakeup);
        let place = match &received.frame {
            Some(_) => self.place(at, id),
            None => self.hops.place(id.hop, self.limits.hops),
        };
        let Some(place) = place else { return };
        let hop = &mut self.hops.all[place];
        hop.counts.frames_received += 1;
        hop.add_unprocessed(id, at);
        let group = &mut self.hops.groups[hop.group];
        if let Some(frames) = received.wakeup.and_then(|wakeup| hop.enter_wakeup(wakeup)) {
            group.wakeups.record(at, u64::from(frames));
        }
        self.totals.predicted.wakeups_seen |= received.wakeup.is_some() && hop.last;
        hop.by = received.by.or(hop.by);
        let requested = self.receiving_thread(at, place, received.by);
        let sent = if received.frame.is_none() { self.dequeue(id, place, at) } else { None };
        let position =
            received.wakeup.map(|wakeup| self.burst_position(place, (wakeup, received.by), at, requested, sent));
        let receive = Receive { at, place, position, sent, seen: true };
        let hop = &mut self.hops.all[place];
        if let Some(frame) = &received.frame {
            self.scratch.clear();
            self.content(at, place, frame, false);
            self.receive_scratch(receive);
        } else if let Some(sent) = sent {
            self.receive_after_wait(receive, at.since(sent));
        } else if hop.shows.sent && !hop.lanes.get(&id.lane).is_some_and(|lane| lane.is_past(id.seq)) {
            if hop.early.len() >= self.limits.early_receives {
                self.limits.reached("early_receives");
            }
            push_bounded(&mut hop.early, EarlyReceive { id, at, trip: position }, self.limits.early_receives);
        }
    }

    /// Records a queue wait, and the receive of the chunks in `scratch`, of which the frame consists.
    fn receive_after_wait(&mut self, receive: Receive, ns: u64) {
        let hop = &mut self.hops.all[receive.place];
        hop.queue_wait.record(ns);
        hop.chunk_waits.record_n(receive.at, ns, self.scratch.len() as u64);
        let group = &mut self.hops.groups[hop.group];
        group.queue_wait.record(receive.at, ns);
        group.queue_wait_slot.record(ns);
        self.receive_scratch(receive);
    }

    /// Removes a received frame from its lane, moves its chunks to `scratch`, and returns when it was sent; `None` if it is not queued. A lane
    /// keeps its order, so frames sent before it were received too, unobserved.
    fn dequeue(&mut self, id: FrameId, place: usize, at: MonoNs) -> Option<MonoNs> {
        let hop = &mut self.hops.all[place];
        let lane = hop.lanes.get_mut(&id.lane)?;
        let overtaken = lane.first_waiting().is_some_and(|first| first <= id.seq);
        let evicted = lane.evicted_before(id.seq);
        hop.counts.backlog -= evicted;
        self.hops.groups[hop.group].backlog -= evicted;
        if overtaken {
            hop.counts.frames_received += evicted;
        }
        loop {
            let hop = &mut self.hops.all[place];
            let lane = hop.lanes.get_mut(&id.lane)?;
            let frame = lane.pop_through(id.seq)?;
            self.scratch.clear();
            lane.pop_chunks(frame.chunks as usize, &mut self.scratch);
            hop.counts.backlog -= 1;
            self.hops.groups[hop.group].backlog -= 1;
            self.pending_frames -= 1;
            self.pending_chunks -= frame.chunks as usize;
            if frame.seq == id.seq {
                return Some(frame.at);
            }
            hop.counts.frames_received += 1;
            self.receive_scratch(Receive { at, place, position: None, sent: None, seen: false });
        }
    }

    fn receive_scratch(&mut self, receive: Receive) {
        let chunks = std::mem::take(&mut self.scratch);
        let last = self.hops.all[receive.place].last;
        for block in chunks.chunks(AHEAD) {
            for chunk in block {
                self.table.fetch(chunk.ticket);
            }
            for chunk in block {
                if chunk.nth == 1 && receive.seen {
                    self.first_received(receive, *chunk);
                }
                if last {
                    self.receive_chunk(receive, *chunk);
                } else if receive.seen {
                    self.pass_chunk(receive, *chunk);
                }
            }
        }
        self.scratch = chunks;
        self.scratch.clear();
    }

    /// Records the queue wait of a request's first chunk.
    fn first_received(&mut self, receive: Receive, chunk: PendingChunk) {
        let hop = &mut self.hops.all[receive.place];
        let request = self.table.get_mut(chunk.ticket);
        let whole = request.is_some_and(|r| r.streams.iter().any(|s| s.hop == hop.id && s.whole()));
        if let Some(sent) = receive.sent.filter(|_| whole) {
            hop.first_waits.record_n(receive.at, receive.at.since(sent), 1);
        }
    }

    /// Records the receive of a chunk by a process that forwards it.
    fn pass_chunk(&mut self, receive: Receive, chunk: PendingChunk) {
        let by = self.hops.all[receive.place].ends.to;
        if let Some(request) = self.table.get_mut(chunk.ticket) {
            let first = chunk.nth == 1;
            self.hops.processing_stages.received(
                &mut request.in_process,
                by,
                (chunk.end, first),
                receive.at,
                &mut self.limits,
            );
        }
    }

    fn receive_chunk(&mut self, receive: Receive, chunk: PendingChunk) {
        let Receive { at, position, .. } = receive;
        self.totals.chunks.received += 1;
        self.totals.tokens.received += u64::from(chunk.tokens);
        let Some(request) = self.table.get_mut(chunk.ticket) else {
            return;
        };
        request.tokens_received = request.tokens_received.saturating_add(chunk.tokens);
        if request.received_first.is_none() && !(chunk.first && receive.seen) {
            request.first_receive_missed = true;
        }
        if chunk.first && receive.seen && request.received_first.is_none() {
            request.received_first = Some(at);
            if let Some(sent) = request.sent_first.filter(|_| !request.after_engine_end) {
                let gap = at.since(sent);
                request.gap_ns = Some(gap);
                self.gap.record(at, gap);
                self.gap_slot.record(gap);
                self.worst_gap.enter(at, &request.rid, gap);
                let hop = &self.hops.all[receive.place];
                if let Some((by, arrived)) = hop.by.zip(receive.sent).filter(|_| gap >= SHORTEST_NS) {
                    self.waits.push(Wait {
                        rid: request.rid.clone(),
                        sent,
                        arrived,
                        received: at,
                        group: hop.group,
                        by,
                    });
                }
            }
        }
        if let (Some(now), Some(called)) = (position, request.called)
            && !request.lossless
            && !request.is_shared()
            && waiter_is_pending(called, now, &self.engine)
        {
            request.burst += 1;
            let predicted = &mut self.totals.predicted;
            predicted.burst_max = predicted.burst_max.max(request.burst);
            let (waiter, mode) = (self.engine.waiter, self.engine.mode);
            if (waiter, mode) == (Some(Waiter::KeepsLast), Some(Mode::Incremental)) {
                let new_rid = request.predicted.is_none();
                request.predict_drop(&mut self.shelf, &mut self.limits);
                let chunks = request.predicted.as_ref().map_or(0, |losses| losses.chunks);
                self.totals.predicted_drops.enter(at, &request.rid, chunks, new_rid);
            }
            *match (waiter, mode) {
                (Some(Waiter::KeepsLast), Some(Mode::Incremental)) => &mut predicted.dropped,
                (Some(Waiter::KeepsLast), Some(Mode::Cumulative)) | (Some(Waiter::Merges), _) => &mut predicted.merged,
                (Some(Waiter::YieldsAll), _) => &mut predicted.passed,
                _ => &mut predicted.unknown,
            } += 1;
            predicted.replaced += u64::from((waiter, mode) == (Some(Waiter::KeepsLast), Some(Mode::Cumulative)));
            let new_rid = !std::mem::replace(&mut request.burst_seen, true);
            self.totals.bursts.enter(at, &request.rid, u64::from(request.burst), new_rid);
        } else {
            request.called = position;
            request.burst = 1;
        }
        request.received_last = [chunk.end, chunk.tokens, chunk.nth];
        if chunk.last {
            request.final_received = true;
            self.settle_if_finished(chunk.ticket, at);
        }
    }

    /// Chunks predicted to be dropped. A prediction needs observed wakeups, and an engine with known turnaround and known behaviour on
    /// bursts.
    pub fn dropped_predicted(&self) -> Option<u64> {
        let (predicted, engine) = (&self.totals.predicted, &self.engine);
        let known = match engine.waiter {
            Some(Waiter::KeepsLast) => engine.mode.is_some(),
            Some(Waiter::YieldsAll | Waiter::Merges) => true,
            None => false,
        };
        let timed = engine.turnaround.is_some() || predicted.dropped == 0;
        (predicted.wakeups_seen && known && timed && predicted.unknown == 0).then_some(predicted.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::super::hop::Burst;

    #[test]
    fn a_wait_for_a_frame_starts_a_new_burst() {
        let mut burst = Burst::default();
        assert_eq!((burst.enter(7, false), burst.enter(7, false)), ((1, 0), (1, 1)));
        assert_eq!((burst.enter(7, true), burst.enter(7, false)), ((2, 0), (2, 1)));
        assert_eq!(burst.enter(8, false), (3, 0));
    }
}
