//! The requests under way, as long as the ledger has them: the same requests, so that exports and report count alike.

use hashbrown::HashMap;

use super::hops::Hops;
use super::life::{Life, OnHop, Passage, Said};
use super::pending::{Mark, Pending};
use crate::clock::MonoNs;
use crate::event::{Delivery, Event, Frame, Kind, Taken, What};
use crate::id::FrameId;
use crate::ledger::{Ledger, Request, Summary};

/// Lives by rid. Bounded by the ledger's own limits: each belongs to a record there.
#[derive(Debug, Default)]
pub(super) struct Lives {
    by_rid: HashMap<Box<str>, u64>,
    all: HashMap<u64, Life>,
    /// Those whose rid another request has taken over, until the ledger closes them.
    displaced: Vec<(Box<str>, u64)>,
    born: u64,
    /// Chunks and tokens that the last event proved lost.
    lost_now: Option<(u64, u64)>,
    pending: Pending,
}

impl Lives {
    /// Enters an event that `ledger` has entered already.
    pub(super) fn event(&mut self, event: &Event<'_>, ledger: &Ledger, hops: &Hops) {
        let at = event.at;
        self.lost_now = None;
        match &event.what {
            What::Sent(frame) => self.sent(at, frame, ledger, hops),
            What::Forwarded(id) => {
                self.reached(*id, |passage| passage.forwarded = Some(at));
                if hops.get(id.hop).is_some_and(|h| !h.sees.taken) {
                    self.pending.handled(*id, at);
                }
            }
            What::Taken(taken) => self.taken(at, taken, ledger, hops),
            What::Handled(id) => {
                self.reached(*id, |passage| passage.handled = Some(at));
                self.pending.handled(*id, at);
            }
            What::Delivered(delivery) => self.delivered(at, delivery, ledger),
            What::Stage(stage) => {
                let said = || Said::Stage {
                    name: stage.name.into(),
                    by: stage.by.into(),
                    tokens: stage.tokens,
                    pending: stage.pending,
                };
                self.note(stage.rid, at, said);
            }
            What::Merged(merged) => {
                let said = || Said::Merged {
                    chunks: merged.chunks,
                    by: merged.by.into(),
                };
                self.note(merged.rid, at, said);
            }
            What::Answered(answer) => {
                let said = || Said::Answered {
                    end: answer.end,
                    tokens: answer.tokens,
                    held_up: answer.held_up,
                };
                self.note(answer.rid, at, said);
            }
            _ => {}
        }
    }

    /// The life that a rid leads to now.
    pub(super) fn get(&self, rid: &str) -> Option<&Life> {
        self.all.get(self.by_rid.get(rid)?)
    }

    /// Chunks and tokens that the last event, a delivery, proved lost.
    pub(super) fn lost_now(&self) -> Option<(u64, u64)> {
        self.lost_now
    }

    /// Requests under way.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Gives up the life of a request that the ledger has closed.
    pub(super) fn close(&mut self, summary: &Summary) -> Life {
        let is_it = |life: Option<&Life>| life.is_some_and(|l| l.first_at == summary.first_at);
        let current = self.by_rid.get(&*summary.rid).copied();
        if let Some(id) = current.filter(|id| is_it(self.all.get(id))) {
            self.by_rid.remove(&*summary.rid);
            return self.all.remove(&id).unwrap_or_default();
        }
        let place = self
            .displaced
            .iter()
            .position(|(rid, id)| *rid == summary.rid && is_it(self.all.get(id)));
        place
            .and_then(|place| self.all.remove(&self.displaced.swap_remove(place).1))
            .unwrap_or_else(|| Life::new(summary.first_at, false))
    }

    /// The life of the ledger's record for a rid, begun if need be; `None` for what the ledger does not follow.
    fn of(&mut self, rid: &str, ledger: &Ledger) -> Option<u64> {
        let first_at = ledger.request(rid)?.first_at();
        let before = self.by_rid.get(rid).copied();
        if let Some(id) = before.filter(|id| self.all.get(id).is_some_and(|l| l.first_at == first_at)) {
            return Some(id);
        }
        if let Some(id) = before {
            self.displaced.push((rid.into(), id));
        }
        self.born += 1;
        self.by_rid.insert(rid.into(), self.born);
        self.all.insert(self.born, Life::new(first_at, before.is_some()));
        Some(self.born)
    }

