//! Entry of one chunk of a frame into the ledger: its request, its place in the stream, and the conclusions from it.

mod tracking;

use std::num::NonZeroU64;

use super::Ledger;
use super::engine_silence::is_streamed;
use super::frame::{CheckedChunk, FrameContext, FrameSums};
use super::hops::Hops;
use super::lane::PendingChunk;
use super::outcome::JudgedList;
use super::processing_stage::TimedCount;
use super::request::Request;
use super::stream::Stream;
use super::stream_count::{CountStep, CountVerdict, Evidence};
use super::totals::RequestCounts;
use crate::clock::MonoNs;
use crate::event::{Chunk, Finish, IdColumn};
use crate::id::Ticket;

impl Ledger {
    /// Records one chunk of a frame. Returns the ticket of its request: the key of the request's record, or [`Ticket::NONE`] if the chunk
    /// belongs to no judged request. `prefetched_ticket`: the ticket that its rid had before the frame was recorded.
    pub(super) fn record_chunk(
        &mut self,
        context: &FrameContext,
        chunk: &Chunk<'_>,
        prefetched_ticket: Ticket,
        frame_sums: &mut FrameSums,
    ) -> Ticket {
        let is_untracked = self.count_chunk_if_untracked(chunk.rid, frame_sums);
        if is_untracked {
            return Ticket::NONE;
        }
        let mut ticket = self.find_or_begin_request(context, chunk, prefetched_ticket);
        let mut checked = self.check_chunk_count(ticket, context, chunk);
        // Nearly every chunk fits and no rid is shared: the hot path ends here.
        if checked.step.verdict != CountVerdict::Fits || self.has_shared_rids() {
            checked.step = self.recheck_step_for_shared_rid(checked, context, chunk);
        }
        if checked.step.verdict == CountVerdict::Restart {
            // The chunk has not been counted: it is the first one of the request that has the rid now.
            ticket = self.ticket_for_restarted_stream(ticket, checked.stream_index, context, chunk.rid);
            checked = self.check_chunk_count(ticket, context, chunk);
        }
        if checked.step.verdict == CountVerdict::Repeat {
            self.totals.chunks.repeats += 1;
            frame_sums.untracked_chunks += 1;
        }
        self.record_verdict(checked, context, chunk.rid);
        frame_sums.tokens += u64::from(checked.step.new);
        self.apply_chunk(checked, context, chunk, frame_sums);
        if chunk.finish.is_some() {
            self.close_soon_if_all_arrived(ticket, context.at);
        }
        ticket
    }

    /// Counts a chunk that belongs to no judged request: it has no rid, or is of a health check of the server. Returns whether it is one.
    #[inline]
    fn count_chunk_if_untracked(&mut self, rid: &str, frame_sums: &mut FrameSums) -> bool {
        if rid.is_empty() {
            frame_sums.untracked_chunks += 1;
            self.totals.unnamed += 1;
            return true;
        }
        if !self.engine.is_health_check(rid) {
            return false;
        }
        frame_sums.untracked_chunks += 1;
        self.count_health_check_if_new(rid);
        let is_engine_idle = self.table.live_count() == 0;
        if is_engine_idle {
            self.dispatched.record_idle_health_check(rid);
        }
        true
    }

    /// The record of a chunk's request, which is created if needed: for an unknown rid, or if the chunk begins another request with a known
    /// one. `prefetched_ticket`: the record that the rid had before the frame was recorded.
    #[inline]
    fn find_or_begin_request(
        &mut self,
        context: &FrameContext,
        chunk: &Chunk<'_>,
        prefetched_ticket: Ticket,
    ) -> Ticket {
        // An earlier chunk of the frame may have unmapped or evicted the prefetched record.
        let ticket = if self.table.is_mapped(prefetched_ticket) {
            prefetched_ticket
        } else {
            self.table.ticket_of(chunk.rid).unwrap_or_else(|| self.admit_request(chunk.rid, context.at))
        };
        // A request's first chunk lists all the ids that it counts; no other chunk can begin one.
        if !lists_all_counted_ids(chunk) {
            return ticket;
        }
        let first_stream = 0;
        if self.begins_new_request(ticket, context) {
            return self.ticket_for_restarted_stream(ticket, first_stream, context, chunk.rid);
        }
        if self.begins_concurrent_request(ticket, context) {
            let new_ticket = self.ticket_for_restarted_stream(ticket, first_stream, context, chunk.rid);
            self.mark_requests_of_rid_concurrent(new_ticket);
            return new_ticket;
        }
        ticket
    }

