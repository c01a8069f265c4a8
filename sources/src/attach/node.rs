//! Shared by the runs of all engines of a machine: one probe with its ring, one discovery, and the receivers of each process's
//! observations.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use probe_user::discover::{Engine, ProcessId};
use probe_user::{Degraded, Observation, Probe, ProbeError, ProbeOptions};

use super::delivery::{Delivery, LOSS_WINDOW, ReadCounts, Receivers, RecentTraffic, RunEntry, time_of_observation};
use super::discovery_thread::DiscoveryThread;
use super::engine_names::{are_same_name, first_unused_name};
use super::engine_search::EngineLimit;
use super::found_engine::{EngineTraits, FoundEngine};
use super::inbox::{Inbox, RunId};
use super::python::PythonWatch;

/// Time in which the runs of all engines together read observations, before ticks and requests get their turn.
const READ_ROUND: Duration = Duration::from_millis(100);
/// Minimum time in which a run reads.
const MIN_READ_TIME: Duration = Duration::from_millis(5);
/// Maximum time to copy the observations of other runs out of the ring at the end of a run.
const MAX_COPY_TIME: Duration = Duration::from_millis(500);

/// A node, shared by its runs. All of them are polled by one thread.
#[derive(Clone)]
pub(super) struct NodeHandle {
    node: Arc<Mutex<Node>>,
}

