//! Entry of frames into the ledger.

use super::Ledger;
use super::hop::{Hop, HopRoles};
use super::hops::Hops;
use super::lane::{FrameLoad, Lane};
use super::request_table::PREFETCHED_RECORDS;
use super::stream_count::CountStep;
use super::totals::{EngineFailure, IdCounts};
use crate::clock::MonoNs;
use crate::event::{Chunk, Frame, IdColumn, Kind};
use crate::id::{FrameId, HopId, Ticket};
use crate::stats::EqualDurations;

/// Properties of the frame's hop that its chunks need.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact about the hop, read by its name")]
pub(super) struct FrameContext {
    pub(super) at: MonoNs,
    pub(super) frame: FrameId,
    pub(super) hop: HopId,
    pub(super) lane: u16,
    pub(super) group: usize,
    pub(super) roles: HopRoles,
    pub(super) epoch: u32,
    pub(super) is_origin: bool,
    pub(super) is_last_hop: bool,
    /// The receiver forwards the frames it receives, and its receives are observed.
    pub(super) is_forwarded: bool,
    pub(super) tracks_deliveries: bool,
    /// The outcome of its chunks is not observed: the receiver is not watched yet, or no longer.
    pub(super) is_unwatched: bool,
    /// The hop may lead to the tokenizer and its receives are not observed, though those of other hops are.
    pub(super) hides_receives: bool,
    pub(super) claimed_ids: IdColumn,
    /// Frames of its connection seen in a row before this one.
    pub(super) watched_frames: u64,
    /// The frame was observed at its send; otherwise at its receive, and the send was not observed.
    pub(super) is_sent: bool,
}

impl FrameContext {
    /// Properties of the hop that `frame` crosses, observed at its send or, if that was not observed, at its receive (`is_observed_at_send`
    /// false). `any_received`: whether receives of any hop are observed.
    #[inline]
    fn new(at: MonoNs, hop: &Hop, frame: &Frame<'_>, is_observed_at_send: bool, any_received: bool) -> Self {
        let leads_to_tokenizer = hop.may_lead_to_tokenizer();
        // A frame that was not observed at its send is recorded at its receive.
        let is_receive_observed = hop.shows.received || !is_observed_at_send;
        let watched_until_now = hop.lanes.get(&frame.id.lane).map_or(0, |lane| lane.watched_frames);
        Self {
            at,
            frame: frame.id,
            hop: hop.id,
            lane: frame.id.lane as u16,
            group: hop.group,
            roles: hop.ends,
            epoch: hop.epoch,
            is_origin: hop.origin,
            is_last_hop: leads_to_tokenizer && is_receive_observed,
            is_forwarded: !leads_to_tokenizer && is_receive_observed,
            tracks_deliveries: hop.tracks_deliveries,
            is_unwatched: !hop.shows.delivered,
            // Receives of other hops are observed, but not those of this hop's tokenizer.
            hides_receives: is_observed_at_send && any_received && hop.hides_receives(),
            claimed_ids: frame.ids,
            // Without this frame, which its lane (connection) counts already.
            watched_frames: watched_until_now.saturating_sub(1),
            is_sent: is_observed_at_send,
        }
    }
}

/// A chunk whose counts were compared with its stream.
#[derive(Clone, Copy)]
pub(super) struct CheckedChunk {
    pub(super) ticket: Ticket,
    /// Index of its stream in the request.
    pub(super) stream_index: usize,
    pub(super) step: CountStep,
}

/// Totals over the chunks of one frame, added after its last chunk.
#[derive(Default)]
pub(super) struct FrameSums {
    pub(super) tokens: u64,
    pub(super) chunks_from_scheduler: u64,
    pub(super) tokens_from_scheduler: u64,
    /// Chunks entered into delivery trackers.
    pub(super) tracked_chunks: u64,
    /// Chunks without an expected delivery.
    pub(super) untracked_chunks: u64,
    pub(super) ids: IdCounts,
    pub(super) itl: EqualDurations,
    pub(super) itl_by_token: EqualDurations,
}

