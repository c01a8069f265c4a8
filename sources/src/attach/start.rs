//! Start of the observation of an engine, as a run of a node that engines share.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use probe_user::discover::{BlindSpot, Engine, Watcher};
use probe_user::{Feature, Probe};
use responses::Server;
use trace::MonoNs;

use super::cpu::{self, CpuWatch};
use super::discovery_thread::DiscoveryThread;
use super::egress::Egress;
use super::engine_search::EngineSearch;
use super::found_engine::FoundEngine;
use super::inbox::RunId;
use super::interpreter::Interpreter;
use super::lanes::Lanes;
use super::late_processes::LateProcesses;
use super::node::{Node, NodeHandle};
use super::observability::Observability;
use super::python::PythonWatch;
use super::queues::QueueWatch;
use super::roles::Roles;
use super::socket_reads::SocketReads;
use super::targets::{choose_targets, has_libzmq, observe_inner_servers, without_libzmq};
use super::{Attach, AttachOptions, response_id_reader_of, trial, watch_threads_and_describe_refusal};
use crate::translate::Clients;

/// Time since which the processes of a new attach are observed, so that every message of the run counts as observed.
const BEFORE_FIRST_MESSAGE: MonoNs = MonoNs(0);

/// Starts the discovery that the runs of all engines share. These are the runs of the `attached` engines and of those that `engine_search`
/// finds later.
pub(super) fn start_node(
    watcher: Option<Watcher>,
    attached: &[FoundEngine],
    engine_search: Option<EngineSearch>,
    options: &AttachOptions,
) -> anyhow::Result<NodeHandle> {
    let discovery = DiscoveryThread::start(watcher, attached, engine_search)
        .context("cannot start a thread that looks for new workers")?;
    let python = options.python.clone().map(PythonWatch::start);
    Ok(NodeHandle::new(Node::new(options.probe, discovery, python, options.max_engines)))
}

impl Attach {
    /// Attaches to every process of `engine` on the token path.
    pub fn start(watcher: Watcher, engine: Engine, options: &AttachOptions) -> anyhow::Result<Self> {
        let found = FoundEngine::inspect(engine, options.may_read_tokenizers());
        let no_further_search = None;
        let node = start_node(Some(watcher), std::slice::from_ref(&found), no_further_search, options)?;
        let run = node.lock().add_run(Some(&found.traits));
        // The node has no other run.
        let is_ring_read_by_others = false;
        Self::start_run(&node, run, &found, options, is_ring_read_by_others)
    }

    /// Attaches to an engine as a run of the node. `is_ring_read_by_others` says whether other runs read the ring meanwhile, so that this
    /// must not wait for files.
    pub(super) fn start_run(
        node: &NodeHandle,
        run: RunId,
        found: &FoundEngine,
        options: &AttachOptions,
        is_ring_read_by_others: bool,
    ) -> anyhow::Result<Self> {
        let handle = node.clone();
        let mut guard = node.lock();
        let attached = Self::attach_to(handle, &mut guard, run, found, options, is_ring_read_by_others);
        // After an error, removes what was attached before it.
        if attached.is_err() {
            guard.release_run(run);
        }
        attached
    }

