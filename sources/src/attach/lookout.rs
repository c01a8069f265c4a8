//! Discovery on its own thread. Inspecting a process can block on that process's locks for seconds on a busy machine, and for ever on a file
//! system that does not answer, while the ring buffer would fill up.
//!
//! Files and sockets of a new process are read here first. Only if they answer does the process reach the thread that reads the ring.

use std::collections::{BTreeSet, HashMap};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use probe_user::discover::{BlindSpot, Process, ProcessId, Topology, Watcher};
use probe_user::egress::{ListeningPorts, listening_ports};
use probe_user::library::LibraryReader;

use super::trial::with_remedy;

/// Interval between searches for new workers and exits.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Duration of a search after which it is reported as unfinished.
const STALLED: Duration = Duration::from_secs(5);
/// Maximum number of processes whose files and ports are read at a search. Those of connected engines come first.
const MAX_READ: usize = 256;

/// Ports on which a process listens, or why they are unknown.
pub(super) type Ports = Result<ListeningPorts, String>;

/// Looks up the ports of a process. Blocks.
pub(super) fn find_ports(pid: u32) -> Ports {
    listening_ports(pid).map_err(|error| format!("cannot read where pid {pid} listens: {error}"))
}

/// Ports by process, as the thread last found them.
#[derive(Debug, Default)]
struct KnownPorts {
    /// Processes to look up at each search.
    wanted: BTreeSet<u32>,
    found: HashMap<u32, Ports>,
}

/// Known processes, and the thread that looks for changes. Dropping this value ends the thread.
pub(super) struct DiscoveryThread {
    topology: Topology,
    updates: Receiver<Update>,
    /// Limits of the search that were reached, each as it was last.
    limits: Vec<BlindSpot>,
    /// Error of the last search, until one succeeds.
    failure: Option<String>,
    /// Number of searches that failed.
    failures: u64,
    ports: Arc<Mutex<KnownPorts>>,
    /// Begin of the search that is under way.
    search_began: Arc<Mutex<Option<Instant>>>,
    _stop: Sender<()>,
}

impl DiscoveryThread {
    pub(super) fn start(watcher: Watcher) -> std::io::Result<Self> {
        let topology = watcher.topology().clone();
        let limits = topology.blind_spots.iter().filter(|blind| blind.is_limit()).cloned().collect();
        let (sender, updates) = channel();
        let (stop, stopped) = channel();
        let ports = Arc::<Mutex<KnownPorts>>::default();
        let search_began = Arc::<Mutex<Option<Instant>>>::default();
        let search = Search {
            watcher,
            libraries: LibraryReader::default(),
            read: BTreeSet::new(),
            ports: Arc::clone(&ports),
            began: Arc::clone(&search_began),
        };
        thread::Builder::new().name("lookout".into()).spawn(move || search.run(&sender, &stopped))?;
        Ok(Self { topology, updates, limits, failure: None, failures: 0, ports, search_began, _stop: stop })
    }

    /// Processes as of the last received change.
    pub(super) fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Updates the processes, and returns whether they or their connections have changed since the last call. Never blocks.
    pub(super) fn update(&mut self) -> bool {
        let mut latest = None;
        while let Ok(update) = self.updates.try_recv() {
            match update {
                Update::Changed(topology) => latest = Some(topology),
                Update::Failed(why) => {
                    self.failures += 1;
                    self.failure = Some(why);
                }
            }
        }
        let Some(topology) = latest else {
            return false;
        };
        for limit in topology.blind_spots.iter().filter(|blind| blind.is_limit()) {
            self.limits.retain(|known| !known.is_same_limit(limit));
            self.limits.push(limit.clone());
        }
        let before = std::mem::replace(&mut self.topology, topology);
        for process in before.processes().filter(|p| self.topology.processes().all(|now| now.id != p.id)) {
            tracing::info!("{} {} has ended", process.role, process.id.pid);
        }
        true
    }

