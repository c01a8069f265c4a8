//! A live command from its flags to its report: outputs, observer, run, exit code.

use std::io::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use outputs::report::hostile::EscapeForm;
use outputs::report::{Clock, Report, RunReport, RunsReport, list_runs, worst_run};
use recording::{RecordedPayload, RecordingHeader};
use session::sink::{OutputFiles, Sink};
use session::telemetry::{MetricsOptions, SharedTelemetry, Telemetry};
use session::{CompareRuns, LiveSource, Observer, RunHooks, RunOptions, Running, Session, Signals, Source};
use trace::Config;
use trace::detect::Severity;
use tui::Screen;

use crate::args::{LiveArgs, OutcomeArgs};
use crate::config::Configured;
use crate::headless::{self, Progress};
use crate::output;

/// Runs `source` until it ends, `--duration` is over, the user quits or a signal arrives. Then prints the report.
///
/// `endpoint` is from [`TelemetryArgs::endpoint_options`], which must be called before the confinement.
///
/// [`TelemetryArgs::endpoint_options`]: crate::args::TelemetryArgs::endpoint_options
pub(crate) fn run_and_print_report(
    source: impl LiveSource,
    args: &LiveArgs,
    endpoint: Option<MetricsOptions>,
) -> anyhow::Result<ExitCode> {
    let signals = Signals::install().context("cannot listen for signals")?;
    print_report(&run_to_report(source, args, endpoint, &signals)?, args.outcome)
}

/// Runs `source` until it ends or a signal ends the run, and returns the report. With `--metrics-linger`, serves the final metrics for that
/// time before it returns. Fails if the source could observe nothing.
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
    // The run loop takes a list, because other runs can join. None does here, because no hook adds one.
    let no_hooks = RunHooks::default();
    let mut runs = vec![Running::new(source, session)];
    run_live(&mut runs, args, signals, no_hooks)?;
    let only_run = runs.remove(0);
    let Running { source, session, .. } = only_run;
    let report = session.finish(&source, &print_message);
    // The report is complete, so a reader of the metrics gets the final state.
    keep_serving_until_signal(args, signals);
    if let Some(failure) = source.failure()
        && report.saw_nothing()
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
    /// Opens the outputs, and prints the address of the endpoint. Called before the screen opens, so that errors and the address are
    /// visible.
    pub(crate) fn open(
        args: &LiveArgs,
        source_kind: &str,
        files: &OutputFiles,
        endpoint: Option<MetricsOptions>,
    ) -> anyhow::Result<Self> {
        let config = live_config(args);
        let sink = Sink::open(files, source_kind, &config)?;
        let header = RecordingHeader { payload: files.payload, ..RecordingHeader::for_source(source_kind, config) };
        let telemetry = Telemetry::open(endpoint, args.telemetry.push_options().as_ref(), &header, engines::FACTS)?;
        // The address that was bound, with the actual port if the user gave port 0.
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

    /// Opens the outputs of a run that joins another one, whose telemetry it shares.
    pub(crate) fn open_for_further_run(
        args: &LiveArgs,
        kind: &str,
        files: &OutputFiles,
        shared: &SharedTelemetry,
    ) -> anyhow::Result<Self> {
        let sink = Sink::open(files, kind, &live_config(args))?;
        Ok(Self { sink, ..Self::further_run_without_files(args, kind, files.payload, shared) })
    }

    /// Outputs of a further run whose files could not be opened.
    pub(crate) fn further_run_without_files(
        args: &LiveArgs,
        kind: &str,
        payload: RecordedPayload,
        shared: &SharedTelemetry,
    ) -> Self {
        let config = live_config(args);
        let telemetry = shared.add_run(&RecordingHeader { payload, ..RecordingHeader::for_source(kind, config) });
        Self { config, sink: Sink::none(kind, &config), telemetry }
    }

    /// Endpoint and push, for further runs.
    pub(crate) fn shared_telemetry(&self) -> SharedTelemetry {
        self.telemetry.shared()
    }

    pub(crate) fn into_session(self, args: &LiveArgs, observer: Box<dyn Observer>) -> Session {
        Session::new(&self.config, observer, self.sink, args.report.slowest).with_telemetry(self.telemetry)
    }
}

/// Configuration of the analysis of a live run.
pub(crate) fn live_config(args: &LiveArgs) -> Config {
    Config {
        limits: args.limits.limits(),
        engines: engines::FACTS,
        chunk_history: args.screen.chunk_history(args.outcome),
    }
}

/// Opens the screen. For a run without one, returns an observer that prints its messages.
fn open_observer(args: &LiveArgs) -> anyhow::Result<Box<dyn Observer>> {
    Ok(match open_screen_unless_headless(args)? {
        Some(screen) => Box::new(screen.into_observer()),
        None => Box::new(Progress::default()),
    })
}

