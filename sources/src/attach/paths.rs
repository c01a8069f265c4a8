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

use super::roles::{Part, Presumed, Receiver, Roles};
use super::sight::Observability;
use crate::translate::{Hops, MessageContent, Sink};

const MAX_HOPS: usize = 1024;

/// Hops of all lanes, and the processes at their ends.
pub(super) struct Paths {
    pub(super) roles: Roles,
    pub(super) sight: Observability,
    /// Message format of the engine, once known.
    carries: SocketFormat,
    /// By lane number of the matcher; `None` until a decodable message is sent on the lane.
    hops: Vec<Option<Known>>,
    /// Hops of sockets whose senders are not watched, by receiving socket, with the number of frames.
    unknown_senders: HashMap<SocketId, (HopId, u64)>,
    pub(super) ids: HopIds,
    /// Sockets beyond the limit of hops.
    pub(super) left_out: u64,
    /// Messages with tokens sent to unwatched receivers.
    pub(super) unwatched: u64,
}

/// Where a message was observed.
#[derive(Clone, Copy, Debug)]
pub(super) enum MessageSource {
    /// Sent by this socket, with this number on its lane.
    Sent { lane: usize, socket: SocketId, number: u64 },
    /// Received by this socket from an unwatched sender.
    Received(SocketId),
}

/// A lane with a known hop.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) id: HopId,
    from: Part,
    sender: SocketId,
    receiver: Presumed,
    /// Set once a receive has confirmed the receiver; until then it is deduced from connections.
    confirmed: bool,
    /// Set if messages of its socket use another lane now.
    replaced: bool,
    content: Content,
    /// Time of the first send.
    since: MonoNs,
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
    /// Whether it tells nothing of the receiver: no message with tokens was seen.
    fn is_control(self) -> bool {
        matches!(self, Self::Output(kind) if kind.is_control())
    }

    /// Whether each receiver has its own socket for it.
    fn has_tokens(self) -> bool {
        matches!(self, Self::Output(kind) if !kind.is_control() && kind != Kind::Abort)
    }
}

/// Part of a hop event that can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Announced {
    from: Part,
    to: Option<Receiver>,
    origin: bool,
    capabilities: Capabilities,
}

impl Paths {
    pub(super) fn new(roles: Roles, sight: Observability) -> Self {
        Self {
            roles,
            sight,
            carries: SocketFormat::default(),
            hops: Vec::new(),
            unknown_senders: HashMap::new(),
            ids: HopIds::default(),
            left_out: 0,
            unwatched: 0,
        }
    }

    /// Hop of a lane; `None` before its first decodable message.
    pub(super) fn of_lane(&self, lane: usize) -> Option<&Known> {
        self.hops.get(lane)?.as_ref()
    }

    /// Processes a send on a lane and returns its hop. `None` beyond the limit of hops.
    fn sent(
        &mut self,
        lane: usize,
        socket: SocketId,
        MessageContent { kind, has_chunks }: MessageContent,
        at: MonoNs,
        sink: Sink<'_>,
    ) -> Option<HopId> {
        if self.hops.len() <= lane {
            self.hops.resize(lane + 1, None);
        }
        match &mut self.hops[lane] {
            Some(known) if !known.content.is_control() || kind.is_control() => {}
            Some(known) => {
                known.content = Content::Output(kind);
                known.from = self.roles.sender(socket.pid, kind);
                self.presume(lane);
                self.announce(lane, at, sink);
            }
            None => {
                self.create(lane, socket, Content::Output(kind), at)?;
                self.announce(lane, at, sink);
            }
        }
        let known = self.hops[lane].as_ref()?;
        let is_watched = known.announced.is_some_and(|announced| announced.capabilities.received);
        // A server inside the sender's process receives without a queue.
        let stays_inside = known.receiver.known().is_some_and(|to| to.pid == Some(known.sender.pid));
        if has_chunks && !is_watched && !stays_inside {
            self.unwatched += 1;
        }
        Some(known.id)
    }

    /// Processes a message to the scheduler on a lane and returns its hop, which exists from the first message that names requests on.
    pub(super) fn dispatched(
        &mut self,
        lane: usize,
        socket: SocketId,
        names_requests: bool,
        at: MonoNs,
        sink: Sink<'_>,
    ) -> Option<HopId> {
        if let Some(known) = self.of_lane(lane) {
            return Some(known.id);
        }
        if !names_requests {
            return None;
        }
        if self.hops.len() <= lane {
            self.hops.resize(lane + 1, None);
        }
        self.create(lane, socket, Content::Requests, at)?;
        self.announce(lane, at, sink);
        Some(self.of_lane(lane)?.id)
    }

