//! Deliveries, matched against the chunks that were sent.

use super::delivery_tracker::DeliveryTracker;
use super::outcome::{OutcomeCounts, UnjudgedCause};
use super::shared_rid::late_deliveries_until;
use super::stream::Stream;
use super::stream_count::Evidence;
use super::{GAP_WARNING_NS, Ledger, Totals};
use crate::clock::MonoNs;
use crate::engine::Mode;
use crate::event::{Arrival, Delivery, Response, Traced};
use crate::id::Ticket;

/// Number of excess tokens that a consumer may count without a finding. They are ids of the prompt's tail, and one id that a release
/// repeats in an aborted request's last chunk.
const TOLERATED_EXTRA_TOKENS: u64 = 8;
/// Minimum number of deliveries with all tokens so far listed as new. From then on, the consumer is known to add up cumulative counts.
const MIN_REPEATING_DELIVERIES: u8 = 2;

/// Whether an incremental delivery, which should list new tokens only, lists all tokens so far. It then repeats those that the client
/// already has (`delivered_before`: their number) and adds new ones.
fn repeats_all_tokens(delivery: &Delivery<'_>, delivered_before: u64) -> bool {
    let Some(end_count) = delivery.completion_tokens.map(u64::from) else { return false };
    let has_new_tokens = end_count > delivered_before;
    let listed = u64::from(delivery.tokens);
    let lists_all = listed >= end_count && listed <= end_count + TOLERATED_EXTRA_TOKENS;
    delivery.mode == Mode::Incremental && delivered_before > 0 && has_new_tokens && lists_all
}

/// By how much a delivery increased a count of its request, and the count since then.
#[derive(Clone, Copy)]
struct CountGrowth {
    by_delivery: u64,
    of_request: u64,
}

impl CountGrowth {
    /// Whether the count was 0 before the delivery.
    fn is_first(self) -> bool {
        self.of_request == self.by_delivery
    }
}

impl Totals {
    /// Adds the tokens that a delivery shows as lost, and the chunks that it shows as merged. `outcomes_by_delivery`: outcomes that it
    /// decided. `outcomes_of_request`: outcomes of all chunks of its request so far, which include these.
    fn record_drops_and_merges(
        &mut self,
        at: MonoNs,
        rid: &str,
        delivery: &Delivery<'_>,
        outcomes_by_delivery: OutcomeCounts,
        outcomes_of_request: OutcomeCounts,
    ) {
        let lost =
            CountGrowth { by_delivery: outcomes_by_delivery.tokens_lost, of_request: outcomes_of_request.tokens_lost };
        if lost.by_delivery > 0 {
            if delivery.response == Response::Text {
                self.tokens.lost_from_text += lost.by_delivery;
            }
            self.drops.record_request(at, rid, lost.of_request, lost.is_first());
        }
        let merged = CountGrowth { by_delivery: outcomes_by_delivery.merged, of_request: outcomes_of_request.merged };
        if merged.by_delivery > 0 {
            self.record_merges(at, rid, delivery.mode, merged);
        }
    }

    /// Adds the chunks that a delivery shows as merged into another chunk. A cumulative chunk has all tokens so far, so the last chunk of a
    /// cumulative delivery replaces the ones before it.
    #[inline]
    fn record_merges(&mut self, at: MonoNs, rid: &str, mode: Mode, merged: CountGrowth) {
        let affected_requests = match mode {
            Mode::Incremental => &mut self.merges,
            Mode::Cumulative => {
                self.replaced.total += merged.by_delivery;
                &mut self.replaced.requests
            }
        };
        affected_requests.record_request(at, rid, merged.of_request, merged.is_first());
    }

    /// Records that a consumer counts tokens of a request repeatedly, if a delivery shows that. Such a consumer adds all tokens so far at
    /// each delivery, so it claims far more than the engine generated. `new_tokens`: tokens that the delivery really added.
    fn record_claimed_inflation(
        &mut self,
        at: MonoNs,
        rid: &str,
        streams: &[Stream],
        delivery: &Delivery<'_>,
        tracker: &mut DeliveryTracker,
        new_tokens: u32,
    ) {
        let Some(generated) = generated_tokens_if_exceeded(streams, delivery, tracker) else { return };
        let is_first = !tracker.is_inflated;
        tracker.is_inflated = true;
        let inflation = &mut self.claimed_inflation;
        // The first one also adds the tokens of the earlier deliveries, which were not known to be inflated.
        inflation.counted += if is_first { tracker.claimed_tokens } else { u64::from(delivery.tokens) };
        inflation.made += if is_first { generated } else { u64::from(new_tokens) };
        inflation.seen.record_request(at, rid, tracker.claimed_tokens, is_first);
    }
}

