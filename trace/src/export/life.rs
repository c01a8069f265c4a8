//! Export state of one request besides the ledger's record: when its first and last chunk passed each hop.

use smallvec::SmallVec;

use crate::clock::MonoNs;
use crate::event::AnswerEnd;
use crate::id::{FrameId, HopId};
use crate::ledger::Ticket;

/// A chunk's way over one hop; `None` is "not observed".
#[derive(Clone, Copy, Debug)]
pub(super) struct Passage {
    pub(super) frame: FrameId,
    pub(super) sent: Option<MonoNs>,
    pub(super) forwarded: Option<MonoNs>,
    pub(super) taken: Option<MonoNs>,
    pub(super) handled: Option<MonoNs>,
}

impl Passage {
    pub(super) fn new(frame: FrameId) -> Self {
        Self {
            frame,
            sent: None,
            forwarded: None,
            taken: None,
            handled: None,
        }
    }

    /// The first that is known of it.
    pub(super) fn began(&self) -> Option<MonoNs> {
        self.sent.or(self.forwarded).or(self.taken).or(self.handled)
    }

    fn ended(&self) -> Option<MonoNs> {
        self.handled.max(self.taken).max(self.forwarded).max(self.sent)
    }
}

/// A request on one hop.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct OnHop {
    pub(super) hop: HopId,
    /// Its first chunk that was seen here.
    pub(super) first: Passage,
    /// Its finishing chunk.
    pub(super) last: Option<Passage>,
}

/// Something that was said of a request, or happened to it.
#[derive(Clone, Debug)]
pub(super) struct Note {
    pub(super) at: MonoNs,
    pub(super) what: Said,
}

#[derive(Clone, Debug)]
pub(super) enum Said {
    /// The engine's log or tracing names a stage.
    Stage {
        name: Box<str>,
        by: Box<str>,
        tokens: Option<u32>,
        pending: Option<u32>,
    },
    /// Adds merged chunks from the engine's log.
    Merged { chunks: u32, by: Box<str> },
    /// The response to its client is over.
    Answered {
        end: AnswerEnd,
        tokens: Option<u32>,
        held_up: u32,
    },
    /// The first tokens were accepted for the client: `first_token_received`.
    FirstReceived,
    /// A delivery proves chunks before it lost.
    Dropped { chunks: u64, tokens: u64 },
}

/// Notes kept of one request; further ones are counted.
const NOTES: usize = 64;

/// One request. In this order, so that what every chunk reads or writes lies side by side.
#[derive(Clone, Debug, Default)]
#[repr(C)]
pub(super) struct Life {
    pub(super) rid: Box<str>,
    /// The ledger's record that it belongs to; `None` of a life that was begun at its end.
    pub(super) ticket: Option<Ticket>,
    /// Chunks sent by the scheduler, and deliveries, so far.
    pub(super) points: u32,
    pub(super) cached_tokens: Option<u32>,
    pub(super) hops: SmallVec<[OnHop; 2]>,
    /// Each life has its own.
    pub(super) number: u64,
    /// With the rid this is its name: a rid may come again.
    pub(super) first_at: MonoNs,
    /// Set when the rid was taken over from a request that had not been closed.
    pub(super) again: bool,
    pub(super) first_delivered: Option<MonoNs>,
    pub(super) last_delivered: Option<MonoNs>,
    pub(super) notes: Vec<Note>,
    pub(super) notes_left_out: u32,
    /// Chunks and tokens known to be lost so far.
    pub(super) dropped: (u64, u64),
}

impl Life {
    pub(super) fn new(rid: &str, number: u64, first_at: MonoNs) -> Self {
        Self {
            rid: rid.into(),
            number,
            first_at,
            ..Self::default()
        }
    }

    pub(super) fn note(&mut self, at: MonoNs, what: Said) {
        if self.notes.len() < NOTES {
            self.notes.push(Note { at, what });
        } else {
            self.notes_left_out += 1;
        }
    }

    /// The latest that is known of it; `seen` is the ledger's word.
    pub(super) fn ended(&self, seen: MonoNs) -> MonoNs {
        let passages = self
            .hops
            .iter()
            .flat_map(|h| [h.first.ended(), h.last.and_then(|l| l.ended())]);
        let latest = passages.chain([self.last_delivered]).flatten().max();
        latest.map_or(seen, |at| at.max(seen)).max(self.first_at)
    }
}