    /// Numbers a frame with tokens from an unwatched sender.
    fn received_unsent(&mut self, socket: SocketId, kind: Kind, at: MonoNs, sink: Sink<'_>) -> Option<FrameId> {
        let generation = self.ids.generation;
        if let Some((hop, frames)) = self.unknown_senders.get_mut(&socket) {
            *frames += 1;
            return Some(FrameId::new(*hop, generation, *frames - 1));
        }
        let from = self.roles.unwatched_sender(kind);
        let to = self.roles.receiver(socket.pid, kind);
        let ends = Ends::new(from.word(), to.word());
        let Some(id) = self.ids.assign(ends) else {
            self.left_out += 1;
            return None;
        };
        self.unknown_senders.insert(socket, (id, 1));
        let capabilities = Capabilities {
            received: true,
            processed: self.sight.processed,
            delivered: self.sight.serves(&[socket.pid].into()).is_some(),
            ..Capabilities::default()
        };
        let hop = Hop { worker: to.rank(), last: to.is_tokenizer(), ..Hop::new(id, ends, capabilities) };
        sink(&Event::new(at, What::Hop(hop)));
        Some(FrameId::new(id, generation, 0))
    }

    /// Enters the hop of a new lane, with the receiver that the connections suggest. `None` beyond the limit of hops.
    fn create(&mut self, lane: usize, socket: SocketId, content: Content, at: MonoNs) -> Option<()> {
        // Numbering has restarted, so the socket's previous lane has ended.
        for old in self.hops.iter_mut().flatten().filter(|known| known.sender == socket) {
            old.replaced = true;
        }
        let from = match content {
            Content::Requests => self.roles.of(socket.pid),
            Content::Output(kind) => self.roles.sender(socket.pid, kind),
        };
        let receiver = self.presumed(socket, content, None);
        let Some(id) = self.ids.assign(ends(from, receiver.known())) else {
            self.left_out += 1;
            return None;
        };
        self.hops[lane] = Some(Known {
            id,
            from,
            sender: socket,
            receiver,
            confirmed: false,
            replaced: false,
            content,
            since: at,
            endpoint: String::new(),
            announced: None,
        });
        Some(())
    }

    /// Lanes whose receives are observed.
    pub(super) fn watched_lanes(&self) -> impl Iterator<Item = u32> {
        self.hops.iter().zip(0..).filter_map(|(known, lane)| {
            let known = known.as_ref().filter(|known| !known.replaced)?;
            known.announced?.capabilities.received.then_some(lane)
        })
    }

    /// Processes a receive by `pid` and returns the lane's hop.
    pub(super) fn received(&mut self, lane: usize, pid: u32, at: MonoNs, sink: Sink<'_>) -> Option<&Known> {
        let known = self.hops.get_mut(lane)?.as_mut()?;
        // A restarted process receives on the hop of its predecessor.
        let receiver = known.receiver.known().and_then(|to| to.pid);
        let is_another = receiver != Some(pid) && receiver.is_none_or(|before| !self.sight.is_watched(before));
        if !known.confirmed || is_another {
            known.confirmed = true;
            let part = match known.content {
                Content::Requests => self.roles.of(pid),
                Content::Output(kind) => self.roles.receiver(pid, kind),
            };
            known.receiver = Presumed::By(Receiver { part, pid: Some(pid) });
            self.announce(lane, at, sink);
        }
        self.of_lane(lane)
    }

    /// Reports whether deliveries behind the last hops are observable, if that has changed.
    pub(super) fn delivers(&mut self, seen: bool, at: MonoNs, sink: Sink<'_>) {
        if std::mem::replace(&mut self.sight.delivered, seen) != seen {
            self.announce_all(at, sink);
        }
    }

    /// Updates the receivers after processes or connections have changed.
    pub(super) fn reconsider(&mut self, at: MonoNs, sink: Sink<'_>) {
        for lane in 0..self.hops.len() {
            self.presume(lane);
        }
        self.announce_all(at, sink);
    }

