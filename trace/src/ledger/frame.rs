//! Entry of frames and their chunks into the ledger.

use super::Ledger;
use super::arithmetic::{Evidence, Step, Verdict};
use super::chunkline::{Entering, Line};
use super::health::HealthChecks;
use super::hop::Hops;
use super::lane::{Lane, Load, PendingChunk};
use super::passage::{Ends, Room};
use super::request::Request;
use super::shared::{self, Predecessor};
use super::stream::Stream;
use super::sums::IdCounts;
use super::table::{AHEAD, Ticket};
use crate::clock::MonoNs;
use crate::event::{Chunk, Finish, Frame, IdColumn, Kind};
use crate::id::{FrameId, HopId};
use crate::stats::Run;

/// Properties of the frame's hop that its chunks need.
#[derive(Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one fact about the hop, read by its name"
)]
pub(super) struct Seen {
    pub(super) at: MonoNs,
    pub(super) hop: HopId,
    lane: u16,
    pub(super) group: usize,
    ends: Ends,
    pub(super) epoch: u32,
    origin: bool,
    last: bool,
    /// The receiver forwards the frames it receives, and its receives are observed.
    between: bool,
    lines_up: bool,
    /// The outcome of its chunks is not observed: the receiver is not watched yet, or no longer.
    unseen: bool,
    /// The hop may lead to the tokenizer and its receives are not observed, though those of other hops are.
    hides_takes: bool,
    pub(super) claim: IdColumn,
    /// Frames of its connection seen in a row before this one.
    watched: u64,
    /// The frame was observed at its send; otherwise at its receive, and the send was not observed.
    sent: bool,
}

/// Totals over the chunks of one frame, added after its last chunk.
#[derive(Default)]
struct Sums {
    /// New tokens.
    tokens: u64,
    /// Chunks that the scheduler sent, and tokens in them.
    origin: [u64; 2],
    /// Chunks entered into delivery trackers, and chunks without an expected delivery.
    lined_up: u64,
    set_aside: u64,
    ids: IdCounts,
    itl: Run,
    itl_by_token: Run,
}

impl Ledger {
    pub(super) fn sent(&mut self, at: MonoNs, frame: &Frame<'_>) {
        let Some(place) = self.place(at, frame.id) else { return };
        self.scratch.clear();
        self.content(at, place, frame, true);
        self.enter_sent(at, frame.id, place, Load::of(frame.chunks.len(), frame.bytes));
    }

    /// Index of the frame's hop. Creates its lane and records the frame number. `None` at the limit of hops.
    pub(super) fn place(&mut self, at: MonoNs, id: FrameId) -> Option<usize> {
        let Some(place) = self.hops.place(id.hop, self.limits.hops) else {
            self.reached.hops += 1;
            return None;
        };
        let hop = &mut self.hops.all[place];
        if let Some(gone) = Hops::make_room(hop, id.lane, self.limits.lanes_per_hop) {
            self.reached.lanes += u64::from(gone.backlog() > 0);
            self.forget_lane(place, &gone);
        }
        let hop = &mut self.hops.all[place];
        let missed = hop.lanes.entry(id.lane).or_default().seen(id.seq, at);
        if missed > 0 {
            hop.epoch += 1;
            self.delivery_epoch += u32::from(hop.lines_up);
            let excused = missed.min(hop.excused);
            hop.excused -= excused;
            if missed > excused {
                self.totals.missed.since.get_or_insert(at);
                let unannounced = &mut self.totals.missed.unannounced;
                *unannounced = unannounced.saturating_add(missed - excused);
            }
        }
        Some(place)
    }

    /// Subtracts a removed lane of the hop at `place` from the totals of queued frames.
    fn forget_lane(&mut self, place: usize, gone: &Lane) {
        let hop = &mut self.hops.all[place];
        self.pending_frames -= gone.waiting() + gone.forwarding();
        self.pending_chunks -= gone.chunks.len();
        hop.counts.backlog -= gone.backlog();
        self.hops.groups[hop.group].backlog -= gone.backlog();
        for chunk in gone.chunks.iter().filter(|chunk| chunk.first) {
            if let Some(request) = self.table.get_mut(chunk.ticket) {
                request.first_take_missed = true;
            }
        }
    }

