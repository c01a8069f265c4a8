//! An engine that was found, with what its processes show of it: name, ports, model.

use std::collections::BTreeMap;

use probe_user::discover::{self, Engine};
use probe_user::egress::{ListeningPorts, ListeningSockets};

use super::response_id_reader_of;

/// Maximum length of the name of a model, in characters.
const MAX_MODEL_CHARS: usize = 64;

/// Ports on which a process listens, or why they are unknown.
pub(super) type Ports = Result<ListeningPorts, String>;

/// Looks up the ports of a process. Blocks.
pub(super) fn find_ports(sockets: &mut ListeningSockets, pid: u32) -> Ports {
    sockets.listening_ports_of_process(pid).map_err(|error| format!("cannot read where pid {pid} listens: {error}"))
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
        Self::from_engine_and_ports(engine, &find_serving_ports(engine))
    }

    /// Name, port, model and network namespace of an engine. `ports` are those on which its processes listen, by pid.
    fn from_engine_and_ports(engine: &Engine, ports: &BTreeMap<u32, Ports>) -> Self {
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
        // The name contains the port, if the engine has one. In an unknown namespace, the same port may be that of an engine with another
        // model.
        self.network_namespace.is_some() || self.model == other.model
    }

    /// Whether the two cannot be the same engine: they serve different ports, or have different models.
    pub(super) fn is_certainly_other_engine_than(&self, other: &Self) -> bool {
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
        Self { traits: EngineTraits::from_engine_and_ports(&engine, &ports), engine, ports, tokenizer }
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

#[cfg(test)]
mod tests {
    use super::super::engine_search::tests::titled;
    use super::*;

    #[test]
    fn an_engine_is_named_by_its_port_otherwise_by_its_process() {
        let engine = titled(4_000_000, Vec::new());
        let listening = |ports: &[u16]| {
            let ports = ListeningPorts { ports: ports.to_vec(), ..ListeningPorts::default() };
            BTreeMap::from([(4_000_000, Ok(ports))])
        };
        assert_eq!(lowest_client_port(&engine, &listening(&[30_007, 30_001])), Some(30_001));
        assert_eq!(lowest_client_port(&engine, &listening(&[])), None);
        assert_eq!(name_engine(&engine, Some(30_001), Some("model")), "engine:30001");
        assert_eq!(name_engine(&engine, None, Some("model")), "engine:model");
        assert_eq!(name_engine(&engine, None, None), "engine:pid-4000000");
    }
}
