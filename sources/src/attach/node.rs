//! Shared by the runs of all engines of a machine: one probe with its ring, one discovery, and the receivers of each process's observations.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use probe_user::discover::{Engine, ProcessId};
use probe_user::{Degraded, Observation, Probe, ProbeError, ProbeOptions};

use super::delivery::{Delivery, LOSS_WINDOW, ReadCounts, Receivers, RecentTraffic, RunEntry, time_of};
use super::discovery_thread::DiscoveryThread;
use super::engine_search::{EngineLimit, EngineTraits, FoundEngine};
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

    /// Loads the programs of the probe, unless they are.
    pub(super) fn load_probe(&mut self) -> Result<(), ProbeError> {
        if self.probe.is_none() {
            self.probe = Some(Probe::attach(&[], self.probe_options)?);
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

    /// Adds a run of this engine; without one, of any.
    pub(super) fn add_run(&mut self, engine: Option<&EngineTraits>) -> RunId {
        let run = self.runs.len();
        let inbox = Inbox::with_limit(self.probe_options.ring_bytes as usize);
        let name = engine.map_or_else(String::new, |engine| self.unused_name(engine));
        self.runs.insert(
            run,
            RunEntry { name, engine: engine.cloned(), is_waiting: true, inbox, traffic: RecentTraffic::default() },
        );
        run
    }

    /// Name of the engine, with a number if another one has it: in another network namespace, or of the same model.
    fn unused_name(&self, engine: &EngineTraits) -> String {
        let mut name = engine.name.clone();
        let mut number = 2;
        while self.runs.values().any(|entry| letters_of(&entry.name).eq(letters_of(&name))) {
            name = format!("{}-{number}", engine.name);
            number += 1;
        }
        name
    }

    /// Whether more than one engine has a run.
    pub(super) fn has_several_runs(&self) -> bool {
        self.runs.len() > 1
    }

    /// Whether no further engine can have a run. Those of ended engines count, because the report contains them.
    pub(super) fn is_full(&self) -> bool {
        self.runs.len() >= usize::from(self.max_runs.0)
    }

    /// States which engines are not watched because of the limit, if it is reached.
    pub(super) fn limit_note(&self) -> Option<String> {
        const SHOWN: usize = 8;
        if !self.is_full() {
            return None;
        }
        let unwatched: Vec<&str> = self.engines_without_run().map(|engine| engine.name.as_str()).collect();
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

    /// Name of another engine that the engine of this run shares, in another network namespace or as a worker without a port.
    pub(super) fn shared_name(&self, run: RunId) -> Option<&str> {
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

    /// Takes the found engine that a waiting run continues with.
    pub(super) fn take_engine(&mut self, run: RunId) -> Option<FoundEngine> {
        self.drop_watched_engines();
        let index = self.discovery.found.iter().position(|found| self.run_waiting_for(&found.traits) == Some(run))?;
        let found = self.discovery.found.remove(index);
        let is_only_run = !self.has_several_runs();
        let entry = self.runs.get_mut(&run)?;
        if is_only_run {
            entry.name.clone_from(&found.traits.name);
        }
        entry.engine = Some(found.traits.clone());
        Some(found)
    }

    /// Gives an engine back that could not be attached to.
    pub(super) fn return_engine(&mut self, engine: FoundEngine) {
        self.discovery.found.push(engine);
    }

    /// Whether the run, whose engine has ended, continues with a found one.
    pub(super) fn has_engine_for(&mut self, run: RunId) -> bool {
        self.drop_watched_engines();
        let Some(ended) = self.runs.get(&run).and_then(|entry| entry.engine.as_ref()) else {
            return false;
        };
        let mut found = self.discovery.found.iter().map(|found| &found.traits);
        found.any(|engine| ended.has_same_address(engine) || ended.has_same_model(engine))
    }

    /// The waiting run that continues with this engine: the only run, unless its engine was another one; otherwise one whose engine had the
    /// same address, or the only one with the same model.
    fn run_waiting_for(&self, engine: &EngineTraits) -> Option<RunId> {
        if self.has_several_runs() {
            return self.waiting_run_of_same_engine(engine);
        }
        let (run, entry) = self.runs.first_key_value()?;
        let may_continue = entry.engine.as_ref().is_none_or(|last_engine| !last_engine.is_another_than(engine));
        (entry.is_waiting && may_continue).then_some(*run)
    }

    /// The waiting run whose last engine had the same address, or the only one whose last engine had the same model.
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

    /// The next found engine that no run waits for.
    pub(super) fn next_new_engine(&mut self) -> Option<EngineTraits> {
        self.drop_watched_engines();
        self.engines_without_run().next().cloned()
    }

    /// Found engines that no run waits for.
    fn engines_without_run(&self) -> impl Iterator<Item = &EngineTraits> {
        let found = self.discovery.found.iter().map(|found| &found.traits);
        found.filter(|engine| self.run_waiting_for(engine).is_none())
    }

    /// Drops found engines of which a run watches a process.
    fn drop_watched_engines(&mut self) {
        let Self { discovery, receivers, .. } = self;
        discovery.found.retain(|found| {
            let mut processes = found.engine.processes.iter();
            !processes.any(|process| receivers.get(&process.id.pid).is_some_and(|known| known.process == process.id))
        });
    }

    /// Passes the observations of this process to the run, too.
    pub(super) fn add_receiver(&mut self, run: RunId, process: ProcessId) {
        let receivers = self.receivers.entry(process.pid).or_insert_with(|| Receivers { process, runs: Vec::new() });
        // An earlier process had this pid.
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
        let missing = self.probe.iter().flat_map(Probe::degraded);
        missing.filter(move |missing| {
            let Some(receivers) = missing.pid.and_then(|pid| self.receivers.get(&pid)) else {
                // Missing everywhere.
                return true;
            };
            let is_of_no_run = receivers.runs.is_empty();
            is_of_no_run || receivers.runs.contains(&run)
        })
    }

    /// Passes new observations of a run's processes to `emit`, oldest first, and copies those of others into their inboxes. Reads for a
    /// limited time, so that a run whose observations take longer than they arrive delays no other.
    pub(super) fn read_observations(
        &mut self,
        run: RunId,
        emit: &mut dyn FnMut(&Observation<'_>),
    ) -> Result<ReadCounts, String> {
        let mut counts = ReadCounts::default();
        let limit = (READ_ROUND / self.runs.len().max(1) as u32).max(MIN_READ_TIME);
        let deadline = Instant::now() + limit;
        if self.loss_window_began.elapsed() >= LOSS_WINDOW {
            self.loss_window_began = Instant::now();
            self.runs.values_mut().for_each(|entry| entry.traffic.begin_window());
        }
        let Self { probe, runs, receivers, failure, .. } = self;
        if let Some(entry) = runs.get_mut(&run) {
            counts.own += entry.inbox.drain_until(deadline, &mut |observation| {
                counts.last_at = time_of(observation).or(counts.last_at);
                emit(observation);
            });
            // Those of the ring are newer.
            if !entry.inbox.is_empty() {
                counts.has_unread = true;
                return Ok(counts);
            }
        }
        if let Some(failure) = failure {
            return Err(failure.clone());
        }
        let Some(probe) = probe else {
            return Ok(counts);
        };
        let mut delivery = Delivery { run, runs, receivers, counts: &mut counts, emit };
        match probe.poll_for(limit, |observation| delivery.deliver(&observation)) {
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
        // An error is returned again to the run that reads next.
        let _ = self.read_observations(RunId::MAX, &mut |_| {});
    }

    /// Ends the observation of a run's processes, and drops their observations that were not read.
    pub(super) fn release_run(&mut self, run: RunId) {
        // Copies the observations of other runs into their inboxes and drops those of this one. An error is returned to the others again.
        let deadline = Instant::now() + MAX_COPY_TIME;
        while self.read_observations(run, &mut |_| {}).is_ok_and(|read| read.has_unread) {
            if Instant::now() >= deadline {
                break;
            }
        }
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
        self.discovery.look_up_ports(run, std::iter::empty());
    }

    /// Registers a run as the receiver of an engine's observations.
    pub(super) fn receive_from(&mut self, run: RunId, engine: &Engine) {
        for process in &engine.processes {
            self.add_receiver(run, process.id);
        }
    }
}

/// Letters, digits and dots of a name. Recordings are named by them, so names that differ otherwise would share a file.
fn letters_of(name: &str) -> impl Iterator<Item = char> {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' })
}

#[cfg(test)]
mod tests {
    use probe_user::Loss;

    use super::super::engine_search::tests::titled;
    use super::*;

    fn node(max_runs: EngineLimit) -> Node {
        let discovery = DiscoveryThread::start(None, &[], None).expect("a thread");
        Node::new(ProbeOptions::default(), discovery, None, max_runs)
    }

    fn found(name: &str, pid: u32) -> FoundEngine {
        found_in(1, name, "", pid)
    }

    /// An engine in this network namespace, with this model.
    fn found_in(network_namespace: u64, name: &str, model: &str, pid: u32) -> FoundEngine {
        let traits = EngineTraits::for_test(name, Some(model).filter(|model| !model.is_empty()), network_namespace);
        FoundEngine { traits, engine: titled(pid, Vec::new()), ports: BTreeMap::new(), tokenizer: None }
    }

    /// Adds a run of the engine, which it watches.
    fn watch(node: &mut Node, found: &FoundEngine) -> RunId {
        let run = node.add_run(Some(&found.traits));
        node.receive_from(run, &found.engine);
        node.set_waiting(run, false);
        run
    }

    fn end(node: &mut Node, run: RunId) {
        node.release_run(run);
        node.set_waiting(run, true);
    }

    fn taken_pid(node: &mut Node, run: RunId) -> Option<u32> {
        node.take_engine(run).map(|found| found.engine.processes[0].id.pid)
    }

    fn next_name(node: &mut Node) -> Option<String> {
        node.next_new_engine().map(|engine| engine.name)
    }

    #[test]
    fn a_restarted_engine_continues_its_run_and_another_one_gets_its_own() {
        let mut node = node(EngineLimit::default());
        let first = watch(&mut node, &found("sglang:30000", 1));
        let second = watch(&mut node, &found("vllm:8000", 2));

        // The same port in another network namespace, while the first engine runs.
        node.discovery.found = vec![found_in(2, "sglang:30000", "", 3), found("sglang:30000", 1)];
        let engine = node.next_new_engine().expect("a further engine");
        let third = node.add_run(Some(&engine));
        assert_eq!(node.name_of(third), "sglang:30000-2");
        assert_eq!((node.shared_name(third), node.shared_name(first)), (Some("sglang:30000"), None));
        assert_eq!(taken_pid(&mut node, third), Some(3));
        assert!(node.discovery.found.is_empty(), "the first is watched");

        end(&mut node, second);
        node.discovery.found = vec![found("vllm:8000", 4)];
        assert!(node.has_engine_for(second) && !node.has_engine_for(first));
        assert_eq!(next_name(&mut node), None);
        assert_eq!(taken_pid(&mut node, second), Some(4));
    }

    #[test]
    fn engines_with_equal_names_have_runs_of_different_names_from_the_start() {
        let mut node = node(EngineLimit::default());
        let runs = [1, 2, 3].map(|pid| watch(&mut node, &found_in(u64::from(pid), "sglang:30000", "", pid)));
        let names = runs.map(|run| node.name_of(run).to_owned());
        assert_eq!(names, ["sglang:30000", "sglang:30000-2", "sglang:30000-3"]);
        let [first, second] = ["sglang:qwen_2", "sglang:qwen-2"].map(|name| watch(&mut node, &found(name, 4)));
        assert_eq!([node.name_of(first), node.name_of(second)], ["sglang:qwen_2", "sglang:qwen-2-2"], "one file name");
    }

    fn lost(count: u64) -> String {
        format!("{:?}", Observation::Lost { cause: Loss::RingFull, count })
    }

    #[test]
    fn a_full_ring_is_counted_once_for_all_engines() {
        let mut node = node(EngineLimit::default());
        let runs = [1, 2, 3].map(|pid| watch(&mut node, &found(&format!("sglang:3000{pid}"), pid)));
        let waiting = node.add_run(None);
        let mut counts = ReadCounts::default();
        let Node { runs: entries, receivers, .. } = &mut node;
        let mut own = Vec::new();
        let emit: &mut dyn FnMut(&Observation<'_>) = &mut |observation| own.push(format!("{observation:?}"));
        let mut delivery = Delivery { run: runs[0], runs: entries, receivers, counts: &mut counts, emit };
        for pid in [2, 1, 2, 2] {
            delivery.deliver(&Observation::Exited { pid });
        }
        delivery.deliver(&Observation::Lost { cause: Loss::RingFull, count: 100 });
        assert_eq!(own[1..], [lost(25)]);
        let last_of = [runs[1], runs[2], waiting].map(|run| {
            let mut last = String::new();
            let deadline = Instant::now() + Duration::from_mins(1);
            let entry = node.runs.get_mut(&run).expect("a run");
            entry.inbox.drain_until(deadline, &mut |observation| last = format!("{observation:?}"));
            last
        });
        assert_eq!(last_of, [lost(75), lost(0), String::new()]);
    }

    #[test]
    fn a_process_of_two_engines_is_known_as_one_of_the_first() {
        let mut node = node(EngineLimit::default());
        let first = watch(&mut node, &found("sglang:30000", 1));
        let second = watch(&mut node, &found("sglang:30001", 2));
        let shared = titled(1, Vec::new()).processes[0].id;
        assert_eq!(node.other_receiver(second, shared), Some("sglang:30000"));
        assert_eq!(node.other_receiver(first, shared), None);
        // The pid of another process, later.
        assert_eq!(node.other_receiver(second, ProcessId { start_time: 9, ..shared }), None);
    }

    #[test]
    fn a_new_container_continues_the_run_of_its_model_only() {
        let mut node = node(EngineLimit::default());
        let first = watch(&mut node, &found_in(1, "sglang:30000", "qwen", 1));
        let second = watch(&mut node, &found_in(2, "sglang:30000", "llama", 2));
        end(&mut node, first);
        end(&mut node, second);
        node.discovery.found = vec![found_in(3, "sglang:30000", "mistral", 3)];
        assert_eq!(next_name(&mut node).as_deref(), Some("sglang:30000"), "another model is another engine");
        node.discovery.found = vec![found_in(4, "sglang:30000", "llama", 4)];
        assert_eq!((taken_pid(&mut node, first), taken_pid(&mut node, second)), (None, Some(4)));
        node.set_waiting(second, false);

        // Of two with one model, the restarted one is not known.
        let third = watch(&mut node, &found_in(5, "sglang:30000", "qwen", 5));
        end(&mut node, third);
        node.discovery.found = vec![found_in(6, "sglang:30000", "qwen", 6)];
        assert_eq!(next_name(&mut node).as_deref(), Some("sglang:30000"));
        node.discovery.found = vec![found_in(5, "sglang:30000", "qwen", 7)];
        assert_eq!((taken_pid(&mut node, first), taken_pid(&mut node, third)), (None, Some(7)));
    }

    #[test]
    fn the_only_run_continues_with_any_engine_that_is_not_another_one() {
        let mut node = node(EngineLimit::default());
        let run = node.add_run(None);
        node.discovery.found = vec![found("sglang:30000", 1)];
        assert!(node.take_engine(run).is_some(), "it had none");
        // Its port and model are not known yet.
        node.discovery.found = vec![found("sglang (pid 2)", 2)];
        assert!(node.take_engine(run).is_some());
        let first = found_in(1, "sglang:30000", "qwen", 3);
        node.discovery.found = vec![first];
        assert!(node.take_engine(run).is_some());
        node.discovery.found = vec![found_in(2, "sglang:30000", "llama", 4)];
        assert!(node.take_engine(run).is_none(), "it gets a run of its own");
        assert_eq!(next_name(&mut node).as_deref(), Some("sglang:30000"));
    }

    #[test]
    fn engines_beyond_the_limit_are_named() {
        let mut node = node(EngineLimit(2));
        watch(&mut node, &found("sglang:30000", 1));
        node.discovery.found = vec![found("vllm:8000", 2)];
        assert!(!node.is_full() && node.limit_note().is_none(), "it will get a run");
        let second = watch(&mut node, &found("vllm:8000", 2));
        node.discovery.found = (1..=9).map(|port| found(&format!("vllm:900{port}"), 10 + port)).collect();
        let note = node.limit_note().expect("engines without a run");
        assert!(note.starts_with("engine: limit of 2 reached (--max-engines), 9 not watched: vllm:9001, "), "{note}");
        assert!(note.ends_with("vllm:9008, ..."), "{note}");
        end(&mut node, second);
        node.discovery.found = vec![found("vllm:8000", 3)];
        assert_eq!(node.limit_note(), None, "a run waits for it");
    }
}
