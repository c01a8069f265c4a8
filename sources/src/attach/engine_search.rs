//! Search for engines that can be watched: on the thread of discovery, which may wait for files of their processes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use probe_user::discover::{self, Engine, PickError, ProcessId, Topology};
use probe_user::egress::{ListeningPorts, ListeningSockets};

use super::engine_names::NamedEngines;
use super::response_id_reader_of;

/// Maximum length of the name of a model, in characters.
const MAX_MODEL_CHARS: usize = 64;
/// Maximum wait for an engine whose processes still change or are not connected; they open their sockets one by one.
const MAX_SETTLING: Duration = Duration::from_secs(20);
/// Time after which the only processes that look like an engine are watched although no connection confirms it.
const LONE_CANDIDATE_WAIT: Duration = Duration::from_secs(40);

/// Default of [`EngineLimit`].
const DEFAULT_MAX_ENGINES: u16 = 64;

/// Maximum number of engines, each of which needs memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineLimit(pub u16);

impl Default for EngineLimit {
    fn default() -> Self {
        Self(DEFAULT_MAX_ENGINES)
    }
}

/// Ports on which a process listens, or why they are unknown.
pub(super) type Ports = Result<ListeningPorts, String>;

/// Looks up the ports of a process. Blocks.
pub(super) fn find_ports(sockets: &mut ListeningSockets, pid: u32) -> Ports {
    sockets.ports_of(pid).map_err(|error| format!("cannot read where pid {pid} listens: {error}"))
}

/// Properties that an engine keeps across a restart. Its container may be a new one, with another network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EngineTraits {
    /// Its kind with the port that it serves, otherwise with its model and rank, otherwise with its main process.
    pub name: String,
    /// The name, with a number if another engine has the same one. Without a number where no engine is selected by name, because runs then
    /// number equal names themselves.
    pub(super) unique_name: String,
    /// Port of its HTTP server, if known.
    pub port: Option<u16>,
    /// Last part of the name of its model, if known.
    pub model: Option<String>,
    /// Network namespace of its server, if known.
    network_namespace: Option<u64>,
}

impl EngineTraits {
    /// Reads the command lines of an engine and the ports on which it listens. Blocks.
    pub fn read(engine: &Engine) -> Self {
        Self::with_ports(engine, &find_serving_ports(engine))
    }

    /// Name, port, model and network namespace of an engine. `ports` are those on which its processes listen, by pid.
    fn with_ports(engine: &Engine, ports: &BTreeMap<u32, Ports>) -> Self {
        let port = discover::served_port(engine).or_else(|| lowest_client_port(engine, ports));
        // Truncated, because the engine's command line chooses the name, and it becomes a label and a part of file names.
        let model = discover::model_name(engine).map(|model| model.chars().take(MAX_MODEL_CHARS).collect::<String>());
        // The first process whose namespace is known stands for the engine. An id of 0 is unknown.
        let mut namespaces = ports.values().flatten().map(|listening| listening.network_namespace);
        let network_namespace = namespaces.find(|id| *id > 0);
        let name = name_engine(engine, port, model.as_deref());
        Self { unique_name: name.clone(), name, port, model, network_namespace }
    }

    /// Traits of an engine without a port.
    #[cfg(test)]
    pub(super) fn for_test(name: &str, model: Option<&str>, network_namespace: u64) -> Self {
        Self {
            name: name.to_owned(),
            unique_name: name.to_owned(),
            port: None,
            model: model.map(str::to_owned),
            network_namespace: Some(network_namespace),
        }
    }

    /// Whether both have the same name in the same network namespace. If the namespace is unknown, they must have the same model.
    pub(super) fn has_same_address(&self, other: &Self) -> bool {
        if self.name != other.name || self.network_namespace != other.network_namespace {
            return false;
        }
        // In an unknown namespace, the same port may be that of an engine with another model.
        self.network_namespace.is_some() || self.model == other.model
    }

    /// Whether the two cannot be the same engine: they serve different ports, or have different models.
    pub(super) fn is_other_engine_than(&self, other: &Self) -> bool {
        let has_other_port = self.port.is_some() && other.port.is_some() && self.port != other.port;
        let has_other_model = self.model.is_some() && other.model.is_some() && self.model != other.model;
        has_other_port || has_other_model
    }

    /// Whether both have the same name and model.
    pub(super) fn has_same_model(&self, other: &Self) -> bool {
        self.name == other.name && self.model.is_some() && self.model == other.model
    }
}

