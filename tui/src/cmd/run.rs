//! `tokengap run`: starts an engine with the relay in place from its first frame.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use confine::Work;
use zmq_tap::relay::{Options, step_aside};
use zmq_tap::tap::Tap;

use crate::app::{self, Signals};
use crate::cli::LiveArgs;
use crate::confinement;
use crate::guard::{Afterwards, Guard};
use crate::output;
use crate::run::{Child, Forwarding, Private, Run};

/// Start an engine with the relay in place from the first frame: it connects as always and finds the relay there.
///
/// The command gets a temporary folder of its own (TMPDIR), where SGLang makes its sockets; each is relayed as it appears.
/// Output, signals and exit code pass through: tokengap's own report goes to stderr, or to --report. Docs: docs/relay.md.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tokengap run -- python -m sglang.launch_server --model-path /models/m\n  tokengap run --record run.tgap --report run.txt -- ./serve.sh"
)]
pub(crate) struct Args {
    /// The command and its arguments.
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,

    /// The command's folder for temporary files, kept at the end; ours alone to write to. By default a new one, removed
    /// with all that is in it when the command has ended.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,

    /// Write the report to FILE instead of stderr.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// With the screen: what the command says goes to this new file. By default tokengap-run-PID.log in the folder for
    /// temporary files.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    live: LiveArgs,
}

/// Extra time for the command to exit after it was asked to.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let signals = Forwarding::install()?;
    let folder = Private::open(args.folder.as_deref())?;
    let said = if app::is_headless(&args.live) {
        None
    } else {
        Some(log(args)?)
    };
    let output = said.as_ref().map(|(file, _)| file.try_clone()).transpose()?;
    let child = Child::start(&args.command, folder.path(), output)?;
    let afterwards = folder.is_own().then(|| Afterwards {
        child: child.pid(),
        remove: folder.path(),
    });
    let started = Guard::start(&[folder.path().to_owned()], afterwards).and_then(|guard| {
        // No other program starts after this point, and no output of the child has been read yet.
        confine(args, folder.path());
        signals.to(&child).context("cannot pass signals on")?;
        let tap = Tap::waiting(Options::default()).context("the relay did not start")?;
        Run::start(tap, child.clone(), &folder, guard)
    });
    let source = match started {
        Ok(source) => source,
        Err(error) => {
            child.ask_to_end();
            child.exit_code(PATIENCE);
            return Err(error);
        }
    };
    if let Some((_, path)) = &said {
        errln!("tokengap: what {} says is in {}", child.name(), path.display());
    }
    // Lower the priority of this thread, which decodes, so that the relay's thread is scheduled first.
    if let Err(error) = step_aside() {
        tracing::info!("cannot lower the priority of decoding: {error}");
    }
    let watched = app::watch(source, &args.live, &Signals::none());
    let code = child.exit_code(PATIENCE);
    drop(folder);
    let report = watched?;
    let text = if args.live.json {
        serde_json::to_string(&report)? + "\n"
    } else {
        report.to_text()
    };
    match &args.report {
        Some(path) => output::write(Some(path), &text, args.live.record.force)?,
        None => err!("{text}"),
    }
    if let Some((_, path)) = &said {
        errln!("tokengap: the output of the command is in {}", path.display());
    }
    let failed = args.live.fail_on.is_some_and(|least| app::is_too_bad(&report, least));
    Ok(ExitCode::from(if code == 0 { u8::from(failed) } else { code }))
}

/// Restricts the process to the access needed once the child runs.
fn confine(args: &Args, folder: &Path) {
    let mut plan = confinement::probes(confinement::live(Work::Move, &args.live)).write(folder);
    if let Some(report) = &args.report {
        plan = plan.make(report);
    }
    confinement::apply(&plan.keep(confinement::MOVING));
}

/// Creates the log file for the command's output while the screen is active.
fn log(args: &Args) -> anyhow::Result<(File, PathBuf)> {
    let by_default = || std::env::temp_dir().join(format!("tokengap-run-{}.log", std::process::id()));
    let path = args.output.clone().unwrap_or_else(by_default);
    let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("cannot make {} for what the command says", path.display()))?;
    Ok((file, path))
}
