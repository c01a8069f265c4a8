//! A live command from its flags to its report: outputs, observer, run, exit code.

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context, bail};
use outputs::report::hostile::EscapeForm;
use outputs::report::{Clock, Report};
use recording::{RecordedPayload, RecordingHeader};
use serde::Serialize;
use session::sink::{OutputFiles, Sink};
use session::telemetry::{MetricsOptions, SharedEndpoint, Telemetry};
use session::{LiveSource, Observer, RunOptions, Running, Session, Signals, Source};
use trace::Config;
use trace::detect::Severity;
use tui::Screen;

use crate::args::{LiveArgs, OutcomeArgs, ScreenArgs};
use crate::config::Configured;
use crate::headless::{self, Progress};
use crate::output;

/// Returns whether the run observed no traffic.
pub(crate) fn saw_nothing(report: &Report) -> bool {
    report.hops.iter().all(|hop| hop.frames_sent.max(hop.frames_received).unwrap_or(0) == 0)
        && report.own.frames_undecoded == 0
        && report.answers.as_ref().is_none_or(|answers| answers.seen == 0)
}

/// Runs `source` until it ends, `--duration` is over, the user quits or a signal arrives. Then prints the report.
///
/// `endpoint` is from [`TelemetryArgs::endpoint_options`], which must be called before the confinement.
///
/// [`TelemetryArgs::endpoint_options`]: crate::args::TelemetryArgs::endpoint_options
pub(crate) fn run_to_exit_code(
    source: impl LiveSource,
    args: &LiveArgs,
    endpoint: Option<MetricsOptions>,
) -> anyhow::Result<ExitCode> {
    let signals = Signals::install().context("cannot listen for signals")?;
    print_report(&run_to_report(source, args, endpoint, &signals)?, args.outcome)
}

/// Runs `source` as [`run`] does, and returns the report. Fails if the source could observe nothing.
pub(crate) fn run_to_report(
    mut source: impl LiveSource,
    args: &LiveArgs,
    endpoint: Option<MetricsOptions>,
    signals: &Signals,
) -> anyhow::Result<Report> {
    let files = args.record.recording_files();
    if files.payload == RecordedPayload::Tokens {
        source.keep_ids();
    }
    let outputs = RunOutputs::open(args, source.kind(), &files, endpoint)?;
    let session = outputs.into_session(args, open_observer(args)?);
    let mut runs = vec![Running::new(source, session)];
    run_live(&mut runs, args, signals, None)?;
    let Running { source, session, .. } = runs.remove(0);
    let report = session.finish(&source, &print_message);
    // The report is complete, so a reader of the metrics gets the final state.
    keep_serving(args, signals);
    if let Some(failure) = source.failure()
        && saw_nothing(&report)
    {
        bail!(failure);
    }
    Ok(report)
}

/// Outputs of one run of a live command, open.
pub(crate) struct RunOutputs {
    config: Config,
    sink: Sink,
    telemetry: Telemetry,
}

impl RunOutputs {
    /// Opens the outputs, before the screen, so that errors appear at once.
    pub(crate) fn open(
        args: &LiveArgs,
        kind: &str,
        files: &OutputFiles,
        endpoint: Option<MetricsOptions>,
    ) -> anyhow::Result<Self> {
        let config = live_config(args);
        let sink = Sink::open(files, kind, &config)?;
        let header = RecordingHeader { payload: files.payload, ..RecordingHeader::of(kind, config) };
        let telemetry = Telemetry::open(endpoint, args.telemetry.push_options().as_ref(), &header, engines::FACTS)?;
        if let Some(bound) = telemetry.listen_address() {
            errln!("tokengap: metrics at http://{bound}/metrics");
            if args.telemetry.insecure && !bound.ip().is_loopback() {
                errln!(
                    "tokengap: no token is required (--insecure): anyone who can reach {bound} can read metrics, report, recording and events, with request ids but no text"
                );
            }
        }
        Ok(Self { config, sink, telemetry })
    }

    /// Outputs of a further run. `sink` is `None` if its files could not be opened.
    pub(crate) fn of_further_run(args: &LiveArgs, sink: Option<Sink>, telemetry: Telemetry) -> Self {
        let config = live_config(args);
        Self { config, sink: sink.unwrap_or_else(|| Sink::none("attach", &config)), telemetry }
    }

    /// The endpoint, for the metrics of further runs.
    pub(crate) fn shared_endpoint(&self) -> SharedEndpoint {
        self.telemetry.shared_endpoint()
    }

    pub(crate) fn into_session(self, args: &LiveArgs, observer: Box<dyn Observer>) -> Session {
        Session::new(&self.config, observer, self.sink, args.report.slowest).with_telemetry(self.telemetry)
    }
}

pub(crate) fn live_config(args: &LiveArgs) -> Config {
    Config {
        limits: args.limits.limits(),
        engines: engines::FACTS,
        chunk_history: args.screen.chunk_history(args.outcome),
        recent_seconds: ScreenArgs::recent_seconds(args.outcome),
    }
}

/// The screen, or what a run without one prints.
fn open_observer(args: &LiveArgs) -> anyhow::Result<Box<dyn Observer>> {
    Ok(match open_screen(args)? {
        Some(screen) => Box::new(screen.into_observer()),
        None => Box::new(Progress::default()),
    })
}

/// The screen; `None` for a run without one.
pub(crate) fn open_screen(args: &LiveArgs) -> anyhow::Result<Option<Screen>> {
    if !args.outcome.asks_for_report() {
        headless::report_no_terminal();
    }
    if args.outcome.is_headless() { Ok(None) } else { Screen::open(&args.screen.options()).map(Some) }
}