/// An engine, with the data read of its processes.
#[derive(Debug)]
pub(super) struct FoundEngine {
    pub(super) traits: EngineTraits,
    pub(super) engine: Engine,
    /// Ports of its processes that answer clients.
    pub(super) ports: BTreeMap<u32, Ports>,
    /// Its `tokenizer.json`, if it is needed, or why it cannot be had.
    pub(super) tokenizer: Option<Result<Vec<u8>, String>>,
}

impl FoundEngine {
    /// Reads the ports of an engine, and its tokenizer if `may_read_tokenizer`. Blocks while it reads files.
    pub(super) fn inspect(engine: Engine, may_read_tokenizer: bool) -> Self {
        let ports = find_serving_ports(&engine);
        let needs_tokenizer = may_read_tokenizer && response_id_reader_of(&engine).is_some();
        let tokenizer = needs_tokenizer.then(|| discover::read_tokenizer(&engine));
        Self { traits: EngineTraits::with_ports(&engine, &ports), engine, ports, tokenizer }
    }
}

/// Looks up the listening ports of the processes that answer clients, by pid. Blocks while it reads files.
fn find_serving_ports(engine: &Engine) -> BTreeMap<u32, Ports> {
    let serving = engine.processes.iter().filter(|process| process.answers_clients());
    let mut sockets = ListeningSockets::default();
    serving.map(|process| (process.id.pid, find_ports(&mut sockets, process.id.pid))).collect()
}

/// Name of an engine: its kind with the port that it serves, otherwise with its model and rank, otherwise with its main process.
fn name_engine(engine: &Engine, port: Option<u16>, model: Option<&str>) -> String {
    let kind = engine.kind.map_or("engine", |kind| kind.name());
    if let Some(port) = port {
        return format!("{kind}:{port}");
    }
    // Workers behind one frontend serve no port, and have the same model.
    if let Some(model) = model {
        let data_parallel_rank = engine.processes.iter().find_map(|process| process.rank.dp);
        return match data_parallel_rank {
            Some(rank) => format!("{kind}:{model}-dp{rank}"),
            None => format!("{kind}:{model}"),
        };
    }
    format!("{kind}:pid-{}", engine.main_process().map_or(0, |process| process.id.pid))
}

/// Lowest port on which a process of the engine listens for clients. A worker of Dynamo listens for none.
fn lowest_client_port(engine: &Engine, ports: &BTreeMap<u32, Ports>) -> Option<u16> {
    let mut client_ports: Vec<u16> = Vec::new();
    for process in engine.processes.iter().filter(|process| process.connects_to_clients.is_none()) {
        let Some(Ok(listening)) = ports.get(&process.id.pid) else { continue };
        client_ports.extend(listening.ports.iter().filter(|port| !receives_messages_at(engine, **port)));
    }
    client_ports.into_iter().min()
}

/// Whether messages between the engine's processes arrive at this port.
fn receives_messages_at(engine: &Engine, port: u16) -> bool {
    let suffix = format!(":{port}");
    engine.hops.iter().any(|hop| hop.endpoint.ends_with(&suffix))
}

/// Engines that the search has found so far, and processes that may become one.
#[derive(Default)]
pub(super) struct EngineSearch {
    /// Unique names to which the search is restricted; empty for all engines.
    names: BTreeSet<String>,
    /// The engines found so far, which number those of equal names.
    named: NamedEngines,
    pub(super) may_read_tokenizers: bool,
    /// Processes that looked like engines at the last search.
    settling: Vec<SeenProcesses>,
    /// The only candidates, while there is no confirmed engine.
    lone_candidate: Option<SeenProcesses>,
    /// Processes of the engines found so far, with whether their engine was confirmed then. One that was not is found again once it is.
    found_processes: BTreeMap<ProcessId, bool>,
}

struct SeenProcesses {
    ids: Vec<ProcessId>,
    first_seen_at: Instant,
}

fn process_ids(engine: &Engine) -> Vec<ProcessId> {
    engine.processes.iter().map(|process| process.id).collect()
}

/// Whether an engine with the processes `ids` has started completely: two searches have found the same processes, with a connection for
/// output. `seen_before` are its processes at the last search. An engine that was first seen too long ago counts as complete, too.
fn is_complete(
    engine: &Engine,
    ids: &[ProcessId],
    seen_before: Option<&SeenProcesses>,
    first_seen_at: Instant,
) -> bool {
    // An engine that starts adds processes, and opens its sockets one by one.
    let is_settled = seen_before.is_some_and(|seen| seen.ids == ids);
    let is_connected = engine.on_token_path().next().is_some();
    let is_overdue = first_seen_at.elapsed() > MAX_SETTLING;
    (is_settled && is_connected) || is_overdue
}