    /// Handles the exit of a process. From now on, no watched process receives its messages.
    pub(super) fn exited(&mut self, pid: u32, at: MonoNs, sink: Sink<'_>) {
        self.sight.forget(pid);
        self.roles.forget(pid);
        self.announce_all(at, sink);
    }

    /// Receiver deduced from connections. Each receiver of tokens has its own socket, so receivers of the sender's other sockets are
    /// excluded.
    fn presumed(&self, socket: SocketId, content: Content, lane: Option<usize>) -> Presumed {
        let Content::Output(kind) = content else {
            return self.roles.presumed_scheduler(socket.pid);
        };
        let mut excluded = BTreeSet::new();
        for (number, known) in self.hops.iter().enumerate() {
            let Some(known) = known else { continue };
            let is_other_socket_of_sender = Some(number) != lane && !known.replaced && known.sender.pid == socket.pid;
            if is_other_socket_of_sender && known.content.has_tokens() && content.has_tokens() {
                excluded.extend(known.receiver.known().and_then(|receiver| receiver.pid));
            }
        }
        self.roles.presumed_receiver(socket.pid, kind, &excluded)
    }

    /// Deduces the receiver of a lane again, unless a watched receiver was confirmed.
    fn presume(&mut self, lane: usize) {
        let Some(known) = &self.hops[lane] else { return };
        let watched = known.receiver.known().and_then(|to| to.pid).is_some_and(|pid| self.sight.is_watched(pid));
        if known.replaced || (known.confirmed && watched) {
            return;
        }
        let presumed = self.presumed(known.sender, known.content, Some(lane));
        // Keep the name of a receiver that has exited or whose connection is not visible at the moment.
        if let Some(known) = &mut self.hops[lane]
            && (matches!(presumed, Presumed::By(_)) || presumed == Presumed::Another && !known.confirmed)
        {
            known.receiver = presumed;
        }
    }

    /// Reports all hops whose state has changed.
    fn announce_all(&mut self, at: MonoNs, sink: Sink<'_>) {
        for lane in 0..self.hops.len() {
            self.announce(lane, at, sink);
        }
    }

    /// Reports a hop if its state has changed.
    fn announce(&mut self, lane: usize, at: MonoNs, sink: Sink<'_>) {
        let Some(known) = &mut self.hops[lane] else { return };
        let to = known.receiver.known();
        let receiver_pid = to.and_then(|to| to.pid);
        let endpoint = receiver_pid.map_or("", |pid| self.roles.endpoint(known.sender.pid, pid));
        if !endpoint.is_empty() && endpoint != known.endpoint {
            endpoint.clone_into(&mut known.endpoint);
        }
        let known = &*known;
        let observed_since = observed_since(known, &self.roles, &self.sight);
        let announced = Announced {
            from: known.from,
            to,
            origin: known.from.is_scheduler() && known.content != Content::Requests && !known.content.is_control(),
            capabilities: observed_since.capabilities(),
        };
        let before = known.announced;
        if before == Some(announced) {
            return;
        }
        // Frames sent before their receiver was watched may have been received and delivered unobserved, so they must not be judged: the hop
        // is first reported as one whose receives or deliveries are not observed.
        let mut hidden = announced.capabilities;
        let is_new = |was_observed: fn(Capabilities) -> bool| {
            before.is_none_or(|before| before.to != announced.to || !was_observed(before.capabilities))
        };
        if observed_since.received > Some(known.since) && is_new(|before| before.received) {
            hidden.received = false;
        }
        if observed_since.delivered > Some(known.since) && is_new(|before| before.delivered) {
            hidden.delivered = false;
        }
        if hidden != announced.capabilities {
            emit(known, Announced { capabilities: hidden, ..announced }, at, sink);
        }
        emit(known, announced, at, sink);
        if let Some(known) = &mut self.hops[lane] {
            known.announced = Some(announced);
        }
    }
}

/// Since when the stages of a lane's messages are observed at all processes that may receive them.
fn observed_since(known: &Known, roles: &Roles, sight: &Observability) -> ObservedSince {
    let to = known.receiver.known();
    let receivers = match to {
        Some(Receiver { pid: Some(pid), .. }) => [pid].into(),
        Some(Receiver { part, pid: None }) => roles.with_role(part),
        None if known.content == Content::Requests => BTreeSet::new(),
        None => roles.may_receive_from(known.from),
    };
    let received = match known.receiver {
        Presumed::Another => None,
        _ => sight.watches(known.sender.pid, &receivers),
    };
    // Only a tokenizer delivers tokens.
    let goes_to_tokenizer = known.content != Content::Requests && to.is_some_and(|to| to.part.is_tokenizer());
    ObservedSince {
        received,
        are_processed: sight.processes(&receivers),
        delivered: if goes_to_tokenizer { sight.serves(&receivers) } else { None },
    }
}

