//! The tokenizer: receives frames, serves clients, and merges or drops chunks according to the policy.

use trace::engine::Mode;
use trace::event::{AnswerEnd, Kind};

use super::{Running, World};
use crate::events::{OwnedEvent, Part};
use crate::schedule::{Observation, Policy};

impl World {
    pub(super) fn receive_on_last_hop(&mut self, choice: usize) {
        let waiting = self.waiting(true);
        let Some(&(hop, lane)) = waiting.get(choice % waiting.len().max(1)) else { return };
        let received_at = self.now;
        let Some(frame) = self.receive(hop, lane) else { return };
        self.frame_of_wakeup += 1;
        if frame.kind == Kind::Abort {
            return;
        }
        for part in frame.parts.iter() {
            self.predict(part);
            self.counts.chunks_received += 1;
            self.counts.tokens_received += u64::from(part.tokens);
            let request = &mut self.requests[part.request];
            request.first_received.get_or_insert(received_at);
            request.last_at = received_at;
            let running = self.running.values_mut().find(|r| r.request == part.request);
            match running {
                // The client has left.
                Some(running) if running.disconnected => running.closed |= part.finish.is_some(),
                Some(running) => running.queued.push_back(part.clone()),
                None => {}
            }
        }
    }

    /// A waiter runs three event-loop turns after it is woken, and a frame takes two turns.
    fn predict(&mut self, part: &Part) {
        let previous = self.previous.insert(part.request, part.clone());
        match self.notified.get(&part.request) {
            Some(notified) if self.frame_of_wakeup - notified <= 1 => {
                if let Some(previous) = previous.filter(|_| self.shape.policy == Policy::KeepsLast) {
                    self.predicted += 1;
                    let positions = previous.positions().map(|position| (position, previous.nth));
                    self.requests[part.request].predicted.extend(positions);
                }
            }
            _ => {
                self.notified.insert(part.request, self.frame_of_wakeup);
            }
        }
    }

    pub(super) fn serve(&mut self, slot: usize) {
        let policy = self.shape.policy;
        let Some(running) = self.running.get_mut(&slot).filter(|r| !r.queued.is_empty()) else {
            return;
        };
        let served: Vec<Part> = match policy {
            Policy::YieldsAll => running.queued.pop_front().into_iter().collect(),
            _ => running.queued.drain(..).collect(),
        };
        let Some((last, earlier)) = served.split_last() else { return };
        running.closed |= last.finish.is_some();
        running.received += served.iter().map(|part| part.tokens).sum::<u32>();
        let received = running.received;
        let mut tokens = last.tokens;
        let counts = &mut self.counts;
        counts.chunks_delivered += 1;
        counts.in_flight -= served.len() as u64;
        let request = &mut self.requests[last.request];
        for part in earlier {
            if policy == Policy::KeepsLast && part.tokens > 0 {
                counts.dropped += 1;
                counts.tokens_lost += u64::from(part.tokens);
                request.dropped.extend(part.positions().map(|position| (position, part.nth)));
            } else {
                counts.merged += 1;
                tokens += if policy == Policy::KeepsLast { 0 } else { part.tokens };
            }
        }
        counts.tokens_delivered += u64::from(tokens);
        request.last_at = self.now;
        let cumulative = policy == Policy::Cumulative;
        if cumulative {
            running.in_response = received;
        } else {
            running.in_response += tokens;
        }
        running.claimed = Some(last.reported);
        let ended = (last.finish.is_some()).then(|| running.clone());
        self.record_delivery(last, if cumulative { received } else { tokens });
        if let Some(ended) = ended {
            self.record_answer(&ended, AnswerEnd::Whole);
        }
    }

    /// Records a delivery, if observed. `tokens`: new tokens, or all so far in cumulative mode.
    fn record_delivery(&mut self, last: &Part, tokens: u32) {
        if !self.shape.deliveries_observed
            || !self.tokenizer_is_observed(last.request)
            || self.misses(Observation::Deliveries, None)
        {
            return;
        }
        self.report_missed(None);
        let cumulative = self.shape.policy == Policy::Cumulative;
        self.emit(OwnedEvent::Delivered {
            rid: last.rid.clone(),
            tokens,
            mode: if cumulative { Mode::Cumulative } else { Mode::Incremental },
            reported: last.reported,
            finished: last.finish.is_some(),
        });
    }

    /// Disconnects the client, which ends its waiter.
    pub(super) fn disconnect(&mut self, slot: usize) {
        let connected = |r: &&mut Running| !r.closed && !r.disconnected && r.sent > 0;
        let Some(running) = self.running.get_mut(&slot).filter(connected) else { return };
        running.disconnected = true;
        running.closed |= running.queued.iter().any(|part| part.finish.is_some());
        running.queued.clear();
        let ended = running.clone();
        self.record_answer(&ended, AnswerEnd::ClientLeft);
    }

    /// Records the end of a response, if observed. A response without deliveries has no end to record.
    pub(super) fn record_answer(&mut self, running: &Running, end: AnswerEnd) {
        let Some(claimed) = running.claimed else { return };
        let observed = self.shape.answers_observed && self.attached && self.tokenizer_is_observed(running.request);
        if !observed || self.misses(Observation::Answers, None) {
            return;
        }
        let counts = &mut self.counts;
        counts.answers += 1;
        counts.client_left += u64::from(end == AnswerEnd::ClientLeft);
        counts.server_left += u64::from(end == AnswerEnd::ServerLeft);
        if end == AnswerEnd::Whole {
            self.tokens_short += u64::from(claimed.saturating_sub(running.in_response));
        }
        self.report_missed(None);
        self.emit(OwnedEvent::Answered {
            rid: self.requests[running.request].rid.clone(),
            tokens: self.shape.answers_counted.then_some(running.in_response),
            claimed,
            end,
        });
    }
}