    /// The engine ended: queued frames will never be received, and no stream continues.
    pub(super) fn ended(&mut self, at: MonoNs) {
        self.totals.engine_ends += 1;
        self.totals.engine_ended = Some(at);
        for place in 0..self.hops.all.len() {
            let hop = &mut self.hops.all[place];
            hop.epoch += 1;
            let lanes = std::mem::take(&mut hop.lanes);
            lanes.values().for_each(|gone| self.forget_lane(place, gone));
        }
        // A later first token with the same rid belongs to a request of the next engine.
        for request in self.table.iter_mut().filter(|r| r.taken_first.is_none()) {
            (request.outlived, request.first_take_missed) = (true, true);
        }
        self.delivery_epoch += 1;
    }

    /// Enters the content of a frame. Leaves the chunks that wait for a receive in `scratch`.
    pub(super) fn content(&mut self, at: MonoNs, place: usize, frame: &Frame<'_>, sent: bool) {
        let any_taken = self.hops.any_taken;
        let hop = &mut self.hops.all[place];
        let bytes = super::believable(frame.bytes);
        hop.counts.bytes += bytes;
        let seen = Seen {
            at,
            hop: hop.id,
            lane: frame.id.lane as u16,
            group: hop.group,
            ends: hop.ends,
            epoch: hop.epoch,
            origin: hop.origin,
            last: (hop.last || hop.open) && (hop.shows.taken || !sent),
            between: !hop.last && !hop.open && (hop.shows.taken || !sent),
            lines_up: hop.lines_up,
            unseen: !hop.shows.delivered,
            hides_takes: sent && any_taken && hop.hides_takes(),
            claim: frame.ids,
            watched: hop
                .lanes
                .get(&frame.id.lane)
                .map_or(0, |lane| lane.watched.saturating_sub(1)),
            sent,
        };
        if frame.kind == Kind::Abort {
            for chunk in frame
                .chunks
                .iter()
                .filter(|c| !c.rid.is_empty() && !HealthChecks::is_one(c.rid))
            {
                self.abort_request(at, chunk.rid);
            }
            return;
        }
        hop.counts.chunks += frame.chunks.len() as u64;
        let mut sums = Sums::default();
        for block in frame.chunks.chunks(AHEAD) {
            let Self { met, table, .. } = self;
            let first = met.len();
            met.extend(block.iter().map(|chunk| table.foresee(chunk.rid)));
            for (number, chunk) in (first..).zip(block) {
                self.met[number] = self.chunk(&seen, chunk, self.met[number], &mut sums);
            }
        }
        sums.itl.end(&mut self.itl_sent, at);
        sums.itl_by_token.end(&mut self.itl_sent_by_token, at);
        self.totals.chunks.sent += sums.origin[0];
        self.totals.tokens.sent += sums.origin[1];
        self.totals.chunks.lined_up += sums.lined_up;
        let tokens = sums.tokens;
        let hop = &mut self.hops.all[place];
        hop.counts.tokens += tokens;
        hop.lined_up += sums.lined_up;
        hop.set_aside += sums.set_aside;
        if let Some(lane) = hop.lanes.get_mut(&frame.id.lane) {
            lane.counts.chunks += frame.chunks.len() as u64;
            lane.counts.tokens += tokens;
        }
        let group = &mut self.hops.groups[seen.group];
        group.ids.merge(sums.ids);
        group.rate.record(at, frame.chunks.len() as u64, tokens, bytes);
    }

    /// Enters one chunk and returns its request. `foreseen` is the request of its rid as prefetched.
    fn chunk(&mut self, seen: &Seen, chunk: &Chunk<'_>, foreseen: Ticket, sums: &mut Sums) -> Ticket {
        if chunk.rid.is_empty() {
            sums.set_aside += 1;
            self.totals.unnamed += 1;
            return Ticket::NOBODY;
        }
        if HealthChecks::is_one(chunk.rid) {
            sums.set_aside += 1;
            self.totals.requests.health_checks += u64::from(self.health.is_new(chunk.rid));
            return Ticket::NOBODY;
        }
        let mut ticket = if self.table.is_mapped(foreseen) {
            foreseen
        } else {
            let found = self.table.find(chunk.rid);
            found.unwrap_or_else(|| self.admit(chunk.rid, seen.at))
        };
        if lists_all_it_counts(chunk) {
            if self.begins_another(ticket, seen) {
                ticket = self.restart(ticket, 0, seen, chunk.rid);
            } else if self.begins_beside(ticket, seen) {
                ticket = self.restart(ticket, 0, seen, chunk.rid);
                self.both_live(ticket);
            }
        }
        let (mut at, mut step) = self.step(ticket, seen, chunk);
        if step.verdict != Verdict::Fits || self.knows_shared() {
            step = self.step_of_either(ticket, at, seen, chunk, step);
        }
        if step.verdict == Verdict::Restart {
            ticket = self.restart(ticket, at, seen, chunk.rid);
            (at, step) = self.step(ticket, seen, chunk);
        }
        if step.verdict == Verdict::Repeat {
            self.totals.chunks.repeats += 1;
            sums.set_aside += 1;
        }
        self.judge(ticket, at, seen, chunk.rid, step);
        sums.tokens += u64::from(step.new);
        self.enter_chunk(ticket, at, seen, chunk, step, sums);
        if chunk.finish.is_some() {
            self.settle_if_over(ticket, seen.at);
        }
        ticket
    }

