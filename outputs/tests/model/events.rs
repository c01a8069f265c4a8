//! Owned events, so that one run can be replayed several times.

use std::rc::Rc;

use trace::engine::Mode;
use trace::event::{Answer, AnswerEnd, Chunk, Delivery, Event, Finish, Frame, Kind, Undecoded, What};
use trace::{FrameId, HopId, MonoNs};

use crate::schedule::Column;

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
    Plain(What<'static>),
    Sent { id: FrameId, kind: Kind, column: Column, parts: Rc<[Part]> },
    Delivered { rid: Rc<str>, tokens: u32, mode: Mode, reported: u32, finished: bool },
    Answered { rid: Rc<str>, tokens: Option<u32>, claimed: u32, end: AnswerEnd },
}

/// Time that the relay needs for a frame, in nanoseconds.
pub(crate) const RELAY_NS: u64 = 20_000;

/// Size in bytes of a frame with `chunks` chunks.
pub(crate) fn bytes(chunks: usize) -> u64 {
    100 + 40 * chunks as u64
}

impl OwnedEvent {
    pub(crate) fn pass_to(&self, at: u64, mut receiver: impl FnMut(&Event<'_>)) {
        let mut emit = |what: What<'_>| receiver(&Event { at: MonoNs(at), what });
        let forwarded = Some(MonoNs(at + RELAY_NS));
        match self {
            // The relay forwards even a frame that cannot be decoded.
            Self::Plain(What::Undecoded(undecoded)) => emit(What::Undecoded(Undecoded { forwarded, ..*undecoded })),
            Self::Plain(what) => emit(*what),
            Self::Sent { id, kind, column, parts } => {
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
            Self::Delivered { rid, tokens, mode, reported, finished } => emit(What::Delivered(Delivery {
                mode: *mode,
                finished: *finished,
                ..Delivery::new(rid, *tokens, Some(*reported))
            })),
            Self::Answered { rid, tokens, claimed, end } => {
                emit(What::Answered(Answer { end: *end, ..Answer::new(rid, *tokens, Some(*claimed)) }));
            }
        }
    }

    /// Sequence within which the source guarantees the order; `None` if the event must not be reordered at all.
    pub(crate) fn sequence(&self) -> Option<Sequence> {
        match self {
            Self::Sent { id, .. } | Self::Plain(What::Undecoded(Undecoded { id, .. })) => {
                Some(Sequence::Sends(id.hop, id.lane))
            }
            Self::Plain(What::Received(received)) => Some(Sequence::Receives(received.id.hop)),
            Self::Delivered { .. } | Self::Answered { .. } => Some(Sequence::Deliveries),
            Self::Plain(_) => None,
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
