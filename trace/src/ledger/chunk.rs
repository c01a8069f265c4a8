//! Entry of one chunk of a frame into the ledger: its request, its place in the stream, and the conclusions from it.

use super::Ledger;
use super::arithmetic::{Evidence, Step, Verdict};
use super::delivery_tracker::{DeliveryTracker, Entry};
use super::engine_silence::is_streamed;
use super::frame::{Seen, Sums};
use super::lane::PendingChunk;
use super::outcome::{JudgedList, UnjudgedCause};
use super::request::Request;
use super::shared::{self, Predecessor};
use super::stream::Stream;
use crate::clock::MonoNs;
use crate::event::{Chunk, Finish, IdColumn};
use crate::id::Ticket;

impl Ledger {
    /// Enters one chunk and returns its request. `prefetched` is the prefetched record of its rid.
    pub(super) fn chunk(&mut self, seen: &Seen, chunk: &Chunk<'_>, prefetched: Ticket, sums: &mut Sums) -> Ticket {
        if chunk.rid.is_empty() {
            sums.untracked_chunks += 1;
            self.totals.unnamed += 1;
            return Ticket::NONE;
        }
        if self.engine.is_health_check(chunk.rid) {
            sums.untracked_chunks += 1;
            self.count_health_check(chunk.rid);
            return Ticket::NONE;
        }
        let mut ticket = if self.table.is_mapped(prefetched) {
            prefetched
        } else {
            self.table.find(chunk.rid).unwrap_or_else(|| self.admit(chunk.rid, seen.at))
        };
        if lists_all_counted_ids(chunk) {
            if self.begins_new_request(ticket, seen) {
                ticket = self.restart(ticket, 0, seen, chunk.rid);
            } else if self.begins_concurrent_request(ticket, seen) {
                ticket = self.restart(ticket, 0, seen, chunk.rid);
                self.mark_concurrent(ticket);
            }
        }
        let (mut at, mut step) = self.step(ticket, seen, chunk);
        if step.verdict != Verdict::Fits || self.has_shared_rids() {
            step = self.shared_step(ticket, at, seen, chunk, step);
        }
        if step.verdict == Verdict::Restart {
            ticket = self.restart(ticket, at, seen, chunk.rid);
            (at, step) = self.step(ticket, seen, chunk);
        }
        if step.verdict == Verdict::Repeat {
            self.totals.chunks.repeats += 1;
            sums.untracked_chunks += 1;
        }
        self.judge(ticket, at, seen, chunk.rid, step);
        sums.tokens += u64::from(step.new);
        self.enter_chunk(ticket, at, seen, chunk, step, sums);
        if chunk.finish.is_some() {
            self.settle_if_finished(ticket, seen.at);
        }
        ticket
    }

    /// Whether this chunk begins another request with the same rid. True if the known request has finished, was never seen on this hop,
    /// and was observed completely on another hop of the same name. The new request's chunks on earlier hops were then missed.
    fn begins_new_request(&self, ticket: Ticket, seen: &Seen) -> bool {
        let over = |request: &Request| {
            let mut streams = request.streams.iter();
            streams.all(|s| s.hop != seen.hop)
                && request.streams.iter().any(|s| s.on_group(seen.group) && s.finished() && s.whole())
        };
        let request = self.table.get(ticket);
        request.is_some_and(|request| request.finish_seen && over(request))
    }

