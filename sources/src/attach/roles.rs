//! Roles of watched processes on the token path, from discovery or from their messages.

use std::collections::{BTreeSet, HashMap};

use adapter::discover::{EngineKind, Function, Role};
use probe_user::discover::{Engine, Process};
use trace::event::Kind;
use trace::path;

use super::targets::speaks_zmq;

/// Role of a process on the path, and its rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PathRole {
    role: Option<Role>,
    rank: Option<u16>,
}

impl PathRole {
    fn unranked(role: Option<Role>) -> Self {
        Self { role, rank: None }
    }

    /// Word for the role in hop names.
    pub(super) fn word(self) -> &'static str {
        self.role.map_or(path::UNKNOWN, |role| role.word())
    }

    /// Index among workers with the same role; `None` if there is only one.
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

    /// Returns whether it sends only requests, on their way to the scheduler. Their prompts are not read.
    pub(super) fn sends_requests(self) -> bool {
        self.role.is_some_and(|role| matches!(role.function(), Function::Receiver | Function::Control))
    }

    /// Returns whether it sends requests of other processes to the scheduler, on one of its sockets.
    pub(super) fn forwards_requests(self) -> bool {
        self.role.is_some_and(Role::forwards_requests)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Receiver {
    pub(super) role: PathRole,
    /// `None` if several processes are possible.
    pub(super) pid: Option<u32>,
}

/// Expected receiver of a socket's messages, before a receive is observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PresumedReceiver {
    Deduced(Receiver),
    /// Connections do not identify it.
    Unknown,
    /// All connected processes receive from other sockets, so the receiver is not known yet.
    NotVisible,
}

impl PresumedReceiver {
    /// The receiver, if it is deduced; `None` if it is unknown or not visible.
    pub(super) fn deduced(self) -> Option<Receiver> {
        match self {
            Self::Deduced(receiver) => Some(receiver),
            Self::Unknown | Self::NotVisible => None,
        }
    }
}

/// Roles of all watched processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Roles {
    /// Names the roles of processes that discovery does not know.
    engine: Option<EngineKind>,
    by_pid: HashMap<u32, PathRole>,
    /// Roles of servers inside processes, which receive all output of their process.
    inner: HashMap<u32, Role>,
    connections: BTreeSet<Connection>,
}

/// A connection for output, ordered by its sender.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Connection {
    sender_pid: u32,
    receiver_pid: u32,
    endpoint: String,
}

/// A process at the receiving end of a connection.
struct ConnectedReceiver {
    pid: u32,
    role: Role,
}

impl Roles {
    /// Roles of the processes of `engine` that speak ZMQ.
    pub(super) fn of_engine(engine: &Engine) -> Self {
        let mut roles = Self { engine: engine.kind, ..Self::default() };
        for process in engine.processes.iter().filter(|process| speaks_zmq(process)) {
            roles.add_process(process);
        }
        roles.replace_connections_and_ranks(engine);
        roles
    }

    /// Roles of processes and their connections (sender first), without discovery.
    pub(super) fn from_roles_and_connections(
        roles_by_pid: &[(u32, Role)],
        sender_receiver_pids: &[(u32, u32)],
    ) -> Self {
        let mut connections = BTreeSet::new();
        // Each receiver has an endpoint of its own.
        for &(sender_pid, receiver_pid) in sender_receiver_pids {
            connections.insert(Connection { sender_pid, receiver_pid, endpoint: format!("ipc:///{receiver_pid}") });
        }
        Self {
            engine: engines::DISCOVERED.first().copied(),
            by_pid: roles_by_pid.iter().map(|&(pid, role)| (pid, PathRole::unranked(Some(role)))).collect(),
            connections,
            ..Self::default()
        }
    }

    /// Role of an unwatched process that sends `kind`.
    pub(super) fn unwatched_sender_role(&self, kind: Kind) -> PathRole {
        PathRole::unranked(self.role_that_sends(kind))
    }

    /// Role that sends `kind` in this engine; `None` if the engine or the role is not known.
    fn role_that_sends(&self, kind: Kind) -> Option<Role> {
        self.engine?.sender_role_of(kind)
    }

