//! Roles of watched processes on the token path, from discovery or from their messages.

use std::collections::{BTreeSet, HashMap};

use probe_user::discover::{Engine, Process, Role};
use trace::event::Kind;

/// Role of a process on the path, and its rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    role: Option<Role>,
    rank: Option<u16>,
}

impl Part {
    /// Role of an unwatched process that sends `kind`.
    pub(super) fn unwatched_sender(kind: Kind) -> Self {
        Self {
            role: sender_of(kind),
            rank: None,
        }
    }

    /// Word for the role in hop names.
    pub(super) fn word(self) -> &'static str {
        self.role.map_or("?", Role::word)
    }

    /// Index among workers with the same role.
    pub(super) fn rank(self) -> Option<u16> {
        self.rank
    }

    pub(super) fn is_scheduler(self) -> bool {
        self.role == Some(Role::Scheduler)
    }

    /// Returns whether the path inside the engine ends at its receives.
    pub(super) fn is_tokenizer(self) -> bool {
        matches!(self.role, Some(Role::Tokenizer | Role::TokenizerWorker))
    }

    /// Returns whether it sends requests to the scheduler. They contain prompts and are not decoded.
    pub(super) fn sends_requests(self) -> bool {
        matches!(
            self.role,
            Some(Role::Tokenizer | Role::TokenizerWorker | Role::DpController)
        )
    }
}

/// Receiver of a hop.
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

/// Roles of all watched processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Roles {
    parts: HashMap<u32, Part>,
    /// Output connections: sender, receiver, endpoint.
    connected: BTreeSet<(u32, u32, String)>,
}

impl Roles {
    /// Adds a process found by discovery.
    pub(super) fn learn(&mut self, process: &Process) {
        let role = Some(process.role);
        self.parts.insert(process.id.pid, Part { role, rank: None });
    }

    /// Removes an exited process with its connections.
    pub(super) fn forget(&mut self, pid: u32) {
        self.parts.remove(&pid);
        self.connected.retain(|(from, to, _)| *from != pid && *to != pid);
    }

    /// Processes with this role.
    pub(super) fn with_role(&self, part: Part) -> BTreeSet<u32> {
        let alike = |(pid, other): (&u32, &Part)| (other.role == part.role).then_some(*pid);
        self.parts.iter().filter_map(alike).collect()
    }

    /// Processes that may receive from `from`, judging by their roles.
    pub(super) fn may_receive_from(&self, from: Part) -> BTreeSet<u32> {
        let may = |part: &Part| {
            part.role
                .is_none_or(|role| part.role != from.role && receives_output(role))
        };
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
        let mut places = self
            .of_sender(from)
            .filter(|place| place.1 == to)
            .map(|place| &*place.2);
        places.next().filter(|_| places.next().is_none()).unwrap_or_default()
    }

    fn of_sender(&self, pid: u32) -> impl Iterator<Item = &(u32, u32, String)> {
        let first = (pid, 0, String::new());
        self.connected.range(first..).take_while(move |place| place.0 == pid)
    }

    /// Expected receiver of messages from `pid`, needed because a frame must be attributed to the tokenizer when it is sent. Among several
    /// candidates with one role, only the role is known. `taken` are receivers of the sender's other sockets, which are excluded.
    pub(super) fn presumed_receiver(&self, pid: u32, kind: Kind, taken: &BTreeSet<u32>) -> Presumed {
        use Role::{Detokenizer, DetokenizerRouter, Tokenizer, TokenizerRouter, TokenizerWorker};
        let pids: BTreeSet<u32> = self.of_sender(pid).map(|place| place.1).collect();
        let reached: Vec<(u32, Role)> = pids.iter().filter_map(|&pid| Some((pid, self.of(pid).role?))).collect();
        // Tokens go through a detokenizer if there is one, else straight to a worker. Other messages go to the process that forwards them.
        let preferred: [&[Role]; 3] = if matches!(kind, Kind::Control | Kind::Abort) {
            [&[Tokenizer, TokenizerRouter], &[TokenizerWorker], &[]]
        } else {
            [
                &[Detokenizer, DetokenizerRouter],
                &[Tokenizer, TokenizerWorker],
                &[TokenizerRouter],
            ]
        };
        let of_part = |roles: &&[Role]| {
            let here = reached.iter().filter(|(_, role)| roles.contains(role));
            here.copied().collect::<Vec<_>>()
        };
        let likely = preferred.iter().map(of_part).find(|likely| !likely.is_empty());
        let mut likely = likely.unwrap_or_default();
        let known = likely.len();
        likely.retain(|(pid, _)| !taken.contains(pid));
        match likely.as_slice() {
            [] if known > 0 => Presumed::Another,
            [(pid, _)] => Presumed::By(Receiver {
                part: self.of(*pid),
                pid: Some(*pid),
            }),
            [(_, role), others @ ..] if others.iter().all(|(_, other)| other == role) => Presumed::By(Receiver {
                part: Part {
                    role: Some(*role),
                    rank: None,
                },
                pid: None,
            }),
            _ => Presumed::Unknown,
        }
    }

