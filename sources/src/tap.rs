//! The tap as a source: the relay's observations, decoded into events.

mod source;
mod tapped;

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use adapter::decode::{Excerpt, Refused};
use probe_user::discover::Engine;
use responses::ResponseReader;
use trace::event::{AnswerEnd, Capabilities, Event, Missed, MissedCause};
use trace::path::Ends;
use trace::{FrameId, HopId, MonoNs};

use zmq_tap::relay::{
    Counters, Direction, Endpoint, Observation, Observations, Observed, Pair, PairSockets, Payload, Relay, RelayError,
    RelayOptions, RelayStats, Signal, Unread,
};

use crate::translate::{
    Clients, DispatchedMessage, Form, ObservedBy, ObservedMessage, REQUEST_PARTS, Translator,
    report_missed_and_tell_clients,
};
pub use source::lower_decoding_priority;
use tapped::{RelayHops, Tapped};

/// A pair of endpoints, with advance knowledge of the hop between them.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact about the hop, read by its name")]
pub struct TapHop {
    /// The listening endpoint and the upstream.
    pub pair: Pair,
    /// Roles at its ends; `None` derives the sender's role from the messages.
    pub ends: Option<Ends<Box<str>>>,
    /// Index of the receiver in a worker group.
    pub worker: Option<u16>,
    /// Additional capabilities of other observers of the same hop: receives, deliveries.
    pub further_capabilities: Capabilities,
    /// Whether the hop is the first on the path, as far as known.
    pub origin: bool,
    /// Whether the hop is the last on the path, so that its receiver is the tokenizer.
    pub last: bool,
    /// Whether it is known to lead to the scheduler.
    pub carries_requests: bool,
    /// Whether its messages may show that it leads to the scheduler, in both directions.
    pub finds_requests: bool,
    /// Receiver's endpoint for reports, where it differs from the upstream.
    pub endpoint: Option<String>,
}

impl TapHop {
    /// A hop with known endpoints and no other information.
    pub fn new(pair: Pair) -> Self {
        Self {
            pair,
            ends: None,
            worker: None,
            further_capabilities: Capabilities::default(),
            origin: false,
            last: false,
            carries_requests: false,
            finds_requests: false,
            endpoint: None,
        }
    }
}

/// Reason that a message is not decoded: the relay did not keep a copy of it.
const NOT_KEPT: &str = "not-kept";

/// A message that the relay has copied.
#[derive(Clone, Copy, Debug)]
struct RelayedFrame {
    id: FrameId,
    read_at: MonoNs,
    written_at: MonoNs,
    /// Length of all parts.
    bytes: u64,
}

/// A running relay whose frames are decoded into events.
#[derive(Debug)]
pub struct Tap {
    /// `None` once it is stopped.
    relay: Option<Relay>,
    /// The relay closes on another thread, so that observations are still polled in the meantime.
    closing: Option<JoinHandle<()>>,
    counters: Arc<Counters>,
    observations: Arc<Observations>,
    translator: Translator,
    hops: RelayHops,
    /// Warnings about hops whose messages cannot be decoded.
    unreadable_hops: Vec<String>,
    /// Clients of each pair that speaks HTTP.
    served: Vec<Option<Served>>,
}

impl Tap {
    /// Binds every listener and starts to relay. [`Tap::add_hop`] adds further hops.
    pub fn start(hops: Vec<TapHop>, options: RelayOptions) -> Result<Self, RelayError> {
        let formats = options.formats;
        let longest = usize::try_from(options.max_frame_bytes).unwrap_or(usize::MAX);
        let relay = Relay::start(hops.iter().map(|hop| hop.pair.clone()).collect(), options)?;
        let mut tap = Self {
            observations: relay.observations(),
            counters: relay.counters(),
            relay: Some(relay),
            closing: None,
            translator: Translator::new(formats, longest),
            hops: RelayHops::new(formats),
            unreadable_hops: Vec::new(),
            served: Vec::new(),
        };
        for hop in hops {
            tap.add_hop_state(hop);
        }
        tap.mark_zmq_hop_if_only();
        Ok(tap)
    }