    /// Whether this chunk begins another request with the same rid. It does if the known request has finished on another hop (channel
    /// between two processes) of the same name, with all its chunks there. The new request's chunks on earlier hops were then missed.
    fn begins_new_request(&self, ticket: Ticket, context: &FrameContext) -> bool {
        let Some(request) = self.table.get(ticket) else { return false };
        // First, because it decides for nearly every chunk.
        if !request.finish_seen {
            return false;
        }
        let was_seen_on_hop = request.streams.iter().any(|stream| stream.hop == context.hop);
        !was_seen_on_hop && has_whole_finished_stream(request, context.group)
    }

    /// Compares the chunk's counts with its stream, which is created if needed.
    fn check_chunk_count(&mut self, ticket: Ticket, context: &FrameContext, chunk: &Chunk<'_>) -> CheckedChunk {
        // Asked for each chunk: admitting an earlier chunk of the frame may have evicted this request.
        let watched_frames = (!self.evicted_may_resume(context.at)).then_some(context.watched_frames);
        let Some(request) = self.table.get_mut(ticket) else {
            return CheckedChunk { ticket, stream_index: 0, step: CountStep::fits(0) };
        };
        let known_index = request.streams.iter().position(|stream| stream.hop == context.hop);
        let stream_index = known_index.unwrap_or_else(|| {
            // A stream that starts with all its tokens belongs to another request with the rid.
            let continues_request = !lists_all_counted_ids(chunk) && !self.predecessors.contains_key(&ticket);
            let is_open_in_group = request.streams.iter().any(|stream| {
                stream.is_on_group(context.group) && !stream.is_finished() && self.hops.observed_all_since(stream)
            });
            if continues_request && !request.is_shared() && is_open_in_group {
                request.changed_receiver = true;
                let is_first_change =
                    request.streams.iter().filter(|stream| stream.is_on_group(context.group)).count() == 1;
                self.hops.groups[context.group].moved.record_request(context.at, chunk.rid, 1, is_first_change);
            }
            request.streams.push(Stream::new(context.hop, context.group, context.roles, context.at));
            request.streams.len() - 1
        });
        let highest = highest_count_in_group(&self.hops, request, stream_index, context);
        let has_rid_alone = !request.is_shared() && !self.predecessors.contains_key(&ticket);
        // An intermediate process may report a sum of counts as a count. Only hops after the first can show that.
        let may_be_sum = stream_index > 0 && !context.is_origin && has_rid_alone;
        let sum = chunk.completion_tokens.filter(|&count| may_be_sum && count > request.streams[0].count.highest);
        let is_sum =
            sum.is_some_and(|sum| self.totals.record_claim_if_sum(context.at, &self.hops, request, sum, stream_index));
        // Outside the branch, because `chunk` borrows it.
        let without_count;
        let chunk = if is_sum {
            without_count = Chunk { completion_tokens: None, ..*chunk };
            &without_count
        } else {
            chunk
        };
        let stream = &mut request.streams[stream_index];
        let evidence_before = stream.count.evidence;
        let was_behind = stream.count.is_behind();
        let mut step = stream.count_and_check_chunk(chunk, context.claimed_ids, context.epoch, watched_frames);
        let evidence = stream.count.evidence;
        let last_lane = std::mem::replace(&mut stream.lane, context.lane);
        let tokens_behind = highest.saturating_sub(chunk.completion_tokens.unwrap_or(highest));
        let is_judged = !matches!(step.verdict, CountVerdict::Restart | CountVerdict::Rebased);
        // Empty chunks of a retracted request count up again to its former count, so they are not out of order.
        if tokens_behind > 0 && chunk.listed.is_some_and(|listed| listed > 0) && is_judged {
            // Counts of a retracted request may restart lower (recomputed embeddings, retried prefills).
            let was_retracted = request.retractions > 0 || chunk.retractions.is_some_and(|retractions| retractions > 0);
            // A connection keeps its order, so a lower count on it belongs to another request with the same rid. Unless the chunk before
            // was late itself: several may be.
            let is_in_order = last_lane == context.lane && stream.count.highest == highest && !was_behind;
            if !was_retracted
                && !is_in_order
                && has_rid_alone
                && may_be_late_chunk(request, stream_index, context, chunk)
            {
                if step.verdict == CountVerdict::Overlap {
                    // The chunk is late, so it is no contradiction.
                    step.verdict = CountVerdict::Fits;
                }
                let found = request.take_back_wire_loss(context.group, chunk.listed.unwrap_or(0));
                if found.on_hop > 0 {
                    step = CountStep { carried: found.on_hop, verdict: CountVerdict::Late, ..step };
                    self.totals.wire_loss.take_back_amount(chunk.rid, found.of_request, request.wire_missing);
                }
                let out_of_order = &mut self.hops.groups[context.group].out_of_order;
                out_of_order.record_occurrence(context.at, chunk.rid, tokens_behind.into());
            }
        }
        if evidence != evidence_before && !request.is_shared() {
            let streams = &mut self.hops.groups[context.group].streams;
            match evidence {
                Evidence::Delta => streams.incremental += 1,
                Evidence::Cumulative | Evidence::Undecided => streams.cumulative += 1,
            }
        }
        CheckedChunk { ticket, stream_index, step }
    }

