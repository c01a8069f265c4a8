//! Stages of a frame after its send: forwarded, received, processed.

use std::collections::VecDeque;

use super::first_token_waits::{FirstTokenWait, MIN_WAIT_NS};
use super::hop::{BurstPosition, EarlyReceive};
use super::lane::{FrameLoad, PendingChunk, SentFrame};
use super::limits::{CountedLimits, push_bounded};
use super::losses::LossMemory;
use super::processing_stage::TimedCount;
use super::receiver::ReceiveTimes;
use super::request::{ReceivedChunk, Request};
use super::request_table::PREFETCHED_RECORDS;
use super::{BURST_FRAMES, GAP_WARNING_NS, Hop, LATE_NS, Ledger, Totals};
use crate::clock::MonoNs;
use crate::engine::{EngineState, Mode, Waiter};
use crate::event::Received;
use crate::id::{FrameId, Ticket};

/// Whether a request's waiter (the task that waits for its chunks) has not run yet when the next chunk is received, at `next_position`. The
/// chunk received at `woken_position` has woken it, but it runs some turns of the event loop later. Each frame of a burst (frames that the
/// receiver finds without a wait) takes some turns.
fn is_waiter_pending(woken_position: BurstPosition, next_position: BurstPosition, engine: &EngineState) -> bool {
    let is_same_burst =
        woken_position.receiver == next_position.receiver && woken_position.burst == next_position.burst;
    let frames_since_wakeup = next_position.frame_index.saturating_sub(woken_position.frame_index);
    is_same_burst && engine.is_waiter_pending_after(frames_since_wakeup)
}

/// Removes and returns the receive of a frame that was reported before its send; `None` if there is none.
#[inline]
fn take_early_receive(early_receives: &mut VecDeque<EarlyReceive>, id: FrameId) -> Option<EarlyReceive> {
    let index = early_receives.iter().position(|early| early.id == id)?;
    early_receives.remove(index)
}

/// Keeps when a request's first chunk was received, if `receive` is the observed receive of that chunk. Returns whether it is. If it is
/// another receive, and that of the first chunk is still unknown, it was missed.
#[inline]
fn keep_first_receive_or_mark_missed(request: &mut Request, receive: FrameReceive, chunk: PendingChunk) -> bool {
    if request.received_first.is_some() {
        return false;
    }
    let is_first_receive = chunk.is_first && receive.is_observed;
    if is_first_receive {
        request.received_first = Some(receive.at);
    } else {
        request.first_receive_missed = true;
    }
    is_first_receive
}

/// Wait of a request's first token, sent by the scheduler at `sent_at`, for the receiver of the last hop. `None` if that thread, or the
/// send on the last hop, was not observed.
#[inline]
fn first_token_wait(request: &Request, sent_at: MonoNs, hop: &Hop, receive: FrameReceive) -> Option<FirstTokenWait> {
    let receiver = hop.last_receiver?;
    let sent_on_last_hop = receive.sent_at?;
    Some(FirstTokenWait {
        rid: request.rid.clone(),
        sent_at,
        sent_on_last_hop,
        received_at: receive.at,
        group: hop.group,
        receiver,
    })
}

/// Whether a chunk received at `position` may replace the one before, because the request's waiter (the task that waits for its chunks) has
/// not read that one yet. False if wakeups of the receiver are not observed.
#[inline]
fn may_replace_last_chunk(request: &Request, position: Option<BurstPosition>, engine: &EngineState) -> bool {
    let (Some(now), Some(woken)) = (position, request.last_wakeup) else { return false };
    // The deliveries of a lossless request contain the tokens of skipped chunks. Of a shared rid, it is not known whose chunk was last.
    if request.is_lossless || request.is_shared() {
        return false;
    }
    is_waiter_pending(woken, now, engine)
}

