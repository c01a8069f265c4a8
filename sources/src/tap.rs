//! The tap as a source: the relay's observations, decoded into events.

mod source;
mod tapped;

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::JoinHandle;

use trace::event::{AnswerEnd, Capabilities, Engine, Event, Frame, Missed, Undecoded, What};
use trace::path::Ends;
use trace::{FrameId, HopId, MonoNs, fault};

use adapter::decode::{Decoders, Format};
use responses::{ResponseReader, Server};
use zmq_tap::relay::{
    Counters, Direction, Endpoint, Observation, Observations, Observed, Options, Pair, PairSockets, Payload, Relay,
    RelayError, Signal, Stats, Unread,
};

pub(crate) use source::completed;
pub use source::{TapSource, lower_priority};
use tapped::Tapped;

/// A pair of endpoints, with advance knowledge of the hop between them.
#[derive(Clone, Debug)]
pub struct TapHop {
    /// The listening endpoint and the upstream.
    pub pair: Pair,
    /// Roles at its ends; `None` derives the sender's role from the messages.
    pub ends: Option<Ends<Box<str>>>,
    /// Index of the receiver in a worker group.
    pub worker: Option<u16>,
    /// Additional capabilities of other observers of the same hop: receives, deliveries.
    pub also: Capabilities,
    /// Whether the hop is the first on the path, as far as known.
    pub origin: bool,
    /// Whether the hop is the last on the path, so that its receiver is the tokenizer.
    pub last: bool,
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
            also: Capabilities::default(),
            origin: false,
            last: false,
            endpoint: None,
        }
    }
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
    formats: &'static [Format],
    decoders: Decoders,
    /// Two entries per pair: the forward direction, then the backward one.
    hops: Vec<Tapped>,
    /// The engine and the releases that match the layout of the last decoded frame.
    schema: Option<(&'static str, &'static str)>,
    forms: Vec<Form>,
    unread: Vec<String>,
    /// Clients of each pair that speaks HTTP.
    served: Vec<Option<Served>>,
    /// Whether hops into the tokenizer were announced with observable deliveries.
    delivers: bool,
}

/// A combination of class, codec and layout among the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Class without its module.
    pub class: &'static str,
    /// Serialisation format: `pickle`, `msgpack`, ...
    pub codec: &'static str,
    /// The releases whose layout it fits.
    pub schema: &'static str,
    /// Number of frames with this form.
    pub frames: u64,
}

/// The list is short enough to search for every frame.
fn count(forms: &mut Vec<Form>, seen: Form) {
    let same = |f: &&mut Form| (f.class, f.codec, f.schema) == (seen.class, seen.codec, seen.schema);
    match forms.iter_mut().find(same) {
        Some(form) => form.frames += seen.frames,
        None => forms.push(seen),
    }
}

impl Tap {
    /// Binds every listener and starts to relay. [`Tap::add`] adds further hops.
    pub fn start(hops: Vec<TapHop>, options: Options) -> Result<Self, RelayError> {
        let formats = options.formats;
        let longest = usize::try_from(options.max_frame_bytes).unwrap_or(usize::MAX);
        let relay = Relay::start(hops.iter().map(|hop| hop.pair.clone()).collect(), options)?;
        let mut tap = Self {
            observations: relay.observations(),
            counters: relay.counters(),
            relay: Some(relay),
            closing: None,
            formats,
            decoders: Decoders::new(formats, longest),
            hops: Vec::new(),
            schema: None,
            forms: Vec::new(),
            unread: Vec::new(),
            served: Vec::new(),
            delivers: false,
        };
        for hop in hops {
            tap.push(hop);
        }
        if tap.served.iter().flatten().count() + 1 == tap.served.len() {
            // The only ZMQ hop must end at the process that responds to the clients.
            tap.hops.iter_mut().step_by(2).for_each(|only| only.only = true);
        }
        Ok(tap)
    }

    /// Adds a hop whose listener is already bound. Its connections wait for `gate` before the relay connects them to the upstream.
    pub fn add(&mut self, hop: TapHop, sockets: PairSockets, gate: Signal) -> Result<(), RelayError> {
        let relay = self.relay.as_mut().ok_or(RelayError::Stopped)?;
        relay.add(hop.pair.clone(), sockets, gate)?;
        self.push(hop);
        Ok(())
    }