impl Ledger {
    /// Records the send of a frame with its content.
    pub(super) fn record_sent_frame(&mut self, at: MonoNs, frame: &Frame<'_>) {
        let Some(hop_index) = self.register_frame_returning_hop_index(at, frame.id) else { return };
        // Before the chunks, which show whether the streams go on after it.
        self.end_engine_silence_before_frame(at, hop_index, frame.forwarded);
        // Filled with the frame's chunks by `record_frame_content`, and queued with the frame.
        self.pending_receive.clear();
        let is_observed_at_send = true;
        self.record_frame_content(at, hop_index, frame, is_observed_at_send);
        let load = FrameLoad::new(frame.chunks.len(), frame.bytes);
        self.queue_sent_frame(at, frame.id, hop_index, load, frame.forwarded);
    }

    /// Records the number of a frame in its lane (connection), which is created if needed. If the number shows that frames were missed
    /// before it, records that, too. Returns the index of the frame's hop; `None` at the limit of hops.
    pub(super) fn register_frame_returning_hop_index(&mut self, at: MonoNs, id: FrameId) -> Option<usize> {
        let Some(hop_index) = self.hops.hop_index_or_add(id.hop, self.limits.hops) else {
            self.limits.count_reached("hops");
            return None;
        };
        self.make_room_for_lane(hop_index, id.lane);
        let hop = &mut self.hops.all[hop_index];
        let missed = hop.lanes.entry(id.lane).or_default().record_frame_and_count_missed(id.seq, at);
        if missed > 0 {
            self.record_missed_frames(at, hop_index, missed);
        }
        Some(hop_index)
    }

    /// Evicts a lane (connection) of the hop at `hop_index` if this one is new and the hop has as many as allowed.
    #[inline]
    fn make_room_for_lane(&mut self, hop_index: usize, new_lane: u32) {
        let hop = &mut self.hops.all[hop_index];
        let Some(evicted) = Hops::evict_lane_if_full(hop, new_lane, self.limits.lanes_per_hop) else { return };
        // A lane without queued frames is probably closed: nothing is lost with it.
        if evicted.backlog() > 0 {
            self.limits.count_reached("lanes_per_hop");
        }
        self.subtract_removed_lane(hop_index, &evicted);
    }

    /// Records that `missed_frames` crossed the hop (channel) at `hop_index` unobserved, as a gap in the frame numbers shows. Nothing is
    /// judged across the gap.
    fn record_missed_frames(&mut self, at: MonoNs, hop_index: usize, missed_frames: u64) {
        let hop = &mut self.hops.all[hop_index];
        self.silences.forget_current_silence();
        // With another epoch, the next chunk of a stream does not continue the last observed one.
        hop.epoch += 1;
        if hop.may_lead_to_tokenizer() {
            self.receives_missed_until = Some(at);
        }
        // A delivery after the gap does not continue the last observed one either.
        self.delivery_epoch += u32::from(hop.tracks_deliveries);
        self.count_unannounced_frames(at, hop_index, missed_frames);
    }

    /// Counts missed frames whose loss the source has not reported itself.
    fn count_unannounced_frames(&mut self, at: MonoNs, hop_index: usize, missed_frames: u64) {
        let hop = &mut self.hops.all[hop_index];
        // Missed frames that the source reported were counted with its report, before the gap in the numbers showed them.
        let already_reported = missed_frames.min(hop.reported_missed);
        hop.reported_missed -= already_reported;
        if missed_frames > already_reported {
            self.totals.missed.times.record(at);
            let unannounced = &mut self.totals.missed.unannounced;
            *unannounced = unannounced.saturating_add(missed_frames - already_reported);
        }
    }

    /// Subtracts the queued frames of `lane`, a connection that was removed from the hop at `hop_index`, from the totals. Their receives
    /// count as missed.
    fn subtract_removed_lane(&mut self, hop_index: usize, lane: &Lane) {
        let hop = &mut self.hops.all[hop_index];
        self.pending_frames -= lane.frames.len();
        self.pending_chunks -= lane.chunks.len();
        hop.counts.backlog -= lane.backlog();
        self.hops.groups[hop.group].backlog -= lane.backlog();
        self.table.mark_first_receives_missed(lane.chunks.iter().copied());
    }

    /// Removes all lanes (connections) of the hops with their queued frames. With other epochs, later chunks continue no stream.
    fn close_all_lanes(&mut self) {
        for hop_index in 0..self.hops.all.len() {
            let hop = &mut self.hops.all[hop_index];
            hop.epoch += 1;
            // Taken out, because `subtract_removed_lane` borrows the ledger.
            let lanes = std::mem::take(&mut hop.lanes);
            for lane in lanes.values() {
                self.subtract_removed_lane(hop_index, lane);
            }
        }
    }

