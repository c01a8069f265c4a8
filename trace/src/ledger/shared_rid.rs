//! Two live requests with the same rid. A chunk or delivery cannot be assigned to one of them, so neither is judged.
//!
//! If a rid's count restarts, the rid may only have been reused after its first request ended unobserved. Two signs show that both live: a
//! chunk that continues the first request, or a first chunk on another hop of the same name.

use std::collections::BTreeMap;

use super::Ledger;

use super::frame::{CheckedChunk, FrameContext};
use super::outcome::UnjudgedCause;
use super::request::Request;
use super::stream::Stream;
use super::stream_count::{CountStep, CountVerdict, Evidence};
use crate::clock::MonoNs;
use crate::engine::Mode;
use crate::event::{Chunk, Delivery};
use crate::id::Ticket;

/// How long after the last chunk of a rid's previous request a delivery may still belong to it, in nanoseconds.
const MAX_LATE_NS: u64 = 5_000_000_000;

/// Limit on the rids remembered as shared.
const MAX_SHARED_RIDS: usize = 1024;

/// Previous request with the same rid, not known to have ended.
#[derive(Clone, Debug)]
pub(crate) struct Predecessor {
    pub(super) ticket: Ticket,
    /// Its stream on the hop where the next request began.
    pub(super) stream: Stream,
}

impl Predecessor {
    /// Whether a chunk that fits the newer request may belong to this one instead: only if this one is recent, and the ids of the chunk do
    /// not show which of its tokens are new.
    fn may_own_fitting_chunk(&self, context: &FrameContext) -> bool {
        let is_recent = context.at.since(self.stream.last_at) < MAX_LATE_NS;
        is_recent && !self.stream.shows_tokens(context.claimed_ids)
    }

    /// Whether the chunk may continue the stream (the chunks on one hop) of this previous request.
    fn is_stream_continued_by(&self, context: &FrameContext, chunk: &Chunk<'_>) -> bool {
        if self.stream.hop != context.hop {
            return false;
        }
        // A stream that may mix requests already can contain any chunk.
        self.stream.count.may_mix_requests() || self.is_count_continued_by(context, chunk)
    }

    /// Whether the chunk's count continues that of the stream: with new tokens, or as an empty chunk with the same count.
    fn is_count_continued_by(&self, context: &FrameContext, chunk: &Chunk<'_>) -> bool {
        // The comparison changes the stream's counts, and the chunk may belong to the other request.
        let mut stream = self.stream.clone();
        // Nothing shows that no frame was missed before the chunk.
        let watched_frames = None;
        let step = stream.count_and_check_chunk(chunk, context.claimed_ids, context.epoch, watched_frames);
        // Tokens of its own may be missing before the chunk.
        let fits = matches!(step.verdict, CountVerdict::Fits | CountVerdict::Overlap | CountVerdict::Loss { .. });
        let repeats_last_count = chunk.listed == Some(0) && chunk.completion_tokens == Some(self.stream.count.highest);
        fits && (step.new > 0 || repeats_last_count)
    }
}

/// Time until which a delivery may belong to the previous request with the rid of `ticket`; 0 without one.
pub(super) fn late_deliveries_until(predecessors: &BTreeMap<Ticket, Predecessor>, ticket: Ticket) -> MonoNs {
    let last = predecessors.get(&ticket).map(|predecessor| predecessor.stream.last_at);
    last.map_or(MonoNs(0), |last| MonoNs(last.0.saturating_add(MAX_LATE_NS)))
}

/// Makes the next delivery prove no loss if it comes so early that it may be a late one of the previous request with the rid.
fn doubt_late_delivery(request: &mut Request, delivered_at: MonoNs) {
    if let Some(tracker) = &mut request.tracker
        && delivered_at < tracker.previous_until
    {
        tracker.mark_uncertain();
    }
}

/// Stream of a request whose rid a chunk has used again, if the request may still be live. `None` if it has certainly ended.
/// `is_final_in_transit`: its final chunk may not have reached its client.
fn possibly_live_stream<'r>(
    request: &'r Request,
    stream_index: usize,
    context: &FrameContext,
    is_final_in_transit: bool,
) -> Option<&'r Stream> {
    let stream = request.streams.get(stream_index)?;
    // After its engine ended, only a record that the next engine's chunks have continued can still be live.
    let is_of_this_engine = !request.is_after_engine_end || stream.count.epoch == context.epoch;
    let is_unfinished = request.finish.is_none();
    let may_be_live = is_unfinished || is_final_in_transit || stream.count.may_mix_requests();
    (is_of_this_engine && may_be_live).then_some(stream)
}