    /// Whether this chunk begins another request with the same rid. True if the known request has finished, was never seen on this hop,
    /// and was observed completely on another hop of the same name. The new request's chunks on earlier hops were then missed.
    fn begins_another(&self, ticket: Ticket, seen: &Seen) -> bool {
        let over = |request: &Request| {
            let mut streams = request.streams.iter();
            streams.all(|s| s.hop != seen.hop)
                && request
                    .streams
                    .iter()
                    .any(|s| s.on_line(seen.group) && s.finished() && s.whole())
        };
        let request = self.table.get(ticket);
        request.is_some_and(|request| request.finish_seen && over(request))
    }

    /// Checks the chunk against its stream. Returns the stream's index in the request.
    fn step(&mut self, ticket: Ticket, seen: &Seen, chunk: &Chunk<'_>) -> (usize, Step) {
        let nothing = Step {
            new: 0,
            carried: 0,
            verdict: Verdict::Fits,
        };
        // Checked for each chunk: admitting an earlier chunk of the frame may have evicted this request.
        let watched = (!self.may_meet_forgotten(seen.at)).then_some(seen.watched);
        let Some(request) = self.table.get_mut(ticket) else {
            return (0, nothing);
        };
        let at = request
            .streams
            .iter()
            .position(|s| s.hop == seen.hop)
            .unwrap_or_else(|| {
                let same_line = |s: &Stream| s.on_line(seen.group) && !s.finished() && self.hops.heard_all_since(s);
                // One whose tokens all begin here is another request with the rid.
                let moved = !lists_all_it_counts(chunk) && !self.predecessors.contains_key(&ticket);
                if moved && !request.is_shared() && request.streams.iter().any(same_line) {
                    self.hops.groups[seen.group].moved.enter(seen.at, chunk.rid, 1, true);
                }
                let stream = Stream::new(seen.hop, seen.group, seen.ends, seen.at);
                request.streams.push(stream);
                request.streams.len() - 1
            });
        // After missed observations, a stream on another hop may belong to an earlier request with this rid.
        // So may a finished stream, unless it was observed from its start and this one's start was not missed.
        let followed = request.streams[at].whole() || seen.epoch == 0;
        let known = |s: &Stream| self.hops.heard_all_since(s) && (!s.finished() || (s.whole() && followed));
        let comparable = |s: &Stream| s.hop == seen.hop || known(s);
        let mut high = 0;
        for stream in request.streams.iter().filter(|s| s.on_line(seen.group)) {
            if comparable(stream) {
                high = high.max(stream.completion_tokens());
            }
        }
        // An intermediate process may report a sum of counts as a count. Only hops after the first can show that.
        let beyond = chunk
            .completion_tokens
            .filter(|&n| at > 0 && !seen.origin && n > request.streams[0].count.high);
        let uncounted;
        let alone = |request: &Request| !request.is_shared() && !self.predecessors.contains_key(&ticket);
        let summed = beyond
            .filter(|_| alone(request))
            .is_some_and(|n| self.totals.summed_up(seen.at, &self.hops, request, n, at));
        let chunk = if summed {
            uncounted = Chunk {
                completion_tokens: None,
                ..*chunk
            };
            &uncounted
        } else {
            chunk
        };
        let stream = &mut request.streams[at];
        let before = stream.evidence();
        let mut step = stream.step(chunk, seen.claim, seen.epoch, watched);
        // Empty chunks of a retracted request count up again to its former count, so they are not out of order.
        let behind = high.saturating_sub(chunk.completion_tokens.unwrap_or(high));
        let evidence = stream.evidence();
        let lane = std::mem::replace(&mut stream.lane, seen.lane);
        let judged = !matches!(step.verdict, Verdict::Restart | Verdict::Rebased);
        if behind > 0 && chunk.listed.is_some_and(|n| n > 0) && judged {
            // Counts of a retracted request may restart lower (`input_embeds` from 0.5.10 on, retried prefills).
            let retracted = request.retractions > 0 || chunk.retractions.is_some_and(|n| n > 0);
            // A connection keeps its order, so a lower count on it belongs to another request with the same rid.
            let in_order = lane == seen.lane && stream.count.high == high;
            if !retracted && !in_order && alone(request) && is_late(request, at, seen, chunk) {
                if step.verdict == Verdict::Overlap {
                    step.verdict = Verdict::Fits;
                }
                self.hops.groups[seen.group]
                    .out_of_order
                    .enter(seen.at, chunk.rid, behind.into(), true);
            }
        }
        if evidence != before && !request.is_shared() {
            let (delta, cumulative) = &mut self.hops.groups[seen.group].streams;
            *(if evidence == Evidence::Delta { delta } else { cumulative }) += 1;
        }
        (at, step)
    }