    /// If all pairs but one speak HTTP, notes that the other one is the only ZMQ hop. It must end at the process that responds to clients.
    fn mark_zmq_hop_if_only(&mut self) {
        // An entry of `served` is `None` if its pair speaks ZMQ.
        let http_pairs = self.served.iter().flatten().count();
        let has_one_zmq_hop = http_pairs + 1 == self.served.len();
        if has_one_zmq_hop {
            // Every second entry is a backward direction. Marks on pairs that speak HTTP have no effect.
            for forward in self.hops.tapped.iter_mut().step_by(2) {
                forward.is_only_zmq_hop = true;
            }
        }
    }

    /// Adds a hop whose listener is already bound. Its connections wait for `gate` before the relay connects them to the upstream.
    pub fn add_hop(&mut self, hop: TapHop, sockets: PairSockets, gate: Signal) -> Result<(), RelayError> {
        let relay = self.relay.as_mut().ok_or(RelayError::Stopped)?;
        relay.add_bound_pair(hop.pair.clone(), sockets, gate)?;
        self.add_hop_state(hop);
        Ok(())
    }

    /// Adds the state of a hop, at the index that the relay has given it.
    fn add_hop_state(&mut self, hop: TapHop) {
        let served = hop.pair.listen.is_opaque().then(Served::new);
        // Responses that an HTTP server writes to clients become deliveries.
        if let Some(Served { clients, .. }) = &served {
            self.hops.are_deliveries_visible = true;
            self.translator.prepare_comparison(clients);
        }
        self.served.push(served);
        self.hops.tapped.extend(Tapped::both_directions(hop));
    }

    /// Listening endpoint of each pair; empty once the tap has been stopped.
    pub fn listening(&self) -> &[Endpoint] {
        self.relay.as_ref().map_or(&[], Relay::listening)
    }

    /// The relay's counters.
    pub fn stats(&self) -> RelayStats {
        self.counters.read()
    }

    /// The forms of messages so far.
    pub fn forms(&self) -> &[Form] {
        self.translator.forms()
    }

    /// Sets the properties of the engine behind the relay. The next poll reports them, and frames complete them.
    pub(crate) fn set_engine(&mut self, engine: Engine) {
        self.translator.set_engine(engine);
    }

