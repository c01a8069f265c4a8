//! Moments of the demo told as events: frames are decoded here, once, for everything downstream.

use trace::engine::Waiter;
use trace::event::{Delivery, Engine, Event, Frame, Taken, Undecoded, What};
use trace::{FrameId, MonoNs};
use zmq_tap::wire::{Decoder, Limits};

use super::timeline::Moment;

/// Turns moments into events.
pub(super) struct Teller {
    decoder: Decoder,
    version: &'static str,
    waiter: Waiter,
}

impl Teller {
    pub(super) fn new(version: &'static str, waiter: Waiter) -> Self {
        Self {
            decoder: Decoder::new(Limits::default()),
            version,
            waiter,
        }
    }

    /// What the engine is, while it serves in `mode`.
    pub(super) fn engine(&self, mode: trace::engine::Mode) -> What<'static> {
        What::Engine(Engine {
            version: Some(self.version),
            mode: Some(mode),
            waiter: Some(self.waiter),
        })
    }

    /// Tells one moment.
    pub(super) fn tell(&mut self, at: MonoNs, moment: &Moment, sink: &mut dyn FnMut(&Event<'_>)) {
        let what = match moment {
            Moment::Sent {
                id,
                bytes,
                message: Ok(message),
            } => return self.sent(at, *id, *bytes, message, sink),
            Moment::Sent {
                id,
                bytes,
                message: Err(reason),
            } => What::Undecoded(Undecoded {
                id: *id,
                bytes: *bytes,
                reason,
            }),
            Moment::Forwarded(id) => What::Forwarded(*id),
            Moment::Taken { id, wakeup } => What::Taken(Taken {
                id: *id,
                wakeup: Some(*wakeup),
                frame: None,
            }),
            Moment::Handled(id) => What::Handled(*id),
            Moment::Delivered(given) => What::Delivered(Delivery {
                rid: &given.rid,
                tokens: given.tokens,
                mode: given.mode,
                completion_tokens: Some(given.completion_tokens),
                finished: given.finished,
            }),
            Moment::Serves(mode) => self.engine(*mode),
            Moment::Lost(lost) => What::Lost(*lost),
        };
        sink(&Event { at, what });
    }

    fn sent(&mut self, at: MonoNs, id: FrameId, bytes: u64, message: &[u8], sink: &mut dyn FnMut(&Event<'_>)) {
        match self.decoder.decode(message) {
            Ok(batch) => {
                let frame = Frame {
                    id,
                    bytes,
                    kind: batch.kind(),
                    ids: batch.ids(),
                    chunks: batch.chunks(),
                };
                sink(&Event {
                    at,
                    what: What::Sent(frame),
                });
            }
            Err(why) => sink(&Event {
                at,
                what: What::Undecoded(Undecoded {
                    id,
                    bytes,
                    reason: why.reason(),
                }),
            }),
        }
    }
}