    /// Checks whether the chunk's rid is shared by requests that are live at the same time, and marks the rid if so. Signs of that: the
    /// chunk's counts overlap earlier ones, or it may belong to a previous request with the rid. Returns the result of its count check,
    /// without a verdict on its tokens if its rid is shared.
    #[cold]
    fn recheck_step_for_shared_rid(
        &mut self,
        checked: CheckedChunk,
        context: &FrameContext,
        chunk: &Chunk<'_>,
    ) -> CountStep {
        if checked.step.verdict == CountVerdict::Overlap || self.may_chunk_be_of_predecessor(checked, context, chunk) {
            self.mark_requests_of_rid_concurrent(checked.ticket);
        }
        self.step_without_verdict_if_shared(checked, chunk)
    }

    /// Adds what the chunk's counts prove about its request to the totals of the run: tokens lost on the wire, or listed more than once.
    /// Each request counts once as affected.
    fn record_verdict(&mut self, checked: CheckedChunk, context: &FrameContext, rid: &str) {
        if checked.step.verdict == CountVerdict::Fits {
            return;
        }
        let Some(request) = self.table.get_mut(checked.ticket) else { return };
        let totals = &mut self.totals;
        match checked.step.verdict {
            CountVerdict::JoinedLate => {
                // On its later hops, the same request joins late again.
                let is_on_first_hop = request.streams.len() == 1;
                totals.requests.joined_late += u64::from(is_on_first_hop);
            }
            CountVerdict::Loss { missing } => {
                let is_first_loss = request.wire_missing == 0;
                let new_losses = request.add_wire_loss_and_count_new(checked.stream_index, missing);
                if new_losses > 0 {
                    let loss = &mut totals.wire_loss;
                    loss.total += u64::from(new_losses);
                    loss.requests.record_request(context.at, rid, u64::from(request.wire_missing), is_first_loss);
                }
            }
            CountVerdict::Surplus { extra } => {
                totals.anomalies.total += 1;
                let is_first = !request.has_odd_counts;
                request.has_odd_counts = true;
                totals.anomalies.requests.record_request(context.at, rid, u64::from(extra), is_first);
            }
            CountVerdict::Inflated { listed, new, confirmed } => {
                let inflation = &mut totals.wire_inflation;
                inflation.counted += u64::from(listed);
                inflation.made += u64::from(new);
                // Until several chunks in a row list all ids, there may be another cause, so no request is named.
                if confirmed {
                    let is_first = !request.inflated;
                    request.inflated = true;
                    inflation.seen.record_request(context.at, rid, u64::from(listed), is_first);
                }
            }
            // `Fits` has returned above; the others say nothing about tokens.
            CountVerdict::Fits
            | CountVerdict::Late
            | CountVerdict::Rebased
            | CountVerdict::Repeat
            | CountVerdict::Restart
            | CountVerdict::Overlap => {}
        }
    }

