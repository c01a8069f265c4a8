//! The tap as a source: the relay's observations, decoded into events.

mod served;

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use trace::event::{Engine, Event, Frame, Hop, Kind, Lost, LostCause, Sees, Undecoded, What};
use trace::{FrameId, HopId, MonoNs, fault};

use crate::relay::{
    Direction, Endpoint, Gate, Observation, Observations, Options, Pair, Payload, Relay, RelayError, Stats, Unread,
};
use crate::wire::{Decoder, Limits};

use served::Served;

/// A pair of endpoints, with advance knowledge of the hop between them.
#[derive(Clone, Debug)]
pub struct TapHop {
    /// The listening endpoint and the upstream.
    pub pair: Pair,
    /// `from->to` for reports; `None` derives the sender's role from the messages.
    pub name: Option<String>,
    /// Index of the receiver in a worker group.
    pub worker: Option<u16>,
    /// Additional capabilities of other observers of the same hop: receives, deliveries.
    pub also: Sees,
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
            name: None,
            worker: None,
            also: Sees::default(),
            origin: false,
            last: false,
            endpoint: None,
        }
    }
}

/// A running relay whose frames are decoded into events.
#[derive(Debug)]
pub struct Tap {
    relay: Running,
    observations: Arc<Observations>,
    decoder: Decoder,
    /// Two entries per pair: the forward direction, then the backward one.
    hops: Vec<Tapped>,
    /// The releases that match the layout of the last decoded frame.
    schema: Option<&'static str>,
    forms: Vec<Form>,
    unread: Vec<String>,
    /// Clients of each pair that speaks HTTP.
    served: Vec<Option<Served>>,
    /// Number of connections of each pair that its upstream did not accept.
    refused: Vec<u64>,
    /// Whether hops into the tokenizer were announced with observable deliveries.
    delivers: bool,
}

/// A combination of class, codec and layout among the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Class without its module.
    pub class: &'static str,
    /// `pickle` or `msgpack`.
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

#[derive(Debug)]
enum Running {
    Yes(Relay),
    /// The relay closes on another thread, so that observations are still polled in the meantime.
    Closing(JoinHandle<Stats>),
    Closed(Stats),
}

/// One direction of a pair.
#[derive(Debug)]
struct Tapped {
    hop: TapHop,
    name: String,
    endpoint: String,
    /// The name came from the user, or from a frame that shows the sender's role.
    named: bool,
    announced: bool,
    /// Whether all other pairs are HTTP.
    only: bool,
}

/// State for the clients of a pair that speaks HTTP.
fn serves(hop: &TapHop) -> Option<Served> {
    hop.pair.listen.speaks_http().then(Served::default)
}

impl Tap {
    /// Binds every listener and starts to relay.
    pub fn start(hops: Vec<TapHop>, options: Options) -> Result<Self, RelayError> {
        let most = options.max_frame_bytes;
        let mut tapped: Vec<Tapped> = hops.iter().flat_map(Tapped::both).collect();
        let served: Vec<Option<Served>> = hops.iter().map(serves).collect();
        if served.iter().flatten().count() + 1 == served.len() {
            // The only ZMQ hop must end at the process that responds to the clients.
            tapped.iter_mut().step_by(2).for_each(|only| only.only = true);
        }
        let relay = Relay::start(hops.into_iter().map(|hop| hop.pair).collect(), options)?;
        Ok(Self::on(relay, most, tapped, served))
    }

    /// Starts without hops; [`Tap::add`] adds them.
    pub fn waiting(options: Options) -> Result<Self, RelayError> {
        let most = options.max_frame_bytes;
        Ok(Self::on(Relay::waiting(options)?, most, Vec::new(), Vec::new()))
    }

    /// Adds a hop whose listener is already bound. Connections wait at `gate` before the relay connects them to the upstream.
    pub fn add(&mut self, hop: TapHop, listener: UnixListener, gate: Gate) -> Result<(), RelayError> {
        let Running::Yes(relay) = &mut self.relay else {
            return Err(RelayError::Stopped);
        };
        let (both, served) = (Tapped::both(&hop), serves(&hop));
        relay.add(hop.pair, listener, gate)?;
        self.delivers |= served.is_some();
        self.hops.extend(both);
        self.served.push(served);
        self.refused.push(0);
        Ok(())
    }

    fn on(relay: Relay, max_frame_bytes: u64, hops: Vec<Tapped>, served: Vec<Option<Served>>) -> Self {
        let limits = Limits {
            message: usize::try_from(max_frame_bytes).unwrap_or(usize::MAX),
            ..Limits::default()
        };
        Self {
            observations: relay.observations(),
            relay: Running::Yes(relay),
            decoder: Decoder::new(limits),
            hops,
            schema: None,
            forms: Vec::new(),
            unread: Vec::new(),
            delivers: served.iter().any(Option::is_some),
            refused: vec![0; served.len()],
            served,
        }
    }

