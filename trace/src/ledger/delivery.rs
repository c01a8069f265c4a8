//! Deliveries, matched against the chunks that were sent.

use super::Ledger;
use super::arithmetic::Evidence;
use super::chunkline::Line;
use super::health::HealthChecks;
use super::shared::straggling;
use super::stream::Stream;
use crate::clock::MonoNs;
use crate::engine::Mode;
use crate::event::{Delivery, Response};

/// Number of tokens that a consumer may count in excess without a finding: ids of the prompt's tail, and one id that a release repeats
/// in an aborted request's last chunk.
const SLACK: u64 = 8;
/// Minimum number of deliveries that list all tokens so far as new. Fewer can be a coincidence.
const ADDED_UP: u8 = 2;

/// Whether the delivery repeats the `before` tokens that the client has, and adds new ones.
fn gives_all_again(delivery: &Delivery<'_>, before: u64) -> bool {
    let (tokens, Some(to)) = (u64::from(delivery.tokens), delivery.completion_tokens.map(u64::from)) else {
        return false;
    };
    delivery.mode == Mode::Incremental && before > 0 && to > before && (to..=to + SLACK).contains(&tokens)
}

impl Ledger {
    pub(super) fn delivered(&mut self, at: MonoNs, delivery: &Delivery<'_>) {
        if delivery.rid.is_empty() || HealthChecks::is_one(delivery.rid) {
            return;
        }
        if delivery.response == Response::Text {
            return self.carries_text(delivery.rid);
        }
        let mut delivery = *delivery;
        if self.summed_up(at, delivery.rid, delivery.completion_tokens) {
            // A sum of counts is not a position in the output.
            delivery.completion_tokens = None;
        }
        let Some(ticket) = self.table.find(delivery.rid) else {
            self.totals.deliveries_unmatched += 1;
            self.early
                .keep(delivery.rid, at, delivery.completion_tokens.unwrap_or(0));
            return;
        };
        if self.delivered_to_either(at, ticket, &delivery) {
            return;
        }
        let Some(request) = self.table.get_mut(ticket) else {
            return;
        };
        request.last_at = request.last_at.max(at);
        if delivery.response == Response::Whole {
            self.totals.withdraw(request, &mut self.shelf);
        }
        let met_late = request.streams.first().is_some_and(|stream| !stream.whole());
        let line = request.line.get_or_insert_with(|| {
            let mut line = Line::new(self.delivery_epoch, None);
            line.scarred = met_late;
            line.straggling = straggling(&self.predecessors, ticket);
            if at < line.straggling {
                line.doubts();
            }
            Box::new(line)
        });
        let entries = line.entries();
        let (before, ids) = (line.fates, line.ids_held());
        // A first delivery of all tokens so far is the same in either mode.
        if delivery.completion_tokens != Some(delivery.tokens) || line.delivered_to() > 0 {
            match delivery.mode {
                Mode::Incremental => self.totals.deliveries.0 += 1,
                Mode::Cumulative => self.totals.deliveries.1 += 1,
            }
        }
        let all_again = gives_all_again(&delivery, line.delivered_to());
        line.all_again = line.all_again.saturating_add(u8::from(all_again));
        let outcome = line.deliver(&delivery, self.delivery_epoch);
        if delivery.response == Response::Whole {
            self.totals.chunks.unstreamed += outcome.fates.delivered;
        }
        self.outstanding -= entries - line.entries();
        self.shelf.ids -= ids - line.ids_held();
        let totals = &mut self.totals;
        totals.chunks.fates.add(outcome.fates);
        totals.tokens.delivered += u64::from(outcome.new);
        let count = delivery.completion_tokens.unwrap_or(0);
        if outcome.new > 0 || !outcome.missed {
            totals.delivered_ids.add(outcome.new, delivery.tokens, count);
        }
        request.tokens_delivered = request.tokens_delivered.saturating_add(outcome.new);
        if outcome.missed {
            line.last_at = None;
        }
        if outcome.new > 0 {
            if let Some(last) = line.last_at.replace(at) {
                let silence = at.since(last);
                let by_token = silence / u64::from(outcome.new);
                self.itl_delivered.record(at, silence);
                self.itl_delivered_by_token.record_n(at, by_token, outcome.new.into());
                let pace = request.pace.get_or_insert_default();
                pace.delivered.record(by_token, outcome.new);
            } else if !line.scarred && request.tokens_delivered == outcome.new {
                request.delivered_first = Some(at);
            }
        }
        if !outcome.lost.is_empty() {
            let losses = request.losses.get_or_insert_default();
            losses.chunks += outcome.fates.dropped;
            for range in outcome.lost {
                self.shelf.keep(losses, range, &self.limits, &mut self.reached);
            }
        }
        if outcome.fates.tokens_lost > 0 {
            totals
                .drops
                .enter(at, &request.rid, line.fates.tokens_lost, before.tokens_lost == 0);
        }
        if outcome.fates.coalesced > 0 {
            let whose = match delivery.mode {
                Mode::Incremental => &mut totals.merges,
                Mode::Cumulative => {
                    totals.replaced.0 += outcome.fates.coalesced;
                    &mut totals.replaced.1
                }
            };
            whose.enter(at, &request.rid, line.fates.coalesced, before.coalesced == 0);
        }
        let mut made = u64::from(count).max(line.delivered_to());
        if delivery.completion_tokens.is_some() && !line.scarred && line.claimed > made + SLACK {
            made = request
                .streams
                .iter()
                .fold(made, |made, s| made.max(s.count.high.into()));
            // A request retracted unobserved restarts its count, so its tokens exceed the count.
            let lists_all = |s: &Stream| s.evidence() == Evidence::Cumulative;
            let added_up = line.all_again >= ADDED_UP || request.streams.iter().any(lists_all);
            if added_up && line.claimed > made + SLACK {
                let inflation = &mut totals.claimed_inflation;
                let new_rid = !std::mem::replace(&mut line.inflated, true);
                let (counted, made) = if new_rid {
                    (line.claimed, made)
                } else {
                    (u64::from(delivery.tokens), u64::from(outcome.new))
                };
                inflation.counted += counted;
                inflation.made += made;
                inflation.seen.enter(at, &request.rid, line.claimed, new_rid);
            }
        }
        if delivery.finished {
            self.settle_if_over(ticket, at);
        }
    }

    /// Marks the request's response as text only: the number of delivered tokens is unknown.
    pub(super) fn carries_text(&mut self, rid: &str) {
        let Some(request) = self.table.find(rid).and_then(|ticket| self.table.get_mut(ticket)) else {
            return;
        };
        let line = request
            .line
            .get_or_insert_with(|| Box::new(Line::new(self.delivery_epoch, None)));
        if line.text || request.tokens_delivered > 0 {
            return;
        }
        self.outstanding -= line.entries();
        self.shelf.ids -= line.ids_held();
        let (chunks, tokens) = line.carry_text();
        self.totals.chunks.fates.unjudged += chunks;
        self.totals.tokens.uncounted += tokens;
        // Such a server sends the growth of the whole text, so the next delivery contains the text of a skipped chunk.
        self.totals.withdraw(request, &mut self.shelf);
    }
}
