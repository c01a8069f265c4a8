//! Roles of watched processes on the token path, from discovery or from their messages.

use std::collections::{BTreeSet, HashMap};

use adapter::discover::{EngineKind, Function, Role};
use probe_user::discover::{Engine, Process};
use trace::event::Kind;
use trace::path;

use super::targets::speaks_zmq;

/// Role of a process on the path, and its rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    role: Option<Role>,
    rank: Option<u16>,
}

impl Part {
    fn of(role: Option<Role>) -> Self {
        Self { role, rank: None }
    }

    /// Word for the role in hop names.
    pub(super) fn word(self) -> &'static str {
        self.role.map_or(path::UNKNOWN, |role| role.word())
    }

    /// Index among workers with the same role.
    pub(super) fn rank(self) -> Option<u16> {
        self.rank
    }

    pub(super) fn is_scheduler(self) -> bool {
        self.role.is_some_and(Role::is_source)
    }

    /// Returns whether the path inside the engine ends at its receives.
    pub(super) fn is_tokenizer(self) -> bool {
        self.role.is_some_and(Role::answers_clients)
    }

    /// Returns whether it sends requests to the scheduler. They contain prompts, which are not read.
    pub(super) fn sends_requests(self) -> bool {
        self.role.is_some_and(|role| matches!(role.function(), Function::Receiver | Function::Control))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Receiver {
    pub(super) part: Part,
    /// `None` if several processes are possible.
    pub(super) pid: Option<u32>,
}

/// Expected receiver of a socket's messages, before a receive is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presumed {
    By(Receiver),
    /// Connections do not identify it.
    Unknown,
    /// All connected processes receive from other sockets, so the receiver is not known yet.
    Another,
}

impl Presumed {
    /// The receiver, if it is deduced.
    pub(super) fn known(self) -> Option<Receiver> {
        match self {
            Self::By(receiver) => Some(receiver),
            Self::Unknown | Self::Another => None,
        }
    }
}

/// Roles of all watched processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Roles {
    /// Names the roles of processes that discovery does not know.
    engine: Option<EngineKind>,
    parts: HashMap<u32, Part>,
    /// Roles of servers inside processes, which receive all output of their process.
    inner: HashMap<u32, Role>,
    /// Output connections: sender, receiver, endpoint.
    connected: BTreeSet<(u32, u32, String)>,
}

impl Roles {
    /// Roles of the processes of `engine` that speak ZMQ.
    pub(super) fn of_engine(engine: &Engine) -> Self {
        let mut roles = Self { engine: engine.kind, ..Self::default() };
        for process in engine.processes.iter().filter(|process| speaks_zmq(process)) {
            roles.learn(process);
        }
        roles.connect(engine);
        roles
    }

    /// Roles of processes and their connections (sender first), without discovery.
    pub(super) fn with_parts(parts: &[(u32, Role)], connected: &[(u32, u32)]) -> Self {
        Self {
            engine: engines::DISCOVERED.first().copied(),
            parts: parts.iter().map(|&(pid, role)| (pid, Part::of(Some(role)))).collect(),
            connected: connected.iter().map(|&(from, to)| (from, to, format!("ipc:///{to}"))).collect(),
            ..Self::default()
        }
    }

    /// Role of an unwatched process that sends `kind`.
    pub(super) fn unwatched_sender(&self, kind: Kind) -> Part {
        Part::of(self.sender_of(kind))
    }

    fn sender_of(&self, kind: Kind) -> Option<Role> {
        self.engine?.sender_of(kind)
    }

    /// Adds a process found by discovery.
    pub(super) fn learn(&mut self, process: &Process) {
        self.parts.insert(process.id.pid, Part::of(Some(process.role)));
        self.inner.extend(process.inner_role().map(|role| (process.id.pid, role)));
    }

    /// Removes an exited process with its connections.
    pub(super) fn forget(&mut self, pid: u32) {
        self.parts.remove(&pid);
        self.inner.remove(&pid);
        self.connected.retain(|(from, to, _)| *from != pid && *to != pid);
    }