    /// Listening endpoint of each pair; empty once the tap has been stopped.
    pub fn listening(&self) -> &[Endpoint] {
        match &self.relay {
            Running::Yes(relay) => relay.listening(),
            Running::Closing(_) | Running::Closed(_) => &[],
        }
    }

    /// Makes later events carry token ids.
    pub fn keep_ids(&mut self) {
        self.decoder.keep_ids();
    }

    /// Converts at most `most` observations into events. The first event of each frame comes with the frame's bytes. Returns the number of
    /// observations. Never waits.
    pub fn poll(&mut self, most: usize, sink: &mut dyn FnMut(&Event<'_>, &[u8])) -> usize {
        let mut done = 0;
        while done < most
            && let Some(observation) = self.observations.poll()
        {
            self.translate(observation, sink);
            done += 1;
        }
        self.tell_delivers(sink);
        done
    }

    /// Announces hops into the tokenizer again if the observability of deliveries has changed.
    fn tell_delivers(&mut self, sink: &mut dyn FnMut(&Event<'_>, &[u8])) {
        let seen = self.served.iter().flatten().any(Served::shows_deliveries);
        if std::mem::replace(&mut self.delivers, seen) == seen {
            return;
        }
        for (place, tapped) in (0_u16..).zip(&mut self.hops) {
            if std::mem::take(&mut tapped.announced) {
                tapped.announce(HopId(place), MonoNs::now(), seen, sink);
            }
        }
    }

    /// Stops the relay: it accepts no more connections, drains and closes. Observations continue until [`Tap::has_ended`].
    pub fn stop(&mut self) {
        let relay = std::mem::replace(&mut self.relay, Running::Closed(Stats::default()));
        self.relay = match relay {
            Running::Yes(relay) => Running::Closing(std::thread::spawn(move || relay.stop())),
            other => other,
        };
    }

    /// Whether the relay has closed and all its observations were delivered.
    pub fn has_ended(&mut self) -> bool {
        if let Running::Closing(thread) = &self.relay
            && thread.is_finished()
        {
            let closing = std::mem::replace(&mut self.relay, Running::Closed(Stats::default()));
            if let Running::Closing(thread) = closing
                && let Ok(stats) = thread.join()
            {
                self.relay = Running::Closed(stats);
            }
        }
        matches!(self.relay, Running::Closed(_)) && self.observations.is_empty()
    }

    /// The relay's counters; all zero while it is closing.
    pub fn stats(&self) -> Stats {
        match &self.relay {
            Running::Yes(relay) => relay.stats(),
            Running::Closing(_) => Stats::default(),
            Running::Closed(stats) => *stats,
        }
    }

    /// Warnings about unreadable traffic, unreachable upstreams and reached limits. Each hop and reason appears once.
    pub fn degraded(&self) -> Vec<String> {
        let mut degraded = self.unread.clone();
        degraded.extend(self.served.iter().flatten().flat_map(Served::degraded));
        let refused = self.refused.iter().zip(self.hops.iter().step_by(2));
        degraded.extend(refused.filter(|(count, _)| **count > 0).map(|(count, tapped)| {
            let (listen, upstream) = (&tapped.hop.pair.listen, &tapped.hop.pair.upstream);
            format!("{count} connections to {listen} were closed because nobody accepts at {upstream}: is the upstream running?")
        }));
        degraded.extend(short_of(&self.stats()));
        degraded
    }

    /// The forms of messages so far.
    pub fn forms(&self) -> &[Form] {
        &self.forms
    }

    fn translate(&mut self, observation: Observation, sink: &mut dyn FnMut(&Event<'_>, &[u8])) {
        match observation {
            Observation::Frame {
                pair,
                direction,
                lane,
                seq,
                read_at,
                written_at,
                bytes,
                payload,
            } => {
                let id = FrameId {
                    hop: hop_id(pair, direction),
                    lane,
                    seq,
                };
                self.frame(id, read_at, bytes, &payload, sink);
                sink(
                    &Event {
                        at: written_at,
                        what: What::Forwarded(id),
                    },
                    &[],
                );
            }
            Observation::Passed { pair, lane, at, bytes } => {
                if let Some(served) = self.served(pair) {
                    served.passed(lane, at, &bytes, &mut |event| sink(event, &[]));
                }
            }
            Observation::HeldUp { pair, lane } => {
                if let Some(served) = self.served(pair) {
                    served.held_up(lane);
                }
            }
            Observation::Lost {
                pair,
                direction,
                lane,
                count,
                cause,
            } => match self.served(pair) {
                Some(served) => served.missed(lane, MonoNs::now(), &mut |event| sink(event, &[])),
                None => self.lost(hop_id(pair, direction), MonoNs::now(), count, cause, sink),
            },
            Observation::Opened { pair, at, .. } => {
                // The direction of messages is not known in advance for a hop without a name.
                let id = hop_id(pair, Direction::Forward);
                if self.served(pair).is_none() && self.hops[usize::from(id.0)].hop.name.is_some() {
                    self.announce(id, at, sink);
                }
            }
            Observation::Refused { pair } => {
                if self.refused[usize::from(pair)] == 0 {
                    let upstream = &self.hops[usize::from(pair) * 2].hop.pair.upstream;
                    tracing::warn!("a connection was closed because nobody accepts at {upstream}");
                }
                self.refused[usize::from(pair)] += 1;
            }
            Observation::Unread {
                pair, direction, why, ..
            } => self.cannot_read(hop_id(pair, direction), &why),
            Observation::Closed {
                pair,
                lane,
                at,
                first,
                why,
                ..
            } => {
                if let Some(served) = self.served(pair) {
                    served.closed(lane, at, first, &mut |event| sink(event, &[]));
                } else {
                    tracing::info!(pair, lane, "connection over: {why}");
                }
            }
        }
    }

    fn served(&mut self, pair: u16) -> Option<&mut Served> {
        self.served.get_mut(usize::from(pair))?.as_mut()
    }

    /// Warns about a peer that does not speak ZMTP, or encrypts it, once for each hop and reason.
    fn cannot_read(&mut self, hop: HopId, why: &Unread) {
        let tapped = &self.hops[usize::from(hop.0)];
        let told = format!(
            "{} ({}): a connection passes that cannot be read: {why}",
            tapped.name, tapped.endpoint
        );
        if !self.unread.contains(&told) {
            tracing::warn!("{told}");
            self.unread.push(told);
        }
    }

    fn frame(
        &mut self,
        id: FrameId,
        at: MonoNs,
        bytes: u64,
        payload: &Payload,
        sink: &mut dyn FnMut(&Event<'_>, &[u8]),
    ) {
        let (tapped, delivers) = (&mut self.hops[usize::from(id.hop.0)], self.delivers);
        let undecoded = |tapped: &mut Tapped, why: &str, sink: &mut dyn FnMut(&Event<'_>, &[u8])| {
            tapped.announce(id.hop, at, delivers, sink);
            let what = What::Undecoded(Undecoded { id, bytes, reason: why });
            sink(&Event { at, what }, &[]);
        };
        let message = match payload {
            Payload::Whole(message) => message,
            Payload::Multipart(_) => return undecoded(tapped, "multipart", sink),
            Payload::NotKept(_) => return undecoded(tapped, "not-kept", sink),
        };
        fault::here("decoder");
        let batch = match self.decoder.decode(message) {
            Ok(batch) => batch,
            Err(why) => {
                tracing::debug!(?id, "undecoded: {why}");
                return undecoded(tapped, why.reason(), sink);
            }
        };
        tapped.name_after(batch.kind());
        tapped.announce(id.hop, at, delivers, sink);
        if !batch.is_empty() && self.schema != Some(batch.schema()) {
            self.schema = Some(batch.schema());
            let engine = Engine {
                version: self.schema,
                mode: None,
                waiter: batch.waiter(),
                turnaround: None,
            };
            sink(
                &Event {
                    at,
                    what: What::Engine(engine),
                },
                &[],
            );
        }
        count(
            &mut self.forms,
            Form {
                class: batch.class(),
                codec: batch.codec().as_str(),
                schema: batch.schema(),
                frames: 1,
            },
        );
        let frame = Frame {
            id,
            bytes,
            kind: batch.kind(),
            ids: batch.ids(),
            chunks: batch.chunks(),
        };
        sink(
            &Event {
                at,
                what: What::Sent(frame),
            },
            message,
        );
    }

    fn lost(&mut self, hop: HopId, at: MonoNs, count: u64, cause: LostCause, sink: &mut dyn FnMut(&Event<'_>, &[u8])) {
        self.announce(hop, at, sink);
        sink(
            &Event {
                at,
                what: What::Lost(Lost {
                    hop: Some(hop),
                    count,
                    cause,
                }),
            },
            &[],
        );
    }

    /// Sets the name of the hop that listens at `listen`, replacing one derived from its messages, and announces the change at once.
    pub fn name(&mut self, listen: &Endpoint, name: &str, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>, &[u8])) {
        let directions = [
            (Direction::Forward, name.to_owned()),
            (Direction::Backward, reversed(name)),
        ];
        for pair in 0..self.hops.len() / 2 {
            for (direction, name) in &directions {
                let id = hop_id(pair as u16, *direction);
                let hop = &mut self.hops[usize::from(id.0)];
                if hop.hop.pair.listen != *listen || hop.name == *name {
                    continue;
                }
                hop.name.clone_from(name);
                hop.named = true;
                if std::mem::take(&mut hop.announced) {
                    self.announce(id, at, sink);
                }
            }
        }
    }

    fn announce(&mut self, hop: HopId, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>, &[u8])) {
        self.hops[usize::from(hop.0)].announce(hop, at, self.delivers, sink);
    }
}

impl Tapped {
    fn both(hop: &TapHop) -> [Self; 2] {
        [Self::new(hop, Direction::Forward), Self::new(hop, Direction::Backward)]
    }

    fn new(hop: &TapHop, direction: Direction) -> Self {
        let mut hop = hop.clone();
        let (endpoint, name) = match direction {
            Direction::Forward => {
                let upstream = || hop.pair.upstream.to_string();
                (hop.endpoint.clone().unwrap_or_else(upstream), hop.name.clone())
            }
            Direction::Backward => {
                (hop.origin, hop.last, hop.also) = (false, false, Sees::default());
                let listen = || hop.pair.listen.to_string();
                let endpoint = hop.endpoint.clone().unwrap_or_else(listen);
                (endpoint, hop.name.as_deref().map(reversed))
            }
        };
        let named = name.is_some();
        let name = name.unwrap_or_else(|| {
            let forward = "connector->upstream";
            match direction {
                Direction::Forward => forward.into(),
                Direction::Backward => reversed(forward),
            }
        });
        Self {
            hop,
            name,
            endpoint,
            named,
            announced: false,
            only: false,
        }
    }

    /// Derives the sender's role from the first message that shows it.
    fn name_after(&mut self, kind: Kind) {
        let name = match kind {
            Kind::Text => "detokenizer->tokenizer",
            Kind::TokenIds | Kind::Embedding => "scheduler->upstream",
            Kind::Multimodal | Kind::Abort | Kind::Control => return,
        };
        if !self.named {
            self.name = name.into();
            self.named = true;
            self.announced = false;
        }
    }

    /// Whether deliveries follow the messages on this hop, judged by the hop's name or because it is the only one.
    fn leads_to_clients(&self) -> bool {
        let to = self.name.split_once("->").map_or("", |(_, to)| to);
        self.only || matches!(to, "tokenizer" | "worker")
    }

    fn announce(&mut self, id: HopId, at: MonoNs, delivers: bool, sink: &mut dyn FnMut(&Event<'_>, &[u8])) {
        if self.announced {
            return;
        }
        self.announced = true;
        let sees = Sees {
            sent: true,
            forwarded: true,
            delivered: self.hop.also.delivered || (delivers && self.leads_to_clients()),
            ..self.hop.also
        };
        let TapHop {
            worker, origin, last, ..
        } = self.hop;
        let hop = Hop {
            id,
            name: &self.name,
            endpoint: &self.endpoint,
            worker,
            origin,
            last,
            sees,
        };
        sink(
            &Event {
                at,
                what: What::Hop(hop),
            },
            &[],
        );
    }
}

/// Warnings about limits that the relay reached, with a remedy.
fn short_of(stats: &Stats) -> impl Iterator<Item = String> {
    let Stats {
        accept_errors,
        connections_refused,
        panics,
        ..
    } = *stats;
    let waited = format!(
        "relay: connections had to wait, since accepting them failed {accept_errors} times, for want of open files most likely: raise \
         the limit (ulimit -n)"
    );
    let refused = format!(
        "relay: {connections_refused} connections were closed at once because as many were open as --max-connections allows"
    );
    let broken = format!("relay: {panics} connections were closed by a defect of tokengap's (this is a bug)");
    let told = [
        (accept_errors, waited),
        (connections_refused, refused),
        (panics, broken),
    ];
    told.into_iter().filter_map(|(count, what)| (count > 0).then_some(what))
}

/// Hop id of one direction. Each pair has two hops, in the order of the pairs.
fn hop_id(pair: u16, direction: Direction) -> HopId {
    HopId(pair * 2 + u16::from(direction == Direction::Backward))
}

fn reversed(name: &str) -> String {
    match name.split_once("->") {
        Some((from, to)) => format!("{to}->{from}"),
        None => format!("{name} (back)"),
    }
}