/// Since when the stages of a hop's messages are observed; `None` for one that is not.
struct ObservedSince {
    received: Option<MonoNs>,
    /// Whether it is also observed when received messages are processed.
    are_processed: bool,
    delivered: Option<MonoNs>,
}

impl ObservedSince {
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
        &mut self.carries
    }

    fn number_frame(
        &mut self,
        source: MessageSource,
        content: Option<MessageContent>,
        at: MonoNs,
        sink: Sink<'_>,
    ) -> Option<FrameId> {
        match (source, content) {
            (MessageSource::Sent { lane, socket, number }, content) => {
                let hop = match content {
                    Some(content) => self.sent(lane, socket, content, at, sink)?,
                    None => self.of_lane(lane)?.id,
                };
                Some(FrameId::new(hop, self.ids.generation, number))
            }
            (MessageSource::Received(socket), Some(content)) if content.has_chunks => {
                self.received_unsent(socket, content.kind, at, sink)
            }
            (MessageSource::Received(_), _) => None,
        }
    }
}

/// Emits the state of a hop as an event.
fn emit(known: &Known, announced: Announced, at: MonoNs, sink: Sink<'_>) {
    let hop = Hop {
        id: known.id,
        ends: ends(known.from, announced.to),
        endpoint: &known.endpoint,
        worker: announced.to.and_then(|to| to.part.rank()),
        origin: announced.origin,
        last: known.content != Content::Requests && announced.to.is_some_and(|to| to.part.is_tokenizer()),
        carries_requests: known.content == Content::Requests,
        capabilities: announced.capabilities,
    };
    sink(&Event::new(at, What::Hop(hop)));
}

fn ends(from: Part, to: Option<Receiver>) -> Ends<&'static str> {
    Ends::new(from.word(), to.map_or(UNKNOWN, |to| to.part.word()))
}

/// Hop ids assigned so far, across engine restarts: a hop that reappears between the same ends keeps its id. After a restart, frame numbers
/// start again on a new lane; the lane number counts the restarts.
#[derive(Clone, Debug, Default)]
pub(crate) struct HopIds {
    /// Number of times the engine has exited.
    pub(super) generation: u32,
    /// By id.
    assigned: Vec<AssignedHop>,
}

#[derive(Clone, Debug)]
struct AssignedHop {
    /// The first known ends.
    ends: Ends<&'static str>,
    last_generation: u32,
}

impl HopIds {
    /// Id of a hop that is new in this generation; `None` beyond the limit.
    pub(super) fn assign(&mut self, ends: Ends<&'static str>) -> Option<HopId> {
        let generation = self.generation;
        let known = self.assigned.iter().position(|hop| hop.ends == ends && hop.last_generation < generation);
        let index = match known {
            Some(index) => index,
            None if self.assigned.len() == MAX_HOPS => return None,
            None => {
                self.assigned.push(AssignedHop { ends, last_generation: generation });
                self.assigned.len() - 1
            }
        };
        self.assigned[index].last_generation = generation;
        Some(HopId(index as u16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returning_hop_keeps_its_id_and_same_named_hops_get_distinct_ids() {
        let mut ids = HopIds::default();
        let first = ["a->b", "b->c", "b->c"].map(|name| ids.assign(name.into()));
        assert_eq!(first, [Some(HopId(0)), Some(HopId(1)), Some(HopId(2))]);
        ids.generation += 1;
        let second = ["b->c", "a->b", "b->c", "b->c"].map(|name| ids.assign(name.into()));
        assert_eq!(second, [Some(HopId(1)), Some(HopId(0)), Some(HopId(2)), Some(HopId(3))]);
    }

    #[test]
    fn no_ids_are_assigned_beyond_the_limit() {
        let mut ids = HopIds::default();
        let given = (0..=MAX_HOPS).filter_map(|_| ids.assign("a->b".into())).count();
        assert_eq!(given, MAX_HOPS);
    }
}
