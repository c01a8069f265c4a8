//! Conversion of one connection's bytes into events, response by response.

use std::collections::BTreeMap;

use trace::MonoNs;
use trace::event::{AnswerEnd, Event};

use super::event::{Element, Sink};
use super::frontend::FrontendResponse;
use super::open::Open;
use super::stream::Stream;
use super::{Limits, Server, StreamProtocol};

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
        Self { limits, stream: Stream::new(limits, &[]), responses: Responses::default(), frontend: None }
    }

    /// Like [`Self::new`], for a connection of a frontend. Its responses are no deliveries.
    pub fn of_frontend(limits: Limits) -> Self {
        Self { frontend: Some(FrontendResponse::default()), ..Self::new(limits) }
    }

    /// Also reads these protocols.
    #[must_use]
    pub fn with_protocols(mut self, protocols: &'static [StreamProtocol]) -> Self {
        self.stream = Stream::new(self.limits, protocols);
        self
    }

    /// Whether the connection is one of a frontend.
    pub fn is_of_frontend(&self) -> bool {
        self.frontend.is_some()
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
            Some(response) => response.writes.held_up(),
            None => self.responses.all().for_each(Open::short_write),
        }
    }

    /// Records that bytes were not observed, so their content is unknown.
    pub fn missed(&mut self, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>)) {
        if !self.stream.is_unreadable() {
            self.stream.missed();
            match &mut self.frontend {
                Some(response) => response.writes.whole = false,
                None => self.responses.missed(&mut Sink { at, events: sink }),
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
        let (Self { limits, stream, responses, frontend }, mut sink) = (self, Sink { at, events: sink });
        stream.feed(bytes, begins, &mut |item| match frontend {
            Some(response) => response.enter(&item, &mut server.frontends, &mut sink),
            None => responses.enter(item, limits, server, &mut sink),
        });
    }

    /// Processes the end of the connection, which is the end of a response in progress. `unacknowledged`: number of bytes accepted by the
    /// kernel and not acknowledged by the client.
    pub fn closed(
        &mut self,
        at: MonoNs,
        end: AnswerEnd,
        unacknowledged: Option<u64>,
        server: &mut Server,
        sink: &mut dyn FnMut(&Event<'_>),
    ) {
        let (Self { limits, stream, responses, frontend }, mut sink) = (self, Sink { at, events: sink });
        if let Some(response) = frontend {
            return response.ended(&mut server.frontends, &mut sink);
        }
        if end == AnswerEnd::ServerLeft {
            stream.closed(&mut |item| responses.enter(item, limits, server, &mut sink));
        }
        responses.single.closed(end, unacknowledged, server, &mut sink);
        // A client may have cancelled a stream earlier, which only the server reads.
        let end = if end == AnswerEnd::ClientLeft { end } else { AnswerEnd::Unknown };
        for open in responses.streams.values_mut() {
            open.closed(end, unacknowledged, server, &mut sink);
        }
    }
}

impl Responses {
    fn all(&mut self) -> impl Iterator<Item = &mut Open> {
        std::iter::once(&mut self.single).chain(self.streams.values_mut())
    }

    /// Records that events before this point were missed.
    fn missed(&mut self, sink: &mut Sink<'_>) {
        self.all().for_each(Open::forget);
        sink.missed();
    }

    fn enter(&mut self, item: Element<'_>, limits: &Limits, server: &mut Server, sink: &mut Sink<'_>) {
        match (item, self.current) {
            (Element::Stream(stream), _) => self.current = Some(stream),
            (Element::Other, _) => {}
            (Element::Resumed, _) => self.missed(sink),
            (item, None) => self.single.enter(item, limits, server, sink),
            (item, Some(stream)) => {
                if self.streams.len() >= limits.streams
                    && !self.streams.contains_key(&stream)
                    && let Some((_, mut oldest)) = self.streams.pop_first()
                {
                    oldest.closed(AnswerEnd::Unknown, None, server, sink);
                }
                let ends = item == Element::Ended;
                self.streams.entry(stream).or_default().enter(item, limits, server, sink);
                if ends {
                    self.streams.remove(&stream);
                }
            }
        }
    }
}