impl EngineSearch {
    /// A search for the engines with these names, or for all if there are none. The `named` engines keep their names.
    pub(super) fn new(names: BTreeSet<String>, named: NamedEngines, may_read_tokenizers: bool) -> Self {
        Self { names, named, may_read_tokenizers, ..Self::default() }
    }

    /// Makes later searches pass over this engine while it runs.
    pub(super) fn mark_as_found(&mut self, engine: &Engine) {
        self.found_processes.extend(process_ids(engine).into_iter().map(|id| (id, engine.is_confirmed)));
    }

    /// Gives an engine its unique name, if engines are looked for by name. Otherwise runs number equal names themselves.
    pub(super) fn set_unique_name(&mut self, found: &mut FoundEngine) {
        if !self.names.is_empty() {
            self.named.set_unique_name(found);
        }
    }

    /// Whether engines of this name are looked for. A search for names must see the port of an engine, which may open late.
    pub(super) fn accepts_name(&self, traits: &EngineTraits) -> bool {
        self.names.is_empty() || self.names.contains(&traits.unique_name)
    }

    /// Makes the next search return this engine again.
    pub(super) fn reconsider_engine(&mut self, engine: &Engine) {
        for process in &engine.processes {
            self.found_processes.remove(&process.id);
        }
    }

    /// Returns the engines that were not found before and have started completely. The others are settling: the next search looks at them
    /// again. An error says why there is no engine at all.
    pub(super) fn find_new_engines(&mut self, topology: &Topology) -> Result<Vec<Engine>, PickError> {
        // An engine that has exited is found again when it has started again.
        self.found_processes.retain(|id, _| topology.processes().any(|process| process.id == *id));
        self.named.note_exits(topology);
        let settling_before = std::mem::take(&mut self.settling);
        let mut complete = Vec::new();
        for engine in self.pick_engines(topology)? {
            if self.is_known(engine) {
                continue;
            }
            let ids = process_ids(engine);
            // Of an engine that has changed since the last search, some processes are the same.
            let seen_before = settling_before.iter().find(|seen| seen.ids.iter().any(|id| ids.contains(id)));
            let first_seen_at = seen_before.map_or_else(Instant::now, |seen| seen.first_seen_at);
            if is_complete(engine, &ids, seen_before, first_seen_at) {
                self.mark_as_found(engine);
                complete.push(engine.clone());
            } else {
                self.settling.push(SeenProcesses { ids, first_seen_at });
            }
        }
        Ok(complete)
    }

    /// Whether the engine was found before. One that was unconfirmed then counts as new once it is confirmed.
    fn is_known(&self, engine: &Engine) -> bool {
        let mut known_processes = engine.processes.iter().filter_map(|process| self.found_processes.get(&process.id));
        known_processes.any(|was_confirmed| *was_confirmed || !engine.is_confirmed)
    }

    /// The engines that are confirmed by more than their processes' titles, which any process can have. Without one, the unconfirmed engine
    /// that has been the only one for a while.
    fn pick_engines<'t>(&mut self, topology: &'t Topology) -> Result<Vec<&'t Engine>, PickError> {
        let no_named_processes = [];
        let picked = topology.pick_engines(&no_named_processes)?;
        // The topology picks an unconfirmed engine only if there is no other.
        let Some(unconfirmed) = picked.first().filter(|engine| !engine.is_confirmed) else {
            self.lone_candidate = None;
            return Ok(picked);
        };
        let alone_since = self.note_lone_candidate(process_ids(unconfirmed));
        // An engine whose receivers all run on other machines never has a hop here. libzmq starts its threads with the first socket.
        let has_zmq_sockets = unconfirmed.processes.iter().any(|process| !process.io_threads.is_empty());
        if has_zmq_sockets && alone_since.elapsed() >= LONE_CANDIDATE_WAIT {
            return Ok(picked);
        }
        Err(PickError::Unconfirmed(topology.candidate_pids()))
    }

    /// Notes that these processes are the only candidate. Returns since when they have been, which a change of the processes resets.
    fn note_lone_candidate(&mut self, ids: Vec<ProcessId>) -> Instant {
        let first_seen_at = match self.lone_candidate.take() {
            Some(candidate) if candidate.ids == ids => candidate.first_seen_at,
            _ => Instant::now(),
        };
        self.lone_candidate = Some(SeenProcesses { ids, first_seen_at });
        first_seen_at
    }
}

#[cfg(test)]
pub(super) mod tests;