impl Totals {
    /// Predicts the outcome of a request's previous chunk from the behaviour of the engine. Called when the next chunk is received (at
    /// `at`) before the task that waits for the request's chunks (its waiter) has run.
    fn predict_outcome_of_previous_chunk(
        &mut self,
        at: MonoNs,
        request: &mut Request,
        engine: &EngineState,
        loss_memory: &mut LossMemory,
        limits: &mut CountedLimits,
    ) {
        // Its burst: the chunks received since the waiter was woken.
        request.burst += 1;
        let predicted = &mut self.predicted;
        predicted.burst_max = predicted.burst_max.max(request.burst);
        // The waiter finds several chunks at once. An incremental chunk has new tokens only, a cumulative one has all so far.
        match (engine.waiter, engine.mode) {
            // The tokens of all chunks but the last are lost.
            (Some(Waiter::KeepsLast), Some(Mode::Incremental)) => {
                self.count_predicted_drop(at, request, loss_memory, limits);
            }
            // The last chunk has the tokens of those that it replaces.
            (Some(Waiter::KeepsLast), Some(Mode::Cumulative)) => {
                predicted.merged += 1;
                predicted.replaced += 1;
            }
            (Some(Waiter::Merges), _) => predicted.merged += 1,
            // Each is delivered separately.
            (Some(Waiter::YieldsAll), _) => predicted.passed += 1,
            (Some(Waiter::KeepsLast), None) | (None, _) => predicted.unknown += 1,
        }
        let is_first_burst = !request.burst_seen;
        request.burst_seen = true;
        self.bursts.record_request(at, &request.rid, u64::from(request.burst), is_first_burst);
    }

    /// Adds the request's previous chunk to its predicted losses.
    fn count_predicted_drop(
        &mut self,
        at: MonoNs,
        request: &mut Request,
        loss_memory: &mut LossMemory,
        limits: &mut CountedLimits,
    ) {
        self.predicted.dropped += 1;
        let is_first_drop = request.predicted.is_none();
        request.add_predicted_drop_of_last_received(at, loss_memory, limits);
        let chunks = request.predicted.as_ref().map_or(0, |losses| losses.chunks);
        self.predicted_drops.record_request(at, &request.rid, chunks, is_first_drop);
    }
}

/// Receive of a frame, applied to its chunks.
#[derive(Clone, Copy)]
struct FrameReceive {
    /// Time of the receive, or of its detection if it was not observed.
    at: MonoNs,
    hop_index: usize,
    position: Option<BurstPosition>,
    /// When the frame was sent on this hop.
    sent_at: Option<MonoNs>,
    /// The receive was observed, so `at` is exact.
    is_observed: bool,
}

impl Ledger {
    /// Records the send of a frame, whose chunks are in `pending_receive`. The frame is queued until its receive, unless that was reported
    /// before.
    pub(super) fn queue_sent_frame(
        &mut self,
        at: MonoNs,
        id: FrameId,
        hop_index: usize,
        load: FrameLoad,
        forwarded: Option<MonoNs>,
    ) {
        self.count_sent_frame(at, hop_index, forwarded);
        let chunks = self.pending_receive.len();
        let hop = &mut self.hops.all[hop_index];
        let Some(lane) = hop.lanes.get_mut(&id.lane) else { return };
        // Without receives, the queue would only grow.
        if !hop.shows.received {
            return;
        }
        // The two ends of a hop may be reported in either order.
        if let Some(early) = take_early_receive(&mut hop.early_receives, id) {
            let receive = FrameReceive {
                at: early.at,
                hop_index,
                position: early.burst_position,
                sent_at: Some(at),
                is_observed: true,
            };
            return self.record_queue_wait_and_receive_chunks(receive, early.at.since(at));
        }
        while self.pending_frames >= self.limits.pending_frames
            || self.pending_chunks + chunks > self.limits.pending_chunks
        {
            // The limits are for the whole run, but the connection that grows evicts its own frames.
            let has_room_for_frame = self.pending_frames < self.limits.pending_frames;
            self.limits.count_reached(if has_room_for_frame { "pending_chunks" } else { "pending_frames" });
            // The newest frame of a lane is never evicted.
            let Some(evicted) = lane.evict_oldest() else { break };
            self.pending_frames -= 1;
            self.pending_chunks -= evicted.len();
            self.table.mark_first_receives_missed(evicted);
        }
        lane.push_frame(id.seq, at, chunks as u32, load);
        lane.chunks.extend(&self.pending_receive);
        self.pending_receive.clear();
        self.pending_frames += 1;
        self.pending_chunks += chunks;
        self.add_frame_to_backlog(at, hop_index);
    }

