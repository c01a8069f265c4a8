//! Names of engines, by which the user selects those to watch. Engines with equal names get numbers.

use std::collections::BTreeSet;

use probe_user::discover::{Engine, ProcessId, Topology};

use super::found_engine::{EngineTraits, FoundEngine};

/// Names of the engines to watch; empty for all of them.
#[derive(Clone, Debug, Default)]
pub struct EngineNames {
    /// The names, each as reports show it.
    pub names: BTreeSet<String>,
}

/// Engines to attach to.
#[derive(Debug)]
pub struct SelectedEngines {
    pub(super) engines: Vec<Engine>,
    /// All running engines, if some of them were selected by name.
    pub(super) named: NamedEngines,
}

impl EngineNames {
    /// The engines with these names, or all if there are no names. Reads their command lines and ports. If one of the names is not running,
    /// the error lists those that are.
    pub fn select_engines(&self, engines: Vec<Engine>) -> anyhow::Result<SelectedEngines> {
        let mut named = NamedEngines::default();
        if self.names.is_empty() {
            return Ok(SelectedEngines { engines, named });
        }
        let mut running: Vec<(String, Engine)> = Vec::new();
        for engine in engines {
            let name = named.assign_unique_name(&engine, &EngineTraits::read(&engine));
            running.push((name, engine));
        }
        let running_names: BTreeSet<&str> = running.iter().map(|(name, _)| name.as_str()).collect();
        if let Some(unknown) = self.names.iter().find(|name| !running_names.contains(name.as_str())) {
            let running_names: Vec<&str> = running_names.into_iter().collect();
            anyhow::bail!("no engine is named {unknown}: running are {}", running_names.join(", "));
        }
        running.retain(|(name, _)| self.names.contains(name));
        Ok(SelectedEngines { engines: running.into_iter().map(|(_, engine)| engine).collect(), named })
    }
}

/// Engines that were found, each with a name of its own. Of several with one port, in different network namespaces, all but the first have
/// a number.
#[derive(Debug, Default)]
pub(super) struct NamedEngines {
    engines: Vec<NamedEngine>,
}

#[derive(Debug)]
struct NamedEngine {
    unique_name: String,
    traits: EngineTraits,
    processes: Vec<ProcessId>,
    main_process: Option<ProcessId>,
    /// Its main process has exited, so that another engine may have its name.
    has_exited: bool,
}

/// Why a found engine has the name of a known one. The first reason is the most certain one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NameReuse {
    SharedProcess,
    RestartAtAddress,
    RestartOfModel,
    /// Nothing says that it is the same engine, but the known one has exited.
    FreeName,
}

impl NamedEngines {
    /// Gives an engine its unique name.
    pub(super) fn set_unique_name(&mut self, found: &mut FoundEngine) {
        found.traits.unique_name = self.assign_unique_name(&found.engine, &found.traits);
    }

    /// Chooses the unique name of an engine and remembers it, so that the engine has the same name after a restart.
    fn assign_unique_name(&mut self, engine: &Engine, traits: &EngineTraits) -> String {
        let candidates =
            self.engines.iter_mut().filter_map(|known| Some((known.name_reuse_for(engine, traits)?, known)));
        // The most certain reason to reuse a name is the least one.
        if let Some((_, known)) = candidates.min_by_key(|(reuse, _)| *reuse) {
            let unique_name = known.unique_name.clone();
            *known = NamedEngine::new(unique_name.clone(), engine, traits);
            return unique_name;
        }
        let is_used = |name: &str| self.engines.iter().any(|known| are_same_name(&known.unique_name, name));
        let unique_name = first_unused_name(&traits.name, is_used);
        self.engines.push(NamedEngine::new(unique_name.clone(), engine, traits));
        unique_name
    }

    /// Notes which engines have exited. Those named by a pid are forgotten, because no later engine has their name.
    pub(super) fn note_exits_and_forget_names(&mut self, topology: &Topology) {
        for known in &mut self.engines {
            known.has_exited = !topology.processes().any(|process| Some(process.id) == known.main_process);
        }
        self.engines.retain(|known| !known.has_exited || known.traits.port.is_some() || known.traits.model.is_some());
    }
}

impl NamedEngine {
    fn new(unique_name: String, engine: &Engine, traits: &EngineTraits) -> Self {
        Self {
            unique_name,
            traits: traits.clone(),
            processes: engine.processes.iter().map(|process| process.id).collect(),
            main_process: engine.main_process().map(|process| process.id),
            has_exited: false,
        }
    }

    /// Why a found engine with these traits gets the unique name of this one. `None` if it gets another name.
    fn name_reuse_for(&self, found: &Engine, found_traits: &EngineTraits) -> Option<NameReuse> {
        if self.traits.name != found_traits.name {
            return None;
        }
        if found.processes.iter().any(|process| self.processes.contains(&process.id)) {
            return Some(NameReuse::SharedProcess);
        }
        // While this engine runs, its name is not free.
        if !self.has_exited {
            return None;
        }
        if self.traits.has_same_address(found_traits) {
            return Some(NameReuse::RestartAtAddress);
        }
        // After a restart in a new container, the address differs, because it includes the network namespace.
        if self.traits.has_same_model(found_traits) {
            return Some(NameReuse::RestartOfModel);
        }
        Some(NameReuse::FreeName)
    }
}

