//! `tokengap run`: starts an engine with the relay in place from its first frame.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use confine::{Capabilities, Work};
use outputs::report::Report;
use sources::account;
use sources::guard::{Cleanup, Guard};
use sources::run::{Child, Forwarding, PrivateFolder, Run};
use sources::tap::{Tap, lower_decoding_priority};
use zmq_tap::relay::RelayOptions;

use session::Signals;

use crate::app;
use crate::args::LiveArgs;
use crate::confinement;
use crate::output;

/// Start an engine with the relay in place from its first frame. The engine needs no configuration.
///
/// The command gets its own temporary folder (TMPDIR), where SGLang and vLLM create their sockets. Each is relayed as it appears.
/// Output, signals and exit code pass through; tokengap's own report goes to stderr, or to --report. Docs: docs/relay.md.
#[derive(clap::Args)]
#[command(
    after_help = "Examples:\n  tokengap run -- python -m sglang.launch_server --model-path /models/m\n  tokengap run --record run.tgap --report run.txt -- ./serve.sh"
)]
pub(crate) struct Args {
    /// The command and its arguments.
    #[arg(required = true, last = true, value_name = "CMD")]
    command: Vec<OsString>,

    /// Directory for the command's temporary files, writable only by its owner, kept at the end. By default a new directory,
    /// removed with its contents when the command exits.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,

    /// Write the report to FILE instead of stderr.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,

    /// New file for the command's output while the screen is shown. Default: tokengap-run-PID.log in the directory for
    /// temporary files.
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    #[command(flatten)]
    live: LiveArgs,
}

/// Extra time for the command to exit after it was asked to.
const PATIENCE: Duration = Duration::from_secs(5);

/// `tokengap run`: starts a command whose sockets are relayed. Ends with it, and has its exit code if that is not 0.
pub(crate) fn run_child_command(args: &Args) -> anyhow::Result<ExitCode> {
    if let Some(report) = &args.report {
        output::ResultFile::check_writable(report, args.live.record.force)?;
    }
    let endpoint = args.live.telemetry.endpoint_options()?;
    let signals = Forwarding::catch_signals()?;
    let folder = PrivateFolder::open_named_or_create_temporary(args.folder.as_deref())?;
    // The screen uses the terminal, so the command writes to a file instead.
    let command_log = if args.live.outcome.is_headless() { None } else { Some(create_log_file(args)?) };
    let output = command_log.as_ref().map(|log| log.file.try_clone()).transpose()?;
    let child = Child::start(&args.command, folder.path(), output)?;
    let source = match start_guard_and_relay(args, &child, &folder, signals) {
        Ok(source) => source,
        // The user asked for a relayed command, so it does not run without the relay.
        Err(error) => {
            child.ask_to_end();
            child.exit_code_after_wait_or_kill(PATIENCE, &app::print_message);
            return Err(error);
        }
    };
    if let Some(log) = &command_log {
        errln!("tokengap: the output of {} is in {}", child.name(), log.path.display());
    }
    // This thread decodes, and must not delay the relay.
    lower_decoding_priority();
    // The signals go to the command, and the run ends with it.
    let watched = app::run_to_report(source, &args.live, endpoint, &Signals::none());
    let code = child.exit_code_after_wait_or_kill(PATIENCE, &app::print_message);
    // Removed only after the command has ended.
    drop(folder);
    let report = watched?;
    write_or_print_report(args, &report)?;
    if let Some(log) = &command_log {
        errln!("tokengap: the output of the command is in {}", log.path.display());
    }
    if code != 0 {
        return Ok(ExitCode::from(code));
    }
    if report.saw_nothing() {
        bail!(
            "nothing was relayed: {} created no socket in its directory for temporary files (TMPDIR), or sent nothing",
            child.name()
        );
    }
    Ok(app::exit_code(report.severity, args.live.outcome.fail_on))
}

/// Starts the guard of the command's sockets and the relay for them, confines this process, and passes its signals on to the command.
fn start_guard_and_relay(
    args: &Args,
    child: &Arc<Child>,
    folder: &PrivateFolder,
    signals: Forwarding,
) -> anyhow::Result<Run> {
    let afterwards = folder.is_own().then(|| Cleanup { child: child.pid(), remove: folder.path() });
    // The guard keeps the user of this process.
    let other_account = None;
    let guard = Guard::start(std::slice::from_ref(&folder.held), other_account, afterwards)?;
    // No other program starts after this point, and no output of the child has been read yet.
    confine_run(args, folder.path())?;
    signals.forward_to(child).context("cannot pass signals on")?;
    let options = RelayOptions { formats: engines::FORMATS, ..RelayOptions::default() };
    let tap = Tap::start(Vec::new(), options).context("the relay did not start")?;
    Run::start(tap, Arc::clone(child), folder, guard)
}

/// Writes the report to the file of `--report`. Prints it on standard error without that flag, or if the file cannot be written, because
/// standard output is the command's.
fn write_or_print_report(args: &Args, report: &Report) -> anyhow::Result<()> {
    let text = app::report_text(report, args.live.outcome.json)?;
    match &args.report {
        Some(path) => {
            output::write_result(Some(path), &text, app::escape_form(args.live.outcome.json), args.live.record.force)
                .inspect_err(|_| err!("{text}"))?;
        }
        None => err!("{text}"),
    }
    Ok(())
}

/// Restricts this process to the access that it needs once the command runs.
fn confine_run(args: &Args, folder: &Path) -> anyhow::Result<()> {
    let mut plan = confinement::confinement_plan_without_results(Work::Move, &args.live);
    // `CAP_KILL` is needed to end a command that has changed its user.
    plan.keep |= confinement::probe_capabilities() | Capabilities::KILL;
    plan.write.push(folder.to_owned());
    args.report.iter().for_each(|report| plan.permit_creation(report));
    confinement::confine_as_user(account::own_account(), plan, &args.live)
}

/// File with the command's output.
struct CommandLog {
    file: File,
    path: PathBuf,
}

/// Creates the log file for the command's output while the screen is active. Fails if the file exists.
#[expect(clippy::disallowed_methods, reason = "creates a new file")]
fn create_log_file(args: &Args) -> anyhow::Result<CommandLog> {
    let path = match &args.output {
        Some(path) => path.clone(),
        None => std::env::temp_dir().join(format!("tokengap-run-{}.log", std::process::id())),
    };
    // The output may contain prompts, so only the file's owner may read it.
    let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path);
    let file = file.with_context(|| format!("cannot create {} for the output of the command", path.display()))?;
    Ok(CommandLog { file, path })
}