    /// Counts a frame sent on the hop (channel) at this index. `forwarded_at`: when the relay between both processes had forwarded it.
    #[inline]
    fn count_sent_frame(&mut self, at: MonoNs, hop_index: usize, forwarded_at: Option<MonoNs>) {
        let hop = &mut self.hops.all[hop_index];
        hop.counts.frames_sent += 1;
        if let Some(forwarded_at) = forwarded_at {
            hop.counts.frames_forwarded += 1;
            self.hops.groups[hop.group].relay.record(forwarded_at.since(at));
        }
    }

    /// Adds a frame sent at `at` to the backlog of its hop (channel), and of the group of hops with the same name: the frames that were
    /// sent and not received.
    #[inline]
    fn add_frame_to_backlog(&mut self, at: MonoNs, hop_index: usize) {
        let hop = &mut self.hops.all[hop_index];
        hop.counts.backlog += 1;
        hop.counts.backlog_max = hop.counts.backlog_max.max(hop.counts.backlog);
        let group = &mut self.hops.groups[hop.group];
        group.backlog += 1;
        group.backlog_slot = group.backlog_slot.max(group.backlog);
        group.course.record_backlog_after_send(at, group.backlog);
        if group.backlog > group.backlog_max {
            group.backlog_max = group.backlog;
            group.backlog_max_at = at;
        }
    }

    /// Records that the receiver has processed a frame, and so the first chunks of requests in it.
    pub(super) fn record_processed_frame(&mut self, at: MonoNs, id: FrameId) {
        let Some(hop_index) = self.hops.hop_index_or_add(id.hop, self.limits.hops) else { return };
        let hop = &mut self.hops.all[hop_index];
        // The receiver asks for its next frame as soon as it has processed this one.
        hop.requested_at = Some(at);
        let receiver = hop.last_receiver;
        // `None` if the receive was not observed. Its processing time is unknown then, and counts as 0.
        let received_at = hop.take_unprocessed(id);
        let processing_ns = received_at.map_or(0, |received_at| at.since(received_at));
        if let Some(received_at) = received_at {
            self.record_processed_requests(at, hop_index, received_at);
            let hop = &mut self.hops.all[hop_index];
            hop.counts.busy_ns = hop.counts.busy_ns.saturating_add(processing_ns);
            self.hops.groups[hop.group].processing.record(processing_ns);
        }
        if let Some(thread) = receiver.and_then(|id| self.threads.get_mut(id)) {
            thread.requested_at = Some(at);
            thread.sums.processing_ns = thread.sums.processing_ns.saturating_add(processing_ns);
        }
    }

    /// Keeps when the first chunks in the frame received at `received_at` were processed.
    #[inline]
    fn record_processed_requests(&mut self, at: MonoNs, hop_index: usize, received_at: MonoNs) {
        let hop = &mut self.hops.all[hop_index];
        while let Some(ticket) = hop.take_unprocessed_request(received_at) {
            let Some(request) = self.table.get_mut(ticket) else { continue };
            // For a request without details, only timelines show this time, so it is kept only for those.
            if self.timelines.is_some() || request.details.is_some() {
                request.details.get_or_insert_default().processed = Some(at);
            }
        }
    }