impl Ledger {
    /// Applies the first chunk of a count that begins again in a stream, and returns the record that the rid has from now on: a new one,
    /// because the rid belongs to another request. Only a stream that began with late chunks of an earlier request keeps its record.
    pub(super) fn ticket_for_restarted_stream(
        &mut self,
        ticket: Ticket,
        stream_index: usize,
        context: &FrameContext,
        rid: &str,
    ) -> Ticket {
        let began_with_late_chunks = self.began_with_late_chunks(ticket, stream_index, context);
        let Some(request) = self.table.get_mut(ticket) else { return ticket };
        if began_with_late_chunks {
            // The record's own request begins in the stream only now.
            request.streams[stream_index] = Stream::new(context.hop, context.group, context.roles, context.at);
            return ticket;
        }
        self.give_rid_to_new_request(ticket, stream_index, context, rid)
    }

    /// Whether a stream began with late chunks of an earlier request with the rid. These come only behind the scheduler, and such a stream
    /// was not seen from its first token on.
    fn began_with_late_chunks(&self, ticket: Ticket, stream_index: usize, context: &FrameContext) -> bool {
        if stream_index == 0 || context.is_origin {
            return false;
        }
        let stream = self.table.get(ticket).and_then(|request| request.streams.get(stream_index));
        let is_whole = stream.is_some_and(Stream::is_whole);
        !is_whole || self.predecessors.contains_key(&ticket)
    }

    /// Creates a record for another request with this rid (request id), and returns its ticket (the handle of the record). The old record
    /// stays until its receives and deliveries have come, but only its ticket leads to it.
    fn give_rid_to_new_request(
        &mut self,
        old_ticket: Ticket,
        stream_index: usize,
        context: &FrameContext,
        rid: &str,
    ) -> Ticket {
        let Some(old) = self.table.get(old_ticket) else { return old_ticket };
        let is_old_unfinished = old.finish.is_none();
        let is_old_final_in_transit = self.is_final_chunk_in_transit(old);
        let live_stream = possibly_live_stream(old, stream_index, context, is_old_final_in_transit).cloned();
        self.table.unmap_rid(old_ticket);
        // A finished record is queued for closing already.
        if is_old_unfinished {
            self.totals.requests.overwritten += 1;
            self.close_soon(old_ticket, context.at);
        }
        let new_ticket = self.admit_request(rid, context.at);
        self.keep_predecessor(new_ticket, old_ticket, live_stream);
        // While the old request's chunks are still on their way, late ones could be taken for chunks of the new request.
        let is_predecessor_in_transit = is_old_final_in_transit && self.predecessors.contains_key(&new_ticket);
        if is_predecessor_in_transit || self.overlaps_predecessor(new_ticket, context.at) {
            self.stop_judging_requests_of_rid(new_ticket);
        }
        new_ticket
    }

    /// Remembers which previous request with the rid of `new_ticket` may be live, because its further chunks must not count for the new
    /// one. That is the old request with its `live_stream`. If it has ended (`None`), it is the request remembered for it, if any.
    fn keep_predecessor(&mut self, new_ticket: Ticket, old_ticket: Ticket, live_stream: Option<Stream>) {
        let predecessor = match live_stream {
            Some(stream) => Some(Predecessor { ticket: old_ticket, stream }),
            None => self.predecessors.get(&old_ticket).cloned(),
        };
        if let Some(predecessor) = predecessor {
            self.predecessors.insert(new_ticket, predecessor);
        }
    }

    /// Whether the final chunk of a request may not have reached the tokenizer or the client. Until it has, the rid is not free to be
    /// reused.
    pub(super) fn is_final_chunk_in_transit(&self, request: &Request) -> bool {
        let is_undelivered = request.tracker.as_ref().is_some_and(|tracker| tracker.entry_count() > 0);
        let is_before_last_hop = self.hops.any_last && !self.has_final_chunk_on_last_hop(request);
        !request.final_received && (is_undelivered || is_before_last_hop)
    }

