//! Deliveries, matched against the chunks that were sent.

use super::Ledger;
use super::arithmetic::Evidence;
use super::delivery_tracker::DeliveryTracker;
use super::outcome::UnjudgedCause;
use super::shared::late_until;
use super::stream::Stream;
use crate::clock::MonoNs;
use crate::engine::Mode;
use crate::event::{Delivery, Response};
use crate::id::Ticket;

/// Number of excess tokens that a consumer may count without a finding. They are ids of the prompt's tail, and one id that a release
/// repeats in an aborted request's last chunk.
const SLACK: u64 = 8;
/// Minimum number of deliveries with all tokens so far listed as new. From then on, the consumer is known to add up cumulative counts.
const ADDED_UP: u8 = 2;

/// Whether the delivery repeats the `before` tokens that the client has, and adds new ones.
fn repeats_all_tokens(delivery: &Delivery<'_>, before: u64) -> bool {
    let (tokens, Some(to)) = (u64::from(delivery.tokens), delivery.completion_tokens.map(u64::from)) else {
        return false;
    };
    delivery.mode == Mode::Incremental && before > 0 && to > before && (to..=to + SLACK).contains(&tokens)
}

impl Ledger {
    pub(super) fn record_delivery(&mut self, at: MonoNs, delivery: &Delivery<'_>) {
        if delivery.rid.is_empty() || self.engine.is_health_check(delivery.rid) {
            return;
        }
        if delivery.is_uncounted() {
            return self.carries_text(at, delivery.rid);
        }
        self.history.delivered(at, delivery);
        let mut delivery = *delivery;
        if self.summed_up(at, delivery.rid, delivery.completion_tokens) {
            // A sum of counts is not a position in the output.
            delivery.completion_tokens = None;
        }
        let Some(ticket) = self.table.find(delivery.rid) else {
            self.early.keep(delivery.rid, at, delivery.completion_tokens.unwrap_or(0));
            return;
        };
        if self.deliver_shared(at, ticket, &delivery) {
            return;
        }
        let Some(request) = self.table.get_mut(ticket) else {
            return;
        };
        request.last_at = request.last_at.max(at);
        // A server that streams text sends its growth, so the next delivery contains the text of a skipped chunk.
        if matches!(delivery.response, Response::Whole | Response::Text) {
            self.totals.withdraw(request, &mut self.shelf);
        }
        let joined_late = request.streams.first().is_some_and(|stream| !stream.whole());
        let tracker = request.tracker.get_or_insert_with(|| {
            let mut tracker = DeliveryTracker::new(self.delivery_epoch, None);
            tracker.incomplete = joined_late;
            tracker.previous_until = late_until(&self.predecessors, ticket);
            if at < tracker.previous_until {
                tracker.doubts();
            }
            Box::new(tracker)
        });
        let before = tracker.outcomes;
        // A first delivery of all tokens so far is the same in either mode. Text is the growth in both.
        let same = delivery.completion_tokens == Some(delivery.tokens) && tracker.delivered_to() == 0;
        if !same && delivery.response != Response::Text {
            match delivery.mode {
                Mode::Incremental => self.totals.deliveries.0 += 1,
                Mode::Cumulative => self.totals.deliveries.1 += 1,
            }
        }
        let repeated_all = repeats_all_tokens(&delivery, tracker.delivered_to());
        tracker.repeated_all = tracker.repeated_all.saturating_add(u8::from(repeated_all));
        tracker.release(&mut self.shelf);
        let result = tracker.judge_delivery(&delivery, self.delivery_epoch);
        let judged = result.judged.counts();
        tracker.hold(&mut self.shelf);
        if delivery.response == Response::Whole {
            self.totals.chunks.unstreamed += judged.delivered;
        }
        let totals = &mut self.totals;
        totals.tokens.delivered += u64::from(result.new);
        let count = delivery.completion_tokens.unwrap_or(0);
        if result.new > 0 || !result.missed {
            totals.delivered_ids.add(result.new, delivery.tokens, count);
        }
        request.tokens_delivered = request.tokens_delivered.saturating_add(result.new);
        if result.missed {
            tracker.last_at = None;
        }
        if result.new > 0 {
            if let Some(last) = tracker.last_at.replace(at) {
                let silence = at.since(last);
                let by_token = silence / u64::from(result.new);
                self.itl_delivered.record(at, silence);
                self.itl_delivered_by_token.record_n(at, by_token, result.new.into());
                let itl = request.itl.get_or_insert_default();
                itl.delivered.record(by_token, result.new);
            } else if !tracker.incomplete && request.tokens_delivered == result.new {
                request.delivered_first = Some(at);
                let from = if self.hops.observes_receives() { request.received_first } else { request.sent_first };
                // A response with one body waits for the last token.
                if let Some(from) = from.filter(|_| delivery.response != Response::Whole) {
                    let ns = at.since(from);
                    self.delivery_wait.record(at, ns);
                    self.worst_delivery_wait.enter(at, &request.rid, ns);
                }
            }
        }
        if !result.lost.is_empty() {
            let losses = request.losses.get_or_insert_default();
            losses.chunks += judged.dropped;
            for range in result.lost {
                self.shelf.keep(losses, range, &mut self.limits);
            }
        }
        if judged.tokens_lost > 0 {
            if delivery.response == Response::Text {
                totals.tokens.lost_from_text += judged.tokens_lost;
            }
            totals.drops.enter(at, &request.rid, tracker.outcomes.tokens_lost, before.tokens_lost == 0);
        }
        if judged.merged > 0 {
            let sightings = match delivery.mode {
                Mode::Incremental => &mut totals.merges,
                Mode::Cumulative => {
                    totals.replaced.0 += judged.merged;
                    &mut totals.replaced.1
                }
            };
            sightings.enter(at, &request.rid, tracker.outcomes.merged, before.merged == 0);
        }
        let mut made = u64::from(count).max(tracker.delivered_to());
        if delivery.completion_tokens.is_some() && !tracker.incomplete && tracker.claimed > made + SLACK {
            made = request.streams.iter().fold(made, |made, s| made.max(s.count.high.into()));
            // A request retracted unobserved restarts its count, so its tokens exceed the count.
            let lists_all = |s: &Stream| s.count.evidence == Evidence::Cumulative;
            let summed = tracker.repeated_all >= ADDED_UP || request.streams.iter().any(lists_all);
            if summed && tracker.claimed > made + SLACK {
                let inflation = &mut totals.claimed_inflation;
                let new_rid = !std::mem::replace(&mut tracker.inflated, true);
                let (counted, made) =
                    if new_rid { (tracker.claimed, made) } else { (u64::from(delivery.tokens), u64::from(result.new)) };
                inflation.counted += counted;
                inflation.made += made;
                inflation.seen.enter(at, &request.rid, tracker.claimed, new_rid);
            }
        }
        self.enter_outcomes(at, ticket, &result.judged);
        if delivery.finished {
            self.settle_if_finished(ticket, at);
        }
    }