    /// Checks the chunk against its stream. Returns the stream's index in the request.
    fn step(&mut self, ticket: Ticket, seen: &Seen, chunk: &Chunk<'_>) -> (usize, Step) {
        // Checked for each chunk: admitting an earlier chunk of the frame may have evicted this request.
        let watched = (!self.evicted_may_resume(seen.at)).then_some(seen.watched);
        let Some(request) = self.table.get_mut(ticket) else {
            return (0, Step::fits(0));
        };
        let at = request.streams.iter().position(|s| s.hop == seen.hop).unwrap_or_else(|| {
            let same_group = |s: &Stream| s.on_group(seen.group) && !s.finished() && self.hops.observed_all_since(s);
            // A stream that starts with all its tokens belongs to another request with the rid.
            let moved = !lists_all_counted_ids(chunk) && !self.predecessors.contains_key(&ticket);
            if moved && !request.is_shared() && request.streams.iter().any(same_group) {
                self.hops.groups[seen.group].moved.enter(seen.at, chunk.rid, 1, true);
            }
            let stream = Stream::new(seen.hop, seen.group, seen.ends, seen.at);
            request.streams.push(stream);
            request.streams.len() - 1
        });
        // After missed observations, a stream on another hop may belong to an earlier request with this rid.
        // So may a finished stream, unless it was observed from its start and this one's start was not missed.
        let followed = request.streams[at].whole() || seen.epoch == 0;
        let known = |s: &Stream| self.hops.observed_all_since(s) && (!s.finished() || (s.whole() && followed));
        let comparable = |s: &Stream| s.hop == seen.hop || known(s);
        let mut high = 0;
        for stream in request.streams.iter().filter(|s| s.on_group(seen.group)) {
            if comparable(stream) {
                high = high.max(stream.count.high);
            }
        }
        // An intermediate process may report a sum of counts as a count. Only hops after the first can show that.
        let beyond = chunk.completion_tokens.filter(|&n| at > 0 && !seen.origin && n > request.streams[0].count.high);
        let uncounted;
        let alone = |request: &Request| !request.is_shared() && !self.predecessors.contains_key(&ticket);
        let summed = beyond
            .filter(|_| alone(request))
            .is_some_and(|n| self.totals.summed_up(seen.at, &self.hops, request, n, at));
        let chunk = if summed {
            uncounted = Chunk { completion_tokens: None, ..*chunk };
            &uncounted
        } else {
            chunk
        };
        let stream = &mut request.streams[at];
        let before = stream.count.evidence;
        let mut step = stream.step(chunk, seen.claim, seen.epoch, watched);
        // Empty chunks of a retracted request count up again to its former count, so they are not out of order.
        let behind = high.saturating_sub(chunk.completion_tokens.unwrap_or(high));
        let evidence = stream.count.evidence;
        let lane = std::mem::replace(&mut stream.lane, seen.lane);
        let judged = !matches!(step.verdict, Verdict::Restart | Verdict::Rebased);
        if behind > 0 && chunk.listed.is_some_and(|n| n > 0) && judged {
            // Counts of a retracted request may restart lower (recomputed embeddings, retried prefills).
            let retracted = request.retractions > 0 || chunk.retractions.is_some_and(|n| n > 0);
            // A connection keeps its order, so a lower count on it belongs to another request with the same rid.
            let in_order = lane == seen.lane && stream.count.high == high;
            if !retracted && !in_order && alone(request) && is_late(request, at, seen, chunk) {
                if step.verdict == Verdict::Overlap {
                    step.verdict = Verdict::Fits;
                }
                self.hops.groups[seen.group].out_of_order.enter(seen.at, chunk.rid, behind.into(), true);
            }
        }
        if evidence != before && !request.is_shared() {
            let (delta, cumulative) = &mut self.hops.groups[seen.group].streams;
            *(if evidence == Evidence::Delta { delta } else { cumulative }) += 1;
        }
        (at, step)
    }