    /// Watches an engine. `add_targets` starts the observation of messages, so every part that must be ready for the first one comes before
    /// it.
    fn attach_to(
        handle: NodeHandle,
        node: &mut Node,
        run: RunId,
        found: &FoundEngine,
        options: &AttachOptions,
        is_ring_read_by_others: bool,
    ) -> anyhow::Result<Self> {
        let engine = &found.engine;
        let refused = "cannot attach the probe; `tokengap tap` watches a hop without privileges";
        node.load_probe().context(refused)?;
        node.add_receiver_for_engine(run, engine);
        let has_several_runs = node.has_several_runs();
        let targets = choose_targets(engine, &options.named, options.capture);
        let probed: BTreeSet<u32> = targets.iter().map(|target| target.pid).collect();
        let limits =
            describe_initial_limits(engine, &probed, options, &node.discovery.topology().blind_spots, has_several_runs);
        let followed_changes = node.discovery.changes();

        let roles = Roles::of_engine(engine);
        let mut egress = create_egress_reader(found, options);
        let (probe, _) = node.probe_and_discovery().context(refused)?;
        let mut late_processes = LateProcesses::default();
        let mut degraded = Vec::new();
        if options.egress {
            degraded = observe_writes_and_describe_refusals(found, &mut late_processes, &mut egress, probe);
        }
        for log in &options.logs {
            egress
                .follow_log(log, is_ring_read_by_others)
                .with_context(|| format!("cannot follow the log {}", log.display()))?;
        }
        let mut reads = SocketReads::default();
        reads.observe_connections_of(engine, without_libzmq(engine, &probed), probe).map_err(anyhow::Error::msg)?;
        observe_inner_servers(&engine.processes, probe);
        probe.add_targets(&targets).context(refused)?;
        let mut observability = Observability::new(options.probe.processed, egress.shows_deliveries());
        mark_watched_and_served_processes(engine, &probed, &late_processes.take_served(), &mut observability);
        reads.apply_connection_changes(&mut observability, BEFORE_FIRST_MESSAGE);
        degraded.extend(limits);
        let mut lanes = Lanes::new(roles, observability);
        lanes.translator.set_engine(engine.clone());
        let mut cpu = CpuWatch::default();
        for process in &engine.processes {
            degraded.extend(watch_threads_and_describe_refusal(process, &mut cpu, node, run));
        }
        let queues = QueueWatch::start().context("cannot start a thread that reads the queues of sockets")?;
        queues.watch_connections_of(engine);
        Ok(Self {
            node: handle,
            run,
            interpreter: Interpreter::new(lanes, egress, reads),
            cpu,
            queues,
            options: options.clone(),
            engine: engine.clone(),
            probed,
            late_processes,
            followed_changes,
            pids_of_others: BTreeMap::new(),
            stopped_at: None,
            has_read_all: true,
            has_observed: false,
            has_unread: false,
            read_until: MonoNs::now(),
            degraded,
        })
    }
}

/// Marks the processes of `probed_pids` that use libzmq as watched, and those of `served_pids` as observed in their writes to clients.
fn mark_watched_and_served_processes(
    engine: &Engine,
    probed_pids: &BTreeSet<u32>,
    served_pids: &BTreeSet<u32>,
    observability: &mut Observability,
) {
    for pid in probed_pids.iter().filter(|pid| engine.process_with_pid(**pid).is_some_and(has_libzmq)) {
        observability.mark_watched(*pid, BEFORE_FIRST_MESSAGE);
    }
    for pid in served_pids {
        observability.mark_served(*pid, BEFORE_FIRST_MESSAGE);
    }
}

/// Observes the writes of the engine's processes to their clients. Returns a line for the report for each process whose writes cannot be
/// observed.
fn observe_writes_and_describe_refusals(
    found: &FoundEngine,
    late_processes: &mut LateProcesses,
    egress: &mut Egress,
    probe: &mut Probe,
) -> Vec<String> {
    let FoundEngine { engine, ports, .. } = found;
    let mut refusals = Vec::new();
    for process in &engine.processes {
        let process_ports = ports.get(&process.id.pid).cloned();
        if let Err(why) = late_processes.observe_writes_if_serving(process, process_ports, egress, probe, engine) {
            refusals.push(format!("egress: {why}"));
        }
    }
    refusals
}

/// Lines for the report about the limits that hold from the start: processes and features that the options leave out, and parts of other
/// processes that cannot be read. `probed_pids` are the processes that are observed.
fn describe_initial_limits(
    engine: &Engine,
    probed_pids: &BTreeSet<u32>,
    options: &AttachOptions,
    blind_spots: &[BlindSpot],
    has_several_runs: bool,
) -> Vec<String> {
    let mut degraded = Vec::new();
    for pid in options.named.difference(probed_pids) {
        // With several engines, a named process may belong to another one.
        if !has_several_runs || engine.process_with_pid(*pid).is_some() {
            degraded.push(format!("pid {pid} from --pid is not watched: it has no libzmq that can be probed"));
        }
    }
    if !options.probe.polls {
        degraded.push(format!("{} (--no-wakeups)", Feature::Polls.consequence_of_lack()));
    }
    for blind in blind_spots {
        // Other blind spots may change, so they are reported when the report is made.
        let is_lasting = !blind.is_limit() && !blind.is_between_engines();
        if is_lasting && (!has_several_runs || concerns_engine(blind, engine)) {
            degraded.push(trial::describe_with_remedy(blind));
        }
    }
    degraded.extend(cpu::describe_clock_offset());
    degraded
}