    /// Updates the request with a checked chunk, and keeps the chunk until its receive and its delivery.
    fn apply_chunk(&mut self, checked: CheckedChunk, context: &FrameContext, chunk: &Chunk<'_>, sums: &mut FrameSums) {
        let CheckedChunk { ticket, stream_index, step } = checked;
        let any_origin = self.hops.any_origin;
        let Some(request) = self.table.get_mut(ticket) else { return };
        // Until the scheduler is known, the first hop on which the request was seen stands for it.
        let is_from_scheduler = if any_origin { context.is_origin } else { stream_index == 0 };
        let is_repeat = step.verdict == CountVerdict::Repeat;
        request.last_at = request.last_at.max(context.at);
        request.prompt_tokens = chunk.prompt_tokens.or(request.prompt_tokens);
        request.cached_tokens = chunk.cached_tokens.or(request.cached_tokens);
        request.retractions = request.retractions.max(chunk.retractions.unwrap_or(0));
        let is_first = request.streams[stream_index].chunks == 0;
        // Behind the first hop it may be a late chunk of the previous request with this rid.
        let is_ambiguous_first =
            is_first && !is_from_scheduler && (request.is_shared() || self.predecessors.contains_key(&ticket));
        // The scheduler may run on another machine, where its chunks are not observed.
        let is_answer = !is_repeat && request.streams.iter().all(|stream| stream.chunks == 0) && !is_ambiguous_first;
        if is_answer && let Some(answered) = self.dispatched.remove_answered_and_mark_overtaken(context.at, chunk.rid) {
            let details = request.details.get_or_insert_default();
            details.dispatch = Some(answered.times);
            details.wait = Some(self.dispatched.dispatch_wait(&answered));
            if answered.times.received.is_none() {
                self.hops.mark_receives_of_hop_unobserved(answered.message.hop);
            }
            if let Some(message) = answered.abort {
                self.clientless.watch_aborted(ticket, context.at, message);
            }
        }
        let stream = &mut request.streams[stream_index];
        if is_from_scheduler && !is_repeat {
            sums.chunks_from_scheduler += 1;
            sums.tokens_from_scheduler += u64::from(step.new);
            request.chunks_sent += 1;
            request.tokens_sent = request.tokens_sent.saturating_add(step.new);
            if is_first && context.is_sent && stream.is_whole() {
                request.sent_first = Some(context.at);
                // With more tokens, a response that is not streamed has been decoding since its prefill.
                request.starts_with_one_token = step.new == 1;
            }
            if matches!(step.verdict, CountVerdict::Loss { .. }) {
                self.silences.forget_silence_with_wire_loss(stream.last_at);
            }
            // Across a rebase, the time since the last observed chunk is not the time between two chunks.
            if !is_first && step.new > 0 && step.verdict != CountVerdict::Rebased {
                let silence_ns = context.at.since(stream.last_at);
                if context.is_sent {
                    let chunks = stream.chunks;
                    let count = stream.count.highest;
                    let facts = self.engine.facts();
                    self.silences.record_tokens_after_silence(context.at, stream.last_at, step.new, || {
                        is_streamed(chunks, count, facts.unstreamed_tokens())
                    });
                }
                sums.itl.record_n(&mut self.itl_sent, silence_ns, 1);
                let token_ns = silence_ns / u64::from(step.new);
                sums.itl_by_token.record_n(&mut self.itl_sent_by_token, token_ns, step.new.into());
                if self.hops.any_delivered {
                    let itl = request.itl.get_or_insert_default();
                    itl.sent.record(token_ns, step.new);
                }
                // At least 1 ns: with `NonZeroU64`, the `Option` takes no more memory than the number.
                request.silence_ns = request.silence_ns.max(NonZeroU64::new(silence_ns.max(1)));
            }
        }
        request.first_receive_missed |= (is_first && context.hides_receives) || is_ambiguous_first;
        let number = stream.chunks + 1;
        let reported_count = chunk.completion_tokens.unwrap_or(0);
        if !is_repeat {
            stream.chunks = number;
            stream.sum_of_counts += u64::from(reported_count);
        }
        stream.last_at = context.at;
        let is_whole = stream.is_whole();
        let end_count = stream.count.highest;
        // A format without counts has positions only where no id was missed.
        let has_position = context.claimed_ids == IdColumn::Uncounted && is_whole;
        let count = chunk.completion_tokens.or(has_position.then_some(end_count));
        if !is_repeat {
            sums.ids.add_counts_of_chunk(step.carried, chunk.listed.unwrap_or(0), count);
        }
        if context.is_last_hop {
            self.pending_receive.push(PendingChunk {
                ticket,
                tokens: step.tokens_on_hop(),
                end_count,
                number,
                is_first: is_first && is_whole && !is_ambiguous_first,
                is_last: chunk.finish.is_some(),
                is_repeat,
            });
        }
        if let Some(count) = count {
            // Its receive begins the time inside the process that forwards it.
            if context.is_forwarded {
                self.pending_receive.push(PendingChunk {
                    ticket,
                    tokens: step.new,
                    end_count: count,
                    number,
                    is_first: false,
                    is_last: false,
                    is_repeat,
                });
            }
            // Its send on a later hop ends the time inside the process before that hop.
            if context.is_sent && !is_from_scheduler {
                self.hops.processing_stages.record_chunk_send(
                    &request.streams,
                    &mut request.in_process,
                    stream_index,
                    TimedCount { count, at: context.at },
                    &mut self.limits,
                );
            }
        }
        let mut judged = JudgedList::default();
        if context.tracks_deliveries && !is_repeat {
            sums.tracked_chunks += 1;
            judged = self.track_sent_chunk(checked, context, chunk, count);
        }
        self.recent_chunks.keep_chunk(context, chunk, number);
        // Most chunks are judged later, by a delivery.
        if !judged.is_empty() {
            self.record_outcomes(context.at, ticket, &judged);
        }
        if let Some(finish) = chunk.finish
            && (is_from_scheduler || self.is_downstream_finish_of_request(ticket))
        {
            self.record_request_end(ticket, context.at, finish);
        }
    }

