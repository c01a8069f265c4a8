//! `tokengap attach`: passive, on the engines that already run.

mod run_maker;
mod watched_engine;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use probe_user::discover::{self, BlindSpot, Engine, PickError, RoleSpec, Topology, Watcher};
use probe_user::{Feature, Permissions, ProbeOptions, RunEnvironment};

use outputs::report::RunReport;
use session::telemetry::MetricsOptions;
use session::{RunHooks, Running, Signals};
use sources::attach::{
    Attach, AttachOptions, EngineLimit, EngineNames, EngineRun, EngineRuns, PythonOptions, StartUp, Unattached,
};
use sources::{open_files, tokenizer};

use self::run_maker::RunMaker;
use self::watched_engine::WatchedEngine;
use crate::app;
use crate::args::{LiveArgs, TUNING};
use crate::cmd::live_pairs::{self, LivePairs};
use crate::cmd::pair::{self, KnownSide, RunningServer};
use crate::cmd::prober;
use crate::confinement::{self, HelperOptions};

/// Watch running engines without touching them: eBPF probes on libzmq show each frame sent, received and processed.
///
/// Finds the engines' processes by itself. Needs root, or `CAP_SYS_ADMIN` and `CAP_SYS_PTRACE`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tokengap attach\n  tokengap attach --engine sglang:30000\n  tokengap attach --pid 4711=scheduler --pid 4712=tokenizer --duration 30s"
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate flag")]
pub(crate) struct Args {
    /// A process of an engine to watch, and its role if its title does not show it: scheduler, detokenizer, tokenizer, worker,
    /// router, detokenizer-router. Repeatable, also for several engines. Processes that are all named with roles are one engine, unless
    /// two groups of them are connected among themselves. Default: all engines of this machine, and those that start.
    #[arg(long, value_name = "PID[=ROLE]", value_parser = role_spec)]
    pid: Vec<RoleSpec>,

    /// Watch the engine with this name only: its kind and port, as sglang:30000 or vllm:8000. A further engine of the same port, in
    /// another network namespace, has a number: sglang:30000-2. Repeatable. The names are printed when several engines are watched.
    #[arg(long, value_name = "NAME", conflicts_with = "pid")]
    engine: Vec<String>,

    /// Do not observe responses to clients: deliveries are unknown and no drop is confirmed.
    #[arg(long)]
    no_egress: bool,

    /// Do not read the header traceparent of requests: exported spans do not join the callers' traces.
    #[arg(long)]
    no_traceparent: bool,

    /// Read TLS responses: probes on OpenSSL in the processes that answer clients show their plain bytes before encryption.
    #[arg(long, conflicts_with = "no_egress")]
    tls: bool,

    /// Do not probe the polls of the engine's event loops, the largest cost for a tokenizer at full speed. Frames per wakeup are
    /// then unknown, and no drop is predicted.
    #[arg(long)]
    no_wakeups: bool,

    /// Log file of a Dynamo worker, release 1.6 or later, which contains SGLang's id of each request. Repeatable. Files that
    /// receive a worker's standard output or error are found without it.
    #[arg(long, value_name = "FILE")]
    worker_log: Vec<PathBuf>,

    /// Sample the tokenizer's Python stacks this many times a second, 1 to 1000, without stopping it. Shows the functions that
    /// run while frames are queued. A sample costs tokengap a few hundred microseconds of CPU.
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    python_stacks: Option<u32>,

    /// Sample the stacks of every process of the engine, not only the tokenizers'.
    #[arg(long, requires = "python_stacks")]
    python_stacks_all: bool,

    /// Wait for an engine to start, and after it exits, for it to start again. Counters and the recording continue; the report
    /// lists each exit.
    #[arg(long, conflicts_with = "pid")]
    follow: bool,

    /// The model's tokenizer.json, for vLLM: tokens of responses that carry only text are counted with it. Default: found through
    /// the server's command line.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,

    #[command(flatten)]
    live: LiveArgs,

    /// Maximum number of engines watched, including those that have ended. Each needs memory of its own. Further ones are named in
    /// the report.
    #[arg(long, value_name = "N", default_value_t = EngineLimit::default().0, value_parser = clap::value_parser!(u16).range(1..), help_heading = TUNING)]
    max_engines: u16,

