//! The hop of each socket's messages, and the hop events.
//!
//! A hop here is one sending socket. Its name is found in two steps: the sender's role from the first decoded message, the receiver's from
//! connections. The first observed receive confirms the receiver.

use std::collections::{BTreeSet, HashMap};

use adapter::decode::SocketFormat;
use probe_user::SocketId;
use trace::event::{Capabilities, Event, Hop, Kind, What};
use trace::path::{Ends, UNKNOWN};
use trace::{FrameId, HopId, MonoNs};

use super::hop_ids::HopIds;
use super::observability::Observability;
use super::roles::{PathRole, PresumedReceiver, Receiver, Roles};
use crate::translate::{Hops, MessageContent, Sink};

/// Hops of all lanes, and the processes at their ends.
pub(super) struct Paths {
    pub(super) roles: Roles,
    pub(super) observability: Observability,
    /// Message format of the engine, once known.
    format: SocketFormat,
    /// By lane number of the matcher; `None` until a decodable message is sent on the lane.
    hops: Vec<Option<LaneHop>>,
    /// Hops of sockets whose senders are not watched, by receiving socket, with the number of frames.
    hops_of_unwatched_senders: HashMap<SocketId, UnwatchedHop>,
    pub(super) ids: HopIds,
    /// Messages on sockets beyond the limit of hops.
    pub(super) messages_beyond_limit: u64,
    /// Messages with tokens sent to unwatched receivers.
    pub(super) sent_to_unwatched: u64,
}

/// A hop whose sender is not watched.
struct UnwatchedHop {
    id: HopId,
    /// Number of frames so far.
    frames: u64,
}

/// Where a message was observed.
#[derive(Clone, Copy, Debug)]
pub(super) enum MessageSource {
    /// Sent by this socket, with this number on its lane.
    Sent { lane: usize, socket: SocketId, number: u64 },
    /// Received by this socket from an unwatched sender.
    Received(SocketId),
}

/// Hop of a lane.
#[derive(Clone, Debug)]
pub(super) struct LaneHop {
    pub(super) id: HopId,
    sender_role: PathRole,
    sender_socket: SocketId,
    receiver: PresumedReceiver,
    /// Set once a receive has confirmed the receiver; until then it is deduced from connections.
    is_receiver_confirmed: bool,
    /// Set if messages of its socket use another lane now.
    is_replaced: bool,
    content: Content,
    first_sent_at: MonoNs,
    /// Last known endpoint.
    endpoint: String,
    /// State last reported.
    announced: Option<Announced>,
}

/// What a lane carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Requests, to the scheduler.
    Requests,
    /// Output; this kind of message, if it has tokens.
    Output(Kind),
}

impl Content {
    /// Whether only control messages were sent on the lane, which show nothing about its receiver.
    fn is_control(self) -> bool {
        matches!(self, Self::Output(kind) if kind.is_control())
    }

    /// Whether the lane carries tokens, for which each receiver has its own socket.
    fn has_tokens(self) -> bool {
        matches!(self, Self::Output(kind) if !kind.is_control() && kind != Kind::Abort)
    }
}

impl LaneHop {
    /// Process that receives the lane's messages, if it is known.
    fn receiver_pid(&self) -> Option<u32> {
        self.receiver.deduced()?.pid
    }

    /// Whether a message of the engine's output was sent on the lane, beside control messages.
    fn carries_output(&self) -> bool {
        self.content != Content::Requests && !self.content.is_control()
    }

    /// Whether receives were last reported as observed.
    fn is_watched(&self) -> bool {
        self.announced.is_some_and(|announced| announced.capabilities.received)
    }
}

/// Part of a hop event that can change. The fields have its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Announced {
    sender_role: PathRole,
    receiver: Option<Receiver>,
    /// The engine's output begins on this hop.
    origin: bool,
    capabilities: Capabilities,
}

impl Paths {
    /// Paths between processes with these roles, without any hop so far.
    pub(super) fn new(roles: Roles, observability: Observability) -> Self {
        Self {
            roles,
            observability,
            format: SocketFormat::default(),
            hops: Vec::new(),
            hops_of_unwatched_senders: HashMap::new(),
            ids: HopIds::default(),
            messages_beyond_limit: 0,
            sent_to_unwatched: 0,
        }
    }