    /// Ports of a process as last found; `None` if they were not looked up.
    pub(super) fn ports(&self, pid: u32) -> Option<Ports> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).found.get(&pid).cloned()
    }

    /// Looks up the ports of exactly these processes at each search.
    pub(super) fn look_up_ports(&self, pids: impl Iterator<Item = u32>) {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner).wanted = pids.collect();
    }

    /// Reached limits and failures of the search for new workers.
    pub(super) fn degraded(&self) -> Vec<String> {
        let mut degraded: Vec<String> = self.limits.iter().map(with_remedy).collect();
        let began = *self.search_began.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(took) = began.map(|began| began.elapsed()).filter(|took| *took >= STALLED) {
            degraded.push(format!(
                "discovery: the search for new workers has not finished for {} s: a file of a process does not answer, or the machine is overloaded; new workers are not watched",
                took.as_secs()
            ));
        }
        degraded.extend(self.failure.iter().map(|why| {
            format!("discovery: {} searches for new workers failed, the last one because it {why}", self.failures)
        }));
        degraded
    }
}

/// Message of the thread.
enum Update {
    Changed(Topology),
    /// A search failed, with the error.
    Failed(String),
}

/// State of the thread.
struct Search {
    watcher: Watcher,
    libraries: LibraryReader,
    /// Processes whose files were read.
    read: BTreeSet<ProcessId>,
    ports: Arc<Mutex<KnownPorts>>,
    began: Arc<Mutex<Option<Instant>>>,
}

impl Search {
    fn run(mut self, sender: &Sender<Update>, stopped: &Receiver<()>) {
        self.read.extend(self.watcher.topology().processes().map(|process| process.id));
        while stopped.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            *self.began.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            let found = self.search();
            *self.began.lock().unwrap_or_else(PoisonError::into_inner) = None;
            if let Some(update) = found
                && sender.send(update).is_err()
            {
                return;
            }
        }
    }

    /// Searches once; `None` if nothing has changed.
    fn search(&mut self) -> Option<Update> {
        match self.watcher.poll() {
            Ok(false) => {
                let wanted = self.ports.lock().unwrap_or_else(PoisonError::into_inner).wanted.clone();
                self.find_ports(wanted);
                None
            }
            Ok(true) => {
                self.read_new_processes();
                Some(Update::Changed(self.watcher.topology().clone()))
            }
            Err(error) => {
                tracing::warn!("cannot look for new workers: {error}");
                Some(Update::Failed(error.to_string()))
            }
        }
    }

    /// Reads the files and ports of new processes, which then answer quickly.
    fn read_new_processes(&mut self) {
        let topology = self.watcher.topology();
        let running: BTreeSet<ProcessId> =
            topology.processes().map(|process| process.id).chain(topology.frontends.iter().copied()).collect();
        let new: Vec<&Process> =
            topology.processes().filter(|process| !self.read.contains(&process.id)).take(MAX_READ).collect();
        for process in &new {
            self.libraries.read_libraries_of(process.id.pid, process.inner_server);
        }
        for frontend in topology.frontends.iter().filter(|id| !self.read.contains(id)).take(MAX_READ) {
            self.libraries.read_libraries_of(frontend.pid, None);
        }
        let mut pids: BTreeSet<u32> =
            new.iter().filter(|process| process.answers_clients()).map(|process| process.id.pid).collect();
        self.read = running;
        let mut ports = self.ports.lock().unwrap_or_else(PoisonError::into_inner);
        ports.found.retain(|pid, _| self.read.iter().any(|id| id.pid == *pid));
        pids.extend(&ports.wanted);
        drop(ports);
        self.find_ports(pids);
    }

    fn find_ports(&self, pids: BTreeSet<u32>) {
        for pid in pids {
            let found = find_ports(pid);
            self.ports.lock().unwrap_or_else(PoisonError::into_inner).found.insert(pid, found);
        }
    }
}