    /// Maximum bytes copied of a message. Longer messages are counted as undecoded.
    #[arg(long, value_name = "BYTES", default_value_t = 1 << 20, help_heading = TUNING)]
    capture: u32,

    /// Size of the ring buffer between the kernel and tokengap. Observations that do not fit are dropped and counted; the target is
    /// never delayed.
    #[arg(long, value_name = "BYTES", default_value_t = ProbeOptions::default().ring_bytes, help_heading = TUNING)]
    ring: u32,
}

impl Args {
    fn probe_options(&self) -> ProbeOptions {
        ProbeOptions { ring_bytes: self.ring, polls: !self.no_wakeups, tls: self.tls, ..ProbeOptions::default() }
    }

    /// Permissions of the helper processes, which are fixed when they start.
    fn helper_options(&self) -> HelperOptions {
        HelperOptions {
            prober_arguments: prober::Args::arguments_for(&self.probe_options()),
            named_pids: self.pid.iter().map(|spec| spec.pid).collect(),
            named_files: self.live.config.iter().chain(&self.worker_log).chain(&self.tokenizer).cloned().collect(),
        }
    }

    /// Names of the engines to watch; empty for all.
    fn engine_names(&self) -> EngineNames {
        EngineNames { names: self.engine.iter().cloned().collect() }
    }

    /// Engines that may join those of the start. `None` if the user named the processes: then no other engine is meant.
    fn engines_that_may_join(&self) -> Option<EngineNames> {
        if self.pid.is_empty() { Some(self.engine_names()) } else { None }
    }

    /// Options of the attach, by the arguments. Reads the tokenizer, if one is named.
    fn attach_options(&self, python: Option<PythonOptions>) -> anyhow::Result<AttachOptions> {
        Ok(AttachOptions {
            named: self.pid.iter().map(|spec| spec.pid).collect(),
            capture: self.capture,
            egress: !self.no_egress,
            traceparent: !self.no_traceparent,
            logs: self.worker_log.clone(),
            tokenizer: self.tokenizer.as_deref().map(tokenizer::read_tokenizer).transpose()?,
            probe: self.probe_options(),
            python,
            max_engines: EngineLimit(self.max_engines),
        })
    }
}

/// `tokengap attach`: finds the engines, attaches to them and watches them until the end.
pub(crate) fn run_attach(args: &Args) -> anyhow::Result<ExitCode> {
    // The token is read before root is given up.
    let endpoint = args.live.telemetry.endpoint_options()?;
    let python = args.python_stacks.map(|hertz| PythonOptions::start(hertz, args.python_stacks_all)).transpose()?;
    confinement::confine_attach(&args.live, &args.helper_options())?;
    let options = args.attach_options(python)?;
    // Before discovery, which may take long, and before the attach is announced, so that an interrupt prints a report.
    let signals = Signals::install().context("cannot listen for signals")?;
    // With --follow, the engine may start later, so nothing is waited for here.
    if args.follow {
        let (engines, first) = EngineRuns::wait_for_engines(options, args.engine_names())?;
        return watch_engines_and_report(args, engines, vec![first], endpoint, &signals);
    }
    match attach_to_running(args, options, &signals)? {
        AttachOutcome::Attached(attached) => {
            let AttachedEngines { engines, first } = *attached;
            print_watched_processes(&first);
            if let Some(note) = engines.describe_unwatched_engines() {
                errln!("tokengap: {note}");
            }
            watch_engines_and_report(args, engines, first, endpoint, &signals)
        }
        AttachOutcome::Interrupted { unfinished } => report_unattached_run(args, endpoint, &signals, unfinished),
    }
}

/// Engines at the start of the command.
struct AttachedEngines {
    engines: EngineRuns,
    /// The runs of those that are there at the start.
    first: Vec<EngineRun>,
}

/// How the attach to running engines ended.
enum AttachOutcome {
    Attached(Box<AttachedEngines>),
    /// A signal or the end of `--duration` came first, during the step `unfinished`.
    Interrupted {
        unfinished: &'static str,
    },
}

