//! Live requests, kept exactly as long as in the ledger, so that exports and report agree.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::life::{FrameTimes, LiveRequest, NoteKind, OnHop};
use super::pending::{Mark, Pending};
use crate::clock::MonoNs;
use crate::event::{Delivery, Event, Frame, Kind, Received, What};
use crate::id::FrameId;
use crate::ledger::{Ledger, Request, Summary, Ticket};

/// Live requests, indexed by the slot of their record in the ledger. The ledger's limits bound their number.
#[derive(Debug, Default)]
pub(super) struct LiveRequests {
    slots: Vec<Option<LiveRequest>>,
    /// Indices of the requests with a rid, the latest last: a rid may be reused.
    by_rid: HashMap<Box<str>, SmallVec<[u32; 2]>>,
    /// Requests whose record was evicted and its slot reused within the same event.
    displaced: Vec<LiveRequest>,
    created: u64,
    live: usize,
    /// Indices of the requests of the current event's chunks.
    current: Vec<Option<usize>>,
    /// Chunks and tokens proven lost by the last event.
    lost_now: Option<(u64, u64)>,
    pending: Pending,
}

impl LiveRequests {
    /// Processes an event that `ledger` has already applied.
    pub(super) fn event(&mut self, event: &Event<'_>, ledger: &Ledger) {
        let at = event.at;
        self.lost_now = None;
        self.current.clear();
        match &event.what {
            What::Sent(frame) => self.sent(at, frame, ledger),
            What::Received(received) => self.received(at, received, ledger),
            What::Processed(id) => {
                self.reached(*id, |times| times.processed = Some(at));
                self.pending.processed(*id, at);
            }
            What::Delivered(delivery) => self.delivered(at, delivery, ledger),
            What::Stage(stage) => {
                let kind = || NoteKind::Stage {
                    name: stage.name.into(),
                    by: stage.by.into(),
                    tokens: stage.tokens,
                    pending: stage.pending,
                };
                self.note(stage.rid, at, kind);
            }
            What::Merged(merged) => {
                let kind = || NoteKind::Merged { chunks: merged.chunks, by: merged.by.into() };
                self.note(merged.rid, at, kind);
            }
            What::Answered(answer) => {
                let kind =
                    || NoteKind::Answered { end: answer.end, tokens: answer.tokens, short_writes: answer.short_writes };
                self.note(answer.rid, at, kind);
            }
            _ => {}
        }
    }

    /// Request of chunk `place` of the current event; index 0 for a delivery.
    pub(super) fn current(&self, place: usize) -> Option<&LiveRequest> {
        self.slots.get((*self.current.get(place)?)?)?.as_ref()
    }

    /// Chunks and tokens proven lost by the last event, if it was a delivery.
    pub(super) fn lost_now(&self) -> Option<(u64, u64)> {
        self.lost_now
    }

    /// Number of live requests.
    pub(super) fn len(&self) -> usize {
        self.live
    }

    /// Removes and returns the state of a request closed by the ledger.
    pub(super) fn close(&mut self, summary: &Summary) -> LiveRequest {
        let is_request = |life: &LiveRequest| life.rid == summary.rid && life.first_at == summary.first_at;
        self.take(&summary.rid, is_request).unwrap_or_else(|| match self.displaced.iter().position(is_request) {
            Some(at) => self.displaced.swap_remove(at),
            None => LiveRequest::new(&summary.rid, 0, summary.first_at),
        })
    }

    /// Removes and returns the request with this rid for which `is` holds.
    fn take(&mut self, rid: &str, is: impl Fn(&LiveRequest) -> bool) -> Option<LiveRequest> {
        let places = self.by_rid.get_mut(rid)?;
        let holds = |&place: &u32| self.slots[place as usize].as_ref().is_some_and(&is);
        let place = places.remove(places.iter().position(holds)?);
        if places.is_empty() {
            self.by_rid.remove(rid);
        }
        self.live -= 1;
        self.slots[place as usize].take()
    }

    /// Index of the request for a rid's record in the ledger, created if needed. `None` without a record.
    fn of(&mut self, rid: &str, record: Option<(Ticket, &Request)>) -> Option<usize> {
        let (ticket, request) = record?;
        let place = ticket.slot as usize;
        if let Some(Some(life)) = self.slots.get(place)
            && life.ticket == Some(ticket)
        {
            return Some(place);
        }
        let first_at = request.first_at;
        if self.slots.len() <= place {
            self.slots.resize_with(place + 1, || None);
        }
        if let Some(life) = &self.slots[place] {
            if life.first_at == first_at && *life.rid == *rid {
                return Some(place);
            }
            let (number, rid) = (life.number, life.rid.clone());
            let displaced = self.take(&rid, |life| life.number == number);
            self.displaced.extend(displaced);
        }
        self.created += 1;
        self.live += 1;
        let mut life = LiveRequest::new(rid, self.created, first_at);
        life.ticket = Some(ticket);
        let same_rid = self.by_rid.entry(rid.into()).or_default();
        life.again = !same_rid.is_empty();
        same_rid.push(ticket.slot);
        self.slots[place] = Some(life);
        Some(place)
    }

