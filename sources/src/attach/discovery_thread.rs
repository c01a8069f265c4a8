//! Discovery on its own thread. Inspecting a process can block on that process's locks for seconds on a busy machine, and for ever on a
//! file system that does not answer, while the ring buffer would fill up.
//!
//! Files and sockets of a new process are read here first. Only if they answer does the process reach the thread that reads the ring.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use probe_user::discover::{BlindSpot, DiscoverError, DiscoverOptions, Engine, ProcessId, Topology, Watcher};
use probe_user::egress::ListeningSockets;
use probe_user::library::LibraryReader;

use super::engine_search::EngineSearch;
use super::found_engine::{FoundEngine, Ports, find_ports};
use super::inbox::RunId;
use super::trial::describe_with_remedy;

/// Interval between searches for new workers and exits.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Duration of a search after which it is reported as unfinished.
const STALLED: Duration = Duration::from_secs(5);
/// Maximum number of processes whose files and ports are read at a search. Those of connected engines come first.
const MAX_READ_PER_SEARCH: usize = 256;

/// Ports by process, as the thread last found them.
#[derive(Debug, Default)]
struct KnownPorts {
    /// Processes to look up at each search, by the run that wants them.
    wanted: BTreeMap<RunId, BTreeSet<u32>>,
    found: HashMap<u32, Ports>,
}

/// Known processes, and the thread that looks for changes. Dropping this value ends the thread.
pub(super) struct DiscoveryThread {
    topology: Topology,
    /// Number of changes received so far.
    changes: u64,
    /// Engines that no run watches yet.
    pub(super) found: Vec<FoundEngine>,
    /// Why the last search for engines found none.
    obstacle: String,
    updates: Receiver<Update>,
    /// Limits of the search that were reached, each as it was last.
    limits: Vec<BlindSpot>,
    /// Error of the last search, until one succeeds.
    failure: Option<String>,
    /// Number of searches that failed.
    failures: u64,
    ports: Arc<Mutex<KnownPorts>>,
    /// Start of the current search; `None` between searches.
    search_began: Arc<Mutex<Option<Instant>>>,
    /// Dropped to end the thread.
    _stop: Sender<()>,
}

impl DiscoveryThread {
    /// Starts the thread. The files of the `attached` engines are not read again. Looks for other engines if there is an `engine_search`.
    pub(super) fn start(
        watcher: Option<Watcher>,
        attached: &[FoundEngine],
        engine_search: Option<EngineSearch>,
    ) -> std::io::Result<Self> {
        let topology = watcher.as_ref().map(|watcher| watcher.topology().clone()).unwrap_or_default();
        // Limits of the search that it has reached. Kept for the report even if a later search no longer reaches them.
        let limits = topology.blind_spots.iter().filter(|blind| blind.is_limit()).cloned().collect();
        let (sender, updates) = channel();
        // Nothing is sent on this channel: the thread ends when `stop` is dropped.
        let (stop, stopped) = channel();
        let ports = Arc::<Mutex<KnownPorts>>::default();
        let search_began = Arc::<Mutex<Option<Instant>>>::default();
        let attached_processes = attached.iter().flat_map(|found| &found.engine.processes);
        let search = Search {
            watcher,
            for_engines: engine_search,
            libraries: LibraryReader::default(),
            already_read: attached_processes.map(|process| process.id).collect(),
            ports: Arc::clone(&ports),
            began: Arc::clone(&search_began),
            last_obstacle: String::new(),
        };
        thread::Builder::new().name("lookout".into()).spawn(move || search.search_until_stopped(&sender, &stopped))?;
        Ok(Self {
            topology,
            changes: 0,
            found: Vec::new(),
            // The report says before this that no engine is watched.
            obstacle: "the search for one has not finished".to_owned(),
            updates,
            limits,
            failure: None,
            failures: 0,
            ports,
            search_began,
            _stop: stop,
        })
    }

    /// Processes as of the last received change.
    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Number of changes of processes and connections so far.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Why the last search for engines found none.
    pub(super) fn obstacle(&self) -> &str {
        &self.obstacle
    }

    /// Receives what the thread has found since the last call: processes, connections, new engines and failed searches. Never blocks.
    pub(super) fn receive_updates(&mut self) {
        let mut latest_topology = None;
        while let Ok(update) = self.updates.try_recv() {
            match update {
                // Each topology is complete, so only the latest one counts.
                Update::Changed(topology) => latest_topology = Some(topology),
                Update::Found(engine) => self.found.push(*engine),
                Update::NotFound(why) => {
                    tracing::info!("waiting for an engine: {why}");
                    self.obstacle = why;
                }
                Update::Failed(why) => {
                    self.failures += 1;
                    self.failure = Some(why);
                }
            }
        }
        if let Some(topology) = latest_topology {
            self.replace_topology_and_forget_ended_engines(topology);
        }
    }

