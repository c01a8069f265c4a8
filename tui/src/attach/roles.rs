//! Who is who: a watched process's part in the token path, as discovery knows it or as its messages tell it.

use std::collections::{BTreeSet, HashMap};

use probe_user::discover::{Carries, HopSeen, Process, Role};
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

/// The parts of all watched processes.
#[derive(Clone, Debug, Default)]
pub(super) struct Roles {
    parts: HashMap<u32, Part>,
    /// Who is connected to whom on the way out, sender first.
    connected: BTreeSet<(u32, u32)>,
}

impl Roles {
    /// Notes a process that discovery knows. Workers are numbered in the order they become known.
    pub(super) fn learn(&mut self, process: &Process) {
        let same = |part: &&Part| part.role == Some(process.role);
        let is_one_of_several = matches!(process.role, Role::TokenizerWorker | Role::Detokenizer);
        let rank = is_one_of_several.then(|| self.parts.values().filter(same).count() as u16);
        self.parts.insert(
            process.id.pid,
            Part {
                role: Some(process.role),
                rank,
            },
        );
    }

    /// Notes the connections that discovery sees now.
    pub(super) fn connect(&mut self, hops: &[HopSeen]) {
        let out = hops.iter().filter(|hop| hop.carries != Carries::Requests);
        self.connected = out.filter_map(|hop| Some((hop.from?.pid, hop.to?.pid))).collect();
    }

    /// Who will take what `pid` sends, before the first take shows it: a frame must be known as the tokenizer's when it is
    /// sent. `None` where connections leave more than one answer.
    pub(super) fn presumed_receiver(&self, pid: u32, kind: Kind) -> Option<Part> {
        let reached = self.connected.range((pid, 0)..=(pid, u32::MAX));
        let parts: Vec<Part> = reached.map(|&(_, to)| self.of(to)).collect();
        let detokenizes = |part: &&Part| matches!(part.role, Some(Role::Detokenizer | Role::DetokenizerRouter));
        let carries_tokens = !matches!(kind, Kind::Control | Kind::Abort);
        let by_detokenizer = carries_tokens && parts.iter().any(|part| detokenizes(&part));
        let mut likely = parts.iter().filter(|part| {
            if by_detokenizer {
                detokenizes(part)
            } else {
                part.is_tokenizer()
            }
        });
        likely.next().copied().filter(|_| likely.next().is_none())
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

    /// Whether somebody who may receive from `from` is watched.
    pub(super) fn may_see_takes_of(&self, from: Part) -> bool {
        self.parts
            .values()
            .any(|part| part.role.is_none() || part.role != from.role)
    }
}

fn sender_of(kind: Kind) -> Option<Role> {
    match kind {
        Kind::TokenIds | Kind::Embedding => Some(Role::Scheduler),
        Kind::Text => Some(Role::Detokenizer),
        Kind::Multimodal | Kind::Abort | Kind::Control => None,
    }
}
