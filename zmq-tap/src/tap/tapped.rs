//! One direction of a relayed pair: the name of its hop, and its announcement.

use trace::event::{Capabilities, Event, Hop, Kind, What};
use trace::{HopId, MonoNs, path};

use super::TapHop;
use crate::decode::{Format, SocketFormat};
use crate::relay::Direction;

/// One direction of a pair.
#[derive(Debug)]
pub(super) struct Tapped {
    pub(super) hop: TapHop,
    pub(super) name: String,
    pub(super) endpoint: String,
    /// The name came from the user, or from a frame that shows the sender's role.
    pub(super) named: bool,
    pub(super) announced: bool,
    /// Whether all other pairs are HTTP.
    pub(super) only: bool,
    pub(super) carries: SocketFormat,
    /// Number of handshakes that the sending side of this direction refused.
    pub(super) rejected: u64,
}

impl Tapped {
    pub(super) fn both(hop: &TapHop) -> [Self; 2] {
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
                (hop.origin, hop.last, hop.also) = (false, false, Capabilities::default());
                let listen = || hop.pair.listen.to_string();
                let endpoint = hop.endpoint.clone().unwrap_or_else(listen);
                (endpoint, hop.name.as_deref().map(path::reversed))
            }
        };
        let named = name.is_some();
        let name = name.unwrap_or_else(|| {
            let forward = "connector->upstream";
            match direction {
                Direction::Forward => forward.into(),
                Direction::Backward => path::reversed(forward),
            }
        });
        Self {
            hop,
            name,
            endpoint,
            named,
            announced: false,
            only: false,
            carries: SocketFormat::default(),
            rejected: 0,
        }
    }

    /// Derives the sender's role from the first message that shows it.
    pub(super) fn name_from_kind(&mut self, kind: Kind, formats: &[Format]) {
        if self.named {
            return;
        }
        if let Some(name) = self.carries.format(formats).and_then(|format| (format.hop)(kind)) {
            self.name = name.into();
            self.named = true;
            self.announced = false;
        }
    }

    /// Whether deliveries follow the messages on this hop, judged by the hop's name or because it is the only one.
    fn leads_to_clients(&self, formats: &[Format]) -> bool {
        let receiver = path::ends(&self.name).1;
        self.only || formats.iter().any(|format| format.receivers.contains(&receiver))
    }

    pub(super) fn announce(
        &mut self,
        id: HopId,
        at: MonoNs,
        (delivers, formats): (bool, &[Format]),
        sink: &mut dyn FnMut(&Event<'_>, &[u8]),
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
            capabilities,
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