    /// Replaces the known processes by those of `topology`, and logs which have ended. Forgets found engines without a running process.
    fn replace_topology_and_forget_ended_engines(&mut self, topology: Topology) {
        // Runs compare this number to notice a change.
        self.changes += 1;
        self.update_reached_limits(&topology);
        log_exits(&self.topology, &topology);
        self.topology = topology;
        let Self { topology, found, .. } = self;
        found.retain(|found| has_process_of(topology, &found.engine));
    }

    /// Keeps the limits that the search for `topology` has reached. One that was reached before is replaced by its latest state.
    fn update_reached_limits(&mut self, topology: &Topology) {
        for limit in topology.blind_spots.iter().filter(|blind| blind.is_limit()) {
            self.limits.retain(|known| !known.is_same_kind_of_limit(limit));
            self.limits.push(limit.clone());
        }
    }

    /// Ports of a process as last found; `None` if they were not looked up.
    pub(super) fn ports(&self, pid: u32) -> Option<Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).found.get(&pid).cloned()
    }

    /// Looks up the ports of exactly these processes of a run at each search.
    pub(super) fn look_up_ports(&self, run: RunId, pids: impl Iterator<Item = u32>) {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).wanted.insert(run, pids.collect());
    }

    /// Lines for the report: reached limits and failures of the search for new workers.
    pub(super) fn degraded_lines(&self) -> Vec<String> {
        let mut degraded: Vec<String> = self.limits.iter().map(describe_with_remedy).collect();
        let search_began = *self.search_began.lock().unwrap_or_else(PoisonError::into_inner);
        // A search usually takes a fraction of a second.
        if let Some(began) = search_began
            && began.elapsed() >= STALLED
        {
            degraded.push(format!(
                "discovery: the search for new workers has not finished for {} s: a file of a process does not answer, or the machine is overloaded; new workers are not watched",
                began.elapsed().as_secs()
            ));
        }
        if let Some(why) = &self.failure {
            degraded.push(format!(
                "discovery: {} searches for new workers failed, the last one because it {why}",
                self.failures
            ));
        }
        degraded
    }
}

/// Logs the processes that ran in `earlier` and no longer run in `current`.
fn log_exits(earlier: &Topology, current: &Topology) {
    for process in earlier.processes() {
        let has_ended = current.processes().all(|running| running.id != process.id);
        if has_ended {
            tracing::info!("{} {} has ended", process.role, process.id.pid);
        }
    }
}

/// Whether any process of the engine is among the known ones.
fn has_process_of(topology: &Topology, engine: &Engine) -> bool {
    engine.processes.iter().any(|process| topology.processes().any(|now| now.id == process.id))
}

/// Message of the thread.
enum Update {
    Changed(Topology),
    Found(Box<FoundEngine>),
    /// Why no engine was found, if that has changed.
    NotFound(String),
    /// A search failed, with the error.
    Failed(String),
}

/// State of the thread.
struct Search {
    /// `None` until the first search.
    watcher: Option<Watcher>,
    /// `None` if no engine is looked for.
    for_engines: Option<EngineSearch>,
    libraries: LibraryReader,
    /// Processes whose files were read.
    already_read: BTreeSet<ProcessId>,
    ports: Arc<Mutex<KnownPorts>>,
    /// Start of the current search; `None` between searches.
    began: Arc<Mutex<Option<Instant>>>,
    /// Why the last search without an engine found none; empty before the first such search.
    last_obstacle: String,
}