    fn push(&mut self, hop: TapHop) {
        let served = hop.pair.listen.speaks_http().then(Served::default);
        if served.is_some() {
            self.delivers = true;
            self.decoders.keep_text();
        }
        self.served.push(served);
        self.hops.extend(Tapped::both(hop));
    }

    /// Listening endpoint of each pair; empty once the tap has been stopped.
    pub fn listening(&self) -> &[Endpoint] {
        self.relay.as_ref().map_or(&[], Relay::listening)
    }

    /// Makes later events carry token ids.
    pub fn keep_ids(&mut self) {
        self.decoders.keep_ids();
    }

    /// Converts at most `limit` observations into events. Returns the number of observations. Never waits.
    pub fn poll(&mut self, limit: usize, sink: &mut dyn FnMut(&Event<'_>)) -> usize {
        let mut done = 0;
        while done < limit
            && let Some(observation) = self.observations.poll()
        {
            self.translate(observation, sink);
            done += 1;
        }
        self.announce_deliveries(sink);
        done
    }

    /// Announces hops into the tokenizer again if the observability of deliveries has changed.
    fn announce_deliveries(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        let seen = self.served.iter().flatten().any(|served| served.server.shows_deliveries());
        if std::mem::replace(&mut self.delivers, seen) == seen {
            return;
        }
        for (place, tapped) in (0_u16..).zip(&mut self.hops) {
            if std::mem::take(&mut tapped.announced) {
                tapped.announce(HopId(place), MonoNs::now(), (seen, self.formats), sink);
            }
        }
    }

    /// Stops the relay: it accepts no more connections, drains and closes. Observations continue until [`Tap::has_ended`].
    pub fn stop(&mut self) {
        if let Some(relay) = self.relay.take() {
            self.closing = Some(std::thread::spawn(move || drop(relay)));
        }
    }

    /// Whether the relay has closed and all its observations were delivered.
    pub fn has_ended(&self) -> bool {
        self.closing.as_ref().is_some_and(JoinHandle::is_finished) && self.observations.is_empty()
    }

    /// The relay's counters.
    pub fn stats(&self) -> Stats {
        self.counters.read()
    }

    /// Warnings about unreadable traffic, unreachable upstreams and reached limits. Each hop and reason appears once.
    pub fn degraded(&self) -> Vec<String> {
        let mut degraded = self.unread.clone();
        degraded.extend(self.served.iter().flatten().flat_map(|served| served.server.degraded()));
        degraded.extend(self.hops.iter().filter(|tapped| tapped.refused > 0).map(|tapped| {
            let (count, Pair { listen, upstream }) = (tapped.refused, &tapped.hop.pair);
            format!("{count} connections to {listen} were closed because nothing is listening on {upstream}: is the upstream running?")
        }));
        let directions = [Direction::Forward, Direction::Backward].into_iter().cycle();
        degraded.extend(directions.zip(&self.hops).filter_map(|(direction, tapped)| rejection(direction, tapped)));
        degraded.extend(limit_warnings(&self.stats()));
        degraded
    }

    /// The forms of messages so far.
    pub fn forms(&self) -> &[Form] {
        &self.forms
    }

    fn translate(&mut self, observation: Observation, sink: &mut dyn FnMut(&Event<'_>)) {
        let Observation { pair, lane, what } = observation;
        // The direction of messages is not known in advance for a hop without a name.
        let forward = hop_id(pair, Direction::Forward);
        match what {
            Observed::Refused => {
                let tapped = &mut self.hops[usize::from(forward.0)];
                if tapped.refused == 0 {
                    let upstream = &tapped.hop.pair.upstream;
                    tracing::warn!("a connection was closed because nothing is listening on {upstream}");
                }
                tapped.refused += 1;
            }
            what if let Some(served) = &mut self.served[usize::from(pair)] => served.observed(lane, what, sink),
            Observed::Frame { direction, seq, read_at, written_at, bytes, payload } => {
                let id = FrameId { hop: hop_id(pair, direction), lane, seq };
                self.frame(id, [read_at, written_at], bytes, &payload, sink);
            }
            Observed::Lost { direction, count, cause } => {
                let (hop, at) = (hop_id(pair, direction), MonoNs::now());
                self.announce(hop, at, sink);
                sink(&Event { at, what: What::Missed(Missed { hop: Some(hop), count, cause }) });
            }
            Observed::Opened(at) => {
                if self.hops[usize::from(forward.0)].hop.ends.is_some() {
                    self.announce(forward, at, sink);
                }
            }
            Observed::Rejected(direction) => {
                let tapped = &mut self.hops[usize::from(hop_id(pair, direction).0)];
                tapped.rejected += 1;
                if tapped.rejected == 1
                    && let Some(rejection) = rejection(direction, tapped)
                {
                    tracing::warn!("{rejection}");
                }
            }
            Observed::Unread(direction, why) => self.warn_unreadable(hop_id(pair, direction), &why),
            Observed::Closed { why, .. } => tracing::info!(pair, lane, "connection closed: {why}"),
            Observed::Passed { .. } | Observed::HeldUp => {}
        }
    }

    /// Warns about a peer that does not speak ZMTP, or encrypts it, once for each hop and reason.
    fn warn_unreadable(&mut self, hop: HopId, why: &Unread) {
        let tapped = &self.hops[usize::from(hop.0)];
        let message =
            format!("{} ({}): relaying a connection that cannot be decoded: {why}", tapped.ends, tapped.endpoint);
        if !self.unread.contains(&message) {
            tracing::warn!("{message}");
            self.unread.push(message);
        }
    }

    fn frame(
        &mut self,
        id: FrameId,
        [at, forwarded]: [MonoNs; 2],
        bytes: u64,
        payload: &Payload,
        sink: &mut dyn FnMut(&Event<'_>),
    ) {
        let (tapped, formats) = (&mut self.hops[usize::from(id.hop.0)], self.formats);
        let context = (self.delivers, formats);
        let undecoded = |tapped: &mut Tapped, why: &str, sink: &mut dyn FnMut(&Event<'_>)| {
            tapped.announce(id.hop, at, context, sink);
            let undecoded = Undecoded { id, bytes, forwarded: Some(forwarded), reason: why };
            sink(&Event::new(at, What::Undecoded(undecoded)));
        };
        let (one, several): ([&[u8]; 1], Vec<&[u8]>);
        let parts = match payload {
            Payload::Whole(message) => {
                one = [&message[..]];
                &one[..]
            }
            Payload::Multipart(parts) => {
                several = parts.iter().map(|part| &part[..]).collect();
                &several[..]
            }
            Payload::NotKept(_) => return undecoded(tapped, "not-kept", sink),
        };
        fault::here("decoder");
        let batch = match self.decoders.decode(&mut tapped.carries, parts) {
            Ok(batch) => batch,
            Err(why) => {
                tracing::debug!(?id, "undecoded: {why}");
                return undecoded(tapped, why.reason, sink);
            }
        };
        let (shape, chunks) = (batch.shape(), batch.chunks());
        tapped.name_from_kind(shape.kind, formats);
        tapped.announce(id.hop, at, context, sink);
        if !chunks.is_empty() && self.schema != Some((shape.engine, shape.schema)) {
            self.schema = Some((shape.engine, shape.schema));
            let engine = Engine {
                name: Some(shape.engine),
                version: Some(shape.schema),
                waiter: shape.waiter,
                ..Engine::default()
            };
            sink(&Event { at, what: What::Engine(engine) });
        }
        count(&mut self.forms, Form { class: shape.class, codec: shape.codec, schema: shape.schema, frames: 1 });
        let frame = Frame { id, bytes, forwarded: Some(forwarded), kind: shape.kind, ids: shape.ids, chunks };
        let response_id = tapped.carries.format(formats).and_then(|format| format.response_id);
        for served in self.served.iter_mut().flatten() {
            served.server.record_frame(&frame, response_id);
        }
        sink(&Event { at, what: What::Sent(frame) });
        // Clocks of two machines are not comparable.
        let is_local = matches!(tapped.hop.pair.listen, Endpoint::Path(_) | Endpoint::Abstract(_));
        if let Some(wait) = batch.send_wait(id.hop, at).filter(|_| is_local) {
            sink(&Event { at, what: What::SendWait(wait) });
        }
    }

    /// Sets the ends of the hop that listens at `listen`, replacing those derived from its messages, and announces the change immediately.
    pub fn name(&mut self, listen: &Endpoint, ends: Ends<&str>, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>)) {
        let (context, directions) = ((self.delivers, self.formats), [ends.to_owned(), ends.reversed()]);
        for ((id, tapped), ends) in (0_u16..).zip(&mut self.hops).zip(directions.iter().cycle()) {
            if tapped.hop.pair.listen == *listen && tapped.ends != *ends {
                tapped.ends.clone_from(ends);
                tapped.named = true;
                if std::mem::take(&mut tapped.announced) {
                    tapped.announce(HopId(id), at, context, sink);
                }
            }
        }
    }

    fn announce(&mut self, hop: HopId, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>)) {
        self.hops[usize::from(hop.0)].announce(hop, at, (self.delivers, self.formats), sink);
    }
}

/// Connections of clients to one HTTP server. Bytes that the relay passes to them become deliveries. The relay limits their number.
#[derive(Debug, Default)]
struct Served {
    server: Server,
    connections: HashMap<u32, ResponseReader>,
}

impl Served {
    /// Processes an observation of connection `lane`.
    fn observed(&mut self, lane: u32, what: Observed, sink: &mut dyn FnMut(&Event<'_>)) {
        match what {
            Observed::Passed { at, bytes } => {
                // The relay does not know where the server's writes begin.
                let begins = false;
                self.connections.entry(lane).or_default().read_bytes(at, &bytes, begins, &mut self.server, sink);
            }
            Observed::HeldUp => self.connections.entry(lane).or_default().record_short_write(),
            Observed::Lost { .. } => self.connections.entry(lane).or_default().record_gap(MonoNs::now(), sink),
            // If neither side ended the connection, the relay did, and the outcome of the last response is unknown.
            Observed::Closed { at, first, .. } => {
                if let (Some(mut reader), Some(first)) = (self.connections.remove(&lane), first) {
                    let end = match first {
                        Direction::Forward => AnswerEnd::ClientLeft,
                        Direction::Backward => AnswerEnd::ServerLeft,
                    };
                    reader.end_connection(at, end, None, &mut self.server, sink);
                }
            }
            // The first response announces itself, and HTTP has no frames.
            _ => {}
        }
    }
}

/// Warnings about limits that the relay reached, with a remedy.
fn limit_warnings(stats: &Stats) -> impl Iterator<Item = String> {
    let Stats {
        accept_errors,
        connections_refused,
        upstreams_distrusted,
        upstreams_forbidden,
        reads_shortened,
        panics,
        ..
    } = *stats;
    let accept_failures = format!(
        "relay: accepting connections failed {accept_errors} times, probably at the limit of open files: raise it (ulimit -n)"
    );
    let refused = format!(
        "relay: {connections_refused} connections were closed because --max-connections, or the number that fits into --max-buffered, was reached"
    );
    let crashes = format!("relay: {panics} connections were closed by a crash in tokengap. Please report this bug.");
    let distrusted = format!(
        "relay: {upstreams_distrusted} connections were closed because the upstream's path led to a link or to another user's socket; check who may write to its folder"
    );
    let forbidden = format!(
        "relay: {upstreams_forbidden} connections were closed because tokengap's user may not connect to the upstream's socket: run tokengap as the socket's owner"
    );
    let shortened = format!(
        "relay: {reads_shortened} reads were shortened because receivers that do not keep up hold most of --max-buffered; all bytes were relayed"
    );
    let warnings = [
        (accept_errors, accept_failures),
        (connections_refused, refused),
        (upstreams_distrusted, distrusted),
        (upstreams_forbidden, forbidden),
        (reads_shortened, shortened),
        (panics, crashes),
    ];
    warnings.into_iter().filter_map(|(count, warning)| (count > 0).then_some(warning))
}

/// Text about the handshakes that the sending side of `direction` refused.
fn rejection(direction: Direction, tapped: &Tapped) -> Option<String> {
    let Pair { listen, upstream } = &tapped.hop.pair;
    let by = match direction {
        Direction::Forward => format!("a sender at {listen}"),
        Direction::Backward => format!("the receiver at {upstream}"),
    };
    let count = tapped.rejected;
    (count > 0).then(|| format!("{by} refused {count} ZMTP handshakes: does it accept tokengap's address?"))
}

/// Hop id of one direction. Each pair has two hops, in the order of the pairs.
fn hop_id(pair: u16, direction: Direction) -> HopId {
    HopId(pair * 2 + u16::from(direction == Direction::Backward))
}
