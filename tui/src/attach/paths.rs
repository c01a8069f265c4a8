//! The hop of each socket's messages, and the hop events.
//!
//! A hop here is one sending socket. Its name is found in two steps: the sender's role from the first decoded message, the receiver's from
//! connections. The first observed receive confirms the receiver.

use probe_user::SocketId;
use trace::event::{Event, Hop, Kind, Sees, What};
use trace::{HopId, MonoNs};

use super::hopids::HopIds;
use super::lanes::Sink;
use super::roles::{Part, Presumed, Receiver, Roles};
use super::sight::Sight;

/// Hops of all lanes, and the processes at their ends.
pub(super) struct Paths {
    pub(super) roles: Roles,
    pub(super) sight: Sight,
    /// By lane number of the matcher; `None` until a decodable message is sent on the lane.
    hops: Vec<Option<Known>>,
    pub(super) ids: HopIds,
    /// Sockets beyond the limit of hops.
    pub(super) left_out: u64,
    /// Messages with tokens sent to unwatched receivers.
    pub(super) unwatched: u64,
}

/// A lane with a known hop.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) id: HopId,
    from: Part,
    sender: SocketId,
    to: Option<Receiver>,
    /// Set once a receive has confirmed the receiver; until then `to` is deduced from connections.
    met: bool,
    /// Set if the receiver must be a process that is not known yet.
    stranger: bool,
    /// Set if messages of its socket use another lane now.
    over: bool,
    kind: Kind,
    /// Time of the first send.
    since: MonoNs,
    /// Last known endpoint.
    endpoint: String,
    /// State last reported.
    told: Option<Told>,
}

/// Part of a hop event that can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    from: Part,
    to: Option<Receiver>,
    origin: bool,
    sees: Sees,
}