    /// Step of a chunk that does not add up, or whose rid a previous request may still use.
    #[cold]
    fn step_of_either(&mut self, ticket: Ticket, at: usize, seen: &Seen, chunk: &Chunk<'_>, step: Step) -> Step {
        if step.verdict == Verdict::Overlap || self.is_predecessors(ticket, at, seen, chunk, step) {
            self.both_live(ticket);
        }
        self.unjudged_step(ticket, at, chunk, step)
    }

    /// Restarts a stream whose count begins again. Behind the scheduler, a stream not seen from its start began with late chunks of an
    /// earlier request and is reset. Otherwise the rid now belongs to another request, which gets a new record.
    fn restart(&mut self, ticket: Ticket, stream: usize, seen: &Seen, rid: &str) -> Ticket {
        let Some(request) = self.table.get_mut(ticket) else {
            return ticket;
        };
        let whole = request.streams.get(stream).is_some_and(Stream::whole);
        let stragglers = !whole || self.predecessors.contains_key(&ticket);
        if stream > 0 && !seen.origin && stragglers {
            request.streams[stream] = Stream::new(seen.hop, seen.group, seen.ends, seen.at);
            return ticket;
        }
        let in_flight = request.finish.is_none();
        // Its final chunk has not reached the tokenizer. Once it has, the rid is free to be reused, as far as observations show.
        let sent = request.streams.first().map_or(0, |s| s.count.high);
        let come = |s: &Stream| {
            (s.finished() || in_flight && s.count.high >= sent) && self.hops.of(s).is_some_and(|hop| hop.last)
        };
        let undelivered = request.line.as_ref().is_some_and(|line| line.entries() > 0);
        let on_the_way =
            !request.final_taken && (undelivered || self.hops.any_last && !request.streams.iter().any(come));
        // After its engine ended, only a record that the next engine's chunks have continued can still be live.
        let continued = |s: &Stream| !request.outlived || s.count.epoch == seen.epoch;
        let before = request
            .streams
            .get(stream)
            .filter(|s| (in_flight || on_the_way || s.count.may_mix()) && continued(s))
            .cloned();
        self.table.unmap(ticket);
        if in_flight {
            self.totals.requests.overwritten += 1;
            self.linger(ticket, seen.at);
        }
        let new = self.admit(rid, seen.at);
        let before = match before {
            Some(stream) => Some(Predecessor::new(ticket, stream)),
            None => self.predecessors.get(&ticket).cloned(),
        };
        if let Some(before) = before {
            self.predecessors.insert(new, before);
        }
        if on_the_way && self.predecessors.contains_key(&new) || self.begins_amid(new, seen.at) {
            self.share(new);
        }
        new
    }

    fn judge(&mut self, ticket: Ticket, stream: usize, seen: &Seen, rid: &str, step: Step) {
        if step.verdict == Verdict::Fits {
            return;
        }
        let Some(request) = self.table.get_mut(ticket) else {
            return;
        };
        let totals = &mut self.totals;
        match step.verdict {
            Verdict::JoinedLate if request.streams.len() == 1 => totals.requests.joined_late += 1,
            Verdict::Loss { missing } => {
                let new_rid = request.wire_missing == 0;
                let stream = &mut request.streams[stream];
                stream.missing = stream.missing.saturating_add(missing);
                // Tokens missing on one hop are missing on all later hops, but were lost only once.
                let more = stream.missing.saturating_sub(request.wire_missing);
                if more == 0 {
                    return;
                }
                request.wire_missing += more;
                totals.wire_loss.1 += u64::from(more);
                totals
                    .wire_loss
                    .0
                    .enter(seen.at, rid, u64::from(request.wire_missing), new_rid);
            }
            Verdict::Surplus { extra } => {
                totals.anomalies.1 += 1;
                let new_rid = !std::mem::replace(&mut request.odd, true);
                totals.anomalies.0.enter(seen.at, rid, u64::from(extra), new_rid);
            }
            Verdict::Inflated { listed, new, confirmed } => {
                let inflation = &mut totals.wire_inflation;
                inflation.counted += u64::from(listed);
                inflation.made += u64::from(new);
                if confirmed {
                    let new_rid = !std::mem::replace(&mut request.inflated, true);
                    inflation.seen.enter(seen.at, rid, u64::from(listed), new_rid);
                }
            }
            _ => {}
        }
    }