    /// Translates an observation of the relay into events, or counts it for the report. Its `pair` is a listening endpoint with its
    /// upstream, and its `lane` is one connection of that pair.
    fn translate_observation(&mut self, observation: Observation, sink: &mut dyn FnMut(&Event<'_>)) {
        let Observation { pair, lane, what } = observation;
        // A pair is two hops, one for each direction. The forward one stands for both where the direction does not matter.
        let forward = hop_id(pair, Direction::Forward);
        if let Observed::Refused = what {
            return self.count_refused_connection(forward);
        }
        // A pair with an HTTP server, which has no messages.
        if let Some(served) = &mut self.served[usize::from(pair)] {
            return served.read_observed(lane, &what, sink);
        }
        match what {
            Observed::Frame { direction, seq, read_at, written_at, bytes, payload } => {
                let id = FrameId { hop: hop_id(pair, direction), lane, seq };
                let frame = RelayedFrame { id, read_at, written_at, bytes };
                self.decode_and_emit_message(frame, &payload, sink);
            }
            Observed::Lost { direction, count, cause } => {
                self.report_missed_messages(hop_id(pair, direction), count, cause, sink);
            }
            Observed::Opened(at) => {
                // The direction of messages is known in advance only if the ends are. Otherwise a message announces its hop.
                if self.hops.tapped[usize::from(forward.0)].hop.ends.is_some() {
                    self.hops.announce_hop_once(forward, at, sink);
                }
            }
            Observed::Rejected(direction) => self.count_rejected_handshake(pair, direction),
            Observed::Unread(direction, why) => self.warn_once_and_keep_unreadable(hop_id(pair, direction), &why),
            Observed::Closed { why, .. } => tracing::info!(pair, lane, "connection closed: {why}"),
            // Refusals were counted above. The other two come from pairs that speak HTTP.
            Observed::Refused | Observed::Passed { .. } | Observed::HeldUp => {}
        }
    }

    /// Reports messages of a hop that the relay has passed on without a copy.
    fn report_missed_messages(&mut self, hop: HopId, count: u64, cause: MissedCause, sink: &mut dyn FnMut(&Event<'_>)) {
        let at = MonoNs::now();
        self.hops.announce_hop_once(hop, at, sink);
        // The text of responses is compared with output only, so missed requests do not matter to clients.
        let has_output = !self.hops.tapped[usize::from(hop.0)].hop.carries_requests;
        let affected_servers = self.served.iter_mut().flatten().filter(|_| has_output);
        let affected_clients = affected_servers.map(|served| &mut served.clients);
        let missed = Missed { hop: Some(hop), count, cause };
        report_missed_and_tell_clients(missed, at, affected_clients, sink);
    }

    /// Counts a handshake that the sending side of a direction refused.
    fn count_rejected_handshake(&mut self, pair: u16, direction: Direction) {
        let tapped = &mut self.hops.tapped[usize::from(hop_id(pair, direction).0)];
        tapped.rejected_handshakes += 1;
        // Logged once, since peers connect again and again. The report has the total.
        if tapped.rejected_handshakes == 1
            && let Some(rejection) = describe_refused_handshakes(direction, tapped)
        {
            tracing::warn!("{rejection}");
        }
    }

    /// Counts a connection that the upstream of a hop did not accept.
    fn count_refused_connection(&mut self, hop: HopId) {
        let tapped = &mut self.hops.tapped[usize::from(hop.0)];
        // Logged once, since peers connect again and again.
        if tapped.refused_connections == 0 {
            let upstream = &tapped.hop.pair.upstream;
            tracing::warn!("a connection was closed because nothing is listening on {upstream}");
        }
        tapped.refused_connections += 1;
    }

    /// Warns about a peer that does not speak ZMTP, or encrypts it, once for each hop and reason. Keeps the warning for the report.
    fn warn_once_and_keep_unreadable(&mut self, hop: HopId, why: &Unread) {
        let tapped = &self.hops.tapped[usize::from(hop.0)];
        let message =
            format!("{} ({}): relaying a connection that cannot be decoded: {why}", tapped.ends, tapped.endpoint);
        if !self.unreadable_hops.contains(&message) {
            tracing::warn!("{message}");
            self.unreadable_hops.push(message);
        }
    }

    /// Decodes a message and emits it. On a hop that carries requests, it is emitted as requests, on any other as a frame of output.
    fn decode_and_emit_message(&mut self, frame: RelayedFrame, payload: &Payload, sink: &mut dyn FnMut(&Event<'_>)) {
        let RelayedFrame { id, read_at: at, written_at, bytes } = frame;
        // `parts` borrows from one of these two, so that a single part needs no allocation.
        let single_part: [&[u8]; 1];
        let several_parts: Vec<&[u8]>;
        let parts = match payload {
            Payload::Whole(message) => {
                single_part = [&message[..]];
                Ok(&single_part[..])
            }
            Payload::Multipart(parts) => {
                several_parts = parts.iter().map(|part| &part[..]).collect();
                Ok(&several_parts[..])
            }
            Payload::NotKept(_) => Err(NOT_KEPT),
        };
        if self.is_for_scheduler(id.hop, parts) {
            return self.emit_requests(frame, parts, sink);
        }
        let hop = &self.hops.tapped[usize::from(id.hop.0)].hop;
        // Clocks of two machines are not comparable.
        let observed_by = match hop.pair.listen {
            Endpoint::Path(_) | Endpoint::Abstract(_) => ObservedBy::LocalSend,
            Endpoint::Tcp { .. } => ObservedBy::RemoteSend,
        };
        let forwarded = Some(written_at);
        let message = ObservedMessage { source: id, at, forwarded, bytes, parts, by: observed_by };
        let clients = self.served.iter_mut().flatten().map(|served| &mut served.clients);
        self.translator.translate_message(message, &mut self.hops, clients, sink);
    }

    /// Whether a message on this hop goes to the scheduler. If the hop is not known to lead there, the first message that names new
    /// requests shows it. `parts` are those of the message, or the reason why they were not kept.
    fn is_for_scheduler(&mut self, hop: HopId, parts: Result<&[&[u8]], &'static str>) -> bool {
        let tapped = &self.hops.tapped[usize::from(hop.0)];
        if tapped.hop.carries_requests {
            return true;
        }
        // No hop carries both, so output ends the search.
        if tapped.has_carried_output || !tapped.hop.finds_requests {
            return false;
        }
        let Ok(parts) = parts else { return false };
        let (excerpts, count) = excerpts_and_count_of_read_parts(parts);
        let is_found = self.translator.names_new_requests(&excerpts[..count]);
        if is_found {
            self.hops.record_found_requests(hop);
        }
        is_found
    }

    /// Emits the requests in a message to the scheduler. `parts` are its parts, or the reason why they were not kept.
    fn emit_requests(
        &mut self,
        frame: RelayedFrame,
        parts: Result<&[&[u8]], &'static str>,
        sink: &mut dyn FnMut(&Event<'_>),
    ) {
        let RelayedFrame { id, read_at: at, bytes, .. } = frame;
        self.hops.announce_hop_once(id.hop, at, sink);
        let mut requests = self.translator.take_request_list();
        let content = match parts {
            Ok(parts) => {
                let (excerpts, count) = excerpts_and_count_of_read_parts(parts);
                self.translator.read_requests(&excerpts[..count], &mut requests)
            }
            Err(reason) => Err(Refused { reason: NOT_KEPT, detail: reason.to_owned() }),
        };
        DispatchedMessage { id, at, bytes, requests: &requests }.emit_requests_or_refusal(content, sink);
        self.translator.recycle_requests(requests);
    }

    /// Sets the ends of the hop that listens at `listen`, replacing those derived from its messages, and announces the change immediately.
    pub fn name_hop(&mut self, listen: &Endpoint, ends: Ends<&str>, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>)) {
        self.hops.name_hop(listen, ends, at, sink);
    }
}

/// The parts of a message to the scheduler that are read, and their number.
fn excerpts_and_count_of_read_parts<'m>(parts: &[&'m [u8]]) -> ([Excerpt<'m>; REQUEST_PARTS], usize) {
    let mut excerpts = [Excerpt::whole(&[]); REQUEST_PARTS];
    for (excerpt, part) in excerpts.iter_mut().zip(parts) {
        *excerpt = Excerpt::whole(part);
    }
    (excerpts, parts.len().min(REQUEST_PARTS))
}

/// Clients of one HTTP server. Bytes that the relay passes to them become deliveries. The relay limits their number.
#[derive(Debug)]
struct Served {
    clients: Clients,
    connections: HashMap<u32, ResponseReader>,
}

impl Served {
    fn new() -> Self {
        Self { clients: Clients { is_observed: true, ..Clients::default() }, connections: HashMap::new() }
    }

    /// Reads what the relay has observed of a client connection, given by its number: passed bytes, a gap, or the end. Deliveries of
    /// tokens to the client are emitted.
    fn read_observed(&mut self, connection_number: u32, observed: &Observed, sink: &mut dyn FnMut(&Event<'_>)) {
        if let Observed::Closed { at, first: ended_by, .. } = observed {
            return self.end_connection(connection_number, *at, *ended_by, sink);
        }
        let server = &mut self.clients.server;
        let reader = self.connections.entry(connection_number).or_default();
        match observed {
            Observed::Passed { at, bytes } => {
                // The relay does not know where the server's writes begin.
                let is_start_of_write = false;
                reader.read_bytes(*at, bytes, is_start_of_write, server, sink);
            }
            Observed::HeldUp => reader.record_short_write(),
            Observed::Lost { .. } => reader.record_gap(MonoNs::now(), sink),
            // The first response announces itself, and HTTP has no frames.
            _ => {}
        }
    }
}

impl Served {
    /// Ends the last response of a closed connection. If neither side ended the connection, the relay did, and the outcome of the response
    /// is unknown.
    fn end_connection(
        &mut self,
        connection_number: u32,
        at: MonoNs,
        ended_by: Option<Direction>,
        sink: &mut dyn FnMut(&Event<'_>),
    ) {
        let (Some(mut reader), Some(ended_by)) = (self.connections.remove(&connection_number), ended_by) else {
            return;
        };
        let end = match ended_by {
            Direction::Forward => AnswerEnd::ClientLeft,
            Direction::Backward => AnswerEnd::ServerLeft,
        };
        // The relay does not see what the client's machine has acknowledged.
        let unacknowledged_bytes = None;
        reader.end_connection(at, end, unacknowledged_bytes, &mut self.clients.server, sink);
    }
}

/// Warnings about limits that the relay reached, with a remedy.
fn limit_warnings(stats: &RelayStats) -> impl Iterator<Item = String> {
    let RelayStats {
        accept_errors,
        connections_refused,
        upstreams_distrusted,
        upstreams_forbidden,
        reads_shortened,
        panics,
        ..
    } = *stats;
    // Each count with its warning. The causes differ, and so do the remedies.
    let warnings = [
        (
            accept_errors,
            format!(
                "relay: accepting connections failed {accept_errors} times, probably at the limit of open files: raise it (ulimit -n)"
            ),
        ),
        (
            connections_refused,
            format!(
                "relay: {connections_refused} connections were closed because --max-connections, or the number that fits into --max-buffered, was reached"
            ),
        ),
        (
            upstreams_distrusted,
            format!(
                "relay: {upstreams_distrusted} connections were closed because the upstream's path led to a link or to another user's socket; check who may write to its folder"
            ),
        ),
        (
            upstreams_forbidden,
            format!(
                "relay: {upstreams_forbidden} connections were closed because tokengap's user may not connect to the upstream's socket: run tokengap as the socket's owner"
            ),
        ),
        (
            reads_shortened,
            format!(
                "relay: {reads_shortened} reads were shortened because receivers that do not keep up hold most of --max-buffered; all bytes were relayed"
            ),
        ),
        (panics, format!("relay: {panics} connections were closed by a crash in tokengap. Please report this bug.")),
    ];
    warnings.into_iter().filter_map(|(count, warning)| (count > 0).then_some(warning))
}

/// Describes the handshakes that the sending side of `direction` refused. `None` if it refused none.
fn describe_refused_handshakes(direction: Direction, tapped: &Tapped) -> Option<String> {
    let Pair { listen, upstream } = &tapped.hop.pair;
    let refuser = match direction {
        Direction::Forward => format!("a sender at {listen}"),
        Direction::Backward => format!("the receiver at {upstream}"),
    };
    let count = tapped.rejected_handshakes;
    (count > 0).then(|| format!("{refuser} refused {count} ZMTP handshakes: does it accept tokengap's address?"))
}

/// Hop id of one direction of a pair. Each pair has two ids: an even one for the forward direction, and the next one for the backward.
fn hop_id(pair: u16, direction: Direction) -> HopId {
    HopId(pair * 2 + u16::from(direction == Direction::Backward))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use responses::{Detokenize, TokenStream};
    use trace::event::{Chunk, Frame, IdColumn, What};

    use super::*;

    /// Spells each id as a digit.
    #[derive(Debug)]
    struct Digits;

    impl Detokenize for Digits {
        fn begin(&self) -> TokenStream {
            TokenStream::default()
        }

        fn step(&self, _: &mut TokenStream, id: u32, text: &mut String) -> bool {
            text.push_str(&id.to_string());
            true
        }
    }

    const EVENT: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n\
        35\r\ndata: {\"id\":\"a\",\"choices\":[{\"index\":0,\"text\":\"1\"}]}\n\n\r\n";

    /// A hop on which nobody connects.
    fn hop(scheme: &str) -> TapHop {
        let listen = format!("{scheme}://127.0.0.1:*").parse().expect("an endpoint");
        TapHop::new(Pair { listen, upstream: format!("{scheme}://127.0.0.1:1").parse().expect("an endpoint") })
    }

    /// Tokens of the delivery of a chunk's text, if `missed` messages were not observed after the chunk.
    fn delivered_tokens(missed: u64) -> Vec<u32> {
        let mut tap = Tap::start(vec![hop("tcp"), hop("http")], RelayOptions::default()).expect("the tap starts");
        let clients = &mut tap.served[1].as_mut().expect("it speaks HTTP").clients;
        clients.server.texts.detokenizer = Some(Arc::new(Digits));
        let chunk = Chunk { listed: Some(1), ids: &[1], prompt_tokens: Some(7), ..Chunk::new("a") };
        let frame = Frame::token_ids(FrameId::new(HopId(0), 0, 0), 1, std::slice::from_ref(&chunk));
        clients.record_frame(&Frame { ids: IdColumn::Uncounted, ..frame }, None);
        if missed > 0 {
            let lost = Observed::Lost { direction: Direction::Forward, count: missed, cause: MissedCause::QueueFull };
            tap.translate_observation(Observation { pair: 0, lane: 0, what: lost }, &mut |_| {});
        }
        let passed = Observed::Passed { at: MonoNs(1), bytes: EVENT.into() };
        let mut tokens = Vec::new();
        tap.translate_observation(Observation { pair: 1, lane: 0, what: passed }, &mut |event| {
            if let What::Delivered(delivery) = event.what {
                tokens.push(delivery.tokens);
            }
        });
        tokens
    }

    #[test]
    fn text_is_not_compared_after_missed_messages() {
        assert_eq!(delivered_tokens(0), [1]);
        assert_eq!(delivered_tokens(1), [0], "text only");
    }

    const REQUEST: &[u8] = include_bytes!("../../zmq-tap/fixtures/messages/0.5.23/req_text.pkl");
    const OUTPUT: &[u8] = include_bytes!("../../zmq-tap/fixtures/messages/0.5.23/skip_first_1rid.pkl");

    /// Announced hops, each with whether it carries requests, and the messages to the scheduler, after these messages have crossed a hop.
    fn announced(tapped: TapHop, direction: Direction, messages: &[&'static [u8]]) -> Vec<String> {
        let options = RelayOptions { formats: engines::FORMATS, ..RelayOptions::default() };
        let mut tap = Tap::start(vec![tapped], options).expect("the tap starts");
        let mut announced = Vec::new();
        for (seq, message) in (0..).zip(messages) {
            let [read_at, written_at] = [MonoNs(seq * 1_000), MonoNs(seq * 1_000 + 1)];
            let payload = Payload::Whole((*message).into());
            let what = Observed::Frame { direction, seq, read_at, written_at, bytes: message.len() as u64, payload };
            tap.translate_observation(Observation { pair: 0, lane: 0, what }, &mut |event| match &event.what {
                What::Hop(hop) => announced.push(format!("{} {}", hop.ends, hop.carries_requests)),
                What::Dispatched(dispatch) => announced.push(format!("{:?}", dispatch.kind)),
                _ => {}
            });
        }
        announced
    }

    fn named_hop(name: &str, carries_requests: bool) -> TapHop {
        let ends = Some(Ends::from(name).to_owned());
        TapHop { ends, carries_requests, finds_requests: true, ..hop("tcp") }
    }

    #[test]
    fn requests_are_found_by_name_or_content_in_either_direction() {
        let unnamed = TapHop { finds_requests: true, ..hop("tcp") };
        let of_unnamed = announced(unnamed.clone(), Direction::Forward, &[REQUEST, REQUEST]);
        assert_eq!(of_unnamed, ["connector->upstream true", "Requests", "Requests"]);
        // A scheduler that connects to receive requests, and a name for either direction.
        for named in [named_hop("tokenizer->scheduler", true), named_hop("scheduler->tokenizer", false)] {
            let of_named = announced(named, Direction::Backward, &[REQUEST]);
            assert_eq!(of_named, ["tokenizer->scheduler true", "Requests"]);
        }
        let after_output = announced(unnamed, Direction::Forward, &[OUTPUT, REQUEST]);
        assert_eq!(after_output, ["scheduler->upstream false"]);
        assert_eq!(announced(hop("tcp"), Direction::Forward, &[REQUEST]), ["connector->upstream false"]);
    }
}
