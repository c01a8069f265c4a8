//! The tokenizer: receives frames, serves clients, and merges or drops chunks according to the policy.

use trace::engine::Mode;
use trace::event::{AnswerEnd, Kind};

use super::{Running, World};
use crate::schedule::{Policy, Sight};
use crate::told::{Part, Told};

impl World {
    pub(super) fn take_last(&mut self, choice: usize) {
        let waiting = self.waiting(true);
        let Some(&(hop, lane)) = waiting.get(choice % waiting.len().max(1)) else {
            return;
        };
        let taken_at = self.now;
        let Some(flight) = self.take(hop, lane) else { return };
        if flight.kind == Kind::Abort {
            return;
        }
        for part in flight.parts.iter() {
            self.counts.chunks_taken += 1;
            self.counts.tokens_taken += u64::from(part.tokens);
            let life = &mut self.lives[part.life];
            life.first_taken.get_or_insert(taken_at);
            life.last_at = taken_at;
            let running = self.requests.values_mut().find(|r| r.life == part.life);
            match running {
                // The client has left.
                Some(running) if running.left => running.closed |= part.finish.is_some(),
                Some(running) => running.out.push_back(part.clone()),
                None => {}
            }
        }
    }

    pub(super) fn serve(&mut self, request: usize) {
        let policy = self.shape.policy;
        let Some(running) = self.requests.get_mut(&request).filter(|r| !r.out.is_empty()) else {
            return;
        };
        let served: Vec<Part> = match policy {
            Policy::YieldsAll => running.out.pop_front().into_iter().collect(),
            _ => running.out.drain(..).collect(),
        };
        let Some((last, before)) = served.split_last() else {
            return;
        };
        running.closed |= last.finish.is_some();
        running.received += served.iter().map(|part| part.tokens).sum::<u32>();
        let received = running.received;
        let mut tokens = last.tokens;
        let counts = &mut self.counts;
        counts.chunks_delivered += 1;
        counts.outstanding -= served.len() as u64;
        let life = &mut self.lives[last.life];
        for part in before {
            if policy == Policy::KeepsLast && part.tokens > 0 {
                counts.dropped += 1;
                counts.tokens_lost += u64::from(part.tokens);
                life.chunks_dropped += 1;
                life.dropped.extend(part.places());
            } else {
                counts.coalesced += 1;
                tokens += if policy == Policy::KeepsLast { 0 } else { part.tokens };
            }
        }
        counts.tokens_delivered += u64::from(tokens);
        life.last_at = self.now;
        let cumulative = policy == Policy::Cumulative;
        if cumulative {
            running.carried = received;
        } else {
            running.carried += tokens;
        }
        running.claimed = Some(last.said);
        let over = (last.finish.is_some()).then(|| running.clone());
        self.delivered(last, if cumulative { received } else { tokens });
        if let Some(over) = over {
            self.answered(&over, AnswerEnd::Whole);
        }
    }

    /// Records a delivery, if observed. `tokens`: new tokens, or all so far in cumulative mode.
    fn delivered(&mut self, last: &Part, tokens: u32) {
        if !self.shape.deliveries_seen || !self.is_served_in_sight(last.life) || self.loses(Sight::Deliveries, None) {
            return;
        }
        self.own_up(None);
        let cumulative = self.shape.policy == Policy::Cumulative;
        self.say(Told::Delivered {
            rid: last.rid.clone(),
            tokens,
            mode: if cumulative {
                Mode::Cumulative
            } else {
                Mode::Incremental
            },
            said: last.said,
            finished: last.finish.is_some(),
        });
    }

    /// Disconnects the client, which ends its waiter.
    pub(super) fn leave(&mut self, request: usize) {
        let there = |r: &&mut Running| !r.closed && !r.left && r.sent > 0;
        let Some(running) = self.requests.get_mut(&request).filter(there) else {
            return;
        };
        running.left = true;
        running.closed |= running.out.iter().any(|part| part.finish.is_some());
        running.out.clear();
        let over = running.clone();
        self.answered(&over, AnswerEnd::ClientLeft);
    }

    /// Records the end of a response, if observed. A response without deliveries has no end to record.
    pub(super) fn answered(&mut self, running: &Running, end: AnswerEnd) {
        let Some(claimed) = running.claimed else { return };
        let seen = self.shape.answers_seen && self.attached && self.is_served_in_sight(running.life);
        if !seen || self.loses(Sight::Answers, None) {
            return;
        }
        let counts = &mut self.counts;
        counts.answers += 1;
        counts.client_left += u64::from(end == AnswerEnd::ClientLeft);
        counts.server_left += u64::from(end == AnswerEnd::ServerLeft);
        if end == AnswerEnd::Whole {
            self.short += u64::from(claimed.saturating_sub(running.carried));
        }
        self.own_up(None);
        self.say(Told::Answered {
            rid: self.lives[running.life].rid.clone(),
            tokens: self.shape.answers_counted.then_some(running.carried),
            claimed,
            end,
        });
    }
}