    /// Whether a finish seen behind the scheduler is certainly that of this record's request, not that of another one with its rid.
    fn is_downstream_finish_of_request(&self, ticket: Ticket) -> bool {
        let Some(request) = self.table.get(ticket) else { return false };
        // The ends of requests that share a rid are counted only where the scheduler sends them.
        if request.is_shared() {
            return false;
        }
        // The first stream (the request's part on one hop) shows whether the scheduler has sent this request's end.
        let is_open_at_scheduler = request.streams.first().is_some_and(|first| !first.is_finished());
        if !is_open_at_scheduler {
            return true;
        }
        // Until then, an end behind it may be that of the previous request with the rid.
        let has_predecessor = self.predecessors.contains_key(&ticket);
        !has_predecessor
    }

    /// Records the end of a request. Each hop (channel between two processes) shows its finish, which may also be repeated, so only the
    /// first one counts.
    fn record_request_end(&mut self, ticket: Ticket, at: MonoNs, finish: Finish) {
        let Some(request) = self.table.get_mut(ticket) else { return };
        let totals = &mut self.totals.requests;
        let is_shared_by_live_ones = request.sharing_requests > 1;
        if is_shared_by_live_ones {
            // One of several requests with this rid has ended; their record stays for the others.
            request.sharing_requests -= 1;
            totals.finished += 1;
            totals.completed += u64::from(finish != Finish::Abort);
            return;
        }
        let is_repeated_finish = request.finish_seen;
        if is_repeated_finish {
            return;
        }
        request.finish_seen = true;
        totals.finished += 1;
        // If its outcome is known already, an `AbortReq` message came before and counted it.
        if request.finish.is_none() {
            count_outcome_of_end(request, totals, finish);
        }
        self.finish_request(ticket, at, finish);
    }

    /// Removes the rid's mapping to the record of a request that has ended, if the scheduler was asked to abort a later request with the
    /// rid. The next look-up of the rid then finds no record.
    fn unmap_ended_attempt_if_later_aborted(&mut self, rid: &str) {
        let Some(ticket) = self.table.ticket_of(rid) else { return };
        let has_ended = self.table.get(ticket).is_some_and(|request| request.finish.is_some());
        // The aborted one was dispatched and has no chunk, so it cannot be the request of this record.
        if has_ended && self.dispatched.is_aborted(rid) {
            self.table.unmap_rid(ticket);
        }
    }

