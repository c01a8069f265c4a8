//! Reader of one connection: recognises its protocol, and records the elements of its responses.

use std::collections::BTreeMap;

use trace::MonoNs;
use trace::event::{AnswerEnd, ArrivalTimes, Event, TraceParent, UnknownArrival};

use super::event::{ElementSink, EventSink, ParseResponses, ResponseElement, SINGLE_STREAM};
use super::frontend::TimedResponse;
use super::http::HttpParser;
use super::http2::Http2Parser;
use super::open_response::OpenResponse;
use super::protocol::{Detected, detect_protocol, find_chunk_with_event};
use super::{Limits, Server, StreamProtocol, Unreadable};

/// Reader of the bytes that a server writes on one connection. It starts at any point of the connection.
#[derive(Debug, Default)]
pub struct ResponseReader {
    limits: Limits,
    protocols: &'static [StreamProtocol],
    state: ReaderState,
    /// Number of bytes since the last readable position.
    skipped_bytes: u64,
    /// Responses in progress, by HTTP/2 stream. Other connections carry one at a time, as [`SINGLE_STREAM`].
    open: BTreeMap<u32, OpenResponse>,
    /// Arrival of the request that the next response answers; `None` where arrivals are not observed.
    next_arrival: Option<Result<ArrivalTimes, UnknownArrival>>,
    /// Span of the caller of that request.
    trace_parent: Option<TraceParent>,
    /// The current response of a frontend, whose responses are only timed.
    timed_response: Option<TimedResponse>,
}

#[derive(Debug)]
enum ReaderState {
    /// Searching for a readable position. Holds bytes that are too few to decide.
    Seeking(Vec<u8>),
    Parsing(Box<dyn ParseResponses>),
    Unreadable,
}

impl Default for ReaderState {
    fn default() -> Self {
        Self::Seeking(Vec::new())
    }
}

impl ResponseReader {
    /// Creates a reader with other limits than the default ones.
    pub fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Creates a reader of a frontend's connection. Its responses are no deliveries.
    pub fn of_frontend() -> Self {
        Self { timed_response: Some(TimedResponse::default()), ..Self::default() }
    }

    /// Starts again, for another connection of the same kind.
    pub fn restart(&mut self) {
        // Whether the connection is of a frontend, and whether arrivals are observed, stays.
        let timed_response = self.timed_response.as_ref().map(|_| TimedResponse::default());
        let next_arrival = self.next_arrival.map(|_| Err(UnknownArrival::Missed));
        *self =
            Self { limits: self.limits, protocols: self.protocols, next_arrival, timed_response, ..Self::default() };
    }

    /// Also reads these protocols.
    #[must_use]
    pub fn with_protocols(self, protocols: &'static [StreamProtocol]) -> Self {
        Self { protocols, ..self }
    }

    /// Also reports when requests reached the server. `reason_until_known`: why that is unknown until [`Self::record_arrival`] is called.
    #[must_use]
    pub fn with_arrivals(mut self, reason_until_known: UnknownArrival) -> Self {
        self.next_arrival = Some(Err(reason_until_known));
        self
    }

    /// Records when the request arrived that the next response answers, and the span of its caller if its head names one.
    pub fn record_arrival(&mut self, times: ArrivalTimes, trace_parent: Option<TraceParent>) {
        if let Some(response) = self.open.get(&SINGLE_STREAM)
            && response.has_begun
        {
            // The request came before the last response has ended (pipelining). Of this and all later requests of the connection, it is
            // unknown which arrived when.
            if response.is_fully_observed && self.next_arrival.is_some() {
                self.next_arrival = Some(Err(UnknownArrival::Pipelined));
            }
            return;
        }
        // `Missed` is the value until an arrival is recorded. A second arrival is ignored: it is of the same request, if the server has
        // written `100 Continue`.
        if self.next_arrival == Some(Err(UnknownArrival::Missed)) {
            self.next_arrival = Some(Ok(times));
            self.trace_parent = trace_parent;
        }
    }

    /// Whether the connection is one of a frontend.
    pub fn is_of_frontend(&self) -> bool {
        self.timed_response.is_some()
    }

    /// Whether the first event of the worker's stream is still to come, and the engine's id of its request is not known. After that event,
    /// the stream can no longer be joined with its request.
    pub fn lacks_request_id(&self, server: &Server) -> bool {
        let context = self.open.get(&SINGLE_STREAM).and_then(OpenResponse::context_without_rid);
        context.is_some_and(|context| !server.knows_rid(context))
    }