/// Finds the engines that run, chooses those to watch, and attaches to them. Each step runs on a thread of its own, because it may hang.
fn attach_to_running(args: &Args, options: AttachOptions, signals: &Signals) -> anyhow::Result<AttachOutcome> {
    let start_up = StartUp::new(signals, args.live.duration);
    // A step has no result if the start was interrupted.
    let named_processes = args.pid.clone();
    let find = move || find_processes(&named_processes);
    let Some(watcher) = start_up.run_until_end_requested(find)? else {
        return Ok(AttachOutcome::Interrupted { unfinished: "the search for the engine's processes" });
    };
    let topology = watcher.topology().clone();
    let named_processes = args.pid.clone();
    let engine_names = args.engine_names();
    let choose = move || engine_names.select_engines(choose_engines(&topology, &named_processes)?);
    let Some(chosen) = start_up.run_until_end_requested(choose)? else {
        return Ok(AttachOutcome::Interrupted { unfinished: "the choice of an engine" });
    };
    let may_join = args.engines_that_may_join();
    let attach = move || EngineRuns::attach_selected_engines(watcher, chosen, options, may_join);
    let Some((engines, first)) = start_up.run_until_end_requested(attach)? else {
        return Ok(AttachOutcome::Interrupted { unfinished: "the attach to the engine's processes" });
    };
    Ok(AttachOutcome::Attached(Box::new(AttachedEngines { engines, first })))
}

/// Prints the watched processes of each engine.
fn print_watched_processes(engines: &[EngineRun]) {
    let are_several = engines.len() > 1;
    if are_several {
        let names: Vec<String> = engines.iter().map(EngineRun::name).collect();
        errln!("tokengap: {} engines: {}", names.len(), names.join(", "));
    }
    for engine in engines {
        let name = if are_several { engine.name() } else { String::from("this") };
        let Some(attach) = engine.current_attach() else {
            errln!("tokengap: {name} is not watched yet: {}", engine.reason_no_engine_is_watched().unwrap_or_default());
            continue;
        };
        print_side_and_observation(&name, attach);
        let pid = attach.main_pid().unwrap_or_default();
        let suffix = if are_several { format!(" of {name} (main pid {pid})") } else { String::new() };
        errln!("tokengap: attached to {} processes{suffix}", attach.probed_process_count());
    }
}

/// Prints how the frames of each process of an engine are observed. First prints which server of a pair the engine is, if it belongs to
/// one.
fn print_side_and_observation(engine_name: &str, attach: &Attach) {
    if let Some(side) = attach.disaggregation() {
        errln!(
            "tokengap: {engine_name} is the {} server of a pair ({}); it sends {}",
            side.value.word,
            side.origin,
            side.value.sends
        );
    }
    for (process, means) in attach.probed_processes_with_means() {
        let means = means.unwrap_or("nothing");
        errln!("tokengap: frames of {} {} are observed by {means}", process.role, process.id.pid);
    }
}

/// Watches the engines, and those that join, and prints their reports.
fn watch_engines_and_report(
    args: &Args,
    mut further_engines: EngineRuns,
    first_engines: Vec<EngineRun>,
    endpoint: Option<MetricsOptions>,
    signals: &Signals,
) -> anyhow::Result<ExitCode> {
    let live = &args.live;
    let mut maker = RunMaker::new(live);
    let mut runs = maker.start_first_runs(first_engines, endpoint)?;
    let mut pairs = LivePairs::new(maker.screen(), live.report.slowest);
    let mut join = || Some(maker.start_further_run(further_engines.create_run_for_new_engine()?));
    let mut compare = |runs: &mut [Running<WatchedEngine>]| pairs.update_pairs_if_due(runs, pair_servers);
    let hooks = RunHooks { join: Some(&mut join), compare: Some(&mut compare) };
    app::run_live(&mut runs, live, signals, hooks)?;
    // The screen restores the terminal once its last owner is gone, which must be before anything is printed.
    for run in &mut runs {
        run.source.leave_screen();
        run.session.remove_observer();
    }
    // Both share the screen.
    drop(pairs);
    drop(maker);
    end_runs_and_report(runs, live, signals)
}