/// Opens the screen; `None` for a run without one. If a run without a terminal should have had one, prints why it has none.
pub(crate) fn open_screen_unless_headless(args: &LiveArgs) -> anyhow::Result<Option<Screen>> {
    if !args.outcome.asks_for_report() {
        headless::print_why_screen_is_off();
    }
    if args.outcome.is_headless() { Ok(None) } else { Screen::open(&args.screen.options()).map(Some) }
}

/// Polls the runs, and those that join, until they end, `--duration` is over or a signal arrives. SIGHUP reloads the configuration file.
pub(crate) fn run_live<S: Source>(
    runs: &mut Vec<Running<S>>,
    args: &LiveArgs,
    signals: &Signals,
    hooks: RunHooks<'_, S>,
) -> anyhow::Result<()> {
    let mut configured = Configured::at_start(args)?;
    // Only a run with a configuration file can reload it.
    let mut reload =
        configured.as_mut().map(|configured| |session: &mut Session| reload_and_apply_config(session, configured));
    let options = RunOptions {
        // The casts shorten the lifetimes of the hooks to that of this call. The compiler does not do so inside of an `Option`.
        hooks: RunHooks {
            join: hooks.join.map(|join| join as &mut dyn FnMut() -> Option<Running<S>>),
            compare: hooks.compare.map(|compare| compare as &mut CompareRuns<'_, S>),
        },
        duration: args.duration,
        reload: reload.as_mut().map(|reload| reload as &mut dyn FnMut(&mut Session)),
        alarm: &print_message,
    };
    session::run_sessions(runs, signals, options);
    Ok(())
}

/// Keeps the final state served for as long as asked for, or until a signal.
pub(crate) fn keep_serving_until_signal(args: &LiveArgs, signals: &Signals) {
    // The signal that ended the run does not end the serving; a further one does.
    let earlier_requests = signals.end_request_count();
    args.telemetry.serve_until_linger_ends(|| signals.end_request_count() > earlier_requests);
}

/// Prints the reports and returns the exit code for `--fail-on` over all of them.
pub(crate) fn print_reports(runs: &[RunReport], outcome: OutcomeArgs) -> anyhow::Result<ExitCode> {
    let worst = worst_run(runs).context("there was no run")?;
    if runs.len() == 1 {
        return print_report(&worst.report, outcome);
    }
    let mut out = output::stdout(escape_form(outcome.json));
    if outcome.json {
        serde_json::to_writer(&mut out, &RunsReport::of_runs(runs)).map_err(std::io::Error::from)?;
        writeln!(out)?;
    } else {
        write_reports(&mut out, runs, worst)?;
    }
    out.flush()?;
    Ok(exit_code(worst.report.severity, outcome.fail_on))
}

/// Prints a message of the run on standard error.
pub(crate) fn print_message(message: &str) {
    errln!("tokengap: {message}");
}

/// Writes the verdict of the worst run, the list of all runs, and the report of each as text.
fn write_reports(out: &mut impl Write, runs: &[RunReport], worst_run: &RunReport) -> std::io::Result<()> {
    writeln!(out, "worst of {}: {}: {}\n", runs.len(), worst_run.title(), worst_run.report.verdict)?;
    writeln!(out, "{}", list_runs(runs))?;
    for run in runs {
        writeln!(out, "=== {}: {}\n", run.title(), run.state)?;
        let utc = None;
        write!(out, "{}", run.report.to_text(&Clock::of(&run.report, utc)))?;
        writeln!(out)?;
    }
    Ok(())
}

/// Prints the report and returns the exit code for `--fail-on`.
pub(crate) fn print_report(report: &Report, outcome: OutcomeArgs) -> anyhow::Result<ExitCode> {
    output::print_result(&report_text(report, outcome.json)?, escape_form(outcome.json))?;
    Ok(exit_code(report.severity, outcome.fail_on))
}

/// Exit code for `--fail-on`: 1 if the worst finding has at least that severity, otherwise 0. `worst` is `None` without findings.
pub(crate) fn exit_code(worst: Option<Severity>, fail_on: Option<Severity>) -> ExitCode {
    // `None` is less than every severity.
    ExitCode::from(u8::from(fail_on.is_some_and(|min| worst >= Some(min))))
}

/// Reads the configuration again and applies the settings that can change during a run.
fn reload_and_apply_config(session: &mut Session, configured: &mut Configured) {
    match configured.reload_and_describe_changes() {
        Ok((args, message)) => {
            session.update_limits(args.report.slowest, args.record.dump_rules());
            session.notify(message);
        }
        Err(error) => session.notify(format!("! configuration not reloaded: {error:#}")),
    }
}

/// Form in which a result is escaped, with or without `--json`.
pub(crate) fn escape_form(json: bool) -> EscapeForm {
    if json { EscapeForm::Json } else { EscapeForm::Text }
}

/// The report as it is printed.
pub(crate) fn report_text(report: &Report, json: bool) -> anyhow::Result<String> {
    Ok(if json { serde_json::to_string(report)? + "\n" } else { report.to_text(&Clock::of(report, None)) })
}