    /// Whether the final chunk of a request was sent on a hop into the tokenizer. For an unfinished request, the last chunk that the
    /// scheduler has sent so far counts as the final one.
    fn has_final_chunk_on_last_hop(&self, request: &Request) -> bool {
        let is_unfinished = request.finish.is_none();
        let sent_tokens = request.streams.first().map_or(0, |stream| stream.count.highest);
        request.streams.iter().any(|stream| {
            let has_all_tokens = is_unfinished && stream.count.highest >= sent_tokens;
            (stream.is_finished() || has_all_tokens) && self.hops.hop_of(stream).is_some_and(|hop| hop.last)
        })
    }

    /// Previous requests with the rid of `ticket` that are not known to have ended, latest first.
    fn predecessors_of(&self, ticket: Ticket) -> impl Iterator<Item = &Predecessor> {
        std::iter::successors(self.predecessors.get(&ticket), |known| self.predecessors.get(&known.ticket))
    }

    /// Whether several requests have, or may have, had one rid.
    pub(super) fn has_shared_rids(&self) -> bool {
        !self.predecessors.is_empty() || !self.shared_rids.is_empty()
    }

    /// Whether a chunk may belong to a previous request with the same rid (a predecessor): if it continues that request's stream, or if it
    /// contradicts its own request's counts on a later hop.
    pub(super) fn may_chunk_be_of_predecessor(
        &self,
        checked: CheckedChunk,
        context: &FrameContext,
        chunk: &Chunk<'_>,
    ) -> bool {
        let CheckedChunk { ticket, stream_index, step } = checked;
        let contradicts_request = matches!(step.verdict, CountVerdict::Loss { .. } | CountVerdict::Overlap);
        let is_on_later_hop = stream_index > 0;
        // Chunks of a predecessor may still arrive late on a later hop.
        if contradicts_request && is_on_later_hop && self.predecessors.contains_key(&ticket) {
            return true;
        }
        let fits_request = step.verdict == CountVerdict::Fits && chunk.listed.is_none_or(|listed| listed == step.new);
        self.predecessors_of(ticket).any(|predecessor| {
            // A chunk that fits its own request belongs to that, unless its ids do not show which tokens are new.
            let may_own_chunk = !fits_request || predecessor.may_own_fitting_chunk(context);
            may_own_chunk && predecessor.is_stream_continued_by(context, chunk)
        })
    }

    /// Whether a previous request with the rid of `ticket` sent a chunk within the last seconds, so that both may live.
    pub(super) fn overlaps_predecessor(&self, ticket: Ticket, at: MonoNs) -> bool {
        self.predecessors_of(ticket).any(|predecessor| at.since(predecessor.stream.last_at) < MAX_LATE_NS)
    }

    /// Whether this chunk, which lists all ids of its request, begins a second live request with the rid. It does if the known request has
    /// an unfinished stream on another hop of the group (hops of one name). A stream is a request on one hop.
    pub(super) fn begins_concurrent_request(&self, ticket: Ticket, context: &FrameContext) -> bool {
        let Some(request) = self.table.get(ticket) else { return false };
        let is_known_on_hop = request.streams.iter().any(|stream| stream.hop == context.hop);
        // Counts of a retracted request may begin again, so they do not show another request.
        if is_known_on_hop || request.is_shared() || request.retractions > 0 {
            return false;
        }
        let mut streams_of_group = request.streams.iter().filter(|stream| stream.is_on_group(context.group));
        streams_of_group.any(|stream| {
            let is_open = stream.is_whole() && !stream.is_finished();
            // A stream that lists new ids only would not continue with a chunk that lists all ids.
            let lists_only_new_ids = stream.count.evidence == Evidence::Delta && stream.count.highest > 1;
            is_open && lists_only_new_ids
        })
    }

    /// Marks the request and the previous ones with its rid as live at the same time, because a chunk has shown that. None of them is
    /// judged any more.
    pub(super) fn mark_requests_of_rid_concurrent(&mut self, ticket: Ticket) {
        // The previous ones were counted as overwritten when their rid was reused, but they have not ended.
        let predecessors = self.predecessors_of(ticket).count() as u64;
        let overwritten = &mut self.totals.requests.overwritten;
        *overwritten = overwritten.saturating_sub(predecessors);
        self.stop_judging_requests_of_rid(ticket);
    }

