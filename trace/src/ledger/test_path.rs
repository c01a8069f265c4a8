//! Hops with numbered frames for the ledger's tests, with short calls for events.

use super::{Ledger, Limits};
use crate::clock::MonoNs;
use crate::event::{Capabilities, Chunk, Delivery, Event, Frame, Hop, IdColumn, Received, What};
use crate::id::{FrameId, HopId};

pub(super) struct TestPath {
    pub(super) ledger: Ledger,
    /// Time of the next event.
    pub(super) now: u64,
    sent: [u64; 2],
}

impl TestPath {
    pub(super) fn new(limits: Limits) -> Self {
        Self { ledger: Ledger::new(limits), now: 1, sent: [0; 2] }
    }

    pub(super) fn apply(&mut self, what: What<'_>) {
        self.ledger.apply(&Event::new(MonoNs(self.now), what));
        assert_eq!(self.ledger.balances(), Ok(()));
    }

    pub(super) fn announce(&mut self, id: u16, name: &str, [origin, last]: [bool; 2], capabilities: Capabilities) {
        self.apply(What::Hop(Hop { origin, last, ..Hop::new(HopId(id), name, capabilities) }));
    }

    /// Sends the next frame of a hop with these chunks.
    pub(super) fn send(&mut self, hop: u16, ids: IdColumn, chunks: &[Chunk<'_>]) {
        let seq = self.sent[usize::from(hop)];
        self.sent[usize::from(hop)] += 1;
        let frame = Frame::token_ids(FrameId::new(HopId(hop), 0, seq), 900, chunks);
        self.apply(What::Sent(Frame { ids, ..frame }));
    }

    /// Receives a frame of hop 0.
    pub(super) fn receive(&mut self, seq: u64) {
        self.apply(What::Received(Received::new(FrameId::new(HopId(0), 0, seq))));
    }

    /// Delivers one token of request `a`, with this count.
    pub(super) fn deliver(&mut self, count: u32, finished: bool) {
        self.apply(What::Delivered(Delivery { finished, ..Delivery::new("a", 1, Some(count)) }));
    }
}
