//! Result of discovery: engines, their processes, and the hops between them.

use std::collections::BTreeSet;

use adapter::discover::{
    Carries, EngineKind, HopSeen, Launcher, PackageRelease, PythonVersion, Rank, Role, RoleSource, Setting, Settings,
};

use super::blind_spot::{BlindSpot, DisplayPids};
use super::libzmq::LibZmq;
use super::spec::RoleSpec;

/// Result of one scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Engines, those with a stated role first, then by their oldest process.
    pub engines: Vec<Engine>,
    /// Frontends: processes between engines and clients that belong to no engine.
    pub frontends: Vec<ProcessId>,
    /// Unavailable information, with causes and remedies.
    pub blind_spots: Vec<BlindSpot>,
    /// Names of the roles for `--pid PID=ROLE`.
    pub roles: String,
}

/// Processes that work on the same requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Engine {
    /// Processes in the order of the token path, then by rank and pid.
    pub processes: Vec<Process>,
    /// One hop per connection.
    pub hops: Vec<HopSeen>,
    /// Program that started it; `None` for a custom launcher.
    pub launcher: Option<Launcher>,
    /// The engine that its roles belong to.
    pub kind: Option<EngineKind>,
    /// Releases of the engine, and of programs that run it inside, on its import path.
    pub releases: Vec<PackageRelease>,
    /// Settings that affect how tokens are sent.
    pub settings: Settings,
    /// Whether more than titles and commands, which any process can choose, shows that this is an engine: a hop, a server inside a process,
    /// or the settings of an engine that needs no hop. Also set if its sockets could not be read.
    pub is_confirmed: bool,
}

/// A pid and start time, which together identify a process uniquely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    /// Role.
    pub role: Role,
    /// Source of the role.
    pub role_source: RoleSource,
    /// Rank of a source.
    pub rank: Rank,
    /// Title or program name, never arguments, since those may contain keys.
    pub title: String,
    /// The mapped libzmq; `None` when there is none, or the mappings are unreadable.
    pub libzmq: Option<LibZmq>,
    /// Version of the interpreter.
    pub python: Option<Setting<PythonVersion>>,
    /// Ids of libzmq's I/O threads (`ZMQbg/IO/0`); empty before the first socket, or if they have other names.
    pub io_threads: Vec<u32>,
    /// The program whose runtime it has mapped, if that connects to clients instead of listening for them.
    pub connects_to_clients: Option<EngineKind>,
    /// The engine whose server runs inside this process (`Recognise::inner_server`), which then answers clients itself.
    pub inner_server: Option<EngineKind>,
}

impl Process {
    /// Role of the server inside this process.
    pub fn inner_role(&self) -> Option<Role> {
        Some(self.inner_server?.inner_server()?.role)
    }

    /// Whether it responds to clients.
    pub fn answers_clients(&self) -> bool {
        self.role.answers_clients() || self.inner_server.is_some()
    }
}

impl Engine {
    /// Whether any process has a stated role. Otherwise the engine is inferred from its connections alone.
    pub fn is_named(&self) -> bool {
        self.processes.iter().any(|process| process.role_source <= RoleSource::CommandLine)
    }

    /// Release of the engine's own package.
    pub fn release(&self) -> Option<&Setting<String>> {
        self.releases.iter().find(|known| Some(known.engine) == self.kind).map(|known| &known.release)
    }

    /// Processes with this role.
    pub fn with_role(&self, role: Role) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(move |process| process.role == role)
    }

    /// The process with this pid.
    pub fn process_with_pid(&self, pid: u32) -> Option<&Process> {
        self.processes.iter().find(|process| process.id.pid == pid)
    }

    /// Processes to probe. They are at an end of a hop that carries or may carry output, or have a server inside. Of the parallel processes
    /// that generate tokens, those without such a hop send no output and are left out.
    pub fn processes_on_token_path(&self) -> impl Iterator<Item = &Process> {
        let output_hops = self.hops.iter().filter(|hop| hop.carries != Carries::Requests);
        let ends = output_hops.flat_map(|hop| [hop.from, hop.to]).flatten();
        let pids: BTreeSet<u32> = ends.map(|end| end.pid).collect();
        self.processes.iter().filter(move |process| pids.contains(&process.id.pid) || process.inner_server.is_some())
    }

    /// Process with the role of a main process. If there is none, the oldest process of the engine.
    pub fn main_process(&self) -> Option<&Process> {
        self.processes
            .iter()
            .find(|process| process.role.is_main())
            .or_else(|| self.processes.iter().min_by_key(|process| process.id.start_time))
    }
}

/// Why an engine cannot be chosen automatically.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the comment of a variant describes its fields")]
pub enum PickError {
    /// No engine was found.
    #[error("no engine was found: start it first, or name its processes with --pid PID=ROLE ({0})")]
    None(String),
    /// The process `named` by the user belongs to no engine, but an engine with the main process `engine` runs.
    #[error("process {named} belongs to no engine, but process {engine} does: leave out --pid, or use --pid {engine}")]
    Elsewhere { named: u32, engine: u32 },
    /// Only processes whose titles or commands are those of an engine were found, without a connection between two roles.
    #[error(
        "no connected engine was found, only candidates without a connection: {}; if an engine is starting, use --follow or try again, or name its processes with --pid",
        DisplayPids::new(.0)
    )]
    Unconfirmed(Vec<u32>),
    /// Several engines were found.
    #[error("found {0} engines: choose one with --pid and the pid of any of its processes")]
    Several(usize),
    /// The processes named by the user are not connected.
    #[error("the processes given with --pid belong to {0} unconnected engines: give processes of one engine")]
    Unconnected(usize),
}

