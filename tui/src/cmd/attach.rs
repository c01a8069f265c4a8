//! `tokengap attach`: passive, on an engine that already runs.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use probe_user::discover::{self, Engine, PickError, RoleSpec, Topology, Watcher};
use probe_user::{Feature, Options, Permissions};

use crate::app::{self, Signals};
use crate::attach::{Attach, AttachOptions, Follow, PythonOptions};
use crate::cli::LiveArgs;
use crate::confinement;

/// Watch a running engine without touching it: eBPF probes on libzmq show each frame sent, taken and handled.
///
/// Finds the engine's processes by itself. Needs root, or `CAP_SYS_ADMIN` and `CAP_SYS_PTRACE`.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tokengap attach\n  tokengap attach --pid 4711=scheduler --pid 4712=tokenizer --duration 30s"
)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of its own")]
pub(crate) struct Args {
    /// A process to watch, and its part if its title does not tell: scheduler, detokenizer, tokenizer, worker, router,
    /// detokenizer-router. Repeatable; without it the engine that runs here.
    #[arg(long, value_name = "PID[=ROLE]")]
    pid: Vec<RoleSpec>,

    /// Most bytes copied of a message; longer ones are counted as undecoded.
    #[arg(long, value_name = "BYTES", default_value_t = probe_ebpf_most())]
    capture: u32,

    /// Size of the ring between the kernel and tokengap. What does not fit is lost to us, counted, and never delays the target.
    #[arg(long, value_name = "BYTES", default_value_t = Options::default().ring_bytes)]
    ring: u32,

    /// Leave out what the serving processes write to their clients: nothing is said to be delivered, and no drop is confirmed.
    #[arg(long)]
    no_egress: bool,

    /// Leave out the polls of the engine's event loops, which are most of what the probe costs a tokenizer at full speed:
    /// how many frames a wakeup takes is unknown, and no drop is predicted.
    #[arg(long)]
    no_wakeups: bool,

    /// The log file of a Dynamo worker of release 1.6 or later, followed for how SGLang calls each request; repeatable. What
    /// a worker writes to files as standard output and error is followed without it.
    #[arg(long, value_name = "FILE")]
    worker_log: Vec<PathBuf>,

    /// Read the tokenizer's Python stacks this often a second, 1 to 1000, without stopping it: the functions it runs in,
    /// while frames pile up and over the run. Each reading costs tokengap some hundred microseconds of CPU.
    #[arg(long, value_name = "HZ", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    python_stacks: Option<u32>,

    /// Read the stacks of every process of the engine, not the tokenizers' alone.
    #[arg(long, requires = "python_stacks")]
    python_stacks_all: bool,

    /// Wait for the engine: start before it does, and when it ends, wait for the next one and watch that. Counters and the
    /// recording go on; each ending is told in the report.
    #[arg(long, conflicts_with = "pid")]
    follow: bool,

    #[command(flatten)]
    live: LiveArgs,
}

const fn probe_ebpf_most() -> u32 {
    1 << 20
}

impl Args {
    fn options(&self) -> AttachOptions {
        AttachOptions {
            named: self.pid.iter().map(|spec| spec.pid).collect(),
            capture: self.capture,
            egress: !self.no_egress,
            logs: self.worker_log.clone(),
            probe: Options {
                ring_bytes: self.ring,
                polls: !self.no_wakeups,
                ..Options::default()
            },
            python: self.python_stacks.map(|hertz| PythonOptions {
                hertz,
                every_role: self.python_stacks_all,
            }),
        }
    }
}

/// Restricts the process to the access this command needs.
pub(crate) fn confine(args: &Args) {
    confinement::attach(&args.live);
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.follow {
        return app::run(Follow::new(args.options()), &args.live);
    }
    let watcher = Watcher::new(discover::Options {
        named: args.pid.clone(),
        ..discover::Options::default()
    })
    .context("cannot look for the engine's processes")?;
    let engine = choose(watcher.topology(), &args.pid)?;
    if let Some(side) = &engine.disaggregation {
        let (word, sends) = (side.value.word(), side.value.sends());
        errln!(
            "tokengap: this is the {word} server of a pair ({}): it sends {sends}",
            side.origin
        );
    }
    // Handle signals before announcing the attach, so that an interrupt right after it still prints a report.
    let signals = Signals::install().context("cannot listen for signals")?;
    let mut attach = Attach::start(watcher, engine, args.options())?;
    attach.refuse_programs();
    errln!("tokengap: attached to {} processes", attach.watched());
    let report = app::watch(attach, &args.live, &signals)?;
    app::conclude(&report, args.live.json, args.live.fail_on)
}

/// Selects the engine: that of the named processes, the only one running, or the user's choice from a list.
pub(super) fn choose(topology: &Topology, named: &[RoleSpec]) -> anyhow::Result<Engine> {
    match topology.pick(named) {
        Ok(engine) => Ok(engine.clone()),
        // The named processes may not be connected yet. The user knows that they belong together.
        Err(PickError::Apart(_)) => Ok(only(topology, named)),
        Err(PickError::Several(_)) if std::io::stdin().is_terminal() => ask(topology),
        Err(error) => {
            if !topology.engines.is_empty() || !topology.blind.is_empty() {
                err!("{topology}");
            }
            if error == PickError::None && !Permissions::here().lacks(Feature::Queues).is_empty() {
                bail!("{error}; or run this as root: other users' processes are not seen whole");
            }
            bail!(error)
        }
    }
}

/// Engine of only the named processes, even if they were assigned to different engines.
fn only(topology: &Topology, named: &[RoleSpec]) -> Engine {
    let is_named = |pid: u32| named.iter().any(|spec| spec.pid == pid);
    let first = topology
        .engines
        .iter()
        .find(|engine| engine.processes.iter().any(|p| is_named(p.id.pid)));
    let mut engine = first.cloned().unwrap_or_default();
    engine.processes = topology
        .engines
        .iter()
        .flat_map(|e| &e.processes)
        .filter(|p| is_named(p.id.pid))
        .cloned()
        .collect();
    engine
}

fn ask(topology: &Topology) -> anyhow::Result<Engine> {
    err!("{topology}\nWhich engine? [1-{}] ", topology.engines.len());
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    let picked = answer
        .trim()
        .parse::<usize>()
        .ok()
        .and_then(|n| topology.engines.get(n.checked_sub(1)?));
    picked
        .cloned()
        .with_context(|| format!("{:?} is none of the numbers listed", answer.trim()))
}