    /// Marks the record as one of several requests: its own, and this many previous ones with the rid.
    fn mark_record_as_shared(&mut self, ticket: Ticket, predecessor_count: usize) {
        let Some(request) = self.table.get_mut(ticket) else { return };
        // At least two, even if the record of the other one is closed.
        request.sharing_requests = u8::try_from(predecessor_count + 1).unwrap_or(u8::MAX).max(2);
        self.totals.requests.shared += 1;
        let rid = request.rid.clone();
        self.add_shared_rid(rid);
    }

    /// Stops judging the request and the previous ones with its rid: they may be live at the same time.
    pub(super) fn stop_judging_requests_of_rid(&mut self, ticket: Ticket) {
        let predecessors: Vec<Ticket> = self.predecessors_of(ticket).map(|predecessor| predecessor.ticket).collect();
        let Some(request) = self.table.get(ticket) else { return };
        if !request.is_shared() {
            self.mark_record_as_shared(ticket, predecessors.len());
        }
        for sharing in predecessors.into_iter().chain([ticket]) {
            self.predecessors.remove(&sharing);
            if let Some(tracker) = self.table.get_mut(sharing).and_then(|request| request.tracker.as_mut()) {
                tracker.is_shared = true;
                // Returns the number of their tokens, which is not needed.
                self.unjudge_tokens_in_flight(self.now, sharing, UnjudgedCause::SharedRid);
            }
        }
    }

    /// Remembers a rid whose later requests cannot be judged.
    pub(super) fn add_shared_rid(&mut self, rid: Box<str>) {
        if self.shared_rids.len() >= MAX_SHARED_RIDS {
            // The set is sorted by name: the dropped rid is arbitrary.
            self.shared_rids.pop_first();
        }
        self.shared_rids.insert(rid);
    }

    /// Result of a chunk's count check. If several requests share its rid, the result counts the ids that the chunk lists, and draws no
    /// conclusion from its counts.
    pub(super) fn step_without_verdict_if_shared(&self, checked: CheckedChunk, chunk: &Chunk<'_>) -> CountStep {
        let request = self.table.get(checked.ticket).filter(|request| request.is_shared());
        let Some(request) = request else { return checked.step };
        let stream = request.streams.get(checked.stream_index);
        let lists_all = stream.is_some_and(|stream| stream.count.evidence == Evidence::Cumulative);
        // Of a list of all ids so far, it is unknown which ones are new.
        let new = if lists_all { 0 } else { chunk.listed.unwrap_or(0) };
        CountStep { new, carried: new, verdict: CountVerdict::Fits }
    }