    pub(super) fn with_role(&self, part: Part) -> BTreeSet<u32> {
        self.parts.iter().filter_map(|(pid, other)| (other.role == part.role).then_some(*pid)).collect()
    }

    /// Processes that may receive from `from`, judging by their roles.
    pub(super) fn may_receive_from(&self, from: Part) -> BTreeSet<u32> {
        let may = |part: &Part| part.role.is_none_or(|role| part.role != from.role && role.receives_output());
        let pids = self.parts.iter().filter(|(_, part)| may(part));
        pids.map(|(pid, _)| *pid).collect()
    }

    /// Replaces the connections by those currently visible, and assigns worker ranks.
    pub(super) fn connect(&mut self, engine: &Engine) {
        self.connected.clear();
        for route in engine.routes() {
            for lane in &route.lanes {
                let Some((from, to)) = lane.from.zip(lane.to) else {
                    continue;
                };
                self.connected.insert((from.pid, to.pid, route.endpoint.to_owned()));
                if let Some(part) = self.parts.get_mut(&to.pid) {
                    part.rank = route.worker;
                }
            }
        }
    }

    /// Endpoint that connects `from` to `to`; empty if there is none, or more than one.
    pub(super) fn endpoint(&self, from: u32, to: u32) -> &str {
        let mut places = self.of_sender(from).filter(|place| place.1 == to).map(|place| &*place.2);
        places.next().filter(|_| places.next().is_none()).unwrap_or_default()
    }

    fn of_sender(&self, pid: u32) -> impl Iterator<Item = &(u32, u32, String)> {
        let first = (pid, 0, String::new());
        self.connected.range(first..).take_while(move |place| place.0 == pid)
    }

    /// Expected receiver of messages from `pid`, needed because a frame must be attributed to the tokenizer when it is sent. Among several
    /// candidates with one role, only the role is known. `received` are receivers of the sender's other sockets, which are excluded.
    pub(super) fn presumed_receiver(&self, pid: u32, kind: Kind, received: &BTreeSet<u32>) -> Presumed {
        if let Some(role) = self.inner.get(&pid).copied() {
            return Presumed::By(Receiver { part: Part::of(Some(role)), pid: Some(pid) });
        }
        let receivers: BTreeSet<u32> = self.of_sender(pid).map(|place| place.1).collect();
        let reached: Vec<(u32, Role)> = receivers.iter().filter_map(|&pid| Some((pid, self.of(pid).role?))).collect();
        // A message without tokens may be for a process that is not watched.
        if kind.is_control() && reached.iter().any(|(_, role)| matches!(role.function(), Function::Control)) {
            return Presumed::Another;
        }
        // Tokens go through a process in between if there is one, else directly to one that responds to clients. Other messages go to the
        // main process, which forwards them.
        let preference = |role: Role| match role.function() {
            Function::Source | Function::Control => None,
            _ if kind.is_control() || kind == Kind::Abort => match role.function() {
                Function::Intermediate if !role.is_main() => None,
                _ => Some(u8::from(!role.is_main())),
            },
            Function::Intermediate if role.is_main() => Some(2),
            Function::Intermediate => Some(0),
            Function::Receiver => Some(1),
        };
        let best = reached.iter().filter_map(|(_, role)| preference(*role)).min();
        let mut likely = reached;
        likely.retain(|(_, role)| best.is_some() && preference(*role) == best);
        let has_candidates = !likely.is_empty();
        likely.retain(|(pid, _)| !received.contains(pid));
        match likely.as_slice() {
            // All candidates receive from other sockets, so the receiver is one that is not visible.
            [] if has_candidates => Presumed::Another,
            [(pid, _)] => Presumed::By(Receiver { part: self.of(*pid), pid: Some(*pid) }),
            [(_, role), others @ ..] if others.iter().all(|(_, other)| other == role) => {
                Presumed::By(Receiver { part: Part::of(Some(*role)), pid: None })
            }
            _ => Presumed::Unknown,
        }
    }

