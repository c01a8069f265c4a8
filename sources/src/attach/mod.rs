//! Source of `tokengap attach`: discovery finds the processes, the probe observes them, [`lanes`] interprets the observations.

mod arrivals;
mod background;
mod cpu;
mod delivery;
mod discovery_thread;
mod egress;
mod engine_names;
mod engine_run;
mod engine_search;
mod found_engine;
mod frontends;
mod hop_ids;
mod inbox;
mod interpreter;
mod known_rooms;
mod lanes;
mod late_processes;
mod log_thread;
mod multipart;
mod node;
mod observability;
mod paths;
#[cfg_attr(not(feature = "python-stacks"), path = "no_python.rs")]
mod python;
mod queues;
mod report;
mod requests;
mod roles;
mod socket_reads;
mod start;
mod targets;
mod trial;
mod worker_logs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use adapter::decode::ReadResponseId;
use adapter::discover::{Disaggregation, Setting};
use probe_user::discover::{BlindSpot, Engine, ProcPart, Process};
use probe_user::{Degraded, Feature, Probe, ProbeOptions, Target};
use responses::Detokenize;
use session::{Flow, LiveSource, OwnUsage, own};
use trace::MonoNs;
use trace::event::Event;

pub use background::{StartUp, Unattached};
use cpu::CpuWatch;
use delivery::ReadCounts;
pub use engine_names::{EngineNames, SelectedEngines};
pub use engine_run::{EngineRun, EngineRuns, EngineState};
pub use engine_search::EngineLimit;
pub use found_engine::EngineTraits;
use inbox::RunId;
pub use interpreter::Interpreter;
use lanes::Sink;
use late_processes::LateProcesses;
use node::{Node, NodeHandle};
pub use python::PythonOptions;
use queues::QueueWatch;
use targets::{choose_targets, has_libzmq, observe_inner_servers, probe_target_for, speaks_zmq, without_libzmq};
pub use trial::{FeatureRow, FeatureState, Reason};

/// Time to read the ring buffer after the end, which a busy engine goes on filling.
const MAX_DRAIN_TIME: Duration = Duration::from_millis(500);

/// Options of an attach, set by the user.
#[derive(Clone, Debug, Default)]
pub struct AttachOptions {
    /// Processes named by the user, watched regardless of their connections.
    pub named: BTreeSet<u32>,
    /// Maximum number of bytes copied per message.
    pub capture: u32,
    /// Observe writes to clients.
    pub egress: bool,
    /// Read the callers' traces in the heads of requests.
    pub traceparent: bool,
    /// Logs of Dynamo workers, in addition to files that receive their standard output and error.
    pub logs: Vec<PathBuf>,
    /// Tokenizer of the model, if the user named one.
    pub tokenizer: Option<Arc<dyn Detokenize>>,
    /// Limits of the probe.
    pub probe: ProbeOptions,
    /// Options for sampling Python stacks, if enabled.
    pub python: Option<PythonOptions>,
    /// Maximum number of engines.
    pub max_engines: EngineLimit,
}

impl AttachOptions {
    /// Whether the tokenizers of engines may be read.
    fn may_read_tokenizers(&self) -> bool {
        self.egress && self.tokenizer.is_none()
    }
}

/// A probe attached to the processes of a running engine.
pub struct Attach {
    node: NodeHandle,
    /// The run of this engine among those of the node.
    run: RunId,
    interpreter: Interpreter,
    cpu: CpuWatch,
    queues: QueueWatch,
    options: AttachOptions,
    engine: Engine,
    /// Processes with probes attached.
    probed: BTreeSet<u32>,
    late_processes: LateProcesses,
    /// Number of changes of processes and connections that were followed.
    followed_changes: u64,
    /// Processes that are connected to this engine and watched as those of another, with the name of that.
    pids_of_others: BTreeMap<u32, String>,
    /// When the source was asked to end.
    stopped_at: Option<Instant>,
    /// Whether the last poll read no observation of this engine and left none in the ring.
    has_read_all: bool,
    /// Whether any poll read one.
    has_observed: bool,
    /// The last poll left observations in the ring.
    has_unread: bool,
    /// Time up to which observations were read.
    read_until: MonoNs,
    degraded: Vec<String>,
}

