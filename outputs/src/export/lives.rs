//! Live requests, kept exactly as long as in the ledger, so that exports and report agree, with the times of their first and last chunks.

use hashbrown::HashMap;
use smallvec::SmallVec;

use super::pending::{Mark, Pending};
use trace::clock::MonoNs;
use trace::event::{AnswerEnd, Delivery, Event, Frame, Kind, Received, What};
use trace::id::{FrameId, HopId};
use trace::ledger::{ChunkOutcome, Ledger, Request, Summary, Ticket};

/// Times of a chunk on one hop; `None` means "not observed".
#[derive(Clone, Copy, Debug)]
pub(super) struct FrameTimes {
    pub(super) frame: FrameId,
    pub(super) sent: Option<MonoNs>,
    pub(super) forwarded: Option<MonoNs>,
    pub(super) received: Option<MonoNs>,
    pub(super) processed: Option<MonoNs>,
}

impl FrameTimes {
    pub(super) fn began(&self) -> Option<MonoNs> {
        self.sent.or(self.forwarded).or(self.received).or(self.processed)
    }

    fn ended(&self) -> Option<MonoNs> {
        self.processed.max(self.received).max(self.forwarded).max(self.sent)
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct OnHop {
    pub(super) hop: HopId,
    /// First chunk observed on the hop.
    pub(super) first: FrameTimes,
    /// Its finishing chunk.
    pub(super) last: Option<FrameTimes>,
}

/// A point event of a request.
#[derive(Clone, Debug)]
pub(super) struct Note {
    pub(super) at: MonoNs,
    pub(super) what: NoteKind,
}

#[derive(Clone, Debug)]
pub(super) enum NoteKind {
    /// A stage in the engine's log.
    Stage { name: Box<str>, by: Box<str>, tokens: Option<u32>, pending: Option<u32> },
    /// Merged chunks in the engine's log.
    Merged { chunks: u32, by: Box<str> },
    /// The response ended.
    Answered { end: AnswerEnd, tokens: Option<u32>, short_writes: u32 },
    /// The first tokens were accepted for the client: `first_token_received`.
    FirstReceived,
    /// A delivery proved earlier chunks lost.
    Dropped { chunks: u64, tokens: u64 },
}

/// Maximum number of notes per request; further ones are only counted.
const NOTES: usize = 64;

/// One request. The field order keeps the fields that every chunk reads or writes together.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct LiveRequest {
    pub(super) rid: Box<str>,
    /// Its record in the ledger; `None` if it was created only when the request closed.
    pub(super) ticket: Option<Ticket>,
    /// Number of chunks sent by the scheduler and of deliveries so far.
    pub(super) points: u32,
    pub(super) hops: SmallVec<[OnHop; 2]>,
    pub(super) number: u64,
    /// Time of its first event. Identifies it together with the rid, which may be reused.
    pub(super) first_at: MonoNs,
    /// Whether the rid is reused from a request that was not closed.
    pub(super) again: bool,
    pub(super) first_delivered: Option<MonoNs>,
    pub(super) last_delivered: Option<MonoNs>,
    pub(super) notes: Vec<Note>,
    pub(super) notes_left_out: u32,
}

impl LiveRequest {
    pub(super) fn new(rid: &str, number: u64, first_at: MonoNs) -> Self {
        Self { rid: rid.into(), number, first_at, ..Self::default() }
    }

    pub(super) fn note(&mut self, at: MonoNs, what: NoteKind) {
        if self.notes.len() < NOTES {
            self.notes.push(Note { at, what });
        } else {
            self.notes_left_out += 1;
        }
    }

    /// Latest known time of the request; `seen` is the ledger's.
    pub(super) fn ended(&self, seen: MonoNs) -> MonoNs {
        let stages = self.hops.iter().flat_map(|h| [h.first.ended(), h.last.and_then(|l| l.ended())]);
        let latest = stages.chain([self.last_delivered]).flatten().max();
        latest.map_or(seen, |at| at.max(seen)).max(self.first_at)
    }
}

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
            What::Stage(stage) => self.note(stage.rid, at, || NoteKind::Stage {
                name: stage.name.into(),
                by: stage.by.into(),
                tokens: stage.tokens,
                pending: stage.pending,
            }),
            What::Merged(merged) => {
                self.note(merged.rid, at, || NoteKind::Merged { chunks: merged.chunks, by: merged.by.into() });
            }
            What::Answered(answer) => self.note(answer.rid, at, || NoteKind::Answered {
                end: answer.end,
                tokens: answer.tokens,
                short_writes: answer.short_writes,
            }),
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
            let mut times =
                FrameTimes { frame: frame.id, sent: None, forwarded: None, received: None, processed: None };
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
        let first = request.and_then(|request| request.delivered_first);
        let observed = request.and_then(Request::outcomes);
        let Some((life, _)) = at_place.and_then(|place| self.slots[place].as_mut()).zip(observed) else {
            return;
        };
        life.points = life.points.saturating_add(1);
        if life.first_delivered.is_none() && first == Some(at) {
            life.first_delivered = first;
            life.note(at, NoteKind::FirstReceived);
        }
        life.last_delivered = Some(at);
        let mut chunks = 0;
        let mut tokens = 0;
        for (_, judged) in ledger.judged().filter(|(_, judged)| judged.outcome == ChunkOutcome::Dropped) {
            chunks += u64::from(judged.count);
            tokens += u64::from(judged.tokens_lost);
        }
        if chunks > 0 {
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