    fn enter_chunk(&mut self, ticket: Ticket, at: usize, seen: &Seen, chunk: &Chunk<'_>, step: Step, sums: &mut Sums) {
        let origin_known = self.hops.any_origin;
        let Some(request) = self.table.get_mut(ticket) else {
            return;
        };
        let origin = if origin_known { seen.origin } else { at == 0 };
        request.last_at = request.last_at.max(seen.at);
        request.prompt_tokens = chunk.prompt_tokens.or(request.prompt_tokens);
        request.cached_tokens = chunk.cached_tokens.or(request.cached_tokens);
        request.retractions = request.retractions.max(chunk.retractions.unwrap_or(0));
        // Behind the first hop it may be a straggler of the request that had the rid before.
        let shared = request.is_shared();
        let ambiguous = || !origin && (shared || self.predecessors.contains_key(&ticket));
        let stream = &mut request.streams[at];
        let first = stream.chunks == 0;
        if origin && step.verdict != Verdict::Repeat {
            sums.origin[0] += 1;
            sums.origin[1] += u64::from(step.new);
            request.chunks_sent += 1;
            request.tokens_sent = request.tokens_sent.saturating_add(step.new);
            if first && seen.sent && stream.whole() {
                request.sent_first = Some(seen.at);
            }
            if !first && step.new > 0 && step.verdict != Verdict::Rebased {
                let silence = seen.at.since(stream.last_at);
                sums.itl.record_n(&mut self.itl_sent, seen.at, silence, 1);
                let by_token = silence / u64::from(step.new);
                sums.itl_by_token
                    .record_n(&mut self.itl_sent_by_token, seen.at, by_token, step.new.into());
                if self.hops.any_delivered {
                    let pace = request.pace.get_or_insert_default();
                    pace.sent.record(by_token, step.new);
                }
                request.silence_ns = request.silence_ns.max(Some(silence));
            }
        }
        request.first_take_missed |= first && (seen.hides_takes || ambiguous());
        stream.chunks += 1;
        let said = chunk.completion_tokens.unwrap_or(0);
        if step.verdict != Verdict::Repeat {
            stream.sum += u64::from(said);
            sums.ids.add(step.carried, chunk.listed.unwrap_or(0), said);
        }
        stream.last_at = seen.at;
        let (whole, end, nth) = (stream.whole(), stream.count.high, stream.chunks);
        if seen.last {
            let tokens = if matches!(step.verdict, Verdict::Loss { .. }) {
                step.carried
            } else {
                step.new
            };
            self.scratch.push(PendingChunk {
                ticket,
                tokens,
                end,
                nth,
                first: first && whole && !ambiguous(),
                last: chunk.finish.is_some(),
            });
        }
        if let Some(count) = chunk.completion_tokens {
            if seen.between {
                self.scratch.push(PendingChunk {
                    ticket,
                    tokens: step.new,
                    end: count,
                    nth,
                    first: false,
                    last: false,
                });
            }
            if seen.sent && !origin {
                let mut room = Room {
                    limits: &self.limits,
                    reached: &mut self.reached,
                };
                self.hops.passages.sent_on(request, at, count, seen.at, &mut room);
            }
        }
        if seen.lines_up && step.verdict != Verdict::Repeat {
            sums.lined_up += 1;
            let line = request.line.get_or_insert_with(|| {
                let mut line = Line::new(self.delivery_epoch, self.early.of(chunk.rid, seen.at));
                line.shared = request.sharing > 0;
                line.straggling = shared::straggling(&self.predecessors, ticket);
                Box::new(line)
            });
            if chunk.completion_tokens.is_none() || seen.unseen || line.shared {
                // Without a count it cannot be matched with a delivery, and an unwatched receiver reports none.
                line.skip(1);
                self.totals.chunks.fates.unjudged += 1;
            } else {
                line.comes_by(request.streams[at].hop);
                line.scarred |= !whole;
                let vague = !request.streams[at].shows_tokens(seen.claim);
                let tokens = if vague { step.new } else { step.carried };
                let before = line.entries();
                let room = before < self.limits.outstanding_per_rid && self.outstanding < self.limits.outstanding;
                let entering = Entering {
                    end,
                    said: chunk.completion_tokens.unwrap_or(end),
                    tokens,
                    vague,
                    rebased: step.verdict == Verdict::Rebased,
                    missing: match step.verdict {
                        Verdict::Loss { missing } => missing,
                        _ => 0,
                    },
                    nth,
                    ids: kept_ids(chunk, tokens, self.limits.token_ids.saturating_sub(self.shelf.ids)),
                };
                self.reached.token_ids += u64::from(entering.ids.is_empty() && !chunk.ids.is_empty() && tokens > 0);
                let ids = line.ids_held();
                self.totals.tokens.uncounted += if line.text { u64::from(tokens) } else { 0 };
                let fates = line.push(entering, room);
                self.shelf.ids = self.shelf.ids + line.ids_held() - ids;
                self.reached.outstanding += u64::from(!room);
                self.outstanding += line.entries() - before;
                self.totals.chunks.fates.add(fates);
            }
        }
        if let Some(finish) = chunk.finish {
            self.enter_end(ticket, seen.at, finish, origin);
        }
    }

