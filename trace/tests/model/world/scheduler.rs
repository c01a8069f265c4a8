//! The schedulers: requests start, generate tokens, and are retracted, aborted or finished.

use std::collections::VecDeque;
use std::rc::Rc;

use trace::HopId;
use trace::event::{Finish, Kind};

use super::{Life, Running, World};
use crate::schedule::{Column, Policy};
use crate::told::Part;

impl World {
    /// Sends a frame from a scheduler. Schedulers share no requests.
    pub(super) fn schedule(&mut self, rank: u32, wanted: &[(usize, u32, bool)]) {
        let mut parts: Vec<Part> = Vec::new();
        for &(request, new, finish) in wanted {
            let request = request * 3 + rank as usize;
            let twice = parts
                .iter()
                .any(|part| self.requests.get(&request).is_some_and(|r| r.life == part.life));
            if twice {
                continue;
            }
            if self.requests.get(&request).is_some_and(|r| r.finished && r.closed) {
                self.requests.remove(&request);
            }
            if !self.requests.contains_key(&request) {
                self.begin(request);
            }
            let Some(running) = self.requests.get_mut(&request).filter(|r| !r.finished) else {
                continue;
            };
            let finish = finish || running.left;
            // Only a request's last chunk may be empty.
            let new = if new == 0 && (!finish || running.sent == 0) {
                1
            } else {
                new
            };
            running.made += new;
            let tokens = running.made.saturating_sub(running.sent);
            running.sent = running.sent.max(running.made);
            running.finished = finish;
            let life = &mut self.lives[running.life];
            life.made = running.sent;
            life.over |= finish;
            life.last_at = self.now;
            parts.push(Part {
                rid: life.rid.clone(),
                life: running.life,
                tokens,
                end: running.sent,
                said: running.made,
                finish: finish.then_some(if running.left { Finish::Abort } else { Finish::Stop }),
                retractions: running.retractions,
            });
        }
        if parts.is_empty() {
            return;
        }
        // Without its first chunk, the second live request of a rid looks like a continuation of the first.
        let begins = parts.iter().any(|part| self.lives[part.life].first_sent.is_none());
        if !(self.shape.rids_shared && begins) && self.cut.remove(&rank) {
            self.vanish(&parts);
            return;
        }
        for part in &parts {
            let life = &mut self.lives[part.life];
            let new = life.first_sent.is_none();
            life.first_sent.get_or_insert(self.now);
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
    fn vanish(&mut self, parts: &[Part]) {
        self.vanished = true;
        for part in parts {
            self.counts.tokens_cut += u64::from(part.tokens);
            self.lives[part.life].cut.extend(part.places());
            if part.finish.is_some() {
                // The tokenizer and the client would wait forever.
                self.requests.retain(|_, r| r.life != part.life);
            }
        }
    }

    pub(super) fn begin(&mut self, request: usize) {
        let born = self.born.entry(request).or_default();
        let times = if self.shape.rids_again { 2 } else { 1 };
        let rid: Rc<str> = if self.shape.rids_shared {
            format!("s{}", request % 2).into()
        } else {
            format!("r{request}-{}", *born / times).into()
        };
        *born += 1;
        self.serve_finished(&rid);
        self.lives.push(Life { rid, ..Life::default() });
        let running = Running {
            life: self.lives.len() - 1,
            made: 0,
            sent: 0,
            retractions: 0,
            left: false,
            finished: false,
            closed: false,
            out: VecDeque::new(),
            received: 0,
            carried: 0,
            claimed: None,
        };
        self.requests.insert(request, running);
    }

    /// Serves the requests with this rid whose final chunk the tokenizer has. They are no longer live.
    fn serve_finished(&mut self, rid: &str) {
        let over = |r: &Running| {
            r.out
                .back()
                .is_some_and(|part| &*part.rid == rid && part.finish.is_some())
        };
        let over: Vec<usize> = self
            .requests
            .iter()
            .filter(|(_, r)| over(r))
            .map(|(&at, _)| at)
            .collect();
        for request in over {
            while self.requests.get(&request).is_some_and(|r| !r.out.is_empty()) {
                self.serve(request);
            }
        }
    }

    pub(super) fn abort_queued(&mut self, rank: u32) {
        self.queued_aborts += 1;
        let rid: Rc<str> = format!("q{}", self.queued_aborts).into();
        self.lives.push(Life {
            rid: rid.clone(),
            over: true,
            ..Life::default()
        });
        self.counts.requests += 1;
        self.counts.aborted += 1;
        let part = Part {
            rid,
            life: self.lives.len() - 1,
            tokens: 0,
            end: 0,
            said: 0,
            finish: Some(Finish::Abort),
            retractions: 0,
        };
        self.send(HopId(0), rank, Kind::Abort, [part].into());
    }

    pub(super) fn retract(&mut self, request: usize) {
        // Once per request. Not for cumulative deliveries, where counts that run behind are ambiguous.
        // All releases whose counts fall list new ids, and their layouts say so.
        let fit = |r: &&mut Running| r.retractions == 0 && r.sent > 0 && !r.finished;
        if self.shape.policy != Policy::Cumulative
            && self.shape.column == Column::New
            && let Some(running) = self.requests.get_mut(&request).filter(fit)
        {
            running.made = 0;
            running.retractions = 1;
        }
    }
}