    /// Hop of a lane; `None` before its first decodable message.
    pub(super) fn hop_of_lane(&self, lane: usize) -> Option<&LaneHop> {
        self.hops.get(lane)?.as_ref()
    }

    /// Whether a lane carries requests; `None` if it has no hop yet.
    pub(super) fn carries_requests(&self, lane: usize) -> Option<bool> {
        Some(self.hop_of_lane(lane)?.content == Content::Requests)
    }

    /// Notes a message of the engine's output that was sent on a lane, which is one sending socket. Returns the lane's hop, which the first
    /// message creates. `None` beyond the limit of hops, and while it is not known what the lane carries.
    fn record_output_send(
        &mut self,
        lane: usize,
        socket: SocketId,
        MessageContent { kind, has_chunks }: MessageContent,
        at: MonoNs,
        sink: Sink<'_>,
    ) -> Option<HopId> {
        if let Some(hop) = self.hop_of_lane(lane) {
            let is_first_with_output = hop.content.is_control() && !kind.is_control();
            if is_first_with_output {
                // It says more about both ends than the control messages before it.
                self.apply_output_kind(lane, socket.pid, kind);
                self.announce_lane_if_changed(lane, at, sink);
            }
        } else {
            self.create_and_announce_output_hop(lane, socket, kind, at, sink)?;
        }
        let hop = self.hop_of_lane(lane)?;
        let hop_id = hop.id;
        // A server inside the sender's process receives without a queue, so there is no wait to observe.
        let stays_in_process = hop.receiver_pid() == Some(hop.sender_socket.pid);
        if has_chunks && !hop.is_watched() && !stays_in_process {
            self.sent_to_unwatched += 1;
        }
        Some(hop_id)
    }

    /// Creates the hop of a lane at its first message, which is of this kind, and emits it. `None` beyond the limit of hops, and while the
    /// lane may carry requests instead of output.
    fn create_and_announce_output_hop(
        &mut self,
        lane: usize,
        socket: SocketId,
        kind: Kind,
        at: MonoNs,
        sink: Sink<'_>,
    ) -> Option<HopId> {
        let content = Content::Output(kind);
        // A process that forwards requests sends messages without tokens to the scheduler, too.
        let may_carry_requests = !content.has_tokens() && self.roles.role_of(socket.pid).forwards_requests();
        if may_carry_requests {
            return None;
        }
        let hop_id = self.create_hop(lane, socket, content, at)?;
        self.announce_lane_if_changed(lane, at, sink);
        Some(hop_id)
    }

    /// Notes that a lane carries output of this kind, which shows the role of its sender. Deduces the receiver again.
    fn apply_output_kind(&mut self, lane: usize, sender_pid: u32, kind: Kind) {
        if let Some(hop) = &mut self.hops[lane] {
            hop.content = Content::Output(kind);
            hop.sender_role = self.roles.known_or_deduced_sender_role(sender_pid, kind);
            self.update_presumed_receiver(lane);
        }
    }

    /// Processes a message to the scheduler on a lane, which is one sending socket. Returns the lane's hop, which the first message that
    /// names requests creates. `None` before that, and beyond the limit of hops.
    pub(super) fn record_request_send(
        &mut self,
        lane: usize,
        socket: SocketId,
        names_requests: bool,
        at: MonoNs,
        sink: Sink<'_>,
    ) -> Option<HopId> {
        if let Some(hop) = self.hop_of_lane(lane) {
            return Some(hop.id);
        }
        if !names_requests {
            return None;
        }
        let id = self.create_hop(lane, socket, Content::Requests, at)?;
        self.announce_lane_if_changed(lane, at, sink);
        Some(id)
    }

