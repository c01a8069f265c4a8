//! Command line definitions. Help, man pages and completions are generated from them; every flag is declared once, here or beside its
//! command.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use clap::{Args, CommandFactory as _, Parser, Subcommand};
use trace::detect::Severity;
use trace::ledger::Limits;

use crate::cmd;
use crate::limit::LimitArgs;
use crate::sink::{FeedArgs, RecordArgs};
use crate::state::journal::DEFAULT_MOMENTS;
use crate::state::query::Query;
use crate::state::refresh::FINISHED_SHOWN;
use crate::state::ui::Saved;
use crate::telemetry::TelemetryArgs;
use crate::theme::Choice;

/// Shows where an LLM server's tokens wait between the scheduler and the client, and which ones never arrive.
#[derive(Parser)]
#[command(name = "tokengap", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 done, 1 findings at or above --fail-on, 2 error.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,

    /// Say more about tokengap's own doings, on stderr (-v, -vv).
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Keep all privileges: neither capabilities nor files nor system calls are given up (docs/internals/CONFINEMENT.md).
    #[arg(long, global = true)]
    pub(crate) no_confine: bool,

    /// Colours of the screen; auto follows `NO_COLOR` and what the terminal says of itself.
    #[arg(long, global = true, value_enum, value_name = "THEME", default_value_t)]
    pub(crate) theme: Choice,
}

#[derive(Subcommand)]
enum Command {
    #[cfg(target_os = "linux")]
    Attach(cmd::attach::Args),
    #[cfg(target_os = "linux")]
    Demo(cmd::demo::Args),
    Replay(cmd::replay::Args),
    Decode(cmd::decode::Args),
    Export(cmd::export::Args),
    Diff(cmd::diff::Args),
    #[cfg(target_os = "linux")]
    Doctor(cmd::doctor::Args),
    Report(cmd::report::Args),
    Import(cmd::import::Args),
    #[cfg(target_os = "linux")]
    Tap(cmd::tap::Args),
    Watch(cmd::watch::Args),
    #[cfg(target_os = "linux")]
    Run(cmd::run::Args),
    #[cfg(target_os = "linux")]
    Splice(cmd::splice::Args),
    #[cfg(target_os = "linux")]
    Guard(cmd::guard::Args),
    #[cfg(target_os = "linux")]
    Broker(cmd::broker::Args),
    Generate(cmd::generate::Args),
}

impl Cli {
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            #[cfg(target_os = "linux")]
            Command::Attach(args) => {
                cmd::attach::confine(&args);
                cmd::attach::run(&args)
            }
            #[cfg(target_os = "linux")]
            Command::Demo(args) => {
                cmd::demo::confine(&args);
                cmd::demo::run(args)
            }
            Command::Replay(args) => {
                cmd::replay::confine(&args);
                cmd::replay::run(&args)
            }
            Command::Decode(args) => {
                cmd::decode::confine(&args);
                cmd::decode::run(&args)
            }
            Command::Export(args) => {
                cmd::export::confine(&args);
                cmd::export::run(&args)
            }
            Command::Report(args) => {
                cmd::report::confine(&args);
                cmd::report::run(&args)
            }
            Command::Diff(args) => {
                cmd::diff::confine(&args);
                cmd::diff::run(&args)
            }
            #[cfg(target_os = "linux")]
            Command::Doctor(args) => cmd::doctor::run(&args),
            Command::Import(args) => {
                cmd::import::confine(&args);
                cmd::import::run(&args)
            }
            #[cfg(target_os = "linux")]
            Command::Tap(args) => {
                cmd::tap::confine(&args);
                cmd::tap::run(&args)
            }
            Command::Watch(args) => {
                cmd::watch::confine(&args);
                cmd::watch::run(&args)
            }
            #[cfg(target_os = "linux")]
            Command::Run(args) => cmd::run::run(&args),
            #[cfg(target_os = "linux")]
            Command::Splice(args) => cmd::splice::run(&args),
            #[cfg(target_os = "linux")]
            Command::Guard(args) => cmd::guard::run(&args),
            #[cfg(target_os = "linux")]
            Command::Broker(args) => {
                cmd::broker::confine(&args);
                cmd::broker::run(&args)
            }
            Command::Generate(args) => cmd::generate::run(&args, Self::command()),
        }
    }
}

/// What every live source understands.
#[derive(Args, Clone, Debug)]
pub(crate) struct LiveArgs {
    /// No screen: run, then print the report. Implied when stdout is not a terminal.
    #[arg(long)]
    pub(crate) headless: bool,

    /// Print the report as JSON, schema tokengap.report/1 (implies --headless).
    #[arg(long)]
    pub(crate) json: bool,

