//! What discovery found: engines, their processes, and the hops between them.

use std::collections::BTreeSet;

use trace::engine::{Mode, Waiter};

use super::degraded::Blind;
use super::launch::Launcher;
use super::libzmq::LibZmq;
use super::package::PythonVersion;
use super::role::{Rank, Role, RoleSource};
use super::setting::Setting;
use super::spec::RoleSpec;
use super::streaming::{Codec, Disaggregation};

/// Everything found at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Engines, those with a name of their own first, then by their oldest process.
    pub engines: Vec<Engine>,
    /// What could not be seen, why, and what would grant it.
    pub blind: Vec<Blind>,
}

/// Processes that work on the same requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Engine {
    /// In the order of the token path, then by rank and pid.
    pub processes: Vec<Process>,
    /// One for each connection; see [`HopSeen::name`].
    pub hops: Vec<HopSeen>,
    /// Who started it; `None` for a custom launcher.
    pub launcher: Option<Launcher>,
    /// The SGLang that is installed where the engine imports from.
    pub sglang: Option<Setting<String>>,
    /// The Dynamo installed there.
    pub dynamo: Option<Setting<String>>,
    /// How frames are written.
    pub codec: Option<Setting<Codec>>,
    /// Whether the scheduler sends ids straight to the tokenizer.
    pub skip_tokenizer_init: Option<Setting<bool>>,
    /// Which of a pair of servers it is, where prefill and decode are apart; `None` when it is neither, or not said.
    pub disaggregation: Option<Setting<Disaggregation>>,
    /// What the tokenizer hands to its waiters.
    pub mode: Option<Setting<Mode>>,
    /// What a waiter does with several queued chunks.
    pub waiter: Option<Setting<Waiter>>,
    /// Event-loop turns from a waiter's wake-up call to its run.
    pub turnaround: Option<Setting<u8>>,
}

/// A pid and the start that makes it unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// As our view of `/proc` counts.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_time: u64,
}

/// One process of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Which.
    pub id: ProcessId,
    /// Its pids from our pid namespace inwards; the last is what it calls itself. One entry: no container in between.
    pub ns_pids: Vec<u32>,
    /// Its parent's pid.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// Its part.
    pub role: Role,
    /// How the part is known.
    pub role_source: RoleSource,
    /// Place among its siblings.
    pub rank: Rank,
    /// Its title or program, never its arguments: those may hold keys.
    pub title: String,
    /// `None` when it has none mapped, or its mappings could not be read.
    pub libzmq: Option<LibZmq>,
    /// Interpreter.
    pub python: Option<Setting<PythonVersion>>,
    /// The pyzmq that is installed where it imports from.
    pub pyzmq: Option<Setting<String>>,
    /// libzmq's I/O threads (`ZMQbg/IO/0`); empty before its first socket, or with another name of theirs.
    pub io_threads: Vec<u32>,
    /// It has Dynamo's runtime mapped: its answers leave by a response plane.
    pub dynamo: bool,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    /// Who holds it.
    pub pid: u32,
    /// Under which descriptor.
    pub fd: u32,
    /// The socket's inode.
    pub inode: u64,
    /// The holder's part.
    pub role: Role,
}

/// Which way and for what a hop is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carries {
    /// Tokens, on their way to the client.
    Output,
    /// Requests, on their way to the scheduler.
    Requests,
    /// Not to be told from outside: output or control.
    Unknown,
}

/// How sure a hop's direction is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Confidence {
    /// Both roles are stated, and SGLang connects the two only so.
    Certain,
    /// Follows from roles or connections that were themselves inferred.
    Inferred,
}

/// One connection between two processes of an engine, in the direction of what it carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopSeen {
    /// The sending end; `None` when only the other one could be seen.
    pub from: Option<End>,
    /// The receiving end.
    pub to: Option<End>,
    /// As ZMQ writes endpoints: the receiver binds on the output path, the sender on the request path.
    pub endpoint: String,
    /// What for.
    pub carries: Carries,
    /// How sure.
    pub confidence: Confidence,
}

impl HopSeen {
    /// The first hop of the token path: what is sent here is the scheduler's.
    pub fn starts_at_scheduler(&self) -> bool {
        self.carries != Carries::Requests && self.from.is_some_and(|end| end.role == Role::Scheduler)
    }

    /// The last hop of the token path: who takes from it answers clients.
    pub fn ends_at_tokenizer(&self) -> bool {
        let answers = |end: End| matches!(end.role, Role::Tokenizer | Role::TokenizerWorker);
        self.carries != Carries::Requests && self.to.is_some_and(answers)
    }

