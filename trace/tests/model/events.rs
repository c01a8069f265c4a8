//! Owned events, so that one run can be replayed several times.

use std::rc::Rc;

use trace::engine::{Mode, Waiter};
use trace::event::{
    Answer, AnswerEnd, Capabilities, Chunk, Delivery, Engine, Event, Finish, Frame, Hop, Kind, Missed, MissedCause,
    Received, Response, Undecoded, What,
};
use trace::{FrameId, HopId, MonoNs};

use crate::schedule::{Column, Policy};

/// A request's part of a frame.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) rid: Rc<str>,
    /// Index of the request in the world's `requests`.
    pub(crate) request: usize,
    pub(crate) tokens: u32,
    /// Position of its last token.
    pub(crate) end: u32,
    /// Reported count: below `end` while a retracted request recomputes.
    pub(crate) reported: u32,
    pub(crate) finish: Option<Finish>,
    pub(crate) retractions: u32,
    /// Number of the chunk among those of its request that the scheduler sent and the wire did not lose.
    pub(crate) nth: u32,
}

/// Id of the token at a position.
pub(crate) fn id_at(position: u32) -> i64 {
    i64::from(position) + 150_000
}

impl Part {
    /// Positions of its tokens (1-based).
    pub(crate) fn positions(&self) -> impl Iterator<Item = u32> {
        self.end - self.tokens + 1..=self.end
    }
}

#[derive(Clone, Debug)]
pub(crate) enum OwnedEvent {
    Engine(Policy),
    Hop {
        id: HopId,
        name: &'static str,
        worker: Option<u16>,
        origin: bool,
        last: bool,
        capabilities: Capabilities,
    },
    Sent {
        id: FrameId,
        kind: Kind,
        column: Column,
        parts: Rc<[Part]>,
    },
    Received {
        id: FrameId,
        wakeup: u64,
    },
    Undecoded(FrameId),
    Delivered {
        rid: Rc<str>,
        tokens: u32,
        mode: Mode,
        reported: u32,
        finished: bool,
    },
    Answered {
        rid: Rc<str>,
        tokens: Option<u32>,
        claimed: u32,
        end: AnswerEnd,
    },
    Missed {
        hop: Option<HopId>,
        count: u64,
        cause: MissedCause,
    },
}

/// Time that the relay needs for a frame, in nanoseconds.
pub(crate) const RELAY_NS: u64 = 20_000;

/// Size in bytes of a frame with `chunks` chunks.
pub(crate) fn bytes(chunks: usize) -> u64 {
    100 + 40 * chunks as u64
}

impl OwnedEvent {
    /// Passes the event to `receiver`.
    pub(crate) fn pass_to(&self, at: u64, mut receiver: impl FnMut(&Event<'_>)) {
        let mut emit = |what: What<'_>| receiver(&Event { at: MonoNs(at), what });
        let forwarded = Some(MonoNs(at + RELAY_NS));
        match self {
            Self::Engine(policy) => {
                let (mode, waiter) = match policy {
                    Policy::KeepsLast => (Mode::Incremental, Waiter::KeepsLast),
                    Policy::YieldsAll => (Mode::Incremental, Waiter::YieldsAll),
                    Policy::Merges => (Mode::Incremental, Waiter::Merges),
                    Policy::Cumulative => (Mode::Cumulative, Waiter::KeepsLast),
                };
                emit(What::Engine(Engine {
                    mode: Some(mode),
                    waiter: Some(waiter),
                    turnaround: Some(3),
                    ..Engine::default()
                }));
            }
            &Self::Hop {
                id,
                name,
                worker,
                origin,
                last,
                capabilities,
            } => emit(What::Hop(Hop {
                id,
                ends: name.into(),
                endpoint: "",
                worker,
                origin,
                last,
                capabilities,
            })),
            Self::Sent {
                id,
                kind,
                column,
                parts,
            } => {
                let abort = *kind == Kind::Abort;
                let ids_of = |part: &Part| part.positions().map(id_at).collect();
                let listed = *column == Column::New && *kind == Kind::TokenIds;
                let ids: Vec<Vec<i64>> = parts.iter().filter(|_| listed).map(ids_of).collect();
                let chunks: Vec<Chunk<'_>> = parts
                    .iter()
                    .enumerate()
                    .map(|(place, part)| Chunk {
                        ids: ids.get(place).map_or(&[], Vec::as_slice),
                        listed: column.listed(part).filter(|_| !abort),
                        completion_tokens: (!abort).then_some(part.reported),
                        finish: part.finish,
                        retractions: (!abort).then_some(part.retractions),
                        ..Chunk::new(&part.rid)
                    })
                    .collect();
                emit(What::Sent(Frame {
                    id: *id,
                    bytes: bytes(chunks.len()),
                    forwarded,
                    kind: *kind,
                    ids: column.declared(),
                    chunks: &chunks,
                }));
            }
            &Self::Received { id, wakeup } => emit(What::Received(Received {
                id,
                wakeup: Some(wakeup),
                by: None,
                frame: None,
            })),
            &Self::Undecoded(id) => emit(What::Undecoded(Undecoded {
                forwarded,
                ..Undecoded::new(id, 100, "truncated")
            })),
            Self::Delivered {
                rid,
                tokens,
                mode,
                reported,
                finished,
            } => emit(What::Delivered(Delivery {
                rid,
                tokens: *tokens,
                mode: *mode,
                completion_tokens: Some(*reported),
                finished: *finished,
                response: Response::Streamed,
                without_text: 0,
            })),
            Self::Answered {
                rid,
                tokens,
                claimed,
                end,
            } => emit(What::Answered(Answer {
                end: *end,
                ..Answer::new(rid, *tokens, Some(*claimed))
            })),
            &Self::Missed { hop, count, cause } => emit(What::Missed(Missed { hop, count, cause })),
        }
    }

    /// Sequence within which the source guarantees the order; `None` if the event must not be reordered at all.
    pub(crate) fn sequence(&self) -> Option<Sequence> {
        match self {
            Self::Sent { id, .. } | Self::Undecoded(id) => Some(Sequence::Sends(id.hop, id.lane)),
            Self::Received { id, .. } => Some(Sequence::Receives(id.hop)),
            Self::Delivered { .. } | Self::Answered { .. } => Some(Sequence::Deliveries),
            Self::Engine(_) | Self::Hop { .. } | Self::Missed { .. } => None,
        }
    }
}

/// Sequence of events with a guaranteed order.
#[derive(PartialEq, Eq)]
pub(crate) enum Sequence {
    Sends(HopId, u32),
    Receives(HopId),
    Deliveries,
}