    fn sent(&mut self, at: MonoNs, frame: &Frame<'_>, ledger: &Ledger) {
        let marks = self.content(frame, ledger, ledger.is_origin(frame.id.hop), |times| {
            (times.sent, times.forwarded) = (Some(at), frame.forwarded);
        });
        let capabilities = ledger.hop(frame.id.hop).map(|h| h.shows).unwrap_or_default();
        if let Some(early) = self.pending.enter(frame.id, marks, capabilities) {
            self.reached(frame.id, |times| {
                times.received = Some(early.received);
                times.processed = early.processed;
            });
        }
    }

    fn received(&mut self, at: MonoNs, received: &Received<'_>, ledger: &Ledger) {
        if let Some(frame) = &received.frame {
            let marks = self.content(frame, ledger, ledger.is_origin(frame.id.hop), |times| {
                times.received = Some(at);
            });
            let capabilities = ledger.hop(frame.id.hop).map(|h| h.shows).unwrap_or_default();
            self.pending.enter(frame.id, marks, capabilities);
        } else {
            self.reached(received.id, |times| times.received = Some(at));
        }
        let processed = ledger.hop(received.id.hop).is_some_and(|h| h.shows.processed);
        self.pending.received(received.id, at, processed);
    }

    /// Records the content of a frame. Returns the requests whose first or finishing chunks it carries.
    fn content(
        &mut self,
        frame: &Frame<'_>,
        ledger: &Ledger,
        origin: bool,
        stamp: impl Fn(&mut FrameTimes),
    ) -> Vec<Mark> {
        let mut marks = Vec::new();
        for (number, chunk) in frame.chunks.iter().enumerate() {
            let record = ledger.touched(number).or_else(|| ledger.placed(chunk.rid));
            let at = self.of(chunk.rid, record);
            self.current.push(at);
            let life = at.and_then(|at| self.slots[at].as_mut());
            let Some(life) = life.filter(|_| frame.kind != Kind::Abort) else {
                continue;
            };
            life.points = life.points.saturating_add(u32::from(origin));
            let known = life.hops.iter().position(|h| h.hop == frame.id.hop);
            if known.is_some() && chunk.finish.is_none() {
                continue;
            }
            let mut times = FrameTimes::new(frame.id);
            stamp(&mut times);
            let place = known.unwrap_or_else(|| {
                life.hops.push(OnHop { hop: frame.id.hop, first: times, last: None });
                life.hops.len() - 1
            });
            let repeated = chunk.finish.is_some() && life.hops[place].last.is_some();
            if chunk.finish.is_some() && !repeated {
                life.hops[place].last = Some(times);
            }
            if known.is_none() || !repeated {
                marks.push(Mark { place: at.unwrap_or_default() as u32, number: life.number, hop: place as u16 });
            }
        }
        marks
    }

    /// Records a later stage of a frame for the tracked chunks in it.
    fn reached(&mut self, id: FrameId, stamp: impl Fn(&mut FrameTimes)) {
        for mark in self.pending.marks(id) {
            let life = self.slots.get_mut(mark.place as usize).and_then(Option::as_mut);
            let on = life.filter(|l| l.number == mark.number).and_then(|l| l.hops.get_mut(usize::from(mark.hop)));
            let Some(on) = on else { continue };
            let stages = [Some(&mut on.first), on.last.as_mut()];
            stages.into_iter().flatten().filter(|p| p.frame == id).for_each(&stamp);
        }
    }

    fn delivered(&mut self, at: MonoNs, delivery: &Delivery<'_>, ledger: &Ledger) {
        let at_place = self.of(delivery.rid, ledger.placed(delivery.rid));
        self.current.push(at_place);
        let request = ledger.request(delivery.rid);
        let fates = request.and_then(Request::fates);
        let first = request.and_then(|request| request.delivered_first);
        let Some((life, fates)) = at_place.and_then(|place| self.slots[place].as_mut()).zip(fates) else {
            return;
        };
        life.points = life.points.saturating_add(1);
        if life.first_delivered.is_none() && first == Some(at) {
            life.first_delivered = first;
            life.note(at, NoteKind::FirstReceived);
        }
        life.last_delivered = Some(at);
        let before = std::mem::replace(&mut life.dropped, (fates.dropped, fates.tokens_lost));
        if life.dropped != before {
            let chunks = fates.dropped.saturating_sub(before.0);
            let tokens = fates.tokens_lost.saturating_sub(before.1);
            life.note(at, NoteKind::Dropped { chunks, tokens });
            self.lost_now = Some((chunks, tokens));
        }
    }

    fn note(&mut self, rid: &str, at: MonoNs, kind: impl FnOnce() -> NoteKind) {
        let latest = self.by_rid.get(rid).and_then(|places| self.slots[*places.last()? as usize].as_mut());
        if let Some(life) = latest {
            life.note(at, kind());
        }
    }
}
