//! What the runs of all engines of a machine share: one probe with its ring, one discovery, and who receives the observations of a process.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use probe_user::discover::{Engine, ProcessId};
use probe_user::{Degraded, Observation, Probe, ProbeError, ProbeOptions};

use super::engine_search::{FoundEngine, unique_name};
use super::inbox::{Inbox, RunId};
use super::lookout::DiscoveryThread;
use super::python::PythonWatch;

/// A node, shared by its runs. All of them are polled by one thread.
#[derive(Clone)]
pub(super) struct NodeHandle(Arc<Mutex<Node>>);

impl NodeHandle {
    pub(super) fn new(node: Node) -> Self {
        Self(Arc::new(Mutex::new(node)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Node> {
        // A panic of one run's analysis ends only that run.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The shared part of all runs.
pub(super) struct Node {
    /// `None` until its programs could be loaded, which is possible only once.
    probe: Option<Probe>,
    probe_options: ProbeOptions,
    pub(super) lookout: DiscoveryThread,
    pub(super) python: Option<PythonWatch>,
    runs: BTreeMap<RunId, RunEntry>,
    /// Runs that receive the observations of a process. Those of an exited one stay, for what is reported about it later.
    receivers: HashMap<u32, Receivers>,
    /// Error that ended the probe.
    failure: Option<String>,
}

struct RunEntry {
    name: String,
    /// It waits for an engine of its name.
    is_waiting: bool,
    inbox: Inbox,
}

struct Receivers {
    /// The pid may be reused.
    process: ProcessId,
    runs: Vec<RunId>,
}

/// Numbers of observations that one read of the ring returned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReadCounts {
    pub(super) own: usize,
    /// Copied into the inboxes of other runs.
    pub(super) of_others: usize,
}

impl Node {
    pub(super) fn new(probe_options: ProbeOptions, lookout: DiscoveryThread, python: Option<PythonWatch>) -> Self {
        Self {
            probe: None,
            probe_options,
            lookout,
            python,
            runs: BTreeMap::new(),
            receivers: HashMap::new(),
            failure: None,
        }
    }

    /// Loads the programs of the probe, unless they are.
    pub(super) fn load_probe(&mut self) -> Result<(), ProbeError> {
        if self.probe.is_none() {
            self.probe = Some(Probe::attach(&[], self.probe_options)?);
        }
        Ok(())
    }

    /// The probe and the discovery, once the programs are loaded.
    pub(super) fn parts(&mut self) -> Option<(&mut Probe, &DiscoveryThread)> {
        Some((self.probe.as_mut()?, &self.lookout))
    }

    /// The probe, once its programs are loaded.
    pub(super) fn probe(&self) -> Option<&Probe> {
        self.probe.as_ref()
    }

    /// Adds a run of an engine with this name, which must be unique; an empty one stands for any engine.
    pub(super) fn add_run(&mut self, name: String) -> RunId {
        let run = self.runs.len();
        let inbox = Inbox::with_limit(self.probe_options.ring_bytes as usize);
        self.runs.insert(run, RunEntry { name, is_waiting: true, inbox });
        run
    }

    /// Whether more than one engine has a run.
    pub(super) fn has_several_runs(&self) -> bool {
        self.runs.len() > 1
    }

    pub(super) fn name_of(&self, run: RunId) -> &str {
        self.runs.get(&run).map_or("", |entry| &entry.name)
    }

    pub(super) fn set_waiting(&mut self, run: RunId, is_waiting: bool) {
        if let Some(entry) = self.runs.get_mut(&run) {
            entry.is_waiting = is_waiting;
        }
    }

    /// Takes a found engine for a waiting run: one of its name, or any if this is the only run.
    pub(super) fn take_engine(&mut self, run: RunId) -> Option<FoundEngine> {
        self.drop_watched_engines();
        let accepts_any = !self.has_several_runs();
        let entry = self.runs.get_mut(&run)?;
        let accepts = |found: &FoundEngine| accepts_any || found.name == entry.name || unique_name(found) == entry.name;
        let index = self.lookout.found.iter().position(accepts)?;
        let found = self.lookout.found.remove(index);
        if accepts_any {
            entry.name.clone_from(&found.name);
        }
        Some(found)
    }

    /// Gives an engine back that could not be attached to.
    pub(super) fn return_engine(&mut self, engine: FoundEngine) {
        self.lookout.found.push(engine);
    }

    /// Whether a found engine has this run's name.
    pub(super) fn has_engine_for(&self, run: RunId) -> bool {
        self.lookout.found.iter().any(|found| found.name == self.name_of(run))
    }

    /// Name for the run of a found engine that no run waits for.
    pub(super) fn new_run_name(&mut self) -> Option<String> {
        self.drop_watched_engines();
        self.lookout.found.iter().find_map(|found| self.name_for_new_run(found))
    }

    /// Name for a new run of this engine; `None` if a run waits for it.
    pub(super) fn name_for_new_run(&self, found: &FoundEngine) -> Option<String> {
        let run_named = |name: &str| self.runs.values().find(|entry| entry.name == name);
        match run_named(&found.name) {
            None => Some(found.name.clone()),
            Some(entry) if entry.is_waiting => None,
            // Another engine with this port, in another network namespace.
            Some(_) => Some(unique_name(found)).filter(|name| run_named(name).is_none()),
        }
    }

    /// Drops found engines of which a run watches a process.
    fn drop_watched_engines(&mut self) {
        let Self { lookout, receivers, .. } = self;
        lookout.found.retain(|found| {
            let mut processes = found.engine.processes.iter();
            !processes.any(|process| receivers.get(&process.id.pid).is_some_and(|known| known.process == process.id))
        });
    }

    /// Passes the observations of this process to the run, too.
    pub(super) fn add_receiver(&mut self, run: RunId, process: ProcessId) {
        let receivers = self.receivers.entry(process.pid).or_insert_with(|| Receivers { process, runs: Vec::new() });
        if receivers.process != process {
            *receivers = Receivers { process, runs: Vec::new() };
        }
        if !receivers.runs.contains(&run) {
            receivers.runs.push(run);
        }
    }

    /// Observes the writes of a frontend for this run. Returns whether they are observed.
    pub(super) fn observe_frontend(&mut self, run: RunId, frontend: ProcessId) -> Result<bool, ProbeError> {
        let is_observed = self.other_receiver(run, frontend).is_some();
        let Some(probe) = &mut self.probe else {
            return Ok(false);
        };
        if !is_observed && !probe.observe_writes(frontend.pid)? {
            return Ok(false);
        }
        self.add_receiver(run, frontend);
        Ok(true)
    }

    /// The other run that watches this process.
    pub(super) fn other_receiver(&self, run: RunId, process: ProcessId) -> Option<&str> {
        let receivers = self.receivers.get(&process.pid).filter(|known| known.process == process)?;
        let other = receivers.runs.iter().find(|receiver| **receiver != run)?;
        Some(self.name_of(*other))
    }

    /// Parts of the probe that are missing for this run.
    pub(super) fn missing_parts(&self, run: RunId) -> impl Iterator<Item = &Degraded> {
        let is_of_another = move |pid: u32| {
            self.receivers.get(&pid).is_some_and(|known| !known.runs.is_empty() && !known.runs.contains(&run))
        };
        let degraded = self.probe.iter().flat_map(Probe::degraded);
        degraded.filter(move |degraded| degraded.pid.is_none_or(|pid| !is_of_another(pid)))
    }

    /// Passes new observations of a run's processes to `emit`, oldest first, and copies those of others into their inboxes.
    pub(super) fn read_observations(
        &mut self,
        run: RunId,
        emit: &mut dyn FnMut(&Observation<'_>),
    ) -> Result<ReadCounts, String> {
        let mut counts = ReadCounts::default();
        let Self { probe, runs, receivers, failure, .. } = self;
        if let Some(entry) = runs.get_mut(&run) {
            counts.own += entry.inbox.drain(emit);
        }
        if let Some(failure) = failure {
            return Err(failure.clone());
        }
        let Some(probe) = probe else {
            return Ok(counts);
        };
        let is_only_run = runs.len() == 1;
        let polled = probe.poll(Duration::ZERO, |observation| {
            let mut deliver = |receiver: RunId, entry: &mut RunEntry| {
                if receiver == run {
                    counts.own += 1;
                    emit(&observation);
                } else {
                    counts.of_others += 1;
                    entry.inbox.push(&observation);
                }
            };
            match pid_of(&observation).filter(|_| !is_only_run) {
                None => runs.iter_mut().for_each(|(receiver, entry)| deliver(*receiver, entry)),
                Some(pid) => {
                    for receiver in receivers.get(&pid).iter().flat_map(|known| &known.runs) {
                        if let Some(entry) = runs.get_mut(receiver) {
                            deliver(*receiver, entry);
                        }
                    }
                }
            }
        });
        match polled {
            Ok(_) => Ok(counts),
            Err(error) => {
                let why = error.to_string();
                *failure = Some(why.clone());
                Err(why)
            }
        }
    }

    /// Ends the observation of a run's processes, and drops their observations that were not read.
    pub(super) fn release(&mut self, run: RunId) {
        // Those of other runs are kept. An error is returned to them again.
        let _ = self.read_observations(run, &mut |_| {});
        let mut released = BTreeSet::new();
        self.receivers.retain(|pid, receivers| {
            receivers.runs.retain(|receiver| *receiver != run);
            let is_used = !receivers.runs.is_empty();
            if !is_used {
                released.insert(*pid);
            }
            is_used
        });
        if let Some(probe) = &mut self.probe {
            probe.release_targets(&released);
        }
        if let Some(python) = &mut self.python {
            python.remove_run(run);
        }
        self.lookout.look_up_ports(run, std::iter::empty());
    }

    /// Registers a run as the receiver of an engine's observations.
    pub(super) fn receive_from(&mut self, run: RunId, engine: &Engine) {
        for process in &engine.processes {
            self.add_receiver(run, process.id);
        }
    }
}

/// The process that an observation is of; `None` for lost ones, which may be of any.
fn pid_of(observation: &Observation<'_>) -> Option<u32> {
    match observation {
        Observation::Sent(message) | Observation::Received(message) => Some(message.call.socket.pid),
        Observation::Unsent(call) | Observation::Processed(call) | Observation::Returned(call) => Some(call.socket.pid),
        Observation::Egress { pid, .. } | Observation::Exited { pid } => Some(*pid),
        Observation::Lost { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::engine_search::tests::titled;
    use super::*;

    fn found(name: &str, pid: u32) -> FoundEngine {
        let (name, engine) = (name.to_owned(), titled(pid, Vec::new()));
        FoundEngine { name, engine, ports: BTreeMap::new(), tokenizer: None }
    }

    #[test]
    fn a_restarted_engine_continues_its_run_and_another_one_gets_its_own() {
        let lookout = DiscoveryThread::start(None, &[], None).expect("a thread");
        let mut node = Node::new(ProbeOptions::default(), lookout, None);
        let first = node.add_run("sglang:30000".to_owned());
        let second = node.add_run("vllm:8000".to_owned());
        node.lookout.found = vec![found("sglang:30000", 1), found("vllm:8000", 2)];
        assert_eq!(node.new_run_name(), None, "runs wait for both");
        for (run, pid) in [(first, 1), (second, 2)] {
            let engine = node.take_engine(run).expect("its engine").engine;
            assert_eq!(engine.processes[0].id.pid, pid);
            node.receive_from(run, &engine);
            node.set_waiting(run, false);
        }

        // The same port in another network namespace, while the first engine runs.
        node.lookout.found = vec![found("sglang:30000", 3), found("sglang:30000", 1)];
        let name = node.new_run_name().expect("a further engine");
        assert_eq!(name, "sglang:30000 (pid 3)");
        let third = node.add_run(name);
        assert_eq!(node.take_engine(third).map(|found| found.engine.processes[0].id.pid), Some(3));
        assert!(node.lookout.found.is_empty(), "the first is watched");

        node.release(second);
        node.set_waiting(second, true);
        node.lookout.found = vec![found("vllm:8000", 4)];
        assert!(node.has_engine_for(second) && !node.has_engine_for(first));
        assert_eq!(node.new_run_name(), None);
        assert_eq!(node.take_engine(second).map(|found| found.engine.processes[0].id.pid), Some(4));
    }

    #[test]
    fn the_only_run_takes_any_engine() {
        let lookout = DiscoveryThread::start(None, &[], None).expect("a thread");
        let mut node = Node::new(ProbeOptions::default(), lookout, None);
        let run = node.add_run(String::new());
        for name in ["sglang:30000", "sglang:30001"] {
            node.lookout.found = vec![found(name, 1)];
            assert!(node.take_engine(run).is_some());
            assert_eq!(node.name_of(run), name);
        }
    }
}