impl NodeHandle {
    pub(super) fn new(node: Node) -> Self {
        Self { node: Arc::new(Mutex::new(node)) }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Node> {
        // A panic of one run's analysis ends only that run.
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The shared part of all runs.
pub(super) struct Node {
    /// `None` until its programs could be loaded, which is possible only once.
    probe: Option<Probe>,
    probe_options: ProbeOptions,
    pub(super) discovery: DiscoveryThread,
    pub(super) python: Option<PythonWatch>,
    runs: BTreeMap<RunId, RunEntry>,
    /// Runs that receive the observations of a process. Those of an exited one stay, because reports about it follow.
    receivers: HashMap<u32, Receivers>,
    /// Error that ended the probe.
    failure: Option<String>,
    max_runs: EngineLimit,
    loss_window_began: Instant,
}

impl Node {
    /// A node, which is what all runs of this machine share. It has no runs, and its probe is not loaded yet.
    pub(super) fn new(
        probe_options: ProbeOptions,
        discovery: DiscoveryThread,
        python: Option<PythonWatch>,
        max_runs: EngineLimit,
    ) -> Self {
        Self {
            probe: None,
            probe_options,
            discovery,
            python,
            runs: BTreeMap::new(),
            receivers: HashMap::new(),
            failure: None,
            max_runs,
            loss_window_began: Instant::now(),
        }
    }

    /// Loads the programs of the probe, unless they are loaded already.
    pub(super) fn load_probe(&mut self) -> Result<(), ProbeError> {
        if self.probe.is_none() {
            let no_targets = [];
            self.probe = Some(Probe::attach(&no_targets, self.probe_options)?);
        }
        Ok(())
    }

    /// The probe and the discovery, once the programs are loaded.
    pub(super) fn probe_and_discovery(&mut self) -> Option<(&mut Probe, &DiscoveryThread)> {
        Some((self.probe.as_mut()?, &self.discovery))
    }

    /// The probe, once its programs are loaded.
    pub(super) fn probe(&self) -> Option<&Probe> {
        self.probe.as_ref()
    }

    /// Adds a run, the observation of one engine across its restarts, and returns its id. Without an engine, the run waits for any.
    pub(super) fn add_run(&mut self, engine: Option<&EngineTraits>) -> RunId {
        // Runs are never removed, so their number is the next index.
        let run = self.runs.len();
        let inbox = Inbox::with_limit(self.probe_options.ring_bytes as usize);
        let name = engine.map_or_else(String::new, |engine| self.unused_run_name_for(engine));
        self.runs.insert(
            run,
            RunEntry { name, engine: engine.cloned(), is_waiting: true, inbox, traffic: RecentTraffic::default() },
        );
        run
    }

    /// Name for a run of the engine. Adds a number if another run has the same name, which happens with several network namespaces, or with
    /// several engines of one model.
    fn unused_run_name_for(&self, engine: &EngineTraits) -> String {
        let is_used = |name: &str| self.runs.values().any(|entry| are_same_name(&entry.name, name));
        // The name by which the user has selected it, if it was.
        if !is_used(&engine.unique_name) {
            return engine.unique_name.clone();
        }
        first_unused_name(&engine.name, is_used)
    }

    /// Whether more than one engine has a run.
    pub(super) fn has_several_runs(&self) -> bool {
        self.runs.len() > 1
    }

    /// Whether no further engine can have a run. Those of ended engines count, because the report contains them.
    pub(super) fn is_full(&self) -> bool {
        self.runs.len() >= usize::from(self.max_runs.0)
    }

    /// States which engines are not watched because of the limit of engines. `None` if there are none.
    pub(super) fn describe_unwatched_engines(&self) -> Option<String> {
        const SHOWN: usize = 8;
        if !self.is_full() {
            return None;
        }
        let unwatched: Vec<&str> = self.engines_without_run().map(|engine| engine.unique_name.as_str()).collect();
        if unwatched.is_empty() {
            return None;
        }
        let shown = unwatched[..unwatched.len().min(SHOWN)].join(", ");
        let more = if unwatched.len() > SHOWN { ", ..." } else { "" };
        Some(format!(
            "engine: limit of {} reached (--max-engines), {} not watched: {shown}{more}",
            self.max_runs.0,
            unwatched.len()
        ))
    }

    pub(super) fn name_of(&self, run: RunId) -> &str {
        self.runs.get(&run).map_or("", |entry| &entry.name)
    }

    /// Name that the engine of this run shares with an engine found before, which is in another network namespace or a worker without a
    /// port. The run then has a longer name than its engine. `None` if both have the same name.
    pub(super) fn name_shared_with_other_engine(&self, run: RunId) -> Option<&str> {
        let entry = self.runs.get(&run)?;
        let name = entry.engine.as_ref()?.name.as_str();
        (entry.name != name).then_some(name)
    }

    /// Marks a run as waiting for an engine, or as watching one.
    pub(super) fn set_waiting(&mut self, run: RunId, is_waiting: bool) {
        if let Some(entry) = self.runs.get_mut(&run) {
            entry.is_waiting = is_waiting;
        }
    }

    /// Takes the next engine of a waiting run from those that discovery has found. A run is the observation of one engine: after a restart,
    /// the run continues with the new engine. `None` if no found engine is the run's.
    pub(super) fn take_next_engine_of_run(&mut self, run: RunId) -> Option<FoundEngine> {
        self.drop_found_engines_that_runs_watch();
        let index = self.discovery.found.iter().position(|found| self.is_next_engine_of(run, found))?;
        let found = self.discovery.found.remove(index);
        // Names tell several runs apart, so they stay. A single run may take the name of its new engine.
        let is_only_run = !self.has_several_runs();
        let entry = self.runs.get_mut(&run)?;
        if is_only_run {
            entry.name.clone_from(&found.traits.unique_name);
        }
        entry.engine = Some(found.traits.clone());
        Some(found)
    }

    /// Whether a waiting run continues with this engine. One that shares a process with a watched engine must wait until that run ends.
    fn is_next_engine_of(&self, run: RunId, found: &FoundEngine) -> bool {
        self.find_shared_process(found).is_none() && self.run_waiting_for(&found.traits) == Some(run)
    }

    /// Puts an engine that could not be attached to back among the found ones.
    pub(super) fn return_engine(&mut self, engine: FoundEngine) {
        self.discovery.found.push(engine);
    }

    /// Whether the run, whose engine has ended, continues with a found one.
    pub(super) fn has_next_engine_for(&mut self, run: RunId) -> bool {
        self.drop_found_engines_that_runs_watch();
        let Some(ended) = self.runs.get(&run).and_then(|entry| entry.engine.as_ref()) else {
            return false;
        };
        self.unwatched_engines().any(|engine| ended.has_same_address(engine) || ended.has_same_model(engine))
    }

    /// The run whose engine has ended, or was never found, and that continues with this engine; `None` if none does. The only run does so
    /// unless its engine was certainly another one. Of several runs, it is one whose engine had the same address, or the only one with the
    /// same model.
    fn run_waiting_for(&self, engine: &EngineTraits) -> Option<RunId> {
        if self.has_several_runs() {
            return self.waiting_run_of_same_engine(engine);
        }
        let (run, entry) = self.runs.first_key_value()?;
        let may_continue =
            entry.engine.as_ref().is_none_or(|last_engine| !last_engine.is_certainly_other_engine_than(engine));
        (entry.is_waiting && may_continue).then_some(*run)
    }

    /// The waiting run whose last engine had the same address, or the only one whose last engine had the same model. `None` if no run
    /// certainly waits for this engine.
    fn waiting_run_of_same_engine(&self, engine: &EngineTraits) -> Option<RunId> {
        let mut with_same_model = Vec::new();
        for (run, entry) in self.runs.iter().filter(|(_, entry)| entry.is_waiting) {
            let Some(last_engine) = &entry.engine else { continue };
            if last_engine.has_same_address(engine) {
                return Some(*run);
            }
            if last_engine.has_same_model(engine) {
                with_same_model.push(*run);
            }
        }
        match with_same_model[..] {
            [only] => Some(only),
            // Of several, the right one is not known.
            _ => None,
        }
    }

    /// The next found engine that no run waits for; `None` if there is none. Forgets found engines that a run watches.
    pub(super) fn next_new_engine(&mut self) -> Option<EngineTraits> {
        self.drop_found_engines_that_runs_watch();
        self.engines_without_run().next().cloned()
    }

    /// Found engines that no run waits for.
    fn engines_without_run(&self) -> impl Iterator<Item = &EngineTraits> {
        self.unwatched_engines().filter(|engine| self.run_waiting_for(engine).is_none())
    }

    /// Found engines of which no run watches a process.
    fn unwatched_engines(&self) -> impl Iterator<Item = &EngineTraits> {
        let unwatched = self.discovery.found.iter().filter(|found| self.find_shared_process(found).is_none());
        unwatched.map(|found| &found.traits)
    }

    /// Drops found engines that a run watches. One that only shares a process with the engine of a run is kept until that run ends.
    fn drop_found_engines_that_runs_watch(&mut self) {
        // Moved out meanwhile, because the test borrows the whole node.
        let mut found_engines = std::mem::take(&mut self.discovery.found);
        found_engines.retain(|found| !self.is_watched_by_a_run(found));
        self.discovery.found = found_engines;
    }

    /// Whether a run watches this engine: it watches one of its processes, and the engine is not certainly another one. An engine whose
    /// main process is watched is never another one.
    fn is_watched_by_a_run(&self, found: &FoundEngine) -> bool {
        let Some(sharing) = self.find_shared_process(found) else { return false };
        let main_process = found.engine.main_process();
        let is_main_watched = main_process.is_some_and(|main| self.runs_watching(main.id).next().is_some());
        is_main_watched || !self.is_of_another_engine(sharing.run, &found.traits)
    }

    /// The first process of a found engine that a run watches, with that run. `None` if no run watches any.
    fn find_shared_process(&self, found: &FoundEngine) -> Option<SharedProcess> {
        found.engine.processes.iter().find_map(|process| {
            let run = self.runs_watching(process.id).next()?;
            Some(SharedProcess { pid: process.id.pid, run })
        })
    }

    /// Runs that watch this process.
    fn runs_watching(&self, process: ProcessId) -> impl Iterator<Item = RunId> {
        let receivers = self.receivers.get(&process.pid).filter(|known| known.process == process);
        receivers.into_iter().flat_map(|receivers| receivers.runs.iter().copied())
    }

    /// Whether the engine of a run is certainly not this one.
    fn is_of_another_engine(&self, run: RunId, engine: &EngineTraits) -> bool {
        let own = self.runs.get(&run).and_then(|entry| entry.engine.as_ref());
        own.is_some_and(|own| own.is_certainly_other_engine_than(engine))
    }

    /// Names of found engines that are not watched because one of their processes, whose pid is given, belongs to the engine of this run.
    pub(super) fn names_and_shared_pids_of_unwatched_engines(&self, run: RunId) -> impl Iterator<Item = (&str, u32)> {
        self.discovery.found.iter().filter_map(move |found| {
            let sharing = self.find_shared_process(found)?;
            // Otherwise it is the engine of the run itself.
            let is_other_engine = self.is_of_another_engine(run, &found.traits);
            if sharing.run == run && is_other_engine { Some((found.traits.name.as_str(), sharing.pid)) } else { None }
        })
    }

    /// Passes the observations of this process to the run, too.
    pub(super) fn add_receiver_of_process(&mut self, run: RunId, process: ProcessId) {
        let receivers = self.receivers.entry(process.pid).or_insert_with(|| Receivers { process, runs: Vec::new() });
        // A pid may be reused. The runs of the earlier process do not receive from this one.
        if receivers.process != process {
            *receivers = Receivers { process, runs: Vec::new() };
        }
        if !receivers.runs.contains(&run) {
            receivers.runs.push(run);
        }
    }

    /// Observes the writes of a frontend for this run. Returns whether they are observed. They are not if the probe is not loaded, or runs
    /// in a PID namespace of its own.
    pub(super) fn observe_frontend(&mut self, run: RunId, frontend: ProcessId) -> Result<bool, ProbeError> {
        let is_observed_for_other_run = self.name_of_other_run_watching(run, frontend).is_some();
        let Some(probe) = &mut self.probe else { return Ok(false) };
        let is_observed = is_observed_for_other_run || probe.observe_writes(frontend.pid)?;
        if !is_observed {
            return Ok(false);
        }
        self.add_receiver_of_process(run, frontend);
        Ok(true)
    }

    /// Name of another run that watches this process; `None` if no other run does.
    pub(super) fn name_of_other_run_watching(&self, run: RunId, process: ProcessId) -> Option<&str> {
        let receivers = self.receivers.get(&process.pid).filter(|known| known.process == process)?;
        let other = receivers.runs.iter().find(|receiver| **receiver != run)?;
        Some(self.name_of(*other))
    }

    /// Parts of the probe that are missing for this run, because the kernel or a process refused them.
    pub(super) fn missing_parts(&self, run: RunId) -> impl Iterator<Item = &Degraded> {
        let missing_parts = self.probe.iter().flat_map(Probe::degraded);
        missing_parts.filter(move |missing| self.concerns_run(missing, run))
    }

    /// Whether a missing part of the probe concerns a run: it is missing everywhere, or in a process that the run watches.
    fn concerns_run(&self, missing: &Degraded, run: RunId) -> bool {
        // Without a pid, it is missing everywhere.
        let Some(pid) = missing.pid else { return true };
        let Some(receivers) = self.receivers.get(&pid) else { return true };
        // What is missing in a process that is of no run any more is reported by each run.
        receivers.runs.is_empty() || receivers.runs.contains(&run)
    }

    /// Passes new observations of a run's processes to `emit`, oldest first. Copies the observations of other runs into their inboxes.
    /// Reads for a limited time, so that a run with more observations than it can process delays no other.
    pub(super) fn read_observations(
        &mut self,
        run: RunId,
        emit: &mut dyn FnMut(&Observation<'_>),
    ) -> Result<ReadCounts, String> {
        // The runs share a round equally.
        let limit = (READ_ROUND / self.runs.len().max(1) as u32).max(MIN_READ_TIME);
        let deadline = Instant::now() + limit;
        self.begin_loss_window_if_due();
        let counts = self.drain_inbox(run, deadline, emit);
        // Observations in the ring are newer than those in the inbox, so they must wait.
        if counts.has_unread { Ok(counts) } else { self.read_ring_and_add_counts(run, limit, counts, emit) }
    }

    /// Begins the next window in which the traffic of the runs is counted, once the last one is over.
    fn begin_loss_window_if_due(&mut self) {
        if self.loss_window_began.elapsed() >= LOSS_WINDOW {
            self.loss_window_began = Instant::now();
            self.runs.values_mut().for_each(|entry| entry.traffic.begin_window());
        }
    }

    /// Passes the observations in a run's inbox to `emit`, until the deadline. Returns their counts, for a run without an inbox all zero.
    fn drain_inbox(&mut self, run: RunId, deadline: Instant, emit: &mut dyn FnMut(&Observation<'_>)) -> ReadCounts {
        let Some(entry) = self.runs.get_mut(&run) else { return ReadCounts::default() };
        let mut last_at = None;
        let own = entry.inbox.drain_until_and_count(deadline, &mut |observation| {
            // Exits and losses have no time.
            last_at = time_of_observation(observation).or(last_at);
            emit(observation);
        });
        ReadCounts { own, last_at, has_unread: !entry.inbox.is_empty(), ..ReadCounts::default() }
    }

    /// Reads the probe's ring buffer for `time_limit`, and adds the numbers of observations to `counts`. Passes the observations of this
    /// `run` to `emit`, and copies those of other runs into their inboxes. An error says why the probe has stopped. Each later call returns
    /// the same error.
    fn read_ring_and_add_counts(
        &mut self,
        run: RunId,
        time_limit: Duration,
        mut counts: ReadCounts,
        emit: &mut dyn FnMut(&Observation<'_>),
    ) -> Result<ReadCounts, String> {
        let Self { probe, runs, receivers, failure, .. } = self;
        if let Some(failure) = failure {
            return Err(failure.clone());
        }
        let Some(probe) = probe else { return Ok(counts) };
        let mut delivery = Delivery { run, runs, receivers, counts: &mut counts, emit };
        match probe.poll_without_waiting(time_limit, |observation| delivery.deliver_observation(&observation)) {
            Ok(_) => {
                counts.has_unread = probe.has_unread();
                Ok(counts)
            }
            Err(error) => {
                let why = error.to_string();
                *failure = Some(why.clone());
                Err(why)
            }
        }
    }

    /// Copies new observations into the inboxes of their runs, so that the ring does not fill up while none of them reads it.
    pub(super) fn keep_observations(&mut self) {
        // No run has this id, so the observations go to inboxes. An error is returned again to the run that reads next.
        let _ = self.read_observations(RunId::MAX, &mut |_| {});
    }

    /// Ends the observation of a run's engine: of the processes that no other run watches. Drops the run's observations that were not read.
    pub(super) fn release_run(&mut self, run: RunId) {
        self.drop_unread_observations_of(run);
        let without_receiver = self.remove_run_and_find_pids_without_receiver(run);
        if let Some(probe) = &mut self.probe {
            probe.release_targets(&without_receiver);
        }
        if let Some(python) = &mut self.python {
            python.remove_run(run);
        }
        // The run wants no ports any more.
        self.discovery.look_up_ports(run, std::iter::empty());
    }

    /// Drops the observations of a run that were not read. Those of other runs are copied into their inboxes, for a limited time.
    fn drop_unread_observations_of(&mut self, run: RunId) {
        let deadline = Instant::now() + MAX_COPY_TIME;
        // An error ends the loop. The node keeps it for the other runs.
        while self.read_observations(run, &mut |_| {}).is_ok_and(|read| read.has_unread) {
            if Instant::now() >= deadline {
                break;
            }
        }
    }

    /// Stops passing observations to a run. Returns the pids of the processes from which no run receives any more.
    fn remove_run_and_find_pids_without_receiver(&mut self, run: RunId) -> BTreeSet<u32> {
        let mut without_receiver = BTreeSet::new();
        for (pid, receivers) in &mut self.receivers {
            receivers.runs.retain(|receiver| *receiver != run);
            if receivers.runs.is_empty() {
                without_receiver.insert(*pid);
            }
        }
        self.receivers.retain(|pid, _| !without_receiver.contains(pid));
        without_receiver
    }

    /// Registers a run as the receiver of an engine's observations.
    pub(super) fn add_receiver_for_engine(&mut self, run: RunId, engine: &Engine) {
        for process in &engine.processes {
            self.add_receiver_of_process(run, process.id);
        }
    }
}

/// A process of a found engine that a run watches.
struct SharedProcess {
    pid: u32,
    run: RunId,
}

#[cfg(test)]
mod tests;