/// Polls the runs, and those that `join`, until they end.
pub(crate) fn run_live<S: Source>(
    runs: &mut Vec<Running<S>>,
    args: &LiveArgs,
    signals: &Signals,
    join: Option<&mut dyn FnMut() -> Option<Running<S>>>,
) -> anyhow::Result<()> {
    let mut configured = Configured::at_start(args)?;
    let mut reload =
        configured.as_mut().map(|configured| |session: &mut Session| apply_reloaded_config(session, configured));
    let options = RunOptions {
        join: join.map(|join| join as &mut dyn FnMut() -> Option<Running<S>>),
        duration: args.duration,
        reload: reload.as_mut().map(|reload| reload as &mut dyn FnMut(&mut Session)),
        alarm: &print_message,
    };
    session::run(runs, signals, options);
    Ok(())
}

/// Keeps the final state served for as long as asked for, or until a signal.
pub(crate) fn keep_serving(args: &LiveArgs, signals: &Signals) {
    let before = signals.seen();
    args.telemetry.keep_serving(|| signals.seen() > before);
}

/// Result of one of several runs.
#[derive(Serialize)]
pub(crate) struct FinishedRun {
    /// Name of the engine, or of the pod.
    pub(crate) name: String,
    /// Address of a watched run; `null` for an engine of this machine.
    pub(crate) endpoint: Option<String>,
    /// Side of a pair of servers: `prefill` or `decode`.
    pub(crate) side: Option<&'static str>,
    /// State of the connection or engine at the end.
    pub(crate) state: String,
    /// Records of a watched run before the first received one; `null` if nothing was received.
    pub(crate) records_before: Option<u64>,
    /// Missed records of a watched run, and the number of gaps they form.
    pub(crate) records_missed: Option<u64>,
    pub(crate) gaps: Option<u64>,
    pub(crate) report: Report,
}

impl FinishedRun {
    /// The run's name, with the side of a pair or the address.
    fn title(&self) -> String {
        let more = self.side.map(str::to_owned).or_else(|| self.endpoint.clone());
        more.map_or_else(|| self.name.clone(), |more| format!("{} ({more})", self.name))
    }
}

/// Schema name of several reports in one document.
const RUNS_SCHEMA: &str = "tokengap.watch/2";

#[derive(Serialize)]
struct RunsReport<'a> {
    schema: &'static str,
    /// Name and headline of the run with the worst finding.
    worst: WorstRun<'a>,
    runs: &'a [FinishedRun],
}

#[derive(Serialize)]
struct WorstRun<'a> {
    name: &'a str,
    verdict: &'a str,
}

/// Prints the reports and returns the exit code for `--fail-on` over all of them.
pub(crate) fn print_reports(runs: &[FinishedRun], outcome: OutcomeArgs) -> anyhow::Result<ExitCode> {
    // The first of several equal ones.
    let worst = runs.iter().rev().max_by_key(|run| run.report.severity);
    let (Some(worst), [_, _, ..]) = (worst, runs) else {
        let one = runs.first().context("there was no run")?;
        return print_report(&one.report, outcome);
    };
    let mut out = output::stdout(form(outcome.json));
    if outcome.json {
        let worst = WorstRun { name: &worst.name, verdict: &worst.report.verdict };
        serde_json::to_writer(&mut out, &RunsReport { schema: RUNS_SCHEMA, worst, runs })
            .map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        writeln!(out, "worst of {}: {}: {}\n", runs.len(), worst.title(), worst.report.verdict)?;
        for run in runs {
            writeln!(out, "=== {}: {}\n", run.title(), run.state)?;
            write!(out, "{}", run.report.to_text(&Clock::of(&run.report, None)))?;
            writeln!(out)?;
        }
    }
    out.flush()?;
    Ok(exit_code(worst.report.severity, outcome.fail_on))
}

/// Prints a message of the run on standard error.
pub(crate) fn print_message(message: &str) {
    errln!("tokengap: {message}");
}

/// Prints the report and returns the exit code for `--fail-on`.
pub(crate) fn print_report(report: &Report, outcome: OutcomeArgs) -> anyhow::Result<ExitCode> {
    output::write_result(None, &report_text(report, outcome.json)?, form(outcome.json), false)?;
    Ok(exit_code(report.severity, outcome.fail_on))
}

/// Exit code for `--fail-on`, with the severity of the worst finding.
pub(crate) fn exit_code(worst: Option<Severity>, fail_on: Option<Severity>) -> ExitCode {
    ExitCode::from(u8::from(fail_on.is_some_and(|min| worst >= Some(min))))
}

/// Reads the configuration again and applies the settings that can change during a run.
fn apply_reloaded_config(session: &mut Session, configured: &mut Configured) {
    match configured.reload() {
        Ok((args, message)) => {
            session.update_limits(args.report.slowest, args.record.dump_rules());
            session.notify(message);
        }
        Err(error) => session.notify(format!("! configuration not reloaded: {error:#}")),
    }
}

/// How a result with or without `--json` is escaped.
pub(crate) fn form(json: bool) -> EscapeForm {
    if json { EscapeForm::Json } else { EscapeForm::Text }
}

/// The report as it is printed.
pub(crate) fn report_text(report: &Report, json: bool) -> anyhow::Result<String> {
    Ok(if json { serde_json::to_string(report)? + "\n" } else { report.to_text(&Clock::of(report, None)) })
}
