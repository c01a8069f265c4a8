//! Result of discovery: engines, their processes, and the hops between them.

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

/// Result of one scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Engines, those with a stated role first, then by their oldest process.
    pub engines: Vec<Engine>,
    /// Unavailable information, with causes and remedies.
    pub blind: Vec<Blind>,
}

/// Processes that work on the same requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Engine {
    /// Processes in the order of the token path, then by rank and pid.
    pub processes: Vec<Process>,
    /// One hop per connection; see [`HopSeen::name`].
    pub hops: Vec<HopSeen>,
    /// Program that started it; `None` for a custom launcher.
    pub launcher: Option<Launcher>,
    /// SGLang release on the engine's import path.
    pub sglang: Option<Setting<String>>,
    /// Dynamo release on the engine's import path.
    pub dynamo: Option<Setting<String>>,
    /// Serialisation format of frames.
    pub codec: Option<Setting<Codec>>,
    /// Whether the scheduler sends token ids directly to the tokenizer.
    pub skip_tokenizer_init: Option<Setting<bool>>,
    /// Side of a disaggregated pair; `None` when it is not part of one, or unknown.
    pub disaggregation: Option<Setting<Disaggregation>>,
    /// Output mode of the tokenizer.
    pub mode: Option<Setting<Mode>>,
    /// Behaviour of a waiter with several queued chunks.
    pub waiter: Option<Setting<Waiter>>,
    /// Number of event-loop turns from the wake-up of a waiter to its run.
    pub turnaround: Option<Setting<u8>>,
}

/// A pid with the start time that makes it unique.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId {
    /// Pid in the current procfs.
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_time: u64,
}

/// One process of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Identity of the process.
    pub id: ProcessId,
    /// Pids from the current pid namespace inwards; the last is the pid that the process itself sees. A single entry means that it is in
    /// the current namespace.
    pub ns_pids: Vec<u32>,
    /// Pid of its parent.
    pub parent: u32,
    /// Process group.
    pub group: u32,
    /// Role.
    pub role: Role,
    /// Source of the role.
    pub role_source: RoleSource,
    /// Rank of a scheduler.
    pub rank: Rank,
    /// Title or program name, never arguments, since those may contain keys.
    pub title: String,
    /// The mapped libzmq; `None` when there is none, or the mappings are unreadable.
    pub libzmq: Option<LibZmq>,
    /// Version of the interpreter.
    pub python: Option<Setting<PythonVersion>>,
    /// pyzmq release on its import path.
    pub pyzmq: Option<Setting<String>>,
    /// Ids of libzmq's I/O threads (`ZMQbg/IO/0`); empty before the first socket, or if they have other names.
    pub io_threads: Vec<u32>,
    /// Whether it has Dynamo's runtime mapped, so that its responses use a response plane.
    pub dynamo: bool,
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    /// Process that holds it.
    pub pid: u32,
    /// Number of its descriptor.
    pub fd: u32,
    /// Inode of the socket.
    pub inode: u64,
    /// Role of the process.
    pub role: Role,
}

/// Content of a hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Carries {
    /// Tokens on the way to the client.
    Output,
    /// Requests on the way to the scheduler.
    Requests,
    /// Output or control messages, which cannot be distinguished from outside.
    Unknown,
}

/// Certainty of a hop's direction and content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Confidence {
    /// Both roles are stated, and SGLang connects the two in only one way.
    Certain,
    /// Derived from roles or connections that were inferred themselves.
    Inferred,
}

/// A connection between two processes of an engine, in the direction of its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HopSeen {
    /// Sending end; `None` when only the other end is visible.
    pub from: Option<End>,
    /// Receiving end; `None` when only the other end is visible.
    pub to: Option<End>,
    /// Endpoint in ZMQ's notation. The receiver binds on the output path, the sender on the request path.
    pub endpoint: String,
    /// Content.
    pub carries: Carries,
    /// Certainty.
    pub confidence: Confidence,
}

impl HopSeen {
    /// Whether this is the first hop of the token path, where the scheduler sends.
    pub fn starts_at_scheduler(&self) -> bool {
        self.carries != Carries::Requests && self.from.is_some_and(|end| end.role == Role::Scheduler)
    }

    /// Whether this is the last hop of the token path, whose receiver responds to clients.
    pub fn ends_at_tokenizer(&self) -> bool {
        let answers = |end: End| matches!(end.role, Role::Tokenizer | Role::TokenizerWorker);
        self.carries != Carries::Requests && self.to.is_some_and(answers)
    }

    /// Name such as `scheduler->tokenizer`, with `?` for an invisible end.
    pub fn name(&self) -> String {
        let word = |end: Option<End>| end.map_or("?", |e| e.role.word());
        format!("{}->{}", word(self.from), word(self.to))
    }
}

impl Engine {
    /// Whether any process has a stated role. Otherwise the engine is inferred from its connections alone.
    pub fn is_named(&self) -> bool {
        self.processes.iter().any(|p| p.role_source <= RoleSource::CommandLine)
    }

    /// Processes with this role.
    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(move |p| p.role == role)
    }

    /// The process with this pid.
    pub fn process(&self, pid: u32) -> Option<&Process> {
        self.processes.iter().find(|p| p.id.pid == pid)
    }

    /// Processes to probe: those at an end of a hop that carries or may carry output. Other scheduler ranks send no output.
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

    /// Main process of the engine: the one with the tokenizer or its router, otherwise the oldest.
    pub fn main(&self) -> Option<&Process> {
        let holds = |p: &&Process| matches!(p.role, Role::Tokenizer | Role::TokenizerRouter);
        self.processes
            .iter()
            .find(holds)
            .or_else(|| self.processes.iter().min_by_key(|p| p.id.start_time))
    }
}

/// Why an engine cannot be chosen automatically.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PickError {
    /// No engine was found.
    #[error(
        "no engine was found: start it first, or name its processes with --pid PID=ROLE (scheduler, detokenizer, \
         tokenizer)"
    )]
    None,
    /// Several engines were found.
    #[error("{0} engines were found: say which with --pid and the pid of one of its processes")]
    Several(usize),
    /// The processes named by the user are not connected.
    #[error("the processes given with --pid belong to {0} engines that are not connected: name those of one")]
    Apart(usize),
}

impl Topology {
    /// Chooses the engine to attach to: that of the processes `named` by the user. Without any, the only engine, or the only one with a
    /// stated role.
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

    /// The engine with this process.
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