    pub(super) fn of(&self, pid: u32) -> Part {
        self.parts.get(&pid).copied().unwrap_or(Part { role: None, rank: None })
    }

    /// Role of a process that sends `kind`; deduced from the message if discovery does not know it.
    pub(super) fn sender(&mut self, pid: u32, kind: Kind) -> Part {
        let part = self.parts.entry(pid).or_insert(Part { role: None, rank: None });
        part.role = part.role.or(sender_of(kind));
        *part
    }

    /// Role of a process that receives `kind`. An unknown receiver of token ids is a tokenizer.
    pub(super) fn receiver(&mut self, pid: u32, kind: Kind) -> Part {
        let part = self.parts.entry(pid).or_insert(Part { role: None, rank: None });
        if kind != Kind::Control {
            part.role = part.role.or(Some(Role::Tokenizer));
        }
        *part
    }

    /// Returns whether any watched process may send tokens.
    pub(super) fn watches_a_sender(&self) -> bool {
        self.parts.values().any(|part| !part.is_tokenizer())
    }
}

fn receives_output(role: Role) -> bool {
    !matches!(role, Role::Scheduler | Role::DpController)
}

fn sender_of(kind: Kind) -> Option<Role> {
    match kind {
        Kind::TokenIds | Kind::Embedding => Some(Role::Scheduler),
        Kind::Text => Some(Role::Detokenizer),
        Kind::Multimodal | Kind::Abort | Kind::Control => None,
    }
}

#[cfg(test)]
impl Roles {
    /// Builds roles from processes and connections (sender first), for tests.
    pub(super) fn made(parts: &[(u32, Role)], connected: &[(u32, u32)]) -> Self {
        let part = |&(pid, role)| {
            let role = Some(role);
            (pid, Part { role, rank: None })
        };
        let place = |&(from, to)| (from, to, format!("ipc:///{to}"));
        Self {
            parts: parts.iter().map(part).collect(),
            connected: connected.iter().map(place).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presumed(roles: &Roles, pid: u32, kind: Kind) -> Option<(&'static str, Option<u32>)> {
        match roles.presumed_receiver(pid, kind, &BTreeSet::new()) {
            Presumed::By(receiver) => Some((receiver.part.word(), receiver.pid)),
            Presumed::Unknown | Presumed::Another => None,
        }
    }

    #[test]
    fn connections_name_the_receiver_and_of_several_workers_their_part() {
        let parts = [
            (1, Role::Scheduler),
            (2, Role::Detokenizer),
            (3, Role::TokenizerRouter),
            (4, Role::TokenizerWorker),
            (5, Role::TokenizerWorker),
        ];
        let roles = Roles::made(&parts, &[(1, 2), (1, 3), (2, 3), (2, 4), (2, 5), (3, 4), (3, 5)]);
        assert_eq!(presumed(&roles, 1, Kind::TokenIds), Some(("detokenizer", Some(2))));
        assert_eq!(presumed(&roles, 1, Kind::Abort), Some(("router", Some(3))));
        assert_eq!(presumed(&roles, 2, Kind::Text), Some(("worker", None)));
        assert_eq!(presumed(&roles, 3, Kind::Text), Some(("worker", None)));
        assert_eq!(presumed(&roles, 9, Kind::Text), None);
        let others = |taken: &[u32]| roles.presumed_receiver(2, Kind::Text, &taken.iter().copied().collect());
        assert!(matches!(others(&[4]), Presumed::By(Receiver { pid: Some(5), .. })));
        assert_eq!(others(&[4, 5]), Presumed::Another, "each has a socket of its own");
        assert_eq!((roles.endpoint(1, 2), roles.endpoint(1, 4)), ("ipc:///2", ""));
    }
}
