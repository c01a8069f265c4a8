//! Owned events, so that one run can be replayed several times.

use std::rc::Rc;

use trace::engine::{Mode, Waiter};
use trace::event::{
    Answer, AnswerEnd, Chunk, Delivery, Engine, Event, Finish, Frame, Hop, Kind, Lost, LostCause, Response, Sees,
    Taken, Undecoded, What,
};
use trace::{FrameId, HopId, MonoNs};

use crate::schedule::{Column, Policy};

/// A request's part of a frame.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) rid: Rc<str>,
    /// Index of the request in the world's `lives`.
    pub(crate) life: usize,
    pub(crate) tokens: u32,
    /// Position of its last token.
    pub(crate) end: u32,
    /// Reported count: below `end` while a retracted request recomputes.
    pub(crate) said: u32,
    pub(crate) finish: Option<Finish>,
    pub(crate) retractions: u32,
}

impl Part {
    /// Positions of its tokens (1-based).
    pub(crate) fn places(&self) -> impl Iterator<Item = u32> {
        self.end - self.tokens + 1..=self.end
    }
}

/// An event of the source.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Engine(Policy),
    Hop {
        id: HopId,
        name: &'static str,
        worker: Option<u16>,
        origin: bool,
        last: bool,
        sees: Sees,
    },
    Sent {
        id: FrameId,
        kind: Kind,
        column: Column,
        parts: Rc<[Part]>,
    },
    Taken {
        id: FrameId,
        wakeup: u64,
    },
    Undecoded(FrameId),
    Delivered {
        rid: Rc<str>,
        tokens: u32,
        mode: Mode,
        said: u32,
        finished: bool,
    },
    Answered {
        rid: Rc<str>,
        tokens: Option<u32>,
        claimed: u32,
        end: AnswerEnd,
    },
    Lost {
        hop: Option<HopId>,
        count: u64,
        cause: LostCause,
    },
}

/// Size in bytes of a frame with `chunks` chunks.
pub(crate) fn bytes(chunks: usize) -> u64 {
    100 + 40 * chunks as u64
}

impl Told {
    /// Passes the event to `to`.
    pub(crate) fn give(&self, at: u64, mut to: impl FnMut(&Event<'_>)) {
        let mut say = |what: What<'_>| to(&Event { at: MonoNs(at), what });
        match self {
            Self::Engine(policy) => {
                let (mode, waiter) = match policy {
                    Policy::KeepsLast => (Mode::Incremental, Waiter::KeepsLast),
                    Policy::YieldsAll => (Mode::Incremental, Waiter::YieldsAll),
                    Policy::Merges => (Mode::Incremental, Waiter::Merges),
                    Policy::Cumulative => (Mode::Cumulative, Waiter::KeepsLast),
                };
                say(What::Engine(Engine {
                    version: None,
                    mode: Some(mode),
                    waiter: Some(waiter),
                    turnaround: Some(3),
                }));
            }
            &Self::Hop {
                id,
                name,
                worker,
                origin,
                last,
                sees,
            } => say(What::Hop(Hop {
                id,
                name,
                endpoint: "",
                worker,
                origin,
                last,
                sees,
            })),
            Self::Sent {
                id,
                kind,
                column,
                parts,
            } => {
                let abort = *kind == Kind::Abort;
                let chunks: Vec<Chunk<'_>> = parts
                    .iter()
                    .map(|part| Chunk {
                        rid: &part.rid,
                        listed: column.listed(part).filter(|_| !abort),
                        completion_tokens: (!abort).then_some(part.said),
                        prompt_tokens: None,
                        cached_tokens: None,
                        finish: part.finish,
                        retractions: (!abort).then_some(part.retractions),
                        worker: None,
                        ids: &[],
                    })
                    .collect();
                say(What::Sent(Frame {
                    id: *id,
                    bytes: bytes(chunks.len()),
                    kind: *kind,
                    ids: column.claim(),
                    chunks: &chunks,
                }));
            }
            &Self::Taken { id, wakeup } => say(What::Taken(Taken {
                id,
                wakeup: Some(wakeup),
                by: None,
                frame: None,
            })),
            &Self::Undecoded(id) => say(What::Undecoded(Undecoded {
                id,
                bytes: 100,
                reason: "truncated",
            })),
            Self::Delivered {
                rid,
                tokens,
                mode,
                said,
                finished,
            } => say(What::Delivered(Delivery {
                rid,
                tokens: *tokens,
                mode: *mode,
                completion_tokens: Some(*said),
                finished: *finished,
                response: Response::Streamed,
            })),
            Self::Answered {
                rid,
                tokens,
                claimed,
                end,
            } => say(What::Answered(Answer {
                rid,
                tokens: *tokens,
                completion_tokens: Some(*claimed),
                end: *end,
                held_up: 0,
                unacknowledged: None,
            })),
            &Self::Lost { hop, count, cause } => say(What::Lost(Lost { hop, count, cause })),
        }
    }

    /// Sequence within which the source guarantees the order; `None` if the event must not be reordered at all.
    pub(crate) fn line(&self) -> Option<Line> {
        match self {
            Self::Sent { id, .. } | Self::Undecoded(id) => Some(Line::Sends(id.hop, id.lane)),
            Self::Taken { id, .. } => Some(Line::Takes(id.hop)),
            Self::Delivered { .. } | Self::Answered { .. } => Some(Line::Deliveries),
            Self::Engine(_) | Self::Hop { .. } | Self::Lost { .. } => None,
        }
    }
}

/// Sequence of events with a guaranteed order.
#[derive(PartialEq, Eq)]
pub(crate) enum Line {
    Sends(HopId, u32),
    Takes(HopId),
    Deliveries,
}