impl Search {
    /// The thread: searches every `POLL_INTERVAL` and sends all changes, until the other end of `stopped` is dropped.
    fn search_until_stopped(mut self, sender: &Sender<Update>, stopped: &Receiver<()>) {
        // Without a watcher nothing is known yet, so the first search starts at once.
        let mut wait = if self.watcher.is_some() { POLL_INTERVAL } else { Duration::ZERO };
        while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            wait = POLL_INTERVAL;
            // Lets the other thread notice a search that hangs, as in a file system that does not answer.
            *self.began.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            let updates = self.search_for_updates();
            *self.began.lock().unwrap_or_else(PoisonError::into_inner) = None;
            for update in updates {
                // Fails once the receiver was dropped, which ends the thread.
                if sender.send(update).is_err() {
                    return;
                }
            }
        }
    }

    /// Searches once for processes, connections and engines, and returns the changes. The reason why there is no engine is a change only
    /// if it differs from the last one.
    fn search_for_updates(&mut self) -> Vec<Update> {
        let mut updates = Vec::new();
        updates.extend(self.search_processes_and_publish_ports());
        match self.find_new_engines() {
            Ok(engines) => updates.extend(engines.into_iter().map(|engine| Update::Found(Box::new(engine)))),
            // Most searches fail for the same reason as the last one, and it is logged once.
            Err(why) if why == self.last_obstacle => {}
            Err(why) => {
                self.last_obstacle.clone_from(&why);
                updates.push(Update::NotFound(why));
            }
        }
        updates
    }

    /// Looks for new processes and connections. Returns whether there are any.
    fn poll_watcher_for_changes(&mut self) -> Result<bool, DiscoverError> {
        if let Some(watcher) = &mut self.watcher {
            return watcher.poll();
        }
        // The first search creates the watcher. All processes are new then.
        self.watcher = Some(Watcher::new(DiscoverOptions::new(engines::DISCOVERED))?);
        Ok(true)
    }

    /// Searches once for new processes and connections, and returns what has changed; `None` if nothing has. Also looks up the ports that
    /// runs have asked for.
    fn search_processes_and_publish_ports(&mut self) -> Option<Update> {
        match self.poll_watcher_for_changes() {
            Ok(false) => {
                // Ports are looked up at each search, because a process opens them once its model is loaded.
                self.look_up_and_publish_ports(self.wanted_pids());
                None
            }
            Ok(true) => {
                self.read_libraries_and_ports_of_new_processes();
                self.watcher.as_ref().map(|watcher| Update::Changed(watcher.topology().clone()))
            }
            Err(error) => {
                tracing::warn!("cannot look for new workers: {error}");
                Some(Update::Failed(error.to_string()))
            }
        }
    }

    /// Engines that were not found before, with their ports and names. Empty if there is no new one, or none is searched for. An error says
    /// why there is no engine at all.
    fn find_new_engines(&mut self) -> Result<Vec<FoundEngine>, String> {
        let (Some(search), Some(watcher)) = (&mut self.for_engines, &self.watcher) else {
            return Ok(Vec::new());
        };
        let engines = search.find_new_engines(watcher.topology()).map_err(|error| error.to_string())?;
        let mut found = Vec::new();
        for engine in engines {
            // A process may have loaded its libraries after it was first read.
            for process in &engine.processes {
                self.libraries.read_and_analyse_libraries_of(process.id.pid, process.inner_server);
            }
            let mut found_engine = FoundEngine::inspect(engine, search.may_read_tokenizers);
            search.set_unique_name(&mut found_engine);
            if search.accepts_name(&found_engine.traits) {
                found.push(found_engine);
            } else if found_engine.traits.port.is_none() {
                // Its name may change once it listens.
                search.reconsider_engine(&found_engine.engine);
            }
        }
        Ok(found)
    }

    /// Reads the libraries of processes that are new since the last search, and looks up the ports of those that answer clients.
    fn read_libraries_and_ports_of_new_processes(&mut self) {
        let Some(topology) = self.watcher.as_ref().map(Watcher::topology) else { return };
        let mut running: BTreeSet<ProcessId> = topology.processes().map(|process| process.id).collect();
        running.extend(&topology.frontends);
        let new_processes = topology.processes().filter(|process| !self.already_read.contains(&process.id));
        let mut server_pids = BTreeSet::new();
        for process in new_processes.take(MAX_READ_PER_SEARCH) {
            self.libraries.read_and_analyse_libraries_of(process.id.pid, process.inner_server);
            if process.answers_clients() {
                server_pids.insert(process.id.pid);
            }
        }
        let new_frontends = topology.frontends.iter().filter(|id| !self.already_read.contains(id));
        for frontend in new_frontends.take(MAX_READ_PER_SEARCH) {
            let no_inner_server = None;
            self.libraries.read_and_analyse_libraries_of(frontend.pid, no_inner_server);
        }
        // Processes beyond the limit count as read: they are not read later either.
        self.already_read = running;
        self.forget_ports_of_exited();
        let mut pids_to_look_up = server_pids;
        pids_to_look_up.extend(self.wanted_pids());
        self.look_up_and_publish_ports(pids_to_look_up);
    }

    /// Forgets the ports of processes that do not run any more.
    fn forget_ports_of_exited(&self) {
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.found.retain(|pid, _| self.already_read.iter().any(|id| id.pid == *pid));
    }

    /// Processes whose ports the runs have asked for. Copied, because the run loop takes the lock while their files are read.
    fn wanted_pids(&self) -> BTreeSet<u32> {
        let ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.wanted.values().flatten().copied().collect()
    }

    /// Reads the listening ports of these processes into the list that the run loop looks at.
    fn look_up_and_publish_ports(&self, pids: BTreeSet<u32>) {
        let mut sockets = ListeningSockets::default();
        for pid in pids {
            let found = find_ports(&mut sockets, pid);
            self.ports.lock().unwrap_or_else(PoisonError::into_inner).found.insert(pid, found);
        }
    }
}