    /// Enters the end of a request, which one of its chunks states.
    fn enter_end(&mut self, ticket: Ticket, at: MonoNs, finish: Finish, origin: bool) {
        let Some(request) = self.table.get_mut(ticket) else {
            return;
        };
        // The origin's hop has counted this end, or the previous request with this rid ends.
        let counted = request.is_shared();
        let previous = || {
            self.predecessors.contains_key(&ticket) && request.streams.first().is_some_and(|first| !first.finished())
        };
        if !origin && (counted || previous()) {
            return;
        }
        if request.sharing > 1 {
            request.sharing -= 1;
            self.totals.requests.finished += 1;
        } else if !request.finish_seen {
            request.finish_seen = true;
            self.totals.requests.finished += 1;
            self.totals.requests.aborted += u64::from(finish == Finish::Abort && request.finish.is_none());
            self.finish(ticket, at, finish);
        }
    }

    /// Enters an `AbortReq`: the request was aborted in the queue and may not be known yet.
    fn abort_request(&mut self, at: MonoNs, rid: &str) {
        let ticket = match self.table.find(rid) {
            Some(ticket) => ticket,
            None => self.admit(rid, at),
        };
        let Some(request) = self.table.get_mut(ticket).filter(|r| r.finish.is_none()) else {
            return;
        };
        request.last_at = request.last_at.max(at);
        let unseen = request.streams.is_empty();
        self.totals.requests.aborted += 1;
        self.finish(ticket, at, Finish::Abort);
        if unseen {
            self.linger(ticket, at);
        }
    }
}

/// Whether the chunk lists as many ids as it counts, as a request's first chunk does.
fn lists_all_it_counts(chunk: &Chunk<'_>) -> bool {
    chunk
        .listed
        .is_some_and(|listed| listed > 0 && chunk.completion_tokens == Some(listed))
}

/// Whether a chunk behind its request's count can be a late one. A late chunk fills a hole, if chunks show holes; otherwise it lists all
/// tokens so far. Any other chunk belongs to another request with the same rid.
#[cold]
fn is_late(request: &Request, at: usize, seen: &Seen, chunk: &Chunk<'_>) -> bool {
    if lists_all_it_counts(chunk) {
        return !matches!(seen.claim, IdColumn::Delta | IdColumn::DeltaAfterPromptTail);
    }
    let shows_holes = request.streams.get(at).is_some_and(|s| s.shows_tokens(seen.claim));
    let hole = |s: &Stream| s.on_line(seen.group) && (s.missing > 0 || !s.whole());
    shows_holes && request.streams.iter().any(hole)
}

/// Ids of the tokens that a chunk carries: the last `carried` of those listed, or none if they exceed `room`.
fn kept_ids<'c>(chunk: &Chunk<'c>, carried: u32, room: usize) -> &'c [i64] {
    let carried = carried as usize;
    let from = chunk.ids.len().checked_sub(carried).filter(|_| carried <= room);
    from.map_or(&[], |from| &chunk.ids[from..])
}
