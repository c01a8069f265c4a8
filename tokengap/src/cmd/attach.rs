//! `tokengap attach`: passive, on an engine that already runs.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use probe_user::discover::{self, BlindSpot, Engine, PickError, RoleSpec, Topology, Watcher};
use probe_user::{Feature, Permissions, ProbeOptions, RunEnvironment};

use session::Signals;
use session::telemetry::MetricsOptions;
use sources::attach::{Attach, AttachOptions, Follow, PythonOptions, StartUp, Unattached};
use sources::{open_files, tokenizer};

use crate::app;
use crate::args::{LiveArgs, TUNING};
use crate::cmd::prober;
use crate::confinement::{self, HelperOptions};

/// Watch a running engine without touching it: eBPF probes on libzmq show each frame sent, received and processed.
///
/// Finds the engine's processes by itself. Needs root, or `CAP_SYS_ADMIN` and `CAP_SYS_PTRACE`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tokengap attach\n  tokengap attach --pid 4711=scheduler --pid 4712=tokenizer --duration 30s"
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a separate flag")]
pub(crate) struct Args {
    /// A process to watch, and its role if its title does not show it: scheduler, detokenizer, tokenizer, worker, router,
    /// detokenizer-router. Repeatable. Default: the engine running on this machine.
    #[arg(long, value_name = "PID[=ROLE]", value_parser = role_spec)]
    pid: Vec<RoleSpec>,

    /// Do not observe responses to clients: deliveries are unknown and no drop is confirmed.
    #[arg(long)]
    no_egress: bool,

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

    /// Wait for an engine to start, and after it exits, for the next one. Counters and the recording continue; the report lists
    /// each exit.
    #[arg(long, conflicts_with = "pid")]
    follow: bool,

    /// The model's tokenizer.json, for vLLM: tokens of responses that carry only text are counted with it. Default: found through
    /// the server's command line.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,

    #[command(flatten)]
    live: LiveArgs,

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

    fn helper_options(&self) -> HelperOptions {
        HelperOptions {
            prober_arguments: prober::Args::arguments_for(&self.probe_options()),
            named_pids: self.pid.iter().map(|spec| spec.pid).collect(),
            named_files: self.live.config.iter().chain(&self.worker_log).chain(&self.tokenizer).cloned().collect(),
        }
    }