    fn sent(&mut self, at: MonoNs, frame: &Frame<'_>, ledger: &Ledger, hops: &Hops) {
        let marks = self.content(frame, ledger, |passage| passage.sent = Some(at));
        let sees = hops.get(frame.id.hop).map(|h| h.sees).unwrap_or_default();
        if let Some(early) = self.pending.enter(frame.id, marks, sees) {
            self.reached(frame.id, |passage| {
                passage.taken = Some(early.taken);
                passage.handled = early.handled;
            });
        }
    }

    fn taken(&mut self, at: MonoNs, taken: &Taken<'_>, ledger: &Ledger, hops: &Hops) {
        if let Some(frame) = &taken.frame {
            let marks = self.content(frame, ledger, |passage| passage.taken = Some(at));
            let sees = hops.get(frame.id.hop).map(|h| h.sees).unwrap_or_default();
            self.pending.enter(frame.id, marks, sees);
        } else {
            self.reached(taken.id, |passage| passage.taken = Some(at));
        }
        let handled = hops.get(taken.id.hop).is_some_and(|h| h.sees.handled);
        self.pending.taken(taken.id, at, handled);
    }

    /// Enters what a frame says; gives back whose first or finishing chunks it carries.
    fn content(&mut self, frame: &Frame<'_>, ledger: &Ledger, stamp: impl Fn(&mut Passage)) -> Vec<Mark> {
        let mut marks = Vec::new();
        for chunk in frame.chunks {
            let Some(id) = self.of(chunk.rid, ledger) else { continue };
            let Some(life) = self.all.get_mut(&id).filter(|_| frame.kind != Kind::Abort) else {
                continue;
            };
            life.cached_tokens = chunk.cached_tokens.or(life.cached_tokens);
            let known = life.hops.iter().position(|h| h.hop == frame.id.hop);
            if known.is_some() && chunk.finish.is_none() {
                continue;
            }
            let mut passage = Passage::new(frame.id);
            stamp(&mut passage);
            let place = known.unwrap_or_else(|| {
                life.hops.push(OnHop {
                    hop: frame.id.hop,
                    first: passage,
                    last: None,
                });
                life.hops.len() - 1
            });
            let repeated = chunk.finish.is_some() && life.hops[place].last.is_some();
            if chunk.finish.is_some() && !repeated {
                life.hops[place].last = Some(passage);
            }
            if known.is_none() || !repeated {
                marks.push(Mark {
                    life: id,
                    hop: place as u16,
                });
            }
        }
        marks
    }

    /// A frame has come to its next stage: so have the chunks in it that are followed.
    fn reached(&mut self, id: FrameId, stamp: impl Fn(&mut Passage)) {
        for mark in self.pending.marks(id) {
            let Some(on) = self
                .all
                .get_mut(&mark.life)
                .and_then(|l| l.hops.get_mut(usize::from(mark.hop)))
            else {
                continue;
            };
            let passages = [Some(&mut on.first), on.last.as_mut()];
            passages
                .into_iter()
                .flatten()
                .filter(|p| p.frame == id)
                .for_each(&stamp);
        }
    }

    fn delivered(&mut self, at: MonoNs, delivery: &Delivery<'_>, ledger: &Ledger) {
        let Some(fates) = ledger.request(delivery.rid).and_then(Request::fates) else {
            return;
        };
        let Some(life) = self.of(delivery.rid, ledger).and_then(|id| self.all.get_mut(&id)) else {
            return;
        };
        if delivery.tokens > 0 {
            life.first_delivered.get_or_insert(at);
        }
        life.last_delivered = Some(at);
        let before = std::mem::replace(&mut life.dropped, (fates.dropped, fates.tokens_lost));
        if life.dropped != before {
            let chunks = fates.dropped.saturating_sub(before.0);
            let tokens = fates.tokens_lost.saturating_sub(before.1);
            life.note(at, Said::Dropped { chunks, tokens });
            self.lost_now = Some((chunks, tokens));
        }
    }

    fn note(&mut self, rid: &str, at: MonoNs, said: impl FnOnce() -> Said) {
        if let Some(life) = self.by_rid.get(rid).and_then(|id| self.all.get_mut(id)) {
            life.note(at, said());
        }
    }
}