    /// Adds a process found by discovery.
    pub(super) fn add_process(&mut self, process: &Process) {
        self.by_pid.insert(process.id.pid, PathRole::unranked(Some(process.role)));
        self.inner.extend(process.inner_role().map(|role| (process.id.pid, role)));
    }

    /// Removes an exited process with its connections.
    pub(super) fn remove_process(&mut self, pid: u32) {
        self.by_pid.remove(&pid);
        self.inner.remove(&pid);
        self.connections.retain(|connection| connection.sender_pid != pid && connection.receiver_pid != pid);
    }

    /// Processes with this role, of any rank.
    pub(super) fn pids_with_role(&self, role: PathRole) -> BTreeSet<u32> {
        self.by_pid.iter().filter(|(_, other)| other.role == role.role).map(|(pid, _)| *pid).collect()
    }

    /// Pids of the processes whose roles receive output from one with the role `sender_role`.
    pub(super) fn pids_that_may_receive_from(&self, sender_role: PathRole) -> BTreeSet<u32> {
        let mut pids = BTreeSet::new();
        for (pid, receiver) in &self.by_pid {
            let may_receive = match receiver.role {
                Some(role) => receiver.role != sender_role.role && role.receives_output(),
                // A process of unknown role may receive anything.
                None => true,
            };
            if may_receive {
                pids.insert(*pid);
            }
        }
        pids
    }

    /// Replaces the connections by those currently visible, and assigns worker ranks.
    pub(super) fn replace_connections_and_ranks(&mut self, engine: &Engine) {
        self.connections.clear();
        for route in engine.routes() {
            for connection in &route.lanes {
                let (Some(sender), Some(receiver)) = (connection.from, connection.to) else { continue };
                let endpoint = route.endpoint.to_owned();
                self.connections.insert(Connection { sender_pid: sender.pid, receiver_pid: receiver.pid, endpoint });
                if let Some(role) = self.by_pid.get_mut(&receiver.pid) {
                    // `None` unless the route leads to one of several workers.
                    role.rank = route.worker;
                }
            }
        }
    }

    /// Endpoint that connects two processes; empty if there is none, or more than one.
    pub(super) fn only_endpoint_between(&self, sender_pid: u32, receiver_pid: u32) -> &str {
        let mut connections =
            self.connections_from(sender_pid).filter(|connection| connection.receiver_pid == receiver_pid);
        let Some(first) = connections.next() else { return "" };
        // Of several, the one that a message takes is not known.
        let is_only = connections.next().is_none();
        if is_only { &first.endpoint } else { "" }
    }

    /// Connections over which a process sends.
    fn connections_from(&self, sender_pid: u32) -> impl Iterator<Item = &Connection> {
        // No connection of the sender is ordered before this one.
        let first = Connection { sender_pid, receiver_pid: 0, endpoint: String::new() };
        self.connections.range(first..).take_while(move |connection| connection.sender_pid == sender_pid)
    }

    /// Expected receiver of messages of this kind from `sender_pid`, deduced from the connections and the role of each process. A frame is
    /// attributed to its receiver when it is sent, so this cannot wait for a receive. `excluded_pids` are the receivers of the sender's
    /// other sockets.
    pub(super) fn presumed_receiver(
        &self,
        sender_pid: u32,
        kind: Kind,
        excluded_pids: &BTreeSet<u32>,
    ) -> PresumedReceiver {
        // A server inside the sender's process receives its messages.
        if let Some(role) = self.inner.get(&sender_pid).copied() {
            return PresumedReceiver::Deduced(Receiver { role: PathRole::unranked(Some(role)), pid: Some(sender_pid) });
        }
        let mut candidates = self.receivers_connected_to(sender_pid);
        // A control message may be for a process with a control role, which may not be watched.
        if kind.is_control() && candidates.iter().any(|receiver| receiver.role.function() == Function::Control) {
            return PresumedReceiver::NotVisible;
        }
        keep_most_likely_receivers(&mut candidates, kind);
        let had_candidates = !candidates.is_empty();
        candidates.retain(|receiver| !excluded_pids.contains(&receiver.pid));
        let are_all_excluded = had_candidates && candidates.is_empty();
        if are_all_excluded {
            // All of them receive from other sockets.
            return PresumedReceiver::NotVisible;
        }
        self.receiver_among_candidates(&candidates)
    }