    /// Records the receive of a frame, and of the chunks that were queued with its send.
    pub(super) fn record_received_frame(&mut self, at: MonoNs, received: &Received<'_>) {
        let id = received.id;
        self.recent_chunks.keep_receive(at, id, received.wakeup);
        // A frame that comes with its receive was not observed at its sender, and is registered here.
        let hop_index = match &received.frame {
            Some(_) => self.register_frame_returning_hop_index(at, id),
            None => self.hops.hop_index_or_add(id.hop, self.limits.hops),
        };
        let Some(hop_index) = hop_index else { return };
        self.record_frame_receive_on_hop(at, hop_index, received);
        // When the receiver asked for the frame, and when it was sent, show whether it waited for the frame.
        let requested = self.mark_receiver_and_take_request_time(at, hop_index, received.by);
        self.received_frame = if received.frame.is_none() { self.dequeue_frame(id, hop_index, at) } else { None };
        let sent = self.received_frame.map(|sent| sent.at);
        let position = received.wakeup.map(|wakeup| {
            self.add_to_burst_and_locate(hop_index, received.by, wakeup, ReceiveTimes { sent, requested, received: at })
        });
        if let Some(position) = position {
            self.count_frame_in_wakeup(at, hop_index, position);
        }
        let receive = FrameReceive { at, hop_index, position, sent_at: sent, is_observed: true };
        if let Some(frame) = &received.frame {
            self.pending_receive.clear();
            let is_observed_at_send = false;
            self.record_frame_content(at, hop_index, frame, is_observed_at_send);
            self.receive_pending_chunks(receive);
        } else if let Some(sent) = sent {
            self.record_queue_wait_and_receive_chunks(receive, at.since(sent));
        } else if self.may_send_be_reported_later(hop_index, id) {
            self.keep_early_receive(hop_index, EarlyReceive { id, at, burst_position: position });
        }
    }

    /// Whether the send of a received frame may still be reported: its hop's sends are observed, and its lane (connection) has not yet had
    /// this frame or a later one.
    #[inline]
    fn may_send_be_reported_later(&self, hop_index: usize, id: FrameId) -> bool {
        let hop = &self.hops.all[hop_index];
        hop.shows.sent && !hop.lanes.get(&id.lane).is_some_and(|lane| lane.is_past(id.seq))
    }

    /// Counts a received frame on its hop (channel), and keeps when and by which thread it was received. If the hop leads to the scheduler,
    /// that has received the requests or aborts in the frame.
    #[inline]
    fn record_frame_receive_on_hop(&mut self, at: MonoNs, hop_index: usize, received: &Received<'_>) {
        let hop = &mut self.hops.all[hop_index];
        // A process that forwards requests is not the scheduler.
        if !hop.forwards_requests {
            self.dispatched.record_receive_of_message(at, received.id);
            self.clientless.record_receive_of_aborts(at, received.id);
        }
        hop.counts.frames_received += 1;
        // Until its receiver has processed it.
        hop.remember_unprocessed_frame(received.id, at);
        // Losses are predicted from the wakeups of the tokenizer, to which the last hop leads.
        self.totals.predicted.wakeups_seen |= received.wakeup.is_some() && hop.last;
        hop.last_receiver = received.by.or(hop.last_receiver);
        hop.last_received_at = Some(at);
    }

    /// Keeps the receive of a frame until its send is reported. At the limit, the oldest one is evicted.
    fn keep_early_receive(&mut self, hop_index: usize, early: EarlyReceive) {
        let early_receives = &mut self.hops.all[hop_index].early_receives;
        if early_receives.len() >= self.limits.early_receives {
            self.limits.count_reached("early_receives");
        }
        push_bounded(early_receives, early, self.limits.early_receives);
    }