/// Number of tokens that the engine generated for a request, if the consumer of its deliveries provably counts more. The consumer counts
/// by adding up the deliveries (`claimed_tokens`). `None` if there is no proof.
#[inline]
fn generated_tokens_if_exceeded(streams: &[Stream], delivery: &Delivery<'_>, tracker: &DeliveryTracker) -> Option<u64> {
    // Without a count, or with missed deliveries (`is_incomplete`), it is not known how many tokens the client has.
    let count = delivery.completion_tokens?;
    if tracker.is_incomplete {
        return None;
    }
    let delivered = u64::from(count).max(tracker.delivered_to());
    // Nearly every delivery ends here.
    if tracker.claimed_tokens <= delivered + TOLERATED_EXTRA_TOKENS {
        return None;
    }
    // A claim above the count proves nothing alone: if the engine retracted the request unobserved, its count began again.
    if !receives_repeated_tokens(streams, tracker) {
        return None;
    }
    let generated = generated_tokens(streams, delivered);
    (tracker.claimed_tokens > generated + TOLERATED_EXTRA_TOKENS).then_some(generated)
}

/// Number of tokens that the engine generated for a request: the highest count on any hop, or `delivered_tokens` if that is higher.
fn generated_tokens(streams: &[Stream], delivered_tokens: u64) -> u64 {
    let mut generated = delivered_tokens;
    for stream in streams {
        generated = generated.max(u64::from(stream.count.highest));
    }
    generated
}

/// Whether the consumer of a request receives tokens repeatedly as new ones: in its deliveries, or in chunks that list all tokens so far.
fn receives_repeated_tokens(streams: &[Stream], tracker: &DeliveryTracker) -> bool {
    tracker.repeating_deliveries >= MIN_REPEATING_DELIVERIES
        || streams.iter().any(|stream| stream.count.evidence == Evidence::Cumulative)
}

impl Ledger {
    /// Records when a request reached the server. Of several responses to it, the first counts.
    pub(super) fn record_arrival(&mut self, arrival: &Arrival<'_>) {
        self.new_connections.count_first_request_on_connection(arrival);
        if let Some(request) = self.table.ticket_of(arrival.rid).and_then(|ticket| self.table.get_mut(ticket)) {
            request.details.get_or_insert_default().arrival.get_or_insert(arrival.times);
        }
    }

    /// Records the span of a request's caller. Of several responses to it, the first counts, as for its arrival.
    pub(super) fn record_trace_parent(&mut self, traced: &Traced<'_>) {
        if let Some(request) = self.table.ticket_of(traced.rid).and_then(|ticket| self.table.get_mut(ticket)) {
            request.details.get_or_insert_default().trace_parent.get_or_insert(traced.parent);
        }
    }