/// Ends the runs and prints their reports, with the pairs of prefill and decode servers among them. Fails if an engine could not be
/// observed.
fn end_runs_and_report(
    mut runs: Vec<Running<WatchedEngine>>,
    live: &LiveArgs,
    signals: &Signals,
) -> anyhow::Result<ExitCode> {
    let failures: Vec<Option<String>> = runs.iter().map(|run| run.source.failure()).collect();
    let pairs = pair::join_runs(&pair_servers(&runs), live.report.slowest);
    // For the final state that is served.
    live_pairs::replace_pairs_of_runs(&mut runs, pairs.clone());
    let mut finished = finish_runs(runs);
    pair::add_pairs_to_reports(&mut finished, pairs);
    app::keep_serving_until_signal(live, signals);
    print_reports_or_failure(&finished, failures, live)
}

/// Prints the reports, and then fails if an engine could not be observed, because its report is no sign of a healthy engine. If nothing was
/// seen of any engine, prints no report: empty ones would hide the reason.
fn print_reports_or_failure(
    finished_runs: &[RunReport],
    failures: Vec<Option<String>>,
    live: &LiveArgs,
) -> anyhow::Result<ExitCode> {
    let Some(UnobservedEngine { name, failure }) = first_unobserved_engine(finished_runs, failures) else {
        return app::print_reports(finished_runs, live.outcome);
    };
    if finished_runs.iter().all(|run| run.report.saw_nothing()) {
        bail!(failure);
    }
    app::print_reports(finished_runs, live.outcome)?;
    bail!("{name}: {failure}")
}

/// An engine of which nothing was observed.
struct UnobservedEngine<'a> {
    name: &'a str,
    /// Why it could not be observed.
    failure: String,
}

/// The first run with a failure that saw nothing. `failures` has one entry for each run. `None` if there is no such run.
fn first_unobserved_engine(finished_runs: &[RunReport], failures: Vec<Option<String>>) -> Option<UnobservedEngine<'_>> {
    for (run, failure) in finished_runs.iter().zip(failures) {
        if let Some(failure) = failure
            && run.report.saw_nothing()
        {
            return Some(UnobservedEngine { name: &run.name, failure });
        }
    }
    None
}

/// Ends the runs. Each step is done for all runs before the next step begins, because the later steps wait.
fn finish_runs(mut runs: Vec<Running<WatchedEngine>>) -> Vec<RunReport> {
    for run in &mut runs {
        run.source.close_outputs(&mut run.session);
    }
    for run in &mut runs {
        run.source.serve_final_state(&mut run.session);
    }
    runs.into_iter().map(|run| run.source.finish(run.session)).collect()
}

/// The servers that the runs observe, with what shows whether a server is the prefill or the decode server of a pair.
fn pair_servers(runs: &[Running<WatchedEngine>]) -> Vec<RunningServer<'_>> {
    let mut servers = Vec::new();
    for (run_index, run) in runs.iter().enumerate() {
        let analysis = run.session.analysis();
        servers.push(RunningServer {
            run_index,
            name: run.source.name(),
            analysis,
            side: KnownSide::find(run.source.side(), analysis),
            // All run on this machine, so their clocks are the same.
            anchor: None,
        });
    }
    servers
}

/// Reports a run that ended before it observed an engine, with the step of the start that was not finished.
fn report_unattached_run(
    args: &Args,
    endpoint: Option<MetricsOptions>,
    signals: &Signals,
    unfinished_step: &'static str,
) -> anyhow::Result<ExitCode> {
    let report = app::run_to_report(Unattached { unfinished: unfinished_step }, &args.live, endpoint, signals)?;
    app::print_report(&report, args.live.outcome)
}

/// Finds the processes of engines, and those that the user has named.
pub(super) fn find_processes(named_processes: &[RoleSpec]) -> anyhow::Result<Watcher> {
    open_files::raise_open_file_limit(open_files::DISCOVERY);
    let options = discover::DiscoverOptions {
        named: named_processes.to_vec(),
        ..discover::DiscoverOptions::new(engines::DISCOVERED)
    };
    Watcher::new(options).context("cannot look for the engine's processes")
}

/// Parses the argument of `--pid`.
pub(super) fn role_spec(text: &str) -> Result<RoleSpec, String> {
    RoleSpec::parse(text, engines::DISCOVERED)
}