    /// Records that the engine ended. Queued frames will never be received, and no stream continues.
    pub(super) fn record_engine_end(&mut self, at: MonoNs) {
        self.totals.engine_ends += 1;
        self.totals.engine_end_times.record(at);
        self.silences.forget_current_silence();
        self.close_all_lanes();
        // A later first token with the same rid belongs to a request of the next engine.
        for request in self.table.iter_mut().filter(|request| request.received_first.is_none()) {
            request.is_after_engine_end = true;
            request.first_receive_missed = true;
        }
        self.forget_ends_in_transit();
        self.dispatched.clear();
        self.ttft.late_legs.prefills.restart(at);
        // With another epoch, later deliveries do not continue those of this engine.
        self.delivery_epoch += 1;
    }

    /// Records the content of a frame at its send or, if that was not observed, at its receive (`is_observed_at_send` false). Leaves the
    /// chunks that wait for a receive in `pending_receive`.
    pub(super) fn record_frame_content(
        &mut self,
        at: MonoNs,
        hop_index: usize,
        frame: &Frame<'_>,
        is_observed_at_send: bool,
    ) {
        if frame.kind == Kind::Failed && self.totals.engine_failed.is_none() {
            self.totals.engine_failed = Some(EngineFailure { at, live_requests: self.live_count() });
        }
        let any_received = self.hops.any_received;
        let hop = &mut self.hops.all[hop_index];
        hop.counts.bytes += super::capped(frame.bytes);
        let context = FrameContext::new(at, hop, frame, is_observed_at_send, any_received);
        if frame.kind == Kind::Abort {
            self.record_scheduler_aborts(at, frame.chunks);
            return;
        }
        hop.counts.chunks += frame.chunks.len() as u64;
        if !frame.chunks.is_empty() {
            self.dispatched.record_output_frame(at);
        }
        let mut sums = self.record_chunks(&context, frame.chunks);
        self.add_frame_sums_to_totals(&mut sums);
        let hop = &mut self.hops.all[hop_index];
        hop.counts.tokens += sums.tokens;
        hop.tracked_chunks += sums.tracked_chunks;
        hop.untracked_chunks += sums.untracked_chunks;
        if let Some(lane) = hop.lanes.get_mut(&frame.id.lane) {
            lane.count_frame_content(at, frame.chunks.len() as u64, sums.tokens);
        }
        let group = &mut self.hops.groups[context.group];
        group.ids.add_counts(sums.ids);
        group.last_frame_at = group.last_frame_at.max(Some(at));
    }

    /// Records a message of the scheduler with the requests that it has aborted: each chunk names one.
    fn record_scheduler_aborts(&mut self, at: MonoNs, aborted: &[Chunk<'_>]) {
        for chunk in aborted {
            if !chunk.rid.is_empty() && !self.engine.is_health_check(chunk.rid) {
                self.record_scheduler_abort(at, chunk.rid);
            }
        }
    }

    /// Adds the sums over the chunks of a frame to the totals of the run.
    #[inline]
    fn add_frame_sums_to_totals(&mut self, sums: &mut FrameSums) {
        // Equal durations were collected, and the last ones are still to be recorded.
        sums.itl.record_pending(&mut self.itl_sent);
        sums.itl_by_token.record_pending(&mut self.itl_sent_by_token);
        self.totals.chunks.sent += sums.chunks_from_scheduler;
        self.totals.tokens.sent += sums.tokens_from_scheduler;
        self.totals.chunks.tracked += sums.tracked_chunks;
    }

    /// Records the chunks of a frame, and adds their requests to `touched`. Returns their sums.
    #[inline]
    fn record_chunks(&mut self, context: &FrameContext, chunks: &[Chunk<'_>]) -> FrameSums {
        let mut sums = FrameSums::default();
        // The requests of a block are looked up before any is updated, so that their records are loaded in parallel.
        for block in chunks.chunks(PREFETCHED_RECORDS) {
            let Self { touched, table, .. } = self;
            let first = touched.len();
            touched.extend(block.iter().map(|chunk| table.find_and_prefetch(chunk.rid)));
            for (index, chunk) in (first..).zip(block) {
                let prefetched = self.touched[index];
                // A chunk may begin another request with its rid.
                let ticket = self.record_chunk(context, chunk, prefetched, &mut sums);
                self.touched[index] = ticket;
            }
        }
        sums
    }
}