impl Topology {
    /// Engines with one of the processes that the user named.
    fn engines_with_named_process(&self, named: &[RoleSpec]) -> Vec<&Engine> {
        let mut engines = Vec::new();
        for engine in &self.engines {
            if named.iter().any(|spec| engine.process_with_pid(spec.pid).is_some()) {
                engines.push(engine);
            }
        }
        engines
    }

    /// The confirmed engines with a stated role. If there is none, all confirmed engines. If there is none of them either, the unconfirmed
    /// ones.
    fn most_certain_engines(&self) -> Vec<&Engine> {
        let confirmed: Vec<&Engine> = self.confirmed_engines().collect();
        if confirmed.is_empty() {
            return self.unconfirmed_engines().collect();
        }
        let named: Vec<&Engine> = confirmed.iter().copied().filter(|engine| engine.is_named()).collect();
        if named.is_empty() { confirmed } else { named }
    }

    /// Chooses the engines to attach to. If the user named processes, these are the engines with one of them. Otherwise they are the
    /// confirmed engines (see [`Engine::is_confirmed`]), or only those with a stated role if there are any. An unconfirmed engine is then
    /// chosen only if it is the only one.
    pub fn pick_engines(&self, named: &[RoleSpec]) -> Result<Vec<&Engine>, PickError> {
        let choice =
            if named.is_empty() { self.most_certain_engines() } else { self.engines_with_named_process(named) };
        if choice.is_empty() {
            return Err(self.error_without_choice(named));
        }
        // The only one is chosen even if it is not confirmed.
        if choice.len() == 1 {
            return Ok(choice);
        }
        match self.error_of_several_engines(&choice, named) {
            Some(error) => Err(error),
            None => Ok(choice),
        }
    }

    /// Error that says why several engines cannot be chosen together. `None` if they can.
    fn error_of_several_engines(&self, choice: &[&Engine], named: &[RoleSpec]) -> Option<PickError> {
        if named.is_empty() {
            let is_any_confirmed = choice.iter().any(|engine| engine.is_confirmed);
            // Any program may have the title of an engine, so the user must choose among several unconfirmed ones.
            return (!is_any_confirmed).then(|| PickError::Unconfirmed(self.candidate_pids()));
        }
        // The processes that the user named may be parts of one engine whose connections are not visible. Then a result would be wrong.
        let may_be_one_engine = !are_separate(choice) || are_described_as_one_engine(choice, named);
        may_be_one_engine.then_some(PickError::Unconnected(choice.len()))
    }

    /// Error that says why no engine can be chosen: the user named a process of another program, or there is no engine.
    fn error_without_choice(&self, named: &[RoleSpec]) -> PickError {
        if let Some(named) = named.first()
            && let Some(main) = self.engines.first().and_then(Engine::main_process)
        {
            return PickError::Elsewhere { named: named.pid, engine: main.id.pid };
        }
        PickError::None(self.roles.clone())
    }

    /// Chooses the engine to attach to, if there is only one choice.
    pub fn pick_engine(&self, named: &[RoleSpec]) -> Result<&Engine, PickError> {
        match self.pick_engines(named)?.as_slice() {
            [engine] => Ok(engine),
            several => Err(PickError::Several(several.len())),
        }
    }

    /// Engines of which more is known than titles and commands.
    pub fn confirmed_engines(&self) -> impl Iterator<Item = &Engine> {
        self.engines.iter().filter(|engine| engine.is_confirmed)
    }

    /// Processes that look like an engine but have no connection between two roles. An engine that is starting is among them, and so
    /// is any process with such a title.
    pub fn unconfirmed_engines(&self) -> impl Iterator<Item = &Engine> {
        self.engines.iter().filter(|engine| !engine.is_confirmed)
    }

    /// Pids of the unconfirmed engines.
    pub fn candidate_pids(&self) -> Vec<u32> {
        self.unconfirmed_engines().flat_map(|engine| &engine.processes).map(|process| process.id.pid).collect()
    }

    /// Processes of all engines.
    pub fn processes(&self) -> impl Iterator<Item = &Process> {
        self.engines.iter().flat_map(|engine| &engine.processes)
    }

    /// The engine with this process.
    pub fn engine_of(&self, pid: u32) -> Option<&Engine> {
        self.engines.iter().find(|engine| engine.process_with_pid(pid).is_some())
    }
}

/// Whether the user described these groups of processes as one engine. Each named process must have a stated role, and at most one group
/// may have connections. Groups that contain two main processes and also two sources of output are several engines.
fn are_described_as_one_engine(process_groups: &[&Engine], named: &[RoleSpec]) -> bool {
    let have_stated_roles = named.iter().all(|spec| spec.role.is_some());
    let groups_with_hops = process_groups.iter().filter(|engine| !engine.hops.is_empty()).count();
    let groups_with_main_process = count_with_role(process_groups, Role::is_main);
    // A source generates the tokens.
    let groups_with_source = count_with_role(process_groups, Role::is_source);
    let are_several_engines = groups_with_main_process > 1 && groups_with_source > 1;
    have_stated_roles && groups_with_hops <= 1 && !are_several_engines
}

/// Number of engines with a process whose role passes `is_wanted`.
fn count_with_role(engines: &[&Engine], is_wanted: fn(Role) -> bool) -> usize {
    engines.iter().filter(|engine| engine.processes.iter().any(|process| is_wanted(process.role))).count()
}

/// Whether these groups of processes are engines of their own, and not parts of one whose connections are not visible. That is so if all
/// are confirmed, or if more than one has a main process.
fn are_separate(engines: &[&Engine]) -> bool {
    let groups_with_main_process = count_with_role(engines, Role::is_main);
    engines.iter().all(|engine| engine.is_confirmed) || groups_with_main_process > 1
}
