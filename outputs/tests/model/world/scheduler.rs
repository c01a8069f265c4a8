//! The schedulers: requests start, generate tokens, and are retracted, aborted or finished.

use std::rc::Rc;

use trace::HopId;
use trace::event::{Finish, Kind};

use super::{RequestTruth, Running, World};
use crate::events::Part;
use crate::schedule::{Column, Policy};

impl World {
    /// Sends a frame from a scheduler. Schedulers share no requests.
    pub(super) fn schedule(&mut self, rank: u32, wanted: &[(usize, u32, bool)]) {
        let mut parts: Vec<Part> = Vec::new();
        for &(slot, new, finish) in wanted {
            let slot = slot * 3 + rank as usize;
            let repeated = parts.iter().any(|part| self.running.get(&slot).is_some_and(|r| r.request == part.request));
            if repeated {
                continue;
            }
            if self.running.get(&slot).is_some_and(|r| r.finished && r.closed) {
                self.running.remove(&slot);
            }
            if !self.running.contains_key(&slot) {
                self.begin(slot);
            }
            let Some(running) = self.running.get_mut(&slot).filter(|r| !r.finished) else {
                continue;
            };
            let finish = finish || running.disconnected;
            // Only a request's last chunk may be empty.
            let new = if new == 0 && (!finish || running.sent == 0) { 1 } else { new };
            running.generated += new;
            let tokens = running.generated.saturating_sub(running.sent);
            running.sent = running.sent.max(running.generated);
            running.finished = finish;
            let request = &mut self.requests[running.request];
            request.finished |= finish;
            request.last_at = self.now;
            parts.push(Part {
                rid: request.rid.clone(),
                request: running.request,
                tokens,
                end: running.sent,
                reported: running.generated,
                finish: finish.then_some(if running.disconnected { Finish::Abort } else { Finish::Stop }),
                retractions: running.retractions,
                nth: 0,
            });
        }
        if parts.is_empty() {
            return;
        }
        self.engine_sent_at.push(self.now);
        // Without its first chunk, the second live request of a rid looks like a continuation of the first.
        let begins = parts.iter().any(|part| self.requests[part.request].first_sent.is_none());
        if !(self.shape.rids_shared && begins) && self.lossy_ranks.remove(&rank) {
            self.lose_frame(&parts);
            return;
        }
        for part in &mut parts {
            let request = &mut self.requests[part.request];
            let new = request.first_sent.is_none();
            request.first_sent.get_or_insert(self.now);
            request.chunks += 1;
            part.nth = request.chunks;
            // The first observed chunk has no base, and tokens missing before an abort may have been trimmed.
            let judged = !new && part.finish != Some(Finish::Abort);
            self.tokens_judged_missing += std::mem::take(&mut request.lost_since) * u64::from(judged);
            let counts = &mut self.counts;
            counts.requests += u64::from(new);
            counts.chunks_sent += 1;
            counts.tokens_sent += u64::from(part.tokens);
            counts.finished += u64::from(part.finish.is_some());
            counts.aborted += u64::from(part.finish == Some(Finish::Abort));
        }
        self.send(HopId(0), rank, Kind::TokenIds, parts.into());
    }

    /// Loses a frame before it enters the first hop.
    fn lose_frame(&mut self, parts: &[Part]) {
        self.frame_lost = true;
        for part in parts {
            self.counts.tokens_missing_on_wire += u64::from(part.tokens);
            let request = &mut self.requests[part.request];
            request.lost_since += u64::from(part.tokens);
            if part.finish.is_some() {
                // Otherwise the tokenizer and the client would wait forever.
                self.running.retain(|_, r| r.request != part.request);
            }
        }
    }

    pub(super) fn begin(&mut self, slot: usize) {
        let started = self.started.entry(slot).or_default();
        let uses_per_rid = if self.shape.rids_reused { 2 } else { 1 };
        let rid: Rc<str> = if self.shape.rids_shared {
            format!("s{}", slot % 2).into()
        } else {
            format!("r{slot}-{}", *started / uses_per_rid).into()
        };
        *started += 1;
        self.serve_finished(&rid);
        self.requests.push(RequestTruth { rid, ..RequestTruth::default() });
        let running = Running { request: self.requests.len() - 1, ..Running::default() };
        self.running.insert(slot, running);
    }

    /// Serves the requests with this rid whose final chunk the tokenizer has received. They are no longer live.
    fn serve_finished(&mut self, rid: &str) {
        let is_finished = |r: &Running| r.queued.back().is_some_and(|part| &*part.rid == rid && part.finish.is_some());
        let finished: Vec<usize> = self.running.iter().filter(|(_, r)| is_finished(r)).map(|(&at, _)| at).collect();
        for slot in finished {
            while self.running.get(&slot).is_some_and(|r| !r.queued.is_empty()) {
                self.serve(slot);
            }
        }
    }

    pub(super) fn abort_queued(&mut self, rank: u32) {
        self.queued_aborts += 1;
        let rid: Rc<str> = format!("q{}", self.queued_aborts).into();
        self.requests.push(RequestTruth { rid: rid.clone(), finished: true, ..RequestTruth::default() });
        self.counts.requests += 1;
        self.counts.aborted += 1;
        let part = Part {
            rid,
            request: self.requests.len() - 1,
            tokens: 0,
            end: 0,
            reported: 0,
            finish: Some(Finish::Abort),
            retractions: 0,
            nth: 0,
        };
        self.send(HopId(0), rank, Kind::Abort, [part].into());
    }

    pub(super) fn retract(&mut self, slot: usize) {
        // Once per request. Not for cumulative deliveries, where counts that run behind are ambiguous.
        // All releases whose counts fall list new ids, and their layouts say so.
        let eligible = |r: &&mut Running| r.retractions == 0 && r.sent > 0 && !r.finished;
        if self.shape.policy != Policy::Cumulative
            && self.shape.column == Column::New
            && let Some(running) = self.running.get_mut(&slot).filter(eligible)
        {
            running.generated = 0;
            running.retractions = 1;
        }
    }
}