    /// Counts a received frame in the wakeup of its receiver: the frames that it receives without a wait between them. If the frame begins
    /// a new wakeup, the length of the previous one is recorded.
    fn count_frame_in_wakeup(&mut self, at: MonoNs, hop_index: usize, position: BurstPosition) {
        let hop = &mut self.hops.all[hop_index];
        let group = &mut self.hops.groups[hop.group];
        if let Some(frames_of_ended_wakeup) = hop.count_frame_and_take_ended_wakeup_frames(position) {
            group.wakeups.record(u64::from(frames_of_ended_wakeup));
        }
        // With so many frames, it is a burst.
        if hop.current_wakeup_frames() >= BURST_FRAMES {
            group.bursts.record(at);
        }
    }

    /// Records the receive of a frame after a queue wait of `wait_ns`, and of its chunks, which are in `pending_receive`.
    fn record_queue_wait_and_receive_chunks(&mut self, receive: FrameReceive, wait_ns: u64) {
        let hop = &mut self.hops.all[receive.hop_index];
        hop.queue_wait.record(wait_ns);
        hop.late_frames.record_frame_receive(receive.at, wait_ns, hop.counts.busy_ns);
        hop.chunk_waits.record_n(receive.at, wait_ns, self.pending_receive.len() as u64);
        let group = &mut self.hops.groups[hop.group];
        group.queue_wait.record(wait_ns);
        group.queue_wait_slot.record(wait_ns);
        // With this frame, the backlog of the group may be over.
        group.course.record_backlog_after_receive(receive.at, group.backlog, wait_ns);
        if wait_ns >= LATE_NS {
            self.count_requests_of_late_frame(receive.hop_index);
        }
        self.receive_pending_chunks(receive);
    }

    /// Subtracts frames from the backlog that were evicted from the queue at a limit, and that the receive of frame `id` shows as received.
    /// Those are all evicted frames, or frame `id` alone if it is one of them itself.
    fn subtract_received_evicted_frames(&mut self, id: FrameId, hop_index: usize) {
        let hop = &mut self.hops.all[hop_index];
        let Some(lane) = hop.lanes.get_mut(&id.lane) else { return };
        // Evicted frames are older than all queued ones.
        let is_after_evicted = lane.first_waiting().is_some_and(|first| first <= id.seq);
        let received = lane.forget_received_evicted_frames(id.seq);
        hop.counts.backlog -= received;
        self.hops.groups[hop.group].backlog -= received;
        // The caller has counted the receive of frame `id` itself.
        if is_after_evicted {
            hop.counts.frames_received += received;
        }
    }

    /// Removes a received frame from its lane (connection), moves its chunks to `pending_receive`, and returns its send; `None` if it is
    /// not queued. A lane keeps its order, so frames sent before it were received too, unobserved.
    fn dequeue_frame(&mut self, id: FrameId, hop_index: usize, at: MonoNs) -> Option<SentFrame> {
        self.subtract_received_evicted_frames(id, hop_index);
        loop {
            let hop = &mut self.hops.all[hop_index];
            let lane = hop.lanes.get_mut(&id.lane)?;
            // Leaves if no frame up to this one is queued.
            let frame = lane.pop_through(id.seq)?;
            self.pending_receive.clear();
            lane.move_oldest_chunks_to(frame.chunks as usize, &mut self.pending_receive);
            hop.counts.backlog -= 1;
            self.hops.groups[hop.group].backlog -= 1;
            self.pending_frames -= 1;
            self.pending_chunks -= frame.chunks as usize;
            if frame.seq == id.seq {
                return Some(frame.sent_frame());
            }
            // An earlier frame: it was received some time before.
            hop.counts.frames_received += 1;
            let unobserved = FrameReceive { at, hop_index, position: None, sent_at: None, is_observed: false };
            self.receive_pending_chunks(unobserved);
        }
    }

    /// Marks the requests of these chunks, so that their next deliveries prove nothing: the chunks may have been delivered before
    /// deliveries were observed.
    fn mark_deliveries_uncertain(&mut self, chunks: &[PendingChunk]) {
        for chunk in chunks {
            let request = self.table.get_mut(chunk.ticket);
            if let Some(tracker) = request.and_then(|request| request.tracker.as_mut()) {
                tracker.mark_uncertain();
            }
        }
    }

