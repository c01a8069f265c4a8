//! Conversion of one connection's bytes into events, response by response.

use std::collections::BTreeMap;

use trace::MonoNs;
use trace::event::{AnswerEnd, Event, MissedCause};

use super::frontend::FrontendResponse;
use super::open::{Open, lost};
use super::stream::{Item, Stream};
use super::{Limits, Server};

/// How a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closing {
    /// Whether the client closed first; `None` if unknown.
    pub by_client: Option<bool>,
    /// Number of bytes accepted by the kernel and not acknowledged by the client.
    pub unacknowledged: Option<u64>,
}

/// Reader of one connection.
#[derive(Debug)]
pub struct Reader {
    limits: Limits,
    stream: Stream,
    responses: Responses,
    /// The current response of a frontend, whose responses are only timed.
    frontend: Option<FrontendResponse>,
}

/// The current responses.
#[derive(Debug, Default)]
struct Responses {
    /// The response of a connection that carries one at a time.
    single: Open,
    /// Responses of an HTTP/2 connection, by stream.
    streams: BTreeMap<u32, Open>,
    /// Stream of the current element; `None` on other connections.
    current: Option<u32>,
}

impl Reader {
    /// Starts at any point of a connection.
    pub fn new(limits: Limits) -> Self {
        Self { limits, stream: Stream::new(limits), responses: Responses::default(), frontend: None }
    }

    /// Like [`Self::new`], for a connection of a frontend. Its responses are no deliveries.
    pub fn of_frontend(limits: Limits) -> Self {
        Self { frontend: Some(FrontendResponse::default()), ..Self::new(limits) }
    }

    /// Whether no further byte of the connection will be read.
    pub fn is_unreadable(&self) -> bool {
        self.stream.is_unreadable()
    }

    /// Records that the client has cancelled. Tokens generated from now on are not written and do not count as lost.
    pub fn stopped(&mut self) {
        self.responses.single.stopped();
    }

    /// Records that the socket accepted none or only a part of a write.
    pub fn short_writes(&mut self) {
        match &mut self.frontend {
            Some(response) => response.held_up(),
            None => self.responses.all().for_each(Open::short_write),
        }
    }

    /// Records that bytes were not observed, so their content is unknown.
    pub fn missed(&mut self, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>)) {
        if !self.stream.is_unreadable() {
            self.stream.missed();
            match &mut self.frontend {
                Some(response) => response.forget(),
                None => self.responses.missed(at, sink),
            }
        }
    }

    /// Processes bytes that the kernel has accepted. `begins` marks the start of a write.
    pub fn feed(
        &mut self,
        at: MonoNs,
        bytes: &[u8],
        begins: bool,
        server: &mut Server,
        sink: &mut dyn FnMut(&Event<'_>),
    ) {
        let (responses, limits) = (&mut self.responses, &self.limits);
        let frontend = &mut self.frontend;
        self.stream.feed(bytes, begins, &mut |item| match frontend {
            Some(response) => response.enter(at, &item, &mut server.frontends, sink),
            None => responses.enter(at, &item, limits, server, sink),
        });
    }

    /// Processes the end of the connection.
    pub fn closed(&mut self, at: MonoNs, closing: Closing, server: &mut Server, sink: &mut dyn FnMut(&Event<'_>)) {
        if let Some(response) = &mut self.frontend {
            return response.ended(at, &mut server.frontends, sink);
        }
        let (responses, limits) = (&mut self.responses, &self.limits);
        if closing.by_client == Some(false) {
            self.stream.closed(&mut |item| {
                responses.enter(at, &item, limits, server, sink);
            });
        }
        let end = match closing.by_client {
            Some(true) => AnswerEnd::ClientLeft,
            Some(false) => AnswerEnd::ServerLeft,
            None => AnswerEnd::Unknown,
        };
        responses.single.closed(at, end, closing.unacknowledged, server, sink);
        // A client may have cancelled a stream earlier, which only the server reads.
        let end = if end == AnswerEnd::ClientLeft { end } else { AnswerEnd::Unknown };
        for open in responses.streams.values_mut() {
            open.closed(at, end, closing.unacknowledged, server, sink);
        }
    }
}

impl Responses {
    fn all(&mut self) -> impl Iterator<Item = &mut Open> {
        std::iter::once(&mut self.single).chain(self.streams.values_mut())
    }

    /// Records that events before this point were missed.
    fn missed(&mut self, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>)) {
        self.all().for_each(Open::forget);
        lost(at, MissedCause::Unframed, sink);
    }

    fn enter(
        &mut self,
        at: MonoNs,
        item: &Item<'_>,
        limits: &Limits,
        server: &mut Server,
        sink: &mut dyn FnMut(&Event<'_>),
    ) {
        match (item, self.current) {
            (Item::Stream(stream), _) => self.current = Some(*stream),
            (Item::Resumed, _) => self.missed(at, sink),
            (_, None) => self.single.enter(at, item, limits, server, sink),
            (_, Some(stream)) => {
                if self.streams.len() >= limits.streams
                    && !self.streams.contains_key(&stream)
                    && let Some((_, mut oldest)) = self.streams.pop_first()
                {
                    oldest.closed(at, AnswerEnd::Unknown, None, server, sink);
                }
                let open = self.streams.entry(stream).or_default();
                open.enter(at, item, limits, server, sink);
                if *item == Item::Ended {
                    self.streams.remove(&stream);
                }
            }
        }
    }
}
