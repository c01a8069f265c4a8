//! Responses that the relay passes to the clients of one HTTP server, as deliveries.

use std::collections::HashMap;

use trace::MonoNs;
use trace::event::{AnswerEnd, Event, Frame};

use crate::decode::ReadResponseId;
use crate::egress::{Limits, Reader, Server};
use crate::relay::Direction;

/// All connections of one pair. The relay limits their number.
#[derive(Debug, Default)]
pub(super) struct Served {
    pub(super) server: Server,
    connections: HashMap<u32, Reader>,
}

impl Served {
    /// Records the requests and the text of a frame. `read` is for engines whose responses show other ids.
    pub(super) fn sent(&mut self, frame: &Frame<'_>, read: Option<ReadResponseId>) {
        if let Some(read) = read {
            self.server.response_ids.sent(read, frame.chunks);
        }
        self.server.texts.sent(frame);
    }

    /// Processes bytes that the client's socket accepted.
    pub(super) fn passed(&mut self, lane: u32, at: MonoNs, bytes: &[u8], sink: &mut dyn FnMut(&Event<'_>)) {
        let reader = self.connections.entry(lane).or_insert_with(new);
        // The relay does not know where the server's writes begin.
        let begins = false;
        reader.feed(at, bytes, begins, &mut self.server, sink);
    }

    /// Records that the client's socket accepted none or only a part of a write.
    pub(super) fn short_writes(&mut self, lane: u32) {
        self.connections.entry(lane).or_insert_with(new).short_writes();
    }

    /// Records that bytes were relayed without being observed.
    pub(super) fn missed(&mut self, lane: u32, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>)) {
        self.connections.entry(lane).or_insert_with(new).missed(at, sink);
    }

    /// Processes the end of a connection. If neither side ended it, the relay did, and the outcome of the last response is unknown.
    pub(super) fn closed(&mut self, lane: u32, at: MonoNs, first: Option<Direction>, sink: &mut dyn FnMut(&Event<'_>)) {
        if let (Some(mut reader), Some(first)) = (self.connections.remove(&lane), first) {
            let end = if first == Direction::Forward { AnswerEnd::ClientLeft } else { AnswerEnd::ServerLeft };
            reader.closed(at, end, None, &mut self.server, sink);
        }
    }
}

fn new() -> Reader {
    Reader::new(Limits::default())
}
