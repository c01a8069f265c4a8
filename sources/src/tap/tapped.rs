//! The hops of relayed pairs: their names, and their announcements.

use trace::event::{Capabilities, Event, Hop, Kind, What};
use trace::path::Ends;
use trace::{FrameId, HopId, MonoNs};

use super::TapHop;
use crate::translate::{Hops, MessageContent, Sink};
use adapter::decode::{Format, SocketFormat};
use zmq_tap::relay::{Direction, Endpoint};

/// One direction of a pair.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is one fact about the direction, read by its name")]
pub(super) struct Tapped {
    pub(super) hop: TapHop,
    pub(super) ends: Ends<Box<str>>,
    pub(super) endpoint: String,
    /// The ends came from the user, or from a frame that shows the sender's role.
    pub(super) is_named: bool,
    /// An event of the hop with these ends was emitted.
    pub(super) is_announced: bool,
    /// Whether all other pairs are HTTP.
    pub(super) is_only_zmq_hop: bool,
    pub(super) carries: SocketFormat,
    /// A message with output of requests has crossed it.
    pub(super) has_carried_output: bool,
    /// Number of handshakes that the sending side of this direction refused.
    pub(super) rejected_handshakes: u64,
    /// Number of connections that the upstream did not accept; counted in the forward direction.
    pub(super) refused_connections: u64,
}

impl Tapped {
    /// Both directions of a hop: forward and backward. What is known of the hop in advance holds for the forward direction only, in which
    /// the messages of the engine go.
    pub(super) fn both_directions(hop: TapHop) -> [Self; 2] {
        let backward = TapHop {
            origin: false,
            last: false,
            carries_requests: false,
            further_capabilities: Capabilities::default(),
            ..hop.clone()
        };
        [Self::new(hop, Direction::Forward), Self::new(backward, Direction::Backward)]
    }

    /// State of one direction of a hop. The names of the ends are in the order of the messages.
    fn new(hop: TapHop, direction: Direction) -> Self {
        let is_named = hop.ends.is_some();
        // Until a message shows the sender's role, the ends are named by what the relay knows of them.
        let forward_ends = hop.ends.clone().unwrap_or_else(|| Ends::from("connector->upstream").to_owned());
        let (receiver, ends) = match direction {
            Direction::Forward => (&hop.pair.upstream, forward_ends),
            Direction::Backward => (&hop.pair.listen, forward_ends.reversed()),
        };
        // After a splice, the relay listens at another address than the engine did.
        let endpoint = hop.endpoint.clone().unwrap_or_else(|| receiver.to_string());
        Self {
            hop,
            ends,
            endpoint,
            is_named,
            is_announced: false,
            is_only_zmq_hop: false,
            carries: SocketFormat::default(),
            has_carried_output: false,
            rejected_handshakes: 0,
            refused_connections: 0,
        }
    }

    /// Names the ends by the kind of a message, if it shows the sender's role and no earlier message did.
    fn name_ends_by_kind(&mut self, kind: Kind, formats: &[Format]) {
        if self.is_named {
            return;
        }
        if let Some(ends) = self.carries.format(formats).and_then(|format| (format.hop)(kind)) {
            self.ends = ends.to_owned();
            self.is_named = true;
            // The hop may have been announced with the old names, so it must be announced again.
            self.is_announced = false;
        }
    }

    /// Whether deliveries follow the messages on this hop, judged by the hop's name or because it is the only one.
    fn leads_to_clients(&self, formats: &[Format]) -> bool {
        let receiver = &*self.ends.to;
        self.is_only_zmq_hop || formats.iter().any(|format| format.receivers.contains(&receiver))
    }
}

/// The hops of all pairs.
#[derive(Debug)]
pub(super) struct RelayHops {
    formats: &'static [Format],
    /// Two entries per pair: the forward direction, then the backward one.
    pub(super) tapped: Vec<Tapped>,
    /// Whether hops into the tokenizer are announced with observable deliveries.
    pub(super) are_deliveries_visible: bool,
}

impl RelayHops {
    pub(super) fn new(formats: &'static [Format]) -> Self {
        Self { formats, tapped: Vec::new(), are_deliveries_visible: false }
    }