    /// `from->to` in the words of the path; `?` for an end that was not seen.
    pub fn name(&self) -> String {
        let word = |end: Option<End>| end.map_or("?", |e| e.role.word());
        format!("{}->{}", word(self.from), word(self.to))
    }
}

impl Engine {
    /// Whether any process states what it is; otherwise it is an engine only by the look of its connections.
    pub fn is_named(&self) -> bool {
        self.processes.iter().any(|p| p.role_source <= RoleSource::CommandLine)
    }

    /// Processes of that part.
    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(move |p| p.role == role)
    }

    /// The process of that pid.
    pub fn process(&self, pid: u32) -> Option<&Process> {
        self.processes.iter().find(|p| p.id.pid == pid)
    }

    /// Processes at an end of a hop that carries output, or may: those to probe. Other ranks of a scheduler send none.
    pub fn on_token_path(&self) -> impl Iterator<Item = &Process> {
        let ends = |hop: &HopSeen| [hop.from, hop.to].into_iter().flatten();
        let carries = |hop: &&HopSeen| hop.carries != Carries::Requests;
        let pids: BTreeSet<u32> = self
            .hops
            .iter()
            .filter(carries)
            .flat_map(ends)
            .map(|end| end.pid)
            .collect();
        self.processes.iter().filter(move |p| pids.contains(&p.id.pid))
    }

    /// The process that speaks for the engine: the one that holds the tokenizer or its router, else its oldest.
    pub fn main(&self) -> Option<&Process> {
        let holds = |p: &&Process| matches!(p.role, Role::Tokenizer | Role::TokenizerRouter);
        self.processes
            .iter()
            .find(holds)
            .or_else(|| self.processes.iter().min_by_key(|p| p.id.start_time))
    }
}

/// Why no engine can be taken without asking.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// Nothing was found.
    #[error(
        "no engine was found: start it first, or name its processes with --pid PID=ROLE (scheduler, detokenizer, \
         tokenizer)"
    )]
    None,
    /// Several were found.
    #[error("{0} engines were found: say which with --pid and the pid of one of its processes")]
    Several(usize),
    /// The processes named by hand are not connected.
    #[error("the processes given with --pid belong to {0} engines that are not connected: name those of one")]
    Apart(usize),
}

impl Topology {
    /// The engine to attach to: that of the processes `named` by hand; without any, the only one, or the only one that
    /// says what it is.
    pub fn pick(&self, named: &[RoleSpec]) -> Result<&Engine, PickError> {
        let holds = |e: &&Engine| named.iter().any(|spec| e.process(spec.pid).is_some());
        let by_hand: Vec<&Engine> = self.engines.iter().filter(holds).collect();
        let says: Vec<&Engine> = self.engines.iter().filter(|e| e.is_named()).collect();
        let choice = match (named, says.as_slice()) {
            ([], []) => self.engines.iter().collect(),
            ([], _) => says,
            _ => by_hand,
        };
        match choice.as_slice() {
            [engine] => Ok(engine),
            [] => Err(PickError::None),
            several if named.is_empty() => Err(PickError::Several(several.len())),
            several => Err(PickError::Apart(several.len())),
        }
    }

    /// The engine that a process belongs to.
    pub fn engine_of(&self, pid: u32) -> Option<&Engine> {
        self.engines.iter().find(|e| e.process(pid).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Made, scene};
    use super::*;

    #[test]
    fn the_engine_that_says_what_it_is_goes_before_those_that_do_not() {
        let engines = |made: &[Made], links: &[(usize, usize, &str)]| Topology {
            engines: scene(made, links),
            blind: Vec::new(),
        };
        assert_eq!(engines(&[], &[]).pick(&[]), Err(PickError::None));

        let nameless = [
            Made::nameless(10),
            Made::nameless(11),
            Made::nameless(12),
            Made::nameless(13),
        ];
        let two_pairs = [(0, 1, "ipc:///a"), (2, 3, "ipc:///b")];
        let topology = engines(&nameless, &two_pairs);
        assert_eq!(topology.pick(&[]), Err(PickError::Several(2)));
        let spec = |pid| RoleSpec { pid, role: None };
        assert_eq!(topology.pick(&[spec(12)]).unwrap().main().unwrap().id.pid, 13);
        assert_eq!(topology.pick(&[spec(12), spec(10)]), Err(PickError::Apart(2)));
        assert_eq!(topology.pick(&[spec(99)]), Err(PickError::None));

        let mut named = nameless.to_vec();
        named.extend([Made::titled(20, "sglang::scheduler_TP0"), Made::nameless(21)]);
        let topology = engines(&named, &[two_pairs[0], two_pairs[1], (4, 5, "ipc:///c")]);
        assert_eq!(topology.engines.len(), 3);
        assert!(topology.pick(&[]).unwrap().process(20).is_some());
    }
}
