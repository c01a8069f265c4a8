//! The tap as a source: what the relay observed, decoded, as events.

use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread::JoinHandle;

use trace::event::{Engine, Event, Frame, Hop, Kind, Lost, LostCause, Sees, Undecoded, What};
use trace::{FrameId, HopId, MonoNs};

use crate::relay::{
    Direction, Gate, Observation, Observations, Options, Pair, Payload, Relay, RelayError, Stats, Unread,
};
use crate::wire::{Decoder, Limits};

/// A pair of endpoints, and what is known beforehand of the hop between them.
#[derive(Clone, Debug)]
pub struct TapHop {
    /// Where to listen and where the bytes go.
    pub pair: Pair,
    /// `from->to` for reports; `None` takes the sender's role from what passes.
    pub name: Option<String>,
    /// Which member of a worker group receives.
    pub worker: Option<u16>,
    /// Others who watch the same hop see more of it than the relay does: takes, deliveries.
    pub also: Sees,
    /// The path begins here, as far as is known.
    pub origin: bool,
    /// The path's last hop: who takes here is the tokenizer.
    pub last: bool,
    /// What reports call the receiver's endpoint, where it is not the upstream's name.
    pub endpoint: Option<String>,
}

impl TapHop {
    /// A hop of which nothing is known but its endpoints.
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
    /// Two a pair: the forward direction, then the backward one.
    hops: Vec<Tapped>,
    /// The release range that the last decoded frame's layout belongs to.
    schema: Option<&'static str>,
    forms: Vec<Form>,
    unread: Vec<String>,
}

/// A form in which messages came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// Class without its module.
    pub class: &'static str,
    /// `pickle` or `msgpack`.
    pub codec: &'static str,
    /// The releases whose layout it fits.
    pub schema: &'static str,
    /// How many frames had it.
    pub frames: u64,
}

/// Few enough to look through for every frame.
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
    /// Closing on a thread of its own, so that observations go on being taken meanwhile.
    Closing(JoinHandle<Stats>),
    Closed(Stats),
}

/// One direction of a pair.
#[derive(Debug)]
struct Tapped {
    hop: TapHop,
    name: String,
    endpoint: String,
    /// The name is the user's, or was taken from a frame that tells its sender's role.
    named: bool,
    announced: bool,
}

impl Tap {
    /// Binds every listener and starts to relay.
    pub fn start(hops: Vec<TapHop>, options: Options) -> Result<Self, RelayError> {
        let (most, tapped) = (options.max_frame_bytes, hops.iter().flat_map(Tapped::both).collect());
        let relay = Relay::start(hops.into_iter().map(|hop| hop.pair).collect(), options)?;
        Ok(Self::on(relay, most, tapped))
    }

    /// Relays nothing yet, and what [`Tap::add`] brings.
    pub fn waiting(options: Options) -> Result<Self, RelayError> {
        let most = options.max_frame_bytes;
        Ok(Self::on(Relay::waiting(options)?, most, Vec::new()))
    }

    /// Relays one more hop, whose listener is bound already; connections wait at `gate` before they are led on.
    pub fn add(&mut self, hop: TapHop, listener: UnixListener, gate: Gate) -> Result<(), RelayError> {
        let Running::Yes(relay) = &mut self.relay else {
            return Err(RelayError::Stopped);
        };
        self.hops.extend(Tapped::both(&hop));
        if let Err(error) = relay.add(hop.pair, listener, gate) {
            self.hops.truncate(self.hops.len() - 2);
            return Err(error);
        }
        Ok(())
    }