/// The function that reads the id of an engine's request from a response; `None` if the engine's message format needs none.
fn response_id_reader_of(engine: &Engine) -> Option<ReadResponseId> {
    let support = engines::find(engine.kind?.name())?;
    let mut formats = support.formats.iter();
    let inner_role = engine.processes.iter().find_map(Process::inner_role);
    let used_format = match inner_role {
        // A server inside the process receives messages of a format of its own.
        Some(role) => formats.find(|format| format.receivers.contains(&role.word()))?,
        None => formats.next()?,
    };
    used_format.response_id
}

impl Attach {
    /// Ends the observation of the engine, whose run goes on.
    fn release_run(&self) {
        self.node.lock().release_run(self.run);
    }

    /// Returns whether all watched processes have exited, or all processes if none is watched.
    fn have_watched_processes_exited(&self) -> bool {
        let node = self.node.lock();
        let topology = node.discovery.topology();
        for process in &self.engine.processes {
            // Nothing is probed until a server inside a process is loaded.
            let is_watched = self.probed.is_empty() || self.probed.contains(&process.id.pid);
            if is_watched && topology.processes().any(|running| running.id == process.id) {
                return false;
            }
        }
        true
    }

    /// Returns whether the watched processes are probably no engine, but only have titles like one. Neither a connection between them nor a
    /// message confirms it, and another engine is confirmed.
    fn is_probably_no_engine(&self) -> bool {
        let node = self.node.lock();
        let topology = node.discovery.topology();
        // Discovery confirms an engine by a connection between its processes.
        let mut unconfirmed = topology.unconfirmed_engines().flat_map(|engine| &engine.processes);
        let lacks_connection = unconfirmed.any(|process| self.knows_process(process));
        let lacks_messages = !self.has_observed;
        let is_other_confirmed = topology.confirmed_engines().next().is_some();
        lacks_connection && lacks_messages && is_other_confirmed
    }

    /// Parts of the probe that are missing for this engine.
    fn missing_parts(&self) -> Vec<Degraded> {
        self.node.lock().missing_parts(self.run).cloned().collect()
    }

    /// Processes with probes attached, and the means by which their frames are observed; `None` if they are not observed.
    pub fn probed_processes_with_means(&self) -> impl Iterator<Item = (&Process, Option<&'static str>)> {
        let missing_parts = self.missing_parts();
        let probed = self.engine.processes.iter().filter(|process| self.probed.contains(&process.id.pid));
        probed.map(move |process| (process, self.means_of_observation(process, &missing_parts)))
    }