    /// Whether no further byte of the connection will be read.
    pub fn is_unreadable(&self) -> bool {
        matches!(self.state, ReaderState::Unreadable)
    }

    /// Records that the client has cancelled. Tokens generated from now on are not written and do not count as lost.
    pub fn record_cancel(&mut self) {
        self.open.entry(SINGLE_STREAM).or_default().record_cancel();
    }

    /// Records that the socket accepted none or only a part of a write.
    pub fn record_short_write(&mut self) {
        // A frontend's responses are only timed.
        if let Some(response) = &mut self.timed_response {
            return response.writes.record_short_write();
        }
        // The write may be the beginning of the next response, so there must be one to count it for.
        self.open.entry(SINGLE_STREAM).or_default();
        self.open.values_mut().for_each(OpenResponse::record_short_write);
    }

    /// Records that bytes were not observed, so their content is unknown. The reader searches for the next readable position.
    pub fn record_gap(&mut self, at: MonoNs, events: &mut dyn FnMut(&Event<'_>)) {
        // At least one byte, so that the next readable position is not taken for the start of the connection.
        self.skipped_bytes = self.skipped_bytes.max(1);
        self.state = match &self.state {
            ReaderState::Unreadable => return,
            // Such a connection carries one response, so nothing after a gap can be interpreted.
            ReaderState::Parsing(parser) if !parser.resumes_after_gap() => ReaderState::Unreadable,
            ReaderState::Parsing(_) | ReaderState::Seeking(_) => ReaderState::default(),
        };
        self.report_gap_in_responses(&mut EventSink { at, events });
    }

    /// Reads bytes of the server that the kernel has accepted, and passes the events of their responses to `events`. `is_start_of_write`:
    /// the bytes are the first of a write.
    pub fn read_bytes(
        &mut self,
        at: MonoNs,
        bytes: &[u8],
        is_start_of_write: bool,
        server: &mut Server,
        events: &mut dyn FnMut(&Event<'_>),
    ) {
        let sink = &mut EventSink { at, events };
        // While the protocol is not known, bytes that are too few to show it are kept.
        let ReaderState::Seeking(kept) = &mut self.state else {
            return self.parse_bytes(bytes, server, sink);
        };
        let kept = std::mem::take(kept);
        if kept.is_empty() {
            self.seek_protocol_and_parse(bytes, is_start_of_write, server, sink);
        } else {
            // Bytes are kept only from the start of a write or of the connection.
            let is_start_of_write = true;
            self.seek_protocol_and_parse(&[&kept[..], bytes].concat(), is_start_of_write, server, sink);
        }
    }

    /// Ends the connection, and the responses in progress on it. `end`: how the connection ended. `unacknowledged_bytes`: number of bytes
    /// that the kernel has accepted and the client has not acknowledged.
    pub fn end_connection(
        &mut self,
        at: MonoNs,
        end: AnswerEnd,
        unacknowledged_bytes: Option<u64>,
        server: &mut Server,
        events: &mut dyn FnMut(&Event<'_>),
    ) {
        let sink = &mut EventSink { at, events };
        // A frontend's responses are only timed.
        if let Some(response) = &mut self.timed_response {
            return response.end_response(&mut server.frontends, sink);
        }
        // A body without a declared length is complete when the server closes its connection.
        if end == AnswerEnd::ServerLeft
            && let Some(mut parser) = self.take_parser()
        {
            let why_arrivals_hidden = parser.why_arrivals_hidden();
            let mut add_element = |stream: u32, element: ResponseElement<'_>| {
                self.add_element(stream, element, why_arrivals_hidden, server, sink);
            };
            parser.end_at_close_by_server(&mut ElementSink::of_connection(&mut add_element));
            self.state = ReaderState::Parsing(parser);
        }
        for (stream, response) in std::mem::take(&mut self.open) {
            response.end_response(end_of_stream(stream, end), unacknowledged_bytes, server, sink);
        }
    }

    /// Protocol that the first of these bytes show. `Unknown` if bytes before them were skipped and they do not begin a write, because they
    /// may then be the middle of a response.
    #[inline]
    fn detect_at_start(&self, bytes: &[u8], is_start_of_write: bool) -> Detected {
        if is_start_of_write || self.skipped_bytes == 0 {
            detect_protocol(bytes, self.protocols)
        } else {
            Detected::Unknown
        }
    }

    /// Looks for a position in these bytes from which on the connection can be read, as it may be joined anywhere. Parses the bytes from
    /// there on, and skips those before. `is_start_of_write`: the bytes are the first of a write.
    fn seek_protocol_and_parse(
        &mut self,
        bytes: &[u8],
        is_start_of_write: bool,
        server: &mut Server,
        sink: &mut EventSink<'_>,
    ) {
        let mut detected = self.detect_at_start(bytes, is_start_of_write);
        let mut offset = 0;
        if let Detected::Unknown = detected {
            // In the middle of a response, the start of an event can be recognised.
            if let Some(chunk) = find_chunk_with_event(bytes) {
                offset = chunk;
                detected = Detected::Events;
            } else {
                // All of these bytes are skipped.
                offset = bytes.len();
            }
        }
        self.skipped_bytes += offset as u64;
        match self.state_after(&detected, bytes) {
            Ok(state) => self.state = state,
            Err(why) => return self.stop_reading(why, server, sink),
        }
        if let ReaderState::Seeking(_) = self.state {
            return;
        }
        // The skipped bytes may hold the beginning of a response.
        let skipped_bytes = std::mem::take(&mut self.skipped_bytes);
        if skipped_bytes > 0 {
            self.report_gap_in_responses(sink);
        }
        self.parse_bytes(&bytes[offset..], server, sink);
    }

    /// State of the reader once `detected` is known: parsing from the position that it describes, or seeking further if `bytes` do not show
    /// a position. An error if the connection cannot be read.
    fn state_after(&self, detected: &Detected, bytes: &[u8]) -> Result<ReaderState, Unreadable> {
        let limits = self.limits;
        let is_from_start = self.skipped_bytes == 0;
        Ok(match *detected {
            // Kept until further bytes show the protocol.
            Detected::Short => ReaderState::Seeking(bytes.to_vec()),
            // Too much was searched already.
            Detected::Unknown if self.skipped_bytes > limits.seek_bytes => return Err(Unreadable::Unknown),
            Detected::Unknown => ReaderState::Seeking(Vec::new()),
            Detected::Unreadable(why) => return Err(why),
            Detected::Http => ReaderState::Parsing(Box::new(HttpParser::new(limits))),
            Detected::Http2 { is_first } => {
                let from_start = is_first && is_from_start;
                ReaderState::Parsing(Box::new(Http2Parser::new(limits, from_start)))
            }
            Detected::Events => ReaderState::Parsing(Box::new(HttpParser::within_events(limits))),
            Detected::Stream(protocol) => ReaderState::Parsing((protocol.parser)(limits)),
        })
    }

    /// Parses the next bytes of the connection, and adds each element in them to the response of its stream.
    fn parse_bytes(&mut self, bytes: &[u8], server: &mut Server, sink: &mut EventSink<'_>) {
        let Some(mut parser) = self.take_parser() else { return };
        let why_arrivals_hidden = parser.why_arrivals_hidden();
        let mut add_element = |stream: u32, element: ResponseElement<'_>| {
            self.add_element(stream, element, why_arrivals_hidden, server, sink);
        };
        let parsed = parser.parse(bytes, &mut ElementSink::of_connection(&mut add_element));
        self.state = ReaderState::Parsing(parser);
        match parsed {
            Ok(()) => {}
            // The server's framing was valid so far, so bytes must have been missed.
            Err(Unreadable::Chunks) => self.record_gap(sink.at, sink.events),
            Err(why) => self.stop_reading(why, server, sink),
        }
    }

    /// Takes the parser out of `self` while it parses, because each element that it finds changes `self`. The caller puts it back. `None`
    /// if the protocol is not known, or the connection cannot be read.
    #[inline]
    fn take_parser(&mut self) -> Option<Box<dyn ParseResponses>> {
        match std::mem::take(&mut self.state) {
            ReaderState::Parsing(parser) => Some(parser),
            other_state => {
                self.state = other_state;
                None
            }
        }
    }

    /// Reads no further byte of the connection, because its bytes are not understood.
    fn stop_reading(&mut self, why: Unreadable, server: &mut Server, sink: &mut EventSink<'_>) {
        self.state = ReaderState::Unreadable;
        if let Some(response) = &mut self.timed_response {
            // A frontend's responses are only timed. The reason concerns the whole connection and no HTTP/2 stream of it.
            return response.record_element_time(
                SINGLE_STREAM,
                &ResponseElement::Unreadable(why),
                &mut server.frontends,
                sink,
            );
        }
        self.open.values_mut().for_each(OpenResponse::mark_incomplete);
        server.count_unreadable(why);
    }

    /// Adds an element, such as an event, to the response of its HTTP/2 stream, which it may begin or end. At the limit of streams, ends
    /// the oldest response. `why_arrivals_hidden`: why the connection's protocol hides which request arrived when; `None` for HTTP/1.
    fn add_element(
        &mut self,
        stream: u32,
        element: ResponseElement<'_>,
        why_arrivals_hidden: Option<UnknownArrival>,
        server: &mut Server,
        sink: &mut EventSink<'_>,
    ) {
        let Self { limits, open, next_arrival, trace_parent, timed_response, .. } = self;
        // A frontend's responses are only timed.
        if let Some(response) = timed_response {
            return response.record_element_time(stream, &element, &mut server.frontends, sink);
        }
        if let ResponseElement::Ended = element {
            if let Some(response) = open.remove(&stream) {
                // Known only when the connection ends.
                let unacknowledged_bytes = None;
                response.end_response(AnswerEnd::Whole, unacknowledged_bytes, server, sink);
            }
            return;
        }
        let is_new_stream = !open.contains_key(&stream);
        if is_new_stream && open.len() >= limits.streams {
            end_oldest_response(open, server, sink);
        }
        let begins_response = matches!(element, ResponseElement::Began | ResponseElement::StreamNamed(_));
        let response = open.entry(stream).or_default();
        response.apply_element(element, limits, server, sink);
        if begins_response {
            // The request that arrived last is the one that this response answers.
            let arrival = take_arrival(next_arrival, why_arrivals_hidden);
            let caller_span = trace_parent.take();
            set_arrival_and_caller(response, arrival, caller_span);
        }
    }

    /// Marks every response in progress as incomplete, because bytes of it may have been missed, and reports a missed event.
    fn report_gap_in_responses(&mut self, sink: &mut EventSink<'_>) {
        if let Some(response) = &mut self.timed_response {
            response.writes.are_all_observed = false;
            return;
        }
        self.open.values_mut().for_each(OpenResponse::mark_incomplete);
        sink.report_missed_event();
    }
}

/// How the open response of a stream ended with its connection. Unknown for one of several streams, unless the client has left: the client
/// may have cancelled it earlier, by a message to the server, which is not observed.
fn end_of_stream(stream: u32, connection_end: AnswerEnd) -> AnswerEnd {
    let is_end_known = stream == SINGLE_STREAM || connection_end == AnswerEnd::ClientLeft;
    if is_end_known { connection_end } else { AnswerEnd::Unknown }
}

/// Ends the oldest open response, that of the stream with the lowest number, because a new one needs its place.
#[inline]
fn end_oldest_response(open: &mut BTreeMap<u32, OpenResponse>, server: &mut Server, sink: &mut EventSink<'_>) {
    // Known only when the connection ends.
    let unacknowledged_bytes = None;
    if let Some((_, oldest)) = open.pop_first() {
        oldest.end_response(AnswerEnd::Unknown, unacknowledged_bytes, server, sink);
    }
}

/// Keeps the arrival of the response's request and the span of its caller. Both were read together, so without an arrival the span may be
/// that of another request.
#[inline]
fn set_arrival_and_caller(
    response: &mut OpenResponse,
    arrival: Option<Result<ArrivalTimes, UnknownArrival>>,
    caller_span: Option<TraceParent>,
) {
    let is_arrival_known = arrival.is_some_and(|times| times.is_ok());
    response.arrival = arrival;
    response.trace_parent = if is_arrival_known { caller_span } else { None };
}

/// Takes the arrival of the request whose response begins, or why it is unknown. `None` where arrivals are not observed.
/// `why_arrivals_hidden`: why the connection's protocol hides the arrival; `None` for HTTP/1, which does not.
fn take_arrival(
    next_arrival: &mut Option<Result<ArrivalTimes, UnknownArrival>>,
    why_arrivals_hidden: Option<UnknownArrival>,
) -> Option<Result<ArrivalTimes, UnknownArrival>> {
    let arrival = *next_arrival;
    // Each request has its own times, so the next response without new ones belongs to a request whose arrival was missed.
    if let Some(Ok(_)) = arrival {
        *next_arrival = Some(Err(UnknownArrival::Missed));
    }
    let arrival = arrival?;
    // Several requests share the connection, and nothing shows whose times these are. Encryption is kept as the reason if it is one.
    if let Some(why) = why_arrivals_hidden
        && arrival != Err(UnknownArrival::Tls)
    {
        return Some(Err(why));
    }
    Some(arrival)
}