/// The first unused name: the name itself, or with a number from 2 on.
pub(super) fn first_unused_name(name: &str, is_used: impl Fn(&str) -> bool) -> String {
    let mut numbered = name.to_owned();
    let mut number = 2;
    while is_used(&numbered) {
        numbered = format!("{name}-{number}");
        number += 1;
    }
    numbered
}

/// Whether two names count as the same: recordings of both would get the same file name.
pub(super) fn are_same_name(one: &str, other: &str) -> bool {
    as_in_file_name(one).eq(as_in_file_name(other))
}

/// Characters of a name as in the file names of recordings: letters, digits and dots, with a hyphen for any other character.
fn as_in_file_name(name: &str) -> impl Iterator<Item = char> {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::engine_search::EngineSearch;
    use super::super::engine_search::tests::titled;
    use super::*;

    #[test]
    fn engines_are_selected_by_name() {
        // Pids beyond the kernel's limit, so that no process is asked.
        let [first, second] = [5_000_001, 5_000_002];
        let select = |names: &[&str]| {
            let names = EngineNames { names: names.iter().map(|name| (*name).to_owned()).collect() };
            let engines = [first, second].map(|pid| titled(pid, Vec::new())).into();
            let selected = names.select_engines(engines).map_err(|error| error.to_string())?;
            Ok::<_, String>(selected.engines.iter().map(|engine| engine.processes[0].id.pid).collect::<Vec<u32>>())
        };
        assert_eq!(select(&[]), Ok(vec![first, second]));
        assert_eq!(select(&["engine:pid-5000002"]), Ok(vec![second]));
        assert_eq!(select(&["engine:pid-5000002", "engine:pid-5000001"]), Ok(vec![first, second]));
        let unknown = "no engine is named sglang:1: running are engine:pid-5000001, engine:pid-5000002";
        assert_eq!(select(&["engine:pid-5000001", "sglang:1"]), Err(unknown.to_owned()));
    }

    /// Name of an engine with this port, network namespace and process.
    fn name_of(named: &mut NamedEngines, name: &str, model: Option<&str>, network_namespace: u64, pid: u32) -> String {
        named.assign_unique_name(&titled(pid, Vec::new()), &EngineTraits::for_test(name, model, network_namespace))
    }

    fn running(pids: &[u32]) -> Topology {
        Topology { engines: pids.iter().map(|pid| titled(*pid, Vec::new())).collect(), ..Topology::default() }
    }

    #[test]
    fn engines_of_one_port_have_numbers_which_they_keep() {
        let mut named = NamedEngines::default();
        let [first, second] = [1, 2].map(|pid| name_of(&mut named, "sglang:30000", Some("qwen"), u64::from(pid), pid));
        assert_eq!((&*first, &*second), ("sglang:30000", "sglang:30000-2"));
        assert_eq!(name_of(&mut named, "vllm:8000", None, 3, 3), "vllm:8000");
        assert_eq!(name_of(&mut named, "sglang:30000", Some("qwen"), 2, 2), second, "found again");

        // Both have exited. The second one starts first.
        named.note_exits_and_forget_names(&running(&[3]));
        assert_eq!(name_of(&mut named, "sglang:30000", Some("qwen"), 2, 12), second);
        named.note_exits_and_forget_names(&running(&[3, 12]));
        assert_eq!(name_of(&mut named, "sglang:30000", Some("qwen"), 9, 11), first, "a new container of its model");
        named.note_exits_and_forget_names(&running(&[3, 11, 12]));
        assert_eq!(name_of(&mut named, "sglang:30000", Some("qwen"), 4, 4), "sglang:30000-3");

        // Another model takes the name that is free.
        named.note_exits_and_forget_names(&running(&[3, 12, 4]));
        assert_eq!(name_of(&mut named, "sglang:30000", Some("llama"), 5, 5), first);
    }

    #[test]
    fn a_search_for_a_numbered_name_finds_its_engine_only() {
        let mut search =
            EngineSearch::new(BTreeSet::from(["sglang:30000-2".to_owned()]), NamedEngines::default(), false);
        let mut accepts = |network_namespace: u64, pid: u32| {
            let traits = EngineTraits::for_test("sglang:30000", Some("qwen"), network_namespace);
            let engine = titled(pid, Vec::new());
            let mut found = FoundEngine { traits, engine, ports: BTreeMap::new(), tokenizer: None };
            search.set_unique_name(&mut found);
            search.accepts_name(&found.traits)
        };
        assert_eq!([accepts(1, 1), accepts(2, 2), accepts(3, 3)], [false, true, false]);
    }
}
