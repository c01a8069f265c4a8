//! Who is who: a watched process's part in the token path, as discovery knows it or as its messages tell it.

use std::collections::{BTreeSet, HashMap};

use probe_user::discover::{Engine, Process, Role};
use trace::event::Kind;

/// A process's part in the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    role: Option<Role>,
    rank: Option<u16>,
}

impl Part {
    /// Somebody who sends `kind` and is not watched.
    pub(super) fn unwatched_sender(kind: Kind) -> Self {
        Self {
            role: sender_of(kind),
            rank: None,
        }
    }

    /// The word for it in hop names.
    pub(super) fn word(self) -> &'static str {
        self.role.map_or("?", Role::word)
    }

    /// Its place among workers of its kind.
    pub(super) fn rank(self) -> Option<u16> {
        self.rank
    }

    pub(super) fn is_scheduler(self) -> bool {
        self.role == Some(Role::Scheduler)
    }

    /// Its takes are where the path inside the engine ends.
    pub(super) fn is_tokenizer(self) -> bool {
        matches!(self.role, Some(Role::Tokenizer | Role::TokenizerWorker))
    }

    /// What it sends are requests on their way to the scheduler, with prompts in them: not looked into.
    pub(super) fn sends_requests(self) -> bool {
        matches!(
            self.role,
            Some(Role::Tokenizer | Role::TokenizerWorker | Role::DpController)
        )
    }
}

/// Who takes what crosses a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Receiver {
    pub(super) part: Part,
    /// `None` while it may be any of several.
    pub(super) pid: Option<u32>,
}

/// Who is thought to receive what a socket sends, before that is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Presumed {
    By(Receiver),
    /// Connections do not tell.
    Unknown,
    /// Everybody they tell of receives from another socket: somebody who is not known yet.
    Another,
}

/// The parts of all watched processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Roles {
    parts: HashMap<u32, Part>,
    /// Who is connected to whom on the way out, sender first, and where.
    connected: BTreeSet<(u32, u32, String)>,
}

impl Roles {
    /// Notes a process that discovery knows.
    pub(super) fn learn(&mut self, process: &Process) {
        let role = Some(process.role);
        self.parts.insert(process.id.pid, Part { role, rank: None });
    }

    /// The process has ended: nobody sends to it any more.
    pub(super) fn forget(&mut self, pid: u32) {
        self.parts.remove(&pid);
        self.connected.retain(|(from, to, _)| *from != pid && *to != pid);
    }

    /// Processes of a part.
    pub(super) fn with_role(&self, part: Part) -> BTreeSet<u32> {
        let alike = |(pid, other): (&u32, &Part)| (other.role == part.role).then_some(*pid);
        self.parts.iter().filter_map(alike).collect()
    }

    /// Processes that may receive from `from`, as far as their parts tell.
    pub(super) fn may_receive_from(&self, from: Part) -> BTreeSet<u32> {
        let may = |part: &Part| {
            part.role
                .is_none_or(|role| part.role != from.role && receives_output(role))
        };
        let pids = self.parts.iter().filter(|(_, part)| may(part));
        pids.map(|(pid, _)| *pid).collect()
    }

    /// Notes the connections that discovery sees now, and which of several workers is which.
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

    /// Where `from` and `to` are connected; empty where that is in no place, or in several.
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

    /// Who will take what `pid` sends, before the first take shows it: a frame must be known as the tokenizer's when it is
    /// sent. Of several of one part it is the part alone; `None` where connections leave more than one answer, or none but
    /// `taken`, to whom other sockets of that sender lead.
    pub(super) fn presumed_receiver(&self, pid: u32, kind: Kind, taken: &BTreeSet<u32>) -> Presumed {
        use Role::{Detokenizer, DetokenizerRouter, Tokenizer, TokenizerRouter, TokenizerWorker};
        let pids: BTreeSet<u32> = self.of_sender(pid).map(|place| place.1).collect();
        let reached: Vec<(u32, Role)> = pids.iter().filter_map(|&pid| Some((pid, self.of(pid).role?))).collect();
        // Tokens go through a detokenizer where there is one, and straight to a worker from there; the rest goes to who
        // hands it on.
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

    /// The part of a process that sends `kind`; the message tells where discovery does not.
    pub(super) fn sender(&mut self, pid: u32, kind: Kind) -> Part {
        let part = self.parts.entry(pid).or_insert(Part { role: None, rank: None });
        part.role = part.role.or(sender_of(kind));
        *part
    }

    /// The part of a process that takes `kind`. Who takes ids and is not known to be anything else is a tokenizer.
    pub(super) fn receiver(&mut self, pid: u32, kind: Kind) -> Part {
        let part = self.parts.entry(pid).or_insert(Part { role: None, rank: None });
        if kind != Kind::Control {
            part.role = part.role.or(Some(Role::Tokenizer));
        }
        *part
    }

    /// Whether any process that sends tokens may be among the watched.
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
    /// Processes with their parts, and who is connected with whom, sender first.
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