    fn on(relay: Relay, max_frame_bytes: u64, hops: Vec<Tapped>) -> Self {
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
        }
    }

    /// From now on events carry token ids, too.
    pub fn keep_ids(&mut self) {
        self.decoder.keep_ids();
    }

    /// Hands over at most `most` observations as events, each frame's first one with the frame's bytes; returns how many
    /// observations there were. Never waits.
    pub fn poll(&mut self, most: usize, sink: &mut dyn FnMut(&Event<'_>, &[u8])) -> usize {
        for done in 0..most {
            match self.observations.poll() {
                Some(observation) => self.translate(observation, sink),
                None => return done,
            }
        }
        most
    }

    /// Asks the relay to accept no more, drain and close. Observations go on until [`Tap::has_ended`].
    pub fn stop(&mut self) {
        let relay = std::mem::replace(&mut self.relay, Running::Closed(Stats::default()));
        self.relay = match relay {
            Running::Yes(relay) => Running::Closing(std::thread::spawn(move || relay.stop())),
            other => other,
        };
    }

    /// Whether the relay has closed and everything it observed was handed over.
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

    /// The relay's own counters.
    pub fn stats(&self) -> Stats {
        match &self.relay {
            Running::Yes(relay) => relay.stats(),
            Running::Closing(_) => Stats::default(),
            Running::Closed(stats) => *stats,
        }
    }

    /// Streams that pass and cannot be read, in words: few, since each hop and reason is said once.
    pub fn unread(&self) -> &[String] {
        &self.unread
    }

    /// The forms in which messages came so far.
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
            Observation::Lost {
                pair,
                direction,
                count,
                cause,
                ..
            } => {
                self.lost(hop_id(pair, direction), MonoNs::now(), count, cause, sink);
            }
            Observation::Opened { pair, at, .. } => self.announce(hop_id(pair, Direction::Forward), at, sink),
            Observation::Unread {
                pair, direction, why, ..
            } => self.cannot_read(hop_id(pair, direction), &why),
            Observation::Closed { pair, lane, why, .. } => tracing::info!(pair, lane, "connection over: {why}"),
        }
    }

    /// A peer that speaks no ZMTP, or speaks it encrypted, is said once for each hop and reason.
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
        let tapped = &mut self.hops[usize::from(id.hop.0)];
        let message = match payload {
            Payload::Whole(message) => message,
            Payload::Multipart(_) => return tapped.undecoded(id, at, bytes, "multipart", sink),
            Payload::NotKept(_) => return tapped.undecoded(id, at, bytes, "not-kept", sink),
        };
        let batch = match self.decoder.decode(message) {
            Ok(batch) => batch,
            Err(why) => {
                tracing::debug!(?id, "undecoded: {why}");
                return tapped.undecoded(id, at, bytes, why.reason(), sink);
            }
        };
        tapped.name_after(batch.kind());
        tapped.announce(id.hop, at, sink);
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

    fn announce(&mut self, hop: HopId, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>, &[u8])) {
        self.hops[usize::from(hop.0)].announce(hop, at, sink);
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
        let name = name.unwrap_or_else(|| "connector->upstream".into());
        Self {
            hop,
            name,
            endpoint,
            named,
            announced: false,
        }
    }

    /// Takes the sender's role from the first message that tells it.
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

    fn undecoded(
        &mut self,
        id: FrameId,
        at: MonoNs,
        bytes: u64,
        reason: &str,
        sink: &mut dyn FnMut(&Event<'_>, &[u8]),
    ) {
        self.announce(id.hop, at, sink);
        sink(
            &Event {
                at,
                what: What::Undecoded(Undecoded { id, bytes, reason }),
            },
            &[],
        );
    }

    fn announce(&mut self, id: HopId, at: MonoNs, sink: &mut dyn FnMut(&Event<'_>, &[u8])) {
        if self.announced {
            return;
        }
        self.announced = true;
        let sees = Sees {
            sent: true,
            forwarded: true,
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

/// Two hops a pair, in the order of the pairs.
fn hop_id(pair: u16, direction: Direction) -> HopId {
    HopId(pair * 2 + u16::from(direction == Direction::Backward))
}

fn reversed(name: &str) -> String {
    match name.split_once("->") {
        Some((from, to)) => format!("{to}->{from}"),
        None => format!("{name} (back)"),
    }
}