    /// Marks the request's response as text only: the number of delivered tokens is unknown.
    pub(super) fn carries_text(&mut self, at: MonoNs, rid: &str) {
        let Some(ticket) = self.table.find(rid) else { return };
        let Some(request) = self.table.get_mut(ticket) else {
            return;
        };
        let tracker = request.tracker.get_or_insert_with(|| Box::new(DeliveryTracker::new(self.delivery_epoch, None)));
        if !std::mem::replace(&mut tracker.text, true) {
            self.totals.withdraw(request, &mut self.shelf);
            self.totals.tokens.uncounted += self.stop_waiting(at, ticket, UnjudgedCause::TextOnly);
        }
    }

    /// Stops waiting for deliveries of the request's chunks in flight, which become unjudged. Returns the number of their tokens.
    pub(super) fn stop_waiting(&mut self, at: MonoNs, ticket: Ticket, cause: UnjudgedCause) -> u64 {
        let tracker = self.table.get_mut(ticket).and_then(|request| request.tracker.as_mut());
        let Some(tracker) = tracker else { return 0 };
        tracker.release(&mut self.shelf);
        let tokens = tracker.tokens_in_flight();
        let judged = tracker.give_up_waiting(cause);
        self.enter_outcomes(at, ticket, &judged);
        tokens
    }
}