impl Paths {
    pub(super) fn new(roles: Roles, sight: Sight) -> Self {
        Self {
            roles,
            sight,
            hops: Vec::new(),
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
    pub(super) fn sent(
        &mut self,
        lane: usize,
        (socket, kind, tokens): (SocketId, Kind, bool),
        at: MonoNs,
        sink: Sink<'_>,
    ) -> Option<&Known> {
        if self.hops.len() <= lane {
            self.hops.resize(lane + 1, None);
        }
        match &mut self.hops[lane] {
            Some(known) if known.kind != Kind::Control || kind == Kind::Control => {}
            Some(known) => {
                known.kind = kind;
                known.from = self.roles.sender(socket.pid, kind);
                self.presume(lane);
                self.announce(lane, at, sink);
            }
            None => {
                self.meet(lane, socket, kind, at)?;
                self.announce(lane, at, sink);
            }
        }
        let known = self.hops[lane].as_ref()?;
        let watched = known.told.is_some_and(|told| told.sees.taken);
        self.unwatched += u64::from(tokens && !watched);
        Some(known)
    }

    fn meet(&mut self, lane: usize, socket: SocketId, kind: Kind, at: MonoNs) -> Option<()> {
        // Numbering has restarted, so the socket's previous lane has ended.
        for old in self.hops.iter_mut().flatten().filter(|known| known.sender == socket) {
            old.over = true;
        }
        let from = self.roles.sender(socket.pid, kind);
        let presumed = self.presumed(socket, kind, None);
        let to = match presumed {
            Presumed::By(receiver) => Some(receiver),
            Presumed::Unknown | Presumed::Another => None,
        };
        let Some(id) = self.ids.meet(&name_of(from, to)) else {
            self.left_out += 1;
            return None;
        };
        self.hops[lane] = Some(Known {
            id,
            from,
            sender: socket,
            to,
            met: false,
            stranger: presumed == Presumed::Another,
            over: false,
            kind,
            since: at,
            endpoint: String::new(),
            told: None,
        });
        Some(())
    }

    /// Lanes whose receives are observed.
    pub(super) fn watched_lanes(&self) -> impl Iterator<Item = u32> {
        let seen = |known: &Known| !known.over && known.told.is_some_and(|told| told.sees.taken);
        let lanes = self.hops.iter().zip(0..);
        lanes.filter_map(move |(known, lane)| known.as_ref().is_some_and(seen).then_some(lane))
    }

    /// Processes a receive by `pid` and returns the lane's hop.
    pub(super) fn received(&mut self, lane: usize, pid: u32, at: MonoNs, sink: Sink<'_>) -> Option<&Known> {
        let known = self.hops.get_mut(lane)?.as_mut()?;
        // A restarted process receives on the hop of its predecessor.
        let receiver = known.to.and_then(|to| to.pid);
        let another = receiver != Some(pid) && receiver.is_none_or(|before| !self.sight.is_watched(before));
        if !std::mem::replace(&mut known.met, true) || another {
            known.stranger = false;
            known.to = Some(Receiver {
                part: self.roles.receiver(pid, known.kind),
                pid: Some(pid),
            });
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
    fn presumed(&self, socket: SocketId, kind: Kind, lane: Option<usize>) -> Presumed {
        let control = |kind: Kind| matches!(kind, Kind::Control | Kind::Abort);
        let lanes = self.hops.iter().enumerate();
        let others = lanes.filter_map(|(number, known)| known.as_ref().filter(|_| Some(number) != lane));
        let taken = others
            .filter(|known| !known.over && known.sender.pid == socket.pid && !control(known.kind) && !control(kind))
            .filter_map(|known| known.to?.pid)
            .collect();
        self.roles.presumed_receiver(socket.pid, kind, &taken)
    }

    /// Deduces the receiver of a lane again, unless a watched receiver was confirmed.
    fn presume(&mut self, lane: usize) {
        let Some(known) = &self.hops[lane] else { return };
        let watched = known
            .to
            .and_then(|to| to.pid)
            .is_some_and(|pid| self.sight.is_watched(pid));
        if known.over || (known.met && watched) {
            return;
        }
        let presumed = self.presumed(known.sender, known.kind, Some(lane));
        if let Some(known) = &mut self.hops[lane] {
            match presumed {
                Presumed::By(receiver) => (known.to, known.stranger) = (Some(receiver), false),
                // Keep the name of a receiver that has exited or whose connection is not visible at the moment.
                Presumed::Unknown => {}
                Presumed::Another if known.met => {}
                Presumed::Another => (known.to, known.stranger) = (None, true),
            }
        }
    }

    fn announce_all(&mut self, at: MonoNs, sink: Sink<'_>) {
        for lane in 0..self.hops.len() {
            self.announce(lane, at, sink);
        }
    }

    /// Reports a hop if its state has changed.
    fn announce(&mut self, lane: usize, at: MonoNs, sink: Sink<'_>) {
        let Some(known) = &mut self.hops[lane] else { return };
        let receiver = known.to.and_then(|to| to.pid);
        let endpoint = receiver.map_or("", |pid| self.roles.endpoint(known.sender.pid, pid));
        if !endpoint.is_empty() && endpoint != known.endpoint {
            endpoint.clone_into(&mut known.endpoint);
        }
        let known = &*known;
        let receivers = match known.to {
            Some(Receiver { pid: Some(pid), .. }) => [pid].into(),
            Some(Receiver { part, pid: None }) => self.roles.with_role(part),
            None => self.roles.may_receive_from(known.from),
        };
        let taken = self.sight.watches(&receivers).filter(|_| !known.stranger);
        let last = known.to.is_some_and(|to| to.part.is_tokenizer());
        let delivered = self.sight.serves(&receivers).filter(|_| last);
        let sees = Sees {
            sent: true,
            taken: taken.is_some(),
            handled: taken.is_some() && self.sight.handled,
            delivered: delivered.is_some(),
            ..Sees::default()
        };
        let told = Told {
            from: known.from,
            to: known.to,
            origin: known.from.is_scheduler() && known.kind != Kind::Control,
            sees,
        };
        let before = known.told;
        if before == Some(told) {
            return;
        }
        // Frames sent before their receiver was watched may have been received and delivered unobserved, so they must not be judged.
        let since = |stage: Option<MonoNs>| stage.is_some_and(|at| at > known.since);
        let newly = |stage: fn(Sees) -> bool| before.is_none_or(|before| before.to != told.to || !stage(before.sees));
        let hidden = Sees {
            sent: true,
            taken: sees.taken && !(since(taken) && newly(|sees| sees.taken)),
            delivered: sees.delivered && !(since(delivered) && newly(|sees| sees.delivered)),
            ..sees
        };
        if hidden != sees {
            tell(known, Told { sees: hidden, ..told }, at, sink);
        }
        tell(known, told, at, sink);
        if let Some(known) = &mut self.hops[lane] {
            known.told = Some(told);
        }
    }
}

fn tell(known: &Known, told: Told, at: MonoNs, sink: Sink<'_>) {
    let hop = Hop {
        id: known.id,
        name: &name_of(known.from, known.to),
        endpoint: &known.endpoint,
        worker: known.to.and_then(|to| to.part.rank()),
        origin: told.origin,
        last: known.to.is_some_and(|to| to.part.is_tokenizer()),
        sees: told.sees,
    };
    sink(&Event {
        at,
        what: What::Hop(hop),
    });
}

fn name_of(from: Part, to: Option<Receiver>) -> String {
    format!("{}->{}", from.word(), to.map_or("?", |to| to.part.word()))
}
