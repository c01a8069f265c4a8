//! Search for engines that can be watched: on the thread of discovery, which may wait for files of their processes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use probe_user::discover::{Engine, PickError, ProcessId, Topology};

use super::AttachOptions;
use super::engine_names::{EngineNames, NamedEngines};
use super::found_engine::{EngineTraits, FoundEngine};

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

/// Whether an engine has started completely. It has if the last search found the same processes (`seen_before`) as this one (`ids`), and
/// the engine has a connection for its output. An engine that was first seen longer than [`MAX_SETTLING`] ago counts as complete, too.
fn has_started_completely(
    engine: &Engine,
    ids: &[ProcessId],
    seen_before: Option<&SeenProcesses>,
    first_seen_at: Instant,
) -> bool {
    // An engine that starts adds processes, and opens its sockets one by one.
    let is_settled = seen_before.is_some_and(|seen| seen.ids == ids);
    let is_connected = engine.processes_on_token_path().next().is_some();
    let is_overdue = first_seen_at.elapsed() > MAX_SETTLING;
    (is_settled && is_connected) || is_overdue
}

impl EngineSearch {
    /// A search for the engines with these names, or for all if there are none. The `named` engines keep their names.
    pub(super) fn new(names: BTreeSet<String>, named: NamedEngines, may_read_tokenizers: bool) -> Self {
        Self { names, named, may_read_tokenizers, ..Self::default() }
    }

    /// A search for further engines with these names, which ignores those that were `found`. The `named` engines keep their names.
    pub(super) fn for_further_engines(
        names: EngineNames,
        options: &AttachOptions,
        found: &[FoundEngine],
        named: NamedEngines,
    ) -> Self {
        let mut search = Self::new(names.names, named, options.may_read_tokenizers());
        for known in found {
            search.mark_as_found(&known.engine);
        }
        search
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
        self.named.note_exits_and_forget_names(topology);
        let settling_before = std::mem::take(&mut self.settling);
        let mut complete = Vec::new();
        for engine in self.pick_confirmed_or_lone_engines(topology)? {
            if self.is_known(engine) {
                continue;
            }
            let ids = process_ids(engine);
            // One common process is enough, because an engine that starts has more processes at each search.
            let seen_before = settling_before.iter().find(|seen| seen.ids.iter().any(|id| ids.contains(id)));
            let first_seen_at = seen_before.map_or_else(Instant::now, |seen| seen.first_seen_at);
            if has_started_completely(engine, &ids, seen_before, first_seen_at) {
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
    fn pick_confirmed_or_lone_engines<'t>(&mut self, topology: &'t Topology) -> Result<Vec<&'t Engine>, PickError> {
        let no_named_processes = [];
        let picked = topology.pick_engines(&no_named_processes)?;
        // The topology picks an unconfirmed engine only if there is no other.
        let Some(unconfirmed) = picked.first().filter(|engine| !engine.is_confirmed) else {
            self.lone_candidate = None;
            return Ok(picked);
        };
        let alone_since = self.lone_candidate_since(process_ids(unconfirmed));
        // An engine whose receivers all run on other machines is never confirmed by a connection here. It is accepted if it has sockets
        // of libzmq, which starts its threads with the first socket.
        let has_zmq_sockets = unconfirmed.processes.iter().any(|process| !process.io_threads.is_empty());
        if has_zmq_sockets && alone_since.elapsed() >= LONE_CANDIDATE_WAIT {
            return Ok(picked);
        }
        Err(PickError::Unconfirmed(topology.candidate_pids()))
    }

    /// Time since which these processes have been the only candidate, which is remembered. A change of the processes resets it.
    fn lone_candidate_since(&mut self, ids: Vec<ProcessId>) -> Instant {
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