    /// The receiver, given the processes that may be it. An only candidate is the receiver. If all of several candidates have one role, the
    /// receiver has that role, and no known pid. Unknown without candidates, or if their roles differ.
    fn receiver_among_candidates(&self, candidates: &[ConnectedReceiver]) -> PresumedReceiver {
        let Some((first, others)) = candidates.split_first() else { return PresumedReceiver::Unknown };
        if others.is_empty() {
            return PresumedReceiver::Deduced(Receiver { role: self.role_of(first.pid), pid: Some(first.pid) });
        }
        let have_one_role = others.iter().all(|other| other.role == first.role);
        if have_one_role {
            PresumedReceiver::Deduced(Receiver { role: PathRole::unranked(Some(first.role)), pid: None })
        } else {
            PresumedReceiver::Unknown
        }
    }

    /// Processes of known role to which a process is connected as the sender.
    fn receivers_connected_to(&self, sender_pid: u32) -> Vec<ConnectedReceiver> {
        let pids: BTreeSet<u32> = self.connections_from(sender_pid).map(|connection| connection.receiver_pid).collect();
        let mut receivers = Vec::new();
        for pid in pids {
            if let Some(role) = self.role_of(pid).role {
                receivers.push(ConnectedReceiver { pid, role });
            }
        }
        receivers
    }

    /// Expected receiver of requests from `sender_pid`: another process that forwards them, or else a scheduler. Without a pid if there are
    /// several.
    pub(super) fn presumed_receiver_of_requests(&self, sender_pid: u32) -> PresumedReceiver {
        if !self.role_of(sender_pid).forwards_requests()
            && let Some(forwarding) = self.receiver_other_than(sender_pid, PathRole::forwards_requests)
        {
            return PresumedReceiver::Deduced(forwarding);
        }
        match self.receiver_other_than(sender_pid, PathRole::is_scheduler) {
            Some(scheduler) => PresumedReceiver::Deduced(scheduler),
            None => PresumedReceiver::Unknown,
        }
    }

    /// The process other than `sender_pid` whose role passes the test. Of several, returns only the role of the first. `None` if there is
    /// none.
    fn receiver_other_than(&self, sender_pid: u32, passes_test: fn(PathRole) -> bool) -> Option<Receiver> {
        let mut others = self.by_pid.iter().filter(|(other, role)| **other != sender_pid && passes_test(**role));
        let (&first_pid, &role) = others.next()?;
        let is_only = others.next().is_none();
        Some(if is_only {
            Receiver { role, pid: Some(first_pid) }
        } else {
            Receiver { role: PathRole::unranked(role.role), pid: None }
        })
    }

    /// Role of a process, unknown if it is not watched.
    pub(super) fn role_of(&self, pid: u32) -> PathRole {
        self.by_pid.get(&pid).copied().unwrap_or_default()
    }

    /// Role of a process that sends messages of this kind. If discovery does not know it, it is deduced from the kind, and kept.
    pub(super) fn known_or_deduced_sender_role(&mut self, sender_pid: u32, kind: Kind) -> PathRole {
        let deduced = self.role_that_sends(kind);
        let known = self.by_pid.entry(sender_pid).or_default();
        known.role = known.role.or(deduced);
        *known
    }

    /// Role of a process that receives messages of this kind. If discovery does not know it, it is deduced from the kind, and kept.
    pub(super) fn known_or_deduced_receiver_role(&mut self, receiver_pid: u32, kind: Kind) -> PathRole {
        let known = self.by_pid.entry(receiver_pid).or_default();
        // Processes of several roles receive messages without tokens, so such a message shows no role.
        if !kind.is_control() {
            known.role = known.role.or_else(|| self.engine?.receiver());
        }
        *known
    }

    /// Returns whether any watched process may send tokens.
    pub(super) fn has_watched_sender(&self) -> bool {
        self.by_pid.values().any(|role| !role.is_tokenizer())
    }
}