    /// Stop by itself after this long: 5s, 2m, 1h 30m.
    #[arg(long, value_name = "T", value_parser = duration)]
    pub(crate) duration: Option<Duration>,

    /// Exit with 1 when a finding is at least this severe.
    #[arg(long, value_name = "SEVERITY", value_parser = severity)]
    pub(crate) fail_on: Option<Severity>,

    /// Requests followed at once; the oldest are given up, and counted, beyond it.
    #[arg(long, value_name = "N", default_value_t = Limits::default().live_rids, value_parser = at_least_one)]
    pub(crate) max_live: usize,

    /// Finished requests kept in detail; older ones live on in the totals.
    #[arg(long, value_name = "N", default_value_t = Limits::default().finished_kept)]
    pub(crate) max_finished: usize,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    /// Requests to list in the report as the slowest, of those that are kept in detail; 0 lists none.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) slowest: usize,

    #[command(flatten)]
    pub(crate) screen: ScreenArgs,

    /// Take flags from this file: TOML, a section for each command and one, [live], for what live commands share. Flags
    /// of the command line win over it. SIGHUP reads it again.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Print the flags in effect as such a file, and end.
    #[arg(long)]
    pub(crate) print_config: bool,

    #[command(flatten)]
    pub(crate) record: RecordArgs,

    #[command(flatten)]
    pub(crate) telemetry: TelemetryArgs,

    #[command(flatten)]
    pub(crate) feed: FeedArgs,
}

/// What the screen remembers, of each run that it shows.
#[derive(Args, Clone, Debug)]
pub(crate) struct ScreenArgs {
    /// Moments of chunks that the screen keeps for the view of one request: 48 bytes each, the oldest are forgotten.
    #[arg(long, value_name = "N", default_value_t = DEFAULT_MOMENTS)]
    pub(crate) journal: usize,

    /// Finished requests in the screen's table; older ones live on in the totals.
    #[arg(long, value_name = "N", default_value_t = FINISHED_SHOWN)]
    pub(crate) rows: usize,

    /// A filter of requests with a name, for the screen: `slow=gap>1s`; / and then @slow puts it in force. May be given several times.
    #[arg(long = "filter", value_name = "NAME=FILTER", value_parser = saved)]
    pub(crate) filters: Vec<Saved>,
}

/// Parses `NAME=FILTER`.
fn saved(text: &str) -> Result<Saved, String> {
    let split = text.split_once('=').filter(|(name, _)| {
        let letters = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        !name.is_empty() && name.chars().all(letters)
    });
    let Some((name, filter)) = split else {
        return Err("write it as NAME=FILTER, for example slow=gap>1s; a name has letters, digits, - and _".into());
    };
    let query = Query::parse(filter).map_err(|wrong| format!("the filter is wrong {wrong}"))?;
    Ok(Saved {
        name: name.into(),
        text: filter.trim().into(),
        query,
    })
}

impl LiveArgs {
    pub(crate) fn limits(&self) -> Limits {
        self.limits.on(Limits {
            live_rids: self.max_live,
            finished_kept: self.max_finished,
            ..Limits::default()
        })
    }
}

pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1 is needed".into()),
        Ok(n) => Ok(n),
        Err(error) => Err(format!("{error}; a whole number is meant, for example 100000")),
    }
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let hint = "write it like 5s, 500ms, 2m or 1h 30m";
    let span: jiff::SignedDuration = text.parse().map_err(|e| format!("{e}; {hint}"))?;
    match Duration::try_from(span) {
        Ok(d) if !d.is_zero() => Ok(d),
        _ => Err(format!("it must be longer than nothing; {hint}")),
    }
}

pub(crate) fn severity(text: &str) -> Result<Severity, String> {
    match text {
        "info" => Ok(Severity::Info),
        "warning" => Ok(Severity::Warning),
        "critical" => Ok(Severity::Critical),
        other => Err(format!("{other:?} is not a severity; use info, warning or critical")),
    }
}

/// Changes the log filter once the log is initialised.
static CHANGE: OnceLock<Box<dyn Fn(tracing_subscriber::EnvFilter) + Send + Sync>> = OnceLock::new();

/// Initialises tokengap's log on stderr, which is held back while a screen is active. It shows warnings, or more with -v; `TOKENGAP_LOG`
/// overrides the level. A second call changes the level.
pub(crate) fn init_log(verbose: u8) {
    use tracing_subscriber::EnvFilter;
    let level = match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("TOKENGAP_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    if let Some(change) = CHANGE.get() {
        return change(filter);
    }
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(crate::log::Writer)
        .with_target(false)
        .with_filter_reloading();
    let handle = log.reload_handle();
    log.init();
    // The reload fails only if the log no longer exists.
    drop(CHANGE.set(Box::new(move |filter| drop(handle.reload(filter)))));
}