    /// Records an `AbortReq` of the scheduler: it has aborted the request while that was queued, so the request may have no record yet.
    pub(super) fn record_scheduler_abort(&mut self, at: MonoNs, rid: &str) {
        // The abort must not count for an earlier request with the rid, which has ended.
        self.unmap_ended_attempt_if_later_aborted(rid);
        let ticket = self.table.ticket_of(rid).unwrap_or_else(|| self.admit_request(rid, at));
        let Some(request) = self.table.get_mut(ticket) else { return };
        if request.finish.is_some() {
            return;
        }
        request.last_at = request.last_at.max(at);
        let has_no_chunk = request.streams.is_empty();
        if has_no_chunk && let Some(aborted) = self.dispatched.remove(rid) {
            request.details.get_or_insert_default().dispatch = Some(aborted.times);
        }
        self.totals.requests.aborted += 1;
        self.finish_request(ticket, at, Finish::Abort);
        if has_no_chunk {
            // No chunk of it is on its way to the tokenizer.
            self.close_soon(ticket, at);
        }
    }
}

/// Whether all chunks of the request on one hop of this group were seen, the finishing one included.
fn has_whole_finished_stream(request: &Request, group: usize) -> bool {
    let mut streams_of_group = request.streams.iter().filter(|stream| stream.is_on_group(group));
    streams_of_group.any(|stream| stream.is_finished() && stream.is_whole())
}

/// Counts a request as aborted or completed. The client of a completed one waits for its end, which is now on its way to the tokenizer.
fn count_outcome_of_end(request: &mut Request, totals: &mut RequestCounts, finish: Finish) {
    if finish == Finish::Abort {
        totals.aborted += 1;
    } else {
        totals.completed += 1;
        totals.ends_in_transit += 1;
        request.is_end_in_transit = true;
    }
}

/// Whether the chunk lists as many ids as it counts, as a request's first chunk does.
fn lists_all_counted_ids(chunk: &Chunk<'_>) -> bool {
    chunk.listed.is_some_and(|listed| listed > 0 && chunk.completion_tokens == Some(listed))
}

/// Highest token count of a request's streams on the group of hops that a chunk crosses. `stream_index`: index of the chunk's stream.
/// Streams that may belong to an earlier request with the same rid are left out.
#[inline]
fn highest_count_in_group(hops: &Hops, request: &Request, stream_index: usize, context: &FrameContext) -> u32 {
    let was_start_observed = request.streams[stream_index].is_whole() || context.epoch == 0;
    let mut highest = 0;
    for stream in request.streams.iter().filter(|stream| stream.is_on_group(context.group)) {
        let is_own_stream = stream.hop == context.hop;
        // A finished stream is certainly of the same request only if both streams were observed from their starts.
        let may_precede_request = stream.is_finished() && !(stream.is_whole() && was_start_observed);
        // Missed observations on another hop may hide the end of its stream.
        let is_of_request = is_own_stream || (!may_precede_request && hops.observed_all_since(stream));
        if is_of_request {
            highest = highest.max(stream.count.highest);
        }
    }
    highest
}

/// Whether a chunk that reports a lower count than its request has reached may be a late chunk of that request. If not, it belongs to
/// another request with the same rid. Where chunks list new tokens only, a late chunk fills a hole (tokens that are missing so far).
#[cold]
fn may_be_late_chunk(request: &Request, stream_index: usize, context: &FrameContext, chunk: &Chunk<'_>) -> bool {
    if lists_all_counted_ids(chunk) {
        // Where each chunk lists its new ids only, just a first chunk lists all ids, and a first chunk is never late. Elsewhere, any
        // chunk may list all of them.
        let lists_new_ids_only = matches!(context.claimed_ids, IdColumn::Delta | IdColumn::DeltaAfterPromptTail);
        return !lists_new_ids_only;
    }
    // A stream is the request's part on one hop; a group is the hops of one name.
    let stream = request.streams.get(stream_index);
    let shows_holes = stream.is_some_and(|stream| stream.shows_tokens(context.claimed_ids));
    let mut streams_of_group = request.streams.iter().filter(|stream| stream.is_on_group(context.group));
    let has_hole = streams_of_group.any(|stream| stream.missing_tokens > 0 || !stream.is_whole());
    shows_holes && has_hole
}