    /// Step of a chunk with inconsistent counts, or with a rid that a previous request may still use.
    #[cold]
    fn shared_step(&mut self, ticket: Ticket, at: usize, seen: &Seen, chunk: &Chunk<'_>, step: Step) -> Step {
        if step.verdict == Verdict::Overlap || self.is_predecessors(ticket, at, seen, chunk, step) {
            self.mark_concurrent(ticket);
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
        let arrived = |s: &Stream| {
            (s.finished() || in_flight && s.count.high >= sent) && self.hops.of(s).is_some_and(|hop| hop.last)
        };
        let undelivered = request.tracker.as_ref().is_some_and(|tracker| tracker.entries() > 0);
        let final_in_transit =
            !request.final_received && (undelivered || self.hops.any_last && !request.streams.iter().any(arrived));
        // After its engine ended, only a record that the next engine's chunks have continued can still be live.
        let continued = |s: &Stream| !request.after_engine_end || s.count.epoch == seen.epoch;
        let before = request
            .streams
            .get(stream)
            .filter(|s| (in_flight || final_in_transit || s.count.may_mix_requests()) && continued(s))
            .cloned();
        self.table.unmap(ticket);
        if in_flight {
            self.totals.requests.overwritten += 1;
            self.linger(ticket, seen.at);
        }
        let new = self.admit(rid, seen.at);
        let before = match before {
            Some(stream) => Some(Predecessor { ticket, stream }),
            None => self.predecessors.get(&ticket).cloned(),
        };
        if let Some(before) = before {
            self.predecessors.insert(new, before);
        }
        if final_in_transit && self.predecessors.contains_key(&new) || self.overlaps_predecessor(new, seen.at) {
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
                totals.wire_loss.0.enter(seen.at, rid, u64::from(request.wire_missing), new_rid);
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
        // Behind the first hop it may be a late chunk of the previous request with this rid.
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
            if matches!(step.verdict, Verdict::Loss { .. }) {
                self.silences.enter_wire_loss(stream.last_at);
            }
            if !first && step.new > 0 && step.verdict != Verdict::Rebased {
                let silence = seen.at.since(stream.last_at);
                if seen.sent {
                    let [chunks, count] = [stream.chunks, stream.count.high];
                    let facts = self.engine.facts();
                    self.silences.enter_tokens(seen.at, stream.last_at, step.new, || {
                        is_streamed(chunks, count, facts.unstreamed_tokens())
                    });
                }
                sums.itl.record_n(&mut self.itl_sent, seen.at, silence, 1);
                let by_token = silence / u64::from(step.new);
                sums.itl_by_token.record_n(&mut self.itl_sent_by_token, seen.at, by_token, step.new.into());
                if self.hops.any_delivered {
                    let itl = request.itl.get_or_insert_default();
                    itl.sent.record(by_token, step.new);
                }
                request.silence_ns = request.silence_ns.max(Some(silence));
            }
        }
        request.first_receive_missed |= first && (seen.hides_receives || ambiguous());
        stream.chunks += 1;
        let reported = chunk.completion_tokens.unwrap_or(0);
        if step.verdict != Verdict::Repeat {
            stream.sum += u64::from(reported);
            sums.ids.add(step.carried, chunk.listed.unwrap_or(0), reported);
        }
        stream.last_at = seen.at;
        let (whole, end, nth) = (stream.whole(), stream.count.high, stream.chunks);
        // A format without counts has positions only where no id was missed.
        let summed = seen.claim == IdColumn::Uncounted && whole;
        let count = chunk.completion_tokens.or(summed.then_some(end));
        if seen.last {
            let tokens = if matches!(step.verdict, Verdict::Loss { .. }) { step.carried } else { step.new };
            let (first, last) = (first && whole && !ambiguous(), chunk.finish.is_some());
            self.scratch.push(PendingChunk { ticket, tokens, end, nth, first, last });
        }
        if let Some(count) = count {
            if seen.between {
                let tokens = step.new;
                self.scratch.push(PendingChunk { ticket, tokens, end: count, nth, first: false, last: false });
            }
            if seen.sent && !origin {
                self.hops.processing_stages.sent_on(
                    (&request.streams, &mut request.in_process),
                    at,
                    count,
                    seen.at,
                    &mut self.limits,
                );
            }
        }
        let mut judged = JudgedList::default();
        if seen.tracks_deliveries && step.verdict != Verdict::Repeat {
            sums.tracked_chunks += 1;
            let tracker = request.tracker.get_or_insert_with(|| {
                let mut tracker = DeliveryTracker::new(self.delivery_epoch, self.early.of(chunk.rid, seen.at));
                tracker.shared = request.sharing > 0;
                tracker.previous_until = shared::late_until(&self.predecessors, ticket);
                Box::new(tracker)
            });
            if count.is_none() || seen.unwatched || tracker.shared {
                // Without a count it cannot be matched with a delivery, and an unwatched receiver reports none.
                let cause = if tracker.shared {
                    UnjudgedCause::SharedRid
                } else if seen.unwatched {
                    UnjudgedCause::UnobservedDeliveries
                } else {
                    UnjudgedCause::NoCount
                };
                judged = tracker.skip(seen.hop, nth, 1, cause);
            } else {
                tracker.arrives_on(request.streams[at].hop);
                tracker.incomplete |= !whole;
                let imprecise = !request.streams[at].shows_tokens(seen.claim);
                let tokens = if imprecise { step.new } else { step.carried };
                let entry = Entry {
                    end,
                    counted: count.unwrap_or(end),
                    tokens,
                    imprecise,
                    after_gap: step.verdict == Verdict::Rebased,
                    missing: match step.verdict {
                        Verdict::Loss { missing } => missing,
                        _ => 0,
                    },
                    nth,
                    hop: seen.hop,
                    ..Entry::default()
                };
                let ids = kept_ids(chunk, tokens, self.limits.token_ids.saturating_sub(self.shelf.ids));
                if ids.is_empty() && !chunk.ids.is_empty() && tokens > 0 {
                    self.limits.reached("token_ids");
                }
                let fits = self.limits.has_room(tracker.entries(), self.shelf.entries);
                self.totals.tokens.uncounted += if tracker.text { u64::from(tokens) } else { 0 };
                tracker.release(&mut self.shelf);
                judged = tracker.push(entry, ids, fits);
                tracker.hold(&mut self.shelf);
            }
        }
        self.history.chunk(seen, chunk, nth);
        self.enter_outcomes(seen.at, ticket, &judged);
        if let Some(finish) = chunk.finish {
            self.enter_end(ticket, seen.at, finish, origin);
        }
    }

    /// Records the end of a request, as reported by one of its chunks.
    fn enter_end(&mut self, ticket: Ticket, at: MonoNs, finish: Finish, origin: bool) {
        let Some(request) = self.table.get_mut(ticket) else {
            return;
        };
        // The first hop has already counted this end, or it is the end of the previous request with this rid.
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
    pub(super) fn abort_request(&mut self, at: MonoNs, rid: &str) {
        let ticket = self.table.find(rid).unwrap_or_else(|| self.admit(rid, at));
        let Some(request) = self.table.get_mut(ticket).filter(|r| r.finish.is_none()) else {
            return;
        };
        request.last_at = request.last_at.max(at);
        let never_sent = request.streams.is_empty();
        self.totals.requests.aborted += 1;
        self.finish(ticket, at, Finish::Abort);
        if never_sent {
            self.linger(ticket, at);
        }
    }
}

/// Whether the chunk lists as many ids as it counts, as a request's first chunk does.
fn lists_all_counted_ids(chunk: &Chunk<'_>) -> bool {
    chunk.listed.is_some_and(|listed| listed > 0 && chunk.completion_tokens == Some(listed))
}

/// Whether a chunk behind its request's count can be a late one. A late chunk fills a hole, if chunks show holes; otherwise it lists all
/// tokens so far. Any other chunk belongs to another request with the same rid.
#[cold]
fn is_late(request: &Request, at: usize, seen: &Seen, chunk: &Chunk<'_>) -> bool {
    if lists_all_counted_ids(chunk) {
        return !matches!(seen.claim, IdColumn::Delta | IdColumn::DeltaAfterPromptTail);
    }
    let shows_holes = request.streams.get(at).is_some_and(|s| s.shows_tokens(seen.claim));
    let hole = |s: &Stream| s.on_group(seen.group) && (s.missing > 0 || !s.whole());
    shows_holes && request.streams.iter().any(hole)
}

/// Ids of the tokens that a chunk carries: the last `carried` of those listed, or none if they exceed `limit`.
fn kept_ids<'c>(chunk: &Chunk<'c>, carried: u32, limit: usize) -> &'c [i64] {
    let carried = carried as usize;
    let from = chunk.ids.len().checked_sub(carried).filter(|_| carried <= limit);
    from.map_or(&[], |from| &chunk.ids[from..])
}