    /// Numbers a frame with tokens that `socket` received from an unwatched sender, and reports the hop before its first frame. `None`
    /// beyond the limit of hops.
    fn number_frame_of_unwatched_sender(
        &mut self,
        socket: SocketId,
        kind: Kind,
        at: MonoNs,
        sink: Sink<'_>,
    ) -> Option<FrameId> {
        // Tells the frames apart from those before a restart of the engine, whose numbers also begin at 0.
        let generation = self.ids.generation;
        if let Some(hop) = self.hops_of_unwatched_senders.get_mut(&socket) {
            let number = hop.frames;
            hop.frames += 1;
            return Some(FrameId::new(hop.id, generation, number));
        }
        let id = self.create_hop_of_unwatched_sender(socket, kind, at, sink)?;
        let first_frame = 0;
        Some(FrameId::new(id, generation, first_frame))
    }

    /// Adds the hop of a socket that receives from an unwatched sender, with its first frame, and reports it. The kind of the message shows
    /// the roles of both ends. Returns its id; `None` beyond the limit of hops.
    fn create_hop_of_unwatched_sender(
        &mut self,
        socket: SocketId,
        kind: Kind,
        at: MonoNs,
        sink: Sink<'_>,
    ) -> Option<HopId> {
        let sender_role = self.roles.unwatched_sender_role(kind);
        let receiver_role = self.roles.known_or_deduced_receiver_role(socket.pid, kind);
        let ends = Ends::new(sender_role.word(), receiver_role.word());
        let Some(id) = self.ids.assign_id(ends) else {
            self.messages_beyond_limit += 1;
            return None;
        };
        self.hops_of_unwatched_senders.insert(socket, UnwatchedHop { id, frames: 1 });
        let capabilities = Capabilities {
            received: true,
            processed: self.observability.is_processing_reported,
            delivered: self.observability.deliveries_observed_since(&[socket.pid].into()).is_some(),
            ..Capabilities::default()
        };
        let hop = Hop::new(id, ends, capabilities);
        let hop = Hop { worker: receiver_role.rank(), last: receiver_role.is_tokenizer(), ..hop };
        sink(&Event::new(at, What::Hop(hop)));
        Some(id)
    }

    /// Adds the hop of a new lane, which is one sending socket. Its receiver is the process that the engine's connections suggest, until a
    /// receive is observed. Returns the id of the hop; `None` beyond the limit of hops.
    fn create_hop(&mut self, lane: usize, socket: SocketId, content: Content, at: MonoNs) -> Option<HopId> {
        // A socket gets a new lane when the numbering of its messages has restarted. Its previous lane has ended then.
        for old in self.hops.iter_mut().flatten().filter(|hop| hop.sender_socket == socket) {
            old.is_replaced = true;
        }
        let sender_role = match content {
            Content::Requests => self.roles.role_of(socket.pid),
            Content::Output(kind) => self.roles.known_or_deduced_sender_role(socket.pid, kind),
        };
        let no_own_hop = None;
        let receiver = self.presume_receiver(socket, content, no_own_hop);
        let Some(id) = self.ids.assign_id(ends_between(sender_role, receiver.deduced())) else {
            self.messages_beyond_limit += 1;
            return None;
        };
        if self.hops.len() <= lane {
            self.hops.resize(lane + 1, None);
        }
        self.hops[lane] = Some(LaneHop {
            id,
            sender_role,
            sender_socket: socket,
            receiver,
            is_receiver_confirmed: false,
            is_replaced: false,
            content,
            first_sent_at: at,
            endpoint: String::new(),
            announced: None,
        });
        Some(id)
    }

    /// Lanes (sending sockets) whose receives are observed.
    pub(super) fn watched_lanes(&self) -> impl Iterator<Item = u32> {
        // The index of a hop is the number of its lane.
        let lanes = self.hops.iter().zip(0..);
        let watched = lanes.filter(|(hop, _)| hop.as_ref().is_some_and(|hop| !hop.is_replaced && hop.is_watched()));
        watched.map(|(_, lane)| lane)
    }

