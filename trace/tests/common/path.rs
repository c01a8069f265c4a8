//! Hops with numbered frames, and short calls for events on them.

use trace::event::{Capabilities, Chunk, Delivery, Event, Frame, Hop, IdColumn, Kind, Received, What};
use trace::ledger::Ledger;
use trace::{Analysis, Config, FrameId, HopId, MonoNs};

pub(crate) struct Path {
    pub(crate) analysis: Analysis,
    /// Time of the last event.
    pub(crate) now: u64,
    /// Time before each frame, receive and delivery.
    pub(crate) step_ns: u64,
    /// Sequence number of the next frame of each hop.
    pub(crate) seqs: [u64; 4],
}

#[allow(dead_code, reason = "shared by several test programs")]
impl Path {
    pub(crate) fn new(config: Config) -> Self {
        Self { analysis: Analysis::new(config), now: 1, step_ns: 1_000_000, seqs: [0; 4] }
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        self.analysis.ledger()
    }

    pub(crate) fn apply(&mut self, what: What<'_>) {
        self.analysis.apply(&Event::new(MonoNs(self.now), what));
        assert_eq!(self.ledger().check_balance(), Ok(()));
    }

    pub(crate) fn announce(&mut self, id: u16, name: &str, [origin, last]: [bool; 2], capabilities: Capabilities) {
        self.apply(What::Hop(Hop { origin, last, ..Hop::new(HopId(id), name, capabilities) }));
    }

    /// Sends the next frame of a hop.
    pub(crate) fn frame(&mut self, hop: u16, kind: Kind, ids: IdColumn, chunks: &[Chunk<'_>]) -> FrameId {
        self.now += self.step_ns;
        let seq = &mut self.seqs[usize::from(hop)];
        let id = FrameId::new(HopId(hop), 0, *seq);
        *seq += 1;
        self.apply(What::Sent(Frame { kind, ids, ..Frame::token_ids(id, 900, chunks) }));
        id
    }

    /// Sends the next frame of a hop, with token ids.
    pub(crate) fn send(&mut self, hop: u16, ids: IdColumn, chunks: &[Chunk<'_>]) -> FrameId {
        self.frame(hop, Kind::TokenIds, ids, chunks)
    }

    pub(crate) fn receive(&mut self, id: FrameId) {
        self.now += self.step_ns;
        self.apply(What::Received(Received::new(id)));
    }

    /// Delivers tokens of request `a`, with the count that the response claims, if any.
    pub(crate) fn deliver(&mut self, tokens: u32, count: Option<u32>, finished: bool) {
        self.now += self.step_ns;
        self.apply(What::Delivered(Delivery { finished, ..Delivery::new("a", tokens, count) }));
    }

    /// Lets time pass, with a tick every 100 ms.
    pub(crate) fn wait(&mut self, seconds: u64) {
        for _ in 0..seconds * 10 {
            self.now += 100_000_000;
            self.analysis.tick(MonoNs(self.now));
        }
    }
}
