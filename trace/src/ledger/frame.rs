//! Entry of frames into the ledger.

use super::Ledger;
use super::hop::Roles;
use super::hops::Hops;
use super::lane::{Lane, Load};
use super::table::AHEAD;
use super::totals::IdCounts;
use crate::clock::MonoNs;
use crate::event::{Frame, IdColumn, Kind};
use crate::id::{FrameId, HopId};
use crate::stats::Run;

/// Properties of the frame's hop that its chunks need.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact about the hop, read by its name")]
pub(super) struct Seen {
    pub(super) at: MonoNs,
    pub(super) frame: FrameId,
    pub(super) hop: HopId,
    pub(super) lane: u16,
    pub(super) group: usize,
    pub(super) ends: Roles,
    pub(super) epoch: u32,
    pub(super) origin: bool,
    pub(super) last: bool,
    /// The receiver forwards the frames it receives, and its receives are observed.
    pub(super) between: bool,
    pub(super) tracks_deliveries: bool,
    /// The outcome of its chunks is not observed: the receiver is not watched yet, or no longer.
    pub(super) unwatched: bool,
    /// The hop may lead to the tokenizer and its receives are not observed, though those of other hops are.
    pub(super) hides_receives: bool,
    pub(super) claim: IdColumn,
    /// Frames of its connection seen in a row before this one.
    pub(super) watched: u64,
    /// The frame was observed at its send; otherwise at its receive, and the send was not observed.
    pub(super) sent: bool,
}

/// Totals over the chunks of one frame, added after its last chunk.
#[derive(Default)]
pub(super) struct Sums {
    pub(super) tokens: u64,
    /// Chunks that the scheduler sent, and tokens in them.
    pub(super) origin: [u64; 2],
    /// Chunks entered into delivery trackers, and chunks without an expected delivery.
    pub(super) tracked_chunks: u64,
    pub(super) untracked_chunks: u64,
    pub(super) ids: IdCounts,
    pub(super) itl: Run,
    pub(super) itl_by_token: Run,
}

impl Ledger {
    pub(super) fn sent(&mut self, at: MonoNs, frame: &Frame<'_>) {
        let Some(place) = self.place(at, frame.id) else { return };
        self.end_engine_silence(at, place, frame.forwarded);
        self.scratch.clear();
        self.content(at, place, frame, true);
        let load = Load::of(frame.chunks.len(), frame.bytes);
        self.enter_sent(at, frame.id, place, load, frame.forwarded);
    }

    /// Index of the frame's hop. Creates its lane and records the frame number. `None` at the limit of hops.
    pub(super) fn place(&mut self, at: MonoNs, id: FrameId) -> Option<usize> {
        let Some(place) = self.hops.place(id.hop, self.limits.hops) else {
            self.limits.reached("hops");
            return None;
        };
        let hop = &mut self.hops.all[place];
        if let Some(lane) = Hops::make_room(hop, id.lane, self.limits.lanes_per_hop) {
            if lane.backlog() > 0 {
                self.limits.reached("lanes_per_hop");
            }
            self.forget_lane(place, &lane);
        }
        let hop = &mut self.hops.all[place];
        let missed = hop.lanes.entry(id.lane).or_default().seen(id.seq, at);
        if missed > 0 {
            self.silences.void();
            hop.epoch += 1;
            self.delivery_epoch += u32::from(hop.tracks_deliveries);
            let reported_missed = missed.min(hop.reported_missed);
            hop.reported_missed -= reported_missed;
            if missed > reported_missed {
                self.totals.missed.since.get_or_insert(at);
                let unannounced = &mut self.totals.missed.unannounced;
                *unannounced = unannounced.saturating_add(missed - reported_missed);
            }
        }
        Some(place)
    }

