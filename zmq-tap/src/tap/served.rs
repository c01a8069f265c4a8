//! The clients of one server of HTTP: what the relay passed on to them, as deliveries.

use std::collections::HashMap;

use trace::MonoNs;
use trace::event::Event;

use crate::egress::{Closing, Limits, Reader, Server};
use crate::relay::Direction;

/// All connections of one pair. Their number is bounded by the relay's.
#[derive(Debug, Default)]
pub(super) struct Served {
    server: Server,
    connections: HashMap<u32, Reader>,
}

impl Served {
    /// Whether what passes can be counted.
    pub(super) fn shows_deliveries(&self) -> bool {
        self.server.shows_deliveries()
    }

    /// What passed and was not observable.
    pub(super) fn degraded(&self) -> Vec<String> {
        self.server.degraded()
    }

    /// The client's socket accepted `bytes`.
    pub(super) fn passed(&mut self, lane: u32, at: MonoNs, bytes: &[u8], sink: &mut dyn FnMut(&Event<'_>)) {
        let reader = self.connections.entry(lane).or_insert_with(new);
        // Where the server began a write is not seen here.
        let begins = false;
        reader.feed(at, bytes, begins, &mut self.server, sink);
    }

    /// The client's socket took less than it was given.
    pub(super) fn held_up(&mut self, lane: u32) {
        self.connections.entry(lane).or_insert_with(new).held_up();
    }

    /// Bytes passed that were not told.
    pub(super) fn missed(&mut self, lane: u32, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>)) {
        self.connections.entry(lane).or_insert_with(new).missed(at, sink);
    }

    /// The connection is over. Where neither side ended it, the relay did, and nothing is known of its last response.
    pub(super) fn closed(&mut self, lane: u32, at: MonoNs, first: Option<Direction>, sink: &mut dyn FnMut(&Event<'_>)) {
        if let (Some(mut reader), Some(first)) = (self.connections.remove(&lane), first) {
            let closing = Closing {
                by_client: first == Direction::Forward,
                unacknowledged: None,
            };
            reader.closed(at, closing, &mut self.server, sink);
        }
    }
}

fn new() -> Reader {
    Reader::new(Limits::default())
}