    /// Expected receiver of requests from `pid`: the only scheduler, or one of several.
    pub(super) fn presumed_scheduler(&self, pid: u32) -> Presumed {
        let mut schedulers = self.parts.iter().filter(|(other, part)| **other != pid && part.is_scheduler());
        match (schedulers.next(), schedulers.next()) {
            (None, _) => Presumed::Unknown,
            (Some((&scheduler, &part)), None) => Presumed::By(Receiver { part, pid: Some(scheduler) }),
            (Some((_, part)), Some(_)) => Presumed::By(Receiver { part: Part::of(part.role), pid: None }),
        }
    }

    pub(super) fn of(&self, pid: u32) -> Part {
        self.parts.get(&pid).copied().unwrap_or_default()
    }

    /// Role of a process that sends `kind`; deduced from the message if discovery does not know it.
    pub(super) fn sender(&mut self, pid: u32, kind: Kind) -> Part {
        let known = self.sender_of(kind);
        let part = self.parts.entry(pid).or_default();
        part.role = part.role.or(known);
        *part
    }

    /// Role of a process that receives `kind`; deduced from the message if discovery does not know it.
    pub(super) fn receiver(&mut self, pid: u32, kind: Kind) -> Part {
        let part = self.parts.entry(pid).or_default();
        if !kind.is_control() {
            part.role = part.role.or_else(|| self.engine?.receiver());
        }
        *part
    }

    /// Returns whether any watched process may send tokens.
    pub(super) fn watches_a_sender(&self) -> bool {
        self.parts.values().any(|part| !part.is_tokenizer())
    }
}

#[cfg(test)]
mod tests {
    use engines::sglang::discover::role::{DETOKENIZER, ROUTER, SCHEDULER, WORKER};

    use super::*;

    fn presumed(roles: &Roles, pid: u32, kind: Kind) -> Option<(&'static str, Option<u32>)> {
        let receiver = roles.presumed_receiver(pid, kind, &BTreeSet::new()).known()?;
        Some((receiver.part.word(), receiver.pid))
    }

    #[test]
    fn statistics_may_be_for_a_process_that_is_not_watched() {
        use engines::vllm::discover::{API_SERVER, COORDINATOR, ENGINE_CORE};
        let parts = [(1, ENGINE_CORE), (2, API_SERVER), (3, COORDINATOR)];
        let roles = Roles::with_parts(&parts, &[(1, 2), (1, 3)]);
        assert_eq!(presumed(&roles, 1, Kind::TokenIds), Some(("api-server", Some(2))));
        assert_eq!(roles.presumed_receiver(1, Kind::Control, &BTreeSet::new()), Presumed::Another);
    }

    #[test]
    fn receivers_are_presumed_from_connections() {
        let parts = [(1, SCHEDULER), (2, DETOKENIZER), (3, ROUTER), (4, WORKER), (5, WORKER)];
        let roles = Roles::with_parts(&parts, &[(1, 2), (1, 3), (2, 3), (2, 4), (2, 5), (3, 4), (3, 5)]);
        assert_eq!(presumed(&roles, 1, Kind::TokenIds), Some(("detokenizer", Some(2))));
        assert_eq!(presumed(&roles, 1, Kind::Abort), Some(("router", Some(3))));
        assert_eq!(presumed(&roles, 2, Kind::Text), Some(("worker", None)));
        assert_eq!(presumed(&roles, 3, Kind::Text), Some(("worker", None)));
        assert_eq!(presumed(&roles, 9, Kind::Text), None);
        let others = |received: &[u32]| roles.presumed_receiver(2, Kind::Text, &received.iter().copied().collect());
        assert!(matches!(others(&[4]), Presumed::By(Receiver { pid: Some(5), .. })));
        assert_eq!(others(&[4, 5]), Presumed::Another, "each receives from its own socket");
        assert_eq!((roles.endpoint(1, 2), roles.endpoint(1, 4)), ("ipc:///2", ""));
    }
}