    /// Records a delivery: judges which chunks of its request it carried, merged or dropped, and its times. A delivery that names no
    /// request with a record is kept for a while.
    pub(super) fn record_delivery(&mut self, at: MonoNs, delivery: &Delivery<'_>) {
        if delivery.rid.is_empty() || self.engine.is_health_check(delivery.rid) {
            return;
        }
        if delivery.is_uncounted() {
            return self.mark_text_only_and_unjudge_chunks(at, delivery.rid);
        }
        self.recent_chunks.keep_delivery(at, delivery);
        let mut delivery = *delivery;
        if self.record_claim_of_rid_if_sum(at, delivery.rid, delivery.completion_tokens) {
            // A sum of counts is not a position in the output.
            delivery.completion_tokens = None;
        }
        let Some(ticket) = self.table.ticket_of(delivery.rid) else {
            // Its first chunk may not have been reported yet.
            self.early_deliveries.keep_early_delivery(delivery.rid, at, delivery.completion_tokens.unwrap_or(0));
            return;
        };
        if self.record_delivery_if_shared(at, ticket, &delivery) {
            return;
        }
        let Some(request) = self.table.get_mut(ticket) else { return };
        request.last_at = request.last_at.max(at);
        // Once per response: those of every token need not be compared with the retries.
        if delivery.finished || request.tokens_delivered == 0 {
            self.retries.record_response_of_retry(at, delivery.rid);
        }
        // A server that streams text sends its growth, so the next delivery contains the text of a skipped chunk.
        if matches!(delivery.response, Response::Whole | Response::Text) {
            self.totals.withdraw_predicted_losses(request, &mut self.loss_memory);
        }
        let joined_late = request.streams.first().is_some_and(|stream| !stream.is_whole());
        let tracker = request.tracker.get_or_insert_with(|| {
            let early_count = None;
            let mut tracker = DeliveryTracker::new(self.delivery_epoch, early_count);
            tracker.is_incomplete = joined_late;
            tracker.previous_until = late_deliveries_until(&self.predecessors, ticket);
            if at < tracker.previous_until {
                tracker.mark_uncertain();
            }
            Box::new(tracker)
        });
        let mut is_path_complete = false;
        // A first delivery of all tokens so far is the same in either mode. Text is the growth in both.
        let fits_both_modes = delivery.completion_tokens == Some(delivery.tokens) && tracker.delivered_to() == 0;
        if !fits_both_modes && delivery.response != Response::Text {
            match delivery.mode {
                Mode::Incremental => self.totals.deliveries.incremental += 1,
                Mode::Cumulative => self.totals.deliveries.cumulative += 1,
            }
        }
        let repeated_all = repeats_all_tokens(&delivery, tracker.delivered_to());
        tracker.repeating_deliveries = tracker.repeating_deliveries.saturating_add(u8::from(repeated_all));
        tracker.subtract_from_memory_use(&mut self.loss_memory);
        let result = tracker.judge_delivery(&delivery, self.delivery_epoch);
        let judged = result.judged.count_outcomes();
        tracker.add_to_memory_use(&mut self.loss_memory);
        if delivery.response == Response::Whole {
            self.totals.chunks.unstreamed += judged.delivered;
        }
        let totals = &mut self.totals;
        totals.tokens.delivered += u64::from(result.new_tokens);
        if result.new_tokens > 0 || !result.missed_deliveries {
            totals.delivered_ids.add_counts_of_chunk(
                result.new_tokens,
                delivery.tokens,
                tracker.count_after(&delivery),
            );
        }
        request.tokens_delivered = request.tokens_delivered.saturating_add(result.new_tokens);
        if result.missed_deliveries {
            // The time since the last observed delivery is none between two deliveries.
            tracker.last_delivery_at = None;
        }
        if result.new_tokens > 0 {
            if let Some(last) = tracker.last_delivery_at.replace(at) {
                let silence_ns = at.since(last);
                let token_ns = silence_ns / u64::from(result.new_tokens);
                self.itl_delivered.record(silence_ns);
                if silence_ns >= GAP_WARNING_NS {
                    self.late_deliveries.record_span(last, at);
                    self.late_delivery_rids.add_rid(&request.rid);
                }
                self.itl_delivered_by_token.record_n(token_ns, result.new_tokens.into());
                let itl = request.itl.get_or_insert_default();
                itl.delivered.record(token_ns, result.new_tokens);
            // This is the first delivery, and none before it was missed.
            } else if !tracker.is_incomplete && request.tokens_delivered == result.new_tokens {
                request.delivered_first_ns = at.0.into();
                let from = if self.hops.observes_receives() { request.received_first } else { request.sent_first };
                // A response with one body waits for the last token.
                if let Some(from) = from.filter(|_| delivery.response != Response::Whole) {
                    let ns = at.since(from);
                    self.delivery_wait.record(at, ns);
                    self.worst_delivery_wait.keep_longest(at, &request.rid, ns);
                    if ns >= GAP_WARNING_NS {
                        self.late_deliveries.record_span(from, at);
                        self.late_delivery_rids.add_rid(&request.rid);
                    }
                }
                is_path_complete = from.is_some();
            }
        }
        if !result.lost_ranges.is_empty() {
            let losses = request.losses.get_or_insert_default();
            losses.chunks += judged.dropped;
            for range in result.lost_ranges {
                self.loss_memory.add_lost_range_within_limits(at, losses, range, &mut self.limits);
            }
        }
        totals.record_drops_and_merges(at, &request.rid, &delivery, judged, tracker.outcomes);
        totals.record_claimed_inflation(at, &request.rid, &request.streams, &delivery, tracker, result.new_tokens);
        request.has_one_body |= delivery.response == Response::Whole;
        // A receive that is observed later completes the path when the request is closed.
        if is_path_complete {
            self.ttft.record_ttft_of_request(request, &mut self.limits);
        }
        self.record_outcomes(at, ticket, &result.judged);
        if delivery.finished {
            self.close_soon_if_all_arrived(ticket, at);
        }
    }

    /// Marks the request's response as text only. The number of delivered tokens is then unknown, so its chunks are not judged.
    pub(super) fn mark_text_only_and_unjudge_chunks(&mut self, at: MonoNs, rid: &str) {
        let Some(ticket) = self.table.ticket_of(rid) else { return };
        let Some(request) = self.table.get_mut(ticket) else { return };
        // None of its chunks is judged, so early deliveries do not matter.
        let early_count = None;
        let tracker =
            request.tracker.get_or_insert_with(|| Box::new(DeliveryTracker::new(self.delivery_epoch, early_count)));
        if tracker.is_text_only {
            return;
        }
        tracker.is_text_only = true;
        // Losses were predicted for chunks that the waiting task skips. In a response that carries text, their tokens come later.
        self.totals.withdraw_predicted_losses(request, &mut self.loss_memory);
        self.totals.tokens.uncounted += self.unjudge_tokens_in_flight(at, ticket, UnjudgedCause::TextOnly);
    }

    /// Stops waiting for deliveries of the request's chunks in flight, which become unjudged. Returns the number of their tokens.
    pub(super) fn unjudge_tokens_in_flight(&mut self, at: MonoNs, ticket: Ticket, cause: UnjudgedCause) -> u64 {
        let tracker = self.table.get_mut(ticket).and_then(|request| request.tracker.as_mut());
        let Some(tracker) = tracker else { return 0 };
        // All entries leave the tracker below, so none is added to the memory use again.
        tracker.subtract_from_memory_use(&mut self.loss_memory);
        let tokens = tracker.tokens_in_flight();
        let judged = tracker.unjudge_all_in_flight(cause);
        self.record_outcomes(at, ticket, &judged);
        tokens
    }
}
