//! Conversion of one connection's bytes into events, response by response.

use std::collections::BTreeMap;

use trace::MonoNs;
use trace::event::{AnswerEnd, Event};

use super::event::{ResponseElement, Sink};
use super::frontend::FrontendResponse;
use super::open_response::OpenResponse;
use super::protocol_parser::ProtocolParser;
use super::{Limits, Server, StreamProtocol};

/// Reader of one connection.
#[derive(Debug)]
pub struct ResponseReader {
    limits: Limits,
    parser: ProtocolParser,
    responses: OpenResponses,
    /// The current response of a frontend, whose responses are only timed.
    frontend: Option<FrontendResponse>,
}

/// The current responses.
#[derive(Debug, Default)]
struct OpenResponses {
    /// The response of a connection that carries one at a time.
    single: OpenResponse,
    /// Responses of an HTTP/2 connection, by stream.
    streams: BTreeMap<u32, OpenResponse>,
    /// Stream of the current element; `None` on other connections.
    current: Option<u32>,
}

impl ResponseReader {
    /// Starts at any point of a connection.
    pub fn new(limits: Limits) -> Self {
        Self { limits, parser: ProtocolParser::new(limits, &[]), responses: OpenResponses::default(), frontend: None }
    }

    /// Like [`Self::new`], for a connection of a frontend. Its responses are no deliveries.
    pub fn of_frontend(limits: Limits) -> Self {
        Self { frontend: Some(FrontendResponse::default()), ..Self::new(limits) }
    }

    /// Also reads these protocols.
    #[must_use]
    pub fn with_protocols(mut self, protocols: &'static [StreamProtocol]) -> Self {
        self.parser = ProtocolParser::new(self.limits, protocols);
        self
    }

    /// Whether the connection is one of a frontend.
    pub fn is_of_frontend(&self) -> bool {
        self.frontend.is_some()
    }

    /// Whether no further byte of the connection will be read.
    pub fn is_unreadable(&self) -> bool {
        self.parser.is_unreadable()
    }

    /// Records that the client has cancelled. Tokens generated from now on are not written and do not count as lost.
    pub fn record_cancel(&mut self) {
        self.responses.single.record_cancel();
    }

    /// Records that the socket accepted none or only a part of a write.
    pub fn record_short_write(&mut self) {
        match &mut self.frontend {
            Some(response) => response.writes.record_short_write(),
            None => self.responses.all().for_each(OpenResponse::record_short_write),
        }
    }

    /// Records that bytes were not observed, so their content is unknown.
    pub fn record_gap(&mut self, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>)) {
        if !self.parser.is_unreadable() {
            self.parser.record_gap();
            match &mut self.frontend {
                Some(response) => response.writes.whole = false,
                None => self.responses.record_gap(&mut Sink { at, events: sink }),
            }
        }
    }

    /// Processes bytes that the kernel has accepted. `begins` marks the start of a write.
    pub fn read_bytes(
        &mut self,
        at: MonoNs,
        bytes: &[u8],
        begins: bool,
        server: &mut Server,
        sink: &mut dyn FnMut(&Event<'_>),
    ) {
        let (Self { limits, parser, responses, frontend }, mut sink) = (self, Sink { at, events: sink });
        parser.parse(bytes, begins, &mut |item| match frontend {
            Some(response) => response.record_element(&item, &mut server.frontends, &mut sink),
            None => responses.record_element(item, limits, server, &mut sink),
        });
    }

    /// Processes the end of the connection, which is the end of a response in progress. `unacknowledged`: number of bytes accepted by the
    /// kernel and not acknowledged by the client.
    pub fn end_connection(
        &mut self,
        at: MonoNs,
        end: AnswerEnd,
        unacknowledged: Option<u64>,
        server: &mut Server,
        sink: &mut dyn FnMut(&Event<'_>),
    ) {
        let (Self { limits, parser, responses, frontend }, mut sink) = (self, Sink { at, events: sink });
        if let Some(response) = frontend {
            return response.ended(&mut server.frontends, &mut sink);
        }
        if end == AnswerEnd::ServerLeft {
            parser.end_connection(&mut |item| responses.record_element(item, limits, server, &mut sink));
        }
        responses.single.end_connection(end, unacknowledged, server, &mut sink);
        // A client may have cancelled a stream earlier, which only the server reads.
        let end = if end == AnswerEnd::ClientLeft { end } else { AnswerEnd::Unknown };
        for open in responses.streams.values_mut() {
            open.end_connection(end, unacknowledged, server, &mut sink);
        }
    }
}

impl OpenResponses {
    fn all(&mut self) -> impl Iterator<Item = &mut OpenResponse> {
        std::iter::once(&mut self.single).chain(self.streams.values_mut())
    }

    /// Records that events before this point were missed.
    fn record_gap(&mut self, sink: &mut Sink<'_>) {
        self.all().for_each(OpenResponse::forget);
        sink.missed();
    }

    /// Passes an element to the response of its stream.
    fn record_element(&mut self, item: ResponseElement<'_>, limits: &Limits, server: &mut Server, sink: &mut Sink<'_>) {
        match (item, self.current) {
            (ResponseElement::Stream(stream), _) => self.current = Some(stream),
            (ResponseElement::Other, _) => {}
            (ResponseElement::Resumed, _) => self.record_gap(sink),
            (item, None) => self.single.record_element(item, limits, server, sink),
            (item, Some(stream)) => {
                if self.streams.len() >= limits.streams
                    && !self.streams.contains_key(&stream)
                    && let Some((_, mut oldest)) = self.streams.pop_first()
                {
                    oldest.end_connection(AnswerEnd::Unknown, None, server, sink);
                }
                let ends = item == ResponseElement::Ended;
                self.streams.entry(stream).or_default().record_element(item, limits, server, sink);
                if ends {
                    self.streams.remove(&stream);
                }
            }
        }
    }
}