    /// Notes that process `receiver_pid` receives the messages of a lane, which is one sending socket. Returns the lane's hop; `None` if it
    /// has none.
    pub(super) fn confirm_receiver_of_lane(
        &mut self,
        lane: usize,
        receiver_pid: u32,
        at: MonoNs,
        sink: Sink<'_>,
    ) -> Option<&LaneHop> {
        let hop = self.hops.get_mut(lane)?.as_mut()?;
        let is_successor = match hop.receiver_pid() {
            // The hop gets its first known receiver.
            None => true,
            // A process that was started again receives on the hop of its predecessor, which is no longer watched.
            Some(previous_pid) => previous_pid != receiver_pid && !self.observability.is_watched(previous_pid),
        };
        if !hop.is_receiver_confirmed || is_successor {
            hop.is_receiver_confirmed = true;
            let role = match hop.content {
                Content::Requests => self.roles.role_of(receiver_pid),
                Content::Output(kind) => self.roles.known_or_deduced_receiver_role(receiver_pid, kind),
            };
            hop.receiver = PresumedReceiver::Deduced(Receiver { role, pid: Some(receiver_pid) });
            self.announce_lane_if_changed(lane, at, sink);
        }
        self.hop_of_lane(lane)
    }

    /// Notes whether deliveries behind the last hops are observable, and reports the hops for which that has changed.
    pub(super) fn set_deliveries_visible(&mut self, are_visible: bool, at: MonoNs, sink: Sink<'_>) {
        if self.observability.are_deliveries_visible != are_visible {
            self.observability.are_deliveries_visible = are_visible;
            self.announce_changed_lanes(at, sink);
        }
    }

    /// Updates the receivers after processes or connections have changed.
    pub(super) fn update_and_announce_receivers(&mut self, at: MonoNs, sink: Sink<'_>) {
        for lane in 0..self.hops.len() {
            self.update_presumed_receiver(lane);
        }
        self.announce_changed_lanes(at, sink);
    }

    /// Removes an exited process. From now on, no watched process receives the messages sent to it.
    pub(super) fn remove_exited_process_and_announce(&mut self, pid: u32, at: MonoNs, sink: Sink<'_>) {
        self.observability.remove_process(pid);
        self.roles.remove_process(pid);
        self.announce_changed_lanes(at, sink);
    }

    /// Receiver of `socket`'s messages, deduced from connections. `own_lane` is the lane of the socket, if it has a hop already.
    fn presume_receiver(&self, socket: SocketId, content: Content, own_lane: Option<usize>) -> PresumedReceiver {
        let Content::Output(kind) = content else {
            return self.roles.presumed_receiver_of_requests(socket.pid);
        };
        // Each receiver of tokens has its own socket.
        let excluded =
            if content.has_tokens() { self.pids_receiving_tokens_from(socket.pid, own_lane) } else { BTreeSet::new() };
        self.roles.presumed_receiver(socket.pid, kind, &excluded)
    }

    /// Processes that receive tokens from `sender_pid` on another lane than `except_lane`.
    fn pids_receiving_tokens_from(&self, sender_pid: u32, except_lane: Option<usize>) -> BTreeSet<u32> {
        let mut receivers = BTreeSet::new();
        for (lane, hop) in self.hops.iter().enumerate() {
            let Some(hop) = hop else { continue };
            let is_of_sender = hop.sender_socket.pid == sender_pid && !hop.is_replaced;
            if is_of_sender && hop.content.has_tokens() && Some(lane) != except_lane {
                receivers.extend(hop.receiver_pid());
            }
        }
        receivers
    }

    /// Deduces again, from the engine's present connections, which process receives on a lane. A lane is one sending socket. Does nothing
    /// if a receive has confirmed the receiver and it is still watched.
    fn update_presumed_receiver(&mut self, lane: usize) {
        let Some(hop) = &self.hops[lane] else { return };
        let is_watched = hop.receiver_pid().is_some_and(|pid| self.observability.is_watched(pid));
        let is_certain = hop.is_receiver_confirmed && is_watched;
        // A replaced lane carries no messages any more.
        if hop.is_replaced || is_certain {
            return;
        }
        let presumed = self.presume_receiver(hop.sender_socket, hop.content, Some(lane));
        let replaces_receiver = match presumed {
            PresumedReceiver::Deduced(_) => true,
            // All connected processes receive from other sockets, so a receiver that was only presumed was wrong. A confirmed one has
            // exited, and the hop keeps its name.
            PresumedReceiver::NotVisible => !hop.is_receiver_confirmed,
            // Connections do not identify a receiver. It may be the one known so far, with a connection that is not visible at the moment.
            PresumedReceiver::Unknown => false,
        };
        if replaces_receiver && let Some(hop) = &mut self.hops[lane] {
            hop.receiver = presumed;
        }
    }

