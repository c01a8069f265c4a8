//! The tap as a source: what the relay observed, decoded, as events.

use trace::engine::Behaviour;
use trace::event::{Engine, Event, Frame, Hop, Kind, Lost, LostCause, Sees, Undecoded, What};
use trace::{FrameId, HopId};

use crate::relay::{Direction, Observation, Options, Pair, Payload, Relay, RelayError, Stats};
use crate::wire::{Decoder, Limits};

/// A pair of endpoints and what the hop between them is called.
#[derive(Clone, Debug)]
pub struct TapHop {
    /// Where to listen and where the bytes go.
    pub pair: Pair,
    /// `from->to` for reports; `None` takes the sender's role from what passes.
    pub name: Option<String>,
}

/// A running relay whose frames are decoded into events.
pub struct Tap {
    relay: Relay,
    decoder: Decoder,
    /// Two a pair: the forward direction, then the backward one.
    hops: Vec<TappedHop>,
    /// The release range that the last decoded frame's layout belongs to.
    schema: Option<&'static str>,
}

/// What is known of one direction of a pair.
struct TappedHop {
    name: String,
    endpoint: String,
    /// The name is the user's or was taken from a frame that tells the sender's role.
    named: bool,
    announced: bool,
}

impl Tap {
    /// Binds every listener and starts to relay.
    pub fn start(hops: Vec<TapHop>, options: Options) -> Result<Self, RelayError> {
        let limits = Limits { message_bytes: options.max_frame_bytes, ..Limits::default() };
        let tapped = hops.iter().enumerate().flat_map(|(i, hop)| TappedHop::both_ways(i, hop)).collect();
        let relay = Relay::start(hops.into_iter().map(|hop| hop.pair).collect(), options)?;
        Ok(Self { relay, decoder: Decoder::new(limits), hops: tapped, schema: None })
    }

    /// Hands over at most `most` observations as events; returns how many there were. Never waits.
    pub fn poll(&mut self, most: usize, sink: &mut dyn FnMut(&Event<'_>)) -> usize {
        for done in 0..most {
            match self.relay.poll() {
                Some(observation) => self.translate(&observation, sink),
                None => return done,
            }
        }
        most
    }

    /// Asks the relay to accept no more, drain and close.
    pub fn stop(&mut self) {
        self.relay.request_stop();
    }

    /// Whether the relay has closed and everything it observed was handed over.
    pub fn has_ended(&self) -> bool {
        self.relay.has_ended()
    }

    /// The relay's own counters.
    pub fn stats(&self) -> Stats {
        self.relay.stats()
    }
}