/// The reader of the engine's responses to its clients.
fn create_egress_reader(found: &FoundEngine, options: &AttachOptions) -> Egress {
    let FoundEngine { engine, tokenizer, .. } = found;
    let mut server = Server::new(engine.settings.mode.as_ref().map(|mode| mode.value));
    // Whether responses have exactly the text of the frames: no parser moves or removes any.
    server.texts.exact = engine.settings.exact_text.as_ref().is_some_and(|exact| exact.value);
    let response_id = response_id_reader_of(engine);
    let mut egress = Egress::new(Clients { server, response_id, ..Clients::default() });
    egress.ignores_callers = !options.traceparent;
    let has_inner_server = engine.processes.iter().any(|process| process.inner_server.is_some());
    if has_inner_server {
        // The token ids passed to such a server are not read, so no text can be compared with them.
        egress.record_that_ids_stay_in_process();
    } else if let Some(tokenizer) = &options.tokenizer {
        egress.set_detokenizer(tokenizer.clone());
    } else if let Some(json) = tokenizer {
        egress.start_reading_tokenizer(json.clone());
    }
    egress
}

/// Whether a blind spot is about this engine or the whole machine, and not only about other engines.
pub(super) fn concerns_engine(blind: &BlindSpot, engine: &Engine) -> bool {
    let is_own = |pid: &u32| engine.process_with_pid(*pid).is_some();
    match blind {
        BlindSpot::LibZmq { pid, .. }
        | BlindSpot::NoZmqOutput { pid, .. }
        | BlindSpot::ForeignConnection { pid, .. } => is_own(pid),
        BlindSpot::Unreadable { pids, .. } | BlindSpot::SharedProcesses { mains: pids, .. } => pids.iter().any(is_own),
        // All others are of the machine.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use probe_user::Capability;
    use probe_user::discover::{ProcPart, ReadError};

    use super::super::engine_search::tests::titled;
    use super::*;

    #[test]
    fn what_is_not_readable_of_one_engine_is_not_reported_for_another() {
        let [readable, half_visible] = [10, 20].map(|pid| titled(pid, Vec::new()));
        let parts = vec![ProcPart::Maps, ProcPart::Descriptors];
        let of_half_visible = [
            BlindSpot::Unreadable { parts, pids: vec![20], missing: vec![Capability::SysPtrace] },
            BlindSpot::LibZmq { pid: 20, path: "/opt/libzmq.so.5".into(), error: ReadError::Denied },
            BlindSpot::NoZmqOutput { pid: 20, variable: "SGLANG_X=1".to_owned() },
        ];
        let of_machine = BlindSpot::HiddenPids;
        let blind_spots = [&of_half_visible[..], std::slice::from_ref(&of_machine)].concat();
        let reported = |engine: &Engine, has_several_runs: bool| {
            let lines = describe_initial_limits(
                engine,
                &BTreeSet::new(),
                &AttachOptions::default(),
                &blind_spots,
                has_several_runs,
            );
            blind_spots.iter().filter(|blind| lines.contains(&trial::describe_with_remedy(blind))).count()
        };
        assert_eq!(reported(&half_visible, true), 4);
        assert_eq!(reported(&readable, true), 1, "only what holds for the machine");
        assert_eq!(reported(&readable, false), 4, "of a single engine, other processes may belong to it");
    }

    #[test]
    fn a_connection_between_engines_is_of_those_that_it_connects() {
        let shared = BlindSpot::SharedProcesses { pids: vec![15], mains: vec![10, 20] };
        let foreign = BlindSpot::ForeignConnection { pid: 20, main: 20, other_main: 10 };
        let concerned = |blind: &BlindSpot| [10, 20, 30].map(|pid| concerns_engine(blind, &titled(pid, Vec::new())));
        assert_eq!(concerned(&shared), [true, true, false]);
        assert_eq!(concerned(&foreign), [false, true, false]);
    }
}