    /// Reports all hops whose state has changed.
    fn announce_changed_lanes(&mut self, at: MonoNs, sink: Sink<'_>) {
        for lane in 0..self.hops.len() {
            self.announce_lane_if_changed(lane, at, sink);
        }
    }

    /// Emits the hop of a lane, which is one sending socket, if its state has changed since it was last emitted. The state is its ends, and
    /// its capabilities: which stages of its messages are observed.
    fn announce_lane_if_changed(&mut self, lane: usize, at: MonoNs, sink: Sink<'_>) {
        let Some(hop) = &mut self.hops[lane] else { return };
        update_endpoint(hop, &self.roles);
        // From here on, the hop is only read.
        let hop = &*hop;
        let observed_since = observed_since(hop, &self.roles, &self.observability);
        let announced = Announced {
            sender_role: hop.sender_role,
            receiver: hop.receiver.deduced(),
            // The engine's output begins on this hop.
            origin: hop.sender_role.is_scheduler() && hop.carries_output(),
            capabilities: observed_since.capabilities(),
        };
        if hop.announced == Some(announced) {
            return;
        }
        // Frames that were sent before their receiver was watched may have been received and delivered unobserved. The hop is first
        // emitted with the capabilities that hold for them, so that they are not reported as lost.
        let for_earlier_frames = capabilities_for_earlier_frames(hop, announced, &observed_since);
        if for_earlier_frames != announced.capabilities {
            emit_hop(hop, Announced { capabilities: for_earlier_frames, ..announced }, at, sink);
        }
        emit_hop(hop, announced, at, sink);
        if let Some(hop) = &mut self.hops[lane] {
            hop.announced = Some(announced);
        }
    }
}

/// Notes the endpoint of the connection between a hop's ends. Keeps the last known one while the connection is not visible.
fn update_endpoint(hop: &mut LaneHop, roles: &Roles) {
    let Some(receiver_pid) = hop.receiver_pid() else { return };
    let endpoint = roles.only_endpoint_between(hop.sender_socket.pid, receiver_pid);
    if !endpoint.is_empty() && endpoint != hop.endpoint {
        endpoint.clone_into(&mut hop.endpoint);
    }
}

/// Capabilities of a hop that hold for all frames sent so far: the stages of a frame that are observed. Excludes receipt and delivery if
/// their observation began after the first frame was sent. `announced` is the state that is about to be emitted.
fn capabilities_for_earlier_frames(
    hop: &LaneHop,
    announced: Announced,
    observed_since: &ObservedSince,
) -> Capabilities {
    // A capability that was announced with the same receiver holds for the earlier frames, too.
    let capabilities_before = match hop.announced {
        Some(last_announced) if last_announced.receiver == announced.receiver => last_announced.capabilities,
        _ => Capabilities::default(),
    };
    let mut capabilities = announced.capabilities;
    // Without a start time, the stage is not observed, and its capability is false already.
    let began_after_first_frame = |since: Option<MonoNs>| since.is_some_and(|since| since > hop.first_sent_at);
    if !capabilities_before.received && began_after_first_frame(observed_since.received) {
        capabilities.received = false;
    }
    if !capabilities_before.delivered && began_after_first_frame(observed_since.delivered) {
        capabilities.delivered = false;
    }
    capabilities
}