/// Keeps only the receivers that messages of this kind most likely go to; none if no role among them receives such messages.
fn keep_most_likely_receivers(receivers: &mut Vec<ConnectedReceiver>, kind: Kind) {
    let best_rank = receivers.iter().filter_map(|receiver| receiver_preference_rank(kind, receiver.role)).min();
    receivers.retain(|receiver| best_rank.is_some() && receiver_preference_rank(kind, receiver.role) == best_rank);
}

/// Rank of a role among the possible receivers of messages of this kind: 0 is the most likely one. `None` if the role never receives such
/// messages.
fn receiver_preference_rank(kind: Kind, role: Role) -> Option<u8> {
    let is_intermediate = match role.function() {
        Function::Source | Function::Control => return None,
        Function::Intermediate => true,
        Function::Receiver => false,
    };
    let has_tokens = !kind.is_control() && kind != Kind::Abort;
    if has_tokens {
        Some(preference_rank_for_tokens(role, is_intermediate))
    } else {
        preference_rank_without_tokens(role, is_intermediate)
    }
}

/// Rank of a role among the possible receivers of tokens. They go through a process in between if there is one, else directly to one that
/// responds to clients.
fn preference_rank_for_tokens(role: Role, is_intermediate: bool) -> u8 {
    if !is_intermediate {
        1
    } else if role.is_main() {
        // A main process in between is the last choice, because it is there for the other messages.
        2
    } else {
        0
    }
}

/// Rank of a role among the possible receivers of messages without tokens. They go to the main process, which forwards them, else to one
/// that responds to clients, but to no other process in between.
fn preference_rank_without_tokens(role: Role, is_intermediate: bool) -> Option<u8> {
    if role.is_main() {
        Some(0)
    } else if is_intermediate {
        None
    } else {
        Some(1)
    }
}

#[cfg(test)]
mod tests {
    use engines::sglang::discover::role::{DETOKENIZER, ROUTER, SCHEDULER, WORKER};

    use super::*;

    fn presumed(roles: &Roles, pid: u32, kind: Kind) -> Option<(&'static str, Option<u32>)> {
        let receiver = roles.presumed_receiver(pid, kind, &BTreeSet::new()).deduced()?;
        Some((receiver.role.word(), receiver.pid))
    }

    #[test]
    fn statistics_may_be_for_a_process_that_is_not_watched() {
        use engines::vllm::discover::{API_SERVER, COORDINATOR, ENGINE_CORE};
        let parts = [(1, ENGINE_CORE), (2, API_SERVER), (3, COORDINATOR)];
        let roles = Roles::from_roles_and_connections(&parts, &[(1, 2), (1, 3)]);
        assert_eq!(presumed(&roles, 1, Kind::TokenIds), Some(("api-server", Some(2))));
        assert_eq!(roles.presumed_receiver(1, Kind::Control, &BTreeSet::new()), PresumedReceiver::NotVisible);
    }

    #[test]
    fn receivers_are_presumed_from_connections() {
        let parts = [(1, SCHEDULER), (2, DETOKENIZER), (3, ROUTER), (4, WORKER), (5, WORKER)];
        let roles =
            Roles::from_roles_and_connections(&parts, &[(1, 2), (1, 3), (2, 3), (2, 4), (2, 5), (3, 4), (3, 5)]);
        assert_eq!(presumed(&roles, 1, Kind::TokenIds), Some(("detokenizer", Some(2))));
        assert_eq!(presumed(&roles, 1, Kind::Abort), Some(("router", Some(3))));
        assert_eq!(presumed(&roles, 2, Kind::Text), Some(("worker", None)));
        assert_eq!(presumed(&roles, 3, Kind::Text), Some(("worker", None)));
        assert_eq!(presumed(&roles, 9, Kind::Text), None);
        let others = |received: &[u32]| roles.presumed_receiver(2, Kind::Text, &received.iter().copied().collect());
        assert!(matches!(others(&[4]), PresumedReceiver::Deduced(Receiver { pid: Some(5), .. })));
        assert_eq!(others(&[4, 5]), PresumedReceiver::NotVisible, "each receives from its own socket");
        assert_eq!((roles.only_endpoint_between(1, 2), roles.only_endpoint_between(1, 4)), ("ipc:///2", ""));
    }
}