    /// Records the receive of the chunks in `pending_receive`, and empties it. On a hop (channel) into the tokenizer, the tokenizer
    /// receives them; on another one, a process that forwards them.
    fn receive_pending_chunks(&mut self, receive: FrameReceive) {
        // Moved out and back, so that its memory is reused.
        let chunks = std::mem::take(&mut self.pending_receive);
        let hop = &self.hops.all[receive.hop_index];
        let leads_to_tokenizer = hop.last;
        // A receive that is reported late may have come before deliveries were observed. Its chunks may then have been delivered
        // unobserved.
        if receive.at < hop.deliveries_observed_at {
            self.mark_deliveries_uncertain(&chunks);
        }
        for block in chunks.chunks(PREFETCHED_RECORDS) {
            for chunk in block {
                // All records of a block are on their way from memory before the first is used.
                self.table.prefetch_record(chunk.ticket);
            }
            for chunk in block {
                // Chunks of a request are numbered on each hop.
                let is_first_on_hop = chunk.number == 1;
                if is_first_on_hop && receive.is_observed {
                    self.record_first_chunk_wait(receive, *chunk);
                }
                if leads_to_tokenizer {
                    self.receive_chunk_at_tokenizer(receive, *chunk);
                } else if receive.is_observed {
                    self.receive_forwarded_chunk(receive, *chunk);
                }
            }
        }
        self.pending_receive = chunks;
        self.pending_receive.clear();
    }

    /// Records the queue wait of a request's first chunk.
    fn record_first_chunk_wait(&mut self, receive: FrameReceive, chunk: PendingChunk) {
        let hop = &mut self.hops.all[receive.hop_index];
        let Some(request) = self.table.get_mut(chunk.ticket) else { return };
        let Some(stream) = request.streams.iter_mut().find(|stream| stream.hop == hop.id) else { return };
        // If the start of the stream was missed, its first observed chunk is a later one.
        if stream.is_whole()
            && let Some(sent_at) = receive.sent_at
        {
            stream.keep_first_receive(receive.at);
            let wait_ns = receive.at.since(sent_at);
            let times = 1;
            hop.first_waits.record_n(receive.at, wait_ns, times);
        }
    }

    /// Records the receive of a chunk by a process that forwards it.
    fn receive_forwarded_chunk(&mut self, receive: FrameReceive, chunk: PendingChunk) {
        let role = self.hops.all[receive.hop_index].ends.to;
        if let Some(request) = self.table.get_mut(chunk.ticket) {
            let timed = TimedCount { count: chunk.end_count, at: receive.at };
            let is_first = chunk.number == 1;
            self.hops.processing_stages.record_chunk_receive(
                &mut request.in_process,
                role,
                timed,
                is_first,
                &mut self.limits,
            );
        }
    }

    /// Records the receive of a chunk by the tokenizer. If the request's waiter (the task that waits for its chunks) has not run since the
    /// previous chunk, this one may replace it. The outcome of the previous chunk is then predicted from how the engine's waiters treat
    /// several chunks.
    fn receive_chunk_at_tokenizer(&mut self, receive: FrameReceive, chunk: PendingChunk) {
        let FrameReceive { at, position, .. } = receive;
        self.totals.chunks.received += 1;
        self.totals.tokens.received += u64::from(chunk.tokens);
        let Some(request) = self.table.get_mut(chunk.ticket) else { return };
        request.tokens_received = request.tokens_received.saturating_add(chunk.tokens);
        let is_first_receive = keep_first_receive_or_mark_missed(request, receive, chunk);
        if may_replace_last_chunk(request, position, &self.engine) {
            self.totals.predict_outcome_of_previous_chunk(
                at,
                request,
                &self.engine,
                &mut self.loss_memory,
                &mut self.limits,
            );
        } else {
            // The waiter has read the previous chunk, or nothing is lost if not. This chunk wakes it, and is the first of a burst.
            request.last_wakeup = position;
            request.burst = 1;
        }
        request.last_received =
            ReceivedChunk { end_count: chunk.end_count, tokens: chunk.tokens, number: chunk.number };
        if chunk.is_last {
            request.final_received = true;
        }
        if is_first_receive {
            self.record_first_token_receive(receive, chunk.ticket);
        }
        if chunk.is_last {
            self.close_soon_if_all_arrived(chunk.ticket, at);
        }
    }