/// Selects the engines of the named processes, or all that run if none is named. Prints which candidates are left out, and if none is
/// selected, what was found.
pub(super) fn choose_engines(topology: &Topology, named_processes: &[RoleSpec]) -> anyhow::Result<Vec<Engine>> {
    match topology.pick_engines(named_processes) {
        Ok(engines) => {
            report_other_candidates(topology, &engines);
            Ok(engines.into_iter().cloned().collect())
        }
        // The named processes may not be connected yet. The user knows that they belong together.
        Err(PickError::Unconnected(_)) => Ok(vec![engine_of_named_processes(topology, named_processes)]),
        Err(error) => {
            // The list of what was found shows why nothing of it was chosen.
            let has_found_any = !topology.engines.is_empty() || !topology.blind_spots.is_empty();
            if has_found_any {
                err!("{topology}");
            }
            if matches!(error, PickError::None(_)) {
                bail!("{error}{}", advice_to_find_engine(topology));
            }
            bail!(error)
        }
    }
}

/// Advice for a user whose engine was not found, as the end of an error message.
fn advice_to_find_engine(topology: &Topology) -> String {
    // The processes of other users are visible with the capabilities that the queues of sockets need.
    let sees_other_users = Permissions::current().capabilities_missing_for(Feature::Queues).is_empty();
    let as_root =
        if sees_other_users { "" } else { "; or run as root: other users' processes are only partly visible" };
    let containers = describe_searched_containers(topology);
    format!("{as_root}; {containers}; tokengap doctor shows what is visible")
}

/// Whether engines in containers were searched, for a user whose engine was not found.
fn describe_searched_containers(topology: &Topology) -> String {
    let environment = RunEnvironment::current();
    if !matches!(environment, RunEnvironment::Host) {
        return format!("if it runs in another container: {}", environment.pid_namespace_remedy());
    }
    // In a container that is not recognised as one, other containers are not visible.
    let is_in_container = topology.blind_spots.contains(&BlindSpot::OwnPidNamespace);
    String::from(if is_in_container {
        "processes of other containers are not visible here"
    } else {
        "containers of this machine are searched, too"
    })
}

/// Engine of only the named processes, even if they were assigned to different engines.
fn engine_of_named_processes(topology: &Topology, named_processes: &[RoleSpec]) -> Engine {
    let pids: BTreeSet<u32> = named_processes.iter().map(|spec| spec.pid).collect();
    // Hops and settings are those of the first engine that has one of these processes.
    let first = topology.engines.iter().find(|engine| pids.iter().any(|pid| engine.process_with_pid(*pid).is_some()));
    let mut engine = first.cloned().unwrap_or_default();
    let all_processes = topology.engines.iter().flat_map(|engine| &engine.processes);
    engine.processes = all_processes.filter(|process| pids.contains(&process.id.pid)).cloned().collect();
    engine
}

/// Prints the processes that may be of an engine but are not among the chosen `engines`: other groups of connected processes, and single
/// processes.
fn report_other_candidates(topology: &Topology, engines: &[&Engine]) {
    report_unwatched_groups(topology, engines);
    report_unconnected_candidates(topology, engines);
}

/// Prints how many groups of connected processes are not watched. Nothing identifies them as an engine but their connections.
fn report_unwatched_groups(topology: &Topology, engines: &[&Engine]) {
    let main_pids = topology.confirmed_engines().filter_map(Engine::main_process).map(|process| process.id.pid);
    let unwatched_engines: Vec<u32> = main_pids.filter(|pid| !has_process(engines, *pid)).collect();
    if let [first, ..] = unwatched_engines.as_slice() {
        let count = unwatched_engines.len();
        errln!(
            "tokengap: not watched: {count} groups of connected processes (first pid {first}); if one is an engine, name it with --pid"
        );
    }
}

/// Prints how many processes only look like a part of an engine: nothing shows that they exchange messages.
fn report_unconnected_candidates(topology: &Topology, engines: &[&Engine]) {
    let candidates: Vec<u32> =
        topology.candidate_pids().into_iter().filter(|pid| !has_process(engines, *pid)).collect();
    if let [first, ..] = candidates.as_slice() {
        let count = candidates.len();
        errln!("tokengap: candidates without a connection, not watched: {count} processes (first pid {first})");
    }
}

/// Whether the process with this pid belongs to one of the engines.
fn has_process(engines: &[&Engine], pid: u32) -> bool {
    engines.iter().any(|engine| engine.process_with_pid(pid).is_some())
}