    /// Counts a delivery for a rid that several requests share, without judging it. Returns `false` if the rid is not shared, so that the
    /// delivery must be judged.
    pub(super) fn record_delivery_if_shared(&mut self, at: MonoNs, ticket: Ticket, delivery: &Delivery<'_>) -> bool {
        let Some(request) = self.table.get_mut(ticket) else { return false };
        if !request.is_shared() {
            // The caller judges it, but it may be one of the previous request with the rid.
            doubt_late_delivery(request, at);
            return false;
        }
        request.last_at = request.last_at.max(at);
        // A cumulative delivery repeats tokens, and it is unknown which of the requests has them.
        let tokens = if delivery.mode == Mode::Incremental { delivery.tokens } else { 0 };
        request.tokens_delivered = request.tokens_delivered.saturating_add(tokens);
        self.totals.tokens.delivered += u64::from(tokens);
        if delivery.finished {
            // The other requests with the rid have ended, so this is the last response.
            if request.sharing_requests == 1
                && let Some(tracker) = &mut request.tracker
            {
                tracker.is_finished = true;
            }
            self.close_soon_if_all_arrived(ticket, at);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use crate::event::{Capabilities, Chunk, Finish, IdColumn};
    use crate::ledger::test_path::Path;

    /// Two schedulers that send to one tokenizer with observed deliveries.
    fn engine() -> Path {
        let mut engine = Path::new(Config::default());
        (0..2).for_each(|id| name(&mut engine, id, "scheduler->tokenizer"));
        engine
    }

    fn name(engine: &mut Path, id: u16, name: &str) {
        let last = !name.ends_with('?');
        engine.announce(id, name, [true, last], Capabilities { delivered: last, ..Capabilities::SENT });
    }

    /// Sends and delivers a chunk with one token and the cumulative count `count`.
    fn pass(engine: &mut Path, hop: u16, count: u32, last: bool) {
        send(engine, hop, count, last);
        engine.deliver(1, Some(count), last);
    }

    fn send(engine: &mut Path, hop: u16, count: u32, last: bool) {
        let chunk = Chunk { finish: last.then_some(Finish::Length), ..Chunk::counted("a", 1, count) };
        engine.send(hop, IdColumn::Delta, &[chunk]);
    }

    /// Requests seen, finished and shared; tokens sent and delivered; tokens reported lost on the wire and by drops, anomalies, and
    /// requests reported out of order or moved.
    fn counts(engine: &Path) -> ([u64; 3], [u64; 2], [u64; 4]) {
        let totals = engine.ledger().totals();
        let requests = totals.requests;
        let lines = engine.ledger().groups().iter();
        let misplaced = lines.map(|line| line.out_of_order.rids + line.moved.rids).sum();
        (
            [requests.seen, requests.finished, requests.shared],
            [totals.tokens.sent, totals.tokens.delivered],
            [totals.wire_loss.total, totals.chunks.outcomes.tokens_lost, totals.anomalies.total, misplaced],
        )
    }

    #[test]
    fn two_live_requests_with_one_rid_are_unjudged() {
        for (first, second) in [(57, 1), (3, 1)] {
            let mut engine = engine();
            (1..=first).for_each(|count| pass(&mut engine, 0, count, false));
            for number in 0..20 {
                pass(&mut engine, 0, second + number, number == 19);
                pass(&mut engine, 0, first + 1 + number, number == 19);
            }
            let tokens = u64::from(first) + 40;
            assert_eq!(counts(&engine), ([2, 2, 1], [tokens, tokens], [0; 4]), "{first} tokens before");
            assert_eq!(engine.ledger().degraded_reason_lines().count(), 1);
        }
    }

    #[test]
    fn chunks_in_flight_when_a_rid_is_reused_are_not_reported_as_lost() {
        let mut engine = engine();
        (1..=5).for_each(|count| send(&mut engine, 0, count, false));
        send(&mut engine, 0, 1, false);
        (1..=5).for_each(|count| engine.deliver(1, Some(count), false));
        send(&mut engine, 0, 6, false);
        engine.deliver(1, Some(1), false);
        engine.deliver(1, Some(6), false);
        assert_eq!(counts(&engine).2, [0; 4]);
    }

    #[test]
    fn a_second_request_with_the_rid_on_another_connection_is_detected() {
        let mut engine = engine();
        (1..=9).for_each(|count| pass(&mut engine, 0, count, false));
        for count in 1..=5 {
            pass(&mut engine, 1, count, count == 5);
            pass(&mut engine, 0, 9 + count, count == 5);
        }
        assert_eq!(counts(&engine), ([2, 2, 1], [19, 19], [0; 4]));
    }

    #[test]
    fn a_rid_reused_after_a_silent_end_is_judged() {
        let mut engine = engine();
        (1..=5).for_each(|count| pass(&mut engine, 0, count, false));
        engine.now += 6_000_000_000;
        (1..=3).for_each(|count| send(&mut engine, 0, count, false));
        engine.deliver(1, Some(1), false);
        engine.deliver(1, Some(3), false);
        send(&mut engine, 0, 5, false);
        assert_eq!(counts(&engine).0, [2, 0, 0]);
        assert_eq!(counts(&engine).2[..2], [1, 1], "token 4 was lost on the wire, token 2 was dropped after it");
    }

    #[test]
    fn a_rid_reused_on_another_scheduler_is_another_request_even_before_receivers_are_known() {
        let mut engine = engine();
        name(&mut engine, 0, "scheduler->?");
        name(&mut engine, 1, "scheduler->?");
        (1..=3).for_each(|count| send(&mut engine, 0, count, count == 3));
        name(&mut engine, 0, "scheduler->tokenizer");
        name(&mut engine, 1, "scheduler->tokenizer");
        (1..=3).for_each(|count| engine.deliver(1, Some(count), count == 3));
        (1..=3).for_each(|count| pass(&mut engine, 1, count, count == 3));
        assert_eq!(counts(&engine), ([2, 2, 0], [6, 6], [0; 4]));
    }
}