    /// Subtracts a removed lane of the hop at `place` from the totals of queued frames.
    fn forget_lane(&mut self, place: usize, lane: &Lane) {
        let hop = &mut self.hops.all[place];
        self.pending_frames -= lane.frames.len();
        self.pending_chunks -= lane.chunks.len();
        hop.counts.backlog -= lane.backlog();
        self.hops.groups[hop.group].backlog -= lane.backlog();
        self.table.miss_receives(lane.chunks.iter().copied());
    }

    /// The engine ended: queued frames will never be received, and no stream continues.
    pub(super) fn ended(&mut self, at: MonoNs) {
        self.totals.engine_ends += 1;
        self.totals.engine_ended = Some(at);
        self.silences.void();
        for place in 0..self.hops.all.len() {
            let hop = &mut self.hops.all[place];
            hop.epoch += 1;
            let lanes = std::mem::take(&mut hop.lanes);
            lanes.values().for_each(|lane| self.forget_lane(place, lane));
        }
        // A later first token with the same rid belongs to a request of the next engine.
        for request in self.table.iter_mut().filter(|r| r.received_first.is_none()) {
            (request.after_engine_end, request.first_receive_missed) = (true, true);
        }
        self.delivery_epoch += 1;
    }

    /// Enters the content of a frame. Leaves the chunks that wait for a receive in `scratch`.
    pub(super) fn content(&mut self, at: MonoNs, place: usize, frame: &Frame<'_>, sent: bool) {
        if frame.kind == Kind::Failed && self.totals.engine_failed.is_none() {
            self.totals.engine_failed = Some((at, self.live()));
        }
        let any_received = self.hops.any_received;
        let hop = &mut self.hops.all[place];
        let bytes = super::capped(frame.bytes);
        hop.counts.bytes += bytes;
        let seen = Seen {
            at,
            frame: frame.id,
            hop: hop.id,
            lane: frame.id.lane as u16,
            group: hop.group,
            ends: hop.ends,
            epoch: hop.epoch,
            origin: hop.origin,
            last: (hop.last || hop.open) && (hop.shows.received || !sent),
            between: !hop.last && !hop.open && (hop.shows.received || !sent),
            tracks_deliveries: hop.tracks_deliveries,
            unwatched: !hop.shows.delivered,
            hides_receives: sent && any_received && hop.hides_receives(),
            claim: frame.ids,
            watched: hop.lanes.get(&frame.id.lane).map_or(0, |lane| lane.watched.saturating_sub(1)),
            sent,
        };
        if frame.kind == Kind::Abort {
            for chunk in frame.chunks {
                if !chunk.rid.is_empty() && !self.engine.is_health_check(chunk.rid) {
                    self.abort_request(at, chunk.rid);
                }
            }
            return;
        }
        hop.counts.chunks += frame.chunks.len() as u64;
        let mut sums = Sums::default();
        for block in frame.chunks.chunks(AHEAD) {
            let Self { touched, table, .. } = self;
            let first = touched.len();
            touched.extend(block.iter().map(|chunk| table.prefetch(chunk.rid)));
            for (number, chunk) in (first..).zip(block) {
                self.touched[number] = self.chunk(&seen, chunk, self.touched[number], &mut sums);
            }
        }
        sums.itl.end(&mut self.itl_sent, at);
        sums.itl_by_token.end(&mut self.itl_sent_by_token, at);
        self.totals.chunks.sent += sums.origin[0];
        self.totals.tokens.sent += sums.origin[1];
        self.totals.chunks.tracked += sums.tracked_chunks;
        let tokens = sums.tokens;
        let hop = &mut self.hops.all[place];
        hop.counts.tokens += tokens;
        hop.tracked_chunks += sums.tracked_chunks;
        hop.untracked_chunks += sums.untracked_chunks;
        if let Some(lane) = hop.lanes.get_mut(&frame.id.lane) {
            lane.carries(at, frame.chunks.len() as u64, tokens);
        }
        let group = &mut self.hops.groups[seen.group];
        group.ids.merge(sums.ids);
        group.rate.record(at, frame.chunks.len() as u64, tokens, bytes);
    }
}