    /// Emits a hop with its ends and its capabilities (the stages of its messages that are observed), unless that was done already.
    pub(super) fn announce_hop_once(&mut self, id: HopId, at: MonoNs, sink: Sink<'_>) {
        let tapped = &mut self.tapped[usize::from(id.0)];
        if tapped.is_announced {
            return;
        }
        tapped.is_announced = true;
        let TapHop { further_capabilities, worker, origin, last, carries_requests, .. } = tapped.hop;
        // Requests are delivered to nobody. The only hop counts as one that leads to clients even if it carries requests.
        let may_show_deliveries = self.are_deliveries_visible && !carries_requests;
        let are_deliveries_visible = may_show_deliveries && tapped.leads_to_clients(self.formats);
        let capabilities = Capabilities {
            sent: true,
            // Events of requests do not have the time of forwarding.
            forwarded: !carries_requests,
            delivered: further_capabilities.delivered || are_deliveries_visible,
            // Another observer of the hop may see more than the relay.
            ..further_capabilities
        };
        let ends = tapped.ends.as_str();
        let endpoint = &tapped.endpoint;
        let hop = Hop { endpoint, worker, origin, last, carries_requests, ..Hop::new(id, ends, capabilities) };
        sink(&Event::new(at, What::Hop(hop)));
    }

    /// Notes that requests have been found on a hop. Its next message announces it as one that carries requests.
    pub(super) fn record_found_requests(&mut self, id: HopId) {
        // The two directions of a pair have adjacent ids, of which the forward one is even.
        let opposite_id = id.0 ^ 1;
        let opposite = &self.tapped[usize::from(opposite_id)];
        // The user has named the pair as one of requests, and the forward direction has that name. Requests flow backward if the scheduler
        // connects to receive them: then the name belongs to this direction.
        let name_of_requests = opposite.hop.carries_requests.then(|| opposite.ends.clone());
        let tapped = &mut self.tapped[usize::from(id.0)];
        if let Some(ends) = name_of_requests {
            tapped.ends = ends;
        }
        tapped.hop.carries_requests = true;
        tapped.is_announced = false;
    }

    /// Announces a changed hop again, if it was announced.
    fn announce_again_if_announced(&mut self, id: HopId, at: MonoNs, sink: Sink<'_>) {
        let tapped = &mut self.tapped[usize::from(id.0)];
        if tapped.is_announced {
            tapped.is_announced = false;
            self.announce_hop_once(id, at, sink);
        }
    }

    /// Announces all hops again if the observability of deliveries has changed.
    pub(super) fn set_deliveries_visible(&mut self, are_observable: bool, sink: Sink<'_>) {
        if self.are_deliveries_visible == are_observable {
            return;
        }
        self.are_deliveries_visible = are_observable;
        for id in 0..self.tapped.len() {
            self.announce_again_if_announced(HopId(id as u16), MonoNs::now(), sink);
        }
    }

    /// Names both directions of the hop that listens at `listen`, and announces them again if their names have changed.
    pub(super) fn name_hop(&mut self, listen: &Endpoint, ends: Ends<&str>, at: MonoNs, sink: Sink<'_>) {
        let forward_ends = ends.to_owned();
        let backward_ends = ends.reversed();
        for index in 0..self.tapped.len() {
            // Each pair has two entries: forward, then backward.
            let ends = if index % 2 == 0 { &forward_ends } else { &backward_ends };
            let tapped = &mut self.tapped[index];
            if tapped.hop.pair.listen == *listen && tapped.ends != *ends {
                tapped.ends.clone_from(ends);
                tapped.is_named = true;
                self.announce_again_if_announced(HopId(index as u16), at, sink);
            }
        }
    }
}

impl Hops for RelayHops {
    type Source = FrameId;

    fn socket_format(&mut self, id: FrameId) -> &mut SocketFormat {
        &mut self.tapped[usize::from(id.hop.0)].carries
    }

    /// Returns the id that the relay gave the message; never `None`. Before that, names and announces its hop.
    fn number_frame(
        &mut self,
        id: FrameId,
        content: Option<MessageContent>,
        at: MonoNs,
        sink: Sink<'_>,
    ) -> Option<FrameId> {
        if let Some(MessageContent { kind, has_chunks }) = content {
            let tapped = &mut self.tapped[usize::from(id.hop.0)];
            tapped.has_carried_output |= has_chunks;
            tapped.name_ends_by_kind(kind, self.formats);
        }
        self.announce_hop_once(id.hop, at, sink);
        Some(id)
    }
}
