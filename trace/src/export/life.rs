//! Export state of one request, in addition to the ledger's record: times of its first and last chunk on each hop.

use smallvec::SmallVec;

use crate::clock::MonoNs;
use crate::event::AnswerEnd;
use crate::id::{FrameId, HopId};
use crate::ledger::Ticket;

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
    pub(super) fn new(frame: FrameId) -> Self {
        Self { frame, sent: None, forwarded: None, received: None, processed: None }
    }

    /// Earliest known time.
    pub(super) fn began(&self) -> Option<MonoNs> {
        self.sent.or(self.forwarded).or(self.received).or(self.processed)
    }

    fn ended(&self) -> Option<MonoNs> {
        self.processed.max(self.received).max(self.forwarded).max(self.sent)
    }
}

/// A request on one hop.
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
    /// Chunks and tokens known to be lost so far.
    pub(super) dropped: (u64, u64),
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