    fn options(&self, python: Option<PythonOptions>) -> anyhow::Result<AttachOptions> {
        Ok(AttachOptions {
            named: self.pid.iter().map(|spec| spec.pid).collect(),
            capture: self.capture,
            egress: !self.no_egress,
            logs: self.worker_log.clone(),
            tokenizer: self.tokenizer.as_deref().map(tokenizer::read_tokenizer).transpose()?,
            probe: self.probe_options(),
            python,
        })
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    // The token is read before root is given up.
    let endpoint = args.live.telemetry.endpoint_options()?;
    let python = args.python_stacks.map(|hertz| PythonOptions::start(hertz, args.python_stacks_all)).transpose()?;
    confinement::confine_attach(&args.live, &args.helper_options())?;
    let options = args.options(python)?;
    if args.follow {
        return app::run_to_exit_code(Follow::new(options), &args.live, endpoint);
    }
    // Before discovery, which may take long, and before the attach is announced, so that an interrupt prints a report.
    let signals = Signals::install().context("cannot listen for signals")?;
    let start_up = StartUp::new(&signals, args.live.duration);
    let named = args.pid.clone();
    let Some(watcher) = start_up.wait(move || processes(&named))? else {
        return end_early(args, endpoint, &signals, "the search for the engine's processes");
    };
    // It may ask the user, who may take long.
    let topology = watcher.topology().clone();
    let named = args.pid.clone();
    let Some(engine) = StartUp::new(&signals, None).wait(move || choose(&topology, &named))? else {
        return end_early(args, endpoint, &signals, "the choice of an engine");
    };
    if let Some(side) = &engine.settings.disaggregation {
        let side_of_pair = side.value;
        errln!(
            "tokengap: this is the {} server of a pair ({}); it sends {}",
            side_of_pair.word,
            side.origin,
            side_of_pair.sends
        );
    }
    let Some(attach) = start_up.wait(move || Attach::start(watcher, engine, options))? else {
        return end_early(args, endpoint, &signals, "the attach to the engine's processes");
    };
    if let Some(refusal) = attach.refusal() {
        bail!(refusal);
    }
    for (process, by) in attach.sides() {
        let by = by.unwrap_or("nothing");
        errln!("tokengap: frames of {} {} are observed by {by}", process.role, process.id.pid);
    }
    errln!("tokengap: attached to {} processes", attach.watched());
    let report = app::run_to_report(attach, &args.live, endpoint, &signals)?;
    app::print_report(&report, args.live.outcome)
}

/// Reports a run that ended before it observed an engine.
fn end_early(
    args: &Args,
    endpoint: Option<MetricsOptions>,
    signals: &Signals,
    unfinished: &'static str,
) -> anyhow::Result<ExitCode> {
    let report = app::run_to_report(Unattached { unfinished }, &args.live, endpoint, signals)?;
    app::print_report(&report, args.live.outcome)
}

/// Finds the processes of engines, and those `named` by the user.
pub(super) fn processes(named: &[RoleSpec]) -> anyhow::Result<Watcher> {
    open_files::raise_limit(open_files::DISCOVERY);
    let options =
        discover::DiscoverOptions { named: named.to_vec(), ..discover::DiscoverOptions::new(engines::DISCOVERED) };
    Watcher::new(options).context("cannot look for the engine's processes")
}

/// Parses the argument of `--pid`.
pub(super) fn role_spec(text: &str) -> Result<RoleSpec, String> {
    RoleSpec::parse(text, engines::DISCOVERED)
}

/// Selects the engine: that of the named processes, the only one running, or the user's choice from a list.
pub(super) fn choose(topology: &Topology, named: &[RoleSpec]) -> anyhow::Result<Engine> {
    match topology.pick_engine(named) {
        Ok(engine) => {
            report_other_candidates(topology, engine);
            Ok(engine.clone())
        }
        // The named processes may not be connected yet. The user knows that they belong together.
        Err(PickError::Unconnected(_)) => Ok(only(topology, named)),
        Err(PickError::Several(_)) if std::io::stdin().is_terminal() => ask(topology),
        Err(error) => {
            if !topology.engines.is_empty() || !topology.blind_spots.is_empty() {
                err!("{topology}");
            }
            if !matches!(error, PickError::None(_)) {
                bail!(error);
            }
            let as_root = if Permissions::current().missing_for(Feature::Queues).is_empty() {
                ""
            } else {
                "; or run as root: other users' processes are only partly visible"
            };
            let containers = match RunEnvironment::current() {
                // In a container that is not recognised as one, other containers are not visible.
                RunEnvironment::Host if topology.blind_spots.contains(&BlindSpot::OwnPidNamespace) => {
                    "processes of other containers are not visible here".to_owned()
                }
                RunEnvironment::Host => "containers of this machine are searched, too".to_owned(),
                inside => format!("if it runs in another container: {}", inside.pid_namespace_remedy()),
            };
            bail!("{error}{as_root}; {containers}; tokengap doctor shows what is visible")
        }
    }
}

/// Engine of only the named processes, even if they were assigned to different engines.
fn only(topology: &Topology, named: &[RoleSpec]) -> Engine {
    let is_named = |pid: u32| named.iter().any(|spec| spec.pid == pid);
    let first = topology.engines.iter().find(|engine| engine.processes.iter().any(|p| is_named(p.id.pid)));
    let mut engine = first.cloned().unwrap_or_default();
    engine.processes =
        topology.engines.iter().flat_map(|e| &e.processes).filter(|p| is_named(p.id.pid)).cloned().collect();
    engine
}

/// Prints the processes that look like a part of an engine but are not connected to any.
fn report_other_candidates(topology: &Topology, engine: &Engine) {
    let pids = topology.candidate_pids();
    let others: Vec<u32> = pids.into_iter().filter(|pid| engine.process_with_pid(*pid).is_none()).collect();
    if let [first, ..] = others.as_slice() {
        let count = others.len();
        errln!("tokengap: candidates without a connection, not watched: {count} processes (first pid {first})");
    }
}

fn ask(topology: &Topology) -> anyhow::Result<Engine> {
    let engines: Vec<&Engine> = topology.confirmed_engines().collect();
    let answer = answer(&format!("{topology}\nWhich engine? [1-{}]", engines.len()))?;
    let picked = answer.parse::<usize>().ok().and_then(|n| engines.get(n.checked_sub(1)?).copied());
    picked.cloned().with_context(|| format!("{answer:?} is not one of the listed numbers"))
}

/// The user's answer on the terminal.
pub(super) fn answer(question: &str) -> std::io::Result<String> {
    err!("{question} ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(answer.trim().to_owned())
}
