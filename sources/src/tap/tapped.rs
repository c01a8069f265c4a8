//! One direction of a relayed pair: the name of its hop, and its announcement.

use trace::event::{Capabilities, Event, Hop, Kind, What};
use trace::path::Ends;
use trace::{HopId, MonoNs};

use super::TapHop;
use adapter::decode::{Format, SocketFormat};
use zmq_tap::relay::Direction;

/// One direction of a pair.
#[derive(Debug)]
pub(super) struct Tapped {
    pub(super) hop: TapHop,
    pub(super) ends: Ends<Box<str>>,
    pub(super) endpoint: String,
    /// The ends came from the user, or from a frame that shows the sender's role.
    pub(super) named: bool,
    pub(super) announced: bool,
    /// Whether all other pairs are HTTP.
    pub(super) only: bool,
    pub(super) carries: SocketFormat,
    /// Number of handshakes that the sending side of this direction refused.
    pub(super) rejected: u64,
    /// Number of connections that the upstream did not accept; counted in the forward direction.
    pub(super) refused: u64,
}

impl Tapped {
    /// Both directions of a hop: forward and backward.
    pub(super) fn both(hop: TapHop) -> [Self; 2] {
        let backward = TapHop { origin: false, last: false, also: Capabilities::default(), ..hop.clone() };
        [Self::new(hop, Direction::Forward), Self::new(backward, Direction::Backward)]
    }

    fn new(hop: TapHop, direction: Direction) -> Self {
        let named = hop.ends.is_some();
        let forward = hop.ends.clone().unwrap_or_else(|| Ends::from("connector->upstream").to_owned());
        let (endpoint, ends) = match direction {
            Direction::Forward => (hop.pair.upstream.to_string(), forward),
            Direction::Backward => (hop.pair.listen.to_string(), forward.reversed()),
        };
        let endpoint = hop.endpoint.clone().unwrap_or(endpoint);
        Self {
            hop,
            ends,
            endpoint,
            named,
            announced: false,
            only: false,
            carries: SocketFormat::default(),
            rejected: 0,
            refused: 0,
        }
    }

    /// Derives the sender's role from the first message that shows it.
    pub(super) fn name_from_kind(&mut self, kind: Kind, formats: &[Format]) {
        if self.named {
            return;
        }
        if let Some(ends) = self.carries.format(formats).and_then(|format| (format.hop)(kind)) {
            self.ends = ends.to_owned();
            self.named = true;
            self.announced = false;
        }
    }

    /// Whether deliveries follow the messages on this hop, judged by the hop's name or because it is the only one.
    fn leads_to_clients(&self, formats: &[Format]) -> bool {
        let receiver = &*self.ends.to;
        self.only || formats.iter().any(|format| format.receivers.contains(&receiver))
    }

    pub(super) fn announce(
        &mut self,
        id: HopId,
        at: MonoNs,
        (delivers, formats): (bool, &[Format]),
        sink: &mut dyn FnMut(&Event<'_>),
    ) {
        if self.announced {
            return;
        }
        self.announced = true;
        let capabilities = Capabilities {
            sent: true,
            forwarded: true,
            delivered: self.hop.also.delivered || (delivers && self.leads_to_clients(formats)),
            ..self.hop.also
        };
        let TapHop { worker, origin, last, .. } = self.hop;
        let hop = Hop { id, ends: self.ends.as_str(), endpoint: &self.endpoint, worker, origin, last, capabilities };
        sink(&Event { at, what: What::Hop(hop) });
    }
}