    /// The means by which the frames of a probed process are observed; `None` if they are not observed.
    fn means_of_observation(&self, process: &Process, missing_parts: &[Degraded]) -> Option<&'static str> {
        let pid = process.id.pid;
        let has_uprobes = !is_messages_part_missing(pid, missing_parts);
        if process.inner_server.is_some() && has_uprobes {
            Some("a uprobe on the method that passes them to the server inside the process")
        } else if self.interpreter.reads.observes_process(pid) {
            Some("socket reads")
        } else if has_libzmq(process) && has_uprobes {
            Some("uprobes on libzmq")
        } else {
            None
        }
    }

    /// Why the frames of no process are observed. `None` if a process's frames are observed, or while processes may still load a probed
    /// library.
    pub fn reason_to_refuse_attach(&self) -> Option<String> {
        // The user has named no process, so processes of the engine may still load a probed library.
        if self.probed.is_empty() && self.options.named.is_empty() {
            return None;
        }
        self.reason_no_frames_are_observed()
    }

    /// Why the frames of no process are observed at this moment; `None` if a process's frames are observed.
    fn reason_no_frames_are_observed(&self) -> Option<String> {
        if self.probed_processes_with_means().any(|(_, means)| means.is_some()) {
            return None;
        }
        let missing_parts = self.missing_parts();
        let node = self.node.lock();
        let mut blind_spots = node.discovery.topology().blind_spots.iter();
        // First what the kernel refuses, because until that is solved, no other advice helps.
        let why = if let Some(missing) = missing_parts.iter().find(|missing| missing.feature == Feature::Messages) {
            format!("{missing}; {}", missing.remedy())
        } else if let Some(hidden) = blind_spots.find(|blind_spot| self.may_hide_libzmq(blind_spot)) {
            trial::describe_with_remedy(hidden)
        } else {
            "none of its processes has loaded libzmq; check the pids, or wait for the engine with --follow".to_owned()
        };
        Some(format!("no process of the engine is observed: {why}"))
    }

    /// Returns whether a process of the engine may have loaded libzmq without our knowledge.
    fn may_hide_libzmq(&self, blind_spot: &BlindSpot) -> bool {
        match blind_spot {
            BlindSpot::LibZmq { pid, .. } => self.engine.process_with_pid(*pid).is_some(),
            BlindSpot::Unreadable { parts, pids, .. } => {
                parts.contains(&ProcPart::Maps) && pids.iter().any(|&pid| self.engine.process_with_pid(pid).is_some())
            }
            _ => false,
        }
    }

    /// Side of a pair of servers, and what it sends; `None` if the engine is in no pair.
    pub fn disaggregation(&self) -> Option<&Setting<Disaggregation>> {
        self.engine.settings.disaggregation.as_ref()
    }

    /// Pid of the main process of the engine; `None` if it is unknown.
    pub fn main_pid(&self) -> Option<u32> {
        self.engine.main_process().map(|process| process.id.pid)
    }

    /// Number of processes with probes attached.
    pub fn probed_process_count(&self) -> usize {
        self.probed.len()
    }

    /// Applies what discovery has found since the last call: processes, connections, ports of late servers, and frontends.
    fn apply_discovered_changes(&mut self) {
        // A handle of its own, because `follow_topology_change` borrows this value while the node is locked.
        let handle = self.node.clone();
        let mut guard = handle.lock();
        let node = &mut *guard;
        node.discovery.receive_updates();
        // A search of /proc takes longer than a turn, so it has a thread of its own, and only its changes are applied here.
        if node.discovery.changes() != self.followed_changes {
            self.followed_changes = node.discovery.changes();
            self.follow_topology_change(node);
        }
        if let Some((probe, discovery)) = node.probe_and_discovery() {
            self.late_processes.retry_unserved_tokenizers(
                self.run,
                discovery,
                &mut self.interpreter.egress,
                probe,
                &self.engine,
            );
        }
        self.interpreter.egress.watch_frontends(self.run, &self.engine, node);
    }

    /// Follows a change of processes and connections: watches new processes of this engine, and the queues of new connections. A process
    /// joins this engine once it is connected to one of its processes, possibly long after its start.
    fn follow_topology_change(&mut self, node: &mut Node) {
        // Without it, all processes of this engine have exited.
        let Some(engine) = self.current_state_of_engine(node) else { return };
        self.queues.watch_connections_of(&engine);
        let joined = self.add_joined_and_update_known_processes(&engine, node);
        self.interpreter.lanes.paths.roles.replace_connections_and_ranks(&engine);
        let targets = self.choose_targets_after_change(&engine, &joined);
        let Some((probe, _)) = node.probe_and_discovery() else { return };
        // Before the probes are added: connections are to be observed from their first byte after the attach.
        self.observe_socket_reads(&engine, &targets, probe);
        self.add_missing_probes(targets, &engine, node);
        for process in &joined {
            let refused = watch_threads_and_describe_refusal(process, &mut self.cpu, node, self.run);
            self.degraded.extend(refused);
        }
        self.late_processes.record_rewiring();
    }

    /// This engine as discovery knows it now; `None` if none of its processes is left.
    fn current_state_of_engine(&self, node: &Node) -> Option<Engine> {
        let engines = &node.discovery.topology().engines;
        let is_own = |engine: &&Engine| engine.processes.iter().any(|process| self.knows_process(process));
        engines.iter().find(is_own).cloned()
    }

    /// The targets of the processes that have `joined`, and of those that are on the token path now.
    fn choose_targets_after_change(&self, engine: &Engine, joined: &[Process]) -> Vec<Target> {
        let capture = self.options.capture;
        let of_joined = joined.iter().filter_map(|process| probe_target_for(process, engine, capture));
        let mut targets: Vec<Target> = of_joined.collect();
        targets.extend(choose_targets(engine, &self.options.named, capture));
        targets
    }

    /// Observes the socket reads of processes that receive without libzmq, among those with a probe and the `new_targets`.
    fn observe_socket_reads(&mut self, engine: &Engine, new_targets: &[Target], probe: &mut Probe) {
        let mut observed: BTreeSet<u32> = self.probed.clone();
        observed.extend(new_targets.iter().map(|target| target.pid));
        // A connected process that another run watches is no process of this engine.
        let own_without_libzmq = without_libzmq(engine, &observed)
            .filter(|process| self.engine.processes.iter().any(|own| own.id == process.id));
        let observed_reads = self.interpreter.reads.observe_connections_of(engine, own_without_libzmq, probe);
        if let Err(why) = observed_reads {
            self.degraded.push(format!("socket reads: {why}"));
        }
    }

    /// Adds the probes of those targets that have none yet. A target that belongs to the engine of another run gets none.
    fn add_missing_probes(&mut self, targets: Vec<Target>, engine: &Engine, node: &mut Node) {
        for target in targets {
            if !self.probed.contains(&target.pid)
                && let Some(process) = engine.process_with_pid(target.pid)
                && self.knows_process(process)
            {
                self.add_probe_and_observe_writes(target, process, node);
            }
        }
    }

    /// Adds the processes that have joined the engine, and returns them. Also updates known processes in which a server was started.
    fn add_joined_and_update_known_processes(&mut self, engine: &Engine, node: &mut Node) -> Vec<Process> {
        let joined = self.find_joined_and_note_shared_processes(engine, node);
        let with_new_server = engine.processes.iter().filter(|process| self.has_new_inner_server(process));
        let with_new_server: Vec<Process> = with_new_server.cloned().collect();
        for process in joined.iter().chain(&with_new_server) {
            self.add_or_replace_process(process, node);
        }
        joined
    }

    /// The processes of `engine` that this run does not know and that speak ZMQ. Those that another run watches are only noted.
    fn find_joined_and_note_shared_processes(&mut self, engine: &Engine, node: &Node) -> Vec<Process> {
        // Only the current connections count.
        self.pids_of_others.clear();
        let mut joined = Vec::new();
        for process in &engine.processes {
            if self.knows_process(process) || !speaks_zmq(process) {
                continue;
            }
            match node.name_of_other_run_watching(self.run, process.id) {
                Some(other) => {
                    self.pids_of_others.insert(process.id.pid, other.to_owned());
                }
                None => joined.push(process.clone()),
            }
        }
        joined
    }

    /// Adds a process to the engine, in place of an earlier one with its pid.
    fn add_or_replace_process(&mut self, process: &Process, node: &mut Node) {
        let pid = process.id.pid;
        self.engine.processes.retain(|known| known.id.pid != pid);
        self.engine.processes.push(process.clone());
        // The pid may have been reused.
        self.probed.remove(&pid);
        self.interpreter.lanes.paths.roles.add_process(process);
        node.add_receiver_of_process(self.run, process.id);
    }

    fn knows_process(&self, process: &Process) -> bool {
        self.engine.processes.iter().any(|known| known.id == process.id)
    }

    /// Returns whether a known process has started a server inside it since it became known.
    fn has_new_inner_server(&self, process: &Process) -> bool {
        let known = self.engine.processes.iter().find(|known| known.id == process.id);
        process.inner_server.is_some() && known.is_some_and(|known| known.inner_server.is_none())
    }

    /// Observes the messages of a process and its writes to clients from now on. The process has started after the attach, or was not on
    /// the path of tokens before. A refusal is added to the report.
    fn add_probe_and_observe_writes(&mut self, target: Target, process: &Process, node: &mut Node) {
        let Some((probe, discovery)) = node.probe_and_discovery() else { return };
        // Noted even if the probe is refused below, so that it is not tried again at each change.
        self.probed.insert(target.pid);
        let ports = discovery.ports(process.id.pid);
        if self.options.egress
            && let Err(why) = self.late_processes.observe_writes_if_serving(
                process,
                ports,
                &mut self.interpreter.egress,
                probe,
                &self.engine,
            )
        {
            self.degraded.push(format!("egress: {why}"));
        }
        // Everything above must be ready for the first message, which is observed from here on.
        observe_inner_servers([process], probe);
        match probe.add_targets(&[target]) {
            Ok(()) if has_libzmq(process) => self.late_processes.add_watched(target.pid),
            Ok(()) => {}
            Err(error) => self.degraded.push(format!("new process {} is not watched: {error}", target.pid)),
        }
    }

    /// Emits samples of threads, socket queues and Python stacks that are due.
    fn emit_due_samples(&mut self, sink: Sink<'_>) {
        let mut node = self.node.lock();
        if let Some(probe) = node.probe() {
            self.cpu.sample_when_due(probe, &self.interpreter.lanes, sink);
        }
        self.queues.emit_new_samples(self.interpreter.lanes.has_traffic(), sink);
        if let Some(python) = &mut node.python {
            python.emit_samples_of_run(self.run, sink);
        }
    }

    /// Completes what the interpretation of the next observations depends on: ids from logs, the tokenizer, the compared text, TLS.
    fn prepare_interpretation(&mut self) {
        self.interpreter.egress.record_newly_logged_ids();
        self.interpreter.egress.use_tokenizer_once_read();
        self.interpreter.prepare_comparison();
        if let Some(probe) = self.node.lock().probe() {
            self.interpreter.egress.record_tls_observed(probe);
        }
    }

    /// Reads the ring buffer and emits this engine's observations as events. Returns the numbers of observations read. An error says why
    /// the probe has stopped.
    fn read_and_interpret_observations(&mut self, sink: Sink<'_>) -> Result<ReadCounts, String> {
        let interpreter = &mut self.interpreter;
        let mut node = self.node.lock();
        let observed = node
            .read_observations(self.run, &mut |observation| interpreter.interpret_observation(observation, &mut *sink));
        if let Some((probe, _)) = node.probe_and_discovery() {
            interpreter.egress.ignore_useless_connections(probe);
        }
        observed
    }

    /// Notes how far the observations have been read, and whether some were.
    fn record_read_progress(&mut self, counts: ReadCounts) {
        self.has_read_all = counts.own == 0 && !counts.has_unread;
        self.has_observed |= counts.own > 0;
        self.has_unread = counts.has_unread;
        if !counts.has_unread {
            self.read_until = MonoNs::now();
        } else if let Some(last_at) = counts.last_at {
            // Never backwards, since events up to this time were emitted.
            self.read_until = self.read_until.max(last_at);
        }
    }

    /// Emits the capabilities of each hop that have changed: the stages of its messages that are observed. Call this once everything
    /// observed before the change is emitted.
    fn report_changed_capabilities(&mut self, sink: Sink<'_>) {
        self.late_processes.count_new_processes_as_observed(
            &mut self.interpreter.lanes,
            &mut self.interpreter.reads,
            sink,
        );
        self.interpreter.lanes.paths.set_deliveries_visible(
            self.interpreter.egress.shows_deliveries(),
            MonoNs::now(),
            sink,
        );
    }

    /// Decides from the observations read in this poll whether the source has ended or is idle. Adds a line to the report if it ends early.
    fn decide_flow_after_read(&mut self, observed: Result<ReadCounts, String>) -> Flow {
        let counts = match observed {
            Ok(counts) => counts,
            Err(error) => {
                self.degraded.push(format!("the probe stopped early: {error}"));
                return Flow::Ended;
            }
        };
        let has_read_all = counts.own == 0 && !counts.has_unread;
        if let Some(stopped_at) = self.stopped_at {
            if has_read_all {
                return Flow::Ended;
            }
            if stopped_at.elapsed() >= MAX_DRAIN_TIME {
                self.degraded.push("end: observations that were still in the ring buffer were not read".to_owned());
                return Flow::Ended;
            }
        }
        // Observations of other runs may be followed by own ones.
        if has_read_all && counts.of_others == 0 { Flow::Idle } else { Flow::Busy }
    }
}