    /// Records that the tokenizer received the first chunk of a request: the gap since the scheduler's send, and the wait on the last hop.
    fn record_first_token_receive(&mut self, receive: FrameReceive, ticket: Ticket) {
        let at = receive.at;
        let Some(request) = self.table.get_mut(ticket) else { return };
        self.hops.all[receive.hop_index].remember_unprocessed_request(at, ticket);
        // Where deliveries are observed, the time to first token ends with the first one, and is recorded then.
        if !self.hops.any_delivered {
            self.ttft.record_ttft_of_request(request, &mut self.limits);
        }
        // A send before the end of an engine and a receive after it belong to different requests.
        let sent_by_this_engine = if request.is_after_engine_end { None } else { request.sent_first };
        let Some(sent) = sent_by_this_engine else { return };
        let gap_ns = at.since(sent);
        request.gap = gap_ns.into();
        // Counted at `now`: an observation that arrives late belongs to the second in which it arrives, as in the time slots.
        self.gap.record(self.now, gap_ns);
        self.gap_slot.record(gap_ns);
        self.worst_gap.keep_longest(at, &request.rid, gap_ns);
        if gap_ns >= GAP_WARNING_NS {
            self.late_gaps.record_span(sent, at);
            self.late_gap_rids.add_rid(&request.rid);
        }
        // The waits in a shorter gap are not recorded.
        if gap_ns < MIN_WAIT_NS {
            return;
        }
        let hop = &self.hops.all[receive.hop_index];
        if let Some(wait) = first_token_wait(request, sent, hop, receive) {
            self.waits.add_pending_wait(wait);
        }
        self.record_long_gap(ticket, gap_ns, at);
    }

    /// Number of chunks predicted to be dropped, because the next chunk of their request came before its waiter (the task that waits for
    /// them) ran. `None` unless wakeups are observed, and the engine's turnaround and its behaviour on bursts are known.
    pub fn chunks_dropped_predicted(&self) -> Option<u64> {
        let predicted = &self.totals.predicted;
        let engine = &self.engine;
        let is_behaviour_known = match engine.waiter {
            Some(Waiter::KeepsLast) => engine.mode.is_some(),
            Some(Waiter::YieldsAll | Waiter::Merges) => true,
            None => false,
        };
        // The turnaround is how long a woken waiter takes to run. It does not matter if no chunk would be dropped even with the longest.
        let is_turnaround_known = engine.turnaround.is_some() || predicted.dropped == 0;
        let is_complete = predicted.wakeups_seen && is_behaviour_known && is_turnaround_known && predicted.unknown == 0;
        is_complete.then_some(predicted.dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::super::hop::{Burst, BurstReceiver};
    use crate::id::HopId;

    #[test]
    fn a_wait_for_a_frame_starts_a_new_burst() {
        let mut burst = Burst::default();
        let mut add_frame = |wakeup, has_waited| {
            let position = burst.add_frame_and_return_position(BurstReceiver::OfHop(HopId(0)), wakeup, has_waited);
            (position.burst, position.frame_index)
        };
        assert_eq!((add_frame(7, false), add_frame(7, false)), ((1, 0), (1, 1)));
        assert_eq!((add_frame(7, true), add_frame(7, false)), ((2, 0), (2, 1)));
        assert_eq!(add_frame(8, false), (3, 0));
    }
}