/// Since when the stages of a hop's messages are observed at every process that may receive them.
fn observed_since(hop: &LaneHop, roles: &Roles, observability: &Observability) -> ObservedSince {
    let receiver = hop.receiver.deduced();
    let possible_receiver_pids = possible_receiver_pids(hop, roles);
    let received = match hop.receiver {
        // The receiver is none of the watched processes.
        PresumedReceiver::NotVisible => None,
        PresumedReceiver::Deduced(_) | PresumedReceiver::Unknown => {
            observability.receives_observed_since(hop.sender_socket.pid, &possible_receiver_pids)
        }
    };
    // Only a tokenizer delivers tokens.
    let goes_to_tokenizer =
        hop.content != Content::Requests && receiver.is_some_and(|receiver| receiver.role.is_tokenizer());
    let delivered =
        if goes_to_tokenizer { observability.deliveries_observed_since(&possible_receiver_pids) } else { None };
    ObservedSince { received, are_processed: observability.observes_processing(&possible_receiver_pids), delivered }
}

/// Processes that may receive the messages of a hop.
fn possible_receiver_pids(hop: &LaneHop, roles: &Roles) -> BTreeSet<u32> {
    if let Some(receiver) = hop.receiver.deduced() {
        return match receiver.pid {
            Some(pid) => [pid].into(),
            None => roles.pids_with_role(receiver.role),
        };
    }
    // Requests go to schedulers only, of which none is known.
    if hop.content == Content::Requests { BTreeSet::new() } else { roles.pids_that_may_receive_from(hop.sender_role) }
}

/// Since when the stages of a hop's messages are observed; `None` for one that is not.
struct ObservedSince {
    received: Option<MonoNs>,
    /// Whether it is also observed when received messages are processed.
    are_processed: bool,
    delivered: Option<MonoNs>,
}

impl ObservedSince {
    /// Capabilities of a hop whose stages are observed since these times. Processing is observed only together with receives.
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            sent: true,
            received: self.received.is_some(),
            processed: self.received.is_some() && self.are_processed,
            delivered: self.delivered.is_some(),
            ..Capabilities::default()
        }
    }
}

impl Hops for Paths {
    type Source = MessageSource;

    fn socket_format(&mut self, _: MessageSource) -> &mut SocketFormat {
        &mut self.format
    }

    /// Numbers a message on its hop, and returns its id. `content` is what it contains, if it was decoded. The first such message of a
    /// sending socket (a lane) creates the hop. `None` if the message is on no hop.
    fn number_frame(
        &mut self,
        source: MessageSource,
        content: Option<MessageContent>,
        at: MonoNs,
        sink: Sink<'_>,
    ) -> Option<FrameId> {
        match source {
            MessageSource::Sent { lane, socket, number } => {
                let hop = match content {
                    Some(content) => self.record_output_send(lane, socket, content, at, sink)?,
                    None => self.hop_of_lane(lane)?.id,
                };
                Some(FrameId::new(hop, self.ids.generation, number))
            }
            MessageSource::Received(socket) => {
                // Of an unwatched sender, only frames with tokens are reported.
                let content = content.filter(|content| content.has_chunks)?;
                self.number_frame_of_unwatched_sender(socket, content.kind, at, sink)
            }
        }
    }
}

/// Emits the state of a hop as an event.
fn emit_hop(hop: &LaneHop, announced: Announced, at: MonoNs, sink: Sink<'_>) {
    let receiver_role = announced.receiver.map(|receiver| receiver.role);
    let hop = Hop {
        id: hop.id,
        ends: ends_between(hop.sender_role, announced.receiver),
        endpoint: &hop.endpoint,
        worker: receiver_role.and_then(PathRole::rank),
        origin: announced.origin,
        // The engine's output ends at a tokenizer.
        last: hop.content != Content::Requests && receiver_role.is_some_and(PathRole::is_tokenizer),
        carries_requests: hop.content == Content::Requests,
        capabilities: announced.capabilities,
    };
    sink(&Event::new(at, What::Hop(hop)));
}

/// Names of a hop's ends.
fn ends_between(sender_role: PathRole, receiver: Option<Receiver>) -> Ends<&'static str> {
    Ends::new(sender_role.word(), receiver.map_or(UNKNOWN, |receiver| receiver.role.word()))
}