impl LiveSource for Attach {
    fn failure(&self) -> Option<String> {
        self.reason_no_frames_are_observed()
    }

    fn keep_ids(&mut self) {
        self.interpreter.lanes.translator.show_ids();
    }

    /// Emits due samples and new observations as events, and follows changes of processes and connections.
    fn poll(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Flow {
        self.interpreter.lanes.translator.report_engine(sink);
        // Samples are newer than the observations in the ring.
        if !self.has_unread {
            self.emit_due_samples(sink);
        }
        if self.stopped_at.is_none() {
            self.apply_discovered_changes();
        }
        self.prepare_interpretation();
        let observed = self.read_and_interpret_observations(sink);
        // After an error, nothing was read.
        self.record_read_progress(observed.as_ref().copied().unwrap_or_default());
        if !self.has_unread {
            self.report_changed_capabilities(sink);
        }
        self.decide_flow_after_read(observed)
    }

    fn stop(&mut self) {
        self.stopped_at.get_or_insert_with(Instant::now);
    }
}

/// Whether the probe lacks the part that observes the messages of a process. A part that is missing without a pid is missing everywhere.
fn is_messages_part_missing(pid: u32, missing_parts: &[Degraded]) -> bool {
    let mut missing_messages = missing_parts.iter().filter(|missing| missing.feature == Feature::Messages);
    missing_messages.any(|missing| missing.pid.is_none_or(|refused| refused == pid))
}

/// Samples the CPU time of a process's threads from now on, and their Python stacks if that is enabled. Returns a line for the report if
/// CPU time cannot be sampled.
fn watch_threads_and_describe_refusal(
    process: &Process,
    cpu: &mut CpuWatch,
    node: &mut Node,
    run: RunId,
) -> Option<String> {
    if let Some(python) = &mut node.python {
        python.add_process(run, process);
    }
    cpu.add_process(process).err().map(|why| format!("cpu: {why}"))
}

/// CPU time and memory of tokengap, with those of the process that reads stacks.
fn own_usage_with_stack_reader(python: Option<&PythonOptions>) -> OwnUsage {
    let reader_cpu_ns = python.map_or(0, PythonOptions::cpu_ns);
    let reader_rss_bytes = python.and_then(PythonOptions::rss_bytes).unwrap_or(0);
    OwnUsage {
        cpu_ns: Some(own::cpu_ns() + reader_cpu_ns),
        rss_bytes: own::rss_bytes().map(|rss_bytes| rss_bytes + reader_rss_bytes),
    }
}
